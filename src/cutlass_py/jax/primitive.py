"""The primitive behind everything: one gemm in normal form (spec.py). How it is typed, batched, and run without jit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import wrong_type
from .evaluation import compiled, result_type
from .spec import SCALARS, Spec, axes_of

gemm_p = Primitive("cutlass_py_gemm")
gemm_p.multiple_results = True


def bind(spec: Spec, operands: Sequence[Any]) -> list[Any]:
    """D, then aux and bias_grad as far as they are written."""

    def call(*operands: Any) -> list[Any]:
        found: list[Any] = gemm_p.bind(*operands, spec=spec)
        return found

    shardings = _implied(spec, [jax.typeof(x) for x in operands])
    if shardings:  # by type; within, XLA partitions: the primitive and its rules know of none
        call = jax.sharding.auto_axes(call, axes=shardings[0].mesh.explicit_axes, out_sharding=shardings)
    return call(*operands)


gemm_p.def_impl(compiled(gemm_p, lambda *operands, spec: bind(spec, operands)))

# ---------------------------------------------------------------------------------------------------- types


def _types(*operands: Any, spec: Spec) -> list[Any]:
    results = spec.results([x.shape for x in operands])
    return [result_type(operands[0], result.shape, result.dtype) for result in results]


gemm_p.def_abstract_eval(_types)


def _implied(spec: Spec, operands: Sequence[Any]) -> list[NamedSharding]:
    """The shardings of the results by the types of the operands, as jnp.matmul has them; none without explicit axes."""
    mesh = next((x.sharding.mesh for x in operands if x.sharding.mesh.explicit_axes), None)
    if mesh is None:
        return []
    letters = spec.letters([x.shape for x in operands])
    found: dict[str, tuple[str, ...]] = {}
    said: dict[str, str] = {}  # of each letter: by which operand
    for name, x, along in zip(spec.operands, operands, letters, strict=False):
        if x.sharding.spec.unreduced:
            raise wrong_type(name, f"is {x}, parts of a sum", "the sum: jax.reshard it")
        for letter, axes in zip(along, map(axes_of, x.sharding.spec), strict=True):
            if letter and axes:
                if other := _conflict(letter, axes, found):
                    wanted = f"those axes along {letter}" if other == letter else f"other axes along {letter}"
                    differs = f"is {x}, where {said[other]} has {found[other]} along {other}"
                    hint = "jax.reshard one of them, or call it within jax.shard_map"
                    raise wrong_type(name, differs, f"{wanted}: {hint}")
                found.setdefault(letter, axes)
                said.setdefault(letter, name)
    return [NamedSharding(mesh, PartitionSpec(*map(found.get, along))) for along in letters[len(operands) :]]


def _conflict(letter: str, axes: tuple[str, ...], found: dict[str, tuple[str, ...]]) -> str | None:
    """The letter whose axes do not go with these: its own with others, or another with one of these."""
    if letter in found:
        return letter if found[letter] != axes else None
    return next((other for other, taken in found.items() if set(axes) & set(taken)), None)


def vary_alike(operands: Sequence[Any]) -> tuple[Any, ...]:
    """Within shard_map: operands that all vary along every mesh axis along which one does.

    What is the same on every device (weights, say) is said to vary; its gradient is then the sum over the devices.
    """
    varying = [jax.typeof(x).mat.varying for x in operands]
    every = frozenset().union(*varying)
    return tuple(
        jax.lax.pcast(x, tuple(every - own), to="varying") if every - own else x
        for x, own in zip(operands, varying, strict=True)
    )


# ---------------------------------------------------------------------------------------------------- batches


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, spec: Spec) -> tuple[list[Any], list[int]]:
    """One more dimension in front of the batch. What is not batched stays as it is: kernels read it with stride 0."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    batched = {name for name, axis in zip(spec.operands, axes, strict=True) if axis is not None}
    products = spec.splits == "stream" and {"a", "b"} <= batched  # stream-K deals out one product at a time
    run = _one_by_one if spec.bias_grad or products or batched.intersection(SCALARS) else _at_once
    results = run(spec, spec.named(moved), batched, size)
    return results, [0] * len(results)


def _one_by_one(spec: Spec, operands: dict[str, Any], batched: set[str], size: int) -> list[Any]:
    """No kernel has a factor, a sum over the batch, or stream-K's division of work for each of its problems."""
    found: list[Any] = jax.lax.map(
        lambda mapped: bind(spec, [*(operands | mapped).values()]), {name: operands[name] for name in batched}
    )
    return found


def _at_once(spec: Spec, operands: dict[str, Any], batched: set[str], size: int) -> list[Any]:
    if not isinstance(size, int):
        found = f"vmap over {size} elements, a symbolic axis"
        raise wrong_type(found=found, expected="a number, to choose a kernel by")
    shapes = {name: x.shape[name in batched :] for name, x in operands.items()}
    out = spec.product_shape(shapes["a"], shapes["b"])
    for name, core in (("scale_a", (out[-2], 1)), ("scale_b", (1, out[-1]))):
        if name in batched and not shapes[name]:  # a factor for each problem: a vector that repeats it
            operands[name], shapes[name] = jnp.broadcast_to(operands[name][:, None, None], (size, *core)), core
    if not batched & {"a", "b"}:  # the batch of the result is theirs
        operands["a"], batched = jnp.broadcast_to(operands["a"], (size, *shapes["a"])), batched | {"a"}
    wider = [
        x.reshape(size, *(1,) * (len(out) - len(shapes[name])), *shapes[name]) if name in batched else x
        for name, x in operands.items()
    ]
    aux = spec.aux and replace(spec.aux, shape=(size, *spec.aux.shape))
    return bind(replace(spec, aux=aux), wider)


batching.primitive_batchers[gemm_p] = _batch
