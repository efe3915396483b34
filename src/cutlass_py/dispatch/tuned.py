"""Measured choices on disk: one table for each kind of GPU, a JSON file that can be exported, merged and shipped.

A table maps classes of problems, as text, to the choice that was fastest there (docs/tuning.md). Kernels are named, so
that a table holds for any set of kernels: what is not compiled is passed over. The user's table comes first; below it
are those that were shipped, in the directories of PLACES. The name of a kernel that was registered does not say what it
is, and another may have it later: what was measured of it is kept beside the tables, for as long as it is registered.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints
from weakref import ref

from .. import _core
from ..arrays.gpu import Gpu, file_stem
from ..compiling import cache
from ..declaration.config import SWIZZLES
from ..errors import CompileError
from ..kernels import packs
from ..kernels.kernel import Kernel
from ..kernels.operation import Problem, class_of, operation_of
from ..kernels.registry import registered
from ..support.files import read_json

_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """The fastest choice for one class of problems, and how that was found.

    Attributes:
        kernel: its name.
        splits: parts of k, 1 for none.
        raster, swizzle: the order of tiles (kernel.h).
        microseconds: the median that was measured.
        driver, version: CUDA version of the driver (13000 for 13.0) and version of this package at the time; told,
            and not compared: an old measurement is better than none.
    """

    kernel: str
    splits: int
    raster: int
    swizzle: int
    microseconds: float
    driver: int
    version: str

    @staticmethod
    def read(value: Any, where: str) -> Entry:
        """An entry from JSON.

        Args:
            where: it is, for messages.

        Raises:
            ValueError: it is none.
        """
        if not isinstance(value, dict) or value.keys() != _KINDS.keys():
            raise ValueError(f"{where}: expected an object of {', '.join(_KINDS)}")
        for name, kinds in _KINDS.items():
            if type(value[name]) not in kinds:
                raise ValueError(f"{where}: {name} is {value[name]!r}")
        for name, allowed in _RANGES.items():
            if value[name] not in allowed:
                raise ValueError(f"{where}: {name} is {value[name]}")
        if not 0 < value["microseconds"] <= sys.float_info.max:  # an int may be larger
            raise ValueError(f"{where}: microseconds is {value['microseconds']}")
        return Entry(**value)


# By name, what a file may say.
_KINDS: dict[str, tuple[type, ...]] = {
    name: (float, int) if kind is float else (kind,) for name, kind in get_type_hints(Entry).items()
}
_RANGES = {"splits": range(1, 2**15), "raster": range(3), "swizzle": SWIZZLES}
Table = dict[str, Entry]


def file_name(gpu: str, sm_count: int) -> str:
    """The file of a table for GPUs of this name and number of multiprocessors."""
    return packs.TABLES.replace("*", file_stem(gpu, sm_count))


@lru_cache(64)  # every choice asks
def _file_in(place: Path, gpu: str, sm_count: int) -> Path:
    return place / file_name(gpu, sm_count)


def path_of(gpu: Gpu) -> Path:
    """The user's table for such GPUs. Need not exist.

    Raises:
        CompileError: CUTLASS_PY_CACHE_DIR names the home of nobody.
    """
    return _file_in(cache.directory(), gpu.name, gpu.sm_count)


# Where tables lie that came with the package, as file_name calls them.
PLACES = [Path(__file__).with_name("tables")]


# ---------------------------------------------------------------------------------------------------- one process


_tables: dict[Path, Table] = {}  # as on disk when first asked for, and what this process added
_added: dict[Path, Table] = {}
_of_registered: dict[tuple[str, str], tuple[Entry, ref[Kernel]]] = {}  # by file_name and class: of registered kernels
_detached = False  # within `afresh`


def lookup(p: Problem, gpu: Gpu) -> list[Entry]:
    """What was measured for the class of a problem.

    First of a kernel that is registered, then what tables say: the user's, those of packs, those that came with the
    package. An entry of theirs that has the name of a registered kernel is of another.
    """
    return _measured(p, gpu, _known(gpu))


def lookups(p: Problem, gpu: Gpu) -> Iterator[tuple[Entry, bool]]:
    """Likewise, and behind it what was measured of the class that stands in for it; whether it is of its own class."""
    known = _known(gpu)
    yield from ((entry, True) for entry in _measured(p, gpu, known))
    yield from ((entry, False) for entry in _similar(p, known))


def _measured(p: Problem, gpu: Gpu, known: list[Table]) -> list[Entry]:
    if not (known or _of_registered):
        return []
    key, here = class_of(p), registered()
    entries = [found[key] for found in known if key in found and found[key].kernel not in here]
    if own := _of_registered.get((file_name(gpu.name, gpu.sm_count), key)):
        entry, kernel = own[0], own[1]()
        if kernel and here.get(entry.kernel) is kernel:
            return [entry, *entries]
    return entries


def _similar(p: Problem, known: list[Table]) -> list[Entry]:
    """With the names that kernels have here."""
    if not known or not (similar := operation_of(p).similar(p)):
        return []
    (key, rename), here = similar, registered()
    entries = [found[key] for found in known if key in found and found[key].kernel not in here]
    return [replace(entry, kernel=rename(entry.kernel)) for entry in entries]


def _known(gpu: Gpu) -> list[Table]:
    """Tables for such GPUs: the user's, then what somebody else measured."""
    tables = [table(gpu)]
    for place in (*packs.directories(), *PLACES):
        path = _file_in(place, gpu.name, gpu.sm_count)
        found = _tables.get(path)  # in one step: another thread may forget them all
        tables.append(_tables.setdefault(path, _usable(path, gpu)) if found is None else found)
    return [found for found in tables if found]


def table(gpu: Gpu) -> Table:
    """The user's table, as it was when this process first asked for it, and what the process added.

    One that cannot be read is empty; where it is there and is no table, with a warning.
    """
    try:
        path = path_of(gpu)
    except CompileError:  # for those to say who write there
        return {}
    found = _tables.get(path)
    return _tables.setdefault(path, {} if _detached else _users(path, gpu)) if found is None else found


@contextmanager
def afresh() -> Iterator[None]:
    """Within it, user's tables are empty at first, and what is added is gone at the end: for measurements."""
    global _detached
    before, kept, brought, _detached = _detached, dict(_tables), dict(_of_registered), True
    _tables.clear()
    _of_registered.clear()
    _core.clear_plans()
    try:
        yield
    finally:
        _detached = before
        _tables.clear()
        _tables.update(kept)
        _of_registered.clear()
        _of_registered.update(brought)
        _core.clear_plans()


def record(gpu: Gpu, entries: Table, *, here: bool = False) -> Path:
    """Adds entries to the user's table, over those of the same classes; returns its path.

    Where the table cannot be written, a warning says so, and the entries hold for this process, as they do with `here`.
    Those of registered kernels are not written, and hold while they are registered.

    Raises:
        ValueError: what is there is no table.
        CompileError: as `path_of`.
    """
    path = path_of(gpu)
    entries = _without_registered(gpu, entries)
    if _detached:
        _tables[path] = table(gpu) | entries
        return path
    added = _added.setdefault(path, {})
    if here:
        added |= entries
        _tables[path] = table(gpu) | added
        return path
    with cache.locked(path.stem):
        found = _users(path, gpu, strict=True) | entries
        added |= entries
        _tables[path] = found | added
        cache.put(path.name, dumps(gpu, found).encode())
    return path


def _without_registered(gpu: Gpu, entries: Table) -> Table:
    """Keeps entries of registered kernels in this process; returns the others."""
    here, others = registered(), {}
    for key, entry in entries.items():
        place = file_name(gpu.name, gpu.sm_count), key
        _of_registered.pop(place, None)
        if kernel := here.get(entry.kernel):
            _of_registered[place] = entry, ref(kernel)
        else:
            others[key] = entry
    return others


def forget() -> None:
    """Tables are read anew, and choices made anew, at the next call of each class."""
    _tables.clear()
    _of_registered.clear()
    _added.clear()
    _core.clear_plans()


def _users(path: Path, gpu: Gpu, strict: bool = False) -> Table:
    return {} if cache.unsafe(path.parent) else _usable(path, gpu, strict)


def _usable(path: Path, gpu: Gpu, strict: bool = False) -> Table:
    try:
        return read(path, gpu)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError:
        if not strict:
            return {}
        raise ValueError(f"{path} is there, and cannot be read") from None
    except (OSError, ValueError) as error:
        if strict:
            raise
        warnings.warn(f"cutlass_py: tuned choices are left out: {error}", RuntimeWarning, stacklevel=2)
        return {}


# ---------------------------------------------------------------------------------------------------- files


def dumps(gpu: Gpu, table: Mapping[str, Entry]) -> str:
    """A table as JSON, a line for each class."""
    import json

    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(asdict(table[key]))}" for key in sorted(table))
    head = f'"format": {_FORMAT}, "gpu": {json.dumps(gpu.name)}, "sm_count": {gpu.sm_count}'
    return f'{{{head}, "entries": {{\n{lines}\n}}}}\n'


def read(path: str | os.PathLike[str], gpu: Gpu) -> Table:
    """The entries of a file.

    Raises:
        ValueError: it is no table, or one of another GPU; the message names the file.
        OSError: it cannot be read.
    """
    name, sm_count, table = contents(path)
    if (name, sm_count) != (gpu.name, gpu.sm_count):
        raise ValueError(
            f"{os.fspath(path)}: measured on {name} with {sm_count} multiprocessors; "
            f"expected {gpu.name} with {gpu.sm_count}"
        )
    return table


def contents(path: str | os.PathLike[str]) -> tuple[str, int, Table]:
    """The GPU that a file is about, by name and number of multiprocessors, and its entries.

    Raises:
        ValueError: it is no table; the message names the file.
        OSError: it cannot be read.
    """
    name, content = os.fspath(path), read_json(path)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"{name}: expected a table of tuned choices of format {_FORMAT}")
    gpu, sm_count = content.get("gpu"), content.get("sm_count")
    if not isinstance(gpu, str) or not isinstance(sm_count, int):
        raise ValueError(f"{name}: gpu is {gpu!r}, sm_count is {sm_count!r}; expected a name and a number")
    return gpu, sm_count, entries(content.get("entries"), name)


def entries(values: Any, name: str) -> Table:
    """Entries by class, out of what JSON makes of them: objects.

    Args:
        values: the objects by class.
        name: the file's, for messages.

    Raises:
        ValueError: they are none.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{name}: entries is not an object")
    return {key: Entry.read(value, f"{name}: {key}") for key, value in values.items()}
