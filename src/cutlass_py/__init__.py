"""CUTLASS kernels, built ahead of time, on any DLPack array: torch, CuPy, JAX, NumPy.

Importing makes no CUDA call and imports no array library; everything but `gemm` is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._core import CudaError, TypedView, gemm

if TYPE_CHECKING:
    from .activations import Activation, clamp, leaky_relu
    from .arguments import GemmArguments, TensorSpec, view
    from .artifact import Artifact
    from .compiler import jit
    from .errors import CompileError, NoKernelError, ProviderError
    from .explanation import explain
    from .kernels import Design, Kernel, KernelMetadata, OperandMetadata, Status, get_kernels
    from .own import CudaKernel
    from .provider import KernelCall, Provider
    from .register import Registration, register_kernel, register_provider, unregister
    from .tuning import autotuning, tune

__all__ = [
    "Activation",
    "Artifact",
    "CompileError",
    "CudaError",
    "CudaKernel",
    "Design",
    "GemmArguments",
    "Kernel",
    "KernelCall",
    "KernelMetadata",
    "NoKernelError",
    "OperandMetadata",
    "Provider",
    "ProviderError",
    "Registration",
    "Status",
    "TensorSpec",
    "TypedView",
    "__version__",
    "autotuning",
    "clamp",
    "explain",
    "gemm",
    "get_kernels",
    "jit",
    "leaky_relu",
    "register_kernel",
    "register_provider",
    "tune",
    "unregister",
    "view",
]

_HOME = {
    "Activation": "activations",
    "Artifact": "artifact",
    "CompileError": "errors",
    "CudaKernel": "own",
    "Design": "kernels",
    "GemmArguments": "arguments",
    "Kernel": "kernels",
    "KernelCall": "provider",
    "KernelMetadata": "kernels",
    "NoKernelError": "errors",
    "OperandMetadata": "kernels",
    "Provider": "provider",
    "ProviderError": "errors",
    "Registration": "register",
    "Status": "kernels",
    "TensorSpec": "arguments",
    "autotuning": "tuning",
    "clamp": "activations",
    "explain": "explanation",
    "get_kernels": "kernels",
    "jit": "compiler",
    "leaky_relu": "activations",
    "register_kernel": "register",
    "register_provider": "register",
    "tune": "tuning",
    "unregister": "register",
    "view": "arguments",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("cutlass_py")
        except PackageNotFoundError:  # a source tree on the path
            return "none"
    if name not in _HOME:
        raise AttributeError(f"module 'cutlass_py' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
