"""Whether kernels can be compiled here."""

from __future__ import annotations

from cutlass_py import CompileError, _core
from cutlass_py.compiling import compiler, toolkit
from cutlass_py.declaration.families import FAMILIES


def why_not() -> str:
    """The reason that nothing can be compiled; a package that was built with CUDA has no excuse but a missing nvcc."""
    try:
        if not compiler.find_nvcc():
            return toolkit.NVCC_MISSING
        compiler.recipe(FAMILIES["simt_gemm"].full[0])
    except CompileError as error:
        if _core.build_info()["cuda"] != "ON":
            return str(error)
    return ""
