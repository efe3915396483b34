"""torch.nn.Linear and nn.Sequential by this package's kernels, with activations fused into the layers around them."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .. import _core
from ..arrays.torch_private import has_global_hook, has_hooks, is_autocasting
from ..declaration.epilogues import ACTIVATIONS
from ..epilogues.activations import Activation
from ..errors import ArgumentError
from .fast_path import is_compiling
from .functions import OPERANDS, cast_operands, check_features, linear
from .gemm_function import check_tensors, gemm, refuse_as_torch
from .perceptron import mlp
from .sharding import register_if_used

_fast_linear = _core.fast_linear

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
        if not is_compiling() and (d := _fast_linear(input, self.weight, self.bias, self.activation)) is not None:
            return d
        try:
            a, weight, bias = input, self.weight, self.bias
            if isinstance(input, Tensor) and is_autocasting():
                a, weight, bias = cast_operands(a, weight, bias)
            return gemm(a, weight.t(), bias=bias, activation=self.activation)
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


class Sequential(nn.Sequential):  # type: ignore[misc]
    """nn.Sequential that computes a Linear, an activation and a Linear in a row by `mlp`; same modules and state_dict.

    That is done where both are `Linear` of this package without an activation of their own, where between them is an
    nn.ReLU, nn.GELU or nn.SiLU, and where nothing hooks into the three. It is looked up on each call, so modules may be
    exchanged and hooked later. All others are called one after the other.
    """

    def forward(self, input: Any) -> Any:
        """As nn.Sequential's."""
        modules = list(self)
        while modules:
            d = _perceptron(input, *modules[:3]) if is_perceptron(modules[:3]) else None
            input, modules = (modules[0](input), modules[1:]) if d is None else (d, modules[3:])
        return input


def is_perceptron(modules: list[nn.Module]) -> bool:
    """Whether `mlp` computes what these compute in a row."""
    if len(modules) != 3:
        return False
    first, activation, second = modules
    layers = type(first) is type(second) is Linear and first.activation is second.activation is None
    return layers and bool(_name_of(activation)) and not (has_global_hook() or any(map(is_hooked, modules)))


def _perceptron(x: Any, first: Linear, activation: nn.Module, second: Linear) -> Any:
    """What these compute in a row; None where a layer or `mlp` refuses it: layers say that in torch's words."""
    operands = (x, first.weight, second.weight, first.bias, second.bias)
    # Of a bias `mlp` takes more dtypes than a layer does. What is no tensor is a proxy of torch.fx, or refused.
    if isinstance(x, Tensor) and not is_autocasting() and any(y is not None and y.dtype != x.dtype for y in operands):
        return None
    try:
        return mlp(*operands, activation=_name_of(activation))
    except ArgumentError:
        return None


def is_hooked(module: nn.Module) -> bool:
    """Whether calling a module does more than its class says."""
    return "forward" in vars(module) or has_hooks(module)


_NAMES = {nn.ReLU: "relu", nn.SiLU: "silu"}


def _name_of(module: nn.Module) -> str:
    """The activation that a module is, of those whose derivative an epilogue has; "" for any other module."""
    if type(module) is nn.GELU:
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    return _NAMES.get(type(module), "")
