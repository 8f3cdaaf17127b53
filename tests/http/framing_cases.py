"""The framing table: requests whose borders two parsers could see differently, and what the server
answers to each. No pytest here: the same table is sent through proxies too.

Every row that must close is followed at once by the bytes of another request, `GET /smuggled` with
an X-Request-Id of `smuggled-ROW`. It must never be answered, nor appear in the server's log."""

import dataclasses
import json
import re
import socket
import time

CLOSED = 0  # in place of a status: closed without an answer


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    status: tuple  # statuses allowed; CLOSED among them
    code: str = None  # of the error, where the answer is one
    closes: bool = True

    @property
    def bytes(self):
        return self.data + (self.smuggled if self.closes else b"")

    @property
    def marker(self):
        return "smuggled-" + self.name

    @property
    def smuggled(self):
        return (f"GET /smuggled HTTP/1.1\r\nHost: t\r\nX-Request-Id: {self.marker}\r\n\r\n").encode()


BODY = b'{"prompt":"hi","temperature":0}'
START = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: t\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CASES = []


def row(name, data, status=400, code="malformed_request", closes=True):
    status = status if isinstance(status, tuple) else (status,)
    CASES.append(Case(name, data, status, code, closes))


def head(name, headers, body=BODY, **more):
    row(name, START + headers + b"\r\n" + body, **more)


def chunks(name, data, **more):
    head(name, HOST + CHUNKED, data, **more)


# ---- which body ---------------------------------------------------------------------------------

head("two-lengths-equal", HOST + LENGTH + LENGTH)
head("two-lengths-differ", HOST + LENGTH + b"Content-Length: 4\r\n")
head("two-lengths-differ-in-case", HOST + b"content-length: 0\r\n" + LENGTH)
head("length-and-chunked", HOST + LENGTH + CHUNKED, CHUNKS)
head("chunked-and-length", HOST + CHUNKED + LENGTH, CHUNKS)
head("length-zero-and-chunked", HOST + b"Content-Length: 0\r\n" + CHUNKED, CHUNKS)
head("length-four-and-chunked", HOST + b"Content-Length: 4\r\n" + CHUNKED, b"0\r\n\r\n")
head("two-codings", HOST + CHUNKED + CHUNKED, CHUNKS)
head("coding-gzip", HOST + b"Transfer-Encoding: gzip\r\n")
head("coding-gzip-chunked", HOST + b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS)
head("coding-chunked-gzip", HOST + b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS)
head("coding-xchunked", HOST + b"Transfer-Encoding: xchunked\r\n", CHUNKS)
head("coding-identity", HOST + b"Transfer-Encoding: identity\r\n")
head("coding-empty", HOST + b"Transfer-Encoding:\r\n", CHUNKS)
head("coding-quoted", HOST + b'Transfer-Encoding: "chunked"\r\n', CHUNKS)
for value in (b"-1", b"+31", b"31a", b"abc", b"", b"0x1f", b"31, 31", b"3 1", b"31.0",
              b"18446744073709551616", b"99999999999999999999999"):
    too_large = value[:1] in b"19" and len(value) > 19  # beyond 64 bits: either answer is right
    head("length-is-" + (value.decode().replace(" ", "_") or "empty"),
         HOST + b"Content-Length: " + value + b"\r\n",
         status=(400, 413) if too_large else 400, code=None if too_large else "malformed_request")

# ---- lines --------------------------------------------------------------------------------------

head("space-before-colon", HOST + b"Content-Length : %d\r\n" % len(BODY))
head("tab-before-colon", HOST + b"Content-Length\t: %d\r\n" % len(BODY))
head("space-before-coding-colon", HOST + b"Transfer-Encoding : chunked\r\n" + LENGTH, CHUNKS)
head("control-in-value", HOST + LENGTH + b"X: a\x01b\r\n")
head("del-in-value", HOST + LENGTH + b"X: a\x7fb\r\n")
head("cr-in-value", HOST + LENGTH + b"X: a\rContent-Length: 0\r\n")
head("nul-in-value", HOST + LENGTH + b"X: a\x00b\r\n")
head("nul-in-name", HOST + LENGTH + b"X\x00Y: a\r\n")
head("nul-in-length", HOST + b"Content-Length: %d\x00 0\r\n" % len(BODY))
head("empty-name", HOST + LENGTH + b": a\r\n")
head("space-in-name", HOST + LENGTH + b"X Y: a\r\n")
head("no-colon", HOST + LENGTH + b"nonsense\r\n")
head("folded-header", HOST + b"X: a\r\n b\r\n" + LENGTH)
head("folded-header-tab", HOST + b"X: a\r\n\tb\r\n" + LENGTH)
head("folded-before-length", HOST + b"X: a\r\n " + LENGTH)
head("folded-length", HOST + b"Content-Length:\r\n %d\r\n" % len(BODY))
head("folded-first-line", b" X: a\r\n" + HOST + LENGTH)
head("folded-last-line", HOST + LENGTH + b"X: a\r\n b\r\n")
head("lf-ends-a-line", HOST + b"X: a\n" + LENGTH)
head("lf-hides-a-length", HOST + LENGTH + b"X: a\nContent-Length: 0\r\n")
row("lf-ends-the-first-line", b"POST /v1/completions HTTP/1.1\n" + HOST + LENGTH + b"\r\n" + BODY)
row("lf-ends-the-head", START + HOST + LENGTH + b"\n" + BODY)
row("lf-everywhere", (START + HOST + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY)

# ---- who is meant -------------------------------------------------------------------------------

head("no-host", LENGTH)
head("two-hosts", HOST + HOST + LENGTH)
head("two-hosts-differ", HOST + b"Host: u\r\n" + LENGTH)
head("two-authorizations", HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n" + LENGTH)

# ---- chunks -------------------------------------------------------------------------------------

for size in (b"-2", b"0x5", b"g", b"", b" 5", b"+5", b"5 5"):
    chunks("chunk-size-" + (size.decode().replace(" ", "_") or "empty"), size + b"\r\nhello\r\n0\r\n\r\n")
chunks("chunk-size-beyond-64-bits", b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", status=(400, 413), code=None)
chunks("chunk-without-crlf", b"4\r\nabcd0\r\n\r\n")
chunks("chunk-too-long", b"3\r\nabcd\r\n0\r\n\r\n")
chunks("chunk-trailer-without-colon", CHUNKS[:-2] + b"nonsense\r\n\r\n")
# Legal in form, but more than will ever come or be taken: the limits on time and size end them.
chunks("chunk-of-2-to-64-less-1", b"FFFFFFFFFFFFFFFF\r\n", status=(400, 408, 413), code=None)
chunks("chunk-of-2-to-31", b"80000000\r\n", status=(408, 413), code=None)
chunks("chunk-line-over-the-buffer", b"5;" + b"x" * (96 << 10), status=(CLOSED, 400, 408, 413, 431),
       code=None)

# ---- sizes, versions, things that are no request --------------------------------------------------

row("uri-9000", b"GET /live?" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "uri_too_long")
row("uri-over-the-buffer", b"GET /live?" + b"x" * (100 << 10) + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414,
    "uri_too_long")
head("headers-33000", HOST + LENGTH + b"X: " + b"x" * 33000 + b"\r\n", status=431, code="headers_too_large")
head("headers-over-the-buffer", HOST + LENGTH + b"X: " + b"x" * (100 << 10) + b"\r\n", status=431,
     code="headers_too_large")
head("many-headers", HOST + b"".join(b"X%d: abcdefgh\r\n" % n for n in range(3000)) + LENGTH, status=431,
     code="headers_too_large")
row("space-in-target", b"GET /live /x HTTP/1.1\r\n" + HOST + b"\r\n")
row("tab-in-target", b"GET /live\t/x HTTP/1.1\r\n" + HOST + b"\r\n")
row("cr-in-target", b"GET /live?\rX HTTP/1.1\r\n" + HOST + b"\r\n")
row("nul-in-target", b"GET /live\x00/x HTTP/1.1\r\n" + HOST + b"\r\n")
row("two-spaces-before-target", b"GET  /live HTTP/1.1\r\n" + HOST + b"\r\n")
row("two-spaces-after-target", b"GET /live  HTTP/1.1\r\n" + HOST + b"\r\n")
row("del-in-target", b"GET /live\x7f HTTP/1.1\r\n" + HOST + b"\r\n")
row("control-in-method", b"G\x01T /live HTTP/1.1\r\n" + HOST + b"\r\n")
row("colon-in-method", b"GET: /live HTTP/1.1\r\n" + HOST + b"\r\n")
row("http-2-preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported")
row("http-2-version", b"GET /live HTTP/2.0\r\n" + HOST + b"\r\n", 505, "http_version_not_supported")
row("http-0-version", b"GET /live HTTP/0.9\r\n" + HOST + b"\r\n", 505, "http_version_not_supported")
row("no-version", b"GET /live\r\n" + HOST + b"\r\n", (CLOSED, 400, 505), None)
row("no-space", b"GET\r\n\r\n", (CLOSED, 400), None)
row("tls-hello", bytes.fromhex("16030100c8010000c40303") + b"\x00\x01\x02\xff" * 50 + b"\r\n\r\n",
    (CLOSED, 400), None)
row("binary", bytes(range(14, 32)) * 20 + b"\r\n\r\n", (CLOSED, 400), None)

# ---- accepted: low risk, and some clients do it -----------------------------------------------------

head("plain", HOST + LENGTH, status=200, code=None, closes=False)
chunks("plain-chunked", CHUNKS, status=200, code=None, closes=False)
chunks("chunk-extension", CHUNKS.replace(b"\r\n", b";a=b\r\n", 1), status=200, code=None, closes=False)
chunks("chunk-trailer", CHUNKS[:-2] + b"X: y\r\n\r\n", status=200, code=None, closes=False)
chunks("chunk-lines-end-in-lf", CHUNKS.replace(b"\r\n", b"\n"), status=200, code=None, closes=False)
head("coding-in-capitals", HOST + b"TRANSFER-ENCODING: Chunked\r\n", CHUNKS, status=200, code=None, closes=False)
head("expect-something-else", HOST + LENGTH + b"Expect: tea\r\n", status=200, code=None, closes=False)
row("empty-lines-first", b"\r\n\r\nGET /live HTTP/1.1\r\n" + HOST + b"\r\n", 200, None, closes=False)
row("lower-case-method", b"get /live HTTP/1.1\r\n" + HOST + b"\r\n", 405, "method_not_allowed", closes=False)
row("absolute-target", b"GET http://t/live HTTP/1.1\r\n" + HOST + b"\r\n", 200, None, closes=False)


# ---- sending --------------------------------------------------------------------------------------

@dataclasses.dataclass
class Response:
    status: int
    headers: list  # of (lower-case name, value)
    body: bytes

    def header(self, name):
        values = [v for k, v in self.headers if k == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None


def parse_one(data):
    """(response, rest) of bytes that begin with a whole response; None when more must come."""
    top, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None
    lines = top.split(b"\r\n")
    match = re.fullmatch(rb"HTTP/1\.[01] (\d{3}) [ -~]*", lines[0])
    assert match, f"no status line: {lines[0]!r}"
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        assert colon and re.fullmatch(rb"[A-Za-z0-9-]+", name), f"no header line: {line!r}"
        headers.append((name.decode().lower(), value.strip().decode("latin-1")))
    response = Response(int(match[1]), headers, b"")
    if response.header("transfer-encoding") == "chunked":
        while True:
            size, end, rest = rest.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                return None
            response.body += rest[:int(size, 16)]
            rest = rest[int(size, 16) + 2:]
            if not int(size, 16):
                return response, rest
    length = int(response.header("content-length") or 0)
    if len(rest) < length:
        return None
    response.body = rest[:length]
    return response, rest[length:]


def send(host, port, case, timeout=10, settle=0.05, wrap=None):
    """Send a row on a connection of its own. Returns (responses, whether the peer closed, bytes left
    over). A peer that keeps the connection is heard out for `settle` seconds after its answer."""
    connection = socket.create_connection((host, port), timeout)
    if wrap:
        connection = wrap(connection)
    responses, data, closed = [], b"", False
    until = time.monotonic() + timeout
    with connection:
        try:
            connection.sendall(case.bytes)
        except (BrokenPipeError, ConnectionResetError):
            pass
        while not closed and time.monotonic() < until:
            quiet = settle if responses and not case.closes else until - time.monotonic()
            connection.settimeout(max(quiet, 0.001))
            try:
                piece = connection.recv(65536)
            except (TimeoutError, socket.timeout):
                break
            except ConnectionResetError:
                piece = b""
            closed = not piece
            data += piece
            while data and (parsed := parse_one(data)):
                responses.append(parsed[0])
                data = parsed[1]
    return responses, closed, data


def check_error(response, code):
    """An error of ours: JSON in its one shape, with a request id."""
    assert response.header("content-type") == "application/json", response
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == "invalid_request_error" and (code is None or error["code"] == code), error
    assert re.fullmatch(r"req_[0-9a-f]{32}", response.header("x-request-id") or ""), response


def check(case, responses, closed, rest):
    """What the server itself must do with a row."""
    assert rest == b"", f"half a response, or more than one: {rest!r}"
    assert closed == case.closes, "closed" if closed else "still open"
    if not responses:
        assert CLOSED in case.status, "closed without an answer"
        return
    assert len(responses) == 1, responses
    [response] = responses
    assert response.status in case.status, response
    if response.status >= 400:
        check_error(response, case.code)
