"""What a fused bias and activation costs: against the same tile without them, and against torch, in one run on one GPU.

    python benchmarks/epilogue_speed.py
    python benchmarks/epilogue_speed.py --shape 2048,4096,4096 --activation gelu_tanh --regime mixed
    python benchmarks/epilogue_speed.py --suite random --count 30      # drawn anew; --seed draws them again

f(x @ w.T + bias) in bf16, weights (n, k). Of drawn problems gemm's choices are compared, since no tile suits them all.
The measuring rules are in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from places import default_path

import cutlass_py
from cutlass_py import functions
from cutlass_py.bench.cases import reference_arm
from cutlass_py.bench.environment import environment, gpu_state
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.operands import Operands
from cutlass_py.bench.report import summarise, summary_table
from cutlass_py.bench.results import Record, reason, write
from cutlass_py.bench.suites import Case, cases
from cutlass_py.bench.timing import REGIMES, ROUNDS, Arm, alone, ratio_of, regime_us, rough_us, warm_up
from cutlass_py.commands.bench import at_least
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.operations.gemm.suites import RANDOM
from cutlass_py.support.terminal import print_table

KERNEL = "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_leanpingpong_fused"
SHAPES = [(8192, 4096, 4096), (4096, 24576, 1536), (512, 28672, 4096)]
# gelu is what a user's epilogue is shown with.
ACTIVATIONS = ("identity", "relu", "silu", "gelu_tanh", "hardswish", "gelu")
ADDMM = ("identity", "relu", "gelu_tanh")  # those that cuBLASLt fuses
SUITES, ACTIVATION = ("random", "random-layer"), "gelu_tanh"  # drawn anew, and what they are timed with
# For each activation and shape: most time of the fused kernel over the same tile without epilogue, and least of
# torch's time over the default choice's.
BARS = {
    "gelu_tanh": {"fused / plain": 1.05, "torch / default": 1.05},
    "gelu": {"user / plain": 1.05, "outputs / plain": 1.05},
}
BARRED = dict.fromkeys(BARS["gelu"], [(8192, 4096, 4096)])  # bars of these shapes alone
DRAWN_BARS = {"gelu_tanh": {"default / plain default": 1.04, "addmm / default": 1.05}}  # of geometric means
# What is printed: one arm's time over another's.
RATIOS = {
    "fused / plain": ("fused", "plain"),
    "user / plain": ("user", "plain"),
    "outputs / plain": ("outputs", "plain"),
    "default / plain": ("default", "plain"),
    "torch / default": ("torch", "default"),
    "addmm / default": ("addmm", "default"),
    "user / plain, defaults": ("user default", "plain default"),
}
DRAWN_RATIOS = {
    "default / plain default": ("default", "plain default"),
    "bias / plain default": ("bias default", "plain default"),
    "torch plain / plain default": ("torch plain", "plain default"),
    "addmm / default": ("addmm", "default"),
}
Extents = tuple[int, int, int]  # m, n, k
Demand = tuple[str, str, float, float]  # what it is of, name of the ratio, found, bar

# ---------------------------------------------------------------------------------------------------- arms


@cutlass_py.epilogue
def gelu_bias(accum: Any, bias: Any) -> Any:
    return functions.gelu(accum + bias)


@cutlass_py.epilogue
def gelu_outputs(accum: Any, bias: Any) -> Any:
    x = accum + bias
    return functions.gelu(x), {"before": x, "sums": functions.sum(x, axis=-1)}


def outputs_beside(d: Any) -> dict[str, Any]:
    """Arrays for what `gelu_outputs` stores beside D."""
    import torch

    return {"before": torch.empty_like(d), "sums": torch.empty(d.shape[:-1], device=d.device)}


def torch_activation(f: str) -> Callable[[Any], Any]:
    from torch.nn import functional

    return {
        "identity": lambda x: x,
        "relu": functional.relu,
        "silu": functional.silu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "hardswish": functional.hardswish,
        "gelu": functional.gelu,
    }[f]


def arms_of(f: str, operands: Operands, biases: list[Any], kernel: str) -> list[Arm]:
    """plain, fused, user (an epilogue written in Python, compiled in its first launch) and outputs (another, that also
    stores what gelu is of, and its sums by rows): one tile, by name; default: gemm's choice, of plain and user too;
    torch: eager; addmm: cuBLASLt's fused epilogue."""
    arms = [
        Arm("plain", ours(operands, kernel)),
        Arm("fused", ours(operands, kernel, lambda i: {"bias": biases[i], "activation": f})),
    ]
    if f == "gelu":
        gelus = [gelu_bias(bias=bias) for bias in biases]
        outputs = [gelu_outputs(bias=bias, **outputs_beside(operands[i][2])) for i, bias in enumerate(biases)]
        arms += [
            Arm("user", ours(operands, kernel, lambda i: {"epilogue": gelus[i]})),
            Arm("outputs", ours(operands, kernel, lambda i: {"epilogue": outputs[i]})),
            Arm("user default", ours(operands, None, lambda i: {"epilogue": gelus[i]})),
            Arm("plain default", ours(operands, None)),
        ]
    default = ours(operands, None, lambda i: {"bias": biases[i], "activation": f})
    arms += [Arm("default", default), Arm("torch", torchs(f, operands, biases))]
    return arms + ([Arm("addmm", addmm(f, operands, biases))] if f in ADDMM else [])


def drawn_arms(f: str, case: Case, operands: Operands, biases: list[Any]) -> list[Arm]:
    """plain default, bias default, default: gemm's choice for the product alone, with the bias, with both; torch plain:
    torch's product alone; addmm: cuBLASLt's fused epilogue."""
    arms = [
        Arm("plain default", ours(operands, None)),
        Arm("bias default", ours(operands, None, lambda i: {"bias": biases[i]})),
        Arm("default", ours(operands, None, lambda i: {"bias": biases[i], "activation": f})),
        Arm("torch plain", reference_arm(case, operands).launch),
    ]
    return arms + ([Arm("addmm", addmm(f, operands, biases))] if f in ADDMM else [])


def ours(
    operands: Operands, kernel: str | None, keywords: Callable[[int], dict[str, Any]] = lambda i: {}
) -> Callable[[int], object]:
    """gemm by a kernel, or its own choice, with the keywords for each set of operands."""
    gemm = cutlass_py.gemm

    def launch(i: int) -> None:
        a, b, d = operands[i]
        gemm(a, b, out=d, kernel=kernel, **keywords(i % operands.count))

    return launch


def torchs(f: str, operands: Operands, biases: list[Any]) -> Callable[[int], object]:
    from torch.nn.functional import linear

    activation = torch_activation(f)

    def launch(i: int) -> Any:
        a, b, _ = operands[i]
        return activation(linear(a, b.t(), biases[i % operands.count]))

    return launch


def addmm(f: str, operands: Operands, biases: list[Any]) -> Callable[[int], object]:
    import torch

    def launch(i: int) -> None:
        a, b, d = operands[i]
        if f == "identity":
            torch.addmm(biases[i % operands.count], a, b, out=d)
        else:
            torch._addmm_activation(biases[i % operands.count], a, b, use_gelu=f == "gelu_tanh", out=d)

    return launch


# ---------------------------------------------------------------------------------------------------- one case


def measure(shape: Extents, f: str, gpu: Torch, args: argparse.Namespace) -> Record:
    """Everything about one activation of one shape, as it goes into the JSON."""
    m, n, k = shape
    case = Case("epilogue", "bf16", "tn", (1, m, n, k))
    operands = Operands(case, gpu)
    biases = [gpu.random((n,), "bf16") for _ in range(operands.count)]
    record: Record = {"m": m, "n": n, "k": k, "activation": f, "sets": operands.count}
    arms = drawn_arms(f, case, operands, biases) if args.suite else arms_of(f, operands, biases, args.kernel)
    record["default"] = choice_of(f, operands, biases[0])
    record["error"] = errors(f, arms, operands, biases[0])
    # Of few elements torch's own error may be small by luck, so that rounding counts beside it.
    torch_error = record["error"]["torch plain" if args.suite else "torch"]
    record["limit"] = 4 * max(torch_error, DTYPES[case.arithmetic.result].roundoff)
    record["wrong"] = [name for name, error in record["error"].items() if not error < record["limit"]]
    rough = {arm.name: rough_us(gpu, arm) for arm in arms}
    for regime in args.regime:
        record[regime] = regime_us(gpu, regime, arms, operands.count, rough, args.budget_ms)
        rounds = alone(record[regime]["rounds_us"])
        pairs = {name: (x, y) for name, (x, y) in args.ratios.items() if x in rounds and y in rounds}
        record[regime]["ratio"] = {name: ratio_of(rounds, x, y) for name, (x, y) in pairs.items()}
    return record


def choice_of(f: str, operands: Operands, bias: Any) -> Record:
    a, b, d = operands[0]
    chosen = cutlass_py.explain(cutlass_py.GemmArguments(a, b, out=d, bias=bias, activation=f)).chosen
    route, way = chosen.route, chosen.route.way
    return {
        "kernel": route.kernel.name, "splits": route.splits, "scratch": way.scratch,
        "estimated_us": chosen.microseconds,
    }  # fmt: skip


def errors(f: str, arms: list[Arm], operands: Operands, bias: Any) -> dict[str, float]:
    """Largest error of each arm's result, relative to the largest element of the same in f32."""
    a, b, d = operands[0]
    plain = a.float() @ b.float()
    biased = plain + bias.float()
    finished = torch_activation(f)(biased)
    found = {}
    for arm in arms:
        d.fill_(math.nan)
        result = arm.launch(0)
        reference = plain if "plain" in arm.name else biased if arm.name == "bias default" else finished
        result = d if result is None else result
        found[arm.name] = float((result.float() - reference).abs().max() / reference.abs().max())
    return found


# ---------------------------------------------------------------------------------------------------- what is said


def print_header(regimes: Sequence[str], ratios: Iterable[str]) -> None:
    titles = "".join(f"  {name}" for name in ratios)
    print(f"{'':34}" + "".join(f" | {regime:^{9 + len(titles)}}" for regime in regimes))
    print(f"{'f(x @ w.T + bias), (m, n, k)':34}" + f" | {'plain us':>9}{titles}" * len(regimes) + " | default choice")


def print_row(record: Record, regimes: Sequence[str], ratios: Iterable[str]) -> None:
    times = ""
    for regime in regimes:
        timed = record[regime]
        mark = " " if timed.get("queue_filled", True) else "?"  # host time may show
        found = "".join(f"  {timed['ratio'].get(name, math.nan):{len(name)}.3f}" for name in ratios)
        times += f" |{mark}{next(iter(timed['us'].values())):9.2f}{found}"
    how = " composed" if record["default"]["scratch"] else ""
    print(f"{record['activation']:10}{extents(record)!s:24}{times} | {record['default']['kernel']}{how}", flush=True)


def extents(record: Record) -> Extents:
    return record["m"], record["n"], record["k"]


def sign(name: str) -> int:
    """1 for torch's time over ours, of which more is better; -1 for ours over ours, what an epilogue costs."""
    return 1 if name.startswith(("torch", "addmm")) else -1


def means(records: Iterable[Record], suite: str, regimes: Iterable[str]) -> list[Record]:
    """Geometric mean, 5th percentile and worst as `bench` has them, by regime and ratio, whose name stands as the mode.

    Costs are turned over for that and back after it: the worst is the largest.
    """
    turned = [
        Case(suite, "bf16", "tn", (1, *extents(record))).facts()
        | {"mode": name, regime: {"ratio": record[regime]["ratio"][name] ** sign(name)}}
        for regime, name, record in product(regimes, DRAWN_RATIOS, records)
        if name in record[regime]["ratio"]
    ]
    numbers = ("geomean", "percentile_5", "worst")
    return [row | {number: row[number] ** sign(row["mode"]) for number in numbers} for row in summarise(turned)]


def print_means(rows: Sequence[Record]) -> None:
    header, cells = summary_table(rows)
    kept = [i for i, title in enumerate(header) if not title.startswith("<")]  # bounds of gains alone
    print()
    print_table([header[i].replace("mode", "ratio") for i in kept], [[line[i] for i in kept] for line in cells])


def barred_cases(records: Iterable[Record], regimes: Sequence[str]) -> Iterator[Demand]:
    for record in records:
        for name, bar in BARS.get(record["activation"], {}).items():
            if extents(record) in BARRED.get(name, [extents(record)]):
                for regime in regimes:
                    title = f"{record['activation']} {extents(record)} {regime}"
                    yield title, name, record[regime]["ratio"].get(name, math.nan), bar


def barred_means(rows: Iterable[Record], f: str) -> Iterator[Demand]:
    for row in rows:
        bar = DRAWN_BARS.get(f, {}).get(row["mode"])
        if bar and "class" not in row:
            title = f"{f} {row['suite']} {row['regime']}, geomean of {row['cases']}"
            yield title, row["mode"], row["geomean"], bar


def verdicts(demands: Iterable[Demand], records: Iterable[Record]) -> int:
    """Prints what has a bar and what is wrong; returns how many of them fail."""
    failed = 0
    for title, name, ratio, bar in demands:
        reached = sign(name) * ratio >= sign(name) * bar
        failed += not reached
        print(f"{'reached' if reached else 'MISSED'}: {title}: {name} = {ratio:.3f}, bar {bar}")
    for record in records:
        for arm in record["wrong"]:
            failed += 1
            title = f"{record['activation']} {extents(record)} {arm}"
            print(f"WRONG: {title}: off by {record['error'][arm]:.1e}, limit {record['limit']:.1e}")
    return failed


# ---------------------------------------------------------------------------------------------------- the run


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--shape", action="append", type=shape, metavar="M,N,K", help="repeatable")
    what.add_argument("--suite", choices=SUITES, help="problems drawn anew, by gemm's choices and one activation")
    counts = ", ".join(f"{name}: {RANDOM[name].count}" for name in SUITES)
    parser.add_argument("--count", type=at_least(1), metavar="N", help=f"problems of --suite (default {counts})")
    parser.add_argument("--seed", type=at_least(0), metavar="S", help="of --suite (default: a new one, printed)")
    parser.add_argument("--activation", nargs="+", choices=ACTIVATIONS, help=f"default: all; of --suite {ACTIVATION}")
    parser.add_argument("--kernel", help="of plain and fused: the kernel of ours whose tile both have")
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--budget-ms", type=float, default=40.0, help="GPU time per arm and regime (default 40)")
    parser.add_argument("--json", type=Path, help="default: build/benchmarks/epilogue_speed-<gpu>[-<suite>].json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args(arguments)
    if not args.suite and (args.seed is not None or args.count is not None):
        parser.error("--seed and --count are of --suite")
    if args.suite and (args.kernel or len(args.activation or []) > 1):
        parser.error("--suite compares gemm's choices, of one activation: expected no --kernel, and one --activation")
    if args.suite:
        args.seed = secrets.randbelow(2**32) if args.seed is None else args.seed
        found = cases([args.suite], layouts=["tn"], seed=args.seed, count=args.count)
        args.shape, args.activation = [case.shape[1:] for case in found], args.activation or [ACTIVATION]
    else:
        args.shape, args.activation = args.shape or SHAPES, args.activation or list(ACTIVATIONS)
        args.kernel = args.kernel or KERNEL
    args.ratios = DRAWN_RATIOS if args.suite else RATIOS
    return args


def shape(text: str) -> Extents:
    try:
        m, n, k = (int(extent) for extent in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K") from None
    return m, n, k


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    try:
        import torch
    except ImportError:
        print("epilogue_speed: torch is not installed; it is what the kernels are measured against")
        return 2
    if not torch.cuda.is_available():
        print("epilogue_speed: no GPU was found")
        return 2
    gpu = Torch()
    facts = environment(args.commit)
    path = args.json or default_path("epilogue_speed", facts["machine"], *filter(None, [args.suite]))
    what = f"{args.suite}, {len(args.shape)} problems, seed {args.seed}" if args.suite else args.kernel
    print(f"{facts['machine']['gpu']}, torch {facts['versions']['torch']}, {what}; JSON: {path}")
    print_header(args.regime, args.ratios)
    square = Case("warm-up", "bf16", "tt", (1, 8192, 8192, 8192))
    warm_up(gpu, reference_arm(square, Operands(square, gpu)).launch)
    settings = {"kernel": args.kernel, "regimes": args.regime, "budget_ms": args.budget_ms, "rounds": ROUNDS}
    if args.suite:
        settings |= {"suite": args.suite, "seed": args.seed, "problems": args.shape}
    name = "timed" if args.suite else "cases"  # cases are what summary.py keeps: the table there is of one tile
    clocks, records, failed = [gpu_state()], [], 0
    for problem in args.shape:
        for f in args.activation:
            try:
                records.append(measure(problem, f, gpu, args))
                print_row(records[-1], args.regime, args.ratios)
            except Exception as error:  # the others go on
                print(f"FAILED: {f} {problem}: {reason(error)}", flush=True)
                failed += 1
        clocks.append(gpu_state())  # right after a case: the clock under load
        write(path, {**facts, **settings, "clocks": clocks, name: records})
    demands = barred_cases(records, args.regime)
    if args.suite:
        rows = means(records, args.suite, args.regime)
        print_means(rows)
        demands = barred_means(rows, args.activation[0])
    return 1 if verdicts(demands, records) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
