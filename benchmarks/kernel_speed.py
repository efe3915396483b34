"""Speed of the kernels behind cutlass_py.gemm against torch's matmul (cuBLAS), in one run on one GPU.

    python benchmarks/kernel_speed.py --suite bars
    python benchmarks/kernel_speed.py --suite llm --suite square --layout tn tt
    python benchmarks/kernel_speed.py --suite llm --kernel all     # every compiled kernel that fits, for the cost model
    python benchmarks/kernel_speed.py --shape 1024,2112,7168 --splits 1 2 4 8 16 stream     # likewise, cuts of k

The measuring rules are in benchmarks/README.md. Ratios are torch's time over ours: above 1 is faster than torch.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import REGIMES, Arm, default_path, gpu_state, regime_us, rough_us, surroundings, warm_up, write_json
from operands import Operands
from report import missed_bars, print_header, print_row, print_summary, summarise, wrong_results
from suites import DTYPES, LAYOUTS, SUITES, Case, Shape, cases

import cutlass_py
import cutlass_py.kernels

ROUNDS = 5
Splits = int | str  # parts of k, or "stream"
HOPELESS = 4.0  # in a sweep, kernels this much slower than the fastest are not measured beyond a rough estimate

# ---------------------------------------------------------------------------------------------------- arms


def torch_arm(case: Case, operands: Operands) -> Arm:
    import torch

    matmul = torch.bmm if case.shape[0] > 1 else torch.mm

    def launch(i: int) -> None:
        a, b, d = operands[i]
        matmul(a, b, out=d)

    return Arm("torch", launch)


def our_arm(case: Case, operands: Operands, kernel: Any = None, splits: Splits | None = None) -> Arm:
    gemm = cutlass_py.gemm
    compute = compute_of(case)

    def launch(i: int) -> None:
        a, b, d = operands[i]
        gemm(a, b, out=d, compute=compute, kernel=kernel, splits=splits)

    return Arm(kernel.name if kernel else f"splits={splits}" if splits else "cutlass_py", launch)


def compute_of(case: Case) -> str | None:
    return "tf32" if case.dtype == "tf32" else None


@contextmanager
def arithmetic_of(case: Case) -> Iterator[None]:
    """Lets torch use the arithmetic that the case is about, for f32 operands."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---------------------------------------------------------------------------------------------------- one case


@dataclass(frozen=True)
class Settings:
    regimes: tuple[str, ...]
    kernel: str  # "default", "all", or the name of one
    splits: tuple[Splits, ...]  # to measure beside the default choice
    budget_ms: float  # GPU time per arm and regime


def measure(case: Case, settings: Settings) -> dict[str, Any]:
    """Everything about one case, as it goes into the JSON."""
    batch, m, n, k = case.shape
    record: dict[str, Any] = {"suite": case.suite, "dtype": case.dtype, "layout": case.layout}
    record |= {"batch": batch, "m": m, "n": n, "k": k}
    if case.required is not None:
        record["required"] = case.required
    with arithmetic_of(case):
        operands = Operands(case)
        record["sets"] = operands.count
        main = [torch_arm(case, operands), our_arm(case, operands)]
        arms = [*main, *(our_arm(case, operands, k) for k in forced_kernels(case, operands, settings.kernel))]
        record["chosen"] = choice_of(case, operands)
        if settings.splits:
            record["decompositions"] = decompositions(case, operands, settings.splits)
            arms += [our_arm(case, operands, splits=found["splits"]) for found in record["decompositions"]]
        record["error"] = errors(arms, operands)
        # Not <=: a NaN is wrong as well. The constant is for f64, whose reference is torch's own result.
        limit = 4 * record["error"]["torch"] + 1e-12
        record["wrong"] = [name for name, error in record["error"].items() if not error < limit]
        rough = {arm.name: rough_us(arm) for arm in arms}
        fastest = min(rough.values())
        timed = [arm for arm in arms if arm in main or rough[arm.name] < HOPELESS * fastest]
        for regime in settings.regimes:
            record[regime] = regime_record(regime, timed, operands, rough, settings.budget_ms)
        hopeless = {arm.name: rough[arm.name] for arm in arms if arm not in timed}
        if hopeless:
            record["rough_us"] = hopeless
    return record


def forced_kernels(case: Case, operands: Operands, kernel: str) -> list[Any]:
    """Kernels to run by name beside the default choice: those that take the operands as they lie."""
    if kernel == "default":
        return []
    a, b, d = operands[0]
    found = cutlass_py.get_kernels(cutlass_py.GemmArguments(a, b, out=d, compute=compute_of(case)))
    return [k for k in found if kernel in ("all", k.name)]


def choice_of(case: Case, operands: Operands, splits: Splits | None = None) -> dict[str, Any]:
    """The default choice and its plan."""
    a, b, d = operands[0]
    chosen = cutlass_py.explain(cutlass_py.GemmArguments(a, b, out=d, compute=compute_of(case), splits=splits)).chosen
    if chosen is None:
        return {"kernel": None}
    route, way = chosen.route, chosen.route.way
    return {
        "kernel": route.kernel.name, "splits": route.splits, "pack_a": way.pack_a, "pack_b": way.pack_b,
        "scratch": way.scratch, "swizzle": chosen.swizzle, "raster": chosen.raster,
        "estimated_us": chosen.microseconds,
    }  # fmt: skip


def decompositions(case: Case, operands: Operands, splits: tuple[Splits, ...]) -> list[dict[str, Any]]:
    """The choice for each way to cut k, with the model's estimate; those that some compiled kernel can do."""
    choices = [choice_of(case, operands, parts) | {"splits": parts} for parts in splits]
    return [choice for choice in choices if choice["kernel"]]


def errors(arms: list[Arm], operands: Operands) -> dict[str, float]:
    """Largest error of each arm's result, relative to the largest element of a product in a wider dtype."""
    import torch

    a, b, d = operands[0]
    wide = torch.float32 if d.dtype.itemsize == 2 else torch.float64
    reference = torch.matmul(a.to(wide), b.to(wide))
    scale = reference.abs().max()
    found = {}
    for arm in arms:
        d.fill_(math.nan)
        arm.launch(0)
        found[arm.name] = float((d.to(wide) - reference).abs().max() / scale)
    return found


def regime_record(
    regime: str, arms: list[Arm], operands: Operands, rough: dict[str, float], budget_ms: float
) -> dict[str, Any]:
    record = regime_us(regime, arms, operands.count, rough, budget_ms, ROUNDS)
    record["ratio"] = record["us"]["torch"] / record["us"]["cutlass_py"]
    if "neighbour_us" in record:
        whole = {name: median(times) for name, times in record["rounds_us"].items()}
        record["ratio_with_neighbour"] = whole["torch"] / whole["cutlass_py"]
    return record


# ---------------------------------------------------------------------------------------------------- the run


class Run:
    """The cases one after the other, and a JSON that is whole whenever the run ends."""

    def __init__(self, todo: list[Case], settings: Settings, path: Path, facts: dict[str, Any]) -> None:
        self.todo, self.settings, self.path = todo, settings, path
        self.records: list[dict[str, Any]] = []
        self.facts = facts
        self.clocks = [gpu_state()]
        self.saved = time.monotonic()

    def all(self, limit_seconds: float) -> None:
        end = time.monotonic() + limit_seconds
        try:
            for case in self.todo:
                if time.monotonic() > end:
                    print(f"stopped after {limit_seconds:g} s: {len(self.records)} of {len(self.todo)} cases")
                    break
                self._one(case)
                if time.monotonic() > self.saved + 20:
                    self.save()
        except KeyboardInterrupt:
            print("interrupted")
        finally:
            self.save()

    def _one(self, case: Case) -> None:
        import torch

        try:
            record = measure(case, self.settings)
        except (cutlass_py.NoKernelError, cutlass_py.CudaError, torch.OutOfMemoryError) as error:
            record = {"suite": case.suite, "dtype": case.dtype, "layout": case.layout}
            record |= dict(zip(("batch", "m", "n", "k"), case.shape, strict=True))
            record |= {"required": case.required} if case.required is not None else {}
            record["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            torch.cuda.empty_cache()
        self.records.append(record)
        print_row(case, record, self.settings.regimes)

    def save(self) -> None:
        self.clocks.append(gpu_state())  # right after a case: the clock under load
        self.saved = time.monotonic()
        result = {
            **self.facts,
            "regimes": self.settings.regimes,
            "kernel": self.settings.kernel,
            "splits": self.settings.splits,
            "budget_ms": self.settings.budget_ms,
            "rounds": ROUNDS,
            "clocks": self.clocks,
            "complete": len(self.records) == len(self.todo),
            "summary": summarise(self.records, self.settings.regimes),
            "cases": self.records,
        }
        write_json(self.path, result)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; default: bars")
    parser.add_argument(
        "--shape", action="append", default=[], type=shape, metavar="M,N,K", help="or B,M,N,K; repeatable"
    )
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bf16"])
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--regime", nargs="+", choices=REGIMES, help="default: both; sustained in a sweep")
    parser.add_argument(
        "--kernel", default="default", help="'all' adds every compiled kernel that fits, a name that one"
    )
    parser.add_argument(
        "--splits", nargs="+", type=parts, default=[], metavar="S", help="adds cuts of k: numbers of parts, 'stream'"
    )
    parser.add_argument("--budget-ms", type=float, default=40.0, help="GPU time per arm and regime (default 40)")
    parser.add_argument("--limit-seconds", type=float, default=math.inf, help="stop cleanly after this long")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/kernel_speed-<gpu>-<suites>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    return parser.parse_args()


def shape(text: str) -> Shape:
    extents = [int(extent) for extent in text.split(",")]
    if len(extents) not in (3, 4) or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K or B,M,N,K")
    batch, m, n, k = extents if len(extents) == 4 else [1, *extents]
    return batch, m, n, k


def parts(text: str) -> Splits:
    if text != "stream" and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of parts nor 'stream'")
    return text if text == "stream" else int(text)


def main() -> int:
    args = parse()
    try:
        import torch
    except ImportError:
        print("kernel_speed: torch is not installed; it is what the kernels are measured against")
        return 2
    if not torch.cuda.is_available():
        print("kernel_speed: no GPU was found; host_cost.py has rows for a CPU")
        return 2
    if args.kernel not in ("default", "all"):
        cutlass_py.kernels.number_of(args.kernel)  # raises with the way to list them
    torch.manual_seed(0)
    suites = args.suite or ([] if args.shape else ["bars"])
    sweep = args.kernel == "all" or bool(args.splits)
    regimes = tuple(args.regime or (("sustained",) if sweep else REGIMES))
    todo = cases(suites, args.dtype, args.layout, args.shape)
    facts = surroundings(args.commit)
    extra = ["sweep"] * (args.kernel == "all") + ["splits"] * bool(args.splits)
    path = args.json or default_path("kernel_speed", facts["machine"], *(suites or ["shapes"]), *extra)
    print(f"{facts['machine']['gpu']}, torch {facts['versions']['torch']}, {len(todo)} cases; JSON: {path}")
    print_header(regimes)
    warm_up()
    run = Run(todo, Settings(regimes, args.kernel, tuple(args.splits), args.budget_ms), path, facts)
    run.all(args.limit_seconds)
    print_summary(summarise(run.records, regimes))
    missed = missed_bars(run.records, regimes)
    return 1 if wrong_results(run.records) or missed else 0


if __name__ == "__main__":
    sys.exit(main())
