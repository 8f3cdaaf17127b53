"""Routes, limits, refusals and probes; S7-10 and the memory side of S7-08, request cases S5-10, S5-11.
The framing table is test_framing.py, slow clients test_slow.py, many connections test_load.py."""

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import EOS, GOLDEN, SLOW, Server, read_all, read_until, script

REQUEST_ID = re.compile(r"req_[0-9a-f]{32}")
POSTS = ["/v1/completions", "/v1/chat/completions"]
GETS = ["/v1/models", "/live", "/health", "/ready", "/version"]


@pytest.fixture(scope="module")
def server(serve_module):
    """A model that writes `ab`, shared by the tests that leave no trace."""
    return serve_module(script(["a", "b", EOS], vocab=["h", "i", " "]), "--served-model-name", "toy")


def check_error(answer, status, kind, code, param=None):
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == (kind, code, param)
    assert error["message"]
    assert answer.headers["x-request-id"]
    return error


# ---- routes ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/embeddings", "/v1/responses", "/v1/messages",
                                  "/v1/completions/x", "/%2e%2e/live", "/live%00"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path(server, path, method):
    answer = server.request(method, path, b"{}" if method == "POST" else None)
    check_error(answer, 404, "invalid_request_error", "unknown_url")


@pytest.mark.parametrize("method, path", [("GET", p) for p in POSTS] + [("POST", p) for p in GETS] +
                         [("DELETE", p) for p in POSTS + GETS])
def test_wrong_method(server, method, path):
    answer = server.request(method, path, b"{}" if method == "POST" else None)
    check_error(answer, 405, "invalid_request_error", "method_not_allowed")
    allowed = {m.strip() for m in answer.headers["allow"].split(",")}
    assert ("POST" if path in POSTS else "GET") in allowed and method not in allowed


@pytest.mark.parametrize("path", GETS)
def test_head_and_options(server, path):
    head = server.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert server.request("OPTIONS", path).status == 204


@pytest.mark.parametrize("path", POSTS)
def test_slash_and_query_are_tolerated(server, path):
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    for tail in ("/", "?a=b", "/?a=b&c"):
        assert server.post(path + tail, body).text == "ab"


def test_models(server):
    listing = server.get("/v1/models").json
    assert listing["object"] == "list"
    [model] = listing["data"]
    assert set(model) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert (model["id"], model["object"], model["parent"]) == ("toy", "model", None)
    assert server.get("/v1/models/toy").json == model
    check_error(server.get("/v1/models/other"), 404, "invalid_request_error", "model_not_found", "model")


def test_probes_and_version(server):
    assert server.get("/live").json == {"status": "ok"}
    for path in ("/health", "/ready", "/healthz", "/readyz", "/livez"):
        assert server.get(path).status == 200
    version = server.get("/version").json
    assert set(version) == {"version", "commit", "backend"} and version["backend"] == "cpu"


def test_model_name(server):
    for name in ("toy", None):
        assert server.complete(model=name).json["model"] == "toy"
    for path in POSTS:
        answer = server.post(path, {"model": "other", "prompt": "x",
                                    "messages": [{"role": "user", "content": "x"}]})
        check_error(answer, 404, "invalid_request_error", "model_not_found", "model")


def test_request_id(server):
    own = server.request("GET", "/live", headers={"X-Request-Id": "a.B_9:-"})
    assert own.headers["x-request-id"] == "a.B_9:-"
    for bad in ("", "with space", "x" * 129, "ü"):
        answer = server.request("GET", "/nothing", headers={"X-Request-Id": bad.encode()})
        assert REQUEST_ID.fullmatch(answer.headers["x-request-id"])
    assert server.get("/live").headers["x-request-id"] != server.get("/live").headers["x-request-id"]


def test_whole_answer_shape(server):
    answer = server.complete("hi")
    assert set(answer.json) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert re.fullmatch(r"cmpl-[A-Za-z0-9]{29}", answer.json["id"])
    assert re.fullmatch(r"fp_[0-9a-f]{12}", answer.json["system_fingerprint"])
    assert answer.choice == {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop",
                             "stop_reason": None}
    assert answer.json["usage"]["prompt_tokens"] == 2
    chat = server.chat("hi").json
    assert re.fullmatch(r"chatcmpl-[A-Za-z0-9]{29}", chat["id"])
    message = chat["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "ab")


# ---- bodies ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b'"x"', b'{"prompt":"a"}x', b'{"prompt":"a","prompt":"b"}',
    b'{"prompt":"\xc3\x28"}', b'{"prompt":"\\ud800"}', b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":"a","temperature":Infinity}', b'{"prompt":"a","temperature":1e999}',
    b'{"prompt":"a","seed":9223372036854775808}', b'{"prompt":' + b"[" * 70 + b"]" * 70 + b"}",
])
@pytest.mark.parametrize("path", POSTS)
def test_s5_10_bodies_that_do_not_parse(server, path, body):
    error = check_error(server.post(path, body), 400, "invalid_request_error", "invalid_json")
    assert "\\xc3" not in error["message"]
    assert server.get("/health").status == 200


def test_s5_10_nul_in_text_is_a_character(server):
    answer = server.post("/v1/completions", b'{"prompt":"h\\u0000i","temperature":0}')
    assert answer.status == 200 and answer.json["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("fields, code, param", [
    ({}, "missing_required_parameter", "prompt"),
    ({"prompt": None}, "missing_required_parameter", "prompt"),
    ({"prompt": "x", "temperature": 3.5}, "invalid_value", "temperature"),
    ({"prompt": "x", "temperature": True}, "invalid_type", "temperature"),
    ({"prompt": "x", "max_tokens": "12"}, "invalid_type", "max_tokens"),
    ({"prompt": "x", "stream": "yes"}, "invalid_type", "stream"),
    ({"prompt": "x", "top_p": 1.01}, "invalid_value", "top_p"),
    ({"prompt": "x", "top_k": -2}, "invalid_value", "top_k"),
    ({"prompt": "x", "min_p": -0.1}, "invalid_value", "min_p"),
    ({"prompt": "x", "stop": ["a"] * 17}, "invalid_value", "stop"),
    ({"prompt": "x", "logprobs": 3}, "unsupported_parameter", "logprobs"),
    ({"prompt": "x", "n": 17}, "invalid_value", "n"),
    ({"prompt": ["x"] * 65, "n": 2}, "invalid_value", "n"),
    ({"prompt": "x", "best_of": 2}, "unsupported_parameter", "best_of"),
    ({"prompt": "x", "frequency_penalty": 2.5}, "invalid_value", "frequency_penalty"),
    ({"prompt": "x", "logit_bias": {"99999999": 5}}, "invalid_value", "logit_bias"),
    ({"prompt": "x", "cache_salt": "s" * 129}, "invalid_value", "cache_salt"),
    ({"prompt": "x", "priority": 1}, "invalid_value", "priority"),
    ({"prompt": "x", "suffix": "y"}, "unsupported_parameter", "suffix"),
])
def test_refused_fields(server, fields, code, param):
    check_error(server.post("/v1/completions", fields), 400, "invalid_request_error", code, param)


def test_fields_at_their_defaults_are_accepted(server):
    answer = server.complete("hi", n=1, frequency_penalty=0, presence_penalty=0, repetition_penalty=1,
                             logit_bias={}, logprobs=None, echo=False, best_of=1, user="me",
                             max_tokens=16.0, seed=None, response_format={"type": "text"})
    assert answer.text == "ab"


def test_s5_11_without_a_seed_texts_differ(serve):
    server = serve({"vocab": ["a", "b", "c", "d", EOS], "eos": [4], "target": {"": {
        "0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0}}})
    with ThreadPoolExecutor(8) as pool:
        ask = lambda _, **more: server.complete(max_tokens=24, temperature=1, **more).text
        assert len(set(pool.map(ask, range(8)))) > 1
        assert len(set(pool.map(lambda n: ask(n, seed=7), range(8)))) == 1


def test_body_over_the_limit(server):
    """The client writes all of it before it reads, and still gets its answer."""
    size = 33 << 20
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % size)
    for _ in range(33):
        connection.sendall(b"x" * (1 << 20))
    answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413") and b"x-request-id" in head.lower()
    assert json.loads(body)["error"]["code"] == "request_too_large"


def test_body_limit_flag_and_chunked_bodies(serve):
    server = serve(script(["a", EOS]), "--max-body-bytes", "2K")
    assert server.complete("x" * 1900).status == 200
    assert server.complete("x" * 2048).status == 413
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n800\r\n" + b"x" * 2048 + b"\r\n")
    assert read_all(connection).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("headers, status, code", [
    ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
    ({"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    ({"X-Big": "x" * 33000}, 431, "headers_too_large"),
])
def test_refused_headers(server, headers, status, code):
    answer = server.request("POST", "/v1/completions", b'{"prompt":"x"}', headers=headers)
    assert answer.status == status
    if "json" in answer.headers["content-type"]:
        check_error(answer, status, "invalid_request_error", code)


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "x/y; z"])
def test_any_other_content_type(server, content_type):
    answer = server.request("POST", "/v1/completions", b'{"prompt":"x","temperature":0}',
                            headers={"Content-Type": content_type})
    assert answer.text == "ab"


# ---- framing --------------------------------------------------------------------------------------

def test_s7_10_chunked_body_in_one_byte_chunks(server):
    body = b'{"prompt":"hi","temperature":0}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
                            b"Connection: close\r\n\r\n" + chunks)
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200") and b'"text":"ab"' in answer


def test_s7_10_post_without_length_is_empty(server):
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n\r\n")
    started = time.monotonic()
    answer = read_until(connection, b"}")
    assert answer.startswith(b"HTTP/1.1 400") and b"invalid_json" in answer
    assert time.monotonic() - started < 1 * SLOW


def test_s7_10_expect_100_continue(server):
    body = b'{"prompt":"hi","temperature":0}'
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
                            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
    connection.sendall(body)
    assert b'"text":"ab"' in read_all(connection)


@pytest.mark.parametrize("size", [b"80000000", b"FFFFFFFFFFFFFFFF"])
def test_s7_08_huge_chunks_take_no_memory(server, size):
    """Legal in form: the body limit answers once too much has come; until then nothing is taken."""
    before = server.memory()
    connection = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
                            + size + b"\r\n" + b"x" * 10000)
    assert server.get("/health").status == 200 and server.complete("hi").text == "ab"
    assert server.memory() - before < 64 << 20
    connection.close()


def test_keep_alive_serves_many_requests(server):
    connection = server.connect()
    for n in range(50):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "hi", "temperature": 0}))
        assert json.loads(connection.getresponse().read())["choices"][0]["text"] == "ab"
        connection.request("GET", ["/live", "/nothing", "/v1/models"][n % 3])
        connection.getresponse().read()
    connection.close()


def test_many_connections_at_once(server):
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: server.complete("hi"), range(256)))
    assert {a.text for a in answers} == {"ab"}
    assert len({a.json["id"] for a in answers}) == 256


# ---- overload, loading, failure -------------------------------------------------------------------

def test_full_queue_is_429(serve):
    server = serve(script(["a"] * 100, step_ms=20), "--max-num-seqs", 1, "--max-queued-requests", 2)
    with ThreadPoolExecutor(3) as pool:
        taken = [pool.submit(server.complete, max_tokens=40) for _ in range(3)]
        server.wait_gauges(lambda g: (g["running"], g["waiting"]) == (1, 2), what="full")
        for streaming in (False, True):
            answer = server.post("/v1/completions", {"prompt": "x", "stream": streaming})
            check_error(answer, 429, "overloaded_error", "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert int(answer.headers["retry-after-ms"]) > 0
        assert server.get("/ready").status == 200, "a full queue does not clear readiness"
        assert {f.result().text for f in taken} == {"a" * 40}
    assert server.complete(max_tokens=1).text == "a"
    server.wait_idle()


def test_no_queue_at_all(serve):
    server = serve(script(["a"] * 100, step_ms=20), "--max-num-seqs", 1, "--max-queued-requests", 0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.complete, max_tokens=20)
        server.wait_running()
        assert server.complete().status == 429
        assert first.result().status == 200


def test_loading_is_503(serve):
    server = serve(script(["a", EOS], load_ms=1500), ready=False)
    assert server.get("/live").status == 200
    for path in ("/health", "/ready"):
        answer = server.get(path)
        assert answer.status == 503
        assert answer.json["status"] == "loading" and 0 <= answer.json["progress"] <= 1
        assert answer.json["phase"] in ("open", "weights", "cache", "warmup")
    answer = server.complete()
    check_error(answer, 503, "unavailable_error", "model_loading")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    server.wait_ready()
    assert server.complete().text == "a"


def test_device_failure_fails_all_and_ends_the_process():
    server = Server(script(["a"] * 50, step_ms=10, fail={"at_output": 20, "kind": "device"}))
    try:
        with ThreadPoolExecutor(2) as pool:
            stream = pool.submit(server.stream, max_tokens=40)
            whole = pool.submit(server.complete, max_tokens=40)
            stream = stream.result()
            assert not stream.done and stream.error["code"] in ("internal_error", "engine_failed")
            assert whole.result().status in (500, 503)
        assert server.process.wait(10 * SLOW) == 1
        server.check_log()
        failed = [line for line in server.log().splitlines() if "event=engine_failed" in line]
        assert len(failed) == 1 and "level=error" in failed[0]
        assert 'fault="the script says so"' in failed[0]
    finally:
        server.kill()


def test_chat_without_a_template_is_400(serve, tmp_path):
    model = shutil.copytree(GOLDEN / "qwen2-single-standard-none", tmp_path / "model")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    server = serve(model)
    assert server.chat("hi").status == 400
    assert server.complete("hi", max_tokens=1).status == 200
