"""A run: cases one after the other, and a result that is whole whenever the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from .. import tuned
from .cases import Settings, measure, reference_arm
from .frameworks import Framework
from .operands import Operands
from .report import summarise
from .results import Record, Result, write
from .suites import Case
from .surroundings import gpu_state
from .timing import ROUNDS, warm_up

_SAVED_EVERY = 20.0  # seconds


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
        facts: the first part of the result (surroundings).
        path: where the result is saved from time to time, if anywhere.
    """

    def __init__(self, parts: Sequence[Part], gpu: Framework, facts: dict[str, Any], path: Path | None) -> None:
        self.parts, self.gpu, self.facts, self.path = parts, gpu, facts, path
        self.records: list[Record] = []
        self.ended = ""  # why before the last case
        self._clocks = [gpu_state()]
        self._saved = time.monotonic()
        self.total = sum(len(part.cases) for part in parts)

    def all(self, done: Callable[[Record], object], limit_seconds: float = inf) -> None:
        """Every case, in order; stops between two after the limit, or where the user interrupts.

        Args:
            done: called with each record.
            limit_seconds: time to spend.
        """
        end = time.monotonic() + limit_seconds
        try:
            self._warm_up()
            for part in self.parts:
                for case in part.cases:
                    if time.monotonic() > end:
                        self.ended = f"stopped after {limit_seconds:g} s"
                        return
                    self._one(case, part.settings, done)
        except KeyboardInterrupt:
            self.ended = "interrupted"
        finally:
            self._save()

    def _warm_up(self) -> None:
        case = Case("warm-up", "f16", "tt", (1, 8192, 8192, 8192))
        warm_up(self.gpu, reference_arm(case, Operands(case, self.gpu)).launch)

    def _one(self, case: Case, settings: Settings, done: Callable[[Record], object]) -> None:
        try:
            with tuned.afresh() if settings.alone or settings.mode == "tuned" else nullcontext():
                record = measure(case, settings, self.gpu)
        except RuntimeError as error:  # no kernel, no memory, refused by the framework: the others go on
            record = case.facts() | {"mode": settings.mode}
            record["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            self.gpu.free()
        self.records.append(record)
        done(record)
        if time.monotonic() > self._saved + _SAVED_EVERY:
            self._save()

    def _save(self) -> None:
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
            "summary": summarise(self.records),
            "cases": self.records,
        }
