"""The activations and the one rounding of a result, in XLA's operations: what gemm's epilogue is made of.

The formulas are those of epilogues.ACTIVATIONS. Everything is computed in the dtype of its argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ..declaration.dtypes import DTYPES
from ..epilogues.activations import Activation
from .spec import numpy_dtype

_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _gelu_tanh_share(x: Any) -> Any:
    """(1 + tanh(u)) / 2, which is the logistic function of 2 u: small values keep their digits."""
    return jax.nn.sigmoid(2 * _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x))


def _clamp(x: Any, low: float, high: float) -> Any:
    return jnp.where(x < low, low, jnp.where(x > high, high, x)).astype(x.dtype)  # keeps NaN


def _d_relu(x: Any) -> Any:
    return jnp.where(jnp.isnan(x), x, (x > 0).astype(x.dtype))


def _d_gelu_tanh(x: Any) -> Any:
    s = _gelu_tanh_share(x)
    square = jnp.minimum(x * x, 1e6)  # beyond, s * (1 - s) is 0; infinity would make NaN of it
    return s + x * s * (1 - s) * 2 * _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * square)


def _d_silu(x: Any) -> Any:
    s = jax.nn.sigmoid(x)
    return s * (1 + x * (1 - s))


def _d_sigmoid(x: Any) -> Any:
    s = jax.nn.sigmoid(x)
    return s * (1 - s)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: jnp.where(x <= 0, 0, x).astype(x.dtype),
    "leaky_relu": lambda x, slope: jnp.where(x < 0, slope * x, x),
    "gelu": lambda x: x / 2 * jax.lax.erfc(x * -_SQRT_HALF),
    "gelu_tanh": lambda x: x * _gelu_tanh_share(x),
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "hardswish": lambda x: x * _clamp(x + 3, 0, 6) / 6,
    "clamp": _clamp,
    "d_relu": _d_relu,
    "d_gelu": lambda x: jax.lax.erfc(x * -_SQRT_HALF) / 2 + x * jnp.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "d_gelu_tanh": _d_gelu_tanh,
    "d_silu": _d_silu,
    "d_sigmoid": _d_sigmoid,
}

# Derivatives that are functions of the value, of that value: nothing else has to be kept for them.
FROM_RESULT: dict[str, Callable[[Any], Any]] = {
    "relu": _d_relu,
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
}


def function(activation: Activation) -> Callable[[Any], Any]:
    """The activation, or the derivative that it names, elementwise."""
    parameters = [float(x) for x in activation.parameters]  # of no dtype: they take that of x
    return lambda x: _FUNCTIONS[activation.name](x, *parameters)


def pullback(activation: Activation, x: Any, cotangent: Any) -> Any:
    """f'(x) * cotangent, by the derivative that kernels use where there is one."""
    if (name := f"d_{activation.name}") in _FUNCTIONS:
        return _FUNCTIONS[name](x) * cotangent
    return jax.vjp(function(activation), x)[1](cotangent)[0]


def gated(activation: Activation, interleaved: bool, pairs: Any) -> Any:
    """f(gates) * values, of gates and values beside each other."""
    gates, values = _parted(interleaved, pairs)
    return function(activation)(gates) * values


def gated_pullback(activation: Activation, interleaved: bool, pairs: Any, cotangent: Any) -> Any:
    """The cotangents of gates and of values, which lie as these do; for activation f or f'."""
    f = replace(activation, name=activation.name.removeprefix("d_"))
    gates, values = _parted(interleaved, pairs)
    found = [pullback(f, gates, cotangent * values), function(f)(gates) * cotangent]
    return jnp.stack(found, -1).reshape(pairs.shape) if interleaved else jnp.concatenate(found, -1)


def _parted(interleaved: bool, pairs: Any) -> Any:
    return (pairs[..., ::2], pairs[..., 1::2]) if interleaved else jnp.split(pairs, 2, -1)


def rounded(x: Any, dtype: str) -> Any:
    """x in a dtype, by gemm's rule: to nearest even; s8, u8, s32 and fp8 saturate, NaN becomes 0 in integers."""
    target = numpy_dtype(dtype)
    if x.dtype == target:
        return x
    if target.kind in "iu":
        limits = np.iinfo(target)
        whole = jnp.clip(jnp.rint(x), limits.min, limits.max)
        return jnp.where(jnp.isnan(whole), 0, whole).astype(target)
    if DTYPES[dtype].itemsize == 1:
        most = float(ml_dtypes.finfo(target).max)
        x = jnp.clip(x, -most, most)  # keeps NaN
    if x.dtype == np.float64 and DTYPES[dtype].itemsize < 4:
        x = _to_odd(x)
    # XLA would leave out a rounding whose result is widened again.
    return jax.lax.optimization_barrier(x.astype(target))


@jax.custom_jvp  # type: ignore[untyped-decorator]
def _to_odd(x: Any) -> Any:
    """f64 as f32, to the neighbour with an odd last bit where it is not exact: rounded again, that is rounded once."""
    nearest = x.astype(jnp.float32)
    even = jax.lax.bitcast_convert_type(nearest, jnp.int32) & 1 == 0
    again = nearest.astype(x.dtype)
    inexact = (again != x) & even & jnp.isfinite(x)
    return jnp.where(
        inexact, jnp.nextafter(nearest, jnp.where(x > again, jnp.inf, -jnp.inf).astype(jnp.float32)), nearest
    )


# A rounding is differentiated as the cast that it is: nextafter has no derivative.
_to_odd.defjvp(lambda primals, tangents: (_to_odd(*primals), tangents[0].astype(jnp.float32)))
