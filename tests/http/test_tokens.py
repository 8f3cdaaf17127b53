"""/tokenize, /detokenize and the render routes: the same ids as generation and as the command line,
while the engine is busy, without asking it for anything."""

import json
import time

import pytest
from geryon import GOLDEN, SLOW, run_cli, script

MODEL = GOLDEN / "qwen3-single-standard-none"
TEXTS = ["", "Hello, world", "Hello, wörld!\n日本 😀 don't", " ", "<|im_start|>user\n<|im_end|>", "\u0000a"]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> \u00e9"}]


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(MODEL, "--max-model-len", 200)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize("text", TEXTS)
def test_tokenize_gives_the_command_lines_ids(server, path, text):
    answer = server.post(path, {"prompt": text}).json
    assert list(answer) == ["count", "max_model_len", "tokens", "token_strs"]
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 200
    assert answer["token_strs"] is None
    if "\0" not in text:
        ids = json.loads(run_cli("tokenize", "--model", MODEL, stdin=text.encode()).stdout)
        assert answer["tokens"] == ids
    assert server.post(path, {"content": text}).json == answer
    back = server.post(path.replace("tokenize", "detokenize"), {"tokens": answer["tokens"]}).json
    assert back == {"prompt": text, "content": text}


def test_token_strs(server):
    answer = server.post("/tokenize", {"prompt": "Hi there<|im_end|>", "return_token_strs": True}).json
    assert len(answer["token_strs"]) == answer["count"]
    assert "".join(answer["token_strs"]) == "Hi there<|im_end|>" == "".join(answer["token_strs"][:-1]) + "<|im_end|>"
    assert server.post("/tokenize", {"prompt": "", "return_token_strs": True}).json["token_strs"] == []
    split = server.post("/tokenize", {"prompt": "😀", "return_token_strs": True}).json
    assert len(split["token_strs"]) == split["count"]


def test_longer_than_the_context_is_no_fault_here(server):
    answer = server.post("/tokenize", {"prompt": "a b c d " * 2000}).json
    assert answer["count"] > 200
    assert server.post("/v1/completions/render", {"prompt": "a b c d " * 2000}).error["code"] == \
        "context_length_exceeded"


def test_render_is_what_generation_uses(server):
    for body in [{"prompt": "Hello"}, {"prompt": ["a b", "c"]}, {"prompt": [5, 6, 7]}, {"prompt": [[1], [2, 3]]},
                 {"prompt": "<|im_start|>x", "add_special_tokens": False, "stream": True, "seed": 4}]:
        rendered = server.post("/v1/completions/render", body, headers={"X-Request-Id": "r1"})
        assert rendered.status == 200 and rendered.headers["x-request-id"] == "r1"
        whole = server.post("/v1/completions", body | {"max_tokens": 1, "return_token_ids": True, "stream": False})
        prompts = [choice["prompt_token_ids"] for choice in whole.json["choices"]]
        assert rendered.json == [{"request_id": "r1", "token_ids": ids} for ids in prompts]
    for more in [{}, {"add_generation_prompt": False}]:
        body = {"messages": MESSAGES} | more
        rendered = server.post("/v1/chat/completions/render", body).json
        whole = server.post("/v1/chat/completions", body | {"max_tokens": 1, "return_token_ids": True}).json
        assert rendered["token_ids"] == whole["choices"][0]["prompt_token_ids"]
        assert rendered["request_id"].startswith("req_")
        assert server.post("/tokenize", body).json["tokens"] == rendered["token_ids"]


@pytest.mark.parametrize("path, body, code, param", [
    ("/tokenize", {}, "missing_required_parameter", "prompt"),
    ("/tokenize", {"prompt": None}, "missing_required_parameter", "prompt"),
    ("/tokenize", {"prompt": ["a"]}, "invalid_type", "prompt"),
    ("/tokenize", {"content": 5}, "invalid_type", "content"),
    ("/tokenize", {"prompt": "a", "content": "a"}, "invalid_value", "content"),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "invalid_value", "messages"),
    ("/tokenize", {"messages": []}, "invalid_value", "messages"),
    ("/tokenize", {"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "invalid_type", "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "invalid_type", "return_token_strs"),
    ("/tokenize", {"prompt": "a", "model": "nobody"}, "model_not_found", "model"),
    ("/tokenize", {"messages": MESSAGES, "tools": [{}]}, "unsupported_parameter", "tools"),
    ("/tokenize", b"{", "invalid_json", None),
    ("/tokenize", [], "invalid_json", None),
    ("/detokenize", {}, "missing_required_parameter", "tokens"),
    ("/detokenize", {"tokens": "1"}, "invalid_type", "tokens"),
    ("/detokenize", {"tokens": [1, "2"]}, "invalid_type", "tokens"),
    ("/detokenize", {"tokens": [True]}, "invalid_type", "tokens"),
    ("/detokenize", {"tokens": [-1]}, "invalid_value", "tokens"),
    ("/detokenize", {"tokens": [1.5]}, "invalid_type", "tokens"),
    ("/detokenize", {"tokens": [2 ** 40]}, "invalid_value", "tokens"),
    ("/v1/completions/render", {}, "missing_required_parameter", "prompt"),
    ("/v1/completions/render", {"prompt": "x", "temperature": 3}, "invalid_value", "temperature"),
    ("/v1/chat/completions/render", {"messages": [{"role": "none", "content": "x"}]}, "invalid_value",
     "messages[0].role"),
])
def test_faults(server, path, body, code, param):
    answer = server.post(path, body)
    assert answer.status in (400, 404)
    assert (answer.error["code"], answer.error["param"]) == (code, param)


def test_bounds_of_ids(server):
    last = json.loads((MODEL / "config.json").read_text())["vocab_size"] - 1
    assert server.post("/detokenize", {"tokens": [0, last]}).status == 200
    assert server.post("/detokenize", {"tokens": [last + 1]}).status == 400
    assert server.post("/detokenize", {"tokens": []}).json == {"prompt": "", "content": ""}
    assert server.post("/detokenize", {"tokens": [16.0]}).status == 200  # a whole real is an integer
    assert server.get("/tokenize").status == 405
    large = server.post("/tokenize", {"prompt": "word " * 20000})  # parsed on the pool
    assert large.json["count"] >= 20000


def test_keys_loading_and_a_busy_engine(serve):
    keyed = serve(script(list("abc")), "--api-key", "k", "--strict-params")
    for path in ("/tokenize", "/detokenize", "/v1/tokenize", "/v1/completions/render"):
        assert keyed.post(path, {"prompt": "x"}).status == 401
    key = {"Authorization": "Bearer k"}
    assert keyed.post("/tokenize", {"prompt": "a", "odd": 1}, headers=key).error["code"] == "unknown_parameter"
    assert keyed.post("/tokenize", {"prompt": "a", "tokens": []}, headers=key).error["code"] == "unknown_parameter"

    loading = serve(script(list("abc"), load_ms=800), ready=False)
    early = loading.post("/tokenize", {"prompt": "a"})
    assert (early.status, early.error["code"]) == (503, "model_loading")

    busy = serve(script(list("abc"), step_ms=1000), "--max-num-seqs", 1, "--max-queued-requests", 0)
    live = busy.open_stream(max_tokens=3)
    busy.wait_running(1)
    started = time.monotonic()
    for _ in range(5):
        assert busy.post("/tokenize", {"prompt": "abc"}).json["tokens"] == [0, 1, 2]
        assert busy.post("/v1/completions/render", {"prompt": "ab"}).json[0]["token_ids"] == [0, 1]
    assert time.monotonic() - started < 0.9 * SLOW
    live.close()
