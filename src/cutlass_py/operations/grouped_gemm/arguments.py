"""An operation as a value: operands and keywords of one grouped_gemm, as arrays or as metadata alone."""

from __future__ import annotations

from typing import Any

from ... import _core
from ..._core import Problem
from ...epilogues.activations import Activation
from ..gemm.arguments import ProductArguments
from .problem_text import describe


class GroupedArguments(ProductArguments):
    """Operands and keywords of one grouped_gemm: what get_kernels, explain, Kernel.supports and Kernel.run take.

    The keywords are those of `grouped_gemm`, but for `kernel` and `stream`, which `run` takes. Operands may be arrays
    or TensorSpecs (offsets, sizes and gather: "s32").

    Attributes:
        problem: the canonical problem, which legality and ranking look at.

    Raises:
        ValueError, TypeError: as `grouped_gemm` does.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        offsets: Any = None,
        sizes: Any = None,
        gather: Any = None,
        out: Any = None,
        c: Any = None,
        alpha: Any = 1.0,
        beta: Any = None,
        bias: Any = None,
        activation: str | Activation | None = None,
        gated: str | None = None,
        aux: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_out: Any = None,
        expected: int | None = None,
        compute: str | None = None,
        out_dtype: Any = None,
        deterministic: bool = False,
    ) -> None:
        self.a, self.b = a, b
        groups = {"offsets": offsets, "sizes": sizes, "gather": gather, "expected": expected}
        product = {
            "out": out, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "gated": gated,
            "aux": aux, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "compute": compute,
            "out_dtype": out_dtype, "deterministic": deterministic,
        }  # fmt: skip
        self.keywords = {**groups, **product}
        self.problem: Problem = _core.grouped_problem(a, b, offsets, sizes, expected, product, gather)

    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run it: `grouped_gemm` on these operands.

        Raises:
            As grouped_gemm; TypeError: a workspace is given, which these calls take from the package's own pool.
        """
        if workspace is not None:
            raise TypeError("run: workspace is given; expected none: grouped_gemm has no scratch of its caller's")
        return _core.grouped_gemm(self.a, self.b, **self.keywords, kernel=kernel, stream=stream)

    def __repr__(self) -> str:
        return f"GroupedArguments({describe(self.problem)})"
