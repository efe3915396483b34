"""What is said of results: a line per case while they come in, then the summary, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..kernels.adaptation import Way
from ..operations.gemm.suites import CLASSES, DEEPGEMM, RANDOM, Shape
from .results import INVARIANT, OURS, Record, geomean, percentile
from .suites import DEFAULT, SWEEP, case_of, shape_text
from .timing import ALL_REGIMES, alone, ratio_of


def regimes_of(records: Iterable[Record]) -> list[str]:
    """Those that some record has."""
    found = {regime for record in records for regime in record}
    return [regime for regime in ALL_REGIMES if regime in found]


def theirs_of(us: dict[str, float]) -> float:
    """The reference's time: of the first arm."""
    return next(iter(us.values()))


def ours_of(record: Record, regime: str) -> list[str]:
    """The arms of a record's last reading that are kernels of ours."""
    return list(last_reading(record[regime])["us"])[1 if "ratio" in record[regime] else 0 :]


def compared(records: Iterable[Record]) -> list[Record]:
    """Those that were timed beside a reference."""
    return [record for record in records if any("ratio" in record[regime] for regime in regimes_of([record]))]


def header(regimes: Sequence[str], reference: str) -> str:
    """Two lines above the rows."""
    columns = "".join(f" | {regime:^27}" for regime in regimes)
    times = f" | {reference + ' us':>9} {'ours us':>9} {'ratio':>7}" * len(regimes)
    return f"{'':40}{columns}\n{'case':40}{times} | error   kernel"


def row(record: Record, regimes: Sequence[str]) -> str:
    """One case; below it, a line for each kernel that was timed by name, and for each cut of k."""
    name = str(case_of(record)) + ("" if record["mode"] == DEFAULT else f" {record['mode']}")
    if "failed" in record:
        return f"{name:40} | {record['failed']}"
    times = ""
    for regime in regimes:
        last = last_reading(record[regime])
        us, ratio = last["us"], last.get("ratio")
        mark = " " if last.get("queue_filled", True) else "?"  # host time may show
        theirs, compared = ("", "") if ratio is None else (f"{theirs_of(us):.2f}", f"{ratio:.3f}")
        times += f" | {theirs:>9} {us[OURS]:9.2f} {compared:>6}{mark}"
    chosen = record["chosen"]
    how = ", ".join(Way.of(chosen.get).steps(chosen.get("splits", 1)))
    line = f"{name:40}{times} | {record['error'][OURS]:.1e} {short(chosen['kernel'])} {how}".rstrip()
    lines = [line, *_named(record, regimes)]
    for found in record.get("decompositions", ()):  # the model's time beside the measured ones
        cut = f"splits={found['splits']}"
        timed = [f"{regime} {record[regime]['us'][cut]:.2f}" for regime in regimes if cut in record[regime]["us"]]
        estimate = f"estimated {found['estimated_us']:9.2f} us, {', '.join(timed) or 'not timed'}"
        lines.append(f"  {cut:14} {estimate}  {short(found['kernel'])}")
    return "\n".join(lines)


def _named(record: Record, regimes: Sequence[str]) -> list[str]:
    """Kernels that were timed by name; of a sweep, the fastest. Beside each its ratio, or rates."""
    us = last_reading(record[regimes[0]])["us"]
    names = [name for name in ours_of(record, regimes[0]) if name != OURS and not name.startswith("splits=")]
    names = sorted(names, key=us.__getitem__)[: 1 if record["mode"] == SWEEP else None]
    lines = []
    for name in names:
        times = []
        for regime in regimes:
            us = last_reading(record[regime])["us"]
            if name not in us:  # not among the fastest of this regime
                continue
            beside = f"ratio {theirs_of(us) / us[name]:.3f}"
            if "flop" in record:
                flop, moved = record["flop"] / us[name] / 1e6, record["moved_bytes"] / us[name] / 1e3
                beside = f"{flop:.4g} TFLOP/s, {moved:.4g} GB/s"
            times.append(f"{regime} {us[name]:.2f} us, {beside}")
        lines.append(f"  {short(name)}: {'; '.join(times)}")
    return lines


def short(kernel: str | None) -> str:
    """The part of a kernel's name that the case does not say already: family, tile and design."""
    parts = (kernel or "none").split("_")
    return "_".join([parts[0], *parts[7:]]) if len(parts) > 8 else "_".join(parts)


# ---------------------------------------------------------------------------------------------------- summary


_KEYS = ("suite", "dtype", "layout", "regime", "mode")
_BEST = "best found"


def summarise(records: Sequence[Record]) -> list[Record]:
    """Geomean, 5th percentile, worst and the number of slow shapes by suite, dtype, layout, regime and mode.

    Of suites that are drawn, classes of shapes have rows of their own, below that of the suite. Of a sweep, so has the
    best kernel of each case, where its times are there.
    """
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in compared(records):
        for regime in regimes_of([record]):
            facts = [record["suite"], record["dtype"], record["layout"], regime, record.get("mode", DEFAULT)]
            groups.setdefault(tuple(facts), []).append(record)
    rows = []
    for key, members in groups.items():
        about: dict[str, Any] = dict(zip(_KEYS, key, strict=True))
        rows += _rows(about, members)
        for name, belongs in CLASSES.items() if about["suite"] in RANDOM else ():
            if of_class := [record for record in members if belongs(case_of(record).shape)]:
                rows += _rows(about | {"class": name}, of_class)
    return rows


def _rows(about: dict[str, Any], members: Sequence[Record]) -> list[Record]:
    shapes, timed = [case_of(record).shape for record in members], [record[about["regime"]] for record in members]
    of_choice = about | _means(shapes, [last_reading(each)["ratio"] for each in timed])
    if about["mode"] != SWEEP:
        return [of_choice, *_invariant(about, shapes, timed)]
    of_choice["choice"] = geomean(map(choice_ratio, timed))
    rounds = [alone(last_reading(each).get("rounds_us", {})) for each in timed]
    if not all(rounds) or not any(len(each) > 2 for each in rounds):
        return [of_choice]  # of a summary; or nothing was timed beside the choice
    return [of_choice, about | {"of": _BEST} | _means(shapes, list(map(best_ratio, timed)))]


def _invariant(about: dict[str, Any], shapes: Sequence[Shape], timed: Sequence[Record]) -> list[Record]:
    """A row for `batch_invariant=True`, where it was timed: with the default's time over its own."""
    rounds = [alone(last_reading(each).get("rounds_us", {})) for each in timed]
    if not all(INVARIANT in each for each in rounds):
        return []
    means = _means(shapes, [ratio_of(each, next(iter(each)), INVARIANT) for each in rounds])
    return [about | {"of": INVARIANT} | means | {"over default": geomean(ratio_of(x, OURS, INVARIANT) for x in rounds)}]


def _means(shapes: Sequence[Shape], ratios: Sequence[float]) -> dict[str, Any]:
    worst = min(ratios)
    return {
        "cases": len(ratios), "geomean": geomean(ratios), "percentile_5": percentile(ratios, 5),
        "worst": worst, "worst_shape": list(shapes[ratios.index(worst)]),
        "below_0.97": sum(r < 0.97 for r in ratios), "below_0.95": sum(r < 0.95 for r in ratios),
    }  # fmt: skip


def last_reading(timed: Record) -> Record:
    """What counts of one regime: of a sweep, the second reading of the choice and the fastest kernels."""
    last: Record = timed.get("finals", timed)
    return last


def best_ratio(timed: Record) -> float:
    """The reference's time over that of the best of our kernels, the default choice among them.

    Args:
        timed: as in choice_ratio, but no summary's.
    """
    rounds = alone(last_reading(timed)["rounds_us"])
    theirs, *ours = rounds
    return max(ratio_of(rounds, theirs, name) for name in ours)


def choice_ratio(timed: Record) -> float:
    """The best time found over our kernels, over that of the default choice: 1 where nothing beats it.

    Args:
        timed: one regime of a sweep's record; of those timed once more, where there are some. A summary has the number.
    """
    if "choice" in timed:
        return float(timed["choice"])
    rounds = alone(last_reading(timed)["rounds_us"])
    return min(ratio_of(rounds, name, OURS) for name in list(rounds)[1:])


def summary_table(rows: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Header and cells; columns that no row has something for are left out."""
    columns = {key: [str(found.get(key, DEFAULT)) for found in rows] for key in _KEYS}
    columns["suite"] = [": ".join(filter(None, (found["suite"], found.get("class")))) for found in rows]
    columns["mode"] = [": ".join(filter(None, (found.get("mode", DEFAULT), found.get("of")))) for found in rows]
    columns["cases"] = [str(found["cases"]) for found in rows]
    columns["geomean"] = [f"{found['geomean']:.3f}" for found in rows]
    if any(found["suite"] in RANDOM or "of" in found for found in rows):
        columns["5%"] = [f"{found['percentile_5']:.3f}" for found in rows]
    columns["worst"] = [f"{found['worst']:.3f}" for found in rows]
    columns |= {f"<{bound}": [str(found[f"below_{bound}"]) for found in rows] for bound in ("0.97", "0.95")}
    columns["worst at"] = [shape_text(tuple(found["worst_shape"])) for found in rows]
    if any("choice" in found for found in rows):
        columns["choice"] = [f"{found['choice']:.3f}" if "choice" in found else "" for found in rows]
    if any("over default" in found for found in rows):
        columns["over default"] = [f"{found.get('over default', 1):.3f}" for found in rows]
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def published(records: Iterable[Record]) -> tuple[list[str], list[list[str]]]:
    """DeepGEMM's figures beside what was measured of its problems, in TFLOP/s: header and cells."""
    header = ["(m, n, k)", "regime", "DeepGEMM, as published", "reference", "cutlass_py"]
    cells = []
    for record in records:
        case = case_of(record)
        figure = DEEPGEMM.get(case.shape[1:])
        if figure is None or case.dtype != "e4m3_block" or record.get("mode", DEFAULT) == SWEEP:
            continue
        for regime in regimes_of([record]):
            us = record[regime]["us"]
            rates = [f"{case.flop / time / 1e6:.0f}" for time in (theirs_of(us), us[OURS])]
            cells.append([shape_text(case.shape), regime, str(figure), *rates])
    return header, cells


def faults(records: Iterable[Record]) -> list[str]:
    """Cases that failed, and results that are further off than the reference's by more than a factor."""
    found = []
    for record in records:
        if "failed" in record:
            found.append(f"FAILED: {case_of(record)}: {record['failed']}")
        found += [f"FAILED: {case_of(record)}: {arm}: {why}" for arm, why in record.get("refused", {}).items()]
        for name in record.get("wrong", ()):
            errors = {arm: float(error) for arm, error in record["error"].items()}  # JSON has no NaN: its name is there
            reference = f"the reference by {next(iter(errors.values())):.1e}"
            beside = f"rounding by {record['limit']:.1e} at most" if "limit" in record else reference
            found.append(f"WRONG: {case_of(record)}: {name} is off by {errors[name]:.1e}, {beside}")
    return found
