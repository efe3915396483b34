"""Canonical operands as NumPy arrays: for the CPU's kernel, and for the question whether two of them share elements."""

from __future__ import annotations

from typing import Any, TypedDict

from .dtypes import DTYPES

HostOperand = tuple[int, str, tuple[int, ...], tuple[int, ...]]  # address, dtype, shape, strides in bytes


class _Always(TypedDict):
    a: HostOperand
    b: HostOperand
    d: HostOperand
    alpha: float | complex | HostOperand
    beta: float | complex | HostOperand
    scale_out: float | HostOperand
    activation: str
    parameters: tuple[float, float]
    accumulator: str
    empty_product: bool


class HostCall(_Always, total=False):
    """One canonical call, as host.cpp makes it: CutlassPyEpilogue (kernel.h) by name, absent operands left out.

    Arrays are (batch, rows, cols); vectors repeat by a stride of 0, but for bias_grad, which is (1, 1, n) or (1, m, 1).
    Factors are numbers, or arrays of no dimension.
    """

    c: HostOperand
    bias: HostOperand
    scale_a: HostOperand
    scale_b: HostOperand
    gate: HostOperand
    aux: HostOperand
    bias_grad: HostOperand
    user: tuple[int, tuple[float | HostOperand, ...]]  # Problem.user, and its operands in order


class _Memory:
    def __init__(self, operand: HostOperand) -> None:
        address, dtype, shape, strides = operand
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{DTYPES[dtype].itemsize}",
        }


def host_array(operand: HostOperand) -> Any:
    """A NumPy array over memory that somebody else keeps alive for the duration of a call."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    _, dtype, shape, _ = operand
    if 0 in shape:
        return np.empty(shape, DTYPES[dtype].numpy)
    return np.asarray(_Memory(operand)).view(DTYPES[dtype].numpy)


def shares_memory(x: HostOperand, y: HostOperand) -> bool:
    """Whether two strided operands share an element; the memory itself (on a device, perhaps) is not touched."""
    import numpy as np

    if 0 in x[2] or 0 in y[2]:
        return False
    try:
        limit: Any = 1_000_000  # candidate solutions; NumPy's stubs know only its two special values
        return bool(np.shares_memory(np.asarray(_Memory(x)), np.asarray(_Memory(y)), max_work=limit))
    except np.exceptions.TooHardError:
        return True  # refusing is safe
