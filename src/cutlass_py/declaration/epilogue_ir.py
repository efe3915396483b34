"""What a user's epilogue is made of: the operations that may be traced, and the program that a trace ends in.

Standard library and its sibling tables only: kernels' sources are written from it (epilogue_cpp.py), and NumPy runs it
(epilogues/reference.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from .epilogues import ACTIVATIONS


@dataclass(frozen=True)
class Operation:
    """One operation on numbers.

    Attributes:
        cpp: the expression in C++, with {0}, {1}, ... for its operands, and {fast} for whether approximations will do;
            T is the dtype of the epilogue's arithmetic.
        truth: it yields true or false.
        instructions: of a GPU, about, for one element.
    """

    cpp: str
    truth: bool = False
    instructions: int = 1


def _activation(name: str) -> Operation:
    instructions = ACTIVATIONS[name].instructions
    return Operation(f"activation::{name}<{{fast}}>::apply({{0}}, nullptr)", instructions=instructions)


def _exact(name: str, instructions: int) -> Operation:
    return Operation(f"activation::{name}<false>::apply({{0}}, nullptr)", instructions=instructions)


# NaN goes through minimum and maximum, as in NumPy. Differences of tanh's and sigmoid's values are what formulas are
# made of, so that these two are exact; other activations are as exact as the results' dtypes.
OPERATIONS = {
    "add": Operation("{0} + {1}"),
    "subtract": Operation("{0} - {1}"),
    "multiply": Operation("{0} * {1}"),
    "divide": Operation("{0} / {1}", instructions=10),
    "negative": Operation("-{0}"),
    "less": Operation("{0} < {1}", truth=True),
    "less_equal": Operation("{0} <= {1}", truth=True),
    "greater": Operation("{0} > {1}", truth=True),
    "greater_equal": Operation("{0} >= {1}", truth=True),
    "equal": Operation("{0} == {1}", truth=True),
    "not_equal": Operation("{0} != {1}", truth=True),
    "logical_and": Operation("{0} && {1}", truth=True),
    "logical_or": Operation("{0} || {1}", truth=True),
    "logical_not": Operation("!{0}", truth=True),
    "where": Operation("{0} ? {1} : {2}"),
    "minimum": Operation("{0} < {1} || {0} != {0} ? {0} : {1}", instructions=3),
    "maximum": Operation("{0} > {1} || {0} != {0} ? {0} : {1}", instructions=3),
    "abs": Operation("::fabs({0})"),
    "exp": Operation("::exp({0})", instructions=8),
    "log": Operation("::log({0})", instructions=20),
    "sqrt": Operation("::sqrt({0})", instructions=10),
    "rsqrt": Operation("::rsqrt({0})", instructions=4),
    "erf": Operation("::erf({0})", instructions=40),
    "tanh": _exact("tanh", 25),
    "sigmoid": _exact("sigmoid", 18),
    "relu": _activation("relu"),
    "gelu": _activation("gelu"),
    "gelu_tanh": _activation("gelu_tanh"),
    "silu": _activation("silu"),
    "hardswish": _activation("hardswish"),
}
# Dtypes that a value may be rounded to, and back.
CASTS = ("f16", "bf16", "e4m3", "e5m2")
REDUCTIONS = ("sum", "max", "min")  # the order is the numbering of kernel.h
AXES = {"m": -1, "n": -2, "s": None}  # that a reduction goes over, by Output.axis


@dataclass(frozen=True)
class Node:
    """A value: an operation on earlier nodes, "accum", "input" (`name`), "constant" (`number`), "cast" (to `name`)."""

    op: str
    operands: tuple[int, ...] = ()
    name: str = ""
    number: str = ""  # as repr writes it, so that NaN equals itself and -0.0 is not 0.0

    @property
    def truth(self) -> bool:
        """Whether it is true or false."""
        return self.op in OPERATIONS and OPERATIONS[self.op].truth


@dataclass(frozen=True)
class Output:
    """What is written beside D: a matrix like it, or its reduction over one axis or both.

    Attributes:
        reduction: "" or one of REDUCTIONS.
        axis: the axis of D that what is written goes along: "m" one value per row, "n" one per column, "s" neither: a
            single value; "" for a matrix.
    """

    name: str
    node: int
    reduction: str = ""
    axis: str = ""


@dataclass(frozen=True)
class Program:
    """A traced function: values in the order in which they are computed, of which one is D.

    Attributes:
        name: the function's.
        inputs: parameters behind the sum, whether they are used or not.
    """

    name: str
    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    result: int
    outputs: tuple[Output, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of what a call gives: inputs, then outputs."""
        return (*self.inputs, *(output.name for output in self.outputs))

    @cached_property
    def used(self) -> frozenset[int]:
        """Nodes that something written depends on."""
        return self.behind([self.result, *(output.node for output in self.outputs)])

    def behind(self, nodes: Iterable[int]) -> frozenset[int]:
        """These nodes, and those that they depend on."""
        seen: set[int] = set()
        waiting = list(nodes)
        while waiting:
            if (index := waiting.pop()) not in seen:
                seen.add(index)
                waiting += self.nodes[index].operands
        return frozenset(seen)

    @cached_property
    def read(self) -> frozenset[str]:
        """Inputs that something written depends on."""
        return frozenset(self.nodes[i].name for i in self.used if self.nodes[i].op == "input")

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """For each output, the first output that reduces the same value; itself where it reduces nothing."""
        reduced: dict[int, int] = {}
        return tuple(reduced.setdefault(o.node, i) if o.reduction else i for i, o in enumerate(self.outputs))

    @cached_property
    def instructions(self) -> int:
        """Of a GPU, about, for one element."""
        known = (self.nodes[i].op for i in self.used)
        return sum(OPERATIONS[op].instructions if op in OPERATIONS else op == "cast" for op in known)

    @cached_property
    def formula(self) -> str:
        """In words, as kernels' metadata shows it."""
        over = {"m": "[m]", "n": "[n]"}
        written = [f"{o.name} = {o.reduction or 'values'}{over.get(o.axis, '')}" for o in self.outputs]
        return f"{self.name}({', '.join(['accum', *self.inputs])})" + (f" with {', '.join(written)}" if written else "")


def digest(text: str) -> str:
    """A short name for a content."""
    return sha256(text.encode()).hexdigest()[:20]
