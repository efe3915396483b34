"""Grouped products against torch._grouped_mm, on layers and sizes drawn anew, in one run on one GPU.

    python benchmarks/grouped.py                        # --seed draws the same problems again
    python benchmarks/grouped.py --kinds rows --problems 50 --tune

bf16, offsets on the device. benchmarks/README.md has the measuring rules, and what the kinds are.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from places import default_path

import cutlass_py
from cutlass_py.bench import host
from cutlass_py.bench.environment import environment, gpu_state
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.results import OURS, Record, geomean, percentile, reason, write
from cutlass_py.bench.timing import REGIMES, ROUNDS, Arm, alone, ratio_of, regime_us, rough_us, warm_up
from cutlass_py.commands.bench import at_least
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.dispatch import tuned
from cutlass_py.operations.grouped_gemm.suites import KINDS, Experts, drawn
from cutlass_py.support.terminal import print_table

# Arms beside ours.
TORCH, TUNED, COPY, DENSE = "torch", "tuned", "copy", "dense"
SELECT, PLAIN, THREADS = "select", "plain", "threads"
# What is printed: one arm's time over another's, above 1 where ours is faster.
RATIOS = {
    TORCH: (TORCH, OURS), TUNED: (TORCH, TUNED), COPY: (COPY, OURS), DENSE: (DENSE, OURS), SELECT: (SELECT, OURS),
    PLAIN: (PLAIN, OURS), THREADS: (DENSE, THREADS),
}  # fmt: skip
TOP = 4  # experts of a token, where rows are gathered


class Operands:
    """`count` sets of a, b and the result; tokens and weights (experts, n, k) are row-major in memory."""

    def __init__(self, p: Experts, gpu: Torch) -> None:
        self.gpu, self.p, experts = gpu, p, len(p.sizes)
        self.count = min(math.ceil(gpu.l2_bytes() / p.elements), 512)  # twice the cache, at 16 bits
        self.sets = []
        for _ in range(self.count):
            x = gpu.random((p.lines, p.k), "bf16")
            y = gpu.random((p.lines, p.n) if p.deep else (experts, p.n, p.k), "bf16")
            d = x.new_empty((experts, p.k, p.n) if p.deep else (p.lines, p.n))
            self.sets.append((x.mT, y, d) if p.deep else (x, y.mT, d))
        self.ends = gpu.torch.tensor(p.ends, dtype=gpu.torch.int32, device=d.device)
        if p.kind == "gather":
            self.tokens = [gpu.random((max(p.lines // TOP, 1), p.k), "bf16") for _ in range(self.count)]
            self.rows = gpu.torch.randint(0, len(self.tokens[0]), (p.lines,), dtype=gpu.torch.int32, device=d.device)
            self.sets = [(x[self.rows], b, d) for x, (_, b, d) in zip(self.tokens, self.sets, strict=True)]

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]


# ---------------------------------------------------------------------------------------------------- one problem


def arms_of(operands: Operands, kernel: str, is_tuned: bool) -> list[Arm]:
    """torch, and our default choice; where it is tuned, that by name and the tuned one. Of decoding a copy that moves
    as many bytes as the weights have; of even groups our dense product of all rows by one expert."""
    torch, ends, kind = operands.gpu.torch, operands.ends, operands.p.kind
    if kind == "gather":
        return gather_arms(operands)

    def theirs(i: int) -> object:
        return torch._grouped_mm(*operands[i][:2], offs=ends)

    def ours(kernel: str | None) -> Callable[[int], object]:
        def launch(i: int) -> None:
            a, b, d = operands[i]
            cutlass_py.grouped_gemm(a, b, offsets=ends, out=d, kernel=kernel)

        return launch

    def copy(i: int) -> None:
        weights = operands[i][1].mT.flatten()
        half = len(weights) // 2
        weights[half : 2 * half].copy_(weights[:half])

    def dense(i: int) -> None:
        a, b, d = operands[i]
        cutlass_py.gemm(a, b[0], out=d)

    arms = [Arm(TORCH, theirs), Arm(OURS, ours(kernel if is_tuned else None))]
    beside = {TUNED: (ours(None), is_tuned), COPY: (copy, kind == "decode"), DENSE: (dense, kind == "even")}
    return arms + [Arm(name, launch) for name, (launch, wanted) in beside.items() if wanted]


def gather_arms(operands: Operands) -> list[Arm]:
    """Of rows by their numbers: torch, whose index_select goes before its product (and, as `select`, before ours), and
    ours with `gather`. Beside them the product of rows that lie as they should, and what a kernel might reach whose
    threads load rows: dense products of all rows by one expert, whose rows are aligned, or not."""
    torch, ends, rows = operands.gpu.torch, operands.ends, operands.rows
    lines, k = operands[0][0].shape
    wide = operands.gpu.random((lines, k + 1), "bf16")[:, :k]

    def theirs(i: int) -> object:
        x = torch.index_select(operands.tokens[i % operands.count], 0, rows)
        return torch._grouped_mm(x, operands[i][1], offs=ends)

    def ours(i: int) -> None:
        _, b, d = operands[i]
        cutlass_py.grouped_gemm(operands.tokens[i % operands.count], b, offsets=ends, gather=rows, out=d)

    def select(i: int) -> None:
        _, b, d = operands[i]
        x = torch.index_select(operands.tokens[i % operands.count], 0, rows)
        cutlass_py.grouped_gemm(x, b, offsets=ends, out=d)

    def plain(i: int) -> None:
        a, b, d = operands[i]
        cutlass_py.grouped_gemm(a, b, offsets=ends, out=d)

    def dense(x: Any) -> Callable[[int], object] | None:
        _, b, d = operands[0]
        kernels = cutlass_py.get_kernels(cutlass_py.GemmArguments(x, b[0], out=d))  # that pack nothing

        def launch(i: int) -> None:
            a, b, d = operands[i]
            cutlass_py.gemm(wide if x is wide else a, b[0], out=d, kernel=kernels[0])

        return launch if kernels else None

    found = {
        TORCH: theirs,
        OURS: ours,
        SELECT: select,
        PLAIN: plain,
        DENSE: dense(operands[0][0]),
        THREADS: dense(wide),
    }
    return [Arm(name, launch) for name, launch in found.items() if launch]


def measure(p: Experts, gpu: Torch, args: argparse.Namespace) -> Record:
    """Everything about one problem, as it goes into the JSON."""
    operands = Operands(p, gpu)
    a, b, d = operands[0]
    asked = cutlass_py.GroupedArguments(a, b, offsets=operands.ends, out=d)
    kernel = cutlass_py.explain(asked).chosen.route.kernel.name
    record: Record = {"kind": p.kind, "problem": str(p), "sizes": p.sizes, "sets": operands.count, "kernel": kernel}
    if args.tune and p.kind != "gather":
        record["tuned"] = cutlass_py.tune(asked).best.choice.route.kernel.name
    arms = arms_of(operands, kernel, args.tune)
    record["error"] = {arm.name: error_of(operands, arm) for arm in arms if arm.name not in (COPY, DENSE, THREADS)}
    limit = 4 * max(DTYPES["bf16"].roundoff, record["error"][TORCH])
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


def error_of(operands: Operands, arm: Arm) -> float:
    """The largest error in some experts' results, over the largest element; NaN where anything was not written."""
    (a, b, d), p, error, largest = operands[0], operands.p, 0.0, 0.0
    operands.gpu.poison(d)
    result = arm.launch(0)
    result = d if result is None else result
    by_size = sorted(range(len(p.sizes)), key=p.sizes.__getitem__)
    for i in {0, by_size[0], by_size[len(by_size) // 2], by_size[-1], len(by_size) - 1}:
        end = p.ends[i]
        at = slice(end - p.sizes[i], end)
        x, y, z = (a[:, at], b[at], result[i]) if p.deep else (a[at], b[i], result[at])
        if p.sizes[i] or (p.deep and arm.name != TORCH):  # without lines, a gradient of torch's is anything
            wanted = x.float() @ y.float()
            error = max(error, float((z.float() - wanted).abs().max()))
            largest = max(largest, float(wanted.abs().max()))
    written = arm.name == TORCH or not bool(result.isnan().any())
    return error / largest if written else math.nan


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
