"""What compiling a kernel leaves: which kernel, for what it is, and where its machine code lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Artifact:
    """A kernel that is ready to run in this process; made by Kernel.compile.

    Attributes:
        kernel: its name.
        arch: the family's entry in CUTLASS_PY_ARCHS: "80", "90a"; "cpu" or "cuda" for a Python function.
        library: the file that holds it: of the built set, or an entry of the cache; None for a Python function.
        built: it is part of the set that the package was built with.
    """

    kernel: str
    arch: str
    library: Path | None
    built: bool
