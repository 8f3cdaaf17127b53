"""Golden checkpoints written as GGUF give the logits of their safetensors form, bit for bit."""

import json
import subprocess
import sys

import numpy
import pytest
from geryon import GOLDEN, ROOT, golden, read_safetensors, run_cli

# GGUF holds plain models only: no Orthros streams, no drafts.
NAMES = ["qwen3-single-standard-none", "qwen2-single-standard-none",
         "llama-single-standard-none-rope-llama3-untied"]
MAKE = ROOT / "tests/tools/make_gguf.py"


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")

    def make(name, *flags):
        path = folder / f"{name}{''.join(map(str, flags))}.gguf"
        if not path.exists():
            subprocess.run([sys.executable, MAKE, GOLDEN / name, path, *flags], check=True)
        return path

    return make


def logits(path, tokens, *more):
    return run_cli("logits", "--model", path, "--tokens", ",".join(map(str, tokens)), "--positions", "all",
                   "--kv-dtype", "f32", *more).stdout


@pytest.mark.parametrize("name", NAMES)
def test_f32_logits_equal_the_safetensors_ones(convert, name):
    prompt = golden(name)["prompts"][5]
    got = logits(convert(name), prompt, "--dtype", "f32")
    if "rope-llama3" not in name:
        assert got == logits(GOLDEN / name, prompt, "--dtype", "f32")
        return
    # rope_freqs.weight holds the frequency factors in float32: not the same bits, but within 1e-4.
    rows = numpy.array([json.loads(line)["logits"] for line in got.splitlines()])
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    assert numpy.abs(rows - tensors["all.5"]).max() < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_tokens_equal_the_ones_of_tokenizer_json(convert, name):
    for text in ["Hello, world!", "a  b\n\n c 2024 don't", "日本語 😀 é"]:
        pair = [json.loads(run_cli("tokenize", "--model", path, stdin=text.encode()).stdout)
                for path in (GOLDEN / name, convert(name))]
        assert pair[0] == pair[1], text
