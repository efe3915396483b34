// An array as a caller gave it: address, dtype, device, shape and strides. Pure C++, no Python, no CUDA.
#pragma once

#include <cstdint>

#include <string>
#include <vector>

#include "abi/dtype.h"
#include "arrays/refusal.h"

namespace cutlass_py {

constexpr int kMaxRank = 8;
constexpr int64_t kMostStride = (int64_t(1) << 40) - 1;  // bytes, that TMA takes

[[noreturn]] void refuse_beside_lists(const char* name);  // of what lists of matrices cannot have

enum class DeviceType : int32_t { cpu = 1, cuda = 2 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
  bool operator==(const Device& other) const { return type == other.type && id == other.id; }
  bool operator!=(const Device& other) const { return !(*this == other); }
};

std::string to_string(Device device);

// An operand as the caller gave it. Strides in elements. A list of matrices has its length as the first extent; where
// the matrices do not lie evenly, `list` holds their addresses and the first stride means nothing. `matrices` holds
// each; where they are `uneven`, of the others' shapes and strides nothing is said here.
struct Operand {
  const char* name = "";
  void* data = nullptr;
  const std::vector<void*>* list = nullptr;
  const std::vector<Operand>* matrices = nullptr;
  Dtype dtype = Dtype::none;
  Device device;
  int rank = 0;
  int64_t shape[kMaxRank], strides[kMaxRank];  // as many as rank says
  bool readonly = false;
  bool uneven = false;
  bool metadata_only = false;  // a TensorSpec: `data` holds its alignment and is never followed

  // As a new array lies, without gaps. Refused where 64 bits do not count its bytes.
  void set_row_major(const int64_t* extents, int count);
};

std::string shape_text(const int64_t* shape, int rank);
// What may be wrong with it.
Refusal found(const Operand& x);         // "a is (3, 4)"
Refusal found_dtype(const Operand& x);   // "a is f32"
Refusal found_device(const Operand& x);  // "a is on cuda:0"

// Whether elements of this shape lie alike by both strides; one that is never taken does not matter.
inline bool same_strides(const int64_t* shape, const int64_t* x, const int64_t* y, int rank) {
  bool same = true;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] == 0) return true;
    same = same && (shape[i] == 1 || x[i] == y[i]);
  }
  return same;
}

// Refuses operands on two devices. Before canonicalise, because operands are read with a device in mind.
void check_same_device(const Operand& a, const Operand& x);

}  // namespace cutlass_py
