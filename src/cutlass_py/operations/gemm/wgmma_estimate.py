"""What wgmma kernels take: the formula of estimate.h, and what it knows of a kernel.

Its constants are those of a calibration, of our own kernels (docs/performance/choice.md); CUTLASS's, which only what
compiles on demand takes, are judged by them, too. Stream-K fills its last wave.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import ceil, prod

from ... import _core
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from ...declaration.shared_memory import part_columns
from .calibration import DEPTH, GROUPS, Calibration, calibration_of

# Instructions for each number of the loop that an epilogue which is not linear stands in (docs/performance/choice.md).
_LOOP = 6
# And where scaled sums are finished unit by unit: more of a thread than leave it registers (roomy in epilogue.cuh).
_UNIT_BY_UNIT, _ROOMY = 20, 160
_MOST_REGISTERS, _FEW_REGISTERS = 192, 32  # of promoted sums and their parts: multiply.cuh


def estimates(sums: str, gpu: Gpu) -> _core.WgmmaEstimates:
    """The formula for kernels that sum in this way, on such a GPU."""
    return _formula(calibration_of(gpu), sums, gpu.clusters)


@lru_cache(64)
def _formula(known: Calibration, sums: str, clusters: tuple[int, ...]) -> _core.WgmmaEstimates:
    return _core.WgmmaEstimates(known.constants(sums), clusters, known.trees(sums))


@cache
def design_of(c: GemmConfig, activation: str = "identity") -> _core.WgmmaDesign:
    """What the formula knows of a kernel, which applies this activation if that is told."""
    schedule, epilogue = SCHEDULES[c.schedule], epilogue_named(c.epilogue)
    instructions = epilogue.instructions(activation)
    size, d_size = DTYPES[c.a].itemsize, DTYPES[c.d].itemsize
    a_along, b_along = c.layout[0] == "n", c.layout[1] == "t"
    of_d, reduces = (1 + epilogue.matrices) * d_size, epilogue.bias_grad
    part = c.tile[1]
    if epilogue.pairs == "b":  # half as many columns, of which aux has two matrices
        of_d, part = of_d // 2, part if schedule.swap else part // 2
    if epilogue.user:
        of_d, reduces = d_size + sum(epilogue.user.matrix_bytes), epilogue.user.reductions > 0
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
        d_size=of_d,
        part=part_columns(part, d_size, of_d > d_size or c.shares_tile, reduces),
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
    """How a kernel sums: fp8 by the tensor cores alone, or leaving them every 128 of k, with factors or without.

    Of other dtypes those of groups have constants of their own, for they find their tiles, or have many short sums. Of
    those that are read along k nobody has measured groups of k.
    """
    if DTYPES[c.a].itemsize > 1 or c.accumulator == "s32":
        grouping = SCHEDULES[c.schedule].grouping
        return GROUPS if grouping == "lines" else DEPTH if grouping == "depth" and c.layout == "nt" else "usual"
    if c.accumulator == "fast":
        return "fast"
    return "factors" if SCHEDULES[c.schedule].block else "promoted"


def estimate(
    c: GemmConfig, gpu: Gpu, m: int, n: int, k: int, batch: int, activation: str = "identity"
) -> tuple[float, int, int]:
    """Microseconds in the best order of tiles, and that order: raster and swizzle (kernel.h)."""
    us, raster, swizzle = estimates(sums_of(c), gpu).best((m, n, k, batch), design_of(c, activation))
    if SCHEDULES[c.schedule].stream_k:
        us = us * _last_wave(c, gpu, m, n, batch) + calibration_of(gpu).tiled["deal"]
    return us, raster, swizzle


def _last_wave(c: GemmConfig, gpu: Gpu, m: int, n: int, batch: int) -> float:
    """What is left of the time where its multiprocessors are not idle."""
    rows, columns = (n, m) if SCHEDULES[c.schedule].swap else (m, n)
    clusters = ceil(rows / (c.tile[0] * c.cluster[0])) * ceil(columns / (c.tile[1] * c.cluster[1])) * batch
    waves = clusters / max(1, gpu.clusters[prod(c.cluster)])
    return waves / ceil(waves) if waves else 1.0
