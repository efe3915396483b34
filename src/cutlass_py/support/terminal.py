"""What a terminal shows: progress bars and tables, by rich where it is installed and somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


@contextmanager
def progress(label: str, total: int, table: Callable[[], Any] | None = None) -> Iterator[Callable[[], None]]:
    """A bar on stderr for the length of the context; what it yields advances it by one.

    Args:
        label: in front of the bar.
        total: how often it advances.
        table: what stands above the bar (rich_table), asked for after each advance.
    """
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield lambda: None
        return
    if not (sys.stderr and sys.stderr.isatty()):
        yield lambda: None
        return
    bar = Progress(TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("", total=total)
    # What is printed meanwhile goes above, unless it goes to a file.
    with Live(bar, console=Console(stderr=True), redirect_stdout=bool(sys.stdout and sys.stdout.isatty())) as live:

        def advance() -> None:
            bar.advance(task)
            if table:
                live.update(Group(table(), bar))

        yield advance


def watched() -> bool:
    """Whether tables are drawn: somebody watches, and rich is there."""
    return bool(sys.stdout and sys.stdout.isatty() and find_spec("rich"))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns on stdout; with rules and bold heads where a terminal and rich are there.

    A kernel's name is never broken, since it is what users copy: where it leaves no room for the other cells of its
    row, they stand below it.
    """
    if watched():
        from rich.console import Console
        from rich.measure import Measurement

        console, table = Console(), rich_table(head, rows)
        least = Measurement.get(console, console.options.update(width=1000), table).minimum
        names = [i for i, title in enumerate(head) if _names_kernels(title)]
        if least > console.width and names:
            for row in rows:
                beside = [(title, x) for i, (title, x) in enumerate(zip(head, row, strict=True)) if x and i != names[0]]
                print(row[names[0]])
                print("  " + "; ".join(f"{title}: {cell}" if title else cell for title, cell in beside))
        else:
            console.print(table)
        return
    lines = [head, *rows] if any(head) else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _names_kernels(title: str) -> bool:
    return title.startswith("kernel")


def rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """The table as rich prints it; rich must be there."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_header=any(head))
    for i, title in enumerate(head):
        whole = _names_kernels(title) and not any(" " in row[i] for row in rows)  # with words beside it, it has to wrap
        table.add_column(Text(title), overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: brackets in a cell are no markup
    return table
