"""Checks ahead of torch's operator: what cutlass_py.gemm refuses, before a gradient is recorded, or without memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import _core
from .._core import Problem
from ..arrays.torch_private import is_symbolic
from ..errors import wrong_type, wrong_value
from .dtypes import DTYPE, NAME


def problem_of(a: Tensor, b: Tensor, keywords: dict[str, Any]) -> Problem | None:
    """The canonical problem of gemm(a, b, **keywords); None where extents are symbolic.

    Raises:
        ValueError, TypeError: as cutlass_py.gemm.
    """
    given = {"a": a, "b": b, **keywords}
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    if any(is_symbolic(x) for x in tensors.values()):
        return None
    for name, x in tensors.items():
        if x.dtype not in NAME:
            expected = f"one of {', '.join(map(str, DTYPE.values()))}"
            raise wrong_type(name, f"is {x.dtype}", expected, about="dtype")
        if x.dim() > 8:
            raise wrong_value(name, f"has {x.dim()} dimensions", "at most 8", about="shape")
        device = x.get_device() if x.is_cuda else -1
        given[name] = _core.TensorSpecBase(x.shape, x.stride(), NAME[x.dtype], device, 256)
    return _core.problem(**given)


def check_devices(a: Tensor, others: dict[str, Any]) -> None:
    """Refuses tensors that lie elsewhere than a."""
    for name, x in others.items():
        if isinstance(x, Tensor) and x.device != a.device:
            second = {"other": name, "other_found": f"is on {x.device}"}
            raise wrong_value("a", f"is on {a.device}", about="device", **second)
