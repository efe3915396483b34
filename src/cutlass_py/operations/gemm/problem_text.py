"""A problem in words, for messages and tables."""

from __future__ import annotations

from ..._core import Problem
from ...declaration.dtypes import arithmetic
from ...epilogues.specialization import specialization_of

# What shares a factor where scales are in blocks, by what Problem says of them.
_BLOCKS = {
    "scale_a": {"b": "[128x128]", "r": "[1x128]", "p": "[1x128]"},
    "scale_b": {"b": "[128x128]", "r": "[128x1]", "p": "[1x128]"},
}


def describe(p: Problem) -> str:
    """A problem in one line, for messages and tables."""
    batch = f"{p.batch} x " if p.batch != 1 else ""
    layouts = p.layout_a + p.layout_b
    lists = " in a list" if p.pointers else ""
    compute = f" computed in {p.operand_a}" if p.operand_a != p.a else ""
    if p.accumulator != arithmetic(p.a or "").accumulator:
        compute += f" summed in {p.accumulator}"
    return f"{batch}({p.m}, {p.n}, {p.k}) {layouts}{lists}: {_formula(p)} -> {p.d}{compute} on {p.device}{turned(p)}"


def turned(p: Problem) -> str:
    """What has to be known to read words about a problem's a and b: whether they are the caller's b and a."""
    return " (a and b have changed places: out is column-major)" if p.transposed else ""


def _formula(p: Problem) -> str:
    """The epilogue in words, in the order in which it is applied."""
    if user := specialization_of(p):
        return f"{p.a} @ {p.b} -> {user.program.formula}"
    scales = [name + blocks.get(mark, "") for name, blocks in _BLOCKS.items() if (mark := getattr(p, name))]
    text = " * ".join([f"{p.a} @ {p.b}", *scales])
    text += f" + {p.c} C" if p.c else ""
    text += " + bias" + (" per row" if p.bias_axis == "m" else "") if p.bias else ""
    if p.activation.startswith("d_"):
        text += f" * {p.activation}(aux)"
    elif p.aux:
        text += " (kept in aux)"
    if p.pairs:
        text += " of gates and values" + (", by turns" if p.interleaved else "")
    if p.gate:
        text += f" * {p.activation}(gate)" if p.activation != "identity" else " * gate"
    elif p.activation != "identity" and not p.activation.startswith("d_"):
        text += f" -> {p.activation}"
    text += " -> bias_grad" if p.bias_grad else ""
    return text + (" * scale_out" if p.scale_out else "")
