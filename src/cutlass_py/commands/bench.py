"""Measure kernels against the framework's own matmul on this GPU: suites, one kernel by name, or what must be reached.

Ratios are the reference's time (torch's matmul, CuPy's where there is no torch) over ours: above 1 is faster. Both run
in one process on the same random operands, in turn, from a cold L2 cache; regime `sustained` replays CUDA graphs back
to back, `mixed` puts a small elementwise kernel between the calls on a plain stream.

  bench --suite llm square --layout tn         suites of shapes; --json FILE keeps every reading
  bench --suite random --seed 7                problems drawn anew; the same again for the same seed
  bench --shape 2048,4096,14336 --dtype e4m3   one problem: M,N,K or B,M,N,K
  bench KERNEL 4096 4096 4096                  one kernel by name, in its own dtypes and layout, with its epilogue
  bench --operation NAME                       problems of one operation, beside the model's estimate of each
  bench --bars [GROUP ...]                     what must be reached, and whether it is; `tuned` is after tuning
  bench --from FILE --plot DIR                 pictures and tables of stored results; needs no GPU

Exit code: 0; 1 where a case failed, a result is wrong, a bar is missed or was not measured in full, or none of
--kernels fits; 2 for wrong usage or without a GPU; 130 where it was interrupted: what was measured by then is kept.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..declaration.dtypes import LAYOUTS
from ..declaration.operands import OPERANDS
from ..support.terminal import print_table
from .options import print_json

if TYPE_CHECKING:
    from ..bench.frameworks import Framework
    from ..bench.results import Record, Result
    from ..bench.runs import Part
    from ..bench.suites import Case
    from ..bench.targets import Verdict
    from ..kernels.kernel import CutlassKernel
    from ..operations.gemm.suites import Shape


_NAMED = 4  # kernels or patterns, where a line is about many
_BESIDE_STORED = {"stored", "suite", "dtype", "layout", "bars", "regime", "plot", "json"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    from ..bench.suites import ARITHMETICS, NAMES
    from ..bench.targets import GROUPS
    from ..bench.timing import ALL_REGIMES
    from ..operations.gemm.suites import RANDOM

    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help="time this kernel, for the extents that follow")
    parser.add_argument("extents", nargs="*", type=int, metavar="M N K", help="extents for KERNEL; or B M N K")
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--suite", nargs="+", choices=NAMES, default=[], metavar="NAME", help=f"{', '.join(NAMES)} (default square)"
    )
    what.add_argument(
        "--seed", type=at_least(0), metavar="S", help="of the problems of random suites (default: a new one, printed)"
    )
    what.add_argument(
        "--count",
        type=at_least(1),
        metavar="N",
        help=f"problems of each of those (default {', '.join(f'{name}: {x.count}' for name, x in RANDOM.items())})",
    )
    what.add_argument(
        "--shape", nargs="+", type=shape, default=[], metavar="M,N,K", help="problems; B,M,N,K stacks B of them"
    )
    what.add_argument("--operation", choices=OPERANDS, metavar="NAME", help=f"{', '.join(OPERANDS)}")
    what.add_argument("--bars", nargs="*", choices=GROUPS, metavar="GROUP", help=f"{', '.join(GROUPS)}; default all")
    what.add_argument(
        "--dtype", nargs="+", choices=ARITHMETICS, metavar="NAME", help=f"{', '.join(ARITHMETICS)} (default bf16)"
    )
    what.add_argument(
        "--layout", nargs="+", choices=LAYOUTS, metavar="XY", help=f"of A, then B: {', '.join(LAYOUTS)} (default all)"
    )
    what.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th shape of the suites")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--regime",
        nargs="+",
        choices=ALL_REGIMES,
        metavar="NAME",
        help="sustained, mixed (default both; with --all-kernels, --splits or --orders sustained), or light",
    )
    how.add_argument("--tune", action="store_true", help="tune each problem first; what that finds is not kept")
    how.add_argument("--all-kernels", action="store_true", help="also time every compiled kernel that fits")
    how.add_argument("--best", type=at_least(1), metavar="N", help="of --all-kernels the N that the model thinks best")
    how.add_argument(
        "--kernels",
        nargs="+",
        default=[],
        metavar="FILE|PATTERN",
        help="of --all-kernels those of these names: patterns such as '*_128x256x64_*', files with a name a line; "
        "also of families that are taken by name alone",
    )
    how.add_argument(
        "--splits", nargs="+", type=parts, default=[], metavar="S", help="also time k in S parts: 2 4 stream"
    )
    how.add_argument(
        "--batch-invariant", action="store_true", help="also time the choice of batch_invariant=True, and what it costs"
    )
    how.add_argument("--orders", action="store_true", help="also time the choice, or KERNEL, in each order of tiles")
    how.add_argument(
        "--budget-ms",
        type=float,
        default=40.0,
        help="GPU time for each side and regime (default 40; kernels of --all-kernels get a quarter, the fastest all)",
    )
    how.add_argument("--limit-seconds", type=float, default=inf, metavar="S", help="stop after this long; keep results")
    out = parser.add_argument_group("what becomes of it")
    out.add_argument("--json", nargs="?", const="-", metavar="FILE", help="print JSON, or write it to FILE meanwhile")
    out.add_argument("--resume", action="store_true", help="go on with FILE of --json: measure what it lacks")
    out.add_argument("--plot", type=Path, metavar="DIR", help="write ratio.svg and roofline.svg (needs matplotlib)")
    out.add_argument("--from", dest="stored", metavar="FILE", help="read stored results and measure nothing")
    out.add_argument("--commit", help="the commit that is measured, where git cannot tell")
    parser.set_defaults(unasked=vars(parser.parse_args([])))


def run(options: argparse.Namespace) -> int:
    """The command; 1 where a case failed, a result is wrong, or what was asked for is missed or not measured."""
    from ..bench.report import faults
    from ..bench.runs import INTERRUPTED

    if options.every < 1 or options.budget_ms <= 0:
        raise ValueError("bench: --every and --budget-ms must be above 0")
    if (options.best or options.kernels) and not options.all_kernels:
        raise ValueError("bench: --best and --kernels say which of --all-kernels are timed; expected that beside them")
    if options.plot and options.bars is not None and not _bars(options):
        raise ValueError("bench: --plot draws cases, and these bars have none")
    if options.plot and not find_spec("matplotlib"):
        raise ValueError("bench: --plot needs matplotlib: pip install 'cutlass_py[bench]'")
    if options.operation:
        return _times(options)
    result = _stored(options) if options.stored else _measured(options)
    said = [
        *faults(result["cases"]),
        *(f"FAILED: {what}: {why}" for what, why in result.get("host_failed", {}).items()),
    ]
    verdicts = _verdicts(options, result) if options.bars is not None else []
    _say(options, result, verdicts, said)
    if options.plot:
        from ..bench.plots import draw

        for path in draw(result, options.plot):
            print(f"picture: {path}", file=sys.stderr)
    timed = bool(options.stored) or _say_untimed(options, result)
    if not options.stored and result["ended"] == INTERRUPTED:
        return 130
    return 1 if said or not timed or any(not verdict.reached for verdict in verdicts) else 0


def _times(options: argparse.Namespace) -> int:
    """The suite of an operation, problem by problem; of gemm's comparison nothing goes with it but --every and --json.

    Raises:
        ValueError: another option, or no GPU.
    """
    from ..bench.problem_times import times
    from ..kernels.operation import operation_named
    from ..kernels.problem_files import arguments

    asked = {name for name, value in options.unasked.items() if getattr(options, name) != value}
    if asked - {"operation", "every", "json"} or options.json not in (None, "-"):
        raise ValueError("bench: of the other options only --every and --json without a file go with --operation")
    if not _core.device_count():
        raise ValueError(f"bench: needs a GPU: {_core.why_no_device()}")
    suite = list(operation_named(options.operation).suite)[:: options.every]
    found = list(times(arguments({"operation": options.operation, **entry}) for entry in suite))
    if options.json:
        print_json([asdict(time) for time in found])
        return 0
    cells = [(x.problem, f"{x.microseconds:.1f}", f"{x.estimate:.1f}", x.kernel) for x in found]
    print_table(("problem", "us", "estimate", "kernel"), cells)
    return 0


def _stored(options: argparse.Namespace) -> Result:
    """Results of a file, the cases that the options ask for.

    Raises:
        ValueError: an option about what is measured or where it goes, or a file that holds no cases.
    """
    from ..bench.report import summarise
    from ..bench.timing import ALL_REGIMES

    asked = {name for name, value in options.unasked.items() if getattr(options, name) != value}
    if asked - _BESIDE_STORED or options.json not in (None, "-"):
        raise ValueError(
            "bench: --from measures nothing: of the other options only --suite, --dtype, --layout, --bars, --regime, "
            "--plot and --json without a file go with it"
        )
    result = _read(options.stored)
    wanted = {"suite": options.suite, "dtype": options.dtype, "layout": options.layout}
    others = {*ALL_REGIMES} - {*(options.regime or ALL_REGIMES)}
    kept = [r for r in result["cases"] if all(not names or r[key] in names for key, names in wanted.items())]
    result["cases"] = [{key: value for key, value in r.items() if key not in others} for r in kept]
    result["summary"] = summarise(result["cases"])
    return result


def _read(path: str) -> Result:
    """A file of results of `bench`.

    Raises:
        ValueError: it is none, or holds no cases.
        OSError: it cannot be read.
    """
    from ..bench.results import read
    from ..bench.suites import is_case

    result = read(path)
    if "cases" not in result or not all(map(is_case, result["cases"])):
        raise ValueError(f"{path}: holds no cases of suites; expected a result of `bench --json`")
    return result


# ---------------------------------------------------------------------------------------------------- measuring


def _measured(options: argparse.Namespace) -> Result:
    from ..bench.environment import CHANGES, environment
    from ..bench.frameworks import framework
    from ..bench.runs import Run

    if options.kernel and options.bars is None:
        _kernel_asked(options)  # what is wrong with that is said without a GPU too
    path = Path(options.json) if options.json and options.json != "-" else None
    if options.resume and path is None:
        raise ValueError("bench: --resume goes on with a file: expected --json FILE")
    before = _read(options.json) if options.resume and path and path.exists() else None
    drawn = _drawn(options, before)
    began, gpu = time.monotonic(), framework()
    facts = environment(options.commit) | drawn
    commit = facts["commit"]
    if options.resume and (commit is None or commit.endswith(CHANGES)):
        raise ValueError(
            f"bench: --resume goes on with results of one commit; found {commit}, which may stand for several trees: "
            "name what is measured by --commit"
        )
    run = Run(_parts(options, gpu, drawn), gpu, facts, path, before)
    run.save()  # where the file cannot be written, before anything is measured
    if options.bars is not None:
        run.facts |= _host(options)
    if run.total:
        _watch(run, options, options.limit_seconds - (time.monotonic() - began))
    else:
        run.save()
    return run.result()


def _watch(run: Any, options: argparse.Namespace, seconds: float) -> None:
    """Measures; says each case as it comes, above a table of means and a bar where somebody watches."""
    from ..bench.report import header, row, summarise, summary_table
    from ..support.terminal import progress, rich_table

    regimes = list(dict.fromkeys(regime for part in run.parts for regime in part.settings.regimes))
    silent = options.json == "-"
    if not silent:
        machine, versions = run.facts["machine"], run.facts["versions"]
        drawn = f", seed {run.facts['seed']}" if "seed" in run.facts else ""
        before = f", {len(run.records)} of them measured before" if run.records else ""
        print(f"{machine['gpu']}, {run.gpu.name} {versions[run.gpu.name]}, {run.total} cases{before}{drawn}")
        print(header(regimes, run.gpu.name))
    with progress("measuring", len(run.left), lambda: rich_table(*summary_table(summarise(run.records)))) as advance:

        def done(record: Record) -> None:
            if not silent:
                print(row(record, [r for r in regimes if r in record or "failed" in record]), flush=True)
            advance()

        run.all(done, seconds)
    if run.ended:
        print(f"bench: {run.ended}: {len(run.records)} of {run.total} cases", file=sys.stderr)


def _host(options: argparse.Namespace) -> Result:
    """Host times, where a bar is about them; they come first: half a minute at most."""
    from ..bench import host
    from ..bench.results import reason

    found: Result = {"host_failed": {}}
    if "host" in _groups(options):
        found["host"], found["host_skipped"], found["host_failed"] = host.measure_all(
            host.GROUPS, 2.0, lambda record: None
        )
    if "first" in _groups(options):
        try:
            found["first_call_ms"] = host.first_call_ms()
        except Exception as error:  # the cases can still be measured
            found["host_failed"]["first call"] = reason(error)
    return found


# ---------------------------------------------------------------------------------------------------- what to measure


def _drawn(options: argparse.Namespace, before: Result | None) -> dict[str, int | None]:
    """Seed and count of random suites: as asked for, or of the result to go on with. Nothing without such suites.

    Raises:
        ValueError: they were asked for nevertheless.
    """
    from ..operations.gemm.suites import RANDOM

    if not {*RANDOM} & {*options.suite}:
        if options.seed is not None or options.count is not None:
            found = " ".join(options.suite) or "none of them"
            raise ValueError(f"bench: --seed and --count are of --suite {', '.join(RANDOM)}; found {found}")
        return {}
    asked = {"seed": options.seed, "count": options.count}
    drawn = {name: (before or {}).get(name) if value is None else value for name, value in asked.items()}
    return drawn | {"seed": secrets.randbelow(2**32) if drawn["seed"] is None else drawn["seed"]}


def _parts(options: argparse.Namespace, gpu: Framework, drawn: dict[str, Any]) -> list[Part]:
    """The cases, grouped by how they are measured.

    Args:
        options: what was asked for.
        gpu: the array library.
        drawn: seed and count of random suites.

    Raises:
        ValueError: options that do not go together, or leave nothing.
    """
    if options.bars is not None:
        return _parts_of_bars(options, gpu)
    if options.kernel:
        kernel, shape = _kernel_asked(options)
        return [_part(options, gpu, [_case_of(kernel, shape, gpu.dtypes)], kernel.name)]
    from ..bench.suites import cases

    known = gpu.dtypes
    dtypes, layouts = options.dtype or ["bf16" if "bf16" in known else known[0]], options.layout or LAYOUTS
    for dtype in dtypes:
        if dtype not in known:
            raise ValueError(f"bench: no reference multiplies {dtype} here; expected one of {', '.join(known)}")
    suites = options.suite or ([] if options.shape else ["square"])
    found = cases(suites, dtypes, layouts, options.shape, options.every, **drawn)
    if not found:
        raise ValueError(
            f"bench: the reference takes none of these problems in {' '.join(dtypes)}, {' '.join(layouts)}"
        )
    return [_part(options, gpu, found)]


def _part(options: argparse.Namespace, gpu: Framework, cases: Sequence[Any], kernel: str | None = None) -> Part:
    from ..bench.cases import Settings
    from ..bench.runs import Part
    from ..bench.suites import DEFAULT, SWEEP, TUNED

    if options.plot and not any(case.compared for case in cases):
        raise ValueError("bench: --plot draws ratios, and nothing is compared: no reference computes what KERNEL does")
    if options.tune and options.all_kernels:
        raise ValueError("bench: --tune and --all-kernels are two different measurements; expected one of them")
    sweep = options.all_kernels or options.orders or bool(options.splits)
    known = _regimes(options, gpu, cases)
    regimes = tuple(options.regime or (known[:1] if sweep else known))
    mode = SWEEP if options.all_kernels else TUNED if options.tune else DEFAULT
    kernels = _patterns(options.kernels)
    settings = Settings(
        regimes, mode, kernel, options.best, kernels, tuple(options.splits), options.batch_invariant, options.orders,
        options.budget_ms,
    )  # fmt: skip
    return Part(cases, settings)


def _patterns(asked: Sequence[str]) -> tuple[str, ...]:
    """Names and patterns of kernels, those in files included.

    Raises:
        ValueError: no compiled kernel has such a name.
    """
    from ..bench.cases import matching
    from ..declaration.families import listed
    from ..dispatch.discover import get_kernels

    found = [name for text in asked for name in (listed(text) if Path(text).is_file() else [text])]
    compiled = get_kernels() if found else []
    for pattern in found:
        if not matching(compiled, [pattern]):
            raise ValueError(f"bench: --kernels: no compiled kernel is called {pattern!r}; `kernels` lists them")
    if asked and not found:
        raise ValueError(f"bench: --kernels: {' '.join(asked)} names no kernel; expected a name a line")
    return tuple(found)


def _regimes(options: argparse.Namespace, gpu: Framework, cases: Sequence[Any]) -> tuple[str, ...]:
    """Those in which cases of one kind can be timed, compared with the framework or not.

    Raises:
        ValueError: another was asked for.
    """
    from ..bench.timing import LIGHT, REGIMES

    found = REGIMES if gpu.captures or not cases[0].compared else REGIMES[1:]
    if unfit := set(options.regime or ()) - {*found, LIGHT}:
        raise ValueError(f"bench: no graph can be made of {gpu.name}'s matmul, which is what {unfit.pop()} replays")
    return found


def _kernel_asked(options: argparse.Namespace) -> tuple[CutlassKernel, Shape]:
    """KERNEL and its extents.

    Raises:
        ValueError: there is no such kernel, the extents are none, or options do not go with them.
    """
    from ..kernels.registry import cutlass_kernel_named

    if options.suite or options.shape or options.dtype or options.layout:
        raise ValueError(
            "bench: KERNEL M N K says what is measured: --suite, --shape, --dtype and --layout do not go with it"
        )
    kernel = cutlass_kernel_named(options.kernel, "bench")
    if len(options.extents) not in (3, 4) or min(options.extents, default=0) < 1:
        raise ValueError(
            f"bench: {len(options.extents)} extents behind {kernel.name}; expected M N K, or B M N K, 1 or more"
        )
    batch, m, n, k = options.extents if len(options.extents) == 4 else [1, *options.extents]
    return kernel, (batch, m, n, k)


def _case_of(kernel: CutlassKernel, shape: Shape, known: Sequence[str]) -> Case:
    """What the framework computes as well as the kernel does; else the kernel's own problem, which it does not."""
    from ..arrays.gpu import gpu_of
    from ..bench.kernel_case import KernelCase
    from ..bench.suites import ARITHMETICS, Case
    from ..operations.gemm import problems

    c = kernel.config
    for name, found in ARITHMETICS.items():
        same = c.a == c.b and found.formats == (c.a, c.accumulator, c.d)
        if same and name in known and c.layout in found.layouts and found.takes(shape):
            case = Case("shape", name, c.layout, shape)
            p = problems.arguments(case.problem()).problem
            if not isinstance(kernel.way(p, gpu_of(p)), str):
                return case
    return KernelCase.of(c, shape)


def _parts_of_bars(options: argparse.Namespace, gpu: Framework) -> list[Part]:
    """Every case of the bars asked for, once for each mode: those that tune, which take longest, last."""
    from ..bench.cases import Settings
    from ..bench.runs import Part
    from ..bench.suites import MODES, SWEEP
    from ..bench.timing import REGIMES

    parts_ = []
    for mode in MODES:
        found: dict[Any, Any] = {}
        for bar in _bars(options):
            if bar.mode == mode and bar.dtype in gpu.dtypes:
                # One problem of several suites is of the first of them, one of several bars of the last.
                of_bar = reversed(bar.cases()[:: options.every])
                found |= {(case.dtype, case.layout, case.shape): case for case in of_bar}
        if found:
            regimes = REGIMES[:1] if mode == SWEEP else tuple(options.regime or REGIMES)
            settings = Settings(regimes, mode, budget_ms=options.budget_ms, alone=True)
            parts_.append(Part(list(found.values()), settings))
    if parts_ and not gpu.captures:
        raise ValueError(
            f"bench: no graph can be made of {gpu.name}'s matmul, and the bars are about graphs; use torch"
        )
    return parts_


def _groups(options: argparse.Namespace) -> Sequence[str]:
    """What `--bars` names; without a name, everything."""
    from ..bench.targets import GROUPS

    return options.bars or GROUPS


def _bars(options: argparse.Namespace) -> list[Any]:
    """The bars asked for, of the dtypes and layouts asked for."""
    from ..bench.targets import BARS

    beside = options.all_kernels or options.splits or options.batch_invariant or options.orders
    if options.suite or options.shape or options.kernel or options.tune or beside:
        raise ValueError(
            "bench: --bars says what is measured; of the other options only --dtype, --layout and --regime, "
            "--every, --budget-ms and --limit-seconds go with it"
        )
    groups = _groups(options)
    found = [
        bar
        for bar in BARS
        if bar.group in groups
        and (not options.dtype or bar.dtype in options.dtype)
        and (not options.layout or set(bar.layouts) <= set(options.layout))
    ]
    if not found and not {"host", "first"} & {*groups}:
        raise ValueError(f"bench: no bar of {' '.join(groups)} is about these dtypes and layouts alone")
    return found


# ---------------------------------------------------------------------------------------------------- what is said


def _verdicts(options: argparse.Namespace, result: Result) -> list[Verdict]:
    from ..bench import targets
    from ..bench.timing import REGIMES

    found = targets.verdicts(result["cases"], _bars(options), options.regime or REGIMES)
    if "host" in _groups(options):
        found += targets.host_verdicts(result.get("host", ()))
    if "first" in _groups(options):
        found.append(targets.first_verdict(result.get("first_call_ms")))
    return found


def _say(options: argparse.Namespace, result: Result, verdicts: Sequence[Verdict], said: Sequence[str]) -> None:
    from ..bench.report import published, summarise, summary_table
    from ..bench.results import dumps
    from ..bench.targets import verdict_table

    if options.json == "-":
        print(dumps(result | ({"bars": [v.facts() for v in verdicts]} if verdicts else {})), end="")
        return
    rows = summarise(result["cases"])
    if rows:
        print()
        print_table(*summary_table(rows))
    header, cells = published(result["cases"])
    if cells:
        print("\nTFLOP/s; DeepGEMM's on an H800")
        print_table(header, cells)
    if verdicts:
        print()
        print_table(*verdict_table(verdicts))
    for line in said:
        print(line)


def _say_untimed(options: argparse.Namespace, result: Result) -> bool:
    """Says which names and patterns of --kernels no case has a kernel of; False where that is all of them."""
    from ..bench.cases import matching
    from ..dispatch.discover import get_kernels

    patterns = {pattern for part in result["parts"] for pattern in part["kernels"]}
    cases = [record for record in result["cases"] if "failed" not in record]
    if not patterns or not cases:
        return True
    arms = {arm for record in cases for arm in (*record["error"], *record.get("refused", ()))}
    timed = [kernel for kernel in get_kernels() if kernel.name in arms]
    idle = sorted(pattern for pattern in patterns if not matching(timed, [pattern]))
    if idle:
        more = f" and {len(idle) - _NAMED} more" if len(idle) > _NAMED else ""
        why = "none takes the operands as they lie" + (f", or is among the {options.best} best" if options.best else "")
        print(f"bench: --kernels: no case has a kernel of {', '.join(idle[:_NAMED])}{more}: {why}", file=sys.stderr)
    return len(idle) < len(patterns)


# ---------------------------------------------------------------------------------------------------- values


def shape(text: str) -> Shape:
    """M,N,K or B,M,N,K."""
    try:
        extents = [int(extent) for extent in text.split(",")]
    except ValueError:
        extents = []
    if len(extents) not in (3, 4) or min(extents) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K or B,M,N,K")
    batch, m, n, k = extents if len(extents) == 4 else [1, *extents]
    return batch, m, n, k


def at_least(least: int) -> Callable[[str], int]:
    """What reads a whole number that is no less."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
        return int(text)

    return number


def parts(text: str) -> int | str:
    """A number of parts of k, or "stream"."""
    if text != "stream" and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of parts nor 'stream'")
    return text if text == "stream" else int(text)
