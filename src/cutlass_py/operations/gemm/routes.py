"""The routes of CUTLASS kernels to a product, with estimates: as it lies, packed, finished elsewhere, k in parts."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..._core import Problem
from ...arrays.gpu import Gpu, gpu_of
from ...declaration.config import SCHEDULES
from ...epilogues.specialization import specialization_of
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel
from ...kernels.operation import Groups, Timed
from .cost import Estimates
from .legality import Interface, function_of
from .tile_order import tiles_of

# Of 194 problems that were measured, stream-K of 2.x took so many times as long as the best, at least, where kernels of
# our own slice k (docs/performance/choice.md): as near as an estimate may bring it.
_BEHIND_SLICES = 1.4


def routes(p: Problem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
    """Every route of CUTLASS kernels to a product.

    Without `every`: none that is certain to be slower than one that comes before it. Without `cuts`: k is whole.
    """
    from ...kernels.registry import registered  # which imports the operations itself

    every = every or not all(getattr(kernel, "bounded", True) for kernel in registered().values())
    estimates, wanted = Estimates(p, gpu), function_of(p)
    sliced = any(i.lean and i.cc[0] <= gpu.cc <= i.cc[1] for i in groups)
    found_all: list[Timed] = []
    fastest = inf
    for interface, kernels in sorted(groups.items(), key=lambda group: estimates.least(group[0])):
        if not interface.finishable and not interface.epilogue.applies(*wanted):
            continue  # legality would say so too, at more length
        if not every and estimates.least(interface) >= fastest:
            break
        way = interface.way(p, gpu)
        if isinstance(way, str):
            continue
        found: list[Timed] = []
        kernels = [kernel for kernel in kernels if not kernel.bits_refusal(p, gpu)] if p.deterministic else kernels
        if every or estimates.least(interface, way) < fastest:
            detours = estimates.detours(way, interface)
            alone = tuple(kernel for kernel in kernels if p.splits <= 0 or kernel.config.slices == p.splits)
            behind = _BEHIND_SLICES if interface.stream_k and interface.api == 2 and sliced else 1.0
            found += [(behind * us + detours, kernel, way, 1) for kernel, us in estimates.products(alone, every)]
        if cuts and _splittable(interface, p) and p.splits not in (1, -1):
            split = _split_way(way, interface)
            if every or estimates.least(interface, split, _parts(p, p.splits or 2)) < fastest:
                below = inf if every else min([fastest, *(timed[0] for timed in found)])
                whole = tuple(kernel for kernel in kernels if kernel.config.slices == 1)
                found += _in_parts(whole, split, p, gpu, estimates, below)
        fastest = min(fastest, *(timed[0] for timed in found)) if found else fastest
        found_all += found
    return found_all


def _in_parts(
    kernels: tuple[CutlassKernel, ...], split: Way, p: Problem, gpu: Gpu, estimates: Estimates, below: float = inf
) -> list[Timed]:
    """The routes of kernels that split k into the parts asked for, or into as many as are best.

    None in so many that they cannot be below a time.
    """
    wanted = [{_parts(p, x) for x in ((p.splits,) if p.splits else _splits(kernel, p, gpu))} for kernel in kernels]
    times: dict[int, list[float]] = {}
    for parts in sorted(set().union(*wanted)):
        interface = _gemm(kernels[0])
        if below == inf or estimates.least(interface, split, parts) < below:
            around = estimates.detours(split, interface, parts)
            times[parts] = [product + around for product in estimates.in_parts(kernels, parts)]
    found: list[Timed] = []
    for i, (kernel, asked) in enumerate(zip(kernels, wanted, strict=True)):
        if mine := {parts: times[parts][i] for parts in sorted(asked) if parts in times}:
            parts = min(mine, key=mine.__getitem__)
            if mine[parts] < inf or p.splits:
                found.append((mine[parts], kernel, split, parts))
    return found


def _split_way(way: Way, interface: Interface) -> Way:
    reason = "splits k: the parts are summed in order"
    return replace(way, scratch=interface.d, detours=(*way.detours, reason), sums=False)


def _parts(p: Problem, splits: int) -> int:
    """How many parts k is cut into where so many are asked for."""
    return sum(parts for parts, _ in p.launches(splits))


def _splits(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, ...]:
    """Parts worth asking the model about: few tiles, and each part long enough to pay for its epilogue.

    None of a batch, each part of which is a launch of its own.
    """
    tile = kernel.config.tile
    if p.k < 8 * tile[2] or p.batch > 1:
        return ()
    rows, cols = tiles_of(kernel.config, p)
    tiles = max(rows * cols, 1)
    most = min(2 * gpu.sm_count // tiles, p.k // (4 * tile[2]))
    return tuple(s for s in (2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32) if s <= most)


def forced(kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu) -> Timed:
    """The route of a kernel that was asked for by name."""
    estimates = Estimates(p, gpu)
    if p.splits > 1 and kernel.config.slices == 1:
        return _in_parts((kernel,), _split_way(way, _gemm(kernel)), p, gpu, estimates)[0]
    return kernel.microseconds(estimates), kernel, way, 1


def in_parts(kernel: CutlassKernel, way: Way, p: Problem, splits: int) -> tuple[Way, int] | None:
    """The way that cuts k into so many parts, and how many come of it; None where the kernel cannot."""
    slices, interface, parts = kernel.config.slices, _gemm(kernel), _parts(p, splits)
    if splits == 1:
        return (way, 1) if p.splits <= 0 or p.splits == slices else None
    if slices > 1 or not _splittable(interface, p) or (p.splits and parts != _parts(p, p.splits)):
        return None
    return _split_way(way, interface), parts


def parts_refusal(kernel: CutlassKernel, p: Problem) -> str | None:
    """Why a kernel cannot cut k as it is asked for, alone or by the sums of its parts; None where it can."""
    slices: int = kernel.config.slices
    if p.splits <= 0 or p.splits == slices or (slices == 1 and _splittable(_gemm(kernel), p)):
        return None
    how = f"cuts k into {slices}" if slices > 1 else "cannot split k: nothing else can finish its product"
    asked = "batch_invariant=True takes" if p.batch_invariant else "splits are"
    return f"{how}; {asked} {p.splits}"


def _gemm(kernel: CutlassKernel) -> Interface:
    interface = kernel.interface
    assert isinstance(interface, Interface)
    return interface


def _splittable(interface: Interface, p: Problem) -> bool:
    """Whether the kernels may compute parts of k that another one adds up."""
    return interface.finishable and not interface.stream_k and not p.pointers


def may_overlap(kernel: CutlassKernel, way: Way, p: Problem) -> bool:
    """Whether a launch may start before its predecessor in the stream has ended.

    3.x kernels wait before they load operands, and scales; everything else follows from that. Not so other factors in
    device memory, which are read as the kernel starts, and the counters of reductions, which are cleared before it.
    And a C that is read element by element goes through the L1 cache, which may hold lines that the predecessor is
    still writing. Of our own kernels every thread waits before it reads anything.
    """
    schedule = SCHEDULES[kernel.config.schedule]
    if not kernel.family.overlaps or not (gpu := gpu_of(p)) or gpu.cc < kernel.family.overlaps:
        return False
    if way.scratch or schedule.lean or schedule.gemv:
        return True
    if (asked := specialization_of(p)) and ("s" in asked.kinds or asked.reduces):
        return False
    if p.device_alpha or p.device_beta or p.scale_out == "s":
        return False
    return schedule.tma_store or not p.c
