"""A whole call in NumPy, by the definitions of kernel.h: the twin of the device in meaning, not in code.

Products are NumPy's own: BLAS in f32 and f64, real and complex. 16-bit floats and fp8 are summed in f32 whatever
`compute` says, so are the operands of tf32; integers exactly, wrapped to 32 bits at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..._core import Operand
from ...arrays.host import host_array
from ...declaration.dtypes import BLOCK, DTYPES
from ...declaration.epilogues import ACTIVATIONS
from ...epilogues.erf import erfc
from ...providers.provider import KernelCall

# ---------------------------------------------------------------------------------------------------- the call


def compute(call: KernelCall) -> None:
    """Computes one canonical call."""
    with np.errstate(all="ignore"):  # overflow and NaN are results here, not events
        _compute(call)


def _compute(call: KernelCall) -> None:
    wide = _arithmetic(call)
    if call.problem.user >= 0:
        return _user(call, wide)
    z = _linear(call, wide)
    activation = ACTIVATIONS[call.activation]
    function, parameters = FUNCTIONS[activation.name], call.parameters[: len(activation.parameters)]
    if call.aux and not activation.derivative:
        store(host_array(call.aux), z)
    beside = call.aux if activation.derivative else call.gate
    y = z * function(_read(beside, wide), *parameters) if beside else function(z, *parameters)
    if call.bias_grad:
        gradient = host_array(call.bias_grad)
        summed = tuple(axis for axis in range(3) if gradient.shape[axis] == 1)
        store(gradient, y.sum(axis=summed, keepdims=True))
    store(host_array(call.d), _scaled(y, call.scale_out))


def _user(call: KernelCall, wide: Any) -> None:
    """A user's epilogue in place of all else."""
    from ...epilogues.reference import run
    from ...epilogues.specialization import asked

    user = asked(call.problem.user)
    count = len(user.program.inputs)
    inputs = {
        name: _read(x, wide) if isinstance(x, Operand) else wide.type(x)
        for name, x in zip(user.program.inputs, call.user, strict=False)
    }
    empty = call.problem.empty_product
    accumulated = np.zeros(call.d.shape, wide) if empty else _product(call).astype(wide, copy=False)
    d, outputs = run(user.program, accumulated, inputs, user.kinds[count:])
    written: Any = call.user[count:]
    for operand, x in zip(written, outputs, strict=True):
        store(host_array(operand), x)
    store(host_array(call.d), np.asarray(d, wide))


def _arithmetic(call: KernelCall) -> Any:
    """The dtype of the epilogue: the accumulator's, wider where that of an operand or of D is; f64 for integers."""
    given = [x.dtype for x in (call.c, call.bias, call.gate, call.aux, call.bias_grad, call.d) if x]
    names = [call.problem.accumulator, *given]
    if "c64" in names or "c128" in names:
        return np.dtype("complex128" if "c128" in names else "complex64")
    return np.dtype("float64" if "f64" in names or "s32" in names else "float32")


def _linear(call: KernelCall, wide: Any) -> Any:
    """alpha * scale_a * scale_b * (A @ B) + beta * C + bias."""
    if call.problem.empty_product:  # A and B are not read: their NaN must not leak
        z = np.zeros(call.d.shape, wide)
    else:
        z = _scaled(_product(call).astype(wide, copy=False), call.alpha)
        for scale in (call.scale_a, call.scale_b):
            if scale and not call.problem.block:
                z = z * _read(scale, wide)
    if call.c and _number(call.beta) != 0:
        z = z + _scaled(_read(call.c, wide), call.beta)
    if call.bias:
        z = z + _read(call.bias, wide)
    return z


def _product(call: KernelCall) -> Any:
    """A @ B in the accumulator's dtype."""
    accumulator = call.problem.accumulator
    a, b = host_array(call.a), host_array(call.b)
    if accumulator == "s32":  # k * 255**2 < 2**53 for every k: exact in BLAS, then wrapped
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64).astype(np.int32)
    if call.problem.block:
        return _product_in_blocks(call, a, b)
    wide = DTYPES[accumulator].numpy if accumulator in ("f64", "c64", "c128") else np.float32
    return a.astype(wide, copy=False) @ b.astype(wide, copy=False)


def _product_in_blocks(call: KernelCall, a: Any, b: Any) -> Any:
    """The sum over every 128 of k, times its factors, in their order."""
    assert call.scale_a and call.scale_b
    rows, columns = host_array(call.scale_a), host_array(call.scale_b)
    columns = columns.repeat(call.problem.block, axis=-1)[..., : b.shape[-1]]
    total = np.zeros(call.d.shape, np.float32)
    for i, start in enumerate(range(0, a.shape[-1], BLOCK)):
        part = slice(start, start + BLOCK)
        product = a[..., part].astype(np.float32) @ b[..., part, :].astype(np.float32)
        total += product * (rows[..., i, None] * columns[..., i, None, :])
    return total


def _number(factor: float | complex | Operand) -> Any:
    return host_array(factor)[()] if isinstance(factor, Operand) else factor


def _scaled(x: Any, factor: float | complex | Operand) -> Any:
    value = _number(factor)
    return x if value == 1 else x * x.dtype.type(value)


def _read(operand: Operand, dtype: Any) -> Any:
    return host_array(operand).astype(dtype, copy=False)


def store(out: Any, x: Any) -> None:
    """The one rounding: to nearest even; s8, u8, s32 and fp8 saturate, NaN becomes 0 in integers."""
    if out.dtype.kind in "iu":
        limits: Any = np.iinfo(out.dtype)
        rounded = np.clip(np.rint(x.astype(np.float64, copy=False)), limits.min, limits.max)
        out[...] = np.where(np.isnan(rounded), 0, rounded).astype(out.dtype)
        return
    if out.dtype.itemsize == 1:
        limits = ml_dtypes.finfo(out.dtype)
        x = np.clip(x, float(limits.min), float(limits.max))
    if out.dtype.num >= 256 and x.dtype == np.float64:  # ml_dtypes' own go by way of f32, which would round twice
        x = _to_odd(x)
    out[...] = x.astype(out.dtype, copy=False)


def _to_odd(x: Any) -> Any:
    """f64 as f32, to the neighbour with an odd last bit where it is not exact: rounded again, that is rounded once."""
    nearest = x.astype(np.float32)
    inexact = (nearest != x) & (nearest.view(np.int32) & 1 == 0) & np.isfinite(x)
    return np.where(inexact, np.nextafter(nearest, np.where(x > nearest, np.inf, -np.inf).astype(np.float32)), nearest)


# ---------------------------------------------------------------------------------------------------- activations

_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh_share(x: Any) -> Any:
    """(1 + tanh(u)) / 2, which is the logistic function of 2 u: small values keep their digits."""
    return _sigmoid(2 * _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x))


def _d_relu(x: Any) -> Any:
    return np.where(np.isnan(x), x, (x > 0).astype(x.dtype))


def _d_gelu(x: Any) -> Any:
    return erfc(x * -_SQRT_HALF) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _d_gelu_tanh(x: Any) -> Any:
    s = _gelu_tanh_share(x)
    square = np.minimum(x * x, 1e6)  # beyond, s * (1 - s) is 0; infinity would make NaN of it
    return s + x * s * (1 - s) * 2 * _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * square)


def _d_silu(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


# By the names of epilogues.ACTIVATIONS: of the value, and of the parameters that are declared there. clip keeps NaN.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.clip(x, 0, math.inf),
    "leaky_relu": lambda x, slope: np.where(x < 0, slope * x, x),
    "gelu": lambda x: x / 2 * erfc(x * -_SQRT_HALF),
    "gelu_tanh": lambda x: x * _gelu_tanh_share(x),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "clamp": np.clip,
    "d_relu": _d_relu,
    "d_gelu": _d_gelu,
    "d_gelu_tanh": _d_gelu_tanh,
    "d_silu": _d_silu,
}
