"""`batch_invariant`: a whole stretch of calls whose rows have bits of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import _core


@contextmanager
def batch_invariant() -> Iterator[None]:
    """Within it, calls of this thread are as with `batch_invariant=True`.

    So are backward passes of what torch records in it. What torch.compile has compiled asks as it runs, but its
    backward passes do not: give those calls the keyword. What JAX traces asks as it is traced.

    Raises:
        ValueError: from a call within it that asks for splits.
    """
    before = _core.ask_batch_invariance(True)
    try:
        yield
    finally:
        _core.ask_batch_invariance(before)
