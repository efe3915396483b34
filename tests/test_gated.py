"""Gates and values beside each other, on the CPU: shapes, functions, what is kept, gradients, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from reference import ACTIVATIONS, DERIVATIVES

from cutlass_py import GemmArguments, GroupedArguments, TensorSpec, explain, gemm, grouped_gemm
from cutlass_py.declaration.epilogues import GATED

M, N, K = 5, 6, 16


def halves(z):
    return z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :]


def gated(function, z):
    gates, values = halves(z)
    return ACTIVATIONS[function](gates) * values


def gradient(function, z, aux):
    gates, values = halves(aux)
    return np.concatenate([z * values * DERIVATIVES[f"d_{function}"](gates), z * ACTIVATIONS[function](gates)], -1)


@pytest.fixture
def draw(rng):
    return lambda *shape, dtype="f4": rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("function", GATED)
def test_the_gates_function_times_the_values(draw, function, dtype):
    a, b, bias = draw(M, K, dtype=dtype), draw(K, 2 * N, dtype=dtype), draw(2 * N, dtype=dtype)
    z = 0.5 * (a.astype("f8") @ b.astype("f8")) + bias
    aux = np.full((M, 2 * N), np.nan, dtype)
    d = gemm(a, b, alpha=0.5, bias=bias, gated=function, aux=aux, scale_out=2)
    assert d.shape == (M, N) and d.dtype == a.dtype
    near = {"f2": 2e-2, "f4": 1e-5, "f8": 1e-12}[dtype]
    np.testing.assert_allclose(d, 2 * gated(function, z), rtol=near, atol=near)
    np.testing.assert_allclose(aux, z, rtol=near, atol=near)


@pytest.mark.parametrize("function", GATED)
def test_gradients(draw, function):
    dy, w, aux = draw(M, 7), draw(7, N), draw(M, 2 * N)
    wanted = gradient(function, dy.astype("f8") @ w, aux.astype("f8"))
    d = gemm(dy, w, gated=f"d_{function}", aux=aux)
    assert d.shape == (M, 2 * N)
    np.testing.assert_allclose(d, wanted, rtol=1e-5, atol=1e-5)
    assert gemm(dy, w, gated=f"d_{function}", aux=aux, out=aux) is aux
    np.testing.assert_allclose(aux, wanted, rtol=1e-5, atol=1e-5)


def interleaved(x):
    """Gates and values by turns, of what has them in halves."""
    return np.stack(halves(x), -1).reshape(x.shape)


@pytest.mark.parametrize("function", GATED)
def test_a_value_behind_each_gate(draw, function):
    a, b, bias, columns = draw(M, K), draw(K, 2 * N), draw(2 * N), draw(2 * N)
    kept, aux = np.empty((M, 2 * N), "f4"), np.empty((M, 2 * N), "f4")
    wanted = gemm(a, b, bias=bias, scale_b=columns, gated=function, aux=kept)
    by_turns = {"bias": interleaved(bias), "scale_b": interleaved(columns), "gated": f"{function}_interleaved"}
    np.testing.assert_allclose(gemm(a, interleaved(b), aux=aux, **by_turns), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(aux, interleaved(kept), rtol=1e-5, atol=1e-5)
    dy, w = draw(M, 7), draw(7, N)
    wanted = gemm(dy, w, gated=f"d_{function}", aux=kept)
    found = gemm(dy, w, gated=f"d_{function}_interleaved", aux=interleaved(kept))
    np.testing.assert_allclose(found, interleaved(wanted), rtol=1e-5, atol=1e-5)
    sizes = np.array([2, 0, 3], "i4")
    tokens, weights = draw(5, K), draw(3, K, 2 * N)
    found = grouped_gemm(tokens, interleaved(weights), sizes=sizes, gated=f"{function}_interleaved")
    wanted = grouped_gemm(tokens, weights, sizes=sizes, gated=function)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gated", ["relu", "relu_interleaved"])
def test_one_pair_of_columns(draw, gated):
    """Whose two may lie anywhere."""
    a, b = draw(M, K), draw(K, 2)
    z = a.astype("f8") @ b
    for begin, step in ((0, 2), (3, -1), (3, -3)):
        memory = np.full((M, 6), 7, "f4")
        aux = memory[:, begin::step][:, :2]
        d = gemm(a, b, gated=gated, aux=aux)
        np.testing.assert_allclose(aux, z, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(d, np.maximum(z[:, :1], 0) * z[:, 1:], rtol=1e-5, atol=1e-5)
        assert (memory == 7).sum() == 4 * M
        found = gemm(a, b[:, :1], gated=f"d_{gated}", aux=aux, out=np.asfortranarray(np.empty((M, 2), "f4")))
        wanted = np.hstack([z[:, :1] * z[:, 1:] * (z[:, :1] > 0), z[:, :1] * np.maximum(z[:, :1], 0)])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_strides_and_batches(draw):
    a, b = draw(2, 3, M, K), draw(K, 2 * N)
    wanted = gated("silu", a.astype("f8") @ b)
    np.testing.assert_allclose(gemm(a, b, gated="silu"), wanted, rtol=1e-5, atol=1e-5)
    turned = np.zeros((2, 3, N, M), "f4").swapaxes(-1, -2)
    gemm(a, np.asfortranarray(b), gated="silu", out=turned)
    np.testing.assert_allclose(turned, wanted, rtol=1e-5, atol=1e-5)
    spread = np.zeros((2, 3, M, 2 * N), "f4")[..., ::2]
    gemm(a, b, gated="silu", out=spread)
    np.testing.assert_allclose(spread, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 3), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_what_has_no_elements(draw, m, n, k):
    bias = draw(2 * n)
    d = gemm(draw(m, k), np.ones((k, 2 * n), "f4"), gated="relu", bias=bias)
    assert d.shape == (m, n)
    if not k:
        np.testing.assert_allclose(d, np.broadcast_to(gated("relu", bias), (m, n)), rtol=1e-6)


def test_scales(draw):
    a, b, rows, columns = draw(M, K), draw(K, 2 * N), draw(M), draw(2 * N)
    z = (a.astype("f8") @ b) * rows[:, None] * columns
    found = gemm(a, b, gated="gelu", scale_a=rows, scale_b=columns)
    np.testing.assert_allclose(found, gated("gelu", z), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stacked", [False, True])
def test_groups(draw, stacked):
    sizes, weights, bias = [3, 0, 2], draw(3, K, 2 * N), draw(3, 2 * N)
    tokens = draw(3, 4, K) if stacked else draw(6, K)
    out, aux = np.full((*tokens.shape[:-1], N), 7, "f4"), np.full((*tokens.shape[:-1], 2 * N), 7, "f4")
    grouped_gemm(tokens, weights, sizes=np.array(sizes, "i4"), bias=bias, gated="silu", aux=aux, out=out)
    before = np.concatenate([[0], np.cumsum(sizes)])
    for i, size in enumerate(sizes):
        at = (i, slice(size)) if stacked else slice(before[i], before[i + 1])
        z = tokens[at].astype("f8") @ weights[i] + bias[i]
        np.testing.assert_allclose(out[at], gated("silu", z), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(aux[at], z, rtol=1e-4, atol=1e-5)
        if stacked:
            assert (out[i, size:] == 7).all() and (aux[i, size:] == 7).all()
    if not stacked:
        assert (out[5:] == 7).all() and (aux[5:] == 7).all()
    found = grouped_gemm(tokens, draw(3, K, N), sizes=np.array(sizes, "i4"), gated="d_silu", aux=aux)
    assert found.shape == aux.shape


A, B, D = np.ones((M, K), "f4"), np.ones((K, 2 * N), "f4"), np.ones((M, N), "f4")
SHORT = np.ones((K, 2 * N - 1), "f4")
REFUSED = [
    (ValueError, lambda: gemm(A, B, gated="tanh"), "gemm: gated='tanh' is not one of 'relu', 'gelu', 'gelu_tanh'"),
    (ValueError, lambda: gemm(A, B, gated="tanh_interleaved"), "gated='tanh_interleaved' is not one of 'relu', "),
    (ValueError, lambda: gemm(A, B, gated="_interleaved"), "gated='_interleaved' is not one of 'relu', "),
    (TypeError, lambda: gemm(A, B, gated=1), "gemm: gated is an int; expected a name such as 'silu'"),
    (ValueError, lambda: gemm(A, B, gated="silu", activation="relu"), "gemm: activation is given but gated is, too"),
    (ValueError, lambda: gemm(A, B, gated="silu", c=D), "gemm: c is given but gated is, too"),
    (ValueError, lambda: gemm(A, B, gated="silu", gate=D), "gemm: gate is given but gated is, too"),
    (ValueError, lambda: gemm(A, B, gated="silu", bias_grad=np.ones(N, "f4")), "bias_grad is given but gated is, too"),
    (ValueError, lambda: gemm(A, SHORT, gated="silu"), r"b is \(16, 11\); expected an even number of columns"),
    (ValueError, lambda: gemm(A, B[:, 0], gated="silu"), r"b is \(16,\); expected 2 dimensions or more beside gated"),
    (ValueError, lambda: gemm(A, B, gated="silu", out=B[:M]), r"out is \(5, 12\); expected \(5, 6\)"),
    (ValueError, lambda: gemm(A, B, gated="silu", aux=D), r"aux is \(5, 6\); expected \(5, 12\)"),
    (ValueError, lambda: gemm(A, B, gated="silu", bias=np.ones(N, "f4")), r"bias is \(6,\); expected \(12,\)"),
    (ValueError, lambda: gemm(A, B, gated="d_silu"), "needs aux"),
    (ValueError, lambda: gemm([A], [B], gated="silu"), "gated"),
    (
        ValueError,
        lambda: grouped_gemm(A.T.copy(), B, offsets=np.array([3, K], "i4"), gated="silu"),
        "gated",
    ),
    (
        ValueError,
        lambda: grouped_gemm(np.ones((2, M, K), "f4"), B, offsets=np.array([3, 12], "i4"), gated="silu"),
        "gated is given but groups divide columns; expected groups of rows",
    ),
]


@pytest.mark.parametrize(("error", "call", "message"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_refused(error, call, message):
    with pytest.raises(error, match=message):
        call()


def test_explain_says_it():
    a, b = TensorSpec((512, 1024), "bf16", device="cuda"), TensorSpec((1024, 2048), "bf16", device="cuda")
    assert "-> silu" in str(explain(GemmArguments(a, b, gated="silu")))
    weights = TensorSpec((8, 1024, 2048), "bf16", device="cuda")
    arguments = GroupedArguments(a, weights, sizes=TensorSpec((8,), "s32", device="cuda"), gated="gelu")
    assert arguments.problem.pairs == "b" and arguments.problem.n == 1024
    assert arguments.replace(gated="d_gelu", aux=TensorSpec((512, 4096), "bf16", device="cuda")).problem.pairs == "d"


@pytest.mark.parametrize("kernel", [None, "cpu_gemm_numpy"])
@pytest.mark.parametrize("function", ["silu", "d_silu"])
def test_a_plan_does_what_a_call_does(draw, function, kernel):
    back = function.startswith("d_")
    a, b = draw(M, K), draw(K, N if back else 2 * N)
    keywords = {"gated": function, **({"aux": draw(M, 2 * N)} if back else {"bias": draw(2 * N)})}
    out = np.full((M, 2 * N if back else N), np.nan, "f4")
    GemmArguments(a, b, out=out, **keywords).plan(kernel=kernel)()
    np.testing.assert_allclose(out, gemm(a, b, **keywords), rtol=1e-5, atol=1e-5)
