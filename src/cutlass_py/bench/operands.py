"""Random operands of a case on the GPU, in as many sets as it takes to outgrow the L2 cache."""

from __future__ import annotations

import math
from typing import Any

from .frameworks import Framework
from .suites import Case


class Operands:
    """A, B and D of a case, and the factors of A and B beside fp8; all sets together are twice the cache.

    `count` of them, 512 at most.
    """

    def __init__(self, case: Case, framework: Framework) -> None:
        self.framework = framework
        arithmetic, (batch, m, n, k) = case.arithmetic, case.shape
        self.count = min(max(math.ceil(2 * framework.l2_bytes() / case.moved_bytes), 1), 512)
        self.sets = [
            (
                self._random(arithmetic.dtype, batch, m, k, case.layout[0]),
                self._random(arithmetic.dtype, batch, k, n, case.layout[1]),
                self._random(arithmetic.result, batch, m, n, "t"),
            )
            for _ in range(self.count)
        ]
        self._scales = [framework.scales(case) for _ in range(self.count)]

    def _random(self, dtype: str, batch: int, rows: int, cols: int, layout: str) -> Any:
        stored = (rows, cols) if layout == "t" else (cols, rows)
        array = self.framework.random((batch, *stored) if batch > 1 else stored, dtype)
        return array if layout == "t" else array.swapaxes(-1, -2)

    def scales(self, index: int) -> tuple[Any, Any]:
        """scale_a and scale_b of a set; None where there are none."""
        return self._scales[index % self.count]

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]
