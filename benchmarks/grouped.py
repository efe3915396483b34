"""Grouped products against torch._grouped_mm, on layers and sizes drawn anew, in one run on one GPU.

    python benchmarks/grouped.py                        # --seed draws the same problems again
    python benchmarks/grouped.py --kinds rows --problems 50 --tune

bf16 or fp8, offsets on the device. benchmarks/README.md has the measuring rules, and what the kinds are.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from grouped_arms import RATIOS, TORCH, Operands, arms_of, computing, error_of
from places import default_path

import cutlass_py
from cutlass_py.bench import host
from cutlass_py.bench.environment import environment, gpu_state
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.results import OURS, Record, geomean, percentile, reason, write
from cutlass_py.bench.timing import REGIMES, ROUNDS, alone, ratio_of, regime_us, rough_us, warm_up
from cutlass_py.commands.bench import at_least
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.dispatch import tuned
from cutlass_py.operations.grouped_gemm.suites import KINDS, Experts, drawn
from cutlass_py.support.terminal import print_table


def measure(p: Experts, gpu: Torch, args: argparse.Namespace) -> Record:
    """Everything about one problem, as it goes into the JSON."""
    operands = Operands(p, gpu)
    a, b, d = operands[0]
    asked = cutlass_py.GroupedArguments(a, b, offsets=operands.ends, out=d, **operands.beside)
    kernel = cutlass_py.explain(asked).chosen.route.kernel.name
    record: Record = {"kind": p.kind, "problem": str(p), "sizes": p.sizes, "sets": operands.count, "kernel": kernel}
    if args.tune and p.kind != "gather":
        record["tuned"] = cutlass_py.tune(asked).best.choice.route.kernel.name
    arms = arms_of(operands, kernel, args.tune)
    record["error"] = {arm.name: error_of(operands, arm) for arm in arms if arm.name in computing(p)}
    limit = 4 * max(DTYPES["bf16"].roundoff, record["error"].get(TORCH, 0))
    record["wrong"] = [name for name, error in record["error"].items() if name != TORCH and not error < limit]
    rough = {arm.name: rough_us(gpu, arm) for arm in arms}
    for regime in args.regime:
        record[regime] = timed = regime_us(gpu, regime, arms, operands.count, rough, args.budget_ms)
        rounds = alone(timed["rounds_us"])
        timed["ratio"] = {
            name: ratio_of(rounds, x, y) for name, (x, y) in RATIOS.items() if x in rounds and y in rounds
        }
        timed["TFLOP/s"], timed["GB/s"] = (x / timed["us"][OURS] / 1e6 for x in (p.flop, 2e3 * p.weights))
    return record


# ---------------------------------------------------------------------------------------------------- what is said


def row(record: Record, regimes: Sequence[str]) -> str:
    """One problem, for the terminal."""
    said = f"{record['problem']:64}"
    for regime in regimes:
        timed = record[regime]
        rate = "GB/s" if record["kind"] == "decode" else "TFLOP/s"
        late = " " if timed.get("queue_filled", True) else "?"  # host time may show
        ratios = " ".join(f"{name} {ratio:.3f}" for name, ratio in timed["ratio"].items())
        said += f" | {timed['us'][OURS]:8.1f} us{late}{timed[rate]:5.0f} {rate} {ratios}"
    return f"{said} | {record['kernel']}"


def summary(records: Sequence[Record], regimes: Sequence[str]) -> list[Record]:
    """By kind, regime and ratio: geometric mean, 5th percentile and worst, and which problem that is."""
    found = []
    for kind in dict.fromkeys(record["kind"] for record in records):
        for regime in regimes:
            for name, arms in RATIOS.items():
                ratios = [
                    (r[regime]["ratio"][name], r["problem"])
                    for r in records
                    if r["kind"] == kind and name in r[regime]["ratio"]
                ]
                if ratios:
                    values, (worst, at) = [ratio for ratio, _ in ratios], min(ratios)
                    about = {"kind": kind, "regime": regime, "ratio": " / ".join(arms), "problems": len(values)}
                    about |= {"geomean": geomean(values), "5%": percentile(values, 5), "worst": worst, "worst at": at}
                    found.append(about)
    return found


def tell(facts: Record, records: Sequence[Record], regimes: Sequence[str]) -> int:
    """Prints what all of it comes to, and what is wrong; returns how many results are."""
    print()
    rows = summary(records, regimes)
    if rows:
        print_table(list(rows[0]), [[f"{x:.3f}" if isinstance(x, float) else str(x) for x in r.values()] for r in rows])
    us = facts["host"]["us"]
    print(f"host time of a call, us: {us['cutlass_py']['median']:.1f}, torch's {us['framework']['median']:.1f}")
    wrong = [(record, name) for record in records for name in record["wrong"]]
    for record, name in wrong:
        print(f"WRONG: {record['problem']}, {name}: off by {record['error'][name]:.1e}")
    return len(wrong)


# ---------------------------------------------------------------------------------------------------- the run


def settle(gpu: Torch) -> None:
    """The clock, on products that keep it down."""
    x, y, d = (gpu.random((8192, 8192), "bf16") for _ in range(3))
    warm_up(gpu, lambda i: gpu.torch.mm(x, y, out=d))


def host_cost(gpu: Torch) -> Record:
    """Of one call that is too small to matter, ours with `out`, which torch's has not."""
    a, b = gpu.random((64, 64), "bf16"), gpu.random((4, 64, 64), "bf16").mT
    ends = gpu.torch.tensor([16, 32, 48, 64], dtype=gpu.torch.int32, device=a.device)
    names = {"a": a, "b": b, "d": a.new_empty((64, 64)), "ends": ends}
    names |= {"grouped_gemm": cutlass_py.grouped_gemm, "grouped_mm": gpu.torch._grouped_mm}
    statements = "grouped_gemm(a, b, offsets=ends, out=d)", "grouped_mm(a, b, offs=ends)"
    return host.measure(host.Row("4 groups of 16 rows, (64, 64)", *statements, names, gpu.synchronize), 2.0)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    counts = ", ".join(f"{kind}: {count}" for kind, count in KINDS.items())
    parser.add_argument("--problems", type=at_least(1), metavar="N", help=f"of each kind (default {counts})")
    parser.add_argument("--seed", type=at_least(0), metavar="S", help="of the problems (default: a new one, printed)")
    parser.add_argument("--tune", action="store_true", help="tune each problem: that beside the default choice")
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--budget-ms", type=float, default=40.0, help="GPU time per arm and regime (default 40)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: build/benchmarks/grouped-<gpu>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args(arguments)
    args.seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    try:
        import torch
    except ImportError:
        print("grouped: torch is not installed; its _grouped_mm is what is measured against")
        return 2
    if not torch.cuda.is_available():
        print("grouped: no GPU was found")
        return 2
    gpu, facts = Torch(), environment(args.commit)
    path = args.json or default_path("grouped", facts["machine"])
    asked = [p for kind in args.kinds for p in drawn(kind, args.seed, args.problems)]
    print(f"{facts['machine']['gpu']}, torch {facts['versions']['torch']}, {len(asked)} problems, seed {args.seed}")
    settle(gpu)
    facts |= {"seed": args.seed, "budget_ms": args.budget_ms, "rounds": ROUNDS, "host": host_cost(gpu)}
    clocks, records, failed = [gpu_state()], [], 0
    for p in asked:
        try:
            with tuned.afresh() if args.tune else nullcontext():
                records.append(measure(p, gpu, args))
            print(row(records[-1], args.regime), flush=True)
        except Exception as error:  # the others go on
            print(f"FAILED: {p}: {reason(error)}", flush=True)
            failed += 1
        try:  # not within the handler, where the error holds on to the operands
            gpu.free()
            gpu.synchronize()
        except Exception as error:
            print(f"the GPU works no more: {reason(error)}")
            failed += 1
            break
        write(path, {**facts, "clocks": clocks, "summary": summary(records, args.regime), "timed": records})
    clocks.append(gpu_state())
    write(path, {**facts, "clocks": clocks, "summary": summary(records, args.regime), "timed": records})
    wrong = tell(facts, records, args.regime)
    print(f"JSON: {path}")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
