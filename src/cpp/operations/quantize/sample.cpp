#include "operations/quantize/sample.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/timing.h"

namespace cutlass_py::quantization {
namespace {

using device::Stream;

// Matrices of a problem as one array: layouts and alignments as the class says, and no better.
Operand operand(const Problem& p, Role role, Dtype dtype, char layout, uint8_t align) {
  const int64_t size = dtype_size(dtype), step = layout == 'x' ? 2 : 1, unit = std::max<int64_t>(16 / size, 1);
  const int64_t lines = layout == 'n' ? p.cols : p.rows, line = layout == 'n' ? p.rows : p.cols;
  int64_t pitch = (std::max<int64_t>(line * step, 1) + unit - 1) / unit * unit;
  if (align < 4) pitch += std::max<int64_t>((1 << align) / size, 1);
  Operand x;
  x.name = kNames[int(role)], x.dtype = dtype, x.device = p.device, x.rank = 3;
  x.shape[0] = p.batch, x.shape[1] = p.rows, x.shape[2] = p.cols;
  x.strides[0] = lines * pitch, x.strides[1] = pitch, x.strides[2] = step;
  if (layout == 'n') std::swap(x.strides[1], x.strides[2]);
  return x;
}

// A call of the problem's class on memory of its own.
class QuantizeSample final : public Sample {
 public:
  QuantizeSample(const Problem& p, const std::vector<Plan>& plans, Stream stream, const QuantizeSample* like)
      : plans_(plans) {
    Operand x = operand(p, Role::x, p.x, p.layout_x, p.align_x), q = operand(p, Role::out, p.q, p.layout_q, p.align_q);
    x.data = memory(x, p.align_x, stream), q.data = memory(q, p.align_q, stream);
    Request request;
    request.operands[int(Role::x)] = &x, request.operands[int(Role::out)] = &q;
    request.q = p.q, request.scaling = p.scaling,
    request.transposes = kScalings[p.scaling].rows == 1 && kScalings[p.scaling].cols;
    call_ = canonicalise(request);
    call_.possible_overlaps.clear();  // of operands that end here; all lie apart
    place(call_, Role::scales, memory(call_.made, 4, stream));
    call_.problem = p;
    const size_t bytes = range_of(x).last - range_of(x).first;
    if (like) {
      device::copy(x.data, like->call_.x.data, bytes, stream);
    } else {
      fill_with_numbers(static_cast<char*>(x.data), p.x, bytes, 0, stream);
    }
  }
  size_t bytes() const override { return bytes_; }
  void queue(size_t choice, Stream stream) override { run_by_plan(call_, plans_[choice], stream); }

 private:
  char* memory(const Operand& x, uint8_t align, Stream stream) {
    const size_t unit = std::max(size_t(1) << align, size_t(dtype_size(x.dtype))), offset = unit < 16 ? unit : 0;
    const Range range = range_of(x);
    bytes_ += range.last - range.first;
    return memory_.emplace_back(offset + range.last - range.first, x.device.id, stream).data() + offset;
  }

  const std::vector<Plan>& plans_;
  std::vector<DeviceMemory> memory_;
  size_t bytes_ = 0;
  Call call_;
};

}  // namespace

std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds) {
  return cutlass_py::measure<QuantizeSample>(problem, plans, rounds);
}

}  // namespace cutlass_py::quantization
