"""Writes docs/performance.md and its pictures from the results that are committed.

    python benchmarks/performance.py            # after new files in benchmarks/results/
    python benchmarks/performance.py --check    # 1 where the page is not what the results say

Where several results hold one case, the latest counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from places import RESULTS, ROOT

from cutlass_py.bench.bars import BARS, first_verdict, host_verdicts, verdict_table, verdicts
from cutlass_py.bench.report import published, regimes_of, summarise, summary_table
from cutlass_py.bench.results import Record, Result, geomean, read
from cutlass_py.bench.suites import DEFAULT, SUITES, Case, case_of, shape_text
from cutlass_py.dtypes import LAYOUTS

PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "performance"
WON = 0.97  # ratios below, in both regimes, count as the reference's win: nearer is within what runs differ
# What has to be known about results of a commit that is not the package's present one.
NOTES = {
    "c50cf1e766f24043f95031915702173b46810907": "That commit is older than this page: it was before fused epilogues, "
    "split-K, stream-K and lists, with the core set of then (156 kernels, of which 57 have since moved to the full "
    "set; nt and nn lost most). What came since (fp8, int8, complex and fused kernels among it) has no numbers here: "
    "it has been compiled, and tested on the CPU, and has yet to be measured.",
}

# ---------------------------------------------------------------------------------------------------- results


def results() -> list[Result]:
    """Those of today's format, oldest first."""
    found = [read(path) | {"file": path.name} for path in sorted(RESULTS.glob("*.json"))]
    usable = [result for result in found if "rows" in result or "host" in result or regimes_of(result.get("cases", ()))]
    return sorted(usable, key=lambda result: str(result["date"]))


def by_gpu(found: Iterable[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in found:
        groups.setdefault(str(result["machine"]["gpu"] or "no GPU"), []).append(result)
    return groups


def latest(found: Iterable[Result]) -> list[Record]:
    """Every case of every suite once: the latest, in the order of suites and layouts."""
    cases: dict[tuple[str, Case], Record] = {}
    for result in found:
        for record in result.get("cases", ()):
            if regimes_of([record]):
                cases[record.get("mode", DEFAULT), case_of(record)] = record
    order = [*SUITES, "shape", "bars"]
    return sorted(cases.values(), key=lambda r: (order.index(r["suite"]), r["dtype"], LAYOUTS.index(r["layout"])))


# ---------------------------------------------------------------------------------------------------- the page


def page(found: Sequence[Result]) -> str:
    parts = [
        "# Performance",
        "Written by `benchmarks/performance.py` from `benchmarks/results/`; the rules of measuring are in "
        "`benchmarks/README.md`. Ratios are the reference's time (torch's matmul: cuBLAS) over ours in the same run, "
        "on the same operands: above 1 is faster than cuBLAS. *Sustained* replays CUDA graphs back to back, *mixed* is "
        "a stream with a small elementwise kernel of torch's between the calls. Times of two machines of one kind "
        "differ by 15%: only ratios compare.",
    ]
    for gpu, of_gpu in by_gpu(found).items():
        parts += section(gpu, of_gpu)
    parts += [
        "## Repeating it",
        "```bash\npython -m cutlass_py bench --suite llm square odd batched --json benchmarks/results/NAME.json\n"
        "python -m cutlass_py bench --bars --json benchmarks/results/bars-NAME.json\n"
        "python benchmarks/host_cost.py && python benchmarks/performance.py\n```",
    ]
    return "\n\n".join(wrapped(part) for part in parts) + "\n"


def section(gpu: str, found: Sequence[Result]) -> list[str]:
    records = latest(found)
    rows = [row for result in found for row in (*result.get("rows", ()), *result.get("host", ()))]
    first = next((ms for result in reversed(found) if (ms := result.get("first_call_ms")) is not None), None)
    parts = [f"## {gpu}", *provenance(found)]
    if records:
        folder = f"performance/{slug(gpu)}"
        parts += [f"![Ratios to cuBLAS over the size of the problem]({folder}/ratio.svg)"]
        parts += [f"![What both reach, beside the limits of memory and tensor cores]({folder}/roofline.svg)"]
        parts += ["### Suites", suites(records)]
        parts += ["### What is aimed at", *bars(records, rows, first)]
        header, cells = published(records)
        if cells:
            parts += ["### Scales in blocks, TFLOP/s; DeepGEMM's on an H800", table(header, cells)]
        parts += ["### Where cuBLAS wins", *losses(records)]
    if rows:
        parts += ["### Host time of a call", host(rows)]
    return parts


def provenance(found: Sequence[Result]) -> list[str]:
    """Which commit, machine and versions the numbers are of."""
    lines = []
    for commit in dict.fromkeys(str(result["commit"]) for result in found):
        of_commit = [result for result in found if str(result["commit"]) == commit]
        files = ", ".join(f"`{result['file']}`" for result in of_commit)
        last = of_commit[-1]
        machine, versions, build = last["machine"], last["versions"], last["versions"]["build"]
        lines.append(
            f"**These numbers are of commit {commit[:7]}** ({str(last['date'])[:10]}, cutlass_py "
            f"{versions['cutlass_py']}, the {build['kernels']} kernel set, CUTLASS {build['cutlass']}, nvcc "
            f"{build['nvcc']}), from {files}. "
            f"{NOTES.get(commit, '')}".rstrip()
        )
        lines.append(
            f"One {machine['gpu']}: compute capability {machine['compute_capability'] / 10:.1f}, {machine['sm_count']} "
            f"multiprocessors, up to {machine['clocks.max.sm']:.0f} MHz and {machine['power.limit']:.0f} W; driver "
            f"{machine['driver_version']}, torch {versions['torch']} with CUDA {versions['torch_cuda'] or 'none'}, "
            f"CuPy {versions['cupy']}, JAX {versions['jax']}, Python {versions['python']}."
        )
    return lines


def suites(records: Sequence[Record]) -> str:
    summary = [row for row in summarise(records) if row["suite"] != "bars"]
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


def losses(records: Sequence[Record]) -> list[str]:
    """Shapes where the reference is ahead in every regime that was measured."""
    behind: dict[tuple[str, str, str], list[Record]] = {}
    default = {replace(case_of(r), suite=""): r for r in records if r.get("mode", DEFAULT) == DEFAULT}
    for record in default.values():
        if best_ratio(record) < WON:
            behind.setdefault((record["dtype"], record["layout"], weights(record)), []).append(record)
    count = sum(map(len, behind.values()))
    text = (
        f"Of {len(default)} problems, {count} are below {WON} in both regimes: the better of the two is what the table "
        "shows. By layout and, where the batch is 1, the extents (n, k); m as listed, the worst in bold."
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


def host(rows: Sequence[Mapping[str, object]]) -> str:
    cells = []
    for row in {row["row"]: row for row in rows}.values():
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
    """Paragraphs in lines of 128; tables, code and pictures as they are."""
    import textwrap

    if part.startswith(("|", "`" * 3, "!", "#")):
        return part
    return textwrap.fill(part, 128, break_long_words=False, break_on_hyphens=False)


def slug(gpu: str) -> str:
    return gpu.lower().removeprefix("nvidia ").replace(" ", "-")


# ---------------------------------------------------------------------------------------------------- writing


def draw_all(found: Sequence[Result]) -> list[Path]:
    from cutlass_py.bench.plots import draw

    return [
        path
        for gpu, of_gpu in by_gpu(found).items()
        if (records := latest(of_gpu))
        for path in draw({**of_gpu[-1], "cases": records}, PICTURES / slug(gpu))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(arguments)
    found = results()
    text = page(found)
    if args.check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        print("docs/performance.md is " + ("what the results say" if text == current else "not what the results say"))
        return int(text != current)
    PAGE.write_text(text, encoding="utf-8")
    for path in (PAGE, *draw_all(found)):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
