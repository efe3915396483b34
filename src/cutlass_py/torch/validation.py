"""What cutlass_py.gemm refuses, refused ahead of torch's operator: before a gradient is recorded, or without memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import _core
from .._core import Problem
from ..arrays.torch_private import is_symbolic
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
        given[name] = _spec(name, x)
    return _core.problem(**given)


def check_devices(a: Tensor, others: dict[str, Any]) -> None:
    """Refuses tensors that lie elsewhere than a."""
    for name, x in others.items():
        if isinstance(x, Tensor) and x.device != a.device:
            raise ValueError(f"gemm: a is on {a.device} but {name} is on {x.device}")


def _spec(name: str, x: Tensor) -> _core.TensorSpecBase:
    if x.dtype not in NAME:
        raise TypeError(f"gemm: {name} is {x.dtype}; expected one of {', '.join(map(str, DTYPE.values()))}")
    if x.dim() > 8:
        raise ValueError(f"gemm: {name} has {x.dim()} dimensions; expected at most 8")
    return _core.TensorSpecBase(x.shape, x.stride(), NAME[x.dtype], x.get_device() if x.is_cuda else -1, 256)
