"""A progress bar for what takes long, and a table above it, where rich is installed and somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(label: str, total: int, table: Callable[[], Any] | None = None) -> Iterator[Callable[[], None]]:
    """A bar on stderr for the length of the context; what it yields advances it by one.

    Args:
        label: in front of the bar.
        total: how often it advances.
        table: what stands above the bar (anything that rich prints), asked for after each advance.
    """
    try:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield lambda: None
        return
    if not sys.stderr.isatty():
        yield lambda: None
        return
    bar = Progress(TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("", total=total)
    # What is printed meanwhile goes above, unless it goes to a file.
    with Live(bar, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as live:

        def advance() -> None:
            bar.advance(task)
            if table:
                live.update(Group(table(), bar))

        yield advance
