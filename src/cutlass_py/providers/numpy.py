"""The CPU's kernel, which takes every problem in host memory. What it computes is in operations/gemm/reference.py."""

from __future__ import annotations

from collections.abc import Iterable

from .._core import Problem
from ..declaration.operands import OPERANDS
from ..kernels.kernel import Status
from ..kernels.metadata import CPU, KernelMetadata, OperandMetadata
from ..operations.gemm.call import KernelCall
from .provider import Provider, kernels_of

_OPERANDS = tuple("d" if x.name == "out" else x.name for x in OPERANDS["gemm"] if x.shape != "factor")
_EPILOGUE = (
    "scale_out * f(z), f(gate) * z or f'(aux) * z; (aux = z) and (bias_grad = sum of f(z)); "
    "z = alpha * scale_a * scale_b * acc + beta * c + bias"
)


class NumpyProvider(Provider):
    """Computes any problem whose operands are in host memory, whatever their layout, dtype and alignment."""

    name = "numpy"

    def kernels(self) -> Iterable[KernelMetadata]:
        """One, which takes anything."""
        operands = dict.fromkeys(_OPERANDS, OperandMetadata("*"))
        yield KernelMetadata("cpu_gemm_numpy", operands, "*", _EPILOGUE, family="cpu_gemm", cc=CPU)

    def supports(self, kernel: KernelMetadata, problem: Problem) -> Status:
        """Whatever is in host memory."""
        on_host = problem.device_id < 0
        return Status(None if on_host else f"runs on the CPU; the operands are on {problem.device}")

    def run(self, kernel: KernelMetadata, call: KernelCall) -> None:
        """By NumPy."""
        from ..operations.gemm.reference import compute  # NumPy is not needed to answer questions

        compute(call)


KERNELS = tuple(kernels_of(NumpyProvider()))  # what the registry begins with
