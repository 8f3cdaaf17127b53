"""HTTPS: streams and errors through the TLS layer, answers past the library, refused connections."""

import json
import ssl
import subprocess
import time
import warnings

import openai
import pytest
from geryon import EOS, SCRIPTED_BIN, SLOW, read_all, read_until, script

WORDS = ["Hello", ",", " world", "!"]
ENDLESS = {"target": {"": {"0": 10.0}}, "vocab": ["a", {"special": "<eos>"}], "eos": [1], "context": 8192}


@pytest.fixture(scope="module")
def server(serve_module, certificate):
    return serve_module(script([*WORDS, EOS], block_size=4), "--served-model-name", "toy",
                        "--max-body-bytes", "2M", "--api-key", "k", "--open-path", "/v1/completions",
                        "--body-timeout", 1 * SLOW, tls=certificate)


def client_of(server, key="k"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=30 * SLOW,
                         http_client=openai.DefaultHttpxClient(verify=server.tls))


def test_openai_client_streams(server):
    with client_of(server) as client:
        chunks = list(client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "Hi"}], temperature=0, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "".join(WORDS)
        whole = client.completions.create(model="toy", prompt="Hi", temperature=0)
        assert whole.choices[0].text == "".join(WORDS)
    with client_of(server, "wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "Hi"}])
    assert refused.value.code == "invalid_api_key" and refused.value.request_id


def test_keep_alive_and_pipelining(server):
    connection = server.wrap(server.raw(b""))
    one = server.raw_post("/v1/completions", {"prompt": "x", "temperature": 0, "stream": True})
    connection.sendall(one * 3 + b"GET /live HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
    data = read_all(connection)
    assert data.count(b"[DONE]") == 3 and data.endswith(b'{"status":"ok"}')


def test_bodies_large_and_too_large(server):
    """2 MiB pass; beyond, the answer reaches a client that writes all of it first."""
    assert server.complete("x" * ((2 << 20) - 100)).status == 400  # longer than the context
    connection = server.wrap(server.raw(b""))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % (8 << 20))
    for _ in range(8):
        connection.sendall(b"x" * (1 << 20))
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413") and json.loads(body)["error"]["code"] == "request_too_large"
    connection = server.wrap(server.raw(b""))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" +
                       b"300000\r\n" + b"x" * (3 << 20) + b"\r\n")
    assert read_all(connection).startswith(b"HTTP/1.1 413")


def test_slow_body_is_408(server):
    connection = server.wrap(server.raw(b""))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408") and json.loads(body)["error"]["code"] == "request_timeout"


def test_plain_http_is_closed(server):
    connection = server.raw(b"GET /live HTTP/1.1\r\nHost: t\r\n\r\n")
    assert not read_all(connection).startswith(b"HTTP")  # a TLS alert at most
    assert server.get("/health").status == 200


def test_old_protocols_are_refused(server):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(server.raw(b""))
    assert server.get("/health").status == 200


def test_hang_up_cancels(serve, certificate):
    server = serve(ENDLESS | {"step_ms": 5}, tls=certificate)
    body = {"prompt": [0, 0, 0], "max_tokens": 4096, "temperature": 0}
    for streaming in (True, False):
        connection = server.wrap(server.raw(b""))
        connection.sendall(server.raw_post("/v1/completions", body | {"stream": streaming}))
        server.wait_running()
        connection.close()
        server.wait_idle(1)


def test_over_the_limit_is_closed_without_an_answer(serve, certificate):
    server = serve(script(["a", EOS]), "--max-connections", 4, tls=certificate)
    time.sleep(0.1)
    silent = [server.raw(b"") for _ in range(4)]  # before their handshake they count as well
    connection = server.raw(b"")
    try:
        assert read_all(connection) == b""
    except ConnectionResetError:
        pass
    for other in silent:
        other.close()
    until = time.monotonic() + 5 * SLOW
    while True:
        try:
            assert server.get("/health").status == 200
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_silent_handshake_ends_as_idle(serve, certificate):
    server = serve(script(["a", EOS]), "--idle-timeout", 0.5 * SLOW, tls=certificate)
    silent, half = server.raw(b""), server.raw(b"\x16\x03\x01\x02")
    started = time.monotonic()
    assert read_all(silent) == b"" and read_all(half) == b""
    assert 0.3 * SLOW < time.monotonic() - started < 3 * SLOW


def test_shutdown_with_open_sessions(serve, certificate):
    server = serve(ENDLESS | {"step_ms": 5}, "--shutdown-timeout", 0.2, tls=certificate)
    stream = server.wrap(server.raw(b""))
    stream.sendall(server.raw_post("/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 4000}))
    read_until(stream, b'"text"')
    idle = server.wrap(server.raw(b""))
    server.process.terminate()
    assert b"shutting_down" in read_all(stream)
    assert server.process.wait(10 * SLOW) == 0
    idle.close()


@pytest.mark.parametrize("flags, status, words", [
    (["--tls-cert", "CERT"], 2, "--tls-cert needs --tls-key"),
    (["--tls-key", "KEY"], 2, "--tls-key needs --tls-cert"),
    (["--tls-cert", "/nowhere", "--tls-key", "KEY"], 1, "--tls-cert /nowhere"),
    (["--tls-cert", "KEY", "--tls-key", "CERT"], 1, "--tls-cert"),
    (["--tls-cert", "CERT", "--tls-key", "EMPTY"], 1, "--tls-key"),
])
def test_bad_files(certificate, tmp_path, flags, status, words):
    files = {"CERT": certificate[0], "KEY": certificate[1], "EMPTY": tmp_path / "empty"}
    files["EMPTY"].write_text("")
    (tmp_path / "model.json").write_text(json.dumps(script(["a"])))
    done = subprocess.run([SCRIPTED_BIN, "serve", "--model", tmp_path / "model.json", "--port", "0",
                           *[str(files.get(f, f)) for f in flags]], capture_output=True, timeout=20 * SLOW,
                          check=False)
    assert (done.returncode, done.stdout) == (status, b"")
    assert words in done.stderr.decode() and done.stderr.count(b"\n") == 1
