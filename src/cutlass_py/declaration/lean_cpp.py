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
    return Wgmma(left, right, "f16" if c.accumulator == "f16" else "f32", c.tile[1], left_along, right_along)


def _flag(x: bool) -> str:
    return str(x).lower()


def _epilogue(c: GemmConfig) -> str:
    e = epilogue_named(c.epilogue)
    quick = _flag(DTYPES[c.d].bits <= 16)
    bias = tag(c.bias) if e.bias else "void"
    beside = "source" if e.source else "gate" if e.gated else "aux" if e.aux else "none"
    activation = f"activation::{e.activation}<{quick}>"
    return f"sm90::Fused<{activation}, {tag(c.d)}, {bias}, {_flag(e.scaled)}, sm90::Beside::{beside}>"


def _design(c: GemmConfig) -> str:
    w = _product(c)
    lines = c.tile[2] * DTYPES[c.a].itemsize // LINE
    schedule = SCHEDULES[c.schedule]
    promoted = DTYPES[c.a].bits == 8 and c.accumulator == "f32"
    flags = (schedule.pingpong, promoted, not schedule.tma_store)
    # Rows and columns that share a factor: every row of A has its own, as many columns of B share one as is said.
    groups = (0, 0) if not schedule.block else (schedule.block, 1) if schedule.swap else (1, schedule.block)
    parts = [tag(w.a), tag(w.b), f"sm90::Sum{w.sums.capitalize()}", tag(c.d), *c.tile[:2], lines, *c.cluster[:2]]
    parts += [*map(_flag, flags), *groups, *map(_flag, (w.a_along, w.b_along, c.cluster[2] > 1)), _epilogue(c)]
    return f"sm90::Design<{', '.join(map(str, parts))}>"


def write(family: Family, configs: list[GemmConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    instructions = "\n".join(specialisation(w) for w in dict.fromkeys(map(_product, configs)))
    kernels = [
        kernel_definition(
            c.name,
            family.launcher,
            {
                "using Design": _design(c),
                "static constexpr bool swap": _flag(SCHEDULES[c.schedule].swap),
                "static constexpr int slices": str(c.cluster[2]),
            },
        )
        for c in configs
    ]
    return (
        f'#include "{family.header}"\n\n#ifdef __CUDACC__\nnamespace cutlass_py::sm90 {{\n{instructions}'
        f"}}  // namespace cutlass_py::sm90\n#endif\n\n" + "\n".join(kernels)
    )
