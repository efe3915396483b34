"""What torch.utils.flop_counter counts for the operator: two operations per product, whatever the epilogue."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from . import gradients as _gradients  # noqa: F401  (registers)


@register_flop_formula(torch.ops.cutlass_py.gemm)  # type: ignore[untyped-decorator]
def gemm_flop(a_shape: Any, b_shape: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """2 * batch * m * n * k."""
    return int(2 * prod(out_shape[0]) * a_shape[-1])
