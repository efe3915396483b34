"""Files read and written whole: JSON in, any bytes out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def read_json(path: str | os.PathLike[str]) -> Any:
    """What the file says.

    Raises:
        ValueError: it is not JSON; the message names the file.
        OSError: it cannot be read.
    """
    import json  # imported here: a first call without a table of tuned choices needs nothing of it

    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)}: not JSON: {error}") from None


def replace(path: Path, content: bytes) -> Path:
    """A file written beside and renamed: readers see what was there before, or all of it.

    What a link points to is replaced, and not the link; a device or a pipe is written to.

    Raises:
        OSError: it cannot be written.
    """
    import tempfile

    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return path
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f"{path.stem}.", suffix=".part", delete=False) as beside:
        try:
            beside.write(content)
            beside.flush()
            os.chmod(beside.name, 0o644)  # the directory may be shared
            os.replace(beside.name, target)
        except BaseException:
            Path(beside.name).unlink(missing_ok=True)  # another process may have cleared the directory
            raise
    return path
