"""Two linear layers with an activation between them, whose backward pass is fused across the layers.

On its own, a layer receives the gradient of f(z) and has to multiply it by f'(z) in a pass over memory. Here the
product that computes that gradient multiplies by f'(z) in its epilogue, and leaves the bias gradient too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ..arrays.torch_private import has_transform
from ..declaration.epilogues import ACTIVATIONS
from ..epilogues.activations import Activation
from ..errors import wrong_value
from . import activations
from .fast_path import is_compiling, is_exporting, needs_gradient
from .gemm_function import cast, check_tensors, gemm
from .gradients import dense, inherit_thread_flags, is_gradient_needed, run
from .operators import Call, z_dtype
from .sharding import register_if_used


def mlp(
    input: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    *,
    activation: str | Activation = "gelu",
) -> Tensor:
    """f(input @ weight1.T + bias1) @ weight2.T + bias2.

    Args:
        input: (..., in).
        weight1: (hidden, in), as nn.Linear keeps it; bias1 (hidden,).
        weight2: (out, hidden); bias2 (out,).
        activation: as gemm takes it. Those with a derivative (relu, gelu, gelu_tanh, silu) are fused backwards too.

    Returns:
        (..., out).

    Raises:
        ValueError, TypeError: as gemm; a weight or a bias of another shape.
    """
    given = (input, weight1, weight2, bias1, bias2)
    if has_torch_function(given) and not all(x is None or isinstance(x, Tensor) for x in given):
        return handle_torch_function(mlp, given, *given, activation=activation)  # torch.fx's proxies
    check_tensors("mlp", {"input": input, "weight1": weight1, "weight2": weight2}, bias1=bias1, bias2=bias2)
    if not input.dim():
        raise wrong_value("input", "is ()", "at least 1 dimension", about="shape", operation="mlp")
    dimensions = {"weight1": (weight1, 2), "weight2": (weight2, 2), "bias1": (bias1, 1), "bias2": (bias2, 1)}
    for operand, (value, count) in dimensions.items():
        if value is not None and value.dim() != count:
            expected = f"{count} dimension{'s' * (count > 1)}"
            raise wrong_value(operand, f"is {tuple(value.shape)}", expected, about="shape", operation="mlp")
    if not is_exporting():  # extents that torch.jit.trace records are tensors
        _check_extents(input=(input, -1), weight1=(weight1, 1))
        _check_extents(weight1=(weight1, 0), weight2=(weight2, 1))
    operands = cast(input.device.type, *given)
    x, w1, w2, b1, b2 = operands
    name = activation.name if isinstance(activation, Activation) and not activation.parameters else activation
    # Of a Function, torch.func knows no second derivatives where only some results are mapped.
    others = is_exporting() or has_transform()
    # What is kept of a sigmoid is its value, and d_sigmoid takes where it was evaluated.
    fused = f"d_{name}" in ACTIVATIONS and (name == "relu" or name not in activations.FROM_RESULT)
    if not needs_gradient(operands) or others or not fused:
        return gemm(gemm(x, w1.t(), bias=b1, activation=name), w2.t(), bias=b2)
    register_if_used()
    rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
    results = _Mlp.apply(rows, w1, w2, b1, b2, name)
    d = results if isinstance(results, Tensor) else results[0]
    return d if x.dim() == 2 else d.reshape(*x.shape[:-1], w2.shape[0])  # which a sparse gradient does not pass


def _check_extents(**operands: tuple[Tensor, int]) -> None:
    (first, (x, i)), (second, (y, j)) = operands.items()
    if x.shape[i] != y.shape[j]:
        others = {"other": second, "other_found": f"is {tuple(y.shape)}", "about": "shape", "operation": "mlp"}
        raise wrong_value(first, f"is {tuple(x.shape)}", f"{x.shape[i]} columns of {second}", **others)


class _Mlp(torch.autograd.Function):  # type: ignore[misc]
    """Matrices in, matrices out. The hidden values are results as well: second derivatives need their graph.

    But not where torch compiles, which has no second derivatives, and makes zeros of gradients that nobody asks for.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w1: Tensor, w2: Tensor, b1: Any, b2: Any, name: str
    ) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:
        first = Call(x, w1.t(), bias=b1, activation=name)
        y, z, _ = run(first if name in activations.FROM_RESULT else first._replace(aux_dtype=z_dtype(first)))
        ctx.name = name
        needs_x, needs_w1, needs_w2, needs_b1, *_ = ctx.needs_input_grad
        ctx.needs_hidden = needs_x or needs_w1 or needs_b1
        at = y if name in activations.FROM_RESULT else z
        needed = (needs_w1, needs_x, ctx.needs_hidden, needs_w2, ctx.needs_hidden)
        ctx.save_for_backward(*(v if kept else None for v, kept in zip((x, w1, w2, y, at), needed, strict=True)))
        ctx.dtype_b1 = None if b1 is None else b1.dtype
        ctx.set_materialize_grads(False)
        ctx.thread_flags = inherit_thread_flags()
        d = run(Call(y, w2.t(), bias=b2))[0]
        return d if is_compiling() else (d, y, z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if len(grads) == 1 and torch.is_grad_enabled() and not is_compiling():  # a graph that broke around `forward`
            raise RuntimeError("mlp: second derivatives are asked of a call that torch.compile compiled")
        with ctx.thread_flags():
            return _Mlp._gradients(ctx, *grads)

    @staticmethod
    def _gradients(
        ctx: Any, of_d: Tensor | None, of_y: Tensor | None = None, of_z: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        of_d, of_y, of_z = map(dense, (of_d, of_y, of_z))
        x, w1, w2, y, z = ctx.saved_tensors
        *needs, needs_b2, _ = ctx.needs_input_grad
        needs_x, needs_w1, needs_w2, needs_b1 = (
            needed and is_gradient_needed(ctx, i) for i, needed in enumerate(needs)
        )
        dz = dx = dw1 = dw2 = db1 = db2 = None
        if of_d is not None:
            if needs_x or needs_w1 or needs_b1:
                sums = "n" if needs_b1 else ""
                dz, _, db1 = run(Call(of_d, w2, aux=z, activation=f"d_{ctx.name}", bias_grad=sums))
            dw2 = run(Call(of_d.t(), y))[0] if needs_w2 else None
            db2 = of_d.sum(0) if needs_b2 else None
        if of_y is not None and ctx.needs_hidden:
            dy = activations.derivative(ctx.name, of_y, z, ())
            dz, db1 = dy if dz is None else dz + dy, None
        if of_z is not None and ctx.name not in activations.FROM_RESULT:
            dz, db1 = of_z if dz is None else dz + of_z, None
        if dz is not None:
            dx = run(Call(dz, w1))[0] if needs_x else None
            dw1 = run(Call(dz.t(), x))[0] if needs_w1 else None
            db1 = (dz.sum(0) if db1 is None else db1).to(ctx.dtype_b1) if needs_b1 else None
        return dx, dw1, dw2, db1, db2, None
