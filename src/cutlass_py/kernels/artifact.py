"""What compiling a kernel leaves: which kernel, for what it is, and where its machine code lies."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .. import _core
from . import archive, registry
from .kernel import CutlassKernel, Kernel
from .metadata import CPU


@dataclass(frozen=True)
class Artifact:
    """A kernel that is ready to run in this process; made by Kernel.compile.

    Attributes:
        kernel: its name.
        arch: the family's entry in CUTLASS_PY_ARCHS: "80", "90a"; "cpu" or "cuda" for a Python function.
        library: the file that holds it: of the built set, or an entry of the cache; None for a Python function.
        built: it is machine code of the set that the package was built with, and no Python function.
    """

    kernel: str
    arch: str
    library: Path | None
    built: bool

    def save(self, path: str | os.PathLike[str], *, cc: Collection[int] = ()) -> None:
        """Writes a file that other processes, and machines with such a GPU, load without a compiler (docs/shipping.md).

        A kernel of the built set is compiled into a library of its own first.

        Args:
            path: of the file.
            cc: compute capabilities, times ten, that the file is for beside those of the GPUs here, such as (80, 90).
                By default those alone; without a GPU 90.

        Raises:
            TypeError: cc is something else.
            ValueError: there is no machine code, or what the kernel computes is known to this process alone; or the
                kernel runs on none of `cc`.
            CompileError: the kernel has to be compiled, and cannot be.
            OSError: the file cannot be written.
        """
        if not isinstance(cc, Collection) or not all(type(x) is int for x in cc):
            raise TypeError(f"save: cc is {cc!r}; expected whole numbers, such as (80, 90)")
        archive.write(path, *archive.of_kernel(registry.cutlass_kernel_named(self.kernel, "save").config, cc))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Artifact:
        """Loads the kernel of a file into this process, where it is then like any other. The file is executed as code.

        Raises:
            ValueError: the file is damaged, or does not fit this version, processor or GPU; found and expected. Or its
                kernel has the name of one that was registered.
            RuntimeError: the loader refuses the library.
            OSError: the file cannot be read, or its library not be unpacked.
        """
        manifest, library = archive.read(path)
        if manifest.kernel in registry.registered():
            raise ValueError(f"load: a kernel that was registered is called {manifest.kernel!r} already")
        archive.load(manifest, library)
        kernel = registry.add(archive.config_of(manifest))
        kernel.load()
        return artifact_of(kernel)


def artifact_of(kernel: Kernel) -> Artifact:
    """What compiling a kernel leaves."""
    if not isinstance(kernel, CutlassKernel):
        return Artifact(kernel.name, "cpu" if kernel.metadata.cc == CPU else "cuda", None, False)
    library, package = (Path(file).resolve() for file in (_core.kernel_library(kernel.name), _core.__file__))
    return Artifact(kernel.name, kernel.family.arch, library, library.parent == package.parent)
