"""TMA descriptors, which every launch of a 3.x kernel encodes anew: what that asks of CUDA. Without a GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
from nvcc import why_not

from cutlass_py.compiling import compiler
from cutlass_py.declaration.families import FAMILIES

WHY_NOT = why_not()

# Descriptors of three matrices, made by CuTe, with the runtime's and the driver's functions replaced.
SOURCE = """\
#include <cuda_runtime.h>
#define cudaGetDriverEntryPoint(NAME, FUNCTION, FLAGS, FOUND) look_up(FUNCTION, FOUND)
#define cudaGetDriverEntryPointByVersion(NAME, FUNCTION, VERSION, FLAGS, FOUND) look_up(FUNCTION, FOUND)
cudaError_t look_up(void** function, cudaDriverEntryPointQueryResult* found);
#include "HEADER"

static int lookups, encoded;

static CUresult encode(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void* data, const cuuint64_t*, const cuuint64_t*,
                       const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  encoded += int(uintptr_t(data) >> 12);
  return CUDA_SUCCESS;
}

cudaError_t look_up(void** function, cudaDriverEntryPointQueryResult* found) {
  ++lookups;
  *function = reinterpret_cast<void*>(&encode);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

extern "C" __attribute__((visibility("default"))) int counted(int* made) {
  using namespace cute;
  const auto layout = make_layout(make_shape(256, 512), make_stride(512, _1{}));
  for (uintptr_t i = 1; i <= 3; ++i) {
    const auto matrix = make_tensor(reinterpret_cast<const half_t*>(i << 12), layout);
    make_tma_copy(SM90_TMA_LOAD{}, matrix, make_layout(make_shape(_64{}, _64{}), make_stride(_64{}, _1{})));
  }
  *made = encoded;
  return lookups;
}
"""


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("header", ["gemm/api3x.cuh", "gemm/device.cuh"])
def test_the_driver_is_asked_for_its_function_once(header, monkeypatch, tmp_path):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    recipe = compiler.recipe(FAMILIES["sm90_gemm"].declared[0])
    made = replace(recipe, kernel="descriptors", source=SOURCE.replace("HEADER", header))
    encoded = ctypes.c_int()
    assert ctypes.CDLL(str(compiler.build(made))).counted(ctypes.byref(encoded)) == 1
    assert encoded.value == 1 + 2 + 3
