"""The CPU's kernel: NumPy's matmul (its BLAS), half and 8-bit types through ml_dtypes with f32 accumulation."""

from __future__ import annotations

from .._core import Problem
from ..families import DTYPES, accumulator
from ..gpu import Gpu
from ..host import HostOperand, host_array
from ..kernels import Design, Kernel, KernelMetadata, OperandMetadata, Route, Status


class NumpyKernel(Kernel):
    """Computes any problem whose operands are in host memory, whatever their layout, dtype and alignment."""

    name = "cpu_gemm_numpy"
    compiled = True

    @property
    def metadata(self) -> KernelMetadata:
        """Anything goes in, anything comes out."""
        anything = OperandMetadata("*", "*", 1)
        design = Design((1, 1, 1), (1, 1, 1), "", 0, 0, 0)
        return KernelMetadata(
            self.name, "cpu_gemm", 0, dict.fromkeys("abcd", anything), "f32 or f64", design, "alpha * acc + beta * C"
        )

    def route(self, p: Problem, gpu: Gpu | None) -> Route | Status:
        """Directly, if the operands are in host memory."""
        if gpu is not None:
            return Status(f"runs on the CPU; the operands are on {p.device}")
        return Route(self)

    @staticmethod
    def host(
        a: HostOperand,
        b: HostOperand,
        c: HostOperand | None,
        d: HostOperand,
        alpha: float,
        beta: float,
        operand: str,
    ) -> None:
        """D = alpha * (A @ B) + beta * C on canonical operands; called by the warm path."""
        import numpy as np

        wide = np.dtype(DTYPES[accumulator(operand)].numpy)
        out = host_array(d)
        with np.errstate(all="ignore"):  # overflow and NaN are results here, not events
            if alpha == 0:  # A and B are not read: their NaN must not leak
                result = np.zeros(out.shape, wide)
            else:
                result = host_array(a).astype(wide, copy=False) @ host_array(b).astype(wide, copy=False)
                if alpha != 1:
                    result *= wide.type(alpha)
            if c is not None:
                result += wide.type(beta) * host_array(c).astype(wide, copy=False)
            out[...] = result.astype(out.dtype, copy=False)


KERNELS = (NumpyKernel(),)
