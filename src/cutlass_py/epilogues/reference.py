"""Users' epilogues in NumPy: their programs, as epilogue_cpp.py has them for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.rounding import store
from ..declaration.dtypes import DTYPES
from ..declaration.epilogue_ir import AXES, Program
from .activation_reference import ACTIVATION_FUNCTIONS
from .erf import erf

_ACTIVATIONS = ("tanh", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "hardswish")


def _activation(name: str) -> Callable[[Any], Any]:
    return lambda x: ACTIVATION_FUNCTIONS[name](np.asarray(x))[()]


def _where(condition: Any, x: Any, y: Any) -> Any:
    chosen: Any = np.where(condition, x, y)
    return chosen[()]  # of numbers a number


def _floats(x: Any) -> Any:
    given = np.asarray(x)
    return given.astype(np.float64) if given.dtype.kind in "biu" else given


# By the names of operations.OPERATIONS.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in (
        "add", "subtract", "multiply", "divide", "negative", "less", "less_equal", "greater", "greater_equal", "equal",
        "not_equal", "logical_and", "logical_or", "logical_not", "minimum", "maximum", "abs", "exp", "log", "sqrt",
    )},
    "where": _where,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": lambda x: erf(_floats(x))[()],
    **{name: _activation(name) for name in _ACTIVATIONS},
}  # fmt: skip


def rounded(x: Any, dtype: str) -> Any:
    """x rounded to a dtype, and back."""
    given = np.asarray(x)
    narrow = np.empty(given.shape, DTYPES[dtype].numpy)
    store(narrow, given)
    return narrow.astype(given.dtype)[()]


def reduced(x: Any, reduction: str, axis: int | None) -> Any:
    """x over an axis of matrices, or both (None), whose extents stay as 1."""
    return getattr(np, reduction)(x, axis=(-2, -1) if axis is None else axis, keepdims=True)


def run(program: Program, accumulated: Any, inputs: dict[str, Any], axes: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """D and the further outputs, from the sums and what was given for the parameters, all of one dtype.

    Args:
        axes: of the outputs as Output has them; where D is computed as its transpose, they are exchanged.
    """
    wide = accumulated.dtype.type
    values: list[Any] = []
    last = {i: index for index in sorted(program.used) for i in program.nodes[index].operands}
    written = {program.result, *(output.node for output in program.outputs)}
    for index, node in enumerate(program.nodes):
        if index not in program.used:
            value = None
        elif node.op == "accum":
            value = accumulated
        elif node.op == "input":
            value = inputs[node.name]
        elif node.op == "constant":
            value = wide(node.number)
        elif node.op == "cast":
            value = rounded(values[node.operands[0]], node.name)
        else:
            value = FUNCTIONS[node.op](*(values[i] for i in node.operands))
        values.append(value)
        for i in node.operands:
            if last.get(i) == index and i not in written:
                values[i] = None  # as large as D
    whole = [np.broadcast_to(values[o.node], accumulated.shape) for o in program.outputs]
    outputs = [
        reduced(x, o.reduction, AXES[axis]) if o.reduction else x
        for o, x, axis in zip(program.outputs, whole, axes, strict=True)
    ]
    return values[program.result], outputs
