"""Kind 1: SSE framing and the end of a stream."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import EOS, SLOW, script

ROUTES = ["/v1/completions", "/v1/chat/completions"]
LETTERS = [chr(ord("a") + i) for i in range(20)]


@pytest.mark.parametrize("path", ROUTES)
def test_s1_01_usage_chunk_follows_include_usage(serve, path):
    server = serve(script(["a", "b", "c", "d"]))
    asked = server.stream(path, max_tokens=3)
    assert asked.done
    *earlier, last = asked.chunks
    assert last["choices"] == [] and asked.raw.count(b'"usage":{') == 1
    usage = last["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    assert all("usage" in c and c["usage"] is None for c in earlier)

    for absent in (..., None, {"include_usage": False}):
        stream = server.stream(path, max_tokens=3, stream_options=absent)
        assert stream.done and b'"usage"' not in stream.raw
        assert all(c["choices"] for c in stream.chunks)

    refused = server.stream(path, stream=False, max_tokens=3)
    assert refused.status == 400
    assert (refused.error["code"], refused.error["param"]) == ("invalid_value", "stream_options")


@pytest.mark.parametrize("path", ROUTES)
def test_s1_01_continuous_usage_is_on_every_chunk(serve, path):
    server = serve(script(["a", "b", "c", "d"]))
    stream = server.stream(path, max_tokens=3,
                           stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [c["usage"]["completion_tokens"] for c in stream.chunks]
    assert counts == sorted(counts) and counts[-1] == 3


@pytest.mark.parametrize("block_size", [0, 8])
def test_s1_02_every_stream_ends_with_done_and_eof(serve, block_size):
    server = serve(script(LETTERS, block_size=block_size))
    ends = [
        ({"max_tokens": 64}, "".join(LETTERS), "stop"),
        ({"max_tokens": 1}, "a", "length"),
        ({"max_tokens": 64, "ignore_eos": True}, "".join(LETTERS), "length"),
        ({"max_tokens": 64, "stop": ["cd"]}, "ab", "stop"),
        ({"max_tokens": 64, "stop": ["k"]}, "abcdefghij", "stop"),
    ]
    late = []

    def one(i):
        fields, text, reason = ends[i % len(ends)]
        live = server.open_stream(ROUTES[i % 2], **fields)
        done_at = None
        for at, block in live.blocks():
            if block == b"data: [DONE]":
                done_at = at
        late.append(time.monotonic() - live.started - done_at)
        stream = live.finish()  # holds the grammar
        assert stream.done and (stream.text, stream.finish_reason) == (text, reason)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))
    assert len(late) == 200 and max(late) < 1 * SLOW
    server.wait_idle()


@pytest.mark.parametrize("path", ROUTES)
def test_s1_03_error_after_the_headers_is_a_data_event(serve, path):
    server = serve(script(["a", "b", "c", "d"], fail={"at_output": 2, "kind": "request"}))
    stream = server.stream(path, max_tokens=4)
    assert stream.text == "ab"
    assert not stream.done and not stream.ended_well
    assert "error" in stream.events[-1] and len([e for e in stream.events if "error" in e]) == 1
    assert set(stream.error) == {"message", "type", "param", "code"}
    assert (stream.error["type"], stream.error["code"]) == ("server_error", "internal_error")
    assert set(stream.finish_reasons) == {None}

    whole = server.post(path, {"prompt": "x", "messages": [{"role": "user", "content": "x"}],
                               "max_tokens": 4, "temperature": 0})
    assert (whole.status, whole.error["code"]) == (500, "internal_error")
    assert whole.headers["x-should-retry"] == "false"
    # Nobody else is hurt: a request that ends earlier still gets its answer.
    assert server.get("/health").status == 200
    assert server.complete(max_tokens=2).text == "ab"
    server.wait_idle()


def test_s1_03_one_failed_request_leaves_its_batch_alone(serve):
    server = serve(script(LETTERS, step_ms=20, fail={"at_output": 10, "kind": "request"}))
    with ThreadPoolExecutor(8) as pool:
        short = [pool.submit(server.complete, max_tokens=9) for _ in range(4)]
        long = [pool.submit(server.complete, max_tokens=15) for _ in range(4)]
        assert {f.result().text for f in short} == {"abcdefghi"}
        assert {f.result().status for f in long} == {500}
    server.wait_idle()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("block_size", [0, 4])
def test_s1_04_finish_reason_is_null_until_the_last_chunk(serve, path, block_size):
    server = serve(script(["a", "b", "c"], block_size=block_size))
    stream = server.stream(path, max_tokens=2)
    reasons = stream.finish_reasons
    assert reasons[-1] == "length" and len(reasons) >= 2
    assert all(r is None for r in reasons[:-1])
    # The finish chunk carries the reason, the stop reason and no text.
    last = stream.of_choice()[-1]
    assert last["stop_reason"] is None
    assert (last["delta"] == {}) if "chat" in path else (last["text"] == "")


@pytest.mark.parametrize("path", ROUTES)
def test_s1_04_chat_opens_with_the_role(serve, path):
    server = serve(script(["a", EOS]))
    first = server.stream(path).of_choice()[0]
    if "chat" in path:
        assert first["delta"] == {"role": "assistant", "content": ""}
    else:
        assert first["text"] == "a"


def test_s1_05_comments_fill_the_silence_of_a_long_prefill(serve):
    server = serve(script(["a", "b"], prefill_ms_per_token=350), "--sse-keepalive", 1)
    live = server.open_stream(prompt=[0] * 10, max_tokens=2, timeout=2)
    assert live.headers_after < 1 * SLOW
    blocks = list(live.blocks())
    first_data = next(i for i, (_, block) in enumerate(blocks) if block.startswith(b"data:"))
    assert [b for _, b in blocks[:first_data]] == [b": keep-alive"] * first_data
    assert first_data >= 2, "a comment a second in 3.5 s of silence"
    assert blocks[first_data][0] > 3
    assert live.finish().text == "ab"


def test_s1_05_comments_also_while_queued(serve):
    server = serve(script(["a"] * 30, step_ms=80), "--sse-keepalive", 1, "--max-num-seqs", 1)
    running = server.open_stream(max_tokens=30)
    waiting = server.open_stream(max_tokens=1, timeout=2)
    assert waiting.headers_after < 1 * SLOW
    stream = waiting.finish()
    assert stream.comments and set(stream.comments) == {b": keep-alive"}
    assert stream.text == "a"
    running.finish()


def test_s1_05_no_comments_when_off_or_not_streaming(serve):
    server = serve(script(["a"], prefill_ms_per_token=300), "--sse-keepalive", 1)
    whole = server.complete([0] * 5, max_tokens=1)
    assert whole.body.startswith(b"{") and whole.text == "a"
    assert int(whole.headers["content-length"]) == len(whole.body)
    server = serve(script(["a"], prefill_ms_per_token=300), "--sse-keepalive", 0)
    assert server.stream(prompt=[0] * 5, max_tokens=1).comments == []


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("block_size", [0, 8])
def test_s1_06_stream_and_whole_agree_on_length(serve, path, block_size):
    server = serve(script(LETTERS, block_size=block_size))
    whole, stream = server.both(path, max_tokens=4)
    assert whole.text == "abcd"
    assert stream.finish_reason == "length"
    assert stream.usage["completion_tokens"] == 4


def test_headers_of_a_stream(serve):
    server = serve(script(["a"]))
    stream = server.stream()
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.headers["x-request-id"].startswith("req_")
    assert stream.chunks[0]["id"].startswith("cmpl-") and len(stream.chunks[0]["id"]) == 34
    chat = server.stream("/v1/chat/completions").chunks[0]
    assert chat["id"].startswith("chatcmpl-") and len(chat["id"]) == 38


def test_tokens_of_one_step_travel_in_one_chunk(serve):
    """A step that keeps k drafts gives one chunk with all of them."""
    server = serve(script(LETTERS, block_size=8), "--drafts", 8)
    stream = server.stream(max_tokens=17)
    assert [p for p in stream.pieces() if p] == ["a", "bcdefghi", "jklmnopq"]


def test_ids_travel_with_their_text(serve):
    server = serve(script(["a", {"hex": "E2"}, {"hex": "82AC"}, "b", EOS]))
    stream = server.stream(return_token_ids=True)
    with_ids = [(c["text"], c["token_ids"]) for c in stream.of_choice() if c.get("token_ids")]
    assert with_ids[:3] == [("a", [0]), ("€", [1, 2]), ("b", [3])]
    assert stream.token_ids[:4] == [0, 1, 2, 3]


def test_many_streams_on_one_connection_after_another(serve):
    """Keep-alive and pipelining after a stream."""
    server = serve(script(["a", "b"]))
    body = {"prompt": "x", "stream": True, "temperature": 0}
    connection = server.raw(server.raw_post("/v1/completions", body) * 3)
    data = b""
    while data.count(b"data: [DONE]\n\n") < 3 or not data.endswith(b"0\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    assert data.count(b"HTTP/1.1 200") == 3
    connection.close()


def test_http_10_has_no_chunking_and_closes(serve):
    server = serve(script(["a", "b"]))
    body = json.dumps({"prompt": "x", "stream": True, "temperature": 0}).encode()
    connection = server.raw(b"POST /v1/completions HTTP/1.0\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
                            % len(body) + body)
    data = b""
    while piece := connection.recv(65536):
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


def test_a_slow_reader_gets_all_of_it(serve):
    server = serve(script([f"piece {i} " for i in range(300)]), "--max-model-len", 2000)
    live = server.open_stream(max_tokens=400)
    stopper = threading.Event()
    for n, _ in enumerate(live.blocks()):
        if n % 50 == 0:
            stopper.wait(0.02)
    assert live.finish().text == "".join(f"piece {i} " for i in range(300))
