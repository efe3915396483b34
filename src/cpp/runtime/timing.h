// Times choices for a class of calls, whatever they compute, on operands made up for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "abi/dtype.h"
#include "runtime/device.h"

namespace cutlass_py {

// Memory of the device for the length of a measurement.
class DeviceMemory {
 public:
  DeviceMemory(size_t bytes, int ordinal, device::Stream stream);
  ~DeviceMemory() { device::release(data_, stream_); }
  DeviceMemory(DeviceMemory&& other) noexcept : stream_(other.stream_), data_(std::exchange(other.data_, nullptr)) {}
  char* data() const { return data_; }

 private:
  device::Stream stream_;
  char* data_;
};

// Numbers at random, other ones for another seed.
void fill_with_numbers(char* memory, Dtype dtype, size_t bytes, uint64_t seed, device::Stream stream);

// A call on memory of its own.
class Sample {
 public:
  virtual ~Sample() = default;
  virtual size_t bytes() const = 0;
  virtual void queue(size_t choice, device::Stream stream) = 0;  // computes it by one of the choices
};
// Makes one; the numbers of `like`, if there is one: to copy them is faster.
using MakeSample = std::function<std::unique_ptr<Sample>(device::Stream stream, const Sample* like)>;

// Microseconds of a call by choice, one number for each round: `rounds`, or fewer (but one) where they take long. A
// round queues up to eight calls in a row for each choice, whose operands are not in the L2 cache; every other one
// follows a foreign kernel. Long calls first run until the clock has settled, and choices take turns, so that a clock
// that falls makes all of them slow. What is far behind runs no more, and keeps its distance (timing_rounds.h).
// Infinite where a choice cannot run, for want of memory for example.
std::vector<std::vector<float>> measure(int device_id, size_t choices, const MakeSample& make, int rounds);

// The same of a problem by plans, on samples of one kind: S(problem, plans, stream, like).
template <class S, class Problem, class Plan>
std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds) {
  const MakeSample make = [&](device::Stream stream, const Sample* like) {
    return std::make_unique<S>(problem, plans, stream, static_cast<const S*>(like));
  };
  return measure(problem.device.id, plans.size(), make, rounds);
}

}  // namespace cutlass_py
