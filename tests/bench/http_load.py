#!/usr/bin/env python3
"""Load on an OpenAI-compatible server on this machine: N streams at once, over raw sockets, and what each one saw.

  tests/bench/http_load.py http://127.0.0.1:8080 --streams 8 --requests 24 --prompt 155 --gen 128

A request is a POST /v1/completions with a text of words that is different for each of them (nobody is
helped by a prefix cache), `temperature` 0 and `ignore_eos`, streamed. Reported: time to the first
piece of text, time between pieces, tokens a second over the whole run. Tokens are those of the
server's own `usage`, where it gives one, else pieces. Prints one JSON object. Python's standard
library is all it needs."""

import argparse
import bisect
import json
import math
import random
import re
import selectors
import socket
import sys
import time
import urllib.parse

WORDS = """time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car
city community name president team minute idea kid body information back parent face others level
office door health person art war history party result change morning reason research girl guy""".split()


class Failed(Exception):
    pass


def prompt_text(number, n_words):
    pick = random.Random(number)
    return " ".join(pick.choice(WORDS) for _ in range(n_words))


# ---- the run: sockets, and what came when --------------------------------------------------------


class Stream:
    """A request under way. Pieces are only kept: what is parsed during the run would take processor
    time from the server, the more the faster that is."""

    def __init__(self, host, port, body):
        payload = json.dumps(body).encode()
        self.start = time.perf_counter()
        self.socket = socket.create_connection((host, port))
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (host.encode(), len(payload))
                            + payload)
        self.data, self.ends, self.times = [], [], []  # ends: offset behind each piece
        self.tail = b""

    def read(self):
        """False at the end: the answer's own, the connection's, or that of a refusal."""
        data = self.socket.recv(65536)
        if not data:
            return False
        self.times.append(time.perf_counter())
        self.data.append(data)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(data))
        seen, self.tail = self.tail + data, (self.tail + data)[-16:]
        return b"data: [DONE]" not in seen and not self.refused()

    def refused(self):
        return not self.data or self.data[0][9:12] != b"200"

    def when(self, offset):
        """The time at which the byte was there."""
        return self.times[bisect.bisect_right(self.ends, offset)]


def load(args):
    """(seconds, the ended streams)"""
    url = urllib.parse.urlsplit(args.url)
    bodies = []
    for number in range(args.requests):
        bodies.append({"prompt": prompt_text(args.seed * 100003 + number, args.prompt),
                       "max_tokens": args.gen, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
        if args.model:
            bodies[-1]["model"] = args.model
    waiting, ended = iter(bodies), []
    with selectors.DefaultSelector() as selector:
        def start_next():
            body = next(waiting, None)
            if body:
                stream = Stream(url.hostname, url.port, body)
                selector.register(stream.socket, selectors.EVENT_READ, stream)

        begun = time.perf_counter()
        for _ in range(args.streams):
            start_next()
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    ended.append(key.data)
                    if not key.data.refused():
                        start_next()
        return time.perf_counter() - begun, ended


# ---- afterwards: what it was ---------------------------------------------------------------------


def body_of(raw):
    """(offset behind it in raw, bytes) of an answer's body, chunk by chunk."""
    head, mark, body = raw.partition(b"\r\n\r\n")
    status, at = head[9:12], len(head) + len(mark)
    if status != b"200":
        raise Failed(f"status {status.decode(errors='replace')}: {body[:400].decode(errors='replace')}"
                     if mark else "the connection ended without an answer")
    if not re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", head, re.IGNORECASE):
        for i in range(at, len(raw)):
            yield i + 1, raw[i:i + 1]
        return
    while True:
        end = raw.find(b"\r\n", at)
        if end < 0:
            raise Failed("the answer ends without its last chunk")
        size = int(raw[at:end].split(b";")[0], 16)
        if size == 0:
            return
        at = end + 2 + size + 2
        yield min(at - 2, len(raw)), raw[end + 2:at - 2]


def read_events(chunks):
    """(offset, payload) of each `data:` line."""
    rest = b""
    for offset, data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield offset, line[6:].strip()


def digest(stream):
    """(start, [time of each piece of text], completion tokens or None)"""
    times, tokens = [], None
    for offset, payload in read_events(body_of(b"".join(stream.data))):
        if payload == b"[DONE]":
            break
        event = json.loads(payload)
        if "error" in event:
            raise Failed(str(event["error"]))
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        if any(choice.get("text") for choice in event.get("choices", [])):
            times.append(stream.when(offset - 1))
    return stream.start, times, tokens


def percentiles(values):
    values = sorted(values)
    if not values:
        return None
    at = {f"p{p}": values[max(0, math.ceil(p / 100 * len(values)) - 1)] for p in (50, 95, 99)}
    return {name: round(1000 * value, 3) for name, value in at.items()}


def summary(args, seconds, streams):
    firsts, gaps, tokens = [], [], 0
    for start, times, counted in map(digest, streams):
        if not times:
            raise Failed("a stream without text")
        firsts.append(times[0] - start)
        gaps += [b - a for a, b in zip(times, times[1:])]
        tokens += counted if counted is not None else len(times)
    return {"streams": args.streams, "requests": len(streams), "prompt_words": args.prompt,
            "gen_tokens": args.gen, "seconds": round(seconds, 3), "output_tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 3),
            "time_to_first_token_ms": percentiles(firsts), "inter_token_latency_ms": percentiles(gaps)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--requests", type=int, default=24, help="requests in all")
    parser.add_argument("--prompt", type=int, default=155, help="words of a prompt, about as many tokens")
    parser.add_argument("--gen", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    args = parser.parse_args()
    try:
        print(json.dumps(summary(args, *load(args))))
    except (Failed, OSError, ValueError) as fault:
        sys.exit(f"http_load: {type(fault).__name__}: {fault}")


if __name__ == "__main__":
    main()
