"""`tune`: runs the promising choices of a problem on the GPU and keeps the fastest for all calls of its class."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from .. import _core
from ..arrays.gpu import gpu_of
from ..errors import CompileError, NoKernelError, ProviderError
from ..kernels.kernel import CutlassKernel
from ..kernels.operation import Problem, arguments_asked, class_of, describe, operation_of
from .candidates import Choice, best, rank
from .launch_plan import launch_plan_of
from .tuned import Entry, lookup, record

_CANDIDATES = 32  # choices that are run at all, the best by the model
_SCREENING = 3  # rounds of all of them
_FINALISTS = 6  # of them go on, in every order of their tiles
_ROUNDS = 11  # of those, or as many as two seconds permit (timing_rounds.h)
_QUICK = 4  # choices that `quick` runs, in the screening's rounds and nothing else
_MARGIN = 0.99  # of the default's time: what is nearer is noise


@dataclass(frozen=True)
class Measurement:
    """One choice and its time, in microseconds of a call in a row, from a cold L2 cache.

    The median of the rounds; of what is far behind not all of these were run (docs/tuning.md).
    """

    choice: Choice
    microseconds: float


@dataclass(frozen=True)
class Tuning:
    """The answer of `tune`.

    Attributes:
        problem: in words.
        best: what gemm takes from now on, unless `splits` was asked for: the fastest, where that is at least 1% faster
            than the default.
        default: what gemm took before; None where it did not run.
        measured: the finalists, fastest first, then those that were dropped before.
    """

    problem: str
    best: Measurement
    default: Measurement | None
    measured: tuple[Measurement, ...]

    def __str__(self) -> str:
        text = f"{self.problem}: {self.best.choice.route.kernel.name}, {self.best.microseconds:.1f} us"
        if self.default is None:
            return f"{text}; the choice before does not run, {len(self.measured)} others do"
        ratio = self.default.microseconds / self.best.microseconds
        return f"{text}; {ratio:.2f} times as fast as the choice before, of {len(self.measured)} measured"


def tune(a: Any, b: Any = None, *, candidates: int = _CANDIDATES, **keywords: Any) -> Tuning:
    """Measures the most promising choices for a problem and keeps the fastest for all calls of its class.

    A class is a problem without its addresses: extents, dtypes, layouts, alignments, epilogue. What is found holds from
    the next call on, and in later processes: it goes to the user's table of this GPU (docs/tuning.md), but for kernels
    that were registered, which are measured anew wherever they are registered again. Choices run on
    random operands made up for the purpose, which takes as much memory as the problem has, and more where an operand is
    broadcast along the batch; arrays that are given are looked at for their metadata alone, but for numbers that tell
    where groups end, which those of the measurement end at, too. Within `jit`, declared
    kernels are tried too, and compiled; such a choice is taken within `jit`, or once its kernel is there. Waits for the
    device: not for use while any stream of the process is captured into a graph.

    Args:
        a: GemmArguments or GroupedArguments; or the first operand of gemm, with `b` and its keywords following, but for
            `kernel` and `stream`. Arrays or TensorSpecs.
        candidates: how many choices are run, the best by the model; 32 by default. Kernels of yours that have no
            estimate come on top.

    Returns:
        The fastest choice, the one before, and the time of each that ran. str() is one line.

    Raises:
        ValueError: the operands are on the CPU, there is no product to compute, the numbers of groups do not fit (on
            the device, too), the epilogue is a user's, or the user's table is damaged or cannot be read; or as
            GemmArguments.
        TypeError: as GemmArguments; `b` is missing, or `candidates` is no whole number.
        NoKernelError: no kernel fits.
        CudaError: there is no such device, or nothing could run on it.
        CompileError: nothing could be compiled, or the cache directory is named after nobody.
    """
    if not hasattr(candidates, "__index__"):
        raise TypeError(f"tune: candidates is {_core.described_type(candidates)}; expected a whole number")
    if operator.index(candidates) < 1:
        raise ValueError(f"tune: candidates is {candidates}; expected 1 or more")
    args = arguments_asked("tune", a, b, keywords)
    p = args.problem
    if p.user >= 0:
        raise ValueError("tune: epilogue= is not measured; tune the product alone, and name its kernel by kernel=")
    return _tune(p, candidates, not _core.jit_allowed(), ends=args.group_ends() if gpu_of(p) else ())


@contextmanager
def autotuning(*, quick: bool = False) -> Iterator[None]:
    """Within it, calls of this thread that are the first of their class are tuned before they run.

    With `quick` the four choices that the model thinks best take three turns each, some milliseconds in all (where
    calls take 25 us and more a tenth of a second, in which the clock settles), and what is found holds for this process
    alone; or else what `tune` does is done, and kept as it keeps it.

    Compiled kernels only, and no class for which a table has a choice among them already; nor calls with
    `deterministic` alone, whose bits would depend on which kernel was a little faster; nor a call whose own streams are
    captured. Where measuring fails, for want of memory for example, a warning says so, and calls of that class run
    untuned to the context's end.
    """
    before = _core.allow_tuning(_QUICK if quick else _CANDIDATES)
    if not before:
        _given_up.clear()
    _core.clear_plans()
    try:
        yield
    finally:
        _core.allow_tuning(before)


_given_up: set[tuple[int, str]] = set()  # devices and classes that could not be measured, until the next autotuning


def tune_once(p: Problem, candidates: int) -> None:
    """What `autotuning` does to a problem: measures so many choices, unless that was done or is of no use."""
    gpu = gpu_of(p)
    if (
        gpu is None
        or ((p.splits or p.deterministic) and not p.batch_invariant)
        or (p.device_id, class_of(p)) in _given_up
        or ((choice := best(p)) and choice.measured)
    ):
        return
    try:
        # What another build of the package found, whose kernels are not compiled here, stays in the table.
        quick = candidates <= _QUICK
        _tune(p, candidates, compiled=True, here=quick or bool(lookup(p, gpu)), quick=quick)
    except NoKernelError:
        pass  # a list goes matrix by matrix; or gemm says so
    except (_core.CudaError, CompileError, ProviderError, ValueError, OSError) as error:
        _given_up.add((p.device_id, class_of(p)))
        warnings.warn(f"cutlass_py: {describe(p)} is not tuned: {error}", RuntimeWarning, stacklevel=2)


def _tune(
    p: Problem, candidates: int, compiled: bool, here: bool = False, quick: bool = False, ends: Sequence[int] = ()
) -> Tuning:
    """Measures the choices of a problem and records the fastest.

    Args:
        ends: where groups end; of none, sizes are made up.
        here: what is found holds for this process alone.
        quick: the screening decides.
    """
    from .. import __version__

    gpu = gpu_of(p)
    if gpu is None:
        raise ValueError("tune: the operands are on the CPU; kernels are measured on a GPU")
    if operation_of(p).without_kernel(p):
        raise ValueError(f"tune: {describe(p)} has no product to compute")
    driver = _core.device_info(p.device_id)["driver"]
    if not here:
        record(gpu, {})  # what stands in the way of writing says so before anything is measured
    ranking = _distinct(rank(p, compiled=compiled))
    if not ranking:
        raise NoKernelError(f"tune: no kernel fits {describe(p)}")
    usual = replace(ranking[0], measured=False)
    unknown = [choice for choice in ranking[candidates:] if not choice.microseconds]  # nobody can rank them
    screened = _measure(p, [usual, *ranking[1:candidates], *unknown], _SCREENING, ends)
    measured = screened
    if not quick:
        finalists = in_every_order(p, (m.choice for m in screened[:_FINALISTS]))
        measured = _measure(p, list(dict.fromkeys([*finalists, usual])), _ROUNDS, ends)
    default = next((m for m in measured if m.choice == usual), None)
    chosen = measured[0] if default is None or measured[0].microseconds < _MARGIN * default.microseconds else default
    seen = {m.choice for m in measured}
    if not p.splits:
        choice, time = chosen.choice, max(round(chosen.microseconds, 3), 0.001)
        name, splits = choice.route.kernel.name, choice.route.splits
        entry = Entry(name, splits, choice.raster, choice.swizzle, time, driver, __version__)
        record(gpu, {class_of(p): entry}, here=here)
        _core.clear_plans()
    return Tuning(describe(p), chosen, default, (*measured, *(m for m in screened if m.choice not in seen)))


def _distinct(ranking: Iterable[Choice]) -> list[Choice]:
    """One of those whose kernels compute alike on the same way: the first, which has the leanest epilogue.

    What kernels in a user's own words compute alike, nobody knows.
    """
    first: dict[Any, Choice] = {}
    for choice in ranking:
        kernel = choice.route.kernel
        alike: int | str = kernel.name
        if isinstance(kernel, CutlassKernel) and not kernel.config.own_source:
            alike = kernel.design
        first.setdefault((alike, choice.route.way, choice.route.splits), choice)
    return list(first.values())


def in_every_order(p: Problem, choices: Iterable[Choice]) -> Iterator[Choice]:
    """Each choice as it is, then in the other orders of its tiles that are worth measuring."""
    for choice in choices:
        yield choice
        kernel = choice.route.kernel
        if isinstance(kernel, CutlassKernel):
            for raster, swizzle in operation_of(p).tile_orders(kernel, p):
                if (raster, swizzle) != (choice.raster, choice.swizzle):
                    yield replace(choice, raster=raster, swizzle=swizzle)


def _measure(p: Any, choices: Sequence[Choice], rounds: int, ends: Sequence[int]) -> list[Measurement]:
    """Choices that ran, fastest first; what cannot be compiled or does not run is left out.

    Raises:
        CudaError: nothing ran.
        CompileError: nothing could be compiled.
    """
    plans, failure = [], None
    for choice in choices:
        try:
            plans.append((choice, launch_plan_of(choice, p)))
        except CompileError as error:
            failure = error
    if failure and not plans:
        raise failure
    times = _core.measure(p, [plan for _, plan in plans], rounds, **({"group_ends": ends} if ends else {}))
    timed = [Measurement(choice, median(ours)) for (choice, _), ours in zip(plans, times, strict=True)]
    ran = [m for m in timed if isfinite(m.microseconds)]
    if not ran:
        raise _core.CudaError(f"tune: none of {len(choices)} choices could run for {describe(p)}")
    return sorted(ran, key=lambda m: m.microseconds)
