"""What a fused bias and activation costs: against the same tile without them, and against torch, in one run on one GPU.

    python benchmarks/epilogue_speed.py
    python benchmarks/epilogue_speed.py --shape 2048,4096,4096 --activation gelu_tanh --regime mixed

f(x @ w.T + bias) in bf16, weights (n, k). The measuring rules are in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from places import default_path

import cutlass_py
from cutlass_py import functions
from cutlass_py.bench.cases import reference_arm
from cutlass_py.bench.environment import environment, gpu_state
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.operands import Operands
from cutlass_py.bench.results import reason, write
from cutlass_py.bench.suites import Case
from cutlass_py.bench.timing import REGIMES, ROUNDS, Arm, alone, ratio_of, regime_us, rough_us, warm_up

KERNEL = "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_leanpingpong_fused"
SHAPES = [(8192, 4096, 4096), (4096, 24576, 1536), (512, 28672, 4096)]
# gelu is what a user's epilogue is shown with.
ACTIVATIONS = ("identity", "relu", "silu", "gelu_tanh", "hardswish", "gelu")
# For each activation and shape: most time of the fused kernel over the same tile without epilogue, and least of
# torch's time over the default choice's.
BARS = {"gelu_tanh": {"fused / plain": 1.05, "torch / default": 1.05}, "gelu": {"user / plain": 1.05}}
BARRED = {"user / plain": [(8192, 4096, 4096)]}  # bars of these shapes alone
# What is printed: one arm's time over another's.
RATIOS = {
    "fused / plain": ("fused", "plain"),
    "user / plain": ("user", "plain"),
    "default / plain": ("default", "plain"),
    "torch / default": ("torch", "default"),
    "addmm / default": ("addmm", "default"),
    "user / plain, defaults": ("user default", "plain default"),
}
WIDTH = max(map(len, RATIOS))
Record = dict[str, Any]

# ---------------------------------------------------------------------------------------------------- arms


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
    """plain, fused and user (an epilogue written in Python, compiled in its first launch): one tile, by name; default:
    gemm's choice, of plain and user too; torch: eager; addmm: cuBLASLt's fused epilogue."""
    gelu_bias = cutlass_py.epilogue(lambda accum, bias: functions.gelu(accum + bias))

    def bias_and_f(bias: Any) -> dict[str, Any]:
        return {"bias": bias, "activation": f}

    arms = [Arm("plain", ours(operands, biases, kernel, lambda bias: {}))]
    arms += [Arm("fused", ours(operands, biases, kernel, bias_and_f))]
    if f == "gelu":
        arms += [
            Arm("user", ours(operands, biases, kernel, lambda bias: {"epilogue": gelu_bias(bias=bias)})),
            Arm("user default", ours(operands, biases, None, lambda bias: {"epilogue": gelu_bias(bias=bias)})),
            Arm("plain default", ours(operands, biases, None, lambda bias: {})),
        ]
    arms += [Arm("default", ours(operands, biases, None, bias_and_f)), Arm("torch", torchs(f, operands, biases))]
    return arms + ([Arm("addmm", addmm(f, operands, biases))] if f in ("identity", "relu", "gelu_tanh") else [])


def ours(
    operands: Operands, biases: list[Any], kernel: str | None, keywords: Callable[[Any], dict[str, Any]]
) -> Callable[[int], object]:
    """gemm by a kernel, or its own choice, with the keywords that a bias makes."""
    gemm = cutlass_py.gemm

    def launch(i: int) -> None:
        a, b, d = operands[i]
        gemm(a, b, out=d, kernel=kernel, **keywords(biases[i % operands.count]))

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


def measure(shape: tuple[int, int, int], f: str, gpu: Torch, args: argparse.Namespace) -> Record:
    """Everything about one activation of one shape, as it goes into the JSON."""
    m, n, k = shape
    operands = Operands(Case("epilogue", "bf16", "tn", (1, m, n, k)), gpu)
    biases = [gpu.random((n,), "bf16") for _ in range(operands.count)]
    record: Record = {"m": m, "n": n, "k": k, "activation": f, "sets": operands.count}
    arms = arms_of(f, operands, biases, args.kernel)
    record["default"] = choice_of(f, operands, biases[0])
    record["error"] = errors(f, arms, operands, biases[0])
    record["wrong"] = [name for name, error in record["error"].items() if not error < 4 * record["error"]["torch"]]
    rough = {arm.name: rough_us(gpu, arm) for arm in arms}
    for regime in args.regime:
        record[regime] = regime_us(gpu, regime, arms, operands.count, rough, args.budget_ms)
        rounds = alone(record[regime]["rounds_us"])
        pairs = {name: (x, y) for name, (x, y) in RATIOS.items() if x in rounds and y in rounds}
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
    product = a.float() @ b.float()
    finished = torch_activation(f)(product + bias.float())
    found = {}
    for arm in arms:
        d.fill_(math.nan)
        result = arm.launch(0)
        reference = product if arm.name.startswith("plain") else finished
        result = d if result is None else result
        found[arm.name] = float((result.float() - reference).abs().max() / reference.abs().max())
    return found


# ---------------------------------------------------------------------------------------------------- the run


def print_header(regimes: list[str]) -> None:
    titles = "".join(f" {name:>{WIDTH}}" for name in RATIOS)
    print(f"{'':34}" + "".join(f" | {regime:^{9 + len(titles)}}" for regime in regimes))
    print(f"{'f(x @ w.T + bias), (m, n, k)':34}" + f" | {'plain us':>9}{titles}" * len(regimes) + " | default choice")


def print_row(record: Record, regimes: list[str]) -> None:
    shape = (record["m"], record["n"], record["k"])
    times = ""
    for regime in regimes:
        mark = " " if record[regime].get("queue_filled", True) else "?"  # host time may show
        ratios = "".join(f" {record[regime]['ratio'].get(name, math.nan):{WIDTH}.3f}" for name in RATIOS)
        times += f" |{mark}{record[regime]['us']['plain']:9.2f}{ratios}"
    how = " composed" if record["default"]["scratch"] else ""
    print(f"{record['activation']:10}{shape!s:24}{times} | {record['default']['kernel']}{how}", flush=True)


def verdicts(records: list[Record], regimes: list[str]) -> int:
    """Prints what has a bar and what is wrong; returns how many of them fail."""
    failed = 0
    for record in records:
        title = f"{record['activation']} {(record['m'], record['n'], record['k'])}"
        for name, bar in BARS.get(record["activation"], {}).items():
            extents = (record["m"], record["n"], record["k"])
            if extents not in BARRED.get(name, [extents]):
                continue
            for regime in regimes:
                ratio = record[regime]["ratio"].get(name, math.nan)
                reached = ratio <= bar if name.endswith("/ plain") else ratio >= bar
                failed += not reached
                print(f"{'reached' if reached else 'MISSED'}: {title} {regime}: {name} = {ratio:.3f}, bar {bar}")
        for arm in record["wrong"]:
            failed += 1
            print(f"WRONG: {title} {arm}: off by {record['error'][arm]:.1e}, torch by {record['error']['torch']:.1e}")
    return failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", type=shape, metavar="M,N,K", help="repeatable")
    parser.add_argument("--activation", nargs="+", choices=ACTIVATIONS, default=list(ACTIVATIONS))
    parser.add_argument("--kernel", default=KERNEL, help="of plain and fused: the kernel of ours whose tile both have")
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--budget-ms", type=float, default=40.0, help="GPU time per arm and regime (default 40)")
    parser.add_argument("--json", type=Path, help="default: build/benchmarks/epilogue_speed-<gpu>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    return parser.parse_args()


def shape(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = (int(extent) for extent in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K") from None
    return m, n, k


def main() -> int:
    args = parse()
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
    path = args.json or default_path("epilogue_speed", facts["machine"])
    print(f"{facts['machine']['gpu']}, torch {facts['versions']['torch']}, {args.kernel}; JSON: {path}")
    print_header(args.regime)
    square = Case("warm-up", "bf16", "tt", (1, 8192, 8192, 8192))
    warm_up(gpu, reference_arm(square, Operands(square, gpu)).launch)
    settings = {"kernel": args.kernel, "regimes": args.regime, "budget_ms": args.budget_ms, "rounds": ROUNDS}
    clocks, records, failed = [gpu_state()], [], 0
    for extents in args.shape or SHAPES:
        for f in args.activation:
            try:
                records.append(measure(extents, f, gpu, args))
                print_row(records[-1], args.regime)
            except Exception as error:  # the others go on
                print(f"FAILED: {f} {extents}: {reason(error)}", flush=True)
                failed += 1
        clocks.append(gpu_state())  # right after a case: the clock under load
        write(path, {**facts, **settings, "clocks": clocks, "cases": records})
    return 1 if verdicts(records, args.regime) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
