"""CUTLASS kernels, built ahead of time, on any DLPack array: torch, CuPy, JAX, NumPy.

Importing makes no CUDA call and imports no array library; everything but `gemm`, `grouped_gemm` and `quantize` is
loaded on first use.
"""

from __future__ import annotations

import copyreg
from importlib import import_module
from operator import attrgetter
from os import environ
from typing import TYPE_CHECKING, Any

from ._core import (
    CudaError,
    Prepared,
    PreparedGroups,
    Problem,
    QuantizeProblem,
    TypedView,
    gemm,
    grouped_gemm,
    quantize,
)

if TYPE_CHECKING:
    from .arrays.tensor_spec import TensorSpec, view
    from .compiling.compiler import jit
    from .declaration.validation import Fault
    from .diagnostics.instrumentation import dump, log, nvtx
    from .dispatch.autotune import autotuning, tune
    from .dispatch.batch_invariance import batch_invariant
    from .dispatch.candidates import Choice
    from .dispatch.discover import get_kernels
    from .dispatch.explanation import Explanation, Row, explain
    from .epilogues.activations import Activation, clamp, leaky_relu
    from .epilogues.user_epilogue import UserEpilogue, epilogue
    from .errors import CompileError, EpilogueError, NoKernelError, ProviderError
    from .kernels.artifact import Artifact
    from .kernels.kernel import Kernel, Status
    from .kernels.kernel_description import KernelDescription
    from .kernels.metadata import Design, EpilogueMetadata, KernelMetadata, OperandMetadata
    from .operations.gemm.arguments import GemmArguments
    from .operations.gemm.call import KernelCall
    from .operations.grouped_gemm.arguments import GroupedArguments
    from .operations.quantize.arguments import QuantizeArguments
    from .operations.quantize.call import QuantizeCall
    from .providers.cuda_kernel import CudaKernel
    from .providers.provider import Provider
    from .providers.register import Registration, register_kernel, register_provider, unregister

__all__ = [
    "Activation",
    "Artifact",
    "Choice",
    "CompileError",
    "CudaError",
    "CudaKernel",
    "Design",
    "EpilogueError",
    "EpilogueMetadata",
    "Explanation",
    "Fault",
    "GemmArguments",
    "GroupedArguments",
    "Kernel",
    "KernelCall",
    "KernelDescription",
    "KernelMetadata",
    "NoKernelError",
    "OperandMetadata",
    "Prepared",
    "PreparedGroups",
    "Problem",
    "Provider",
    "ProviderError",
    "QuantizeArguments",
    "QuantizeCall",
    "QuantizeProblem",
    "Registration",
    "Row",
    "Status",
    "TensorSpec",
    "TypedView",
    "UserEpilogue",
    "__version__",
    "autotuning",
    "batch_invariant",
    "clamp",
    "dump",
    "epilogue",
    "explain",
    "gemm",
    "get_kernels",
    "grouped_gemm",
    "jit",
    "leaky_relu",
    "log",
    "nvtx",
    "quantize",
    "register_kernel",
    "register_provider",
    "tune",
    "unregister",
    "view",
]

# By module, as above: what is loaded on first use.
_NAMES = {
    "arrays.tensor_spec": ("TensorSpec", "view"),
    "compiling.compiler": ("jit",),
    "diagnostics.instrumentation": ("dump", "log", "nvtx"),
    "dispatch.autotune": ("autotuning", "tune"),
    "dispatch.batch_invariance": ("batch_invariant",),
    "dispatch.candidates": ("Choice",),
    "dispatch.discover": ("get_kernels",),
    "dispatch.explanation": ("Explanation", "Row", "explain"),
    "declaration.validation": ("Fault",),
    "epilogues.activations": ("Activation", "clamp", "leaky_relu"),
    "epilogues.user_epilogue": ("UserEpilogue", "epilogue"),
    "errors": ("CompileError", "EpilogueError", "NoKernelError", "ProviderError"),
    "kernels.artifact": ("Artifact",),
    "kernels.kernel_description": ("KernelDescription",),
    "kernels.kernel": ("Kernel", "Status"),
    "kernels.metadata": ("Design", "EpilogueMetadata", "KernelMetadata", "OperandMetadata"),
    "operations.gemm.arguments": ("GemmArguments",),
    "providers.cuda_kernel": ("CudaKernel",),
    "operations.gemm.call": ("KernelCall",),
    "operations.grouped_gemm.arguments": ("GroupedArguments",),
    "operations.quantize.arguments": ("QuantizeArguments",),
    "operations.quantize.call": ("QuantizeCall",),
    "providers.provider": ("Provider",),
    "providers.register": ("Registration", "register_kernel", "register_provider", "unregister"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


copyreg.pickle(type(gemm), attrgetter("__qualname__"))  # by name, as functions are: nanobind's are not by themselves


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("cutlass_py")
        except PackageNotFoundError:  # a source tree on the path
            return "none"
    if name == "functions":  # the module, which errors of epilogues send to
        return import_module(f"{__name__}.functions")
    if name not in _HOME:
        raise AttributeError(f"module 'cutlass_py' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if any(map(environ.get, ("CUTLASS_PY_LOG", "CUTLASS_PY_NVTX", "CUTLASS_PY_DUMP"))):
    import_module(f"{__name__}.diagnostics.instrumentation").at_import()
