"""Activations by torch's own functions: values and derivatives, where no kernel has them in its epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..declaration.epilogues import ACTIVATIONS, INTERLEAVED

_aten = torch.ops.aten
Numbers = Sequence[float]

_VALUE: dict[str, Callable[[Tensor, Numbers], Tensor]] = {
    "identity": lambda x, _: x,
    "relu": lambda x, _: torch.relu(x),
    "leaky_relu": lambda x, p: _aten.leaky_relu(x, p[0]),
    "gelu": lambda x, _: _aten.gelu(x, approximate="none"),
    "gelu_tanh": lambda x, _: _aten.gelu(x, approximate="tanh"),
    "silu": lambda x, _: _aten.silu(x),
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "tanh": lambda x, _: torch.tanh(x),
    "hardswish": lambda x, _: _aten.hardswish(x),
    "clamp": lambda x, p: torch.clamp(x, p[0], p[1]),
}


def name_of(activation: Any) -> str:
    """Of an Activation, of what is a name already, or of none at all."""
    return "identity" if activation is None else getattr(activation, "name", activation)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return _aten.silu_backward(grad, x)
    s = torch.sigmoid(x)  # torch's kernel has no derivative of its own
    return grad * s * (1 + x * (1 - s))


# grad * f'(x). Those of FROM_RESULT take f(x) in its place.
_DERIVATIVE: dict[str, Callable[[Tensor, Tensor, Numbers], Tensor]] = {
    "identity": lambda grad, x, _: grad,
    "relu": lambda grad, y, _: _aten.threshold_backward(grad, y, 0),
    "leaky_relu": lambda grad, x, p: _aten.leaky_relu_backward(grad, x, p[0], False),
    "gelu": lambda grad, x, _: _aten.gelu_backward(grad, x, approximate="none"),
    "gelu_tanh": lambda grad, x, _: _aten.gelu_backward(grad, x, approximate="tanh"),
    "silu": lambda grad, x, _: _silu_backward(grad, x),
    "sigmoid": lambda grad, y, _: _aten.sigmoid_backward(grad, y),
    "tanh": lambda grad, y, _: _aten.tanh_backward(grad, y),
    "hardswish": lambda grad, x, _: _aten.hardswish_backward(grad, x),
    "clamp": lambda grad, x, p: torch.where((x >= p[0]) & (x <= p[1]), grad, 0),  # as torch.clamp's
}
# Their derivatives are functions of their values: nothing else has to be kept for the backward pass.
FROM_RESULT = ("relu", "sigmoid", "tanh")


def _second_gelu_tanh(x: Tensor) -> Tensor:
    scale, cubic = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(scale * (x + cubic * x * x * x))
    first, second = scale * (1 + 3 * cubic * x * x), 6 * scale * cubic * x  # of tanh's argument
    return (1 - t * t) * (first - x * t * first * first + x * second / 2)


def _second_silu(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


def _second_sigmoid(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (1 - 2 * s)


_SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.zeros_like,
    "gelu": lambda x: torch.exp(-x * x / 2) * (2 - x * x) / math.sqrt(2 * math.pi),
    "gelu_tanh": _second_gelu_tanh,
    "silu": _second_silu,
    "sigmoid": _second_sigmoid,
}


def _numbers(name: str, parameters: Numbers) -> Numbers:
    return parameters or [default for _, default in ACTIVATIONS[name].parameters if default is not None]


def value(name: str, x: Tensor, parameters: Numbers) -> Tensor:
    """f(x), or f'(x) for a derivative."""
    if ACTIVATIONS[name].derivative:
        return derivative(name.removeprefix("d_"), torch.ones_like(x), x, parameters)
    return _VALUE[name](x, _numbers(name, parameters))


def derivative(name: str, grad: Tensor, x: Tensor, parameters: Numbers) -> Tensor:
    """grad * f'(x); f may be a derivative itself."""
    if ACTIVATIONS[name].derivative:
        return grad * _SECOND[name.removeprefix("d_")](x)
    if name in FROM_RESULT and name != "relu":
        x = _VALUE[name](x, ())
    return _DERIVATIVE[name](grad, x, _numbers(name, parameters))


def derivative_from_result(name: str, grad: Tensor, y: Tensor) -> Tensor:
    """grad * f'(x), given y = f(x), of FROM_RESULT."""
    return _DERIVATIVE[name](grad, y, ())


# ---------------------------------------------------------------------------------------------------- gates, values
# Of functions by the name that `gated` has.


def pairs_are_kept(name: str) -> bool:
    """Whether kernels that join gates and values can store both, too: not where these alternate."""
    return not name.endswith(INTERLEAVED)


def gated(name: str, pairs: Tensor) -> Tensor:
    """f(gates) * values."""
    f, (gates, values) = name.removesuffix(INTERLEAVED), _parted(name, pairs)
    return value(f, gates, ()) * values


def gated_derivative(name: str, grad: Tensor, pairs: Tensor) -> Tensor:
    """grad through f(gates) * values: the gradients of gates and of values, which lie as these do."""
    f, (gates, values) = name.removesuffix(INTERLEAVED), _parted(name, pairs)
    return _joined(name, derivative(f, grad * values, gates, ()), grad * value(f, gates, ()))


def through_gated_derivative(name: str, grad: Tensor, pairs: Tensor) -> Tensor:
    """grad through gated_derivative(name, z, pairs): the gradient of z."""
    f, (of_gates, of_values) = name.removesuffix(INTERLEAVED), _parted(name, grad)
    gates, values = _parted(name, pairs)
    return derivative(f, of_gates * values, gates, ()) + of_values * value(f, gates, ())


def second_gated_derivative(name: str, grad: Tensor, z: Tensor, pairs: Tensor) -> Tensor:
    """The same, of pairs."""
    f, (of_gates, of_values) = name.removesuffix(INTERLEAVED), _parted(name, grad)
    gates, values = _parted(name, pairs)
    again, through = derivative(f"d_{f}", of_gates * values, gates, ()), derivative(f, of_values, gates, ())
    return _joined(name, (again + through) * z, derivative(f, of_gates * z, gates, ()))


def _parted(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gates and values."""
    n = x.shape[-1] // 2
    if name.endswith(INTERLEAVED):
        pairs = x.unflatten(-1, (n, 2))
        return pairs.select(-1, 0), pairs.select(-1, 1)
    return x.narrow(-1, 0, n), x.narrow(-1, n, n)  # as long as each other where extents are symbols, too


def _joined(name: str, gates: Tensor, values: Tensor) -> Tensor:
    if name.endswith(INTERLEAVED):
        return torch.stack((gates, values), -1).flatten(-2)
    return torch.cat((gates, values), -1)
