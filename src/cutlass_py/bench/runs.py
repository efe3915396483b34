"""A run: cases one after the other, and a result that is whole whenever the run ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from traceback import extract_tb
from typing import Any

from ..dispatch import tuned
from .cases import Settings, measure, reference_arm
from .environment import gpu_state
from .frameworks import Framework
from .operands import Operands
from .report import summarise
from .results import Record, Result, dumps, reason, write
from .suites import DEFAULT, TUNED, Case, case_of
from .timing import ROUNDS, warm_up

_SAVED_EVERY = 20.0  # seconds
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Part:
    """Cases that are measured alike."""

    cases: Sequence[Case]
    settings: Settings


class Run:
    """Measures parts case by case.

    Args:
        parts: what to measure.
        gpu: the array library.
        facts: the first part of the result (environment).
        path: where the result is saved from time to time, if anywhere.
        before: a result to go on with: what it has is not measured again, but for what failed.

    Raises:
        ValueError: that was measured elsewhere, or otherwise, or has other cases too.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        gpu: Framework,
        facts: dict[str, Any],
        path: Path | None,
        before: Result | None = None,
    ) -> None:
        self.parts, self.gpu, self.facts, self.path = parts, gpu, facts, path
        self.ended = ""  # why, if before the last case
        self.left = [(case, part.settings) for part in parts for case in part.cases]
        self.total = len(self.left)
        self.records: list[Record] = []
        self._clocks = [gpu_state()]
        self._saved = time.monotonic()
        if before:
            self._go_on(before)

    def _go_on(self, before: Result) -> None:
        now = json.loads(dumps(self.result()))
        known, here = _alike(before), _alike(now)
        for name in [name for name in {**known, **here} if known.get(name) != here.get(name)]:
            found, expected = known.get(name), here.get(name)
            raise ValueError(f"bench: cannot go on with {self.path}: its {name} is {found!r}; expected {expected!r}")
        timed = {_key(case_of(record), record.get("mode", DEFAULT)): record for record in before["cases"]}
        wanted = {_key(case, settings.mode) for case, settings in self.left}
        if others := [record for key, record in timed.items() if key not in wanted]:
            raise ValueError(
                f"bench: cannot go on with {self.path}: it has {len(others)} cases that are not asked for, such as "
                f"{case_of(others[0])}; expected no others"
            )
        timed = {key: record for key, record in timed.items() if "failed" not in record}
        self.records = list(timed.values())
        self.left = [(case, s) for case, s in self.left if _key(case, s.mode) not in timed]
        self.total = len(self.records) + len(self.left)
        # The date stays: where the latest run of a problem counts, what was read before must not hide what came since.
        again = {"date": before.get("date"), "resumed": [*before.get("resumed", ()), self.facts["date"]]}
        self.facts = self.facts | again
        self._clocks = [*before.get("clocks", ()), *self._clocks]

    def all(self, done: Callable[[Record], object], limit_seconds: float = inf) -> None:
        """Every case, in order; stops after the limit, where the user interrupts, or once the GPU fails altogether.

        Args:
            done: called with each record.
            limit_seconds: time to spend.
        """
        end = time.monotonic() + limit_seconds
        try:
            if self.left:
                self._warm_up()
            for case, settings in self.left:
                if time.monotonic() > end:
                    self.ended = "the time was up"
                    return
                self._one(case, settings, done)
                if self.ended:
                    return
        except KeyboardInterrupt:
            self.ended = INTERRUPTED
        finally:
            self.save()

    def _warm_up(self) -> None:
        case = Case("warm-up", "f16", "tt", (1, 8192, 8192, 8192))
        try:
            warm_up(self.gpu, reference_arm(case, Operands(case, self.gpu)).launch)
        except Exception as error:  # the first cases may run at another clock; if this fails for good, they say so
            self.facts = self.facts | {"warm_up_failed": reason(error)}

    def _one(self, case: Case, settings: Settings, done: Callable[[Record], object]) -> None:
        try:
            with tuned.afresh() if settings.alone or settings.mode == TUNED else nullcontext():
                record = measure(case, settings, self.gpu)
        except Exception as error:  # no kernel, no memory, refused by the framework, whatever it raises: others go on
            frame = extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}, {frame.name}"
            record = case.facts() | {"mode": settings.mode, "failed": reason(error), "where": where}
        if "failed" in record:  # not within the handler: the error holds on to the operands
            self._recover()
        self.records.append(record)
        done(record)
        if time.monotonic() > self._saved + _SAVED_EVERY:
            self.save()

    def _recover(self) -> None:
        """Frees memory; after an error that stays, such as an illegal access, there is nothing left to measure."""
        try:
            self.gpu.free()
            self.gpu.synchronize()
        except Exception as error:
            self.ended = f"the GPU works no more: {reason(error)}"

    def save(self) -> None:
        """Writes what was measured so far, where a path was given."""
        self._clocks.append(gpu_state())  # right after a case: the clock under load
        self._saved = time.monotonic()
        if self.path:
            write(self.path, self.result())

    def result(self) -> Result:
        """All that was measured so far."""
        return {
            **self.facts,
            "reference": self.gpu.name,
            "parts": [asdict(part.settings) | {"cases": len(part.cases)} for part in self.parts],
            "rounds": ROUNDS,
            "clocks": self._clocks,
            "complete": len(self.records) == self.total,
            "ended": self.ended,
            "summary": summarise(self.records),
            "cases": self.records,
        }


def _key(case: Case, mode: str) -> tuple[Any, ...]:
    return mode, case_of(case.facts())  # a kernel's case as its record has it


def _alike(result: Result) -> dict[str, Any]:
    """What two results must have in common to be one: what was measured, where, and how."""
    found: dict[str, Any] = {name: result.get(name) for name in ("seed", "commit", "reference")}
    found |= {"gpu": result["machine"].get("gpu"), **result.get("versions", {})}
    how = [{name: value for name, value in part.items() if name != "cases"} for part in result.get("parts", ())]
    return found | {"settings": how}
