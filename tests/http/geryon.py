"""A real server in a process of its own, and the ways tests talk to it: plain requests, strictly
parsed event streams, raw sockets, and the trace by which they see pages come back."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import socket
import ssl
import struct
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden"
BIN = os.environ.get("GERYON_BIN", str(ROOT / "build/geryon"))
SCRIPTED_BIN = os.environ.get("GERYON_SCRIPTED_BIN", str(ROOT / "build/geryon-scripted"))
# The product with its CUDA backend on the GPU simulator, or on a device.
CUDA_BIN = os.environ.get("GERYON_CUDA_BIN", str(ROOT / "build/gpusim/geryon"))
# Sanitizer builds are slower: limits in seconds grow by this factor.
SLOW = 6 if os.environ.get("GERYON_TEST_SLOW") else 1
FAULTS = re.compile(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|runtime error:|[Aa]ssert")


# ---- scripts --------------------------------------------------------------------------------------

EOS = {"special": "<eos>"}
SCRIPTED_PAGE_BYTES = 16384  # of KV memory, in the scripted model


def hex_piece(text):
    return {"hex": text}


def script(pieces=(), draft=None, block_size=0, vocab=(), **more):
    """A scripted model that writes `pieces` (strings, hex_piece, EOS) and then the end. `draft`: the
    pieces its drafter proposes, by default the same ones. Ids are those of `ids_of`."""
    words = list(vocab)
    for piece in [*pieces, *(draft or []), EOS]:
        if piece not in words:
            words.append(piece)
    model = {"vocab": words, "eos": [words.index(EOS)], "block_size": block_size}
    if "target" not in more:
        model["sequence"] = [words.index(p) for p in pieces]
        if draft is not None:
            model["draft_sequence"] = [words.index(p) for p in draft]
    return model | more


# ---- answers --------------------------------------------------------------------------------------

class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body, parse_constant=lambda name: (_ for _ in ()).throw(
            ValueError(f"{name} is no JSON")))

    @property
    def choice(self):
        assert self.status == 200, self.body
        return self.json["choices"][0]

    @property
    def text(self):
        choice = self.choice
        return choice["text"] if "text" in choice else choice["message"]["content"]

    @property
    def error(self):
        assert self.status != 200, self.body
        return self.json["error"]


EVENTS = re.compile(rb"(?:data: [^\r\n]+\n\n|:[^\r\n]*\n\n)*", re.S)


class Stream:
    """A whole event stream, parsed by exactly the grammar of the API: events are `data: ` and one
    line of JSON, comments one line, an empty line after each; `[DONE]` at most once, and last."""

    def __init__(self, answer, ended_well=True):
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        self.headers, self.raw, self.ended_well = answer.headers, answer.body, ended_well
        assert EVENTS.fullmatch(self.raw), f"no event stream: {self.raw!r}"
        self.raw.decode("utf-8")
        blocks = self.raw.split(b"\n\n")[:-1]
        self.comments = [b for b in blocks if b.startswith(b":")]
        data = [b[len(b"data: "):] for b in blocks if not b.startswith(b":")]
        self.done = bool(data) and data[-1] == b"[DONE]"
        assert data.count(b"[DONE]") == int(self.done), "[DONE] is last, and once"
        self.events = [json.loads(d) for d in (data[:-1] if self.done else data)]
        self.error = next((e["error"] for e in self.events if "error" in e), None)
        self.chunks = [e for e in self.events if "error" not in e]
        for key in ("id", "created", "model", "object", "system_fingerprint"):
            assert len({json.dumps(c[key]) for c in self.chunks}) <= 1, f"{key} changes"

    def of_choice(self, index=0):
        return [c for chunk in self.chunks for c in chunk["choices"] if c["index"] == index]

    def pieces(self, index=0):
        """Text of each chunk, empty ones included."""
        return [c["text"] if "text" in c else c["delta"].get("content") or ""
                for c in self.of_choice(index)]

    @property
    def text(self):
        return "".join(self.pieces())

    @property
    def finish_reasons(self):
        return [c["finish_reason"] for c in self.of_choice()]

    @property
    def finish_reason(self):
        return self.finish_reasons[-1]

    @property
    def stop_reason(self):
        return self.of_choice()[-1]["stop_reason"]

    @property
    def token_ids(self):
        return [t for c in self.of_choice() for t in c.get("token_ids") or []]

    @property
    def usage(self):
        usages = [c["usage"] for c in self.chunks if c.get("usage")]
        return usages[-1] if usages else None


class Live:
    """A stream while it runs. blocks() yields (seconds since the request, bytes of one event)."""

    def __init__(self, connection, path, body):
        self.connection, self.started, self.buffer = connection, time.monotonic(), b""
        connection.request("POST", path, json.dumps(body).encode())
        self.socket = connection.sock
        self.response = connection.getresponse()
        self.headers_after = time.monotonic() - self.started
        self.status, self.headers, self.raw = self.response.status, self.response.headers, b""

    def blocks(self):
        while True:
            while b"\n\n" not in self.buffer:
                piece = self.response.read1(65536)
                if not piece:
                    assert not self.buffer, f"ends inside an event: {self.buffer!r}"
                    return
                self.buffer += piece
                self.raw += piece
            block, self.buffer = self.buffer.split(b"\n\n", 1)
            yield time.monotonic() - self.started, block

    def texts(self):
        """(seconds, text) of each chunk that holds text."""
        for at, block in self.blocks():
            if block.startswith(b"data: {"):
                for choice in json.loads(block[6:]).get("choices", []):
                    text = choice["text"] if "text" in choice else choice["delta"].get("content")
                    if text:
                        yield at, text

    def finish(self):
        """The rest, and the whole of it parsed."""
        for _ in self.blocks():
            pass
        self.connection.close()
        return Stream(Answer(self.status, self.headers, self.raw))

    def close(self):
        self.response.close()
        self.connection.close()


# ---- the server -----------------------------------------------------------------------------------

# What a request of each route begins with where a test says nothing.
START = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}


def _stream_body(path, fields):
    body = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    return {k: v for k, v in {**body, **START[path], **fields}.items() if v is not ...}


def _computed(usage):
    """Usage without what was found in stored pages, which the first of two equal requests leaves."""
    return {key: value for key, value in usage.items() if key != "prompt_tokens_details"}


def _limit_files(n):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))


class Server:
    def __init__(self, model, *flags, scripted=False, ready=True, env=None, tls=None,
                 nofile=None, binary=BIN):
        """tls: (certificate, key) files; requests then trust that certificate. nofile: the limit on
        descriptors it starts with."""
        self.dir = tempfile.TemporaryDirectory(prefix="geryon-http-")
        folder = pathlib.Path(self.dir.name)
        if isinstance(model, dict):
            scripted = True
            # Whole blocks, unless a test asks for others: what `auto` chooses depends on the clock.
            if model.get("block_size") and "--drafts" not in flags:
                flags += ("--drafts", model["block_size"])
            (folder / "script.json").write_text(json.dumps(model))
            model = folder / "script.json"
        self.trace_path = folder / "trace"
        self.out_path, self.err_path = folder / "stdout", folder / "stderr"
        command = [SCRIPTED_BIN if scripted else binary, "serve", "--model", str(model), "--port", "0",
                   "--trace", str(self.trace_path), *map(str, flags)]
        self.tls = ssl.create_default_context(cafile=tls[0]) if tls else None
        if tls:
            command += ["--tls-cert", str(tls[0]), "--tls-key", str(tls[1])]
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env=dict(os.environ) | (env or {}),
                                            preexec_fn=_limit_files(nofile) if nofile else None)
        self.host, self.port = self._address()
        self.url = f"http{'s' if self.tls else ''}://{self.host}:{self.port}"
        if ready:
            self.wait_ready()

    def log(self):
        return (self.out_path.read_text("utf-8", "replace") +
                self.err_path.read_text("utf-8", "replace"))

    def _address(self):
        until = time.monotonic() + 20 * SLOW
        while time.monotonic() < until:
            if match := re.search(r"listening on https?://([0-9.]+|\[[0-9a-f:]+\]):(\d+)", self.log()):
                return match[1], int(match[2])
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        self.kill()
        raise AssertionError(f"no address, exit {self.process.returncode}:\n{self.log()}")

    def wait_ready(self, limit_s=120):
        until = time.monotonic() + limit_s * SLOW
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"exit {self.process.returncode}:\n{self.log()}")
            try:
                if self.get("/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.01)
        self.kill()
        raise AssertionError(f"not ready:\n{self.log()}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self, limit_s=45):
        """SIGTERM, then the checks that end every test: exit 0, nothing lost, no sanitizer report."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            status = self.process.wait(limit_s * SLOW)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"does not end on SIGTERM:\n{self.log()}") from None
        self.check_log()
        assert status == 0, f"exit status {status}:\n{self.log()}"

    def check_log(self):
        fault = FAULTS.search(self.log())
        assert not fault, f"{fault[0]} in the log:\n{self.log()}"

    # ---- requests

    def connect(self, timeout=30):
        if self.tls:
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout * SLOW,
                                               context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=30):
        connection = self.connect(timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body).encode()
            connection.request(method, path, body, headers or {})
            return _read(connection)[0]
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def complete(self, prompt="x", **fields):
        timeout = fields.pop("timeout", 30)
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0} | fields, timeout=timeout)

    def chat(self, content="x", **fields):
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
        return self.post("/v1/chat/completions", body | fields)

    def stream(self, path="/v1/completions", timeout=30, **fields):
        """A whole stream. Fields default to a greedy request of the route with usage at its end."""
        connection = self.connect(timeout)
        try:
            connection.request("POST", path, json.dumps(_stream_body(path, fields)).encode())
            answer, whole = _read(connection)
            return Stream(answer, whole) if answer.status == 200 else answer
        finally:
            connection.close()

    def open_stream(self, path="/v1/completions", timeout=30, **fields):
        """A stream that is read event by event."""
        return Live(self.connect(timeout), path, _stream_body(path, fields))

    def both(self, path="/v1/completions", **fields):
        """The same request whole and as a stream; they must agree. Returns both."""
        stream = self.stream(path, **fields)
        assert isinstance(stream, Stream), stream.body
        body = {"temperature": 0, **START[path], **fields}
        whole = self.post(path, body)
        assert stream.done and stream.ended_well, stream.raw
        assert stream.text == whole.text
        assert stream.finish_reason == whole.choice["finish_reason"]
        assert stream.stop_reason == whole.choice["stop_reason"]
        assert _computed(stream.usage) == _computed(whole.json["usage"])
        if fields.get("return_token_ids"):
            assert stream.token_ids == whole.choice["token_ids"]
        assert all("�" not in p for p in stream.pieces()) or "�" in whole.text
        return whole, stream

    def raw(self, data, timeout=10):
        """A socket to which `data` was sent."""
        connection = socket.create_connection((self.host, self.port), timeout * SLOW)
        if data:
            connection.sendall(data)
        return connection

    def wrap(self, connection):
        """A socket with TLS on it."""
        return self.tls.wrap_socket(connection, server_hostname=self.host)

    def memory(self):
        """Resident bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10

    def raw_post(self, path, body, head=b""):
        """Bytes of a POST; body is an object or bytes."""
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return (f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n").encode() + head + b"\r\n" + body

    # ---- what the engine is doing

    def trace(self):
        """All step lines so far; a last line without its end is left out."""
        text = self.trace_path.read_text() if self.trace_path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1] if line]

    def gauges(self):
        """Running and waiting sequences and pages used, from the newest trace line."""
        last = {}
        if self.trace_path.exists():
            with open(self.trace_path, "rb") as trace:
                trace.seek(max(0, trace.seek(0, os.SEEK_END) - 4096))
                lines = trace.read().split(b"\n")[:-1]  # the part after the last newline is unfinished
            last = json.loads(lines[-1]) if lines else {}
        return {key: last.get(key, 0) for key in ("running", "waiting", "pages_used")}

    def wait_gauges(self, condition, limit_s=10, what="gauges"):
        """Until condition(gauges) holds; returns the seconds it took."""
        started = time.monotonic()
        while not condition(now := self.gauges()):
            if time.monotonic() - started > limit_s * SLOW:
                raise AssertionError(f"{what}: still {now} after {limit_s} s")
            time.sleep(0.01)
        return time.monotonic() - started

    def wait_running(self, n=1):
        return self.wait_gauges(lambda g: g["running"] >= n, what=f"{n} running")

    def wait_idle(self, limit_s=1):
        """Every page free and no sequence left, within limit_s."""
        return self.wait_gauges(lambda g: g == {"running": 0, "waiting": 0, "pages_used": 0}, limit_s,
                                "idle")


def _read(connection):
    """The answer, and whether its body ended as HTTP says it must."""
    response = connection.getresponse()
    try:
        body, whole = response.read(), True
    except http.client.IncompleteRead as cut:
        body, whole = cut.partial, False
    return Answer(response.status, response.headers, body), whole


@contextlib.contextmanager
def serve(model, *flags, **more):
    server = Server(model, *flags, **more)
    try:
        yield server
    except BaseException:
        server.kill()
        print(server.log())
        raise
    try:
        server.stop()
    finally:
        server.kill()


# ---- raw sockets ----------------------------------------------------------------------------------

def reset(connection):
    """Close with RST in place of FIN."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until(connection, needle):
    data = b""
    while needle not in data:
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"closed before {needle!r}: {data!r}")
        data += piece
    return data


def read_all(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


# ---- the command line and golden data ---------------------------------------------------------------

def run_cli(*args, stdin=b"", check=True, timeout=300, binary=BIN, env=None):
    done = subprocess.run([binary, *map(str, args)], input=stdin, capture_output=True,
                          timeout=timeout * SLOW, check=False, env=dict(os.environ) | (env or {}))
    error = done.stderr.decode("utf-8", "replace")
    assert not FAULTS.search(error), error
    if check:
        assert done.returncode == 0, f"{args}: exit {done.returncode}: {error}"
    return done


def goldens(orthrus=None):
    """Golden checkpoints by name: all, or those with or without a draft view."""
    return [folder.name for folder in sorted(p.parent for p in GOLDEN.glob("*/golden.json"))
            if orthrus is None or ("orthrus" in folder.name) == orthrus]


def golden(name):
    return json.loads((GOLDEN / name / "golden.json").read_text())


def read_safetensors(path):
    """Float32 tensors of a safetensors file as numpy arrays."""
    import numpy
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", name
        lo, hi = entry["data_offsets"]
        tensors[name] = numpy.frombuffer(data[8 + size + lo:8 + size + hi], "<f4").reshape(entry["shape"])
    return tensors
