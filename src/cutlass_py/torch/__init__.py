"""cutlass_py for torch: torch's own functions, `gemm` with every epilogue, and Linear, differentiable and compilable.

Importing registers the operator `cutlass_py::gemm` with torch, which carries all of them (docs/torch.md).
"""

from __future__ import annotations

from . import flops as _flops  # noqa: F401  (registers)
from .experts import register_experts
from .functions import addmm, baddbmm, bmm, linear, matmul, mm
from .gemm_function import gemm
from .grouped import gmm, grouped_mm
from .modules import Linear, Sequential
from .perceptron import mlp
from .quantization import quantize
from .replacement import Replacement, replace_linear
from .scaled_grouped import scaled_grouped_mm
from .sharding import register_if_used

__all__ = [
    "Linear",
    "Replacement",
    "Sequential",
    "addmm",
    "baddbmm",
    "bmm",
    "gemm",
    "gmm",
    "grouped_mm",
    "linear",
    "matmul",
    "mlp",
    "mm",
    "quantize",
    "register_experts",
    "replace_linear",
    "scaled_grouped_mm",
]

register_if_used()
