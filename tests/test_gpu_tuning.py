"""`tune` and `autotuning` on a device: every choice runs, results stay right, captures whole, memory comes back."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from leaks import needs_the_device_alone  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GemmArguments, TensorSpec, _core, explain  # noqa: E402
from cutlass_py.arrays.gpu import device, gpu_of  # noqa: E402
from cutlass_py.dispatch import tuned  # noqa: E402
from cutlass_py.kernels.operation import class_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("table")]


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
def test_every_choice_runs(case, monkeypatch):
    args = CASES[case](*operands())
    times, measure = [], _core.measure

    def watched(p, plans, rounds):
        times.extend(measure(p, plans, rounds))
        return times[-len(plans) :]

    monkeypatch.setattr(_core, "measure", watched)
    tuning = cutlass_py.tune(args)
    assert times and all(isfinite(time) and time > 0 for row in times for time in row)
    assert explain(args).chosen.route == tuning.best.choice.route
    assert "measured" in str(explain(args))


def test_every_choice_that_was_measured_is_right():
    a, b = operands()
    args = GemmArguments(a, b)
    tuning, wanted = cutlass_py.tune(args), gpu.expected(a, b)
    for m in tuning.measured:
        entry = replace(tuned.lookup(args.problem, gpu_of(args.problem))[0], **of_choice(m.choice))
        tuned.record(gpu_of(args.problem), {class_of(args.problem): entry})
        _core.clear_plans()
        assert explain(args).chosen.route == m.choice.route
        gpu.assert_exact(cutlass_py.gemm(a, b), wanted)


def of_choice(choice):
    route = choice.route
    return {"kernel": route.kernel.name, "splits": route.splits, "raster": choice.raster, "swizzle": choice.swizzle}


def test_operands_are_left_alone():
    a, b = operands()
    out = torch.full((256, 384), 7.0, device=gpu.DEVICE, dtype=torch.bfloat16)
    copies = a.clone(), b.clone()
    cutlass_py.tune(a, b, out=out, c=out)
    assert (out == 7).all() and torch.equal(a, copies[0]) and torch.equal(b, copies[1])


def test_quick_autotuning_holds_for_the_process():
    a, b = operands(m=264)
    with cutlass_py.autotuning(quick=True):
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
        assert explain(a, b).chosen.measured
    tuned.forget()
    assert not explain(a, b).chosen.measured


def test_autotuning_and_capture():
    a, b = operands()
    x, y = operands(m=512)
    out = torch.zeros(512, 384, device=gpu.DEVICE, dtype=torch.bfloat16)
    first, second = torch.zeros_like(out), torch.zeros_like(out)
    with cutlass_py.autotuning():
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
        assert explain(a, b).chosen.measured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cutlass_py.gemm(x, y, out=out)
            cutlass_py.gemm([x[:, 1:], x[:, 1:]], [y[1:], y[1:]], out=[first, second])  # each by a plan of its own
    assert not explain(x, y, out=out).chosen.measured
    graph.replay()
    gpu.assert_exact(out, gpu.expected(x, y))
    gpu.assert_exact(second, gpu.expected(x[:, 1:], y[1:]))


def test_memory_comes_back():
    needs_the_device_alone()
    cutlass_py.tune(*operands(), candidates=4)
    before = gpu.used()
    large = TensorSpec((1 << 15, 1 << 14), "bf16")  # 1 GB: more than the pool keeps, with B and D
    for _ in range(3):
        cutlass_py.tune(large, TensorSpec((1 << 14, 1 << 15), "bf16"), candidates=2)
    assert gpu.used() - before < 1100 << 20


def test_clusters_at_once():
    found = device(0)
    assert found.clusters[:2] == (0, found.sm_count) and len(found.clusters) == 9
    assert list(found.clusters[1:]) == sorted(found.clusters[1:], reverse=True) and found.clusters[-1] > 0
    assert all(size * count <= found.sm_count for size, count in enumerate(found.clusters))
