"""What a calibration measures: random problems, each by many kernels and routes in turns, as `tune` does.

Of our own kernels those that the estimates put first, the first few in every order of their tiles (groups of lines have
one), and some at random,
for what is never measured is never put first. Every other one of the rest goes in another order too, and every other
problem has an activation. Of routes the first of each kind: a family, directly, with copies or with k in parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from math import isfinite
from random import Random
from typing import Any

from .. import _core
from .._core import Problem
from ..arrays.gpu import Gpu
from ..bench.suites import cases
from ..declaration.config import SCHEDULES
from ..declaration.families import FAMILIES
from ..dispatch.autotune import in_every_order
from ..dispatch.candidates import Choice, Route, rank
from ..dispatch.launch_plan import launch_plan_of
from ..kernels.adaptation import Way
from ..kernels.kernel import CutlassKernel
from ..kernels.operation import operation_of
from ..kernels.registry import all_kernels
from ..operations.gemm.calibration import DEPTH, GROUPS, ROUTES, SUMS
from ..operations.gemm.problems import arguments
from ..operations.gemm.suites import RANDOM
from ..operations.gemm.wgmma_estimate import sums_of
from ..operations.grouped_gemm import problems as grouped
from ..operations.grouped_gemm.operation import SPREADS, order_of
from ..operations.grouped_gemm.suites import sizes_of

Entry = dict[str, Any]  # a problem, and the microseconds of each round of what was run on it

# Seconds of each part, of those that there are kernels for.
SECONDS = {"usual": 31.0, "fast": 9.0, "promoted": 11.0, "factors": 9.0, GROUPS: 28.0, DEPTH: 12.0, ROUTES: 20.0}
_DTYPES = dict(zip(SUMS, ("bf16", "e4m3_fast", "e4m3", "e4m3_block"), strict=False))  # of bench, by how they sum
_GROUPS, _LINES, _MATRIX, _MOST_FLOPS = 2**8, 2**13, 2**32, 1.2e12  # at most; of a group, and bytes of an operand
_FIRST, _IN_EVERY_ORDER, _AT_RANDOM, _ROUNDS = 16, 2, 4, 4
_OF_EACH_KIND, _SMALL = 4, 20.0  # routes; microseconds
_FAR = 5  # times the first route's estimate: by a few rows' kernels a large product takes hundreds
_ACTIVATIONS = ("identity", "gelu_tanh", "identity", "relu")  # of problems, in turn: what is cheap, and what is dear
# Operands of routes and their arithmetic, in turn, and at most how many products: some hundred microseconds of each.
_OPERANDS = (
    ("bf16", None, 2**36), ("s8", None, 2**36), ("bf16", None, 2**36), ("f32", "tf32", 2**35), ("f64", None, 2**34),
    ("bf16", None, 2**36), ("f16", None, 2**36), ("f32", "f32", 2**33), ("f32", "3xtf32", 2**34), ("c64", None, 2**31),
    ("c128", None, 2**31), ("u8", None, 2**36),
)  # fmt: skip


def parts(gpu: Gpu) -> list[str]:
    """What there is to measure: ways to sum of our own kernels, where they run, and routes."""
    lowest, highest = FAMILIES["sm90_lean"].cc
    own = {sums_of(k.config) for k in _ours()} if lowest <= gpu.cc <= highest else set()
    return [name for name in SECONDS if name in own or name == ROUTES]


def measure(part: str, gpu: Gpu, seconds: float, seed: int) -> Iterator[Entry]:
    """Problems of one part as they are measured, for so long."""
    end, random = time.monotonic() + seconds, Random(seed)
    found = _routes(random) if part == ROUTES else _arms(part, gpu, random, seed)
    for entry in found:
        yield entry
        if time.monotonic() > end:
            return


# ---------------------------------------------------------------------------------------------------- our own kernels


def _ours() -> list[CutlassKernel]:
    families = ("sm90_lean", "sm90_grouped")
    return [k for k in all_kernels(compiled=True) if isinstance(k, CutlassKernel) and k.config.family in families]


def _arms(sums: str, gpu: Gpu, random: Random, seed: int) -> Iterator[Entry]:
    groups = {GROUPS: drawn_groups, DEPTH: drawn_depths}.get(sums)
    problems = groups(random) if groups else (case.problem() for case in drawn(sums, seed))
    for entry, activation in zip(problems, cycle(_ACTIVATIONS), strict=False):
        p = problem_of({**entry, "activation": activation})
        choices = arms_of(p, gpu, random)
        if len(choices) < 2:  # it is packed, or odd
            continue
        sizes = sizes_drawn(p, random)
        found = times(p, choices, list(accumulate(sizes)))
        arms = [(choice.route.kernel.name, choice.raster, choice.swizzle, us) for choice, us in found]
        problem = entry if p.grouped else (p.m, p.n, p.k, p.batch)
        yield {"problem": problem, "sizes": sizes, "activation": activation, "arms": arms}


def problem_of(entry: Entry) -> Problem:
    """Of operands on the first GPU."""
    made = grouped.arguments if "groups" in entry else arguments
    return made(entry, "cuda:0").problem


def sizes_drawn(p: Problem, random: Random) -> list[int]:
    """Lines of each of a problem's groups, as unequal as in one of the suites."""
    total = {"m": p.m, "k": p.k}.get("" if p.stacked else p.grouped, 0)
    return list(sizes_of(random.choice(tuple(SPREADS)), p.batch, total, random.random)) if total else []


def drawn_groups(random: Random) -> Iterator[Entry]:
    """Groups of rows, and the first rows of matrices, without an end: few and many, of few rows and of many."""
    for groups, lines, n, k in _drawn_experts(random, 1):
        stacked = random.random() < 0.2
        layout = random.choice(("tn", "tn", "tt", "nn")) if stacked else random.choice(("tn", "tn", "tt"))
        m, axis = (lines, "batch") if stacked else (groups * lines, "m")
        yield {"groups": groups, "m": m, "n": n, "k": k, "axis": axis, "a": "bf16", "layout": layout}


def drawn_depths(random: Random) -> Iterator[Entry]:
    """Groups of k, without an end: few and many, of short sums and of long ones."""
    for groups, lines, m, n in _drawn_experts(random, 16):
        yield {"groups": groups, "m": m, "n": n, "k": groups * lines, "axis": "k", "a": "bf16", "layout": "nt"}


def _drawn_experts(random: Random, unit: int) -> Iterator[tuple[int, int, int, int]]:
    """How many, how many lines each has (a multiple of that), and the extents of its matrix."""
    while True:
        groups = 4 * int((_GROUPS / 4) ** random.random())
        lines = unit * int((_LINES / unit) ** random.random() ** 0.5)  # of few, one is as another
        x, y = _extent(random), _extent(random)
        largest = 2 * groups * max(lines * x, lines * y, x * y)
        if largest <= _MATRIX and 2 * groups * lines * x * y <= _MOST_FLOPS:
            yield groups, lines, x, y


def _extent(random: Random) -> int:
    """Of a layer: some 768 to 30,720, a multiple of 64 to 1024; one in eight has a little more."""
    unit = 64 << random.randrange(5)
    whole: int = round(768 * 40 ** random.random() / unit)
    return unit * whole + random.choice((*21 * (0,), 8, 16, 32))


def drawn(sums: str, seed: int) -> Iterator[Any]:
    """Cases of the random suites, one layout after the other, without an end."""
    while True:
        found = cases(("random", "random-layer", "random-batched"), (_DTYPES[sums],), seed=seed)
        Random(seed).shuffle(found)
        yield from found
        seed += 1


def arms_of(p: Any, gpu: Gpu, random: Random) -> list[Choice]:
    """What is measured of a problem: kernels that take the operands as they lie."""
    ways: dict[Any, Any] = {}
    ranked = []
    for kernel in _ours():
        if kernel.interface not in ways:
            ways[kernel.interface] = kernel.way(p, gpu)
        way = ways[kernel.interface]
        if isinstance(way, Way) and not way.detours:
            raster, swizzle = operation_of(p).tile_order(kernel, p, gpu)
            us, *_ = operation_of(p).forced(kernel, way, p, gpu)
            ranked.append((us, kernel.name, Choice(Route(kernel, way), us, swizzle, raster)))
    ranked.sort(key=lambda each: each[:2])
    choices = [choice for *_, choice in ranked]
    found = choices[:_FIRST] + random.sample(choices[_FIRST:], min(_AT_RANDOM, len(choices[_FIRST:])))
    arms = []
    for i, choice in enumerate(found):
        itself, *others = [choice] if order_of(p) else in_every_order(p, [choice])
        if i >= _IN_EVERY_ORDER:
            others = random.sample(others, 1) if others and i % 2 else []
        arms += [itself, *others]
    random.shuffle(arms)  # behind itself in another order a kernel is faster: 50 ns
    return arms


# ---------------------------------------------------------------------------------------------------- routes


def _routes(random: Random) -> Iterator[Entry]:
    seeds = (random.randrange(2**32) for _ in cycle((0,)))
    for (a, compute, most), seed in zip(cycle(_OPERANDS), seeds, strict=False):
        suite = RANDOM[random.choice(("random", "random", "random-odd", "random-batched"))]
        batch, m, n, k = suite.shapes(seed, 1)[0]
        while batch * m * n * k > most:
            m, n, k = (max(1, x // 2) for x in (m, n, k))
        problem = {"m": m, "n": n, "k": k, "batch": batch, "a": a, "compute": compute}
        problem["layout"] = random.choice(("tn", "tt", "nn", "nt"))
        p = arguments(problem, "cuda:0").problem
        if choices := routes_of(rank(p)):
            routes = [choice.route.record() | {"us": us} for choice, us in times(p, choices)]
            yield {"problem": problem, "routes": routes}


def routes_of(ranking: Sequence[Choice]) -> list[Choice]:
    """The first of each kind, where the choice is not among our own kernels alone."""
    kinds: dict[tuple[str, str], list[Choice]] = {}
    for choice in ranking:
        kernel = choice.route.kernel
        if isinstance(kernel, CutlassKernel) and choice.microseconds < _FAR * ranking[0].microseconds:
            how = "direct" if choice.route.direct else "cut" if choice.route.splits > 1 else "copied"
            family = "unaligned" if SCHEDULES[kernel.config.schedule].unaligned else kernel.config.family
            kinds.setdefault((family, how), []).append(choice)
    if len(kinds) < 2 or (("sm90_lean", "direct") in kinds and ranking[0].microseconds > _SMALL):
        return []
    return [choice for choices in kinds.values() for choice in choices[:_OF_EACH_KIND]]


def times(p: Any, choices: Sequence[Choice], ends: Sequence[int] = ()) -> Iterator[tuple[Choice, list[float]]]:
    """Microseconds of each round, of those that ran; of groups that end there."""
    found = _core.measure(p, [launch_plan_of(choice, p) for choice in choices], _ROUNDS, ends)
    for choice, us in zip(choices, found, strict=True):
        if all(map(isfinite, us)):
            yield choice, [round(t, 3) for t in us]
