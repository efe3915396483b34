"""The benchmarks on a GPU: every dtype against its reference, with the library found and with each that is there."""

from __future__ import annotations

import json

import pytest

from cutlass_py import _core
from cutlass_py.bench import cases, frameworks, suites, timing
from cutlass_py.commands import main

pytestmark = pytest.mark.gpu


def library(name):
    if name == "torch":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch finds no GPU")
        return frameworks.Torch()
    pytest.importorskip("cupy")
    return frameworks.CuPy()


@pytest.mark.parametrize("dtype", suites.ARITHMETICS)
@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_both_sides_are_timed_and_agree(name, dtype):
    gpu = library(name)
    if dtype not in gpu.dtypes:
        pytest.skip(f"{name} has no function for {dtype}")
    if suites.ARITHMETICS[dtype].dtype == "e4m3" and _core.device_info(0)["cc"] != 90:
        pytest.skip("fp8 is Hopper's")
    layout = suites.ARITHMETICS[dtype].layouts[-1]
    case = suites.Case("shape", dtype, layout, (1, 256, 128, 512))
    regimes = timing.REGIMES if gpu.captures else ("mixed",)
    record = cases.measure(case, cases.Settings(regimes, budget_ms=2.0), gpu)
    assert record["wrong"] == [], record["error"]
    for regime in regimes:
        assert record[regime]["ratio"] > 0 and set(record[regime]["us"]) == {name, "cutlass_py"}


def test_the_command(capsys):
    pytest.importorskip("torch")
    assert main(["bench", "--shape", "256,256,256", "--layout", "tn", "--budget-ms", "2", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["cases"]
    kernel = record["chosen"]["kernel"]
    assert main(["bench", kernel, "256", "256", "256", "--regime", "mixed", "--budget-ms", "2"]) == 0
    assert "bf16 tn (256, 256, 256)" in capsys.readouterr().out
