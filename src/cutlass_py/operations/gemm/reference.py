"""A whole call in NumPy, by the definitions of kernel.h: the twin of the device in meaning, not in code.

Products are NumPy's own: BLAS in f32 and f64, real and complex. 16-bit floats and fp8 are summed in f32 whatever
`compute` says, so are the operands of tf32; integers exactly, wrapped to 32 bits at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._core import Operand, Problem
from ...arrays.host import host_array
from ...arrays.rounding import store
from ...declaration.dtypes import BLOCK, DTYPES
from ...declaration.epilogues import ACTIVATIONS
from ...epilogues.activation_reference import ACTIVATION_FUNCTIONS
from .call import KernelCall

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
    function, parameters = ACTIVATION_FUNCTIONS[activation.name], call.parameters[: len(activation.parameters)]
    if call.problem.pairs:
        return _gated(call, z, wide)
    if call.aux and not activation.derivative:
        store(host_array(call.aux), z)
    beside = call.aux if activation.derivative else call.gate
    y = z * function(_read(beside, wide), *parameters) if beside else function(z, *parameters)
    if call.bias_grad:
        gradient = host_array(call.bias_grad)
        summed = tuple(axis for axis in range(3) if gradient.shape[axis] == 1)
        store(gradient, y.sum(axis=summed, keepdims=True))
    store(host_array(call.d), _scaled(y, call.scale_out))


def _gated(call: KernelCall, z: Any, wide: Any) -> None:
    """Of gates and values: of the product, or of aux, whose gradients D then has."""

    def parted(x: Any) -> Any:
        return (x[..., ::2], x[..., 1::2]) if call.problem.interleaved else np.split(x, 2, axis=-1)

    name = call.activation.removeprefix("d_")
    function, derivative = ACTIVATION_FUNCTIONS[name], ACTIVATION_FUNCTIONS[f"d_{name}"]
    if call.problem.pairs == "b":
        if call.aux:
            store(host_array(call.aux), z)
        gates, values = parted(z)
        y = function(gates) * values
    else:
        assert call.aux
        gates, values = parted(_read(call.aux, wide))
        y = np.empty((*z.shape[:-1], 2 * z.shape[-1]), wide)
        of_gates, of_values = parted(y)
        of_gates[...], of_values[...] = z * values * derivative(gates), z * function(gates)
    store(host_array(call.d), _scaled(y, call.scale_out))


def _user(call: KernelCall, wide: Any) -> None:
    """A user's epilogue in place of all else."""
    from ...epilogues.reference import run
    from ...epilogues.specialization import specialization

    user = specialization(call.problem.user)
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
        z = np.zeros((*call.d.shape[:-1], call.problem.columns_of_b), wide)
    else:
        z = _scaled(_product(call).astype(wide, copy=False), call.alpha)
        if call.scale_a and not call.problem.block:
            z = z * _read(call.scale_a, wide)[..., :1]  # of a row, of which pairs have twice D's columns
        if call.scale_b and not call.problem.block:
            z = z * _read(call.scale_b, wide)
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
    return _times(call.problem, a.astype(wide, copy=False), b.astype(wide, copy=False))


def _times(p: Problem, a: Any, b: Any) -> Any:
    """A @ B; row by row where BLAS may not see how many there are (columns, where a and b have changed places)."""
    if not p.batch_invariant:
        return a @ b
    if p.transposed:
        return _row_by_row(b.swapaxes(-1, -2), a.swapaxes(-1, -2)).swapaxes(-1, -2)
    return _row_by_row(a, b)


def _row_by_row(a: Any, b: Any) -> Any:
    rows = [np.ascontiguousarray(a[..., i : i + 1, :]) @ b for i in range(a.shape[-2])]
    return np.concatenate(rows, axis=-2) if rows else a @ b


def _product_in_blocks(call: KernelCall, a: Any, b: Any) -> Any:
    """The sum over every 128 of k, times its factors, in their order."""
    assert call.scale_a and call.scale_b
    rows, columns = host_array(call.scale_a), host_array(call.scale_b)
    columns = columns.repeat(call.problem.block, axis=-1)[..., : b.shape[-1]]
    total = np.zeros((*call.d.shape[:-1], b.shape[-1]), np.float32)
    for i, start in enumerate(range(0, a.shape[-1], BLOCK)):
        part = slice(start, start + BLOCK)
        product = _times(call.problem, a[..., part].astype(np.float32), b[..., part, :].astype(np.float32))
        total += product * (rows[..., i, None] * columns[..., i, None, :])
    return total


def _number(factor: float | complex | Operand) -> Any:
    return host_array(factor)[()] if isinstance(factor, Operand) else factor


def _scaled(x: Any, factor: float | complex | Operand) -> Any:
    value = _number(factor)
    return x if value == 1 else x * x.dtype.type(value)


def _read(operand: Operand, dtype: Any) -> Any:
    return host_array(operand).astype(dtype, copy=False)
