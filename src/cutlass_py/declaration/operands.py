"""The operands and keywords of each operation: one row for each, from which C++ and Python make all that names them.

cmake/generate.py writes them for C++ (gemm_operands.inc, gemm_keywords.inc). Standard library only: the build reads it
before the package exists.
"""

from __future__ import annotations

from dataclasses import dataclass

# What an operand is to the result D (m, n). Batch dimensions go in front; what broadcasts says so.
SHAPES = {
    "left": "(m, k)",
    "right": "(k, n)",
    "result": "(m, n)",
    "vector": "(n,) or (1, n): one value per column; (m, 1): one per row",
    "rows": "one element, (m,) or (m, 1); blocks of rows and k",
    "columns": "one element, (n,) or (1, n); blocks of k and columns",
    "factor": "one element",
    "sum": "as a vector, without a batch",
    "elements": "(..., rows, cols)",
    "groups": "one element for each group of rows and columns",
    "lines": "one number for each group, or one more",
    "rows of a": "one number for each row of D",
}


@dataclass(frozen=True)
class Operand:
    """What an array is to a call.

    Attributes:
        name: the parameter.
        shape: one of SHAPES.
        slot: the member of the operation's arguments (kernel.h) that has its address; C++'s `Call` has it by that name.
        written: "never", "always", or "unless_derivative" (an activation that is a derivative reads it).
        number: a number may be given instead; an array of numbers has the scalars' dtype.
        lists: where matrices come as lists it may be one ("list"), is one array for all ("shared"), or is refused
            ("never").
        in_place: a result that is written may be this operand itself, element for element.
        complex: it goes with complex operands.
        mirror: whose slot it has where the transposed product is computed, if not its own.
    """

    name: str
    shape: str
    slot: str
    written: str = "never"
    number: bool = False
    lists: str = "shared"
    in_place: bool = False
    complex: bool = True
    mirror: str = ""


DEFAULT = "gemm"  # what is meant where no operation is named

# The order is that in which errors name them, and the numbering of C++'s Role.
OPERANDS = {
    "gemm": (
        Operand("a", "left", "a", lists="list", mirror="b"),
        Operand("b", "right", "b", lists="list", mirror="a"),
        Operand("c", "result", "epilogue.c", lists="list", in_place=True),
        Operand("bias", "vector", "epilogue.bias"),
        Operand("gate", "result", "epilogue.gate", lists="never", in_place=True, complex=False),
        Operand("aux", "result", "epilogue.aux", "unless_derivative", lists="never", in_place=True, complex=False),
        Operand("scale_a", "rows", "epilogue.scale_a", number=True, complex=False, mirror="scale_b"),
        Operand("scale_b", "columns", "epilogue.scale_b", number=True, complex=False, mirror="scale_a"),
        Operand("alpha", "factor", "epilogue.alpha", number=True),
        Operand("beta", "factor", "epilogue.beta", number=True),
        Operand("scale_out", "factor", "epilogue.scale_out", number=True, complex=False),
        Operand("bias_grad", "sum", "epilogue.bias_grad", "always", lists="never", complex=False),
        Operand("out", "result", "d", "always", lists="list"),
    ),
    "quantize": (
        Operand("x", "elements", "x", lists="never"),
        Operand("out", "elements", "q", "always", lists="never"),
        Operand("scales", "groups", "scales", "always", lists="never"),
    ),
    "grouped_gemm": (
        Operand("a", "left", "a", lists="never", mirror="b"),
        Operand("b", "right", "b", lists="never", mirror="a"),
        Operand("c", "result", "epilogue.c", lists="never", in_place=True),
        Operand("bias", "vector", "epilogue.bias", lists="never"),
        Operand("aux", "result", "epilogue.aux", "unless_derivative", lists="never", in_place=True, complex=False),
        Operand("scale_a", "rows", "epilogue.scale_a", number=True, lists="never", complex=False, mirror="scale_b"),
        Operand("scale_b", "columns", "epilogue.scale_b", number=True, lists="never", complex=False, mirror="scale_a"),
        Operand("alpha", "factor", "epilogue.alpha", number=True, lists="never"),
        Operand("beta", "factor", "epilogue.beta", number=True, lists="never"),
        Operand("scale_out", "factor", "epilogue.scale_out", number=True, lists="never", complex=False),
        Operand("offsets", "lines", "groups.numbers", lists="never"),
        Operand("sizes", "lines", "groups.numbers", lists="never"),
        Operand("gather", "rows of a", "a", lists="never"),
        Operand("out", "result", "d", "always", lists="never"),
    ),
}

# Keywords in the order of the signature, and what each is by default; those of operands' names are these operands.
KEYWORDS: dict[str, dict[str, float | bool | str | None]] = {
    "gemm": {
        "out": None, "c": None, "alpha": 1.0, "beta": None, "bias": None, "activation": None, "aux": None,
        "gate": None, "gated": None, "scale_a": None, "scale_b": None, "scale_out": None, "bias_grad": None,
        "epilogue": None, "compute": None, "out_dtype": None, "splits": None, "deterministic": False,
        "batch_invariant": False, "kernel": None, "stream": None,
    },
    "quantize": {
        "dtype": "e4m3", "scaling": "tensor", "out": None, "scales": None, "kernel": None, "stream": None,
    },
    "grouped_gemm": {
        "offsets": None, "sizes": None, "gather": None, "out": None, "c": None, "alpha": 1.0, "beta": None,
        "bias": None, "activation": None, "gated": None, "aux": None, "scale_a": None, "scale_b": None,
        "scale_out": None, "expected": None, "compute": None, "out_dtype": None, "deterministic": False,
        "kernel": None, "stream": None,
    },
}  # fmt: skip
