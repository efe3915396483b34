"""One call of quantize in canonical form, as kernels in Python get it."""

from __future__ import annotations

from dataclasses import dataclass

from ..._core import Operand, QuantizeProblem


@dataclass(slots=True)
class QuantizeCall:
    """One call of `quantize` in canonical form: operands that are valid until `run` returns; nothing is copied.

    Attributes:
        x: (..., rows, cols), read.
        q: of x's shape, written.
        scales: f32, as `quantize` returns it: (), (..., rows, 1), (..., rows, cols / 128), or both extents by 128.
        problem: dtypes, scaling, layouts and alignments.
        stream: the CUDA stream to launch on, as a number; None on the CPU.
    """

    x: Operand
    q: Operand
    scales: Operand
    problem: QuantizeProblem
    stream: int | None = None
