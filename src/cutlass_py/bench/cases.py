"""One case: cutlass_py.gemm, and kernels by name, against the framework's own matmul, in one run on one GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from fnmatch import translate
from itertools import product
from typing import Any

from .._core import gemm
from ..arrays.gpu import gpu_of
from ..declaration.config import SWIZZLES
from ..declaration.dtypes import DTYPES
from ..dispatch import tuned
from ..dispatch.discover import get_kernels
from ..dispatch.explanation import explain
from ..kernels.kernel import Kernel
from ..kernels.operation import class_of
from ..kernels.registry import kernel_named
from ..operations.gemm.arguments import GemmArguments
from . import kernel_case
from .frameworks import Framework
from .kernel_case import KernelCase, KernelOperands
from .operands import Operands
from .results import INVARIANT, OURS, Record, reason
from .suites import DEFAULT, SWEEP, TUNED, Case
from .timing import REGIMES, Arm, alone, ratio_of, regime_us, rough_us

HOPELESS = 4.0  # in a sweep, kernels this much slower than the fastest are not measured beyond a rough estimate
FINALISTS = 3  # its fastest kernels, timed once more beside the choice: the least of many noisy times is too low
Splits = int | str  # parts of k, or "stream"
_Operands = Operands | KernelOperands


@dataclass(frozen=True)
class Settings:
    """How a case is measured.

    Attributes:
        regimes: of timing.ALL_REGIMES.
        mode: of suites.MODES; `tuned` tunes a case first, `sweep` times every compiled kernel that fits beside.
        kernel: the name of one kernel to time beside the default choice.
        best: in a sweep, only so many kernels, the first of `swept`.
        kernels: in a sweep, only those of these names, or whose names match such a pattern of fnmatch; all without any.
        splits: parts of k to time beside it.
        batch_invariant: whether to time the choice where no row may depend on others beside it.
        orders: whether to time the choice, or that kernel, in every order of its tiles beside it.
        budget_ms: GPU time per arm and regime; a quarter of it in a sweep, whose finalists get the whole.
        alone: leave out the user's tables of tuned choices, so that the choice is the package's own.
    """

    regimes: tuple[str, ...] = REGIMES
    mode: str = DEFAULT
    kernel: str | None = None
    best: int | None = None
    kernels: tuple[str, ...] = ()
    splits: tuple[Splits, ...] = ()
    batch_invariant: bool = False
    orders: bool = False
    budget_ms: float = 40.0
    alone: bool = False


def measure(case: Case, settings: Settings, gpu: Framework) -> Record:
    """Everything about one case, as it goes into the JSON.

    What the framework raises where it refuses the case, or the GPU lacks memory for it, is let through; that of kernels
    beside the choice goes into the record, under `refused`.
    """
    record: Record = case.facts() | {"mode": settings.mode}
    with gpu.arithmetic(case) if case.compared else nullcontext():
        operands = KernelOperands(case, gpu) if isinstance(case, KernelCase) else Operands(case, gpu)
        record["sets"] = operands.count
        if settings.mode == TUNED:
            record["tuning"] = _tuned(operands)
        main = [our_arm(operands)]
        if isinstance(operands, Operands):
            main.insert(0, reference_arm(case, operands))
        arms = [*main, *(our_arm(operands, k) for k in _forced(operands, settings))]
        record["chosen"] = choice_of(operands)
        if settings.splits:
            cuts = [choice_of(operands, parts) | {"splits": parts} for parts in settings.splits]
            record["decompositions"] = [cut for cut in cuts if cut["kernel"]]  # those that some compiled kernel can do
            arms += [our_arm(operands, splits=cut["splits"]) for cut in record["decompositions"]]
        if settings.batch_invariant:
            arms.append(our_arm(operands, batch_invariant=True))
        if settings.orders:
            arms += order_arms(operands, settings.kernel)
        checked, refused = check_results(case, arms, operands, len(main))
        record |= checked
        if refused:
            record["refused"] = refused
        left_out = {*refused, *checked.get("wrong", ())} - {settings.kernel}
        arms = [arm for arm in arms if arm in main or arm.name not in left_out]
        rough = {arm.name: rough_us(gpu, arm) for arm in arms}
        slowest = HOPELESS * min(rough.values())
        asked = settings.kernel
        timed = [a for a in arms if a in main or a.name in (asked, INVARIANT) or rough[a.name] < slowest]
        sweep = settings.mode == SWEEP
        for regime in settings.regimes:
            record[regime] = _regime(regime, timed, operands, rough, settings.budget_ms / (4 if sweep else 1))
            if sweep:
                us = record[regime]["us"]
                fastest = sorted(timed[len(main) :], key=lambda arm: us[arm.name])[:FINALISTS]
                finals = _regime(regime, [*main, *fastest], operands, rough, settings.budget_ms)
                record[regime]["finals"] = finals
        hopeless = {arm.name: rough[arm.name] for arm in arms if arm not in timed}
        if hopeless:
            record["rough_us"] = hopeless
    return record


def reference_arm(case: Case, operands: Operands) -> Arm:
    """The framework's own function."""
    function = operands.framework.reference(case)

    def launch(i: int) -> object:
        return function(*operands[i], *operands.scales(i))

    return Arm(operands.framework.name, launch)


def our_arm(
    operands: _Operands, kernel: Any = None, splits: Splits | None = None, batch_invariant: bool = False
) -> Arm:
    """cutlass_py.gemm: its own choice, a kernel, a cut of k, or its choice where no row may depend on others."""
    asked = {"kernel": kernel, "splits": splits, "batch_invariant": batch_invariant}

    def launch(i: int) -> object:
        a, b, keywords = operands.call(i)
        return gemm(a, b, **(keywords | asked))

    name = kernel.name if kernel else f"splits={splits}" if splits else INVARIANT if batch_invariant else OURS
    return Arm(name, launch)


def order_arms(operands: _Operands, kernel: str | None) -> list[Arm]:
    """The choice, or a kernel by name, in each order of its tiles; none where it has no orders."""
    args = _arguments(operands)

    def arm(raster: str, swizzle: int) -> Arm:
        plan = args.plan(kernel=kernel, raster=raster, swizzle=swizzle)

        def launch(i: int) -> object:
            a, b, keywords = operands.call(i)
            return plan(a, b, **{name: x for name, x in keywords.items() if hasattr(x, "shape")})

        return Arm(f"raster={raster} swizzle={swizzle}", launch)

    try:
        return [arm(raster, swizzle) for raster, swizzle in product("mn", SWIZZLES)]
    except ValueError:  # of plan: 2.x kernels have one order
        return []


def _arguments(operands: _Operands, splits: Splits | None = None) -> GemmArguments:
    a, b, keywords = operands.call(0)
    return GemmArguments(a, b, **(keywords | {"splits": splits}))


def _forced(operands: _Operands, settings: Settings) -> list[Any]:
    """Kernels to run by name beside the default choice; in a sweep, the best that take the operands as they lie."""
    named = [kernel_named(settings.kernel)] if settings.kernel else []
    for kernel in named:
        kernel.load()
    if settings.mode != SWEEP:
        return named
    return named + swept(_arguments(operands), settings.kernels)[: settings.best]


def swept(args: GemmArguments, patterns: Sequence[str]) -> list[Kernel]:
    """Compiled kernels that take operands as they lie, best first: all, or those of some names."""
    return matching(get_kernels(args), patterns) if patterns else get_kernels(args)


def matching(kernels: Iterable[Kernel], patterns: Iterable[str]) -> list[Kernel]:
    """Those whose names are, or match by the rules of fnmatch, one of some patterns."""
    wanted = re.compile("|".join(map(translate, patterns)))
    return [kernel for kernel in kernels if wanted.match(kernel.name)]


def _tuned(operands: _Operands) -> dict[str, Any]:
    """What `tune` found, by its own clock: the choice before and after, its times in each order of tiles, the entry."""
    from ..dispatch.autotune import tune

    args = _arguments(operands)
    found = tune(args)
    before = found.default and found.default.microseconds
    orders: dict[str, dict[str, float]] = {}  # microseconds by "raster,swizzle", by kernel and parts of k
    for each in found.measured:
        choice, route = each.choice, each.choice.route
        of_kernel = orders.setdefault(f"{route.kernel.name} splits={route.splits}", {})
        of_kernel.setdefault(f"{choice.raster},{choice.swizzle}", each.microseconds)
    record: Record = {"measured": len(found.measured), "us": found.best.microseconds, "default_us": before}
    record["orders"] = {name: times for name, times in orders.items() if len(times) > 1}
    gpu, key = gpu_of(args.problem), class_of(args.problem)
    if entry := tuned.table(gpu).get(key) if gpu else None:
        record |= {"class": key, "entry": asdict(entry)}  # so that results can become a table of tuned choices
    return record


def choice_of(operands: _Operands, splits: Splits | None = None) -> dict[str, Any]:
    """The default choice and its plan."""
    chosen = explain(_arguments(operands, splits)).chosen
    if chosen is None:
        return {"kernel": None}
    return chosen.route.record() | {
        "swizzle": chosen.swizzle, "raster": chosen.raster,
        "measured" if chosen.measured else "estimated_us": chosen.microseconds,
    }  # fmt: skip


def check_results(case: Case, arms: list[Arm], operands: _Operands, needed: int) -> tuple[Record, dict[str, str]]:
    """The error of each arm, the names of those that are wrong, and the limit, where no reference tells it.

    Returns:
        All that, and the reasons of arms that raised. What the first arms raise, as many as are needed, is let through.
    """
    refused: dict[str, str] = {}
    if isinstance(operands, Operands):
        error, refused = errors(case, arms, operands, needed)
        asked, _, result = case.arithmetic.formats
        # cuBLAS multiplies vectors of tf32 in f32: its error says nothing about that of tf32.
        rounded = kernel_case.ROUNDED.get(asked, 0.0) if 1 in case.shape[1:3] else 0.0
        limit = 4 * max(error[operands.framework.name], DTYPES[result].roundoff, rounded) + 1e-12
        found: Record = {"error": error}
    else:
        assert isinstance(case, KernelCase)
        error, limit = kernel_case.errors(case, arms, operands)
        found = {"error": error, "limit": limit}
    found["wrong"] = [name for name, each in error.items() if not each < limit]  # a NaN as well
    return found, refused


def errors(case: Case, arms: list[Arm], operands: Operands, needed: int) -> tuple[dict[str, float], dict[str, str]]:
    """Largest error of each arm's result, relative to the largest element of a product in a wider dtype.

    Returns:
        The errors, and the reasons of arms that raised, as in `check_results`.
    """
    gpu, (a, b, d) = operands.framework, operands[0]
    product = gpu.product(case, a, b, *operands.scales(0))
    found, refused = {}, {}
    for index, arm in enumerate(arms):
        gpu.poison(d)
        try:
            result = arm.launch(0)
            found[arm.name] = gpu.difference(d if result is None else result, product)
        except Exception as error:
            if index < needed:
                raise
            refused[arm.name] = reason(error)
    return found, refused


def _regime(
    regime: str, arms: list[Arm], operands: _Operands, rough: dict[str, float], budget_ms: float
) -> dict[str, Any]:
    theirs = operands.framework.name
    record = regime_us(operands.framework, regime, arms, operands.count, rough, budget_ms)
    if theirs not in record["us"]:
        return record
    rounds = record["rounds_us"]
    record["ratio"] = ratio_of(alone(rounds), theirs, OURS)
    if "neighbour_us" in record:
        record["ratio_with_neighbour"] = ratio_of(rounds, theirs, OURS)
    return record
