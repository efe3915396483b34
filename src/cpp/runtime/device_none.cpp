// A package built without CUDA: no device is ever found, and whatever needs one says why.
#include "runtime/device.h"

namespace cutlass_py::device {
namespace {
[[noreturn]] void refuse() { throw CudaError(in_operation(why_none())); }
}  // namespace

int count() { return 0; }
std::string why_none() { return "this package was built without CUDA (CUTLASS_PY_CUDA)"; }
const Info& info(int) { refuse(); }
Guard::Guard(int) : previous_(0) { refuse(); }
Guard::~Guard() = default;
Relaxed::Relaxed() : mode_(0) { refuse(); }
Relaxed::~Relaxed() = default;
bool capturing(Stream) { refuse(); }
void mark_last(Stream) { refuse(); }
bool follows_marked(Stream) { refuse(); }
void wait(Stream, Stream) { refuse(); }
void* allocate(size_t, int, Stream) { refuse(); }
void release(void*, Stream) noexcept {}
void when_done(Stream, void (*)(void*), void*) { refuse(); }
Stream own_stream(int) { refuse(); }
void copy(void*, const void*, size_t, Stream) { refuse(); }
void fill(void*, int, size_t, Stream) { refuse(); }
void synchronize() { refuse(); }
Timer::Timer() { refuse(); }
Timer::~Timer() = default;
void Timer::start(Stream) {}
void Timer::stop(Stream) {}
float Timer::microseconds() const { return 0; }

}  // namespace cutlass_py::device
