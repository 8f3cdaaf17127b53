"""The command line: flags, exit statuses, and what goes to stdout and what to stderr."""

import json
import os
import re
import subprocess

import pytest
from geryon import BIN, GOLDEN, SLOW, run_cli

MODEL = GOLDEN / "qwen3-single-standard-none"


def fails(status, *args, env=None, stdin=b""):
    """Exit `status` and one line on stderr, which is returned; nothing on stdout."""
    done = subprocess.run([BIN, *map(str, args)], input=stdin, capture_output=True, check=False,
                          timeout=60 * SLOW, env=dict(os.environ) | (env or {}))
    text = done.stderr.decode()
    assert done.returncode == status, text
    assert done.stdout == b"" and text.count("\n") == 1, text
    return text


@pytest.mark.parametrize("args, named", [
    (["serve", "--model", MODEL, "--no-such-flag", 1], "--no-such-flag"),
    (["serve"], "--model"),
    (["serve", "--model", MODEL, "--port", "70000"], "--port"),
    (["serve", "--model", MODEL, "--port", "x"], "--port"),
    (["serve", "--model", MODEL, "--port"], "--port"),
    (["serve", "--model", MODEL, "--kv-memory", "12Q"], "--kv-memory"),
    (["serve", "--model", MODEL, "--dtype", "f64"], "--dtype"),
    (["serve", "--model", MODEL, "--drafts", "-1"], "--drafts"),
    (["generate", "--model", MODEL, "--tokens", "1", "--temperature", "3"], "--temperature"),
    (["generate", "--model", MODEL, "--max-num-seqs", "0", "--tokens", "1"], "--max-num-seqs"),
    (["nonsense"], "nonsense"),
])
def test_bad_flags_exit_2_and_are_named(args, named):
    assert named in fails(2, *args)


@pytest.mark.parametrize("args, named", [
    (["generate", "--model", "/nonexistent", "--tokens", "1"], "/nonexistent"),
    (["inspect", "--model", GOLDEN / "README.md"], "README.md"),
    (["logits", "--model", MODEL, "--tokens", "1,320"], "320"),
    (["generate", "--model", MODEL, "--tokens", "1", "--cpu-table", "ref", "--backend", "cuda"], "cuda"),
    (["logits", "--model", MODEL, "--tokens", "1", "--view", "draft", "--next", "2"], "draft"),
    (["bench", "--synthetic", "smollm2-135m", "--backend", "cuda"], "has no CUDA backend"),
])
def test_what_cannot_be_done_exits_1_and_says_why(args, named):
    assert named in fails(1, *args)


def test_a_backend_that_was_asked_for_and_is_missing_ends_the_server():
    done = subprocess.run([BIN, "serve", "--model", MODEL, "--port", "0", "--backend", "cuda"], check=False,
                          capture_output=True, timeout=30 * SLOW)
    assert done.returncode == 1
    assert "event=load_failed" in done.stderr.decode() and "has no CUDA backend" in done.stderr.decode()


def test_backends_are_chosen_in_silence_and_what_means_nothing_is_said():
    ask = lambda *args: run_cli("generate", "--model", MODEL, "--tokens", "5", "--max-tokens", 4, "--json", *args)
    auto, cpu, said = ask(), ask("--backend", "cpu"), ask("--deterministic")
    assert "cuda" not in auto.stderr.decode().lower()
    assert "deterministic: without meaning here" in said.stderr.decode()
    assert len({json.dumps(json.loads(a.stdout)["tokens"]) for a in (auto, cpu, said)}) == 1


def test_inspect_names_what_would_compute():
    inspect = lambda *args: run_cli("inspect", "--model", MODEL, *args).stdout.decode()
    assert re.search(r"^backend +cpu$", inspect("--backend", "cpu"), re.M)
    assert re.search(r"^kernels +ref, f32 activations$", inspect("--cpu-table", "ref"), re.M)
    assert re.search("^would be refused: .*has no CUDA backend", inspect("--backend", "cuda"), re.M)


@pytest.mark.parametrize("command", ["serve", "generate", "logits", "tokenize", "inspect"])
def test_help_lists_flags_with_defaults(command):
    text = run_cli("help", command).stdout.decode()
    assert "--model" in text
    if command == "serve":
        for word in ("--port", "8080", "--max-num-seqs", "64", "--drafts", "auto"):
            assert word in text


def test_environment_twins():
    env = {"GERYON_MAX_TOKENS": "3", "GERYON_MODEL": str(MODEL)}
    ask = lambda *args: json.loads(subprocess.run(
        [BIN, "generate", "--tokens", "1,2", "--json", "--ignore-eos", *args], check=True,
        capture_output=True, env=dict(os.environ) | env).stdout)["tokens"]
    assert len(ask()) == 3
    assert len(ask("--max-tokens", "5")) == 5  # the flag wins
    assert "GERYON_MAX_TOKENS" in fails(2, "generate", "--tokens", "1", env=env | {"GERYON_MAX_TOKENS": "x"})


def test_generate_writes_text_to_stdout_and_a_summary_to_stderr():
    args = ["generate", "--model", MODEL, "--prompt", "Hello", "--max-tokens", 8, "--ignore-eos"]
    plain = run_cli(*args)
    result = json.loads(run_cli(*args, "--json").stdout)
    assert set(result) >= {"prompt_tokens", "tokens", "text", "finish_reason", "cycles", "timings"}
    assert plain.stdout.decode().removesuffix("\n") == result["text"]
    assert "8" in plain.stderr.decode()
    assert len(result["tokens"]) == 8 and result["finish_reason"] == "length"


def test_generate_with_a_seed_repeats_itself():
    ask = lambda *seed: json.loads(run_cli("generate", "--model", MODEL, "--tokens", "5", "--json",
                                           "--temperature", 1, "--max-tokens", 20, "--ignore-eos",
                                           *seed).stdout)["tokens"]
    assert ask("--seed", 4) == ask("--seed", 4) != ask("--seed", 5)
    assert ask() != ask()


def test_tokenize_there_and_back():
    text = "Hello, wörld!\n日本 😀 don't"
    ids = run_cli("tokenize", "--model", MODEL, stdin=text.encode()).stdout
    assert all(isinstance(i, int) for i in json.loads(ids))
    back = run_cli("tokenize", "--model", MODEL, "--decode", stdin=ids).stdout.decode()
    assert back.removesuffix("\n") == text


@pytest.mark.parametrize("stdin", [b"[1, 2", b"[1, -1]", b"[320]", b'["a"]', b"{}"])
def test_tokenize_refuses_ids_that_are_none(stdin):
    fails(1, "tokenize", "--model", MODEL, "--decode", stdin=stdin)


@pytest.mark.parametrize("break_it, named", [
    (lambda d: (d / "model.safetensors").unlink(), "safetensors"),
    (lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-1]), "model.safetensors"),
    (lambda d: (d / "config.json").write_text("{"), "config.json"),
    (lambda d: (d / "config.json").write_text((d / "config.json").read_text().replace("silu", "gelu")), "gelu"),
    (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
])
def test_broken_checkpoints_are_refused(tmp_path, break_it, named):
    for source in MODEL.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    break_it(tmp_path)
    assert named in fails(1, "generate", "--model", tmp_path, "--tokens", "1", "--max-tokens", 1)
    # A server of it listens, then ends by itself.
    done = subprocess.run([BIN, "serve", "--model", tmp_path, "--port", "0"], capture_output=True,
                          check=False, timeout=30 * SLOW)
    assert done.returncode == 1 and named in done.stderr.decode()
