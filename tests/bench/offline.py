"""Groups without a server: prefill, decode, batches of sequences, and decode beside a busy process."""

import os
import statistics
import sys

from figures import rounds
from sides import arithmetic_of, running


# ---- prefill -------------------------------------------------------------------------------------

def fit(lengths, speeds):
    """Seconds of a prompt as a n + b n^2: the line through (n, seconds / n), least squares."""
    costs = [1 / speed for speed in speeds]
    line = statistics.linear_regression(lengths, costs)
    return line.intercept, line.slope


def prefill(args, sides, figures):
    def one_round(_):
        speeds = {side: [] for side in sides}
        for n in args.prompts:
            for side in sides:
                speed, share = side.prefill(n)
                figures.note("prefill", f"prefill {n}", side, speed)
                figures.share("prefill", f"prefill {n}", side, "FLOP", share)
                speeds[side].append(speed)
        for side in sides:
            if len(args.prompts) > 1 and all(speeds[side]):
                linear, quadratic = fit(args.prompts, speeds[side])
                figures.note("prefill", "prefill, linear term", side, linear * 1e6, "us/token", lower=True)
                figures.note("prefill", "prefill, quadratic term", side, quadratic * 1e9, "ns/token^2",
                             lower=True)
    rounds(args, "prefill", one_round)


# ---- decode --------------------------------------------------------------------------------------

def decode(args, sides, figures):
    def one_round(_):
        for depth in args.depths:
            for side in sides:
                speed, share = side.decode(depth, args.gen)
                figures.note("decode", f"decode at {depth}", side, speed)
                figures.share("decode", f"decode at {depth}", side, "DRAM", share)
    rounds(args, "decode", one_round)


# ---- a busy neighbour ----------------------------------------------------------------------------

def neighbour(args, sides, figures):
    """Decoding alone, then beside a process of equal priority that never leaves its one core."""
    core = min(os.sched_getaffinity(0))
    spin = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"]
    depth = args.neighbour_depth

    def one_round(_):
        for side in sides:
            alone, _ = side.decode(depth, args.gen)
            with running(spin):
                beside, _ = side.decode(depth, args.gen)
            figures.note("neighbour", f"decode at {depth}, alone", side, alone)
            figures.note("neighbour", f"decode at {depth}, beside a busy process", side, beside)
            if alone:
                figures.note("neighbour", "speed that is left beside it", side, 100 * beside / alone, "%")
    rounds(args, "neighbour", one_round)


# ---- batches -------------------------------------------------------------------------------------

def median_case(cases):
    """Cases of the same name from several rounds as one, number by number."""
    return {key: median_case([case[key] for case in cases]) if isinstance(value, dict) and "median" not in value
            else statistics.median(case[key]["median"] for case in cases) if isinstance(value, dict)
            else statistics.median(case[key] for case in cases) for key, value in cases[0].items()}


def batch(args, sides, _figures):
    """Geryon alone: several sequences at once, with every figure that `geryon bench` has."""
    found = {}

    def one_round(_):
        for n in args.batch:
            for side in (side for side in sides if side.ours):
                report = side.bench(args.batch_prompt, args.gen, batch=n)
                found.setdefault((arithmetic_of(report), n), []).extend(report["cases"])
    rounds(args, "batch", one_round)
    return [{"arithmetic": name} | median_case(cases) for (name, _), cases in found.items()]


def batch_markdown(report):
    yield ("| arithmetic | prompt | sequences | prefill tokens/s | of FLOP peak | decode tokens/s | of bandwidth | "
           "between tokens ms p50 / p95 / p99 | decode MB, MFLOP a token |")
    yield "|" + "---|" * 9
    for case in report["batch"]:
        first, later, gap = case["prefill"], case["decode"], case["inter_token_latency_ms"]
        yield (f"| {case['arithmetic']} | {case['prompt_tokens']:.0f} | {case['batch']:.0f} | "
               f"{first['tokens_per_second']:.0f} | {first['flop_share']:.0%} | {later['tokens_per_second']:.1f} | "
               f"{later['bandwidth_share']:.0%} | {gap['p50']:.1f} / {gap['p95']:.1f} / {gap['p99']:.1f} | "
               f"{later['bytes_per_token'] / 1e6:.1f}, {later['flops_per_token'] / 1e6:.0f} |")
