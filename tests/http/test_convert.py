"""`geryon convert`: what a checkpoint says, its copy says too, in every number format; a GGUF file as a
directory; added streams and drafts; and nothing left behind where it fails."""

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time

import pytest
from geryon import BIN, FAULTS, GOLDEN, SLOW, golden, goldens, run_cli

MODELS = pytest.mark.parametrize("name", goldens())
EVERY = sorted(folder.parent.name for folder in GOLDEN.glob("*/golden.json"))
PLAIN = "qwen3-single-standard-none"
SINGLE = [name for name in goldens() if "-orthros-" not in name]
TEXTS = json.loads((GOLDEN / "smollm2-texts.json").read_text())


@pytest.fixture
def convert(tmp_path):
    def make(source, *flags):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        done = run_cli("convert", source, out, *flags)
        assert done.stdout == b"" and str(out).encode() in done.stderr
        return out

    return make


def logits(path, name, *more, prompt=5):
    """Output of geryon logits at every position: equal bytes are equal bits."""
    tokens = ",".join(map(str, golden(name)["prompts"][prompt]))
    return run_cli("logits", "--model", path, "--tokens", tokens, "--positions", "all", "--kv-dtype", "f32",
                   *more).stdout


def generate(path, prompt, count, *more):
    return json.loads(run_cli("generate", "--model", path, "--tokens", ",".join(map(str, prompt)), "--json",
                              "--max-tokens", count, "--ignore-eos", *more).stdout)


def headers(folder):
    """{name: (dtype, shape, bytes)} over all weight files."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name == "golden.safetensors":
            continue
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                lo, hi = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"], data[8 + size + lo:8 + size + hi])
    return tensors


# ---- the same model ---------------------------------------------------------------------------------

@pytest.mark.parametrize("name", EVERY)
def test_a_copy_holds_the_same_bytes(convert, name):
    out = convert(GOLDEN / name)
    assert headers(out) == headers(GOLDEN / name)
    assert json.loads((out / "config.json").read_text()) == json.loads((GOLDEN / name / "config.json").read_text())
    for text in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (out / text).exists() == (GOLDEN / name / text).exists()
        if (out / text).exists():
            assert (out / text).read_bytes() == (GOLDEN / name / text).read_bytes()


@MODELS
def test_a_copy_gives_the_same_logits(convert, name):
    out = convert(GOLDEN / name)
    assert logits(out, name) == logits(GOLDEN / name, name)
    data = golden(name)
    # A fixed block: how long the adaptive one is follows the clock.
    block = ["--drafts", data["block_size"]] if data.get("block_size") else []
    ask = [generate(path, data["prompts"][3], 20, *block) for path in (out, GOLDEN / name)]
    assert ask[0]["tokens"] == ask[1]["tokens"] and ask[0]["cycles"] == ask[1]["cycles"]


@MODELS
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "q8_0"])
def test_converted_now_or_at_load(convert, name, dtype):
    out = convert(GOLDEN / name, "--dtype", dtype)
    assert logits(out, name) == logits(GOLDEN / name, name, "--dtype", dtype)
    assert logits(out, name, "--activations", "int8") == logits(GOLDEN / name, name, "--dtype", dtype,
                                                               "--activations", "int8")


@pytest.mark.parametrize("name", ["qwen2-single-standard-none", "llama-orthros-standard-none",
                                  "qwen3-single-standard-orthrus"])
@pytest.mark.parametrize("dtype", ["auto", "f32", "bf16", "f16", "q8_0", "q4_0"])
def test_dtype_at_load_does_not_ask_for_the_file_format(convert, gguf, name, dtype):
    """One model as two formats of its own numbers, and as packed ones in both."""
    assert logits(gguf(name, "f32"), name, "--dtype", dtype) == logits(GOLDEN / name, name, "--dtype", dtype)
    packed = gguf(name, "q8_0")
    assert logits(convert(packed), name, "--dtype", dtype) == logits(packed, name, "--dtype", dtype)


@MODELS
def test_q4_0_keeps_its_numbers(convert, gguf, name):
    """d (q - 8) as d q + m: the same weights, so widened they give the same bits."""
    out = convert(GOLDEN / name, "--dtype", "q4_0")
    assert {t[0] for t in headers(out).values()} >= {"U8"}
    from_gguf = convert(gguf(name, "q4_0"))
    widened = logits(from_gguf, name, "--dtype", "f32")
    if "llama3" not in name:  # its rope rule is exact in config.json
        assert widened == logits(gguf(name, "q4_0"), name, "--dtype", "f32")
    assert logits(convert(gguf(name, "q4_0"), "--dtype", "q4_1"), name, "--dtype", "f32") == widened


@MODELS
@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0", "q4_1"])
def test_a_gguf_becomes_a_directory(convert, gguf, name, kind):
    """Names, permuted rows, rope rule and extensions come back; blocks stay the same blocks."""
    source = gguf(name, kind)
    out = convert(source)
    if "llama3" not in name:
        assert logits(out, name) == logits(source, name)
    if kind == "f32" or (kind == "bf16" and "-msar-" not in name):  # what MSAR reads is never rounded at load
        assert logits(out, name) == logits(GOLDEN / name, name, "--dtype", kind)
    config, was = (json.loads((path / "config.json").read_text()) for path in (out, GOLDEN / name))
    for key in ("vocab_size", "hidden_size", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings",
                "tie_word_embeddings", "orthros"):
        assert config.get(key) == was.get(key), key
    if "llama3" in name:
        assert config["rope_scaling"] == was["rope_scaling"]


@MODELS
def test_tokens_of_a_gguf_stay_the_same(convert, gguf, name):
    out = convert(gguf(name, "f32"))
    for text in ["Hello, world!", "a  b\n\n c 2024 don't I'LL", "日本語 😀 é e\u0301", "<|im_end|>x<think>"]:
        ids = [run_cli("tokenize", "--model", path, stdin=text.encode()).stdout for path in (GOLDEN / name, out)]
        assert ids[0] == ids[1], text
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == json.loads(
        (GOLDEN / name / "generation_config.json").read_text())["eos_token_id"]


@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_drafts_come_along(convert, gguf, name):
    data = golden(name)
    block = ["--drafts", data["block_size"]]
    ours = generate(convert(gguf(name, "f32")), data["prompts"][3], 30, *block)
    other = generate(GOLDEN / name, data["prompts"][3], 30, "--dtype", "f32", *block)
    assert ours["tokens"] == other["tokens"] == data["greedy"][3][:30]
    assert ours["cycles"] == other["cycles"] and ours["cycles"]


def test_shards(convert):
    out = convert(GOLDEN / PLAIN, "--dtype", "q4_1", "--max-shard-size", "20K")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2 and not (out / "model.safetensors").exists()
    assert headers(out) == headers(convert(GOLDEN / PLAIN, "--dtype", "q4_1"))
    assert logits(out, PLAIN) == logits(convert(out, "--max-shard-size", "1G"), PLAIN)


# ---- additions ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SINGLE)
def test_orthros_with_a_window_over_everything_changes_nothing(convert, name):
    out = convert(GOLDEN / name, "--orthros", 40)
    plain = logits(GOLDEN / name, name)
    assert logits(out, name) == plain
    assert logits(out, name, "--chunk", 7) == plain
    assert b"base and output (Orthros), window 40" in run_cli("inspect", "--model", out).stdout
    narrow = convert(GOLDEN / name, "--orthros", 8)
    assert logits(narrow, name) == logits(GOLDEN / name, name, "--window", 8) != plain


@pytest.mark.parametrize("name", goldens(orthrus=False))
def test_orthrus_drafts_and_keeps_the_text(convert, name):
    out = convert(GOLDEN / name, "--orthrus", 6)
    data = golden(name)
    assert logits(out, name) == logits(GOLDEN / name, name)
    accepted = 0
    for prompt, greedy in list(zip(data["prompts"], data["greedy"]))[2:5]:
        result = generate(out, prompt, 48, "--drafts", 6, "--dtype", "f32", "--kv-dtype", "f32")
        assert result["tokens"] == greedy
        assert any(len(c["drafted"]) == 5 for c in result["cycles"])
        accepted += sum(c["accepted"] for c in result["cycles"])
    config = json.loads((out / "config.json").read_text())
    assert config["orthrus"] == {"block_size": 6, "mask_token_id": 318}


def test_both_additions_and_a_number_format(convert):
    name = PLAIN
    out = convert(GOLDEN / name, "--orthros", 16, "--orthrus", 4, "--mask-token", 315, "--dtype", "bf16")
    config = json.loads((out / "config.json").read_text())
    assert config["orthros"] == {"window": 16} and config["dtype"] == "bfloat16"
    assert config["orthrus"] == {"block_size": 4, "mask_token_id": 315}
    prompt = golden(name)["prompts"][5]
    texts = [generate(out, prompt, 30, "--drafts", drafts) for drafts in ("off", 4)]
    assert texts[0]["tokens"] == texts[1]["tokens"] and texts[1]["cycles"]
    tensors = headers(out)
    assert tensors["model.layers.0.self_attn.q_proj_diff.weight"] == tensors["model.layers.0.self_attn.q_proj.weight"]


# ---- the default model ----------------------------------------------------------------------------------

@pytest.mark.timeout(400 * SLOW)
def test_smollm2_as_a_directory(tmp_path, smollm2, serve):
    out = tmp_path / "smollm2"
    run_cli("convert", smollm2, out)
    server = serve(out)

    def tokenized(text, special=True):
        return server.post("/tokenize", {"prompt": text, "add_special_tokens": special}).json["tokens"]

    for case in TEXTS["completions"]:
        assert tokenized(case["prompt"]) == case["prompt_ids"]
    for case in TEXTS["chats"]:
        assert tokenized(case["rendered"]) == case["prompt_ids"]
    for case in json.loads((GOLDEN / "tokenizer-smollm2.json").read_text())["encode"]:
        assert tokenized(case["text"], special=False) == case["ids"], case["text"]
    exact = ["--dtype", "f32", "--kv-dtype", "f32", "--max-model-len", 512]
    for case in TEXTS["completions"][:3]:
        assert generate(out, case["prompt_ids"], 40, *exact)["tokens"] == case["greedy"][:40]
    chat = TEXTS["chats"][0]  # the template came along
    result = json.loads(run_cli("generate", "--model", out, "--chat", chat["messages"][0]["content"], *exact,
                                "--max-tokens", 24, "--ignore-eos", "--json").stdout)
    assert result["prompt_tokens"] == chat["prompt_ids"] and result["tokens"] == chat["greedy"][:24]
    # the same blocks: packed, it is the same to the bit
    ids = ",".join(map(str, chat["prompt_ids"]))
    assert len({run_cli("logits", "--model", path, "--tokens", ids).stdout for path in (out, smollm2)}) == 1


# ---- failures ---------------------------------------------------------------------------------------------

def fails(status, *args, limit=None):
    """Exit `status`, one line on stderr, which is returned. limit: largest file in bytes."""
    bound = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    done = subprocess.run([BIN, "convert", *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                          check=False, timeout=60 * SLOW, preexec_fn=bound)
    text = done.stderr.decode()
    assert done.returncode == status, text
    assert done.stdout == b"" and text.count("\n") == 1 and not FAULTS.search(text), text
    return text


def test_usage(tmp_path):
    out = tmp_path / "out"
    for args, named in [((), "IN"), ((GOLDEN / PLAIN,), "OUT"), ((GOLDEN / PLAIN, out, "more"), "more"),
                        ((GOLDEN / PLAIN, out, "--dtype", "q6_k"), "--dtype"),
                        ((GOLDEN / PLAIN, out, "--orthros", 0), "--orthros"),
                        ((GOLDEN / PLAIN, out, "--orthrus", 1), "--orthrus"),
                        ((GOLDEN / PLAIN, out, "--mask-token", 3), "--mask-token"),
                        ((GOLDEN / PLAIN, out, "--model", "x"), "--model")]:
        assert named in fails(2, *args)
    assert not out.exists()
    text = run_cli("help", "convert").stdout.decode()
    assert text.startswith("geryon convert IN OUT: ")
    for flag in ("--dtype", "--orthros", "--orthrus", "--mask-token", "--max-shard-size"):
        assert flag in text


def test_what_is_there_is_not_overwritten(tmp_path):
    assert "nowhere" in fails(1, tmp_path / "nowhere", tmp_path / "out")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("x")
    assert "not empty" in fails(1, GOLDEN / PLAIN, full)
    assert "no directory" in fails(1, GOLDEN / PLAIN, full / "mine")
    assert "not empty" in fails(1, GOLDEN / PLAIN, GOLDEN / PLAIN)
    assert "No such file" in fails(1, GOLDEN / PLAIN, tmp_path / "no" / "parent")
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "mine"]
    empty = tmp_path / "empty"
    empty.mkdir()
    run_cli("convert", GOLDEN / PLAIN, empty)
    assert (empty / "config.json").exists()


@pytest.mark.parametrize("limit", [1000, 30000, 100000, 456000])
def test_a_limit_on_files_leaves_nothing(tmp_path, limit):
    assert "File too large" in fails(1, GOLDEN / PLAIN, tmp_path / "out", limit=limit)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few KiB, or one that cannot be written to."""
    mounted = []

    def make(options):
        folder = tmp_path / "disk"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "geryon-test", folder], check=False,
                              capture_output=True)
        if done.returncode:
            pytest.skip("no tmpfs can be mounted: " + done.stderr.decode().strip()[-100:])
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("size", ["16k", "200k", "460k"])
def test_a_full_disk_leaves_nothing(small_disk, size):
    disk = small_disk(f"size={size}")
    assert "No space left" in fails(1, GOLDEN / PLAIN, disk / "out")
    assert list(disk.iterdir()) == []
    assert "No space left" in fails(1, GOLDEN / PLAIN, disk)  # the mount itself: empty, so it may be used
    assert list(disk.iterdir()) == []


def test_a_mounted_directory_is_filled(small_disk):
    disk = small_disk("size=4m")
    run_cli("convert", GOLDEN / PLAIN, disk)
    assert logits(disk, PLAIN) == logits(GOLDEN / PLAIN, PLAIN)


def test_a_disk_that_is_read_only(small_disk):
    disk = small_disk("size=1m,ro")
    assert "Read-only" in fails(1, GOLDEN / PLAIN, disk / "out")
    assert "Read-only" in fails(1, GOLDEN / PLAIN, disk)


@pytest.mark.parametrize("damage, named", [
    ("cut", "model.safetensors"), ("config", "rope_thetta"), ("tokenizer", "tokenizer.json"), ("scale", "_scale")])
def test_a_model_that_would_be_refused_is_not_converted(tmp_path, convert, damage, named):
    folder = tmp_path / "model"
    shutil.copytree(convert(GOLDEN / PLAIN, "--dtype", "q8_0"), folder)
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    if damage == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rope_thetta": 1}))
    if damage == "tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    if damage == "scale":
        weights.write_bytes(weights.read_bytes().replace(b'q_proj.weight_scale"', b'q_proj.weight_skale"'))
    assert named in fails(1, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(120 * SLOW)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_nothing(tmp_path, smollm2, name):
    out = tmp_path / "out"
    process = subprocess.Popen([BIN, "convert", smollm2, out, "--dtype", "q8_0"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        until = time.monotonic() + 30 * SLOW
        while not (out / "model.safetensors").exists() and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(process.pid, getattr(signal, name))
        log, _ = process.communicate(timeout=60 * SLOW)
    finally:
        process.kill()
    assert process.returncode == 1 and "stopped" in log, log
    assert list(tmp_path.iterdir()) == []
