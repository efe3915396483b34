"""The C++ of kernels for a few rows or columns (kernels/gemv): dtypes and layout, for the launcher.

Standard library and the tables only.
"""

from __future__ import annotations

from .config import SCHEDULES, Family, GemmConfig, kernel_definition
from .dtypes import DTYPES
from .wgmma_cpp import tag


def tile(a: str, along_k: bool) -> tuple[int, int, int]:
    """Vectors, and lines of the matrix by what is read of k, that a warp multiplies at once (Matrix in shape.h)."""
    size = DTYPES[a].itemsize
    return (2, 4, 512 // size) if along_k else (2, 64 // size, 64)


def _definition(family: Family, c: GemmConfig) -> str:
    members = {
        "using A": tag(DTYPES[c.a].stored),  # f32 as it is, whatever the tensor cores would make of it
        "using B": tag(DTYPES[c.b].stored),
        "using Sum": tag(c.accumulator),
        "using D": tag(c.d),
        "static constexpr Dtype d": f"Dtype::{c.d}",
        "static constexpr Dtype factors": f"Dtype::{DTYPES[c.accumulator].scalar}",
        "static constexpr bool a_along": str(c.layout[0] == "n").lower(),
        "static constexpr bool b_along": str(c.layout[1] == "t").lower(),
        "static constexpr bool swap": str(SCHEDULES[c.schedule].swap).lower(),
    }
    return kernel_definition(c.name, family.launcher, members)


def write(family: Family, configs: list[GemmConfig]) -> str:
    """A whole translation unit with kernels of the family."""
    return f'#include "{family.header}"\n\n' + "\n".join(_definition(family, c) for c in configs)


def function(c: GemmConfig) -> str:
    """The device functions in words: kernels that share them differ in what the launch tells."""
    matrix, vectors = (c.a, c.b) if (swap := SCHEDULES[c.schedule].swap) else (c.b, c.a)
    along_k = c.layout[0] == "t" if swap else c.layout[1] == "n"
    return f"{DTYPES[matrix].stored} {DTYPES[vectors].stored} {along_k}"
