"""S7-01 to S7-03 and the property behind them: a client that leaves frees what it held within a second,
whatever state its request is in and however it leaves. Pages are seen through the trace."""

import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from geryon import SLOW, read_until, reset, script

ENDLESS = {"target": {"": {"0": 10.0}}, "vocab": ["a", {"special": "<eos>"}], "eos": [1],
           "context": 8192}


def leave(connection, how):
    if how == "rst":
        reset(connection)
    elif how == "half":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()


LEAVE = pytest.mark.parametrize("how", ["fin", "rst", "half"])
STREAMING = pytest.mark.parametrize("streaming", [True, False])


def body(streaming, prompt=(0, 0, 0), max_tokens=4096):
    return {"prompt": list(prompt), "max_tokens": max_tokens, "stream": streaming, "temperature": 0}


@LEAVE
def test_s7_01_stream_client_gone_in_decode(serve, how):
    server = serve(ENDLESS | {"step_ms": 5})
    connection = server.raw(server.raw_post("/v1/completions", body(True)))
    read_until(connection, b'"text":"a"')
    assert server.gauges()["pages_used"] > 0
    leave(connection, how)
    server.wait_idle(1)
    assert server.get("/health").status == 200


@LEAVE
@STREAMING
def test_s7_01_client_gone_in_prefill(serve, how, streaming):
    server = serve(ENDLESS | {"prefill_ms_per_token": 2}, "--prefill-chunk", 16)
    connection = server.raw(server.raw_post("/v1/completions", body(streaming, [0] * 4000)))
    server.wait_running()
    assert server.gauges()["pages_used"] > 0
    leave(connection, how)
    server.wait_idle(1)


@LEAVE
def test_s7_02_whole_answer_client_gone_in_decode(serve, how):
    server = serve(ENDLESS | {"step_ms": 5})
    connection = server.raw(server.raw_post("/v1/completions", body(False)))
    server.wait_running()
    time.sleep(0.05)
    leave(connection, how)
    server.wait_idle(1)


@LEAVE
@STREAMING
def test_s7_03_queued_client_gone(serve, how, streaming):
    """20 requests queue and leave; the next live one starts as soon as the slot is free, and no
    work was done for the dead ones."""
    server = serve(ENDLESS | {"step_ms": 5}, "--max-num-seqs", 1)
    running = server.raw(server.raw_post("/v1/completions", body(True)))
    read_until(running, b'"text":"a"')
    dead = [server.raw(server.raw_post("/v1/completions", body(streaming, [0] * 100))) for _ in range(20)]
    server.wait_gauges(lambda g: g["waiting"] == 20, what="20 waiting")
    for connection in dead:
        leave(connection, how)
    server.wait_gauges(lambda g: g["waiting"] == 0, 1, "the queue empties")
    assert server.gauges()["running"] == 1
    with ThreadPoolExecutor(1) as pool:
        live = pool.submit(server.complete, [0] * 3, max_tokens=2)
        server.wait_gauges(lambda g: g["waiting"] == 1, what="the live one waits")
        started = time.monotonic()
        running.close()
        assert live.result().text == "aa"
        assert time.monotonic() - started < 1 * SLOW
    server.wait_idle(1)
    # Rows computed: no prompt of 100 tokens is among them.
    assert max(step["rows"]["base"] for step in server.trace() if "rows" in step) < 100


@STREAMING
def test_client_gone_with_drafts(serve, streaming):
    server = serve(ENDLESS | {"step_ms": 5, "block_size": 8})
    connection = server.raw(server.raw_post("/v1/completions", body(streaming)))
    server.wait_running()
    time.sleep(0.05)
    connection.close()
    server.wait_idle(1)


@STREAMING
def test_client_gone_leaves_neighbours_alone(serve, streaming):
    server = serve(script([chr(97 + i % 26) for i in range(60)], step_ms=5))
    expected = "".join(chr(97 + i % 26) for i in range(50))
    with ThreadPoolExecutor(4) as pool:
        stay = [pool.submit(server.complete, max_tokens=50) for _ in range(4)]
        server.wait_running(4)
        for _ in range(10):
            server.raw(server.raw_post("/v1/completions", body(streaming))).close()
            time.sleep(0.01)
        assert {f.result().text for f in stay} == {expected}
    server.wait_idle(1)


def test_every_moment_and_manner_of_leaving(serve):
    """300 clients, each leaving at a random moment: before the request is complete, queued, in
    prefill, in decode, after its end. All pages come back within a second of the last."""
    server = serve(ENDLESS | {"step_ms": 1, "block_size": 4}, "--max-num-seqs", 8,
                   "--prefill-chunk", 32)
    rng = random.Random(11)
    jobs = [(rng.choice(["fin", "rst", "half"]), rng.random() < 0.5, rng.randint(1, 300),
             rng.randint(1, 400), rng.random() ** 2 * 0.4, rng.random() < 0.1) for _ in range(300)]

    def one(job):
        how, streaming, n_prompt, max_tokens, delay, partial = job
        data = server.raw_post("/v1/completions", body(streaming, [0] * n_prompt, max_tokens))
        try:
            connection = server.raw(data[:len(data) // 2] if partial else data)
            time.sleep(delay)
            leave(connection, how)
            if how == "half":
                time.sleep(0.05)
                connection.close()
        except OSError:
            pass  # the server may close first

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, jobs))
    server.wait_idle(1)
    assert server.complete([0], max_tokens=3).text == "aaa"


def test_s8_01_no_page_is_lost_over_many_requests(serve):
    """2,000 requests of mixed ends; then no page is used."""
    letters = [chr(97 + i % 26) for i in range(40)]
    model = script(letters, draft=[c if i % 3 else "#" for i, c in enumerate(letters)], block_size=8,
                   fail={"at_output": 35, "kind": "request"})
    server = serve(model, "--max-num-seqs", 8)
    rng = random.Random(5)
    n = 2000 if SLOW == 1 else 400

    def one(kind):
        if kind == "cancel":
            live = server.open_stream(max_tokens=30, prompt=[0] * rng.randint(1, 90))
            next(live.blocks(), None)
            live.close()
            return
        fields = {"length": {"max_tokens": 20}, "stop": {"stop": ["jk"], "max_tokens": 30},
                  "error": {"max_tokens": 40}, "token": {"stop_token_ids": [8], "max_tokens": 30}}[kind]
        answer = server.complete([0] * rng.randint(1, 90), **fields)
        assert answer.status == (500 if kind == "error" else 200)
        if kind != "error":
            assert answer.text == "".join(letters[:{"length": 20, "stop": 9, "token": 8}[kind]])

    kinds = [rng.choice(["length", "stop", "token", "error", "cancel"]) for _ in range(n)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, kinds))
    server.wait_idle(1)
