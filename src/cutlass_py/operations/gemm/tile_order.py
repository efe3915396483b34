"""The order in which a kernel takes its tiles: the default one, and those that tuning tries."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
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
        return wgmma_estimate.estimate(c, gpu, p.m, p.columns_of_b, p.k, p.batch)[1:]
    if c.api != 3 or SCHEDULES[c.schedule].swap:
        return 0, 1
    waves = prod(tiles_of(c, p)) / gpu.sm_count
    return (1, 2) if waves >= 8 else (0, 1)


def tile_orders(kernel: CutlassKernel, p: Problem) -> Sequence[tuple[int, int]]:
    """Raster and swizzle that are worth measuring: of our own all that differ; none of one row or column of tiles."""
    c = kernel.config
    if SCHEDULES[c.schedule].lean:
        orders = wgmma_estimate.design_of(c).orders(p.m, p.columns_of_b)
        return orders if len(orders) > 1 else ()
    return _CUTLASS_ORDERS if c.api == 3 and min(tiles_of(c, p)) > 1 else ()
