"""The C++ of wgmma instructions: specialisations of Wgmma (kernels/sm90/wgmma.cuh) for what a source multiplies.

One for each rather than a header with all, which takes long to compile. Standard library and tables only.
"""

from __future__ import annotations

from typing import NamedTuple

from .dtypes import DTYPES

_STEPS = 4  # instructions for a line of k, 32 bytes each
# What holds sums: their type, the constraint on its registers, and how many a register has.
_HELD = {"f32": ("float", "f", 1), "s32": ("int32_t", "r", 1), "f16": ("uint32_t", "r", 2)}


class Wgmma(NamedTuple):
    """D += A B of 64 rows, `n` columns and a line of k; `a_along`, `b_along`: operands read along rows or columns."""

    a: str
    b: str
    sums: str
    n: int
    a_along: bool
    b_along: bool


def tag(dtype: str) -> str:
    """The type in C++ that stands for a dtype (kernels/common/numbers.cuh)."""
    return f"numbers::{dtype.capitalize()}"


def type_of(w: Wgmma) -> str:
    """As C++ names it."""
    along = f"{str(w.a_along).lower()}, {str(w.b_along).lower()}"
    return f"Wgmma<{tag(w.a)}, {tag(w.b)}, Sum{w.sums.capitalize()}, {w.n}, {along}>"


def specialisation(w: Wgmma) -> str:
    """The instructions for a line of k, and for the first slab of one."""
    cpp, _, held = _HELD[w.sums]
    count = w.n // 2 // held  # of a thread
    sums = _sums(w, count)
    return f"""\
template <>
struct {type_of(w)} {{
{_function("multiply", w, count, _STEPS)}\
{_function("multiply_slab", w, count, 1)}\
  template <int groups>
  __device__ static void wait_but({cpp} (&sums)[{count}]) {{
    asm volatile("wgmma.wait_group.sync.aligned %{count};" : {sums} : "n"(groups) : "memory");
  }}
  __device__ static void wait({cpp} (&sums)[{count}]) {{ wait_but<0>(sums); }}
}};
"""


def _sums(w: Wgmma, count: int) -> str:
    return ", ".join(f'"+{_HELD[w.sums][1]}"(sums[{i}])' for i in range(count))


def _function(name: str, w: Wgmma, count: int, steps: int) -> str:
    """So many instructions one after the other in one block, that sums are named once."""
    registers = ", ".join(f"%{i}" for i in range(count))
    bits = DTYPES[w.a].bits
    signs = "" if w.sums == "s32" else ", 1, 1"
    majors = f", {int(w.a_along)}, {int(w.b_along)}" if bits == 16 else ""
    instruction = f"wgmma.mma_async.sync.aligned.m64n{w.n}k{256 // bits}.{w.sums}.{w.a}.{w.b}"
    lines = ["{", ".reg .pred before, always;", ".reg .b64 a, b;", f"setp.ne.b32 before, %{count + 2}, 0;"]
    if steps > 1:
        lines.append("setp.eq.b32 always, 0, 0;")
    for i in range(steps):
        a, b = (f"%{count}", f"%{count + 1}") if i < 2 else ("a", "b")
        if i:
            lines += [f"add.s64 a, {a}, %{count + 3};", f"add.s64 b, {b}, %{count + 4};"]
        at = ("a, b" if i else f"{a}, {b}") + (", always" if i else ", before")
        lines.append(f"{instruction} {{{registers}}}, {at}{signs}{majors};")
    lines.append("}")
    along_a, along_b = str(w.a_along).lower(), str(w.b_along).lower()
    text = "\n".join(f'        "{line}\\n"' for line in lines)
    return f"""\
  __device__ static void {name}({_HELD[w.sums][0]} (&sums)[{count}], uint64_t a, uint64_t b, int accumulate) {{
    asm volatile(
{text}
        : {_sums(w, count)}
        : "l"(a), "l"(b), "r"(accumulate), "n"(next_bytes<{along_a}, 64>()),
          "n"(next_bytes<{along_b}, panel_of({w.n})>()));
  }}
"""
