"""What commands print: JSON where it is asked for, else tables and lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from ..progress import tables


def json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, by the same words everywhere."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(value: Any) -> None:
    """One value; lists and objects over several lines."""
    print(json.dumps(value, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; with rules and bold heads where rich is installed and somebody watches."""
    if show := tables():
        return show("", header, rows)
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
