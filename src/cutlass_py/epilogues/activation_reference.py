"""Activations in NumPy, by their names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .erf import erfc

_SQRT_HALF, _SQRT_2_OVER_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu_tanh_share(x: Any) -> Any:
    """(1 + tanh(u)) / 2, which is the logistic function of 2 u: small values keep their digits."""
    return _sigmoid(2 * _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x))


def _d_gelu_tanh(x: Any) -> Any:
    s = _gelu_tanh_share(x)
    square = np.minimum(x * x, 1e6)  # beyond, s * (1 - s) is 0; infinity would make NaN of it
    return s + x * s * (1 - s) * 2 * _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * square)


def _d_silu(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _d_sigmoid(x: Any) -> Any:
    s = _sigmoid(x)
    return s * (1 - s)


# By the names of epilogues.ACTIVATIONS: of the value, and of the parameters that are declared there. clip keeps NaN.
ACTIVATION_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.clip(x, 0, math.inf),
    "leaky_relu": lambda x, slope: np.where(x < 0, slope * x, x),
    "gelu": lambda x: x / 2 * erfc(x * -_SQRT_HALF),
    "gelu_tanh": lambda x: x * _gelu_tanh_share(x),
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "clamp": np.clip,
    "d_relu": lambda x: np.where(np.isnan(x), x, (x > 0).astype(x.dtype)),
    "d_gelu": lambda x: erfc(x * -_SQRT_HALF) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "d_gelu_tanh": _d_gelu_tanh,
    "d_silu": _d_silu,
    "d_sigmoid": _d_sigmoid,
}
