"""Choosing a kernel: every route to a problem, ranked; the best becomes the plan that the warm path repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf, prod
from operator import itemgetter

from .. import _core
from .._core import Problem
from ..arrays.gpu import Gpu, gpu_of
from ..declaration.config import SCHEDULES, KernelConfig
from ..epilogues.specialization import asked_by
from ..errors import NoKernelError
from ..kernels.kernel import CutlassKernel, Kernel
from ..kernels.registry import Grouped, candidates, find_kernel, numbered, written_in_python
from ..operations.gemm.cost import Estimates
from ..operations.gemm.description import describe
from ..operations.gemm.legality import STEPS, Interface, Way, function_of
from ..providers.provider import ProvidedKernel
from .rejections import nothing_fits
from .tuned import Entry, lookup, of_bf16


@dataclass(frozen=True)
class Route:
    """A kernel and its way to a problem.

    Attributes:
        splits: parts of k whose sums the elementwise kernel joins in order, as it finishes the product; 1 for none.
    """

    kernel: Kernel
    way: Way = Way()
    splits: int = 1

    @property
    def direct(self) -> bool:
        """Whether the kernel reads and writes the operands as they lie."""
        return not self.way.detours


# The fields of a route behind its microseconds, which are infinite where nobody can say: most never become a Choice.
Timed = tuple[float, Kernel, Way, int]


@dataclass(frozen=True)
class Choice:
    """One ranked possibility: a route, its time (0 where nobody can say), and the order of its tiles (kernel.h)."""

    route: Route
    microseconds: float
    swizzle: int = 1
    raster: int = 0
    measured: bool = False  # by `tune`, and no estimate; with a user's epilogue, of the product alone

    @property
    def time(self) -> str:
        """In words; empty where nobody can say."""
        how = "measured" if self.measured else "estimated"
        kernel = self.route.kernel
        alone = self.measured and isinstance(kernel, CutlassKernel) and kernel.interface.epilogue.user
        without = " without the epilogue" if alone else ""
        return f"{how} {self.microseconds:.1f} us{without}" if self.microseconds else ""


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
    provided: Callable[..., None] | None = None  # ProvidedKernel.call of one written in Python, which does all of it
    pack_scales: bool = False
    sums: bool = False

    @property
    def provided_name(self) -> str | None:
        """Of the kernel written in Python."""
        kernel = getattr(self.provided, "__self__", None)
        return kernel.name if isinstance(kernel, ProvidedKernel) else None

    @property
    def steps(self) -> list[str]:
        """What surrounds the kernel, in words."""
        return Way.of(partial(getattr, self)).steps(self.splits)


def rank(p: Problem, *, compiled: bool | None = None, gpu: Gpu | None = None) -> list[Choice]:
    """Every possible choice, best first: what was measured, then what has an estimate, then the others.

    Args:
        compiled: of compiled kernels only, by default outside `jit` and without a user's epilogue.
        gpu: for this one instead of the problem's own.
    """
    gpu = gpu or gpu_of(p)
    compiled = _compiled_only(p) if compiled is None else compiled
    return _ranked(p, gpu, compiled, candidates(p, compiled))


def straight(p: Problem, *, compiled: bool) -> list[Kernel]:
    """Of `rank`, each kernel that takes the operands as they lie, k whole unless parts are asked for.

    Without a look at most of the others, and without a Choice of each.
    """
    gpu = gpu_of(p)
    alike = {interface: kernels for interface, kernels in candidates(p, compiled).items() if interface.alike(p)}
    most = 1 if p.splits > 1 else 0  # detours: the split itself
    timed = _in_order(_timed(p, gpu, alike, cuts=p.splits > 1), p)
    kernels = [kernel for _, kernel, way, _ in timed if len(way.detours) <= most]
    first = _of_tables(p, gpu, compiled)
    if not first or len(first.route.way.detours) > most:
        return kernels
    return [first.route.kernel, *(kernel for kernel in kernels if kernel is not first.route.kernel)]


def _ranked(p: Problem, gpu: Gpu | None, compiled: bool, groups: Grouped) -> list[Choice]:
    estimated = [_choice(each, p, gpu) for each in _in_order(_timed(p, gpu, groups), p)]
    first = _of_tables(p, gpu, compiled)
    return [first, *(choice for choice in estimated if choice.route != first.route)] if first else estimated


def best(p: Problem, *, provided: bool = True) -> Choice | None:
    """The first of `rank`, without making the others.

    Args:
        provided: whether it may be a kernel written in Python.
    """
    gpu = gpu_of(p)
    compiled = _compiled_only(p)
    if choice := _of_tables(p, gpu, compiled, provided):
        return choice
    first = next(_in_order(_timed(p, gpu, candidates(p, compiled), provided, every=_needs_ready(p)), p), None)
    return _choice(first, p, gpu) if first else None


def _needs_ready(p: Problem) -> bool:
    """Whether there is no compiler for a user's epilogue, so that kernels compiled for it before have to do."""
    if p.user < 0:
        return False
    from ..compiling.compiler import can_compile  # imported here: a first call without an epilogue needs nothing of it

    return not can_compile()


def _in_order(timed: list[Timed], p: Problem) -> Iterator[Timed]:
    """By time; before all others those that are ready, where nothing else will do."""
    by_time = sorted(timed, key=itemgetter(0))
    if not _needs_ready(p):
        yield from by_time
        return
    others = []
    for each in by_time:
        if _is_ready(each[1]):
            yield each
        else:
            others.append(each)
    yield from others


def _is_ready(kernel: Kernel) -> bool:
    from ..compiling.compiler import at_hand

    return kernel.compiled or (isinstance(kernel, CutlassKernel) and at_hand(kernel.config))


def _compiled_only(p: Problem) -> bool:
    """Whether nothing may be compiled. A user's epilogue is compiled by its nature."""
    return not _core.jit_allowed() and p.user < 0


def _of_tables(p: Problem, gpu: Gpu | None, compiled: bool, provided: bool = True) -> Choice | None:
    """The first choice of a table for problems of this class that can be taken; `provided` as in `best`.

    Of f16 it is an estimate, where bf16 alone was measured. With a user's epilogue the class is that of the product
    alone; its design is taken where it carries the epilogue.
    """
    if gpu is None or p.splits:
        return None
    found = (
        choice
        for say, measured in ((lookup, True), (of_bf16, False))
        for entry in say(p, gpu)
        if (choice := _tabled(entry, p, gpu, compiled, measured))
    )
    return next((choice for choice in found if provided or isinstance(choice.route.kernel, CutlassKernel)), None)


def _tabled(entry: Entry, p: Problem, gpu: Gpu, compiled: bool, measured: bool) -> Choice | None:
    """What an entry of a table says, where that can be taken."""
    kernel = find_kernel(entry.kernel)
    if not kernel or (compiled and not kernel.compiled):
        return None
    kernel = kernel.carrying(p)
    way = kernel.way(p, gpu)
    if isinstance(way, str) or (_needs_ready(p) and not _is_ready(kernel)):
        return None
    if entry.splits > 1:
        if not isinstance(kernel, CutlassKernel) or not _splittable(kernel.interface, p):
            return None
        way = _split_way(way, kernel.interface)
    return Choice(
        Route(kernel, way, _parts(p, entry.splits)), entry.microseconds, entry.swizzle, entry.raster, measured
    )


def _splittable(interface: Interface, p: Problem) -> bool:
    """Whether the kernels may compute parts of k that another one adds up."""
    return interface.finishable and not interface.stream_k and not p.pointers


def _timed(
    p: Problem, gpu: Gpu | None, groups: Grouped, provided: bool = True, every: bool = True, cuts: bool = True
) -> list[Timed]:
    """Every route to a problem with its estimate, or those that may be the first of them; equals in one order."""
    routes = _cutlass_routes(p, gpu, groups, every, cuts) if gpu else []
    return routes + _provided_routes(p, gpu) if provided else routes


def _provided_routes(p: Problem, gpu: Gpu | None) -> list[Timed]:
    ways = ((kernel, kernel.way(p, gpu)) for kernel in written_in_python(p))
    return [(kernel.microseconds(p), kernel, way, 1) for kernel, way in ways if isinstance(way, Way)]


def _cutlass_routes(p: Problem, gpu: Gpu, groups: Grouped, every: bool, cuts: bool) -> list[Timed]:
    """Without `every`: none that is certain to be slower than one that comes before it. Without `cuts`: k is whole."""
    every = every or not all(kernel.bounded for kernels in groups.values() for kernel in kernels)
    estimates, wanted = Estimates(p, gpu), function_of(p)
    routes: list[Timed] = []
    fastest = inf
    for interface, kernels in sorted(groups.items(), key=lambda group: estimates.least(group[0])):
        if not interface.finishable and interface.function != wanted:
            continue  # legality would say so too, at more length
        if not every and estimates.least(interface) >= fastest:
            break
        way = interface.way(p, gpu)
        if isinstance(way, str):
            continue
        found: list[Timed] = []
        if p.splits <= 1 and (every or estimates.least(interface, way) < fastest):
            detours = estimates.detours(way, interface)
            found += [(kernel.microseconds(estimates) + detours, kernel, way, 1) for kernel in kernels]
        if cuts and _splittable(interface, p) and p.splits not in (1, -1):
            split = _split_way(way, interface)
            if every or estimates.least(interface, split, _parts(p, p.splits or 2)) < fastest:
                found += [timed for kernel in kernels for timed in _split(kernel, split, p, gpu, estimates)]
        found = [timed for timed in found if timed[1].repeats(p)]
        fastest = min(fastest, *(timed[0] for timed in found)) if found else fastest
        routes += found
    return routes


def _split(kernel: CutlassKernel, split: Way, p: Problem, gpu: Gpu, estimates: Estimates) -> list[Timed]:
    """The route that splits k into the parts asked for, or into as many as are best by the model."""
    wanted = {_parts(p, splits) for splits in ((p.splits,) if p.splits else _splits(kernel, p, gpu))}
    if not wanted:
        return []
    times = {s: kernel.microseconds(estimates, s) + estimates.detours(split, kernel.interface, s) for s in wanted}
    splits = min(times, key=times.__getitem__)
    return [(times[splits], kernel, split, splits)] if times[splits] < inf or p.splits else []


def _split_way(way: Way, interface: Interface) -> Way:
    reason = "splits k: the parts are summed in order"
    return replace(way, scratch=interface.d, detours=(*way.detours, reason), sums=False)


def _parts(p: Problem, splits: int) -> int:
    """How many parts k is cut into where so many are asked for."""
    return sum(parts for parts, _ in p.launches(splits))


def tiles_of(c: KernelConfig, p: Problem) -> tuple[int, int]:
    """Rows and columns of tiles: of the transposed problem, where the schedule swaps."""
    rows, cols = (p.n, p.m) if SCHEDULES[c.schedule].swap else (p.m, p.n)
    return ceil(rows / c.tile[0]), ceil(cols / c.tile[1])


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


def _choice(timed: Timed, p: Problem, gpu: Gpu | None) -> Choice:
    microseconds, kernel, way, splits = timed
    raster, swizzle = tile_order(kernel, p, gpu) if isinstance(kernel, CutlassKernel) and gpu else (0, 1)
    return Choice(Route(kernel, way, splits), microseconds if microseconds < inf else 0.0, swizzle, raster)


def tile_order(kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
    """Raster and swizzle, so that the tiles in flight share what is in the L2 cache.

    Measured on an H200 (benchmarks/results/tile_order-h200.json): over eight waves and more, along m in pairs gains at
    full clock (3% at 8192^3, 23% at 16384^3); throttled it is between 13% better and 5% worse than CUTLASS's own order.
    Swizzles that do not divide the tiles pad them, up to a third.
    """
    c = kernel.config
    if c.api == 2 or SCHEDULES[c.schedule].swap:
        return 0, 1
    waves = prod(tiles_of(c, p)) / gpu.sm_count
    return (1, 2) if waves >= 8 else (0, 1)


def plan(p: Problem, *, provided: bool = True) -> Plan:
    """The plan for a problem.

    Args:
        provided: whether the kernel may be one written in Python.

    Raises:
        ValueError: the kernel asked for does not fit.
        ProviderError: the provider of the kernel asked for failed to answer.
        NoKernelError: no kernel fits.
        CompileError: the kernel asked for, or the best one within `jit`, cannot be compiled.
    """
    from ..diagnostics.instrumentation import planned

    choice = _chosen(p, provided)
    made = plan_of(choice, p) if choice else Plan(each=p.pointers)
    planned(p, made, choice)
    return made


def _chosen(p: Problem, provided: bool) -> Choice | None:
    """The choice; None for the composed epilogue alone, and for a list that goes matrix by matrix."""
    forced = _forced(numbered(p.kernel), p, provided) if p.kernel >= 0 else None
    if without_product(p):
        return None  # even where a kernel was asked for: it would read A and B, or wait for tiles of k that never come
    if forced:
        return forced
    if _core.tuning_allowed() and p.user < 0:
        from .autotune import tune_once

        tune_once(p)
    choice = best(p, provided=provided)
    if choice or p.pointers:
        return choice
    raise NoKernelError(nothing_fits(p))


def without_product(p: Problem) -> bool:
    """Whether a problem on a GPU has no product to compute: at most the epilogue is left."""
    return p.device_id >= 0 and p.empty_product


def plan_of(choice: Choice, p: Problem) -> Plan:
    """The plan that carries out a choice; its kernel is compiled if need be.

    Raises:
        CompileError: it cannot be compiled.
    """
    route, kernel = choice.route, choice.route.kernel
    if isinstance(kernel, ProvidedKernel):
        return Plan(provided=kernel.call)
    assert isinstance(kernel, CutlassKernel)
    kernel.ready()
    way = route.way
    return Plan(
        kernel.name,
        splits=route.splits,
        raster=choice.raster,
        swizzle=choice.swizzle,
        overlap=_may_overlap(kernel, way, p),
        **{name: getattr(way, name) for name in STEPS},
    )


def _may_overlap(kernel: CutlassKernel, way: Way, p: Problem) -> bool:
    """Whether a launch may start before its predecessor in the stream has ended.

    3.x kernels wait before they load operands, and scales; everything else follows from that. Not so other factors in
    device memory, which are read as the kernel starts, and the counters of reductions, which are cleared before it.
    And a C that is read element by element goes through the L1 cache, which may hold lines that the predecessor is
    still writing.
    """
    if not kernel.family.overlaps:
        return False
    if way.scratch:
        return True
    if (asked := asked_by(p)) and ("s" in asked.kinds or asked.reduces):
        return False
    if p.device_alpha or p.device_beta or p.scale_out == "s":
        return False
    return SCHEDULES[kernel.config.schedule].tma_store or not p.c


def _forced(kernel: Kernel, p: Problem, provided: bool) -> Choice:
    gpu = gpu_of(p)
    kernel = kernel.carrying(p)
    if not isinstance(kernel, ProvidedKernel):
        way = kernel.way(p, gpu)
    elif provided:
        way = kernel.answer(p, gpu)  # or fails: who names a kernel hears of it
    else:
        way = "is written in Python, which there is none of inside of a compiled computation"
    if isinstance(way, str) or way.detours:
        reason = way if isinstance(way, str) else way.detours[0]
        raise ValueError(f"gemm: kernel {kernel.name} does not fit {describe(p)}: {reason}")
    if not isinstance(kernel, CutlassKernel) or gpu is None:
        return Choice(Route(kernel, way), 0.0)
    estimates = Estimates(p, gpu)
    if p.splits > 1:
        return _choice(_split(kernel, _split_way(way, kernel.interface), p, gpu, estimates)[0], p, gpu)
    return _choice((kernel.microseconds(estimates), kernel, way, 1), p, gpu)
