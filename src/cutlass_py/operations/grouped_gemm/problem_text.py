"""A grouped product in words, for messages and tables."""

from __future__ import annotations

from ..._core import Problem
from ..gemm import problem_text

_LINES = {"m": "rows of a", "n": "columns of b", "k": "k"}


def describe(p: Problem) -> str:
    """In one line: the groups, and the product of all of them; of lists one about as large as most."""
    if p.grouped == "l":
        return f"{p.batch} products of any sizes, about {problem_text.describe(p).removeprefix(f'{p.batch} x ')}"
    what = "the first rows of as many matrices" if p.stacked else _LINES[p.grouped]
    what = f"{what} by their numbers" if p.gathered else what
    expected = f", about {p.expected} each" if p.expected else ""
    return f"{p.batch} groups of {what}{expected}: {problem_text.describe(p).removeprefix(f'{p.batch} x ')}"
