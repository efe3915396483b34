// What happens to sums before they are stored: kernel.h's formula, of which a kernel has what its name says.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "abi/kernel.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/numbers.cuh"
#include "kernels/sm90/design.cuh"

namespace cutlass_py::user {
struct Sum;  // reductions.cuh, which needs this header
}

namespace cutlass_py::sm90 {

// The eight numbers of a thread among 64 rows by 16 columns: rows r and r + 8, columns c, c + 1, c + 8 and c + 9.
constexpr int kUnit = 8, kUnitColumns = 16;
__device__ constexpr int row_in_unit(int i) { return i / 2 % 2 * 8; }
__device__ constexpr int column_in_unit(int i) { return i % 2 + i / 4 * 8; }

// The first of them, and the end of the matrix.
struct Corner {
  int m, n, batch, end_m, end_n;
};

struct Factor {
  float value;
  const float* device;

  Factor() = default;
  explicit Factor(const CutlassPyScalar& x) : value(float(x.value)), device(static_cast<const float*>(x.device)) {}
  __device__ float read() const { return device ? *device : value; }
};

// Vectors as they lie in shared memory for a part, one behind the other, and this thread's first row and column in it.
struct Staged {
  Address vectors;
  int row, column;
};

// One number for every row or every column, or for all; none where there is no data.
struct Vector {
  const void* data;
  int64_t m, n, batch;  // strides in elements: along the left operand, along the right one

  Vector() = default;
  Vector(const CutlassPyArray& x, bool swap)
      : data(x.data), m(swap ? x.col : x.row), n(swap ? x.row : x.col), batch(x.batch) {}

  // The i-th number of those for a part's rows or columns; `at` is where it begins. What is outside reads the last one.
  template <class T>
  __device__ float number(const Corner& at, int i) const {
    const auto* from = static_cast<const typename T::Type*>(data) + at.batch * batch;
    return T::value(n ? from[min(at.n + i, at.end_n - 1) * n] : from[min(at.m + i, at.end_m - 1) * m]);
  }
  // use(i, number) for each of a unit, of the vector that was staged at this place.
  template <class Use>
  __device__ void each(const Staged& at, int place, Use use) const {
    const Address from = at.vectors + place * kStaged * 4;
    if (n) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (row_in_unit(i)) continue;
        const float x = numbers::F32::value(load_shared<uint32_t>(from + (at.column + column_in_unit(i)) * 4));
        use(i, x), use(i + 2, x);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (column_in_unit(i)) continue;
        const float x = numbers::F32::value(load_shared<uint32_t>(from + (at.row + row_in_unit(i)) * 4));
        use(i, x), use(i + 1, x), use(i + 4, x), use(i + 5, x);
      }
    }
  }
  // use(i, number) for each of a unit. What lies outside of the matrix reads its last one.
  template <class T, class Use>
  __device__ void each(const Corner& at, Use use) const {
    const auto* from = static_cast<const typename T::Type*>(data) + at.batch * batch;
    if (n) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (row_in_unit(i)) continue;
        const float x = T::value(from[min(at.n + column_in_unit(i), at.end_n - 1) * n]);
        use(i, x), use(i + 2, x);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (column_in_unit(i)) continue;
        const float x = T::value(from[min(at.m + row_in_unit(i), at.end_m - 1) * m]);
        use(i, x), use(i + 1, x), use(i + 4, x), use(i + 5, x);
      }
    }
  }
};

struct EpilogueArguments {
  Factor alpha, beta, scale_out;
  Vector bias, scale_a, scale_b;
  float parameters[2];

  EpilogueArguments() = default;
  EpilogueArguments(const CutlassPyEpilogue& e, bool swap)
      : alpha(e.alpha),
        beta(e.beta),
        scale_out(e.scale_out),
        bias(e.bias, swap),
        scale_a(e.scale_a, swap),
        scale_b(e.scale_b, swap),
        parameters{float(e.parameters[0]), float(e.parameters[1])} {}
};

// The matrix that an epilogue reads or writes beside D: C is added, a gate is activated in the product's stead, aux is
// what D's activation is applied to.
enum class Role { none, source, gate, aux };

template <class Activation>
constexpr bool is_identity =
    std::is_same_v<Activation, activation::identity<true>> || std::is_same_v<Activation, activation::identity<false>>;

// alpha * acc; with `scaled` times scale_a, scale_b and at the end scale_out; with `Bias` (its dtype, or void) plus
// that; `Activation` of all; a matrix in that role, in D's dtype; `sums` of D's columns for a bias gradient.
template <class Activation, class D, class Bias, bool scaled, Role role, bool sums>
struct Fused {
  using Matrices = std::conditional_t<role == Role::none, Dtypes<>, Dtypes<D>>;
  static constexpr int matrices = role != Role::none, reads = role == Role::source || role == Role::gate;
  static constexpr int operands = matrices + sums;
  static constexpr Beside matrix_beside{Beside::like_d, int(sizeof(typename D::Type))};
  static constexpr Beside sums_beside{Beside::column_sums, 0, Reduces::columns};
  static constexpr Beside beside[] = {matrices ? matrix_beside : sums_beside, sums_beside};
  using Sums = Reduction<user::Sum, 0, matrices, Reduces::columns>;
  using Reductions = std::conditional_t<sums, sm90::Reductions<Sums>, sm90::Reductions<>>;
  static constexpr bool short_code =
      !scaled && !sums && role == Role::none && std::is_void_v<Bias> && is_identity<Activation>;
  static constexpr int vectors = 2 * scaled + !std::is_void_v<Bias>;
  // Sums in s32 that stay so are exact: legality.py lets nothing be applied to them.
  using Number = std::conditional_t<std::is_same_v<D, numbers::S32>, int32_t, float>;

  const EpilogueArguments& given;
  Number alpha, beta = 0;
  float scale_out = 1;

  __device__ explicit Fused(const EpilogueArguments& given, const void*)
      : given(given), alpha(Number(given.alpha.read())) {
    if constexpr (role == Role::source) beta = Number(given.beta.read());
    if constexpr (scaled) scale_out = given.scale_out.read();
  }

  // use(place, vector, its dtype) of each vector that is there.
  template <class Use>
  static __device__ void each_vector(const EpilogueArguments& given, Use use) {
    if constexpr (scaled) {
      if (given.scale_a.data) use(0, given.scale_a, numbers::F32{});
      if (given.scale_b.data) use(1, given.scale_b, numbers::F32{});
    }
    if constexpr (!std::is_void_v<Bias>) {
      if (given.bias.data) use(vectors - 1, given.bias, Bias{});
    }
  }

  // z: the sums, and then D; matrix: what was read (0 of one that is not there), and what is to be written.
  // take(results) sees what is reduced.
  template <class Take>
  __device__ void apply(Number (&z)[kUnit], Number (*matrix)[kUnit], const Corner&, const Staged& staged,
                        Take take) const {
#pragma unroll
    for (Number& x : z) x *= alpha;
    if constexpr (scaled) {
      const auto multiply = [&](int i, float x) { z[i] *= x; };
      if (given.scale_a.data) given.scale_a.each(staged, 0, multiply);
      if (given.scale_b.data) given.scale_b.each(staged, 1, multiply);
    }
    if constexpr (role == Role::source) {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) z[i] += beta * matrix[0][i];
    }
    if constexpr (!std::is_void_v<Bias>) {
      if (given.bias.data) given.bias.each(staged, vectors - 1, [&](int i, float x) { z[i] += x; });
    }
    if constexpr (std::is_same_v<Number, float>) activate(z, matrix);
    if constexpr (sums) take(&z);
  }

 private:
  __device__ void activate(float (&z)[kUnit], float (*matrix)[kUnit]) const {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if constexpr (role == Role::aux) matrix[0][i] = z[i];
      if constexpr (role == Role::gate) {
        z[i] *= Activation::apply(matrix[0][i], given.parameters);
      } else {
        z[i] = Activation::apply(z[i], given.parameters);
      }
      if constexpr (scaled) z[i] *= scale_out;
    }
  }
};

}  // namespace cutlass_py::sm90
