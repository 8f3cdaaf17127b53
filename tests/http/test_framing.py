"""The framing table (framing_cases.py) on the server itself, plain and over TLS; S7-07, S7-08."""

import os
import random
import socket

import framing_cases
import pytest
from framing_cases import CASES
from geryon import EOS, SLOW, read_all, script

LIMITS = ["--header-timeout", 1 * SLOW, "--body-timeout", 1 * SLOW]


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(script(["a", "b", EOS], vocab=["h", "i", " "]), *LIMITS)


@pytest.fixture(scope="module")
def tls_server(serve_module, certificate):
    return serve_module(script(["a", "b", EOS], vocab=["h", "i", " "]), *LIMITS, tls=certificate)


def ask(server, case, wrap=None):
    outcome = framing_cases.send(server.host, server.port, case, timeout=10 * SLOW, wrap=wrap)
    framing_cases.check(case, *outcome)
    assert server.get("/health").status == 200
    assert case.marker not in server.log()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_s7_07_s7_08_framing(server, case):
    ask(server, case)


# What is written past the library takes another road with TLS: one row of each kind.
@pytest.mark.parametrize("case", [c for c in CASES if c.name in {
    "two-lengths-differ", "folded-length", "length-is-abc", "chunk-size--2", "chunk-of-2-to-31", "uri-9000",
    "headers-over-the-buffer", "http-2-version", "chunk-line-over-the-buffer", "plain-chunked", "no-space"}],
    ids=lambda case: case.name)
def test_framing_over_tls(tls_server, case):
    ask(tls_server, case, wrap=tls_server.wrap)


def bend(rng, data):
    """Some bytes changed, dropped, doubled, or pieces of another row put in."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(b"\r\n\0 :;,0189afA\x7f\xff")
        elif kind == 1:
            del data[at:at + rng.randint(1, 8)]
        elif kind == 2:
            data[at:at] = data[at:at + rng.randint(1, 40)]
        else:
            other = rng.choice(CASES).data[:4096]
            start = rng.randrange(len(other))
            data[at:at] = other[start:start + rng.randint(1, 60)]
        data = data or bytearray(b"x")
    return bytes(data)


def test_bent_rows_do_no_harm(server):
    """Whatever is sent: at most whole answers come back, and others are served (GERYON_TEST_SEED)."""
    seed = int(os.environ.get("GERYON_TEST_SEED") or random.randrange(1 << 32))
    print("seed", seed)
    rng = random.Random(seed)
    small = [case for case in CASES if len(case.data) < 4096]
    for _ in range(600):
        connection = server.raw(bend(rng, rng.choice(small).data))
        connection.shutdown(socket.SHUT_WR)
        try:
            data = read_all(connection)
        except ConnectionResetError:
            continue
        while data:
            parsed = framing_cases.parse_one(data)
            assert parsed, data
            data = parsed[1]
        connection.close()
    assert server.get("/health").status == 200 and server.complete("hi").text == "ab"


def test_rows_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES) > 70
