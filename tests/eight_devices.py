"""cutlass_py.jax on eight devices of JAX's CPU, in a process of its own: their number is settled when JAX starts."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import cutlass_py
import cutlass_py.jax as cj
from cutlass_py import _core
from cutlass_py.declaration import families
from cutlass_py.dispatch import planning
from cutlass_py.dispatch.launch_plan import LaunchPlan
from cutlass_py.jax import partitioning, primitive, reference

jax.config.update("jax_num_cpu_devices", 8)
AUTO = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((4, 2), ("x", "y"))
random = np.random.default_rng(0)


def put(shape: tuple[int, ...], *spec: Any, mesh: Mesh = AUTO, dtype: str = "float32") -> jax.Array:
    return jax.device_put(jnp.asarray(random.standard_normal(shape), dtype), NamedSharding(mesh, P(*spec)))


def struct(shape: tuple[int, ...], *spec: Any, mesh: Mesh = AUTO, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def collectives(text: str) -> set[str]:
    return set(re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text))


def same(call: Callable[..., Any], arrays: tuple[Any, ...], found: Any, tolerance: float = 1e-4) -> None:
    """As on one device."""
    expected = jax.jit(call)(*(np.asarray(x) for x in arrays))
    for p, q in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = max(1.0, float(np.abs(np.asarray(q, "float64")).max()))
        np.testing.assert_allclose(np.asarray(p, "float64"), np.asarray(q, "float64"), atol=tolerance * scale)


# ------------------------------------------------------------------------------------------------ the calls

A, B, D = (64, 32), (32, 16), (64, 16)


def epilogue(a, b, c, bias, beta):
    sums, z = jax.ShapeDtypeStruct((16,), "float32"), jax.ShapeDtypeStruct(D, "float32")
    return cj.gemm(a, b, c=c, bias=bias, activation="gelu", alpha=0.5, beta=beta, aux=z, bias_grad=sums)


def factors(a, b, scale_a, scale_b, gate):
    return cj.gemm(a, b, scale_a=scale_a, scale_b=scale_b, gate=gate, activation="silu", bias_grad=struct((64, 1)))


def gates(a, b, bias):
    return cj.gemm(a, b, bias=bias, gated="silu", aux=jax.ShapeDtypeStruct(D, "float32"))


def rnn(x, weights):
    return jax.lax.scan(lambda h, w: (cj.gemm(h, w, activation="tanh"), None), x, weights)[0]


def two_layers(x, w1, b1, w2):
    return (cj.gemm(cj.gemm(x, w1, layout="tn", bias=b1, activation="gelu_tanh"), w2) ** 2).mean()


def perceptron(x, w1, b1, w2, b2):
    return (cj.mlp(x, [(w1, b1), (w2, b2)]) ** 2).mean()


step = jax.grad(two_layers, (0, 1, 2, 3))
perceptron_step = jax.grad(perceptron, (0, 1, 2, 3, 4))
tn, nt = partial(cj.gemm, layout="tn"), partial(cj.gemm, layout="nt")


# ------------------------------------------------------------------------------------------------ automatic axes


def recorded() -> list[Any]:
    """From now on gemm is divided on the CPU too, by XLA's operations: the shapes of what a device is given."""
    seen: list[Any] = []

    def local(*operands, spec):
        seen.append(tuple(x.shape for x in operands))
        return reference._lowered(*operands, spec=spec)

    mlir.register_lowering(primitive.gemm_p, partitioning.divided(local), platform="cpu")
    return seen


def automatic() -> None:
    """jit and NamedSharding."""
    seen = recorded()

    def check(call, arrays, shapes, moved=(), out=None, **options):
        """`shapes`: of a device's operands, in the first call at least."""
        seen.clear()
        compiled = jax.jit(call, **options).lower(*arrays).compile()
        assert seen[0][: len(shapes)] == shapes, seen
        assert collectives(compiled.as_text()) == set(moved), (seen, collectives(compiled.as_text()))
        found = compiled(*arrays)
        same(call, arrays, found)
        if out is not None:
            assert jax.tree.leaves(found)[0].sharding.spec == out, jax.tree.leaves(found)[0].sharding.spec

    # Rows, columns, both; as the layouts lie.
    check(cj.gemm, (put(A, "x"), put(B)), ((16, 32), (32, 16)), out=P("x"))
    check(tn, (put(A, ("x", "y")), put(B[::-1])), ((8, 32), (16, 32)), out=P(("x", "y")))
    check(nt, (put(A[::-1], None, "x"), put(B, None, "y")), ((32, 16), (32, 8)), out=P("x", "y"))
    check(cj.gemm, (put(A), put(B, None, "x")), ((64, 32), (32, 4)), out=P(None, "x"))
    # k: parts are summed, unless the axis is that of an operand's rows.
    check(cj.gemm, (put(A, None, "x"), put(B, "x")), ((64, 8), (8, 16)), ["all-reduce"])
    check(cj.gemm, (put(A, "x", "y"), put(B, "y")), ((16, 16), (16, 16)), ["all-reduce"], P("x"))
    rows = NamedSharding(AUTO, P("x"))
    check(cj.gemm, (put(A, None, "x"), put(B, "x")), ((64, 8), (8, 16)), ["all-reduce"], P("x"), out_shardings=rows)
    check(cj.gemm, (put(A, "x"), put(B, "x")), ((16, 32), (32, 16)), ["all-gather"], P("x"))
    check(cj.gemm, (put((32,)), put(B, None, "x")), ((1, 32), (32, 4)))
    # Epilogues: once, also where k is divided. Sums over divided rows.
    others = put(D, "x", "y"), put((16,), "y"), jnp.float32(2)
    check(epilogue, (put(A, "x"), put(B, None, "y"), *others), ((16, 32), (32, 8), (16, 8), (1, 8), ()), ["all-reduce"])
    others = put(D), put((16,)), jnp.float32(2)
    check(epilogue, (put(A, None, "x"), put(B, "x"), *others), ((64, 8), (8, 16)), ["all-reduce"])
    check(epilogue, (put(A, "x", "y"), put(B, "y"), *others), ((16, 16), (16, 16)), ["all-reduce"])
    operands = put(A, "x"), put(B, None, "y"), put((64, 1), "x"), put((16,), "y"), put(D, "x", "y")
    check(factors, operands, ((16, 32), (32, 8), (16, 8), (16, 1), (1, 8)), ["all-reduce"], P("x", "y"))
    # Gates stay with their values: rows are divided, or k.
    check(gates, (put(A, "x"), put(B), put((16,))), ((16, 32), (32, 16)), out=P("x"))
    check(gates, (put(A, "x"), put(B, None, "y"), put((16,))), ((16, 32), (32, 16)), ["all-gather"], P("x"))
    check(gates, (put(A, None, "x"), put(B, "x"), put((16,))), ((64, 8), (8, 16)), ["all-reduce"])
    # Batches.
    check(cj.gemm, (put((8, *A), "x"), put(B, None, "y")), ((2, 64, 32), (32, 8)), out=P("x", None, "y"))
    check(cj.gemm, (put((4, 2, *A), "x"), put((2, *B), "y")), ((1, 1, 64, 32), (1, 32, 16)), out=P("x", "y"))
    check(jax.vmap(cj.gemm, (0, None)), (put((8, *A), "x"), put(B)), ((2, 64, 32), (32, 16)), out=P("x"))
    # Where extents do not divide: gathered, and nothing of the padding is summed.
    cut = lambda a, b: cj.gemm(a[:61], b, bias_grad=jax.ShapeDtypeStruct((16,), "float32"))  # noqa: E731
    check(cut, (put(A, "x"), put(B)), ((61, 32), (32, 16)), ["all-gather"])
    check(lambda a, b: cj.gemm(a[:, :29], b[:29]), (put(A, None, "x"), put(B, "x")), ((64, 29),), ["all-gather"])
    # Training: only gradients and, between the layers, rows are summed.
    check(rnn, (put((64, 32), "x"), put((3, 32, 32))), ((16, 32), (32, 32)), out=P("x"))
    weights = put((48, 32)), put((48,)), put((48, 16))
    check(step, (put(A, "x"), *weights), ((16, 32), (48, 32)), ["all-reduce"], P("x"))
    weights = put((48, 32), "y"), put((48,), "y"), put((48, 16), "y")
    check(step, (put(A, "x"), *weights), ((16, 32), (24, 32)), ["all-reduce"], P("x"))
    weights = put((32, 48), None, "y"), put((48,), "y"), put((48, 16), "y"), put((16,))
    check(perceptron_step, (put((8, 8, 32), "x"), *weights), ((16, 32), (32, 24)), ["all-reduce"])
    # Narrow sums are rounded once; integers wrap around once; settings of the caller's thread hold.
    narrow = put(A, ("x", "y"), dtype="bfloat16"), put(B, dtype="bfloat16")
    sums = [
        jax.jit(partial(cj.gemm, bias_grad=jax.ShapeDtypeStruct((16,), dtype)))(*narrow)[1]
        for dtype in ("float32", "bfloat16")
    ]
    np.testing.assert_array_equal(sums[0].astype("bfloat16"), sums[1])
    many = jnp.full((8, 64), 127, "int8")
    halves = jax.device_put(many, NamedSharding(AUTO, P(None, "x")))
    for dtype in ("int8", "int32"):
        call = partial(cj.gemm, layout="tn", out_dtype=dtype)
        np.testing.assert_array_equal(jax.jit(call)(halves, halves), call(many, many))
    with jax.enable_x64(True):
        wide = put(A, "x", "y", dtype="float64"), put(B, "y", dtype="float64")
        call = partial(cj.gemm, bias_grad=jax.ShapeDtypeStruct((16,), "float64"))
        same(call, wide, jax.jit(call)(*wide), 1e-12)


def untyped() -> None:
    """Meshes that are not powers of two, and ones that no operand's type names."""
    seen = recorded()
    shardings = NamedSharding(AUTO, P("x")), NamedSharding(AUTO, P(None, "y"))
    arrays = jax.ShapeDtypeStruct(A, "float32"), jax.ShapeDtypeStruct(B, "float32")
    jax.jit(cj.gemm, in_shardings=shardings).lower(*arrays).compile()
    six = Mesh(np.array(jax.devices()[:6]).reshape(3, 2), ("x", "y"))
    jax.jit(cj.gemm).lower(struct((12, 32), "x", mesh=six), struct(B, None, "y", mesh=six)).compile()
    row = Mesh(np.array(jax.devices()[:1:-1]), ("x",))
    jax.jit(cj.gemm).lower(struct((12, 32), "x", mesh=row), struct(B, mesh=row)).compile()
    assert seen == [((16, 32), (32, 8)), ((4, 32), (32, 8)), ((2, 32), (32, 16))], seen


# ------------------------------------------------------------------------------------------------ explicit axes


def explicit() -> None:
    """Arrays that are sharded by their type."""
    shard = partial(put, mesh=EXPLICIT)

    def check(call, arrays, *types):
        found = jax.jit(call)(*arrays)
        same(call, arrays, found)
        assert [str(jax.typeof(x)) for x in jax.tree.leaves(found)] == list(types), jax.tree.map(jax.typeof, found)

    check(cj.gemm, (shard(A, "x"), shard(B)), "float32[64@x,16]")
    check(tn, (shard(A, ("x", "y")), shard(B[::-1])), "float32[64@(x,y),16]")
    check(cj.gemm, (shard(A, "x"), shard(B, None, "y")), "float32[64@x,16@y]")
    check(cj.gemm, (shard(A, None, "x"), shard(B, "x")), "float32[64,16]")
    check(cj.gemm, (shard((8, *A), "x"), shard((8, *B), "x")), "float32[8@x,64,16]")
    check(jax.vmap(cj.gemm, (0, None)), (shard((8, *A), "x"), shard(B)), "float32[8@x,64,16]")
    check(lambda a: cj.gemm(a, jnp.ones(B)), (shard(A, "x"),), "float32[64@x,16]")
    operands = shard(A, "x"), shard(B, None, "y"), shard(D, "x", "y"), shard((16,), "y"), jnp.float32(2)
    check(epilogue, operands, "float32[64@x,16@y]", "float32[64@x,16@y]", "float32[16@y]")
    check(rnn, (shard((64, 32), "x"), shard((3, 32, 32))), "float32[64@x,32]")
    check(gates, (shard(A, "x"), shard(B, None, "y"), shard((16,))), "float32[64@x,8]", "float32[64@x,16]")
    of_gates = jax.grad(lambda *arrays: (gates(*arrays)[0] ** 2).mean(), (0, 1, 2))
    types = "float32[64@x,32]", "float32[32,16]", "float32[16]"
    check(of_gates, (shard(A, "x"), shard(B), shard((16,))), *types)
    eager = cj.gemm(shard(A, "x"), shard(B))
    assert str(jax.typeof(eager)) == "float32[64@x,16]"
    # Gradients are sharded as the operands.
    weights = shard((48, 32)), shard((48,)), shard((48, 16))
    check(step, (shard(A, "x"), *weights), "float32[64@x,32]", "float32[48,32]", "float32[48]", "float32[48,16]")
    weights = shard((48, 32), "y"), shard((48,), "y"), shard((48, 16), "y")
    check(step, (shard(A, "x"), *weights), "float32[64@x,32]", "float32[48@y,32]", "float32[48@y]", "float32[48@y,16]")
    weights = shard((32, 48)), shard((48,)), shard((48, 16)), shard((16,))
    types = "float32[32,48]", "float32[48]", "float32[48,16]", "float32[16]"
    check(perceptron_step, (shard((8, 8, 32), "x"), *weights), "float32[8@x,8,32]", *types)
    of_c = jax.grad(lambda a, b, c: (cj.gemm(a, b, c=c) ** 2).mean(), (0, 1, 2))
    types = "float32[64,32]", "float32[32,16]", "float32[64@x,16@y]"
    check(of_c, (shard(A), shard(B), shard(D, "x", "y")), *types)
    of_aux = jax.grad(lambda a, b, aux: (cj.gemm(a, b, aux=aux, activation="d_gelu") ** 2).mean(), (0, 1, 2))
    types = "float32[64@x,32]", "float32[32,16]", "float32[64,16]"
    check(of_aux, (shard(A, "x"), shard(B), shard(D)), *types)
    batch = jax.grad(lambda a, b: (cj.gemm(a, b) ** 2).mean(), (0, 1))
    check(batch, (shard((8, *A), None, "x"), shard(B, None, "y")), "float32[8,64@x,32]", "float32[32,16@y]")
    # What is refused.
    for arrays, c, message in (
        (
            (shard(A, "x"), shard(B, None, "x")),
            None,
            "b is float32[32,16@x], where a has ('x',) along m; expected other",
        ),
        ((shard(A, "x"), shard(B)), shard(D, "y"), "c is float32[64@y,16], where a has ('x',) along m; expected those"),
        (
            (shard(A, None, "x"), shard(B, "y")),
            None,
            "b is float32[32@y,16], where a has ('x',) along k; expected those",
        ),
    ):
        refused(message, cj.gemm, *arrays, c=c)
    with jax.set_mesh(EXPLICIT):
        parts = lambda a, b: jnp.einsum("mk,kn->mn", a, b, out_sharding=P(unreduced={"x"}))  # noqa: E731
        call = jax.jit(lambda a, b: cj.gemm(parts(a, b), jnp.ones((16, 8))))
        refused("parts of a sum; expected the sum", call, shard(A, None, "x"), shard(B, "x"))
        arrays = shard(A, "x"), shard((48, 32)), shard((48,)), shard((48, 16))
        eager = step(*arrays)
    same(step, arrays, eager)


def refused(message: str, call: Callable[..., Any], *arrays: Any, **keywords: Any) -> None:
    try:
        call(*arrays, **keywords)
    except TypeError as error:
        assert message in str(error), error
    else:
        raise AssertionError("taken")


# ------------------------------------------------------------------------------------------------ quantize


def quantize() -> None:
    """The same codes and scales, by automatic and explicit axes and in shard_map, eagerly and under jit."""
    for scaling in ("tensor", "row", "1x128", "128x128"):
        call = partial(cj.quantize, scaling=scaling)
        scales = P() if scaling == "tensor" else P("x")
        parts = jax.shard_map(call, mesh=AUTO, in_specs=P("x"), out_specs=(P("x"), scales), check_vma=False)
        x = put((512, 256), "x", "y")
        for run in (call, jax.jit(call)):
            for array in (x, put((512, 256), "x", mesh=EXPLICIT)):
                same(call, (array,), run(array), 0)
        for run in (parts, jax.jit(parts)):
            if scaling != "tensor":  # of which each device has its own
                same(call, (x,), run(x), 0)
            loss = jax.grad(lambda x, call=run: call(x)[0].astype("float32").sum())
            assert loss(x).shape == x.shape


# ------------------------------------------------------------------------------------------------ ragged dots


def of_own_experts(x, w, sizes):
    """The rows of the experts that a device has, with its own in front; zeros for all others."""
    at = jax.lax.axis_index("x") * len(w)
    begin = jnp.where(jnp.arange(len(sizes)) < at, sizes, 0).sum()
    y = cj.ragged_dot(jnp.roll(x, -begin, 0), w, jax.lax.dynamic_slice(sizes, (at,), (len(w),)))
    return jax.lax.psum(jnp.roll(y, begin, 0), "x")


def ragged() -> None:
    """Experts divided by hand, their columns and what they sum too; arrays that XLA divides; types, as JAX has them."""
    sizes = jnp.array([5, 0, 20, 1, 0, 9, 8, 4])  # rows from 47 on belong to no group

    def loss(call):
        return jax.grad(lambda x, w: jnp.sin(call(x, w, sizes)).sum(), (0, 1))

    whole = lambda x, w: jax.lax.ragged_dot(x, w, sizes)  # noqa: E731
    for mesh in (AUTO, EXPLICIT):
        x, w = put((64, 32), mesh=mesh), put((8, 32, 16), "x", mesh=mesh)
        experts = jax.shard_map(of_own_experts, mesh=mesh, in_specs=(P(), P("x"), P()), out_specs=P())
        assert collectives(jax.jit(experts).lower(x, w, sizes).compile().as_text()) == {"all-reduce"}
        same(whole, (x, w), jax.jit(experts)(x, w, sizes))
        same(loss(jax.lax.ragged_dot), (x, w), jax.jit(loss(experts))(x, w))
    x, w = put((64, 32)), put((8, 32, 16))
    parts = [
        ((P(), P(None, None, "x")), P(None, "x"), lambda x, w: cj.ragged_dot(x, w, sizes)),
        ((P(None, "x"), P(None, "x")), P(), lambda x, w: jax.lax.psum(cj.ragged_dot(x, w, sizes), "x")),
    ]
    for specs, result, call in parts:
        divided = jax.shard_map(call, mesh=AUTO, in_specs=specs, out_specs=result)
        same(whole, (x, w), jax.jit(divided)(x, w))
        same(loss(jax.lax.ragged_dot), (x, w), jax.jit(loss(lambda x, w, _, f=divided: f(x, w)))(x, w))
    # By XLA: JAX's own function.
    for specs in (("x",), ()), ((), ("x",)), ((None, "y"), (None, "y", "x")):
        arrays = put((64, 32), *specs[0]), put((8, 32, 16), *specs[1])
        for call, wanted in ((lambda x, w: cj.ragged_dot(x, w, sizes), whole), (loss(cj.ragged_dot), None)):
            same(wanted or loss(jax.lax.ragged_dot), arrays, jax.jit(call)(*arrays))
    with jax.set_mesh(EXPLICIT):
        arrays = put((64, 32), mesh=EXPLICIT), put((8, 32, 16), mesh=EXPLICIT)
        typed = cj.ragged_dot(*arrays, sizes, out_sharding=P(None, "x"))
    assert str(jax.typeof(typed)) == "float32[64,16@x]"


# ------------------------------------------------------------------------------------------------ one of them


def one() -> None:
    """Arrays on a device that is not the first: DLPack does not say which, and cutlass_py.gemm takes the first."""
    first, second = jax.devices()[:2]
    a = jax.device_put(np.ones((4, 4), "float32"), second)
    assert cj.gemm(a, a).devices() == {second} and cutlass_py.gemm(a, a).devices() == {first}


# ------------------------------------------------------------------------------------------------ the custom call


def custom_call(library: str) -> None:
    """What XLA compiles for one device: the call with its attributes."""
    import xla_on_host

    xla_on_host.register(Path(library))
    allowed: list[bool] = []

    def plan(problem: Any, provided: bool) -> LaunchPlan:
        allowed.append(_core.jit_allowed())
        return LaunchPlan("some_kernel", scratch="f32", splits=2)

    planning.plan = plan
    _core.scratch_bytes = _core.grouped_scratch_bytes = lambda *arguments: 512
    compiled = lambda call, *arrays, **options: jax.jit(call, **options).lower(*arrays).compile().as_text()  # noqa: E731

    text = compiled(lambda a, b, c: cj.gemm(a, b, c=c), struct(A, "x"), struct(B, None, "y"), struct(D, "x", "y"),
                    donate_argnums=2)  # fmt: skip
    (line,) = [line for line in text.splitlines() if 'custom_call_target="cutlass_py_gemm"' in line]
    assert "(f32[16,8]{1,0}, u8[768]{0}) custom-call" in line and "output_to_operand_aliasing={{0}: (2, {})}" in line
    assert "(16, 8, 32) tt: f32 @ f32 + f32 C -> f32 on cuda:0" in line
    assert "input_output_alias={ {}: (2, {}, may-alias) }" in text and not collectives(text)
    kernel = next(name for name in families.named("core") if name.startswith("sm80_gemm_bf16_bf16_f32_bf16_tn"))
    halves = struct(A, None, "x", dtype="bfloat16"), struct(B[::-1], None, "x", dtype="bfloat16")
    text = compiled(partial(cj.gemm, layout="tn", kernel=kernel), *halves)
    assert collectives(text) == {"all-gather"} and "(64, 16, 32) tn" in text  # the kernel asked for has all of k
    allowed.clear()
    with cutlass_py.jit():
        compiled(lambda a, b: cj.gemm(a, b), struct(A, "x"), struct(B))
    compiled(lambda a, b: cj.gemm(a, b), struct(A, "x"), struct(B))
    assert allowed == [True, False], allowed
    # Cached programs are told apart: the operation says what it is.
    lowered = [
        jax.jit(partial(cj.gemm, activation=f)).lower(struct(A, "x"), struct(B)).as_text() for f in ("relu", "silu")
    ]
    assert "activation=relu" in lowered[0] and "activation=silu" in lowered[1]
    # As ever: in shard_map, on one device, and for export.
    by_hand = jax.shard_map(cj.gemm, mesh=AUTO, in_specs=(P("x"), P()), out_specs=P("x"))
    whole = [
        jax.jit(by_hand).lower(put(A), put(B)).as_text(),
        jax.jit(cj.gemm).lower(np.ones(A, "f4"), np.ones(B, "f4")).as_text(),
        jax.export.export(
            jax.jit(cj.gemm), disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("cutlass_py_gemm")]
        )(struct(A, "x"), struct(B)).mlir_module(),
    ]  # fmt: skip
    for text in whole:
        assert "custom_call @cutlass_py_gemm" in text and "CustomSPMDPartitioning" not in text

    # quantize is a call of each device in shard_map alone: XLA divides its own operations.
    parts = partial(jax.shard_map, cj.quantize, mesh=AUTO, in_specs=P("x"), out_specs=(P("x"), P()), check_vma=False)
    for call, count in ((parts(), 1), (parts(axis_names={"x"}), 0), (cj.quantize, 0)):
        text = jax.jit(call).lower(struct(A, "x")).as_text()
        assert text.count("custom_call @cutlass_py_quantize") == count, text
    # So are ragged dots.
    specs, sizes = (P(), P("x"), P()), np.ones(8, "i4")
    experts = jax.shard_map(of_own_experts, mesh=AUTO, in_specs=specs, out_specs=P())
    for call, count in ((experts, 1), (cj.ragged_dot, 0)):
        text = jax.jit(call).lower(struct(A), struct((8, 32, 16), "x"), sizes).as_text()
        assert text.count("custom_call @cutlass_py_grouped_gemm") == count, text
    assert "custom_call @cutlass_py_quantize" in jax.jit(cj.quantize).lower(np.ones(A, "f4")).as_text()

    def none(problem: Any, provided: bool) -> LaunchPlan:
        raise cutlass_py.NoKernelError("none of the kernels fits")

    planning.plan = none
    try:
        compiled(lambda a, b: cj.gemm(a, b) + 1, struct(A, "x"), struct(B))
    except jax.errors.JaxRuntimeError as error:
        assert "none of the kernels fits" in str(error), error
    else:
        raise AssertionError("compiled")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print("done")
