"""A problem on the command line: extents, and an option for every other key of a problem file (docs/problems.md)."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..operations.gemm.arguments import GemmArguments
from ..operations.gemm.problems import KEYS, arguments


def problem_options(parser: argparse.ArgumentParser) -> None:
    """m, n, k, an option for each other key, and the device."""
    aliases = {"a": ["--dtype"], "d": ["--out-dtype"]}
    for key, meaning in KEYS.items():
        names = [f"--{key.replace('_', '-')}", *aliases.get(key, ())]
        if key in "mnk":
            parser.add_argument(key, type=int, help=meaning)
        elif key == "deterministic":
            parser.add_argument(*names, action="store_true", default=None, help=meaning)
        else:
            parser.add_argument(*names, dest=key, metavar="X", type=_json, help=meaning)
    parser.set_defaults(a="bf16")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu; need not exist")


def problem_from(options: argparse.Namespace) -> GemmArguments:
    """What those options describe.

    Raises:
        ValueError, TypeError: as `problems.arguments` does.
    """
    return arguments({key: value for key, value in vars(options).items() if key in KEYS}, options.device)


def _json(text: str) -> Any:
    """A value as in a problem file; what is no JSON is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
