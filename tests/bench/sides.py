"""Who is measured: Geryon in one arithmetic (a kernel table and the form of its activations), and
llama.cpp. Each side offers the same verbs, so that a group of measurements need not know whose turn
it is: prefill, decode, and serve."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request

START_SECONDS = 120
RUN_SECONDS = 3600


def fail(text):
    sys.exit(f"bench: {text}")


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          timeout=RUN_SECONDS)


def run_json(*command):
    done = run(*command)
    if done.returncode != 0:
        fail(f"{command[0]}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    return json.loads(done.stdout)


# ---- processes -----------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def running(command, **how):
    process = subprocess.Popen([str(word) for word in command], text=True, **how)
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
    fail(f"{url} is not ready; see {log.name}")


# ---- Geryon --------------------------------------------------------------------------------------

def arithmetic_of(report):
    """What a run computed in, by its own account: weights without blocks never meet int8 rows."""
    engine = report["engine"]
    return f"{engine['kernel_table']} {engine['activations']}"


class Geryon:
    """One table and one arithmetic as asked for. What a run made of it stands in its report, and its
    rows and peaks go by that: `peaks` holds the best that runs of each arithmetic measured, since what
    else the machine does can only lower them."""

    ours = True

    def __init__(self, args, table, activations):
        self.args = args
        self.flags = ["--cpu-table", table, "--activations", activations]
        self.peaks = {}    # arithmetic -> {"read_peak", "flop_peak"}
        self.first = None  # report of a run, for what all of them say
        self.own = None    # arithmetic of the runs of --model
        tiny = ["--synthetic", "tiny", "--dtype", "q8_0", "--prompt-tokens", 16, "--gen-tokens", 2, "--batch", 1,
                "--reps", 1]
        done = run(args.geryon, "bench", *tiny, *self.flags, "--threads", args.threads, "--json")
        self.missing = None if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit {done.returncode}"
        self.asked = f"{table} {activations}" if self.missing else arithmetic_of(json.loads(done.stdout))

    @property
    def name(self):
        """Of the model at hand, which the first run tells."""
        if self.own is None:
            self.bench(16, 1)
        return self.own

    def bench(self, prompt, gen, *more, batch=1, model=None, reps=1):
        """One process; the report with its peaks taken note of."""
        report = run_json(self.args.geryon, "bench", *(model or ["--model", self.args.model]), *self.flags,
                          "--threads", self.args.threads, "--prompt-tokens", prompt, "--gen-tokens", gen,
                          "--batch", batch, "--reps", reps, *more, "--json")
        for case in report["cases"]:
            if "skipped" in case:
                fail(f"a prompt of {case['prompt_tokens']} tokens, {case['batch']} at once: {case['skipped']}")
        arithmetic, machine = arithmetic_of(report), report["machine"]
        best = self.peaks.setdefault(arithmetic, {"read_peak": 0, "flop_peak": 0})
        best["read_peak"] = max(best["read_peak"], machine["read_bytes_per_second"])
        best["flop_peak"] = max(best["flop_peak"], machine["multiply_add_flops_per_second"])
        self.first = self.first or report
        if model is None:
            self.own = arithmetic
        return report

    def prefill(self, n):
        """(tokens a second, share of the peak of products)"""
        phase = self.bench(n, 1)["cases"][0]["prefill"]
        return phase["tokens_per_second"]["median"], phase["flop_share"]

    def decode(self, depth, n):
        """(tokens a second, share of what memory gave meanwhile)"""
        phase = self.bench(depth, n)["cases"][0]["decode"]
        return phase["tokens_per_second"]["median"], phase["bandwidth_share"]

    @contextlib.contextmanager
    def serve(self, log):
        a = self.args
        command = [a.geryon, "serve", "--model", a.model, "--port", 0, "--threads", a.threads, *self.flags,
                   "--max-num-seqs", max(a.streams), "--max-model-len", a.context]
        with running(command, stdout=subprocess.PIPE, stderr=log) as process:
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if not found:
                fail(f"geryon serve said {line!r}; see {log.name}")
            wait_until_ready(found[0] + "/ready", process, log)
            yield found[0]


def arithmetics(args):
    """The sides asked for that this machine and build have, and the others with the reason."""
    sides = [Geryon(args, table, activations) for table in args.tables for activations in args.arithmetic]
    there, missing = {}, {}
    for side in sides:
        (there if side.missing is None else missing).setdefault(side.asked, side)
    if not there:
        fail("; ".join(f"{name}: {side.missing}" for name, side in missing.items()))
    return list(there.values()), {name: side.missing for name, side in missing.items()}


def best_peaks(sides):
    """Of each arithmetic that any run had, the best of all sides."""
    best = {}
    for side in sides:
        for name, peaks in side.peaks.items():
            best[name] = {key: max(value, best.get(name, {}).get(key, 0)) for key, value in peaks.items()}
    return best


# ---- llama.cpp -----------------------------------------------------------------------------------

# What llama-bench says of itself and of how it ran, and how a person reads it.
PEER_FIELDS = ("build_commit", "build_number", "cpu_info", "backends", "n_threads", "flash_attn", "type_k", "type_v",
               "n_batch", "n_ubatch", "repack")
FLASH = {-1: "auto", 0: "off", 1: "on", False: "off", True: "on"}


class LlamaCpp:
    ours = False
    name = "llama.cpp"

    def __init__(self, args):
        self.args = args
        self.about = None  # of PEER_FIELDS, as the first run of llama-bench had them
        folders = [args.llamacpp, args.llamacpp / "bin", args.llamacpp / "build/bin"]
        self.tool, self.server = (
            next((f / tool for f in folders if (f / tool).is_file()), None)
            for tool in ("llama-bench", "llama-server"))
        if not self.tool and not self.server:
            fail(f"{args.llamacpp}: neither llama-bench nor llama-server in it, its bin/ or build/bin/")

    def bench(self, *flags):
        if not self.tool:
            return None
        row = run_json(self.tool, "-m", self.args.model, "-t", self.args.threads, "-r", 1, "-o", "json", *flags)[-1]
        self.about = self.about or {field: row[field] for field in PEER_FIELDS if field in row}
        return row["avg_ts"]

    def describe(self):
        """{field: value}; where no group ran llama-bench it does so now."""
        if self.about is None:
            self.bench("-p", 1, "-n", 0)
        return self.about or {}

    def prefill(self, n):
        return self.bench("-p", n, "-n", 0), None

    def decode(self, depth, n):
        return self.bench("-p", 0, "-n", n, "-d", depth), None

    @contextlib.contextmanager
    def serve(self, log):
        if not self.server:
            yield None
            return
        a, port = self.args, free_port()
        n = max(a.streams)
        command = [self.server, "-m", a.model, "--host", "127.0.0.1", "--port", port, "-np", n,
                   "-c", n * a.context, "-t", a.threads]
        with running(command, stdout=log, stderr=log) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url + "/health", process, log)
            yield url


def peer_text(about):
    """One sentence about the llama.cpp that was measured."""
    if not about:
        return "llama.cpp: its build is not known, there is no llama-bench to ask."
    say = [f"build {about.get('build_number', '?')} ({about.get('build_commit', 'unknown')})",
           about.get("cpu_info"), f"backends {about.get('backends')}", f"{about.get('n_threads')} threads",
           f"flash attention {FLASH.get(about.get('flash_attn'), about.get('flash_attn'))}"]
    if "type_k" in about:
        say.append(f"KV {about['type_k']} / {about['type_v']}")
    return "llama.cpp: " + ", ".join(word for word in say if word) + "."
