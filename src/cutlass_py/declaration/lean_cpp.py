"""The C++ of our own kernels for sm90 (kernels/sm90): a design for the launcher, and the instructions that it needs.

Standard library and the tables only.
"""

from __future__ import annotations

from .config import SCHEDULES, Family, GemmConfig, kernel_definition
from .dtypes import DTYPES
from .epilogues import epilogue_named
from .wgmma_cpp import Wgmma, specialisation, tag

LINE = 128  # bytes of k (kernels/sm90/wgmma.cuh)


def _product(c: GemmConfig) -> Wgmma:
    """The left operand is B where the two change places; it lies along k where it is row-major, B where it is not."""
    a, b = (c.a, c.layout[0] == "n"), (c.b, c.layout[1] == "t")
    (left, left_along), (right, right_along) = (b, a) if SCHEDULES[c.schedule].swap else (a, b)
    return Wgmma(left, right, "f32", c.tile[1], left_along, right_along)


def _epilogue(c: GemmConfig) -> str:
    e = epilogue_named(c.epilogue)
    quick = str(DTYPES[c.d].bits <= 16).lower()
    bias = tag(c.bias) if e.bias else "void"
    beside = "source" if e.source else "gate" if e.gated else "aux" if e.aux else "none"
    activation = f"activation::{e.activation}<{quick}>"
    return f"sm90::Fused<{activation}, {tag(c.d)}, {bias}, {str(e.scaled).lower()}, sm90::Beside::{beside}>"


def _design(c: GemmConfig) -> str:
    w = _product(c)
    lines = c.tile[2] * DTYPES[c.a].itemsize // LINE
    schedule = SCHEDULES[c.schedule]
    flags = (schedule.pingpong, not schedule.tma_store, w.a_along, w.b_along)
    parts = [tag(w.a), tag(w.b), "float", tag(c.d), *c.tile[:2], lines, *c.cluster[:2]]
    parts += [*(str(flag).lower() for flag in flags), _epilogue(c)]
    return f"sm90::Design<{', '.join(map(str, parts))}>"


def write(family: Family, configs: list[GemmConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    instructions = "\n".join(specialisation(w) for w in dict.fromkeys(map(_product, configs)))
    kernels = [
        kernel_definition(
            c.name,
            family.launcher,
            {"using Design": _design(c), "static constexpr bool swap": str(SCHEDULES[c.schedule].swap).lower()},
        )
        for c in configs
    ]
    return (
        f'#include "{family.header}"\n\n#ifdef __CUDACC__\nnamespace cutlass_py::sm90 {{\n{instructions}'
        f"}}  // namespace cutlass_py::sm90\n#endif\n\n" + "\n".join(kernels)
    )
