"""The problems that the benchmarks run, as data: shapes by suite, and the cases with a ratio that must be reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

LAYOUTS = ("tn", "tt", "nt", "nn")  # of A then B: t row-major, n column-major; tn reads weights stored as (n, k)
DTYPES = ("bf16", "f16", "f32", "tf32", "f64")

Shape = tuple[int, int, int, int]  # batch, m, n, k


@dataclass(frozen=True)
class Case:
    """One problem to time. `required`: the ratio of torch's time to ours that must be reached, where one is set."""

    suite: str
    dtype: str
    layout: str
    shape: Shape
    required: float | None = None

    @property
    def flop(self) -> int:
        batch, m, n, k = self.shape
        return 2 * batch * m * n * k

    def __str__(self) -> str:
        batch, m, n, k = self.shape
        return f"{self.dtype} {self.layout} {f'{batch} x ' if batch > 1 else ''}({m}, {n}, {k})"


# Weights (n, k) of projection and feed-forward layers of models between 8 and 70 billion parameters and of
# mixture-of-experts models, by tokens m.
_LLM_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_LLM_WEIGHTS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (7168, 2048), (2112, 7168),
    (4096, 7168), (7168, 16384), (24576, 1536), (4608, 3584), (37888, 3584),
)  # fmt: skip

SHAPES: dict[str, list[Shape]] = {
    "llm": [(1, m, n, k) for (n, k), m in product(_LLM_WEIGHTS, _LLM_TOKENS)],
    "square": [(1, x, x, x) for x in (256, 512, 1024, 2048, 4096, 8192, 16384)],
    "odd": [
        (1, 1085, 2219, 2438), (1, 7672, 149, 9903), (1, 413, 732, 61981), (1, 1023, 64, 48), (1, 65, 96, 112),
        (1, 197, 224, 272),
    ],
    "batched": [(8, 1024, 1024, 1024), (16, 512, 512, 512), (64, 128, 2048, 128), (128, 512, 512, 2048)],
}  # fmt: skip

# What the default choice must reach in every run.
BARS = [
    Case("bars", "bf16", "tn", (1, 8192, 8192, 8192), 0.95),
    Case("bars", "bf16", "tn", (1, 2048, 4096, 14336), 0.95),
    Case("bars", "bf16", "tt", (1, 8192, 8192, 8192), 0.90),
    Case("bars", "bf16", "tt", (1, 2048, 4096, 14336), 0.90),
    Case("bars", "bf16", "tn", (1, 16, 4096, 4096), 0.95),
    Case("bars", "bf16", "tn", (1, 4096, 4095, 4096), 2.0),
    Case("bars", "f64", "nn", (1, 4096, 4096, 4096), 0.90),
]

SUITES = (*SHAPES, "bars")


def cases(
    suites: Iterable[str],
    dtypes: Iterable[str] = ("bf16",),
    layouts: Iterable[str] = LAYOUTS,
    extra: Iterable[Shape] = (),
) -> list[Case]:
    """The cases of some suites. The bars name their own dtypes and layouts; `extra` shapes form the suite "shape"."""
    found = [case for suite in suites if suite == "bars" for case in BARS]
    shapes = [(suite, shape) for suite in suites if suite != "bars" for shape in SHAPES[suite]]
    shapes += [("shape", shape) for shape in extra]
    found += [Case(suite, dtype, layout, shape) for dtype, layout, (suite, shape) in product(dtypes, layouts, shapes)]
    return found
