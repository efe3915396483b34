// CUDA C++ as the elementwise kernels speak it, for the compiler of the host: launches are queued on the simulated GPU.
#pragma once

#include <math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "simulator.h"
#include "threads.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __shared__ static  // one block runs at a time

using std::isnan, std::max, std::min;
using dim3 = simulated::Extents;
using cudaStream_t = simulated::Stream;
enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720
};

inline const dim3 &threadIdx = simulated::running.index, &blockIdx = simulated::running.block,
                  &gridDim = simulated::running.grid;

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore,
  cudaLaunchAttributeCooperative,
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int cooperative, programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const bool at_once = config->numAttrs && config->attrs->id == cudaLaunchAttributeCooperative;
  if (at_once && config->gridDim.x > simulated::kMostAtOnce) return cudaErrorCooperativeLaunchTooLarge;
  const auto run = [=, grid = config->gridDim, block = config->blockDim] {
    simulated::run_grid(grid, block, [&] { kernel(arguments...); }, at_once);
  };
  return simulated::queue(config->stream, run) ? cudaSuccess : cudaErrorLaunchFailure;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

struct cudaFuncAttributes {
  int numRegs;
};
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaErrorInvalidValue; }

// ------------------------------------------------------------------------------------------------ between threads

inline void __syncthreads() { simulated::synchronize(); }

// Of blocks whose threads all take part.
template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  static T values[simulated::kMostThreads];
  const int at = simulated::running.number;
  values[at] = value;
  __syncthreads();
  const T found = values[at ^ mask];
  __syncthreads();
  return found;
}
template <class T>
T __shfl_down_sync(uint32_t, T value, int distance, int width) {
  static T values[simulated::kMostThreads];
  const int at = simulated::running.number;
  values[at] = value;
  __syncthreads();
  const T found = at % width + distance < width ? values[at + distance] : value;
  __syncthreads();
  return found;
}

inline unsigned atomicMax(unsigned* to, unsigned value) { return std::exchange(*to, std::max(*to, value)); }

// ------------------------------------------------------------------------------------------------ bits

namespace simulated {

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// To nearest, ties to even; saturates, and makes 0 of NaN, as the hardware does of floats.
inline int32_t to_int(double x) {
  if (std::isnan(x)) return 0;
  return int32_t(std::nearbyint(std::min(std::max(x, -2147483648.0), 2147483647.0)));
}

}  // namespace simulated

inline float __uint_as_float(uint32_t x) { return simulated::bits<float>(x); }
inline float __int_as_float(int32_t x) { return simulated::bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return simulated::bits<uint32_t>(x); }
inline double __longlong_as_double(int64_t x) { return simulated::bits<double>(x); }
inline int64_t __double_as_longlong(double x) { return simulated::bits<int64_t>(x); }

inline float __double2float_rz(double x) {
  const float nearest = float(x);
  return std::fabs(double(nearest)) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}
inline float __fdiv_rn(float x, float y) { return x / y; }
inline int32_t __float2int_rn(float x) { return simulated::to_int(x); }
inline int32_t __double2int_rn(double x) { return std::isnan(x) ? INT32_MIN : simulated::to_int(x); }

template <class T>
T __ldg(const T* from) {
  return *from;
}

inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return uint32_t((uint64_t(high) << 32 | low) >> (shift & 31));
}

inline uint32_t __vmaxu2(uint32_t x, uint32_t y) {
  return std::max(x >> 16, y >> 16) << 16 | std::max(x & 0xffff, y & 0xffff);
}

inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t bytes = uint64_t(y) << 32 | x;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) found |= uint32_t(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return found;
}
