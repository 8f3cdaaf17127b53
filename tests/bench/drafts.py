"""The group of drafts, Geryon alone, on random weights with a stated number of kept proposals:

  adaptive          the scheduler's own choice of blocks: its speed over that of no drafts
  cost of a cycle   draft B rows and verify B rows, in decode steps of the same weights and arithmetic
                    without drafts: the tokens a cycle must yield before drafts pay

Speeds of two processes differ by more than what is to be seen here, so both come from one
(geryon bench --paired): a short text with drafts beside one without, A B B A .., and what counts is the
median of the ratios of such pairs, with its quartiles."""

import statistics

from figures import rounds
from sides import arithmetic_of

CONTEXT = 16
BLOCKS = 8  # cycles of a text with fixed blocks, as multiples of the block: the last are cut by the text's end


def paired(args, side, dtype, drafts, accept, gen, pairs):
    block = drafts if isinstance(drafts, int) else max(args.blocks)
    report = side.bench(CONTEXT, gen, "--drafts", drafts, "--accept", accept, "--paired", reps=pairs,
                        model=["--synthetic", f"{args.draft_shape},drafts={block}", "--dtype", dtype])
    return arithmetic_of(report), report["cases"][0]


def adaptive(args, side, dtype):
    """(key, values, None)"""
    for accept in args.adaptive_accept:
        name, case = paired(args, side, dtype, "auto", accept, args.draft_gen, args.draft_pairs)
        yield (name, dtype, "adaptive", "auto", accept), case["without_drafts"]["speed_over_it"]["of_each"], None


def cycles(args, side, dtype):
    """(key, values, what share of it the draft forward takes)"""
    for block in args.blocks:
        for accept in (k for k in args.block_accept if k < block):
            name, case = paired(args, side, dtype, block, accept, 1 + BLOCKS * block * (accept + 1), args.block_pairs)
            kept, took = case["accepted_length"], case["forward_ms"]
            costs = [kept / ratio for ratio in case["without_drafts"]["speed_over_it"]["of_each"]]
            yield (name, dtype, "cycle", block, accept), costs, took["draft"] / (took["draft"] + took["verify"])


def quartiles(values):
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def drafts(args, sides, _figures):
    found, shares = {}, {}

    def one_round(_):
        for side in (side for side in sides if side.ours):
            for dtype in args.draft_dtypes:
                for measure in adaptive, cycles:
                    for key, values, share in measure(args, side, dtype):
                        found.setdefault(key, []).extend(values)
                        shares.setdefault(key, []).append(share)
    rounds(args, "drafts", one_round)
    rows = []
    for key, values in found.items():
        row = dict(zip(("arithmetic", "dtype", "kind", "drafts", "accept"), key), values=values)
        row["q1"], row["median"], row["q3"] = quartiles(values)
        if row["kind"] == "cycle":
            row["draft_share"] = statistics.median(shares[key])
        rows.append(row)
    return rows


# ---- tables --------------------------------------------------------------------------------------

def grid(rows, first, down, across, heading, cell):
    """A line for each different `down` of the rows, a column for each `across`."""
    columns = list(dict.fromkeys(across(row) for row in rows))
    yield f"| {first} | " + " | ".join(heading(column) for column in columns) + " |"
    yield "|" + "---|" * (first.count("|") + 1 + len(columns))
    for line in dict.fromkeys(down(row) for row in rows):
        cells = {across(row): cell(row) for row in rows if down(row) == line}
        yield f"| {' | '.join(map(str, line))} | " + " | ".join(cells.get(column, "") for column in columns) + " |"


def split(row):
    draft = row["median"] * row["draft_share"]
    return f"{row['median']:.2f} ({draft:.2f} + {row['median'] - draft:.2f})"


def drafts_markdown(report):
    args = report["arguments"]
    chosen, fixed = ([row for row in report["drafts"] if row["kind"] == kind] for kind in ("adaptive", "cycle"))
    if chosen:
        worst = min(chosen, key=lambda row: row["median"])
        yield (f"Adaptive drafts: synthetic {args['draft_shape']}, {args['draft_gen']} tokens behind {CONTEXT}; speed "
               f"over that of no drafts, the median (quartiles) of {len(worst['values'])} pairs of texts in turns. The "
               f"lowest is {worst['median']:.2f}: {worst['arithmetic']}, {worst['dtype']}, {worst['accept']} kept.")
        yield ""
        yield from grid(chosen, "arithmetic | weights", lambda row: (row["arithmetic"], row["dtype"]),
                        lambda row: row["accept"], lambda k: f"{k} kept a cycle",
                        lambda row: f"{row['median']:.2f} ({row['q1']:.2f}-{row['q3']:.2f})")
    if chosen and fixed:
        yield ""
    if fixed:
        yield ("Cost of a cycle by rows: draft B, then verify B, in decode steps without drafts, which is what a cycle "
               "must yield to pay; in brackets draft + verify.")
        yield ""
        yield from grid(fixed, "arithmetic | weights | kept",
                        lambda row: (row["arithmetic"], row["dtype"], row["accept"]), lambda row: row["drafts"],
                        lambda b: f"B = {b}", split)
