#!/usr/bin/env python3
"""The one test runner: lint, C tests, the simulated tile unit and GPU, replay of the fuzz corpora, Python tests over HTTP.

Every job is a process of its own with a time limit; two run at once. C tests, lint and the fuzz
drivers speak TAP, pytest writes JUnit XML; both are counted test by test. What failed is shown
with its output, and the last line is `N passed, N failed, N skipped` (exit status 1 when something
failed or nothing ran). Needs only Python's standard library.

    tests/run.py [--build build/release] [--jobs 2] [--kind unit --kind http ...] [WORD ...]

WORD keeps the jobs whose name holds one of the words.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = ["lint", "unit", "prop", "amx", "gpusim", "gpu", "sim", "fuzz", "http", "deploy"]
ASKED_FOR = ["deploy"]  # run only when named by --kind: they need more than a build
OUTPUT_LINES_SHOWN = 120


class Job:
    def __init__(self, kind, name, command, limit_s, expect="tap"):
        self.kind, self.name, self.command = kind, name, command
        self.limit_s, self.expect = limit_s, expect
        self.passed, self.failed, self.skipped = 0, [], []
        self.output, self.seconds = "", 0.0

    @property
    def label(self):
        return f"{self.kind}/{self.name}"


def collect(args):
    """All jobs, those that take long first, so that the two lanes end together."""
    jobs = []
    fuzz_build = args.fuzz_build or args.build
    for path in sorted((ROOT / "tests/http").glob("test_*.py")):
        jobs.append(Job("http", path.stem, None, 1200 * args.slow, expect="junit"))
        jobs[-1].path = path
    for path in sorted((ROOT / "tests/deploy").glob("test_*.py")):
        jobs.append(Job("deploy", path.stem, None, 1200 * args.slow, expect="junit"))
        jobs[-1].path = path
    more = 2 if "GERYON_SCENARIOS" in os.environ or "GERYON_LAWS" in os.environ else 1
    for kind, pattern in [("prop", "prop_*.c"), ("unit", "test_*.c")]:
        for source in sorted((ROOT / "tests" / kind).glob(pattern)):
            binary = ROOT / args.build / "tests" / kind / source.stem
            jobs.append(Job(kind, source.stem, [str(binary)], 300 * args.slow * more))
    # C tests that walk over the CPU tables, and its own, with the tile unit in software.
    for source in sorted((ROOT / "tests").glob("*/*.c")):
        own = source.parent.name == "amx" and source.stem.startswith("test_")
        if own or source.parent.name in ("unit", "prop") and re.search("tables_find|kernels_amx", source.read_text()):
            binary = ROOT / args.build / "tests/amx" / source.stem
            jobs.append(Job("amx", source.stem, [str(binary)], 300 * args.slow * more))
    # The simulator's tests, and those of kernels on it, run in both builds: the plain one and the
    # sanitizers find different bugs.
    for build in dict.fromkeys([args.build, fuzz_build]):
        for kind in ["gpusim", "gpu"]:
            for source in sorted((ROOT / "tests" / kind).glob("test_*.cpp")):
                binary = ROOT / build / "tests" / kind / source.stem
                name = f"{source.stem}-{pathlib.Path(build).name}"
                jobs.append(Job(kind, name, [str(binary)], 300 * args.slow))
        # C tests that know the CUDA table, linked with it.
        for source in sorted((ROOT / "tests").glob("*/*.c")):
            if source.parent.name in ("unit", "prop") and "tables_are_cuda" in source.read_text():
                binary = ROOT / build / "tests/sim" / source.stem
                name = f"{source.stem}-{pathlib.Path(build).name}"
                jobs.append(Job("sim", name, [str(binary)], 300 * args.slow * more))
    for source in sorted((ROOT / "tests/fuzz").glob("fuzz_*.c")):
        binary = ROOT / fuzz_build / "tests/fuzz" / source.stem
        corpus = ROOT / "tests/fuzz/corpus" / source.stem.removeprefix("fuzz_")
        jobs.append(Job("fuzz", source.stem, [str(binary), str(corpus)], 120 * args.slow))
    jobs.append(Job("lint", "lint", [sys.executable, str(ROOT / "tests/tools/lint.py")], 60))

    kinds = args.kind or [k for k in KINDS if k not in ASKED_FOR]
    kept = [j for j in jobs if j.kind in kinds]
    kept = [j for j in kept if j.name not in args.skip]
    if args.word:
        kept = [j for j in kept if any(w in j.label for w in args.word)]
    first = ["http/test_smollm2", "http/test_golden_http", "http/test_golden_cli", "http/test_cuda_golden",
             "http/test_cuda"]
    return sorted(kept, key=lambda j: (first + [j.label]).index(j.label))


def environment(args, job, scratch):
    env = dict(os.environ)
    env.update({
        "CMOCKA_MESSAGE_OUTPUT": "TAP",
        "TMPDIR": str(scratch),
        "GERYON_BIN": str(ROOT / args.build / "geryon"),
        "GERYON_SCRIPTED_BIN": str(ROOT / args.build / "geryon-scripted"),
        "GERYON_CUDA_BIN": str(ROOT / args.build / "geryon-gpusim"),
        # handle_segv=2: a test that catches SIGSEGV itself would hide what ASan has to say.
        "ASAN_OPTIONS": "handle_segv=2:detect_stack_use_after_return=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        # A second signal leaves at once by _exit, with threads running: no leak to report.
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0",
    })
    model = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if model.exists():
        env["GERYON_TEST_GGUF"] = str(model)
    if job.kind in ("amx", "sim") and "GERYON_SCENARIOS" in env:  # each takes a simulated device a second, or ten
        slower = 4 if job.kind == "amx" else 10 if job.name.endswith("-release") else 100
        env["GERYON_SCENARIOS"] = str(int(env["GERYON_SCENARIOS"]) // slower or 1)
    if "asan" in args.build or "tsan" in args.build:
        env["GERYON_TEST_SLOW"] = "1"  # time limits inside the Python tests grow
    return env


def run(args, job):
    scratch = ROOT / args.build / "tmp" / job.label.replace("/", "-")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    command = job.command
    if job.expect == "junit":
        report = scratch / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
                   f"--junitxml={report}", "--color=no", str(job.path)]
    started = time.monotonic()
    with open(scratch / "output", "w+b") as out:
        try:
            # A session of its own, so that a time-out ends the servers a test has started as well.
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                                     env=environment(args, job, scratch))
            try:
                status = child.wait(job.limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                status = f"took longer than {job.limit_s} s"
        except OSError as error:
            status = f"did not start: {error.strerror}"
        out.seek(0)
        job.output = out.read().decode("utf-8", "replace")
    job.seconds = time.monotonic() - started

    if job.expect == "junit":
        count_junit(job, report, status)
    else:
        count_tap(job, status)
    if not job.failed and not args.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    return job


def how_it_ended(status):
    if isinstance(status, int) and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}" if isinstance(status, int) else status


def count_tap(job, status):
    planned = 0
    for line in job.output.splitlines():
        if match := re.fullmatch(r"1\.\.(\d+)", line):
            planned += int(match[1])
        # cmocka writes a skipped test as `not ok 2 # SKIP name`.
        elif match := re.match(r"(not )?ok \d+(?: - | )(.*)", line):
            if "# SKIP" in match[2]:
                job.skipped.append(match[2].replace("# SKIP", "").strip())
            elif match[1]:
                job.failed.append(match[2])
            else:
                job.passed += 1
    seen = job.passed + len(job.failed) + len(job.skipped)
    if seen != planned or (status != 0 and not job.failed):
        job.failed.append(f"{how_it_ended(status)} after {seen} of {planned} tests")


def count_junit(job, report, status):
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        name = case.get("name")
        if case.find("failure") is not None or case.find("error") is not None:
            job.failed.append(name)
        elif (skip := case.find("skipped")) is not None:
            job.skipped.append(f"{name}: {skip.get('message')}")
        else:
            job.passed += 1
    # pytest: 0 = all well, 1 = tests failed, 5 = no test; anything else is a broken run.
    if status != 0 and not job.failed:
        job.failed.append(how_it_ended(status))


def show(job):
    state = "FAIL" if job.failed else "ok" if job.passed or not job.skipped else "skip"
    counts = f"{job.passed} passed"
    if job.failed:
        counts += f", {len(job.failed)} failed"
    if job.skipped:
        counts += f", {len(job.skipped)} skipped"
    print(f"{state:<5}{job.label:<36}{counts}  ({job.seconds:.1f} s)", flush=True)
    if job.failed:
        lines = job.output.rstrip().splitlines()
        if len(lines) > OUTPUT_LINES_SHOWN:
            print(f"     | ... {len(lines) - OUTPUT_LINES_SHOWN} lines before these")
        for line in lines[-OUTPUT_LINES_SHOWN:]:
            print("     | " + line)
        for name in job.failed:
            print(f"     failed: {name}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="folder of the objects under test")
    parser.add_argument("--fuzz-build", help="folder of the fuzz drivers, when another; gpusim tests run there too")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--slow", type=int, default=1, help="factor on all time limits")
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--keep", action="store_true", help="keep the scratch folders")
    parser.add_argument("--skip", action="append", default=[], help="a job by name, such as test_bench")
    parser.add_argument("word", nargs="*")
    args = parser.parse_args()

    jobs = collect(args)
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, args, j) for j in jobs]):
            show(done.result())

    failed = [(j, name) for j in jobs for name in j.failed]
    skipped = [(j, name) for j in jobs for name in j.skipped]
    passed = sum(j.passed for j in jobs)
    print()
    for job, name in skipped:
        print(f"skipped: {job.label}: {name}")
    for job, name in failed:
        print(f"FAILED:  {job.label}: {name}")
    print(f"{len(jobs)} jobs in {time.monotonic() - started:.0f} s")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
