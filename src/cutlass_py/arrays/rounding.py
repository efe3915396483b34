"""How NumPy stores a result in a narrower dtype: rounded once, saturating where the device saturates."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


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
    if out.dtype.num >= 256 and x.dtype == np.float64:
        # ml_dtypes' own go by way of f32. Where that is not exact, the neighbour with an odd last bit is taken: rounded
        # again, it is x rounded once.
        nearest = x.astype(np.float32)
        inexact = (nearest != x) & (nearest.view(np.int32) & 1 == 0) & np.isfinite(x)
        towards = np.where(x > nearest, np.inf, -np.inf).astype(np.float32)
        x = np.where(inexact, np.nextafter(nearest, towards), nearest)
    out[...] = x.astype(out.dtype, copy=False)
