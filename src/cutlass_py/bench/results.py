"""Results as JSON files: written whole, an entry a line, so that they compare well."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..support.files import read_json, replace

Result = dict[str, Any]  # a whole file
Record = dict[str, Any]  # one of its cases
OURS = "cutlass_py"  # the arm of gemm's own choice; the first arm is the reference
INVARIANT = "batch_invariant"  # likewise, of that choice


def geomean(values: Iterable[float]) -> float:
    """The geometric mean of at least one value."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def percentile(values: Iterable[float], percent: int) -> float:
    """The least of at least one value that so many of a hundred, rounded up, are not above."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def reason(error: BaseException) -> str:
    """What a record says of an error: its type, and the first line of its text."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def read(path: str | os.PathLike[str]) -> Result:
    """A file of results.

    Raises:
        ValueError: it is none; the message names the file.
        OSError: it cannot be read.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("machine"), dict):
        raise ValueError(f"{os.fspath(path)}: expected an object as `bench --json` writes it")
    return content


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a result whole or not at all; entries of long lists take a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, dumps(result).encode())


def dumps(result: Mapping[str, Any]) -> str:
    """A result as text."""

    def text(value: Any) -> str:
        return json.dumps(_rounded(value), default=str)

    parts = []
    for key, value in result.items():
        entries = isinstance(value, list) and value and isinstance(value[0], dict)
        written = "[\n" + ",\n".join(map(text, value)) + "\n]" if entries else text(value)
        parts.append(f"{json.dumps(key)}: {written}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
