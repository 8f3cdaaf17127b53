#!/usr/bin/env python3
"""The benchmark report of `make bench`: Geryon offline and over HTTP, beside llama.cpp where a build of
it is at hand. Whoever is measured takes turns with the other one, A B A B, so that what else the
machine does falls on both; figures are medians over the rounds, and ratios are what to read.
A table of its own tells what a token of a long prompt costs in an Orthros model and under full attention.

  tests/bench/bench.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --llamacpp DIR

DIR holds llama-bench or llama-server or both, in itself or in bin/. Everything stays on 127.0.0.1.
Writes bench.json and bench.md under --out. Python's standard library is all it needs."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HTTP_LOAD = ROOT / "tests/bench/http_load.py"
START_SECONDS = 120


def run_json(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=3600)
    if done.returncode != 0:
        sys.exit(f"bench: {command[0]}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    return json.loads(done.stdout)


# ---- who is measured ------------------------------------------------------------------------------

class Geryon:
    name = "geryon"

    def __init__(self, args):
        self.args, self.reports = args, []

    def offline(self):
        a = self.args
        report = run_json(a.geryon, "bench", "--model", a.model, "--threads", a.threads,
                          "--prompt-tokens", a.prompt, "--gen-tokens", a.gen, "--batch", a.batch,
                          "--reps", 1, "--json")
        self.reports.append(report)
        case = report["cases"][0]
        if "skipped" in case:
            sys.exit(f"bench: the first case does not fit: {case['skipped']}")
        return {f"prefill {a.prompt}": case["prefill"]["tokens_per_second"]["median"],
                f"decode at {a.prompt}": case["decode"]["tokens_per_second"]["median"]}

    @contextlib.contextmanager
    def serve(self, log):
        a = self.args
        command = [a.geryon, "serve", "--model", a.model, "--port", 0, "--threads", a.threads,
                   "--max-num-seqs", max(a.streams), "--max-model-len", a.context]
        with running(command, log, stdout=subprocess.PIPE) as process:
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if not found:
                sys.exit(f"bench: geryon serve said {line!r}; see {log.name}")
            wait_until_ready(found[0] + "/ready", process, log)
            yield found[0]


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, args):
        self.args = args
        folders = [args.llamacpp, args.llamacpp / "bin"]
        self.bench, self.server = (
            next((f / tool for f in folders if (f / tool).is_file()), None)
            for tool in ("llama-bench", "llama-server"))
        if not self.bench and not self.server:
            sys.exit(f"bench: {args.llamacpp}: neither llama-bench nor llama-server in it or in its bin/")

    def offline(self):
        """Prefill alone, and decoding behind as long a context as Geryon's."""
        if not self.bench:
            return {}
        a, found = self.args, {}
        for name, flags in ((f"prefill {a.prompt}", ["-p", a.prompt, "-n", 0]),
                            (f"decode at {a.prompt}", ["-p", 0, "-n", a.gen, "-d", a.prompt])):
            rows = run_json(self.bench, "-m", a.model, "-t", a.threads, "-r", 1, "-o", "json", *flags)
            found[name] = rows[-1]["avg_ts"]
        return found

    @contextlib.contextmanager
    def serve(self, log):
        if not self.server:
            yield None
            return
        a, port = self.args, free_port()
        n = max(a.streams)
        command = [self.server, "-m", a.model, "--host", "127.0.0.1", "--port", port, "-np", n,
                   "-c", n * a.context, "-t", a.threads]
        with running(command, log, stdout=log) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url + "/health", process, log)
            yield url


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(command, log, stdout):
    process = subprocess.Popen([str(word) for word in command], stdout=stdout, stderr=log, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url, process, log):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            if opener.open(url, timeout=2).status == 200:
                return
        time.sleep(0.2)
    sys.exit(f"bench: {url} is not ready; see {log.name}")


# ---- rounds ---------------------------------------------------------------------------------------

def http_round(args, url, streams, number):
    report = run_json(sys.executable, HTTP_LOAD, url, "--streams", streams, "--requests",
                      streams * args.requests, "--prompt", args.http_prompt, "--gen", args.http_gen,
                      "--seed", number)
    name = f"HTTP, {streams} stream" + "s" * (streams > 1)
    first, gap = report["time_to_first_token_ms"], report["inter_token_latency_ms"]
    return {f"{name}: tokens/s": report["tokens_per_second"],
            f"{name}: first token p50 ms": first["p50"],
            f"{name}: between tokens p50 ms": gap["p50"], f"{name}: between tokens p95 ms": gap["p95"],
            f"{name}: between tokens p99 ms": gap["p99"]}


def rounds(args, deadline, measure):
    """measure(round) at least once, and again until --rounds or the time is up."""
    for number in range(args.rounds):
        begun = time.monotonic()
        measure(number)
        print(f"bench: round {number + 1} of {args.rounds}: {time.monotonic() - begun:.0f} s",
              file=sys.stderr, flush=True)
        if time.monotonic() + (time.monotonic() - begun) > deadline:
            break


def measure_all(args, sides):
    figures = {side.name: {} for side in sides}

    def note(side, found):
        for name, value in found.items():
            figures[side.name].setdefault(name, []).append(value)

    begun = time.monotonic()
    rounds(args, begun + args.seconds / 2, lambda n: [note(side, side.offline()) for side in sides])

    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(open(args.out / f"{side.name}.log", "w", encoding="utf-8"))
                for side in sides]
        urls = [stack.enter_context(side.serve(log)) for side, log in zip(sides, logs)]

        def turn(number):
            for streams in args.streams:
                for side, url in zip(sides, urls):
                    if url:
                        note(side, http_round(args, url, streams, number))

        rounds(args, begun + args.seconds, turn)
    return figures


# ---- prefill of long prompts ------------------------------------------------------------------------

WINDOW = 512
ATTENTIONS = {f"window {WINDOW}": f",window={WINDOW}", "full": ""}


def long_prefill(args):
    """The same shape with two streams and with one: what a token of a prompt costs by its length. A
    prompt of each length for one model, then for the other; --linear-reps rounds."""
    speeds = {name: {n: [] for n in args.linear} for name in ATTENTIONS}
    for number in range(args.linear_reps if args.linear else 0):
        for n in args.linear:
            for name, more in ATTENTIONS.items():
                if name == "full" and n > args.linear_full:
                    continue
                report = run_json(args.geryon, "bench", "--synthetic", args.linear_shape + more, "--threads",
                                  args.threads, "--prompt-tokens", n, "--gen-tokens", 1, "--batch", 1,
                                  "--reps", 1, "--json")
                case = report["cases"][0]
                if "skipped" in case:
                    sys.exit(f"bench: a prompt of {n} tokens: {case['skipped']}")
                speeds[name][n].append(case["prefill"]["tokens_per_second"]["median"])
        print(f"bench: long prompts, round {number + 1} of {args.linear_reps}", file=sys.stderr, flush=True)
    table = []
    for name, by_length in speeds.items():
        first = None
        for n, values in by_length.items():
            if values:
                us = 1e6 / statistics.median(values)
                first = first or us
                table.append({"attention": name, "prompt_tokens": n, "tokens_per_second": values,
                              "us_per_token": us, "to_first": us / first})
    return table


def long_prefill_markdown(report):
    table, args = report["orthros_prefill"], report["arguments"]
    if not table:
        return
    yield ""
    yield (f"Orthros prefill: synthetic {args['linear_shape']} with two streams and a window of {WINDOW}, and "
           f"with full attention. A linear prefill keeps its microseconds a token.")
    yield ""
    yield f"| attention | prompt | tokens/s | microseconds a token | of those at {args['linear'][0]} |"
    yield "|---|---|---|---|---|"
    for row in table:
        yield (f"| {row['attention']} | {row['prompt_tokens']} | {spread(row['tokens_per_second'])} | "
               f"{row['us_per_token']:.0f} | {row['to_first']:.2f} |")


# ---- the report -----------------------------------------------------------------------------------

def is_time(name):
    return name.endswith(" ms")


def rows(figures):
    ours, theirs = figures["geryon"], figures.get("llama.cpp", {})
    for name, values in ours.items():
        row = {"name": name, "geryon": values, "geryon_median": statistics.median(values)}
        if name in theirs:
            row["llamacpp"] = theirs[name]
            row["llamacpp_median"] = statistics.median(theirs[name])
            pair = row["geryon_median"], row["llamacpp_median"]
            over, under = reversed(pair) if is_time(name) else pair
            row["ratio"] = over / under if under else None
        yield row


def spread(values):
    text = f"{statistics.median(values):.1f}"
    return text if len(values) == 1 else f"{text} ({min(values):.1f}-{max(values):.1f})"


def markdown(report):
    machine, args = report["machine"], report["arguments"]
    peer = any("llamacpp" in row for row in report["rows"])
    yield (f"{machine['cpu']}, {args['threads']} threads; reads {machine['read_bytes_per_second'] / 1e9:.1f} "
           f"GB/s, multiply-adds {machine['multiply_add_flops_per_second'] / 1e9:.0f} GFLOP/s, measured in "
           f"the same run; load average {report['load_before'][0]:.1f} before, {report['load_after'][0]:.1f} "
           f"after, on {os.cpu_count()} cores.")
    yield f"Model {report['model']}, kernel table {report['kernel_table']}, {report['activations']} activations. Median (min-max) of the rounds."
    yield ""
    yield "| | geryon |" + (" llama.cpp | geryon is faster by |" if peer else "")
    yield "|---|---|" + ("---|---|" if peer else "")
    for row in report["rows"]:
        unit = "" if is_time(row["name"]) or "tokens/s" in row["name"] else ", tokens/s"
        line = f"| {row['name']}{unit} | {spread(row['geryon'])} |"
        if peer:
            ratio = row.get("ratio")
            line += f" {spread(row['llamacpp']) if 'llamacpp' in row else ''} |"
            line += f" {ratio:.2f} |" if ratio else " |"
        yield line
    yield ""
    yield ("| prompt | sequences | prefill tokens/s | of FLOP peak | decode tokens/s | of bandwidth | "
           "between tokens ms p50 / p95 / p99 | tokens a forward | accepted | decode MB, MFLOP a token |")
    yield "|" + "---|" * 10
    for case in report["offline"]:
        if "skipped" in case:
            yield f"| {case['prompt_tokens']} | {case['batch']} | skipped: {case['skipped']} |" + " |" * 7
            continue
        prefill, decode, gap = case["prefill"], case["decode"], case["inter_token_latency_ms"]
        yield (f"| {case['prompt_tokens']} | {case['batch']} | {prefill['tokens_per_second']:.0f} | "
               f"{prefill['flop_share']:.0%} | {decode['tokens_per_second']:.1f} | "
               f"{decode['bandwidth_share']:.0%} | {gap['p50']:.1f} / {gap['p95']:.1f} / {gap['p99']:.1f} | "
               f"{case['tokens_per_forward']:.2f} | {case['accepted_length']:.2f} | "
               f"{decode['bytes_per_token'] / 1e6:.1f}, {decode['flops_per_token'] / 1e6:.0f} |")
    yield from long_prefill_markdown(report)


def median_case(cases):
    """Cases of the same name from several rounds as one, number by number."""
    first = cases[0]
    if "skipped" in first:
        return first
    return {key: median_case([case[key] for case in cases]) if isinstance(value, dict) and "median" not in value
            else statistics.median(case[key]["median"] for case in cases) if isinstance(value, dict)
            else statistics.median(case[key] for case in cases) for key, value in first.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--geryon", type=pathlib.Path, default=ROOT / "build/geryon")
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--llamacpp", type=pathlib.Path, help="a build of llama.cpp to compare with")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each part")
    parser.add_argument("--seconds", type=float, default=270, help="begin no round that ends later")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of an offline prompt")
    parser.add_argument("--gen", type=int, default=64, help="tokens of an offline answer")
    parser.add_argument("--batch", default="1,8", help="sequences of Geryon's offline cases, 1 first")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8], help="clients at once")
    parser.add_argument("--requests", type=int, default=2, help="requests of a client and round")
    parser.add_argument("--http-prompt", type=int, default=155, help="words of a prompt over HTTP")
    parser.add_argument("--http-gen", type=int, default=64, help="tokens of an answer over HTTP")
    parser.add_argument("--linear", type=int, nargs="*", default=[2048, 4096, 8192, 16384],
                        help="lengths of the long prompts, shortest first; none leaves their table out")
    parser.add_argument("--linear-full", type=int, default=16384,
                        help="longest of them for full attention, which takes minutes; 0 leaves it out")
    parser.add_argument("--linear-reps", type=int, default=1, help="rounds of long prompts")
    parser.add_argument("--linear-shape", default="smollm2-135m", help="synthetic shape of the long prompts")
    args = parser.parse_args()
    if args.batch.split(",")[0] != "1":
        parser.error("--batch: the first one is compared and must be 1")
    args.context = args.http_prompt * 8 + args.http_gen  # a word takes 1 to 8 tokens
    args.out.mkdir(parents=True, exist_ok=True)

    ours = Geryon(args)
    sides = [ours] + ([LlamaCpp(args)] if args.llamacpp else [])
    load_before = os.getloadavg()
    figures = measure_all(args, sides)
    prefill = long_prefill(args)
    first = ours.reports[0]
    report = {
        "machine": {"cpu": first["machine"]["cpu"]} | {
            key: max(r["machine"][key] for r in ours.reports)
            for key in ("read_bytes_per_second", "multiply_add_flops_per_second")},
        "model": args.model.name, "kernel_table": first["engine"]["kernel_table"], "activations": first["engine"]["activations"],
        "commit": first["commit"], "arguments": {k: v if isinstance(v, (int, float, str, list)) else str(v)
                                                 for k, v in vars(args).items()},
        "load_before": load_before, "load_after": os.getloadavg(),
        "rows": list(rows(figures)),
        "orthros_prefill": prefill,
        "offline": [median_case(list(cases)) for cases in zip(*(r["cases"] for r in ours.reports))],
    }
    (args.out / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = "\n".join(markdown(report)) + "\n"
    (args.out / "bench.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
