"""`python -m cutlass_py cache`: what is shown, removed and compiled ahead. A script stands in for nvcc."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nvcc import why_not
from specs import vector
from stand_in import CONFIG, Terminal, compiled

from cutlass_py import GemmArguments, TensorSpec, _core
from cutlass_py.arrays.gpu import gpu_with
from cutlass_py.compiling import cache, compiler
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.dispatch.candidates import rank
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.problem_files import read
from cutlass_py.kernels.registry import all_kernels, find_kernel

ROOT = Path(__file__).resolve().parent.parent
WHY_NOT = why_not()  # nothing can really be compiled here
DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_py", "cache", *map(str, arguments)], capture_output=True, text=True
    )


def problem(m=512, n=512, k=512, **keywords) -> GemmArguments:
    a, b = TensorSpec((m, k), "bf16", device=DEVICE), TensorSpec((k, n), "bf16", device=DEVICE)
    return GemmArguments(a, b, **keywords)


# ---------------------------------------------------------------------------------------- the command


GOOD = {"m": 8, "n": 8, "k": 8, "a": "f32"}


@pytest.fixture
def problems(tmp_path):
    """Two problems of one kernel that no built set has, one of another, and one without a product."""
    path = tmp_path / "problems.json"
    fused = {"m": 1024, "n": 2112, "k": 7168, "a": "bf16", "layout": "tn", "bias": "bf16", "activation": "hardswish"}
    path.write_text(json.dumps([fused, fused | {"m": 1016}, GOOD, GOOD | {"k": 0}]))
    return path


def best(path: Path) -> list[str]:
    ranked = (rank(args.problem, compiled=False)[0].route.kernel for args in read(path)[:3])
    return list(dict.fromkeys(kernel.name for kernel in ranked))


def test_build_info_clear(nvcc, problems):
    rows = json.loads(command("build", problems, "--jobs", 2, "--json").stdout)
    assert [row["kernel"] for row in rows] == best(problems)
    built_in = {k.name for k in all_kernels() if k.compiled}
    assert all(row["state"] == ("built in" if row["kernel"] in built_in else "compiled") for row in rows)
    missing = [name for name in best(problems) if name not in built_in]
    by_nvcc = [name for name in missing if not find_kernel(name).family.cubins]  # others by NVRTC
    assert missing and sorted(nvcc.read_text().split()) == sorted(by_nvcc)

    again = command("build", problems)
    assert again.returncode == 0 and again.stdout.count("  cached\n") == len(missing)
    assert compiled(nvcc) == len(by_nvcc)

    info = json.loads(command("info", "--json").stdout)
    assert info["directory"] == os.environ["CUTLASS_PY_CACHE_DIR"] and len(info["entries"]) == len(missing)
    assert all(any(entry.startswith(name) for entry in info["entries"]) for name in missing)
    assert f"{len(missing)} kernels, " in command("info").stdout.splitlines()[0]

    assert json.loads(command("clear", "--json").stdout)["removed"] == len(missing)
    assert list(cache.directory().iterdir()) == []
    assert "removed 0 kernels" in command("clear").stdout


@pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU")
def test_build_for_another_machine(nvcc, monkeypatch):
    """Its entries are those that a machine with such GPUs looks for."""
    config = next(c for c in FAMILIES["sm80_gemm"].declared if c.name not in _core.kernel_facts())
    tma = next(c for c in FAMILIES["sm90_gemm"].declared if c.name not in _core.kernel_facts())
    done = command("build", "--kernel", config.name, "--kernel", tma.name, "--cc", 80, "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and [row["state"] for row in rows] == ["compiled", "failed"]
    assert f"{tma.name} runs on compute capability 9.0 only; asked for is 8.0" in rows[1]["error"]
    assert compiler.find(compiler.recipe(config)) is None
    monkeypatch.setattr(compiler, "capabilities", lambda: (80,))
    assert str(compiler.find(compiler.recipe(config))) == rows[0]["library"]


@pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU")
def test_problems_of_another_machine_get_the_best_that_runs_there(nvcc, tmp_path):
    path = tmp_path / "problems.json"
    fused = {"m": 512, "n": 512, "k": 512, "a": "bf16", "bias": "bf16", "activation": "gelu_tanh"}
    path.write_text(json.dumps([fused, fused | {"m": 0}]))

    def built(*cc: int) -> list[str]:
        done = command("build", path, *(f"--cc={x}" for x in cc), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return [row["kernel"] for row in json.loads(done.stdout)]

    (ampere,), (hopper,) = built(80), built()
    assert FAMILIES["sm80_gemm"].cc == find_kernel(ampere).metadata.cc and find_kernel(hopper).metadata.cc == (90, 90)
    assert built(90) == [hopper] and built(80, 90) == [ampere, hopper] and built(80, 86) == [ampere]
    ranking = rank(problem(bias=vector(512), activation="gelu_tanh").problem, compiled=False, gpu=gpu_with(80))
    assert ranking[0].route.kernel.name == ampere


def test_a_problem_of_fp8_on_another_machine(tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([{"m": 512, "n": 512, "k": 512, "a": "e4m3", "layout": "tn"}]))
    done = command("build", path, "--cc", 80)
    assert done.returncode == 2
    assert re.search("no declared kernel fits .*: e4m3 @ e4m3 -> .*, for an absent NVIDIA A100", done.stderr)


@pytest.mark.parametrize("text", ["75", "hopper", "sm_90"])
def test_what_is_no_compute_capability(text):
    done = command("build", "--kernel", CONFIG.name, "--cc", text)
    assert done.returncode == 2 and f"'{text}' is no compute capability times ten" in done.stderr


def test_build_goes_on_after_a_failure(nvcc, problems, monkeypatch):
    names = [k.name for k in all_kernels() if not k.compiled][:2]
    if len(names) < 2:
        pytest.skip("every declared kernel is in the built set")
    monkeypatch.setenv("NVCC_FAILS", "1")
    done = command("build", *(f"--kernel={name}" for name in names), "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and [(row["kernel"], row["state"]) for row in rows] == [(n, "failed") for n in names]
    assert all(row["error"].startswith(f"cannot compile {row['kernel']}: ") for row in rows)


def test_info_of_a_cache_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "nowhere"))
    assert command("info").stdout == f"{tmp_path}/nowhere: 0 kernels, 0.0 MB\n"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build",), "expected a file of problems, or --kernel"),
        (("build", "nowhere.json"), "nowhere.json"),
        (("build", "--kernel", "typo"), "no kernel is called 'typo'"),
        (
            ("build", "--kernel", "cpu_gemm_numpy"),
            "kernel cpu_gemm_numpy computes on the CPU; expected a CUTLASS kernel",
        ),
        (("build", "--jobs", "0", "--kernel", CONFIG.name), "--jobs is 0; expected 1 or more"),
        (("empty",), "invalid choice"),
        ((), "required"),
    ],
    ids=str,
)
def test_wrong_usage(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and "error: " in done.stderr and message in done.stderr and not done.stdout
    assert "Traceback" not in done.stderr


def test_a_problem_that_no_declared_kernel_takes(nvcc, tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([GOOD | {"a": "f64", "splits": "stream"}]))
    done = command("build", path)
    assert done.returncode == 2 and "no declared kernel fits (8, 8, 8) tt: f64" in done.stderr and compiled(nvcc) == 0


@pytest.mark.skipif(not importlib.util.find_spec("rich"), reason="rich is not installed")
def test_a_bar_with_rich_on_a_terminal(nvcc, monkeypatch):
    from cutlass_py.export.prebuild import build as prebuild

    monkeypatch.setattr(sys, "stderr", Terminal())
    lines: list[str] = []
    outcomes = prebuild([CutlassKernel(CONFIG, None)], 1, lines.append)
    assert "1/1" in sys.stderr.getvalue() and outcomes[0].state == "compiled" and lines[0].startswith(CONFIG.name)
