"""Thousands of connections: S7-05, memory per connection, probes under load, running out of descriptors."""

import json
import multiprocessing
import re
import resource
import select
import socket
import subprocess
import time

import pytest
from geryon import EOS, SCRIPTED_BIN, SLOW, Server, read_all, read_until, script

N_IDLE, N_STREAMS, N_SPARE = (4096, 256, 64) if SLOW == 1 else (1024, 64, 64)
N_TOKENS = 100
HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
LETTERS = [chr(97 + i % 26) for i in range(N_TOKENS)]


@pytest.fixture(scope="module", autouse=True)
def many_descriptors():
    """Both ends of every connection are on this machine; the server starts with what we leave it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = N_IDLE + N_STREAMS + N_SPARE + 256
    if hard != resource.RLIM_INFINITY and hard < need:
        pytest.skip(f"the hard limit on descriptors is {hard}, this needs {need}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, need), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def printed_bytes(server):
    return int(re.search(r"connection_bytes=(\d+)", server.log())[1])


def read_answer(connection):
    data = b""
    while not data.endswith(b"}"):
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    assert data.startswith(b"HTTP/1.1 200"), data


def probe(server, n):
    """Seconds of n /health requests, each on a connection of its own; the median and the 99th of 100."""
    times = []
    for _ in range(n):
        started = time.monotonic()
        assert server.get("/health").status == 200
        times.append(time.monotonic() - started)
        time.sleep(0.005)
    times.sort()
    return times[n // 2], times[n * 99 // 100]


def drain_streams(host, port, data, n, pipe):
    """In a process of its own, so that reading n streams does not disturb who measures: at the word
    `go` open them, read all, tell how many ended with all of their text."""
    pipe.recv()
    poll, live, said = select.epoll(), {}, {}
    for _ in range(n):
        connection = socket.create_connection((host, port))
        connection.sendall(data)
        connection.setblocking(False)
        poll.register(connection, select.EPOLLIN)
        live[connection.fileno()], said[connection.fileno()] = connection, b""
    pipe.send("open")
    open_fds = set(live)
    while open_fds:
        for fd, _ in poll.poll(60):
            piece = live[fd].recv(65536)
            said[fd] += piece
            if not piece:
                poll.unregister(fd)
                open_fds.discard(fd)
    whole = "".join(LETTERS).encode()
    pipe.send(sum(b"".join(re.findall(rb'"text":"(.)"', text)) == whole and b"[DONE]" in text
                  for text in said.values()))


def start_drain(server, n):
    body = {"prompt": "x", "temperature": 0, "stream": True, "max_tokens": N_TOKENS}
    data = server.raw_post("/v1/completions", body, b"Connection: close\r\n")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=drain_streams, args=(server.host, server.port, data, n, theirs), daemon=True)
    child.start()
    return child, ours


def misbehave(server):
    """A body of 33 MiB, a slow body, a slow header, a reader that stops."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
    slow_body, slow_header = server.raw(head + b"Content-Length: 100\r\n\r\n{"), server.raw(head)
    stopped = server.raw(server.raw_post("/v1/completions", {"prompt": "x", "stream": True,
                                                             "max_tokens": N_TOKENS}))
    large = server.raw(head + b"Content-Length: %d\r\n\r\n" % (33 << 20))
    for _ in range(33):
        large.sendall(b"x" * (1 << 20))
    assert read_all(large).startswith(b"HTTP/1.1 413")
    return slow_body, slow_header, stopped


@pytest.mark.timeout(180 * SLOW)
def test_s7_05_idle_connections_and_active_streams(serve):
    server = serve(script(LETTERS, step_ms=40 * SLOW), "--max-connections", N_IDLE + N_STREAMS + N_SPARE,
                   "--max-num-seqs", N_STREAMS + 8, "--body-timeout", 2 * SLOW, "--header-timeout", 2 * SLOW)
    child, pipe = start_drain(server, N_STREAMS)
    assert server.complete(max_tokens=1).text == "a"
    before = server.memory()
    idle = []
    for _ in range(N_IDLE):
        idle.append(server.raw(HEALTH))
    for connection in idle:
        read_answer(connection)
    each = (server.memory() - before) / N_IDLE
    quiet = probe(server, 100)
    started = time.monotonic()
    assert server.complete(max_tokens=1).text == "a"
    assert time.monotonic() - started < 1 * SLOW

    pipe.send("go")
    assert pipe.recv() == "open"
    server.wait_running(N_STREAMS * 9 // 10)
    slow_body, slow_header, stopped = misbehave(server)
    busy = probe(server, 100)
    with_streams = (server.memory() - before) / (N_IDLE + N_STREAMS)
    for slow in (slow_body, slow_header):
        assert read_all(slow).startswith(b"HTTP/1.1 408")
    assert pipe.recv() == N_STREAMS, "every stream ended with all of its text"
    child.join()
    assert b"[DONE]" in read_until(stopped, b"[DONE]"), "a short answer waits for its reader"
    stopped.close()
    server.wait_idle(5)

    print(f"/health beside {N_IDLE} idle connections: p50 {quiet[0] * 1e3:.1f} ms, p99 {quiet[1] * 1e3:.1f} ms; "
          f"and {N_STREAMS} streams: p50 {busy[0] * 1e3:.1f} ms, p99 {busy[1] * 1e3:.1f} ms; a connection "
          f"{each / 1024:.1f} KiB idle, {with_streams / 1024:.1f} KiB with streams, "
          f"{printed_bytes(server) / 1024:.1f} KiB at most by the log")
    assert quiet[1] < 1 * SLOW and busy[1] < 1 * SLOW
    if SLOW == 1:  # sanitizers have allocators of their own
        assert each <= printed_bytes(server) and with_streams <= printed_bytes(server)

    # One more than the limit gets a clean refusal; there is room again once one has gone.
    rest = [server.raw(b"") for _ in range(N_STREAMS + N_SPARE)]
    over = server.raw(HEALTH)
    head, _, body = read_all(over).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503") and b"\r\nRetry-After: " in head
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    for connection in rest + idle:
        connection.close()
    assert server.get("/health").status == 200


def test_memory_of_used_connections(serve):
    """The most a connection can cost: the library clears its whole pool when it is used again."""
    server = serve(script(["a", EOS]))
    before, n = server.memory(), 500
    used = [server.raw(HEALTH) for _ in range(n)]
    for _ in range(3):
        for connection in used:
            read_answer(connection)
            connection.sendall(HEALTH)
    each = (server.memory() - before) / n
    print(f"{each / 1024:.1f} KiB a used connection, {printed_bytes(server) / 1024:.1f} KiB by the log")
    assert SLOW > 1 or each <= printed_bytes(server)
    for connection in used:
        connection.close()


def test_memory_of_tls_connections(serve, certificate):
    server = serve(script(["a", EOS]), tls=certificate)
    before, n, used = server.memory(), 120, []
    for _ in range(n):
        used.append(server.wrap(server.raw(b"")))
        used[-1].sendall(HEALTH)
    for _ in range(2):
        for connection in used:
            read_answer(connection)
            connection.sendall(HEALTH)
    each = (server.memory() - before) / n
    print(f"{each / 1024:.1f} KiB a TLS connection, {printed_bytes(server) / 1024:.1f} KiB by the log")
    assert SLOW > 1 or each <= printed_bytes(server)
    for connection in used:
        connection.close()


# ---- descriptors ------------------------------------------------------------------------------------

def test_max_connections_is_lowered_to_the_descriptors(serve):
    server = serve(script(["a", EOS]), nofile=300)
    assert server.log().count("event=max_connections_lowered") == 1
    assert "to=236" in server.log()
    open_ones = [server.raw(b"") for _ in range(236)]
    assert read_all(server.raw(b"")).startswith(b"HTTP/1.1 503")
    for connection in open_ones:
        connection.close()


def test_max_connections_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "model.json").write_text(json.dumps(script(["a"])))
    done = subprocess.run([SCRIPTED_BIN, "serve", "--model", tmp_path / "model.json", "--port", "0",
                           "--max-connections", "400"], capture_output=True, timeout=20 * SLOW, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)))
    assert done.returncode == 1 and b"--max-connections 400 needs 464" in done.stderr


def test_soft_limit_is_raised(serve):
    def limit(pid):
        return resource.prlimit(pid, resource.RLIMIT_NOFILE)
    server = Server(script(["a", EOS]))
    try:
        soft, hard = limit(server.process.pid)
        assert soft == hard
        server.stop()
    finally:
        server.kill()


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_out_of_descriptors(serve):
    """Clients beyond the last descriptor get a 503; nothing spins; then all works again."""
    server = serve(script(["a", EOS]))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (40, 40))
    clients = [server.raw(b"") for _ in range(60)]
    refused = 0
    for client in clients:
        client.settimeout(0.05)
        try:
            refused += client.recv(4096).startswith(b"HTTP/1.1 503")
        except OSError:
            pass
    assert 10 < refused < 60
    before = cpu_seconds(server.process.pid)
    time.sleep(0.5)
    assert cpu_seconds(server.process.pid) - before < 0.1 * SLOW, "it spins"
    for client in clients:
        client.close()
    time.sleep(0.3)
    assert server.get("/health").status == 200 and server.complete().text == "a"
