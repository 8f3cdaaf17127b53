"""Golden checkpoints written as GGUF: the same tokens, and the logits of their safetensors form."""

import json
import shutil
import struct

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
    exact = ("--activations", "f32")
    packed = logits(gguf(name, kind), prompt, *exact)
    widened = logits(gguf(name, kind), prompt, "--dtype", "f32")
    assert numpy.abs(array(packed) - array(widened)).max() < 1e-3
    assert logits(gguf(name, kind), prompt, *exact, "--chunk", 7) == packed
    quantised = logits(gguf(name, kind), prompt)  # by default rows are int8 as well: near, in norm
    error = numpy.linalg.norm(array(quantised) - array(widened)) / numpy.linalg.norm(array(widened))
    # a 254th of a block a number, over all layers; depth attention sharpens it (the ref table agrees)
    assert 0 < error < (0.1 if "-msar-" in name else 0.06), error
    assert logits(gguf(name, kind), prompt, "--activations", "int8", "--chunk", 7) == quantised != packed


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


# ---- types that are only read, blocks of 256 among them -------------------------------------------

WIDE_KINDS = pytest.mark.parametrize("kind", ["q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "q4_k_m", "q5_k_m"])
WIDE_PROMPT = [5, 17, 250, 99, 3, 3, 120, 64, 301, 7, 8, 200, 45, 31, 12, 77, 160, 2, 90, 55]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A random checkpoint whose rows are whole blocks of 256; the goldens' are narrower."""
    source = GOLDEN / "llama-single-standard-none-rope-llama3-untied"
    folder = tmp_path_factory.mktemp("checkpoint") / "wide"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("golden*", "model.safetensors"))
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
    config = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    vocab, d, ff, kv = config["vocab_size"], 256, 512, config["num_key_value_heads"] * 64
    shapes = {"model.embed_tokens.weight": (vocab, d), "lm_head.weight": (vocab, d), "model.norm.weight": (d,)}
    for layer in range(2):
        for name, shape in {"input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (d, d),
                            "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, d),
                            "mlp.gate_proj": (ff, d), "mlp.up_proj": (ff, d), "mlp.down_proj": (d, ff)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    random, header, data = numpy.random.default_rng(7), {}, b""
    for name, shape in shapes.items():
        spread = 1.0 if "embed" in name else 0.1 if len(shape) == 1 else 1.5 / numpy.sqrt(shape[1])
        values = random.normal(len(shape) == 1, spread, shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def tables():
    """The CPU tables of this machine."""
    found = []
    for table in ["ref", "avx2", "avx512", "amx"]:
        asked = run_cli("logits", "--model", GOLDEN / goldens()[0], "--tokens", "1", "--cpu-table", table, check=False)
        found += [table] if asked.returncode == 0 else []
    return found


@WIDE_KINDS
def test_numbers_are_those_that_gguf_widens(gguf, wide, kind):
    """Widened to float32 by us, and by the package gguf: the same model, bit for bit."""
    ours = logits(gguf(wide, kind), WIDE_PROMPT, "--dtype", "f32")
    assert ours == logits(gguf(wide, kind, "--widened"), WIDE_PROMPT)


@WIDE_KINDS
def test_packed_blocks_give_the_logits_of_their_numbers_on_every_table(gguf, wide, kind):
    widened = array(logits(gguf(wide, kind, "--widened"), WIDE_PROMPT, "--cpu-table", "ref"))
    norm = numpy.linalg.norm(widened)
    fast = {"f32": set(), "int8": set()}
    for table in tables():
        for activations, most in [("f32", 2e-6), ("int8", 0.03)]:
            flags = ("--cpu-table", table, "--activations", activations)
            got = logits(gguf(wide, kind), WIDE_PROMPT, *flags)
            error = numpy.linalg.norm(array(got) - widened) / norm
            assert error < most and (activations == "f32" or error > 1e-5), (table, activations, error)
            assert logits(gguf(wide, kind), WIDE_PROMPT, *flags, "--chunk", 3) == got
            if table != "ref":
                fast[activations].add(got)
    assert all(len(answers) <= 1 for answers in fast.values()), "fast tables differ"


@WIDE_KINDS
def test_greedy_text_follows_the_numbers(gguf, wide, kind):
    """The text of a packed model is that of its numbers in float32, drafted or not. With rows in int8 it
    may be another one, and is the same drafted or not."""
    ask = lambda path, *more: json.loads(run_cli(
        "generate", "--model", path, "--kv-dtype", "f32", "--tokens", ",".join(map(str, WIDE_PROMPT)), "--json",
        "--max-tokens", 24, "--ignore-eos", *more).stdout)["tokens"]
    packed = ask(gguf(wide, kind), "--activations", "f32")
    assert len(packed) == 24
    assert packed == ask(gguf(wide, kind, "--widened"))
    assert packed == ask(gguf(wide, kind), "--activations", "f32", "--drafts", "ngram")
    assert ask(gguf(wide, kind)) == ask(gguf(wide, kind), "--drafts", "ngram")


def test_inspect_and_convert_name_the_types(gguf, wide, tmp_path):
    path = gguf(wide, "q4_k_m")
    told = run_cli("inspect", "--model", path).stdout.decode()
    assert "Q4_K x 10" in told and "Q6_K x 6" in told and told.endswith("can be loaded\n"), told
    refused = run_cli("convert", path, tmp_path / "as-is", check=False)
    assert refused.returncode != 0 and not (tmp_path / "as-is").exists()
    assert b"type Q6_K has no form in safetensors; --dtype names one that has" in refused.stderr, refused.stderr
    run_cli("convert", path, tmp_path / "wide", "--dtype", "f32")
    ours, other = (array(logits(p, WIDE_PROMPT)) for p in (tmp_path / "wide", gguf(wide, "q4_k_m", "--widened")))
    assert numpy.abs(ours - other).max() < 1e-4  # rope factors: float32 in a GGUF, not in config.json
