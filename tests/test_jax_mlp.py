"""cutlass_py.jax.mlp on the CPU: its value and gradient against jnp, what is fused, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_formula import FUNCTIONS, normal, wide  # noqa: E402, F401 (a fixture)

import cutlass_py.jax as cj  # noqa: E402


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("layout", ["tt", "tn"])
def test_mlp(activation, layout):
    shapes = [(7, 9), (9, 6), (6, 4)]
    layers = [(normal(*shape), normal(shape[1]) if i != 1 else None) for i, shape in enumerate(shapes)]
    x = normal(2, 3, 7)

    def loss(x, layers):
        return (
            cj.mlp(x, [(w.T if layout == "tn" else w, b) for w, b in layers], activation=activation, layout=layout) ** 2
        ).sum()

    def expected(x, layers):
        for w, b in layers[:-1]:
            x = FUNCTIONS[activation](x @ w + (0 if b is None else b))
        return ((x @ layers[-1][0] + layers[-1][1]) ** 2).sum()

    np.testing.assert_allclose(loss(x, layers), expected(x, layers), rtol=1e-10)
    found, reference = (jax.jit(jax.grad(f, (0, 1)))(x, layers) for f in (loss, expected))
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-9), found, reference)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"activation": "tanh"}, "activation is 'tanh'; expected one of relu, gelu, gelu_tanh, silu"),
        ({"layout": "nn"}, "layout is 'nn'; expected tt or tn"),
        ({"layers": []}, "layers is empty"),
    ],
)
def test_mlp_refuses(keywords, message):
    given = {"layers": [(normal(7, 9), None)]} | keywords
    with pytest.raises(ValueError, match=message):
        cj.mlp(normal(3, 7), **given)


def test_the_gradient_of_mlp_fuses_what_spans_two_layers():
    layers = [(normal(7, 9), normal(9)), (normal(9, 4), normal(4))]
    text = str(jax.make_jaxpr(jax.grad(lambda x, y: cj.mlp(x, y).sum(), (0, 1)))(normal(3, 7), layers))
    fused = [line for line in text.split("cutlass_py_gemm[") if "d_gelu_tanh" in line.split("]")[0]]
    assert len(fused) == 1 and "bias_grad=Result" in fused[0]


@pytest.mark.parametrize("rows, k", [(0, 7), (3, 0)])
def test_mlp_without_elements(rows, k):
    layers = [(jnp.ones((k, 9)), jnp.ones(9)), (jnp.ones((9, 4)), None)]
    found = jax.grad(lambda x, y: cj.mlp(x, y).sum(), (0, 1))(jnp.ones((rows, k)), layers)
    assert found[0].shape == (rows, k) and found[1][0][0].shape == (k, 9)
    np.testing.assert_allclose(found[1][0][1], 4 * rows * jax.grad(jax.nn.gelu)(1.0) * np.ones(9), rtol=1e-9)


def test_mlp_says_what_it_takes():
    x, weight = jnp.ones((4, 8)), jnp.ones((8, 8))
    narrow, half, swapped = weight[:, :5], weight.astype("float16"), np.ones((8, 8), ">f8")
    with pytest.raises(ValueError, match=r"the weight of layer 1 is \(8, 5\); expected \(n, 8\)"):
        cj.mlp(x, [(weight, None), (narrow, None)], layout="tn")
    with pytest.raises(ValueError, match=r"the bias of layer 1 is \(1, 8\); expected one dimension"):
        cj.mlp(x, [(weight, None), (weight, jnp.ones((1, 8)))])
    for error, message, given in [
        (TypeError, "x is a list; expected an array", ([[1.0]], [(weight, None)])),
        (TypeError, "x is a NoneType; expected an array", (None, [(weight, None)])),
        (ValueError, r"x is \(\); expected at least one dimension", (jnp.float32(1), [(weight, None)])),
        (TypeError, "layers is a .*Array.*; expected a list of", (x, weight)),
        (TypeError, "layers is a numpy.ndarray; expected a list of", (x, np.ones((2, 2)))),
        (TypeError, "layers is a NoneType; expected a list of", (x, None)),
        (TypeError, "layer 0 is a .*Array.*; expected .weight, bias.", (x, [weight])),
        (TypeError, "layer 1 is a .*Array.*; expected .weight, bias.", (x, [(weight, None), weight[:2]])),
        (ValueError, "layer 0 has 3 entries; expected .weight, bias.", (x, [(weight, None, None)])),
        (TypeError, "the weight of layer 0 is a NoneType; expected an array", (x, [(None, None)])),
        (ValueError, r"the weight of layer 0 is \(1, 8, 8\); expected two dimensions", (x, [(weight[None], None)])),
        (ValueError, r"the weight of layer 0 is \(8,\); expected two dimensions", (x, [(weight[0], None)])),
        (TypeError, "the bias of layer 0 is a float; expected an array", (x, [(weight, 0.0)])),
        (ValueError, r"the weight of layer 0 is \(7, 8\); expected \(8, n\)", (x, [(weight[:7], None)])),
        (ValueError, r"the weight of layer 1 is \(8, 8\); expected \(5, n\)", (x, [(narrow, None), (weight, None)])),
        (TypeError, "the weight of layer 1 is f16; expected f64, as x is", (x, [(weight, None), (half, None)])),
        (ValueError, r"the bias of layer 1 is \(3,\); expected \(8,\)", (x, [(weight, None), (weight, weight[0, :3])])),
        (TypeError, "the bias of layer 0 is f16; expected f64 or f32", (x, [(weight, half[0])])),
        (TypeError, "the weight of layer 0 is a numpy.ndarray of >f8, which JAX", (x, [(swapped, None)])),
    ]:
        with pytest.raises(error, match=f"^mlp: {message}"):
            cj.mlp(*given)
    with pytest.raises(TypeError, match="x is float8_e4m3fn; expected f16, bf16, f32 or f64"):
        cj.mlp(x.astype(jnp.float8_e4m3fn), [(weight, None)])


def test_mlp_takes_arrays_of_numpy():
    x, weight, bias = normal(4, 8), normal(8, 8), normal(8)
    given = [np.asarray(y) for y in (x, weight, bias)]
    np.testing.assert_array_equal(cj.mlp(given[0], [given[1:]]), cj.mlp(x, [(weight, bias)]))
