"""Kernel packs: installed packages of compiled kernels and tuned tables, found by entry point, loaded when needed.

A pack is a Python package that announces itself in the group `cutlass_py.kernels`. It holds pack.json (a list of
manifests, archive.py), a library for each, and tables (tuned.py); none of its own code runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .archive import Manifest

GROUP = "cutlass_py.kernels"
INDEX = "pack.json"
TABLES = "tuned-*.json"  # of tuned choices, in a directory
_guard = Lock()
_loaded: list[bool] = []
_refused: dict[str, str] = {}  # packs that could not be loaded, and why


@dataclass(frozen=True)
class Pack:
    """An installed pack.

    Attributes:
        kernels: what it holds.
        error: what speaks against loading it (see also why_left_out).
    """

    name: str
    version: str
    directory: Path
    kernels: tuple[Manifest, ...] = ()
    error: str | None = None

    @property
    def tables(self) -> list[Path]:
        """Its tuned tables."""
        return sorted(self.directory.glob(TABLES))


@cache
def installed() -> tuple[Pack, ...]:
    """Every pack that is installed, by name; of two distributions of one name, those of the first on the path."""
    announced: dict[str, Iterable[EntryPoint]] = {}
    if _may_be_announced():
        from importlib.metadata import distributions

        for distribution in distributions():
            if GROUP in (distribution.read_text("entry_points.txt") or ""):
                announced.setdefault(distribution.name, distribution.entry_points.select(group=GROUP))
    return tuple(map(_pack, sorted(chain.from_iterable(announced.values()), key=lambda entry: entry.name)))


def _may_be_announced() -> bool:
    """Whether a distribution on the path names the group.

    Files are looked through first: what importlib.metadata does for each distribution takes 0.3 ms of a first call.
    """
    for place in sys.path:
        try:
            with os.scandir(place or ".") as entries:
                found = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except NotADirectoryError:
            return True  # an archive, which may hold one
        except OSError:
            continue
        for directory in found:
            try:
                with open(os.path.join(directory, "entry_points.txt"), encoding="utf-8", errors="replace") as text:
                    if GROUP in text.read():
                        return True
            except OSError:
                continue
    return False


def _pack(entry: EntryPoint) -> Pack:
    """What is announced, with the error that speaks against it."""
    from ..compiling.toolkit import find_package
    from ..support.files import read_json
    from .archive import Manifest, check_host

    version = entry.dist.version if entry.dist else ""
    try:  # of a package in another, looking would import that one
        directory = find_package(entry.value, INDEX) if entry.value.isidentifier() else None
    except (ImportError, ValueError, AttributeError):
        directory = None
    if not directory:
        return Pack(entry.name, version, Path(), error=f"there is no {INDEX} in {entry.value}")
    try:
        kernels = tuple(map(Manifest.read, read_json(directory / INDEX)["kernels"]))
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
    from .archive import check_whole, device_error, forget, join

    joined = []
    try:
        if pack.error:
            raise ValueError(pack.error)
        for manifest in pack.kernels:
            if device_error(manifest):
                continue
            library = pack.directory / f"{manifest.kernel}.so"
            check_whole(manifest, library)
            join(manifest, library)
            joined.append(manifest.kernel)
    except (ValueError, RuntimeError, OSError) as error:
        for kernel in joined:
            forget(kernel)
        _refused[pack.name] = str(error)
        message = f"cutlass_py: kernel pack {pack.name} {pack.version} is left out: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def why_left_out(pack: Pack) -> str | None:
    """Why a pack that was to be loaded is left out; None where it is not."""
    return pack.error or _refused.get(pack.name)


def directories() -> list[Path]:
    """Directories of the packs that fit, which may hold tuned tables."""
    return [pack.directory for pack in installed() if not why_left_out(pack)]
