// The driver's functions that a launch calls, looked up once: libcuda is no dependency.
#pragma once

#include <atomic>

#include <cuda.h>
#include <cuda_runtime.h>

namespace cutlass_py {

// Null where the driver is older than `version`.
template <class Function>
Function driver_function(const char* name, [[maybe_unused]] unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (error == cudaSuccess) return reinterpret_cast<Function>(function);
  cudaGetLastError();
  return nullptr;
}

// One kernel: prepared once on each device, and launched by the driver. The runtime looks its function up by the
// address of a host function, and translates what it is launched with, at every launch.
class DriverLauncher {
 public:
  // Dynamic shared memory above 48 KB is opted into, and the kernel loaded.
  int prepare(const void* kernel, int smem_bytes, int device) {
    return prepare(device, [&](cudaFunction_t& function) -> int {
      cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
      if (error == cudaSuccess) error = cudaGetFuncBySymbol(&function, kernel);
      if (error != cudaSuccess) cudaGetLastError();  // not sticky: leave nothing behind for the caller's next check
      return error;
    });
  }
  // As above; `load` finds the function.
  template <class Load>
  int prepare(int device, Load load) {
    if (functions_[device & 63].load(std::memory_order_acquire)) return 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // loading is no part of a capture, and no obstacle
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaFunction_t function = nullptr;
    const int error = load(function);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (error) return error;
    functions_[device & 63].store(function, std::memory_order_release);
    return 0;
  }

  // How many clusters run at the same time, of a grid that fills the device.
  int clusters_at_once(const cudaLaunchConfig_t& config, int device, int& clusters) {
    static const auto most =
        driver_function<decltype(&cuOccupancyMaxActiveClusters)>("cuOccupancyMaxActiveClusters", 11080);
    std::atomic<int>& known = clusters_[device & 63];
    if ((clusters = known.load(std::memory_order_relaxed))) return 0;
    const CUlaunchConfig given = as_driver_config(config);
    if (!most) return cudaErrorInsufficientDriver;
    if (most(&clusters, function(device), &given) != CUDA_SUCCESS || !clusters) return cudaErrorInvalidClusterSize;
    known.store(clusters, std::memory_order_relaxed);
    return 0;
  }

  // A kernel that takes one structure.
  template <class Parameters>
  int launch(void (*kernel)(Parameters), const cudaLaunchConfig_t& c, Parameters& parameters, int device) const {
    void* arguments[] = {&parameters};
    return launch(reinterpret_cast<const void*>(kernel), c, arguments, device);
  }

  // Where the driver refuses, the runtime launches, or says why not: a thread may have no context yet, and libraries
  // may put another than the device's primary one in its place.
  int launch(const void* kernel, const cudaLaunchConfig_t& c, void** arguments, int device) const {
    static const auto launch = driver_function<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx", 11060);
    const CUlaunchConfig config = as_driver_config(c);
    if (launch && launch(&config, function(device), arguments, nullptr) == CUDA_SUCCESS) return 0;
    const cudaError_t error = cudaLaunchKernelExC(&c, kernel, arguments);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
  }

 private:
  cudaFunction_t function(int device) const { return functions_[device & 63].load(std::memory_order_relaxed); }
  static CUlaunchConfig as_driver_config(const cudaLaunchConfig_t& c) {
    static_assert(sizeof(CUlaunchAttribute) == sizeof(cudaLaunchAttribute));
    CUlaunchConfig config{};
    config.gridDimX = c.gridDim.x, config.gridDimY = c.gridDim.y, config.gridDimZ = c.gridDim.z;
    config.blockDimX = c.blockDim.x, config.blockDimY = c.blockDim.y, config.blockDimZ = c.blockDim.z;
    config.sharedMemBytes = unsigned(c.dynamicSmemBytes), config.hStream = c.stream;
    config.attrs = reinterpret_cast<CUlaunchAttribute*>(c.attrs), config.numAttrs = c.numAttrs;
    return config;
  }

  std::atomic<cudaFunction_t> functions_[64]{};
  std::atomic<int> clusters_[64]{};
};

}  // namespace cutlass_py
