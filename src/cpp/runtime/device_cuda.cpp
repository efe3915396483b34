// device.h on the CUDA runtime, linked statically: the driver is looked for at the first call, not at load.
#include "runtime/device.h"

#include <cuda_runtime.h>

#include <deque>
#include <mutex>

namespace cutlass_py::device {
namespace {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError(
      in_operation(std::string(call) + " failed: " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)));
}

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream); }

struct PerDevice {
  std::once_flag once;
  Info info;
  cudaMemPool_t pool = nullptr;
  cudaStream_t stream = nullptr;
  cudaStream_t aside = nullptr;  // of host functions
  std::mutex ordering;           // of `event`
  cudaEvent_t event = nullptr;
};

std::deque<PerDevice>& devices() {
  static auto* list = new std::deque<PerDevice>(size_t(count()));
  return *list;
}

PerDevice& per_device(int ordinal) {
  if (ordinal < 0 || size_t(ordinal) >= devices().size()) {
    throw CudaError(
        in_operation("there is no cuda:" + std::to_string(ordinal) + (devices().empty() ? ": " + why_none() : "")));
  }
  PerDevice& device = devices()[size_t(ordinal)];
  std::call_once(device.once, [&] {
    Guard guard(ordinal);
    Relaxed relaxed;  // the first call of a process may stand in a capture
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    device.info.name = properties.name;
    device.info.cc = properties.major * 10 + properties.minor;
    device.info.sm_count = properties.multiProcessorCount;
    device.info.l2_bytes = size_t(properties.l2CacheSize);
    check(cudaDriverGetVersion(&device.info.driver), "cudaDriverGetVersion");
    cudaMemPoolProps pool{};
    pool.allocType = cudaMemAllocationTypePinned;
    pool.location = {cudaMemLocationTypeDevice, ordinal};
    if (!device.pool) check(cudaMemPoolCreate(&device.pool, &pool), "cudaMemPoolCreate");  // kept where the rest failed
    uint64_t keep = uint64_t(1) << 30;  // bytes that stay for the next call instead of going back at a synchronisation
    check(cudaMemPoolSetAttribute(device.pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    for (cudaStream_t* stream : {&device.stream, &device.aside}) {
      if (!*stream) check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    check(cudaEventCreateWithFlags(&device.event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  });
  return device;
}

PerDevice& current_device() {
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "cudaGetDevice");
  return per_device(ordinal);
}

// Where a capture stands: its number in this process, and the node that the next one would follow; null where that is
// none or several.
struct Tail {
  unsigned long long capture = 0;
  cudaGraphNode_t node = nullptr;
};

Tail tail_of(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Tail tail;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
  const cudaGraphEdgeData* edges = nullptr;  // without a place for them, edges that carry data are an error
#if CUDART_VERSION >= 13000
  auto* const info = cudaStreamGetCaptureInfo;
#else
  auto* const info = cudaStreamGetCaptureInfo_v3;
#endif
  const cudaError_t error = info(handle(stream), &status, &tail.capture, nullptr, &nodes, &edges, &count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  if (status == cudaStreamCaptureStatusActive && count == 1) tail.node = nodes[0];
  return tail;
}

std::mutex marking;
Tail marked;  // the last one of all captures: with several at once some launches do not overlap, and nothing is wrong

}  // namespace

int count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  cudaGetLastError();
  return 0;
}

std::string why_none() {
  int devices = 0;
  cudaError_t error = cudaGetDeviceCount(&devices);
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) {
    return "no NVIDIA driver was found, or one too old for CUDA " + std::to_string(CUDART_VERSION / 1000) + "." +
           std::to_string(CUDART_VERSION % 1000 / 10);
  }
  return error == cudaSuccess ? "no GPU was found" : cudaGetErrorString(error);
}

const Info& info(int ordinal) { return per_device(ordinal).info; }

Guard::Guard(int ordinal) : previous_(-1) {
  int current = -1;
  check(cudaGetDevice(&current), "cudaGetDevice");
  if (current == ordinal) return;
  check(cudaSetDevice(ordinal), "cudaSetDevice");
  previous_ = current;
}

Guard::~Guard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

Relaxed::Relaxed() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
  mode_ = mode;
}

Relaxed::~Relaxed() {
  auto mode = cudaStreamCaptureMode(mode_);
  cudaThreadExchangeStreamCaptureMode(&mode);
}

bool capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(handle(stream), &status) != cudaSuccess) {
    cudaGetLastError();  // the legacy stream while another one captures: the launch will say so itself
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

void mark_last(Stream stream) {
  const Tail tail = tail_of(stream);
  std::lock_guard lock(marking);
  marked = tail;
}

bool follows_marked(Stream stream) {
  const Tail tail = tail_of(stream);
  std::lock_guard lock(marking);
  return tail.node && tail.node == marked.node && tail.capture == marked.capture;
}

void wait(Stream waiter, Stream signaler) {
  // One event per device serves every pair: a wait refers to the record before it. Not under the GIL alone: deleters
  // of results run on whatever thread their owner likes.
  PerDevice& device = current_device();
  std::lock_guard lock(device.ordering);
  check(cudaEventRecord(device.event, handle(signaler)), "cudaEventRecord");
  check(cudaStreamWaitEvent(handle(waiter), device.event, 0), "cudaStreamWaitEvent");
}

void* allocate(size_t bytes, int ordinal, Stream stream) {
  void* memory = nullptr;
  const cudaMemPool_t pool = per_device(ordinal).pool;
  cudaError_t error = cudaMallocFromPoolAsync(&memory, bytes, pool, handle(stream));
  if (error == cudaErrorMemoryAllocation) {  // give back what the pool keeps, and try once more
    cudaGetLastError();
    Relaxed relaxed;
    cudaMemPoolTrimTo(pool, 0);
    error = cudaMallocFromPoolAsync(&memory, bytes, pool, handle(stream));
  }
  check(error, "cudaMallocFromPoolAsync");
  return memory;
}

void release(void* memory, Stream stream) noexcept {
  if (memory && cudaFreeAsync(memory, handle(stream)) != cudaSuccess) cudaGetLastError();
}

void when_done(Stream stream, void (*function)(void*), void* argument) {
  const cudaStream_t aside = current_device().aside;  // what follows on `stream` does not wait for the host
  wait(aside, stream);
  check(cudaLaunchHostFunc(aside, function, argument), "cudaLaunchHostFunc");
}

Stream own_stream(int ordinal) { return per_device(ordinal).stream; }

void copy(void* to, const void* from, size_t bytes, Stream stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), "cudaMemcpyAsync");
}

void fill(void* memory, int byte, size_t bytes, Stream stream) {
  check(cudaMemsetAsync(memory, byte, bytes, handle(stream)), "cudaMemsetAsync");
}

void synchronize() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

Timer::Timer() {
  for (void*& event : events_) {
    cudaEvent_t made = nullptr;
    check(cudaEventCreate(&made), "cudaEventCreate");
    event = made;
  }
}

Timer::~Timer() {
  for (void* event : events_) {
    if (event) cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
}

void Timer::start(Stream stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(events_[0]), handle(stream)), "cudaEventRecord");
}

void Timer::stop(Stream stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(events_[1]), handle(stream)), "cudaEventRecord");
}

float Timer::microseconds() const {
  float milliseconds = 0;
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(events_[1])), "cudaEventSynchronize");
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(events_[0]), static_cast<cudaEvent_t>(events_[1])),
        "cudaEventElapsedTime");
  return milliseconds * 1000;
}

}  // namespace cutlass_py::device
