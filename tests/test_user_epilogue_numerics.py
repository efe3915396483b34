"""What the CPU computes by epilogues that users write, against float64: every function, output and reduction."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from own_epilogues import ONE, everything, gelu_bias, operands

import cutlass_py
from cutlass_py import GemmArguments, epilogue, functions, gemm
from cutlass_py.declaration.epilogue_ir import OPERATIONS
from cutlass_py.functions import cast, clamp, gelu, leaky_relu, maximum, minimum, relu
from cutlass_py.functions import max as max_over
from cutlass_py.functions import min as min_over
from cutlass_py.functions import sum as sum_over

BF16 = ml_dtypes.bfloat16


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16, np.float16])
def test_against_float64(dtype):
    a, b, _ = operands(33, 17, 40, dtype=dtype)
    bias = np.linspace(-1, 1, 17).astype(dtype)
    d = gemm(a, b, epilogue=gelu_bias(alpha=0.5, bias=bias))
    z = 0.5 * (a.astype(float) @ b.astype(float)) + bias.astype(float)
    assert d.dtype == dtype
    eps = {2: 2**-8 if dtype is BF16 else 2**-10, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(d.astype(float), z * (1 + erf(z / math.sqrt(2))) / 2, rtol=eps, atol=eps)


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_several_outputs(batch, layout):
    a, b, residual = operands(5, 6, 7, batch)
    scale, column = np.full(1, 0.5, np.float32), np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    z, out = (np.full((*batch, 5, 6), np.nan, np.float32) for _ in range(2))
    if layout == "n":
        z, out = (x.swapaxes(-1, -2).copy().swapaxes(-1, -2) for x in (z, out))
    rows, least = (np.full((*batch, 5, 1), np.nan, np.float32) for _ in range(2))
    columns = np.full((*batch, 1, 6), np.nan, np.float32)
    given = {"scale": scale, "column": column, "residual": residual}
    gemm(a, b, out=out, epilogue=everything(**given, z=z, rows=rows, columns=columns, least=least))
    z64 = 0.5 * (a.astype(float) @ b) + column
    d64 = np.where((z64 > 0) | (residual >= 0), np.tanh(z64), np.clip(z64 - residual, -2, 2))
    found = (z, out, rows, columns, least)
    exact = (z64, d64, d64.sum(-1, keepdims=True), z64.max(-2, keepdims=True), d64.min(-1, keepdims=True))
    for ours, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_that_shares_b():
    """It folds into tall problems, but not under a reduction over the rows of each."""
    a, b = next(operands(5, 6, 7, (3,))), np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32)
    row, acc = np.arange(6, dtype=np.float32), a.astype(float) @ b
    rows, columns = np.empty((3, 5, 1), np.float32), np.empty((3, 1, 6), np.float32)
    f = epilogue(lambda x, row: (x + row, {"s": sum_over(x, axis=-1)}))
    args = GemmArguments(a, b, epilogue=f(row=row, s=rows))
    assert args.problem.batch == 1 and np.allclose(args.run(), acc + row, atol=1e-5)
    np.testing.assert_allclose(rows, acc.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
    g = epilogue(lambda x: (x, {"t": sum_over(x, axis=-2)}))
    args = GemmArguments(a, b, epilogue=g(t=columns))
    assert args.problem.batch == 3 and np.allclose(args.run(), acc, atol=1e-5)
    np.testing.assert_allclose(columns, acc.sum(-2, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("batch", "shape"), [
    ((), ()), ((), (1,)), ((), (1, 1)), ((3,), (3,)), ((3,), (3, 1, 1)), ((2, 3), (2, 3)), ((2, 3), (2, 3, 1, 1)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_values(batch, shape, layout, dtype):
    a, b, c = operands(5, 6, 7, batch, dtype)
    out = np.empty((*batch, 5, 6), dtype)
    out = out if layout == "t" else out.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    f = epilogue(lambda x, c: (x * c, {"total": sum_over(x * c), "most": max_over(x), "least": min_over(x, axis=None)}))
    total, most, least = (np.full(shape, np.nan, dtype) for _ in range(3))
    gemm(a, b, out=out, epilogue=f(c=c, total=total, most=most, least=least))
    acc = a.astype(float) @ b
    np.testing.assert_allclose(out, acc * c, rtol=1e-4, atol=1e-5)
    for ours, exact in ((total, (acc * c).sum((-2, -1))), (most, acc.max((-2, -1))), (least, acc.min((-2, -1)))):
        np.testing.assert_allclose(ours.reshape(batch), exact, rtol=1e-4, atol=1e-5)


def test_single_values_of_vectors_and_of_a_batch_that_shares_b():
    a, b, _ = operands(3, 6, 7)
    one = np.full((), np.nan, np.float32)
    for x, y in ((a[0], b), (a, b[:, 0]), (a[0], b[:, 0])):
        gemm(x, y, epilogue=ONE(one=one))
        np.testing.assert_allclose(one, (x.astype(float) @ y).sum(), rtol=1e-4, atol=1e-5)
    a, ones = next(operands(5, 6, 7, (3,))), np.full((3, 1, 1), np.nan, np.float32)
    args = GemmArguments(a, b, epilogue=ONE(one=ones))
    assert args.problem.batch == 3  # it does not fold: each has a value of its own
    args.run()
    np.testing.assert_allclose(ones[:, 0, 0], (a.astype(float) @ b).sum((1, 2)), rtol=1e-4, atol=1e-5)


def test_nan_goes_through_single_values():
    a, b, _ = operands()
    a[2, 3] = np.nan
    f = epilogue(lambda x: (x, {"total": sum_over(x), "most": max_over(x), "least": min_over(x)}))
    values = np.zeros((3, 1), np.float32)
    gemm(a, b, epilogue=f(total=values[0], most=values[1], least=values[2]))
    assert np.isnan(values).all()


def test_reductions_of_arrays():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert sum_over(x).shape == (2, 1, 1) and np.array_equal(sum_over(x)[:, 0, 0], x.sum((1, 2)))
    assert np.array_equal(max_over(x, axis=None), min_over(-x) * -1)


def test_vectors_of_one_dimension():
    a, b, _ = operands(5, 6, 7)
    f = epilogue(lambda x, row, c: (x * row + c, {"s": sum_over(x, axis=-1), "t": sum_over(x, axis=-2)}))
    s, t, row = np.empty(5, np.float32), np.empty(6, np.float32), np.arange(6, dtype=np.float32)
    d = gemm(a, b, epilogue=f(row=row, c=2, s=s, t=t))
    acc = a.astype(float) @ b
    for ours, expected in ((d, acc * row + 2), (s, acc.sum(1)), (t, acc.sum(0))):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    f = epilogue(lambda x, c: x + c)
    np.testing.assert_allclose(gemm(a[0], b, epilogue=f(c=row)), acc[0] + row, rtol=1e-4, atol=1e-5)
    column = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(gemm(a, b[:, 0], epilogue=f(c=column)), acc[:, 0] + column, rtol=1e-4, atol=1e-5)


def test_no_terms_and_no_elements():
    f = epilogue(lambda x, c: x * c + 1)
    a, b = np.full((3, 0), np.nan, np.float32), np.full((0, 4), np.nan, np.float32)
    assert np.array_equal(gemm(a, b, epilogue=f(c=2)), np.ones((3, 4), np.float32))
    assert gemm(np.empty((0, 3), np.float32), np.empty((3, 4), np.float32), epilogue=f(c=2)).shape == (0, 4)


def test_a_result_is_rounded_once_and_a_cast_before():
    third = np.full((1, 1), 1 / 3, np.float32)
    one = np.ones((1, 1), np.float32)
    f, g = epilogue(lambda x: 3 * x), epilogue(lambda x: 3 * cast(x, "bf16"))
    assert gemm(third, one, epilogue=f()) == np.float32(3) * np.float32(1 / 3)
    assert gemm(third, one, epilogue=g()) == np.float32(3 * float(BF16(1 / 3)))
    huge = epilogue(lambda x: 1e6 * x)
    e4m3 = gemm(
        one.astype(ml_dtypes.float8_e4m3fn), one.astype(ml_dtypes.float8_e4m3fn), epilogue=huge(), out_dtype="e4m3"
    )
    assert float(e4m3[0, 0]) == 448  # saturates, as every result in fp8
    assert gemm(one.astype(np.int8), one.astype(np.int8), epilogue=huge(), out_dtype="s8") == 127
    assert gemm(one.astype(np.int8), one.astype(np.int8), epilogue=f(), out_dtype="f32") == 3


def test_nan_goes_through():
    a, b = np.full((1, 1), np.nan, np.float32), np.ones((1, 1), np.float32)
    for function in (lambda x: maximum(x, 0), lambda x: minimum(0, x), lambda x: clamp(x, -1, 1), relu, gelu):
        assert np.isnan(gemm(a, b, epilogue=epilogue(function)()))


@pytest.mark.parametrize("name", [name for name in functions.__all__ if name not in ("cast", "sum", "max", "min")])
def test_functions_are_the_same_traced_and_on_arrays(name):
    function = getattr(functions, name)
    x = np.linspace(0.1, 3, 30, dtype=np.float32)[:, None]
    further = {"where": 2, "minimum": 1, "maximum": 1, "clamp": 2}.get(name, 0)
    given = [np.float32(0.5), np.float32(1.5)][:further]
    if name == "where":
        traced = epilogue(lambda accum: function(accum > 1, *given))
        expected = function(x > 1, *given)
    else:
        traced = epilogue(lambda accum: function(accum, *given))
        expected = function(x, *given)
    assert np.array_equal(gemm(x, np.ones((1, 1), np.float32), epilogue=traced()), expected)


def test_functions_of_whole_numbers():
    for function in (functions.erf, functions.gelu, functions.tanh, functions.exp, functions.rsqrt):
        expected = function(np.array([1.0, 2.0]))
        assert np.array_equal(function(np.array([1, 2])), expected) and function(2) == expected[1]


def test_numbers_of_the_surrounding_program_stay_numbers():
    a, b, _ = operands()
    function = epilogue(lambda accum: accum * functions.where(True, 2.0, 3.0) + leaky_relu(-1.0, 0.5))
    np.testing.assert_allclose(gemm(a, b, epilogue=function()), a @ b * 2 - 0.5, rtol=1e-5, atol=1e-5)
    function = epilogue(lambda accum: functions.where((accum > 0) & (len("abc") > 2) | np.False_, accum, 0))
    np.testing.assert_allclose(gemm(a, b, epilogue=function()), np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)


def test_activations_are_those_of_gemm():
    a, b, _ = operands(20, 30, 10)
    for name in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"):
        ours = gemm(a, b, epilogue=epilogue(getattr(functions, name))())
        assert np.array_equal(ours, gemm(a, b, activation=name)), name
    ours = gemm(a, b, epilogue=epilogue(leaky_relu)())
    np.testing.assert_allclose(ours, gemm(a, b, activation="leaky_relu"), rtol=1e-6)


def test_every_operation_has_its_numpy_twin():
    from cutlass_py.epilogues.reference import FUNCTIONS

    assert FUNCTIONS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("number", [np.float32(0), np.float64(0), np.int64(0), np.array(0.0)], ids=repr)
def test_numpys_numbers_on_the_left_of_a_comparison(number):
    @cutlass_py.epilogue
    def positive(accum):
        return functions.where(number < accum, accum, 0.0)

    a = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    eye = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(cutlass_py.gemm(a, eye, epilogue=positive()), np.maximum(a, 0))


@pytest.mark.parametrize(("m", "n", "axis", "shape"), [(0, 5, -1, (0, 1)), (3, 0, -2, (0,))])
def test_reductions_of_nothing_to_nothing(m, n, axis, shape):
    @cutlass_py.epilogue
    def sums(accum):
        return accum, {"s": functions.sum(accum, axis=axis)}

    a, b = np.ones((m, 4), np.float32), np.ones((4, n), np.float32)
    assert cutlass_py.gemm(a, b, epilogue=sums(s=np.empty(shape, np.float32))).shape == (m, n)


def test_values_of_a_long_epilogue_do_not_pile_up():
    import tracemalloc

    @cutlass_py.epilogue
    def long(accum):
        for _ in range(40):
            accum = accum * 1.5 - accum
        return accum

    a, b = np.ones((512, 8), np.float32), np.ones((8, 512), np.float32)
    cutlass_py.gemm(a, b, epilogue=long())
    tracemalloc.start()
    cutlass_py.gemm(a, b, epilogue=long())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 512 * 512 * 4
