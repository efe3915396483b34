"""The gradient of a layer, a product with at most a bias and an activation, in as few steps as it takes.

Of calls that nothing else has to see. They are computed and differentiated as gradients.py says; its node, for every
epilogue, costs two or three times that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..arrays.torch_private import unchecked_apply
from ..declaration.epilogues import ACTIVATIONS
from ..epilogues.activations import Activation
from . import activations
from .dtypes import WIDE
from .fast_path import is_compiling
from .gradients import column_major, dense, inherit_thread_flags, is_gradient_needed
from .operators import operator

_gemm, _fast_gemm = _core.gemm, _core.fast_gemm


def layer(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | Activation | None, rank: int) -> Tensor | None:
    """f(a @ b + bias) with its gradient, of operands that nothing else has to see; None where it is not for this node.

    Args:
        a: (..., m, k), real floats of one dtype as all of these.
        b: (k, n), or of the batch dimensions of a.
        bias: (n,).
        activation: of gemm, no derivative.
        rank: what ranks of a and b have to be, where that is not 0.
    """
    if a.dtype not in WIDE or b.dtype != a.dtype or not (bias is None or bias.dtype == a.dtype):
        return None
    if not has_shapes(a, b, bias, rank):
        return None
    if activation is not None:
        row = ACTIVATIONS.get(str(activations.name_of(activation)))
        if row is None or row.derivative:
            return None
    found = _record(a, b, bias, activation)
    return found if isinstance(found, Tensor) else found[0]


def has_shapes(a: Tensor, b: Tensor, bias: Tensor | None, rank: int) -> bool:
    """Whether these are the shapes of a layer; ranks of a and b have to be `rank`, where that is not 0."""
    if rank and not a.dim() == b.dim() == rank:
        return False
    alike = a.dim() > 1 if b.dim() == 2 else b.dim() > 2 and a.shape[:-2] == b.shape[:-2]
    return alike and (bias is None or (bias.dim() == 1 and bias.shape[0] == b.shape[-1]))


class _Layer(torch.autograd.Function):  # type: ignore[misc]
    """D, and z where the activation's derivative does not follow from D.

    Its backward pass is two products of its own, where derivatives of higher order ask for that.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, activation: Any) -> Any:
        needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.activation = None if activations.name_of(activation) == "identity" else activation
        z = a.new_empty((*a.shape[:-1], b.shape[-1])) if _reads_z(ctx.activation) else None
        d = _gemm(a, b, bias=bias, activation=activation, aux=z)
        at = None if ctx.activation is None else d if z is None else z
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None, at)  # what the other's gradient reads
        ctx.set_materialize_grads(False)
        ctx.turned = needs_a and column_major(a), needs_b and column_major(b)
        ctx.one_matrix = b.dim() == 2
        ctx.thread_flags = inherit_thread_flags()
        return d if z is None else (d, z)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_z: Tensor | None = None) -> tuple[Tensor | None, ...]:
        needs_a, needs_b, needs_bias, _ = ctx.needs_input_grad
        of_a = of_b = of_bias = None
        if grad is None and of_z is None:
            return of_a, of_b, of_bias, None
        a, b, at = ctx.saved_tensors
        turned_a, turned_b = ctx.turned
        with ctx.thread_flags():
            dz = _through(ctx.activation, dense(grad), at, dense(of_z))
            if needs_a and is_gradient_needed(ctx, 0):
                of_a = _times(b, dz.mT).mT if turned_a else _times(dz, b.mT)
            if needs_b and is_gradient_needed(ctx, 1):  # the sum over the batch is part of the product
                left, right = (_rows(a), _rows(dz)) if ctx.one_matrix else (a, dz)
                of_b = _times(right.mT, left).mT if turned_b else _times(left.mT, right)
            if needs_bias:
                of_bias = dz.sum(tuple(range(dz.dim() - 1)))
        return of_a, of_b, of_bias, None


_record = unchecked_apply(_Layer)


def _reads_z(activation: Any) -> bool:
    return activation is not None and activations.name_of(activation) not in activations.FROM_RESULT


def _through(activation: Any, grad: Any, at: Any, of_z: Any) -> Any:
    """The gradient of z."""
    if grad is None or activation is None:
        return of_z if grad is None else grad
    if not _reads_z(activation):
        return activations.derivative_from_result(activations.name_of(activation), grad, at)
    dz = activations.derivative(activations.name_of(activation), grad, at, getattr(activation, "parameters", ()))
    return dz if of_z is None else dz + of_z


def _rows(x: Tensor) -> Tensor:
    """Without its batch; by reshape, which torch's batched gradients know."""
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _times(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, recorded where a backward pass is."""
    if not is_compiling() and (d := _fast_gemm(x, y, uncast=False)) is not None:
        return d
    return operator(x, y)[0]
