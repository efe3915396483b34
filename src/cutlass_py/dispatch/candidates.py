"""Choosing a kernel: every route to a problem, ranked by what was measured, then by what is estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from typing import Any

from .. import _core
from ..arrays.gpu import Gpu, gpu_of
from ..kernels.adaptation import STEPS, Way
from ..kernels.kernel import CutlassKernel, Kernel
from ..kernels.operation import Groups, Problem, Timed, operation_of
from ..kernels.registry import concerned, find_kernel, is_at_hand, python_kernels
from .tuned import Entry, lookups


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

    def record(self) -> dict[str, Any]:
        """By names, as results have it: its kernel, parts of k, and steps."""
        return {"kernel": self.kernel.name, "splits": self.splits, **{name: getattr(self.way, name) for name in STEPS}}


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
        """Its time in words, measured or estimated; empty where nobody can say."""
        how = "measured" if self.measured else "estimated"
        kernel = self.route.kernel
        alone = self.measured and isinstance(kernel, CutlassKernel) and kernel.interface.epilogue.user
        without = " without the epilogue" if alone else ""
        return f"{how} {self.microseconds:.1f} us{without}" if self.microseconds else ""


def rank(p: Problem, *, compiled: bool | None = None, gpu: Gpu | None = None) -> list[Choice]:
    """Every possible choice, best first: what was measured, then what has an estimate, then the others.

    Args:
        compiled: of compiled kernels only, by default outside `jit` and without a user's epilogue.
        gpu: for this one instead of the problem's own.
    """
    gpu = gpu or gpu_of(p)
    compiled = _compiled_only(p) if compiled is None else compiled
    estimated = [choice_of(each, p, gpu) for each in _in_order(_timed(p, gpu, concerned(p, compiled)), p)]
    first = _of_tables(p, gpu, compiled)
    return [first, *(choice for choice in estimated if choice.route != first.route)] if first else estimated


def in_place_kernels(p: Problem, *, compiled: bool) -> list[Kernel]:
    """Each kernel of `rank` that takes the operands as they lie, k whole unless parts are asked for.

    Without a look at most of the others, and without a Choice of each.
    """
    gpu = gpu_of(p)
    alike = Groups(each for each in concerned(p, compiled).items() if each[0].alike(p))
    most = 1 if p.splits > 1 else 0  # detours: the split itself
    timed = _in_order(_timed(p, gpu, alike, cuts=p.splits > 1), p)
    kernels = [kernel for _, kernel, way, _ in timed if len(way.detours) <= most]
    first = _of_tables(p, gpu, compiled)
    if not first or len(first.route.way.detours) > most:
        return kernels
    return [first.route.kernel, *(kernel for kernel in kernels if kernel is not first.route.kernel)]


def best(p: Problem, *, provided: bool = True) -> Choice | None:
    """The first of `rank`, without making the others.

    Args:
        provided: whether it may be a kernel written in Python.
    """
    gpu = gpu_of(p)
    compiled = _compiled_only(p)
    if choice := _of_tables(p, gpu, compiled, provided):
        return choice
    first = next(_in_order(_timed(p, gpu, concerned(p, compiled), provided, every=_needs_ready(p)), p), None)
    return choice_of(first, p, gpu) if first else None


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
    if gpu is None or (p.splits and not p.batch_invariant):
        return None
    found = (choice for entry, measured in lookups(p, gpu) if (choice := _tabled(entry, p, gpu, compiled, measured)))
    return next((choice for choice in found if provided or isinstance(choice.route.kernel, CutlassKernel)), None)


def _tabled(entry: Entry, p: Problem, gpu: Gpu, compiled: bool, measured: bool) -> Choice | None:
    """What an entry of a table says, where that can be taken."""
    if compiled and not is_at_hand(entry.kernel):
        return None
    kernel = find_kernel(entry.kernel)
    if not kernel or (compiled and not kernel.compiled):
        return None
    kernel = kernel.with_epilogue(p)
    way = kernel.way(p, gpu)
    if isinstance(way, str) or (_needs_ready(p) and not _is_ready(kernel)):
        return None
    parts = entry.splits
    if isinstance(kernel, CutlassKernel):
        if not (divided := operation_of(p).in_parts(kernel, way, p, parts)):
            return None
        way, parts = divided
    elif parts > 1:
        return None
    return Choice(Route(kernel, way, parts), entry.microseconds, entry.swizzle, entry.raster, measured)


def _timed(
    p: Problem, gpu: Gpu | None, groups: Groups, provided: bool = True, every: bool = True, cuts: bool = True
) -> list[Timed]:
    """Every route to a problem with its estimate, or those that may be the first of them; equals in one order."""
    routes = operation_of(p).routes(p, gpu, groups, every=every, cuts=cuts) if gpu else []
    if not provided:
        return routes
    ways = ((kernel, kernel.way(p, gpu)) for kernel in python_kernels(p))
    return routes + [(kernel.microseconds(p), kernel, way, 1) for kernel, way in ways if isinstance(way, Way)]


def choice_of(timed: Timed, p: Problem, gpu: Gpu | None) -> Choice:
    """A route as a choice, with the order of its tiles."""
    microseconds, kernel, way, splits = timed
    raster, swizzle = 0, 1
    if isinstance(kernel, CutlassKernel) and gpu:
        raster, swizzle = operation_of(p).tile_order(kernel, p, gpu)
    return Choice(Route(kernel, way, splits), microseconds if microseconds < inf else 0.0, swizzle, raster)
