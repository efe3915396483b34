"""cutlass_py.jax under JAX's transformations, on the CPU: grad, vmap, scan, checkpoint, export, donation, shard_map."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

import cutlass_py.jax as cj  # noqa: E402
from cutlass_py.jax import primitive  # noqa: E402


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def normal(*shape, seed: int = 0, dtype="float64"):
    x = np.random.default_rng([seed, *shape]).standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.random.default_rng([seed + 1, *shape]).standard_normal(shape)
    return jnp.asarray(x, dtype)


FUNCTIONS = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "hardswish": jax.nn.hard_swish,
    "d_gelu_tanh": jax.vmap(jax.grad(jax.nn.gelu)),
    "d_silu": jax.vmap(jax.grad(jax.nn.silu)),
}


def formula(a, b, layout="tt", c=0.0, alpha=1.0, beta=1.0, bias=0.0, activation=None, gate=None, aux=None, scale_a=1.0,
            scale_b=1.0, scale_out=1.0):  # fmt: skip
    """gemm's formula by jnp alone."""
    a, b = (jnp.swapaxes(x, -1, -2) if lies == "n" else x for x, lies in zip((a, b), layout, strict=True))
    z = alpha * scale_a * scale_b * (a @ b) + beta * c + bias
    if aux is not None:
        return scale_out * z * FUNCTIONS[activation](aux.ravel()).reshape(aux.shape)
    return scale_out * (FUNCTIONS[activation](z) if gate is None else z * FUNCTIONS[activation](gate))


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


# ------------------------------------------------------------------------------------------------ grad


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


# ------------------------------------------------------------------------------------------------ vmap


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 2), (2, None)])
@pytest.mark.parametrize("layout", ["tt", "nn"])
def test_vmap(axes, layout):
    def operand(axis, *shape):
        return normal(*shape) if axis is None else jnp.moveaxis(normal(3, *shape), 0, axis)

    a, b = (operand(axis, *shape) for axis, shape in zip(axes, ((5, 5), (5, 5)), strict=True))
    found = jax.vmap(lambda a, b: cj.gemm(a, b, layout=layout), in_axes=axes)(a, b)
    np.testing.assert_allclose(found, jax.vmap(lambda a, b: formula(a, b, layout), in_axes=axes)(a, b), rtol=1e-12)


def test_vmap_leaves_a_shared_operand_alone():
    jaxpr = str(jax.make_jaxpr(jax.vmap(cj.gemm, in_axes=(0, None)))(normal(3, 5, 7), normal(7, 4)))
    assert "broadcast_in_dim" not in jaxpr and jaxpr.count("cutlass_py_gemm") == 1


@pytest.mark.parametrize(
    "name", ["a", "b", "c", "bias", "gate", "scale_a", "scale_b", "alpha", "beta", "scale_out", "scales"]
)
def test_vmap_over_one_operand(name):
    one = jnp.asarray(0.75, jnp.float64)
    x = {
        "a": normal(2, 5, 7), "b": normal(7, 4), "c": normal(5, 4), "bias": normal(4), "gate": normal(5, 4, seed=1),
        "scale_a": normal(5, 1), "scale_b": normal(1, 4), "alpha": one, "beta": one, "scale_out": one,
    }  # fmt: skip
    if name == "scales":
        x["scale_a"] = x["scale_b"] = one
    names = ("scale_a", "scale_b") if name == "scales" else (name,)
    stacked = {each: jnp.stack([x[each], 2 * x[each], x[each] + 1]) for each in names}
    found = jax.vmap(lambda y: cj.gemm(**(x | y), activation="silu"))(stacked)
    expected = jax.vmap(lambda y: formula(**(x | y), activation="silu"))(stacked)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_vmap_of_vmap_and_of_vectors():
    a, b = normal(2, 3, 5, 7), normal(3, 7)
    found = jax.vmap(jax.vmap(cj.gemm, in_axes=(0, 0)), in_axes=(0, None))(a, b)
    np.testing.assert_allclose(found, np.einsum("xyij,yj->xyi", a, b), rtol=1e-12)


def test_vmap_of_what_gemm_writes():
    a, b = normal(3, 5, 7), normal(7, 4)

    def call(a):
        return cj.gemm(
            a, b, activation="silu", aux=jax.ShapeDtypeStruct((5, 4), "float64"),
            bias_grad=jax.ShapeDtypeStruct((4,), "float64"),
        )  # fmt: skip

    d, aux, total = jax.vmap(call)(a)
    np.testing.assert_allclose(aux, a @ b, rtol=1e-12)
    np.testing.assert_allclose(d, jax.nn.silu(a @ b), rtol=1e-12)
    np.testing.assert_allclose(total, d.sum(1), rtol=1e-12)


def test_gradients_per_example():
    x, w, bias = normal(6, 7), normal(7, 4), normal(4)

    def loss(call):
        return jax.vmap(
            jax.grad(lambda w, bias, x: call(x[None], w, bias=bias, activation="tanh").sum(), (0, 1)), (None, None, 0)
        )

    for found, expected in zip(loss(cj.gemm)(w, bias, x), loss(formula)(w, bias, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


# ------------------------------------------------------------------------------------------------ the rest


def test_scan_and_checkpoint():
    w, x = normal(4, 6, 6), normal(3, 6)

    def loss(call, w):
        step = jax.checkpoint(lambda x, w: (call(x, w, activation="tanh"), None))
        return jax.lax.scan(step, x, w)[0].sum()

    found, expected = (jax.jit(jax.grad(lambda w, call=call: loss(call, w)))(w) for call in (cj.gemm, formula))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("through", [jax.jit, jax.checkpoint, jax.vmap, lambda f: lambda x: jax.lax.map(f, x)])
def test_a_product_of_constants_within_a_transformation(through):
    a, b, x = normal(5, 7), normal(7, 3, seed=1), normal(4, 3, seed=2)

    def gradient(multiply):
        f = through(lambda x: (x * multiply(a, b).sum(0)).sum())
        return jax.grad(lambda x: f(x).sum())(x)

    np.testing.assert_allclose(gradient(cj.matmul), gradient(jnp.matmul), rtol=1e-12)


def test_export_and_back():
    a, b = normal(5, 7), normal(7, 4)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("cutlass_py_gemm")]
    exported = jax.export.export(jax.jit(lambda a, b: cj.gemm(a, b, activation="gelu")), disabled_checks=allowed)(a, b)
    np.testing.assert_allclose(exported.call(a, b), formula(a, b, activation="gelu"), rtol=1e-12, atol=1e-12)
    pytest.importorskip("flatbuffers")
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(a, b), formula(a, b, activation="gelu"), rtol=1e-12, atol=1e-12)


def test_forward_mode_and_transposition_are_refused():
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda a: cj.gemm(a, a), (normal(3, 3),), (normal(3, 3),))
    with pytest.raises(Exception, match="[Tt]ranspos|linear|differentiation rule"):
        jax.linear_transpose(lambda a: cj.gemm(a, normal(3, 3)), normal(3, 3))(normal(3, 3))


SHARDED = """
import numpy as np, jax, jax.numpy as jnp, cutlass_py.jax as cj
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
key = jax.random.split(jax.random.key(0), 4)
x, w1, w2 = jax.random.normal(key[0], (8, 6)), jax.random.normal(key[1], (6, 10)), jax.random.normal(key[2], (10, 4))

def tensor_parallel(x, w1, w2):  # columns of the first weight, rows of the second
    return jax.lax.psum(cj.gemm(cj.gemm(x, w1, activation="gelu_tanh"), w2), "x")

def data_parallel(x, w1, w2):
    return cj.mlp(x, [(w1, None), (w2, None)])

def expected(x, w1, w2):
    return jax.nn.gelu(x @ w1) @ w2

for call, specs, out in (
    (tensor_parallel, (P(), P(None, "x"), P("x")), P()),
    (data_parallel, (P("x"), P(), P()), P("x")),
):
    sharded = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=out)
    np.testing.assert_allclose(jax.jit(sharded)(x, w1, w2), expected(x, w1, w2), rtol=1e-4, atol=1e-4)
    loss = lambda call: jax.jit(jax.grad(lambda *w: (call(*w) ** 2).sum(), (0, 1, 2)))
    for p, q in zip(loss(sharded)(x, w1, w2), loss(expected)(x, w1, w2)):
        np.testing.assert_allclose(p, q, rtol=1e-3, atol=1e-3)
print("done")
"""


def test_shard_map():
    """In a process of its own: the number of devices is settled when JAX starts."""
    found = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True)
    assert found.stdout == "done\n", found.stderr


def test_a_donated_c():
    a = normal(4, 4)
    call = jax.jit(lambda a, c: cj.gemm(a, a, c=c), donate_argnums=1)
    np.testing.assert_allclose(call(a, normal(4, 4, seed=2) + 0), formula(a, a, c=normal(4, 4, seed=2)), rtol=1e-12)


# ---------------------------------------------------------------------------------------- corners


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


def test_without_jit_and_with_debug_nans():
    a, b = jnp.ones((4, 8)), jnp.ones((8, 4))
    with jax.disable_jit():
        np.testing.assert_array_equal(cj.gemm(a, b), np.full((4, 4), 8.0))
        np.testing.assert_array_equal(jax.grad(lambda x: cj.gemm(x, b).sum())(a), np.full((4, 8), 4.0))
    with jax.debug_nans(True), jax.debug_infs(True):
        np.testing.assert_array_equal(cj.gemm(a, b), np.full((4, 4), 8.0))


def test_promotion_may_be_forbidden():
    a, b, rows, w2 = (jnp.ones(shape, "bfloat16") for shape in ((2, 6, 8), (8, 4), (6, 1), (4, 8)))
    sums = jax.ShapeDtypeStruct((4,), "float32")

    def loss(a, b):
        y, db = cj.gemm(a, b, bias=rows, scale_a=rows.astype("float32"), activation="silu", bias_grad=sums)
        return y.astype("float32").sum() + db.sum() + cj.mlp(a, [(b, None), (w2, None)]).astype("float32").sum()

    wanted = jax.grad(loss, (0, 1))(a, b)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.tree.map(np.testing.assert_array_equal, jax.grad(loss, (0, 1))(a, b), wanted)


@pytest.mark.parametrize("debug, value", [(jax.debug_nans, np.nan), (jax.debug_infs, np.inf)])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_debug_nans_and_infs(debug, value, transform):
    a, b = jnp.full((4, 8), value), jnp.ones((8, 4))
    with debug(True), pytest.raises(FloatingPointError, match=f"{value}.* encountered in cutlass_py_gemm"):
        transform(cj.matmul)(a, b)


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


@pytest.mark.parametrize("how", ["plain", "checkpoint", "grad of checkpoint", "scan", "grad of scan"])
@pytest.mark.parametrize("function", ["gemm", "mlp"])
def test_shard_map_without_jit(how, function):
    mesh = jax.make_mesh((1,), ("r",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.sharding.PartitionSpec("r"), jax.sharding.PartitionSpec()

    def call(multiply):
        def one(a, b):
            if function == "mlp" and multiply is cj.gemm:
                return cj.mlp(a, [(b, None), (b, None)], activation="silu")
            y = multiply(a, b, activation="silu")
            return multiply(y, b) if function == "mlp" else y

        def scanned(a, b):
            return jax.lax.scan(lambda x, _: (one(x, b), None), a, length=2)[0]

        inner = {"plain": one, "checkpoint": jax.checkpoint(one), "scan": scanned}[how.removeprefix("grad of ")]
        if how.startswith("grad"):
            return lambda a, b: jax.grad(lambda a: inner(a, b).sum())(a)
        return inner

    a, b = normal(8, 4), normal(4, 4)
    sharded = jax.shard_map(call(cj.gemm), mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    np.testing.assert_allclose(sharded(a, b), call(formula)(a, b), rtol=1e-9)
    found, expected = (jax.grad(lambda b, f=f: f(a, b).sum())(b) for f in (sharded, call(formula)))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
