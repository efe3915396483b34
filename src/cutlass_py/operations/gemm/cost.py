"""A model of the time a route takes, in microseconds. It only has to order kernels.

Waves of tiles, each bound by the tensor cores or by what one multiprocessor can load, or what device memory gives to
the multiprocessors with a tile; plus packing, the composed epilogue and a fixed cost per launch. The constants of 3.x
kernels were fitted to bf16 sweeps on one H200 by benchmarks/fit_cost.py, which also tells how near to the best kernels
the choice comes; those of promoted sums to a sweep of fp8; launches and copies to routes of random problems; those of
2.x kernels by hand, to bf16 and s8 of every alignment. Not fitted: 2.x rates of other dtypes, splits of k and stream-K.
Rates scale with the number of multiprocessors.
"""

from __future__ import annotations

from itertools import count
from math import ceil, floor, log2, prod, sqrt
from typing import TYPE_CHECKING

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import BLOCK, DTYPES
from ...declaration.epilogues import epilogue_named
from ...kernels import operation
from ...kernels.adaptation import Way
from . import wgmma_estimate
from .legality import Interface

if TYPE_CHECKING:
    from ...declaration.epilogue_cpp import Traced
    from ...kernels.kernel import CutlassKernel

_SM_COUNT = 132  # of the GPU that the rates below were measured on
# Of 3.x kernels. benchmarks/fit_cost.py fits these.
FITTED_3X = {
    "rate": 771.0,  # TFLOP/s of 16-bit pingpong kernels while tiles are in flight; others in proportion to their bits
    "cooperative": 0.925,  # share of that where warpgroups share a tile: by hand (docs/performance/measuring.md)
    "promoted": 0.551,  # share of sums that leave the tensor cores every 128 of k
    "promoted_cooperative": 0.81,  # likewise, of cooperative kernels
    "steady": 0.8,  # likewise, of those that leave while other MMAs run
    "steady_cooperative": 0.885,
    "deep": 0.263,  # the rate falls with this power of the accumulators that a thread has beyond 128
    "narrow": 1.56,  # columns by which a tile is the wider for the tensor cores
    "step": 0.0121,  # microseconds of 128 bytes of k, for each 64 rows that one warpgroup has of a tile
    "load": 112.6e3,  # bytes per microsecond that one multiprocessor takes in
    "multicast": 0.058,  # by how much another block in a cluster divides what is loaded
    "outside": 2.11,  # by how much rows of a tile that lie outside of their operand are dearer to load
    "epilogue": 1.14,  # microseconds to store a 128x256 tile by TMA
    "epilogue_direct": 61.2,  # likewise, element by element
    "partial_wave": 0.454,  # how much of a wave's idle part is gained back by the others (clock, bandwidth)
    "memory": 1.13,  # times the bandwidth of copies: what reading gets
    "alone": 205e3,  # bytes per microsecond of it to a multiprocessor, where half of them have no tile
    "alone_in_cluster": 0.55,  # share of that in a cluster, whose blocks lie side by side
    "paired": 45.5e3,  # likewise, where more have one
    "launch": 2.04,  # microseconds of an empty problem
}
# TFLOP/s of a 2.x family's large tile, by the dtype it multiplies; smaller tiles reach the share below. A complex
# product counts as one multiplication.
_RATE_2X = {
    ("sm80_gemm", "f16"): 440.0,
    ("sm80_gemm", "bf16"): 440.0,
    ("sm80_gemm", "s8"): 550.0,
    ("sm80_gemm", "u8"): 550.0,
    ("sm80_gemm", "tf32"): 157.0,
    ("sm80_gemm", "tf32x3"): 69.0,
    ("sm80_gemm", "f64"): 30.0,
    ("sm80_gemm", "c128"): 7.5,
    ("sm90_dgemm", "f64"): 58.0,
    ("sm90_dgemm", "c128"): 10.3,
    ("simt_gemm", "f32"): 42.0,
    ("simt_gemm", "c64"): 10.5,
}
_SMALL_TILE_2X = {"sm80_gemm": 0.5, "sm90_dgemm": 0.95}  # by family, others:
_SMALL_TILE_2X_USUAL = 0.7
# Narrow accesses of types of 16 bits and less stall 2.x loads: share of the rate by bytes per access; 8 is a guess.
_ACCESS_2X = {16: 1.0, 8: 0.7, 4: 0.5, 2: 0.22, 1: 0.09}
_FILL_2X = 4.0  # microseconds of a wave of 128x128 tiles beside its steps of k; of others by their rows and columns
# "outside", of operands that are read along their rows or columns instead of k. The blocks of a cluster divide it.
_OUTSIDE_ALONG = 14.0
_MOST_ROWS = 256  # of a tile, or columns: in larger problems no tile is outside
# Columns that blocks side by side in a cluster load each for itself are dearer beside so few rows of tiles: it seems
# that neighbours' requests are joined, but not those of such clusters (docs/performance/choice.md).
_FEW_ROWS, _UNSHARED = 8, 1.5
# Clusters of four do not reach every multiprocessor, as far as times tell: by hand (docs/performance/choice.md).
_REACHED_BY_FOUR = 0.9
# Of batches, what kernels with clusters move through memory counts so much more: by hand (docs/performance/choice.md).
# Parts of a split k are no batch here, because nobody has measured them.
_BATCH_IN_CLUSTERS = 1.1
# Swapped tiles of 64 rows take all columns in turn. Beyond so many of them, each doubling costs this share more: the L2
# cache does not keep them, as far as one can tell. Sweeps in tn, tt and nn agree.
_COLUMNS_KEPT, _COLUMNS_LOST = 2048, 0.4
# f64, of the rate that its bits suggest: its tensor cores have no wgmma (docs/performance/choice.md).
_DMMA = 0.314
# The power of raw sums of fp8 instead of FITTED_3X["deep"]: by hand, from an H100's sweep (docs/performance/fp8.md).
_DEEP_FAST = 0.1
_INSTRUCTION = 0.15  # microseconds of one instruction for each of 128x256 elements, by four schedulers at 1.7 GHz
# Of what is beside 3.x kernels. benchmarks/fit_cost.py --routes fits these.
FITTED_ROUTES = {
    "launch_2x": 1.976,  # microseconds of an empty problem
    "elementwise_launch": 4.017,  # likewise, of the packing and composing kernels
    "elementwise": 1.185,  # share of memory bandwidth that these reach, the L2 cache beside it
    "transposed": 1.122,  # how much longer a copy takes that turns rows into columns
}
_STREAM_K = 6.0  # microseconds, a guess: a memset before the launch, and partial tiles through memory
_JOIN_2X = 2.0  # steps of k that it takes to join a part of a tile: CUTLASS deals out by the same number
_UNPROVEN = 1.1  # so much a cut of k, which nobody has measured, must promise to gain over what was


class Estimates(operation.Estimates):
    """Estimates for one problem on one GPU, in microseconds. Kernels that compute alike are asked about once."""

    def __init__(self, p: Problem, gpu: Gpu) -> None:
        self.p, self.gpu = p, gpu
        self._is_small = min(p.m, p.n) < _MOST_ROWS
        self._products: dict[tuple[int, int, str], float] = {}
        self._bounds: dict[tuple[str, str], float] = {}
        a, b = DTYPES[p.operand_a or "f32"], DTYPES[p.operand_b or "f32"]
        moved = p.batch * (p.m * p.k * a.itemsize + p.k * p.n * b.itemsize)
        fastest = gpu.bandwidth * 1e3 * max(1.0, FITTED_3X["memory"])
        self._least = min(FITTED_ROUTES["launch_2x"], FITTED_3X["launch"]) + moved / fastest

    def least(self, interface: Interface, way: Way | None = None, splits: int = 1) -> float:
        """What no route through an interface falls below: by layouts and dtypes, or with the detours of a way."""
        if way:
            return self._least + self.detours(way, interface, splits)
        key = interface.layout, interface.d
        if (time := self._bounds.get(key)) is None:
            time = self._bounds[key] = self._least + self.detours(_at_least(interface, self.p), interface)
        return time

    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """The kernel itself, k in `splits` parts."""
        by_layout = self._is_small or SCHEDULES[kernel.config.schedule].lean
        key = kernel.design, splits, kernel.config.layout if by_layout else ""
        time = self._products.get(key)
        if time is None:
            time = sum(_product(kernel.config, self.p, self.gpu, *each) for each in self.p.launches(splits))
            if splits > 1 or SCHEDULES[kernel.config.schedule].stream_k:
                time *= _UNPROVEN
            self._products[key] = time
        return time

    def detours(self, way: Way, interface: Interface, splits: int = 1) -> float:
        """What surrounds the kernel: packing, and finishing the product elsewhere."""
        p, size, time = self.p, DTYPES[interface.a].itemsize, 0.0
        if way.pack_a:
            time += _pack(2 * p.m * p.k * p.batch * size, way.pack_a == p.layout_a, self.gpu)
        if way.pack_b:
            time += _pack(2 * p.k * p.n * p.batch * size, way.pack_b == p.layout_b, self.gpu)
        if way.pack_scales:
            time += _move(2 * p.m * ceil(p.k / BLOCK) * p.batch * DTYPES["f32"].itemsize, self.gpu)
        if way.scratch:
            bytes_each = DTYPES[way.scratch].itemsize * splits
            bytes_each += sum(DTYPES[x].itemsize for x in (p.c, p.gate, p.aux, p.d) if x)
            time += _move(p.m * p.n * p.batch * bytes_each, self.gpu)
        if way.sums:
            time += _move(p.m * p.n * p.batch * DTYPES[interface.d].itemsize, self.gpu)
        return time


def _at_least(interface: Interface, p: Problem) -> Way:
    """The detours that layouts and dtypes alone ask for."""
    a, b = interface.layout[0], interface.layout[1]
    pack_a, pack_b = a if a != p.layout_a else None, b if b != p.layout_b else None
    scratch = interface.d if interface.d != p.d else None
    return Way(pack_a, pack_b, scratch, tuple(filter(None, (pack_a, pack_b, scratch))))


_designs: dict[tuple[object, ...], int] = {}
_numbers = count()


def design(c: GemmConfig) -> int:
    """A number for what the model looks at of a kernel, but for the layout: that matters beside small extents alone."""
    epilogue = epilogue_named(c.epilogue)
    key = (c.family, c.tile, c.cluster, c.schedule, c.warp, c.stages, c.align, c.a, c.accumulator, c.d,
           epilogue.user, epilogue.activation)  # fmt: skip
    return _designs.setdefault(key, next(_numbers))  # in one step: another thread may number one at the same time


def models(c: GemmConfig) -> bool:
    """Whether the model can say anything about a configuration that is not of the declaration."""
    return c.api == 3 or ((c.family, c.a) in _RATE_2X and all(c.warp) and c.stages > 0)


def _pack(moved_bytes: int, as_it_lies: bool, gpu: Gpu) -> float:
    return _move(moved_bytes, gpu) * (1.0 if as_it_lies else FITTED_ROUTES["transposed"])


def _move(moved_bytes: int, gpu: Gpu) -> float:
    return FITTED_ROUTES["elementwise_launch"] + moved_bytes / (FITTED_ROUTES["elementwise"] * gpu.bandwidth * 1e3)


def _product(c: GemmConfig, p: Problem, gpu: Gpu, parts: int, k: int) -> float:
    """One launch for so many parts of k, each of this length."""
    size, d_size = DTYPES[c.a].itemsize, DTYPES[c.d].itemsize
    batch = p.batch * parts
    user = epilogue_named(c.epilogue).user
    d_bytes = d_size * (2 if p.c else 1) + (sum(user.matrix_bytes) if user else 0)
    moved = size * (p.m * k + k * p.n) + p.m * p.n * d_bytes
    memory = batch * moved / (gpu.bandwidth * 1e3)
    beside = _reductions(c, p, user, gpu) if user else 0.0
    if SCHEDULES[c.schedule].stream_k:
        beside += _STREAM_K
    if SCHEDULES[c.schedule].lean:
        return wgmma_estimate.estimate(c, gpu, p.m, p.n, k, batch, p.activation)[0] + beside
    if c.api == 3:
        return FITTED_3X["launch"] + _product_3x(c, p, parts, k, moved * batch, gpu) + beside
    return FITTED_ROUTES["launch_2x"] + _both(_waves_2x(c, p.m, p.n, k, batch, gpu), memory) + beside


def _reductions(c: GemmConfig, p: Problem, user: Traced, gpu: Gpu) -> float:
    """What an elementwise kernel reduces behind a user's epilogue: 3.x kernels leave a vector, 2.x ones all values."""
    values = p.m * p.n * p.batch * DTYPES[c.accumulator].itemsize if c.api == 2 else 0
    stored = len({output.node for output in user.program.outputs if output.reduction})
    return len(user.left(c.api)) * _move(values, gpu) + stored * values / (gpu.bandwidth * 1e3)


def _both(x: float, y: float) -> float:
    """Two limits at once: near the ridge a little more than the larger."""
    norm: float = (x**4 + y**4) ** (1 / 4)
    return norm


def _product_3x(c: GemmConfig, p: Problem, parts: int, k: int, moved: float, gpu: Gpu) -> float:
    """Waves of tiles, the last one waiting for its slowest; or memory."""
    schedule, in_cluster = SCHEDULES[c.schedule], prod(c.cluster)
    rows, cols = (p.n, p.m) if schedule.swap else (p.m, p.n)
    clusters = ceil(ceil(rows / c.tile[0]) / c.cluster[0]) * ceil(ceil(cols / c.tile[1]) / c.cluster[1])
    clusters *= p.batch * parts
    if p.batch > 1 and in_cluster > 1:
        moved *= _BATCH_IN_CLUSTERS
    memory = _memory_3x(moved, clusters * in_cluster, in_cluster > 1, gpu)
    if not clusters:
        return memory
    reached = gpu.sm_count if in_cluster < 4 else int(_REACHED_BY_FOUR * gpu.sm_count)
    filled = clusters / (reached // in_cluster)  # clusters are scheduled whole
    tile = _tile_3x(c, rows, cols, ceil(k / c.cluster[2]))
    if schedule.stream_k:  # no idle part of a wave
        return _both(filled * tile, memory)
    if schedule.swap and c.tile[0] == 64 and cols > _COLUMNS_KEPT:
        tile *= 1 + _COLUMNS_LOST * log2(cols / _COLUMNS_KEPT)
    whole = floor(filled)
    rest = filled - whole
    busy = whole * tile
    if rest:
        busy += (1 - FITTED_3X["partial_wave"] * (1 - rest)) * tile
    return _both(busy, memory)


def _memory_3x(moved: float, blocks: int, clustered: bool, gpu: Gpu) -> float:
    """What memory takes in all, or for one of the blocks that share it out: half of an H200's get it at full speed."""
    time = moved / (FITTED_3X["memory"] * gpu.bandwidth * 1e3)
    if not blocks:
        return time
    if blocks > gpu.sm_count / 2:
        each = FITTED_3X["paired"]
    else:
        each = FITTED_3X["alone"] * (FITTED_3X["alone_in_cluster"] if clustered else 1)
    return _both(time, moved / (each * min(blocks, gpu.sm_count)))


def _tile_3x(c: GemmConfig, rows: int, cols: int, k: int) -> float:
    """Microseconds that a multiprocessor takes for a tile, one after the other."""
    tm, tn, tk = c.tile
    schedule, size = SCHEDULES[c.schedule], DTYPES[c.a].itemsize
    warpgroups = 1 if schedule.pingpong else 2  # on a tile
    step = FITTED_3X["step"] * tm / (64 * warpgroups) * tk * size / 128
    multiply = 2 * tm * (tn + FITTED_3X["narrow"]) * tk / _rate_3x(c, tm * tn / (128 * warpgroups)) + step
    along_rows, along_cols = c.layout[0] == "n", c.layout[1] == "t"
    if schedule.swap:
        along_rows, along_cols = along_cols, along_rows
    unshared = c.cluster[1] > 1 and ceil(rows / tm) <= _FEW_ROWS
    load = _loaded(tm, rows, c.cluster[1], along_rows)
    load += _loaded(tn, cols, c.cluster[0], along_cols) * (_UNSHARED if unshared else 1)
    mainloop = ceil(k / tk) * _both(multiply, load * tk * size / FITTED_3X["load"])
    cheap = schedule.tma_store or schedule.dmma  # the latter by 8 bytes at least
    epilogue = FITTED_3X["epilogue" if cheap else "epilogue_direct"] * tm * tn / (128 * 256) + _computed(c)
    if schedule.pingpong:  # one epilogue beside the other mainloop
        return max(mainloop, (mainloop + epilogue) / 2)
    return mainloop + epilogue


def _computed(c: GemmConfig) -> float:
    """Microseconds of what the epilogue of a tile applies to its elements."""
    return _INSTRUCTION * epilogue_named(c.epilogue).instructions() * c.tile[0] * c.tile[1] / (128 * 256)


def _rate_3x(c: GemmConfig, accumulators: float) -> float:
    """Operations per microsecond of one multiprocessor, by the accumulators of a thread."""
    schedule = SCHEDULES[c.schedule]
    at_full_rate = schedule.pingpong or c.a == "tf32"  # of both kinds: docs/performance/tf32.md
    share = 1.0 if at_full_rate else FITTED_3X["cooperative"]
    if schedule.dmma:
        share = _DMMA
    elif DTYPES[c.a].bits == 8 and c.accumulator == "f32":
        how = "steady" if schedule.steady else "promoted"
        share = FITTED_3X[how if schedule.pingpong else f"{how}_cooperative"]
    power = _DEEP_FAST if c.accumulator == "fast" else FITTED_3X["deep"]
    deep: float = (128 / max(accumulators, 128)) ** power
    return FITTED_3X["rate"] * 1e6 / _SM_COUNT * share * deep * 16 / DTYPES[c.a].bits


def _loaded(extent: int, there: int, sharing: int, along: bool) -> float:
    """Rows of an operand, or columns, that a block loads of a tile: those outside of the problem are cleared.

    `along`: whether the operand is read along them.
    """
    outside = _OUTSIDE_ALONG / sharing if along else FITTED_3X["outside"]
    return (extent + outside * max(extent - there, 0)) / (1 + FITTED_3X["multicast"] * (sharing - 1))


def _waves_2x(c: GemmConfig, m: int, n: int, k: int, batch: int, gpu: Gpu) -> float:
    """Waves of as many tiles as are resident at once; what is left for the last one is shared out evenly."""
    tm, tn, tk = c.tile
    tiles, resident = ceil(m / tm) * ceil(n / tn) * batch, _resident_2x(c)
    rate = _RATE_2X[c.family, c.a] * 1e6 / _SM_COUNT
    if tm * tn < 128 * 128:
        rate *= _SMALL_TILE_2X.get(c.family, _SMALL_TILE_2X_USUAL)
    size = DTYPES[c.a].itemsize
    if size <= 2:
        rate *= _ACCESS_2X[c.align * size]
    steps, step, fill = ceil(k / tk), 2 * tm * tn * tk / rate, _FILL_2X * (tm + tn) / 256
    fill += _computed(c)
    if SCHEDULES[c.schedule].stream_k:
        return _dealt_out(tiles, steps, gpu.sm_count) * step + fill
    whole, rest = divmod(tiles, gpu.sm_count * resident)
    at_once = whole * resident + ceil(rest / gpu.sm_count)  # tiles that a multiprocessor has, one after the other
    return at_once * steps * step + (whole + (rest > 0)) * fill


def _dealt_out(tiles: int, steps: int, sm_count: int) -> float:
    """Steps of k that a multiprocessor takes where those of all tiles are dealt out evenly.

    A tile is cut into no more parts than are worth joining.
    """
    parts = max(1.0, min(sm_count / max(tiles, 1), sqrt(steps / _JOIN_2X)))
    return steps * max(tiles / sm_count, 1 / parts) + _JOIN_2X * parts


def _resident_2x(c: GemmConfig) -> int:
    """Tiles that fit on a multiprocessor at once, by shared memory and registers."""
    smem = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    registers = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize + warps * 8192
    return max(1, min(200_000 // smem, 48 // warps, 200_000 // registers))
