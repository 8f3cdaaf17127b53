"""Golden checkpoints written as GGUF: the same tokens, and the logits of their safetensors form."""

import json

import numpy
import pytest
from geryon import GOLDEN, golden, goldens, run_cli

MODELS = pytest.mark.parametrize("name", goldens())


def logits(path, tokens, *more):
    return run_cli("logits", "--model", path, "--tokens", ",".join(map(str, tokens)), "--positions", "all",
                   "--kv-dtype", "f32", *more).stdout


def array(output):
    return numpy.array([json.loads(line)["logits"] for line in output.splitlines()])


@MODELS
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_logits_equal_the_safetensors_ones(gguf, name, kind):
    prompt = golden(name)["prompts"][5]
    ours = logits(gguf(name, kind), prompt)
    other = logits(GOLDEN / name, prompt, "--dtype", kind)
    if "llama3" in name:  # its rope factors are float32 in a GGUF, and exact in config.json
        assert numpy.abs(array(ours) - array(other)).max() < (1e-4 if kind == "f32" else 0.05)
    else:
        assert ours == other


@MODELS
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1"])
def test_packed_weights_give_what_their_expansion_gives(gguf, name, kind):
    """Blocks kept packed against the same blocks widened to float32 at load: another order of sums,
    the same numbers."""
    prompt = golden(name)["prompts"][5]
    packed = logits(gguf(name, kind), prompt)
    widened = logits(gguf(name, kind), prompt, "--dtype", "f32")
    assert numpy.abs(array(packed) - array(widened)).max() < 1e-3
    assert logits(gguf(name, kind), prompt, "--chunk", 7) == packed
    quantised = logits(gguf(name, kind), prompt, "--activations", "int8")  # rows in int8 as well: near, in norm
    error = numpy.linalg.norm(array(quantised) - array(widened)) / numpy.linalg.norm(array(widened))
    # a 254th of a block a number, over all layers; depth attention sharpens it (the ref table agrees)
    assert 0 < error < (0.1 if "-msar-" in name else 0.06), error
    assert logits(gguf(name, kind), prompt, "--activations", "int8", "--chunk", 7) == quantised


@MODELS
def test_tokens_equal_the_ones_of_tokenizer_json(gguf, name):
    for text in ["Hello, world!", "a  b\n\n c 2024 don't I'LL", "日本語 😀 é e\u0301", "<|im_end|>x"]:
        pair = [json.loads(run_cli("tokenize", "--model", path, stdin=text.encode()).stdout)
                for path in (GOLDEN / name, gguf(name, "f32"))]
        assert pair[0] == pair[1], text


@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_drafts_live_in_a_gguf_as_well(gguf, name):
    data = golden(name)  # a fixed block: how long the adaptive one is follows the clock
    ask = lambda path: json.loads(run_cli(
        "generate", "--model", path, "--dtype", "f32", "--kv-dtype", "f32", "--drafts", data["block_size"], "--tokens",
        ",".join(map(str, data["prompts"][3])), "--json", "--max-tokens", 30, "--ignore-eos").stdout)
    ours, other = ask(gguf(name, "f32")), ask(GOLDEN / name)
    assert ours["tokens"] == other["tokens"] == data["greedy"][3][:30]
    assert ours["cycles"] == other["cycles"] and ours["cycles"]
