// device.h on the simulated GPU, of which there are two: every function that calls CUDA may be made to fail.
#include "runtime/device.h"

#include <algorithm>
#include <memory>
#include <string>

#include "simulator.h"

namespace cutlass_py::device {
namespace {

constexpr int kDevices = 2;
thread_local int current = 0;

void check(bool done, const char* call) {
  if (!done) throw CudaError(std::string("gemm: ") + call + " failed: a simulated failure");
}

void check_current(int ordinal) {
  if (ordinal != current) simulated::wrong("another device is current");
}

struct Marked {
  Stream stream = nullptr;
  size_t length = 0;
} marked;

}  // namespace

int count() { return kDevices; }
std::string why_none() { return ""; }

const Info& info(int) {
  static const Info simulated{"Simulated GPU", 90, 3, 13000, size_t(1) << 12};  // few blocks, of many tiles each
  return simulated;
}

Guard::Guard(int ordinal) : previous_(current) {
  if (ordinal < 0 || ordinal >= kDevices) throw CudaError("gemm: there is no cuda:" + std::to_string(ordinal));
  current = ordinal;
}
Guard::~Guard() { current = previous_; }

Relaxed::Relaxed() : mode_(0) {}
Relaxed::~Relaxed() = default;

bool capturing(Stream stream) { return simulated::capturing(stream); }
void mark_last(Stream stream) { marked = {stream, simulated::length(stream)}; }
bool follows_marked(Stream stream) { return marked.stream == stream && marked.length == simulated::length(stream); }
void wait(Stream waiter, Stream signaler) { check(simulated::wait(waiter, signaler), "waiting"); }

void* allocate(size_t bytes, int ordinal, Stream stream) {
  check_current(ordinal);
  void* memory = simulated::allocate(bytes, stream);
  check(memory, "allocating");
  return memory;
}

void release(void* memory, Stream stream) noexcept {
  if (memory) simulated::release(memory, stream);
}

void when_done(Stream stream, void (*function)(void*), void* argument) {
  static const Stream aside = simulated::new_stream();
  wait(aside, stream);
  check(simulated::queue(aside, [=] { function(argument); }), "calling the host");
}

Stream own_stream(int ordinal) {
  static const Stream own[kDevices] = {simulated::new_stream(), simulated::new_stream()};
  return own[ordinal];
}

void copy(void* to, const void* from, size_t bytes, Stream stream) {
  const std::string copied(static_cast<const char*>(from), bytes);
  check(simulated::queue(stream, [=] { copied.copy(static_cast<char*>(to), bytes); }), "copying");
}

void fill(void* memory, int byte, size_t bytes, Stream stream) {
  check(simulated::queue(stream, [=] { std::fill_n(static_cast<char*>(memory), bytes, char(byte)); }), "filling");
}

void synchronize() { simulated::run_all(); }

namespace {
using Event = std::shared_ptr<long long>;  // what is queued may outlive the Timer, as with CUDA

void record(void* event, Stream stream) {
  const auto queued = [time = *static_cast<Event*>(event)] { *time = simulated::now(); };
  check(simulated::queue(stream, queued, 0), "recording");
}
}  // namespace

Timer::Timer() {
  for (void*& event : events_) event = new Event(new long long(0));
}
Timer::~Timer() {
  for (void* event : events_) delete static_cast<Event*>(event);
}
void Timer::start(Stream stream) { record(events_[0], stream); }
void Timer::stop(Stream stream) { record(events_[1], stream); }
float Timer::microseconds() const {
  simulated::run_all();
  return float(**static_cast<Event*>(events_[1]) - **static_cast<Event*>(events_[0]));
}

}  // namespace cutlass_py::device
