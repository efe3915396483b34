"""Writes the package's tables of tuned choices, one for each kind of GPU, from exports of `tune`.

    python -m cutlass_py tune problems.json --export h200.json    # on the GPU
    python benchmarks/tuned_table.py h200.json more.json          # anywhere: writes src/cutlass_py/tables/

What the table has already stays, later exports win over earlier ones. Entries of kernels that are not declared are left
out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from places import ROOT

from cutlass_py import tuned
from cutlass_py.families import find
from cutlass_py.gpu import Gpu

TABLES = ROOT / "src" / "cutlass_py" / "tables"


def gpu_of(path: Path) -> Gpu:
    """The GPU that an export names.

    Raises:
        ValueError: it names none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Gpu(str(content["gpu"]), 0, int(content["sm_count"]), 0.0)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a table as `tune --export` writes it: {error!r}") from None


def merge(exports: Sequence[Path], directory: Path, afresh: bool = False) -> dict[Path, tuple[int, int, int]]:
    """Writes the tables; for each file how many entries it has, how many of them are new, how many were left out.

    Args:
        exports: files of `tune --export`; those of several GPUs make several tables.
        directory: where the tables go.
        afresh: what the tables have by now is dropped.

    Raises:
        ValueError: a file is no table; nothing is written then.
    """
    read = [(gpu, tuned.read(path, gpu)) for path in exports for gpu in [gpu_of(path)]]
    written = {}
    for gpu in dict.fromkeys(gpu for gpu, _ in read):
        path = directory / tuned.file_name(gpu.name, gpu.sm_count)
        before = tuned.read(path, gpu) if path.exists() and not afresh else {}
        found = {key: entry for other, table in read if other == gpu for key, entry in table.items()}
        usable = {key: entry for key, entry in found.items() if find(entry.kernel)}
        table = before | usable
        path.write_text(tuned.dumps(gpu, table), encoding="utf-8")
        written[path] = (len(table), len(usable.keys() - before.keys()), len(found) - len(usable))
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", nargs="+", type=Path, help="files of tune --export")
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
