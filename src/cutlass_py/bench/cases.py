"""One case: cutlass_py.gemm, and kernels by name, against the framework's own matmul, in one run on one GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

from .. import tuned
from .._core import gemm
from ..arguments import GemmArguments
from ..explanation import explain
from ..gpu import gpu_of
from ..registry import get_kernels, kernel_named
from .frameworks import Framework
from .operands import Operands
from .results import OURS, Record, reason
from .suites import DEFAULT, SWEEP, TUNED, Case
from .timing import REGIMES, Arm, regime_us, rough_us

HOPELESS = 4.0  # in a sweep, kernels this much slower than the fastest are not measured beyond a rough estimate
FINALISTS = 3  # its fastest kernels, timed once more beside the choice: the least of many times is a lucky one
Splits = int | str  # parts of k, or "stream"
_SWIZZLES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Settings:
    """How a case is measured.

    Attributes:
        regimes: of timing.REGIMES.
        mode: of suites.MODES; `tuned` tunes a case first, `sweep` times every compiled kernel that fits beside.
        kernel: the name of one kernel to time beside the default choice.
        splits: cuts of k to time beside it.
        orders: whether to time the choice, or that kernel, in every order of its tiles beside it.
        budget_ms: GPU time per arm and regime; a quarter of it in a sweep, whose finalists get the whole.
        alone: tables of tuned choices of the user's are left out: the choice is the package's own.
    """

    regimes: tuple[str, ...] = REGIMES
    mode: str = DEFAULT
    kernel: str | None = None
    splits: tuple[Splits, ...] = ()
    orders: bool = False
    budget_ms: float = 40.0
    alone: bool = False


def measure(case: Case, settings: Settings, gpu: Framework) -> Record:
    """Everything about one case, as it goes into the JSON.

    What the framework raises where it refuses the case, or the GPU lacks memory for it, is let through; that of kernels
    beside the choice goes into the record, under `refused`.
    """
    record: Record = case.facts() | {"mode": settings.mode}
    with gpu.arithmetic(case):
        operands = Operands(case, gpu)
        record["sets"] = operands.count
        if settings.mode == TUNED:
            record["tuning"] = _tuned(case, operands)
        main = [reference_arm(case, operands), our_arm(case, operands)]
        arms = [*main, *(our_arm(case, operands, k) for k in _forced(case, operands, settings))]
        record["chosen"] = choice_of(case, operands)
        if settings.splits:
            record["decompositions"] = _decompositions(case, operands, settings.splits)
            arms += [our_arm(case, operands, splits=found["splits"]) for found in record["decompositions"]]
        if settings.orders:
            arms += order_arms(case, operands, settings.kernel)
        record["error"], refused = errors(case, arms, operands, len(main))
        if refused:
            record["refused"] = refused
            arms = [arm for arm in arms if arm.name not in refused]
        # Not <=: a NaN is wrong as well. The constant is for references that are the framework's own result.
        limit = 4 * record["error"][gpu.name] + 1e-12
        record["wrong"] = [name for name, error in record["error"].items() if not error < limit]
        rough = {arm.name: rough_us(gpu, arm) for arm in arms}
        fastest = min(rough.values())
        asked = settings.kernel
        timed = [a for a in arms if a in main or a.name == asked or rough[a.name] < HOPELESS * fastest]
        sweep = settings.mode == SWEEP
        for regime in settings.regimes:
            record[regime] = _regime(regime, timed, operands, rough, settings.budget_ms / (4 if sweep else 1))
            if sweep:
                finals = [*main, *_fastest(timed[len(main) :], record[regime]["us"])]
                record[regime]["finals"] = _regime(regime, finals, operands, rough, settings.budget_ms)
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


def our_arm(case: Case, operands: Operands, kernel: Any = None, splits: Splits | None = None) -> Arm:
    """cutlass_py.gemm: its own choice, a kernel, or a cut of k."""
    compute = case.arithmetic.compute

    def launch(i: int) -> object:
        (a, b, d), (x, y) = operands[i], operands.scales(i)
        return gemm(a, b, out=d, compute=compute, scale_a=x, scale_b=y, kernel=kernel, splits=splits)

    return Arm(kernel.name if kernel else f"splits={splits}" if splits else OURS, launch)


def order_arms(case: Case, operands: Operands, kernel: str | None) -> list[Arm]:
    """The choice, or a kernel by name, in each order of its tiles; none where it has no orders."""
    args = _arguments(case, operands)

    def arm(raster: str, swizzle: int) -> Arm:
        plan = args.plan(kernel=kernel, raster=raster, swizzle=swizzle)

        def launch(i: int) -> object:
            (a, b, d), (x, y) = operands[i], operands.scales(i)
            return plan(a, b, d, scale_a=x, scale_b=y)

        return Arm(f"raster={raster} swizzle={swizzle}", launch)

    try:
        return [arm(raster, swizzle) for raster, swizzle in product("mn", _SWIZZLES)]
    except ValueError:  # of plan: swapped and 2.x kernels have one order
        return []


def _arguments(case: Case, operands: Operands, splits: Splits | None = None) -> GemmArguments:
    (a, b, d), (x, y) = operands[0], operands.scales(0)
    return GemmArguments(a, b, out=d, compute=case.arithmetic.compute, scale_a=x, scale_b=y, splits=splits)


def _forced(case: Case, operands: Operands, settings: Settings) -> list[Any]:
    """Kernels to run by name beside the default choice; in a sweep, those that take the operands as they lie."""
    named = [kernel_named(settings.kernel)] if settings.kernel else []
    for kernel in named:
        kernel.load()
    return named + (get_kernels(_arguments(case, operands)) if settings.mode == SWEEP else [])


def _fastest(arms: list[Arm], us: dict[str, float]) -> list[Arm]:
    return sorted(arms, key=lambda arm: us[arm.name])[:FINALISTS]


def _tuned(case: Case, operands: Operands) -> dict[str, Any]:
    """What `tune` found, by its own clock: the choice before and after, its times in each order of tiles, the entry."""
    from ..tuning import tune

    args = _arguments(case, operands)
    found = tune(args)
    before = found.default and found.default.microseconds
    orders: dict[str, dict[str, float]] = {}  # microseconds by "raster,swizzle", by kernel and parts of k
    for each in found.measured:
        choice, route = each.choice, each.choice.route
        of_kernel = orders.setdefault(f"{route.kernel.name} splits={route.splits}", {})
        of_kernel.setdefault(f"{choice.raster},{choice.swizzle}", each.microseconds)
    record: Record = {"measured": len(found.measured), "us": found.best.microseconds, "default_us": before}
    record["orders"] = {name: times for name, times in orders.items() if len(times) > 1}
    return record | _entry(args)


def _entry(args: GemmArguments) -> dict[str, Any]:
    """What the table of tuned choices has for a problem, so that results can become such a table."""
    p = args.problem
    gpu = gpu_of(p)
    entry = tuned.table(gpu).get(tuned.class_of(p)) if gpu else None
    return {"class": tuned.class_of(p), "entry": asdict(entry)} if entry else {}


def choice_of(case: Case, operands: Operands, splits: Splits | None = None) -> dict[str, Any]:
    """The default choice and its plan."""
    chosen = explain(_arguments(case, operands, splits)).chosen
    if chosen is None:
        return {"kernel": None}
    route, way = chosen.route, chosen.route.way
    return {
        "kernel": route.kernel.name, "splits": route.splits, "pack_a": way.pack_a, "pack_b": way.pack_b,
        "scratch": way.scratch, "swizzle": chosen.swizzle, "raster": chosen.raster,
        "measured" if chosen.measured else "estimated_us": chosen.microseconds,
    }  # fmt: skip


def _decompositions(case: Case, operands: Operands, splits: tuple[Splits, ...]) -> list[dict[str, Any]]:
    """The choice for each way to cut k, with the model's estimate; those that some compiled kernel can do."""
    choices = [choice_of(case, operands, parts) | {"splits": parts} for parts in splits]
    return [choice for choice in choices if choice["kernel"]]


def errors(case: Case, arms: list[Arm], operands: Operands, needed: int) -> tuple[dict[str, float], dict[str, str]]:
    """Largest error of each arm's result, relative to the largest element of a product in a wider dtype.

    Returns:
        The errors, and why there is none, by arm: only the first arms, so many as are needed, raise what they raise.
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
    regime: str, arms: list[Arm], operands: Operands, rough: dict[str, float], budget_ms: float
) -> dict[str, Any]:
    theirs = operands.framework.name
    record = regime_us(operands.framework, regime, arms, operands.count, rough, budget_ms)
    record["ratio"] = record["us"][theirs] / record["us"][OURS]
    if "neighbour_us" in record:
        whole = {name: median(times) for name, times in record["rounds_us"].items()}
        record["ratio_with_neighbour"] = whole[theirs] / whole[OURS]
    return record
