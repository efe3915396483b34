"""Options that several commands have, and the JSON of `--json`."""

from __future__ import annotations

import argparse
import json
from typing import Any


def json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, by the same words everywhere."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def cc_option(parser: argparse.ArgumentParser, meaning: str) -> None:
    """`--cc`, which may be repeated: what code is compiled for."""
    text = f"{meaning}: compute capability times ten, such as 80; may be repeated. Without a GPU 90 is assumed"

    def number(text: str) -> int:
        return int(capability(text).removesuffix("a"))  # a letter, as CUTLASS_PY_ARCHS has it, says nothing here

    parser.add_argument("--cc", action="append", type=number, default=[], metavar="CC", help=text)


def capability(text: str) -> str:
    """A compute capability times ten that some kernel may run on, with or without a letter, as get_kernels has it."""
    number = text.removesuffix("a")
    if not number.isdecimal() or int(number) < 80:
        raise argparse.ArgumentTypeError(f"{text!r} is no compute capability times ten, such as 80 or 90")
    return text


def print_json(value: Any) -> None:
    """One value; lists and objects over several lines."""
    print(json.dumps(value, indent=1))
