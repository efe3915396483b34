"""The derivative of a gemm, as more gemms: what jax.grad asks for.

With P = a @ b and s = alpha * scale_a * scale_b, the call computes z = s * P + beta * c + bias, then y = f(z) (with a
gate f(gate) * z, for a derivative f'(aux) * z) and D = scale_out * y. Below, d_x is the cotangent of x. What is
elementwise is left to XLA, which fuses it; the two products run as gemms and are differentiable again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ..arrays.dtype_names import dtype_name
from ..declaration.dtypes import DTYPES
from ..declaration.epilogues import ACTIVATIONS
from ..epilogues.activations import Activation
from .functions import FROM_RESULT, function, gated_pullback, pullback, rounded
from .primitive import bind
from .spec import Result, Shape, Spec, elementwise_dtype, factor_dtype, numpy_dtype

_IDENTITY = Activation("identity")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable(spec: Spec, operands: tuple[Any, ...]) -> list[Any]:
    """`bind`, with a derivative."""
    return bind(spec, operands)


_Kept = tuple[tuple[Any, ...], dict[str, Any], dict[str, None]]


def _forward(spec: Spec, primals: tuple[Any, ...]) -> tuple[list[Any], _Kept]:
    """Differentiable again. Keeps the operands, what f' follows from (z or D), and the names of what has a gradient."""
    operands = tuple(x.value for x in primals)
    wanted = {name: None for name, x in zip(spec.operands, primals, strict=True) if x.perturbed}
    gate, name = "gate" in spec.operands, spec.activation.name
    scaled = spec.scale_out != 1 or "scale_out" in spec.operands
    if name in FROM_RESULT and not (gate or spec.gated or scaled or _narrow(spec)):  # f' follows from D as it is stored
        results = differentiable(spec, operands)
        return results, (operands, {"d": results[0]}, wanted)
    needs_z = "gate" in wanted if gate else name != "identity" and not ACTIVATIONS[name].derivative
    if not needs_z:
        return differentiable(spec, operands), (operands, {}, wanted)
    if spec.aux:
        results = differentiable(spec, operands)
        whole = np.can_cast(numpy_dtype(_dtype_of_z(spec)), numpy_dtype(spec.aux.dtype))
        return results, (operands, {"z": results[1]} if whole else {}, wanted)
    aux = Result(spec.product_shape(*(x.shape for x in operands[:2])), _dtype_of_z(spec))
    # A kernel that was asked for does not write z: one that does is another.
    d, z, *others = differentiable(replace(spec, aux=aux, kernel=None), operands)
    return [d, *others], (operands, {"z": z}, wanted)


def _narrow(spec: Spec) -> bool:
    """Whether D has 8 bits or is an integer."""
    return DTYPES[spec.out_dtype].itemsize == 1 or not DTYPES[spec.out_dtype].mantissa


def _dtype_of_z(spec: Spec) -> str:
    return "f32" if _narrow(spec) else spec.out_dtype


def _backward(spec: Spec, residuals: _Kept, cotangents: Sequence[Any]) -> tuple[tuple[Any, ...]]:
    operands, kept, wanted = residuals
    x = spec.named(operands)
    wide = numpy_dtype(elementwise_dtype(spec.dtypes(x)))
    d_d, *d_others = (_wide(y, wide) for y in cotangents)
    with jax.numpy_rank_promotion("allow"):  # what is not batched has fewer dimensions
        d_y = d_d * spec.scale_out
        if "scale_out" in x:
            d_y = d_y * _wide(x["scale_out"], d_y.dtype)
        if spec.bias_grad:  # a sum over everything that its shape lacks
            d_y = d_y + d_others[-1]
        found, d_z = _through_activation(spec, x, kept, wanted, d_y)
        if spec.aux:
            d_z = d_z + d_others[0]
        found |= _through_sum(spec, x, wanted, d_z)
    if "scale_out" in wanted:
        found["scale_out"] = d_d * _recomputed(spec, x, wide, scale_out=1.0)
    return (tuple(_fitted(found[name], x[name]) if name in found.keys() & wanted else None for name in spec.operands),)


differentiable.defvjp(_forward, _backward, symbolic_zeros=True)

# ---------------------------------------------------------------------------------------------------- the epilogue


def _wide(x: Any, dtype: Any) -> Any:
    """In the dtype of elementwise work. Integers have no cotangent, nor has what nothing depends on."""
    if x.dtype == jax.dtypes.float0 or isinstance(x, SymbolicZero):
        return jnp.zeros(x.shape, dtype)
    return x.astype(dtype)


def _through_activation(spec: Spec, x: dict[str, Any], kept: Any, wanted: Any, d_y: Any) -> tuple[dict[str, Any], Any]:
    """The cotangents of gate or aux, where they are wanted, and of z."""
    f, found = spec.activation, dict[str, Any]()
    if spec.gated:
        return _through_pairs(spec, x, kept, wanted, d_y)
    for name in ("gate", "aux"):
        if name in x:
            at = _sharded_as(d_y, jnp.broadcast_to(_wide(x[name], d_y.dtype), d_y.shape))
            if name in wanted:
                found[name] = pullback(f, at, _z(spec, x, kept, d_y.dtype) * d_y)
            return found, function(f)(at) * d_y
    if f.name == "identity":
        return found, d_y
    if "d" in kept:
        return found, FROM_RESULT[f.name](_wide(kept["d"], d_y.dtype)) * d_y
    return found, pullback(f, _z(spec, x, kept, d_y.dtype), d_y)


def _through_pairs(spec: Spec, x: dict[str, Any], kept: Any, wanted: Any, d_y: Any) -> tuple[dict[str, Any], Any]:
    """The same where gates and values are columns of z, or of D and aux."""
    through = partial(gated_pullback, spec.activation, spec.interleaved)
    if "aux" not in x:
        return {}, through(_z(spec, x, kept, d_y.dtype), d_y)
    columns = d_y.shape[-1]
    aux = _sharded_as(d_y, jnp.broadcast_to(_wide(x["aux"], d_y.dtype), d_y.shape))
    if "aux" not in wanted:  # D is linear in z: at any of them
        zeros = jnp.zeros_like(d_y[..., : columns // 2])
        return {}, jax.vjp(partial(through, aux), zeros)[1](d_y)[0]
    of_aux, d_z = jax.vjp(through, aux, _z(spec, x, kept, d_y.dtype))[1](d_y)
    return {"aux": of_aux}, d_z


def _z(spec: Spec, x: dict[str, Any], kept: dict[str, Any], wide: Any) -> Any:
    return _wide(kept["z"], wide) if "z" in kept else _recomputed(spec, x, wide, activation=_IDENTITY)


def _recomputed(spec: Spec, x: dict[str, Any], wide: Any, **changes: Any) -> Any:
    """The result of a simpler call on the same operands, in this dtype."""
    names = [name for name in spec.operands if name != "scale_out"]
    if changes.get("activation") is _IDENTITY:
        names, changes["gated"] = [name for name in names if name not in ("gate", "aux")], False
    out_dtype = dtype_name(wide, "out_dtype")
    changes |= {"aux": None, "bias_grad": None, "scale_out": 1.0, "out_dtype": out_dtype, "kernel": None}
    simpler = replace(spec, operands=tuple(names), **changes)
    return differentiable(simpler, tuple(_wide(x[name], wide) if name == "bias" else x[name] for name in names))[0]


# ---------------------------------------------------------------------------------------------------- the sum


def _through_sum(spec: Spec, x: dict[str, Any], wanted: dict[str, None], d_z: Any) -> dict[str, Any]:
    """The cotangents of what z is the sum of; those that take a product only where they are wanted."""
    found: dict[str, Any] = {}
    wide = d_z.dtype
    if "c" in x:
        found["c"] = d_z * (_wide(x["beta"], wide) if "beta" in x else spec.beta)
        if "beta" in x:
            found["beta"] = d_z * _wide(x["c"], wide)
    if "bias" in x:
        found["bias"] = d_z
    scales = [name for name in ("alpha", "scale_a", "scale_b") if name in x]
    if asked := [name for name in scales if name in wanted]:
        bare = replace(spec, operands=("a", "b"), alpha=1.0, scale_a=1.0, scale_b=1.0)
        product = _recomputed(bare, x, wide, activation=_IDENTITY)
        number = spec.alpha * spec.scale_a * spec.scale_b
        for name in asked:
            others = prod((_wide(x[other], wide) for other in scales if other != name), start=jnp.asarray(number, wide))
            found[name] = d_z * product * others
    for name in scales:
        d_z = d_z * _wide(x[name], wide)
    return found | _of_operands(spec, x, wanted, d_z)


def _of_operands(spec: Spec, x: dict[str, Any], wanted: dict[str, None], d_p: Any) -> dict[str, Any]:
    """d_a = d_p @ b.T and d_b = a.T @ d_p, each as its operand lies, where they are wanted."""
    a, b, found = x["a"], x["b"], dict[str, Any]()
    if a.dtype.kind in "iu":
        return found
    multiplied = jnp.bfloat16 if a.dtype.itemsize == 1 else a.dtype  # fp8 gradients would lose what fp8 operands have
    a, b, d_p = a.astype(multiplied), b.astype(multiplied), rounded(d_p, dtype_name(multiplied, "a"))
    lies_a, lies_b = spec.layout[0], spec.layout[1]
    number = spec.alpha * spec.scale_a * spec.scale_b
    product = partial(_product, spec, number)
    other = {"t": "n", "n": "t"}
    if "a" in wanted:
        d_a = (d_p, b, "t" + other[lies_b]) if lies_a == "t" else (b, d_p, lies_b + "n")
        found["a"] = product(*d_a, x["a"].shape)
    if "b" not in wanted:
        return found
    divided = any(entry for y in (a, d_p) for entry in jax.typeof(y).sharding.spec)  # JAX does not fold such a batch
    if lies_a == "t" and prod(b.shape[:-2]) == 1 and not divided:  # the batch is one tall sum
        a, d_p = (
            jnp.reshape(
                jnp.broadcast_to(y, (*d_p.shape[:-2], *y.shape[-2:])), (prod(d_p.shape[:-2]) * y.shape[-2], y.shape[-1])
            )
            for y in (a, d_p)
        )
    d_b = (a, d_p, other[lies_a] + "t") if lies_b == "t" else (d_p, a, "n" + lies_a)
    return found | {"b": product(*d_b, x["b"].shape)}


def _product(spec: Spec, number: complex, a: Any, b: Any, layout: str, shape: Shape) -> Any:
    """number * (a @ b), of this shape once the batch is summed; not rounded to less than f32 where there is a sum."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    summed = prod(batch) != prod(shape[:-2])
    narrow = dtype_name(a.dtype, "a")
    dtype = factor_dtype(narrow) if summed else narrow
    compute = spec.compute if narrow == "f32" else None
    call = Spec(
        ("a", "b"),
        dtype,
        layout,
        alpha=number,
        compute=compute,
        deterministic=spec.deterministic,
        batch_invariant=spec.batch_invariant,
    )
    return differentiable(call, (a, b))[0]


def _fitted(found: Any, x: Any) -> Any:
    """A cotangent of x: what was repeated is summed, everything rounded once, and sharded as the type of x says."""
    if x.dtype.kind in "iub":
        return np.zeros(x.shape, jax.dtypes.float0)
    rank = max(found.ndim, x.ndim)
    extents, wanted = ((1,) * (rank - y.ndim) + y.shape for y in (found, x))
    repeated = tuple(i for i in range(rank) if wanted[i] == 1 != extents[i])
    summed = jnp.sum(found.reshape(extents), repeated).reshape(x.shape)
    return _sharded_as(x, rounded(summed, dtype_name(x.dtype, "a")))


def _sharded_as(like: Any, x: Any) -> Any:
    """x with the sharding of another's type, on an explicit mesh that one of them is on."""
    given, wanted = jax.typeof(x).sharding, jax.typeof(like).sharding
    mesh = given.mesh if wanted.mesh.empty else wanted.mesh
    return x if given.spec == wanted.spec else jax.reshard(x, jax.sharding.NamedSharding(mesh, wanted.spec))
