"""A model of the time a route takes, in microseconds. It only has to order kernels.

Whole waves of tiles, each bound by the tensor cores or by what one multiprocessor can load, beside the floor of device
memory; plus packing, the composed epilogue and a fixed cost per launch. The constants of 3.x kernels were fitted to a
bf16 sweep on one H200 (benchmarks/results/kernel_speed-h200-sweep.json); over the problems it was fitted to, the choice
is within 2% of the best kernel, geometric mean. The direct store's is one reading (64 x (128, 2048, 128), 70 us). Not
measured: 2.x rates, elementwise kernels, splits of k, stream-K, and dtypes of another size than bf16's, which scale its
rates. Rates scale with the number of multiprocessors.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ._core import Problem
from .dtypes import DTYPES
from .epilogues import epilogue_named
from .families import FAMILIES, SCHEDULES, KernelConfig
from .gpu import Gpu
from .legality import Interface, Way

if TYPE_CHECKING:
    from .kernels import CutlassKernel

_SM_COUNT = 132  # of the GPU that the rates below were fitted on
# TFLOP/s of 3.x kernels while tiles are in flight, by tile area (m * n). Small tiles starve the tensor cores; the
# pingpong schedule of 128x128 and 64x256 hides all but the mainloop.
_RATE_3X = [(128 * 128 + 1, 865.0), (128 * 128, 990.0), (64 * 64, 480.0), (64 * 32, 350.0), (0, 205.0)]
# TFLOP/s of a 2.x family's large tile, by the dtype it multiplies; smaller tiles reach the share below. A complex
# product counts as one multiplication.
_RATE_2X = {
    ("sm80_gemm", "f16"): 300.0,
    ("sm80_gemm", "bf16"): 300.0,
    ("sm80_gemm", "s8"): 550.0,
    ("sm80_gemm", "u8"): 550.0,
    ("sm80_gemm", "tf32"): 157.0,
    ("sm80_gemm", "tf32x3"): 69.0,
    ("sm80_gemm", "f64"): 30.0,
    ("sm80_gemm", "c128"): 7.5,
    ("sm90_dgemm", "f64"): 58.0,
    ("sm90_dgemm", "c128"): 14.0,
    ("simt_gemm", "f32"): 42.0,
    ("simt_gemm", "c64"): 10.5,
}
_SMALL_TILE_2X = 0.7
# Narrow accesses of 16-bit types stall 2.x loads: share of the rate by bytes per access.
_ACCESS_2X = {16: 1.0, 8: 0.75, 4: 0.65, 2: 0.5}
_SM_LOAD = 94e3  # bytes per microsecond that one multiprocessor takes in
_DIRECT_STORE = 0.93  # share of the rate beside an epilogue that stores element by element
_EPILOGUE = {"tma": 1.8, "direct": 34.0}  # microseconds to store a 128x256 tile, by TMA and element by element
_INSTRUCTION = 0.15  # microseconds of one instruction for each element of such a tile, by four schedulers at 1.7 GHz
_LAUNCH = {3: 2.9, 2: 2.5}  # microseconds of an empty problem
_ELEMENTWISE_LAUNCH = 2.5
_ELEMENTWISE = 0.6  # share of memory bandwidth that the packing and composing kernels reach
_STREAM_K = 6.0  # microseconds, a guess: a memset before the launch, and partial tiles through memory
_PARTIAL_WAVE = 0.12  # how much of an idle wave's time is gained back by the others (clock, bandwidth)


class Estimates:
    """Estimates for one problem on one GPU, in microseconds. Kernels that compute alike are asked about once."""

    def __init__(self, p: Problem, gpu: Gpu) -> None:
        self.p, self.gpu = p, gpu
        self._products: dict[int, float] = {}

    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """The kernel itself, k in `splits` parts."""
        key = kernel.design << 16 | splits
        time = self._products.get(key)
        if time is None:
            time = self._products[key] = _product(kernel.config, self.p, self.gpu, splits)
        return time

    def detours(self, way: Way, interface: Interface, splits: int = 1) -> float:
        """What surrounds the kernel: packing, and finishing the product elsewhere."""
        if not way.detours:
            return 0.0
        p, size, time = self.p, DTYPES[interface.a].itemsize, 0.0
        if way.pack_a:
            time += _move(2 * p.m * p.k * p.batch * size, self.gpu)
        if way.pack_b:
            time += _move(2 * p.k * p.n * p.batch * size, self.gpu)
        if way.pack_scales:
            time += _move(2 * p.m * ceil(p.k / 128) * p.batch * DTYPES["f32"].itemsize, self.gpu)
        if way.scratch:
            bytes_each = DTYPES[way.scratch].itemsize * splits
            bytes_each += sum(DTYPES[x].itemsize for x in (p.c, p.gate, p.aux, p.d) if x)
            time += _move(p.m * p.n * p.batch * bytes_each, self.gpu)
        return time


_designs: dict[tuple[object, ...], int] = {}


def design(c: KernelConfig) -> int:
    """A number for the part of a kernel that the model looks at."""
    key = (c.family, c.tile, c.cluster, c.schedule, c.warp, c.stages, c.align, c.a, c.accumulator, c.d,
           epilogue_named(c.epilogue).user)  # fmt: skip
    return _designs.setdefault(key, len(_designs))


def models(c: KernelConfig) -> bool:
    """Whether the model can say anything about a configuration that is not of the declaration."""
    return c.api == 3 or ((c.family, c.a) in _RATE_2X and all(c.warp))


def _move(moved_bytes: int, gpu: Gpu) -> float:
    return _ELEMENTWISE_LAUNCH + moved_bytes / (_ELEMENTWISE * gpu.bandwidth * 1e3)


def _product(c: KernelConfig, p: Problem, gpu: Gpu, splits: int) -> float:
    size, d_size = DTYPES[c.a].itemsize, DTYPES[c.d].itemsize
    k, batch = ceil(p.k / splits), p.batch * splits
    waves = _waves_3x if c.api == 3 else _waves_2x
    compute = waves(c, p.m, p.n, k, batch, gpu)
    if SCHEDULES[c.schedule].stream_k:
        compute = _dealt_out(c, p, gpu, compute)
    user = epilogue_named(c.epilogue).user
    d_bytes = d_size * (2 if p.c else 1) + (sum(user.matrix_bytes) if user else 0)
    moved = size * (p.m * k + k * p.n) + p.m * p.n * d_bytes
    memory = batch * moved / (gpu.bandwidth * 1e3)
    return _LAUNCH[FAMILIES[c.family].api] + _both(compute, memory)


def _dealt_out(c: KernelConfig, p: Problem, gpu: Gpu, in_waves: float) -> float:
    """Stream-K: no idle part of a wave, but clearing flags and joining partial tiles costs."""
    tiles = max(ceil(p.m / c.tile[0]) * ceil(p.n / c.tile[1]) * p.batch, 1)
    filled = tiles / gpu.sm_count
    return in_waves * filled / ceil(filled) + _STREAM_K


def _both(x: float, y: float) -> float:
    """Two limits at once: near the ridge a little more than the larger."""
    norm: float = (x**6 + y**6) ** (1 / 6)
    return norm


def _waves_3x(c: KernelConfig, m: int, n: int, k: int, batch: int, gpu: Gpu) -> float:
    schedule = SCHEDULES[c.schedule]
    tm, tn, tk = c.tile
    rows, cols = (n, m) if schedule.swap else (m, n)
    # Clusters are scheduled whole.
    tiles_m = ceil(ceil(rows / tm) / c.cluster[0]) * c.cluster[0]
    tiles_n = ceil(ceil(cols / tn) / c.cluster[1]) * c.cluster[1]
    in_cluster = c.cluster[0] * c.cluster[1]
    filled = tiles_m * tiles_n * batch / (gpu.sm_count // in_cluster * in_cluster)
    waves = ceil(filled) * (1 - _PARTIAL_WAVE) + max(filled, 1) * _PARTIAL_WAVE
    rate = next(rate for area, rate in _RATE_3X if tm * tn >= area) * 1e6 / _SM_COUNT
    rate *= 16 / DTYPES[c.a].bits
    if not schedule.tma_store:
        rate *= _DIRECT_STORE
    loaded = (min(tm, rows) + min(tn, cols)) * tk * DTYPES[c.a].itemsize
    step = _both(2 * tm * tn * tk / rate, loaded / _SM_LOAD)
    mainloop = ceil(k / tk) * step
    epilogue = _EPILOGUE["tma" if schedule.tma_store else "direct"]
    epilogue += _INSTRUCTION * epilogue_named(c.epilogue).instructions
    epilogue *= tm * tn / (128 * 256)
    if schedule.pingpong:
        return waves * max(mainloop, (mainloop + epilogue) / 2)
    return waves * (mainloop + epilogue)


def _waves_2x(c: KernelConfig, m: int, n: int, k: int, batch: int, gpu: Gpu) -> float:
    tm, tn, tk = c.tile
    tiles = ceil(m / tm) * ceil(n / tn) * batch
    resident = _resident_2x(c)
    share = min(tiles / gpu.sm_count, resident)  # tiles that a multiprocessor works on at once
    rate = _RATE_2X[c.family, c.a] * 1e6 / _SM_COUNT
    if tm * tn < 128 * 128:
        rate *= _SMALL_TILE_2X
    size = DTYPES[c.a].itemsize
    if size == 2:
        rate *= _ACCESS_2X[c.align * size]
    step = 2 * tm * tn * tk / rate * max(share, 1.0)
    return ceil(tiles / (gpu.sm_count * resident)) * ceil(k / tk) * step


def _resident_2x(c: KernelConfig) -> int:
    """Tiles that fit on a multiprocessor at once, by shared memory and registers."""
    smem = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    registers = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize + warps * 8192
    return max(1, min(200_000 // smem, 48 // warps, 200_000 // registers))
