"""Kernel packs: installed packages of compiled kernels and tuned tables, found by entry point, loaded when needed.

A pack is a Python package that announces itself in the group `cutlass_py.kernels`. It holds pack.json (a list of
manifests, archive.py), a library for each, and tables (tuned.py); none of its own code runs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .archive import Manifest

GROUP = "cutlass_py.kernels"
INDEX = "pack.json"
_guard = Lock()
_loaded: list[bool] = []


@dataclass(frozen=True)
class Pack:
    """An installed pack.

    Attributes:
        kernels: what it holds.
        error: why it is left out, where it is.
    """

    name: str
    version: str
    directory: Path
    kernels: tuple[Manifest, ...] = ()
    error: str | None = None

    @property
    def tables(self) -> list[Path]:
        """Its tuned tables."""
        from ..choice.tuned import FILES

        return sorted(self.directory.glob(FILES))


@cache
def installed() -> tuple[Pack, ...]:
    """Every pack that is installed, by name."""
    from importlib.metadata import entry_points

    return tuple(map(_pack, sorted(entry_points(group=GROUP), key=lambda entry: entry.name)))


def _pack(entry: EntryPoint) -> Pack:
    import json

    from ..compiling.toolkit import find_package
    from .archive import Manifest, check_host

    version = entry.dist.version if entry.dist else ""
    try:
        directory = find_package(entry.value, INDEX)
    except (ImportError, ValueError, AttributeError):
        directory = None
    if not directory:
        return Pack(entry.name, version, Path(), error=f"there is no {INDEX} in {entry.value}")
    try:
        content = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        kernels = tuple(map(Manifest.read, content["kernels"]))
        for manifest in kernels:
            check_host(manifest)
    except (OSError, ValueError, TypeError, KeyError) as error:
        return Pack(entry.name, version, directory, error=str(error))
    return Pack(entry.name, version, directory, kernels)


def load() -> None:
    """Brings the kernels of every installed pack into this process, once; those that no GPU here runs are left out.

    A pack that does not fit this version of the package is left out, with a warning.
    """
    if not _loaded:  # the common case takes no lock
        with _guard:
            if not _loaded:
                for pack in installed():
                    _join(pack)
                _loaded.append(True)


def _join(pack: Pack) -> None:
    from .archive import device_error, join

    try:
        if pack.error:
            raise ValueError(pack.error)
        for manifest in pack.kernels:
            if not device_error(manifest):
                join(manifest, pack.directory / f"{manifest.kernel}.so")
    except (ValueError, RuntimeError) as error:
        message = f"cutlass_py: kernel pack {pack.name} {pack.version} is left out: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def directories() -> list[Path]:
    """Directories of the packs that fit, which may hold tuned tables."""
    return [pack.directory for pack in installed() if not pack.error]
