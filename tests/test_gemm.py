"""The front door on the CPU: every framework, layout and keyword against float64; its conventions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    CPU_FRAMEWORKS,
    MUTABLE,
    NEGATIVE,
    NO_UNIT_STRIDE,
    UNIT_STRIDE,
    dtype_of,
    framework_of,
    make,
    placed,
    to_numpy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import COMPLEX, DEFAULT_OUT, FLOATS, FP8, assert_close, assert_exact, integers, nan, reference, rounded

import cutlass_py
from cutlass_py import gemm

ACCUMULATOR = {"f64": "f64", "c64": "c64", "c128": "c128"}
# What may be multiplied with what.
PAIRS = [(x, x) for x in [*FLOATS, *FP8, "s8", "u8", "c64", "c128"]]
PAIRS += [("e4m3", "e5m2"), ("e5m2", "e4m3"), ("s8", "u8"), ("u8", "s8")]
# (framework, kind of placement) of inputs and of outs.
PLACED = [(f, kind) for f in MUTABLE for kind in (*UNIT_STRIDE, *NO_UNIT_STRIDE, *(NEGATIVE if f == "numpy" else ()))]
SHAPES = [(5, 7, 9), (1, 8, 16), (8, 1, 16), (16, 8, 1), (1, 1, 1), (33, 17, 65)]

# ---------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("a_dtype", "b_dtype"), PAIRS)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_integers_are_exact(rng, framework, a_dtype, b_dtype, shape):
    m, n, k = shape
    a, b = integers(rng, (m, k), a_dtype), integers(rng, (k, n), b_dtype)
    d = gemm(make(framework, a, a_dtype), make(framework, b, b_dtype))
    out_dtype = DEFAULT_OUT.get(a_dtype, a_dtype)
    assert (framework_of(d), dtype_of(d)) == (framework, out_dtype)
    assert_exact(to_numpy(d), reference(a, b), out_dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8, "c64", "c128"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_random_values_within_the_bound(rng, framework, dtype):
    imaginary = 1j * rng.standard_normal() if dtype in COMPLEX else 0
    a, b, c = (rounded((1 + imaginary) * rng.standard_normal(s), dtype) for s in [(40, 300), (300, 50), (40, 50)])
    arrays = [make(framework, x, dtype) for x in (a, b, c)]
    d = gemm(arrays[0], arrays[1], c=arrays[2], alpha=0.75, beta=-1.5)
    how = {"dtype": DEFAULT_OUT.get(dtype, dtype), "accumulator": ACCUMULATOR.get(dtype, "f32")}
    assert_close(to_numpy(d), a, b, c, alpha=0.75, beta=-1.5, **how)


def test_f16_accumulates_wider():
    """60,000 + 60,000 - 60,000: beyond f16 on the way, within it at the end."""
    a, b = np.array([[60000, 60000, -60000]], np.float16), np.ones((3, 1), np.float16)
    assert gemm(a, b)[0, 0] == 60000


# ---------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("batch", [(), (3,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("framework", "kind"), PLACED)
def test_inputs_in_any_layout(rng, framework, kind, dtype, batch):
    a, b = integers(rng, (*batch, 6, 10), dtype), integers(rng, (*batch, 10, 7), dtype)
    for kinds in ((kind, "row"), ("row", kind), (kind, kind)):
        d = gemm(*(make(framework, x, dtype, where) for x, where in zip((a, b), kinds, strict=True)))
        assert_exact(to_numpy(d), reference(a, b), dtype)


@pytest.mark.parametrize("batch", [(), (3,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(("framework", "kind"), PLACED)
def test_out_in_any_layout_and_nothing_else_is_written(rng, framework, kind, dtype, batch):
    a, b, c = (integers(rng, (*batch, *s), dtype) for s in [(6, 10), (10, 7), (6, 7)])
    out = placed(framework, None, dtype, kind, shape=(*batch, 6, 7))
    d = gemm(make(framework, a, dtype), make(framework, b, dtype), out=out.array, c=make(framework, c, dtype, "column"))
    assert d is out.array
    assert_exact(to_numpy(out.array), reference(a, b, c), dtype)
    out.assert_rest_untouched()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("framework", "kind"), PLACED)
def test_addend_in_any_layout_and_in_place(rng, framework, kind, dtype):
    a, b, c = (integers(rng, s, dtype) for s in [(6, 10), (10, 7), (6, 7)])
    x, y = make(framework, a, dtype), make(framework, b, dtype)
    addend = placed(framework, c, dtype, kind)
    assert_exact(to_numpy(gemm(x, y, c=addend.array, beta=2)), reference(a, b, c, 1, 2), dtype)
    assert gemm(x, y, out=addend.array, c=addend.array, alpha=-1, beta=0.5) is addend.array
    assert_exact(to_numpy(addend.array), reference(a, b, c, -1, 0.5), dtype)
    addend.assert_rest_untouched()


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("framework", MUTABLE)
def test_fp8_out_and_addend(rng, framework, dtype):
    a, b, c = (integers(rng, s, dtype, 0, 1) for s in [(6, 8), (8, 7), (6, 7)])
    out = placed(framework, None, dtype, "padded", shape=(6, 7))
    gemm(make(framework, a, dtype), make(framework, b, dtype), out=out.array, c=make(framework, c, dtype))
    assert_exact(to_numpy(out.array), reference(a, b, c), dtype)
    out.assert_rest_untouched()


index = st.integers(0, 2)
steps = st.sampled_from([1, 1, 2, 3, -1, -2])


@st.composite
def strided(draw, rows, cols):
    """Float64 integers in a random strided view of a larger f32 array, perhaps transposed."""
    flip = draw(st.booleans())
    rows, cols = (cols, rows) if flip else (rows, cols)
    slices = []
    for extent in (rows, cols):
        step, before, after = draw(steps), draw(index), draw(index)
        length = max(extent * abs(step), 1) + before + after
        stop = before + extent * abs(step)
        span = np.arange(length)[before:stop][:: abs(step)][:extent]
        slices.append((length, span if step > 0 else span[::-1]))
    buffer = np.full([length for length, _ in slices], np.nan, np.float32)
    views = [slice(None) if len(s) == 0 else _slice(s) for _, s in slices]
    view = buffer[tuple(v if len(s) else slice(0, 0) for v, (_, s) in zip(views, slices, strict=True))]
    return buffer, view.T if flip else view


def _slice(positions):
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    stop = int(positions[-1]) + (1 if step > 0 else -1)
    return slice(int(positions[0]), None if stop < 0 else stop, step)


extent = st.integers(0, 9)


@settings(max_examples=150)
@given(data=st.data(), m=extent, n=extent, k=extent, alpha=st.sampled_from([0, 1, -2]), beta=st.sampled_from([0, 1, 3]))
def test_random_shapes_and_strides(data, m, n, k, alpha, beta):
    (_, a), (_, b), (_, c), (buffer, out) = (data.draw(strided(*s)) for s in ((m, k), (k, n), (m, n), (m, n)))
    seed = np.random.default_rng(m + 10 * n + 100 * k)
    for x in (a, b, c):
        x[...] = seed.integers(-3, 4, x.shape)
    expected = reference(*(x.astype(np.float64) for x in (a, b, c)), alpha, beta)
    assert gemm(a, b, out=out, c=c, alpha=alpha, beta=beta) is out
    assert_exact(out.astype(np.float64), expected, "f32")
    out[...] = np.nan
    assert np.isnan(buffer).all(), "padding was written"


# ---------------------------------------------------------------------------------------- conventions


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_beta_zero_does_not_read_c(rng, framework, dtype):
    a, b = integers(rng, (4, 5), dtype), integers(rng, (5, 6), dtype)
    c = make(framework, np.full((4, 6), np.nan), dtype)
    for beta in (0, 0.0, -0.0, False):
        d = gemm(make(framework, a, dtype), make(framework, b, dtype), c=c, beta=beta)
        assert_exact(to_numpy(d), reference(a, b), dtype)


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_alpha_zero_does_not_read_a_and_b(rng, framework, dtype):
    a, b = (make(framework, nan(*s), dtype) for s in ((4, 5), (5, 6)))
    assert (to_numpy(gemm(a, b, alpha=0)) == 0).all()
    c = integers(rng, (4, 6), dtype)
    assert_exact(to_numpy(gemm(a, b, alpha=0, c=make(framework, c, dtype), beta=2)), 2 * c, dtype)


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_k_zero_is_beta_c(rng, framework, dtype):
    a, b = make(framework, np.zeros((4, 0)), dtype), make(framework, np.zeros((0, 6)), dtype)
    assert (to_numpy(gemm(a, b)) == 0).all()
    c = integers(rng, (4, 6), dtype)
    assert_exact(to_numpy(gemm(a, b, c=make(framework, c, dtype), beta=-2)), -2 * c, dtype)
    assert (to_numpy(gemm(a, b, c=make(framework, np.full((4, 6), np.nan), dtype), beta=0)) == 0).all()


def test_k_zero_overwrites_out():
    out = nan(4, 6)
    assert gemm(nan(4, 0), nan(0, 6), out=out) is out
    assert (out == 0).all()


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 5), (5, 6)),
        ((4, 5), (5, 0)),
        ((0, 5), (5, 0)),
        ((0, 0), (0, 0)),
        ((0, 4, 5), (5, 6)),
        ((0, 4, 5), (0, 5, 6)),
        ((3, 0, 5), (5, 6)),
        ((1, 4, 5), (0, 5, 6)),
        ((4, 0), (0, 0)),
        ((0, 3, 0), (0, 0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_empty_results(framework, shapes):
    a, b = (np.zeros(s) for s in shapes)
    expected = (a @ b).shape
    x, y = make(framework, a, "f32"), make(framework, b, "f32")
    d = gemm(x, y)
    assert d.shape == expected and framework_of(d) == framework and dtype_of(d) == "f32"
    assert gemm(x, y, c=make(framework, np.zeros(expected), "f32"), alpha=2).shape == expected
    if framework != "jax":
        out = make(framework, np.zeros(expected), "f32")
        assert gemm(x, y, out=out) is out


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_stay_in_their_row_and_column(rng, dtype, value):
    a, b = integers(rng, (5, 6), dtype, 1, 3), integers(rng, (6, 7), dtype, 1, 3)
    a[2, 3] = value
    d = to_numpy(gemm(make("numpy", a, dtype), make("numpy", b, dtype)))
    assert_exact(d, reference(a, b), dtype)
    assert np.isfinite(np.delete(d, 2, axis=0)).all() and not np.isfinite(d[2]).any()
    a[2, 3], b[1, 4] = 1, value
    d = to_numpy(gemm(make("numpy", a, dtype), make("numpy", b, dtype)))
    assert np.isfinite(np.delete(d, 4, axis=1)).all() and not np.isfinite(d[:, 4]).any()


def test_nan_in_c_stays_where_it_is(rng):
    c = integers(rng, (4, 6)).astype(np.float32)
    c[1, 2], c[3, 0] = np.nan, np.inf
    d = gemm(np.ones((4, 5), np.float32), np.ones((5, 6), np.float32), c=c)
    assert np.array_equal(np.isnan(d), np.isnan(c)) and np.array_equal(np.isinf(d), np.isinf(c))


def test_nan_scalars_reach_everything():
    a = np.ones((2, 2), np.float32)
    assert np.isnan(gemm(a, a, alpha=np.nan)).all()
    assert np.isnan(gemm(a, a, c=a, beta=float("nan"))).all()
    assert np.isposinf(gemm(a, a, alpha=np.inf)).all()


def test_overflow_is_infinity_without_a_warning():
    a = np.full((2, 2), 60000, np.float16)
    assert np.isposinf(gemm(a, a)).all()
    assert np.isposinf(gemm(np.full((2, 2), 3e38, np.float32), np.ones((2, 2), np.float32), alpha=10)).all()


def test_out_poisoned_with_nan_is_overwritten(rng):
    a, b = integers(rng, (4, 5)).astype(np.float32), integers(rng, (5, 6)).astype(np.float32)
    out = nan(4, 6)
    gemm(a, b, out=out, alpha=2)
    assert_exact(to_numpy(out), reference(a, b, alpha=2), "f32")


def test_inputs_are_not_written(rng):
    a, b, c = (integers(rng, s).astype(np.float32) for s in [(4, 5), (5, 6), (4, 6)])
    copies = [x.copy() for x in (a, b, c)]
    gemm(a, b, c=c, alpha=3, beta=2, out=nan(4, 6))
    assert all(np.array_equal(x, y) for x, y in zip((a, b, c), copies, strict=True))


def test_the_same_array_twice(rng):
    a = integers(rng, (6, 6)).astype(np.float32)
    assert_exact(to_numpy(gemm(a, a.T, c=a)), reference(a, a.T, a).astype(np.float64), "f32")


def test_disjoint_columns_of_one_buffer(rng):
    buffer = nan(6, 12)
    buffer[:, 6:] = integers(rng, (6, 6))
    a = buffer[:, 6:]
    expected = reference(a.astype(np.float64), a.astype(np.float64))
    gemm(a, a, out=buffer[:, :6])
    assert_exact(to_numpy(buffer[:, :6]), expected, "f32")


def test_interleaved_columns_of_one_buffer(rng):
    buffer = nan(6, 12)
    buffer[:, 1::2] = integers(rng, (6, 6))
    a = buffer[:, 1::2]
    expected = reference(a.astype(np.float64), a.astype(np.float64))
    gemm(a, a, out=buffer[:, ::2])
    assert_exact(to_numpy(buffer[:, ::2]), expected, "f32")


@pytest.mark.parametrize("splits", [None, 1, 7, np.int64(4), 32767, "stream"])
@pytest.mark.parametrize("deterministic", [False, True, np.True_])
def test_splits_and_deterministic_change_nothing_here(rng, splits, deterministic):
    a, b = integers(rng, (4, 50)).astype(np.float32), integers(rng, (50, 6)).astype(np.float32)
    assert_exact(to_numpy(gemm(a, b, splits=splits, deterministic=deterministic)), reference(a, b), "f32")
    p = cutlass_py.GemmArguments(a, b, splits=splits, deterministic=deterministic).problem
    assert p.splits == {None: 0, "stream": -1}.get(splits, splits) and p.deterministic is bool(deterministic)


@pytest.mark.parametrize(
    "number", [2, 2.0, True, np.float32(2), np.float64(2), np.int64(2), ml_dtypes.bfloat16(2)], ids=repr
)
def test_scalars_may_be_any_number(number):
    a = np.ones((2, 2), np.float32)
    assert (gemm(a, a, alpha=number) == 2 * float(number)).all()
    assert (gemm(a, a, c=a, beta=number) == 2 + float(number)).all()


# ---------------------------------------------------------------------------------------- frameworks


@pytest.mark.parametrize("first", CPU_FRAMEWORKS)
@pytest.mark.parametrize("second", CPU_FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_mixed_frameworks_in_one_call(rng, first, second, dtype):
    a, b, c = (integers(rng, s, dtype) for s in [(4, 5), (5, 6), (4, 6)])
    x, y, z = (make(f, v, dtype) for f, v in zip((first, second, "numpy"), (a, b, c), strict=True))
    d = gemm(x, y, c=z)
    assert framework_of(d) == first
    assert_exact(to_numpy(d), reference(a, b, c), dtype)
    if second != "jax":
        out = make(second, np.zeros((4, 6)), dtype, "padded")
        assert gemm(x, y, c=z, out=out) is out
        assert_exact(to_numpy(out), reference(a, b, c), dtype)


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_results_are_row_major_and_own_their_memory(rng, framework):
    a = make(framework, integers(rng, (4, 5)), "f32")
    d, e = gemm(a, a.T), gemm(a, a.T)
    before = to_numpy(d)
    if framework == "numpy":
        assert d.flags.c_contiguous and d.flags.writeable
        assert not np.shares_memory(d, e)
    if framework == "torch":
        assert d.is_contiguous() and d.data_ptr() != e.data_ptr() and not d.requires_grad
    if framework != "jax":
        e[...] = 0
    assert np.array_equal(to_numpy(d), before)


def test_results_of_numpy_subclasses_are_arrays():
    d = gemm(np.ones((2, 3), np.float32).view(np.matrix), np.ones((3, 2), np.float32))
    assert type(d) is np.ndarray and (d == 3).all()


def test_read_only_inputs_are_fine():
    a = np.ones((2, 2), np.float32)
    a.flags.writeable = False
    b = np.frombuffer(np.ones((2, 2), np.float32).tobytes(), np.float32).reshape(2, 2)
    assert (gemm(a, b, c=a) == 3).all()


def test_read_only_bf16_is_fine():
    a = np.ones((2, 2), ml_dtypes.bfloat16)
    a.flags.writeable = False
    assert (to_numpy(gemm(a, a)) == 2).all()


def test_jax_results_are_jax_arrays_of_the_asked_dtype():
    jax = pytest.importorskip("jax")
    a = jax.numpy.ones((2, 3), jax.numpy.bfloat16)
    d = gemm(a, a.T, out_dtype="f64")
    assert isinstance(d, jax.Array) and d.dtype == np.float64
    assert (jax.numpy.asarray(gemm(a, a.T)) + 1 == 4).all()


# ---------------------------------------------------------------------------------------- arguments and kernels


def test_arguments_run_like_the_call(rng):
    a, b, c = (integers(rng, s).astype(np.float32) for s in [(4, 5), (5, 6), (4, 6)])
    out = nan(4, 6)
    args = cutlass_py.GemmArguments(a, b, out=out, c=c, alpha=2, beta=3)
    assert args.run() is out
    assert np.array_equal(out, gemm(a, b, c=c, alpha=2, beta=3))
    out[...] = 0
    (kernel,) = cutlass_py.get_kernels(args)
    assert kernel.supports(args) and kernel.run(args) is out
    assert np.array_equal(out, gemm(a, b, c=c, alpha=2, beta=3, kernel=kernel))
    assert repr(args) == "GemmArguments((4, 6, 5) tt: f32 @ f32 + f32 C -> f32 on cpu)"


def test_explain_on_real_arrays():
    a = np.ones((4, 5), np.float32)
    assert "chosen: cpu_gemm_numpy" in str(cutlass_py.explain(a, a.T))


def test_kernel_by_name_and_object():
    a = np.ones((4, 4), np.float32)
    (kernel,) = cutlass_py.get_kernels(cutlass_py.GemmArguments(a, a))
    for choice in (kernel, kernel.name):
        assert (gemm(a, a, kernel=choice) == 4).all()


def test_clear_plans_selects_again(monkeypatch):
    from cutlass_py import _core
    from cutlass_py.dispatch import planning

    a = np.ones((3, 3), np.float32)
    gemm(a, a)
    asked = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda p: asked.append(p) or plan(p))
    gemm(a, a)
    assert not asked, "a warm call selected"
    _core.clear_plans()
    gemm(a, a)
    gemm(a, a)
    assert len(asked) == 1 and (asked[0].m, asked[0].n, asked[0].k) == (3, 3, 3)


def test_a_failed_selection_is_not_remembered(monkeypatch):
    from cutlass_py import _core
    from cutlass_py.dispatch import planning

    a = np.ones((3, 3), np.float32)
    _core.clear_plans()
    with monkeypatch.context() as patch:
        patch.setattr(planning, "plan", lambda p: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gemm(a, a)
    assert (gemm(a, a) == 3).all()


def test_many_shapes_of_one_process():
    """More classes of problem than a program usually has: each is right."""
    for n in range(1, 200):
        assert gemm(np.ones((1, n), np.float32), np.ones((n, 1), np.float32))[0, 0] == n


def test_threads_share_plans(rng):
    from concurrent.futures import ThreadPoolExecutor

    from cutlass_py import _core

    operands = [[integers(rng, s).astype(np.float32) for s in ((n, 5), (5, n + 1))] for n in range(1, 17)]

    def work(i):
        if i % 50 == 0:
            _core.clear_plans()
        a, b = operands[i % len(operands)]
        return np.array_equal(gemm(a, b), a @ b)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(800)))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_number_that_is_interrupted(error):
    class Factor:
        def __float__(self):
            raise error

    with pytest.raises(error):
        gemm(np.eye(2), np.eye(2), alpha=Factor())
