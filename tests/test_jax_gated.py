"""Gates and values beside each other in cutlass_py.jax: values, derivatives, batches, what is lowered, errors."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.test_util import check_grads  # noqa: E402
from jax_formula import FUNCTIONS, normal, wide  # noqa: E402, F401 (a fixture)
from test_jax_ffi import attributes, declared, lowered, struct  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
import cutlass_py.jax as cj  # noqa: E402
from cutlass_py.declaration.epilogues import GATED, INTERLEAVED  # noqa: E402

M, N, K = 5, 3, 4
NAMES = [*GATED, "silu" + INTERLEAVED]


def formula(function, z):
    gates, values = (z[..., ::2], z[..., 1::2]) if function.endswith(INTERLEAVED) else jnp.split(z, 2, -1)
    return FUNCTIONS[function.removesuffix(INTERLEAVED)](gates) * values


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layout", ["tt", "tn"])
@pytest.mark.parametrize("function", NAMES)
def test_values_and_derivatives(function, layout):
    a, b, bias = normal(M, K), normal(K, 2 * N), normal(2 * N)
    b = b.T if layout == "tn" else b

    def call(a, b, bias):
        return cj.gemm(a, b, layout=layout, bias=bias, alpha=0.5, scale_out=2.0, gated=function)

    z = 0.5 * (a @ (b.T if layout == "tn" else b)) + bias
    close(call(a, b, bias), 2 * formula(function, z))
    close(jax.jit(call)(a, b, bias), 2 * formula(function, z))
    check_grads(call, (a, b, bias), 2, modes=["rev"])


@pytest.mark.parametrize("function", NAMES)
def test_a_derivative_and_its_own(function):
    a, w, aux = normal(M, K), normal(K, N), normal(M, 2 * N)
    call = partial(lambda a, w, aux: cj.gemm(a, w, gated=f"d_{function}", aux=aux))
    close(call(a, w, aux), jax.vjp(partial(formula, function), aux)[1](a @ w)[0])
    check_grads(call, (a, w, aux), 2, modes=["rev"])
    check_grads(lambda a, w: call(a, w, aux), (a, w), 1, modes=["rev"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
def test_results_are_those_of_gemm(dtype):
    a, b, aux = normal(M, 16, dtype=dtype), normal(16, 2 * N, dtype=dtype), jax.ShapeDtypeStruct((M, 2 * N), "float32")
    kept = np.zeros((M, 2 * N), "f4")
    wanted = cutlass_py.gemm(np.asarray(a), np.asarray(b), gated="silu", aux=kept)
    d, z = cj.gemm(a, b, gated="silu", aux=aux)
    assert d.dtype == wanted.dtype and d.shape == wanted.shape
    np.testing.assert_allclose(d.astype("f4"), wanted.astype("f4"), rtol=2e-2, atol=1e-5)
    np.testing.assert_allclose(z, kept, rtol=1e-5, atol=1e-5)


def test_what_is_kept_and_its_gradient():
    a, b = normal(2, M, K), normal(K, 2 * N)
    aux = jax.ShapeDtypeStruct((2, M, 2 * N), "float64")

    def call(a, b):
        d, z = cj.gemm(a, b, gated="gelu", aux=aux)
        return d, jnp.sin(z)

    close(call(a, b)[0], formula("gelu", a @ b))
    check_grads(call, (a, b), 2, modes=["rev"])


def test_batches_vectors_and_factors():
    a, b, scale, rows = normal(2, M, K), normal(K, 2 * N), normal(), normal(M)
    call = partial(cj.gemm, gated="silu")
    close(jax.vmap(call, (0, None))(a, b), formula("silu", a @ b))
    close(call(a[0, 0], b), formula("silu", a[0, 0] @ b))
    back, aux = partial(cj.gemm, gated="d_silu"), normal(2, M, 2 * N, seed=1)
    found = jax.vmap(lambda a, aux: back(a, b[:, :N], aux=aux))(a, aux)
    close(found, jax.vjp(partial(formula, "silu"), aux)[1](a @ b[:, :N])[0])
    scaled = lambda b, s, r: call(a, b, alpha=s, scale_a=r, scale_out=s)  # noqa: E731
    check_grads(scaled, (b, scale, rows), 2, modes=["rev"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 3), (3, 0, 4), (3, 4, 0)])
def test_what_has_no_elements(m, n, k):
    a, b, bias = normal(m, k), normal(k, 2 * n), normal(2 * n)
    close(cj.gemm(a, b, bias=bias, gated="silu"), formula("silu", a @ b + bias))


@pytest.mark.parametrize(
    ("error", "message", "keywords"),
    [
        (ValueError, "gemm: gated='tanh' is not one of 'relu', 'gelu'", {"gated": "tanh"}),
        (ValueError, "gemm: gated='_interleaved' is not one of 'relu', 'gelu'", {"gated": "_interleaved"}),
        (TypeError, "gemm: gated is an int; expected a name", {"gated": 1}),
        (ValueError, "gemm: activation is given but gated is, too", {"gated": "silu", "activation": "relu"}),
        (ValueError, "gemm: c is given but gated is, too", {"gated": "silu", "c": np.ones((M, N))}),
    ],
)
def test_refused(error, message, keywords):
    with pytest.raises(error, match=message):
        cj.gemm(normal(M, K), normal(K, 2 * N), **keywords)
    with pytest.raises(ValueError, match="expected an even number of columns"):
        cj.gemm(normal(M, K), normal(K, 2 * N - 1), gated="silu")


# ------------------------------------------------------------------------------------------------ lowered for CUDA


def kernels(text):
    return re.findall(r'kernel = "(\w+)"', text)


def test_a_kernel_joins_them(declared):  # noqa: F811
    x, w = struct(512, 1024), struct(4096, 1024)
    text = lowered(lambda x, w: cj.gemm(x, w, layout="tn", gated="silu"), x, w)
    assert "fused_gated" in attributes(text)["kernel"] and "gated = 1" in text and 'activation = "silu"' in text
    assert "tensor<512x2048xbf16>" in text and "logistic" not in text
    loss = jax.grad(lambda x, w: cj.gemm(x, w, layout="tn", gated="silu").astype("f4").sum(), (0, 1))
    names = kernels(lowered(loss, x, w))
    assert "fused_gated_aux" in names[0] and len(names) == 3
    back = lowered(
        lambda x, w, z: cj.gemm(x, w, layout="tn", gated="d_silu", aux=z), x, struct(2048, 1024), struct(512, 4096)
    )
    assert "fused_d_gated" in attributes(back)["kernel"]


def test_elsewhere_xlas_operations_do(declared):  # noqa: F811
    """Behind the product, in the dtype of its sums."""
    x, w = struct(512, 1024, dtype="float32"), struct(1024, 4096, dtype="float32")
    text = lowered(lambda x, w: cj.gemm(x, w, gated="silu"), x, w)
    (name,) = kernels(text)
    assert "gated" not in name and "-> (tensor<512x4096xf32>" in text
    assert "exponential" in text and "dot_general" not in text
    empty = lowered(lambda x, w: cj.gemm(x, w, gated="silu"), struct(512, 0), struct(0, 64))
    assert "tensor<512x32xbf16>" in empty
