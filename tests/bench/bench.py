#!/usr/bin/env python3
"""The benchmark report of `make bench`: Geryon in each arithmetic asked for, beside llama.cpp where a
build of it is at hand. Whoever is measured takes turns with the others, A B A B, so that what else the
machine does falls on all; figures are medians (least-most) over the rounds, and ratios are what to read.

  tests/bench/bench.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --llamacpp DIR \\
                       --tables avx512,avx2 --arithmetic int8,f32 --groups prefill,decode,http

DIR holds llama-bench or llama-server or both, in itself, in bin/ or in build/bin/; `make llamacpp` makes
one. Groups (a module each, or several):

  prefill    prompts of several lengths, and seconds = a n + b n^2 fitted to them      offline.py
  decode     one sequence behind a context of several depths                           offline.py
  batch      several sequences at once, every figure of `geryon bench`                 offline.py
  neighbour  decoding beside a process that keeps one core busy                        offline.py
  http       streams of clients: tokens a second, time to first token, between tokens  over_http.py
  linear     long prompts with a window and with full attention                        linear.py
  drafts     the price of a draft cycle, and what the adaptive scheduler makes of it   drafts.py

A share of the limit is what `geryon bench` says of itself, which measures memory around every repetition. Writes
bench.json and bench.md under --out. Everything stays on 127.0.0.1; Python's standard library is all
it needs."""

import argparse
import json
import os
import pathlib

from drafts import drafts, drafts_markdown
from figures import Figures, table
from linear import linear, linear_markdown
from offline import batch, batch_markdown, decode, neighbour, prefill
from over_http import over_http
from sides import LlamaCpp, arithmetics, best_peaks, peer_text

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUSY = 0.75  # processes of others, on average: more of them and the report says so

# What each group runs, and how it is told where it has a table of its own.
GROUPS = {"prefill": (prefill, None), "decode": (decode, None), "batch": (batch, batch_markdown),
          "neighbour": (neighbour, None), "http": (over_http, None), "linear": (linear, linear_markdown),
          "drafts": (drafts, drafts_markdown)}


def markdown(report):
    args = report["arguments"]
    yield (f"{report['cpu']}, {args['threads']} threads of {os.cpu_count()} cores; load average "
           f"{report['load_before'][0]:.1f} before, {report['load_after'][0]:.1f} after. Model {report['model']}, "
           f"commit {report['commit']}. Median (least-most) of the rounds. Best peaks of this run:")
    if max(report["load_before"][0], report["load_after"][0] - args["threads"]) > BUSY:
        yield ""
        yield ("**Others were busy here during the run.** Threads that wait for each other lose most by it: read "
               "neither speeds nor ratios.")
    yield ""
    yield "| arithmetic | memory GB/s | products GFLOP/s |"
    yield "|---|---|---|"
    for name, peaks in report["peaks"].items():
        yield f"| {name} | {peaks['read_bytes_per_second'] / 1e9:.1f} | {peaks['flops_per_second'] / 1e9:.0f} |"
    for name, why in report["missing"].items():
        yield f"| {name} | not here: {why} | |"
    if "peer" in report:
        yield ""
        yield peer_text(report["peer"])
    if report["rows"]:
        yield ""
        yield from table(report["rows"])
    for group, (_, own) in GROUPS.items():
        if own and report.get(group):
            yield ""
            yield from own(report)


def comma(kind):
    return lambda text: [kind(word) for word in text.split(",") if word]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--geryon", type=pathlib.Path, default=ROOT / "build/geryon")
    add("--model", type=pathlib.Path, required=True)
    add("--llamacpp", type=pathlib.Path, help="a build of llama.cpp to compare with")
    add("--out", type=pathlib.Path, default=ROOT / "build/bench")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--groups", type=comma(str), default=["prefill", "decode", "batch", "http", "linear"],
        help="of " + ",".join(GROUPS))
    add("--tables", type=comma(str), default=["auto"], help="geryon's --cpu-table, each with each arithmetic")
    add("--arithmetic", type=comma(str), default=["auto"], help="geryon's --activations")
    add("--rounds", type=int, default=3, help="rounds of each group")
    add("--seconds", type=float, default=300, help="of a group: begin no round that ends later")
    add("--gen", type=int, default=64, help="tokens of an answer without a server")
    add("--prompts", type=comma(int), default=[512, 1024, 2048, 4096], help="group prefill: tokens")
    add("--depths", type=comma(int), default=[16, 256, 2048], help="group decode: tokens before the answer")
    add("--batch", type=comma(int), default=[1, 8, 32], help="group batch: sequences at once")
    add("--batch-prompt", type=int, default=512, help="group batch: tokens of a prompt")
    add("--neighbour-depth", type=int, default=256, help="group neighbour: tokens before the answer")
    add("--streams", type=comma(int), default=[8, 32], help="group http: clients at once")
    add("--requests", type=int, default=2, help="group http: requests of a client and round")
    add("--http-prompt", type=int, default=155, help="group http: words of a prompt, about as many tokens")
    add("--http-gen", type=int, default=128, help="group http: tokens of an answer")
    add("--linear", type=comma(int), default=[512, 2048, 8192, 16384], help="group linear: tokens, shortest first")
    add("--linear-full", type=int, default=8192,
        help="longest of them for full attention, which takes minutes; 0 leaves it out")
    add("--linear-shape", default="smollm2-135m", help="group linear: geryon's --synthetic")
    add("--linear-dtype", default="q4_0")
    add("--draft-shape", default="smollm2-135m", help="group drafts: geryon's --synthetic")
    add("--draft-dtypes", type=comma(str), default=["bf16", "q8_0", "q4_0"])
    add("--draft-gen", type=int, default=96, help="group drafts: tokens of an answer of adaptive drafts")
    add("--draft-pairs", type=int, default=8, help="and how often one with drafts stands beside one without")
    add("--block-pairs", type=int, default=3, help="the same for fixed blocks")
    add("--blocks", type=comma(int), default=[2, 4, 8, 16, 32], help="group drafts: rows of a fixed block")
    add("--block-accept", type=comma(int), default=[0], help="proposals that a fixed block keeps")
    add("--adaptive-accept", type=comma(int), default=[0, 1, 3, 7], help="and an adaptive one")
    args = parser.parse_args()
    for group in args.groups:
        if group not in GROUPS:
            parser.error(f"--groups: '{group}' is none of {', '.join(GROUPS)}")
    args.context = args.http_prompt * 8 + args.http_gen  # a word takes 1 to 8 tokens
    return args


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    ours, missing = arithmetics(args)
    sides = ours + ([LlamaCpp(args)] if args.llamacpp else [])
    load_before, figures, own_tables = os.getloadavg(), Figures(), {}
    for group, (measure, own) in GROUPS.items():
        if group in args.groups:
            found = measure(args, sides, figures)
            if own:
                own_tables[group] = found
    first = next((side.first for side in ours if side.first), None)
    report = {
        "cpu": first["machine"]["cpu"] if first else "", "commit": first["commit"] if first else "",
        "model": args.model.name, "missing": missing,
        "arguments": {k: v if isinstance(v, (int, float, str, list)) else str(v) for k, v in vars(args).items()},
        "peaks": {name: {"read_bytes_per_second": peaks["read_peak"], "flops_per_second": peaks["flop_peak"]}
                  for name, peaks in best_peaks(ours).items()},
        "load_before": load_before, "load_after": os.getloadavg(),
        "rows": list(figures.rows(sides)) if figures.names else [],
    } | own_tables
    if args.llamacpp:
        report["peer"] = sides[-1].describe()
    (args.out / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(markdown(report)) + "\n"
    (args.out / "bench.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
