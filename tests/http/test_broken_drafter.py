"""A drafter that does not work costs speed and no text, so only the accepted length tells of it: the
golden drafter reaches its floor, the same one with a fault in its own tensors falls below it, and
every text stays the golden one."""

import json
import re
import shutil
import struct

import pytest
from geryon import GOLDEN, golden, goldens, run_cli

FLOOR = 0.9  # of the golden drafter's accepted proposals a cycle; the last cycle may be cut


def zero(data, _):
    return bytes(len(data))


def negate(data, width):
    flipped = bytearray(data)
    for at in range(width - 1, len(flipped), width):
        flipped[at] ^= 0x80
    return bytes(flipped)


def reverse(data, width):
    """The elements in opposite order: the same numbers in wrong places."""
    numbers = [data[at:at + width] for at in range(0, len(data), width)]
    return b"".join(reversed(numbers))


FAULTS = {
    "attention says nothing": (r"\.o_proj_diff\.weight$", zero),
    "values turned round": (r"\.v_proj_diff\.weight$", negate),
    "queries out of order": (r"\.q_proj_diff\.weight$", reverse),
    "one layer's output turned round": (r"layers\.2\..*\.o_proj_diff\.weight$", negate),
}


def break_drafter(name, folder, pattern, change):
    """A copy of the checkpoint whose tensors of that name are changed; returns how many."""
    shutil.copytree(GOLDEN / name, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    n_changed = 0
    for tensor, entry in json.loads(data[8:8 + length]).items():
        if not re.search(pattern, tensor):
            continue
        assert "_diff" in tensor  # the model itself stays whole
        lo, hi = (8 + length + offset for offset in entry["data_offsets"])
        width = {"F32": 4, "F16": 2, "BF16": 2}[entry["dtype"]]
        data[lo:hi] = change(bytes(data[lo:hi]), width)
        n_changed += 1
    path.write_bytes(data)
    return n_changed


def accepted_length(model, data):
    """Accepted proposals a cycle over all golden prompts; every text must be the golden one."""
    accepted = cycles = 0
    for prompt, greedy in zip(data["prompts"], data["greedy"]):
        result = json.loads(run_cli(
            "generate", "--model", model, "--dtype", "f32", "--kv-dtype", "f32", "--json",
            "--tokens", ",".join(map(str, prompt)), "--max-tokens", data["count"], "--ignore-eos",
            "--drafts", data["block_size"]).stdout)
        assert result["tokens"] == greedy
        accepted += sum(cycle["accepted"] for cycle in result["cycles"])
        cycles += len(result["cycles"])
    return accepted / cycles


def floor(data):
    cycles = [cycle for text in data["cycles"] for cycle in text]
    return FLOOR * sum(cycle["accepted"] for cycle in cycles) / len(cycles)


@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_golden_drafter_reaches_its_floor(name):
    data = golden(name)
    assert accepted_length(GOLDEN / name, data) >= floor(data) > 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", goldens(orthrus=True))
def test_broken_drafter_changes_no_text_and_falls_below_the_floor(tmp_path, name, fault):
    data = golden(name)
    assert break_drafter(name, tmp_path / name, *FAULTS[fault]) > 0
    assert accepted_length(tmp_path / name, data) < floor(data)
