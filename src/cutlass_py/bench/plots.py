"""Pictures of results, as SVG: ratios to the reference, and the rates beside the limits of the GPU (matplotlib)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from ..arrays.gpu import bandwidth_of
from ..declaration.dtypes import LAYOUTS
from .report import compared, last_reading, regimes_of, theirs_of
from .results import OURS, Record, Result, geomean
from .suites import DEFAULT, Case, case_of

# Operations of one multiprocessor in a cycle, dense, by compute capability and dtype (suites.ARITHMETICS).
_FLOP_PER_CYCLE = {
    80: {"bf16": 2048, "f16": 2048, "tf32": 1024, "s8": 4096, "f64": 128, "f32": 128},
    90: {"bf16": 4096, "f16": 4096, "tf32": 2048, "s8": 8192, "f64": 256, "f32": 256}
    | dict.fromkeys(("e4m3", "e4m3_fast", "e4m3_vector", "e4m3_block"), 8192),
}
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
_MARKS = {"sustained": "o", "mixed": "x", "light": "+"}
# Ticks of a decade, for axes of more than so many decades.
_TICKS = [(3.0, (1,)), (1.5, (1, 3)), (0.7, (1, 2, 3, 5, 7)), (0.0, (1, 1.1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))]
_FEW = 40  # problems of a layout: fewer share a panel with those of other layouts


def draw(result: Result, directory: Path) -> list[Path]:
    """Writes every picture that the result has data for; returns their paths.

    Raises:
        ValueError: no case was measured beside a reference.
    """
    measured = compared(result["cases"])
    if not measured:
        raise ValueError("bench: nothing was measured that could be plotted")
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {
        directory / "ratio.svg": _ratios(measured),
        directory / "roofline.svg": _roofline(measured, result),
    }
    for path, content in pictures.items():
        path.write_text(content, encoding="utf-8")
    return list(pictures)


def _figures(columns: int, panels: int) -> tuple[Any, list[Any]]:
    """A figure without a window, and its panels."""
    from matplotlib.figure import Figure

    rows = ceil(panels / columns)
    figure = Figure(figsize=(4.2 * columns + 0.6, 3.2 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for unused in grid[panels:]:
        unused.remove()
    return figure, grid[:panels]


def _logarithmic(axis: Any, x: str, y: str) -> None:
    """Both axes, with some plain numbers; no ticks between them, which would take as much of the file as the points."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axis.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    for each in (axis.xaxis, axis.yaxis):
        low, high = each.get_view_interval()
        subs = next(subs for decades, subs in _TICKS if high / low > 10**decades)
        each.set_major_locator(LogLocator(10, subs=subs))
        each.set_major_formatter(StrMethodFormatter("{x:g}"))
        each.set_minor_locator(NullLocator())


def _svg(figure: Any) -> str:
    """The same text for the same data: no date, no random names; letters stay letters.

    The picture takes a quarter of matplotlib's bytes: tenths of a point in what is drawn (text stays as it is), short
    names of markers, none of groups, no comments, and the style of a series' markers said once.
    """
    from matplotlib import rc_context

    target = io.StringIO()
    rules = {"svg.hashsalt": "cutlass_py", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    with rc_context(rules):
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r'<!--.*?-->|(?<=<g) id="[^"]*"', "", target.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), svg).replace(" xlink:href=", " href=")
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="(m[0-9a-f]{10})"', svg))):
        svg = svg.replace(name, f"m{number}")
    series = re.compile(r"(<g[^>]*)>(\s*(?:<use [^>]*/>\s*)+)</g>")
    lines = map(str.strip, series.sub(_styled_once, svg).splitlines())
    return "\n".join(filter(None, lines)) + "\n"


def _styled_once(series: re.Match[str]) -> str:
    """A group of markers that bears their style, where all have the same."""
    opening, markers = series.groups()
    styles = set(re.findall(r' style="[^"]*"', markers))
    if len(styles) > 1 or "style=" in opening:
        return series[0]
    style = "".join(styles)
    return f"{opening}{style}>{markers.replace(style, '')}</g>" if style else series[0]


def _grouped(records: Iterable[Record], *keys: str) -> dict[tuple[str, ...], list[Record]]:
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.get(key, DEFAULT) for key in keys), []).append(record)
    return groups


def _panels(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Records by dtype and mode, which never share a panel; and by layout, where there are many of each."""
    panels: dict[str, list[Record]] = {}
    for (dtype, mode), members in _grouped(records, "dtype", "mode").items():
        by_layout = {layout: of_layout for (layout,), of_layout in _grouped(members, "layout").items()}
        if min(map(len, by_layout.values())) < _FEW:
            by_layout = {" ".join(sorted(by_layout, key=LAYOUTS.index)): members}
        for layout, of_layout in by_layout.items():
            panels[f"{dtype} {layout}" + (f", {mode}" if mode != DEFAULT else "")] = of_layout
    return panels


# ---------------------------------------------------------------------------------------------------- ratios


def _ratios(records: Sequence[Record]) -> str:
    """The ratio over the size of the problem."""
    panels = _panels(records)
    figure, axes = _figures(min(len(panels), 2), len(panels))
    suites = list(dict.fromkeys(record["suite"] for record in records))
    for axis, (title, members) in zip(axes, panels.items(), strict=True):
        means = []
        for regime in regimes_of(members):
            timed = [record for record in members if regime in record]
            means.append(f"{regime} {geomean(last_reading(record[regime])['ratio'] for record in timed):.3f}")
            for (suite,), of_suite in _grouped(timed, "suite").items():
                x = [case_of(record).flop for record in of_suite]
                y = [last_reading(record[regime])["ratio"] for record in of_suite]
                colour, label = _COLOURS[suites.index(suite) % len(_COLOURS)], f"{suite}, {regime}"
                axis.plot(x, y, _MARKS[regime], color=colour, markersize=3, alpha=0.7, label=label)
        axis.axhline(1, color="black", linewidth=0.8)
        _logarithmic(axis, "operations", "reference's time over ours")
        axis.set_title(f"{title}: {', '.join(means)}", fontsize=9)
    axes[0].legend(fontsize=6, ncols=2)
    return _svg(figure)


# ---------------------------------------------------------------------------------------------------- roofline


def _roofline(records: Sequence[Record], result: Result) -> str:
    """A panel for each dtype and mode: what both sides reach, in the first regime, and the limits of memory and tensor
    cores."""
    panels = _grouped(records, "dtype", "mode")
    figure, axes = _figures(min(len(panels), 2), len(panels))
    for axis, ((dtype, mode), members) in zip(axes, panels.items(), strict=True):
        regime = regimes_of(members)[0]
        timed = [(case_of(record), last_reading(record[regime])["us"]) for record in members if regime in record]
        x = [case.flop / case.moved_bytes for case, _ in timed]
        reference = result.get("reference", "torch")
        axis.plot(x, [_rate(case, theirs_of(us)) for case, us in timed], "x", color=_COLOURS[1], label=reference)
        axis.plot(x, [_rate(case, us[OURS]) for case, us in timed], ".", color=_COLOURS[0], label="cutlass_py")
        for line in axis.lines:
            line.set(markersize=3.5, alpha=0.7)
        _limits(axis, dtype, result["machine"], min(x), max(x))
        _logarithmic(axis, "operations per byte", "TFLOP/s")
        axis.set_title(f"{dtype}, {regime}" + (f", {mode}" if mode != DEFAULT else ""), fontsize=9)
        axis.legend(fontsize=7)
    return _svg(figure)


def _rate(case: Case, microseconds: float) -> float:
    return case.flop / microseconds / 1e6


def _limits(axis: Any, dtype: str, machine: dict[str, Any], low: float, high: float) -> None:
    """What copies reach of memory, and what the tensor cores could do at the highest clock, where that is known."""
    cc, sm_count, clock = (machine.get(key) for key in ("compute_capability", "sm_count", "clocks.max.sm"))
    if not cc or not sm_count:
        return
    slope = bandwidth_of(cc, sm_count) / 1e3  # TB/s
    flop = _FLOP_PER_CYCLE.get(cc, {}).get(dtype)
    peak = flop * sm_count * clock / 1e6 if flop and isinstance(clock, float) else None
    ridge = min(peak / slope, high) if peak else high
    if ridge > low:
        axis.plot([low, ridge], [low * slope, ridge * slope], "--", color="grey", linewidth=0.8)
    if peak:
        axis.axhline(peak, linestyle="--", color="grey", linewidth=0.8)
