"""The problems that are timed against a framework, and what a dtype of the command line means on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from ..declaration.dtypes import DTYPES, LAYOUTS, arithmetic
from ..operations.gemm.suites import RANDOM, SUITES, Shape

NAMES = (*SUITES, *RANDOM)  # of suites; those that are drawn anew last
# gemm's choice; every kernel; the choice after `tune`: in the order in which bars are measured.
DEFAULT, SWEEP, TUNED = MODES = ("default", "sweep", "tuned")


@dataclass(frozen=True)
class Arithmetic:
    """What is multiplied, by both sides.

    Attributes:
        dtype: of A and B.
        compute: as in gemm.
        reference: the framework's function: "matmul", "scaled_mm" and "block_scaled_mm" (fp8), "int_mm".
        layouts: those that the reference takes.
        granule: n and k are multiples of it, for the reference's sake.
        rows: least m, likewise.
        factors: scales of A and B, as in a problem file: "one", "vector" (by row and by column), "block" (1x128 by
            128x128).
    """

    dtype: str
    compute: str | None = None
    reference: str = "matmul"
    layouts: tuple[str, ...] = LAYOUTS
    granule: int = 1
    rows: int = 1
    factors: str | None = None

    @property
    def formats(self) -> tuple[str, str, str]:
        """What kernels multiply, what they sum in, and what gemm returns: the dtype of D."""
        found = arithmetic(self.dtype, self.compute)
        return found.operand, found.accumulator, found.output

    @property
    def result(self) -> str:
        """Dtype of D."""
        return self.formats[-1]

    def takes(self, shape: Shape) -> bool:
        """Whether the reference computes problems of this shape."""
        batch, m, n, k = shape
        stacked = batch > 1 and self.reference != "matmul"
        return not (stacked or n % self.granule or k % self.granule or m < self.rows)


ARITHMETICS = {
    "bf16": Arithmetic("bf16"),
    "f16": Arithmetic("f16"),
    "f32": Arithmetic("f32"),
    "tf32": Arithmetic("f32", "tf32"),
    "f64": Arithmetic("f64"),
    "e4m3": Arithmetic("e4m3", None, "scaled_mm", ("tn",), 16, factors="one"),
    "e4m3_fast": Arithmetic("e4m3", "fast", "scaled_mm", ("tn",), 16, factors="one"),
    "e4m3_vector": Arithmetic("e4m3", None, "scaled_mm", ("tn",), 16, factors="vector"),
    "e4m3_block": Arithmetic("e4m3", None, "block_scaled_mm", ("tn",), 16, factors="block"),
    "s8": Arithmetic("s8", None, "int_mm", ("tn",), 16, rows=17),
}


@dataclass(frozen=True)
class Case:
    """One problem to time. `dtype` is a name of ARITHMETICS, `layout` that of A then B."""

    suite: str
    dtype: str
    layout: str
    shape: Shape
    compared: ClassVar[bool] = True  # with a function of the framework

    @property
    def arithmetic(self) -> Arithmetic:
        """What the dtype means."""
        return ARITHMETICS[self.dtype]

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        batch, m, n, k = self.shape
        return 2 * batch * m * n * k

    @property
    def moved_bytes(self) -> int:
        """What has to come from memory and go there: each operand once."""
        batch, m, n, k = self.shape
        size, size_d = DTYPES[self.arithmetic.dtype].itemsize, DTYPES[self.arithmetic.result].itemsize
        return batch * ((m * k + k * n) * size + m * n * size_d)

    def problem(self) -> dict[str, Any]:
        """As an entry of a problem file (problems.py)."""
        batch, m, n, k = self.shape
        found = self.arithmetic
        entry = {"m": m, "n": n, "k": k, "batch": batch, "layout": self.layout, "a": found.dtype}
        return {**entry, "compute": found.compute, "scale_a": found.factors, "scale_b": found.factors}

    def facts(self) -> dict[str, Any]:
        """As it stands in the JSON."""
        batch, m, n, k = self.shape
        facts = {"suite": self.suite, "dtype": self.dtype, "layout": self.layout}
        return {**facts, "batch": batch, "m": m, "n": n, "k": k}

    def __str__(self) -> str:
        return f"{self.dtype} {self.layout} {shape_text(self.shape)}"


def is_case(record: Mapping[str, Any]) -> bool:
    """Whether a record says which case it is of: other scripts write other records."""
    return {"suite", "dtype", "layout", "batch", "m", "n", "k"} <= record.keys()


def case_of(record: Mapping[str, Any]) -> Case:
    """The case of a record of the JSON."""
    batch, m, n, k = (record[extent] for extent in ("batch", "m", "n", "k"))
    return Case(record["suite"], record["dtype"], record["layout"], (batch, m, n, k))


def shape_text(shape: Shape) -> str:
    """`(m, n, k)`, with the batch in front where there is one."""
    batch, *extents = shape
    return (f"{batch} x " if batch > 1 else "") + f"({', '.join(map(str, extents))})"


def cases(
    suites: Iterable[str],
    dtypes: Iterable[str] = ("bf16",),
    layouts: Iterable[str] = LAYOUTS,
    extra: Iterable[Shape] = (),
    every: int = 1,
    seed: int = 0,
    count: int | None = None,
) -> list[Case]:
    """The cases of some suites that the reference can compute, each once.

    Args:
        suites: of NAMES.
        dtypes: names of ARITHMETICS.
        layouts: of A then B.
        extra: more shapes; they form the suite "shape".
        every: take only every n-th shape of a suite.
        seed: of suites that are drawn, 0 or more.
        count: shapes of each of those; by default as many as it has. The reference may take fewer.
    """
    of = {suite: RANDOM[suite].shapes(seed, count) if suite in RANDOM else SUITES[suite] for suite in suites}
    shapes = [(suite, shape) for suite, found in of.items() for shape in found[::every]]
    shapes += [("shape", shape) for shape in extra]
    found = (
        Case(suite, dtype, layout, shape)
        for dtype, layout, (suite, shape) in product(dtypes, layouts, shapes)
        if layout in ARITHMETICS[dtype].layouts and ARITHMETICS[dtype].takes(shape)
    )
    return list(dict.fromkeys(found))
