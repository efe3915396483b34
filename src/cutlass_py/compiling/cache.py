"""Compiled kernels on disk: where they are, one process at a time for each, and nothing that is not whole.

An entry is one file: a shared library, or a cubin by the same suffix, and behind it the SHA-256 of its bytes, which
loaders do not look at. So an entry appears by one rename, and one that is damaged or torn is none.
"""

from __future__ import annotations

import atexit
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..errors import CompileError
from ..support.files import replace

if TYPE_CHECKING:
    from filelock import BaseFileLock

_OURS = re.compile(r"\w+-[0-9a-f]{32}-(nvcc|nvrtc)[\d.]+\.(so|lock|\w+\.part)")  # the directory may hold other files
DIGEST = 32  # bytes of a SHA-256
_guard = Lock()
_fallback: dict[Path, Path] = {}  # private directories, by those that cannot be written


def directory() -> Path:
    """The directory asked for: CUTLASS_PY_CACHE_DIR, else the user's cache directory. Need not exist.

    Raises:
        CompileError: CUTLASS_PY_CACHE_DIR names the home of nobody.
    """
    home = os.environ.get("HOME")
    if asked := os.environ.get("CUTLASS_PY_CACHE_DIR"):
        try:
            return _asked(asked, home).absolute()
        except RuntimeError as error:
            raise CompileError(f"CUTLASS_PY_CACHE_DIR is {asked!r}: {error}") from None
    return _users(home, os.environ.get("XDG_CACHE_HOME"))


# By what they depend on: every choice asks.
@cache
def _asked(directory: str, home: str | None) -> Path:
    return Path(directory).expanduser()


@cache
def _users(home: str | None, caches: str | None) -> Path:
    from platformdirs import user_cache_path

    try:
        return user_cache_path("cutlass_py", appauthor=False)
    except RuntimeError:  # a user without a home directory
        return Path("cutlass_py")


def unsafe(path: Path) -> str | None:
    """Why nothing is read from a directory, or a file, that CUTLASS_PY_CACHE_DIR does not name; None where it is."""
    if os.environ.get("CUTLASS_PY_CACHE_DIR"):
        return None
    if not path.is_absolute():
        return "there is no home directory"
    try:
        status = path.stat()
    except OSError:
        return None  # not there, or to be noticed by who reads it
    if status.st_uid not in (0, os.geteuid()):
        return "it belongs to another user"
    return "everyone may write it" if status.st_mode & 0o1002 == 0o002 else None  # unless sticky


def _writable() -> Path:
    """The directory, or a private one for the life of this process where that cannot be used."""
    wanted = directory()
    if wanted in _fallback:
        return _fallback[wanted]
    if reason := unsafe(wanted):
        return _private(reason)
    import tempfile

    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted):
            return wanted
    except OSError as error:
        return _private(error)


def _private(why: Exception | str) -> Path:
    """The private directory instead of the one asked for: made, with a warning, when it is wanted first."""
    import tempfile

    wanted = directory()
    with _guard:
        if known := _fallback.get(wanted):
            return known
        made = _fallback[wanted] = Path(tempfile.mkdtemp(prefix="cutlass_py-"))
        atexit.register(_remove, made, os.getpid())
    reason = why.strerror if isinstance(why, OSError) and why.strerror else why
    warnings.warn(
        f"cutlass_py: {wanted} cannot be used ({reason}): what this process compiles or tunes is lost when it ends. "
        "Set CUTLASS_PY_CACHE_DIR",
        RuntimeWarning,
        stacklevel=2,
    )
    return made


def _remove(directory: Path, owner: int) -> None:
    """At the end of the process that made it: children that were forked end too, and before that one."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


def _whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    from hashlib import sha256

    body, digest = content[:-DIGEST], content[-DIGEST:]
    return bool(body) and sha256(body).digest() == digest


def entries() -> list[Path]:
    """Every entry, whole or not, by name."""
    return [path for path in _files() if path.suffix == ".so"]


def _files() -> list[Path]:
    return sorted(path for path in directory().glob("*") if _OURS.fullmatch(path.name))


def size(path: Path) -> int:
    """Bytes of a file; 0 where another process has removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def find(pattern: str) -> Path | None:
    """A whole entry whose name without .so matches the pattern (of glob), or None. The last by name if several do."""
    wanted = directory()
    places = [wanted, *([_fallback[wanted]] if wanted in _fallback else [])]
    safe = (place for place in places if not unsafe(place))
    matching = (path for place in safe for path in sorted(place.glob(f"{pattern}.so"), reverse=True))
    return next((path for path in matching if not unsafe(path) and _whole(path)), None)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Keeps every other thread and process from making what has this name."""
    try:
        lock = _acquired(_writable() / f"{name}.lock")
    except (OSError, NotImplementedError) as error:  # another user's, or a file system without locks
        lock = _acquired(_private(error) / f"{name}.lock")
    try:
        yield
    finally:
        lock.release()


def _acquired(path: Path) -> BaseFileLock:
    from filelock import FileLock

    lock = FileLock(path, mode=0o666)  # the directory may be shared
    lock.acquire()
    return lock


def store(name: str, library: bytes) -> Path:
    """Puts an entry in place. Expects the lock.

    Raises:
        OSError: as `put`.
    """
    from hashlib import sha256

    return put(f"{name}.so", library + sha256(library).digest())


def put(name: str, content: bytes) -> Path:
    """Puts a file in place, or into the private directory where the disk is full. Expects the lock.

    Raises:
        OSError: there is no room for the private directory either.
    """
    with suppress(FileNotFoundError):  # another process cleared the directory meanwhile
        return _replaced(name, content)
    return _replaced(name, content)


def _replaced(name: str, content: bytes) -> Path:
    try:
        return replace(_writable() / name, content)
    except FileNotFoundError:
        raise
    except OSError as error:
        return replace(_private(error) / name, content)


def clear() -> tuple[int, int]:
    """Removes entries, locks and what was left half written; how many entries and how many bytes went.

    Libraries in use stay usable until the end.
    """
    removed = freed = 0
    for path in _files():
        removed += path.suffix == ".so"
        freed += size(path)
        path.unlink(missing_ok=True)
    return removed, freed
