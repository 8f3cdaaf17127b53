"""`geryon bench`: what it counts and reports. Speeds are not judged here."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys

import pytest
from geryon import BIN, GOLDEN, ROOT, SLOW, run_cli

PLAIN = GOLDEN / "qwen3-single-standard-none"
STREAMS = GOLDEN / "llama-orthros-standard-none"
DRAFTS = GOLDEN / "qwen3-single-standard-orthrus"
SMALL = ["--prompt-tokens", "20,33", "--gen-tokens", 9, "--batch", "1,3", "--reps", 2]


def bench(*args):
    done = run_cli("bench", *map(str, args), "--json")
    return json.loads(done.stdout)


@pytest.mark.parametrize("model", [PLAIN, STREAMS, DRAFTS], ids=lambda m: m.name)
def test_every_case_is_counted_exactly(model):
    report = bench("--model", model, *SMALL)
    assert [(c["prompt_tokens"], c["batch"]) for c in report["cases"]] == [
        (20, 1), (20, 3), (33, 1), (33, 3)]
    for case in report["cases"]:
        assert case["gen_tokens"] == 9 and case["reps"] == 2
        assert case["total_prompt_tokens"] == case["prompt_tokens"] * case["batch"] * 2
        assert case["total_output_tokens"] == 9 * case["batch"] * 2
        assert 0 < case["inter_token_latency_ms"]["n"] <= 8 * case["batch"] * 2
        assert case["accepted_length"] >= 1
        if model != DRAFTS:
            assert case["accepted_length"] == case["tokens_per_forward"] == 1
        else:  # two forwards a cycle; the last cycle may have no drafts
            assert case["tokens_per_forward"] <= case["accepted_length"]


def test_a_report_has_every_figure():
    report = bench("--model", PLAIN, *SMALL)
    assert report["model"]["name"] == PLAIN.name and not report["model"]["synthetic"]
    assert report["engine"]["threads"] >= 1 and report["engine"]["kernel_table"]
    assert report["machine"]["cpu"]
    assert report["machine"]["read_bytes_per_second"] > 0
    assert report["machine"]["multiply_add_flops_per_second"] > 0
    assert report["timing_only"] is False and report["resident_bytes"] > 0
    assert "perplexity" not in report
    for case in report["cases"]:
        memory = case["read_bytes_per_second"]  # around its repetitions: what shares are of
        for phase in case["prefill"], case["decode"]:
            assert phase["bandwidth_share"] == pytest.approx(
                phase["tokens_per_second"]["median"] * phase["bytes_per_token"] / memory, rel=1e-3, abs=1e-4)
            speed = phase["tokens_per_second"]
            assert 0 < speed["min"] <= speed["median"] <= speed["max"]
            for figure in "bytes_per_token", "flops_per_token", "bandwidth_share", "flop_share":
                assert phase[figure] >= 0
            work = phase["work"]  # where the time went
            assert set(work) == {"products", "attention", "rows", "sampling", "rest"}
            assert all(0 <= part["time_share"] <= 1 for part in work.values())
            assert sum(part["time_share"] for part in work.values()) == pytest.approx(1, abs=1e-3)
            assert work["products"]["time_share"] > 0 and work["attention"]["time_share"] > 0
            for figure in "bytes_per_token", "flops_per_token":
                assert work["products"][figure] + work["attention"][figure] == pytest.approx(phase[figure], rel=1e-4)
        first, gap = case["time_to_first_token_ms"], case["inter_token_latency_ms"]
        assert 0 < first["min"] <= first["median"] <= first["max"]
        assert 0 <= gap["p50"] <= gap["p95"] <= gap["p99"]


@pytest.mark.parametrize("kv_dtype, vector_bytes", [  # of one position and kv head, padded to 16
    ("f32", lambda n: 4 * n), ("bf16", lambda n: 2 * n), ("q8_0", lambda n: n + 2)])
def test_prices_follow_from_the_shape(kv_dtype, vector_bytes):
    """One sequence, no drafts: a decoded token reads all matrices once."""
    config = json.loads((PLAIN / "config.json").read_text())
    d, ff, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config["head_dim"]
    layer = 2 * d * heads * head_dim + 2 * d * kv * head_dim + 3 * d * ff
    numbers = layers * layer + config["vocab_size"] * d
    report = bench("--model", PLAIN, "--prompt-tokens", 32, "--gen-tokens", 9, "--batch", 1,
                   "--reps", 1, "--kv-dtype", kv_dtype)
    assert report["engine"]["kv_dtype"] == kv_dtype
    case, context = report["cases"][0], 32 + 9 / 2
    kv_bytes = 2 * layers * kv * vector_bytes(-(-head_dim // 16) * 16) * context
    assert case["decode"]["bytes_per_token"] == pytest.approx(4 * numbers + kv_bytes, rel=1e-3)
    attention = 4 * layers * heads * head_dim * context
    assert case["decode"]["flops_per_token"] == pytest.approx(2 * numbers + attention, rel=1e-3)


def test_reports_are_files_too(tmp_path):
    done = run_cli("bench", "--model", str(PLAIN), *map(str, SMALL), "--report",
                   str(tmp_path / "out"))
    assert (tmp_path / "out/bench.md").read_bytes() == done.stdout
    report = json.loads((tmp_path / "out/bench.json").read_text())
    assert len(report["cases"]) == 4
    table = [line for line in done.stdout.decode().splitlines() if line.startswith("| 33 | 3 |")]
    assert len(table) == 3 and table[0].count("|") == 12  # and where the time of both phases went


def test_another_window_is_marked():
    windowed = bench("--model", PLAIN, *SMALL, "--window", 8)
    full = bench("--model", STREAMS, *SMALL, "--window", 0)
    own = bench("--model", STREAMS, *SMALL)
    assert windowed["timing_only"] and full["timing_only"] and not own["timing_only"]
    assert windowed["model"]["window"] == 8
    assert full["model"]["window"] > own["model"]["window"]


def test_kept_proposals_can_be_stated():
    """Random weights keep hardly any: --accept says what cycles cost that keep some."""
    for drafts, kept, accepted in (8, 3, 4), (8, 60, 8), (8, 0, 1), ("ngram", 0, 1):
        report = bench("--model", DRAFTS, "--prompt-tokens", 20, "--gen-tokens", 25, "--batch", 2, "--reps", 1,
                       "--drafts", drafts, "--accept", kept)
        assert report["timing_only"]
        case = report["cases"][0]
        assert case["total_output_tokens"] == 50 and case["accepted_length"] == pytest.approx(accepted, abs=0.05)
    text = run_cli("bench", "--model", DRAFTS, *map(str, SMALL), "--accept", "1").stdout.decode()
    assert "**--accept was given" in text


def test_pairs_compare_texts_with_and_without_drafts(tmp_path):
    """Both of a pair are computed whole: neither finds pages of the other. The figures are of those with drafts."""
    trace = tmp_path / "trace.json"
    report = bench("--model", DRAFTS, "--prompt-tokens", 40, "--gen-tokens", 25, "--batch", 2, "--reps", 3, "--drafts", 8,
                   "--accept", 3, "--paired", "--trace", trace)
    case = report["cases"][0]
    pairs = case["without_drafts"]
    assert case["total_output_tokens"] == 150 and case["accepted_length"] == pytest.approx(4, abs=0.2)
    over = pairs["speed_over_it"]
    assert len(over["of_each"]) == 3 and sorted(over["of_each"]) == pytest.approx(
        [over["q1"], over["median"], over["q3"]])
    assert pairs["tokens_per_second"]["min"] > 0
    assert case["forward_ms"]["draft"] > 0 and case["forward_ms"]["verify"] > 0
    steps = [json.loads(line)["rows"] for line in trace.read_text().splitlines()]
    warm = 16  # tokens of the prompt that runs first, itself a pair
    assert sum(rows["prefill"] for rows in steps) == 2 * (3 * 2 * 40 + warm)
    # After each prompt: does it draft?
    turns = [after["draft"] > 0 for before, after in zip(steps, steps[1:]) if before["prefill"] and not after["prefill"]]
    assert turns == [False, True] + [False, True, True, False, False, True]
    text = run_cli("bench", "--model", DRAFTS, *map(str, SMALL), "--paired").stdout.decode()
    assert "| prompt | batch | decode tokens/s without drafts |" in text


def test_weights_are_counted_once_for_each_forward_that_was():
    """Adaptive drafts that keep nothing soon stop: their forwards are not read with every token."""
    def bytes_per_token(drafts):
        report = bench("--model", DRAFTS, "--prompt-tokens", 20, "--gen-tokens", 200, "--batch", 1, "--reps", 1,
                       "--drafts", drafts, *(() if drafts == "off" else ("--accept", 0)))
        return report["cases"][0]["decode"]["bytes_per_token"]

    plain = bytes_per_token("off")
    assert bytes_per_token(8) > 1.6 * plain
    assert bytes_per_token("auto") < 1.4 * plain


def test_the_two_phases_do_not_mix(tmp_path):
    """However early a prompt is done, its text goes on only when all prompts are."""
    trace = tmp_path / "trace.json"
    bench("--model", PLAIN, "--prompt-tokens", 100, "--gen-tokens", 9, "--batch", 3, "--reps", 1,
          "--prefill-chunk", 16, "--trace", trace)
    steps = [json.loads(line)["rows"] for line in trace.read_text().splitlines()]
    assert sum(rows["prefill"] for rows in steps) >= 300
    assert all(rows["prefill"] in (0, rows["base"]) for rows in steps)


def test_the_plain_table_has_peaks_too():
    report = bench("--model", PLAIN, "--cpu-table", "ref", "--threads", 1, "--prompt-tokens", 5,
                   "--gen-tokens", 2, "--batch", 1, "--reps", 1)
    assert report["engine"]["kernel_table"] == "ref" and report["engine"]["threads"] == 1
    assert report["machine"]["multiply_add_flops_per_second"] > 1e8
    assert report["machine"]["read_bytes_per_second"] > 1e8


def test_a_case_that_does_not_fit_is_skipped_with_its_reason():
    report = bench("--model", PLAIN, "--prompt-tokens", "64", "--gen-tokens", 16, "--batch",
                   "1,32", "--reps", 1, "--kv-memory", "256K")
    alone, crowd = report["cases"]
    assert "skipped" not in alone and "--kv-memory" in crowd["skipped"]


def test_one_token_has_no_decode_phase():
    case = bench("--model", PLAIN, "--prompt-tokens", 5, "--gen-tokens", 1, "--batch", 2,
                 "--reps", 1)["cases"][0]
    assert "decode" not in case and case["total_output_tokens"] == 2


def test_perplexity_agrees_with_the_logits(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 3)
    found = bench("--model", PLAIN, "--prompt-tokens", 5, "--gen-tokens", 1, "--batch", 1,
                  "--reps", 1, "--perplexity", text)["perplexity"]
    ids = json.loads(run_cli("tokenize", "--model", str(PLAIN), stdin=text.read_bytes()).stdout)
    rows = run_cli("logits", "--model", str(PLAIN), "--tokens", ",".join(map(str, ids)),
                   "--positions", "all").stdout.splitlines()
    import numpy as np
    logits = np.array([json.loads(row)["logits"] for row in rows])[:-1]
    top = logits.max(axis=1)
    scores = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    scores -= logits[np.arange(len(ids) - 1), ids[1:]]
    assert found["tokens"] == len(ids) and found["scored"] == len(ids) - 1
    assert found["mean_nll"] == pytest.approx(scores.mean(), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(scores.mean()), rel=1e-4)


@pytest.mark.timeout(240 * SLOW)
@pytest.mark.parametrize("extra", ["", ",window=16,drafts=4"])
def test_a_named_shape_runs_with_random_weights(extra):
    report = bench("--synthetic", "smollm2-135m" + extra, "--dtype", "q8_0", "--prompt-tokens", 24,
                   "--gen-tokens", 3, "--batch", 2, "--reps", 1)
    assert report["model"]["synthetic"] and report["model"]["weight_dtype"] == "q8_0"
    assert report["cases"][0]["total_output_tokens"] == 6
    assert report["engine"]["draft_block"] == (4 if extra else 0)


@pytest.mark.parametrize("status, args, named", [
    (2, [], "--synthetic"),
    (2, ["--model", PLAIN, "--synthetic", "qwen3-8b"], "--synthetic"),
    (2, ["--model", PLAIN, "--batch", "1,,2"], "--batch"),
    (2, ["--model", PLAIN, "--prompt-tokens", "0"], "--prompt-tokens"),
    (2, ["--synthetic", "qwen3-8b", "--perplexity", "x"], "--perplexity"),
    (1, ["--model", DRAFTS, *SMALL, "--drafts", "off", "--accept", "1"], "--accept"),
    (1, ["--model", PLAIN, *SMALL, "--paired"], "--paired"),
    (2, ["--model", DRAFTS, *SMALL, "--gen-tokens", 1, "--paired"], "--gen-tokens"),
    (1, ["--synthetic", "qwen3-8b,msar=4"], "msar=4"),
    (1, ["--synthetic", "nonsense"], "nonsense"),
    (1, ["--model", PLAIN, "--prompt-tokens", "99999"], "--prompt-tokens 99999"),
    (1, ["--model", PLAIN, *SMALL, "--report", "/proc/none"], "/proc/none"),
])
def test_faults_are_named(status, args, named):
    done = subprocess.run([BIN, "bench", *map(str, args)], capture_output=True, check=False,
                          timeout=60 * SLOW)
    assert done.returncode == status, done.stderr
    assert named in done.stderr.decode() and done.stdout == b""


# ---- what `make bench` runs -----------------------------------------------------------------------

def run_script(name, *args):
    return subprocess.run([sys.executable, ROOT / "tests/bench" / name, *map(str, args)], check=False,
                          capture_output=True, text=True, timeout=80 * SLOW)


def test_http_load_counts_every_token(serve):
    server = serve(PLAIN)
    done = run_script("http_load.py", f"http://127.0.0.1:{server.port}", "--streams", 3, "--requests",
                      7, "--prompt", 4, "--gen", 11)
    report = json.loads(done.stdout)
    assert report["requests"] == 7 and report["output_tokens"] == 77
    assert report["time_to_first_token_ms"]["p50"] > 0
    refused = run_script("http_load.py", f"http://127.0.0.1:{server.port}", "--requests", 1, "--gen", 0)
    assert refused.returncode == 1 and "max_tokens" in refused.stderr and not refused.stdout


# A stand-in for the binary: speeds that follow from its flags, so that what the report makes of them is
# known. A prompt of n takes n ms + n^2 us, avx2 twice that; a draft cycle costs 1 + B / 4 steps, a quarter of it
# the draft forward, adaptive 1.25. Every other pair says a tenth more. bf16 never meets int8.
FAKE_GERYON = """#!{python}
import json, sys
words = sys.argv[1:]
flag = {{a: b for a, b in zip(words, words[1:]) if a.startswith("--")}}
open("{calls}", "a").write(" ".join(words) + chr(10))
if flag["--cpu-table"] == "amx":
    sys.exit("geryon: no amx here")
slow = 2 if flag["--cpu-table"] == "avx2" else 1
n, kept = int(flag["--prompt-tokens"]), int(flag.get("--accept", 0)) + 1
drafts = flag.get("--drafts", "off")
steps = 1 if drafts == "off" else 1.25 if drafts == "auto" else 1 + int(drafts) / 4
windowed = "window=512" in flag.get("--synthetic", "")
prefill = 1 / (1e-3 + (0 if windowed else 1e-6 * n)) / slow
bf16 = "bf16" in (flag.get("--dtype") or flag["--model"])
how = "f32" if bf16 and flag["--activations"] == "int8" else flag["--activations"]
flops = 4e10 if how == "int8" else 1e10
pairs = {{"without_drafts": {{"speed_over_it": {{"of_each": [kept / steps * (1 + i % 2 / 10)
                                                    for i in range(int(flag["--reps"]))]}}}}}}
def phase(speed):
    return {{"tokens_per_second": {{"median": speed}}, "bandwidth_share": speed * 1e7 / 4e9 * slow,
             "flop_share": speed * 1e6 / flops}}
print(json.dumps({{"commit": "abc", "machine": {{"cpu": "fake", "read_bytes_per_second": 4e9 / slow,
    "multiply_add_flops_per_second": flops}},
    "engine": {{"kernel_table": flag["--cpu-table"], "activations": how}},
    "cases": [{{"prompt_tokens": n, "batch": int(flag["--batch"]), "prefill": phase(prefill),
                "decode": phase(100 * kept / steps), "accepted_length": kept,
                "forward_ms": {{"draft": steps / 4, "verify": steps * 3 / 4}}}} | (pairs if "--paired" in words else {{}})]}}))
"""
FAKE_LLAMA_BENCH = """#!{python}
import json, sys
words = sys.argv[1:]
flag = dict(zip(words[::2], words[1::2]))
open("{calls}", "a").write("llama " + " ".join(words) + chr(10))
n = int(flag["-p"])
print(json.dumps([{{"avg_ts": 1 / (2e-3 + 4e-6 * n) if n else 25, "build_commit": "feed", "build_number": 7,
    "cpu_info": "fake", "backends": "CPU", "n_threads": int(flag["-t"]), "flash_attn": -1, "type_k": "f16",
    "type_v": "f16", "model_filename": "x"}}]))
"""


def fake(path, text, calls):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(python=sys.executable, calls=calls))
    path.chmod(0o755)
    return path


def report_of(tmp_path, *args, model=PLAIN):
    calls = tmp_path / "calls"
    done = run_script("bench.py", "--geryon", fake(tmp_path / "geryon", FAKE_GERYON, calls), "--model", model,
                      "--out", tmp_path / "out", "--threads", 2, *args)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/bench.md").read_text() == done.stdout
    return json.loads((tmp_path / "out/bench.json").read_text()), calls.read_text().splitlines(), done.stdout


def test_a_report_compares_each_arithmetic_in_turns(tmp_path):
    fake(tmp_path / "bin/llama-bench", FAKE_LLAMA_BENCH, tmp_path / "calls")
    report, calls, text = report_of(
        tmp_path, "--llamacpp", tmp_path, "--groups", "prefill,decode", "--tables", "avx512,avx2,amx", "--arithmetic",
        "int8", "--rounds", 2, "--prompts", "500,1000,2000", "--depths", "16", "--gen", 8)
    assert report["missing"] == {"amx int8": "geryon: no amx here"} and "not here: geryon: no amx" in text
    rows = {(row["arithmetic"], row["name"]): row for row in report["rows"]}
    fast, slow = rows["avx512 int8", "prefill 1000"], rows["avx2 int8", "prefill 1000"]
    assert fast["geryon"] == pytest.approx([500, 500]) and fast["llamacpp"] == pytest.approx([1e3 / 6] * 2)
    assert fast["ratio"] == pytest.approx(3) and slow["ratio"] == pytest.approx(1.5)
    assert fast["limit"] == "FLOP" and fast["share"] == pytest.approx(500 * 1e6 / 4e10)
    linear, quadratic = (rows["avx512 int8", f"prefill, {term} term"] for term in ("linear", "quadratic"))
    assert linear["geryon_median"] == pytest.approx(1000) and quadratic["geryon_median"] == pytest.approx(1000)
    assert linear["ratio"] == pytest.approx(2) and quadratic["ratio"] == pytest.approx(4)
    decode = rows["avx2 int8", "decode at 16"]
    assert decode["ratio"] == pytest.approx(4) and decode["limit"] == "DRAM"
    assert decode["share"] == pytest.approx(100 * 1e7 / 2e9)
    assert "| decode at 16, tokens/s | avx512 int8 | 100.0 (100.0-100.0) | 25% of DRAM | 25.0 (25.0-25.0) | 4.00 |" in text
    measured = [call for call in calls if "--synthetic" not in call]
    turns = ["avx512" if "avx512" in call else "avx2" if "avx2" in call else "llama" for call in measured]
    assert turns == ["avx512", "avx2", "llama"] * (2 * 3 + 2)


def test_a_report_of_a_busy_machine_says_so(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    import bench as script
    report = {"cpu": "fake", "model": "m", "commit": "c", "arguments": {"threads": 2}, "peaks": {}, "missing": {},
              "rows": []}
    for before, after, busy in (0.3, 2.2, False), (1.5, 2.0, True), (0.1, 3.5, True):
        text = "\n".join(script.markdown(report | {"load_before": [before], "load_after": [after]}))
        assert ("Others were busy" in text) == busy


def test_a_report_says_which_peer_it_was(tmp_path):
    """Also where no group asked llama-bench for a speed."""
    fake(tmp_path / "bin/llama-bench", FAKE_LLAMA_BENCH, tmp_path / "calls")
    report, calls, text = report_of(tmp_path, "--llamacpp", tmp_path, "--groups", "linear", "--linear", "100", "--rounds", 1)
    assert report["peer"] == {"build_commit": "feed", "build_number": 7, "cpu_info": "fake", "backends": "CPU",
                              "n_threads": 2, "flash_attn": -1, "type_k": "f16", "type_v": "f16"}
    assert sum(call.startswith("llama") for call in calls) == 1
    assert ("llama.cpp: build 7 (feed), fake, backends CPU, 2 threads, flash attention auto, KV f16 / f16." in
            text.splitlines())


def test_rows_are_named_by_what_was_computed(tmp_path):
    """bf16 weights asked to meet int8 meet f32, and go beside the peak of that."""
    report, _, text = report_of(
        tmp_path, "--groups", "linear,drafts", "--tables", "avx512", "--arithmetic", "int8", "--rounds", 1,
        "--linear", "100", "--linear-dtype", "bf16", "--draft-dtypes", "bf16,q8_0", "--blocks", "4",
        "--block-accept", "0", "--adaptive-accept", "0")
    assert {row["arithmetic"] for row in report["linear"]} == {"avx512 f32"}
    assert {(row["arithmetic"], row["dtype"]) for row in report["drafts"]} == {
        ("avx512 f32", "bf16"), ("avx512 int8", "q8_0")}
    assert {name: peaks["flops_per_second"] for name, peaks in report["peaks"].items()} == {
        "avx512 f32": 1e10, "avx512 int8": 4e10}
    assert "| avx512 f32 | window 512 | 100 |" in text and "| avx512 int8 | window" not in text


def test_the_model_at_hand_names_its_rows(tmp_path):
    """Two that were asked for and come to the same arithmetic share a row."""
    report, _, _ = report_of(tmp_path, "--groups", "prefill", "--tables", "avx512", "--arithmetic", "int8,f32", "--rounds",
                             2, "--prompts", "1000", model="bf16.gguf")
    (row,) = report["rows"]
    assert row["arithmetic"] == "avx512 f32" and row["geryon"] == pytest.approx([500] * 4)
    assert row["share"] == pytest.approx(500 * 1e6 / 1e10) and set(report["peaks"]) == {"avx512 f32"}


def test_a_report_prices_drafts_in_steps(tmp_path):
    report, calls, text = report_of(tmp_path, "--groups", "drafts", "--tables", "avx512", "--arithmetic", "f32",
                                    "--rounds", 1, "--draft-dtypes", "bf16", "--blocks", "2,8", "--block-accept", "0,3",
                                    "--adaptive-accept", "0,3", "--draft-pairs", 5, "--block-pairs", 1)
    found = {(row["kind"], row["drafts"], row["accept"]): row for row in report["drafts"]}
    assert {key: row["median"] for key, row in found.items()} == pytest.approx({
        ("cycle", 2, 0): 1.5, ("cycle", 8, 0): 3, ("cycle", 8, 3): 3, ("adaptive", "auto", 0): 0.8,
        ("adaptive", "auto", 3): 3.2})
    kept = found["adaptive", "auto", 3]
    assert kept["values"] == pytest.approx([3.2, 3.52, 3.2, 3.52, 3.2])
    assert kept["q1"] == pytest.approx(3.2) and kept["q3"] == pytest.approx(3.52)
    assert "The lowest is 0.80: avx512 f32, bf16, 0 kept." in text and "of 5 pairs" in text
    assert "| arithmetic | weights | 0 kept a cycle | 3 kept a cycle |" in text
    assert "| avx512 f32 | bf16 | 0.80 (0.80-0.88) | 3.20 (3.20-3.52) |" in text
    assert "| arithmetic | weights | kept | B = 2 | B = 8 |" in text
    assert "| avx512 f32 | bf16 | 0 | 1.50 (0.38 + 1.12) | 3.00 (0.75 + 2.25) |" in text
    assert "| avx512 f32 | bf16 | 3 |  | 3.00 (0.75 + 2.25) |" in text
    assert all("--paired" in call for call in calls if "smollm2" in call)


def test_long_prompts_have_a_table_of_their_own(tmp_path):
    report, _, text = report_of(tmp_path, "--groups", "linear", "--tables", "avx512", "--arithmetic", "f32", "--linear",
                                "1000,2000,4000", "--linear-full", 2000, "--rounds", 2)
    table = report["linear"]
    assert [(r["attention"], r["prompt_tokens"]) for r in table] == [
        ("window 512", 1000), ("window 512", 2000), ("window 512", 4000), ("full", 1000), ("full", 2000)]
    assert [r["to_first"] for r in table] == pytest.approx([1, 1, 1, 1, 1.5])
    assert all(len(r["tokens_per_second"]) == 2 for r in table)
    assert "| avx512 f32 | full | 2000 | 333.3 (333.3-333.3) | 3000 | 1.50 |" in text


def test_a_busy_neighbour_is_there_for_its_turn_only(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    import figures
    import offline
    started, seen = [], []

    @contextlib.contextmanager
    def watched(command):
        with sides_running(command) as process:
            started.append(process)
            yield process

    sides_running = offline.running
    monkeypatch.setattr(offline, "running", watched)

    class Side:
        name, ours = "fake", True

        def decode(self, depth, n):
            spins = any(process.poll() is None for process in started)
            seen.append((depth, n, spins))
            return (50 if spins else 100), None

    args = argparse.Namespace(rounds=2, seconds=60, neighbour_depth=256, gen=8)
    noted = figures.Figures()
    offline.neighbour(args, [Side()], noted)
    assert seen == [(256, 8, False), (256, 8, True)] * 2
    assert noted.values["neighbour", "speed that is left beside it", "fake"] == [50, 50]
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_the_report_runs_the_real_binary(tmp_path):
    peer = fake(tmp_path / "bin/llama-bench", FAKE_LLAMA_BENCH, tmp_path / "calls").parent.parent
    done = run_script("bench.py", "--geryon", BIN, "--model", PLAIN, "--llamacpp", peer, "--out", tmp_path / "out",
                      "--groups", "decode,batch,http", "--rounds", 1, "--gen", 4, "--depths", "20", "--batch", "1,2",
                      "--batch-prompt", 20, "--streams", "1,2", "--requests", 1, "--http-prompt", 4, "--http-gen", 5)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/bench.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert rows["decode at 20"]["ratio"] == pytest.approx(rows["decode at 20"]["geryon_median"] / 25)
    assert rows["HTTP, 2 streams"]["geryon_median"] > 0
    assert "llamacpp" not in rows["HTTP, 2 streams: first token p50"]  # that peer has no server
    assert [case["batch"] for case in report["batch"]] == [1, 2] and not report["missing"]


def test_a_report_refuses_what_it_does_not_know(tmp_path):
    for args in (["--llamacpp", tmp_path / "none"], ["--groups", "prefill,nonsense"], ["--tables", "nonsense"]):
        done = run_script("bench.py", "--geryon", BIN, "--model", PLAIN, "--out", tmp_path / "out", *args)
        assert done.returncode != 0 and str(args[1]).split(",")[-1].rsplit("/", 1)[-1] in done.stderr, args


# ---- what `make bench-kernels` runs ---------------------------------------------------------------

def kernels(*args):
    built = [folder / "tests/bench/kernels" for folder in (pathlib.Path(BIN).parent, ROOT / "build/release")]
    binary = next((path for path in built if path.is_file()), None)
    if not binary:
        pytest.skip("`make bench-kernels` was not run")
    return subprocess.run([binary, "--ms", "1", "--weights", "1", *map(str, args)], check=False, capture_output=True,
                          text=True, timeout=80 * SLOW)


def kernel_lines(*args):
    done = kernels(*args, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert any(line.get("peaks") for line in report["lines"])
    lines = [line for line in report["lines"] if "group" in line]
    for line in lines:
        assert 0 < line["best_us"] <= line["median_us"] and line["share"] > 0
    return lines


def test_each_product_has_a_line_with_its_price():
    lines = kernel_lines("--groups", "gemm,head", "--tables", "avx2,ref", "--dtypes", "q4_1,q4_k,bf16", "--rows", "1,3",
                         "--shapes", "576x576,576x1536")
    mine = [line for line in lines if line["table"] == "ref"]
    assert {(line["activations"], line["dtype"], line["shape"], line["rows"]) for line in mine} == {
        (how, dtype, shape, rows)
        for how in ("f32", "bf16", "int8") for dtype in ("bf16", "q4_1", "q4_k") for shape in ("576x576", "576x1536")
        for rows in (1, 3)
        if (how, dtype) != ("int8", "bf16")  # no blocks: as f32
        and (dtype, shape) != ("q4_k", "576x576")}  # blocks of 256
    for line in lines:
        n, k = map(int, line["shape"].split("x"))
        assert line["flops"] == 2 * line["rows"] * n * k
        per_block = {"bf16": (2, 1), "q4_1": (20, 32), "q4_k": (144, 256)}[line["dtype"]]
        assert line["bytes"] == n * k * per_block[0] / per_block[1]


def test_the_mlp_has_lines_with_its_price():
    lines = kernel_lines("--groups", "gemm", "--tables", "avx2,ref", "--activations", "f32,int8", "--dtypes",
                         "q4_1,q4_k,bf16", "--rows", "1,20", "--shapes", "mlp")
    assert {(line["activations"], line["dtype"], line["rows"]) for line in lines} == {  # q4_k has blocks of 256
        (how, dtype, n) for how, dtype in (("f32", "q4_1"), ("f32", "bf16"), ("int8", "q4_1")) for n in (1, 20)}
    for line in lines:
        numbers = 3 * 576 * 1536
        assert line["group"] == "mlp" and line["flops"] == 2 * line["rows"] * numbers
        assert line["bytes"] == numbers * {"bf16": 2, "q4_1": 20 / 32}[line["dtype"]]


def test_attention_has_lines_with_their_price():
    lines = kernel_lines("--groups", "attend", "--activations", "f32", "--kv", "bf16,q8_0", "--contexts", "256,512",
                         "--layers", 2, "--threads", 1, "--windows", "0,300")
    for table in {line["table"] for line in lines}:
        found = {(line["dtype"], line["shape"], line["rows"]): line for line in lines if line["table"] == table}
        assert set(found) == {(kv, f"context {n}", rows)
                              for kv in ("bf16", "q8_0") for n in ("256", "512", "512 window 300")
                              for rows in (1, 256)}
        assert found["bf16", "context 512", 1]["flops"] == 4 * 512 * 9 * 64
        assert found["bf16", "context 512", 1]["bytes"] == 512 * 2 * 3 * 64 * 2
        attended = 256 * 256 + 256 * 257 / 2
        assert found["q8_0", "context 512", 256]["flops"] == 4 * attended * 9 * 64
        one, chunk = (found["bf16", "context 512 window 300", rows] for rows in (1, 256))
        assert one["flops"] == 4 * 300 * 9 * 64 and one["bytes"] == 300 * 2 * 3 * 64 * 2
        assert chunk["flops"] == 4 * sum(min(pos + 1, 300) for pos in range(256, 512)) * 9 * 64
        assert chunk["bytes"] == 512 * 2 * 3 * 64 * 2  # its first row attends from position 0 on


def test_rows_and_samples_have_lines_in_the_text_too():
    done = kernels("--groups", "rows,sample", "--rows", "1,40", "--activations", "f32,int8", "--kv", "bf16,q8_0",
                   "--dtypes", "q4_1,q4_k")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line[:2] == "| "]
    assert {len(row) for row in rows} == {13}
    assert all((" % of " in row[12]) == (row[4] != "greedy") for row in rows
               if row[0] not in ("what", "peaks") and "left out" not in row[1])
    table = rows[-1][1]
    named = [(row[0], row[3], row[4], row[5]) for row in rows if row[1] == table and row[0] != "peaks"]
    assert named == [(op, dtype, shape, n) for op, dtype, shape in (
        ("silu_mul", "f32", "1536"), ("rmsnorm", "f32", "576"), ("step_sums", "f32", "576"), ("step_sums", "f32", "1536"),
        ("quantise", "f32", "576"), ("quantise", "f32", "1536"), ("narrow", "f32", "576"), ("narrow", "f32", "1536"),
        ("store", "bf16", "960"), ("store", "q8_0", "960"), ("embed", "q4_1", "576")) for n in ("1", "40")] + [
        ("sample", "f32", rule, n) for rule in ("greedy", "temperature", "top_p 0.95", "top_k 40") for n in ("1", "8")]


def test_rows_cost_what_they_move():
    lines = kernel_lines("--groups", "rows,msar", "--rows", "3", "--tables", "avx2", "--activations", "f32", "--kv",
                         "f32,q8_0", "--dtypes", "q4_1,bf16")
    found = {(line["group"], line["dtype"], line["shape"]): (line["bytes"] / 3, line["flops"] / 3) for line in lines}
    kv = {"f32": 4 * 64, "q8_0": 64 + 2}  # of a vector
    turned = 12 * 64
    for dtype, vector in kv.items():
        assert found["store", dtype, "960"] == (8 * turned + 4 * 192 + 6 * vector, 3 * turned)
    assert found["embed", "bf16", "576"] == (6 * 576, 0)
    assert found["embed", "q4_1", "576"] == (576 * 20 / 32 + 4 * 576, 2 * 576)
    assert found["step_sums", "f32", "576"] == (4 * 576 + 4 * 18, 576)
    assert found["narrow", "f32", "1536"] == (8 * 1536, 1536)
    for n in 4, 16:
        assert found["dots", "f32", f"{n} x 576"] == (4 * n * 577, 2 * n * 576)
        for op in "weighted_sum", "expand":
            assert found[op, "f32", f"{n} x 576"] == (4 * (n + 1) * 576, 2 * n * 576)


def test_kernels_are_timed_without_peaks_for_a_profiler():
    done = kernels("--groups", "sample", "--tables", "ref", "--no-peaks")
    assert done.returncode == 0 and "peaks |" not in done.stdout and "%" not in done.stdout
    report = json.loads(kernels("--groups", "sample", "--tables", "ref", "--no-peaks", "--json").stdout)
    assert len(report["lines"]) == 8 and not any("share" in line or "peaks" in line for line in report["lines"])


@pytest.mark.parametrize("args", [["--rows", "1,513"], ["--rows", ""], ["--groups", "gemm,none"], ["--dtypes", "q9"],
                                  ["--kv", "q4_0"], ["--activations", "f16"], ["--windows", "-1"], ["--ms"], ["--nonsense", "1"]])
def test_the_benchmark_of_kernels_names_a_bad_flag(args):
    done = kernels(*args)
    assert done.returncode == 2 and args[0] in done.stderr and not done.stdout
