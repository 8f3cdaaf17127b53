"""Figures by group, name and side, one value a round; what a report makes of them."""

import statistics
import sys
import time


def spread(values, digits=1):
    text = f"{statistics.median(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def rounds(args, group, measure):
    """measure(round) at least once, and again until --rounds; no round begins that would end after
    --seconds of the group."""
    begun = time.monotonic()
    for number in range(args.rounds):
        before = time.monotonic()
        measure(number)
        now = time.monotonic()
        print(f"bench: {group}, round {number + 1} of {args.rounds}: {now - before:.0f} s", file=sys.stderr,
              flush=True)
        if 2 * now - before > begun + args.seconds:
            break


class Figures:
    def __init__(self):
        self.names = {}   # (group, name) -> (unit, lower is better), in order of arrival
        self.values = {}  # (group, name, side) -> [value of each round]
        self.shares = {}  # (group, name, side) -> ("DRAM" | "FLOP", [share of that limit in each round])

    def note(self, group, name, side, value, unit="tokens/s", lower=False):
        if value is None:
            return
        self.names.setdefault((group, name), (unit, lower))
        self.values.setdefault((group, name, side.name), []).append(value)

    def share(self, group, name, side, limit, value):
        """What of a limit was reached in a round, by the run's own account."""
        if value is not None:
            self.shares.setdefault((group, name, side.name), (limit, []))[1].append(value)

    def rows(self, sides):
        """One row for each figure and arithmetic of ours, llama.cpp's values beside it."""
        ours = {side.name: side for side in sides if side.ours}  # two that came to the same are one
        for (group, name), (unit, lower) in self.names.items():
            theirs = self.values.get((group, name, "llama.cpp"))
            for side in ours.values():
                values = self.values.get((group, name, side.name))
                if values:
                    row = {"group": group, "name": name, "arithmetic": side.name, "unit": unit,
                           "geryon": values, "geryon_median": statistics.median(values)}
                    if (group, name, side.name) in self.shares:
                        row["limit"], shares = self.shares[group, name, side.name]
                        row["share"] = statistics.median(shares)
                    add_peer(row, theirs, lower)
                    yield row


def add_peer(row, theirs, lower):
    if not theirs:
        return
    row["llamacpp"], row["llamacpp_median"] = theirs, statistics.median(theirs)
    over, under = row["geryon_median"], row["llamacpp_median"]
    if lower:
        over, under = under, over
    row["ratio"] = over / under if over > 0 and under > 0 else None


def table(rows):
    peer = any("llamacpp" in row for row in rows)
    yield "| | arithmetic | geryon | of the limit |" + (" llama.cpp | geryon is better by |" if peer else "")
    yield "|---|---|---|---|" + ("---|---|" if peer else "")
    for row in rows:
        share = f"{row['share']:.0%} of {row['limit']}" if "share" in row else ""
        line = f"| {row['name']}, {row['unit']} | {row['arithmetic']} | {spread(row['geryon'])} | {share} |"
        if peer:
            ratio = row.get("ratio")
            line += f" {spread(row['llamacpp']) if 'llamacpp' in row else ''} |"
            line += f" {ratio:.2f} |" if ratio else " |"
        yield line
