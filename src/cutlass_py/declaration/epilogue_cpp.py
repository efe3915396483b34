"""The C++ of users' epilogues: a traced program and what its operands are, as user_epilogue.cuh takes them.

Standard library and the tables only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from .dtypes import DTYPES
from .epilogue_ir import OPERATIONS, Program, digest


@dataclass(frozen=True)
class Traced:
    """An epilogue that a user wrote, for operands of these kinds: what a kernel is compiled for.

    Attributes:
        operands: kind and dtype of what is given for the inputs, then for the outputs. Kinds: "h" a number, "s" one
            element, "n" and "m" a vector along that axis of D, "t" a matrix; a number has no dtype.
    """

    program: Program
    operands: tuple[tuple[str, str | None], ...]

    @cached_property
    def name(self) -> str:
        """Of the content: the same for functions that do the same under other names."""
        return f"user_{digest(f'{self.computation} {self.transfers}')}"

    @cached_property
    def formula(self) -> str:
        """In words."""
        return self.program.formula

    @cached_property
    def inputs(self) -> list[tuple[int, str, str]]:
        """Index, kind and C++ type of every operand that is read; unread ones are left out."""
        return [
            (i, kind if kind != "h" else "s", DTYPES[dtype].cpp if dtype else "")
            for i, (name, (kind, dtype)) in enumerate(zip(self.program.inputs, self.operands, strict=False))
            if name in self.program.read
        ]

    @cached_property
    def outputs(self) -> list[tuple[int, str, str, str]]:
        """Index, kind, C++ type and reduction of everything written beside D."""
        first = len(self.program.inputs)
        written = zip(self.program.outputs, self.operands[first:], strict=True)
        return [
            (first + i, kind, DTYPES[str(dtype)].cpp, output.reduction)
            for i, (output, (kind, dtype)) in enumerate(written)
        ]

    @cached_property
    def vectors(self) -> int:
        """How many are read."""
        return sum(kind in "nm" for _, kind, _ in self.inputs)

    @cached_property
    def matrix_bytes(self) -> tuple[int, int]:
        """Bytes for one element of D: of all matrices that are read, and of those that are written beside it."""
        operands = [(kind, DTYPES[dtype].itemsize if dtype else 0) for kind, dtype in self.operands]
        read = sum(operands[i][1] for i, kind, _ in self.inputs if kind == "t")
        written = sum(operands[i][1] for i, kind, _, _ in self.outputs if kind == "t")
        return read, written

    @cached_property
    def reductions(self) -> int:
        """How many outputs reduce a value."""
        return sum(bool(reduction) for *_, reduction in self.outputs)

    def left(self, api: int) -> list[str]:
        """Reductions that kernels of a generation do not finish: an elementwise kernel does."""
        return [reduction for _, kind, _, reduction in self.outputs if reduction and (api == 2 or kind == "s")]

    @cached_property
    def source(self) -> int:
        """The operand that a 3.x kernel reads as its C: the first matrix. -1 where there is none."""
        return next((i for i, kind, _ in self.inputs if kind == "t"), -1)

    @cached_property
    def source_dtype(self) -> str | None:
        """And its dtype."""
        return self.operands[self.source][1] if self.source >= 0 else None

    @cached_property
    def exact(self) -> frozenset[int]:
        """Values that something beside D depends on which has more than 16 bits: their activations are exact."""
        first = len(self.program.inputs)
        outputs = zip(self.program.outputs, self.operands[first:], strict=True)
        return self.program.behind(output.node for output, (_, dtype) in outputs if DTYPES[str(dtype)].bits > 16)

    @cached_property
    def computation(self) -> str:
        """The function on numbers, straight down."""
        return self.computed(lambda dtype: DTYPES[dtype].cpp)

    def computed(self, type_of: Callable[[str], str]) -> str:
        """As `computation`, with other types in C++ for the dtypes."""
        program, places = self.program, {"accum": "in[0]"}
        places |= {program.inputs[i]: f"in[{place}]" for place, (i, _, _) in enumerate(self.inputs, 1)}
        lines = [
            f"    const {'bool' if node.truth else 'T'} v{i} = {self._expression(i, places, type_of)};\n"
            for i, node in enumerate(program.nodes)
            if i in program.used
        ]
        lines.append(f"    out[0] = v{program.result};\n")
        lines += [f"    out[{place}] = v{output.node};\n" for place, output in enumerate(program.outputs, 1)]
        return "".join(lines)

    def _expression(self, i: int, places: dict[str, str], type_of: Callable[[str], str]) -> str:
        node = self.program.nodes[i]
        if node.op == "accum":
            return places["accum"]
        if node.op == "input":
            return places[node.name]
        if node.op == "constant":
            return {"inf": "T(INFINITY)", "-inf": "-T(INFINITY)", "nan": "T(NAN)"}.get(node.number, f"T({node.number})")
        operands = [f"v{i}" for i in node.operands]
        if node.op == "cast":
            return f"user::rounded<{type_of(node.name)}>({operands[0]})"
        return OPERATIONS[node.op].cpp.format(*operands, fast="false" if i in self.exact else "fast")

    @cached_property
    def transfers(self) -> str:
        """What is loaded before and stored behind it."""
        loads, stores = [], []
        for i, kind, cpp in self.inputs:
            loads.append(
                f"user::Number<X, {i}>" if kind == "s"
                else f"user::Source<X, {i}, {cpp}>" if i == self.source
                else f"user::Matrix<X, {i}, {cpp}>" if kind == "t"
                else f"user::Vector<X, {i}, '{kind}', {cpp}>"
            )  # fmt: skip
        inputs = len(self.program.inputs)
        for (i, kind, cpp, reduction), first in zip(self.outputs, self.program.firsts, strict=True):
            stores.append(
                f"user::Reduce<X, {i}, '{kind}', {cpp}, user::{reduction.capitalize()}, {inputs + first}>" if reduction
                else f"user::Store<X, {i}, {cpp}>"
            )  # fmt: skip
        return (
            f"  template <class X> using Loads = user::List<{', '.join(loads)}>;\n"
            f"  template <class X> using Stores = user::List<{', '.join(stores)}>;\n"
            f"  static constexpr int source = {self.source};\n"
        )

    @cached_property
    def definition(self) -> str:
        """The C++ struct."""
        return (
            f"namespace cutlass_py {{\nstruct {self.name} {{\n"
            "  template <bool fast, class T>\n"
            "  static __device__ void compute(const T* in, T* out) {\n"
            f"{self.computation}  }}\n{self.transfers}}};\n}}\n"
        )
