"""Versions of the array frameworks that are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

# By module: the distributions that it may come from.
FRAMEWORKS = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "jax": ("jax",),
}


def installed() -> dict[str, str]:
    """Versions of the array frameworks found, without importing them."""
    found = {}
    for module, distributions in FRAMEWORKS.items():
        if find_spec(module) is None:
            continue
        for distribution in distributions:
            try:
                found[module] = version(distribution)
                break
            except PackageNotFoundError:
                found[module] = "?"
    return found
