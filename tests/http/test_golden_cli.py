"""The command line against the golden checkpoints: logits within 1e-4 and equal bit for bit however
they are computed; greedy texts, drafts and accepted counts exactly."""

import json
import pathlib

import numpy
import pytest
from geryon import GOLDEN, golden, goldens, read_safetensors, run_cli

CPU = set(pathlib.Path("/proc/cpuinfo").read_text().split())
AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
AMX = AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}
TABLES = ["ref"] + ["avx2"] * (AVX2 <= CPU) + ["avx512"] * (AVX512 <= CPU) + ["amx"] * (AMX <= CPU)
MODELS = pytest.mark.parametrize("name", goldens())
CPU_TABLES = pytest.mark.parametrize("table", TABLES)
TOLERANCE = 1e-4  # of a float32 engine against float64; another order of sums costs up to 5e-5 here


def flags(name, table):
    return ["--model", GOLDEN / name, "--dtype", "f32", "--kv-dtype", "f32", "--cpu-table", table]


def logits(name, table, tokens, *more):
    """Output lines of geryon logits, as bytes."""
    return run_cli("logits", *flags(name, table), "--tokens", ",".join(map(str, tokens)), *more).stdout


def rows(output, first):
    """The logits of each line; positions count up from first."""
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["position"] for line in lines] == list(range(first, first + len(lines)))
    return numpy.array([line["logits"] for line in lines])


def check(got, expected):
    assert got.shape == expected.shape
    worst = numpy.abs(got - expected).max()
    assert worst < TOLERANCE, f"largest error {worst:.3g}"


@MODELS
@CPU_TABLES
def test_last_logits(name, table):
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    for i, prompt in enumerate(golden(name)["prompts"]):
        whole = logits(name, table, prompt)
        check(rows(whole, len(prompt) - 1), tensors[f"last.{i}"][None])
        assert logits(name, table, prompt, "--chunk", 7) == whole, "--chunk 7 changed a bit"
        assert logits(name, table, prompt, "--decode") == whole, "--decode changed a bit"


@MODELS
@CPU_TABLES
def test_logits_at_every_position(name, table):
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    prompt = golden(name)["prompts"][5]
    whole = logits(name, table, prompt, "--positions", "all")
    check(rows(whole, 0), tensors["all.5"])
    for how in (["--chunk", 7], ["--chunk", 1], ["--chunk", 16], ["--decode"], ["--threads", 1],
                ["--max-num-batched-tokens", 16]):
        assert logits(name, table, prompt, "--positions", "all", *how) == whole, how


@pytest.mark.parametrize("name", goldens(orthrus=True))
@CPU_TABLES
def test_draft_logits(name, table):
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    data = golden(name)
    drafts = [key for key in tensors if key.startswith("draft.")]
    assert len(drafts) == 3
    for key in drafts:
        _, i, block = key.split(".")
        prompt = data["prompts"][int(i)]
        more = ["--view", "draft", "--next", data["greedy"][int(i)][0], "--block", block]
        whole = logits(name, table, prompt, *more)
        check(rows(whole, len(prompt)), tensors[key])
        assert logits(name, table, prompt, *more, "--chunk", 7) == whole
        assert logits(name, table, prompt, *more, "--decode") == whole


def test_draft_logits_of_a_block_longer_than_other_limits(tmp_path):
    """A block of 32 rows: shown whole with drafts off, and refused where a forward holds fewer rows."""
    source = GOLDEN / "qwen3-single-standard-orthrus"
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (config["orthrus"] if "orthrus" in config else config)["block_size"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    ask = ["logits", "--model", tmp_path, "--tokens", "1,2,3", "--view", "draft", "--next", 4]
    whole = run_cli(*ask).stdout
    assert len(whole.splitlines()) == 32
    assert run_cli(*ask, "--drafts", "off").stdout == whole
    done = run_cli(*ask, "--max-num-batched-tokens", 16, check=False)
    assert done.returncode == 1 and b"block: 32 rows" in done.stderr


@MODELS
@pytest.mark.parametrize("dtype, kv, activations", [
    ("bf16", "bf16", "auto"), ("f16", "f32", "auto"), ("q8_0", "bf16", "int8"), ("q4_0", "f32", "int8"),
    ("q8_0", "bf16", "f32"), ("q4_0", "f32", "f32"), ("f32", "q8_0", "f32"), ("q8_0", "q8_0", "int8")])
def test_rows_do_not_depend_on_chunks_in_other_formats(name, dtype, kv, activations):
    prompt = golden(name)["prompts"][5]

    def ask(*more, table="auto"):
        return run_cli("logits", "--model", GOLDEN / name, "--dtype", dtype, "--kv-dtype", kv,
                       "--activations", activations, "--cpu-table", table, "--positions", "all",
                       "--tokens", ",".join(map(str, prompt)), *more).stdout

    whole = ask()
    assert len(whole.splitlines()) == 40
    for how in (["--chunk", 7], ["--decode"], ["--threads", 1]):
        assert ask(*how) == whole, how
    # The fast tables have the same bits, but where the tile unit attends in bf16.
    alike = [t for t in TABLES[1:] if t != "amx" or kv != "bf16" or activations == "f32"]
    if len(alike) > 1:
        whole = ask(table=alike[0])
        for table in alike:
            assert ask("--chunk", 7, table=table) == whole, table


@MODELS
@CPU_TABLES
def test_8_bit_kv_stays_near_the_golden_logits(name, table):
    """Each number of K and V is off by up to a 254th of the largest of its vector. Of the spread of the
    logits that costs 0.8 to 1.9 % (root mean square) and at most 16 % here, with bf16 0.3 to 0.7 % and 8 %.
    Attention over depth sharpens it in one MSAR checkpoint: 3.6 %, in every table alike."""
    tensors = read_safetensors(GOLDEN / name / "golden.safetensors")
    prompts = golden(name)["prompts"]
    more = ("--kv-dtype", "q8_0")
    got = [rows(logits(name, table, prompts[5], "--positions", "all", *more), 0)]
    got += [rows(logits(name, table, prompt, *more), len(prompt) - 1) for prompt in prompts]
    expected = numpy.concatenate([tensors["all.5"], *(tensors[f"last.{i}"][None] for i in range(7))])
    error = numpy.abs(numpy.concatenate(got) - expected) / expected.std()
    assert 1e-3 < numpy.sqrt((error**2).mean()) < (0.05 if "-msar-" in name else 0.03)
    assert error.max() < 0.25


@MODELS
@CPU_TABLES
def test_greedy_texts_and_cycles(name, table):
    data = golden(name)
    for i, prompt in enumerate(data["prompts"]):
        result = json.loads(run_cli(
            "generate", *flags(name, table), "--tokens", ",".join(map(str, prompt)), "--json",
            "--max-tokens", data["count"], "--ignore-eos",
            *(["--drafts", data["block_size"]] if "cycles" in data else [])).stdout)
        assert result["prompt_tokens"] == prompt
        assert result["tokens"] == data["greedy"][i]
        assert result["finish_reason"] == "length"
        if "cycles" not in data:
            continue
        cycles = [(c["drafted"], c["accepted"]) for c in result["cycles"]]
        expected = [(c["draft"], c["accepted"]) for c in data["cycles"][i]]
        # The last golden cycle is cut by the token limit: ours is shorter, or none is needed for
        # one last token; its drafts begin like the golden ones.
        whole = len(expected) - 1
        assert cycles[:whole] == expected[:whole]
        assert len(cycles) - whole in (0, 1)
        for drafted, accepted in cycles[whole:]:
            assert drafted == expected[-1][0][:len(drafted)] and accepted <= expected[-1][1]


@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_greedy_texts_without_drafts(name):
    data = golden(name)
    for i in (0, 3, 6):
        result = json.loads(run_cli(
            "generate", *flags(name, TABLES[-1]), "--tokens", ",".join(map(str, data["prompts"][i])),
            "--json", "--max-tokens", data["count"], "--ignore-eos", "--drafts", "off").stdout)
        assert result["tokens"] == data["greedy"][i] and result["cycles"] == []


@MODELS
def test_inspect_names_the_composition(name):
    text = run_cli("inspect", "--model", GOLDEN / name).stdout.decode()
    assert golden(name)["composition"]["residual"] in text.lower() or "standard" in text.lower()
    assert ("orthros" in name) <= ("window" in text.lower())
    assert ("orthrus" in name) <= ("blocks of up to" in text.lower())
    assert ("-msar-" in name) == ("MSAR per sequence" in text) == ("MSAR per snapshot" in text)
    assert "would be refused" not in text
