// The canonical problem: what was asked, reduced to the form that kernels and selection see. Pure C++, no Python, no
// CUDA.
//
// D is always row-major: a column-major D is computed as D^T = B^T A^T. Layouts are 't' (row-major), 'n' (column-major)
// or 'x' (no unit stride: must be packed). Leading dimensions that are never used (extent 1) are set to aligned values.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "dtype.h"

namespace cutlass_py {

constexpr int kMaxRank = 8;

enum class DeviceType : int32_t { cpu = 1, cuda = 2 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
  bool operator==(const Device& other) const { return type == other.type && id == other.id; }
  bool operator!=(const Device& other) const { return !(*this == other); }
};

std::string to_string(Device device);

// An operand as the caller gave it. Strides in elements.
struct Operand {
  const char* name = "";
  void* data = nullptr;
  Dtype dtype = Dtype::none;
  Device device;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  bool readonly = false;
  bool metadata_only = false;  // a TensorSpec: `data` holds its alignment and is never followed
};

// An operand as (batch, row, col), strides in elements.
struct Matrix {
  void* data = nullptr;
  Dtype dtype = Dtype::none;
  int64_t row = 0, col = 0, batch = 0;
};

// The class of a call: everything that the choice of a plan depends on. Compared and hashed as bytes.
struct Problem {
  int32_t m = 0, n = 0, k = 0, batch = 1;
  Dtype a = Dtype::none, b = Dtype::none, c = Dtype::none, d = Dtype::none;
  Dtype compute = Dtype::none;  // dtype of the kernel's operands (tf32 for f32 inputs with compute="tf32")
  Dtype accumulator = Dtype::none;
  char layout_a = 't', layout_b = 't', layout_c = 't', layout_d = 't';
  uint8_t align_a = 0, align_b = 0, align_c = 0, align_d = 0;  // log2 of bytes, 4 at most: base, rows, batch stride
  bool empty_product = false;                                  // k = 0 or alpha = 0: A and B are not read
  bool transposed = false;                                     // A and B changed places because D is column-major
  Device device;
  int32_t kernel = -1;  // the kernel asked for by name, as numbered by the caller
  int32_t jit = 0;      // 1: selection may take kernels that are yet to be compiled

  bool has_c() const { return c != Dtype::none; }
  bool operator==(const Problem& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(sizeof(Problem) == 48 && alignof(Problem) == 4, "Problem is compared as bytes: no padding");

struct ProblemHash {
  size_t operator()(const Problem& problem) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    uint32_t words[sizeof(Problem) / 4];
    std::memcpy(words, &problem, sizeof problem);
    for (uint32_t word : words) hash = (hash ^ word) * 0xff51afd7ed558ccd, hash ^= hash >> 32;
    return size_t(hash);
  }
};

// One canonical call: the problem and what differs between calls of the same class.
struct Call {
  Problem problem;
  Matrix a, b, c, d;
  int64_t lda = 0, ldb = 0;  // of a and b as they lie, where their layout is not 'x'
  int64_t ldc = 0, ldd = 0;
  double alpha = 1, beta = 0;
  int out_rank = 2;  // shape of the result as the caller sees it
  int64_t out_shape[3] = {};
  // Operands whose bytes interleave with out's in a way that is not decided here: name, and its extents.
  struct Suspect {
    const char* name;
    Matrix matrix;
    int64_t rows, cols;
  } suspects[3];
  int suspect_count = 0;
  Matrix suspected_out;
  int64_t out_rows = 0, out_cols = 0, out_batch = 1;
};

// What a keyword call says beyond its operands.
struct Options {
  double alpha = 1;
  double beta = 0;
  bool has_beta = false;
  const char* compute = nullptr;  // null: the default of the inputs' dtype
  Dtype out_dtype = Dtype::none;
};

struct DtypeError : std::invalid_argument {  // becomes a TypeError
  using std::invalid_argument::invalid_argument;
};

// Throws std::invalid_argument that names both devices. Before canonicalise, because operands are read with a device in
// mind.
void check_same_device(const Operand& a, const Operand& x);

// Everything else that can be said without touching memory: ranks, shapes, dtypes, strides, overlap.
// `out` and `c` may be null; without `out`, D is taken as a new row-major array and call.d.data stays null.
// Throws std::invalid_argument (ValueError) and DtypeError (TypeError).
Call canonicalise(const Operand& a, const Operand& b, const Operand* c, const Operand* out, const Options& options);

// True when two matrices surely share no element: disjoint byte ranges, or column slices of one buffer.
bool surely_disjoint(const Matrix& x, int64_t x_rows, int64_t x_cols, const Matrix& y, int64_t y_rows, int64_t y_cols,
                     int64_t batch);

}  // namespace cutlass_py
