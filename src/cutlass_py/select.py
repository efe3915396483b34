"""Choosing a kernel: every route to a problem, ranked; the best becomes the plan that the warm path repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from . import _core
from ._core import Problem
from .arguments import describe
from .cost import Estimates
from .errors import NoKernelError
from .families import SCHEDULES, find
from .gpu import Gpu, gpu_of
from .kernels import (
    CutlassKernel,
    Kernel,
    Route,
    all_kernels,
    by_operands,
    candidates,
    host_kernels,
    kernel_named,
    numbered,
)
from .legality import Interface, Way, function_of
from .tuned import lookup
from .user_epilogue import asked_by


@dataclass(frozen=True)
class Choice:
    """One ranked possibility: a route, its time, and the order of its tiles (kernel.h)."""

    route: Route
    microseconds: float
    swizzle: int = 1
    raster: int = 0
    measured: bool = False  # by `tune`, and not the model's time


@dataclass(frozen=True)
class Plan:
    """What the warm path needs to repeat a choice: `struct Plan` in plan.h."""

    kernel: str | None = None
    pack_a: str | None = None
    pack_b: str | None = None
    scratch: str | None = None
    splits: int = 1
    raster: int = 0
    swizzle: int = 1
    overlap: bool = False
    each: bool = False  # a list of matrices, one after the other
    host: Callable[..., Any] | None = None


def rank(p: Problem, *, compiled: bool | None = None) -> list[Choice]:
    """Every possible choice, best first: what was measured before what the model says.

    Args:
        compiled: of compiled kernels only, by default outside `jit` and without a user's epilogue.
    """
    gpu = gpu_of(p)
    if gpu is None:
        ways = ((kernel, kernel.way(p, gpu)) for kernel in host_kernels(p) if _reproducible(kernel, p))
        return [Choice(Route(kernel, way), 0.0) for kernel, way in ways if isinstance(way, Way)]
    compiled = _compiled_only(p) if compiled is None else compiled
    estimated = [_choice(each, p, gpu) for each in sorted(_timed(p, gpu, compiled), key=_time)]
    first = _measured(p, gpu, compiled)
    return [first, *(choice for choice in estimated if choice.route != first.route)] if first else estimated


def best(p: Problem) -> Choice | None:
    """The first of `rank`, without making the others."""
    gpu = gpu_of(p)
    if gpu is None:
        return next(iter(rank(p)), None)
    compiled = _compiled_only(p)
    if choice := _measured(p, gpu, compiled):
        return choice
    timed = min(_timed(p, gpu, compiled), key=_time, default=None)
    return timed and _choice(timed, p, gpu)


def _compiled_only(p: Problem) -> bool:
    """Whether nothing may be compiled. A user's epilogue is compiled by its nature."""
    return not _core.jit_allowed() and p.user < 0


def _measured(p: Problem, gpu: Gpu, compiled: bool) -> Choice | None:
    """The choice that `tune` found for problems of this class, where it can still be taken."""
    if p.splits or p.user >= 0 or not (entry := lookup(p, gpu)) or not (config := find(entry.kernel)):
        return None
    kernel = kernel_named(config.name)
    if not isinstance(kernel, CutlassKernel) or (compiled and not kernel.compiled) or not _reproducible(kernel, p):
        return None
    way = kernel.way(p, gpu)
    if isinstance(way, str) or (entry.splits > 1 and not _splittable(kernel.interface, p)):
        return None
    if entry.splits > 1:
        way = _split_way(way, kernel)
    return Choice(Route(kernel, way, entry.splits), entry.microseconds, entry.swizzle, entry.raster, measured=True)


# Microseconds, and the route: kernel, way, parts of k.
Timed = tuple[float, CutlassKernel, Way, int]


def _time(timed: Timed) -> float:
    return timed[0]


def _reproducible(kernel: Kernel, p: Problem) -> bool:
    return kernel.deterministic or not p.deterministic


def _splittable(interface: Interface, p: Problem) -> bool:
    """Whether the kernels may compute parts of k that another one adds up."""
    return interface.finishable and not interface.stream_k and not p.pointers


def _timed(p: Problem, gpu: Gpu, compiled: bool) -> list[Timed]:
    """Every route to a problem with the model's time, in no order."""
    estimates = Estimates(p, gpu)
    wanted = function_of(p)
    routes: list[Timed] = []
    for interface, kernels in candidates(p, compiled).items():
        if not interface.finishable and interface.function != wanted:
            continue  # legality would say so too, at more length
        way = interface.way(p, gpu)
        if isinstance(way, str):
            continue
        detours = estimates.detours(way, interface)
        splitting = _splittable(interface, p) and p.splits not in (1, -1)
        for kernel in kernels:
            if not _reproducible(kernel, p):
                continue
            if p.splits <= 1:
                routes.append((estimates.product(kernel) + detours, kernel, way, 1))
            if splitting:
                routes += _split(kernel, way, p, gpu, estimates)
    return routes


def _split(kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu, estimates: Estimates) -> list[Timed]:
    """The route that splits k into the parts asked for, or into as many as are best by the model."""
    wanted = (p.splits,) if p.splits else _splits(kernel, p, gpu)
    if not wanted:
        return []
    interface, split = kernel.interface, _split_way(way, kernel)
    return [
        min(
            ((estimates.product(kernel, s) + estimates.detours(split, interface, s), kernel, split, s) for s in wanted),
            key=_time,
        )
    ]


def _split_way(way: Way, kernel: CutlassKernel) -> Way:
    reason = "splits k: the parts are summed in order"
    return Way(way.pack_a, way.pack_b, kernel.interface.d, (*way.detours, reason))


def _splits(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, ...]:
    """Parts worth asking the model about: few tiles, and each part long enough to pay for its epilogue."""
    tile = kernel.config.tile
    if p.k < 8 * tile[2]:
        return ()
    rows, cols = (p.n, p.m) if SCHEDULES[kernel.config.schedule].swap else (p.m, p.n)
    tiles = max(ceil(rows / tile[0]) * ceil(cols / tile[1]) * p.batch, 1)
    most = min(2 * gpu.sm_count // tiles, p.k // (4 * tile[2]))
    return tuple(s for s in (2, 3, 4, 6, 8, 12, 16, 24, 32) if s <= most)


def _choice(timed: Timed, p: Problem, gpu: Gpu) -> Choice:
    microseconds, kernel, way, splits = timed
    raster, swizzle = _tile_order(kernel, p, gpu)
    return Choice(Route(kernel, way, splits), microseconds, swizzle, raster)


def _tile_order(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
    """Raster and swizzle, so that the tiles in flight share what is in the L2 cache.

    Measured on an H200 (benchmarks/results/tile_order-h200.json): over eight waves and more, along m in pairs gains at
    full clock (3% at 8192^3, 23% at 16384^3); throttled it is between 13% better and 5% worse than CUTLASS's own order.
    Swizzles that do not divide the tiles pad them, up to a third.
    """
    c = kernel.config
    if c.api == 2 or SCHEDULES[c.schedule].swap:
        return 0, 1
    waves = ceil(p.m / c.tile[0]) * ceil(p.n / c.tile[1]) / gpu.sm_count
    return (1, 2) if waves >= 8 else (0, 1)


def plan(p: Problem) -> Plan:
    """The plan for a problem.

    Raises:
        ValueError: the kernel asked for does not fit.
        NoKernelError: no kernel fits.
        CompileError: the kernel asked for, or the best one within `jit`, cannot be compiled.
    """
    if p.user >= 0 and p.device_id >= 0 and p.k == 0:
        raise ValueError("gemm: k is 0; on a GPU, epilogue= takes a product of at least one term")
    if p.device_id >= 0 and (p.empty_product or not p.m or not p.n or not p.batch):
        # The composed epilogue alone, even where a kernel was asked for: it would read A and B, or wait for tiles of k
        # that never come.
        return Plan()
    if p.kernel >= 0:
        return plan_of(_forced(numbered(p.kernel), p), p)
    if _core.tuning_allowed() and p.user < 0:
        from .tuning import tune_once

        tune_once(p)
    if choice := best(p):
        return plan_of(choice, p)
    if p.pointers:
        return Plan(each=True)
    raise NoKernelError(_nothing_fits(p))


def plan_of(choice: Choice, p: Problem) -> Plan:
    """The plan that carries out a choice; its kernel is compiled if need be.

    Raises:
        CompileError: it cannot be compiled.
    """
    route, kernel = choice.route, choice.route.kernel
    if not isinstance(kernel, CutlassKernel):
        return Plan(host=kernel.host)
    kernel.ready()
    way = route.way
    return Plan(
        kernel.name,
        way.pack_a,
        way.pack_b,
        way.scratch,
        route.splits,
        choice.raster,
        choice.swizzle,
        overlap=_may_overlap(kernel, way, p),
    )


def _may_overlap(kernel: CutlassKernel, way: Way, p: Problem) -> bool:
    """Whether a launch may start before its predecessor in the stream has ended.

    3.x kernels wait before their first TMA load, and everything else follows from the loads. Not so factors in device
    memory, which are read as the kernel starts, and the counters of reductions, which are cleared before it. And a C
    that is read element by element goes through the L1 cache, which may hold lines that the predecessor is still
    writing.
    """
    if not kernel.family.overlaps:
        return False
    if way.scratch:
        return True
    if (asked := asked_by(p)) and ("s" in asked.kinds or asked.reduces):
        return False
    if p.device_alpha or p.device_beta or p.scale_a or p.scale_b or p.scale_out == "s":
        return False
    return SCHEDULES[kernel.config.schedule].tma_store or not p.c


def _forced(kernel: Kernel, p: Problem) -> Choice:
    gpu = gpu_of(p)
    if isinstance(kernel, CutlassKernel) and isinstance(carrying := kernel.carrying(p), CutlassKernel):
        kernel = carrying
    way = kernel.way(p, gpu)
    if isinstance(way, str) or way.detours:
        reason = way if isinstance(way, str) else way.detours[0]
        raise ValueError(f"gemm: kernel {kernel.name} does not fit {describe(p)}: {reason}")
    if not isinstance(kernel, CutlassKernel) or gpu is None:
        return Choice(Route(kernel, way), 0.0)
    estimates, interface = Estimates(p, gpu), kernel.interface
    if p.splits <= 1:
        return _choice((estimates.product(kernel), kernel, way, 1), p, gpu)
    if not interface.finishable:
        raise ValueError(f"gemm: kernel {kernel.name} cannot split k: nothing else can finish its product")
    return _choice(_split(kernel, way, p, gpu, estimates)[0], p, gpu)


def misses(p: Problem) -> list[tuple[Kernel, str]]:
    """Compiled kernels that multiply the operands' dtype on their kind of device and still cannot take the problem."""
    gpu = gpu_of(p)
    if p.user >= 0:
        return _unable(p, gpu)
    answers: list[tuple[Kernel, str]] = []
    for interface, kernels in candidates(p, compiled=True).items():
        if isinstance(reason := interface.way(p, gpu), str):
            answers += [(kernel, reason) for kernel in kernels]
    return answers


def _unable(p: Problem, gpu: Gpu | None) -> list[tuple[Kernel, str]]:
    """Declared kernels that cannot run a user's epilogue, one for each interface."""
    declared = by_operands(False).get((p.operand_a or "", p.operand_b or ""), {}) if gpu else {}
    plain = (kernels[0] for interface, kernels in declared.items() if interface.epilogue.plain)
    return [(kernel, way) for kernel in plain if isinstance(way := kernel.way(p, gpu), str)]


def not_compiled(p: Problem) -> list[Kernel]:
    """Kernels that could take the problem but are not in the built set."""
    gpu = gpu_of(p)
    return [
        kernel
        for interface, kernels in candidates(p, compiled=False).items()
        if isinstance(interface.way(p, gpu), Way)
        for kernel in kernels
        if not kernel.compiled
    ]


def _nothing_fits(p: Problem) -> str:
    """The problem, how many were considered, and three with their reasons: those of its dtype before others."""
    gpu = gpu_of(p)
    unbuilt = "is declared but not in the built set; `with cutlass_py.jit():` compiles it"
    near = [(kernel, unbuilt) for kernel in not_compiled(p)[:1]]
    near += misses(p)
    far = [(kernel, way) for kernel in all_kernels(compiled=True) if isinstance(way := kernel.way(p, gpu), str)]
    seen = dict(near[:3] or far[:3])
    lines = "".join(f"\n  {kernel.name}: {reason}" for kernel, reason in seen.items())
    return f"gemm: none of {len(all_kernels(compiled=True))} compiled kernels fits {describe(p)}. Nearest:{lines}"
