"""Quantizing for torch: the operator `cutlass_py::quantize`, its straight-through gradient, and the function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from .. import _core
from ..arrays.tensor_spec import TensorSpec
from ..declaration.quantize import ALIASES, LIMITS, SCALINGS
from ..errors import wrong_type, wrong_value
from .dtypes import DTYPE, NAME
from .fast_path import is_compiling
from .gemm_function import check_tensors
from .operators import LIBRARY
from .sharding import RULES, register_if_used

LIBRARY.define(
    # Rows and columns of a group (SCALINGS). Integers stand first: from there on DTensor tells calls apart by values.
    "quantize(Tensor x, int rows, int cols, str dtype, str? kernel_name=None) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
operator = torch.ops.cutlass_py.quantize.default
_SCALING = {group: name for name, group in SCALINGS.items()}
_GROUPS = SCALINGS | {name: SCALINGS[same] for name, same in ALIASES.items()}


def quantize(
    x: Tensor,
    dtype: torch.dtype | str = "e4m3",
    *,
    scaling: str = "tensor",
    out: Tensor | None = None,
    scales: Tensor | None = None,
    kernel: Any = None,
) -> tuple[Tensor, Tensor]:
    """cutlass_py.quantize of a tensor: recorded for autograd, traced by torch.compile, mapped by vmap.

    The gradient is straight-through: that of q, divided by its scales, as if nothing had been rounded or cut off; the
    scales pass none on. torch holds the gradient of an fp8 tensor in fp8. int8 has no gradient.

    Args:
        x: (..., m, k) or (k,), a float tensor.
        dtype: "e4m3", "e5m2" or "s8", or torch's dtype.
        scaling, kernel: as in cutlass_py.quantize.
        out, scales: written and returned instead of new tensors; nothing is recorded then.

    Returns:
        q and the f32 scales.

    Raises:
        ValueError, TypeError: as cutlass_py.quantize; a gradient is asked for beside `out` or `scales`.
    """
    register_if_used()
    check_tensors("quantize", {"x": x}, out=out, scales=scales)
    if out is None and scales is None:
        return _recorded(x, *_group_and_dtype(dtype, scaling), _kernel_name(kernel))
    if torch.is_grad_enabled() and x.requires_grad:
        given = "out" if out is not None else "scales"
        raise wrong_value(given, "is given", "none, where a gradient is asked for", operation="quantize")
    written: tuple[Tensor, Tensor] = _core.quantize(x, dtype, scaling=scaling, out=out, scales=scales, kernel=kernel)
    return written


def _group_and_dtype(dtype: Any, scaling: Any) -> tuple[int, int, str]:
    """Rows and columns of a group, and the name of a dtype: looked up where torch.compile traces, as it mostly is."""
    name = NAME.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if not (isinstance(name, str) and isinstance(scaling, str) and name in LIMITS and scaling in _GROUPS):
        problem = _core.quantize_problem(TensorSpec((1, 1), "f32", device="cpu"), dtype, scaling=scaling)  # or refuses
        name, scaling = problem.q, problem.scaling
    return *_GROUPS[scaling], name


def _kernel_name(kernel: Any) -> str | None:
    name = getattr(kernel, "name", kernel)
    if not isinstance(name, str | None):
        found = f"is {_core.described_type(kernel)}"
        raise wrong_type("kernel", found, "a Kernel or its name", operation="quantize")
    return name


def _recorded(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The operator, by a function that torch.func differentiates too; while torch.compile traces, by itself."""
    run = operator if is_compiling() else _Quantize.apply
    found: tuple[Tensor, Tensor] = run(*arguments)
    return found


def _compute(x: Tensor, rows: int, cols: int, dtype: str, kernel_name: str | None = None) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _core.quantize(x, dtype, scaling=_SCALING[rows, cols], kernel=kernel_name)
    return found


def _fake(x: Tensor, rows: int, cols: int, dtype: str, kernel_name: str | None = None) -> tuple[Tensor, Tensor]:
    """As the results would be: extents may be symbolic, so what is wrong with x is told as it runs."""
    q = torch.empty_like(x, dtype=DTYPE[dtype], memory_format=torch.contiguous_format)
    return q, _new_scales(x, rows, cols)


def _new_scales(x: Tensor, rows: int, cols: int) -> Tensor:
    if not rows:
        return x.new_empty((), dtype=torch.float32)
    *batch, k = x.shape
    depth = (k + cols - 1) // cols if cols else 1
    if not batch:
        return x.new_empty((depth,), dtype=torch.float32)
    *batch, m = batch
    if (rows, cols) != SCALINGS["1x128"]:
        return x.new_empty((*batch, (m + rows - 1) // rows, depth), dtype=torch.float32)
    made = x.new_empty((*batch, depth, (m + 3) // 4 * 4), dtype=torch.float32)  # as gemm reads scale_a by TMA
    return made.swapaxes(-1, -2)[..., :m, :]


# ---------------------------------------------------------------------------------------------------- transforms


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, scales = output
    x, *ctx.group = inputs[:3]
    ctx.dtype = x.dtype
    ctx.mark_non_differentiable(*([scales] if q.dtype.is_floating_point else output))
    ctx.save_for_backward(scales)


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None, None, None]:
    (scales,) = ctx.saved_tensors
    wide = gradient.to(torch.float32)
    for axis, extent in zip((-2, -1), ctx.group, strict=True):
        if extent > 1:
            scales = scales.repeat_interleave(extent, dim=axis).narrow(axis, 0, gradient.shape[axis])
    return (wide / scales).to(ctx.dtype), None, None, None, None


def _vmap(info: Any, in_dims: Any, x: Tensor, rows: int, *others: Any) -> Any:
    x = x.movedim(in_dims[0], 0)
    if x.dim() > 2 and rows:  # the batch of one call
        return _recorded(x, rows, *others), (0, 0)
    found = [_recorded(example, rows, *others) for example in x]
    if not found:  # no example: no results, of the shape that they would have
        results = _fake(x.new_empty(x.shape[1:]), rows, *others)
        return tuple(result.new_empty((0, *result.shape)) for result in results), (0, 0)
    return tuple(torch.stack(results) for results in zip(*found, strict=True)), (0, 0)


class _Quantize(torch.autograd.Function):  # type: ignore[misc]
    """The operator under torch.func, whose transforms want the parts of its gradient by these names."""

    setup_context = staticmethod(_keep)
    backward = staticmethod(_backward)
    vmap = staticmethod(_vmap)

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        """The operator."""
        found: tuple[Tensor, Tensor] = operator(*arguments)
        return found


def _shardings(x: Any, rows: int, cols: int, dtype: str, kernel_name: str | None = None) -> list[Any]:
    """Along the dimensions that no group goes over, beside the whole (sharding.py)."""
    from torch.distributed.tensor import Replicate, Shard

    whole = 1 if rows == 1 else 2 if rows else len(x.shape)
    along = [Replicate(), *(Shard(dim) for dim in range(len(x.shape) - whole))]
    return [([placement] * 2, [placement, *(None,) * 4]) for placement in along]


for _backend in ("CPU", "CUDA"):
    LIBRARY.impl("quantize", _compute, _backend)
library.register_fake(operator, _fake, lib=LIBRARY)
library.register_autograd(operator, _backward, setup_context=_keep, lib=LIBRARY)
library.register_vmap(operator, _vmap, lib=LIBRARY)
RULES[operator] = _shardings
