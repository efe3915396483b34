"""Products that are worth timing, as data: shapes by suite."""

from __future__ import annotations

from itertools import product

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
