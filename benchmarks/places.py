"""Where the scripts of this directory read and write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def default_path(script: str, machine: Mapping[str, Any], *parts: str) -> Path:
    """benchmarks/results/<script>-<gpu or cpu>[-parts].json"""
    gpu = str(machine["gpu"] or "cpu").lower().removeprefix("nvidia ").replace(" ", "-")
    return RESULTS / ("-".join([script, gpu, *parts]) + ".json")
