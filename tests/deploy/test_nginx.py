"""nginx as a reverse proxy in front of the image: nothing is smuggled past it, event streams arrive
as they are written, and a client that leaves takes its request along."""

import collections
import http.client
import itertools
import os
import pathlib
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time

import container
import framing
import geryon
import pytest

try:
    import framing_cases
except ImportError:
    framing_cases = None

HERE = pathlib.Path(__file__).parent
QUIET_S = 1.0  # after an answer, how long a second one may take to show up
numbers = itertools.count()


Line = collections.namedtuple("Line", "id route status code")
Seen = collections.namedtuple("Seen", "id status upstream_status uri")


class Proxy:
    def __init__(self, upstream):
        self.dir = tempfile.TemporaryDirectory(prefix="geryon-nginx-")
        os.chmod(self.dir.name, 0o755)  # its worker is another user
        self.buffered, self.unbuffered = container.free_port(), container.free_port()
        text = (HERE / "nginx.conf").read_text()
        for word, value in {"DIR": self.dir.name, "UPSTREAM": upstream, "BUFFERED": self.buffered,
                            "UNBUFFERED": self.unbuffered}.items():
            text = text.replace(f"@{word}@", str(value))
        conf = pathlib.Path(self.dir.name) / "nginx.conf"
        conf.write_text(text)
        self.log_path = conf.with_name("log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [shutil.which("nginx") or "/usr/sbin/nginx", "-p", self.dir.name, "-c", conf, "-e", "stderr"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        container.wait_for(self._listens, 10, "nginx")

    def _listens(self):
        assert self.process.poll() is None, self.log_path.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.unbuffered), 1).close()
            return True
        except OSError:
            return False

    def requests(self):
        """Every request nginx has seen, in the order of their ends."""
        lines = pathlib.Path(self.dir.name, "access").read_text("utf-8", "replace").splitlines()
        return [Seen(*line.split(" ", 3)) for line in lines]

    def stop(self):
        self.process.terminate()
        self.process.wait(10)
        self.dir.cleanup()


@pytest.fixture(scope="module")
def box(smollm2):
    models, env = smollm2
    command = ("serve", "--log-level", "debug")  # every request has a line, probes too
    with container.running(container.Container, models, env, *command) as running:
        yield running
        running.terminate()
        assert running.wait(10)[0] == 0, running.log()


@pytest.fixture(scope="module")
def proxy(box):
    running = Proxy(box.port)
    yield running
    running.stop()


@pytest.fixture(params=["buffered", "unbuffered"])
def port(request, proxy):
    return getattr(proxy, request.param)


# ---- framing ----------------------------------------------------------------------------------------

def read_until_quiet(connection):
    """Everything that arrives until the other side closes or says nothing more."""
    data, until = b"", time.monotonic() + 20
    while time.monotonic() < until:
        patience = QUIET_S if data else 10
        if not select.select([connection], [], [], patience)[0]:
            break
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            break
        if not piece:
            break
        data += piece
    return data


def answers(data):
    """Status codes of the answers in `data`, which must hold nothing else and no half answer."""
    codes = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.1 (\d{3})", head)
        if not match:  # without a version: HTTP/0.9, where an answer is a body alone
            assert not codes and re.fullmatch(rb"<html>.*</html>\s*|\{[^\n]*\}", data, re.S), data
            return [0]
        assert separator, f"half a head: {data!r}"
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if fields.get(b"transfer-encoding") == b"chunked":
            size = -1
            while size:
                line, _, rest = rest.partition(b"\r\n")
                size = int(line, 16)
                assert len(rest) >= size + 2, f"half a chunk: {data!r}"
                rest = rest[size + 2:]
        else:
            length = int(fields[b"content-length"])
            assert len(rest) >= length, f"half a body: {data!r}"
            rest = rest[length:]
        codes.append(int(match[1]))
        data = rest
    return codes


def request_lines(box):
    """Every request the server has finished, in order."""
    pattern = r"event=request request_id=(\S+) route=(\S+) method=\S+ status=(\d+)(?: code=(\S+))?"
    return [Line(*found) for found in re.findall(pattern, box.log())]


def lines_until(box, seen, mark):
    """The request lines that came after `seen` ones and before the one with the id `mark`."""
    def news():
        lines = request_lines(box)[seen:]
        ids = [line.id for line in lines]
        return [lines[:ids.index(mark)]] if mark in ids else None
    return container.wait_for(news, 10, f"{mark} in the server's log")[0]


def through(port, data):
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was sent
        return read_until_quiet(connection)


def both_sides(box, proxy, port, data):
    """Send data. Returns the codes of the answers, what nginx saw, and what the server saw."""
    seen, proxied = len(request_lines(box)), len(proxy.requests())
    codes = answers(through(port, data))

    # The next client shares the connection between nginx and the server: it must get its own answer.
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    client.request("GET", "/live")
    response = client.getresponse()
    response.read()
    client.close()
    follower = response.headers["X-Proxy-Id"]
    assert response.status == 200 and response.headers["X-Request-Id"] == follower, "another's answer"

    mark = f"mark-{next(numbers)}"
    assert box.get("/live", {"X-Request-Id": mark}).status == 200
    ahead = container.wait_for(lambda: (ids := [r.id for r in proxy.requests()[proxied:]])
                               and follower in ids and proxy.requests()[proxied:], 5, "nginx's log")
    ahead = [r for r in ahead if r.id != follower]
    reached = [line for line in lines_until(box, seen, mark) if line.id != follower]
    return codes, ahead, reached


def check_borders(codes, ahead, reached):
    """nginx and the server agree where requests begin and end."""
    print(codes, ahead, reached)
    assert len(codes) == len(ahead), "as many answers as nginx saw requests"
    sent_on = {r.id: r for r in ahead if r.upstream_status != "-"}
    refused = []
    for line in reached:
        if line.id in sent_on:
            route = sent_on.pop(line.id).uri.split("?")[0]
            assert line.route in (route, "none"), "another route than nginx saw"
        else:  # what is malformed is refused before its id is believed
            assert line.code == "malformed_request", f"{line} was not sent by nginx but smuggled past it"
            refused.append(line.status)
    left = [r.upstream_status for r in sent_on.values()]
    assert all(left.count(status) >= refused.count(status) for status in refused), (left, refused)


@pytest.mark.parametrize("name,data", [pytest.param(*row, id=row[0]) for row in framing.rows()])
def test_nothing_is_smuggled(box, proxy, port, name, data):
    codes, ahead, reached = both_sides(box, proxy, port, data)
    check_borders(codes, ahead, reached)
    assert len(codes) == 1 and len(reached) <= 1, name


# Here nginx may well find an honest second request after the row; then both must count two.
@pytest.mark.parametrize("case", framing_cases.CASES if framing_cases else [],
                         ids=lambda case: case.name)
def test_the_servers_own_table_smuggles_nothing(box, proxy, port, case):
    codes, ahead, reached = both_sides(box, proxy, port, case.bytes)
    check_borders(codes, ahead, reached)
    assert case.marker not in box.log()


def test_what_the_table_would_catch(box, proxy, port):
    """Two honest requests in one write are two answers and two lines: the checks above can fail."""
    honest = framing.post(framing.FIRST, body=framing.WHOLE)
    codes, ahead, reached = both_sides(box, proxy, port, honest)
    assert codes == [200, 404]
    assert [r.uri for r in ahead] == ["/v1/completions", "/smuggled"]
    assert [line.route for line in reached] == ["/v1/completions", "none"]
    check_borders(codes, ahead, reached)
    with pytest.raises(AssertionError, match="smuggled past"):
        check_borders(codes[:1], ahead[:1], reached)


# ---- streams ----------------------------------------------------------------------------------------

def open_stream(port, **fields):
    body = {"prompt": "Once upon a time", "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    return geryon.Live(connection, "/v1/completions", body | fields)


def test_events_arrive_one_by_one(port):
    live = open_stream(port, max_tokens=60)
    times = [at for at, _ in live.texts()]
    stream = live.finish()
    assert stream.done and stream.usage["completion_tokens"] == 60
    span = times[-1] - times[0]
    print(f"first text after {times[0]:.3f} s, last {span:.3f} s later, {len(times)} pieces")
    assert len(times) > 20
    assert times[0] < times[-1] / 2, "the first text waited for the rest"
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) < span / 2, "the text came in lumps"


def test_a_stream_through_nginx_is_the_stream_itself(box, port):
    texts = []
    for at in (port, box.port):
        stream = open_stream(at, max_tokens=30).finish()
        texts.append(stream.text)
    assert texts[0] == texts[1] and texts[0]


def test_a_client_that_leaves_nginx_cancels_at_the_server(box, port):
    seen = len(request_lines(box))
    live = open_stream(port, max_tokens=4000)
    next(live.texts())
    live.close()
    gone = container.wait_for(lambda: request_lines(box)[seen:], 5, "the end of the request")
    assert gone[0].route == "/v1/completions"
    tokens = re.search(rf"request_id={gone[0].id} .*completion_tokens=(\d+)", box.log())
    assert tokens and int(tokens[1]) < 2000, box.log()[-500:]


def test_large_bodies_pass_and_larger_ones_are_refused(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    filler = b" " * (4 << 20)
    client.request("POST", "/v1/completions", framing.JSON + filler)
    assert client.getresponse().status == 200
    client.close()
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(framing.post(b"Content-Length: %d" % (33 << 20)))
        assert answers(read_until_quiet(connection)) == [413]
