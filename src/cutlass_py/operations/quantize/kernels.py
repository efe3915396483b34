"""Kernels that quantize: what each takes, how long that takes, what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

from ..._core import QuantizeProblem
from ...arrays.gpu import Gpu
from ...declaration.config import cc_range
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import EPILOGUES, Epilogue
from ...declaration.operands import OPERANDS
from ...declaration.quantize import FAMILY, LIMITS, SCALINGS, SOURCES, QuantizeConfig
from ...kernels import operation
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel, Status
from ...kernels.metadata import CPU, Design, KernelMetadata, OperandMetadata

FORMULA = "q = x / scales; scales = amax / limit"


@dataclass(frozen=True)
class Interface(operation.Interface):
    """What a kernel converts, and what shares a factor: it takes any strides, and does nothing to the result."""

    x: str
    q: str
    scaling: str

    @property
    def epilogue(self) -> Epilogue:  # type: ignore[override]
        """None that a user could replace."""
        return EPILOGUES["linear"]

    def way(self, p: QuantizeProblem, gpu: Gpu | None) -> Way | str:
        """Directly, or not at all."""
        lowest, highest = FAMILY.cc
        if gpu is None:
            return "runs on a GPU; x is on the CPU"
        if not lowest <= gpu.cc <= highest:
            return f"runs on compute capability {cc_range(lowest, highest)}; {gpu} has {gpu.cc / 10:.1f}"
        if (p.x, p.q) != (self.x, self.q):
            return f"converts {self.x} to {self.q}; asked for is {p.x} to {p.q}"
        if p.scaling != self.scaling:
            return f"scales by {self.scaling}; {p.scaling} is asked for"
        return Way()

    def alike(self, p: QuantizeProblem) -> bool:
        """Whether dtypes and scaling are the problem's."""
        return (p.x, p.q, p.scaling) == (self.x, self.q, self.scaling)


@cache
def interface_of(c: QuantizeConfig) -> Interface:
    """The interface of a kernel."""
    return Interface(c.x, c.q, c.scaling)


@dataclass(frozen=True)
class Estimates(operation.Estimates):
    """What kernels take for a problem: the time of its memory traffic, which bounds them."""

    p: QuantizeProblem
    gpu: Gpu

    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """Microseconds; one pass over x, or two for a single factor."""
        p = self.p
        passes = 2 if p.scaling == "tensor" else 1
        moved = p.batch * p.rows * p.cols * (DTYPES[p.x].itemsize * passes + DTYPES[p.q].itemsize) + 4 * factors(p)
        return moved / (self.gpu.bandwidth * 1e3)


def factors(p: QuantizeProblem) -> int:
    """How many scales there are."""
    rows, cols = SCALINGS[p.scaling]
    if not rows:
        return 1
    return p.batch * ceil(p.rows / rows) * (ceil(p.cols / cols) if cols else 1)


# ---------------------------------------------------------------------------------------------------- metadata


def metadata_of(kernel: CutlassKernel) -> KernelMetadata:
    """From the declaration, and from the compiled kernel where there is one."""
    c, facts = kernel.config, kernel.facts or {}
    design = Design(schedule=c.scaling, threads=facts.get("threads", 0), kernel=kernel.name)
    operands = {
        name: OperandMetadata(dtype, "*", DTYPES[dtype].itemsize)
        for name, dtype in (("x", c.x), ("q", c.q), ("scales", "f32"))
    }
    return KernelMetadata(
        kernel.name, operands, "f32", FORMULA, c.family, 0, design, FAMILY.cc, kernel.deterministic, True, "quantize"
    )


_OPERANDS = tuple("q" if x.name == "out" else x.name for x in OPERANDS["quantize"])
HOST = KernelMetadata(
    "cpu_quantize_numpy", dict.fromkeys(_OPERANDS, OperandMetadata("*")), "f32", FORMULA, "cpu_quantize", cc=CPU,
    operation="quantize",
)  # fmt: skip


def metadata_fits(m: KernelMetadata, p: QuantizeProblem) -> Status:
    """Whether a problem is what metadata say: device, dtypes, layouts and alignments of x and q."""
    if (m.cc == CPU) != (p.device_id < 0):
        return Status(f"runs on {'the CPU' if m.cc == CPU else 'a GPU'}; x is on {p.device}")
    for name in ("x", "q"):
        said, dtype = m.operands[name], getattr(p, name)
        layout, align = getattr(p, f"layout_{name}"), getattr(p, f"align_{name}")
        if said.dtype not in ("*", dtype):
            return Status(f"takes {name} in {said.dtype}; it is {dtype}")
        if said.layout not in ("*", layout):
            return Status(f"takes {name} with layout {said.layout!r}; it has {layout!r}")
        if align < said.alignment:
            return Status(f"takes {name} by {said.alignment} bytes; it is aligned to {align}")
    return Status()


def mistake(m: KernelMetadata) -> str | None:
    """What is wrong with metadata of a user's kernel that quantizes."""
    if missing := [name for name in ("x", "q") if name not in m.operands]:
        return f"{m.name} has no operand {', '.join(missing)}"
    for name, x in m.operands.items():
        if name not in _OPERANDS:
            return f"{m.name} has an operand {name!r}; expected {', '.join(_OPERANDS)}"
        known = {"x": SOURCES, "q": tuple(LIMITS), "scales": ("f32",)}[name]
        if x.dtype not in ("*", *known):
            return f"{m.name}: {name} is {x.dtype!r}; expected one of {', '.join(known)}, or '*'"
    return None
