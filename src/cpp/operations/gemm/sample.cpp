#include "operations/gemm/sample.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/timing.h"

namespace cutlass_py {
namespace {

using device::Stream;

// A call of the problem's class on memory of its own: layouts and alignments as the class says, and no better.
class GemmSample final : public Sample {
 public:
  GemmSample(const Problem& p, const std::vector<Plan>& plans, Stream stream, const GemmSample* like,
             const std::vector<int64_t>& group_ends)
      : p_(p), plans_(plans), stream_(stream), like_(like) {
    call_.problem = p, call_.group_ends = group_ends;
    each_array(call_, [&](Role role, CutlassPyArray& x) { x = operand(role); });
    call_.lda = leading(call_.a, p.layout_a), call_.ldb = leading(call_.b, p.layout_b);
    call_.ldd = leading(call_.d, p.layout_d);
    if (p.interleaved && p.layout_b == 'n') call_.ldb *= 2;  // from gate to gate, as canonicalise has it
    read_numbers();
    call_.pairs = pairs_of(call_);
    if (p.pointers) list_matrices();
    if (p.grouped == 'l') {
      const CutlassPyExtents each{p.m, p.n, p.k, call_.lda, call_.ldb, call_.epilogue.c.row, call_.ldd};
      call_.extents.assign(size_t(p.batch), each);
    } else if (p.grouped) {
      lay_groups();
    }
  }
  size_t bytes() const override { return bytes_; }
  void queue(size_t choice, Stream stream) override { run_by_plan(call_, plans_[choice], stream); }

 private:
  static int64_t leading(const CutlassPyArray& x, char layout) { return layout == 'n' ? x.col : x.row; }

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

  Matrix matrix(Dtype dtype, char layout, uint8_t align, int64_t rows, int64_t cols, int64_t count) {
    if (dtype == Dtype::none) return {};
    const int64_t unit = std::max(16 / dtype_size(dtype), 1), step = layout == 'x' ? 2 : 1;
    const int64_t lines = layout == 'n' ? cols : rows, line = layout == 'n' ? rows : cols;
    int64_t ld = round_up(std::max<int64_t>(line * step, 1), unit);
    if (align < 4) ld += std::max((1 << align) / dtype_size(dtype), 1);
    const int64_t batch = round_up(lines * ld, unit) + (align < 4 ? ld % unit : 0);
    Matrix x{memory(dtype, batch * count, align), dtype, ld, step, count > 1 ? batch : 0};
    if (layout == 'n') std::swap(x.row, x.col);
    return x;
  }

  // One value per column ('n') or row ('m') of D.
  Matrix vector(Dtype dtype, char axis, uint8_t align, int64_t step = 1) {
    if (dtype == Dtype::none) return {};
    Matrix x{memory(dtype, step * std::max<int64_t>(p_.m, p_.columns_of_b()), align), dtype, 0, step, 0};
    if (axis == 'm') std::swap(x.row, x.col);
    return x;
  }

  Matrix scale(Dtype dtype, char kind, char axis) {
    Matrix x = vector(dtype, axis, 4, kind == 'x' ? 2 : 1);
    if (kind == 's') x.row = x.col = 0;
    return x;
  }

  Matrix operand(Role role) {
    const auto [dtype, layout, align] = class_of(p_, role);
    const auto [rows, cols] = rectangle_of(p_, role);
    const Shape shape = facts_of(role).shape;
    if (dtype == Dtype::none) return {};
    switch (shape) {
      case Shape::vector: return vector(dtype, layout, align);
      case Shape::sum: return vector(dtype, layout, 4);
      case Shape::rows:
      case Shape::columns:
        if (!p_.block()) return scale(dtype, layout, shape == Shape::rows ? 'm' : 'n');
        return matrix(dtype, shape == Shape::rows && layout == 'r' ? 'n' : 't', 4, rows, cols,
                      divided(shape) ? 1 : p_.batch);
      default: return matrix(dtype, layout, align, rows, cols, divided(shape) ? 1 : p_.batch);
    }
  }

  void read_numbers() {
    Epilogue& e = call_.epilogue;
    const auto factor = [&] { return memory(scalar_dtype(p_.accumulator), 1, 4); };
    if (p_.device_alpha) e.alpha.device = factor();
    if (p_.device_beta) e.beta.device = factor();
    if (p_.scale_out == 's') e.scale_out.device = factor();
    if (p_.scale_out == 'h') e.scale_out.value = 0.5;
    e.beta.value = p_.has_c() ? 1 : 0;
    e.activation = int32_t(p_.activation);
    e.parameters[1] = 1;
  }

  // Whether groups share an operand, of which each has some lines.
  bool divided(Shape shape) const {
    if (!p_.grouped || p_.grouped == 'l' || p_.stacked()) return false;
    const bool of_a = shape == Shape::left || shape == Shape::rows,
               of_b = shape == Shape::right || shape == Shape::columns;
    return of_a ? p_.grouped != 'n' : of_b ? p_.grouped != 'm' : p_.grouped != 'k';
  }

  // As ends that the host knows, so that a sample's memory holds no numbers of which they would be made.
  void lay_groups() {
    const int64_t total = p_.grouped == 'm' ? p_.m : p_.grouped == 'n' ? p_.n : p_.k;
    call_.groups = {nullptr, p_.stacked() ? CUTLASS_PY_GROUP_FIRST : CUTLASS_PY_GROUP_ENDS, 1, p_.grouped};
    if (!call_.group_ends.empty()) return;
    // Of 0.3 to 1.7 times the mean, as they come.
    const auto weight = [](int64_t i) { return 3 + i * 7 % 11 * 14 / 10; };
    int64_t sum = 0, all = 0;
    for (int64_t i = 0; i < p_.batch; ++i) all += weight(i);
    for (int64_t i = 0; i < p_.batch; ++i) {
      sum += weight(i);
      call_.group_ends.push_back(p_.stacked() ? total : total * sum / all);
    }
  }

  void list_matrices() {
    Call& c = call_;
    const auto list = [&](const CutlassPyArray& x, std::vector<void*>& addresses) {
      for (int64_t i = 0; x.data && i < p_.batch; ++i) {
        addresses.push_back(static_cast<char*>(x.data) + i * x.batch * element_size(x));
      }
    };
    list(c.a, c.pointers_a), list(c.b, c.pointers_b), list(c.d, c.pointers_d), list(c.epilogue.c, c.pointers_c);
  }

  const Problem& p_;
  const std::vector<Plan>& plans_;
  Stream stream_;
  const GemmSample* like_;
  std::vector<DeviceMemory> memory_;
  size_t bytes_ = 0;
  Call call_;
};

}  // namespace

std::vector<std::vector<float>> measure(const Problem& problem, const std::vector<Plan>& plans, int rounds,
                                        const std::vector<int64_t>& group_ends) {
  if (!group_ends.empty() && group_ends.size() != size_t(problem.batch)) {
    refuse(Refusal("group_ends", "has " + std::to_string(group_ends.size()) + " numbers")
               .expects(std::to_string(problem.batch)));
  }
  const MakeSample make = [&](Stream stream, const Sample* like) {
    return std::make_unique<GemmSample>(problem, plans, stream, static_cast<const GemmSample*>(like), group_ends);
  };
  return measure(problem.device.id, plans.size(), make, rounds);
}

}  // namespace cutlass_py
