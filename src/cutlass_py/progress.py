"""Progress bars and tables, where rich is installed and somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for the length of the context; what it yields advances it by one."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield lambda: None
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console, watched = Console(stderr=True), sys.stderr.isatty()
    # What is printed meanwhile goes above the bar, unless it goes to a file.
    with Progress(*columns, console=console, disable=not watched, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def tables() -> Callable[[str, Sequence[str], Sequence[Sequence[str]]], None] | None:
    """What prints a table (title, head, rows) on stdout; None where that is no terminal, or rich is not installed."""
    if not (sys.stdout and sys.stdout.isatty()):
        return None
    try:
        from rich.box import SIMPLE
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ModuleNotFoundError:
        return None

    def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = Table(title=escape(title), title_justify="left", box=SIMPLE)
        for name in head:
            table.add_column(escape(name), overflow="fold")  # names are what users copy
        for row in rows:
            table.add_row(*map(escape, row))
        Console().print(table)

    return show
