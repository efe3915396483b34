"""What kernel_speed.py prints: a line per case while it runs, then the summary and the verdicts."""

from __future__ import annotations

from typing import Any

from common import geomean
from suites import Case

Record = dict[str, Any]  # one case of the JSON


def print_header(regimes: tuple[str, ...]) -> None:
    columns = "".join(f" | {regime:^27}" for regime in regimes)
    print(
        f"{'':40}{columns}\n{'case':40}"
        + f" | {'torch us':>9} {'ours us':>9} {'ratio':>7}" * len(regimes)
        + " | error   kernel"
    )


def print_row(case: Case, record: Record, regimes: tuple[str, ...]) -> None:
    if "failed" in record:
        print(f"{case!s:40} | {record['failed']}", flush=True)
        return
    times = ""
    for regime in regimes:
        us = record[regime]["us"]
        mark = "" if record[regime].get("queue_filled", True) else "?"  # host time may show
        times += f" | {us['torch']:9.2f} {us['cutlass_py']:9.2f} {record[regime]['ratio']:6.3f}{mark or ' '}"
    chosen = record["chosen"]
    split = chosen.get("splits", 1) > 1
    how = [f"packs {x}" for x in "ab" if chosen.get(f"pack_{x}")] + [f"splits k by {chosen['splits']}"] * split
    how += ["composed"] * (bool(chosen.get("scratch")) and not split)
    print(
        f"{case!s:40}{times} | {record['error']['cutlass_py']:.1e} {short(chosen['kernel'])} {', '.join(how)}",
        flush=True,
    )
    for found in record.get("decompositions", ()):
        print_decomposition(found, record, regimes)


def print_decomposition(found: Record, record: Record, regimes: tuple[str, ...]) -> None:
    """One way to cut k: the model's time beside the measured ones."""
    name = f"splits={found['splits']}"
    times = ", ".join(
        f"{regime} {record[regime]['us'][name]:.2f}" for regime in regimes if name in record[regime]["us"]
    )
    print(f"  {name:14} estimated {found['estimated_us']:9.2f} us, {times or 'not timed'}  {short(found['kernel'])}")


def short(kernel: str | None) -> str:
    """The part of a kernel's name that the case does not say already: family, tile and design."""
    parts = (kernel or "none").split("_")
    return "_".join([parts[0], *parts[7:]]) if len(parts) > 8 else "_".join(parts)


def summarise(records: list[Record], regimes: tuple[str, ...]) -> list[Record]:
    """Geomean, worst and the number of slow shapes by suite, dtype, layout and regime."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        for regime in regimes:
            if regime in record:
                groups.setdefault((record["suite"], record["dtype"], record["layout"], regime), []).append(record)
    rows = []
    for key, members in groups.items():
        regime = key[3]
        ratios = [r[regime]["ratio"] for r in members]
        worst = min(members, key=lambda r: r[regime]["ratio"])
        row: dict[str, Any] = dict(zip(("suite", "dtype", "layout", "regime"), key, strict=True))
        row |= {"cases": len(ratios), "geomean": geomean(ratios), "worst": min(ratios)}
        row["worst_shape"] = [worst[extent] for extent in ("batch", "m", "n", "k")]
        row |= {"below_0.97": sum(r < 0.97 for r in ratios), "below_0.95": sum(r < 0.95 for r in ratios)}
        if any(len(r[regime]["us"]) > 2 for r in members):  # a sweep: how good was the choice?
            row["choice"] = geomean(best_us(r[regime]["us"]) / r[regime]["us"]["cutlass_py"] for r in members)
        rows.append(row)
    return rows


def best_us(us: dict[str, float]) -> float:
    return min(time for name, time in us.items() if name != "torch")


def print_summary(rows: list[Record]) -> None:
    print(f"\n{'':34} cases geomean  worst <0.97 <0.95  worst at")
    for row in rows:
        title = " ".join(row[key] for key in ("suite", "dtype", "layout", "regime"))
        choice = f"  choice {row['choice']:.3f} of the best swept" if "choice" in row else ""
        print(
            f"{title:34} {row['cases']:5} {row['geomean']:7.3f} {row['worst']:6.3f} {row['below_0.97']:5} "
            f"{row['below_0.95']:5}  {tuple(row['worst_shape'])}{choice}"
        )


def missed_bars(records: list[Record], regimes: tuple[str, ...]) -> int:
    """Prints the cases that have a required ratio; returns how many of them miss it in some regime."""
    missed = 0
    for record in (r for r in records if "required" in r):
        ratios = {regime: record[regime]["ratio"] for regime in regimes if regime in record}
        reached = bool(ratios) and min(ratios.values()) >= record["required"]
        missed += not reached
        found = ", ".join(f"{regime} {ratio:.3f}" for regime, ratio in ratios.items()) or record.get("failed", "")
        shape = tuple(record[extent] for extent in ("m", "n", "k"))
        verdict = "reached" if reached else "MISSED"
        print(f"{verdict}: {record['dtype']} {record['layout']} {shape} needs {record['required']}: {found}")
    return missed


def wrong_results(records: list[Record]) -> int:
    """Prints results that are further off than torch's by more than a factor; returns how many there are."""
    found = [(record, name) for record in records for name in record.get("wrong", ())]
    for record, name in found:
        batch, m, n, k = (record[extent] for extent in ("batch", "m", "n", "k"))
        case = Case(record["suite"], record["dtype"], record["layout"], (batch, m, n, k))
        error, torch_error = record["error"][name], record["error"]["torch"]
        print(f"WRONG: {case}: {name} is off by {error:.1e}, torch by {torch_error:.1e}")
    return len(found)
