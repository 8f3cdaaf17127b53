"""S7-09: SIGTERM drains, a second one ends at once."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import SLOW, read_until, script

LETTERS = [chr(97 + i % 26) for i in range(60)]
TEXT = "".join(LETTERS)


def wait_status(server, path, status):
    until = time.monotonic() + 5 * SLOW
    while (answer := server.get(path)).status != status:
        assert time.monotonic() < until, answer.body
        time.sleep(0.01)
    return answer


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_s7_09_drain(start, sig):
    """4 streams run, 2 requests wait. Running ones end well, new ones are refused, exit 0."""
    server = start(script(LETTERS, step_ms=25), "--max-num-seqs", 4)
    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(server.stream, max_tokens=60, timeout=60) for _ in range(4)]
        server.wait_running(4)
        queued = [pool.submit(server.stream, max_tokens=1, timeout=60) for _ in range(2)]
        server.wait_gauges(lambda g: g["waiting"] == 2, what="2 waiting")
        server.process.send_signal(sig)
        ready = wait_status(server, "/ready", 503)
        assert ready.json["status"] == "draining"
        assert server.get("/live").status == 200
        refused = server.complete(max_tokens=1)
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert refused.error["type"] == "unavailable_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        for stream in (f.result() for f in streams):
            assert stream.done and stream.text == TEXT
        for stream in (f.result() for f in queued):
            assert stream.done or stream.error["code"] == "shutting_down"
    assert server.process.wait(10 * SLOW) == 0


def test_s7_09_deadline_ends_streams_with_an_error_event(start):
    server = start(script(LETTERS, step_ms=200), "--shutdown-timeout", 1)
    with ThreadPoolExecutor(3) as pool:
        stream = pool.submit(server.stream, max_tokens=60, timeout=60)
        whole = pool.submit(server.complete, max_tokens=60)
        server.wait_running(2)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        cut = stream.result()
        assert not cut.done and cut.error["code"] == "shutting_down"
        assert whole.result().status == 503
    assert server.process.wait(10 * SLOW) == 0
    assert 0.8 < time.monotonic() - started < 4 * SLOW


def test_s7_09_second_signal_exits_at_once(start):
    server = start(script(LETTERS, step_ms=200))
    live = server.open_stream(max_tokens=60)
    next(live.blocks())
    server.process.send_signal(signal.SIGTERM)
    wait_status(server, "/ready", 503)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(5 * SLOW)
    assert time.monotonic() - started < 1 * SLOW
    live.close()


def test_idle_server_exits_at_once(start):
    server = start(script(["a"]))
    idle = [server.raw(b"") for _ in range(10)]
    half = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5 * SLOW) == 0
    assert time.monotonic() - started < 2 * SLOW
    for connection in [*idle, half]:
        connection.close()


def test_signal_while_loading(start):
    server = start(script(["a"], load_ms=3000), ready=False)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(5 * SLOW) == 0
    assert time.monotonic() - started < 2 * SLOW


def test_full_house_of_every_kind(start):
    """Streams, queued ones, idle and half-sent connections; hard stop by two signals, then a drain."""
    for signals in (1, 2):
        server = start(script(LETTERS, step_ms=5), "--max-num-seqs", 10)
        body = {"prompt": "x", "max_tokens": 60, "temperature": 0}
        streams = [server.raw(server.raw_post("/v1/completions", body | {"stream": True})) for _ in range(10)]
        for connection in streams:
            read_until(connection, b"200 OK")
        queued = [server.raw(server.raw_post("/v1/completions", body | {"stream": i % 2 == 0}))
                  for i in range(20)]
        idle = [server.raw(b"") for _ in range(10)]
        half = [server.raw(server.raw_post("/v1/completions", body)[:-3]) for _ in range(5)]
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        status = server.process.wait(10 * SLOW)
        assert status == 0 or signals == 2
        for connection in [*streams, *queued, *idle, *half]:
            connection.close()
