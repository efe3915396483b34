"""The order in which a kernel takes its tiles: the default one, and those that tuning tries."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import RASTERS, SCHEDULES, SWIZZLES, GemmConfig
from ...kernels.kernel import CutlassKernel
from . import wgmma_estimate

# Raster and swizzle of CUTLASS's 3.x kernels (kernel.h) that are measured beside what is taken without a measurement.
_CUTLASS_ORDERS = ((0, 1), (0, 2), (0, 8), (1, 1), (1, 2), (2, 1), (2, 2))


def tiles_of(c: GemmConfig, p: Problem) -> tuple[int, int]:
    """Rows and columns of tiles: of the transposed problem, where the schedule swaps."""
    rows, cols = (p.n, p.m) if SCHEDULES[c.schedule].swap else (p.m, p.n)
    return ceil(rows / c.tile[0]), ceil(cols / c.tile[1])


def tile_order(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
    """Raster and swizzle, so that the tiles in flight share what is in the L2 cache.

    Of our own kernels by the formula that estimates them. Of CUTLASS's along m in pairs, over eight waves and more
    (docs/performance/tile_orders.md): swizzles that do not divide the tiles pad them, up to a third.
    """
    c = kernel.config
    if SCHEDULES[c.schedule].lean:
        return wgmma_estimate.estimate(c, gpu, p.m, p.n, p.k, p.batch)[1:]
    if c.api == 2 or SCHEDULES[c.schedule].swap:
        return 0, 1
    waves = prod(tiles_of(c, p)) / gpu.sm_count
    return (1, 2) if waves >= 8 else (0, 1)


def tile_orders(kernel: CutlassKernel, p: Problem) -> Iterator[tuple[int, int]]:
    """Raster and swizzle that are worth measuring, where there are rows and columns of tiles.

    Of our own kernels all that differ: bands, of clusters, are not twice as wide as all of them.
    """
    c, schedule = kernel.config, SCHEDULES[kernel.config.schedule]
    tiles = tiles_of(c, p)
    if schedule.lean:
        tiles = ceil(tiles[0] / c.cluster[0]), ceil(tiles[1] / c.cluster[1])
    if c.api != 3 or min(tiles) < 2:
        return
    if not schedule.lean:
        yield from _CUTLASS_ORDERS
        return
    rows, columns = tiles[::-1] if schedule.swap else tiles
    for raster, across in ((RASTERS["m"], columns), (RASTERS["n"], rows)):
        yield from ((raster, swizzle) for swizzle in SWIZZLES if swizzle < 2 * across)
