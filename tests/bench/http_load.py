#!/usr/bin/env python3
"""Load on an OpenAI-compatible server: N streams at once, over raw sockets, and what each one saw.

  tests/bench/http_load.py http://127.0.0.1:8080 --streams 8 --requests 24 --prompt 155 --gen 128

A request is a POST /v1/completions with a text of words that is different for each of them (nobody is
helped by a prefix cache), `temperature` 0 and `ignore_eos`, streamed. Reported: time to the first
piece of text, time between pieces, tokens a second over the whole run. Tokens are those of the
server's own `usage`, where it gives one, else pieces. Prints one JSON object. Python's standard
library is all it needs."""

import argparse
import asyncio
import json
import math
import random
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


async def read_chunks(reader):
    """The decoded pieces of a chunked body."""
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]


async def read_events(reader, chunked):
    """Payloads of `data:` lines."""
    rest = b""
    if chunked:
        source = read_chunks(reader)
    else:
        async def until_the_end():
            while data := await reader.read(65536):
                yield data
        source = until_the_end()
    async for data in source:
        rest += data
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:].strip()


async def one_request(host, port, body):
    """(start, [time of each piece of text], completion tokens or None)"""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    payload = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (host.encode(), len(payload))
                 + payload)
    try:
        status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := (await reader.readline()).strip().lower()):
            chunked |= line.startswith(b"transfer-encoding:") and b"chunked" in line
        if status != 200:
            raise Failed(f"status {status}: {(await reader.read(400)).decode(errors='replace')}")
        times, tokens = [], None
        async for payload in read_events(reader, chunked):
            if payload == b"[DONE]":
                break
            event = json.loads(payload)
            if "error" in event:
                raise Failed(str(event["error"]))
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if any(choice.get("text") for choice in event.get("choices", [])):
                times.append(time.perf_counter())
        return start, times, tokens
    finally:
        writer.close()


async def load(args):
    url = urllib.parse.urlsplit(args.url)
    numbers = iter(range(args.requests))
    results = []

    async def client():
        for number in numbers:
            body = {"prompt": prompt_text(args.seed * 100003 + number, args.prompt),
                    "max_tokens": args.gen, "temperature": 0, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}}
            if args.model:
                body["model"] = args.model
            results.append(await one_request(url.hostname, url.port, body))

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(args.streams)))
    return time.perf_counter() - begun, results


def percentiles(values):
    values = sorted(values)
    if not values:
        return None
    at = {f"p{p}": values[max(0, math.ceil(p / 100 * len(values)) - 1)] for p in (50, 95, 99)}
    return {name: round(1000 * value, 3) for name, value in at.items()}


def summary(args, seconds, results):
    firsts, gaps, tokens = [], [], 0
    for start, times, counted in results:
        if not times:
            raise Failed("a stream without text")
        firsts.append(times[0] - start)
        gaps += [b - a for a, b in zip(times, times[1:])]
        tokens += counted if counted is not None else len(times)
    return {"streams": args.streams, "requests": len(results), "prompt_words": args.prompt,
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
        print(json.dumps(summary(args, *asyncio.run(load(args)))))
    except (Failed, OSError, ValueError, asyncio.IncompleteReadError) as fault:
        sys.exit(f"http_load: {type(fault).__name__}: {fault}")


if __name__ == "__main__":
    main()
