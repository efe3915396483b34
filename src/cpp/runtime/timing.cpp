#include "runtime/timing.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <random>
#include <string>

#include "runtime/timing_rounds.h"

namespace nb = nanobind;

namespace cutlass_py {
namespace {

using device::Stream;

// ------------------------------------------------------------------------------------------------ numbers

// Random bytes of numbers of a dtype: floats between 1/16 and 1 of either sign, any integers. Random, since the power
// that a multiplication draws, and so the clock, depends on the bits that change.
std::vector<char> random_numbers(Dtype dtype, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int parts = is_complex(dtype) ? 2 : 1, size = dtype_size(dtype) / parts;
  const size_t numbers = count * size_t(parts);
  std::vector<char> bytes(numbers * size_t(size));
  const int mantissa = kDtypes[int(dtype)].mantissa, exponent = 8 * size - 1 - mantissa;  // bits
  for (size_t i = 0; i < numbers; ++i) {
    uint64_t bits = random();
    if (!is_integer(dtype)) {
      const uint64_t sign = bits >> 63, scale = (uint64_t(1) << (exponent - 1)) - 2 - (bits >> 61 & 3);
      bits = sign << (exponent + mantissa) | scale << mantissa | (bits & ((uint64_t(1) << mantissa) - 1));
    }
    std::copy_n(reinterpret_cast<const char*>(&bits), size, bytes.data() + i * size_t(size));
  }
  return bytes;
}

// Different numbers of an operand, repeated: an odd count, so that rows differ.
constexpr size_t kPattern = (size_t(1) << 18) + 1;

// ------------------------------------------------------------------------------------------------ time

// Calls in a row, as a program makes them: half of them follow one of ours, which they may overlap, and half a foreign
// kernel; each finds its operands in memory alone.
class Burst {
 public:
  Burst(int device_id, const MakeSample& make, Stream stream)
      : stream_(stream),
        flushed_(std::max<size_t>(2 * device::info(device_id).l2_bytes, size_t(128) << 20)),
        flush_(flushed_, device_id, stream) {
    const Sample& first = *samples_.emplace_back(make(stream, nullptr));
    while (samples_.size() * first.bytes() < flushed_ && samples_.size() < size_t(TimingRounds::kMostCalls)) {
      samples_.push_back(make(stream, &first));
    }
  }

  // On an empty cache. To empty it takes longer than to queue the calls behind it, so that the host does not show.
  void start(device::Timer& timer) {
    nb::gil_scoped_release may_wait;
    device::fill(flush_.data(), 0, flushed_, stream_);
    timer.start(stream_);
  }

  void stop(device::Timer& timer) {
    nb::gil_scoped_release may_wait;
    timer.stop(stream_);
  }

  void queue(size_t choice, int calls) {
    for (int i = 0; i < calls; ++i) {
      if (i && i % 2 == 0) foreign();
      samples_[next_++ % samples_.size()]->queue(choice, stream_);
    }
  }

  // What a burst has beside the calls.
  void queue_rest(int calls) {
    for (int i = 2; i < calls; i += 2) foreign();
  }

 private:
  void foreign() {
    nb::gil_scoped_release may_wait;
    device::fill(flush_.data(), 0, 1 << 10, stream_);
  }

  Stream stream_;
  size_t flushed_, next_ = 0;
  DeviceMemory flush_;
  std::vector<std::unique_ptr<Sample>> samples_;
};

void wait_for_device() {
  nb::gil_scoped_release waiting;  // what is queued may want the interpreter
  device::synchronize();
}

// A kernel written in Python has failed: a warning says so, and the others go on.
void leave_out(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;  // an interrupt
  const std::string reason = nb::cast<std::string>(nb::str(error.value()));
  if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "cutlass_py: a choice is not measured: %s", reason.c_str()) < 0) {
    nb::raise_python_error();  // warnings are errors
  }
}

std::vector<std::vector<float>> times_of(int device_id, size_t choices, const MakeSample& make, int count) {
  const Stream stream = device::own_stream(device_id);
  Burst burst(device_id, make, stream);
  device::Timer rest;
  std::vector<device::Timer> timers(choices);
  TimingRounds rounds(choices, count);
  wait_for_device();  // work of other streams would take part
  while (rounds.left()) {
    for (size_t turn = 0; turn < choices; ++turn) {
      const size_t i = rounds.turn(turn);
      if (!rounds.runs(i)) continue;
      burst.start(timers[i]);
      try {
        burst.queue(i, rounds.calls());
      } catch (const CudaError&) {
        rounds.failed(i);
      } catch (const nb::python_error& error) {
        leave_out(error);
        rounds.failed(i);
      }
      burst.stop(timers[i]);
    }
    burst.start(rest);
    burst.queue_rest(rounds.calls());
    burst.stop(rest);
    nb::gil_scoped_release waiting;
    const float idle = rest.microseconds();
    for (size_t i = 0; i < choices; ++i) {
      if (rounds.runs(i)) rounds.took(i, (timers[i].microseconds() - idle) / float(rounds.calls()));
    }
    rounds.end(TimingRounds::Clock::now());
  }
  return rounds.times();
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes, int ordinal, Stream stream)
    : stream_(stream), data_(static_cast<char*>(device::allocate(std::max<size_t>(bytes, 1), ordinal, stream))) {}

void fill_with_numbers(char* memory, Dtype dtype, size_t bytes, uint64_t seed, Stream stream) {
  const std::vector<char> numbers = random_numbers(dtype, std::min(kPattern, bytes / dtype_size(dtype)), seed);
  size_t filled = std::min(numbers.size(), bytes);
  device::copy(memory, numbers.data(), filled, stream);  // of pageable memory: back when that is read
  while (filled < bytes) {
    const size_t more = std::min(filled, bytes - filled);
    device::copy(memory + filled, memory, more, stream);
    filled += more;
  }
}

std::vector<std::vector<float>> measure(int device_id, size_t choices, const MakeSample& make, int rounds) {
  device::Guard guard(device_id);
  std::vector<std::vector<float>> times = times_of(device_id, choices, make, rounds);
  wait_for_device();  // so that the pool gives back what it was lent
  return times;
}

}  // namespace cutlass_py
