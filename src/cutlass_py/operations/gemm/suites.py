"""Products that are worth timing: shapes by suite, as data; and suites that are drawn anew from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random

Shape = tuple[int, int, int, int]  # batch, m, n, k

# Weights (n, k) of projection and feed-forward layers of models between 8 and 70 billion parameters and of
# mixture-of-experts models, by tokens m.
_LLM_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_LLM_WEIGHTS = (
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (7168, 2048), (2112, 7168),
    (4096, 7168), (7168, 16384), (24576, 1536), (4608, 3584), (37888, 3584),
)  # fmt: skip

SUITES: dict[str, tuple[Shape, ...]] = {
    "llm": tuple((1, m, n, k) for (n, k), m in product(_LLM_WEIGHTS, _LLM_TOKENS)),
    "square": tuple((1, x, x, x) for x in (256, 512, 1024, 2048, 4096, 8192, 16384)),
    "odd": (
        (1, 1085, 2219, 2438), (1, 7672, 149, 9903), (1, 413, 732, 61981), (1, 1023, 64, 48), (1, 65, 96, 112),
        (1, 197, 224, 272),
    ),
    "batched": ((8, 1024, 1024, 1024), (16, 512, 512, 512), (64, 128, 2048, 128), (128, 512, 512, 2048)),
    "large": ((1, 4096, 4096, 4096), (1, 8192, 8192, 8192)),  # squares of dtypes that are slow, or few
}  # fmt: skip
# TFLOP/s by (m, n, k) with scales in blocks: "Normal GEMMs for dense models" in DeepGEMM's README of February 2025,
# when it was published (github.com/deepseek-ai/DeepGEMM), measured by its authors on an H800 with NVCC 12.8. Later
# versions claim more (1550 at most) and have no such table.
DEEPGEMM = {
    (64, 2112, 7168): 206, (64, 24576, 1536): 289, (64, 32768, 512): 219, (64, 7168, 16384): 336,
    (64, 4096, 7168): 287, (64, 7168, 2048): 295, (128, 2112, 7168): 352, (128, 24576, 1536): 535,
    (128, 32768, 512): 358, (128, 7168, 16384): 645, (128, 4096, 7168): 533, (128, 7168, 2048): 510,
    (4096, 2112, 7168): 1058, (4096, 24576, 1536): 990, (4096, 32768, 512): 590, (4096, 7168, 16384): 1358,
    (4096, 4096, 7168): 1304, (4096, 7168, 2048): 1025,
}  # fmt: skip
SUITES["deepgemm"] = tuple((1, *shape) for shape in DEEPGEMM)
# For sweeps over all kernels, which take long: every weight and every number of tokens, but not every pair.
SUITES["sample"] = (*SUITES["llm"][::7], *SUITES["square"][1:6:2])

# ---------------------------------------------------------------------------------------------------- drawn

# Extents as models have them: tokens of a step, of a batch, of a text or an image; and heads, widths and feed-forward
# layers of published models of language, vision and speech, many of them of no other suite.
_ROWS = (1, 2, 4, 8, 16, 32, 64, 77, 128, 197, 256, 257, 512, 577, 1024, 1500, 2048, 4096, 8192, 16384)
_WIDTHS = (
    16, 32, 40, 48, 64, 80, 96, 128, 192, 256, 320, 384, 512, 576, 640, 768, 896, 1024, 1152, 1280, 1536, 1600, 2048,
    2112, 2304, 2560, 2880, 3072, 3200, 3584, 4096, 4608, 4864, 5120, 5376, 5632, 6144, 6400, 6656, 6912, 7168, 8192,
    8640, 8960, 9216, 10240, 11008, 12288, 13696, 13824, 14336, 16384,
)  # fmt: skip
_GRANULES = (1, 8, 64, 128, None)  # None: the nearest size that models have
_MOST_PRODUCTS = 8192**3  # of elements: at some hundred TFLOP/s, a few calls fit into what a case may take
_MOST_ELEMENTS = 2**29  # of A, B and D together: 1 GiB in 16 bits, 4 GiB in f64


class Draws:
    """Extents that depend on the seed alone: `Random.random`, and IEEE arithmetic, rounded correctly on any machine."""

    def __init__(self, seed: int) -> None:
        self._uniform = Random(seed).random

    def extent(self, low: int, octaves: int) -> int:
        """From low to below low * 2**octaves: each octave is as likely as the others, and within it each place."""
        octave, place = divmod(self._uniform() * octaves, 1)
        return int((low << int(octave)) * (1 + place))

    def size(self, low: int, octaves: int, sizes: tuple[int, ...]) -> int:
        """An extent, brought to the nearest multiple of 1, 8, 64 or 128, or to the nearest of some sizes.

        Each of the five is as likely as the others. An extent below the multiple stays as it is.
        """
        extent = self.extent(low, octaves)
        granule = _GRANULES[int(self._uniform() * len(_GRANULES))]
        if granule is None:
            return min(sizes, key=lambda size: abs(size - extent))
        return (extent + granule // 2) // granule * granule if extent >= granule else extent

    def odd(self, low: int, octaves: int) -> int:
        """An extent; a multiple of 8 is made one larger."""
        extent = self.extent(low, octaves)
        return extent + (extent % 8 == 0)


@dataclass(frozen=True)
class RandomSuite:
    """A suite that is drawn anew: shapes by `draw`, so many unless another count is asked for."""

    count: int
    draw: Callable[[Draws], Shape]

    def shapes(self, seed: int, count: int | None = None) -> tuple[Shape, ...]:
        """The first shapes of a seed, each once; a larger count goes on where a smaller one ends.

        Args:
            seed: 0 or more.
            count: how many; by default as many as the suite has.
        """
        draws = Draws(seed)
        found: dict[Shape, None] = {}
        while len(found) < (self.count if count is None else count):
            batch, m, n, k = shape = self.draw(draws)
            elements = batch * (m * k + k * n + m * n)
            if batch * m * n * k <= _MOST_PRODUCTS and elements <= _MOST_ELEMENTS:
                found[shape] = None
        return tuple(found)


def _dense(draws: Draws) -> Shape:
    return 1, draws.size(1, 14, _ROWS), draws.size(64, 8, _WIDTHS), draws.size(64, 8, _WIDTHS)


def _batched(draws: Draws) -> Shape:
    batch = draws.extent(2, 8)
    return batch, draws.size(16, 7, _WIDTHS), draws.size(16, 7, _WIDTHS), draws.size(16, 7, _WIDTHS)


def _odd(draws: Draws) -> Shape:
    return 1, draws.odd(1, 14), draws.odd(1, 14), draws.odd(16, 10)


def _layer(draws: Draws) -> Shape:
    return 1, draws.size(1, 12, _ROWS), draws.size(1024, 4, _WIDTHS), draws.size(1024, 4, _WIDTHS)


RANDOM = {
    "random": RandomSuite(200, _dense),
    "random-layer": RandomSuite(100, _layer),
    "random-batched": RandomSuite(50, _batched),
    "random-odd": RandomSuite(50, _odd),
}


def few_tiles(shape: Shape) -> bool:
    """Whether tiles of 64x64 leave half of 132 multiprocessors idle, though there is much to sum."""
    batch, m, n, k = shape
    return batch * -(-m // 64) * -(-n // 64) < 66 and k > 1500


# Classes of drawn shapes whose results are also told apart.
CLASSES: dict[str, Callable[[Shape], bool]] = {"few tiles, long k": few_tiles}
