"""Problems as data: one gemm as a JSON object, a file of them as a list (docs/jit.md has the keys).

Operands are aligned and without gaps. A key that is not known here is a keyword of gemm.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from typing import Any

from .arguments import GemmArguments, TensorSpec
from .families import LAYOUTS, STORAGE

_EXTENTS = ("m", "n", "k")
_KEYS = (*_EXTENTS, "batch", "layout", "a", "b", "c", "d")
_OPERANDS = ("a", "b", "c", "out", "out_dtype")  # parameters of GemmArguments that are written in other ways here


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GemmArguments:
    """One object as GemmArguments of TensorSpecs.

    Args:
        entry: the object.
        device: where the operands would be; need not exist.

    Raises:
        ValueError: a key that is missing or not known, or its value; the message begins with the key.
    """
    keywords = [name for name in inspect.signature(GemmArguments).parameters if name not in _OPERANDS]
    for key in entry:
        if key not in (*_KEYS, *keywords):
            raise ValueError(f"{key}: no such key; expected one of {', '.join((*_KEYS, *keywords))}")
    m, n, k = (_extent(entry, key) for key in _EXTENTS)
    lead = [_extent(entry, "batch")] if entry.get("batch", 1) != 1 else []
    layout = _one_of(entry, "layout", LAYOUTS, "tt")
    dtypes = {key: _one_of(entry, key, STORAGE, entry.get("a") if key == "b" else None) for key in "abcd"}
    if dtypes["a"] is None:
        raise ValueError("a: missing; expected a dtype such as 'bf16'")

    def operand(key: str, rows: int, cols: int, order: str) -> TensorSpec:
        strides = [cols, 1] if order == "t" else [1, rows]
        return TensorSpec([*lead, rows, cols], dtypes[key], [rows * cols] * len(lead) + strides, device)

    given = {key: _scalar(key, value) for key, value in entry.items() if key not in _KEYS}
    c = operand("c", m, n, "t") if dtypes["c"] else None
    a, b = operand("a", m, k, str(layout)[0]), operand("b", k, n, str(layout)[1])
    return GemmArguments(a, b, c=c, out_dtype=dtypes["d"], **given)


def _extent(entry: Mapping[str, Any], key: str) -> int:
    value = entry.get(key)
    if type(value) is not int or value < 0:
        found = repr(value) if key in entry else "missing"
        raise ValueError(f"{key}: {found}; expected a whole number, 0 or more")
    return value


def _one_of(entry: Mapping[str, Any], key: str, names: Any, default: str | None) -> str | None:
    value: str | None = entry.get(key, default)
    if value is not None and value not in list(names):
        raise ValueError(f"{key}: {value!r}; expected one of {', '.join(names)}")
    return value


def _scalar(key: str, value: Any) -> Any:
    if isinstance(value, (list, dict)):
        raise ValueError(f"{key}: {value!r}; expected a number, a string, true, false or null")
    return value


def read(path: str | os.PathLike[str]) -> list[GemmArguments]:
    """The problems of a file.

    Raises:
        ValueError: it is no such list; the message names the file, the entry (from 1) and the key.
        OSError: it cannot be read.
    """
    name = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            entries = json.load(file)
        except ValueError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{name}: expected a list of objects, each one problem")
    problems = []
    for number, entry in enumerate(entries, 1):
        try:
            problems.append(arguments(entry))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: entry {number}: {error}") from None
    return problems
