"""Measure which kernel is fastest for each problem of a file, on device 0; export and merge what was found so far."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..support.files import replace
from .options import json_option, print_json

if TYPE_CHECKING:
    from ..arrays.gpu import Gpu
    from ..dispatch.autotune import Measurement, Tuning
    from ..kernels.operation import Arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("file", nargs="?", help="problems: a JSON list (docs/problems.md)")
    parser.add_argument("--candidates", type=int, default=32, help="choices that are run for each problem (default 32)")
    parser.add_argument("--jit", action="store_true", help="also try kernels that are not built, and compile them")
    parser.add_argument(
        "--merge", action="append", metavar="TABLE", help="add an exported table first; may be repeated"
    )
    parser.add_argument("--export", metavar="TABLE", help="write all that was found so far to this file")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command; 1 where a problem could not be tuned."""
    from ..compiling.compiler import jit
    from ..dispatch import tuned
    from ..kernels.problem_files import read

    problems = read(options.file) if options.file else []
    if options.export and not Path(options.export).parent.is_dir():
        raise ValueError(f"tune: --export {options.export}: there is no such directory")
    gpu = _gpu(options)
    # Also where nothing is merged: a damaged table says so before it is measured for, or exported as empty.
    tuned.record(gpu, {key: entry for path in options.merge or () for key, entry in tuned.read(path, gpu).items()})
    with jit() if options.jit else nullcontext():
        failed = _measure(options, problems)
    table = tuned.table(gpu)
    if options.export:
        replace(Path(options.export), tuned.dumps(gpu, table).encode())
    elif not options.json:
        print(f"{tuned.path_of(gpu)}: {len(table)} classes of problems")
    return int(failed)


def _gpu(options: argparse.Namespace) -> Gpu:
    """Device 0; without one, and without problems, what the tables to be merged are about."""
    from ..arrays.gpu import Gpu, device
    from ..dispatch import tuned

    if _core.device_count():
        return device(0)
    if options.file or not options.merge:
        raise ValueError(f"tune: needs a GPU: {_core.why_no_device()}")
    name, sm_count, _ = tuned.contents(options.merge[0])
    return Gpu(name, 0, sm_count, 0.0, absent=True)  # a table depends on nothing else


def _measure(options: argparse.Namespace, problems: Sequence[Arguments]) -> bool:
    """Tune problems one by one; whether any failed."""
    from ..dispatch.autotune import tune
    from ..kernels.operation import describe
    from ..support.terminal import print_table, progress, watched

    rows, failed, drawn = [], False, watched() and not options.json
    with progress("tuning", len(problems)) as advance:
        for problem in problems:
            try:
                tuning = tune(problem, candidates=options.candidates)
                rows.append(_row(tuning))
                line = str(tuning)
            except (ValueError, RuntimeError) as error:  # one problem does not stop the others
                failed = True
                rows.append({"problem": describe(problem.problem), "error": str(error)})
                line = f"error: {error}"
            if not (options.json or drawn):
                print(line)
            advance()
    if options.json:
        print_json(rows)
    elif drawn and rows:
        print_table(("problem", "us", "before", "kernel, or what failed"), list(map(_cells, rows)))
    return failed


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    if "error" in row:
        return row["problem"], "", "", row["error"]
    best, before = row["best"], row["default"]
    splits = f", k in {best['splits']} parts" if best["splits"] > 1 else ""
    times = (f"{x['microseconds']:.1f}" if x else "" for x in (best, before))
    return row["problem"], *times, best["kernel"] + splits


def _row(tuning: Tuning) -> dict[str, Any]:
    def row(m: Measurement | None) -> dict[str, Any] | None:
        if m is None:
            return None
        choice = m.choice
        return {
            "kernel": choice.route.kernel.name, "splits": choice.route.splits, "raster": choice.raster,
            "swizzle": choice.swizzle, "microseconds": m.microseconds,
        }  # fmt: skip

    rows = {"best": row(tuning.best), "default": row(tuning.default), "measured": [row(m) for m in tuning.measured]}
    return {"problem": tuning.problem, **rows}
