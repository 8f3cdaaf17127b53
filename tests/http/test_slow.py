"""Slow clients and silent ones, with the server's times scaled down by its own flags: S7-04, the closing
half of S7-05, S7-06."""

import itertools
import json
import os
import re
import select
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from geryon import EOS, SLOW, read_all, script

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
TIME = 1.0 * SLOW  # each limit of the shared server, in seconds


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(script(["a", "b", EOS], vocab=["x"]), "--header-timeout", TIME,
                        "--body-timeout", TIME, "--idle-timeout", 1.5 * TIME)


def watch(connections, drip=b"", pause=0.1, limit_s=6 * SLOW):
    """Drip bytes into all until the server has ended each. Returns per connection what it said and
    after how many seconds it was closed."""
    started, sent = time.monotonic(), 0
    said, closed = [b""] * len(connections), [None] * len(connections)
    for connection in connections:
        connection.setblocking(False)
    while None in closed:
        now = time.monotonic() - started
        assert now < limit_s, f"{closed.count(None)} still open"
        if sent * pause <= now:
            for i, connection in enumerate(connections):
                if closed[i] is None and sent < len(drip):
                    try:
                        connection.send(drip[sent:sent + 1])
                    except OSError:
                        pass
            sent += 1
        live = {c: i for i, c in enumerate(connections) if closed[i] is None}
        for connection in select.select(list(live), [], [], 0.02)[0]:
            try:
                piece = connection.recv(65536)
            except OSError:
                piece = b""
            said[live[connection]] += piece
            if not piece:
                closed[live[connection]] = time.monotonic() - started
    for connection in connections:
        connection.close()
    return said, closed


def check_408(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"\r\nX-Request-Id: req_" in head, answer
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")


BODY = b'{"prompt":"' + b"x" * 8000
LENGTH = b"Content-Length: 10000\r\n\r\n"


def test_s7_06_one_byte_at_a_time(server):
    """64 connections drip a header, 64 a body (by length and in chunks); all end by 408 in time, and
    others are served meanwhile."""
    slow = [server.raw(HEAD + b"X: ") for _ in range(64)]
    slow += [server.raw(HEAD + LENGTH) for _ in range(32)]
    slow += [server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1000\r\n") for _ in range(32)]
    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watch, slow, b"x" * 1000)
        worst = 0
        while not watched.done():
            started = time.monotonic()
            assert server.get("/health").status == 200 and server.complete().text == "ab"
            worst = max(worst, time.monotonic() - started)
            time.sleep(0.02)
    said, closed = watched.result()
    for answer in said:
        check_408(answer)
    assert worst < 1 * SLOW
    assert 0.9 * TIME < min(closed) and max(closed) < 2.5 * TIME, (min(closed), max(closed))


@pytest.mark.parametrize("sent", [HEAD, HEAD + b"X", HEAD + LENGTH, HEAD + LENGTH + b"{",
                                  HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
                                  HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"])
def test_silence_inside_a_request_is_408(server, sent):
    [answer], [seconds] = watch([server.raw(sent)])
    check_408(answer)
    assert 0.9 * TIME < seconds < 2 * TIME


def test_fast_enough_bodies_pass(server):
    """2 KiB a second over several body timeouts, in dribs."""
    body = b'{"prompt":"' + b"x" * 6000 * SLOW + b'","temperature":0}'
    connection = server.raw(HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
    step, pause = 200, 0.1
    started = time.monotonic()
    for n, at in enumerate(range(0, len(body), step)):
        connection.sendall(body[at:at + step])
        time.sleep(max(0, started + (n + 1) * pause - time.monotonic()))
    assert read_all(connection).startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))


def test_a_body_that_slows_down_is_408(server):
    """A fast beginning does not pay for a slow rest."""
    connection = server.raw(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 50000)
    [answer], [seconds] = watch([connection], b"x" * 1000)
    check_408(answer)
    assert seconds < 2.5 * TIME


def test_s7_05_idle_connections_are_closed(server):
    """Fresh, with half a request line, dripping one, after an answer: closed without another."""
    fresh = [server.raw(b"") for _ in range(50)]
    half = [server.raw(b"GET /live HTTP") for _ in range(50)]
    used = [server.raw(b"GET /live HTTP/1.1\r\nHost: t\r\n\r\n") for _ in range(50)]
    said, closed = watch(fresh + half + used, b"G" * 1000)
    assert all(not answer for answer in said[:50])
    assert all(answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1
               for answer in said[100:])
    assert 0.9 * TIME < min(closed) and max(closed) < 4 * TIME


def test_waiting_for_an_answer_is_not_idle(serve):
    server = serve(script(["a"] * 40, step_ms=100 * SLOW), "--header-timeout", 0.5, "--body-timeout", 0.5,
                   "--idle-timeout", 0.5, "--sse-keepalive", 0)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(server.complete, max_tokens=20)
        stream = pool.submit(server.stream, max_tokens=20)
        assert whole.result().text == "a" * 20 and stream.result().done


# ---- readers ----------------------------------------------------------------------------------------

PIECE = "x" * 8000
WORDS = {"target": {"": {"0": 10.0}}, "vocab": [PIECE, EOS], "eos": [1], "context": 131072}


def unread(server, **fields):
    """A stream whose client never reads; its own buffer is as small as the system allows."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((server.host, server.port))
    connection.sendall(server.raw_post("/v1/completions", {
        "prompt": [0], "temperature": 0, "stream": True, "max_tokens": 100000} | fields))
    return connection


def cpu_ms(server):
    """What the server's threads have computed so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pace(server):
    """Milliseconds from token to token, the median over 4 clients that read all of theirs, and what
    the server computed meanwhile for each."""
    def one(_):
        at = [seconds for seconds, text in server.open_stream(prompt=[0], max_tokens=40).texts()]
        assert len(at) == 40
        return [late - early for early, late in itertools.pairwise(at)]

    before = cpu_ms(server)
    with ThreadPoolExecutor(4) as pool:
        gap = 1000 * statistics.median(itertools.chain(*pool.map(one, range(4))))
    return gap, (cpu_ms(server) - before) / 40


def aborted(server):
    return len(re.findall(r"event=request .*finish=abort", server.log()))


def test_s7_04_slow_readers(serve):
    """50 streams nobody reads beside 4 that are read: what is held for each stays bounded, then they
    are cancelled; the others keep their pace."""
    server = serve(WORDS | {"step_ms": 100 * SLOW}, "--reader-timeout", 1 * SLOW, "--max-num-seqs", 64)
    before = server.memory()
    alone, cpu_alone = pace(server)
    clients = [unread(server) for _ in range(50)]
    server.wait_running(50)
    (beside, cpu_beside), most = pace(server), server.memory()
    until = time.monotonic() + 20 * SLOW
    while aborted(server) < 50:
        most = max(most, server.memory())
        assert time.monotonic() < until, f"{aborted(server)} of 50 cancelled, {server.gauges()}"
        time.sleep(0.1)
    server.wait_idle(2 * SLOW)
    for client in clients:
        client.close()
    print(f"a token each {alone:.1f} ms alone, {beside:.1f} ms beside 50 slow readers, for which the "
          f"server computes {cpu_beside - cpu_alone:.1f} ms; "
          f"{(most - before) / 50 / 1024:.0f} KiB for each at most")
    # 1 MiB held, in a buffer that doubles, and what comes until the next tick; sanitizers keep more.
    if SLOW == 1:
        assert most - before < 50 * (4 << 20)
    # Waiting for a reader would cost seconds. What 50 more streams take of the processor is less
    # than a tenth of a step; how long that lasts is the business of whoever else is running. TSan makes
    # the work itself ten to twenty times as long, steps here only SLOW times.
    assert beside < 10 * alone
    assert cpu_beside - cpu_alone < (0.1 if SLOW == 1 else 0.3) * 100 * SLOW


def test_no_reader_is_held_more_than_its_bound(serve):
    """16 MiB for one client end its stream at once, however patient the timeout."""
    server = serve({"target": {"": {"0": 10.0}}, "vocab": [PIECE, EOS], "eos": [1],
                    "context": 131072, "step_ms": 1}, "--reader-timeout", 3600)
    before = server.memory()
    client = unread(server)
    server.wait_running()
    server.wait_idle(20 * SLOW)
    assert aborted(server) == 1
    if SLOW == 1:
        assert server.memory() - before < 48 << 20
    client.close()


def test_blocked_reader_that_leaves_is_noticed_at_once(serve):
    server = serve(WORDS | {"step_ms": 1})
    for how in ("close", "shutdown"):
        client = unread(server)
        server.wait_gauges(lambda g: g["pages_used"] > 10, what="160 tokens")  # far beyond its buffers
        if how == "close":
            client.close()
        else:
            client.shutdown(socket.SHUT_WR)
        server.wait_idle(1)
        client.close()
