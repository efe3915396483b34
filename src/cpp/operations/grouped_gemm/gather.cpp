#include "operations/grouped_gemm/gather.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "operations/gemm/run.h"

namespace cutlass_py::grouping {
namespace {

constexpr int64_t kRowBytes = 16;  // rows begin at multiples, so that the copy engine reads them

CutlassPyArray array_of(const Operand& x) { return {x.data, int32_t(x.dtype), x.strides[0], x.strides[1], 0}; }

}  // namespace

Gather::Gather(Request& request, const Numbers& numbers)
    : source_(request.at(Role::a)), numbers_(numbers), matrix_(*source_) {
  const Operand &a = *source_, &b = *request.at(Role::b), &x = *numbers.array;
  if (a.rank != 2 || b.rank != 3) {
    refuse(found(a).but(found(b)).hints("gather picks rows: a has 2 dimensions then, and b 3"));
  }
  numbers.check();
  const int64_t count = x.shape[0], cols = a.shape[1], unit = std::max<int64_t>(kRowBytes / dtype_size(a.dtype), 1);
  if (numbers.on_host() && !x.metadata_only) {
    for (int64_t i = 0; i < count; ++i) {
      rows_.push_back(numbers[i]);
      if (rows_.back() >= 0 && rows_.back() < a.shape[0]) continue;
      refuse(Refusal(numbers.name_of(i), "is " + std::to_string(rows_.back()))
                 .expects("a row of a: 0 to " + std::to_string(a.shape[0] - 1)));
    }
  }
  matrix_.data = nullptr, matrix_.shape[0] = count;
  matrix_.strides[0] = round_up(std::max<int64_t>(cols, 1), unit), matrix_.strides[1] = 1;
  request.operands[int(Role::a)] = &matrix_;
}

const void* Gather::run(Execution& execution) {
  if (execution.on_host()) {
    on_host();
  } else {
    execution.run([&] {
      nb::gil_scoped_release may_wait;
      on_device(execution.stream());
    });
  }
  return matrix_.data;
}

void Gather::on_host() {
  const int64_t size = dtype_size(matrix_.dtype), cols = matrix_.shape[1], step = source_->strides[1] * size;
  host_.resize(size_t(matrix_.shape[0] * matrix_.strides[0] * size));
  char* to = host_.data();
  matrix_.data = to;
  for (const int64_t row : rows_) {
    const char* from = static_cast<const char*>(source_->data) + row * source_->strides[0] * size;
    if (step == size) {
      std::memcpy(to, from, size_t(cols * size));
    } else {
      for (int64_t i = 0; i < cols; ++i) std::memcpy(to + i * size, from + i * step, size_t(size));
    }
    to += matrix_.strides[0] * size;
  }
}

void Gather::on_device(device::Stream stream) {
  const device::Relaxed relaxed;  // the first launch loads the kernel
  const int64_t size = dtype_size(matrix_.dtype), rows = matrix_.shape[0], cols = matrix_.shape[1];
  const size_t bytes = scratch_aligned(size_t(rows * matrix_.strides[0] * size));
  device_.emplace(bytes + rows_.size() * sizeof(int64_t), matrix_.device.id, stream);
  matrix_.data = device_->data();
  const void* numbers = numbers_.array->data;
  int32_t wide = numbers_.wide;
  if (numbers_.on_host()) {  // as addresses of lists travel
    std::vector<const void*> values;
    for (const int64_t row : rows_) values.push_back(reinterpret_cast<const void*>(row));
    void* there = device_->data() + bytes;
    check(elementwise().write_pointers(values.data(), int64_t(values.size()), there, stream), {},
          "writing row numbers");
    numbers = there, wide = 1;
  }
  const CutlassPyArray from = array_of(*source_), to = array_of(matrix_);
  const int status =
      elementwise().gather(&from, source_->shape[0], numbers, wide, &to, int32_t(size), rows, cols, stream);
  check(status, {}, "gathering rows");
}

}  // namespace cutlass_py::grouping
