"""Problems of any operation as data: one as a JSON object, a file of them as a list (docs/problems.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..declaration.operands import DEFAULT, OPERANDS
from ..support.files import read_json
from .operation import Arguments, operation_named


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> Arguments:
    """One object as Arguments of TensorSpecs.

    Args:
        entry: the object: the name of an operation (gemm by default), and that operation's own keys; None is as good
            as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    given = dict(entry)
    name = given.pop("operation", None) or DEFAULT
    if name not in tuple(OPERANDS):  # it need not have a hash
        raise ValueError(f"operation: {name!r}; expected one of {', '.join(OPERANDS)}")
    return operation_named(name).arguments_from(given, device)


def read(path: str | os.PathLike[str]) -> list[Arguments]:
    """The problems of a file.

    Raises:
        ValueError: it is no such list; the message names the file, the entry (from 1) and the key.
        OSError: it cannot be read.
    """
    name, entries = os.fspath(path), read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{name}: expected a list of objects, each one problem")
    problems = []
    for number, entry in enumerate(entries, 1):
        try:
            problems.append(arguments(entry))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}: entry {number}: {error}") from None
    return problems
