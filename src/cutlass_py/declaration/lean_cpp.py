"""The C++ of our own kernels for sm90 (kernels/sm90): a design for the launcher, and the instructions that it needs.

Standard library and the tables only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import SCHEDULES, Family, GemmConfig, kernel_definition
from .dtypes import DTYPES
from .epilogues import epilogue_named
from .shared_memory import LINE
from .wgmma_cpp import Wgmma, specialisation, tag

if TYPE_CHECKING:
    from .epilogue_cpp import Traced


def _product(c: GemmConfig) -> Wgmma:
    """The left operand is B where the two change places; it lies along k where it is row-major, B where it is not."""
    a, b = (c.a, c.layout[0] == "n"), (c.b, c.layout[1] == "t")
    (left, left_along), (right, right_along) = (b, a) if SCHEDULES[c.schedule].swap else (a, b)
    return Wgmma(left, right, DTYPES[c.accumulator].stored, c.tile[1], left_along, right_along)


def _flag(x: bool) -> str:
    return str(x).lower()


def _epilogue(c: GemmConfig) -> str:
    e = epilogue_named(c.epilogue)
    if e.user:
        return f"sm90::UserEpilogue<{e.name}, {_flag(DTYPES[c.d].bits <= 16)}>"
    bias = "void" if c.d == "s32" else tag(c.bias)
    if e.pairs:
        role = "d_gated" if e.gated else "gated_aux" if e.aux else "gated"
    else:
        role = "source" if e.source else "gate" if e.gated else "aux" if e.aux else "none"
    return f"sm90::Fused<{tag(c.d)}, {bias}, {_flag(e.scaled)}, sm90::Role::{role}, {_flag(e.bias_grad)}>"


def _program(t: Traced) -> str:
    """A user's function, as kernels/sm90/user_epilogue.cuh takes it: matrices that are read, then those written."""
    dtypes = [str(dtype) for _, dtype in t.operands]
    read = [i for i, kind, _ in t.inputs if kind == "t"]
    written = [i for i, _, _, reduction in t.outputs if not reduction]
    matrices, others = [*read, *written], [i for i, kind, _ in t.inputs if kind != "t"]
    reduces = {
        i: f"sm90::Reduces::{'columns' if kind == 'n' else 'rows'}" for i, kind, _, reduction in t.outputs if reduction
    }
    operands = {i: f"{i}, {DTYPES[dtypes[i]].itemsize}" for i in matrices} | {i: f"{i}, 0" for i in others}
    operands |= {i: f"{i}, 0, {what}" for i, what in reduces.items()}
    at = {i: place for place, i in enumerate(operands)}
    uses: dict[str, list[str]] = {"number": [], "vector": [], "read": [], "written": []}
    for place, (i, kind, _) in enumerate(t.inputs, 1):
        if kind in "nm":
            uses["vector"].append(f"use({place}, {len(uses['vector'])}, {at[i]}, {tag(dtypes[i])}{{}});")
        else:
            uses["read" if kind == "t" else "number"].append(f"use({place}, {at[i]});")
    reductions = []
    for place, (i, _, _, reduction) in enumerate(t.outputs, 1):
        if reduction:
            how = f"user::{reduction.capitalize()}, {place}, {at[i]}, {reduces[i]}"
            reductions.append(f"sm90::Reduction<{how}>")
        else:
            uses["written"].append(f"use({place}, {at[i]});")
    beside = ", ".join(f"{{{x}}}" for x in operands.values()) or "{-1, 0}"
    return (
        f"namespace cutlass_py {{\nstruct {t.name} {{\n"
        f"  static constexpr int ins = {1 + len(t.inputs)}, outs = {1 + len(t.outputs)}, vectors = {t.vectors};\n"
        f"  static constexpr int reads = {len(read)}, operands = {len(operands)};\n"
        f"  static constexpr sm90::Beside beside[] = {{{beside}}};\n"
        f"  using Matrices = sm90::Dtypes<{', '.join(tag(dtypes[i]) for i in matrices)}>;\n"
        f"  using Reductions = sm90::Reductions<{', '.join(reductions)}>;\n"
        "  template <bool fast, class T>\n"
        f"  static __device__ void compute(const T* in, T* out) {{\n{t.computed(tag)}  }}\n"
        + "".join(
            f"  template <class Use>\n  static __device__ void each_{what}(Use use) {{ {' '.join(each)} }}\n"
            for what, each in uses.items()
        )
        + "};\n}\n"
    )


def function(c: GemmConfig) -> str:
    """The design in C++: kernels that share one are one function, launched in other ways."""
    w = _product(c)
    lines = c.tile[2] * DTYPES[c.a].itemsize // LINE
    schedule = SCHEDULES[c.schedule]
    promoted = DTYPES[c.a].bits == 8 and c.accumulator == "f32"
    slices = "none" if c.slices == 1 else "serial" if schedule.serial else "by_block"
    flags = (schedule.pingpong, promoted, not schedule.tma_store, schedule.unaligned)
    parts = [tag(w.a), tag(w.b), f"sm90::Sum{w.sums.capitalize()}", tag(c.d), *c.tile[:2], lines, *c.cluster[:2]]
    parts += [
        *map(_flag, flags),
        *schedule.groups,
        *map(_flag, (w.a_along, w.b_along)),
        f"sm90::Slices::{slices}",
        _epilogue(c),
    ]
    pairs = epilogue_named(c.epilogue).pairs == "b"  # those of D take no other tile
    if schedule.grouping or pairs:
        parts.append(f"sm90::Grouping::{schedule.grouping or 'none'}")
    if pairs:
        parts.append(f"sm90::Pairs::{'left' if schedule.swap else 'right'}")
    return f"sm90::Design<{', '.join(map(str, parts))}>"


def write(family: Family, configs: list[GemmConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    instructions = "\n".join(specialisation(w) for w in dict.fromkeys(map(_product, configs)))
    kernels = [
        kernel_definition(
            c.name,
            family.launcher,
            {
                "using Design": function(c),
                "static constexpr bool swap": _flag(SCHEDULES[c.schedule].swap),
                "static constexpr int slices": str(c.slices),
            },
        )
        for c in configs
    ]
    users = [e.user for e in dict.fromkeys(epilogue_named(c.epilogue) for c in configs) if e.user]
    header = "kernels/sm90/user_epilogue.cuh" if users else family.header
    return (
        f'#include "{header}"\n\n#ifdef __CUDACC__\nnamespace cutlass_py::sm90 {{\n{instructions}'
        f"}}  // namespace cutlass_py::sm90\n#endif\n\n" + "".join(map(_program, users)) + "\n".join(kernels)
    )
