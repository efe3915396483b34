"""What kernels that quantize there are: dtypes, what shares a factor, the family and its configurations.

Standard library and the tables only: the build reads it before the package exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from .config import Family, KernelConfig, kernel_definition
from .dtypes import BLOCK

SOURCES = ("f32", "bf16", "f16", "f64")
# The largest magnitude of each result: that of the format, and for s8 the one that has its negative.
LIMITS = {"e4m3": 448.0, "e5m2": 57344.0, "s8": 127.0}
# Rows and columns that share a factor, 0 for all of them. `tensor` goes over the batch as well.
SCALINGS = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, BLOCK), "128x128": (BLOCK, BLOCK)}
ALIASES = {"block": "1x128"}  # as gemm's scale_a has it
SMALLEST_SCALE = 2.0**-126  # the smallest normal f32, so that 1 / scale is finite


@dataclass(frozen=True)
class QuantizeConfig(KernelConfig):
    """One kernel that quantizes."""

    x: str
    q: str
    scaling: str

    @property
    def name(self) -> str:
        """Family, dtypes, scaling."""
        return f"{self.family}_{self.x}_{self.q}_{self.scaling}"

    @property
    def operands(self) -> tuple[str, ...]:
        """Of x and q."""
        return self.x, self.q

    @property
    def formula(self) -> str:
        """Result and scales."""
        return f"q = x / scale, scale = amax / {LIMITS[self.q]:.0f} of each group (docs/quantize.md)"


def _write(family: Family, configs: list[QuantizeConfig]) -> str:
    """A whole translation unit."""
    return f'#include "{family.header}"\n\n' + "\n".join(_definition(family, c) for c in configs)


def _definition(family: Family, c: QuantizeConfig) -> str:
    rows, cols = SCALINGS[c.scaling]
    members = {
        "using X": f"quantization::{c.x.capitalize()}",
        "using Q": f"quantization::{c.q.capitalize()}",
        "static constexpr int rows": str(rows),
        "static constexpr int cols": str(cols),
    }
    return kernel_definition(c.name, family.launcher, members)


def _declare() -> Iterator[QuantizeConfig]:
    # x changes last: kernels that differ in q alone share their machine code where they share a file.
    for x, q, scaling in product(SOURCES, LIMITS, SCALINGS):
        yield QuantizeConfig("quantize", x, q, scaling)


FAMILY = Family(
    "quantize",
    "amax and cast in one launch",
    api=0,
    cc=(80, 999),
    arch="80",
    # 9.0 and newer have instructions for fp8. PTX for 8.0 is for what lies between; 8.9 converts by integers then.
    gencode=("arch=compute_80,code=[sm_80,compute_80]", "arch=compute_90,code=[sm_90,compute_90]"),
    header="kernels/quantize/quantize.cuh",
    launcher="Quantize",
    write=_write,
    declare_core=_declare,
    per_file=48,
    core_seconds=1,
    operation="quantize",
    config=QuantizeConfig,
)
