"""Writes docs/performance.md from the summaries in benchmarks/results/; the site's build draws its pictures of them.

python benchmarks/performance.py            # after benchmarks/summary.py took new results in
python benchmarks/performance.py --check    # 1 where the page is not what the summaries say
python benchmarks/performance.py --plot DIR # the pictures alone (matplotlib)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from places import RESULTS, ROOT, slug
from summary import by_gpu, contributing, parts_of, results

from cutlass_py.bench.report import published, regimes_of, summarise, summary_table
from cutlass_py.bench.results import Record, Result, geomean
from cutlass_py.bench.suites import DEFAULT, MODES, case_of, shape_text
from cutlass_py.bench.targets import BARS, GROUPS, first_verdict, host_verdicts, verdict_table, verdicts
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.operations.gemm.suites import RANDOM, SUITES

PAGE = ROOT / "docs" / "performance.md"
SUBJECTS = (  # pages beside this one
    ("choice.md", "tiles and the choice among them"),
    ("tile_orders.md", "orders of tiles"),
    ("fp8.md", "sums of fp8"),
    ("tf32.md", "tf32"),
    ("f64.md", "f64"),
    ("epilogues.md", "epilogues"),
    ("launches.md", "launches"),
    ("measuring.md", "what a measurement is worth"),
)
WON = 0.97  # ratios below, in both regimes, count as the reference's win: nearer is within what runs differ

# ---------------------------------------------------------------------------------------------------- results


def latest(found: Iterable[Result], kind: str) -> list[Any]:
    """Everything of a kind once: the latest of it, those that failed included."""
    parts: dict[Any, Any] = {}
    for result in contributing(found):
        for key, part in parts_of(result).items():
            parts[key] = {**parts.get(key, {}), **part} if key[0] == "problem" else part  # each regime of another run
    return [part for key, part in parts.items() if key[0] == kind]


def measured(found: Iterable[Result]) -> list[Record]:
    """The latest of every problem, in the order of suites and layouts."""
    return _in_order(record for record in latest(found, "problem") if "failed" not in record)


def by_suite(records: Sequence[Record]) -> list[Record]:
    """Each record once for every suite that has its problem, of those that were measured in its dtype and mode."""
    kinds = {(r.get("mode", DEFAULT), r["dtype"], r["suite"]) for r in records}
    found = []
    for r in records:
        suites = [suite for suite in SUITES if (r.get("mode", DEFAULT), r["dtype"], suite) in kinds]
        homes = [suite for suite in suites if case_of(r).shape in SUITES[suite]]
        found += [r | {"suite": suite} for suite in homes or [r["suite"]]]
    return _in_order(found)


def _in_order(records: Iterable[Record]) -> list[Record]:
    order = [*SUITES, *RANDOM, "shape", "bars"]

    def place(record: Record) -> tuple[Any, ...]:
        of_mode = MODES.index(record.get("mode", DEFAULT))
        return order.index(record["suite"]), record["dtype"], LAYOUTS.index(record["layout"]), of_mode

    return sorted(records, key=place)


# ---------------------------------------------------------------------------------------------------- the page


def page(found: Sequence[Result]) -> str:
    parts = [
        "# Performance",
        "Written by `benchmarks/performance.py` from `benchmarks/results/`, which has the time of each problem; the "
        "rules of measuring are in `benchmarks/README.md`. Ratios are the reference's time (torch's matmul: cuBLAS) "
        "over ours in the same run, on the same operands: above 1 is faster than cuBLAS. *Sustained* replays CUDA "
        "graphs back to back, *mixed* is a stream with a small elementwise kernel of torch's between the calls. Times "
        "of two machines of one kind differ by 15%: only ratios compare. The documentation as a site has pictures of "
        "the same numbers. Suites whose name begins with `random` are drawn from seeds that nothing was fitted to; "
        "why cuBLAS wins where it does is in [the choice among tiles](performance/choice.md).",
        f"What was tried, and what was kept: {', '.join(f'[{name}](performance/{page})' for page, name in SUBJECTS)}.",
    ]
    for gpu, of_gpu in by_gpu(found).items():
        parts += section(gpu, of_gpu)
    parts += [
        "## Repeating it",
        "```bash\npython -m cutlass_py bench --suite random random-odd random-batched \\\n"
        "    --json build/benchmarks/random.json\n"
        f"python -m cutlass_py bench --bars {' '.join(group for group in GROUPS if group != 'tuned')} \\\n"
        "    --json build/benchmarks/bars.json\n"
        "python -m cutlass_py bench --bars tuned --json build/benchmarks/tuned.json\n"
        "python benchmarks/epilogue_speed.py; python benchmarks/host_cost.py\n"
        "python benchmarks/summary.py build/benchmarks/*.json; python benchmarks/performance.py\n```",
    ]
    return "\n\n".join(wrapped(part) for part in parts) + "\n"


def section(gpu: str, found: Sequence[Result]) -> list[str]:
    records, rows, fused = measured(found), latest(found, "host"), latest(found, "epilogue")
    first = next(iter(latest(found, "first")), None)
    parts = [f"## {gpu}", *provenance(contributing(found))]
    if records:
        parts += [f"<!-- pictures of {slug(gpu)}: docs/site/pictures.py -->", "### Suites", suites(records)]
        parts += ["### What is aimed at", *bars(records, rows, first), *failures(found)]
        header, cells = published(records)
        if cells:
            parts += ["### Scales in blocks, TFLOP/s; DeepGEMM's on an H800", table(header, cells)]
        parts += ["### Where cuBLAS wins", *losses(records)]
    if fused:
        parts += ["### What an epilogue costs", epilogues(fused)]
    if rows:
        parts += ["### Host time of a call", host(rows)]
    return parts


def provenance(found: Sequence[Result]) -> list[str]:
    """Which commit, machine and versions which numbers are of."""
    lines = []
    for commit in dict.fromkeys(str(result["commit"]) for result in found):
        of_commit = [result for result in found if str(result["commit"]) == commit]
        last = of_commit[-1]
        digits, *changed = commit.partition("+")
        versions, build = last["versions"], last["versions"]["build"]
        lines.append(
            f"**These numbers are of commit {digits[:7]}{''.join(changed)}** "
            f"({str(last['date'])[:10]}, cutlass_py {versions['cutlass_py']}, {_built(of_commit)}, CUTLASS "
            f"{build['cutlass']}, nvcc {build['nvcc']}): {_contents(of_commit)}. "
        )
        lines.append(
            f"{machine_text(last['machine'])}, torch {versions['torch']} with CUDA "
            f"{versions.get('torch_cuda') or 'none'}, CuPy {versions['cupy']}, JAX {versions['jax']}, "
            f"Python {versions['python']}."
        )
    return list(dict.fromkeys(lines))  # a machine that measured several commits is told once


def _built(found: Sequence[Result]) -> str:
    """The sets of kernels that were compiled."""
    sets = dict.fromkeys(str(result["versions"]["build"]["kernels"]) for result in found)
    return f"the kernel set{'s' * (len(sets) > 1)} {', '.join(sets)}"


def _contents(found: Sequence[Result]) -> str:
    """What was measured, and how often."""
    counts: dict[str, int] = {}
    for kind, *about in (key for result in found for key in parts_of(result)):
        mode, dtype = about[:2] if kind == "problem" else ("", "")
        what = {"epilogue": "epilogues", "host": "host times", "first": "first call"}.get(kind, f"{dtype} {mode}")
        counts[what] = counts.get(what, 0) + 1
    return ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()))


def machine_text(machine: Mapping[str, Any]) -> str:
    """GPU, limits and driver, as far as they are known."""
    if not machine["gpu"]:
        return f"{machine['cpu']}, {machine['cpus']} processors, no GPU"
    facts = [("clocks.max.sm", "MHz"), ("power.limit", "W")]
    limits = [f"{machine[name]:.0f} {unit}" for name, unit in facts if isinstance(machine.get(name), float)]
    return (
        f"One {machine['gpu']}: compute capability {machine['compute_capability'] / 10:.1f}, {machine['sm_count']} "
        f"multiprocessors{', up to ' * bool(limits)}{' and '.join(limits)}; "
        f"driver {machine.get('driver_version', 'unknown')}"
    )


def suites(records: Sequence[Record]) -> str:
    summary = [row for row in summarise(by_suite(records)) if row["suite"] != "bars"]
    header, cells = summary_table(summary)
    plain = all(row["mode"] == DEFAULT for row in summary)
    kept = [i for i, title in enumerate(header) if title != "mode" or not plain]
    return table([header[i] for i in kept], [[line[i] for i in kept] for line in cells])


def bars(records: Sequence[Record], rows: Sequence[Record], first: float | None) -> list[str]:
    """Demands that something was measured for; the others by name."""
    found = [*verdicts(records, BARS), *host_verdicts(rows), first_verdict(first)]
    header, cells = verdict_table([verdict for verdict in found if verdict.found is not None])
    lacking = dict.fromkeys(f"{v.group} ({v.what})" for v in found if v.found is None)
    return [table(header, cells), *([f"Not measured yet: {'; '.join(lacking)}."] if lacking else [])]


def failures(found: Sequence[Result]) -> list[str]:
    """Problems that could not be measured the last time."""
    failed: dict[str, list[str]] = {}
    for r in latest(found, "problem"):
        if "failed" in r:
            failed.setdefault(str(r["failed"]).partition(" when calling ")[0], []).append(str(case_of(r)))
    return [f"Failed: {', '.join(which)}: {error}." for error, which in failed.items()]


def losses(records: Sequence[Record]) -> list[str]:
    """Shapes where the reference is ahead in every regime that was measured."""
    behind: dict[tuple[str, str, str], list[Record]] = {}
    default = [record for record in records if record.get("mode", DEFAULT) == DEFAULT]
    for record in default:
        if best_ratio(record) < WON:
            behind.setdefault((record["dtype"], record["layout"], weights(record)), []).append(record)
    count = sum(map(len, behind.values()))
    text = (
        f"Of {len(default)} problems, {count} are below {WON} in every regime that was measured: the better of the two "
        "is what the table shows. By layout and, where the batch is 1, the extents (n, k); m as listed, the worst in "
        "bold."
    )
    cells = []
    for (dtype, layout, extents), members in sorted(behind.items(), key=lambda entry: entry[0]):
        worst = min(members, key=best_ratio)
        shown = " ".join(f"**{r['m']}**" if r is worst else str(r["m"]) for r in sorted(members, key=lambda r: r["m"]))
        mean = geomean(map(best_ratio, members))
        cells.append([f"{dtype} {layout}", extents, shown, f"{mean:.2f}", f"{best_ratio(worst):.2f}"])
    return [text, table(["", "(n, k)", "m", "geomean", "worst"], cells)]


def best_ratio(record: Record) -> float:
    return max(record[regime]["ratio"] for regime in regimes_of([record]))


def weights(record: Record) -> str:
    batch, m, n, k = case_of(record).shape
    return f"({n}, {k})" if batch == 1 else shape_text((batch, m, n, k))


def epilogues(records: Sequence[Record]) -> str:
    """Ratios of times as `epilogue_speed.py` says them: benchmarks/README.md has what they are of."""
    measured = [(record, regime, record[regime]) for record in records for regime in regimes_of([record])]
    names = list(dict.fromkeys(name for _, _, timed in measured for name in timed["ratio"]))
    cells = []
    for record, regime, timed in measured:
        ratios = [f"{timed['ratio'][name]:.3f}" if name in timed["ratio"] else "" for name in names]
        shape = f"({record['m']}, {record['n']}, {record['k']})"
        cells.append([record["activation"], shape, regime, f"{timed['us']['plain']:.1f}", *ratios])
    return table(["f(x @ w.T + bias)", "(m, n, k)", "regime", "plain, us", *names], cells)


def host(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for row in rows:
        us, ratio = row["us"], row["ratio"]
        times = [f"{us[arm]['median']:.1f}" for arm in ("cutlass_py", "framework")]
        cells.append(
            [str(row["row"]), *(f"`{s}`" for s in row["statements"].values()), *times, f"{ratio['median']:.2f}"]
        )
    return table(["64 x 64 x 64", "ours", "theirs", "ours, us", "theirs, us", "ours / theirs"], cells)


# ---------------------------------------------------------------------------------------------------- Markdown


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def wrapped(part: str) -> str:
    """Paragraphs in lines of 128; tables, code and comments as they are."""
    import textwrap

    if part.startswith(("|", "`" * 3, "<!--", "#")):
        return part
    return textwrap.fill(part, 128, break_long_words=False, break_on_hyphens=False)


# ---------------------------------------------------------------------------------------------------- writing


def draw_all(found: Sequence[Result], directory: Path) -> list[Path]:
    """The pictures of each GPU, in a directory of its name."""
    from cutlass_py.bench.plots import draw

    return [
        path
        for gpu, of_gpu in by_gpu(found).items()
        if (records := measured(of_gpu))
        for path in draw({**of_gpu[-1], "cases": records}, directory / slug(gpu))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write the pictures there, and nothing else")
    args = parser.parse_args(arguments)
    try:
        found = results(RESULTS)
    except (ValueError, OSError) as error:
        print(f"performance: {error}", file=sys.stderr)
        return 2
    if args.plot:
        print("\n".join(map(str, draw_all(found, args.plot))))
        return 0
    text = page(found)
    if args.check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        print("docs/performance.md is " + ("what the results say" if text == current else "not what the results say"))
        return int(text != current)
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
