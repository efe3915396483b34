"""`tune`: runs the promising choices of a problem on the GPU and keeps the fastest for all calls of its class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from . import _core
from ._core import Problem
from .arguments import GemmArguments, describe, problem_of
from .errors import CompileError, NoKernelError
from .families import SCHEDULES
from .gpu import gpu_of
from .kernels import CutlassKernel
from .select import Choice, plan_of, rank
from .tuned import Entry, class_of, lookup, record

_CANDIDATES = 32  # choices that are run at all, the best by the model
_SCREENING = 3  # rounds of all of them
_FINALISTS = 6  # of them go on, in every order of their tiles
_ROUNDS = 15  # of those
# Raster and swizzle of 3.x kernels (kernel.h), beside what selection takes by itself.
_TILE_ORDERS = ((0, 1), (0, 2), (0, 8), (1, 1), (1, 2), (2, 1), (2, 2))


@dataclass(frozen=True)
class Measurement:
    """One choice and its time: the median of the rounds, in microseconds, from a cold L2 cache."""

    choice: Choice
    microseconds: float


@dataclass(frozen=True)
class Tuning:
    """The answer of `tune`.

    Attributes:
        problem: in words.
        measured: every choice that ran, fastest first.
        default: what gemm took before.
    """

    problem: str
    measured: tuple[Measurement, ...]
    default: Measurement

    @property
    def best(self) -> Measurement:
        """What gemm takes from now on."""
        return self.measured[0]

    def __str__(self) -> str:
        best, before = self.best.microseconds, self.default.microseconds
        return (
            f"{self.problem}: {self.best.choice.route.kernel.name}, {best:.1f} us; "
            f"{before / best:.2f} times as fast as the choice before, of {len(self.measured)} measured"
        )


def tune(a: Any, b: Any = None, *, candidates: int = _CANDIDATES, **keywords: Any) -> Tuning:
    """Measures the most promising choices for a problem and keeps the fastest for all calls of its class.

    A class is a problem without its addresses: extents, dtypes, layouts, alignments, epilogue. What is found holds from
    the next call on, and in later processes: it goes to the user's table of this GPU (docs/tuning.md). Choices run on
    random operands made up for the purpose, which takes as much memory as the problem has; arrays that are given are
    looked at for their metadata alone. Within `jit`, declared kernels are tried too, and compiled. Not for use while
    another stream of the process is captured into a graph.

    Args:
        a: GemmArguments; or the first operand, with `b` and gemm's keywords following. Arrays or TensorSpecs.
        candidates: how many choices are run, the best by the model.

    Raises:
        ValueError: the operands are on the CPU, or there is no product to compute.
        NoKernelError: no kernel fits.
        CudaError: there is no such device, or nothing could run on it.
    """
    if b is None and keywords:
        raise TypeError(f"tune: {', '.join(keywords)} belong into the GemmArguments")
    if candidates < 1:
        raise ValueError(f"tune: candidates is {candidates}; expected 1 or more")
    return _tune(problem_of(a if b is None else GemmArguments(a, b, **keywords)), candidates)


@contextmanager
def autotuning() -> Iterator[None]:
    """Within it, calls of this thread that are the first of their class are tuned before they run.

    Classes that are in the user's table already are not measured again; nor is anything while a graph is captured.

    Raises:
        CudaError: from a call within it, as `tune` does.
    """
    before = _core.allow_tuning(True)
    _core.clear_plans()
    try:
        yield
    finally:
        _core.allow_tuning(before)


def tune_once(p: Problem) -> None:
    """What `autotuning` does to a problem: measures it, unless that was done or is of no use."""
    gpu = gpu_of(p)
    if gpu is None or p.splits or lookup(p, gpu):
        return
    allowed = _core.allow_tuning(False)  # measuring asks for plans itself
    try:
        _tune(p, _CANDIDATES)
    except NoKernelError:
        pass  # a list goes matrix by matrix; or gemm says so
    finally:
        _core.allow_tuning(allowed)


def _tune(p: Problem, candidates: int) -> Tuning:
    gpu = gpu_of(p)
    if gpu is None:
        raise ValueError("tune: the operands are on the CPU, where there is nothing to choose from")
    if p.empty_product or not p.m or not p.n or not p.batch:
        raise ValueError(f"tune: {describe(p)} has no product to compute")
    driver = _core.device_info(p.device_id)["driver"]
    ranking = rank(p)
    if not ranking:
        raise NoKernelError(f"tune: no kernel fits {describe(p)}")
    screened = _measure(p, ranking[:candidates], _SCREENING)
    finalists = [m.choice for m in screened[:_FINALISTS]]
    measured = _measure(p, list(dict.fromkeys([ranking[0], *_in_every_order(finalists)])), _ROUNDS)
    default = next((m for m in measured if m.choice == ranking[0]), measured[-1])
    seen = {m.choice for m in measured}
    measured += [m for m in screened if m.choice not in seen]
    if not p.splits:
        record(gpu, {class_of(p): _entry(measured[0], driver)})
        _core.clear_plans()
    return Tuning(describe(p), tuple(measured), default)


def _entry(best: Measurement, driver: int) -> Entry:
    from . import __version__

    choice = best.choice
    name, time = choice.route.kernel.name, round(best.microseconds, 3)
    return Entry(name, choice.route.splits, choice.raster, choice.swizzle, time, driver, __version__)


def _in_every_order(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Each choice as it is, and with the other orders of tiles that its kernel has."""
    for choice in choices:
        yield choice
        kernel = choice.route.kernel
        if isinstance(kernel, CutlassKernel) and kernel.config.api == 3 and not SCHEDULES[kernel.config.schedule].swap:
            yield from (replace(choice, raster=raster, swizzle=swizzle) for raster, swizzle in _TILE_ORDERS)


def _measure(p: Problem, choices: Sequence[Choice], rounds: int) -> list[Measurement]:
    """Choices that ran, fastest first; what cannot be compiled or does not run is left out.

    Raises:
        CudaError: nothing ran.
    """
    plans = []
    for choice in choices:
        try:
            plans.append((choice, plan_of(choice, p)))
        except CompileError:
            continue
    times = _core.measure(p, [plan for _, plan in plans], rounds)
    timed = [Measurement(choice, median(ours)) for (choice, _), ours in zip(plans, times, strict=True)]
    ran = [m for m in timed if isfinite(m.microseconds)]
    if not ran:
        raise _core.CudaError(f"tune: none of {len(choices)} choices could run for {describe(p)}")
    return sorted(ran, key=lambda m: m.microseconds)
