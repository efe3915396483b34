"""Quantizing for JAX: a pure function in XLA's operations, under jit, grad and vmap.

XLA fuses amax and cast of such a graph by itself (docs/jax.md).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..arrays.tensor_spec import TensorSpec
from ..declaration.quantize import LIMITS, SCALINGS, SMALLEST_SCALE
from ..errors import wrong_value
from .api import checked_array
from .functions import rounded
from .spec import numpy_dtype


def quantize(x: Any, dtype: Any = "e4m3", *, scaling: str = "tensor") -> tuple[jax.Array, jax.Array]:
    """`cutlass_py.quantize` as a pure function: differentiable, batchable, traceable.

    The gradient is straight-through: that of q, divided by its scales; the scales pass none on. JAX holds the gradient
    of an fp8 array in fp8. s8 has none.

    Args:
        x: (..., m, k) or (k,), a float array.
        dtype: "e4m3", "e5m2" or "s8", or NumPy's or ml_dtypes' dtype.
        scaling: as in cutlass_py.quantize.

    Returns:
        q and the f32 scales, whose values and shapes are those of cutlass_py.quantize; but XLA on the CPU takes what
        is below the smallest normal f32 for 0.

    Raises:
        ValueError, TypeError: as cutlass_py.quantize does, while the call is traced.
    """
    x = checked_array("quantize", "x", x)
    if x.ndim > 8:
        raise wrong_value("x", f"has {x.ndim} dimensions", f"at most {8}", operation="quantize")
    spec = TensorSpec(x.shape, dtype_name(x.dtype, "x", "quantize"), device="cpu")
    problem = _core.quantize_problem(spec, dtype, scaling=scaling)  # refuses what quantize would
    found: tuple[jax.Array, jax.Array] = _quantize(x, problem.q, problem.scaling)
    return found


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _quantize(x: Any, dtype: str, scaling: str) -> Any:
    wide, limit = x.astype(jnp.float32), np.float32(LIMITS[dtype])
    amax = _largest(jnp.where(jnp.isfinite(wide), jnp.abs(wide), 0), scaling)
    scales = jnp.where(amax == 0, 1, jnp.maximum(amax * (1 / limit), np.float32(SMALLEST_SCALE)))
    return rounded(jnp.clip(wide * _spread(1 / scales, scaling, x.shape), -limit, limit), dtype), scales


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


def _forward(x: Any, dtype: str, scaling: str) -> Any:
    q, scales = _quantize(x, dtype, scaling)
    return (q, scales), (scales, jnp.zeros((), x.dtype))


def _backward(dtype: str, scaling: str, kept: Any, cotangents: Any) -> Any:
    (scales, like), (gradient, _) = kept, cotangents
    if numpy_dtype(dtype).kind == "i":
        return (None,)
    return ((gradient.astype(jnp.float32) / _spread(scales, scaling, gradient.shape)).astype(like.dtype),)


_quantize.defvjp(_forward, _backward)
