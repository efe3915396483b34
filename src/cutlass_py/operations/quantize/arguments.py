"""A quantization as a value: what is quantized and how, as an array or as metadata alone."""

from __future__ import annotations

from typing import Any

from ... import _core
from ..._core import QuantizeProblem
from ...kernels.operation import Arguments, describe


class QuantizeArguments(Arguments):
    """Operands and keywords of one quantize: what get_kernels, explain, tune, Kernel.supports and Kernel.run take.

    The keywords are those of `quantize`, but for `kernel` and `stream`, which `run` takes. Operands may be arrays or
    TensorSpecs.

    Attributes:
        problem: the canonical problem, which legality and ranking look at.

    Raises:
        ValueError, TypeError: as `quantize` does.
    """

    def __init__(
        self, x: Any, dtype: Any = "e4m3", *, scaling: str = "tensor", out: Any = None, scales: Any = None
    ) -> None:
        self.x, self.dtype = x, dtype
        self.keywords = {"scaling": scaling, "out": out, "scales": scales}
        self.problem: QuantizeProblem = _core.quantize_problem(x, dtype, **self.keywords)

    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run quantize on these operands, which have to be arrays; returns (q, scales).

        Args:
            kernel, stream: as in quantize.
            workspace: not needed; None.

        Raises:
            As quantize; ValueError: a workspace is given.
        """
        if workspace is not None:
            raise ValueError("run: workspace is given; expected none: quantize needs no memory beside its operands")
        return _core.quantize(self.x, self.dtype, **self.keywords, kernel=kernel, stream=stream)

    def __reduce__(self) -> Any:
        return _made_again, (self.x, self.dtype, self.keywords)

    def __repr__(self) -> str:
        return f"QuantizeArguments({describe(self.problem)})"


def _made_again(x: Any, dtype: Any, keywords: dict[str, Any]) -> QuantizeArguments:
    return QuantizeArguments(x, dtype, **keywords)
