"""What `make cuda-resources` and `make check-gpu` run, as far as neither nvcc nor a GPU is needed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from geryon import ROOT

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3sumILi4EEvPKfPf' for 'sm_80'
ptxas info    : Function properties for _Z3sumILi4EEvPKfPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function '_Z3sumILi4EEvPKfPf' for 'sm_90'
ptxas info    : Function properties for _Z3sumILi4EEvPKfPf
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


def resources(folder, *args):
    return subprocess.run([sys.executable, ROOT / "tests/tools/cuda_resources.py", folder, *args], capture_output=True,
                          text=True, check=False)


@pytest.fixture(name="build")
def a_build(tmp_path):
    (tmp_path / "kernels/cuda").mkdir(parents=True)
    return lambda *spill: (tmp_path / "kernels/cuda/sums.cu.ptxas").write_text(PTXAS % spill) and tmp_path


def test_resources_of_kernels_are_listed(build):
    done = resources(build(0, 0, 0), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert [(r["file"], r["arch"], r["registers"], r["shared"]) for r in rows] == [
        ("sums.cu", "sm_80", 40, 1024), ("sums.cu", "sm_90", 255, 0)]
    assert all("sum" in r["name"] and "(" not in r["name"] for r in rows)
    assert len(resources(build(0, 0, 0)).stdout.splitlines()) == 3


def test_a_kernel_that_spills_is_a_failure(build, tmp_path):
    done = resources(build(16, 8, 12))
    assert done.returncode == 1
    assert "spills 20 bytes on sm_90" in done.stderr and "sm_80" not in done.stderr
    assert resources(tmp_path / "nothing").returncode == 1


def check_gpu(*args, **env):
    return subprocess.run([sys.executable, ROOT / "tests/gpu/check_gpu.py", *args], capture_output=True, text=True, check=False,
                          env=dict(os.environ) | env)


def test_stages_are_listed_and_fit_their_time():
    stages = [line.split(" s  ") for line in check_gpu("--dry-run").stdout.splitlines()]
    names = [name for _, name in stages]
    assert names[:2] == ["device", "build"] and {"golden", "invariance"} < set(names)
    assert any(name.startswith("bench/decode") for name in names)
    assert all(0 < int(limit) <= 150 for limit, _ in stages)


def test_without_a_device_there_is_one_line_and_a_failure(tmp_path):
    done = check_gpu("--out", tmp_path / "out", PATH=str(tmp_path))
    assert done.returncode == 1
    line = json.loads(done.stdout.splitlines()[0])
    assert line["stage"] == "device" and line["state"] == "failed" and "no device" in line["why"]
    assert json.loads((tmp_path / "out/result.json").read_text())["stages"] == [line]


def test_a_stage_out_of_time_or_with_another_answer_fails(tmp_path):
    spec = importlib.util.spec_from_file_location("check_gpu", ROOT / "tests/gpu/check_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check = type("Check", (), {"env": dict(os.environ)})
    stage = lambda command: module.run_stage(check, "name", 1, lambda runner: {"out": runner.run(*command)}, 100)
    assert stage(["echo", "well"]) | {"seconds": 0} == {"stage": "name", "state": "ok", "out": "well\n", "seconds": 0}
    assert stage(["false"])["state"] == "failed" and "exit status 1" in stage(["false"])["why"]
    slow = stage(["sleep", "30"])
    assert slow["state"] == "failed" and "longer than 1 s" in slow["why"] and slow["seconds"] < 20
    assert stage([tmp_path / "nothing"])["state"] == "failed"
    assert module.run_stage(check, "late", 1, None, 0)["state"] == "skipped"
