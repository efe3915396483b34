"""Whether kernels can be compiled here, and where tests keep them."""

from __future__ import annotations

import os

import pytest

from cutlass_py import CompileError, _core
from cutlass_py.compiling import compiler, toolkit
from cutlass_py.declaration.families import FAMILIES


def why_not() -> str:
    """The reason that nothing can be compiled; a package that was built with CUDA has no excuse but a missing nvcc."""
    try:
        if not compiler.find_nvcc():
            return toolkit.NVCC_MISSING
        compiler.recipe(FAMILIES["simt_gemm"].declared[0])
    except CompileError as error:
        if _core.build_info()["cuda"] != "ON":
            return str(error)
    return ""


@pytest.fixture(scope="module")
def kept_cache(tmp_path_factory):
    """Not the user's, and one for all workers; CUTLASS_PY_TEST_CACHE may name one that is filled already.

    Compiling takes long.
    """
    run = tmp_path_factory.getbasetemp()
    run = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
    with pytest.MonkeyPatch.context() as patch:
        filled = os.environ.get("CUTLASS_PY_TEST_CACHE")
        patch.setenv("CUTLASS_PY_CACHE_DIR", filled or str(run / "compiled"))
        patch.setenv("CUTLASS_PY_JIT", "1")
        yield
