"""The group of long prompts: the same shape with two streams and a window, and with full attention;
what a token of a prompt costs by the prompt's length. Geryon alone."""

import statistics

from figures import rounds, spread
from sides import arithmetic_of

WINDOW = 512
ATTENTIONS = {f"window {WINDOW}": f",window={WINDOW}", "full": ""}


def linear(args, sides, _figures):
    """A prompt of each length for one model, then for the other."""
    speeds = {}

    def one_round(_):
        for side in (side for side in sides if side.ours):
            for n in args.linear:
                for attention, more in ATTENTIONS.items():
                    if attention == "full" and n > args.linear_full:
                        continue
                    model = ["--synthetic", args.linear_shape + more, "--dtype", args.linear_dtype]
                    report = side.bench(n, 1, model=model)
                    speeds.setdefault((arithmetic_of(report), attention), {}).setdefault(n, []).append(
                        report["cases"][0]["prefill"]["tokens_per_second"]["median"])
    rounds(args, "linear", one_round)
    return [row for key, by_length in sorted(speeds.items(), key=lambda item: item[0][0])
            for row in rows(*key, by_length)]


def rows(arithmetic, attention, by_length):
    first = None
    for n, values in by_length.items():
        us = 1e6 / statistics.median(values)
        first = first or us
        yield {"arithmetic": arithmetic, "attention": attention, "prompt_tokens": n, "tokens_per_second": values,
               "us_per_token": us, "to_first": us / first}


def linear_markdown(report):
    args = report["arguments"]
    yield (f"Prefill of long prompts: synthetic {args['linear_shape']} in {args['linear_dtype']} with two streams "
           f"and a window of {WINDOW}, and with full attention. A linear prefill keeps its microseconds a token.")
    yield ""
    yield f"| arithmetic | attention | prompt | tokens/s | microseconds a token | of those at {args['linear'][0]} |"
    yield "|" + "---|" * 6
    for row in report["linear"]:
        yield (f"| {row['arithmetic']} | {row['attention']} | {row['prompt_tokens']} | "
               f"{spread(row['tokens_per_second'])} | {row['us_per_token']:.0f} | {row['to_first']:.2f} |")
