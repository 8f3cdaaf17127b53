"""The CUDA backend's command line against the golden checkpoints, on the GPU simulator: logits within
1e-4 and equal bit for bit however they are computed; greedy texts, drafts and accepted counts
exactly; bf16 and q8_0 near the golden numbers. Every checkpoint goes through, with fewer tokens than on the
CPU: a simulated device takes its time."""

import json

import numpy
import pytest
from geryon import CUDA_BIN, GOLDEN, SLOW, golden, goldens, read_safetensors, run_cli
from test_golden_cli import check, rows

# Under a sanitizer one checkpoint of each residual path and stream, with all that a row can be.
NAMES = goldens() if SLOW == 1 else ["qwen2-single-standard-none", "qwen3-orthros-standard-orthrus",
                                     "qwen3-orthros-msar-orthrus"]
MODELS = pytest.mark.parametrize("name", NAMES)
F32 = ("--dtype", "f32", "--kv-dtype", "f32")


def cuda(command, name, *more, env=None):
    """What the command prints, as bytes."""
    return run_cli(command, "--model", GOLDEN / name, "--backend", "cuda", *more, binary=CUDA_BIN, env=env).stdout


def logits(name, tokens, *more, env=None):
    return cuda("logits", name, "--tokens", ",".join(map(str, tokens)), *more, env=env)


@MODELS
def test_last_logits(name):
    """By the library's products where it wants; --deterministic never, and then no bit depends on the way."""
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    prompts = golden(name)["prompts"]
    for i, prompt in enumerate(prompts):
        expected = tensors[f"last.{i}"][None]
        check(rows(logits(name, prompt, *F32), len(prompt) - 1), expected)
        whole = logits(name, prompt, *F32, "--deterministic")
        check(rows(whole, len(prompt) - 1), expected)
        if i in (3, 6):
            assert logits(name, prompt, *F32, "--deterministic", "--chunk", 7) == whole, "--chunk 7 changed a bit"
        if i == 3:
            assert logits(name, prompt, *F32, "--deterministic", "--decode") == whole, "--decode changed a bit"


@MODELS
def test_logits_at_every_position(name):
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    prompt = golden(name)["prompts"][5]
    ask = lambda *how, env=None: logits(name, prompt, *F32, "--deterministic", "--positions", "all", *how, env=env)
    whole = ask()
    check(rows(whole, 0), tensors["all.5"])
    for how in (["--chunk", 7], ["--chunk", 16], ["--decode"]):
        assert ask(*how) == whole, how
    assert ask(env={"GPUSIM_ORDER": "highest"}) == whole
    assert ask("--chunk", 16, env={"GPUSIM_ORDER": "random", "GPUSIM_SEED": "7"}) == whole


@pytest.mark.parametrize("name", [name for name in NAMES if "orthrus" in name])
def test_draft_logits(name):
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    data = golden(name)
    drafts = [key for key in tensors if key.startswith("draft.")]
    assert len(drafts) == 3
    for key in drafts:
        _, i, block = key.split(".")
        prompt = data["prompts"][int(i)]
        more = [*F32, "--deterministic", "--view", "draft", "--next", data["greedy"][int(i)][0], "--block", block]
        whole = logits(name, prompt, *more)
        check(rows(whole, len(prompt)), tensors[key])
        assert logits(name, prompt, *more, "--chunk", 7) == whole


@MODELS
def test_greedy_texts_and_cycles(name):
    """As test_golden_cli has it, over the first tokens of each text."""
    data, count = golden(name), 12
    for i, prompt in enumerate(data["prompts"]):
        result = json.loads(cuda("generate", name, *F32, "--tokens", ",".join(map(str, prompt)), "--json",
                                 "--max-tokens", count, "--ignore-eos",
                                 *(["--drafts", data["block_size"]] if "cycles" in data else [])))
        assert result["tokens"] == data["greedy"][i][:count], f"prompt {i}"
        assert result["finish_reason"] == "length"
        emitted = 1
        for got, expected in zip(result.get("cycles", ()), data.get("cycles", [[]] * 7)[i]):
            assert got["drafted"] == expected["draft"][:len(got["drafted"])]
            assert got["accepted"] == min(expected["accepted"], count - emitted - 1)  # the token limit cuts the last
            emitted += got["accepted"] + 1
        assert ("cycles" in data) <= (count - emitted in (0, 1)), f"prompt {i}: {emitted} tokens in cycles"


# What rounding costs of the spread of a checkpoint's logits (root mean square): `near` beside the CPU
# with the same weights and KV, its rows in float32 (bf16 moves each number of a row by up to 2^-9 before
# a product, and KV that differs in its last bit is rounded to its neighbour); `far` beside exact weights.
FORMATS = [("bf16", "auto", "auto", 0.03, 0.05), ("q8_0", "auto", "auto", 0.03, 0.2),
           ("bf16", "q8_0", "bf16", 0.04, 0.06), ("q8_0", "bf16", "f32", 0.01, 0.2)]


@MODELS
@pytest.mark.parametrize("dtype, kv, activations, near, far", FORMATS)
def test_other_formats(name, dtype, kv, activations, near, far):
    prompt, expected = golden(name)["prompts"][5], read_safetensors(GOLDEN / name / "golden.safetensors")["all.5"]
    if name == "qwen3-single-msar-orthrus-bf16":  # 8-bit KV on the CPU moves it three times as far as others
        near, far = 2.5 * near, 2.5 * far
    formats = ("--dtype", dtype, "--kv-dtype", kv, "--positions", "all")
    ask = lambda *how: logits(name, prompt, *formats, "--activations", activations, "--deterministic", *how)
    whole = ask()
    cpu = run_cli("logits", "--model", GOLDEN / name, "--backend", "cpu", "--activations", "f32", *formats, "--tokens",
                  ",".join(map(str, prompt))).stdout
    error = lambda other: numpy.sqrt(((rows(whole, 0) - other)**2).mean()) / expected.std()
    assert 1e-8 < error(rows(cpu, 0)) < near
    assert 1e-4 < error(expected) < far
    assert ask("--chunk", 7) == whole
    assert (dtype, kv) != ("bf16", "auto") or ask("--decode") == whole
