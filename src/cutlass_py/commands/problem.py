"""A problem on the command line: extents, and an option for every other key of a problem file (docs/problems.md).

The keys are gemm's; a problem of any operation may be given as a file has it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..declaration.operands import DEFAULT
from ..kernels.operation import Arguments, operation_named
from ..kernels.problem_files import arguments

_KEYS = operation_named(DEFAULT).keys


def problem_options(parser: argparse.ArgumentParser) -> None:
    """m, n, k, an option for each other key, and the device; or a problem as a whole."""
    aliases = {"a": ["--dtype"], "d": ["--out-dtype"]}
    for key, meaning in _KEYS.items():
        names = [f"--{key.replace('_', '-')}", *aliases.get(key, ())]
        if key in "mnk":
            parser.add_argument(key, type=int, nargs="?", help=meaning)
        elif key in ("deterministic", "batch_invariant"):
            parser.add_argument(*names, action="store_true", default=None, help=meaning)
        else:
            parser.add_argument(*names, dest=key, metavar="X", type=_json, help=meaning)
    parser.add_argument("--problem", metavar="JSON", type=_json, help="instead: an object as in a problem file")
    parser.set_defaults(a="bf16")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu; need not exist")


def problem_from(options: argparse.Namespace) -> Arguments:
    """What those options describe.

    Raises:
        ValueError, TypeError: as `problem_files.arguments` does.
    """
    if options.problem is None:
        return arguments({key: value for key, value in vars(options).items() if key in _KEYS}, options.device)
    if not isinstance(options.problem, dict):
        raise ValueError(f"--problem: {options.problem!r}; expected a JSON object")
    return arguments(options.problem, options.device)


def _json(text: str) -> Any:
    """A value as in a problem file; what is no JSON is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
