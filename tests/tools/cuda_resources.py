#!/usr/bin/env python3
"""What the kernels take of a GPU: registers, shared memory, stack and spills of each kernel on each architecture.

    tests/tools/cuda_resources.py build/cuda [--json]

Reads what `ptxas -v` said while `make cuda` compiled (*.ptxas beside the objects). Exit status 1 when a
kernel spills registers to memory and is not in SPILLS below, and when that list names one that does not
spill any more. Needs only Python's standard library; c++filt, where there is one, makes names readable.
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys

# Kernels that may spill: part of the readable name, architecture, the most bytes of spill stores and loads, why that
# is fine.
SPILLS = [
    ("attend_mma<128, false>", "sm_80", 48, "5 loads beside 255 registers in use; smaller loops of copies change nothing"),
]

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def parse(text):
    """One dict a kernel and architecture, in order."""
    found = []
    for line in text.splitlines():
        if match := ENTRY.search(line):
            found.append({"kernel": match[1], "arch": match[2], "registers": 0, "shared": 0, "stack": 0, "spill": 0})
        elif found and (match := STACK.search(line)):
            found[-1]["stack"], found[-1]["spill"] = int(match[1]), int(match[2]) + int(match[3])
        elif found and (match := USED.search(line)):
            found[-1]["registers"] = int(match[1])
            if shared := SHARED.search(line):
                found[-1]["shared"] = int(shared[1])
    return found


def readable(names):
    """Mangled names to those of the source, without the parameters."""
    if not shutil.which("c++filt") or not names:
        return {name: name for name in names}
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = [re.sub(r"^void |\(anonymous namespace\)::", "", line) for line in done.stdout.splitlines()]
    return {name: cut_parameters(text) for name, text in zip(names, short)}


def cut_parameters(name):
    """`k<(int)4, float>(float*)` to `k<4, float>`: up to the bracket that opens outside <>."""
    name, depth = re.sub(r"\((?:unsigned )?(?:int|bool|enum \w+|\w+)\)(?=[\w-])", "", name), 0
    for at, char in enumerate(name):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0:
            return name[:at]
    return name


def judge(rows):
    """What is wrong, one text each."""
    listed = {}  # entries whose kernel was compiled: what it spills
    for row in rows:
        entry = next((e for e in SPILLS if e[0] in row["name"] and e[1] == row["arch"]), None)
        allowed = entry[2] if entry else 0
        if entry:
            listed[entry] = max(listed.get(entry, 0), row["spill"])
        if row["spill"] > allowed:
            yield f"{row['name']} spills {row['spill']} bytes on {row['arch']}, allowed are {allowed}"
    for (pattern, arch, _, _), most in listed.items():
        if not most:
            yield f"SPILLS lists {pattern} on {arch}, which does not spill"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="one JSON object a row in place of the table")
    args = parser.parse_args()
    rows = []
    for path in sorted((args.build / "kernels/cuda").glob("*.ptxas")):
        for row in parse(path.read_text("utf-8", "replace")):
            rows.append(row | {"file": path.name.removesuffix(".ptxas").removesuffix(".cu") + ".cu"})
    if not rows:
        print(f"{args.build}: no kernels compiled there", file=sys.stderr)
        return 1
    names = readable(list(dict.fromkeys(row["kernel"] for row in rows)))
    for row in rows:
        row["name"] = names[row["kernel"]]
    rows.sort(key=lambda r: (r["file"], r["name"], int(re.sub(r"\D", "", r["arch"]))))
    if args.json:
        for row in rows:
            print(json.dumps(row))
    else:
        wide = max(len(row["name"]) for row in rows)
        print(f"{'file':<14}{'kernel':<{wide + 2}}{'arch':<8}{'registers':>9}{'shared':>8}{'stack':>7}{'spill':>7}")
        for row in rows:
            print(f"{row['file']:<14}{row['name']:<{wide + 2}}{row['arch']:<8}{row['registers']:>9}{row['shared']:>8}"
                  f"{row['stack']:>7}{row['spill']:>7}")
    faults = list(judge(rows))
    for fault in faults:
        print(f"cuda-resources: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
