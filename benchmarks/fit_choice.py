"""Measures our own wgmma kernels on random problems, and fits the constants of their estimates to what was measured.

    python benchmarks/fit_choice.py measure usual.json --sums usual --seconds 200
    python benchmarks/fit_choice.py fit usual.json fast.json ...
    python benchmarks/fit_choice.py measure routes.json --routes    # for fit_cost.py

`measure` times compiled kernels as `tune` does: those that the estimates put first, the first few in every order of
their tiles, and some at random, for what is never measured is never put first. Every other one of the rest goes in
another order too, and every other problem has an activation.
With --routes, of each problem that TMA cannot read or store, or that is small, the first routes by CUTLASS's 2.x
kernels, by ours with copies, by ours without, and by ours whose threads load.
`fit` prints, for each way to sum, how near the choice among what was measured comes to the best of it: by the constants
of wgmma_estimate.py, by those found from three quarters of the problems on the other quarter, and last the constants
found from all, to be copied. What is held out tells something only where the constants of before, which a fit starts
from and stays near, have not seen those problems either.

Robust least squares (Huber's) of the logarithm of estimate over time, by Levenberg and Marquardt's steps. An arm counts
by how near it is to its problem's best, and what all arms of a problem have in common counts little: the choice does
not depend on it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cutlass_py import _core
from cutlass_py.arrays.gpu import Gpu, device
from cutlass_py.bench.results import geomean
from cutlass_py.bench.suites import Case, cases
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.families import find
from cutlass_py.dispatch.autotune import in_every_order
from cutlass_py.dispatch.candidates import Choice, Route, rank
from cutlass_py.dispatch.launch_plan import launch_plan_of
from cutlass_py.kernels.adaptation import Way
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import all_kernels
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.operations.gemm.wgmma_estimate import CONSTANTS, SUMS, design_of, estimate

_DTYPES = dict(zip(SUMS, ("bf16", "e4m3_fast", "e4m3", "e4m3_block"), strict=True))  # of bench, by how they sum
_FIRST, _IN_EVERY_ORDER, _AT_RANDOM, _ROUNDS = 24, 4, 8, 4
_OF_EACH_KIND, _SMALL = 6, 20.0  # routes; microseconds
_ACTIVATIONS = ("identity", "gelu_tanh", "identity", "relu")  # of problems, in turn: what is cheap, and what is dear

Arm = tuple[str, int, int, list[float]]  # kernel, raster, swizzle, microseconds

# ---------------------------------------------------------------------------------------------------- measuring


def drawn(sums: str, seed: int) -> Iterator[Case]:
    """Cases of the random suites, one layout after the other, without an end."""
    while True:
        found = cases(("random", "random-layer", "random-batched"), (_DTYPES[sums],), seed=seed)
        Random(seed).shuffle(found)
        yield from found
        seed += 1


def arms_of(case: Case, activation: str, gpu: Gpu, random: Random) -> tuple[Any, list[Choice]]:
    """A case's problem, and what is measured of it: kernels that take the operands as they lie."""
    p = arguments({**case.problem(), "activation": activation}, "cuda:0").problem
    ways: dict[Any, Any] = {}
    ranked = []
    for kernel in all_kernels(compiled=True):
        if not isinstance(kernel, CutlassKernel) or kernel.config.family != "sm90_lean":
            continue
        if kernel.interface not in ways:
            ways[kernel.interface] = kernel.way(p, gpu)
        way = ways[kernel.interface]
        if isinstance(way, Way) and not way.detours:
            us, raster, swizzle = estimate(kernel.config, gpu, p.m, p.n, p.k, p.batch, p.activation)
            ranked.append((us, kernel.name, Choice(Route(kernel, way), us, swizzle, raster)))
    ranked.sort(key=lambda each: each[:2])
    choices = [choice for *_, choice in ranked]
    found = choices[:_FIRST] + random.sample(choices[_FIRST:], min(_AT_RANDOM, len(choices[_FIRST:])))
    arms = []
    for i, choice in enumerate(found):
        itself, *others = in_every_order(p, [choice])
        if i >= _IN_EVERY_ORDER:
            others = random.sample(others, 1) if others and i % 2 else []
        arms += [itself, *others]
    random.shuffle(arms)  # behind itself in another order a kernel is faster: 50 ns
    return p, arms


def measure(sums: str, seconds: float, seed: int) -> dict[str, Any]:
    """Times of random problems, for so long."""
    gpu, random, end = device(0), Random(seed), time.monotonic() + seconds
    problems = []
    for case, activation in zip(drawn(sums, seed), cycle(_ACTIVATIONS), strict=False):
        if time.monotonic() > end:
            break
        p, choices = arms_of(case, activation, gpu, random)
        if len(choices) < 2:
            continue  # packed, or odd
        arms = [(choice.route.kernel.name, choice.raster, choice.swizzle, us) for choice, us in _times(p, choices)]
        problem = {"problem": (p.m, p.n, p.k, p.batch), "layout": case.layout, "activation": activation}
        problems.append({**problem, "arms": arms})
    found = {"sums": sums, "seed": seed, "gpu": gpu.name, "clusters": gpu.clusters, "problems": problems}
    print(f"{sums}: {len(problems)} problems on {gpu.name}, seed {seed}")
    return found


def measure_routes(sums: str, seconds: float, seed: int) -> dict[str, Any]:
    """Times of routes to random problems, for so long."""
    gpu, end, problems = device(0), time.monotonic() + seconds, []
    for case in drawn(sums, seed):
        if time.monotonic() > end:
            break
        p = arguments(case.problem(), "cuda:0").problem
        if choices := routes_of(rank(p)):
            routes = [choice.route.record() | {"us": us} for choice, us in _times(p, choices)]
            problems.append({"problem": case.problem(), "routes": routes})
    print(f"{sums}: routes of {len(problems)} problems on {gpu.name}, seed {seed}")
    machine = {"gpu": gpu.name, "compute_capability": gpu.cc, "sm_count": gpu.sm_count}
    return {"seed": seed, "machine": machine, "routed": problems}


def routes_of(ranking: Sequence[Choice]) -> list[Choice]:
    """The first of each kind, where the choice is not among our own kernels alone."""
    kinds: dict[str, list[Choice]] = {"sm80_gemm": [], "copied": [], "direct": [], "unaligned": []}
    for choice in ranking:
        kernel = choice.route.kernel
        if isinstance(kernel, CutlassKernel):
            c = kernel.config
            ours = "unaligned" if SCHEDULES[c.schedule].unaligned else "direct" if choice.route.direct else "copied"
            kind = ours if c.family == "sm90_lean" else c.family
            if kind in kinds:
                kinds[kind].append(choice)
    if kinds["direct"] and ranking[0].microseconds > _SMALL:
        return []
    return [choice for choices in kinds.values() for choice in choices[:_OF_EACH_KIND]]


def _times(p: Any, choices: Sequence[Choice]) -> Iterator[tuple[Choice, list[float]]]:
    """Microseconds of each round, of those that ran."""
    times = _core.measure(p, [launch_plan_of(choice, p) for choice in choices], _ROUNDS)
    for choice, us in zip(choices, times, strict=True):
        if np.isfinite(us).all():
            yield choice, [round(t, 3) for t in us]


# ---------------------------------------------------------------------------------------------------- fitting

# How far a constant may go from where it was before that counts as an error; of all others, a half.
_WIDE = {"outside_along": 2.0, "lines16": 2.0, "panels32": 3.0, "panels16": 6.0, "load": 1.0, "beside": 1.0,
         "joined": 1.0, "direct": 1.0, "narrow": 1.0, "rate": 0.3, "near": 1.0}  # fmt: skip
_FAR = 3.5  # times the best: what is slower says nothing about the choice
_NEAR, _LEAST = 0.2, 0.03  # an arm that is slower by this share counts 1/e, and this at least
_COMMON = 0.1  # what counts of a problem's common error
_USUAL, _NOISE = 0.15, 0.03  # errors beyond the former count linearly; the latter is one unit


@dataclass(frozen=True)
class Timed:
    """One problem: products, designs and orders of its arms as the formula takes them, and their times."""

    products: list[tuple[int, ...]]
    designs: list[Any]
    orders: list[tuple[int, int]]
    us: np.ndarray


def timed_of(entry: dict[str, Any]) -> Timed:
    """A problem of a file: medians over rounds, from each of which its own level, which is the clock's, was taken."""
    arms: list[Arm] = entry["arms"]
    rounds = min(len(us) for *_, us in arms)
    log = np.log([us[:rounds] for *_, us in arms])
    us = np.exp(np.median(log - np.median(log - log.mean(1, keepdims=True), 0), 1))
    near = np.flatnonzero(us < _FAR * us.min())
    return Timed(
        [tuple(entry["problem"])] * len(near),
        [design_of(find(arms[i][0]), entry["activation"]) for i in near],
        [(arms[i][1], arms[i][2]) for i in near],
        us[near],
    )


class Readings:
    """Arms of many problems, and how the formula errs on them."""

    def __init__(self, timed: Sequence[Timed], clusters: tuple[int, ...]) -> None:
        self.arms = _core.WgmmaArms(
            [x for each in timed for x in each.products],
            [x for each in timed for x in each.designs],
            [x for each in timed for x in each.orders],
        )
        self.clusters = clusters
        counts = [len(each.us) for each in timed]
        self.first = np.cumsum([0, *counts[:-1]])
        self.of = np.repeat(np.arange(len(timed)), counts)
        self.us = np.concatenate([each.us for each in timed])
        self.weigh(self.us)

    def estimates(self, constants: np.ndarray) -> np.ndarray:
        return np.array(_core.WgmmaEstimates(list(constants), self.clusters).times(self.arms))

    def weigh(self, estimated: np.ndarray) -> None:
        """By how near an arm is to the best one, measured or estimated."""
        ratios = [values / np.minimum.reduceat(values, self.first)[self.of] for values in (self.us, estimated)]
        self.weights = np.exp((1 - np.minimum(*ratios)) / _NEAR) + _LEAST
        self.total = np.add.reduceat(self.weights, self.first)

    def errors(self, constants: np.ndarray) -> np.ndarray:
        return self.apart(np.log(self.us / self.estimates(constants)))

    def apart(self, values: np.ndarray) -> np.ndarray:
        """Most of what the arms of a problem have in common taken off."""
        common = np.add.reduceat(self.weights * values, self.first) / self.total
        return values - (1 - _COMMON) * common[self.of]

    def choices(self, constants: np.ndarray) -> np.ndarray:
        """For each problem the best time over that of the arm which the estimates put first."""
        estimated, ends = self.estimates(constants), [*self.first[1:], len(self.us)]
        return np.array([
            self.us[low:high].min() / self.us[low + estimated[low:high].argmin()]
            for low, high in zip(self.first, ends, strict=True)
        ])  # fmt: skip


def fit(readings: Readings, start: np.ndarray, rounds: int = 2, steps: int = 25) -> np.ndarray:
    """The constants that err least, by steps from where they were."""
    names = _core.wgmma_constants()
    width = np.array([_WIDE.get(name, 0.5) for name in names])
    x = start
    for _ in range(rounds):
        x = _descend(readings, x, start, width, steps)
        readings.weigh(readings.estimates(x))
    return _descend(readings, x, start, width, steps)


def _descend(readings: Readings, x: np.ndarray, start: np.ndarray, width: np.ndarray, steps: int) -> np.ndarray:
    def cost(errors: np.ndarray, x: np.ndarray) -> float:
        size = np.abs(errors)
        huber = np.where(size < _USUAL, errors**2, 2 * _USUAL * size - _USUAL**2)
        return float((readings.weights * huber).sum() / _NOISE**2 + (((x - start) / width) ** 2).sum())

    damping, moved = 1.0, 1e-4 * np.minimum(width, 1)
    errors = readings.errors(x)
    before = cost(errors, x)
    for _ in range(steps):
        slopes = np.stack([(readings.errors(x + row) - errors) / row.sum() for row in np.diag(moved)], 1)
        weights = readings.weights * np.minimum(1, _USUAL / np.maximum(np.abs(errors), 1e-9)) / _NOISE**2
        curvature = (slopes * weights[:, None]).T @ slopes + np.diag(width**-2.0)
        downhill = -(slopes * weights[:, None]).T @ errors - (x - start) / width**2
        for _ in range(8):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
            there = x + np.clip(step, -0.7 * width, 0.7 * width)
            new = readings.errors(there)
            if (after := cost(new, there)) < before:
                break
            damping *= 4
        else:
            return x
        done = before - after < 1e-4 * before
        x, errors, before, damping = there, new, after, damping / 4
        if done:
            return x
    return x


def _said(how: str, found: np.ndarray) -> str:
    worst = f"5th percentile {np.percentile(found, 5):.3f}, worst {found.min():.3f}"
    return f"  {how:28s} best over chosen {geomean(list(found)):.4f}, {worst}"


def fit_all(paths: Sequence[Path], seed: int) -> dict[str, np.ndarray]:
    """The constants of each way to sum that was measured; what others have not is where the usual ones' is."""
    files = [json.loads(path.read_text()) for path in paths]
    names, found = _core.wgmma_constants(), {}
    for column, sums in enumerate(SUMS):
        mine = [file for file in files if file["sums"] == sums]
        problems = [entry for file in mine for entry in file["problems"]]
        left = [entry for entry in map(_declared, problems) if entry["arms"]]
        if not left:
            continue
        timed = [timed_of(entry) for entry in left]
        gone = sum(len(entry["arms"]) for entry in problems) - sum(len(entry["arms"]) for entry in left)
        Random(seed).shuffle(timed)
        clusters = tuple(mine[0]["clusters"])
        held, others, whole = (Readings(part, clusters) for part in (timed[::4], _three_of_four(timed), timed))
        now = np.array([CONSTANTS[name][column] for name in names])
        print(f"{sums}: {len(timed)} problems, {len(whole.us)} arms; {gone} of kernels that are gone")
        print(_said("as they are", held.choices(now)))
        print(_said("found from the others", held.choices(fit(others, now))))
        found[sums] = fit(whole, now)
    for i, name in enumerate(names):
        row = [found[sums][i] if sums in found else CONSTANTS[name][column] for column, sums in enumerate(SUMS)]
        print(f'    "{name}": ({", ".join(f"{value:.4g}" for value in row)}),')
    return found


def _declared(entry: dict[str, Any]) -> dict[str, Any]:
    """A problem without arms of kernels that are gone since it was measured."""
    return {**entry, "arms": [arm for arm in entry["arms"] if find(arm[0])]}


def _three_of_four(timed: Sequence[Timed]) -> list[Timed]:
    return [each for i, each in enumerate(timed) if i % 4]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="time random problems on the first GPU")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("--sums", choices=SUMS, default=SUMS[0])
    measuring.add_argument("--seconds", type=float, default=100)
    measuring.add_argument("--seed", type=int, default=0)
    measuring.add_argument("--routes", action="store_true", help="by other kernels and with copies, for fit_cost.py")
    fitting = commands.add_parser("fit", help="fit the constants to such files")
    fitting.add_argument("files", nargs="+", type=Path)
    fitting.add_argument("--seed", type=int, default=0, help="of the quarter that is held out")
    args = parser.parse_args(argv)
    if args.command == "fit":
        fit_all(args.files, args.seed)
    else:
        found = (measure_routes if args.routes else measure)(args.sums, args.seconds, args.seed)
        args.file.write_text(json.dumps(found, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
