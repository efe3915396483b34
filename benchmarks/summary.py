"""Keeps of results what is worth a place in the repository: the latest of each problem, in one small file per GPU.

    python -m cutlass_py bench --bars key dense --json build/benchmarks/bars.json   # on the GPU: a result
    python benchmarks/summary.py build/benchmarks/*.json         # anywhere: into benchmarks/results/<gpu>.json
    python benchmarks/performance.py                             # docs/performance.md of that

Of a problem, by how it was run (default, tuned, sweep) and by regime: the ratio, both times in microseconds, and the
run; of a sweep, how good the default choice was beside the best kernel. Fused epilogues, host times and the first call
are kept likewise; other files are passed over. Where several have one problem, the latest run counts.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from places import RESULTS, slug

from cutlass_py.bench.report import choice_ratio, compared, last_reading, regimes_of, theirs_of
from cutlass_py.bench.results import OURS, Record, Result, dumps, read
from cutlass_py.bench.suites import DEFAULT, SWEEP, case_of, is_case
from cutlass_py.bench.timing import ALL_REGIMES
from cutlass_py.support.files import read_json, replace

_RUN = ("date", "seed", "commit", "versions", "machine", "reference")  # facts of a run that are kept
_TABLE = ("run", "suite", "dtype", "layout", "mode", "regimes")  # what the rows of one table have in common
_EXTENTS = ("batch", "m", "n", "k")  # first in each row; the numbers of each regime follow

# ---------------------------------------------------------------------------------------------------- what counts


def parts_of(result: Result) -> dict[Any, Any]:
    """What a result holds, by what it is about: a problem and how it was run, a fused epilogue, a host time."""
    parts: dict[Any, Any] = {}
    for record in result.get("cases", ()):
        if is_case(record) and (compared([record]) or "failed" in record):
            case = case_of(record)
            parts["problem", record.get("mode", DEFAULT), case.dtype, case.layout, case.shape] = record
        elif "activation" in record:
            parts["epilogue", record["activation"], record["m"], record["n"], record["k"]] = record
    for row in (*result.get("rows", ()), *result.get("host", ())):
        parts["host", row["row"]] = row
    if result.get("first_call_ms") is not None:
        parts["first",] = result["first_call_ms"]
    return parts


def contributing(found: Iterable[Result]) -> list[Result]:
    """Results without what later ones have measured again, oldest first; those of which nothing is left are gone."""
    kept: list[Result] = []
    seen: dict[Any, set[str]] = {}
    for result in sorted(found, key=lambda result: str(result["date"]))[::-1]:
        parts = {key: left for key, part in parts_of(result).items() if (left := _left(key, part, seen)) is not None}
        if parts:
            rest = {name: value for name, value in result.items() if name not in ("rows", "first_call_ms")}
            rest["cases"] = [part for key, part in parts.items() if key[0] in ("problem", "epilogue")]
            rest["host"] = [part for key, part in parts.items() if key[0] == "host"]
            kept.append(rest | ({"first_call_ms": parts["first",]} if ("first",) in parts else {}))
    return kept[::-1]


def _left(key: Any, part: Any, seen: dict[Any, set[str]]) -> Any:
    """What of a part no later run has, if anything. A problem that failed hides all that came before."""
    known = seen.setdefault(key, set())
    before = set(known)
    if key[0] != "problem" or "failed" in part:
        known |= {*ALL_REGIMES}
        return None if before else part
    regimes = {*regimes_of([part])}
    known |= regimes
    return None if regimes <= before else {name: value for name, value in part.items() if name not in regimes & before}


def by_gpu(found: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in found:
        groups.setdefault(str(result["machine"]["gpu"] or "no GPU"), []).append(result)
    return groups


# ---------------------------------------------------------------------------------------------------- the file


def packed(found: Iterable[Result]) -> dict[str, Any]:
    """A summary of results of one GPU: facts of the runs, and rows of numbers in tables of like cases."""
    tables: dict[tuple[Any, ...], list[list[Any]]] = {}
    summary: dict[str, Any] = {name: [] for name in ("runs", "cases", "failed", "epilogues", "host", "first_call_ms")}
    for run, result in enumerate(contributing(found)):
        summary["runs"].append({name: result[name] for name in _RUN if name in result})
        summary["host"] += [{"run": run} | row for row in result["host"]]
        if "first_call_ms" in result:
            summary["first_call_ms"].append({"run": run, "ms": result["first_call_ms"]})
        for record in result["cases"]:
            regimes = tuple(regimes_of([record]))
            if "activation" in record:
                kept = {"run": run, **{name: record[name] for name in ("activation", *_EXTENTS[1:])}}
                summary["epilogues"].append(kept | {regime: _fused(record[regime]) for regime in regimes})
            elif "failed" in record:
                mode = {"mode": record.get("mode", DEFAULT), "failed": record["failed"]}
                summary["failed"].append({"run": run} | case_of(record).facts() | mode)
            else:
                about = [record[name] for name in ("suite", "dtype", "layout")]
                kind = (run, *about, record.get("mode", DEFAULT), regimes)
                numbers = [number for regime in regimes for number in _numbers(record, regime)]
                tables.setdefault(kind, []).append([record[name] for name in _EXTENTS] + numbers)
    for kind, rows in tables.items():
        summary["cases"].append(dict(zip(_TABLE, kind, strict=True)) | {"rows": sorted(rows)})
    return summary


def _fused(timed: Mapping[str, Any]) -> dict[str, Any]:
    return {"us": {"plain": timed["us"]["plain"]}, "ratio": timed["ratio"]}


def _numbers(record: Record, regime: str) -> list[float]:
    """Ratio, the reference's time and ours; of a sweep, the choice's worth."""
    timed = last_reading(record[regime])
    numbers = [timed["ratio"], theirs_of(timed["us"]), timed["us"][OURS]]
    numbers += [choice_ratio(record[regime])] if record.get("mode") == SWEEP else []
    return [float(f"{number:.5g}") for number in numbers]


def text(summary: Mapping[str, Any]) -> str:
    """As JSON, with a line for each row: summaries compare well."""
    lines = dumps(summary).replace("], [", "],\n[")
    return re.sub(r"\[[\d., ]+\]", lambda row: row[0].replace(" ", ""), lines)


def unpacked(summary: Mapping[str, Any]) -> list[Result]:
    """The runs of a summary as results, as `bench --json` writes them."""
    found: list[Result] = [{**run, "cases": [], "host": []} for run in summary["runs"]]
    for table in summary["cases"]:
        about = {name: table[name] for name in ("suite", "dtype", "layout", "mode")}
        run, regimes = found[table["run"]], table["regimes"]
        for row in table["rows"]:
            extents, numbers = row[: len(_EXTENTS)], row[len(_EXTENTS) :]
            each = len(numbers) // len(regimes)
            timed = {r: _timed(run, *numbers[i * each : (i + 1) * each]) for i, r in enumerate(regimes)}
            run["cases"].append(about | dict(zip(_EXTENTS, extents, strict=True)) | timed)
    for record in (*summary["failed"], *summary["epilogues"]):
        found[record["run"]]["cases"].append({name: value for name, value in record.items() if name != "run"})
    for row in summary["host"]:
        found[row["run"]]["host"].append({name: value for name, value in row.items() if name != "run"})
    for first in summary["first_call_ms"]:
        found[first["run"]]["first_call_ms"] = first["ms"]
    return found


def _timed(run: Result, ratio: float, theirs: float, ours: float, *choice: float) -> Record:
    timed = {"ratio": ratio, "us": {run["reference"]: theirs, OURS: ours}}
    return timed | {"choice": choice[0]} if choice else timed


def results(directory: Path = RESULTS) -> list[Result]:
    """What the summaries of a directory hold, oldest first.

    Raises:
        ValueError: a file is no summary.
    """
    found = [result for path in sorted(directory.glob("*.json")) for result in read_summary(path)]
    return sorted(found, key=lambda result: str(result["date"]))


def read_summary(path: Path) -> list[Result]:
    """The runs of one summary.

    Raises:
        ValueError: it is none.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "runs" not in content:
        raise ValueError(f"{path}: expected a summary as benchmarks/summary.py writes it")
    return unpacked(content)


def merge(files: Sequence[Path], directory: Path) -> dict[Path, dict[str, Any]]:
    """Takes results into the summaries of their GPUs; those that were written.

    Raises:
        ValueError: a file is no result.
    """
    written = {}
    for found in by_gpu(filter(parts_of, map(read, files))).values():
        path = directory / f"{slug(found[0]['machine']['gpu'])}.json"
        summary = packed([*(read_summary(path) if path.exists() else []), *found])
        directory.mkdir(parents=True, exist_ok=True)
        replace(path, text(summary).encode())
        written[path] = summary
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="results of bench, epilogue_speed.py and host_cost.py")
    parser.add_argument("--into", type=Path, default=RESULTS, help="where summaries are (default benchmarks/results)")
    args = parser.parse_args(arguments)
    try:
        for path, summary in merge(args.results, args.into).items():
            print(f"{path}: {sum(len(t['rows']) for t in summary['cases'])} cases of {len(summary['runs'])} runs")
    except (ValueError, OSError) as error:
        print(f"summary: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
