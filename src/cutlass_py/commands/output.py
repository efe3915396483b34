"""What commands print: JSON where it is asked for, else tables and lines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any


def json_option(parser: argparse.ArgumentParser) -> None:
    """`--json`, by the same words everywhere."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(value: Any) -> None:
    """One value; lists and objects over several lines."""
    print(json.dumps(value, indent=1))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; with rules and bold heads where rich is installed and somebody watches."""
    if sys.stdout.isatty() and _print_rich(header, rows):
        return
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return False
    Console().print(rich_table(header, rows))
    return True


def rich_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """The table as rich prints it; rich must be there."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=SIMPLE_HEAD, show_header=any(header), pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: brackets in a cell are no markup
    return table
