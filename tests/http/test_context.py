"""Kind 6: context limits, and requests larger than the page pool."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import GOLDEN, SCRIPTED_PAGE_BYTES, script

CHAT = "/v1/chat/completions"
ENDLESS = {"target": {"": {"0": 10.0}}, "vocab": ["a", {"special": "<eos>"}]}
F32 = ("--dtype", "f32", "--kv-dtype", "f32")


def endless(**more):
    """A model that writes `a` for ever."""
    return script(**(ENDLESS | more))


@pytest.mark.parametrize("body", [{"prompt": ""}, {"prompt": [""]}, {"prompt": []}, {"prompt": [[]]}])
@pytest.mark.parametrize("streaming", [False, True])
def test_s6_01_empty_prompt_without_a_start_token(serve, body, streaming):
    server = serve(endless())
    answer = server.post("/v1/completions", body | {"stream": streaming})
    assert answer.status == 400 and answer.error["param"].startswith("prompt")
    assert server.complete(max_tokens=2).text == "aa"


def test_s6_01_empty_messages(serve):
    server = serve(endless())
    answer = server.post(CHAT, {"messages": []})
    assert answer.status == 400 and answer.error["param"] == "messages"
    assert server.get("/health").status == 200


def test_s6_01_empty_prompt_with_a_start_token(serve):
    server = serve(GOLDEN / "llama-orthros-standard-none", *F32)
    whole, _ = server.both(prompt="", max_tokens=3, ignore_eos=True)
    assert whole.json["usage"]["prompt_tokens"] == 1
    assert whole.json["usage"]["completion_tokens"] == 3


def test_s6_01_empty_prompt_on_a_real_tokenizer_without_a_start_token(serve):
    server = serve(GOLDEN / "qwen3-single-standard-none", *F32)
    assert server.complete("").status == 400


@pytest.mark.parametrize("block_size", [0, 8])
def test_s6_02_prompt_at_the_edge_of_the_context(serve, block_size):
    server = serve(endless(context=64, block_size=block_size))
    whole, _ = server.both(prompt=[0] * 63)
    assert (whole.text, whole.choice["finish_reason"]) == ("a", "length")
    for n in (64, 65, 1000):
        for streaming in (False, True):
            answer = server.post("/v1/completions", {"prompt": [0] * n, "stream": streaming})
            assert answer.status == 400
            assert answer.headers["content-type"] == "application/json"
            assert answer.error["code"] == "context_length_exceeded"
            assert {str(n), "64"} <= set(re.findall(r"\d+", answer.error["message"]))
    answer = server.chat("a" * 64)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("flags", [(), ("--window", 8)])
def test_s6_03_request_larger_than_the_pool(serve, flags):
    """The context is lowered to what 8 pages hold: the first request stops at the pool's edge, the
    second is refused at once."""
    server = serve(endless(context=256), "--kv-memory", 8 * SCRIPTED_PAGE_BYTES, *flags)
    assert server.get("/v1/models").json["data"][0]["max_model_len"] == 128
    whole, _ = server.both(prompt=[0] * 100, max_tokens=100)
    assert whole.choice["finish_reason"] == "length"
    assert whole.json["usage"]["completion_tokens"] == 28
    assert server.trace()[-1]["pages_total"] == 8
    answer = server.complete([0] * 140)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    server.wait_idle()


@pytest.mark.parametrize("flags", [(), ("--drafts", "off"), ("--drafts", 8)])
def test_s6_04_room_is_counted_without_the_drafts(serve, flags):
    server = serve(endless(context=64, block_size=8), *flags)
    for n in range(56, 64):
        # Chat has the room left as its default; a completion asks for more than there is.
        answers = [server.chat("a" * n), server.complete([0] * n, max_tokens=1000)]
        for answer in answers:
            usage = answer.json["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n, 64 - n)
            assert answer.text == "a" * (64 - n)
            assert answer.choice["finish_reason"] == "length"
    server.wait_idle()


@pytest.mark.parametrize("huge", [2147483647, 2147483648, 9223372036854775807, 1e18])
def test_s5_07_very_large_max_tokens_is_lowered_to_the_room(serve, huge):
    server = serve(endless(context=64))
    for answer in (server.complete("a", max_tokens=huge), server.chat("a", max_tokens=huge)):
        assert answer.json["usage"]["completion_tokens"] == 63
    answer = server.post("/v1/completions", b'{"prompt":"a","max_tokens":18446744073709551616}')
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_max_model_len_flag_lowers_the_context(serve):
    server = serve(endless(context=64), "--max-model-len", 20)
    assert server.complete([0] * 19).json["usage"]["completion_tokens"] == 1
    assert server.complete([0] * 20).status == 400
    assert server.get("/v1/models").json["data"][0]["max_model_len"] == 20


def test_a_context_of_one_page_needs_no_memory_named(serve):
    """One sequence of 16 tokens would fill one page; the pool has its least number of them."""
    server = serve(endless(context=64), "--max-model-len", 16, "--max-num-seqs", 1)
    whole, _ = server.both(prompt=[0] * 10, max_tokens=100)
    assert whole.json["usage"]["completion_tokens"] == 6
    assert server.complete([0] * 16).status == 400
    server.wait_idle()


@pytest.mark.parametrize("block_size", [0, 8])
def test_pool_smaller_than_the_load_preempts_and_answers_right(serve, block_size):
    """More sequences than the pages hold: they wait or are recomputed, and every text is right."""
    letters = [chr(ord("a") + i % 26) for i in range(120)]
    server = serve(script(letters, context=256, block_size=block_size), "--kv-memory",
                   20 * SCRIPTED_PAGE_BYTES)
    with ThreadPoolExecutor(12) as pool:
        # Equal prompts would share their pages.
        answers = list(pool.map(lambda n: server.complete([n % 26] * 20, max_tokens=60 + n % 50), range(36)))
    for n, answer in enumerate(answers):
        assert answer.text == "".join(letters[:60 + n % 50])
    assert sum(step["preempted"] for step in server.trace()) > 0
    server.wait_idle()
