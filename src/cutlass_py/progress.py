"""A progress bar for what takes long, where rich is installed and somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
