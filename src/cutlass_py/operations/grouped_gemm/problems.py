"""One grouped_gemm as a JSON object (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...arrays.tensor_spec import TensorSpec
from ...declaration.dtypes import LAYOUTS, STORAGE
from .arguments import GroupedArguments

KEYS = {
    "groups": "number of them",
    "m": "rows of the result: of all groups together, where they divide rows",
    "n": "columns of the result, likewise",
    "k": "length of the sums, likewise",
    "axis": "that groups divide: m (default), n or k; or batch: the first rows of a matrix for each",
    "layout": "of A, then B: t row-major, n column-major (default tt)",
    "a": "dtype of A and B",
    "d": "dtype of the result (default what grouped_gemm would return)",
    "bias": "dtype of a bias, one row for each group; for all where groups divide columns",
    "activation": "its name",
    "compute": "as in gemm",
    "expected": "as in grouped_gemm",
}
_NEEDED = ("groups", "m", "n", "k", "a")
_AXES = ("m", "n", "k", "batch")


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GroupedArguments:
    """One object as GroupedArguments of TensorSpecs.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{key}: no such key; expected one of {', '.join(KEYS)}")
    for key in _NEEDED:
        if key not in entry:
            raise ValueError(f"{key}: missing; expected {KEYS[key]}")
    given = {key: value for key, value in entry.items() if value is not None}
    groups, m, n, k = (_extent(given, key) for key in ("groups", "m", "n", "k"))
    dtype, axis, layout = _one_of(given, "a", STORAGE), _one_of(given, "axis", _AXES), _one_of(given, "layout", LAYOUTS)

    def matrix(rows: int, cols: int, order: str, each: bool) -> TensorSpec:
        strides = [cols, 1] if order == "t" else [1, rows]
        shape = [groups, rows, cols] if each else [rows, cols]
        return TensorSpec(shape, dtype, [rows * cols, *strides] if each else strides, device)

    a = matrix(m, k, layout[0], axis in ("n", "batch"))
    b = matrix(k, n, layout[1], axis in ("m", "batch"))
    keywords: dict[str, Any] = {key: given[key] for key in ("activation", "compute", "expected") if key in given}
    if "bias" in given:
        shape = [n] if axis == "n" else [groups, n]
        keywords["bias"] = TensorSpec(shape, _one_of(given, "bias", STORAGE), device=device)
    if "d" in given:
        keywords["out_dtype"] = _one_of(given, "d", STORAGE)
    keywords["sizes" if axis == "batch" else "offsets"] = TensorSpec([groups], "s32", device=device)
    return GroupedArguments(a, b, **keywords)


def _extent(entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(f"{key}: {value!r}; expected a whole number, 0 or more and below 2**31")
    return value


def _one_of(entry: Mapping[str, Any], key: str, names: Any) -> str:
    value = entry.get(key, {"axis": "m", "layout": "tt"}.get(key))
    if value not in list(names):
        raise ValueError(f"{key}: {value!r}; expected one of {', '.join(names)}")
    return str(value)
