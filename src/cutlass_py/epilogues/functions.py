"""What an epilogue may call, beside + - * / ** abs() and comparisons: on traced values, NumPy arrays and numbers alike.

`minimum`, `maximum`, `clamp` and `relu` let NaN through. Truth values come from comparisons, and are joined by & | ~.
NumPy's functions of the same names (numpy.exp, numpy.where, ...) may be called as well.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ..declaration.epilogue_ir import AXES, CASTS
from .tracing import FUNCTIONS as _FUNCTIONS
from .tracing import cast as _cast
from .tracing import reduce as _reduce
from .tracing import trace_of, tracing

__all__ = [
    "abs", "cast", "clamp", "erf", "exp", "gelu", "gelu_tanh", "hardswish", "leaky_relu", "log", "max", "maximum",
    "min", "minimum", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "square", "sum", "tanh", "where",
]  # fmt: skip


def _apply(op: str, *operands: Any) -> Any:
    if trace := trace_of(*operands):
        return trace.apply(op, *operands)
    from .reference import FUNCTIONS  # NumPy is not needed to trace

    return FUNCTIONS[op](*operands)


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    return _apply("where", condition, x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of two."""
    return _apply("minimum", x, y)


def maximum(x: Any, y: Any) -> Any:
    """The larger of two."""
    return _apply("maximum", x, y)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def abs(x: Any) -> Any:  # noqa: A001
    """|x|."""
    return _apply("abs", x)


def square(x: Any) -> Any:
    """x * x."""
    return x * x


def exp(x: Any) -> Any:
    """e to the power of x."""
    return _apply("exp", x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _apply("log", x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _apply("sqrt", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return _apply("rsqrt", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _apply("tanh", x)


def erf(x: Any) -> Any:
    """The error function."""
    return _apply("erf", x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _apply("sigmoid", x)


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return _apply("relu", x)


def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """x where x > 0, else slope * x."""
    return where(x < 0, slope * x, x)


def gelu(x: Any) -> Any:
    """x * (1 + erf(x / sqrt(2))) / 2."""
    return _apply("gelu", x)


def gelu_tanh(x: Any) -> Any:
    """GELU by tanh: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2."""
    return _apply("gelu_tanh", x)


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return _apply("silu", x)


def hardswish(x: Any) -> Any:
    """x * min(max(x + 3, 0), 6) / 6."""
    return _apply("hardswish", x)


def cast(x: Any, dtype: str) -> Any:
    """x rounded to "f16", "bf16", "e4m3" or "e5m2" (which saturate), and back.

    Raises:
        ValueError: another dtype; while an epilogue is traced, as EpilogueError.
    """
    if dtype not in CASTS:
        _refuse(x, f"casts to {dtype!r}; expected one of {', '.join(CASTS)}")
    if trace_of(x):
        return _cast(x, dtype)
    from .reference import rounded

    return rounded(x, dtype)


def sum(x: Any, axis: int | None = None) -> Any:  # noqa: A001
    """Over the columns (axis -1: one value per row), the rows (-2: one per column) or all (None) of D.

    Of a batch each matrix is reduced on its own. Traced, it can only be returned; arrays keep both axes.

    Raises:
        ValueError: another axis; while an epilogue is traced, as EpilogueError.
    """
    return _reduced("sum", x, axis)


def max(x: Any, axis: int | None = None) -> Any:  # noqa: A001
    """The largest, likewise; NaN where one is."""
    return _reduced("max", x, axis)


def min(x: Any, axis: int | None = None) -> Any:  # noqa: A001
    """The smallest, likewise; NaN where one is."""
    return _reduced("min", x, axis)


def _reduced(reduction: str, x: Any, axis: int | None) -> Any:
    if not isinstance(axis, int | None) or axis not in AXES.values():
        _refuse(x, f"{reduction} over axis={axis!r}; expected -1 (one value per row), -2 (one per column) or None")
    if trace_of(x):
        return _reduce(x, reduction, axis)
    if trace := tracing():
        trace.refuse(f"takes the {reduction} of a {type(x).__name__}; expected a traced value")
    from .reference import reduced

    return reduced(x, reduction, axis)


def _refuse(x: Any, reason: str) -> NoReturn:
    if trace := trace_of(x) or tracing():
        trace.refuse(reason)
    raise ValueError(f"functions: {reason}")


_FUNCTIONS.update((name, globals()[name]) for name in __all__)  # NumPy's functions of the same names end here
