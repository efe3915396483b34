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
    from .compiler import jit
    from .errors import CompileError, EpilogueError, NoKernelError
    from .explanation import explain
    from .kernels import Kernel, Status, get_kernels
    from .tuning import autotuning, tune
    from .user_epilogue import UserEpilogue, epilogue

__all__ = [
    "Activation",
    "CompileError",
    "CudaError",
    "EpilogueError",
    "GemmArguments",
    "Kernel",
    "NoKernelError",
    "Status",
    "TensorSpec",
    "TypedView",
    "UserEpilogue",
    "__version__",
    "autotuning",
    "clamp",
    "epilogue",
    "explain",
    "gemm",
    "get_kernels",
    "jit",
    "leaky_relu",
    "tune",
    "view",
]

_HOME = {
    "Activation": "activations",
    "CompileError": "errors",
    "EpilogueError": "errors",
    "GemmArguments": "arguments",
    "Kernel": "kernels",
    "NoKernelError": "errors",
    "Status": "kernels",
    "TensorSpec": "arguments",
    "UserEpilogue": "user_epilogue",
    "autotuning": "tuning",
    "clamp": "activations",
    "epilogue": "user_epilogue",
    "explain": "explanation",
    "get_kernels": "kernels",
    "jit": "compiler",
    "leaky_relu": "activations",
    "tune": "tuning",
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
