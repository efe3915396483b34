"""Quantizing for JAX: a pure function under jit, grad and vmap.

On CUDA it is a custom call, whose attributes xla_quantize.cpp reads. Elsewhere, and where XLA divides a computation
among devices, it is XLA's own operations, with the same bits.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..arrays.tensor_spec import TensorSpec
from ..declaration.quantize import LIMITS, SCALINGS, SMALLEST_SCALE
from ..dispatch import planning
from ..dispatch.launch_plan import LaunchPlan
from ..errors import NoKernelError, wrong_value
from . import custom_call
from .api import checked_array
from .evaluation import compiled, result_type
from .functions import rounded
from .spec import Shape, numpy_dtype

_MOST_DIMENSIONS = 8  # kMaxRank in operand.h


def quantize(x: Any, dtype: Any = "e4m3", *, scaling: str = "tensor") -> tuple[jax.Array, jax.Array]:
    """`cutlass_py.quantize` as a pure function: differentiable, batchable, traceable.

    On CUDA one of its kernels runs, chosen as the call is lowered; anywhere else XLA's own operations do the same.

    The gradient is straight-through: that of q, divided by its scales; the scales pass none on. JAX holds the gradient
    of an fp8 array in fp8. s8 has none.

    Args:
        x: (..., m, k) or (k,), a float array.
        dtype: "e4m3", "e5m2" or "s8", or NumPy's or ml_dtypes' dtype.
        scaling: as in cutlass_py.quantize.

    Returns:
        q and the f32 scales, row-major, whose values and shapes are those of cutlass_py.quantize; but XLA on the CPU
        takes what is below the smallest normal f32 for 0.

    Raises:
        ValueError, TypeError: as cutlass_py.quantize does, while the call is traced.
        CompileError: likewise, as it is lowered for CUDA.
    """
    x = checked_array("quantize", "x", x)
    if x.ndim > _MOST_DIMENSIONS:
        expected = f"at most {_MOST_DIMENSIONS}"
        raise wrong_value("x", f"has {x.ndim} dimensions", expected, operation="quantize")
    spec = TensorSpec(x.shape, dtype_name(x.dtype, "x", "quantize"), device="cpu")
    problem = _core.quantize_problem(spec, dtype, scaling=scaling)  # refuses what quantize would
    # Where nothing is traced nothing is differentiated, and custom_vjp is a large part of what an eager call costs.
    run = _differentiable if isinstance(x, jax.core.Tracer) else _bind
    q, scales = run(x, problem.q, problem.scaling)
    return q, scales


# ---------------------------------------------------------------------------------------------------- the primitive

quantize_p = Primitive("cutlass_py_quantize")
quantize_p.multiple_results = True


def _bind(x: Any, dtype: str, scaling: str) -> Any:
    """q and scales."""
    if jax.typeof(x).sharding.mesh.explicit_axes:  # XLA's operations have rules for what is sharded by its type
        return _in_xla(x, dtype=dtype, scaling=scaling)
    return quantize_p.bind(x, dtype=dtype, scaling=scaling)


quantize_p.def_impl(compiled(quantize_p, _bind))


def _types(x: Any, *, dtype: str, scaling: str) -> list[Any]:
    return [result_type(x, x.shape, dtype), result_type(x, _scales_shape(x.shape, scaling), "f32")]


quantize_p.def_abstract_eval(_types)


def _scales_shape(shape: Shape, scaling: str) -> Shape:
    group = SCALINGS[scaling]
    if group == (0, 0):
        return ()
    last = shape[-2:]
    groups = [-(-extent // size) if size else 1 for extent, size in zip(last, group[-len(last) :], strict=True)]
    return (*shape[:-2], *groups)


def _batch(operands: Any, axes: Any, *, dtype: str, scaling: str) -> tuple[list[Any], list[int]]:
    x = jnp.moveaxis(operands[0], axes[0], 0)
    if scaling == "tensor":  # each has its scale, as a row has
        q, scales = _bind(x.reshape(x.shape[0], prod(x.shape[1:])), dtype, "row")
    elif x.ndim <= _MOST_DIMENSIONS:
        q, scales = _bind(x, dtype, scaling)
    else:
        q, scales = _bind(x.reshape(prod(x.shape[:-2]), *x.shape[-2:]), dtype, scaling)
    shape = _scales_shape(x.shape[1:], scaling)
    return [q.reshape(x.shape), scales.reshape(x.shape[0], *shape)], [0, 0]


batching.primitive_batchers[quantize_p] = _batch

# ---------------------------------------------------------------------------------------------------- on CUDA


def _on_device(x: Any, *, dtype: str, scaling: str) -> Any:
    """Our kernel; XLA's operations where there is none, or nothing to compute."""
    if not all(isinstance(extent, int) for extent in x.shape):  # `vmap` over a symbolic axis
        return _in_xla(x, dtype=dtype, scaling=scaling)
    spec = TensorSpec(x.shape, dtype_name(x.dtype, "x", "quantize"), device=f"cuda:{custom_call.ordinals()[0]}")
    problem = _core.quantize_problem(spec, dtype, scaling=scaling)
    try:
        plan = planning.plan(problem, provided=False)
    except NoKernelError:
        plan = LaunchPlan()
    if plan.kernel is None:
        return _in_xla(x, dtype=dtype, scaling=scaling)
    results = [
        jax.ShapeDtypeStruct(x.shape, numpy_dtype(dtype)),
        jax.ShapeDtypeStruct(_scales_shape(x.shape, scaling), np.float32),
    ]
    said = custom_call.attributes(problem, plan, ["x"], ["out", "scales"])
    return jax.ffi.ffi_call(custom_call.target("quantize"), results)(x, **said, scaling=scaling)


# ---------------------------------------------------------------------------------------------------- elsewhere


def _in_xla(x: Any, *, dtype: str, scaling: str) -> Any:
    """The definition (kernel.h). XLA fuses amax and cast by itself."""
    wide, limit = x.astype(jnp.float32), np.float32(LIMITS[dtype])
    amax = _largest(jnp.where(jnp.isfinite(wide), jnp.abs(wide), 0), scaling)
    scales = jnp.where(amax == 0, 1, jnp.maximum(amax * (1 / limit), np.float32(SMALLEST_SCALE)))
    return [rounded(jnp.clip(wide * _spread(1 / scales, scaling, x.shape), -limit, limit), dtype), scales]


mlir.register_lowering(quantize_p, mlir.lower_fun(_in_xla, multiple_results=True))
lowering = custom_call.undivided(_on_device, _in_xla)


def _largest(x: Any, scaling: str) -> Any:
    """The largest element of each group that shares a factor, 0 where there is none."""
    if scaling == "tensor":
        return x.max(initial=0)
    for axis, extent in zip((-2, -1), SCALINGS[scaling], strict=True):
        if extent == 0:
            x = x.max(axis=axis, keepdims=True, initial=0)
        elif extent > 1:
            axis, groups = axis % x.ndim, -(-x.shape[axis] // extent)
            padding = [(0, groups * extent - x.shape[axis] if i == axis else 0) for i in range(x.ndim)]
            x = jnp.pad(x, padding).reshape(*x.shape[:axis], groups, extent, *x.shape[axis + 1 :])
            x = x.max(axis=axis + 1, initial=0)
    return x


def _spread(factors: Any, scaling: str, shape: tuple[int, ...]) -> Any:
    """A factor for every element, or what broadcasts to that."""
    for axis, extent in zip((-2, -1), SCALINGS[scaling], strict=True):
        if extent > 1:
            factors = jax.lax.slice_in_dim(factors.repeat(extent, axis=axis), 0, shape[axis], axis=axis)
    return factors


# ---------------------------------------------------------------------------------------------------- the gradient


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _differentiable(x: Any, dtype: str, scaling: str) -> Any:
    return _bind(x, dtype, scaling)


def _forward(x: Any, dtype: str, scaling: str) -> Any:
    q, scales = _differentiable(x, dtype, scaling)
    return [q, scales], (scales, jnp.zeros((), x.dtype))


def _backward(dtype: str, scaling: str, kept: Any, cotangents: Any) -> Any:
    (scales, like), (gradient, _) = kept, cotangents
    if numpy_dtype(dtype).kind == "i":
        return (None,)
    return ((gradient.astype(jnp.float32) / _spread(scales, scaling, gradient.shape)).astype(like.dtype),)


_differentiable.defvjp(_forward, _backward)
