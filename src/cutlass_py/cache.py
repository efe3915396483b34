"""Compiled kernels on disk: where they are, one process at a time for each, and nothing that is not whole.

An entry is one file: a shared library and, behind it, the SHA-256 of its bytes, which loaders do not look at. So an
entry appears by one rename, and one that is damaged or torn is none.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

_DIGEST = hashlib.sha256().digest_size
_guard = Lock()
_fallback: dict[Path, tempfile.TemporaryDirectory[str]] = {}  # by the directory that cannot be written


def directory() -> Path:
    """The directory asked for: CUTLASS_PY_CACHE_DIR, else the user's cache directory. Need not exist."""
    asked = os.environ.get("CUTLASS_PY_CACHE_DIR")
    if asked:
        return Path(asked).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("cutlass_py", appauthor=False)


def _writable() -> Path:
    """The directory, or a private one for the life of this process where that cannot be written."""
    wanted = directory()
    with _guard:
        if wanted in _fallback:
            return Path(_fallback[wanted].name)
        try:
            wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=wanted):
                return wanted
        except OSError as error:
            _fallback[wanted] = tempfile.TemporaryDirectory(prefix="cutlass_py-")
            reason = error.strerror or str(error)
    warnings.warn(
        f"cutlass_py: {wanted} cannot be written ({reason}): kernels compiled by this process are lost when it ends. "
        "Set CUTLASS_PY_CACHE_DIR",
        RuntimeWarning,
        stacklevel=2,
    )
    return Path(_fallback[wanted].name)


def _whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, digest = content[:-_DIGEST], content[-_DIGEST:]
    return bool(body) and hashlib.sha256(body).digest() == digest


def entries() -> list[Path]:
    """Every entry, whole or not, by name."""
    return sorted(directory().glob("*.so"))


def find(pattern: str) -> Path | None:
    """A whole entry whose name without .so matches the pattern (of glob), or None. The last by name if several do."""
    wanted = directory()
    places = [wanted, *([Path(_fallback[wanted].name)] if wanted in _fallback else [])]
    matching = (path for place in places for path in sorted(place.glob(f"{pattern}.so"), reverse=True))
    return next(filter(_whole, matching), None)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Keeps every other thread and process from making this entry."""
    from filelock import FileLock

    with FileLock(_writable() / f"{name}.lock"):
        yield


def store(name: str, library: bytes) -> Path:
    """Puts an entry in place, written beside and renamed. Expects the lock.

    Raises:
        OSError: the disk is full.
    """
    path = _writable() / f"{name}.so"
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{name}.", suffix=".part", delete=False) as beside:
        try:
            beside.write(library + hashlib.sha256(library).digest())
            beside.flush()
            os.chmod(beside.name, 0o644)  # the directory may be shared
            os.replace(beside.name, path)
        except BaseException:
            os.unlink(beside.name)
            raise
    return path


def clear() -> tuple[int, int]:
    """Removes everything; the number of entries and of bytes that went. Libraries in use stay usable until the end."""
    removed = size = 0
    for path in directory().glob("*"):
        if path.suffix in (".so", ".part", ".lock"):
            removed += path.suffix == ".so"
            size += path.stat().st_size
            path.unlink(missing_ok=True)
    return removed, size
