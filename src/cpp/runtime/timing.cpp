#include "runtime/timing.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace cutlass_py {
namespace {

using device::Stream;

// Memory of the device for the length of a measurement.
class Memory {
 public:
  Memory(size_t bytes, int ordinal, Stream stream)
      : stream_(stream), data_(static_cast<char*>(device::allocate(std::max<size_t>(bytes, 1), ordinal, stream))) {}
  ~Memory() { device::release(data_, stream_); }
  Memory(Memory&& other) noexcept : stream_(other.stream_), data_(std::exchange(other.data_, nullptr)) {}
  char* data() const { return data_; }

 private:
  Stream stream_;
  char* data_;
};

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

// ------------------------------------------------------------------------------------------------ operands

// A call of the problem's class on memory of its own: layouts and alignments as the class says, and no better.
class Sample {
 public:
  // The numbers of `like`, if there is one: to copy them is faster.
  Sample(const Problem& p, Stream stream, const Sample* like) : p_(p), stream_(stream), like_(like) {
    call_.problem = p;
    call_.a = matrix(p.a, p.layout_a, p.align_a, p.m, p.k), call_.lda = leading(call_.a, p.layout_a);
    call_.b = matrix(p.b, p.layout_b, p.align_b, p.k, p.n), call_.ldb = leading(call_.b, p.layout_b);
    call_.d = matrix(p.d, p.layout_d, p.align_d, p.m, p.n), call_.ldd = leading(call_.d, p.layout_d);
    read_epilogue();
    if (p.pointers) list_matrices();
  }
  const Call& call() const { return call_; }
  size_t bytes() const { return bytes_; }

 private:
  static int64_t leading(const Matrix& x, char layout) { return layout == 'n' ? x.col : x.row; }

  // Aligned to `align` (log2 of bytes) and no better; a class knows nothing finer than an element nor above 16 bytes.
  char* memory(Dtype dtype, int64_t elements, uint8_t align) {
    const size_t size = dtype_size(dtype), unit = std::max(size_t(1) << align, size), offset = unit < 16 ? unit : 0;
    const size_t bytes = size_t(elements) * size, index = memory_.size();
    char* data = memory_.emplace_back(offset + bytes, p_.device.id, stream_).data() + offset;
    if (like_) {
      device::copy(data, like_->memory_[index].data() + offset, bytes, stream_);
    } else {
      fill_with_numbers(data, dtype, bytes, index, stream_);
    }
    bytes_ += bytes;
    return data;
  }

  Matrix matrix(Dtype dtype, char layout, uint8_t align, int64_t rows, int64_t cols) {
    if (dtype == Dtype::none) return {};
    const int64_t unit = std::max(16 / dtype_size(dtype), 1), step = layout == 'x' ? 2 : 1;
    const int64_t lines = layout == 'n' ? cols : rows, line = layout == 'n' ? rows : cols;
    int64_t ld = round_up(std::max<int64_t>(line * step, 1), unit);
    if (align < 4) ld += std::max((1 << align) / dtype_size(dtype), 1);
    const int64_t batch = round_up(lines * ld, unit) + (align < 4 ? ld % unit : 0);
    Matrix x{memory(dtype, batch * p_.batch, align), dtype, ld, step, batch};
    if (layout == 'n') std::swap(x.row, x.col);
    return x;
  }

  // One value per column ('n') or row ('m') of D.
  Matrix vector(Dtype dtype, char axis, uint8_t align, int64_t step = 1) {
    if (dtype == Dtype::none) return {};
    Matrix x{memory(dtype, step * std::max(p_.m, p_.n), align), dtype, 0, step, 0};
    if (axis == 'm') std::swap(x.row, x.col);
    return x;
  }

  Matrix scale(char kind, char axis) {
    if (!kind) return {};
    const Dtype dtype = scalar_dtype(p_.accumulator);
    Matrix x = vector(dtype, axis, 4, kind == 'x' ? 2 : 1);
    if (kind == 's') x.row = x.col = 0;
    return x;
  }

  void read_epilogue() {
    Epilogue& e = call_.epilogue;
    const auto factor = [&] { return memory(scalar_dtype(p_.accumulator), 1, 4); };
    if (p_.device_alpha) e.alpha.device = factor();
    if (p_.device_beta) e.beta.device = factor();
    if (p_.scale_out == 's') e.scale_out.device = factor();
    if (p_.scale_out == 'h') e.scale_out.value = 0.5;
    e.beta.value = p_.has_c() ? 1 : 0;
    e.c = matrix(p_.c, p_.layout_c, p_.align_c, p_.m, p_.n);
    e.gate = matrix(p_.gate, p_.layout_gate, p_.align_gate, p_.m, p_.n);
    e.aux = matrix(p_.aux, p_.layout_aux, p_.align_aux, p_.m, p_.n);
    e.bias = vector(p_.bias, p_.bias_axis, p_.align_bias);
    e.bias_grad = vector(p_.bias_grad, p_.bias_grad_axis, 4);
    if (p_.block()) {
      e.scale_a = matrix(Dtype::f32, p_.scale_a == 'r' ? 'n' : 't', 4, p_.m, blocks_of(p_.k));
      e.scale_b = matrix(Dtype::f32, 't', 4, blocks_of(p_.k), blocks_of(p_.n, p_.block()));
    } else {
      e.scale_a = scale(p_.scale_a, 'm'), e.scale_b = scale(p_.scale_b, 'n');
    }
    e.activation = p_.activation;
    e.parameters[1] = 1;
  }

  void list_matrices() {
    Call& c = call_;
    const auto list = [&](const Matrix& x, std::vector<void*>& addresses) {
      for (int64_t i = 0; x.data && i < p_.batch; ++i) {
        addresses.push_back(static_cast<char*>(x.data) + i * x.batch * dtype_size(x.dtype));
      }
    };
    list(c.a, c.pointers_a), list(c.b, c.pointers_b), list(c.d, c.pointers_d), list(c.epilogue.c, c.pointers_c);
  }

  const Problem& p_;
  Stream stream_;
  const Sample* like_;
  std::vector<Memory> memory_;
  size_t bytes_ = 0;
  Call call_;
};

// ------------------------------------------------------------------------------------------------ time

constexpr int kMostCalls = 8;
constexpr float kBurst = 400;  // microseconds of calls, as far as there are several

// Calls in a row, as a program makes them: half of them follow one of ours, which they may overlap, and half a foreign
// kernel; each finds its operands in memory alone.
class Burst {
 public:
  Burst(const Problem& p, Stream stream)
      : stream_(stream),
        flushed_(std::max<size_t>(2 * device::info(p.device.id).l2_bytes, size_t(128) << 20)),
        flush_(flushed_, p.device.id, stream) {
    const Sample& first = samples_.emplace_back(p, stream, nullptr);
    while (samples_.size() * first.bytes() < flushed_ && samples_.size() < kMostCalls) {
      samples_.emplace_back(p, stream, &first);
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

  void queue(const Plan& plan, int calls) {
    for (int i = 0; i < calls; ++i) {
      if (i && i % 2 == 0) foreign();
      run_on_device(samples_[next_++ % samples_.size()].call(), plan, stream_);
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
  Memory flush_;
  std::deque<Sample> samples_;
};

// A phase of `tune` ends behind the round that reaches this.
constexpr std::chrono::seconds kLongEnough(2);

void wait_for_device() {
  nb::gil_scoped_release waiting;  // what is queued may want the interpreter
  device::synchronize();
}

// A kernel written in Python has failed: a warning says so, and the others go on.
bool left_out(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;  // an interrupt
  const std::string reason = nb::cast<std::string>(nb::str(error.value()));
  if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "cutlass_py: a choice is not measured: %s", reason.c_str()) < 0) {
    nb::raise_python_error();  // warnings are errors
  }
  return true;
}

std::vector<std::vector<float>> times_of(const Problem& problem, const std::vector<Plan>& plans, int rounds) {
  const Stream stream = device::own_stream(problem.device.id);
  Burst burst(problem, stream);
  device::Timer rest;
  std::vector<device::Timer> timers(plans.size());
  std::vector<std::vector<float>> times(plans.size());
  std::vector<bool> failed(plans.size());
  int calls = 1;
  wait_for_device();  // work of other streams would take part
  const auto end = std::chrono::steady_clock::now() + kLongEnough;
  for (int round = -2; round < rounds; ++round) {  // the first one warms up, the next one tells how many calls to time
    for (size_t turn = 0; turn < plans.size(); ++turn) {
      const size_t i = (turn + size_t(round + 2)) % plans.size();  // nobody is always the first on an idle device
      if (failed[i]) continue;
      burst.start(timers[i]);
      try {
        burst.queue(plans[i], calls);
      } catch (const CudaError&) {
        failed[i] = true;
      } catch (const nb::python_error& error) {
        failed[i] = left_out(error);
      }
      burst.stop(timers[i]);
    }
    burst.start(rest);
    burst.queue_rest(calls);
    burst.stop(rest);
    nb::gil_scoped_release waiting;
    const float idle = rest.microseconds();
    float fastest = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < plans.size(); ++i) {
      if (failed[i]) continue;
      const float time = (timers[i].microseconds() - idle) / float(calls);
      fastest = std::min(fastest, time);
      if (round >= 0) times[i].push_back(time);
    }
    if (round < 0) calls = int(std::clamp(kBurst / std::max(fastest, 1.0f), 1.0f, float(kMostCalls)));
    if (round >= 0 && std::chrono::steady_clock::now() > end) break;
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (failed[i]) times[i] = {std::numeric_limits<float>::infinity()};
  }
  return times;
}

}  // namespace

std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds) {
  device::Guard guard(problem.device.id);
  std::vector<std::vector<float>> times = times_of(problem, plans, rounds);
  wait_for_device();  // so that the pool gives back what it was lent
  return times;
}

}  // namespace cutlass_py
