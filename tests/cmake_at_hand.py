"""Whether a CMake is at hand that takes the example, and the projects that `emit` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache

OLDEST = (3, 26)


@cache
def why_not() -> str:
    """What is wrong with it; empty where nothing is."""
    if not (found := shutil.which("cmake")):
        return "no cmake"
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"version (\d+)\.(\d+)", said)
    if not version or tuple(map(int, version.groups())) < OLDEST:
        return f"cmake is older than {'.'.join(map(str, OLDEST))}"
    return ""
