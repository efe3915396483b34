"""The routes of CUTLASS kernels to a product, with estimates: as it lies, packed, finished elsewhere, k in parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from ..._core import GemvDesign, OtherKernel, Problem, RouteGroup, RouteResidual, Routes, TiledDesign
from ...arrays.gpu import Gpu, gpu_of
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from ...epilogues.specialization import specialization_of
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel
from ...kernels.operation import Groups, Timed
from . import wgmma_estimate
from .calibration import ROUTES, Calibration, calibration_of
from .cost import Estimates, beside, by_formula, design_of, designs_of, detours_of, fastest, least_way
from .legality import Interface, divisors_of, function_of, signature_of

# How many times as long as estimated stream-K of 2.x is taken to be where our own kernels slice k: set by hand, for its
# formula is too hopeful about one block on a multiprocessor (docs/performance/choice.md).
_BEHIND_SLICES = 1.4
_MOST_KEPT = 64  # signatures, and of each so many kinds of extents: some KB each


class _Part(NamedTuple):
    """Kernels that reach a problem in one way; `kernels` as the group has them."""

    group: RouteGroup
    kernels: tuple[CutlassKernel, ...]
    way: Way


def _part(interface: Interface, kernels: list[CutlassKernel], p: Problem, gpu: Gpu, sliced: bool) -> _Part | None:
    """Those of an interface; None where there is no way. Of a problem it looks at what legality does, and no more."""
    if not interface.finishable and not interface.epilogue.applies(*function_of(p)):
        return None  # legality would say so too, at more length
    way = interface.way(p, gpu)
    if isinstance(way, str):
        return None
    kernels = [kernel for kernel in kernels if not kernel.bits_refusal(p, gpu)] if p.deterministic else kernels
    own, others = by_formula(tuple(kernels))
    group = RouteGroup(
        least=detours_of(least_way(interface, p), interface, p),
        whole=detours_of(way, interface, p),
        parts=detours_of(_split_way(way, interface), interface, p) if _splittable(interface, p) else None,
        few_rows=not interface.api,  # of those that this estimates, the ones of no CUTLASS API
        behind=_BEHIND_SLICES if interface.stream_k and interface.api == 2 and sliced else 1.0,
        model=wgmma_estimate.estimates(wgmma_estimate.sums_of(own[0].config), gpu) if own else None,
        designs=partial(designs_of, own, p.activation) if own else None,
        others=[_other(kernel, p, gpu) for kernel in others],
    )
    return _Part(group, own + others, way)


def _other(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> OtherKernel:
    """A kernel as routes.h takes it; to be asked for its time where it may have one of its own."""
    c = kernel.config
    formula: TiledDesign | GemvDesign | float | None = None
    if c.superseded and not kernel.compiled:
        formula = inf
    elif not c.own_source and not epilogue_named(c.epilogue).user:
        formula = design_of(c, p, gpu)
    return other_kernel(c, formula, p.activation)


def other_kernel(
    c: GemmConfig, formula: TiledDesign | GemvDesign | float | None, activation: str = "identity"
) -> OtherKernel:
    """A configuration with what its time goes by, as routes.h takes it."""
    own = SCHEDULES[c.schedule].lean and not c.own_source
    size = DTYPES[c.a].itemsize
    return OtherKernel(
        tile=c.tile,
        swap=SCHEDULES[c.schedule].swap,
        slices=c.slices,
        access=c.align * size,
        size=size,
        d_size=DTYPES[c.d].itemsize,
        formula=formula,
        own=wgmma_estimate.design_of(c, activation) if own else None,
    )


@lru_cache(64)
def residual_of(known: Calibration) -> RouteResidual:
    """What is known of the routes' formulas."""
    return RouteResidual(known.trees(ROUTES))


class _Listed:
    """All routes to a problem."""

    def __init__(self, parts: Iterable[_Part | None], p: Problem, gpu: Gpu) -> None:
        self.parts = [part for part in parts if part]
        known = calibration_of(gpu)
        launch, memory = fastest(known)
        self.routes = Routes(
            groups=[part.group for part in self.parts],
            launch=launch,
            memory=memory,
            sizes=[DTYPES[x or "f32"].itemsize for x in (p.operand_a, p.operand_b)],
            longer=known.tiled["gemv"],
            gemv_memory=known.tiled["memory"],
            beside=beside(known),
            residual=residual_of(known),
            sm_count=gpu.sm_count,
        )


class _Alike:
    """What is listed for problems that differ in extents alone, by what legality sees of these."""

    def __init__(self) -> None:
        self.parts: dict[tuple[Interface, tuple[object, ...]], _Part | None] = {}
        self.listed: dict[tuple[int, ...], _Listed] = {}

    def routes(self, p: Problem, gpu: Gpu, groups: Groups) -> _Listed:
        """Those to one of them."""
        found = divisors_of(p)
        if (listed := self.listed.get(found)) is None:
            if len(self.listed) >= _MOST_KEPT:
                self.listed, self.parts = {}, {}
            parts, sliced = [], _slice(groups, gpu)
            for interface, kernels in groups.items():
                key = interface, interface.seen(found)
                if key not in self.parts:
                    self.parts[key] = _part(interface, kernels, p, gpu, sliced)
                parts.append(self.parts[key])
            listed = self.listed[found] = _Listed(parts, p, gpu)
        return listed


def _alike(p: Problem, gpu: Gpu, groups: Groups) -> _Alike:
    """Those that a problem is one of, as this GPU is calibrated now."""
    key = signature_of(p), gpu, calibration_of(gpu)
    if (found := groups.kept.get(key)) is None:
        if len(groups.kept) >= _MOST_KEPT:
            groups.kept = {}
        found = groups.kept[key] = _Alike()
    return found


def _slice(groups: Groups, gpu: Gpu) -> bool:
    """Whether kernels of our own, which slice k, run on a GPU."""
    return any(i.lean and i.cc[0] <= gpu.cc <= i.cc[1] for i in groups)


def routes(p: Problem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
    """Every route of CUTLASS kernels to a product.

    Without `every`: one that none is faster than. Without `cuts`: k is whole.
    """
    from ...kernels.registry import registered  # which imports the operations itself

    every = every or not all(getattr(kernel, "bounded", True) for kernel in registered().values())
    if every:
        sliced = _slice(groups, gpu)
        listed = _Listed((_part(*each, p, gpu, sliced) for each in groups.items()), p, gpu)
    else:
        listed = _alike(p, gpu, groups).routes(p, gpu, groups)
    estimates = Estimates(p, gpu)

    def ask(place: int, kernel: int, parts: int) -> float:
        return listed.parts[place].kernels[kernel].microseconds(estimates, parts)

    found: list[Timed] = []
    for us, place, number, parts, summed in listed.routes.find(p, every, cuts, ask):
        part = listed.parts[place]
        kernel = part.kernels[number]
        way = part.way if every else _way(kernel, p, gpu)
        found.append((us, kernel, _split_way(way, _gemm(kernel)) if summed else way, parts))
    return found


def _way(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> Way:
    """As it was listed, with this problem's extents in its words."""
    way = _gemm(kernel).way(p, gpu)
    assert isinstance(way, Way), way
    return way


def _split_way(way: Way, interface: Interface) -> Way:
    reason = "splits k: the parts are summed in order"
    return replace(way, scratch=interface.d, detours=(*way.detours, reason), sums=False)


def _parts(p: Problem, splits: int) -> int:
    """How many parts k is cut into where so many are asked for."""
    return sum(parts for parts, _ in p.launches(splits))


def forced(kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu) -> Timed:
    """The route of a kernel that was asked for by name."""
    parts, summed = 1, p.splits > 1 and kernel.config.slices == 1
    estimates, interface = Estimates(p, gpu), _gemm(kernel)
    if summed:
        way, parts = _split_way(way, interface), _parts(p, p.splits)
    around = estimates.detours(way, interface, parts) if summed else 0.0
    return kernel.microseconds(estimates, parts) + around, kernel, way, parts


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
