"""What our own wgmma kernels take: the formula of estimate.h, its constants, and what it knows of a kernel.

The constants were fitted by benchmarks/fit_choice.py to random problems on an H200: docs/performance/choice.md.
"""

from __future__ import annotations

from functools import cache

from ... import _core
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named

# By the names of estimate.h, a column for each way to sum; bf16 stands for all that sum as usual. Fitted before bias
# and scales were staged; `direct` and `finish` are guesses.
SUMS = ("usual", "fast", "promoted", "factors")
CONSTANTS = {
    "launch": (0.8474, 0.6569, 0.8062, 0.8589),
    "fill": (-0.1372, -0.0444, -0.2618, -0.08594),
    "meet": (0.1673, 0.3893, 0.3385, 0.3046),
    "rate": (16.16, 16.17, 16.22, 16.74),
    "narrow": (3.561, 2.926, 4.252, 5.747),
    "low": (0.2173, 0.06363, 0.244, 0.35),
    "turned32": (0.03674, 0.03779, 0.03779, 0.03779),
    "turned16": (0.3718, 0.4633, 0.4633, 0.4633),
    "step": (-2.597, -2.636, -2.156, -2.564),
    "load": (13.11, 12.37, 11.79, 12.32),
    "beside": (0.007339, 0.2522, 1.784, -4.783),
    "lines64": (0.9956, 0.3667, 0.1038, -0.0135),
    "lines32": (0.8285, 0.1744, 0.01563, -0.08752),
    "lines16": (2.708, 1.031, 0.7614, 0.9605),
    "panels32": (3.202, 2.771, 2.771, 2.771),
    "panels16": (6.834, 5.913, 5.913, 5.913),
    "outside": (1.622, 1.629, 0.6894, 0.9674),
    "outside_along": (3.006, 3.032, 3.032, 3.032),
    "last": (0.2222, 0.1475, 0.1009, -0.02967),
    "store": (11.8, 9.363, 10.1, 12.91),
    "stored32": (0.5247, 0.172, 0.1246, 0.412),
    "stored16": (1.643, 1.348, -0.02389, 1.348),
    "direct": (-2, -2, -2, -2),
    "finish": (0.15, 0.15, 0.15, 0.15),
    "join": (0.524, 0.5779, 0.5779, 0.5779),
    "joined": (10.54, 10.54, 10.54, 10.54),
    "memory": (15.77, 14.66, 14.47, 15.47),
    "paired": (0.5539, -0.05001, -0.08154, 0.03392),
    "alone": (13.81, 12.17, 12.29, 12.45),
    "kept": (22.92, 23.64, 30.04, 27.65),
    "steep": (-0.8769, -0.7962, -1.322, -1.906),
    "near": (0.00446, 0.01319, 0.003706, 0.04015),
}


@cache
def estimates(sums: str, clusters: tuple[int, ...]) -> _core.WgmmaEstimates:
    """The formula for kernels that sum in this way, on a GPU that runs so many clusters of each size."""
    column = SUMS.index(sums)
    return _core.WgmmaEstimates([CONSTANTS[name][column] for name in _core.wgmma_constants()], clusters)


@cache
def design_of(c: GemmConfig) -> _core.WgmmaDesign:
    """What the formula knows of a kernel."""
    schedule, epilogue = SCHEDULES[c.schedule], epilogue_named(c.epilogue)
    size, d_size = DTYPES[c.a].itemsize, DTYPES[c.d].itemsize
    a_along, b_along = c.layout[0] == "n", c.layout[1] == "t"
    like_d = sum((epilogue.source, epilogue.gated, epilogue.aux)) * d_size
    if epilogue.user:
        like_d = sum(epilogue.user.matrix_bytes)
    return _core.WgmmaDesign(
        tile=c.tile,
        cluster=c.cluster,
        swap=schedule.swap,
        pingpong=schedule.pingpong,
        left_along=b_along if schedule.swap else a_along,
        right_along=a_along if schedule.swap else b_along,
        direct=not schedule.tma_store,
        size=size,
        d_size=d_size + like_d,
        instructions=epilogue.instructions,
    )


def sums_of(c: GemmConfig) -> str:
    """How a kernel sums: fp8 by the tensor cores alone, or leaving them every 128 of k, with factors or without."""
    if DTYPES[c.a].itemsize > 1 or c.accumulator == "s32":
        return "usual"
    if c.accumulator == "fast":
        return "fast"
    return "factors" if SCHEDULES[c.schedule].block else "promoted"


def estimate(c: GemmConfig, gpu: Gpu, m: int, n: int, k: int, batch: int) -> tuple[float, int, int]:
    """Microseconds in the best order of tiles, and that order: raster and swizzle (kernel.h)."""
    return estimates(sums_of(c), gpu.clusters).best((m, n, k, batch), design_of(c))
