"""torch.nn.Linear by this package's kernels, with an activation fused into it; and the exchange of a model's layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import _core
from ..activations import Activation
from ..declaration.epilogues import ACTIVATIONS
from .dtypes import FLOATS
from .functions import OPERANDS, cast_operands, check_features, linear
from .product import check_tensors, gemm, refuse_as_torch
from .sharding import register_if_used
from .straight import autocasting, compiling

_straight_linear = _core.straight_linear

# torch.fx.symbolic_trace records calls of these from here, as it does of torch's functions.
torch.fx.wrap("linear")
torch.fx.wrap("gemm")


class Linear(nn.Linear):  # type: ignore[misc]
    """nn.Linear with an optional activation: f(x @ weight.T + bias) in one kernel; same parameters, same state_dict.

    Args:
        in_features: last extent of the input.
        out_features: last extent of the result.
        bias: whether there is one.
        device: of the parameters.
        dtype: of the parameters.
        activation: as gemm takes it, but no derivative.

    Raises:
        ValueError: the activation is not known, a derivative, or the name of one whose parameters have no defaults.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | Activation | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.activation = _checked(activation)
        register_if_used()

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features).

        Raises:
            RuntimeError: what nn.Linear refuses, whatever the activation.
            TypeError: the input is no tensor.
        """
        if self.activation is None:
            return linear(input, self.weight, self.bias)
        if not compiling() and (d := _straight_linear(input, self.weight, self.bias, self.activation)) is not None:
            return d
        try:
            a, b, bias = input, self.weight.t(), self.bias
            if isinstance(input, Tensor) and autocasting():
                a, b, bias = cast_operands(a, b, bias)
            return gemm(a, b, bias=bias, activation=self.activation)
        except (ValueError, TypeError) as refusal:
            check_tensors("Linear", {"input": input})
            check_features("Linear", input, self.weight)
            refuse_as_torch("Linear", refusal, OPERANDS["linear"])

    def extra_repr(self) -> str:
        """As nn.Linear's, and the activation."""
        text: str = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation}"


def _checked(activation: str | Activation | None) -> str | Activation | None:
    plain = [row for row in ACTIVATIONS.values() if not row.derivative]
    names = [row.name for row in plain if None not in dict(row.parameters).values()]
    made = isinstance(activation, Activation) and activation.name in [row.name for row in plain]
    if activation is not None and not made and activation not in names:
        expected = ", ".join(names)
        raise ValueError(f"Linear: activation is {activation!r}; expected one of {expected}, clamp(low, high)")
    return activation


@dataclass(frozen=True)
class Replacement:
    """What replace_linear did; prints as a table.

    Attributes:
        replaced: names of the modules that are now cutlass_py.torch.Linear.
        left: name of each other linear module, and why it stayed.
    """

    replaced: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [(name, "replaced") for name in self.replaced] + [(n, f"left: {why}") for n, why in self.left.items()]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"{name or '(the model itself)':{width}}  {what}" for name, what in rows]
        return "\n".join([*lines, f"{len(self.replaced)} of {len(rows)} linear modules replaced"])


def replace_linear(model: nn.Module, *, where: Callable[[str, nn.Linear], bool] | None = None) -> Replacement:
    """Makes a model's nn.Linear modules cutlass_py.torch.Linear, in place.

    Modules, parameters and buffers stay the same objects: optimisers, tied weights and modules that are used in several
    places keep working, state_dict does not change. Left alone: subclasses of nn.Linear, modules with hooks,
    parametrizations, a forward or an attribute `activation` of their own, lazy and quantised ones, those on the meta
    device, those whose weights are sparse or of a dtype that gemm does not multiply, those of an
    nn.TransformerEncoderLayer (which in inference reads their weights and does not call them), and what `where` says no
    to.

    Args:
        model: any module.
        where: (qualified name, module) -> whether to replace it.

    Returns:
        What was replaced, and what was left and why.
    """
    register_if_used()
    report = Replacement()
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, Linear) or not _is_linear(module):
            continue
        why = (
            _obstacle(module)
            or _passed_over(modules[name.rpartition(".")[0]])
            or ("where said no" if where and not where(name, module) else "")
        )
        if why:
            report.left[name] = why
            continue
        module.__class__ = Linear
        module.activation = None
        report.replaced.append(name)
    return report


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__.endswith("Linear")


def _obstacle(module: nn.Module) -> str:
    """Why a module that looks like nn.Linear stays as it is; empty if nothing speaks against it."""
    if type(module) is not nn.Linear:
        kind = "parametrized" if parametrize.is_parametrized(module) else "of type"
        return f"{kind} {type(module).__module__}.{type(module).__qualname__}"
    if hasattr(module, "activation"):
        return "it has an attribute activation"
    if "forward" in vars(module):
        return "its forward is replaced"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "it has hooks"
    weight: Any = getattr(module, "weight", None)  # pruning and offloading take it away
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.is_meta:
        return "it is on the meta device"
    if weight.layout != torch.strided:
        return f"its weight is {weight.layout}"
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    return ""


def _passed_over(parent: nn.Module) -> str:
    """Why a module around it may never call it."""
    own = isinstance(parent, nn.TransformerEncoderLayer) and type(parent).forward is nn.TransformerEncoderLayer.forward
    return "nn.TransformerEncoderLayer reads its weight without calling it in inference" if own else ""


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
