"""What must be reached, as data, and whether it was: `bench --bars`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..declaration.dtypes import LAYOUTS
from ..operations.gemm.suites import Shape
from .report import choice_ratio, last_reading
from .results import Record, geomean
from .suites import DEFAULT, SWEEP, TUNED, Case, case_of, cases, shape_text
from .timing import REGIMES

_SLOW = 0.95  # ratios below count as slow


@dataclass(frozen=True)
class Bar:
    """One demand on the ratios (the reference's time over ours) of some cases, in each regime.

    Attributes:
        group: what `--bars` names.
        bound: at least, of the geometric mean and of the worst case; at most, of the share of slow cases.
        dtype: of suites.ARITHMETICS.
        layouts: taken together.
        suites: of suites.SUITES, and `shapes` beside.
        of: "geomean", "worst", "slow" (the share of cases below 0.95), or "choice": the geometric mean of the best time
            of all kernels over that of the default choice.
        target: what is aimed at beyond the bound.
        mode: of suites.MODES.
        rows: least m.
    """

    group: str
    bound: float
    dtype: str = "bf16"
    layouts: tuple[str, ...] = LAYOUTS
    suites: tuple[str, ...] = ("llm", "square")
    of: str = "geomean"
    target: float | None = None
    mode: str = DEFAULT
    rows: int = 0
    shapes: tuple[Shape, ...] = ()

    def cases(self) -> list[Case]:
        """Those that it is about."""
        found = cases(self.suites, [self.dtype], self.layouts, self.shapes)
        return [case for case in found if case.shape[1] >= self.rows]

    def __str__(self) -> str:
        where = ", ".join(self.suites) or ", ".join(map(shape_text, self.shapes))
        rows = f", m >= {self.rows}" if self.rows else ""
        mode = f", {self.mode}" if self.mode != DEFAULT else ""
        return f"{self.dtype} {' '.join(self.layouts)}: {where}{rows}{mode}"


def _dense(group: str, tn: float, others: float, target: float, mode: str = DEFAULT) -> list[Bar]:
    bounds = [(layout, tn if layout == "tn" else others) for layout in LAYOUTS]
    return [Bar(group, bound, layouts=(layout,), target=target, mode=mode) for layout, bound in bounds]


def _key(bound: float, layout: str, shape: Shape, dtype: str = "bf16") -> Bar:
    return Bar("key", bound, dtype, (layout,), (), "worst", shapes=(shape,))


BARS = [
    # A few shapes that show in seconds whether something broke.
    _key(0.95, "tn", (1, 8192, 8192, 8192)),
    _key(0.95, "tn", (1, 2048, 4096, 14336)),
    _key(0.90, "tt", (1, 8192, 8192, 8192)),
    _key(0.90, "tt", (1, 2048, 4096, 14336)),
    _key(0.95, "tn", (1, 16, 4096, 4096)),
    _key(2.00, "tn", (1, 4096, 4095, 4096)),
    _key(0.90, "nn", (1, 4096, 4096, 4096), "f64"),
    *_dense("dense", 1.04, 1.00, 1.08),
    *(Bar("dense", 0.10, layouts=(layout,), of="slow", target=0.0) for layout in LAYOUTS),
    Bar("dense", 1.04, "f16", ("tn",), ("square",), target=1.08),
    Bar("dense", 1.00, "f16", ("tt", "nt", "nn"), ("square",), target=1.08),
    *_dense("tuned", 1.06, 1.03, 1.10, TUNED),
    Bar("fp8", 1.05, "e4m3", ("tn",), target=1.10, rows=16),
    Bar("fp8", 1.05, "e4m3_fast", ("tn",), target=1.10, rows=16),
    Bar("blockwise", 1.00, "e4m3_block", ("tn",), ("deepgemm",), target=1.05),
    Bar("large", 0.95, "tf32", suites=("large",), of="worst", target=1.0),
    Bar("large", 0.95, "f64", suites=("large",), of="worst", target=1.0),
    Bar("int8", 1.50, "s8", ("tn",), ("large",), "worst", target=1.8),
    Bar("choice", 0.96, layouts=("tn", "tt"), suites=("sample",), of="choice", target=0.97, mode=SWEEP),
    Bar("odd", 1.20, suites=("odd",), target=1.5),
    Bar("batched", 1.02, suites=("batched",)),
]


# Host times of a call, by row of host.py: at most, of the median over the framework's.
HOST_BARS = {
    "torch bfloat16 cuda, out=": 0.50,
    "torch bfloat16 cuda, prepared plan": 0.45,
    "CuPy float16 cuda, out=": 0.50,
    "cutlass_py.torch cuda, mm over gemm": 1.10,
}
FIRST_CALL_MS = 100.0  # at most, of the first call in a process where CUDA is up
GROUPS = (*dict.fromkeys(bar.group for bar in BARS), "host", "first")


@dataclass(frozen=True)
class Verdict:
    """What was found beside what was demanded.

    Attributes:
        found: None where nothing was measured.
        met: whether that is what was demanded.
        measured, wanted: cases, where the demand is about cases.
    """

    group: str
    what: str
    of: str
    demand: str
    target: float | None
    found: float | None
    met: bool
    measured: int = 0
    wanted: int = 0

    @property
    def reached(self) -> bool:
        """Met, and by all that the demand is about: a part of the cases says nothing of the others."""
        return self.met and self.measured == self.wanted

    @property
    def word(self) -> str:
        """For tables."""
        if self.found is None:
            return "not measured"
        return "reached" if self.reached else "met in part" if self.met else "MISSED"

    def facts(self) -> dict[str, Any]:
        """As it stands in the JSON."""
        return asdict(self) | {"reached": self.reached}


def verdicts(records: Iterable[Record], bars: Iterable[Bar] = BARS, regimes: Sequence[str] = REGIMES) -> list[Verdict]:
    """One for each bar and regime. A bar of the choice is about the sweep's regime alone."""
    records = list(records)
    found = []
    for bar in bars:
        wanted, at_most = set(bar.cases()), bar.of == "slow"
        of = f"share below {_SLOW}" if at_most else bar.of
        for regime in ("sustained",) if bar.mode == SWEEP else regimes:
            of_bar = [r for r in records if r.get("mode", DEFAULT) == bar.mode and regime in r]
            by_case = {_apart(case_of(r)): r[regime] for r in of_bar}
            measured = [by_case[_apart(case)] for case in wanted if _apart(case) in by_case]
            value = _value(bar.of, measured) if measured else None
            met = value is not None and (value <= bar.bound if at_most else value >= bar.bound)
            found.append(
                Verdict(
                    bar.group, str(bar), f"{of}, {regime}", f"{'<=' if at_most else '>='} {bar.bound:.2f}", bar.target,
                    value, met, len(measured), len(wanted),
                )
            )  # fmt: skip
    return found


def _apart(case: Case) -> tuple[Any, ...]:
    """A case without its suite: one problem may be in several."""
    return case.dtype, case.layout, case.shape


def _value(of: str, measured: list[dict[str, Any]]) -> float:
    if of == "choice":
        return geomean(map(choice_ratio, measured))
    ratios: list[float] = [last_reading(m)["ratio"] for m in measured]
    if of == "slow":
        return sum(ratio < _SLOW for ratio in ratios) / len(ratios)
    return min(ratios) if of == "worst" else geomean(ratios)


def host_verdicts(rows: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    """Of rows as host.py measures them."""
    ratios = {row["row"]: row["ratio"]["median"] for row in rows}
    return [
        Verdict(
            "host", row, "host time, median", f"<= {bound:.2f}", None, ratio := ratios.get(row),
            ratio is not None and ratio <= bound,
        )
        for row, bound in HOST_BARS.items()
    ]  # fmt: skip


def first_verdict(milliseconds: float | None) -> Verdict:
    """Of the first call in a process."""
    met = milliseconds is not None and milliseconds < FIRST_CALL_MS
    what = "first call in a process, prebuilt kernel, CUDA up"
    return Verdict("first", what, "milliseconds", f"< {FIRST_CALL_MS:g}", None, milliseconds, met)


def verdict_table(found: Iterable[Verdict]) -> tuple[list[str], list[list[str]]]:
    """Header and cells."""
    header = ["bar", "problems", "of", "demand", "target", "found", "", "cases"]

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"

    rows = [
        [v.group, v.what, v.of, v.demand, f"{v.target:.2f}" if v.target is not None else "", number(v.found), v.word]
        for v in found
    ]
    cases = [f"{v.measured} of {v.wanted}" if v.wanted else "" for v in found]
    return header, [[*row, text] for row, text in zip(rows, cases, strict=True)]
