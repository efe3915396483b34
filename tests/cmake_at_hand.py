"""Whether a CMake is at hand that takes the example, and the projects that `emit` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

from stand_in import ROOT

VERSION = r"(?:VERSION|version) (\d+)\.(\d+)"


@cache
def why_not() -> str:
    """What is wrong with it; empty where nothing is."""
    if not (found := shutil.which("cmake")):
        return "no cmake"
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    version, oldest = _version(said), _version((ROOT / "CMakeLists.txt").read_text())
    return "" if version >= oldest else f"cmake is older than {'.'.join(map(str, oldest))}"


def _version(text: str) -> tuple[int, ...]:
    """The first one that is spoken of."""
    found = re.search(VERSION, text)
    assert found, text
    return tuple(map(int, found.groups()))
