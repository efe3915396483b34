"""Writes the package's tables of tuned choices, one for each kind of GPU, from exports of `tune` and runs of `bench`.

    python -m cutlass_py bench --bars tuned --json tuned.json     # on the GPU; or --tune, or:
    python -m cutlass_py tune problems.json --export h200.json
    python -m cutlass_py bench --suite llm --all-kernels --json sweep.json
    python benchmarks/tuned_table.py sweep.json tuned.json        # anywhere: writes src/cutlass_py/dispatch/tables/
    python benchmarks/tuned_table.py bars.json tuned.json         # or what gemm chose by itself, where that was better

Of a sweep, its fastest kernel in the order of tiles that was timed: the usual one. `tune` measures in a stream alone;
where results timed a class in both regimes, in one mode or another, finalists of sweeps among them, the choice of the
best ratios to the reference is kept, by the mean of all readings of it. What the table has already stays, later files
win over earlier ones. Entries of kernels that are not declared (any more) are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from places import ROOT

from cutlass_py._core import Problem
from cutlass_py.arrays.gpu import Gpu
from cutlass_py.bench.results import OURS, geomean
from cutlass_py.bench.suites import SWEEP, case_of
from cutlass_py.bench.timing import REGIMES, ratio_of
from cutlass_py.declaration.families import find
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.tuned import Entry, Table
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.operation import class_of
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.operations.gemm.tile_order import tile_order

TABLES = ROOT / "src" / "cutlass_py" / "dispatch" / "tables"
_NOTHING = "no case was tuned: `bench --tune`, `--bars tuned` and `--all-kernels` do that"
_plan_of = itemgetter("splits", "raster", "swizzle")
# What a choice must gain that copies an operand first, for the memory that takes: less is within what two runs differ.
_COPY = 1.02


class Timed(NamedTuple):
    """A choice whose result was right, by the geometric mean of its ratios in both regimes.

    `copies`: an operand, before the kernel.
    """

    ratio: float
    entry: Entry
    copies: bool


class Found(NamedTuple):
    """What a file says of one kind of GPU: what was tuned there, and what was timed of any class."""

    gpu: Gpu
    table: Table
    timed: dict[str, list[Timed]]


def read_found(path: Path) -> Found:
    """What a file says.

    Raises:
        ValueError: it is neither an export nor a result of cases that were tuned, swept or timed in both regimes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        machine = content.get("machine", content)
        gpu = Gpu(str(machine["gpu"]), 0, int(machine["sm_count"]), 0.0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected a table as `tune --export` writes it, or a result: {error!r}") from None
    if machine is content:
        return Found(gpu, tuned.read(path, gpu), {})
    cases = content.get("cases", ())
    found = {tuning["class"]: tuning["entry"] for case in cases if "entry" in (tuning := case.get("tuning", ()))}
    table, timed = tuned.entries(found, str(path)), dict[str, list[Timed]]()
    measured = int(machine["driver_cuda"]), str(content["versions"]["cutlass_py"])
    for case in cases:
        swept = case.get("mode") == SWEEP and "sustained" in case
        if swept:
            table |= _of_sweep(case, gpu, *measured)
        if all(regime in case for regime in REGIMES) and (swept or not case["wrong"]):
            readings = _finalists(case, gpu, content["reference"], *measured) if swept else [_of_both(case, *measured)]
            timed.setdefault(class_of(_problem(case)), []).extend(readings)
    if not table and not timed:
        raise ValueError(f"{path}: {_NOTHING}")
    return Found(gpu, table, timed)


def _problem(case: Mapping[str, Any]) -> Problem:
    return arguments(case_of(case).problem()).problem


def _of_both(case: Mapping[str, Any], driver: int, version: str) -> Timed:
    """The choice that was timed."""
    chosen, time = case["chosen"], round(case["sustained"]["us"][OURS], 3)
    ratio = geomean(case[regime]["ratio"] for regime in REGIMES)
    return Timed(ratio, Entry(chosen["kernel"], *_plan_of(chosen), time, driver, version), _copies(case))


def _copies(case: Mapping[str, Any]) -> bool:
    return bool(case["chosen"]["pack_a"] or case["chosen"]["pack_b"])


def _finalists(record: Mapping[str, Any], gpu: Gpu, reference: str, driver: int, version: str) -> Iterator[Timed]:
    """What of a swept case was read again in both regimes: declared kernels, and the default choice."""
    sustained, mixed = (record[regime]["finals"] for regime in REGIMES)
    for arm, us in sustained["us"].items():
        if arm in mixed["us"] and arm not in record["wrong"] and find(_kernel(record, arm)):
            ratio = geomean(ratio_of(finals["rounds_us"], reference, arm) for finals in (sustained, mixed))
            copies = arm == OURS and _copies(record)  # kernels of a sweep read the operands in place
            yield Timed(ratio, _entry(record, arm, gpu, us, driver, version), copies)


def _of_sweep(record: Mapping[str, Any], gpu: Gpu, driver: int, version: str) -> Table:
    """The class of a swept case with its fastest declared kernel, by the finalists' second reading."""
    finals = record["sustained"]["finals"]
    gains = {arm: ratio_of(finals["rounds_us"], OURS, arm) for arm in finals["us"] if find(_kernel(record, arm))}
    if not gains:
        return {}
    fastest = max(gains, key=gains.__getitem__)
    entry = _entry(record, fastest, gpu, finals["us"][fastest], driver, version)
    return {class_of(_problem(record)): entry}


def _kernel(record: Mapping[str, Any], arm: str) -> str:
    return str(record["chosen"]["kernel"]) if arm == OURS else arm


def _entry(record: Mapping[str, Any], arm: str, gpu: Gpu, us: float, driver: int, version: str) -> Entry:
    """The default choice as it was, any other kernel in the usual order of tiles."""
    kernel = _kernel(record, arm)
    if arm == OURS:
        plan = _plan_of(record["chosen"])
    else:
        plan = 1, *tile_order(CutlassKernel(find(kernel), None), _problem(record), gpu)
    return Entry(kernel, *plan, round(us, 3), driver, version)


def merge(exports: Sequence[Path], directory: Path, afresh: bool = False) -> dict[Path, tuple[int, int, int]]:
    """Writes the tables; for each file how many entries it has, how many of them are new, how many were left out.

    Args:
        exports: files of `tune --export` and of `bench`; those of several GPUs make several tables.
        directory: where the tables go.
        afresh: what the tables have by now is dropped.

    Raises:
        ValueError: a file is no table, or nothing was tuned in any; nothing is written then.
    """
    read = [read_found(path) for path in exports]
    if any(file.timed for file in read) and not any(file.table for file in read):
        raise ValueError(_NOTHING)
    written = {}
    for gpu in dict.fromkeys(file.gpu for file in read):
        path = directory / tuned.file_name(gpu.name, gpu.sm_count)
        before = tuned.read(path, gpu) if path.exists() and not afresh else {}
        files = [file for file in read if file.gpu == gpu]
        found = {key: entry for file in files for key, entry in file.table.items()}
        for key in found:
            if timed := [each for file in files for each in file.timed.get(key, ()) if find(each.entry.kernel)]:
                found[key] = _fastest(timed)
        usable = _declared(found)
        table = _declared(before) | usable
        path.write_text(tuned.dumps(gpu, table), encoding="utf-8")
        written[path] = (len(table), len(usable.keys() - before.keys()), len(found) - len(usable))
    return written


def _fastest(timed: Sequence[Timed]) -> Entry:
    """The choice of the best mean ratio, as it was read last."""
    readings: dict[tuple[Any, ...], list[Timed]] = {}
    for each in timed:
        e = each.entry
        readings.setdefault((e.kernel, e.splits, e.raster, e.swizzle), []).append(each)

    def worth(same: Sequence[Timed]) -> float:
        return geomean(each.ratio for each in same) / (_COPY if same[-1].copies else 1)

    return max(readings.values(), key=worth)[-1].entry


def _declared(table: Table) -> Table:
    return {key: entry for key, entry in table.items() if find(entry.kernel)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path, help="files of tune --export, and results of bench")
    parser.add_argument("--out", type=Path, default=TABLES, help="directory of tables (default the package's)")
    parser.add_argument("--afresh", action="store_true", help="drop what the table has by now")
    args = parser.parse_args(arguments)
    try:
        written = merge(args.exports, args.out, args.afresh)
    except (ValueError, OSError) as error:
        print(f"tuned_table: {error}", file=sys.stderr)
        return 2
    for path, (entries, new, left_out) in written.items():
        print(f"{path}: {entries} classes, {new} of them new; {left_out} left out: their kernels are not declared")
    return 0


if __name__ == "__main__":
    sys.exit(main())
