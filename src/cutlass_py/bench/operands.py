"""Random operands of a case on the GPU, in as many sets as it takes to outgrow the L2 cache."""

from __future__ import annotations

import math
from typing import Any

from .frameworks import Framework
from .suites import Case

Call = tuple[Any, Any, dict[str, Any]]  # A, B and the keywords of gemm


def sets_of(case: Case, framework: Framework) -> int:
    """How many sets of a case's operands are twice the cache together; 512 at most."""
    return min(max(math.ceil(2 * framework.l2_bytes() / case.moved_bytes), 1), 512)


class Operands:
    """A, B and D of a case, and the factors of A and B beside fp8; `count` sets of them."""

    def __init__(self, case: Case, framework: Framework) -> None:
        self.framework = framework
        arithmetic, (batch, m, n, k) = case.arithmetic, case.shape
        self.count = sets_of(case, framework)
        self.sets = [
            (
                self._random(arithmetic.dtype, batch, m, k, case.layout[0]),
                self._random(arithmetic.dtype, batch, k, n, case.layout[1]),
                self._random(arithmetic.result, batch, m, n, "t"),
            )
            for _ in range(self.count)
        ]
        self._scales = [framework.scales(case) for _ in range(self.count)]
        self._compute = arithmetic.compute

    def _random(self, dtype: str, batch: int, rows: int, cols: int, layout: str) -> Any:
        stored = (rows, cols) if layout == "t" else (cols, rows)
        array = self.framework.random((batch, *stored) if batch > 1 else stored, dtype)
        return array if layout == "t" else array.swapaxes(-1, -2)

    def scales(self, index: int) -> tuple[Any, Any]:
        """scale_a and scale_b of a set; None where there are none."""
        return self._scales[index % self.count]

    def call(self, index: int) -> Call:
        """A, B and the keywords of gemm."""
        (a, b, d), (x, y) = self[index], self.scales(index)
        return a, b, {"out": d, "compute": self._compute, "scale_a": x, "scale_b": y}

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]
