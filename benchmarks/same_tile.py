"""Our own kernels beside CUTLASS's, tile by tile: the same tile, cluster and schedule, on problems drawn anew.

    python benchmarks/same_tile.py --names > names.txt     # both kernels of each pair; CUTLASS's take minutes
    CUTLASS_PY_KERNELS=names.txt pip install .
    python benchmarks/same_tile.py                         # --seed draws the same problems again

The measuring rules are in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from places import default_path

import cutlass_py
from cutlass_py.bench.cases import check_results, reference_arm
from cutlass_py.bench.environment import environment
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.operands import Operands
from cutlass_py.bench.results import Record, geomean, percentile, reason, write
from cutlass_py.bench.suites import ARITHMETICS, Case, cases
from cutlass_py.bench.timing import REGIMES, Arm, alone, ratio_of, regime_us, rough_us, warm_up
from cutlass_py.commands.bench import at_least
from cutlass_py.declaration.config import SCHEDULES, GemmConfig
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.declaration.epilogues import epilogue_named
from cutlass_py.declaration.families import FAMILIES, find
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.operations.gemm.problems import arguments as problem_arguments

OURS, THEIRS = "sm90_lean", "sm90_gemm"
GEOMEAN, LEAST = 1.0, 0.95  # bars of CUTLASS's time over ours: of all, and of every one
Pair = tuple[str, str]  # our kernel, CUTLASS's


def pairs(dtype: str, layout: str) -> list[Pair]:
    """Kernels of the two families that have their tile, cluster and schedule in common, and plain results."""
    arithmetic = ARITHMETICS[dtype]
    formats = arithmetic.formats
    if arithmetic.reference == "block_scaled_mm":
        return []  # of another family

    def key(c: GemmConfig) -> tuple[object, ...]:
        schedule = SCHEDULES[c.schedule]
        return c.tile, c.cluster, schedule.pingpong, schedule.swap, schedule.block

    def of(family: str) -> dict[tuple[object, ...], str]:
        found = [c for c in FAMILIES[family].declared if (c.a, c.accumulator, c.d) == formats and c.b == c.a]
        found = [c for c in found if c.layout == layout and SCHEDULES[c.schedule].tma_store]
        return {key(c): c.name for c in found if (e := epilogue_named(c.epilogue)).plain and not e.source}

    ours, theirs = of(OURS), of(THEIRS)
    return [(ours[key], theirs[key]) for key in theirs if key in ours]


def fits(case: Case, pair: Pair) -> bool:
    """Whether both kernels read and write the matrices as they lie, without scales."""
    args = problem_arguments({**case.problem(), "scale_a": None, "scale_b": None})
    return not any(CutlassKernel(find(name), None).supports(args).error for name in pair)


def measure(case: Case, pair: Pair, gpu: Torch, args: argparse.Namespace) -> Record:
    """Both kernels of a pair on one problem, in every regime."""
    operands = Operands(case, gpu)
    arms = [Arm(family, of_kernel(operands, name)) for family, name in zip((OURS, THEIRS), pair, strict=True)]
    judged = [*arms, reference_arm(case, operands)]
    record: Record = {**case.facts(), "kernels": pair} | check_results(case, judged, operands, len(judged))[0]
    rough = {arm.name: rough_us(gpu, arm) for arm in arms}
    for regime in args.regime:
        record[regime] = regime_us(gpu, regime, arms, operands.count, rough, args.budget_ms)
        record[regime]["ratio"] = ratio_of(alone(record[regime]["rounds_us"]), THEIRS, OURS)
    return record


def of_kernel(operands: Operands, name: str) -> Callable[[int], object]:
    def launch(i: int) -> None:
        a, b, d = operands[i]
        cutlass_py.gemm(a, b, out=d, kernel=name, splits=1)

    return launch


def verdicts(records: Sequence[Record], regimes: Sequence[str]) -> int:
    """Prints what each tile and all of them come to, and what is wrong; returns how many of these fail."""
    wrong = [(record, name) for record in records for name in record["wrong"]]
    for record, name in wrong:
        extents = tuple(record[x] for x in ("m", "n", "k"))
        print(f"WRONG: {record['kernels'][0]} {extents}, {name}: off by {record['error'][name]:.1e}")
    failed = len(wrong)
    for regime in regimes:
        tiles: dict[str, list[float]] = {}
        for record in records:
            tiles.setdefault(record["kernels"][0], []).append(record[regime]["ratio"])
        print(f"\n{regime}: CUTLASS's time over ours, geometric mean and least of each tile")
        for name, ratios in tiles.items():
            print(f"{geomean(ratios):7.3f} {min(ratios):7.3f}  {name}")
        ratios = [ratio for of_tile in tiles.values() for ratio in of_tile]
        for what, found, bar in (("geometric mean", geomean(ratios), GEOMEAN), ("least", min(ratios), LEAST)):
            failed += found < bar
            said = "MISSED" if found < bar else "reached"
            print(f"{said}: {regime}, {what} of {len(ratios)} = {found:.3f}, bar {bar}")
        print(f"5th percentile: {percentile(ratios, 5):.3f}")
    return failed


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=[x for x in ARITHMETICS if pairs(x, "tn")], default="bf16")
    parser.add_argument("--layout", choices=LAYOUTS, default="tn")
    parser.add_argument("--names", action="store_true", help="only print the names of all pairs, one a line")
    parser.add_argument("--count", type=at_least(1), default=6, metavar="N", help="problems of each pair (default 6)")
    parser.add_argument("--seed", type=at_least(0), metavar="S", help="of the problems (default: a new one, printed)")
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--budget-ms", type=float, default=20.0, help="GPU time per arm and regime (default 20)")
    parser.add_argument("--json", type=Path, help="default: build/benchmarks/same_tile-<gpu>-<dtype>-<layout>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args(arguments)
    args.seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    found = pairs(args.dtype, args.layout)
    if args.names:
        print("\n".join(name for pair in found for name in pair))
        return 0
    compiled = {kernel.name for kernel in cutlass_py.get_kernels()}
    timed = [pair for pair in found if compiled.issuperset(pair)]
    if not timed:
        print(f"same_tile: none of {len(found)} pairs is compiled; --names prints what to build", file=sys.stderr)
        return 2
    gpu = Torch()
    facts = environment(args.commit)
    path = args.json or default_path("same_tile", facts["machine"], args.dtype, args.layout)
    print(f"{facts['machine']['gpu']}, {len(timed)} of {len(found)} pairs, seed {args.seed}; JSON: {path}")
    square = Case("warm-up", args.dtype, args.layout, (1, 8192, 8192, 8192))
    warm_up(gpu, reference_arm(square, Operands(square, gpu)).launch)
    # Each pair has problems of its own, so that no drawing is judged by all tiles.
    wanted = args.count * len(timed)
    drawn = iter(cases(["random"], [args.dtype], [args.layout], seed=args.seed, count=8 * wanted))
    records, failed = [], 0
    for pair in timed:
        for _ in range(args.count):
            case = next(case for case in drawn if fits(case, pair))
            try:
                records.append(measure(case, pair, gpu, args))
            except Exception as error:  # the others go on
                print(f"FAILED: {pair[0]} {case.shape}: {reason(error)}", flush=True)
                failed += 1
        write(path, {**facts, "seed": args.seed, "budget_ms": args.budget_ms, "timed": records})
    return 1 if (records and verdicts(records, args.regime)) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
