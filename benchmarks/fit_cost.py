"""Fits constants of operations/gemm/cost.py to what was timed, and says what the choice makes of them.

    pip install scipy
    python -m cutlass_py bench --suite llm square --all-kernels --json sweep.json
    python benchmarks/fit_cost.py sweep.json ...                           # those of 3.x kernels
    python benchmarks/fit_cost.py sweep.json light.json --regime sustained light
    python benchmarks/fit_choice.py measure routes.json --routes
    python benchmarks/fit_cost.py routes.json --routes                     # those of what is beside them

Robust least squares of the logarithm of estimate over time, which each regime after the first may divide by a factor of
its own: its clock is another. A kernel counts by how near it comes to its problem's fastest one: far behind that, the
order does not matter. The choice among all kernels that were timed is judged by the best time over its time, as
geometric means: with the constants as they are, with those found, and with those found from three quarters of the
(n, k), on the problems of the fourth. What is found is printed, to be copied.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from kernel_set import groups_of
from scipy.optimize import least_squares

from cutlass_py._core import Problem
from cutlass_py.arrays.gpu import ABSENT, Gpu, bandwidth_of
from cutlass_py.bench.results import geomean
from cutlass_py.bench.timing import ALL_REGIMES
from cutlass_py.declaration.families import find, named
from cutlass_py.kernels.adaptation import Way
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.operations.gemm import cost
from cutlass_py.operations.gemm.cost import Estimates
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.support.files import read_json

_NEAR = 0.15  # a kernel that is slower by this, as a logarithm, counts 1/e of the fastest
_USUAL = 0.05  # errors beyond this, as logarithms, count linearly
_STAY = 0.02  # weight of a constant's own change, so that one that the sweep says nothing about stays as it was


@dataclass(frozen=True)
class Case:
    """One problem, and the microseconds of the routes that were timed on it."""

    regime: str
    p: Problem
    gpu: Gpu
    routes: list[tuple[CutlassKernel, Way, int]]  # and parts of k
    us: list[float]

    @property
    def fold(self) -> int:
        """Which quarter it belongs to: problems with the same B go together."""
        return hash((self.p.n, self.p.k)) % 4

    def estimates(self) -> list[float]:
        model = Estimates(self.p, self.gpu)
        return [
            model.product(kernel, splits) + model.detours(way, kernel.interface, splits)
            for kernel, way, splits in self.routes
        ]

    def share(self) -> float:
        """The best time over that of the route with the least estimate."""
        estimates = self.estimates()
        return min(self.us) / self.us[estimates.index(min(estimates))]

    def weights(self) -> list[float]:
        return [(us / min(self.us)) ** (-0.5 / _NEAR) for us in self.us]


def cases_of(results: Iterable[Mapping[str, Any]], *regimes: str) -> list[Case]:
    """The sweeps' problems, once for each of the regimes that they were timed in."""
    return [case for result in results for regime in regimes for case in _cases(result, regime)]


def _cases(result: Mapping[str, Any], regime: str) -> Iterator[Case]:
    for group in groups_of([result], regime):
        for case, times in zip(group.cases, group.problems, strict=True):
            p = arguments(case.problem()).problem
            configs = [config for name, config in named("declared").items() if name in times and config.api == 3]
            if configs:
                routes = [(CutlassKernel(config, None), Way(), 1) for config in configs]
                yield Case(regime, p, _gpu(result["machine"]), routes, [times[config.name] for config in configs])


def routed(results: Iterable[Mapping[str, Any]]) -> list[Case]:
    """The problems of files of `fit_choice.py measure --routes`."""
    cases = []
    for result in results:
        for entry in result.get("routed", ()):
            # Of kernels that are still declared.
            timed = [(config, found) for found in entry["routes"] if (config := find(found["kernel"]))]
            routes = [
                (CutlassKernel(config, None), Way.of(found.__getitem__), found["splits"]) for config, found in timed
            ]
            us = [median(found["us"]) for _, found in timed]
            if routes:
                p = arguments(entry["problem"]).problem
                cases.append(Case("measured", p, _gpu(result["machine"]), routes, us))
    return cases


def _gpu(machine: Mapping[str, Any]) -> Gpu:
    sm_count = machine["sm_count"]
    return Gpu(machine["gpu"], machine["compute_capability"], sm_count, bandwidth_of(ABSENT.cc, sm_count))


Constants = dict[str, float]


def put(table: Constants, values: Iterable[float]) -> None:
    """Sets constants, in this process."""
    table.update(zip(table, map(float, values), strict=True))


def fit(cases: Sequence[Case], table: Constants, start: Sequence[float]) -> list[float]:
    """The constants of a table that suit the cases best, from those to start with."""
    times = np.array([us for case in cases for us in case.us])
    weights = np.array([weight for case in cases for weight in case.weights()])
    regimes = list(dict.fromkeys(case.regime for case in cases))
    regime = [regimes.index(case.regime) for case in cases for _ in case.us]

    def errors(unknown: Any) -> Any:
        changes, factors = unknown[: len(start)], np.concatenate([[0], unknown[len(start) :]])
        put(table, np.array(start) * np.exp(changes))
        estimates = np.array([estimate for case in cases for estimate in case.estimates()])
        return np.concatenate([(np.log(estimates / times) + factors[regime]) * weights, changes * math.sqrt(_STAY)])

    found = least_squares(errors, np.zeros(len(start) + len(regimes) - 1), loss="soft_l1", f_scale=_USUAL)
    return [float(value) for value in np.array(start) * np.exp(found.x[: len(start)])]


def reached(cases: Iterable[Case], table: Constants, values: Iterable[float]) -> list[float]:
    """The share of each case."""
    put(table, values)
    return [case.share() for case in cases]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="results of bench --all-kernels, or of fit_choice.py")
    parser.add_argument("--regime", nargs="+", default=["sustained"], choices=ALL_REGIMES)
    parser.add_argument("--routes", action="store_true", help="files are of fit_choice.py measure --routes")
    args = parser.parse_args(arguments)
    try:
        results = [read_json(path) for path in args.files]
        cases = routed(results) if args.routes else cases_of(results, *args.regime)
    except (ValueError, OSError) as error:
        print(f"fit_cost: {error}", file=sys.stderr)
        return 2
    if not cases:
        command = "fit_choice.py measure --routes" if args.routes else "bench --all-kernels"
        print(f"fit_cost: no case was timed with kernels by name: {command} does that", file=sys.stderr)
        return 2
    name = "FITTED_ROUTES" if args.routes else "FITTED_3X"
    table = getattr(cost, name)
    now = list(table.values())
    found = fit(cases, table, now)
    for key, before, after in zip(table, now, found, strict=True):
        print(f"{name}[{key!r}]: {before:.4g} -> {after:.4g}")
    apart = []
    for fold in sorted({case.fold for case in cases}):
        others = fit([case for case in cases if case.fold != fold], table, now)
        apart += reached([case for case in cases if case.fold == fold], table, others)
    shares = {
        "as it is": reached(cases, table, now),
        "as found": reached(cases, table, found),
        "on what it was not fitted to": apart,
    }
    for name, each in shares.items():
        print(f"{name}: {geomean(each):.4f} of the best; under 0.93: {sum(x < 0.93 for x in each)} of {len(each)}")
    put(table, now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
