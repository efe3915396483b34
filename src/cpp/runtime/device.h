// The little of CUDA that the call path needs. device_cuda.cpp implements it; device_none.cpp, linked into a package
// built without CUDA, says so. Nothing here runs at import.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "arrays/refusal.h"

namespace cutlass_py {

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace device {

using Stream = void*;  // cudaStream_t

struct Info {
  std::string name;
  int cc = 0;  // compute capability times ten
  int sm_count = 0;
  int driver = 0;  // 13000 for 13.0
  size_t l2_bytes = 0;
};

int count();             // 0 without a driver or a GPU
std::string why_none();  // the reason count() is 0
const Info& info(int ordinal);

// Makes a device current for a scope.
class Guard {
 public:
  explicit Guard(int ordinal);
  ~Guard();
  Guard(const Guard&) = delete;

 private:
  int previous_;
};

// Within it this thread may do what a capture forbids it: make streams and load kernels, which are no part of a graph.
// What it queues on a stream that captures is captured as ever.
class Relaxed {
 public:
  Relaxed();
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;

 private:
  int mode_;  // cudaStreamCaptureMode
};

// All of these expect the device to be current.
bool capturing(Stream stream);
// Under capture: `mark_last` after a launch that its successor may overlap; `follows_marked` says whether the next node
// of the stream would follow that launch and nothing else.
void mark_last(Stream stream);
bool follows_marked(Stream stream);
void wait(Stream waiter, Stream signaler);  // work queued on waiter from now on follows what is queued on signaler
void* allocate(size_t bytes, int ordinal, Stream stream);  // stream-ordered; under capture, a node of the graph
void release(void* memory, Stream stream) noexcept;
void when_done(Stream stream, void (*function)(void*), void* argument);  // called on a driver thread: no CUDA in it
Stream own_stream(int ordinal);                                          // this package's stream of that device
void copy(void* to, const void* from, size_t bytes, Stream stream);      // from the host or the device
void fill(void* memory, int byte, size_t bytes, Stream stream);
void synchronize();  // the host waits for everything on the device

// Two points of a stream and the time between them.
class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  void start(Stream stream);
  void stop(Stream stream);
  float microseconds() const;  // waits for the second point

 private:
  void* events_[2] = {};
};

}  // namespace device
}  // namespace cutlass_py
