"""Where the scripts of this directory read and write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"  # summaries, which are committed
RAW = ROOT / "build" / "benchmarks"  # what scripts measure, which is not


def slug(gpu: str | None) -> str:
    """A GPU's name as part of a file's."""
    return (gpu or "cpu").lower().removeprefix("nvidia ").replace(" ", "-")


def default_path(script: str, machine: Mapping[str, Any], *parts: str) -> Path:
    """build/benchmarks/<script>-<gpu or cpu>[-parts].json"""
    return RAW / ("-".join([script, slug(machine["gpu"]), *parts]) + ".json")
