"""What our own wgmma kernels take: the formula of estimate.h, its constants, and what it knows of a kernel.

The constants were fitted by benchmarks/fit_choice.py to random problems on an H200: docs/performance/choice.md.
"""

from __future__ import annotations

from functools import cache
from math import prod

from ... import _core
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from ...declaration.shared_memory import part_columns

# By the names of estimate.h, a column for each way to sum; bf16 stands for all that sum as usual. `direct` and `finish`
# are bf16's in all.
SUMS = ("usual", "fast", "promoted", "factors")
CONSTANTS = {
    "launch": (0.8728, 0.8084, 0.8937, 0.8564),
    "fill": (-0.1267, -0.0111, -0.2338, -0.09338),
    "meet": (0.118, 0.007892, 0.05716, 0.3197),
    "rate": (16.33, 16.24, 16.23, 16.81),
    "narrow": (4.107, 3.92, 3.714, 5.784),
    "low": (0.2167, 0.06714, 0.02211, 0.3599),
    "swapped": (0.0, 0.0, 0.0, 0.11),
    "turned32": (-0.01269, 0.03779, 0.03779, 0.03779),
    "turned16": (0.2813, 0.4633, 0.4633, 0.4633),
    "step": (-2.542, -2.529, -2.382, -2.564),
    "load": (13.48, 12.2, 11.97, 12.32),
    "beside": (-0.3237, 1.647, 2.261, -5.586),
    "lines64": (2.37, 0.3738, 0.1915, 0.0909),
    "lines32": (1.499, 0.1001, -0.0111, -0.03675),
    "lines16": (3.09, 0.8046, 0.5844, 0.6073),
    "panels32": (4.698, 2.771, 2.771, 2.771),
    "panels16": (7.453, 5.913, 5.913, 5.913),
    "outside": (3.126, 0.873, 0.7636, 0.9028),
    "outside_along": (2.861, 3.032, 3.032, 3.032),
    "last": (0.0941, 0.2433, 0.3236, -0.09156),
    "store": (10.94, 11.11, 11.18, 12.55),
    "stored32": (0.2327, 0.06942, 0.1217, 1.726),
    "stored16": (0.5642, 0.3061, 0.562, 3.235),
    "direct": (-0.8347, -0.8347, -0.8347, -0.8347),
    "finish": (0.07299, 0.07299, 0.07299, 0.07299),
    "join": (0.5795, 0.6244, 0.4333, 0.2132),
    "joined": (9.876, 10.16, 9.956, 10.28),
    "memory": (15.95, 15.44, 15.28, 15.56),
    "paired": (0.5497, 0.199, 0.08167, 0.09581),
    "alone": (13.62, 13.27, 12.46, 12.58),
    "kept": (17.44, 17.76, 17.88, 17.95),
    "again": (-1.614, -1.574, -1.372, -1.164),
    "near": (2.561, 3.342, 3.212, 2.783),
}

# Instructions for each number of the loop that an epilogue which is not linear stands in (docs/performance/choice.md).
_LOOP = 6
# And where scaled sums are finished unit by unit: more of a thread than leave it registers (roomy in epilogue.cuh).
_UNIT_BY_UNIT, _ROOMY = 20, 160


@cache
def estimates(sums: str, clusters: tuple[int, ...]) -> _core.WgmmaEstimates:
    """The formula for kernels that sum in this way, on a GPU that runs so many clusters of each size."""
    column = SUMS.index(sums)
    return _core.WgmmaEstimates([CONSTANTS[name][column] for name in _core.wgmma_constants()], clusters)


@cache
def design_of(c: GemmConfig, activation: str = "identity") -> _core.WgmmaDesign:
    """What the formula knows of a kernel, which applies this activation if that is told."""
    schedule, epilogue = SCHEDULES[c.schedule], epilogue_named(c.epilogue)
    instructions = epilogue.instructions(activation)
    size, d_size = DTYPES[c.a].itemsize, DTYPES[c.d].itemsize
    a_along, b_along = c.layout[0] == "n", c.layout[1] == "t"
    like_d, reduces = sum((epilogue.source, epilogue.gated, epilogue.aux)) * d_size, epilogue.bias_grad
    if epilogue.user:
        like_d, reduces = sum(epilogue.user.matrix_bytes), epilogue.user.reductions > 0
    loop = _LOOP if instructions else 0
    if epilogue.scaled and prod(c.tile[:2]) / (128 if schedule.pingpong else 256) > _ROOMY:
        loop = _UNIT_BY_UNIT
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
        part=part_columns(c.tile[1], d_size, like_d > 0 or c.cluster[2] > 1, reduces),
        instructions=instructions + loop,
    )


def sums_of(c: GemmConfig) -> str:
    """How a kernel sums: fp8 by the tensor cores alone, or leaving them every 128 of k, with factors or without."""
    if DTYPES[c.a].itemsize > 1 or c.accumulator == "s32":
        return "usual"
    if c.accumulator == "fast":
        return "fast"
    return "factors" if SCHEDULES[c.schedule].block else "promoted"


def estimate(
    c: GemmConfig, gpu: Gpu, m: int, n: int, k: int, batch: int, activation: str = "identity"
) -> tuple[float, int, int]:
    """Microseconds in the best order of tiles, and that order: raster and swizzle (kernel.h)."""
    return estimates(sums_of(c), gpu.clusters).best((m, n, k, batch), design_of(c, activation))
