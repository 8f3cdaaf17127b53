"""`geryon bench`: what it counts and reports. Speeds are not judged here."""

import argparse
import importlib.util
import json
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
        for phase in case["prefill"], case["decode"]:
            speed = phase["tokens_per_second"]
            assert 0 < speed["min"] <= speed["median"] <= speed["max"]
            for figure in "bytes_per_token", "flops_per_token", "bandwidth_share", "flop_share":
                assert phase[figure] >= 0
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
    assert len(table) == 2 and table[0].count("|") == 12


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


def test_the_report_puts_a_peer_beside(tmp_path):
    peer = tmp_path / "bin/llama-bench"
    peer.parent.mkdir()
    peer.write_text('#!/bin/sh\necho \'[{"avg_ts": 0.5}]\'\n')
    peer.chmod(0o755)
    done = run_script("bench.py", "--geryon", BIN, "--model", PLAIN, "--llamacpp", tmp_path, "--out",
                      tmp_path / "out", "--rounds", 2, "--prompt", 20, "--gen", 4, "--batch", "1,2",
                      "--streams", 1, 2, "--requests", 1, "--http-prompt", 4, "--http-gen", 5, "--linear")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/bench.md").read_text() == done.stdout
    report = json.loads((tmp_path / "out/bench.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert len(rows["prefill 20"]["geryon"]) == len(rows["prefill 20"]["llamacpp"]) == 2
    assert rows["decode at 20"]["ratio"] == pytest.approx(rows["decode at 20"]["geryon_median"] / 0.5)
    assert "llamacpp" not in rows["HTTP, 2 streams: tokens/s"]  # that peer has no server
    assert [case["batch"] for case in report["offline"]] == [1, 2]
    assert run_script("bench.py", "--model", PLAIN, "--llamacpp", tmp_path / "out").returncode == 1


def test_long_prompts_have_a_table_of_their_own(tmp_path):
    """A stand-in for the binary notes its arguments; it prefills 100 tokens/s, 50 without a window at 64."""
    spec = importlib.util.spec_from_file_location("bench_report", ROOT / "tests/bench/bench.py")
    report = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(report)
    binary = tmp_path / "geryon"
    binary.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/calls
case "$*" in *window=512*) speed=100;; *"--prompt-tokens 64 "*) speed=50;; *) speed=100;; esac
echo '{{"cases":[{{"prefill":{{"tokens_per_second":{{"median":'$speed'}}}}}}]}}'
""")
    binary.chmod(0o755)
    args = argparse.Namespace(geryon=binary, threads=2, linear=[32, 64, 128], linear_full=64,
                              linear_reps=2, linear_shape="smollm2-135m")
    table = report.long_prefill(args)
    assert [(r["attention"], r["prompt_tokens"]) for r in table] == [
        ("window 512", 32), ("window 512", 64), ("window 512", 128), ("full", 32), ("full", 64)]
    assert [r["to_first"] for r in table] == [1, 1, 1, 1, 2]
    assert [r["us_per_token"] for r in table] == [10000, 10000, 10000, 10000, 20000]
    assert all(len(r["tokens_per_second"]) == 2 for r in table)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 10 and "smollm2-135m,window=512" in calls[0] and ",window" not in calls[1]
    text = list(report.long_prefill_markdown({"orthros_prefill": table, "arguments": vars(args)}))
    assert "| full | 64 | 50.0 (50.0-50.0) | 20000 | 2.00 |" in text
    args.linear = []
    assert report.long_prefill(args) == []
    assert not list(report.long_prefill_markdown({"orthros_prefill": [], "arguments": vars(args)}))
