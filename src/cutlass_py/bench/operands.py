"""Random operands of a case on the GPU, in as many sets as it takes to outgrow the L2 cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .frameworks import Framework
from .suites import Case


@dataclass(frozen=True)
class Scales:
    """Factors of A and B beside fp8, which the reference takes as arrays alone; None elsewhere."""

    a: Any = None
    b: Any = None


class Operands:
    """A, B and D of a case; all sets together are twice the cache. `count` of them, 512 at most."""

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
        scaled = arithmetic.reference == "scaled_mm"
        self.scales = Scales(framework.ones((1,)), framework.ones((1,))) if scaled else Scales()

    def _random(self, dtype: str, batch: int, rows: int, cols: int, layout: str) -> Any:
        stored = (rows, cols) if layout == "t" else (cols, rows)
        array = self.framework.random((batch, *stored) if batch > 1 else stored, dtype)
        return array if layout == "t" else array.swapaxes(-1, -2)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]
