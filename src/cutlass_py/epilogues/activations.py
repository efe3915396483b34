"""Activations with parameters: what `activation=` takes where a name alone does not say enough."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from ..declaration.epilogues import ACTIVATIONS
from ..errors import wrong_type, wrong_value


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters, for `activation=`; `clamp` and `leaky_relu` make one.

    Attributes:
        name: one that gemm knows.
        parameters: as many numbers as that activation has; epilogues round them to the dtype of their arithmetic.

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
    """The activation that is x where x > 0, else slope * x.

    Args:
        slope: any number.

    Raises:
        TypeError: slope is no number.
        ValueError: it is too large for a float.
    """
    return Activation("leaky_relu", (_number("leaky_relu", "slope", slope),))


def clamp(low: float, high: float) -> Activation:
    """The activation min(max(x, low), high), which leaves NaN as it is.

    Args:
        low: the least value; -inf for none.
        high: the greatest value; inf for none.

    Raises:
        ValueError: low is above high, or one of them is NaN or too large for a float.
        TypeError: one of them is no number.
    """
    return Activation("clamp", (_number("clamp", "low", low), _number("clamp", "high", high)))


def _number(function: str, parameter: str, value: Any) -> float:
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except OverflowError:
        raise wrong_value(parameter, "is too large for a float", operation=function) from None
    except (TypeError, ValueError):
        pass
    raise wrong_type(parameter, f"is {value!r}", "a number", operation=function)
