"""A model of the time a route takes, in microseconds. It only has to order kernels.

The largest of three floors - tensor cores, each multiprocessor's loads, device memory - over whole waves of tiles, plus
packing, the composed epilogue and a fixed cost per kernel. The constants are fits to H200 measurements
(benchmarks/results); rates scale with the number of multiprocessors.
"""

from __future__ import annotations

from math import ceil

from ._core import Problem
from .families import DTYPES, FAMILIES, SCHEDULES, KernelConfig
from .gpu import Gpu
from .kernels import CutlassKernel, Route

# TFLOP/s that a family's best tile sustains on 132 multiprocessors, by the dtype it multiplies.
_RATE = {
    ("sm90_gemm", "f16"): 740.0,
    ("sm90_gemm", "bf16"): 740.0,
    ("sm80_gemm", "f16"): 230.0,
    ("sm80_gemm", "bf16"): 230.0,
    ("sm80_gemm", "tf32"): 157.0,
    ("sm80_gemm", "f64"): 30.0,
    ("sm90_dgemm", "f64"): 56.0,
    ("simt_gemm", "f32"): 42.0,
}
# Share of that rate by tile area (m * n), for 3.x and 2.x: small tiles starve the tensor cores.
_EFFICIENCY = {
    3: [(128 * 256, 1.0), (128 * 128, 0.95), (64 * 128, 0.80), (64 * 64, 0.60), (64 * 32, 0.40), (0, 0.25)],
    2: [(128 * 128, 1.0), (64 * 64, 0.7), (0, 0.5)],
}
# Narrow accesses stall 2.x loads: share of the rate by bytes per access.
_ACCESS = {16: 1.0, 8: 0.75, 4: 0.65, 2: 0.5}
_SM_LOAD = 75.0  # bytes per nanosecond that one multiprocessor takes in
_LAUNCH = {3: 3.0, 2: 2.5}  # microseconds from start to first store of an empty problem
_ELEMENTWISE_LAUNCH = 2.5


def estimate(route: Route, p: Problem, gpu: Gpu) -> float:
    """Microseconds for a route on a GPU."""
    assert isinstance(route.kernel, CutlassKernel)
    c = route.kernel.config
    size_a, size_d = DTYPES[c.a].itemsize, DTYPES[p.d or c.d].itemsize
    time = _product(c, p, gpu)
    if route.pack_a:
        time += _move(2 * p.m * p.k * p.batch * size_a, gpu)
    if route.pack_b:
        time += _move(2 * p.k * p.n * p.batch * size_a, gpu)
    if route.scratch:
        size_c = DTYPES[p.c].itemsize if p.c else 0
        time += _move(p.m * p.n * p.batch * (DTYPES[route.scratch].itemsize + size_c + size_d), gpu)
    return time


def _move(moved_bytes: int, gpu: Gpu) -> float:
    return _ELEMENTWISE_LAUNCH + moved_bytes / (0.6 * gpu.bandwidth * 1e3)


def _product(c: KernelConfig, p: Problem, gpu: Gpu) -> float:
    api = FAMILIES[c.family].api
    tm, tn, tk = c.tile
    rows, cols = (p.n, p.m) if c.schedule and SCHEDULES[c.schedule].swap else (p.m, p.n)
    # Clusters are scheduled whole.
    tiles_m = ceil(ceil(rows / tm) / c.cluster[0]) * c.cluster[0]
    tiles_n = ceil(ceil(cols / tn) / c.cluster[1]) * c.cluster[1]
    tiles = tiles_m * tiles_n * p.batch
    slots = gpu.sm_count // (c.cluster[0] * c.cluster[1]) * c.cluster[0] * c.cluster[1]
    resident = _resident(c)
    waves = ceil(tiles / (slots * resident))
    share = min(tiles / slots, resident)  # tiles that a multiprocessor works on at once

    size = DTYPES[c.a].itemsize
    efficiency = next(e for area, e in _EFFICIENCY[api] if tm * tn >= area)
    if api == 2:
        efficiency *= _ACCESS[min(16, (c.align or 1) * size)] if size == 2 else 1.0
    elif not SCHEDULES[c.schedule].tma_store:
        efficiency *= 0.93
    sm_rate = _RATE[c.family, c.a] * 1e6 / 132 * efficiency  # flop per microsecond
    steps = ceil(p.k / tk)
    shared = 1 + 1 / (c.cluster[0] * c.cluster[1])  # multicast halves what a pair of tiles loads
    step = max(2 * tm * tn * tk / sm_rate, (tm + tn) * tk * size * shared / 2 / (_SM_LOAD * 1e3)) * max(share, 1.0)
    compute = waves * steps * step + (waves - 1) * 0.5
    d = DTYPES[c.d].itemsize
    memory = p.batch * (size * (p.m * p.k + p.k * p.n) + p.m * p.n * d * (2 if p.c else 1)) / (gpu.bandwidth * 1e3)
    return _LAUNCH[api] + max(compute, memory)


def _resident(c: KernelConfig) -> int:
    """Tiles that fit on a multiprocessor at once: 3.x kernels are persistent and take all of its shared memory."""
    if c.schedule:
        return 1
    smem = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    accumulators = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize
    return max(1, min(200_000 // smem, 48 // warps, 200_000 // (accumulators + warps * 8192)))
