"""Activations with parameters: what `activation=` takes where a name alone does not say enough."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from .epilogues import ACTIVATIONS


@dataclass(frozen=True)
class Activation:
    """One row of epilogues.ACTIVATIONS with its parameters, which kernels hold in f32.

    Raises:
        ValueError: a name that is not known, another number of parameters, or bounds of clamp that are not in order.
        TypeError: parameters that are no tuple of numbers.
    """

    name: str
    parameters: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        name, parameters = self.name, self.parameters
        if name not in list(ACTIVATIONS):
            raise ValueError(f"activation: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
        if not isinstance(parameters, tuple) or not all(isinstance(x, Real) for x in parameters):
            raise TypeError(f"activation {name}: parameters are {parameters!r}; expected a tuple of numbers")
        count = len(ACTIVATIONS[name].parameters)
        if len(parameters) != count:
            raise ValueError(f"activation {name} has {count} parameters; found {len(parameters)}")
        if name == "clamp" and not parameters[0] <= parameters[1]:
            low, high = parameters
            raise ValueError(f"activation clamp: low is {low} and high is {high}; expected low <= high")

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
    return Activation("clamp", (float(low), float(high)))
