"""Random operands of a case on the GPU, in as many sets as it takes to outgrow the L2 cache."""

from __future__ import annotations

import math
from typing import Any

from suites import Case

_TORCH_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "tf32": "float32", "f64": "float64"}


def sets_of(set_bytes: int) -> int:
    """How many sets of operands together are twice the cache; 512 at most."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    return min(max(math.ceil(2 * l2_bytes / set_bytes), 1), 512)


class Operands:
    """A, B and D of a case, in `count` sets."""

    def __init__(self, case: Case) -> None:
        import torch

        self.dtype = getattr(torch, _TORCH_DTYPES[case.dtype])
        batch, m, n, k = case.shape
        set_bytes = batch * (m * k + k * n + m * n) * self.dtype.itemsize
        self.count = sets_of(set_bytes)
        self.sets = [
            (
                self._random(batch, m, k, case.layout[0]),
                self._random(batch, k, n, case.layout[1]),
                self._random(batch, m, n, "t"),
            )
            for _ in range(self.count)
        ]

    def _random(self, batch: int, rows: int, cols: int, layout: str) -> Any:
        import torch

        stored = (rows, cols) if layout == "t" else (cols, rows)
        array = torch.randn((batch, *stored) if batch > 1 else stored, dtype=self.dtype, device="cuda")
        return array if layout == "t" else array.transpose(-1, -2)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]
