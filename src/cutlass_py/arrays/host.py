"""Memory of the host as NumPy arrays: for the CPU's kernel, and for the question whether operands share elements."""

from __future__ import annotations

from typing import Any

from .._core import Operand
from ..declaration.dtypes import DTYPES

HostOperand = tuple[int, str, tuple[int, ...], tuple[int, ...]]  # address, dtype, shape, strides in bytes


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


def host_array(operand: Operand) -> Any:
    """A NumPy array over an operand, of any dtype; the memory is somebody else's, for the duration of a call."""
    import numpy as np

    array: Any = np.asarray(operand)
    if array.dtype.kind != "V":
        return array
    import ml_dtypes  # noqa: F401

    return array.view(DTYPES[operand.dtype].numpy)


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
