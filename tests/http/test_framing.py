"""The framing table (framing_cases.py) on the server itself, plain and over TLS; S7-07, S7-08."""

import framing_cases
import pytest
from framing_cases import CASES
from geryon import EOS, SLOW, script

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


def test_rows_have_names_of_their_own():
    assert len({case.name for case in CASES}) == len(CASES) > 70
