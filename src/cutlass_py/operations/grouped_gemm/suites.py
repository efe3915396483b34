"""Products of experts that are worth timing, drawn from a seed: layers of known models, and how many lines each has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import TypeVar

from .operation import SPREADS

T = TypeVar("T")

# By kind how many problems are drawn, unless another count is asked for. Of "k" groups divide the lines that the
# gradient of the weights sums over; of all others the rows: "even" has large groups of one size, "gather" rows by their
# numbers, "gated" gates and values among the columns, "fp8" scales of rows and columns, "blocks" those of 128.
KINDS = {"rows": 28, "decode": 8, "k": 12, "even": 4, "gather": 4, "gated": 8, "fp8": 8, "blocks": 4}
# (n, k): DeepGEMM's suite, Qwen3-30B, GLM, Mixtral 8x7B, DeepSeek-V3, SonicMoE's, TransformerEngine's.
LAYERS = (
    (6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (1536, 2048), (2048, 768), (4096, 6144), (28672, 4096),
    (4096, 14336), (4096, 7168), (7168, 2048), (2048, 4096), (4096, 1024), (768, 2048),
)  # fmt: skip
_GROUPS = {
    "rows": (4, 8, 16, 32, 64, 128, 256), "decode": (128, 160, 256), "k": (4, 8, 16, 32, 64), "even": (4, 8, 16),
    "gather": (8, 32, 128), "gated": (8, 32, 128), "fp8": (4, 8, 32, 64, 128), "blocks": (4, 8, 16),
}  # fmt: skip
_MOST_FLOP = 2 * 10**12  # some milliseconds
_MOST_LINES = 2**29  # elements of what has a line for each token: 1 GB in 16 bits
_MOST_WEIGHTS = {"k": 2**30}  # elements; where they are read
_MOST_READ = 2**32  # 8.6 GB in 16 bits


@dataclass(frozen=True)
class Experts:
    """Weights of (n, k) for each expert, and how many lines it has: tokens, of k numbers before and n behind it."""

    kind: str
    spread: str
    sizes: tuple[int, ...]
    n: int
    k: int

    @property
    def deep(self) -> bool:
        """Whether lines are summed over: the result is the gradient of the weights."""
        return self.kind == "k"

    @property
    def lines(self) -> int:
        """Of all experts."""
        return sum(self.sizes)

    @property
    def ends(self) -> list[int]:
        """Where the lines of each expert end."""
        return list(accumulate(self.sizes))

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.lines * self.n * self.k

    @property
    def weights(self) -> int:
        """Elements that are read of those who have lines; or written, of all."""
        return self.n * self.k * (len(self.sizes) if self.deep else sum(map(bool, self.sizes)))

    @property
    def elements(self) -> int:
        """Of all that is read and written."""
        return self.weights + self.lines * (self.n + self.k)

    def __str__(self) -> str:
        return f"{self.kind}: {len(self.sizes)} x ({self.n}, {self.k}), {self.lines} lines, {self.spread}"


def drawn(kind: str, seed: int, count: int | None = None) -> list[Experts]:
    """The first problems of a seed; a larger count goes on where a smaller one ends.

    Args:
        kind: of KINDS.
        seed: 0 or more.
        count: how many; by default as many as the kind has.
    """
    uniform = Random(f"{seed} {kind}").random  # which is the same on any machine
    spreads = tuple(SPREADS)
    return [_one(kind, spreads[i % len(spreads)], uniform) for i in range(KINDS[kind] if count is None else count)]


def _one(kind: str, spread: str, uniform: Callable[[], float]) -> Experts:
    def pick(choices: Sequence[T]) -> T:
        return choices[int(uniform() * len(choices))]

    most, least = _MOST_WEIGHTS.get(kind, _MOST_READ), _GROUPS[kind][0]
    n, k = pick([(n, k) for n, k in LAYERS if least * n * k <= most])
    groups = min(pick(_GROUPS[kind]), most // (n * k))
    if kind == "decode":
        return Experts(kind, "1 to 16", tuple(1 + int(16 * uniform()) for _ in range(groups)), n, k)
    mean = 4096 if kind == "even" else int((1024 if kind == "blocks" else 64) * 2 ** (7 * uniform()))
    lines = min(groups * mean, _MOST_FLOP // (2 * n * k), _MOST_LINES // (n + k))
    if kind == "even":
        spread, groups = "even", min(groups, lines // 2048)
    if kind == "blocks":
        groups = min(groups, lines // 1024)
    unit = 16 if kind == "fp8" else 1  # torch's kernel wants lines of whole sixteens
    sizes = (unit * each for each in sizes_of(spread, groups, lines // unit, uniform))
    return Experts(kind, spread, tuple(sizes), n, k)


def sizes_of(spread: str, groups: int, lines: int, uniform: Callable[[], float]) -> Iterator[int]:
    """Lines of each group, of this sum.

    Args:
        spread: of operation.py's SPREADS.
        groups: how many.
        lines: of all together.
        uniform: numbers of 0 to 1, one after the other.
    """
    parts = [1.0] * groups
    if spread == "U(0.7, 1.3)":
        parts = [0.7 + 0.6 * uniform() for _ in parts]
    elif spread == "Dirichlet(1)":
        parts = [-math.log(1 - uniform()) for _ in parts]
    elif spread == "3/4 empty":
        places = sorted(range(groups), key=lambda _: uniform())
        parts = [float(place < max(groups // 4, 1)) for place in places]
    begin, sums = 0, list(accumulate(parts))
    for each in sums:
        end = round(lines * each / sums[-1])
        yield end - begin
        begin = end
