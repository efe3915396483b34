"""The dtypes of this package as torch's, and the sets of them that calls ask about."""

from __future__ import annotations

import torch

from ..declaration.dtypes import DTYPES, STORAGE

DTYPE: dict[str, torch.dtype] = {name: getattr(torch, DTYPES[name].numpy) for name in STORAGE}
NAME = {dtype: name for name, dtype in DTYPE.items()}

_OF_A_BYTE = frozenset(dtype for dtype in NAME if dtype.itemsize == 1)
BYTES = frozenset(dtype for dtype in _OF_A_BYTE if not dtype.is_floating_point)
FP8 = _OF_A_BYTE - BYTES
# Floats of 16 bits and more, in which z is kept and partial sums may be stored.
WIDE = frozenset(dtype for dtype in NAME if dtype.is_floating_point) - FP8
# The dtypes of which both gemm's and torch's results are.
FLOATS = WIDE | frozenset(dtype for dtype in NAME if dtype.is_complex)
# What torch.autocast casts, beside fp8: doubles stay.
CAST = WIDE - {torch.float64}
