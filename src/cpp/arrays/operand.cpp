#include "arrays/operand.h"

#include <algorithm>

namespace cutlass_py {

void refuse_beside_lists(const char* name) {
  refuse(Refusal(name, "is given with a list of matrices").hints("pass a batch (an array of 3 dimensions) instead"));
}

void check_same_device(const Operand& a, const Operand& x) {
  if (x.device != a.device) {
    refuse(found_device(a).but(found_device(x)));
  }
}

std::string to_string(Device device) {
  return (device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.id));
}

void Operand::set_row_major(const int64_t* extents, int count) {
  rank = count;
  int64_t stride = 1;
  bool too_large = false;
  for (int i = rank - 1; i >= 0; --i) {
    shape[i] = extents[i], strides[i] = stride;
    too_large |= __builtin_mul_overflow(stride, std::max<int64_t>(extents[i], 1), &stride);
  }
  if (!too_large && !__builtin_mul_overflow(stride, dtype_size(dtype), &stride)) return;
  const std::string made = "would be " + shape_text(shape, rank) + " of " + dtype_name(dtype);
  refuse(Refusal(name, made).expects("less than 2**63 bytes"));
}

std::string shape_text(const int64_t* shape, int rank) {
  std::string text = "(";
  for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (rank == 1 ? ",)" : ")");
}

Refusal found(const Operand& x) { return {x.name, "is " + shape_text(x.shape, x.rank), "shape"}; }

Refusal found_dtype(const Operand& x) { return {x.name, std::string("is ") + dtype_name(x.dtype), "dtype"}; }

Refusal found_device(const Operand& x) { return {x.name, "is on " + to_string(x.device), "device"}; }

}  // namespace cutlass_py
