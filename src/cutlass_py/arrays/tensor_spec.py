"""Operands that are no arrays: a tensor described without memory, and an array read as another dtype."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from .. import _core
from .._core import TypedView
from ..declaration.dtypes import DTYPES


class TensorSpec(_core.TensorSpecBase):
    """A tensor described without memory, for questions that need none: get_kernels, explain, Kernel.supports.

    In a list, TensorSpecs stand for matrices at unequal distances. Specs with the same fields are equal; they can be
    copied and pickled.

    Args:
        shape: extents.
        dtype: "f16", "bf16", "f32", "f64", ..., or a framework's dtype.
        strides: in elements; row-major without gaps by default.
        device: "cpu", "cuda" or "cuda:1", or a device of torch. Need not exist.
        alignment: of the first element, in bytes.

    Raises:
        ValueError, TypeError: a parameter does not fit; the message names it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        device: str = "cuda",
        alignment: int = 256,
    ) -> None:
        shape = _integers("shape", shape)
        if shape and min(shape) < 0:
            raise ValueError(f"TensorSpec: shape is {tuple(shape)}; extents must not be negative, found {min(shape)}")
        if strides is None:
            strides = [1] * len(shape)
            for i in range(len(shape) - 2, -1, -1):
                strides[i] = strides[i + 1] * max(shape[i + 1], 1)
        strides = _integers("strides", strides)
        if type(alignment) is not int or alignment != 256:
            (alignment,) = _integers("alignment", [alignment])
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"TensorSpec: alignment is {alignment}; expected a power of two")
        super().__init__(shape, strides, dtype, 0 if device == "cuda" else _ordinal(str(device)), alignment)
        if alignment < 16 and alignment < DTYPES[self.dtype].itemsize:
            least = DTYPES[self.dtype].itemsize
            raise ValueError(f"TensorSpec: alignment is {alignment}; expected {least} at least, of {self.dtype}")

    def _fields(self) -> tuple[Any, ...]:
        """What `__init__` takes."""
        return tuple(self.shape), self.dtype, tuple(self.strides), self.device, self.alignment

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, TensorSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorSpec, self._fields()

    def __repr__(self) -> str:
        aligned = "" if self.alignment == 256 else f", alignment={self.alignment}"
        return f"TensorSpec({tuple(self.shape)}, {self.dtype!r}, {tuple(self.strides)}, {self.device!r}{aligned})"


def _integers(parameter: str, values: Sequence[int]) -> list[int]:
    """Whole numbers of 64 bits."""
    try:
        numbers = list(map(operator.index, values))
    except TypeError:
        raise TypeError(f"TensorSpec: {parameter} is {values!r}; expected whole numbers") from None
    if numbers and not (-(2**63) <= min(numbers) and max(numbers) < 2**63):
        raise ValueError(f"TensorSpec: {parameter} is {numbers}; expected numbers of 64 bits")
    return numbers


def _ordinal(device: str) -> int:
    if device == "cpu":
        return -1
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal() or len(index) > 9:  # more does not fit an int32
        raise ValueError(f"TensorSpec: device is {device!r}; expected 'cpu', 'cuda' or 'cuda:<ordinal>'")
    return int(index or 0)


def view(array: Any, dtype: Any) -> TypedView:
    """An array read as another dtype of the same size, for frameworks that cannot name it.

    Args:
        array: any DLPack array whose elements have the dtype's size, e.g. a CuPy uint16 array for "bf16". It is not
            looked at before a call; that takes the bits as they are, of floats too, and refuses another size.
        dtype: what its elements are.

    Returns:
        A value that gemm accepts wherever it accepts an array. As `out` it is returned itself; results of operands that
        are views come back as views where the framework cannot name their dtype.

    Raises:
        TypeError: `dtype` is none that arrays have. In a call: the array is none, or its elements have another size.
    """
    return TypedView(array, dtype)
