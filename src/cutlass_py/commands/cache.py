"""Compiled kernels on disk: show them, remove them, compile what problems want ahead of time."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ..support.terminal import print_table, watched
from .options import cc_option, json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    for name, text in (
        ("info", "Where the cache is and what it holds."),
        ("clear", "Remove every compiled kernel and lock."),
        (
            "build",
            "Compile the best declared kernel for each problem of a file, for device 0 (else an H200) or for --cc.",
        ),
    ):
        sub = actions.add_parser(name, help=text, description=text)
        json_option(sub)
    sub.add_argument("file", nargs="?", help="problems: a JSON list (docs/problems.md)")
    sub.add_argument("--kernel", action="append", default=[], metavar="NAME", help="this kernel; may be repeated")
    cc_option(sub, "for a machine with GPUs of this kind instead of those here")
    sub.add_argument("--jobs", type=int, help="nvcc at once; by default one per core and 6 GB of free memory")


def run(options: argparse.Namespace) -> int:
    """The command; 1 where a kernel could not be compiled."""
    return {"info": _info, "clear": _clear, "build": _build}[options.action](options)


def _info(options: argparse.Namespace) -> int:
    from ..compiling import cache

    entries = cache.entries()
    size = sum(map(cache.size, entries))
    if options.json:
        print_json({"directory": str(cache.directory()), "bytes": size, "entries": [p.stem for p in entries]})
        return 0
    print(f"{cache.directory()}: {len(entries)} kernels, {size / 1e6:.1f} MB")
    if watched() and entries:
        named = ((path, *path.stem.partition("-")) for path in entries)
        cells = [(kernel, f"{cache.size(path) / 1e6:.1f}", made) for path, kernel, _, made in named]
        print_table(("kernel", "MB", "entry"), cells)
        return 0
    for path in entries:
        print(f"  {path.stem}")
    return 0


def _clear(options: argparse.Namespace) -> int:
    from ..compiling import cache

    entries, size = cache.clear()
    if options.json:
        print_json({"directory": str(cache.directory()), "removed": entries, "bytes": size})
    else:
        print(f"{cache.directory()}: removed {entries} kernels, {size / 1e6:.1f} MB")
    return 0


def _build(options: argparse.Namespace) -> int:
    from ..compiling.toolkit import nvcc_jobs
    from ..export.prebuild import best, build
    from ..kernels.problem_files import read
    from ..kernels.registry import cutlass_kernel_named

    if not options.file and not options.kernel:
        raise ValueError("cache build: expected a file of problems, or --kernel")
    if options.jobs is not None and options.jobs < 1:
        raise ValueError(f"cache build: --jobs is {options.jobs}; expected 1 or more")
    wanted = [cutlass_kernel_named(name, "cache build") for name in options.kernel]
    for args in read(options.file) if options.file else ():
        wanted += best(args, options.cc)

    def report(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    outcomes = build(list(dict.fromkeys(wanted)), options.jobs or nvcc_jobs(), report, options.cc)
    if options.json:
        print_json([asdict(outcome) for outcome in outcomes])
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0
