"""The group of drafts, Geryon alone, on random weights with a stated number of kept proposals:

  cost of a cycle   draft and verify with fixed blocks, in decode steps of the same weights and
                    arithmetic without drafts: the tokens a cycle must yield before drafts pay
  adaptive          the scheduler's own choice of blocks: its speed over that of no drafts

A side's runs take turns: no drafts first, then each block and each accepted count."""

import statistics

from figures import rounds, spread

CONTEXT = 16


def decode(args, side, dtype, drafts, accept=None):
    """(tokens a second, tokens that a verification kept on average)"""
    block = drafts if isinstance(drafts, int) else max(args.blocks)
    model = ["--synthetic", f"{args.draft_shape},drafts={block}", "--dtype", dtype]
    more = ["--drafts", drafts] + (["--accept", accept] if accept is not None else [])
    case = side.bench(CONTEXT, args.draft_gen, *more, model=model)["cases"][0]
    return case["decode"]["tokens_per_second"]["median"], case["accepted_length"]


def drafts(args, sides, _figures):
    found = {}

    def note(side, dtype, kind, drafts_flag, accept, value):
        found.setdefault((side.name, dtype, kind, drafts_flag, accept), []).append(value)

    def one_round(_):
        for side in (side for side in sides if side.ours):
            for dtype in args.draft_dtypes:
                plain, _ = decode(args, side, dtype, "off")
                for block in args.blocks:
                    for accept in (k for k in args.block_accept if k < block):
                        speed, kept = decode(args, side, dtype, block, accept)
                        note(side, dtype, "cycle", block, accept, kept * plain / speed)
                for accept in args.adaptive_accept:
                    speed, _ = decode(args, side, dtype, "auto", accept)
                    note(side, dtype, "adaptive", "auto", accept, speed / plain)
    rounds(args, "drafts", one_round)
    return [{"arithmetic": name, "dtype": dtype, "kind": kind, "drafts": flag, "accept": accept, "values": values,
             "median": statistics.median(values)} for (name, dtype, kind, flag, accept), values in found.items()]


def drafts_markdown(report):
    args = report["arguments"]
    yield (f"Drafts: synthetic {args['draft_shape']}, {args['draft_gen']} tokens behind {CONTEXT}. Cost of a cycle "
           f"in decode steps without drafts, which is what a cycle must yield to pay; and the speed of adaptive "
           f"drafts over that of none.")
    yield ""
    yield "| arithmetic | weights | drafts | kept a cycle | cost of a cycle, steps | speed over no drafts |"
    yield "|" + "---|" * 6
    for row in report["drafts"]:
        value, cycle = spread(row["values"], 2), row["kind"] == "cycle"
        flag = f"blocks of {row['drafts']}" if cycle else "adaptive"
        speed = f"{(row['accept'] + 1) / row['median']:.2f}" if cycle else value
        yield (f"| {row['arithmetic']} | {row['dtype']} | {flag} | {row['accept']} | {value if cycle else ''} | "
               f"{speed} |")
