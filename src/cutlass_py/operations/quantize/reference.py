"""A whole call of quantize in NumPy: its definition, and the twin of the device in meaning, not in code.

All arithmetic is in f32, so that both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays.host import host_array
from ...arrays.rounding import store
from ...declaration.quantize import LIMITS, SCALINGS, SMALLEST_SCALE
from .call import QuantizeCall


def compute(call: QuantizeCall) -> None:
    """Computes one canonical call."""
    with np.errstate(all="ignore"):  # overflow and NaN are results here, not events
        x = host_array(call.x).astype(np.float32, copy=False)
        group, limit = SCALINGS[call.problem.scaling], np.float32(LIMITS[call.problem.q])
        amax = _largest(np.where(np.isfinite(x), np.abs(x), np.float32(0)), group)
        scales = np.where(amax == 0, np.float32(1), np.maximum(amax * (1 / limit), np.float32(SMALLEST_SCALE)))
        factors = _spread(np.float32(1) / scales, group, x.shape)
        store(host_array(call.q), np.clip(x * factors, -limit, limit))
        written = host_array(call.scales)
        store(written, scales.reshape(written.shape))


def _largest(x: Any, group: tuple[int, int]) -> Any:
    """The largest element of each group of rows and columns, 0 where there is none."""
    if group == (0, 0):
        return x.max(initial=0)
    for axis, extent in zip((-2, -1), group, strict=True):
        if extent == 0:
            x = x.max(axis=axis, keepdims=True, initial=0)
        elif extent > 1 and x.shape[axis]:
            x = np.maximum.reduceat(x, np.arange(0, x.shape[axis], extent), axis=axis)
    return x


def _spread(factors: Any, group: tuple[int, int], shape: tuple[int, ...]) -> Any:
    """A factor for every element, or what broadcasts to that."""
    for axis, extent in zip((-2, -1), group, strict=True):
        if extent > 1:
            factors = factors.repeat(extent, axis=axis)
    return factors[..., : shape[-2], : shape[-1]] if factors.ndim else factors
