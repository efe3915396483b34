"""What gemm does to the product, on the CPU: vectors, activations, gates, aux, gradients, scales, scalars in memory."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import CPU_FRAMEWORKS, MUTABLE, make, placed, to_numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    ACTIVATIONS,
    COMPLEX,
    DERIVATIVES,
    INTEGERS,
    REAL,
    assert_exact,
    assert_near,
    integers,
    reference_epilogue,
    rounded,
)

import cutlass_py
from cutlass_py import GemmArguments, clamp, gemm, leaky_relu
from cutlass_py.declaration import epilogues

PLAIN = [name for name in ACTIVATIONS if name != "clamp"]
M, N, K = 6, 9, 4


def values(rng, *shape, dtype="f32"):
    """Around zero, a few far out, as `dtype` holds them."""
    return rounded(rng.standard_normal(shape) * rng.choice([1, 1, 6], shape), dtype)


def operands(rng, dtype="f32", framework="numpy", batch=()):
    a, b = (values(rng, *batch, *s, dtype=dtype) / 2 for s in ((M, K), (K, N)))
    a, b = rounded(a, dtype), rounded(b, dtype)
    return a, b, make(framework, a, dtype), make(framework, b, dtype)


def f32(x):
    return np.asarray(x).astype(np.float32)


def test_the_tables_are_covered():
    assert set(ACTIVATIONS) | set(DERIVATIVES) == set(epilogues.ACTIVATIONS)
    assert leaky_relu().parameters == tuple(default for _, default in epilogues.ACTIVATIONS["leaky_relu"].parameters)


# ---------------------------------------------------------------------------------------- bias


BIASES = {"n": (N,), "row": (1, N), "column": (M, 1), "none": None}


@pytest.mark.parametrize("shape", [s for s in BIASES.values() if s], ids=str)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "s8", "c64", "c128"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_bias(rng, framework, dtype, shape):
    a, b, bias = (integers(rng, s, dtype) for s in ((M, K), (K, N), shape))
    out_dtype = {"s8": "s32"}.get(dtype, dtype)
    x, y, v = make(framework, a, dtype), make(framework, b, dtype), make(framework, bias, out_dtype)
    assert_exact(to_numpy(gemm(x, y, bias=v)), a @ b + bias, out_dtype)
    if framework != "jax":  # transposed: the axis changes sides
        out = placed(framework, None, out_dtype, "padded_column", shape=(M, N))
        gemm(x, y, bias=v, out=out.array)
        assert_exact(to_numpy(out.array), a @ b + bias, out_dtype)
        out.assert_rest_untouched()


@pytest.mark.parametrize(
    ("dtype", "out", "bias"), [("bf16", "bf16", "f32"), ("f16", "f32", "f32"), ("s8", "s8", "f32")]
)
def test_bias_of_f32(rng, dtype, out, bias):
    a, b, v = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype), integers(rng, (N,)) / 2
    d = gemm(make("numpy", a, dtype), make("numpy", b, dtype), bias=make("numpy", v, bias), out_dtype=out)
    assert_exact(to_numpy(d), a @ b + v, out)


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 1)], ids=str)
@pytest.mark.parametrize("shape", [(1, N), (M, 1), (M, N)], ids=["row", "column", "c"])
def test_batches_of_biases_and_addends(rng, shape, lead):
    a, b, v = integers(rng, (2, 3, M, K)), integers(rng, (K, N)), integers(rng, (*lead, *shape))
    d = gemm(f32(a), f32(b), **{"c" if shape == (M, N) else "bias": f32(v)})
    assert_exact(to_numpy(d), a @ b + v, "f32")


def test_bias_with_gaps_backwards_and_repeated(rng):
    a, b, v = integers(rng, (M, K)), integers(rng, (K, N)), integers(rng, (2 * N,))
    for view in (slice(None, None, 2), slice(None, N - 1, -1)):
        assert_exact(to_numpy(gemm(f32(a), f32(b), bias=f32(v)[view])), a @ b + v[view], "f32")
    same = np.broadcast_to(np.float32(3), (N,))
    assert_exact(to_numpy(gemm(f32(a), f32(b), bias=same)), a @ b + 3, "f32")


def test_one_value_goes_along_the_axis_it_fits():
    """(1, 1) is a row where n is 1, else a column of m = 1."""
    one = np.ones((1, 1), np.float32)
    p = GemmArguments(np.ones((3, 4), np.float32), np.ones((4, 1), np.float32), bias=one).problem
    q = GemmArguments(np.ones((1, 4), np.float32), np.ones((4, 5), np.float32), bias=one).problem
    assert (p.bias_axis, p.transposed) == ("m", True) and (q.bias_axis, q.transposed) == ("m", False)
    assert (gemm(np.ones((1, 4), np.float32), np.ones((4, 5), np.float32), bias=one) == 5).all()


# ---------------------------------------------------------------------------------------- activations


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("activation", PLAIN)
def test_activations(rng, activation, bias):
    a, b, x, y = operands(rng)
    c = values(rng, M, N)
    v = None if bias is None else values(rng, *bias)
    how = {"c": c, "beta": -0.5, "alpha": 1.5, "activation": activation}
    expected = reference_epilogue(a @ b, bias=v, **how)
    given = {} if v is None else {"bias": f32(v)}
    d = gemm(x, y, **given, **(how | {"c": f32(c)}))
    assert_near(to_numpy(d), expected.d, "f32", 4e-6, size=10)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_of_every_framework(rng, framework, dtype, activation):
    a, b, x, y = operands(rng, dtype, framework)
    v = values(rng, N, dtype=dtype)
    d = gemm(x, y, bias=make(framework, v, dtype), activation=activation)
    expected = reference_epilogue(a @ b, bias=v, activation=activation)
    assert_near(to_numpy(d), expected.d, dtype, 1e-13 if dtype == "f64" else 4e-6, size=10)


@pytest.mark.parametrize("out", REAL)
@pytest.mark.parametrize("dtype", ["f16", "f64", "e4m3", "s8"])
def test_activations_of_every_result(rng, dtype, out):
    a, b = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype)
    x, y = make("numpy", a, dtype), make("numpy", b, dtype)
    expected = reference_epilogue(a @ b, alpha=8, activation="relu", scale_out=0.5).d
    assert_exact(to_numpy(gemm(x, y, alpha=8, activation="relu", scale_out=0.5, out_dtype=out)), expected, out)


def test_activations_with_parameters(rng):
    a, b, x, y = operands(rng)
    for slope in (0.01, 0.25, 0, -1, 3):
        expected = reference_epilogue(a @ b, activation="leaky_relu", parameters=(slope,)).d
        assert_near(to_numpy(gemm(x, y, activation=leaky_relu(slope))), expected, "f32", 1e-6)
    assert np.array_equal(gemm(x, y, activation="leaky_relu"), gemm(x, y, activation=leaky_relu()))
    for low, high in ((-1, 1), (0, 6), (-np.inf, 0.1), (2, 2)):
        expected = reference_epilogue(a @ b, activation="clamp", parameters=(low, high)).d
        assert_near(to_numpy(gemm(x, y, activation=clamp(low, high))), expected, "f32", 1e-6)
    assert (
        leaky_relu(0.5) == leaky_relu(slope=np.float32(0.5)) == leaky_relu(slope=0.5) != leaky_relu(0.25)
        and len({clamp(0, 1), clamp(0, 1.0)}) == 1
    )
    assert repr(clamp(0, 6)) == "clamp(0.0, 6.0)"


def test_parameters_have_the_digits_of_the_arithmetic():
    """Of f64 where that is computed in, for integers too: f32 holds neither 0.1 as f64 does nor 2**24 + 1."""
    a, b, five = np.full((1, 2048), 127, np.int8), np.full((2048, 1), 127, np.int8), np.full((1, 1), 5.0)
    assert gemm(a, b, activation=clamp(0, 2**24 + 1)) == 2**24 + 1
    assert gemm(five, five, activation=clamp(0, 0.1)) == 0.1
    assert gemm(five, -five, activation=leaky_relu(0.1)) == 0.1 * -25 == gemm(five, -five, activation="leaky_relu") * 10
    assert gemm(five, five, activation=clamp(0, 1e300), alpha=1e301) == 1e300
    assert gemm(f32(five), f32(five), activation=clamp(0, 0.1)) == np.float32(0.1)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", ["silu", "sigmoid", "gelu_tanh", "tanh", "d_silu", "d_gelu_tanh"])
def test_small_values_keep_their_digits(function, dtype):
    """Functions that go to 0 far on the negative side are as exact there as everywhere."""
    x = rounded(np.concatenate([np.linspace(-30, -2, 281), np.linspace(-2, 0, 21), -np.logspace(-30, -1, 30)]), dtype)
    x = x[x < -2] if function in DERIVATIVES else x  # they are 0 at about -1
    one, column = make("numpy", np.ones((1, 1)), dtype), make("numpy", x[:, None], dtype)
    with np.errstate(over="ignore"):
        wanted = (ACTIVATIONS | DERIVATIVES)[function](x)
    if function in DERIVATIVES:
        found = gemm(np.ones_like(column), one, activation=function, aux=column)
    else:
        found = gemm(column, one, activation=function)
    exact = 1e-12 if dtype == "f64" else 1e-4  # exp has the error of its argument, up to 90 times
    np.testing.assert_allclose(found[:, 0], wanted, rtol=exact, atol=0 if dtype == "f64" else 1e-35)


def test_parameters_are_no_part_of_the_plan():
    a = np.ones((3, 3), np.float32)
    p, q = (GemmArguments(a, a, activation=leaky_relu(slope)).problem for slope in (0.1, 0.2))
    assert p == q and hash(p) == hash(q) and p.activation == "leaky_relu"
    assert p != GemmArguments(a, a, activation="relu").problem


def test_identity_is_no_activation():
    a = np.ones((3, 3), np.float32)
    assert GemmArguments(a, a, activation="identity").problem == GemmArguments(a, a).problem


@pytest.mark.parametrize("activation", PLAIN)
def test_nan_goes_through_every_activation(activation):
    a = np.array([[np.nan], [1]], np.float32)
    d = gemm(a, np.ones((1, 2), np.float32), activation=activation)
    assert np.isnan(d[0]).all() and np.isfinite(d[1]).all()
    assert np.isnan(gemm(a, np.ones((1, 2), np.float32), activation=clamp(0, 1))[0]).all()


# ---------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize("activation", [None, *PLAIN])
def test_gate(rng, activation):
    a, b, x, y = operands(rng)
    g, v = values(rng, M, N), values(rng, N)
    expected = reference_epilogue(a @ b, bias=v, gate=g, activation=activation).d
    d = gemm(x, y, bias=f32(v), gate=f32(g), activation=activation)
    assert_near(to_numpy(d), expected, "f32", 4e-6, size=10 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["row", "column", "padded", "strided", "negative"])
@pytest.mark.parametrize("gate_dtype", REAL)
def test_gates_of_any_dtype_and_layout(rng, gate_dtype, kind):
    a, b, g = integers(rng, (M, K)), integers(rng, (K, N)), integers(rng, (M, N), gate_dtype)
    gate = placed("numpy", g, gate_dtype, kind)
    assert_exact(to_numpy(gemm(f32(a), f32(b), gate=gate.array)), g * (a @ b), "f32")


@pytest.mark.parametrize("framework", MUTABLE)
def test_swiglu_in_place(rng, framework):
    """The second product of a gated layer, written over the first."""
    a, b, x, y = operands(rng, "f32", framework)
    g = values(rng, M, N)
    gate = make(framework, g, "f32")
    assert gemm(x, y, gate=gate, activation="silu", out=gate) is gate
    assert_near(to_numpy(gate), reference_epilogue(a @ b, gate=g, activation="silu").d, "f32", 1e-5, size=50)


# ---------------------------------------------------------------------------------------- aux


@pytest.mark.parametrize("kind", ["row", "column", "padded", "strided"])
@pytest.mark.parametrize("aux_dtype", REAL)
def test_aux_receives_what_the_activation_sees(rng, aux_dtype, kind):
    a, b, v = integers(rng, (M, K)), integers(rng, (K, N)), integers(rng, (N,))
    aux = placed("numpy", None, aux_dtype, kind, shape=(M, N))
    d = gemm(f32(a), f32(b), bias=f32(v), activation="relu", aux=aux.array, scale_out=2)
    assert_exact(to_numpy(aux.array), a @ b + v, aux_dtype)
    assert_exact(to_numpy(d), 2 * np.maximum(a @ b + v, 0), "f32")
    aux.assert_rest_untouched()


def test_aux_without_an_activation_and_with_a_gate(rng):
    a, b, g = integers(rng, (M, K)), integers(rng, (K, N)), integers(rng, (M, N))
    aux = np.full((M, N), np.nan)
    d = gemm(f32(a), f32(b), gate=f32(g), aux=aux)
    assert_exact(aux, a @ b, "f64")
    assert_exact(to_numpy(d), g * (a @ b), "f32")


@pytest.mark.parametrize("kind", ["row", "column", "strided"])
@pytest.mark.parametrize("activation", DERIVATIVES)
def test_derivatives(rng, activation, kind):
    a, b, x, y = operands(rng)
    z, v = values(rng, M, N), values(rng, M, 1)
    aux = placed("numpy", z, "f32", kind)
    expected = reference_epilogue(a @ b, bias=v, activation=activation, aux=z).d
    d = gemm(x, y, bias=f32(v), activation=activation, aux=aux.array)
    assert_near(to_numpy(d), expected, "f32", 4e-6, size=50)


@pytest.mark.parametrize("activation", DERIVATIVES)
def test_derivatives_far_from_zero(activation):
    aux = np.array([[-3e38, -2e19, 2e19, 3e38]], np.float32)
    d = gemm(np.ones((1, 1), np.float32), np.ones((1, 4), np.float32), activation=activation, aux=aux)
    assert d.tolist() == [[0, 0, 0, 0] if activation == "d_sigmoid" else [0, 0, 1, 1]]


def test_gate_and_aux_of_f64_are_not_rounded():
    """Nor is what they meet: the epilogue is computed in f64 throughout."""
    one, tiny, aux = np.ones((1, 1), np.float32), np.full((1, 1), 2**-25, np.float32), np.zeros((1, 1))
    gemm(one, tiny, bias=one[0], aux=aux)
    assert aux[0, 0] == 1 + 2**-25  # f32 has not that many digits
    d = gemm(one, one, gate=np.full((1, 1), 1e300), alpha=1e-300)
    assert d[0, 0] == 1  # nor the exponents


@pytest.mark.parametrize("function", ["relu", "gelu", "gelu_tanh", "silu", "sigmoid"])
def test_derivatives_are_those_of_the_functions(function):
    """d / dx of the function by central differences, through gemm itself."""
    x = np.linspace(-5, 5, 41)[:, None] + 0.01
    one, h = np.ones((1, 1)), 1e-6
    slope = (gemm(x + h, one, activation=function) - gemm(x - h, one, activation=function)) / (2 * h)
    d = gemm(np.ones_like(x), one, activation=f"d_{function}", aux=x)
    assert np.abs(d - slope).max() < 1e-8


def test_forward_and_backward_of_a_layer(rng):
    """h = gelu(x w + v) with aux; then the gradients of sum(h * t) in x w and v, in place over t."""
    a, b, x, y = operands(rng, "f64")
    v, t = values(rng, N), values(rng, M, M)
    aux, gradient, column = np.empty((M, N)), np.empty((M, N)), np.empty(N)
    h = gemm(x, y, bias=v, activation="gelu", aux=aux)
    assert_near(h, reference_epilogue(a @ b, bias=v, activation="gelu").d, "f64", 1e-13, size=10)
    upstream = t @ np.ones((M, N))
    gemm(t, np.ones((M, N)), activation="d_gelu", aux=aux, out=gradient, bias_grad=column)
    expected = upstream * DERIVATIVES["d_gelu"](a @ b + v)
    assert_near(gradient, expected, "f64", 1e-12, size=100)
    assert_near(column, expected.sum(axis=0), "f64", 1e-12, size=100)
    gemm(t, np.ones((M, N)), activation="d_gelu", aux=aux, out=aux)  # an aux that is read may be out
    assert np.array_equal(aux, gradient)


# ---------------------------------------------------------------------------------------- gradient of the bias


@pytest.mark.parametrize("column_major", [False, True])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("shape", [(N,), (1, N), (M, 1)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "grad"), [("f32", "f32"), ("bf16", "f32"), ("f16", "f16"), ("f64", "f64"), ("s8", "f64")]
)
def test_bias_grad(rng, dtype, grad, shape, batch, column_major):
    a, b = integers(rng, (*batch, M, K), dtype), integers(rng, (K, N), dtype)
    out_dtype = {"s8": "s32"}.get(dtype, dtype)
    out = np.full((*batch, N, M), 7).astype(make("numpy", a[:0], out_dtype).dtype).swapaxes(-1, -2)
    keywords = {"out": out} if column_major else {}
    gradient = placed("numpy", None, grad, "row", shape=shape)
    how = {"alpha": 2, "activation": "relu"}
    d = gemm(make("numpy", a, dtype), make("numpy", b, dtype), bias_grad=gradient.array, scale_out=3, **how, **keywords)
    y = reference_epilogue(a @ b, **how).y
    assert_exact(to_numpy(d), 3 * y, out_dtype)
    rows = shape == (M, 1)
    summed = y.sum(axis=tuple(range(len(batch))) + ((-1,) if rows else (-2,)))
    assert_exact(to_numpy(gradient.array), summed.reshape(shape), grad)
    gradient.assert_rest_untouched()


def test_bias_grad_of_f64_is_summed_in_f64():
    a, gradient = np.ones((9, 1), np.float32), np.zeros(1)
    a[0] = 2**25
    gemm(a, np.ones((1, 1), np.float32), bias_grad=gradient)
    assert gradient[0] == 2**25 + 8


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 4), (3, 5, 0), (0, 5, 0), (3, 0, 4)])
def test_bias_grad_of_nothing_is_zero(m, n, k):
    gradient = np.full(n, np.nan, np.float32)
    gemm(np.ones((m, k), np.float32), np.ones((k, n), np.float32), bias_grad=gradient)
    assert (gradient == 0).all()
    gradient = np.full((m, 1), np.nan, np.float32)
    gemm(np.ones((0, m, k), np.float32), np.ones((k, n), np.float32), bias_grad=gradient)
    assert (gradient == 0).all()


# ---------------------------------------------------------------------------------------- scales and scalars


@pytest.mark.parametrize("scale_b", [None, 0.5, (1,), (N,), (1, N)], ids=str)
@pytest.mark.parametrize("scale_a", [None, 0.5, (), (M,), (M, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["e4m3", "s8", "bf16", "f64"])
def test_scales(rng, dtype, scale_a, scale_b):
    a, b, c = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype), integers(rng, (M, N))
    in_memory = "f64" if dtype == "f64" else "f32"
    keywords, expected = {}, {}
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is None:
            continue
        value = scale if isinstance(scale, float) else 2.0 ** rng.integers(-2, 3, scale)
        expected[name] = value
        keywords[name] = value if isinstance(scale, float) else make("numpy", np.asarray(value), in_memory)
    x, y, z = make("numpy", a, dtype), make("numpy", b, dtype), make("numpy", c, in_memory)
    how = {"alpha": 2, "beta": 3, "scale_out": 0.25}
    wanted = reference_epilogue(a @ b, c=c, **how, **expected).d
    for out in (None, np.full((N, M), np.nan, np.float32).T):
        d = gemm(x, y, c=z, out=out, out_dtype="f32", **how, **keywords)
        assert_exact(to_numpy(d), wanted, "f32")


def test_batches_of_scales(rng):
    a, b = integers(rng, (2, 3, M, K)), integers(rng, (3, K, N))
    s, t = 2.0 ** rng.integers(-2, 3, (2, 1, M, 1)), 2.0 ** rng.integers(-2, 3, (3, 1, N))
    assert_exact(to_numpy(gemm(f32(a), f32(b), scale_a=f32(s), scale_b=f32(t))), s * t * (a @ b), "f32")
    column = f32(np.repeat(s, 2, axis=2))[:, :, ::2]  # no unit stride
    assert_exact(to_numpy(gemm(f32(a), f32(b), scale_a=column)), s * (a @ b), "f32")


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
@pytest.mark.parametrize(("dtype", "in_memory"), [("bf16", "f32"), ("s8", "f32"), ("f64", "f64"), ("c64", "c64")])
def test_scalars_in_memory(rng, framework, dtype, in_memory):
    out_dtype = {"s8": "s32"}.get(dtype, dtype)
    a, b, c = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype), integers(rng, (M, N), out_dtype)
    x, y, z = make(framework, a, dtype), make(framework, b, dtype), make(framework, c, out_dtype)
    alpha, beta = (2 + 1j, -1j) if dtype in COMPLEX else (2, -3)
    for shape in ((), (1,), (1, 1)):
        factors = (make(framework, np.full(shape, factor), in_memory) for factor in (alpha, beta))
        d = gemm(x, y, c=z, **dict(zip(("alpha", "beta"), factors, strict=True)))
        assert_exact(to_numpy(d), alpha * (a @ b) + beta * c, out_dtype)
    assert_exact(to_numpy(gemm(x, y, c=z, alpha=alpha, beta=beta)), alpha * (a @ b) + beta * c, out_dtype)
    if dtype not in COMPLEX:
        half = make(framework, np.full((1,), 0.5), in_memory)
        assert_exact(to_numpy(gemm(x, y, scale_out=half)), 0.5 * (a @ b), out_dtype)


def test_alpha_in_memory_beside_scales_of_one(rng):
    a, b, x, y = operands(rng)
    alpha = np.full(1, 2, np.float32)
    assert_near(gemm(x, y, alpha=alpha, scale_a=1, scale_b=1.0), 2 * (a @ b), "f32", 4e-6, size=50)


def test_scalars_are_read_when_the_call_runs():
    a, alpha = np.ones((2, 2), np.float32), np.full(1, 2, np.float32)
    args = GemmArguments(a, a, alpha=alpha)
    assert (args.run() == 4).all()
    alpha[0] = 5
    assert (args.run() == 10).all()


def test_a_zero_in_memory_leaves_c_unread_but_not_a():
    a, nan, zero = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32), np.zeros(1, np.float32)
    assert (gemm(a, a, c=nan, beta=zero) == 2).all()
    assert np.isnan(gemm(nan, a, alpha=zero)).all()
    assert (gemm(nan, a, alpha=0, scale_a=np.full(2, np.nan, np.float32)) == 0).all()
    assert (gemm(nan, a, scale_b=0) == 0).all()


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_a_zero_says_alone_that_a_and_b_are_not_read(scale):
    """Whatever it meets; a product of factors that only becomes zero is none."""
    a, nan = np.ones((2, 2), np.float32), np.full((2, 2), np.nan, np.float32)
    for keywords in ({"alpha": 0, "scale_a": scale}, {"alpha": -0.0, "scale_b": scale}, {"alpha": scale, "scale_a": 0}):
        assert (gemm(nan, a, **keywords) == 0).all()
        assert GemmArguments(nan, a, **keywords).problem.empty_product
    assert np.isnan(gemm(nan, a, alpha=1e-200, scale_a=1e-200)).all()


@pytest.mark.parametrize("alpha", [1j, 2 - 3j, 2, np.complex64(1 + 1j), np.complex128(1j), np.float32(3)], ids=repr)
def test_complex_scalars(rng, alpha):
    a, b = integers(rng, (M, K), "c64"), integers(rng, (K, N), "c64")
    d = gemm(make("numpy", a, "c64"), make("numpy", b, "c64"), alpha=alpha)
    assert_exact(to_numpy(d), complex(alpha) * (a @ b), "c64")


def test_conjugates_are_taken_by_the_framework(rng):
    torch = pytest.importorskip("torch")
    a = torch.tensor(integers(rng, (M, K), "c64"), dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"b is a lazily negated or conjugated view; pass b.resolve_neg\(\)"):
        gemm(a, a.mH)
    assert_exact(to_numpy(gemm(a, a.mH.resolve_conj())), a.numpy() @ a.numpy().conj().T, "c64")


# ---------------------------------------------------------------------------------------- all at once

# Exact in f32: small integers, powers of two, piecewise linear functions.
EXACT = ["identity", "relu"]


@settings(max_examples=120)
@given(
    data=st.data(), batch=st.lists(st.integers(1, 3), max_size=2).map(tuple), m=st.integers(1, 5), n=st.integers(1, 5)
)
def test_everything_together(data, batch, m, n):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    choose = lambda *options: data.draw(st.sampled_from(options))  # noqa: E731
    dtype, out_dtype = choose("f32", "bf16", "f64", "s8"), choose("f32", "f64", "s32")
    wide = "f64" if dtype == "f64" else "f32"
    a, b = integers(rng, (*batch, m, 3), dtype), integers(rng, (3, n), dtype)
    arrays, expected = {}, {"activation": choose(*EXACT)}

    def maybe(name, dtype, *shapes, power=False):
        shape = choose(None, *shapes)
        if shape is not None:
            expected[name] = 2.0 ** rng.integers(-1, 2, shape) if power else integers(rng, shape)
            arrays[name] = make("numpy", np.asarray(expected[name]), dtype)

    maybe("c", choose("f16", "f32", "s32"), (m, n), (*batch, m, n))
    maybe(
        "bias", choose("f32", "s32" if out_dtype in INTEGERS else out_dtype if dtype == "f64" else "f32"), (n,), (m, 1)
    )
    maybe("gate", choose("f32", "e5m2", "s8"), (m, n), (*batch, m, n))
    maybe("scale_a", wide, (), (m, 1), power=True)
    maybe("scale_b", wide, (), (n,), power=True)
    maybe("alpha", wide, (), power=True)
    out = placed("numpy", None, out_dtype, choose("row", "column", "strided") if len(batch) < 2 else "row",
                 shape=(*batch, m, n))  # fmt: skip
    aux = np.full((*batch, m, n), np.nan) if data.draw(st.booleans()) else None
    wanted = reference_epilogue(a @ b, **expected)
    keywords = arrays | {"activation": expected["activation"]}
    d = gemm(make("numpy", a, dtype), make("numpy", b, dtype), out=out.array, aux=aux, **keywords)
    assert d is out.array
    assert_exact(to_numpy(d), wanted.d, out_dtype)
    out.assert_rest_untouched()
    if aux is not None:
        assert_exact(aux, wanted.z, "f64")


def test_vectors_of_one_dimension_have_epilogues_too(rng):
    a, b, v, g = (integers(rng, s) for s in ((K,), (K, N), (N,), (N,)))
    assert_exact(to_numpy(gemm(f32(a), f32(b), bias=f32(v), gate=f32(g))), g * (a @ b + v), "f32")
    a, b, v = (integers(rng, s) for s in ((M, K), (K,), (M, 1)))
    assert_exact(to_numpy(gemm(f32(a), f32(b), bias=f32(v), activation="relu")), np.maximum(a @ b + v[:, 0], 0), "f32")


def test_k_zero_and_alpha_zero_still_have_an_epilogue(rng):
    v, c = integers(rng, (N,)), integers(rng, (M, N))
    for k, alpha in ((0, 1), (4, 0)):
        a, b = np.full((M, k), np.nan, np.float32), np.full((k, N), np.nan, np.float32)
        d = gemm(a, b, alpha=alpha, bias=f32(v), c=f32(c), activation="relu")
        assert_exact(to_numpy(d), np.maximum(c + v, 0), "f32")


# ---------------------------------------------------------------------------------------- words


def test_the_problem_in_words():
    spec = cutlass_py.TensorSpec
    a, b = spec((512, 128), "bf16"), spec((128, 256), "bf16", (1, 128))
    like, row, column, one = spec((512, 256), "bf16"), spec((256,), "bf16"), spec((512, 1), "f32"), spec((1,), "f32")

    def words(**keywords):
        text = repr(GemmArguments(a, b, **keywords)).removeprefix("GemmArguments((512, 256, 128) tn: ")
        return text.removesuffix(" on cuda:0)")

    assert words(bias=row, activation="gelu") == "bf16 @ bf16 + bias -> gelu -> bf16"
    assert words(bias=column, c=like, aux=like) == "bf16 @ bf16 + bf16 C + bias per row (kept in aux) -> bf16"
    assert words(gate=like, activation="silu") == "bf16 @ bf16 * silu(gate) -> bf16"
    assert words(gate=like, scale_out=2) == "bf16 @ bf16 * gate * scale_out -> bf16"
    assert words(activation="d_relu", aux=like, bias_grad=row) == "bf16 @ bf16 * d_relu(aux) -> bias_grad -> bf16"
    assert words(scale_a=column, scale_b=one, out_dtype="e4m3") == "bf16 @ bf16 * scale_a * scale_b -> e4m3"
    x = spec((512, 128), "f16")
    assert "-> f16 summed in f16 on" in repr(GemmArguments(x, spec((128, 256), "f16"), compute="f16"))


def test_the_problem_as_selection_sees_it():
    spec = cutlass_py.TensorSpec
    a, b = spec((512, 128), "e4m3"), spec((128, 256), "e5m2", (1, 128))
    p = GemmArguments(
        a, b, bias=spec((256,), "f32", alignment=8), gate=spec((512, 256), "f16", (512, 2)),
        scale_a=spec((512,), "f32"), scale_b=spec((256,), "f32", (2,)), scale_out=0.5, alpha=spec((), "f32"),
        activation="silu", splits="stream",
        deterministic=True, bias_grad=spec((256,), "f32"),
    ).problem  # fmt: skip
    assert (p.operand_a, p.operand_b, p.accumulator, p.d) == ("e4m3", "e5m2", "f32", "bf16")
    assert (p.bias, p.bias_axis, p.align_bias) == ("f32", "n", 8)
    assert (p.gate, p.layout_gate, p.align_gate) == ("f16", "x", 16)
    assert (p.aux, p.layout_aux, p.c, p.layout_c) == (None, "", None, "")
    assert (p.scale_a, p.scale_b, p.scale_out) == ("v", "x", "h")
    assert p.device_alpha and not p.device_beta and p.plain_sum and not p.pointers and not p.jit
    assert (p.splits, p.deterministic, p.activation) == (-1, True, "silu")
    assert (p.bias_grad, p.bias_grad_axis) == ("f32", "n")


def test_plain_sums():
    a = np.ones((3, 3), np.int8)

    def plain(**keywords):
        return GemmArguments(a, a, **keywords).problem.plain_sum

    c = np.ones((3, 3), np.int32)
    assert plain() and plain(alpha=1, scale_a=1.0, bias=np.ones(3, np.float32)) and plain(c=c, beta=0)
    assert not plain(alpha=2) and not plain(c=c) and not plain(scale_a=3) and not plain(scale_out=2)
    assert not plain(alpha=np.ones(1, np.float32)) and not plain(scale_b=np.ones(3, np.float32))
