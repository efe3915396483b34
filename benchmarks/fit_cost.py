"""Fits the constants of 3.x kernels in operations/gemm/cost.py to sweeps, and says what the choice makes of them.

    python -m cutlass_py bench --suite llm square --all-kernels --json sweep.json
    pip install scipy
    python benchmarks/fit_cost.py sweep.json ...
    python benchmarks/fit_cost.py sweep.json light.json --regime sustained light

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
from typing import Any

import numpy as np
from kernel_set import groups_of
from scipy.optimize import least_squares

from cutlass_py._core import Problem
from cutlass_py.arrays.gpu import ABSENT, Gpu, bandwidth_of
from cutlass_py.bench.results import geomean
from cutlass_py.bench.timing import ALL_REGIMES
from cutlass_py.declaration.families import named
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
    """One problem, and the microseconds of the 3.x kernels that were timed on it, in the order of declaration."""

    regime: str
    p: Problem
    gpu: Gpu
    kernels: list[CutlassKernel]
    us: list[float]

    @property
    def fold(self) -> int:
        """Which quarter it belongs to: problems with the same B go together."""
        return hash((self.p.n, self.p.k)) % 4

    def estimates(self) -> list[float]:
        model = Estimates(self.p, self.gpu)
        return [model.product(kernel) for kernel in self.kernels]

    def share(self) -> float:
        """The best time over that of the kernel with the least estimate."""
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
            kernels, us = (
                [CutlassKernel(config, None) for config in configs],
                [times[config.name] for config in configs],
            )
            if kernels:
                yield Case(regime, p, _gpu(result["machine"]), kernels, us)


def _gpu(machine: Mapping[str, Any]) -> Gpu:
    sm_count = machine["sm_count"]
    return Gpu(machine["gpu"], machine["compute_capability"], sm_count, bandwidth_of(ABSENT.cc, sm_count))


def values() -> list[float]:
    """The constants as they are."""
    return list(cost.FITTED_3X.values())


def put(constants: Iterable[float]) -> None:
    """Sets them, in this process."""
    for key, value in zip(cost.FITTED_3X, constants, strict=True):
        cost.FITTED_3X[key] = float(value)


def fit(cases: Sequence[Case], start: Sequence[float]) -> list[float]:
    """The constants that suit the cases best, from those to start with."""
    times = np.array([us for case in cases for us in case.us])
    weights = np.array([weight for case in cases for weight in case.weights()])
    regimes = list(dict.fromkeys(case.regime for case in cases))
    regime = [regimes.index(case.regime) for case in cases for _ in case.us]

    def errors(unknown: Any) -> Any:
        changes, factors = unknown[: len(start)], np.concatenate([[0], unknown[len(start) :]])
        put(np.array(start) * np.exp(changes))
        estimates = np.array([estimate for case in cases for estimate in case.estimates()])
        return np.concatenate([(np.log(estimates / times) + factors[regime]) * weights, changes * math.sqrt(_STAY)])

    found = least_squares(errors, np.zeros(len(start) + len(regimes) - 1), loss="soft_l1", f_scale=_USUAL)
    return [float(value) for value in np.array(start) * np.exp(found.x[: len(start)])]


def reached(cases: Iterable[Case], constants: Sequence[float]) -> list[float]:
    """The share of each case."""
    put(constants)
    return [case.share() for case in cases]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, help="results of bench --all-kernels")
    parser.add_argument("--regime", nargs="+", default=["sustained"], choices=ALL_REGIMES)
    args = parser.parse_args(arguments)
    try:
        cases = cases_of(map(read_json, args.sweeps), *args.regime)
    except (ValueError, OSError) as error:
        print(f"fit_cost: {error}", file=sys.stderr)
        return 2
    if not cases:
        print("fit_cost: no case was timed with kernels by name: bench --all-kernels does that", file=sys.stderr)
        return 2
    now = values()
    found = fit(cases, now)
    for key, before, after in zip(cost.FITTED_3X, now, found, strict=True):
        print(f"FITTED_3X[{key!r}]: {before:.4g} -> {after:.4g}")
    apart = []
    for fold in sorted({case.fold for case in cases}):
        others = fit([case for case in cases if case.fold != fold], now)
        apart += reached([case for case in cases if case.fold == fold], others)
    shares = {"as it is": reached(cases, now), "as found": reached(cases, found), "on what it was not fitted to": apart}
    for name, each in shares.items():
        print(f"{name}: {geomean(each):.4f} of the best; under 0.93: {sum(x < 0.93 for x in each)} of {len(each)}")
    put(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
