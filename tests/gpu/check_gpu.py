#!/usr/bin/env python3
"""Test and measure the CUDA backend on the GPU of this machine, in under 8 minutes, useful if cut off anywhere.

    tests/gpu/check_gpu.py [--dry-run | --simulate] [--binaries DIR] [--stage WORD ...] [--budget SECONDS]
    tests/gpu/check_gpu.py --bundle DIR

Stages, each with a time limit of its own and one line of JSON as soon as it is known: the device; a build for
that one architecture; the tests of kernels, smallest first; golden checkpoints; row invariance; compute-sanitizer;
benches. A stage that fails does not stop the next; the exit status is 1 when any failed. Lines go to stdout and to
OUT/results.jsonl, the whole to OUT/result.json with device, driver and commit (OUT: build/check-gpu).

  --binaries DIR   binaries that were built elsewhere (DIR/geryon, DIR/tests/gpu/test_*): nothing is built
  --bundle DIR     make such a folder from build/cuda, with the shared libraries that machines may lack
  --simulate       the same stages on the GPU simulator with tiny shapes: the script's own test (binaries of build/release
                   after make gpusim, or of DIR)
  --dry-run        list the stages and their limits

What only a device can tell: speed, races between blocks, the bits of tensor cores and of fused multiply-adds, and
cuBLAS. Needs only Python's standard library."""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden"
TOLERANCE = 1e-4       # float32 logits against float64, as on the CPU
BF16_TOLERANCE = 0.1   # of the logits' spread, root mean square; the simulator has 0.01 to 0.06
OUTPUT_KEPT = 3000     # characters of a failed command's output


class Failed(Exception):
    """A stage that did not do what it should; its text says why."""


class Skipped(Exception):
    """A stage that cannot be done here."""


# ---- commands -------------------------------------------------------------------------------------

class Runner:
    """Commands of one stage, ended with everything they started when its time is up."""

    def __init__(self, check, limit_s):
        self.check, self.deadline = check, time.monotonic() + limit_s

    def left(self):
        return self.deadline - time.monotonic()

    def run(self, *command, limit_s=None, status=0, env=None):
        """stdout of the command; Failed when it takes too long or ends otherwise."""
        limit = min(self.left(), limit_s or self.left())
        text = " ".join(map(str, command))[:160]
        if limit <= 0:
            raise Failed(f"no time left for: {text}")
        child = subprocess.Popen([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 stdin=subprocess.DEVNULL, text=True, errors="replace", start_new_session=True,
                                 env=self.check.env | (env or {}))
        try:
            out, said = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise Failed(f"took longer than {limit:.0f} s: {text}") from None
        if status is not None and child.returncode != status:
            raise Failed(f"exit status {child.returncode}: {text}: {(said + out)[-OUTPUT_KEPT:]}")
        return out

    def geryon(self, *args):
        return self.run(self.check.binary, *args)


# ---- golden data ----------------------------------------------------------------------------------

def read_tensors(path):
    """Float32 tensors of a safetensors file, flat, and their shapes."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        lo, hi = entry["data_offsets"]
        values = array.array("f")
        values.frombytes(data[8 + size + lo:8 + size + hi])
        tensors[name] = values
    return tensors


def logits_of(output):
    return [value for line in output.splitlines() for value in json.loads(line)["logits"]]


def worst(got, expected):
    if len(got) != len(expected):
        raise Failed(f"{len(got)} logits, expected {len(expected)}")
    return max(abs(a - b) for a, b in zip(got, expected))


def spread_error(got, expected):
    """Root mean square of the error, as a share of the spread of what is expected."""
    n, mean = len(expected), sum(expected) / len(expected)
    spread = sum((b - mean) ** 2 for b in expected) / n
    return (sum((a - b) ** 2 for a, b in zip(got, expected)) / n / spread) ** 0.5


def ids(tokens):
    return ",".join(map(str, tokens))


# ---- the stages -----------------------------------------------------------------------------------

class Check:
    def __init__(self, args):
        self.args = args
        self.env = dict(os.environ) | {"CMOCKA_MESSAGE_OUTPUT": "TAP"}
        self.device = {}
        self.jobs = 1 if args.simulate else min(8, os.cpu_count() or 1)
        base = args.binaries or ROOT / ("build/release" if args.simulate else "build/cuda")
        self.tests = [base / "tests/gpu", base / "tests/gpusim/test_kernels"]
        self.binary = base / ("geryon-gpusim" if args.simulate else "geryon")

    # -- the machine

    def find_device(self, runner):
        if self.args.simulate:
            self.device = {"device": "GPU simulator", "driver": "", "capability": "80"}
            return self.device
        if not shutil.which("nvidia-smi"):
            raise Failed("no device: nvidia-smi is not here")
        keys = "name,driver_version,compute_cap,memory.total,clocks.max.sm,clocks.max.mem,power.limit"
        lines = runner.run("nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader").splitlines()
        if not lines:
            raise Failed("no device: nvidia-smi lists none")
        row = [cell.strip() for cell in lines[0].split(",")]
        self.device = {"device": row[0], "driver": row[1], "capability": row[2].replace(".", ""),
                       "memory": row[3], "sm_clock": row[4], "memory_clock": row[5], "power_limit": row[6]}
        return self.device

    def find_blas(self):
        """cuBLAS may lie where the loader does not look."""
        done = subprocess.run(["ldd", str(self.binary)], capture_output=True, text=True, check=False)
        if "libcublas" not in done.stdout or "not found" not in done.stdout:
            return
        folders = [*pathlib.Path("/usr/local").glob("cuda*/lib64"), *pathlib.Path("/usr/local").glob("cuda*/targets/*/lib")]
        for root in map(pathlib.Path, ["/usr/lib", "/usr/local/lib", "/opt"]):
            folders += [path.parent for path in root.glob("**/nvidia/*/lib/libcublas.so.*")]
        found = [str(f) for f in folders if any(f.glob("libcublas.so.*"))]
        self.env["LD_LIBRARY_PATH"] = ":".join([*found, self.env.get("LD_LIBRARY_PATH", "")])

    def build(self, runner):
        if self.args.binaries:
            pass
        elif self.args.simulate:
            runner.run("make", "-j2", "gpusim")
        else:
            have = subprocess.run(["pkg-config", "--exists", "libmicrohttpd", "gnutls", "libuv", "jansson", "libpcre2-8",
                                   "libutf8proc", "cmocka"], check=False).returncode == 0 if shutil.which("pkg-config") else False
            if not have:
                runner.run("tests/tools/deps.sh", "test", limit_s=60, status=None)
            runner.run("make", f"-j{os.cpu_count()}", "CONFIG=cuda", f"GPU_ARCHS={self.device.get('capability', '90')}",
                       "cuda-all")
        self.find_blas()
        if not self.binary.exists():
            raise Failed(f"{self.binary} is not there")
        version = runner.geryon("version").strip()
        inspected = runner.geryon("inspect", "--backend", "cuda", "--model", GOLDEN / "qwen3-single-standard-none")
        return {"version": version, "backend": re.search(r"^backend +(.*)$", inspected, re.M)[1]}

    def commit(self):
        if shutil.which("git"):
            done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True,
                                  text=True, check=False)
            if done.returncode == 0:
                return done.stdout.strip()
        return None  # a bare copy: the build stage's version names it

    # -- correctness

    def test_binaries(self):
        found = [*self.tests[0].glob("test_*"), self.tests[1]]
        found = [path for path in found if path.is_file() and not path.suffix and os.access(path, os.X_OK)]
        return sorted(found, key=lambda path: path.stat().st_size)

    def kernel_test(self, path):
        def stage(runner):
            text = runner.run(path, status=None)
            passed = len(re.findall(r"^ok \d+(?!.*# SKIP)", text, re.M))
            failed = re.findall(r"^not ok \d+(?: - | )(?!.*# SKIP)(.*)$", text, re.M)
            planned = sum(int(n) for n in re.findall(r"^1\.\.(\d+)$", text, re.M))
            skipped = len(re.findall(r"# SKIP", text))
            if failed or passed + skipped != planned or not planned:
                raise Failed(f"{passed} of {planned} passed; failed: {', '.join(failed)}: {text[-OUTPUT_KEPT:]}")
            return {"passed": passed, "skipped": skipped}
        return stage

    def golden_one(self, runner, name):
        """One checkpoint: logits at all positions, however they are computed; the greedy text; drafts."""
        folder = GOLDEN / name
        data, tensors = json.loads((folder / "golden.json").read_text()), read_tensors(folder / "golden.safetensors")
        prompt, expected = data["prompts"][5], tensors["all.5"]
        model = ["--backend", "cuda", "--model", folder]
        f32 = [*model, "--dtype", "f32", "--kv-dtype", "f32"]
        ask = ["logits", *f32, "--tokens", ids(prompt), "--positions", "all"]
        whole = runner.geryon(*ask)
        error = worst(logits_of(whole), expected)
        if not error < TOLERANCE:
            raise Failed(f"{name}: largest error {error:.3g}, allowed is {TOLERANCE}")
        for how in (["--chunk", 7], ["--decode"]):
            if runner.geryon(*ask, *how) != whole:
                raise Failed(f"{name}: {how[0]} changed a bit of the float32 logits")
        bf16 = ["logits", *model, "--dtype", "bf16", "--kv-dtype", "bf16", "--tokens", ids(prompt), "--positions", "all"]
        near = spread_error(logits_of(runner.geryon(*bf16)), expected)
        if not near < BF16_TOLERANCE:
            raise Failed(f"{name}: bf16 logits are off by {near:.3g} of their spread, allowed is {BF16_TOLERANCE}")
        drafts = ["--drafts", data["block_size"]] if "cycles" in data else []
        text = json.loads(runner.geryon("generate", *f32, "--tokens", ids(prompt), "--json", "--ignore-eos",
                                        "--max-tokens", data["count"], *drafts))
        if text["tokens"] != data["greedy"][5]:
            raise Failed(f"{name}: the greedy text is another one: {text['tokens']}")
        if drafts:
            cycles = [(c["drafted"], c["accepted"]) for c in text["cycles"]]
            golden = [(c["draft"], c["accepted"]) for c in data["cycles"][5]][:-1]
            if cycles[:len(golden)] != golden:
                raise Failed(f"{name}: drafts or accepted counts are not the golden ones")
        return {"error": error, "bf16": near}

    def golden(self, runner):
        names = sorted(path.parent.name for path in GOLDEN.glob("*/golden.json"))
        if self.args.simulate:
            names = names[:1] + [n for n in names if n.endswith("orthros-standard-orthrus")]
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            done = {pool.submit(self.golden_one, runner, name): name for name in names}
            results, failed = {}, []
            for future in concurrent.futures.as_completed(done):
                try:
                    results[done[future]] = future.result()
                except Failed as why:
                    failed.append(str(why))
        if failed:
            raise Failed("; ".join(failed))
        return {"checkpoints": len(results), "error": max(r["error"] for r in results.values()),
                "bf16": max(r["bf16"] for r in results.values())}

    def invariance(self, runner):
        """bf16 on our own kernels: a row has the same bits in any chunk, and a text in any batch."""
        names = ["qwen3-single-standard-orthrus", "llama-orthros-standard-none", "qwen3-orthros-msar-orthrus"]
        chunks = [1, 3, 8, 16, 33]
        if self.args.simulate:
            names, chunks = names[:1], [3]
        for name in names:
            model = ["--backend", "cuda", "--deterministic", "--model", GOLDEN / name, "--dtype", "bf16"]
            prompt = json.loads((GOLDEN / name / "golden.json").read_text())["prompts"][6]
            ask = ["logits", *model, "--tokens", ids(prompt), "--positions", "all"]
            whole = runner.geryon(*ask)
            for how in [["--decode"], *(["--chunk", n] for n in chunks)]:
                if runner.geryon(*ask, *how) != whole:
                    raise Failed(f"{name}: {' '.join(map(str, how))} changed a bit of the logits")
        return {"models": len(names), "batched_texts": self.batched(runner, GOLDEN / names[0])}

    def batched(self, runner, folder):
        """Texts of 16 requests at once are those of each alone, drafts on and sampling seeded."""
        prompts = json.loads((folder / "golden.json").read_text())["prompts"]
        server = subprocess.Popen([str(self.binary), "serve", "--backend", "cuda", "--deterministic", "--port", "0", "--model",
                                   str(folder), "--dtype", "bf16"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  stdin=subprocess.DEVNULL, text=True, env=self.env)
        try:
            url = server.stdout.readline().split()[-1]
            count = 8 if self.args.simulate else 32

            def text(i):
                body = {"prompt": prompts[i % len(prompts)], "max_tokens": count, "seed": i, "temperature": i % 2,
                        "ignore_eos": True}
                return json.loads(fetch(url + "/v1/completions", body, runner.left()))["choices"][0]["text"]
            while runner.left() > 0 and not healthy(url):
                time.sleep(0.1)
            some = range(4) if self.args.simulate else range(16)
            alone = [text(i) for i in some]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                together = list(pool.map(text, some))
            if alone != together:
                raise Failed("a text is another one in a batch: request "
                             f"{next(i for i in some if alone[i] != together[i])}")
            return len(alone)
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def sanitizer(self, tool):
        def stage(runner):
            folders = [*pathlib.Path("/usr/local").glob("cuda*/bin/compute-sanitizer")]
            found = shutil.which("compute-sanitizer") or (str(folders[0]) if folders else None)
            if self.args.simulate or not found:
                raise Skipped("no compute-sanitizer")
            name = GOLDEN / "qwen3-orthros-standard-orthrus"
            text = runner.run(found, "--tool", tool, "--error-exitcode", "9", self.binary, "generate", "--backend", "cuda",
                              "--model", name, "--tokens", "1,2,3,4,5,6,7,8,9", "--max-tokens", "6", status=None)
            if "Device not supported" in text:
                raise Skipped("compute-sanitizer does not support this device")
            if "ERROR SUMMARY: 0 errors" not in text and "RACECHECK SUMMARY: 0 hazards" not in text:
                raise Failed(text[-OUTPUT_KEPT:])
            return {}
        return stage

    # -- speed

    def bench(self, spec, *flags, dtype="bf16"):
        def stage(runner):
            out = runner.geryon("bench", "--backend", "cuda", "--synthetic", spec, "--dtype", dtype, "--json", *flags)
            report = json.loads(out)
            machine = report["machine"]
            return {"spec": spec, "kv_dtype": report["engine"]["kv_dtype"], "device": machine.get("device"),
                    "weight_bytes": report["model"]["weight_bytes"],
                    "peak_GBps": round(machine["read_bytes_per_second"] / 1e9, 1),
                    "peak_TFLOPs": round(machine["multiply_add_flops_per_second"] / 1e12, 1),
                    "cases": [bench_case(c) for c in report["cases"]]}
        return stage

    def stages(self):
        """(name, limit in seconds, function), in order."""
        found = [("device", 20, self.find_device), ("build", 1800 if self.args.simulate else 150, self.build)]
        for path in self.test_binaries():
            found.append((f"test/{path.name}", 300 if self.args.simulate else 40, self.kernel_test(path)))
        found += [("golden", 900 if self.args.simulate else 60, self.golden),
                  ("invariance", 600 if self.args.simulate else 40, self.invariance),
                  ("sanitizer/memcheck", 30, self.sanitizer("memcheck")),
                  ("sanitizer/racecheck", 30, self.sanitizer("racecheck"))]
        if self.args.simulate:
            few = ["--prompt-tokens", "16,24", "--gen-tokens", 6, "--reps", 1, "--batch"]
            found += [("bench/decode/tiny", 300, self.bench("tiny", *few, "1,3")),
                      ("bench/window/tiny", 300, self.bench("tiny,window=8", *few, "2")),
                      ("bench/cycle/tiny", 300, self.bench("tiny,drafts=8", *few, "2", "--drafts", 8))]
            return found
        decode = ["--prompt-tokens", 1024, "--gen-tokens", 65, "--reps", 3, "--max-num-batched-tokens", 4096]
        first = ["--gen-tokens", 1, "--reps", 1, "--batch", 1, "--max-num-batched-tokens", 4096]
        cycle = ["--prompt-tokens", 1024, "--gen-tokens", 129, "--reps", 2, "--batch", "1,8"]
        found += [("bench/decode/llama3.1-8b", 60, self.bench("llama3.1-8b", *decode, "--batch", "1,8,32,128")),
                  ("bench/first/full", 75, self.bench("llama3.1-8b", *first, "--prompt-tokens", "1024,8192,32768,130000"))]
        for rows in (0, 8, 16, 32):
            drafts = ["--drafts", rows] if rows else ["--drafts", "off"]
            found.append((f"bench/cycle/{rows or 'plain'}", 30, self.bench("qwen3-8b,drafts=32", *cycle, *drafts)))
        for window in (1024, 4096):
            found.append((f"bench/first/window={window}", 40, self.bench(
                f"llama3.1-8b,window={window}", *first, "--prompt-tokens", "1024,8192,32768,130000")))
        found += [("bench/decode/qwen3-8b", 40, self.bench("qwen3-8b", *decode, "--batch", "1,32")),
                  ("bench/decode/q8_0", 40, self.bench("llama3.1-8b", *decode, "--batch", "1,32", dtype="q8_0"))]
        return found


def bench_case(c):
    """What matters of a case; the price of a cycle is that of all its forwards, whatever was accepted."""
    if "skipped" in c:
        return {"prompt": c["prompt_tokens"], "batch": c["batch"], "skipped": c["skipped"]}
    out = {"prompt": c["prompt_tokens"], "batch": c["batch"],
           "first_token_ms": c["time_to_first_token_ms"]["median"],
           "prefill_tokens_per_s": c["prefill"]["tokens_per_second"]["median"],
           "prefill_flop_share": c["prefill"]["flop_share"]}
    if "decode" in c:
        speed = c["decode"]["tokens_per_second"]["median"]
        out |= {"decode_tokens_per_s": speed, "decode_bandwidth_share": c["decode"]["bandwidth_share"],
                "cycle_ms": round(1000 * c["batch"] * max(c["accepted_length"], 1) / speed, 3) if speed else None,
                "accepted_length": c["accepted_length"]}
    return out


def fetch(url, body=None, limit_s=60):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(),
                                     headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=max(limit_s, 1)) as answer:
        return answer.read()


def healthy(url):
    try:
        fetch(url + "/health", limit_s=5)
        return True
    except OSError:
        return False


# ---- a bundle -------------------------------------------------------------------------------------

def make_bundle(folder):
    """Binaries and the libraries they want, without the C library, which every machine has, and cuBLAS, which
    comes with CUDA. They look for the rest in lib/ beside them."""
    source = ROOT / "build/cuda"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    binaries = [source / "geryon", source / "tests/gpusim/test_kernels",
                *(p for p in (source / "tests/gpu").glob("test_*") if not p.suffix)]
    for path in binaries:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        if shutil.which("strip"):
            subprocess.run(["strip", str(target)], check=False)
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
        for name, library in re.findall(r"^\s*(\S+) => (/\S+)", said, re.M):
            if not re.match(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cublas\w*|cuda\w*)\.so", name):
                shutil.copy2(library, folder / "lib" / name)
    total = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{folder}: {len(binaries)} binaries, {total / 2**20:.1f} MiB; run tests/gpu/check_gpu.py --binaries {folder}")


# ---- the whole ------------------------------------------------------------------------------------

def run_stage(check, name, limit_s, stage, left_s):
    line = {"stage": name}
    started = time.monotonic()
    try:
        if left_s < 3:
            raise Skipped("no time left")
        line |= {"state": "ok"} | (stage(Runner(check, min(limit_s, left_s))) or {})
    except Skipped as why:
        line |= {"state": "skipped", "why": str(why)}
    except Failed as why:
        line |= {"state": "failed", "why": str(why)}
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
        line |= {"state": "failed", "why": f"{type(error).__name__}: {error}"}
    line["seconds"] = round(time.monotonic() - started, 2)
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="list the stages")
    parser.add_argument("--simulate", action="store_true", help="on the GPU simulator, with tiny shapes")
    parser.add_argument("--binaries", type=pathlib.Path, help="folder of a bundle: nothing is built")
    parser.add_argument("--bundle", type=pathlib.Path, help="make such a folder from build/cuda and end")
    parser.add_argument("--stage", action="append", default=[], help="only stages whose name holds a WORD")
    parser.add_argument("--budget", type=float, help="seconds for all stages (460; simulated: an hour)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/check-gpu")
    args = parser.parse_args()
    if args.bundle:
        make_bundle(args.bundle.resolve())
        return 0
    args.binaries = args.binaries and args.binaries.resolve()
    check = Check(args)
    if args.dry_run:
        for name, limit_s, _ in check.stages():
            print(f"{limit_s:>5} s  {name}")
        return 0

    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + (args.budget or (3600 if args.simulate else 460))
    lines, result = [], {"commit": check.commit(), "simulated": args.simulate, "date": time.strftime("%F %T %Z")}
    done = set()
    with open(args.out / "results.jsonl", "w", encoding="utf-8") as log:
        # The tests are known once they are built, so the list is asked for anew.
        while stage := next((s for s in check.stages() if s[0] not in done), None):
            name, limit_s, function = stage
            done.add(name)
            needed = name in ("device", "build")
            if args.stage and not needed and not any(word in name for word in args.stage):
                continue
            line = run_stage(check, name, limit_s, function, deadline - time.monotonic())
            lines.append(line)
            print(json.dumps(line), flush=True)
            print(json.dumps(line), file=log, flush=True)
            (args.out / "result.json").write_text(json.dumps(result | check.device | {"stages": lines}, indent=1) + "\n")
            if needed and line["state"] != "ok":
                break
    count = {state: sum(line["state"] == state for line in lines) for state in ("ok", "failed", "skipped")}
    print(f"{len(lines)} stages: {count['ok']} ok, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
