"""One call in canonical form, as kernels in Python get it."""

from __future__ import annotations

from dataclasses import dataclass

from ..._core import Operand, Problem


@dataclass(slots=True)
class KernelCall:
    """One call in canonical form: the formula of `gemm`, with A and B perhaps exchanged so that D is row-major.

    Operands are (batch, rows, cols) and valid until `run` returns; nothing is copied. Those that the call does not have
    are None. Where one is the same for a whole axis, its stride there is 0.

    Attributes:
        a, b, d: (batch, m, k), (batch, k, n), (batch, m, n). d is written.
        alpha, beta, scale_out: numbers, or operands without a dimension, to be read when the kernel runs.
        activation: a name of gemm's; parameters are its own, of which there are two at most.
        problem: dtypes, layouts, alignments and the rest. Where its `empty_product` is set, a and b are not to be read.
        c, gate: (batch, m, n). c is not to be read where beta is 0.
        aux: (batch, m, n); written, unless the activation is a derivative.
        bias, scale_a, scale_b: (batch, m, n), by strides of 0. scale_a is one value per row, scale_b one per column.
            Where `problem.block` is not 0, scales are in blocks: (batch, m, k / 128) and (batch, k / 128, n / block),
            rounded up.
        bias_grad: (1, 1, n) or (1, m, 1), written.
        pairs: where `problem.pairs` is "b", b, bias, scale_b and aux have 2 n columns, of gates and then of values;
            where it is "d", aux and d have. Where `problem.interleaved` is set, a value lies behind each gate.
            Such a problem reaches a kernel only if a `supports` of its own says so.
        user: for each parameter and output of a user's epilogue (docs/epilogues.md; `problem.user` is its number), a
            number or an operand; empty where there is none.
        stream: the CUDA stream to launch on, as a number; None on the CPU. It is also the current stream of torch and
            CuPy during `run`, and the device is the current one.
    """

    a: Operand
    b: Operand
    d: Operand
    alpha: float | complex | Operand
    beta: float | complex | Operand
    scale_out: float | Operand
    activation: str
    parameters: tuple[float, float]
    problem: Problem
    c: Operand | None = None
    bias: Operand | None = None
    gate: Operand | None = None
    aux: Operand | None = None
    scale_a: Operand | None = None
    scale_b: Operand | None = None
    bias_grad: Operand | None = None
    user: tuple[float | Operand, ...] = ()
    stream: int | None = None
