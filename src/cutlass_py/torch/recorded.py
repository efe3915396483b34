"""Products with at most a bias that only a gradient has to see: a training loop's calls, in as few steps as it takes.

They are computed and differentiated as gradients.py says; its node, for every epilogue, costs several times as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from .dtypes import WIDE
from .gradients import Allowed, column_major, node_of
from .operators import operator
from .straight import exact, has_other_meaning, tracked, unseen

_gemm = _core.gemm


def recorded(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor | None:
    """a @ b + bias with its gradient; None where it is not for this node: nothing to record, more to see, other shapes.

    Args:
        a: (..., m, k), real floats of one dtype as all of these.
        b: (k, n), or (batch, k, n) beside an `a` of (batch, m, k).
        bias: (n,).
    """
    operands = (a, b) if bias is None else (a, b, bias)
    if not _suits(a, b, bias) or not unseen() or not exact(operands):
        return None
    return _record(*operands) if tracked(operands) and not has_other_meaning(operands) else None


def _suits(a: Tensor, b: Tensor, bias: Tensor | None) -> bool:
    if a.dtype not in WIDE or b.dtype != a.dtype:
        return False
    if bias is not None and (bias.dtype != a.dtype or bias.shape != b.shape[-1:]):
        return False
    return bool(a.dim() > 1 if b.dim() == 2 else a.dim() == b.dim() == 3 and a.shape[0] == b.shape[0])


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Its backward pass is two of itself, where derivatives of higher order ask for that."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)  # kept is what the other's gradient reads
        ctx.set_materialize_grads(False)
        ctx.turned, ctx.one_matrix = (column_major(a), column_major(b)), b.dim() == 2
        ctx.allowed = Allowed()
        return _gemm(a, b, bias=bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        needs_a, needs_b, *needs_bias = ctx.needs_input_grad
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        a, b = ctx.saved_tensors
        of_a = of_b = None
        with ctx.allowed.here():
            if needs_a:
                of_a = _times(grad, b.mT, ctx.turned[0])
            if needs_b:  # the sum over the batch is part of the product
                left, right = (_rows(a), _rows(grad)) if ctx.one_matrix else (a, grad)
                of_b = _times(left.mT, right, ctx.turned[1])
        return of_a, of_b, *(grad.sum_to_size(grad.shape[-1:]) if needed else None for needed in needs_bias)


_record = node_of(_Product)


def _rows(x: Tensor) -> Tensor:
    """Without its batch; by reshape, which torch's batched gradients know."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _times(x: Tensor, y: Tensor, turned: bool) -> Tensor:
    """x @ y, lying in memory as the operand whose gradient it is: column-major if that is `turned`."""
    if turned:
        return _times(y.mT, x.mT, False).mT
    if not unseen() or not exact((x, y)) or has_other_meaning((x, y)):
        product: Tensor = operator(x, y)[0]
        return product
    return _record(x, y) if tracked((x, y)) else _gemm(x, y)
