"""Dtypes of gemm on the CPU: which come out, how they are said, and the one rounding of what is stored."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from helpers import CPU_FRAMEWORKS, MUTABLE, dtype_of, framework_of, make, to_numpy
from reference import COMPLEX, DEFAULT_OUT, FLOATS, FP8, NUMPY, REAL, assert_exact, integers, reference, rounded

import cutlass_py
from cutlass_py import gemm

# ---------------------------------------------------------------------------------------- results


def spellings(name):
    """Every way to say a dtype that the frameworks installed have."""
    yield name
    yield NUMPY[name]
    yield NUMPY[name].type
    yield NUMPY[name].name
    if "torch" in CPU_FRAMEWORKS:
        import torch

        yield getattr(torch, NUMPY[name].name)
    if "jax" in CPU_FRAMEWORKS:
        import jax.numpy as jnp

        yield getattr(jnp, NUMPY[name].name)


@pytest.mark.parametrize("name", REAL)
def test_out_dtype_in_every_spelling(rng, name):
    a, b = integers(rng, (4, 5), "f32", 0, 1), integers(rng, (5, 6), "f32", 0, 1)
    for spelling in spellings(name):
        d = gemm(a.astype(np.float32), b.astype(np.float32), out_dtype=spelling)
        assert dtype_of(d) == name, spelling
        assert_exact(to_numpy(d), reference(a, b), name)


@pytest.mark.parametrize(
    ("dtype", "out"),
    [*product([*FLOATS, *FP8, "s8", "u8"], REAL), *product(COMPLEX, COMPLEX)],
)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_out_dtype_of_every_framework(rng, framework, dtype, out):
    a, b, c = (integers(rng, s, dtype) for s in [(4, 5), (5, 6), (4, 6)])
    x, y, z = (make(framework, v, dtype) for v in (a, b, c))
    d = gemm(x, y, c=z, out_dtype=out)
    assert (framework_of(d), dtype_of(d)) == (framework, out)
    assert_exact(to_numpy(d), reference(a, b, c), out)


@pytest.mark.parametrize("out", REAL)
@pytest.mark.parametrize("framework", MUTABLE)
def test_dtype_of_out_decides(rng, framework, out):
    a, b = integers(rng, (4, 5)), integers(rng, (5, 6))
    d = make(framework, np.zeros((4, 6)), out)
    gemm(make(framework, a, "bf16"), make(framework, b, "bf16"), out=d)
    assert dtype_of(d) == out
    assert_exact(to_numpy(d), reference(a, b), out)
    assert gemm(make(framework, a, "bf16"), make(framework, b, "bf16"), out=d, out_dtype=out) is d


@pytest.mark.parametrize("c_dtype", REAL)
def test_addend_of_another_dtype(rng, c_dtype):
    a, b, c = integers(rng, (4, 5)), integers(rng, (5, 6)), integers(rng, (4, 6), c_dtype)
    d = gemm(make("numpy", a, "bf16"), make("numpy", b, "bf16"), c=make("numpy", c, c_dtype), beta=2)
    assert_exact(to_numpy(d), reference(a, b, c, 1, 2), "bf16")


def test_a_wide_result_is_not_rounded_on_the_way(rng):
    """f64 out of f32 operands keeps all that the f32 accumulator holds; f32 out of bf16 is not rounded to bf16."""
    a, b = np.array([[257.0, 1.0]]), np.array([[1.0], [2**-8]])
    d = gemm(make("numpy", a, "f32"), make("numpy", b, "f32"), out_dtype="f64")
    assert d[0, 0] == 257 + 2**-8
    d = gemm(make("numpy", np.array([[256.0, 1.0]]), "bf16"), make("numpy", np.ones((2, 1)), "bf16"), out_dtype="f32")
    assert d[0, 0] == 257


@pytest.mark.parametrize(
    ("dtype", "compute", "accumulator"),
    [
        ("f32", "f32", "f32"),
        ("f32", "tf32", "f32"),
        ("f32", "3xtf32", "f32"),
        ("f16", "f32", "f32"),
        ("f16", "f16", "f16"),
        ("f64", "f64", "f64"),
        ("e4m3", "fast", "fast"),
        ("s8", "s32", "s32"),
        ("c64", "f32", "c64"),
        ("c128", "f64", "c128"),
    ],
)
def test_compute(rng, dtype, compute, accumulator):
    a, b = integers(rng, (4, 5), dtype), integers(rng, (5, 6), dtype)
    x, y = make("numpy", a, dtype), make("numpy", b, dtype)
    assert_exact(to_numpy(gemm(x, y, compute=compute)), reference(a, b), DEFAULT_OUT.get(dtype, dtype))
    assert cutlass_py.GemmArguments(x, y, compute=compute).problem.accumulator == accumulator


# ---------------------------------------------------------------------------------------- the one rounding


@pytest.mark.parametrize("out", ["s8", "u8", "s32", "e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_conversions_saturate(dtype, out):
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128.0, 254.5, 255.5, 300, -129, 448, 464, 465, 480, 57344, 61440]
    values += [-448, -500, -6e4, 7e4, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan]
    a = rounded(np.array([values]).T, dtype)
    d = to_numpy(gemm(make("numpy", a, dtype), make("numpy", np.ones((1, 1)), dtype), out_dtype=out))
    assert_exact(d, a, out)
    assert np.isnan(d[-1, 0]) == (out in FP8), "NaN is 0 as an integer"


@pytest.mark.parametrize(("out", "half"), [("bf16", 2**-8), ("e4m3", 2**-4), ("e5m2", 2**-3), ("f16", 2**-11)])
def test_results_are_rounded_once(out, half):
    """By way of f32, what lies just above the middle would become the middle, and then even."""
    a = np.array([[1 + half + 2**-40], [1 + half - 2**-40], [1 + half], [1 + 3 * half], [-1 - half - 2**-40]])
    d = to_numpy(gemm(a, np.ones((1, 1)), out_dtype=out))
    assert np.array_equal(d[:, 0], [1 + 2 * half, 1, 1, 1 + 4 * half, -1 - 2 * half])


@pytest.mark.parametrize(("a_dtype", "b_dtype"), [("s8", "s8"), ("u8", "u8"), ("u8", "s8")])
def test_sums_of_integers_wrap_around(a_dtype, b_dtype):
    k = 140_000
    a = np.full((2, k), -128 if a_dtype == "s8" else 255.0)
    b = np.full((k, 3), -128 if b_dtype == "s8" else 255.0)
    a[1] = 1
    exact = (a @ b).astype(np.int64)
    assert abs(exact).max() > 2**31
    x, y = make("numpy", a, a_dtype), make("numpy", b, b_dtype)
    wrapped = exact.astype(np.int32).astype(np.float64)
    assert_exact(to_numpy(gemm(x, y)), wrapped, "s32")
    assert_exact(to_numpy(gemm(x, y, out_dtype="f64")), wrapped, "f64")  # whatever comes out
    assert_exact(to_numpy(gemm(x, y, alpha=-3)), -3 * wrapped, "s32")  # what follows the sum saturates


def test_integers_beyond_24_bits_stay_exact():
    a, b = np.full((1, 3000), 127, np.int8), np.full((3000, 1), 127, np.int8)
    c = np.array([[2**31 - 1]], np.int32)
    product = 127 * 127 * 3000
    assert gemm(a, b)[0, 0] == product
    assert gemm(a, b, c=c, alpha=-1)[0, 0] == 2**31 - 1 - product
    assert gemm(a, b, c=c, alpha=2**30, beta=-(2**30))[0, 0] == -(2**31)
    assert gemm(a, b, c=c)[0, 0] == 2**31 - 1


# ---------------------------------------------------------------------------------------- views


@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "e5m2", "f16"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_views_of_integers(rng, framework, dtype):
    a, b, c = (integers(rng, s, dtype) for s in [(4, 5), (5, 6), (4, 6)])

    def carried(x):
        bits = x.astype(NUMPY[dtype]).view(f"u{NUMPY[dtype].itemsize}")
        if framework == "numpy":
            return bits
        if framework == "torch":
            import torch

            return torch.from_numpy(bits.view(f"i{bits.itemsize}"))
        import jax

        return jax.numpy.asarray(bits)

    x, y, z = (cutlass_py.view(carried(v), dtype) for v in (a, b, c))
    out_dtype = DEFAULT_OUT.get(dtype, dtype)
    d = gemm(x, y, c=z)
    assert dtype_of(d) == out_dtype
    assert_exact(to_numpy(d), reference(a, b, c), out_dtype)
    if out_dtype != "f16":
        assert isinstance(d, cutlass_py.TypedView) and framework_of(d.array) == framework
    if framework != "jax":
        out = cutlass_py.view(carried(np.zeros((4, 6))), dtype)
        assert gemm(x, y, out=out, c=z) is out
        assert_exact(to_numpy(out), reference(a, b, c), dtype)


def test_view_says_what_it_is():
    bits = np.zeros((2, 2), np.uint16)
    view = cutlass_py.view(bits, ml_dtypes.bfloat16)
    assert view.array is bits and view.dtype == "bf16"


def test_view_of_one_side_only(rng):
    a, b = integers(rng, (4, 5), "bf16"), integers(rng, (5, 6), "bf16")
    x, y = make("numpy", a, "bf16"), make("numpy", b, "bf16")
    assert_exact(to_numpy(gemm(x, cutlass_py.view(y.view(np.uint16), "bf16"))), reference(a, b), "bf16")
    with_f32_result = gemm(cutlass_py.view(x.view(np.uint16), "bf16"), y, out_dtype="f32")
    assert type(with_f32_result) is np.ndarray and with_f32_result.dtype == np.float32
