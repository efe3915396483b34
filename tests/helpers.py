"""Arrays of every installed framework, in every layout, from float64 values and back; imports them lazily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from reference import INTEGERS, NUMPY, assert_untouched, elements

import cutlass_py

CPU_FRAMEWORKS = [name for name in ("numpy", "torch", "jax") if find_spec(name)]
MUTABLE = [name for name in CPU_FRAMEWORKS if name != "jax"]
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
CARRIED = ("bf16", "e4m3", "e5m2")  # dtypes that not every framework names


@dataclass(frozen=True)
class Placement:
    """Where a view's elements lie in its buffer, in elements."""

    strides: tuple[int, ...]
    offset: int
    size: int


# What placements exist. The first need no copy; `strided` and later have no unit stride.
UNIT_STRIDE = ("row", "column", "padded", "padded_column", "offset")
NO_UNIT_STRIDE = ("strided", "strided_column", "batch_inner")
NEGATIVE = ("negative", "negative_rows")  # torch and JAX have no negative strides


def place(shape: Sequence[int], kind: str) -> Placement:
    """Strides, offset and buffer size of a (batch, rows, cols) or (rows, cols) array of the kind named.

    Rows without gaps may have any number of dimensions.
    """
    if kind == "row":
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        return Placement(strides, 0, prod(shape) + 8)
    *lead, rows, cols = shape
    batch = lead[0] if lead else 1
    row, col, offset = {
        "aligned": (-(-cols // 16) * 16 + 16, 1, 0),
        "aligned_column": (1, -(-rows // 16) * 16 + 16, 0),
        "column": (1, rows, 0),
        "padded": (cols + 3, 1, 2),
        "padded_column": (1, rows + 5, 1),
        "offset": (cols, 1, 7),
        "words": (-(-cols // 4) * 4 + 4, 1, 4),
        "strided": (2 * cols + 1, 2, 3),
        "strided_column": (3, 3 * rows + 2, 0),
        "batch_inner": ((batch + 1) * max(cols, 1), batch + 1, 0),
        "negative": (-cols, -1, max(rows * cols - 1, 0)),
        "negative_rows": (-(cols + 1), 1, max(rows - 1, 0) * (cols + 1)),
    }[kind]
    extent = max(rows, 1) * abs(row) + max(cols, 1) * abs(col) + 4
    step = {"batch_inner": 1, "aligned": rows * row, "aligned_column": cols * col}.get(kind, extent)
    strides = (*([step] if lead else []), row, col)
    return Placement(strides, offset, offset + extent * batch + 8)


@dataclass(frozen=True)
class Placed:
    """An array of a framework, and the buffer it lies in."""

    array: Any
    buffer: Any
    image: np.ndarray
    inside: np.ndarray

    def assert_rest_untouched(self) -> None:
        assert_untouched(self.image, _bits(self.buffer), self.inside)


def placed(
    framework: str,
    values: np.ndarray | None,
    dtype: str,
    kind: str = "row",
    shape: Sequence[int] = (),
    device: str = "cpu",
) -> Placed:
    """Float64 values as an array of a framework inside a larger buffer; the rest, or all of it, is NaN or -86."""
    shape = tuple(shape) if values is None else values.shape
    where = place(shape, kind)
    if dtype in INTEGERS:
        buffer = np.full(where.size * NUMPY[dtype].itemsize, 0xAA, np.uint8).view(NUMPY[dtype])
    else:
        buffer = np.full(where.size, np.nan).astype(NUMPY[dtype])
    if values is not None:
        _strided(buffer, shape, where)[...] = values.astype(NUMPY[dtype])
    image = _bits(buffer).copy()
    inside = elements(where.size, shape, where.strides, where.offset)
    if framework == "numpy":
        return Placed(_strided(buffer, shape, where), buffer, image, inside)
    if framework == "torch":
        import torch

        held = torch.from_numpy((buffer.view(f"i{buffer.itemsize}") if dtype in CARRIED else buffer).copy())
        held = held.view(getattr(torch, NUMPY[dtype].name)).to(device)
        return Placed(held.as_strided(shape, where.strides, where.offset), held, image, inside)
    if framework == "cupy":
        import cupy

        carried = BITS[buffer.itemsize] if dtype in CARRIED else NUMPY[dtype]
        held = cupy.asarray(buffer.view(carried))
        memory = held.data + where.offset * buffer.itemsize
        array = cupy.ndarray(shape, carried, memory, tuple(s * buffer.itemsize for s in where.strides))
        return Placed(array if carried == NUMPY[dtype] else cutlass_py.view(array, dtype), held, image, inside)
    raise AssertionError(f"{framework} arrays have no placement")


def make(framework: str, values: np.ndarray, dtype: str, kind: str = "row", device: str = "cpu") -> Any:
    """Float64 values as an array of a framework."""
    if framework != "jax":
        return placed(framework, values, dtype, kind, device=device).array
    assert kind == "row", "JAX places its arrays itself"
    import jax

    with jax.enable_x64(True):
        return jax.numpy.asarray(values.astype(NUMPY[dtype]))


def to_numpy(array: Any) -> np.ndarray:
    """Any framework's array, or a view, as float64 or complex128."""
    if isinstance(array, cutlass_py.TypedView):
        return _host(array.array).view(NUMPY[array.dtype]).astype(np.float64)
    host = _host(array)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def dtype_of(array: Any) -> str:
    """This package's name of an array's dtype."""
    if isinstance(array, cutlass_py.TypedView):
        return array.dtype
    name = str(array.dtype).removeprefix("torch.")
    return next(key for key, dtype in NUMPY.items() if dtype.name == name)


def framework_of(array: Any) -> str:
    """The framework whose own type an array is."""
    root = type(array).__module__.partition(".")[0]
    return "jax" if root == "jaxlib" else root


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _strided(buffer: np.ndarray, shape: Sequence[int], where: Placement) -> np.ndarray:
    strides = tuple(s * buffer.itemsize for s in where.strides)
    if prod(shape) == 0:
        return np.ndarray(shape, buffer.dtype, buffer, 0, strides=strides)
    return np.ndarray(shape, buffer.dtype, buffer, where.offset * buffer.itemsize, strides)


def _host(array: Any) -> np.ndarray:
    if framework_of(array) == "torch":
        import torch

        array = array.detach().cpu()
        if array.dtype.is_floating_point:
            return array.to(torch.float64).numpy()
        return array.numpy()
    if framework_of(array) == "cupy":
        return array.get()
    return np.asarray(array)


def _bits(buffer: Any) -> np.ndarray:
    """The bytes of each element."""
    if framework_of(buffer) == "torch":
        import torch

        return buffer.view(torch.uint8).cpu().numpy().reshape(buffer.numel(), -1)
    buffer = buffer.get() if framework_of(buffer) == "cupy" else buffer
    return buffer.view(np.uint8).reshape(buffer.size, -1)
