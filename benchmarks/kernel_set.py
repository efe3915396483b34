"""Reduces sweeps to the smallest set of kernels that is good enough, and says what is declared of it, and in `core`.

    python -m cutlass_py bench --suite llm square --all-kernels --json sweep.json
    python benchmarks/kernel_set.py sweep.json
    python benchmarks/kernel_set.py build/benchmarks/sweep-*.json --within 0.02 --json set.json

A set is good enough where, in each suite, its best kernels come within 2% of the best found, as a geometric mean.
Kernels join greedily, by what they gain; then each that can go without a loss beyond the bound goes. `core` is the part
of that which builds in the minutes given, by gain for build time. Only what was timed is judged: the choice of tiles,
that is, by kernels that store plain sums; and kernels that serve other GPUs too are not dropped for being slow here.
What a set's best kernels reach nobody gets who does not choose by hand: so each declared set also has the share of the
best that the model would take of it, without a table, on this machine's GPU, or on an H200 where there is none; and
the ratio of the reference's time to that choice's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutlass_py.bench.report import theirs_of
from cutlass_py.bench.results import OURS, geomean
from cutlass_py.bench.suites import Case, case_of
from cutlass_py.bench.timing import ALL_REGIMES
from cutlass_py.declaration.families import FAMILIES, find, named
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.candidates import rank
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.support.files import read_json

_CORES = 2
_ABSENT = 0.05  # of the best speed: what a set counts where none of its kernels takes the problem

# ---------------------------------------------------------------------------------------------------- what was timed


@dataclass
class Group:
    """The problems of one suite, dtype and layout, and microseconds for each: by kernel, and the reference's."""

    suite: str
    dtype: str
    layout: str
    cases: list[Case] = field(default_factory=list)
    problems: list[dict[str, float]] = field(default_factory=list)
    references: list[float] = field(default_factory=list)

    def shares(self, kernels: Iterable[str]) -> list[float]:
        """Of each problem, the best time found over the best one of these kernels."""
        kernels = set(kernels)
        return [
            min(times.values()) / min((us for k, us in times.items() if k in kernels), default=math.inf) or _ABSENT
            for times in self.problems
        ]

    def chosen(self, kernels: set[str]) -> list[tuple[float, float]]:
        """The best time and the reference's, each over that of the model's choice among these kernels.

        Of problems where that takes the operands as they lie.
        """
        found = []
        for case, times, reference in zip(self.cases, self.problems, self.references, strict=True):
            ranked = (choice.route for choice in rank(arguments(case.problem()).problem, compiled=False))
            route = next((route for route in ranked if route.kernel.name in kernels), None)
            if route and route.direct and (us := times.get(route.kernel.name)):
                found.append((min(times.values()) / us, reference / us))
        return found

    def __str__(self) -> str:
        return f"{self.suite} {self.dtype} {self.layout}"


def groups_of(results: Iterable[Mapping[str, Any]], regime: str) -> list[Group]:
    """The sweeps' problems by suite, dtype and layout."""
    found: dict[tuple[str, str, str], Group] = {}
    for result in results:
        for record in result.get("cases", ()):
            times = _times(record, regime)
            if times:
                case = case_of(record)
                key = case.suite, case.dtype, case.layout
                group = found.setdefault(key, Group(*key))
                group.problems.append(times)
                group.references.append(theirs_of(record[regime]["us"]))
                group.cases.append(case)
    return list(found.values())


def _times(record: Mapping[str, Any], regime: str) -> dict[str, float]:
    """Microseconds by kernel."""
    arms = record[regime]["us"] if regime in record else {}
    others = dict(list(arms.items())[1:])  # the first is the reference
    timed = {name: us for name, us in others.items() if name != OURS and "=" not in name}
    rough = {name: us for name, us in record.get("rough_us", {}).items() if "=" not in name}
    return (rough | timed) if timed else {}


# ---------------------------------------------------------------------------------------------------- the sets


def smallest(groups: Sequence[Group], within: float) -> list[str]:
    """The fewest kernels found by which each group comes within the bound; those that gain most first."""
    chosen: list[str] = []
    while short := [group for group in groups if geomean(group.shares(chosen)) < 1 - within]:
        chosen.append(max(_kernels(short) - set(chosen), key=lambda name: (_gain(short, chosen, name), name)))
    for name in reversed(chosen.copy()):
        rest = [other for other in chosen if other != name]
        if all(geomean(group.shares(rest)) >= 1 - within for group in groups):
            chosen = rest
    return chosen


def affordable(groups: Sequence[Group], kernels: Sequence[str], minutes: float) -> list[str]:
    """Those of the kernels that gain most for their build time, until that is spent."""
    left, chosen = minutes * 60 * _CORES, []
    while fitting := [name for name in kernels if name not in chosen and seconds(name) <= left]:
        best = max(fitting, key=lambda name: _gain(groups, chosen, name) / seconds(name))
        chosen.append(best)
        left -= seconds(best)
    return chosen


def seconds(name: str) -> float:
    """Core-seconds that a kernel takes to build; of one that is not declared any more, what CUTLASS's newest take."""
    config = find(name)
    return FAMILIES[config.family if config else "sm90_gemm"].core_seconds


def _kernels(groups: Iterable[Group]) -> set[str]:
    return {name for group in groups for times in group.problems for name in times}


def _gain(groups: Iterable[Group], chosen: Sequence[str], name: str) -> float:
    """Logarithm of what a kernel adds, over all problems."""
    logs = 0.0
    for group in groups:
        for before, after in zip(group.shares(chosen), group.shares([*chosen, name]), strict=True):
            logs += math.log(after / before)
    return logs


# ---------------------------------------------------------------------------------------------------- what is said


def reduction(groups: Sequence[Group], within: float, minutes: float) -> dict[str, Any]:
    """Both sets, what each suite reaches with them, and how they differ from the set of that name."""
    enough: list[str] = []
    for kind in dict.fromkeys((group.dtype, group.layout) for group in groups):
        enough += smallest([group for group in groups if (group.dtype, group.layout) == kind], within)
    enough = list(dict.fromkeys(enough))
    sets = {"declared": enough, "core": affordable(groups, enough, minutes)}
    return {
        "within": within,
        "minutes": minutes,
        "kernels_timed": len(_kernels(groups)),
        **{name: _set(name, kernels, groups) for name, kernels in sets.items()},
    }


def _set(name: str, kernels: Sequence[str], groups: Sequence[Group]) -> dict[str, Any]:
    timed, declared = _kernels(groups), set(named(name))
    return {
        "kernels": list(kernels),
        "build_minutes": round(sum(map(seconds, kernels)) / 60 / _CORES, 1),
        "keep": sorted(declared & set(kernels)),
        "add": sorted(set(kernels) - declared),
        "drop": sorted(k for k in (declared & timed) - set(kernels) if not _serves_others(k)),
        "not_judged": len(declared - timed),
        "reached": {str(group): _reached(group, kernels, declared) for group in groups},
    }


def _reached(group: Group, kernels: Sequence[str], declared: set[str]) -> dict[str, float]:
    chosen = group.chosen(declared)
    means = {
        "of_best": group.shares(kernels),
        "of_best_as_declared": group.shares(declared),
        "of_best_as_chosen": [share for share, _ in chosen],
        "ratio_as_chosen": [ratio for _, ratio in chosen],
    }
    counts = {
        "problems": len(group.problems),
        "kernels": sum(any(k in times for times in group.problems) for k in kernels),
    }
    return counts | {key: round(geomean(values), 4) for key, values in means.items() if values}


def _serves_others(name: str) -> bool:
    """Whether a kernel is there for GPUs of several kinds, so that a sweep on one cannot dismiss it."""
    config = find(name)
    low, high = FAMILIES[config.family].cc if config else (0, 0)
    return low != high


def print_reduction(found: Mapping[str, Any]) -> None:
    print(f"{found['kernels_timed']} kernels were timed; within {found['within']:.0%} of the best found:")
    for name in ("declared", "core"):
        part = found[name]
        print(f"\n{name}: {len(part['kernels'])} kernels, {part['build_minutes']} minutes on {_CORES} cores")
        for suite, row in part["reached"].items():
            print(
                f"  {suite:24} {row['problems']:4} problems, {row['kernels']:3} kernels: {row['of_best']:.3f} of the "
                f"best; as declared {row['of_best_as_declared']:.3f}, {_choice(row)}"
            )
        for word in ("keep", "add", "drop"):
            print(f"  {word} {len(part[word])}")
            for kernel in part[word]:
                print(f"    {kernel}")
        print(f"  not judged, because not timed: {part['not_judged']}")


def _choice(row: Mapping[str, float]) -> str:
    if "ratio_as_chosen" not in row:
        return "the model's choice was not timed"
    ratio = row["ratio_as_chosen"]
    return f"as the model chooses {row['of_best_as_chosen']:.3f}: {ratio:.3f} times as fast as the reference"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, help="results of bench --all-kernels")
    parser.add_argument("--within", type=float, default=0.02, help="of the best found, per suite (default 0.02)")
    parser.add_argument("--minutes", type=float, default=8.0, help="build time of core (default 8)")
    parser.add_argument("--regime", default="sustained", choices=ALL_REGIMES)
    parser.add_argument("--json", type=Path, help="write both sets there")
    args = parser.parse_args(arguments)
    try:
        groups = groups_of(map(read_json, args.sweeps), args.regime)
    except (ValueError, OSError) as error:
        print(f"kernel_set: {error}", file=sys.stderr)
        return 2
    if not groups:
        print("kernel_set: no case was timed with kernels by name: bench --all-kernels does that", file=sys.stderr)
        return 2
    tuned.PLACES.clear()  # the shipped table was made from such sweeps
    with tuned.afresh():
        found = reduction(groups, args.within, args.minutes)
    print_reduction(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
