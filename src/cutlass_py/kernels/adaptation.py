"""What surrounds a kernel on its way to a problem: operands copied first, a result finished elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Way:
    """How a kernel reaches a problem. Without detours it reads and writes the operands as they lie.

    Attributes:
        pack_a, pack_b: layout the operand is copied into first, or None.
        pack_scales: whether scale_a, in blocks, is copied so that TMA can read it.
        scratch: dtype of a product that the elementwise kernel then finishes into out, or None.
        detours: the reason of each, in words.
        sums: whether D is summed behind the kernel, as it was stored.
    """

    pack_a: str | None = None
    pack_b: str | None = None
    scratch: str | None = None
    detours: tuple[str, ...] = ()
    pack_scales: bool = False
    sums: bool = False

    @classmethod
    def of(cls, step: Callable[[str], Any]) -> Way:
        """What a plan or a record has of it: all but the reasons, by name."""
        return cls(**{name: step(name) for name in STEPS})

    @property
    def packed(self) -> tuple[str, ...]:
        """The operands that are copied first."""
        packs = {"a": self.pack_a, "b": self.pack_b, "scale_a": self.pack_scales}
        return tuple(name for name, pack in packs.items() if pack)

    def steps(self, splits: int = 1) -> list[str]:
        """What surrounds the kernel, which takes k in so many parts, in words."""
        words = [f"packs {name}" for name in self.packed]
        if splits > 1:
            words.append(f"splits k by {splits}")
        elif self.scratch:
            words.append("composed")
        if self.sums:
            words.append("sums D")
        return words


STEPS = tuple(field.name for field in fields(Way) if field.name != "detours")  # that a plan repeats
