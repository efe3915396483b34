"""Choosing a kernel: every route to a problem, ranked; the best becomes the plan that the warm path repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from ._core import Problem
from .arguments import describe
from .cost import estimate
from .errors import NoKernelError
from .families import SCHEDULES
from .gpu import Gpu, gpu_of
from .kernels import CutlassKernel, Kernel, Route, Status, all_kernels, candidates


@dataclass(frozen=True)
class Choice:
    """One ranked possibility: a route, the time the model gives it, and the order of its tiles (kernel.h)."""

    route: Route
    microseconds: float
    swizzle: int = 1
    raster: int = 0

    @property
    def direct(self) -> bool:
        """Whether the kernel reads and writes the operands as they lie."""
        return not self.route.detours


@dataclass(frozen=True)
class Plan:
    """What the warm path needs to repeat a choice: `struct Plan` in plan.h."""

    kernel: str | None = None
    pack_a: str | None = None
    pack_b: str | None = None
    scratch: str | None = None
    raster: int = 0
    swizzle: int = 1
    overlap: bool = False
    host: Callable[..., Any] | None = None


def rank(p: Problem, *, compiled: bool | None = None) -> list[Choice]:
    """Every possible choice for a problem, best first. `compiled`: of compiled kernels only, by default not p.jit."""
    gpu = gpu_of(p)
    compiled = not p.jit if compiled is None else compiled
    choices = []
    for kernel in candidates(p):
        if compiled and not kernel.compiled:
            continue
        route = kernel.route(p, gpu)
        if isinstance(route, Route):
            choices.append(_choice(route, p))
    return sorted(choices, key=lambda choice: choice.microseconds)


def _choice(route: Route, p: Problem) -> Choice:
    gpu = gpu_of(p)
    if not isinstance(route.kernel, CutlassKernel) or gpu is None:
        return Choice(route, 0.0)
    raster, swizzle = _tile_order(route.kernel, p, gpu)
    return Choice(route, estimate(route, p, gpu), swizzle, raster)


def _tile_order(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
    """Raster and swizzle, so that the tiles in flight share what is in the L2 cache.

    Measured on an H200 (benchmarks/results/tile_order-h200.json): over eight waves and more, along m in pairs gains at
    full clock (3% at 8192^3, 23% at 16384^3); throttled it is between 13% better and 5% worse than CUTLASS's own order.
    Swizzles that do not divide the tiles pad them, up to a third.
    """
    c = kernel.config
    if not c.schedule or SCHEDULES[c.schedule].swap:
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
    if p.empty_product and p.device_id >= 0:
        # The composed epilogue alone, even where a kernel was asked for: it would read A and B, or wait for tiles of k
        # that never come.
        return Plan()
    if p.kernel >= 0:
        return _plan_of(_forced(all_kernels()[p.kernel], p), p)
    ranking = rank(p)
    if not ranking:
        raise NoKernelError(_nothing_fits(p))
    return _plan_of(ranking[0], p)


def _plan_of(choice: Choice, p: Problem) -> Plan:
    route, kernel = choice.route, choice.route.kernel
    if not isinstance(kernel, CutlassKernel):
        return Plan(host=kernel.host)
    kernel.compile()
    return Plan(
        kernel.name,
        route.pack_a,
        route.pack_b,
        route.scratch,
        choice.raster,
        choice.swizzle,
        overlap=_may_overlap(kernel, route, p),
    )


def _may_overlap(kernel: CutlassKernel, route: Route, p: Problem) -> bool:
    """Whether a launch may start before its predecessor in the stream has ended.

    3.x kernels wait before their first TMA load, and everything else follows from the loads. A C that is read element
    by element goes through the L1 cache, which may hold lines that the predecessor is still writing.
    """
    if kernel.family.api != 3:
        return False
    return SCHEDULES[kernel.config.schedule].tma_store or not p.c or bool(route.scratch)


def _forced(kernel: Kernel, p: Problem) -> Choice:
    route = kernel.route(p, gpu_of(p))
    if isinstance(route, Status) or route.detours:
        reason = route.error if isinstance(route, Status) else route.detours[0]
        raise ValueError(f"gemm: kernel {kernel.name} does not fit {describe(p)}: {reason}")
    return _choice(route, p)


def misses(p: Problem) -> list[tuple[Kernel, str]]:
    """Compiled kernels that multiply the operands' dtype on their kind of device and still cannot take the problem."""
    gpu = gpu_of(p)
    routes = ((kernel, kernel.route(p, gpu)) for kernel in candidates(p) if kernel.compiled)
    return [(kernel, route.error or "") for kernel, route in routes if isinstance(route, Status)]


def not_compiled(p: Problem) -> list[Kernel]:
    """Kernels that could take the problem but are not in the built set."""
    gpu = gpu_of(p)
    return [k for k in candidates(p) if not k.compiled and isinstance(k.route(p, gpu), Route)]


def _nothing_fits(p: Problem) -> str:
    """The problem, how many were considered, and three with their reasons: those of its dtype before others."""
    gpu = gpu_of(p)
    unbuilt = "is declared but not in the built set; `with cutlass_py.jit():` compiles it"
    near = [(kernel, unbuilt) for kernel in not_compiled(p)[:1]]
    near += misses(p)
    others = (kernel for kernel in all_kernels() if kernel.compiled)
    far = [(kernel, route.error or "") for kernel in others if isinstance(route := kernel.route(p, gpu), Status)]
    seen = dict(near[:3] or far[:3])
    lines = "".join(f"\n  {kernel.name}: {reason}" for kernel, reason in seen.items())
    return f"gemm: none of {len(all_kernels())} kernels fits {describe(p)}. Nearest:{lines}"
