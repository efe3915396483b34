"""cutlass_py.jax under JAX's transformations and settings, on the CPU: vmap, scan, export, shard_map, debug_nans."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_formula import formula, normal, wide  # noqa: E402, F401 (a fixture)

import cutlass_py.jax as cj  # noqa: E402

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


# ---------------------------------------------------------------------------------------- scan, export, donation


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


def test_a_donated_c():
    a = normal(4, 4)
    call = jax.jit(lambda a, c: cj.gemm(a, a, c=c), donate_argnums=1)
    np.testing.assert_allclose(call(a, normal(4, 4, seed=2) + 0), formula(a, a, c=normal(4, 4, seed=2)), rtol=1e-12)


# ---------------------------------------------------------------------------------------- shard_map


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


# ---------------------------------------------------------------------------------------- settings


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
