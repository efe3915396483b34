"""Gradients of cutlass_py.jax on the CPU against those of jnp: every array, dtypes that meet, what runs and is kept."""

from __future__ import annotations

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_formula import formula, normal, wide  # noqa: E402, F401 (a fixture)

import cutlass_py.jax as cj  # noqa: E402
from cutlass_py.jax import primitive  # noqa: E402


def assert_same_gradients(a, b, *, names=None, tolerance=1e-9, **keywords):
    """Of a weighted sum, with respect to every array, by cutlass_py.jax and by jnp."""
    arrays = {"a": a, "b": b} | {name: x for name, x in keywords.items() if isinstance(x, jax.Array)}
    others = {name: x for name, x in keywords.items() if name not in arrays}
    weights = normal(*jax.eval_shape(lambda x: formula(**x, **others), arrays).shape, seed=9)

    def loss(call, arrays):
        y = call(arrays["a"], arrays["b"], **{k: x for k, x in arrays.items() if k not in "ab"}, **others)
        return (y * weights).real.sum()

    expected = jax.grad(lambda x: loss(formula, x))(arrays)
    for transform in (lambda f: f, jax.jit):
        found = transform(jax.grad(lambda x: loss(cj.gemm, x)))(arrays)
        for name, x in arrays.items():
            assert found[name].dtype == x.dtype and found[name].shape == x.shape
            np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize(
    "batches", [((), ()), ((2,), ()), ((), (2,)), ((2,), (2,)), ((2, 1), (3,)), ((2,), (1,)), ((1,), (2, 1))]
)
def test_gradient_of_a_product(layout, batches):
    shapes = [(5, 7), (7, 4)]
    a, b = (
        normal(*batch, *(shape[::-1] if lies == "n" else shape))
        for batch, shape, lies in zip(batches, shapes, layout, strict=True)
    )
    assert_same_gradients(a, b, layout=layout, alpha=0.5)


@pytest.mark.parametrize(
    "activation", ["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"]
)
def test_gradient_through_an_activation(activation):
    a, b, bias, c = normal(5, 7), normal(7, 4), normal(4), normal(5, 4)
    assert_same_gradients(a, b, c=c, beta=-0.5, bias=bias, activation=activation, scale_out=2.0)


@pytest.mark.parametrize("activation", [None, "gelu_tanh", "silu"])
def test_gradient_through_a_gate(activation):
    assert_same_gradients(
        normal(5, 7), normal(7, 4), gate=normal(5, 4, seed=3), activation=activation, bias=normal(5, 1)
    )


@pytest.mark.parametrize("activation", ["d_gelu_tanh", "d_silu"])
def test_gradient_of_a_gradient(activation):
    assert_same_gradients(normal(5, 7), normal(7, 4), aux=normal(5, 4, seed=3), activation=activation, c=normal(5, 4))


def test_gradient_of_every_array_at_once():
    def one(value):
        return jnp.asarray(value, jnp.float64)

    assert_same_gradients(
        normal(2, 5, 7), normal(7, 4), c=normal(5, 4, seed=2), alpha=one(0.7), beta=one(-1.5),
        bias=normal(1, 4, seed=3), activation="silu", scale_a=abs(normal(5, 1, seed=4)),
        scale_b=abs(normal(2, 1, 4, seed=5)), scale_out=one(2.5),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_gradient_of_complex_operands(dtype):
    a, b, c = (normal(*shape, dtype=dtype) for shape in ((5, 7), (7, 4), (5, 4)))
    assert_same_gradients(a, b, c=c, alpha=0.5 - 2j, beta=1j, tolerance=1e-4 if dtype == "complex64" else 1e-9)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 4e-2), ("float16", 6e-3), ("float32", 1e-5)])
def test_gradient_in_narrow_dtypes(dtype, tolerance):
    a, b, bias = normal(16, 24, dtype=dtype), normal(24, 8, dtype=dtype), normal(8, dtype=dtype)
    exact = [x.astype(jnp.float64) for x in (a, b, bias)]
    found = jax.grad(lambda *x: cj.gemm(*x[:2], bias=x[2], activation="gelu").astype(jnp.float64).sum(), (0, 1, 2))(
        a, b, bias
    )
    expected = jax.grad(lambda *x: formula(*x[:2], bias=x[2], activation="gelu").sum(), (0, 1, 2))(*exact)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x.astype(float), y, rtol=tolerance, atol=tolerance * float(abs(y).max()))


@pytest.mark.parametrize("activation", [None, "tanh", "hardswish"])
@pytest.mark.parametrize(
    "dtypes",  # of a and b, of the result, of c or gate, of bias_grad or of nothing
    [
        ("float64", "float64", {"gate": "float32"}, None),
        ("float64", "float32", {"gate": "bfloat16"}, None),
        ("float64", "float32", {"c": "float16"}, None),
        ("float32", "float32", {"c": "float64"}, None),
        ("float32", "float32", {"gate": "float64"}, "float64"),
        ("float32", "float32", {}, "float64"),
        ("bfloat16", "float64", {"gate": "float32"}, "float32"),
        ("float16", "float64", {"c": "float32"}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("scaled", [False, True])
def test_gradient_where_dtypes_meet(activation, dtypes, scaled):
    """The same as by arrays that are all of f64, and without an implicit promotion."""
    narrow, out_dtype, other, sums = dtypes
    x = {"a": normal(5, 7, dtype=narrow), "b": normal(7, 4, dtype=narrow)}
    x |= {name: normal(5, 4, seed=3, dtype=dtype) for name, dtype in other.items()}
    if scaled:
        factor = jnp.asarray(1.5, "float64" if narrow == "float64" else "float32")
        x |= {"alpha": factor, "scale_a": factor, "scale_out": factor} | ({"beta": factor} if "c" in x else {})

    def loss(x, out_dtype, sums):
        more = {"bias_grad": jax.ShapeDtypeStruct((4,), sums)} if sums else {}
        found = cj.gemm(**x, activation=activation, out_dtype=out_dtype, **more)
        return sum((y.astype("float64") ** 2).sum() for y in jax.tree.leaves(found))

    expected = jax.grad(loss)({name: y.astype("float64") for name, y in x.items()}, "f64", sums and "float64")
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = jax.grad(loss)(x, out_dtype, sums)
    for name, y in x.items():
        assert found[name].dtype == y.dtype
        tolerance = 8 * float(max(jnp.finfo(dtype).eps for dtype in (narrow, out_dtype, y.dtype)))
        tolerance *= max(1, float(abs(expected[name]).max()))
        np.testing.assert_allclose(found[name].astype(float), expected[name], rtol=0, atol=tolerance, err_msg=name)


def test_gradient_to_a_narrower_aux():
    a, b, aux = normal(5, 7), normal(7, 4), normal(5, 4, seed=3)
    found, expected = (
        jax.grad(lambda aux: cj.gemm(a, b, aux=aux, activation="d_silu").sum())(x) for x in (aux.astype("f4"), aux)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 1e-2), ("bfloat16", 8e-2)])
@pytest.mark.parametrize("name", ["c", "gate"])
def test_a_second_derivative_through_a_rounding_to_16_bits(dtype, tolerance, name):
    a, b, x = normal(5, 7), normal(7, 4), normal(5, 4, seed=3, dtype=dtype)

    def twice(call):
        once = jax.grad(lambda x, a: (call(a, b, **{name: x}, activation="gelu") ** 2).sum())
        return jax.grad(lambda a: (once(x, a).astype("float64") ** 2).sum())(a)

    found, expected = (twice(call) for call in (cj.gemm, formula))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * float(abs(expected).max()))


def gemms_of(gradient, x) -> int:
    """How many gemms an eager gradient runs."""
    seen, run = [], primitive.gemm_p.impl
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(primitive.gemm_p, "impl", lambda *operands, spec: seen.append(spec) or run(*operands, spec=spec))
        gradient(x)
    return len(seen)


def test_only_the_gemms_that_are_asked_for_run():
    one = jnp.asarray(0.5)
    x = {"a": normal(5, 7), "b": normal(7, 4)}
    bias, scales, out = {"bias": normal(4)}, {"scale_a": one, "scale_b": one}, {"scale_out": one}
    for names, more, count in [
        ("a", {}, 2), ("b", {}, 2), ("ab", {}, 3), (["bias"], bias, 1), ("b", bias, 2), ("b", scales, 2),
        (["scale_a"], scales, 2), (["scale_a", "scale_b", "b"], scales, 3), ("a", out, 2), (["scale_out"], out, 2),
    ]:  # fmt: skip
        given = x | more
        loss = jax.grad(lambda y, given=given: cj.gemm(**(given | y), activation="silu").sum())
        assert gemms_of(loss, {name: given[name] for name in names}) == count, (names, more)


def test_a_given_aux_is_kept_where_it_holds_all_values_of_the_result():
    a, b = normal(5, 7, dtype="bfloat16"), normal(7, 4, dtype="bfloat16")
    for aux, count in {"bfloat16": 2, "float32": 2, "float16": 3}.items():
        z = jax.ShapeDtypeStruct((5, 4), aux)
        loss = jax.grad(lambda a, z=z: cj.gemm(a, b, activation="silu", aux=z)[0].astype("float32").sum())
        assert gemms_of(loss, a) == count, aux


def test_gradient_of_fp8_operands_is_rounded_once_more():
    a, b = normal(16, 32).astype("float8_e4m3fn"), normal(32, 16).astype("float8_e5m2")
    found = jax.grad(lambda a, b: cj.gemm(a, b, scale_a=0.5, out_dtype="f32").sum(), (0, 1))(a, b)
    assert [x.dtype for x in found] == [a.dtype, b.dtype]
    np.testing.assert_allclose(
        found[0].astype(float), np.broadcast_to(b.astype(float).sum(1) / 2, (16, 32)), rtol=2**-3, atol=2**-8
    )


def test_gradient_beside_integers():
    a, bias = jnp.ones((3, 4), jnp.int8), jnp.ones(3, jnp.float32)
    found = jax.grad(lambda bias: cj.gemm(a, a.T, bias=bias, out_dtype="f32", activation="silu").sum())(bias)
    np.testing.assert_allclose(found, 3 * jax.vmap(jax.grad(jax.nn.silu))(jnp.full(3, 5.0)), rtol=1e-6)


def test_integers_have_no_gradient():
    a, bias = jnp.ones((3, 4), jnp.int8), jnp.ones(3, jnp.float32)
    found = jax.grad(lambda bias: cj.gemm(a, a.T, bias=bias, activation="silu").astype(jnp.float32).sum())(bias)
    np.testing.assert_array_equal(found, np.zeros(3))


def test_gradient_through_what_gemm_returns_beside_d():
    a, b = normal(5, 7), normal(7, 4)

    def loss(a, b):
        d, aux, total = cj.gemm(
            a, b, activation="silu", aux=jax.ShapeDtypeStruct((5, 4), "float64"),
            bias_grad=jax.ShapeDtypeStruct((5, 1), "float64"),
        )  # fmt: skip
        return (d**2).sum() + jnp.sin(aux).sum() + (total**3).sum()

    def expected(a, b):
        y = jax.nn.silu(a @ b)
        return (y**2).sum() + jnp.sin(a @ b).sum() + (y.sum(1) ** 3).sum()

    for x, y in zip(jax.grad(loss, (0, 1))(a, b), jax.grad(expected, (0, 1))(a, b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)], ids=str)
@pytest.mark.parametrize("batches", [((), ()), ((5,), ()), ((5,), (5,)), ((), (5,)), ((0,), ())], ids=str)
@pytest.mark.parametrize("layout", ["tt", "nn"])
def test_gradient_without_elements(shape, batches, layout):
    m, k, n = shape
    a, b = (
        jnp.ones((*batch, *(extents[::-1] if lies == "n" else extents)))
        for batch, extents, lies in zip(batches, ((m, k), (k, n)), layout, strict=True)
    )
    assert_same_gradients(a, b, layout=layout)


@pytest.mark.parametrize("operand", ["gate", "aux"])
def test_gradient_beside_a_gate_or_aux_without_the_batch(operand):
    for activation in ("d_silu",) if operand == "aux" else (None, "silu", "tanh", "relu"):
        given = {operand: normal(5, 4, seed=3), "activation": activation}
        assert_same_gradients(normal(2, 3, 5, 7), normal(7, 4), **given)


@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh", "hardswish"])
@pytest.mark.parametrize("aux", ["int8", "float8_e4m3fn", "bfloat16", "float32"])
def test_a_narrow_aux_does_not_change_the_gradient(activation, aux):
    a, b = normal(5, 7), normal(7, 4)

    def loss(a, b, **more):
        found = cj.gemm(a, b, activation=activation, **more)
        d, written = found if more else (found, None)
        return (d * normal(5, 4, seed=9)).sum(), written

    more = {"aux": jax.ShapeDtypeStruct((5, 4), aux)}
    found, written = jax.grad(loss, (0, 1), has_aux=True)(a, b, **more)
    expected, _ = jax.grad(loss, (0, 1), has_aux=True)(a, b)
    np.testing.assert_array_equal(written, loss(a, b, **more)[1])
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


def kept_by(call, *arrays) -> list[str]:
    """What each gemm of the forward pass returns, by shape and dtype."""
    text = str(jax.make_jaxpr(lambda *x: jax.vjp(call, *x)[0])(*arrays))
    return re.findall(r"^ *(.+?) = cutlass_py_gemm\[", text, re.MULTILINE)


def test_z_is_kept_where_the_derivative_needs_it():
    a, b, gate = normal(5, 7), normal(7, 4), normal(5, 4)
    for activation, count in {None: 1, "relu": 1, "sigmoid": 1, "tanh": 1, "gelu": 2, "silu": 2}.items():
        (found,) = kept_by(lambda a, b, activation=activation: cj.gemm(a, b, activation=activation), a, b)
        assert found.count("f64[5,4]") == count, activation
    (found,) = kept_by(lambda a, b: cj.gemm(a, b, activation="tanh", scale_out=2.0), a, b)
    assert found.count("f64[5,4]") == 2  # D is not tanh(z)
    (found,) = kept_by(lambda a, b: cj.gemm(a, b, gate=gate, activation="silu"), a, b)
    assert found.count("f64[5,4]") == 1  # nobody asks for the gradient of the gate
    (found,) = kept_by(lambda a, gate: cj.gemm(a, b, gate=gate, activation="silu"), a, gate)
    assert found.count("f64[5,4]") == 2
    layers = [(b, None), (normal(4, 3), None)]
    for activation, count in {"relu": 1, "silu": 2}.items():
        found, _ = kept_by(lambda a, activation=activation: cj.mlp(a, layers, activation=activation), a)
        assert found.count("f64[5,4]") == count


def test_gradient_where_the_result_is_not_used():
    a, b = normal(5, 7), normal(7, 4)

    def loss(a):
        _, z, total = cj.gemm(
            a, b, activation="silu", aux=jax.ShapeDtypeStruct((5, 4), "float64"),
            bias_grad=jax.ShapeDtypeStruct((4,), "float64"),
        )  # fmt: skip
        return (z**2).sum()

    np.testing.assert_allclose(jax.grad(loss)(a), 2 * (a @ b) @ b.T, rtol=1e-10)


def test_a_second_derivative():
    x, w = normal(3, 4), normal(4, 2)

    def hessian(call):
        return jax.jit(jax.jacrev(jax.grad(lambda x: (call(x, w, activation="gelu_tanh") ** 2).sum())))(x)

    np.testing.assert_allclose(hessian(cj.gemm), hessian(formula), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("keywords", ["plain", "gate", "c", "aux", "scale_out"])
def test_gradient_through_fp8(keywords):
    fp8 = jnp.float8_e4m3fn
    a, b = (jnp.linspace(-1, 1, 8 * 8).reshape(8, 8).astype(fp8) for _ in range(2))
    more = {
        "plain": {}, "gate": {"gate": a}, "c": {"c": b, "beta": jnp.float32(0.5)}, "scale_out": {"scale_out": 2.0},
        "aux": {"aux": jax.ShapeDtypeStruct((8, 8), fp8)},
    }[keywords]  # fmt: skip

    def loss(x):
        found = cj.gemm(x, b, out_dtype="e4m3", **more)
        return sum(y.astype("float32").sum() for y in jax.tree.leaves(found))

    found = jax.grad(loss)(a)
    factor = {"scale_out": 2, "aux": 2}.get(keywords, 1) * (np.asarray(a, "f4") if keywords == "gate" else 1)
    wanted = (np.ones((8, 8)) * factor) @ np.asarray(b, "f4").T
    np.testing.assert_allclose(np.asarray(found, "f4"), wanted, rtol=0.15, atol=0.15)
