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

# By the names of estimate.h, a column for each way to sum; bf16 stands for all that sum as usual. `direct`, `finish`
# and those of what threads load are bf16's in all.
SUMS = ("usual", "fast", "promoted", "factors")
CONSTANTS = {
    "launch": (0.8728, 0.8084, 0.96, 0.8861),
    "fill": (-0.1267, -0.0111, -0.21, 0.02943),
    "meet": (0.118, 0.007892, 0.01481, -0.1326),
    "rate": (16.33, 16.24, 16.17, 16.03),
    "narrow": (4.107, 3.92, 4.065, 3.865),
    "low": (0.2167, 0.06714, 0.2576, 0.2151),
    "turns": (0.0, 0.0, 0.0613, 0.06119),
    "columns": (0.0, 0.0, 0.0, 0.3638),
    "turned32": (-0.01269, 0.03779, 0.03779, 0.03779),
    "turned16": (0.2813, 0.4633, 0.4633, 0.4633),
    "step": (-2.542, -2.529, -2.3, -2.564),
    "load": (13.48, 12.2, 12.82, 12.35),
    "unaligned_line": (-2.0, -2.0, -2.0, -2.0),
    "unaligned_row": (-5.4, -5.4, -5.4, -5.4),
    "beside": (-0.3237, 1.647, 1.063, 1.197),
    "lines64": (2.37, 0.3738, 1.855, 0.5696),
    "lines32": (1.499, 0.1001, 0.4667, 0.4029),
    "lines16": (3.09, 0.8046, 1.572, 1.258),
    "panels32": (4.698, 2.771, 2.771, 2.771),
    "panels16": (7.453, 5.913, 5.913, 5.913),
    "outside": (3.126, 0.873, 1.754, 0.8795),
    "outside_along": (2.861, 3.032, 3.032, 3.032),
    "last": (0.0941, 0.2433, 0.1969, 0.2795),
    "store": (10.94, 11.11, 11.28, 11.69),
    "stored32": (0.2327, 0.06942, 0.07838, 1.726),
    "stored16": (0.5642, 0.3061, 0.2885, 3.235),
    "direct": (-0.8347, -0.8347, -0.8347, -0.8347),
    "finish": (0.07299, 0.07299, 0.1217, 0.14),
    "series": (-3.0, -3.0, -3.0, -3.0),
    "join": (0.5795, 0.6244, 0.4219, 0.3818),
    "joined": (9.876, 10.16, 9.779, 9.673),
    "memory": (15.95, 15.44, 15.85, 15.99),
    "paired": (0.5497, 0.199, 0.3974, 0.2587),
    "alone": (13.62, 13.27, 12.97, 12.88),
    "kept": (17.44, 17.76, 17.78, 17.97),
    "again": (-1.614, -1.574, -1.126, -0.9575),
    "near": (2.561, 3.342, 3.369, 4.045),
}

# Instructions for each number of the loop that an epilogue which is not linear stands in (docs/performance/choice.md).
_LOOP = 6
# And where scaled sums are finished unit by unit: more of a thread than leave it registers (roomy in epilogue.cuh).
_UNIT_BY_UNIT, _ROOMY = 20, 160
_MOST_REGISTERS, _FEW_REGISTERS = 192, 32  # of promoted sums and their parts: multiply.cuh


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
        serial=schedule.serial,
        swap=schedule.swap,
        pingpong=schedule.pingpong,
        turns=adds_by_turns(c),
        by_column=schedule.by_column(c.tile[1]),
        left_along=b_along if schedule.swap else a_along,
        right_along=a_along if schedule.swap else b_along,
        direct=not schedule.tma_store,
        unaligned=schedule.unaligned,
        size=size,
        d_size=d_size + like_d,
        part=part_columns(c.tile[1], d_size, like_d > 0 or c.shares_tile, reduces),
        instructions=instructions + loop,
    )


def adds_by_turns(c: GemmConfig) -> bool:
    """Whether of two warpgroups one adds up promoted sums while the other multiplies (kernels/sm90/multiply.cuh).

    Where there are no registers for two parts of 64 rows beside the sums; or a warpgroup has 64 rows of few columns.
    """
    if sums_of(c) not in ("promoted", "factors") or SCHEDULES[c.schedule].pingpong:
        return False
    blocks, part = c.tile[0] // 128, c.tile[1] // 2
    return (blocks + 2) * part > _MOST_REGISTERS or (blocks == 1 and part <= _FEW_REGISTERS)


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
