"""Activations with parameters: what `activation=` takes where a name alone does not say enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activation:
    """One row of epilogues.ACTIVATIONS with its parameters, which kernels hold in f32."""

    name: str
    parameters: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.parameters))})"


def leaky_relu(slope: float = 0.01) -> Activation:
    """x where x > 0, else slope * x."""
    return Activation("leaky_relu", (float(slope),))


def clamp(low: float, high: float) -> Activation:
    """min(max(x, low), high); NaN stays.

    Raises:
        ValueError: low is above high, or one of them is NaN.
    """
    if not low <= high:
        raise ValueError(f"clamp: low is {low} and high is {high}; expected low <= high")
    return Activation("clamp", (float(low), float(high)))
