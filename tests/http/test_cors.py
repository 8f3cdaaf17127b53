"""What a web page of another origin may see (S12-04), keys decided from the headers, open paths."""

import json

import pytest
from geryon import EOS, SLOW, read_all, run_cli, script

PAGE = "https://chat.example.org"
OTHER = "http://localhost:3000"
ALLOW = {
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, x-request-id",
    "access-control-expose-headers": "x-request-id, retry-after",
}
PREFLIGHT = {"Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}


@pytest.fixture(scope="module")
def listed(serve_module):
    return serve_module(script(["a", "b", EOS]), "--cors-origin", PAGE, "--cors-origin", OTHER,
                        "--api-key", "k", "--open-path", "/v1/models/", "--max-body-bytes", "64K")


@pytest.fixture(scope="module")
def everyone(serve_module):
    return serve_module(script(["a", "b", EOS]), "--cors-origin", "*", "--max-body-bytes", "64K",
                        "--body-timeout", 0.5 * SLOW)


def check_allowed(headers, origin):
    """headers: of http.client."""
    assert headers["access-control-allow-origin"] == origin
    for name, value in ALLOW.items():
        assert headers.get_all(name) == [value]
    assert headers["access-control-allow-credentials"] is None
    assert headers["vary"] == (None if origin == "*" else "Origin")


def check_refused(headers):
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert headers["vary"] == "Origin"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/health"])
def test_s12_04_preflight_needs_no_key(listed, path):
    answer = listed.request("OPTIONS", path, headers={"Origin": PAGE} | PREFLIGHT)
    assert (answer.status, answer.body) == (204, b"")
    check_allowed(answer.headers, PAGE)
    assert not listed.trace(), "nothing was run"


def test_s12_04_refusal_without_a_key_can_be_read(listed):
    answer = listed.request("POST", "/v1/chat/completions", b"{}", headers={"Origin": PAGE})
    assert answer.status == 401 and answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    check_allowed(answer.headers, PAGE)


@pytest.mark.parametrize("origin", [PAGE, OTHER])
def test_listed_origins(listed, origin):
    key = {"Origin": origin, "Authorization": "Bearer k"}
    answer = listed.post("/v1/completions", {"prompt": "x", "temperature": 0}, headers=key)
    assert answer.text == "ab"
    check_allowed(answer.headers, origin)
    stream = listed.post("/v1/completions", {"prompt": "x", "stream": True}, headers=key)
    assert stream.status == 200 and b"[DONE]" in stream.body
    check_allowed(stream.headers, origin)
    for path, status in (("/nothing", 404), ("/v1/completions", 405), ("/v1/models/x", 404), ("/live", 200)):
        answer = listed.get(path, headers=key)
        assert answer.status == status
        check_allowed(answer.headers, origin)
    answer = listed.post("/v1/completions", {"prompt": 1.5}, headers=key)
    assert answer.status == 400
    check_allowed(answer.headers, origin)
    answer = listed.post("/v1/completions", b"x" * 70000, headers=key)
    assert answer.status == 413
    check_allowed(answer.headers, origin)


@pytest.mark.parametrize("origin", ["https://chat.example.org:8443", "https://chat.example.org.evil.test",
                                    "http://chat.example.org", "null", "*", "", None])
def test_other_origins_get_nothing(listed, origin):
    headers = {"Origin": origin} if origin is not None else {}
    for method, path, status in (("GET", "/live", 200), ("OPTIONS", "/v1/completions", 204),
                                 ("POST", "/v1/completions", 401)):
        answer = listed.request(method, path, headers=headers)
        assert answer.status == status
        check_refused(answer.headers)


def test_any_origin(everyone):
    for headers in ({"Origin": PAGE}, {}):
        answer = everyone.post("/v1/completions", {"prompt": "x", "stream": True}, headers=headers)
        assert b"[DONE]" in answer.body
        check_allowed(answer.headers, "*")


@pytest.mark.parametrize("data, status", [
    (b"GET /live HTTP/2.0\r\nHost: t\r\n\r\n", 505),
    (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://a\r\nContent-Length: 10\r\n\r\n{", 408),
    (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n18000\r\n" +
     b"x" * 0x18000, 413),
])
def test_answers_past_the_library_carry_it_too(everyone, data, status):
    answer = read_all(everyone.raw(data))
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert answer.count(b"\r\nAccess-Control-Allow-Origin: *\r\n") == 1


def test_off_by_default(serve):
    server = serve(script(["a", EOS]))
    answer = server.get("/live", headers={"Origin": PAGE})
    assert not [n for n in answer.headers if n.lower().startswith("access-control") or n.lower() == "vary"]


def test_open_path(listed):
    """One path, whatever its query; nothing below or beside it."""
    assert listed.get("/v1/models").status == 200
    assert listed.get("/v1/models/?x=y").status == 200
    for path in ("/v1/models/x", "/v1/completions"):
        assert listed.request("POST" if "comp" in path else "GET", path).status == 401


def test_key_is_decided_before_the_body(listed):
    """The body is announced and never sent."""
    for head in (b"", b"Expect: 100-continue\r\n"):
        connection = listed.raw(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n" + head +
                                b"Content-Length: 50000\r\n\r\n")
        answer, _, body = read_all(connection).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert json.loads(body)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("authorization, status", [
    ("Bearer k", 200), ("bearer k", 200), ("Bearer  k ", 200), ("Bearer kk", 401), ("Bearer", 401),
    ("Bearer ", 401), ("k", 401), ("Basic k", 401), ("Bearer K", 401),
])
def test_keys(listed, authorization, status):
    assert listed.get("/v1/models/x", headers={"Authorization": authorization}).status == (
        404 if status == 200 else status)
    assert listed.get("/health", headers={"Authorization": authorization}).status == 200


@pytest.mark.parametrize("flags", [
    ["--cors-origin", "example.org"], ["--cors-origin", "https://a/"], ["--cors-origin", "https://"],
    ["--cors-origin", "https://*.a"], ["--cors-origin", "https://a b"], ["--cors-origin", "x://a\r\nY: z"],
    ["--open-path", "v1/models"], ["--open-path", "/v1/models?x"],
])
def test_bad_flags(flags):
    done = run_cli("serve", "--model", "x", *flags, check=False)
    assert done.returncode == 2 and flags[0] in done.stderr.decode()
