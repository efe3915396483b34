"""One quantization in words, and as a JSON object (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..._core import QuantizeProblem
from ...arrays.tensor_spec import TensorSpec
from ...declaration.quantize import ALIASES, LIMITS, SCALINGS, SOURCES
from .arguments import QuantizeArguments

KEYS = {
    "rows": "rows of each matrix",
    "cols": "its columns",
    "batch": "number of matrices, stacked (default 1)",
    "x": "dtype of what is quantized",
    "q": "dtype of the result (default e4m3)",
    "scaling": "as in quantize (default tensor)",
    "layout": "of x: t row-major, n column-major (default t)",
}
_NEEDED = ("rows", "cols", "x")


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> QuantizeArguments:
    """One object as QuantizeArguments of a TensorSpec, aligned and without gaps.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where x would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{key}: no such key; expected one of {', '.join(KEYS)}")
    given = {key: value for key, value in entry.items() if value is not None}
    for key in _NEEDED:
        if key not in given:
            raise ValueError(f"{key}: missing; expected {KEYS[key]}")
    rows, cols, batch = (_extent(key, given.get(key, 1)) for key in ("rows", "cols", "batch"))
    strides = [1, rows] if _one_of("layout", given.get("layout", "t"), ("t", "n")) == "n" else [cols, 1]
    shape = [rows, cols] if batch == 1 else [batch, rows, cols]
    strides = strides if batch == 1 else [rows * cols, *strides]
    x = TensorSpec(shape, _one_of("x", given["x"], SOURCES), strides, device)
    scaling = _one_of("scaling", given.get("scaling", "tensor"), (*SCALINGS, *ALIASES))
    return QuantizeArguments(x, _one_of("q", given.get("q", "e4m3"), LIMITS), scaling=scaling)


def _extent(key: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{key}: {value!r}; expected a whole number, 0 or more")
    return value


def _one_of(key: str, value: Any, names: Iterable[str]) -> str:
    if value not in list(names):
        raise ValueError(f"{key}: {value!r}; expected one of {', '.join(names)}")
    return str(value)


def describe(p: QuantizeProblem) -> str:
    """Extents, dtypes, what shares a factor, device: "quantize (4096, 7168): bf16 -> e4m3 by 1x128 on cuda:0"."""
    extents = (p.batch, p.rows, p.cols) if p.batch != 1 else (p.rows, p.cols)
    layouts = {"t": "", "n": ", column-major", "x": ", strided"}
    return f"quantize {extents}{layouts[p.layout_x]}: {p.x} -> {p.q} by {p.scaling} on {p.device}"
