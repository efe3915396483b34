"""One kernel by name: its operands, its reference or the check against the CPU's kernel."""

from __future__ import annotations

import json

import numpy as np
import pytest

import cutlass_py
from cutlass_py.bench import cases, frameworks, kernel_case, results
from cutlass_py.commands import bench, main
from cutlass_py.declaration.dtypes import DTYPES, STORAGE
from cutlass_py.declaration.families import find, named
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.operations.gemm import problems


def test_one_kernel_by_name(fake_gpu, capsys, monkeypatch):
    declared = cutlass_py.get_kernels(compiled=False)
    kernel = next(k for k in declared if k.name.startswith("simt_gemm_f32") and "_tn_" in k.name)
    compiled = []
    monkeypatch.setattr(type(kernel), "load", lambda self: compiled.append(self.name))

    def gemm(a, b, out, kernel=None, **_):
        fake_gpu.tick(80.0 if kernel else 0.0)  # beside the 20 of every call
        out[...] = a @ b

    monkeypatch.setattr(cutlass_py, "gemm", gemm)
    command = ["bench", kernel.name, "24", "16", "8", "--regime", "mixed", "--budget-ms", "1"]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["cases"][0]
    assert list(record["mixed"]["us"]) == ["numpy", "cutlass_py", kernel.name] and compiled == [kernel.name]
    assert (record["layout"], record["dtype"], record["m"]) == ("tn", "f32", 24)
    assert main(command) == 0  # slow as it is, it is what was asked for
    assert ": mixed 100.00 us, ratio 0.300\n" in capsys.readouterr().out


DECLARED = [*named("declared").values()]
BY_NAME = {
    c.name: c  # one of each arithmetic, each schedule, each epilogue
    for found in (
        {(c.family, c.a, c.b, c.accumulator, c.d): c for c in DECLARED},
        {c.schedule: c for c in DECLARED},
        {c.epilogue: c for c in DECLARED},
    )
    for c in found.values()
}


@pytest.fixture
def runs_anything(fake_gpu, monkeypatch):
    """Kernels by name take 10 us more than the choice, and compute what the CPU's kernel does."""

    def gemm(a, b, kernel=None, **keywords):
        fake_gpu.tick(10.0 if kernel else 0.0)
        cpu_gemm(a, b, **keywords)

    cpu_gemm = cutlass_py.gemm
    monkeypatch.setattr(CutlassKernel, "load", lambda self: None)
    monkeypatch.setattr(cases, "gemm", lambda a, b, **keywords: fake_gpu.tick(20.0) or gemm(a, b, **keywords))


@pytest.mark.parametrize("config", BY_NAME.values(), ids=lambda c: c.name)
def test_every_kind_of_kernel_by_name(fake_gpu, runs_anything, config):
    """With every operand of its epilogue; beside a reference where there is one for it."""
    kernel = CutlassKernel(config, None)
    shape = (1, 48, 256, 384) if kernel.interface.block else (1, 48, 32, 64)
    if config.name.startswith("sm90_array"):
        with pytest.raises(ValueError, match="lists of matrices: expected B M N K, with a B of 3 or more"):
            kernel_case.KernelCase.of(config, shape)
        shape = (4, *shape[1:])
    case = bench._case_of(kernel, shape, frameworks.Torch.dtypes)
    assert case.compared == (not isinstance(case, kernel_case.KernelCase))
    args = problems.arguments(case.problem())
    if not kernel.interface.pointers:
        assert kernel.supports(args) or case.compared
    if case.compared:
        return
    record = cases.measure(case, cases.Settings(("sustained",), kernel=config.name, budget_ms=0.2), fake_gpu)
    assert record["wrong"] == [] and 0 < record["limit"] <= 1 and json.loads(results.dumps(record))
    us = record["sustained"]["us"]
    assert us == pytest.approx({"cutlass_py": 20, config.name: 30}) and "ratio" not in record["sustained"]
    operands = {name for name in (*kernel.metadata.operands, "out") if name != "d"} - {"a", "b"}
    a, b, given = kernel_case.KernelOperands(case, fake_gpu).call(0)
    if config.d == "s32":
        operands.discard("c")
    if config.epilogue.startswith("fused_gate"):
        operands.discard("aux")  # in the gate's stead, for a derivative
    assert operands <= {name for name, x in given.items() if x is not None}
    assert isinstance(a, list) == kernel.interface.pointers and record["flop"] >= case.flop


@pytest.mark.parametrize("dtype", STORAGE)
def test_copies_in_host_memory(dtype):
    torch = pytest.importorskip("torch")
    values = (torch.arange(12) % 5).reshape(3, 4).to(getattr(torch, DTYPES[dtype].numpy)).T
    found = frameworks.Torch().host(values)
    assert (
        found.dtype.name == DTYPES[dtype].numpy
        and (found.astype("complex64") == (np.arange(12) % 5).reshape(3, 4).T).all()
    )


@pytest.mark.parametrize("writes", [True, False])
def test_sums_of_the_arm_before_are_no_result(fake_gpu, runs_anything, monkeypatch, writes):
    config = next(c for c in DECLARED if "bias_grad" in c.epilogue)
    cpu = cases.gemm

    def gemm(a, b, bias_grad, kernel=None, **keywords):
        own = bias_grad if writes or not kernel else bias_grad.copy()
        cpu(a, b, bias_grad=own, kernel=kernel, **keywords)

    monkeypatch.setattr(cases, "gemm", gemm)
    case = kernel_case.KernelCase.of(config, (1, 48, 32, 64))
    record = cases.measure(case, cases.Settings(("sustained",), kernel=config.name, budget_ms=0.2), fake_gpu)
    assert record["wrong"] == ([] if writes else [config.name])


GATED = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_gate_silu"


@pytest.mark.parametrize("off", [0.0, 20.0, float("nan")])
def test_one_kernel_without_a_reference(fake_gpu, runs_anything, capsys, monkeypatch, off):
    assert "gate" in find(GATED).epilogue
    cpu = cases.gemm

    def gemm(a, b, **keywords):
        cpu(a, b, **keywords)
        if keywords["kernel"]:
            keywords["out"][-1, -1] += off

    monkeypatch.setattr(cases, "gemm", gemm)
    command = ["bench", GATED, "96", "64", "32", "--regime", "sustained", "--budget-ms", "1"]
    assert main([*command, "--json"]) == (1 if off else 0)
    found = json.loads(capsys.readouterr().out)
    (record,) = found["cases"]
    assert record["wrong"] == ([GATED] if off else []) and found["summary"] == []
    assert record["moved_bytes"] == 2 * (96 * 32 + 32 * 64 + 2 * 96 * 64) and record["flop"] == 2 * 96 * 64 * 32
    assert main(command) == (1 if off else 0)
    printed = capsys.readouterr().out
    rates = f"{2 * 96 * 64 * 32 / 30e6:.4g} TFLOP/s, {record['moved_bytes'] / 30e3:.4g} GB/s"
    assert f": sustained 30.00 us, {rates}\n" in printed and "ratio" not in printed.split("sustained 30.00")[1]
    assert ("rounding by" in printed) == bool(off)
