"""Random calls without a GPU: what is drawn is legal, and agrees on the CPU; faults are found, and said."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
import random_runs  # noqa: E402
from random_calls import Call, drawn  # noqa: E402
from specs import DEVICE  # noqa: E402
from wrong_calls import MISTAKES  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GemmArguments, TensorSpec, explain  # noqa: E402

CALLS = [drawn(1, i) for i in range(3000)]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "DEVICE", "cpu")


def small(call: Call) -> bool:
    """Something is multiplied, in no time."""
    return call.reads_product and 0 < call.extents[0] * call.extents[1] < 2**12 and 0 not in call.batch


# ------------------------------------------------------------------------------------------------ the draw


def test_a_call_is_drawn_alone_as_among_others():
    assert drawn(1, 2999) == CALLS[-1] and len(set(CALLS)) == len(CALLS)
    assert drawn(2, 2999) != CALLS[-1]
    without = [drawn(1, i, fp8=False) for i in range(300)]
    assert not {"e4m3", "e5m2"} & {name for call in without for name in (call.a.dtype, call.b.dtype)}


def test_everything_is_drawn():
    def found(value):
        return {value(call) for call in CALLS}

    rows = found(lambda x: (x.a.dtype, x.b.dtype, x.compute))
    assert rows >= set(gpu.ARITHMETIC) and None in found(lambda x: x.compute)
    assert found(lambda x: x.d) == set(gpu.DTYPES)
    assert found(lambda x: x.out) == {"new", "given", "c", "gate", "aux"}
    assert found(lambda x: x.activation) == {None, *gpu.PLAIN, *gpu.DERIVATIVES}
    assert found(lambda x: x.a.place.layout + x.b.place.layout + x.place.layout) >= {"ttt", "tnt", "ntn", "nnn"}
    assert found(lambda x: x.place.step) == found(lambda x: x.a.place.step) == {1, 2}
    assert found(lambda x: min(x.extents) == 0) == found(lambda x: max(x.extents) > 300) == {True, False}
    assert found(lambda x: len(x.batch)) == {0, 1, 2} and found(lambda x: bool(x.b.expanded)) == {True, False}
    for name in ("blocks", "integers", "named", "deterministic", "reads_c", "reads_product"):
        assert found(lambda x, name=name: getattr(x, name)) == {True, False}
    kinds = {"Factor", "Array", "NoneType"}
    for name in ("alpha", "beta", "c", "bias", "gate", "aux", "scale_a", "scale_b", "scale_out", "bias_grad"):
        types = found(lambda x, name=name: type(getattr(x, name)).__name__)
        assert types == kinds if name in ("scale_a", "scale_b") else "NoneType" in types and len(types) == 2


def test_one_call_in_ten_is_wrong():
    assert 240 < sum(call.wrong is not None for call in CALLS) < 360
    for name, mistake in MISTAKES.items():
        assert any(mistake.fits(call) for call in CALLS), name


# ------------------------------------------------------------------------------------------------ legal calls


@pytest.mark.parametrize("calls", [CALLS[i : i + 25] for i in range(0, 100, 25)], ids=lambda x: str(x[0].index))
def test_calls_on_the_cpu(calls):
    for call in calls:
        random_runs.run(call)


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_refused(name):
    fitting = (call for call in CALLS if small(call) and MISTAKES[name].fits(call))
    for call, _ in zip(fitting, range(3), strict=False):
        random_runs.run(replace(call, wrong=name))


def test_a_gpu_has_kernels_for_every_call(core):
    for call in CALLS[:150]:
        given = random_runs.made(call).given
        answer = explain(GemmArguments(**{name: spec(value) for name, value in given.items()}))
        assert answer.chosen or not call.reads_product or 0 in call.shape, call


def spec(x):
    """An operand as if it were on a GPU."""
    if not isinstance(x, torch.Tensor):
        return x
    alignment = max(x.dtype.itemsize, min(x.data_ptr() & -x.data_ptr(), 256))
    return TensorSpec(tuple(x.shape), gpu.name_of(x.dtype), x.stride(), device=DEVICE, alignment=alignment)


# ------------------------------------------------------------------------------------------------ faults


def fails(call: Call, monkeypatch: pytest.MonkeyPatch, gemm, message: str) -> None:
    """With this gemm the call fails, and says how to repeat it."""
    monkeypatch.setattr(cutlass_py, "gemm", gemm)
    with pytest.raises(AssertionError, match=message) as failure:
        random_runs.run(call)
    said = str(failure.value)
    assert "CUTLASS_PY_TEST_SEED=1 " in said and f"CUTLASS_PY_TEST_CALLS={call.index}:{call.index + 1}" in said
    assert str(call) in said


def right(**wanted) -> Call:
    """A small call without a mistake."""
    calls = (call for call in CALLS if small(call) and not call.wrong)
    return next(x for x in calls if all(getattr(x, name) == value for name, value in wanted.items()))


@pytest.mark.parametrize("integers", [True, False])
def test_a_result_that_is_off_is_found(integers, monkeypatch):
    call, gemm = right(integers=integers, d="f32", activation=None), cutlass_py.gemm

    def off(a, b, **keywords):
        d = gemm(a, b, **keywords)
        d[..., -1, -1] *= 1.01
        d[..., -1, -1] += 1.01
        return d

    fails(call, monkeypatch, off, r"of out are off, first at .*; expected ")


def test_a_write_beside_the_result_is_found(monkeypatch):
    call, gemm = right(out="given"), cutlass_py.gemm

    def stray(a, b, *, out, **keywords):
        d = gemm(a, b, out=out, **keywords)
        last = out.storage_offset() + sum((n - 1) * stride for n, stride in zip(out.shape, out.stride(), strict=True))
        out.as_strided((1,), (1,), last + 1).fill_(0)
        return d

    fails(call, monkeypatch, stray, "memory beside out was written")


def test_a_mistake_that_is_not_refused_is_found(monkeypatch):
    call, gemm = replace(right(out="given"), wrong="alpha is text"), cutlass_py.gemm
    fails(call, monkeypatch, lambda a, b, alpha, **keywords: gemm(a, b, **keywords), "the call is not refused")


def test_a_refused_call_that_writes_is_found(monkeypatch):
    call, gemm = replace(right(out="given"), wrong="alpha is text"), cutlass_py.gemm

    def writes(a, b, *, out, **keywords):
        out.fill_(1)
        return gemm(a, b, out=out, **keywords)

    fails(call, monkeypatch, writes, "a call that is refused has written")


def test_another_error_is_found(monkeypatch):
    def breaks(*_, **__):
        raise cutlass_py.NoKernelError("nothing fits")

    fails(right(), monkeypatch, breaks, "NoKernelError: .*nothing fits")
    fails(replace(right(), wrong="kernel"), monkeypatch, breaks, "NoKernelError: .*nothing fits")
