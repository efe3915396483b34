"""`python -m cutlass_py`: info, kernels, explain, tune, cache, demo."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from . import _core


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def info(options: argparse.Namespace) -> int:
    """What was built, which devices are there, which frameworks are installed."""
    from . import __version__
    from .demo import installed
    from .kernels import CutlassKernel, all_kernels

    kernels = [k for k in all_kernels() if isinstance(k, CutlassKernel)]
    build = _core.build_info()
    devices = [_core.device_info(i) for i in range(_core.device_count())]
    facts = {
        "version": __version__,
        "build": build,
        "kernels": {"compiled": sum(k.compiled for k in kernels), "declared": len(kernels)},
        "devices": devices,
        "frameworks": installed(),
    }
    if options.json:
        print(json.dumps(facts, indent=1))
        return 0
    rows = [("cutlass_py", __version__)]
    rows += [(name, str(value)) for name, value in build.items() if value]
    rows.append(("compiled", f"{facts['kernels']['compiled']} of {len(kernels)} declared kernels"))
    rows += [(f"cuda:{i}", _device_line(d)) for i, d in enumerate(devices)]
    if not devices:
        rows.append(("device", f"CPU only: {_core.why_no_device()}"))
    rows += list(facts["frameworks"].items())
    print(_table(rows))
    return 0


def _device_line(device: dict[str, object]) -> str:
    from .families import FAMILIES
    from .kernels import get_kernels

    cc = int(str(device["cc"]))
    usable = len(get_kernels(cc=cc))
    line = f"{device['name']}, compute capability {cc / 10:.1f}, {device['sm_count']} multiprocessors: "
    if not usable:
        return line + "none of the compiled kernels runs on it"
    newer = cc > max(family.cc[0] for family in FAMILIES.values())
    return line + f"{usable} kernels run on it" + (", from PTX: it is newer than what was built for" if newer else "")


def kernels(options: argparse.Namespace) -> int:
    """The kernels, one a line."""
    from .kernels import get_kernels

    if options.coverage:
        from .coverage import markdown

        print(markdown())
        return 0
    found = get_kernels(cc=options.cc, compiled=not options.all, where=lambda m: options.match in m.name)
    if options.json:
        print(json.dumps([asdict(k.metadata) | {"compiled": k.compiled} for k in found], indent=1))
        return 0
    for kernel in found:
        print(kernel.name if kernel.compiled else f"{kernel.name}  (not compiled)")
    return 0


def explain(options: argparse.Namespace) -> int:
    """Which kernel gemm takes for a problem, and why."""
    from .explanation import explain as ask
    from .problems import KEYS, arguments

    print(ask(arguments({key: value for key, value in vars(options).items() if key in KEYS}, options.device)))
    return 0


def _json(text: str) -> Any:
    """A value as in a problem file; what is no JSON is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def cache(options: argparse.Namespace) -> int:
    """Compiled kernels on disk: show them, remove them, compile what problems want ahead of time."""
    return {"info": _cache_info, "clear": _cache_clear, "build": _cache_build}[options.action](options)


def _cache_info(options: argparse.Namespace) -> int:
    from . import cache

    entries = cache.entries()
    size = sum(map(cache.size, entries))
    if options.json:
        print(json.dumps({"directory": str(cache.directory()), "bytes": size, "entries": [p.stem for p in entries]}))
        return 0
    print(f"{cache.directory()}: {len(entries)} kernels, {size / 1e6:.1f} MB")
    for path in entries:
        print(f"  {path.stem}")
    return 0


def _cache_clear(options: argparse.Namespace) -> int:
    from . import cache

    entries, size = cache.clear()
    if options.json:
        print(json.dumps({"directory": str(cache.directory()), "removed": entries, "bytes": size}))
    else:
        print(f"{cache.directory()}: removed {entries} kernels, {size / 1e6:.1f} MB")
    return 0


def _cache_build(options: argparse.Namespace) -> int:
    from .prebuild import best, build, named
    from .problems import read
    from .toolkit import nvcc_jobs

    if not options.file and not options.kernel:
        raise ValueError("cache build: expected a file of problems, or --kernel")
    if options.jobs is not None and options.jobs < 1:
        raise ValueError(f"cache build: --jobs is {options.jobs}; expected 1 or more")
    wanted = [named(name) for name in options.kernel]
    wanted += filter(None, map(best, read(options.file) if options.file else ()))
    silent = options.json
    outcomes = build(list(dict.fromkeys(wanted)), options.jobs or nvcc_jobs(), lambda line: silent or print(line))
    if options.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


def tune(options: argparse.Namespace) -> int:
    """Measure what problems run fastest with, on device 0; show, export and merge what was found so far."""
    from . import tuned
    from .gpu import device
    from .problems import read
    from .progress import progress
    from .tuning import tune as measure

    if not _core.device_count():
        raise ValueError(f"tune: needs a GPU: {_core.why_no_device()}")
    gpu = device(0)
    problems = read(options.file) if options.file else []
    if options.merge:
        tuned.record(gpu, {key: entry for path in options.merge for key, entry in tuned.read(path, gpu).items()})
    tunings = []
    with progress("tuning", len(problems)) as advance:
        for problem in problems:
            tunings.append(measure(problem, candidates=options.candidates))
            if not options.json:
                print(tunings[-1])
            advance()
    if options.json:
        print(json.dumps([_tuning(each) for each in tunings], indent=1))
    table = tuned.table(gpu)
    if options.export:
        with open(options.export, "w", encoding="utf-8") as file:
            file.write(tuned.dumps(gpu, table))
    elif not options.json:
        print(f"{tuned.path_of(gpu)}: {len(table)} classes of problems")
    return 0


def _tuning(tuning: Any) -> dict[str, Any]:
    def row(m: Any) -> dict[str, Any]:
        choice = m.choice
        order = {"raster": choice.raster, "swizzle": choice.swizzle}
        name = {"kernel": choice.route.kernel.name, "splits": choice.route.splits}
        return {**name, **order, "microseconds": m.microseconds}

    measured = [row(m) for m in tuning.measured]
    return {"problem": tuning.problem, "default": row(tuning.default), "measured": measured}


def demo(options: argparse.Namespace) -> int:
    """Multiply real arrays of every framework found; compare with float64."""
    from .demo import run

    rows = run(options.size)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        header = ("framework", "device", "dtype", "problem", "kernel", "error vs float64", "bound")
        cells = [
            (r.framework, r.device, r.dtype, r.problem, r.kernel, f"{r.error:.1e}", f"{r.bound:.1e}") for r in rows
        ]
        print(_table([header, *cells]))
    return 0 if all(row.error <= row.bound for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    from .problems import KEYS

    parser = argparse.ArgumentParser(prog="python -m cutlass_py", description="CUTLASS kernels on any DLPack array.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        sub.set_defaults(function=function)
        return sub

    command(info).add_argument("--json", action="store_true", help="print JSON")

    sub = command(kernels)
    sub.add_argument("match", nargs="?", default="", help="part of the name")
    sub.add_argument("--cc", type=int, help="compute capability times ten, such as 90")
    sub.add_argument("--all", action="store_true", help="include kernels that are declared but not compiled")
    sub.add_argument("--coverage", action="store_true", help="instead, the declaration as Markdown tables")
    sub.add_argument("--json", action="store_true", help="print JSON")

    sub = command(explain)
    aliases = {"a": ["--dtype"], "d": ["--out-dtype"]}
    for key, meaning in KEYS.items():
        names = [f"--{key.replace('_', '-')}", *aliases.get(key, ())]
        if key in "mnk":
            sub.add_argument(key, type=int, help=meaning)
        elif key == "deterministic":
            sub.add_argument(*names, action="store_true", default=None, help=meaning)
        else:
            sub.add_argument(*names, dest=key, metavar="X", type=_json, help=meaning)
    sub.set_defaults(a="bf16")
    sub.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu; need not exist")

    actions = command(cache).add_subparsers(dest="action", required=True)
    for name, text in (
        ("info", "Where the cache is and what it holds."),
        ("clear", "Remove every compiled kernel and lock."),
        ("build", "Compile the best declared kernel for each problem of a file, for device 0 or an H200."),
    ):
        sub = actions.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON")
    sub.add_argument("file", nargs="?", help="problems: a JSON list (docs/jit.md)")
    sub.add_argument("--kernel", action="append", default=[], metavar="NAME", help="this kernel; may be repeated")
    sub.add_argument("--jobs", type=int, help="nvcc at once; by default one per core and 5 GB of free memory")

    sub = command(tune)
    sub.add_argument("file", nargs="?", help="problems: a JSON list (docs/jit.md)")
    sub.add_argument("--candidates", type=int, default=32, help="choices that are run for each problem")
    sub.add_argument("--merge", action="append", metavar="TABLE", help="take over an exported table first")
    sub.add_argument("--export", metavar="TABLE", help="write all that was found so far to this file")
    sub.add_argument("--json", action="store_true", help="print JSON: every choice that was measured")

    sub = command(demo)
    sub.add_argument("--size", type=int, default=512, help="extent of the square problems")
    sub.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for a result that is wrong, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.function(options))
    except (ValueError, TypeError, NotImplementedError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
