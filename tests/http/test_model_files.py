"""Kind 11 where it concerns the whole program: what `geryon serve` does with model files that are
cut, doubled or larger than they seem. The parsers' own cases are unit tests."""

import json
import shutil
import struct
import subprocess

import numpy
import pytest
from geryon import BIN, FAULTS, GOLDEN, SLOW, golden, read_safetensors, run_cli

SHARDED = "llama-single-standard-none-rope-linear-sharded"
TIED, UNTIED = "qwen3-single-standard-none", "llama-single-standard-none-rope-llama3-untied"
F32 = ["--dtype", "f32", "--kv-dtype", "f32"]


@pytest.fixture
def copy_of(tmp_path):
    return lambda name: shutil.copytree(GOLDEN / name, tmp_path / "model")


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(a.astype("<f4").tobytes() for a in tensors.values()))


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refuses(path, named):
    """`geryon serve` ends by itself, not by a signal, names the fault, and never serves."""
    process = subprocess.Popen([BIN, "serve", "--model", str(path), "--port", "0"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        log, _ = process.communicate(timeout=30 * SLOW)
    finally:
        process.kill()
    assert process.returncode == 1, log
    assert named in log and not FAULTS.search(log), log
    assert '"ready"' not in log and "event=ready" not in log, log


def greedy(path, name):
    """The first prompts' texts by this checkpoint."""
    data = golden(name)
    return [json.loads(run_cli("generate", "--model", path, *F32, "--tokens", ",".join(map(str, prompt)),
                               "--json", "--max-tokens", 16, "--ignore-eos").stdout)["tokens"]
            for prompt in data["prompts"][2:5]]


def known(name):
    return [ids[:16] for ids in golden(name)["greedy"][2:5]]


# ---- shards ------------------------------------------------------------------------------------------

def test_s11_03_a_shard_that_is_missing_or_cut(copy_of):
    folder = copy_of(SHARDED)
    shard = folder / "model-00002-of-00003.safetensors"
    data = shard.read_bytes()
    shard.unlink()
    refuses(folder, shard.name)
    shard.write_bytes(data[:-1])
    refuses(folder, shard.name)
    shard.write_bytes(b"")
    refuses(folder, shard.name)
    shard.unlink()
    shard.mkdir()
    refuses(folder, shard.name)


def test_s11_03_an_index_that_names_what_is_not_there(copy_of):
    folder = copy_of(SHARDED)
    index = folder / "model.safetensors.index.json"
    weights = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weights | {"model.norm.weight": "model-00001-of-00003.safetensors"
                     if weights["model.norm.weight"][6:11] != "00001" else "model-00002-of-00003.safetensors"}}))
    refuses(folder, "model.norm.weight")
    del weights["model.layers.1.mlp.up_proj.weight"]
    index.write_text(json.dumps({"weight_map": weights}))
    refuses(folder, "model.layers.1.mlp.up_proj.weight")


def test_s11_03_no_weights_at_all(copy_of):
    folder = copy_of(TIED)
    weights = folder / "model.safetensors"
    weights.unlink()
    refuses(folder, "model.safetensors")
    weights.mkdir()
    refuses(folder, "model.safetensors")
    refuses(weights, "model.safetensors")
    refuses(folder / "nowhere", "nowhere")


def test_s11_04_the_index_decides(serve, copy_of):
    folder = copy_of(SHARDED)
    tensors = {p.name: read_safetensors(p) for p in sorted(folder.glob("model-*.safetensors"))}
    weights = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stray = {name: numpy.ones_like(array) for shard in tensors.values() for name, array in shard.items()}
    write_safetensors(folder / "extra.safetensors", stray | {"lm_head.weight": stray["model.embed_tokens.weight"]})
    for name, shard in tensors.items():  # each holds a wrong copy of the next tensor of another shard
        other = next(t for t, where in weights.items() if where != name)
        write_safetensors(folder / name, shard | {other: stray[other]})
    server = serve(folder, *F32)
    data = golden(SHARDED)
    for prompt, ids in zip(data["prompts"], data["greedy"]):
        answer = server.complete(prompt, max_tokens=20, ignore_eos=True, return_token_ids=True)
        assert answer.choice["token_ids"] == ids[:20]


# ---- the output head ---------------------------------------------------------------------------------

def test_s11_05_tied_output_head(copy_of):
    folder = copy_of(TIED)
    weights, config = folder / "model.safetensors", folder / "config.json"
    tensors = read_safetensors(weights)
    assert json.loads(config.read_text())["tie_word_embeddings"] and "lm_head.weight" not in tensors
    head = -tensors["model.embed_tokens.weight"]
    assert greedy(folder, TIED) == known(TIED)  # tied, absent
    write_safetensors(weights, tensors | {"lm_head.weight": head})
    assert greedy(folder, TIED) == known(TIED)  # tied, present: not used
    edit_json(config, tie_word_embeddings=False)
    assert greedy(folder, TIED) != known(TIED)  # untied, present: used
    write_safetensors(weights, tensors | {"lm_head.weight": -head})
    assert greedy(folder, TIED) == known(TIED)
    write_safetensors(weights, tensors)
    refuses(folder, "lm_head.weight")  # untied, absent
    shutil.rmtree(folder)
    assert greedy(copy_of(UNTIED), UNTIED) == known(UNTIED)


# ---- more rows than tokens ---------------------------------------------------------------------------

def test_s11_07_embedding_rows_beyond_the_tokenizer(serve, copy_of):
    """320 rows, 318 tokens. The output head is made so that one of the two spare ids always wins."""
    folder = copy_of(UNTIED)
    tensors = read_safetensors(folder / "model.safetensors")
    head = numpy.zeros_like(tensors["lm_head.weight"])
    assert head.shape[0] == 320
    head[318] = numpy.random.default_rng(1).standard_normal(head.shape[1])
    head[319] = -head[318]
    write_safetensors(folder / "model.safetensors", tensors | {"lm_head.weight": head})
    server = serve(folder, *F32)
    for path in ("/v1/completions", "/v1/chat/completions"):
        whole, stream = server.both(path, max_tokens=5, return_token_ids=True)
        assert whole.text == "" and whole.choice["finish_reason"] == "length"
        assert len(whole.choice["token_ids"]) == 5 and set(whole.choice["token_ids"]) <= {318, 319}
    assert server.complete([310, 318, 319], max_tokens=1).status == 200
    answer = server.complete([320], max_tokens=1)
    assert answer.status == 400 and answer.error["param"] == "prompt"
    assert run_cli("tokenize", "--model", folder, "--decode", stdin=b"[319, 318]").stdout == b""
    assert server.get("/health").status == 200


def test_s11_07_fewer_rows_than_tokens_are_refused(copy_of):
    folder = copy_of(UNTIED)
    tensors = read_safetensors(folder / "model.safetensors")
    cut = {name: a[:300] if a.shape[0] == 320 else a for name, a in tensors.items()}
    write_safetensors(folder / "model.safetensors", cut)
    edit_json(folder / "config.json", vocab_size=300, eos_token_id=1)
    (folder / "generation_config.json").unlink()
    refuses(folder, "318 tokens")
