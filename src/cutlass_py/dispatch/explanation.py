"""Why this kernel? The ranking of a problem and the reasons of those left out, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .. import _core
from ..kernels.kernel import CutlassKernel, Kernel
from ..kernels.operation import Problem, arguments_asked, describe, operation_of
from .candidates import Choice, rank
from .rejections import not_compiled, rejected


@dataclass(frozen=True)
class Row:
    """One line of an explanation.

    Attributes:
        kernel: its name.
        microseconds: what it takes, of a launch alone; None where it cannot, or nobody can say.
        measured: by `tune`; otherwise the model says so.
        steps: what is done besides one launch of the kernel on the operands as they lie, and why.
        reason: the first check that failed; "" where none did.
        others: kernels for which the line stands, itself included.
    """

    kernel: str
    microseconds: float | None
    measured: bool
    steps: tuple[str, ...] = ()
    reason: str = ""
    others: int = 1


@dataclass(frozen=True)
class Explanation:
    """The answer of `explain`. str() renders it.

    Attributes:
        problem: the canonical problem, in words.
        chosen: what gemm takes; None where no kernel fits, or where there is no product to compute.
        ranking: every compiled possibility, best first; within `jit` those that are not compiled too.
        rejected: compiled kernels of the operands' dtype that cannot, with the first check that failed; the one that
            would be fastest comes first. Of a user's epilogue, which is compiled when it is met: declared kernels.
        not_compiled: kernels that could, but are not in the built set.
        note: what happens without a kernel.
    """

    problem: str
    chosen: Choice | None
    ranking: tuple[Choice, ...]
    rejected: tuple[tuple[Kernel, str], ...]
    not_compiled: tuple[Kernel, ...] = ()
    note: str = ""
    _asked: Problem = field(kw_only=True, repr=False, compare=False)

    def rows(self, most: int | None = None) -> list[Row]:
        """The ranking as rows of a table, then one miss for each reason: of the kernel whose loss is greatest.

        Args:
            most: rows of either kind.
        """
        return [*map(self._row, self.ranking[:most]), *self._missed()[:most]]

    def _row(self, choice: Choice) -> Row:
        time = choice.microseconds or None  # of a provider, which need not have an estimate
        return Row(choice.route.kernel.name, time, choice.measured, tuple(steps(choice, self._asked)))

    def _missed(self) -> list[Row]:
        seen: dict[str, list[Kernel]] = {}
        for kernel, reason in self.rejected:
            seen.setdefault(reason, []).append(kernel)
        return [Row(kernels[0].name, None, False, (), reason, len(kernels)) for reason, kernels in seen.items()]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON; kernels by name."""
        return {
            "problem": self.problem,
            "chosen": self.chosen and self.chosen.route.kernel.name,
            "note": self.note,
            "ranking": [asdict(self._row(choice)) for choice in self.ranking],
            "rejected": [{"kernel": kernel.name, "reason": reason} for kernel, reason in self.rejected],
            "not_compiled": [kernel.name for kernel in self.not_compiled],
        }

    def show(self) -> None:
        """Prints it: as a table where a terminal is watched and rich is installed, otherwise as str() has it."""
        from ..support.terminal import print_table, watched

        if not watched():
            print(self)
            return
        print(self.problem if self.chosen else f"{self.problem}: {self.note or 'no kernel fits'}")
        cells = []
        for place, row in enumerate(self.rows(most=8), 1):
            time = "" if row.microseconds is None else f"{row.microseconds:.1f}{'' if row.measured else ' est.'}"
            cells.append(("" if row.reason else str(place), time, row.kernel, _why(row)))
        print_table(("", "us", "kernel", "how, or why not"), cells)
        if self.not_compiled:
            print(self._unbuilt)

    @property
    def _unbuilt(self) -> str:
        return f"possible but not in the built set: {len(self.not_compiled)} kernels"

    def __str__(self) -> str:
        lines = [self.problem]
        if self.chosen is None:
            lines.append(self.note or "no kernel fits")
        else:
            lines.append(f"chosen: {self.chosen.route.kernel.name}")
            lines += [f"  {text}" for text in (*steps(self.chosen, self._asked), self.chosen.time) if text]
        others = self.ranking[1:6]
        if others:
            lines.append(f"next of {len(self.ranking)}:")
        for choice in others:
            time = f"{choice.microseconds:8.1f} us" if choice.microseconds else "no estimate"
            how = ", ".join(choice.route.way.steps(choice.route.splits))
            lines.append(f"  {time}  {choice.route.kernel.name}" + (f" ({how})" if how else ""))
        if self.rejected:
            lines.append(f"not possible, {len(self.rejected)} in all:")
            lines += [f"  {row.kernel}: {_why(row)}" for row in self._missed()[:5]]
        if self.not_compiled:
            lines.append(self._unbuilt)
        return "\n".join(lines)


def steps(choice: Choice, p: Problem) -> list[str]:
    """What a choice does for a problem besides one launch of its kernel on the operands as they lie, and why."""
    route, way = choice.route, choice.route.way
    lines = [] if route.kernel.compiled else ["is not in the built set: taken from the cache, or compiled first"]
    lines += filter(None, [operation_of(p).first(p)])
    lines += [f"packs {name} first" for name in way.packed]
    if route.splits > 1:
        lines.append(f"splits k into {route.splits} parts")
    if isinstance(route.kernel, CutlassKernel) and not way.scratch:
        epilogue = route.kernel.interface.epilogue
        if formula := operation_of(p).fused(route.kernel.interface, p):
            lines.append(f"fused: {formula}")
        left = epilogue.user.left(route.kernel.config.api) if epilogue.user else []
        lines += [f"an elementwise kernel reduces afterwards: {', '.join(left)}"] if left else []
    if way.scratch:
        lines.append(f"composed: the product goes through {way.scratch} scratch, an elementwise kernel writes out")
    if way.sums:
        lines.append("an elementwise kernel sums D afterwards")
    return lines + [f"reason: {reason}" for reason in way.detours]


def _why(row: Row) -> str:
    if not row.reason:
        return "; ".join(row.steps)
    return row.reason + (f" (and {row.others - 1} more kernels)" if row.others > 1 else "")


def explain(a: Any, b: Any = None, **keywords: Any) -> Explanation:
    """Which kernel gemm takes for a problem, what it costs by the model, and why each other one was not taken.

    Args:
        a: GemmArguments; or the first operand, with `b` and gemm's keywords following, but for `kernel` and `stream`.
            Arrays or TensorSpecs.

    Returns:
        The choice, the ranking and the reasons. str() is a text, `show` prints a table.

    Raises:
        ValueError, TypeError: as GemmArguments; TypeError also where `b` is missing.
    """
    p = arguments_asked("explain", a, b, keywords).problem
    text = describe(p)
    operation = operation_of(p)
    if note := operation.without_kernel(p):
        return Explanation(text, None, (), (), note=note, _asked=p)
    ranking = tuple(rank(p))
    chosen = ranking[0] if ranking else None
    unbuilt = tuple(not_compiled(p))
    note = ""
    if not chosen and unbuilt and not _core.kernel_facts():
        note = "no kernel fits: none is compiled in this package"
    elif not chosen:
        note = operation.divided(p)
    return Explanation(text, chosen, ranking, tuple(rejected(p)), unbuilt, note, _asked=p)
