// The driver of the simulated GPU: tensor maps that are checked, and clusters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "hopper.h"

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
struct alignas(64) CUtensorMap {
  uint64_t words[16];
};
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_UINT8 = 1,
  CU_TENSOR_MAP_DATA_TYPE_UINT16 = 2,
  CU_TENSOR_MAP_DATA_TYPE_UINT32 = 4,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 16 | 4
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE = 0,
  CU_TENSOR_MAP_SWIZZLE_32B = 32,
  CU_TENSOR_MAP_SWIZZLE_64B = 64,
  CU_TENSOR_MAP_SWIZZLE_128B = 128
};
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_128B };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

// As the driver refuses what it is told of.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* data,
                                       const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  auto& map = reinterpret_cast<simulated::hopper::Map&>(*to);
  static_assert(sizeof map <= sizeof *to);
  const uint32_t size = type & 15, row = box[0] * size;
  map = {static_cast<char*>(data), {}, {}, {}, size, uint32_t(swizzle), type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
  bool fits = rank == 3 && uintptr_t(data) % 16 == 0 && (swizzle ? row == uint32_t(swizzle) : row == 16);
  for (int i = 0; i < 3; ++i) {
    map.extents[i] = extents[i], map.box[i] = box[i];
    fits &= extents[i] > 0 && extents[i] <= uint64_t(1) << 32 && box[i] > 0 && box[i] <= 256 && steps[i] == 1;
  }
  for (int i = 0; i < 2; ++i) {
    map.strides[i] = strides[i];
    fits &= strides[i] > 0 && strides[i] % 16 == 0 && strides[i] < uint64_t(1) << 40;
  }
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace cutlass_py {

template <class Function>
Function driver_function(const char*, unsigned) {
  return &cuTensorMapEncodeTiled;
}

class DriverLauncher {
 public:
  int prepare(const void*, int, int) { return 0; }
  int clusters_at_once(const cudaLaunchConfig_t&, int, int& clusters) {
    clusters = 2;
    return 0;
  }
  template <class Parameters>
  int launch(void (*kernel)(Parameters), const cudaLaunchConfig_t& c, Parameters& parameters, int) const {
    unsigned cluster = 1;
    for (unsigned i = 0; i < c.numAttrs; ++i) {
      if (c.attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = c.attrs[i].val.clusterDim.x;
    }
    const auto run = [=, grid = c.gridDim, threads = c.blockDim.x, bytes = unsigned(c.dynamicSmemBytes)] {
      simulated::hopper::run_grid(grid, threads, cluster, bytes, [&] { kernel(parameters); });
    };
    return simulated::queue(c.stream, run) ? 0 : cudaErrorLaunchFailure;
  }
};

}  // namespace cutlass_py
