"""`tune` and `autotuning` on a device: every choice runs, results stay right, captures whole, memory comes back."""

from __future__ import annotations

from math import isfinite

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GemmArguments, TensorSpec, explain, tuned  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    tuned.forget()
    cutlass_py._core.clear_plans()
    yield
    tuned.forget()
    cutlass_py._core.clear_plans()


def operands(m=256, n=384, k=2048):
    return gpu.integers((m, k), "bf16"), gpu.laid_out(gpu.integers((k, n), "bf16"), "n")


CASES = {
    "plain": lambda a, b: GemmArguments(a, b),
    "misaligned": lambda a, b: GemmArguments(a[:, 1:], b[1:]),
    "epilogue": lambda a, b: GemmArguments(a, b, bias=b[0], activation="gelu_tanh", c=a @ b),
    "strided": lambda a, b: GemmArguments(a[:, ::2], b[::2]),
    "lists": lambda a, b: GemmArguments([a, a.clone(), a], [b, b, b]),
    "specs": lambda a, b: GemmArguments(TensorSpec((64, 128), "e4m3"), TensorSpec((128, 64), "e4m3", (1, 128))),
}


@pytest.mark.sm90
@pytest.mark.parametrize("case", CASES)
def test_every_choice_runs(case):
    args = CASES[case](*operands())
    tuning = cutlass_py.tune(args)
    assert all(isfinite(m.microseconds) and m.microseconds > 0 for m in tuning.measured)
    assert explain(args).chosen.route == tuning.best.choice.route
    assert "measured" in str(explain(args))


def test_results_stay_right_with_every_tuned_choice():
    a, b = operands()
    for _ in range(2):
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
        cutlass_py.tune(a, b)


def test_operands_are_left_alone():
    a, b = operands()
    out = torch.full((256, 384), 7.0, device=gpu.DEVICE, dtype=torch.bfloat16)
    copies = a.clone(), b.clone()
    cutlass_py.tune(a, b, out=out, c=out)
    assert (out == 7).all() and torch.equal(a, copies[0]) and torch.equal(b, copies[1])


def test_autotuning_and_capture():
    a, b = operands()
    x, y = operands(m=512)
    out = torch.zeros(512, 384, device=gpu.DEVICE, dtype=torch.bfloat16)
    with cutlass_py.autotuning():
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
        assert explain(a, b).chosen.measured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cutlass_py.gemm(x, y, out=out)
    assert not explain(x, y, out=out).chosen.measured
    graph.replay()
    gpu.assert_exact(out, gpu.expected(x, y))


def test_memory_comes_back():
    a, b = operands()
    cutlass_py.tune(a, b)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(3):
        cutlass_py.tune(a, b, candidates=4)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20
