"""The CPU's kernel, which takes every problem in host memory. What it computes is in numpy_gemm.py."""

from __future__ import annotations

from .._core import Problem
from ..gpu import Gpu
from ..host import HostCall
from ..kernels import Kernel
from ..legality import Way
from ..metadata import Design, KernelMetadata, OperandMetadata

_OPERANDS = ("a", "b", "d", "c", "bias", "gate", "aux", "scale_a", "scale_b", "bias_grad")
_EPILOGUE = (
    "scale_out * f(z), f(gate) * z or f'(aux) * z; (aux = z) and (bias_grad = sum of f(z)); "
    "z = alpha * scale_a * scale_b * acc + beta * c + bias"
)


class NumpyKernel(Kernel):
    """Computes any problem whose operands are in host memory, whatever their layout, dtype and alignment."""

    name = "cpu_gemm_numpy"
    compiled = True

    @property
    def metadata(self) -> KernelMetadata:
        """Anything goes in, anything comes out."""
        operands = dict.fromkeys(_OPERANDS, OperandMetadata("*", "*", 1))
        design = Design((1, 1, 1), (1, 1, 1), "", 0, 0, 0)
        return KernelMetadata(self.name, "cpu_gemm", 0, operands, "f32, f64, s32, c64 or c128", design, _EPILOGUE)

    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """Directly, if the operands are in host memory."""
        return Way() if gpu is None else f"runs on the CPU; the operands are on {p.device}"

    @staticmethod
    def host(call: HostCall) -> None:
        """Computes one canonical call; called by the warm path."""
        from .numpy_gemm import compute  # NumPy is not needed to answer questions

        compute(call)


KERNELS = (NumpyKernel(),)
