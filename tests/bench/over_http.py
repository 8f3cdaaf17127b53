"""The group over HTTP: every server is up, and the same client (http_load.py) visits them in turn."""

import contextlib
import pathlib
import sys

from figures import rounds
from sides import run_json

HTTP_LOAD = pathlib.Path(__file__).resolve().parent / "http_load.py"


def visit(args, url, streams, number):
    """{figure: (value, unit, lower is better)}"""
    report = run_json(sys.executable, HTTP_LOAD, url, "--streams", streams, "--requests",
                      streams * args.requests, "--prompt", args.http_prompt, "--gen", args.http_gen,
                      "--seed", number)
    name = f"HTTP, {streams} stream" + "s" * (streams > 1)
    first, gap = report["time_to_first_token_ms"], report["inter_token_latency_ms"]
    found = {name: (report["tokens_per_second"], "tokens/s", False),
             f"{name}: first token p50": (first["p50"], "ms", True)}
    for p in ("p50", "p95", "p99"):
        found[f"{name}: between tokens {p}"] = gap[p], "ms", True
    return found


def over_http(args, sides, figures):
    names = [side.name for side in sides]  # may take a run of its own, which no server should be up for
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(open(args.out / f"{number}-{name.replace(' ', '-')}.log", "w", encoding="utf-8"))
                for number, name in enumerate(names)]
        urls = [stack.enter_context(side.serve(log)) for side, log in zip(sides, logs)]

        def one_round(number):
            for streams in args.streams:
                for side, url in zip(sides, urls):
                    if url:
                        for name, (value, unit, lower) in visit(args, url, streams, number).items():
                            figures.note("http", name, side, value, unit, lower)
        rounds(args, "http", one_round)
