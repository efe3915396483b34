"""Reading a JSON file: problems, tuned choices, results."""

from __future__ import annotations

import os
from typing import Any


def read(path: str | os.PathLike[str]) -> Any:
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
