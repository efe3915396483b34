"""fp8 with scales in blocks, 1x128 by 128x128: against torch's scaled_mm on the same arrays, in one run on one GPU.

    python benchmarks/blockwise_speed.py
    python benchmarks/blockwise_speed.py --shape 2048,4096,7168 --kernel all --regime sustained

DeepGEMM's published figures are printed beside, of another machine. The measuring rules are in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import (
    REGIMES,
    Arm,
    default_path,
    geomean,
    gpu_state,
    regime_us,
    rough_us,
    surroundings,
    warm_up,
    write_json,
)
from operands import sets_of

import cutlass_py

ROUNDS = 5
BAR = 1.0  # of the geometric mean of torch's time over ours, in every regime
# TFLOP/s by (m, n, k): "Normal GEMMs for dense models" in DeepGEMM's README of February 2025, when it was published
# (github.com/deepseek-ai/DeepGEMM), measured by its authors on an H800 with NVCC 12.8. Later versions claim up to 1550
# and have no such table.
PUBLISHED = {
    (64, 2112, 7168): 206, (64, 24576, 1536): 289, (64, 32768, 512): 219, (64, 7168, 16384): 336,
    (64, 4096, 7168): 287, (64, 7168, 2048): 295, (128, 2112, 7168): 352, (128, 24576, 1536): 535,
    (128, 32768, 512): 358, (128, 7168, 16384): 645, (128, 4096, 7168): 533, (128, 7168, 2048): 510,
    (4096, 2112, 7168): 1058, (4096, 24576, 1536): 990, (4096, 32768, 512): 590, (4096, 7168, 16384): 1358,
    (4096, 4096, 7168): 1304, (4096, 7168, 2048): 1025,
}  # fmt: skip
Record = dict[str, Any]

# ---------------------------------------------------------------------------------------------------- operands


class Blocks:
    """A, B, their scales and D, in as many sets as outgrow the cache; scales lie as torch wants them."""

    def __init__(self, m: int, n: int, k: int) -> None:
        self.count = sets_of(m * k + k * n + 2 * m * n)
        self.sets = [self._random(m, n, k) for _ in range(self.count)]

    @staticmethod
    def _random(m: int, n: int, k: int) -> tuple[Any, Any, dict[str, Any], Any]:
        import torch

        def quantised(rows: int) -> Any:
            return torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn)

        def scale(shape: tuple[int, int]) -> Any:
            return (torch.rand(shape, device="cuda") + 0.5) / k**0.5

        depth = math.ceil(k / 128)
        # One column of n after the other, padded to 4 blocks of k.
        columns = scale((math.ceil(n / 128), math.ceil(depth / 4) * 4))[:, :depth].t()
        scales = {"scale_a": scale((depth, m)).t(), "scale_b": columns}
        return quantised(m), quantised(n).t(), scales, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def __getitem__(self, index: int) -> tuple[Any, Any, dict[str, Any], Any]:
        return self.sets[index % self.count]


# ---------------------------------------------------------------------------------------------------- arms


def ours(blocks: Blocks, kernel: str | None = None) -> Callable[[int], object]:
    gemm = cutlass_py.gemm

    def launch(i: int) -> Any:
        a, b, scales, d = blocks[i]
        return gemm(a, b, out=d, kernel=kernel, **scales)

    return launch


def torchs(blocks: Blocks) -> Callable[[int], object]:
    from torch.nn.functional import ScalingType, scaled_mm

    rows, squares = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128

    def launch(i: int) -> Any:
        a, b, scales, _ = blocks[i]
        return scaled_mm(a, b, scales["scale_a"], rows, scales["scale_b"], squares)

    return launch


def arms_of(blocks: Blocks, kernels: list[str]) -> list[Arm]:
    """default: gemm's choice; torch: scaled_mm, where this torch and its CUDA have it for blocks; kernels by name."""
    a, b, scales, d = blocks[0]
    arms = [Arm("default", ours(blocks))]
    try:
        torchs(blocks)(0)
        arms.append(Arm("torch", torchs(blocks)))
    except (ImportError, RuntimeError, NotImplementedError) as refusal:
        print(f"torch is left out: {str(refusal).splitlines()[0]}")
    args = cutlass_py.GemmArguments(a, b, out=d, **scales)
    fitting = {kernel.name for kernel in cutlass_py.get_kernels(args)}
    return arms + [Arm(name, ours(blocks, name)) for name in (fitting if kernels == ["all"] else kernels)]


# ---------------------------------------------------------------------------------------------------- one case


def measure(shape: tuple[int, int, int], args: argparse.Namespace) -> Record:
    """Everything about one shape, as it goes into the JSON."""
    m, n, k = shape
    blocks = Blocks(m, n, k)
    a, b, scales, d = blocks[0]
    chosen = cutlass_py.explain(cutlass_py.GemmArguments(a, b, out=d, **scales)).chosen
    record: Record = {"m": m, "n": n, "k": k, "sets": blocks.count, "deepgemm_tflops": PUBLISHED.get(shape)}
    record["default"] = {"kernel": chosen.route.kernel.name, "splits": chosen.route.splits}
    arms = arms_of(blocks, args.kernel)
    record["error"] = errors(arms, blocks)
    limit = max(4 * record["error"].get("torch", 0), 2**-7)  # bf16 has 8 bits
    record["wrong"] = [name for name, error in record["error"].items() if not error < limit]
    rough = {arm.name: rough_us(arm) for arm in arms}
    for regime in args.regime:
        record[regime] = regime_us(regime, arms, blocks.count, rough, args.budget_ms, ROUNDS)
        us = record[regime]["us"]
        record[regime]["tflops"] = {name: 2e-6 * m * n * k / time for name, time in us.items()}
        record[regime]["ratio"] = {name: us["torch"] / us[name] for name in us if "torch" in us and name != "torch"}
    return record


def errors(arms: list[Arm], blocks: Blocks) -> dict[str, float]:
    """Largest error of each arm's result, relative to the largest element of the product in f32."""
    a, b, scales, d = blocks[0]
    rows = scales["scale_a"].repeat_interleave(128, 1)[:, : a.shape[1]]
    columns = scales["scale_b"].repeat_interleave(128, 0).repeat_interleave(128, 1)[: b.shape[0], : b.shape[1]]
    reference = (a.float() * rows) @ (b.float() * columns)
    found = {}
    for arm in arms:
        d.fill_(math.nan)
        found[arm.name] = float((arm.launch(0).float() - reference).abs().max() / reference.abs().max())
    return found


# ---------------------------------------------------------------------------------------------------- the run


def print_row(record: Record, regimes: list[str]) -> None:
    shape, text = (record["m"], record["n"], record["k"]), ""
    for regime in regimes:
        tflops, ratio = record[regime]["tflops"], record[regime]["ratio"].get("default", math.nan)
        fastest = max((name for name in tflops if name != "torch"), key=tflops.__getitem__)
        text += f" | {tflops['default']:8.0f} {tflops.get('torch', math.nan):8.0f} {ratio:8.3f} {tflops[fastest]:8.0f}"
    chosen = record["default"]
    how = f" in {chosen['splits']} parts" if chosen["splits"] > 1 else ""
    print(f"{shape!s:20}{record['deepgemm_tflops'] or '':>9}{text} | {chosen['kernel']}{how}", flush=True)


def verdicts(records: list[Record], regimes: list[str]) -> int:
    """Prints what has a bar and what is wrong; returns how many of them fail."""
    failed = 0
    for regime in regimes:
        ratios = [r[regime]["ratio"]["default"] for r in records if r[regime]["ratio"]]
        if not ratios:
            continue
        mean, worst = geomean(ratios), min(ratios)
        failed += mean < BAR
        verdict = "reached" if mean >= BAR else "MISSED"
        print(f"{verdict}: {regime}: torch / default = {mean:.3f}, bar {BAR}; worst {worst:.3f} of {len(ratios)}")
    for record in records:
        for arm in record["wrong"]:
            failed += 1
            print(f"WRONG: {(record['m'], record['n'], record['k'])} {arm}: off by {record['error'][arm]:.1e}")
    return failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", type=shape, metavar="M,N,K", help="repeatable")
    parser.add_argument(
        "--kernel", nargs="+", default=[], help="time these too, by name; or all that take the operands"
    )
    parser.add_argument("--regime", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--budget-ms", type=float, default=40.0, help="GPU time per arm and regime (default 40)")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/blockwise_speed-<gpu>.json")
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
        print("blockwise_speed: torch is not installed; it is what the kernels are measured against")
        return 2
    if not torch.cuda.is_available():
        print("blockwise_speed: no GPU was found")
        return 2
    torch.manual_seed(0)
    facts = surroundings(args.commit)
    path = args.json or default_path("blockwise_speed", facts["machine"])
    print(f"{facts['machine']['gpu']}, torch {facts['versions']['torch']}; TFLOP/s; JSON: {path}")
    columns = " | " + " ".join(f"{title:>8}" for title in ("default", "torch", "ratio", "fastest"))
    print(f"{'(m, n, k)':20}{'DeepGEMM*':>9}{columns * len(args.regime)} | default choice; regimes: {args.regime}")
    print("* as published, on an H800")
    warm_up()
    clocks, records = [gpu_state()], []
    for extents in args.shape or PUBLISHED:
        records.append(measure(extents, args))
        print_row(records[-1], args.regime)
        clocks.append(gpu_state())  # right after a case: the clock under load
    settings = {"regimes": args.regime, "budget_ms": args.budget_ms, "rounds": ROUNDS}
    write_json(path, {**facts, **settings, "clocks": clocks, "cases": records})
    return 1 if verdicts(records, args.regime) else 0


if __name__ == "__main__":
    sys.exit(main())
