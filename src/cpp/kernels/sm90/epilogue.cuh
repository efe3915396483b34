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
__device__ constexpr int row_of(int i) { return i / 2 % 2; }  // which of the two it is, and which of the four columns
__device__ constexpr int column_of(int i) { return i % 2 + i / 4 * 2; }
__device__ constexpr int row_in_unit(int i) { return row_of(i) * 8; }
__device__ constexpr int column_in_unit(int i) { return i % 2 + i / 4 * 8; }
// The first of them.
__device__ inline int own_row() { return int(threadIdx.x) % 128 / 32 * 16 + int(threadIdx.x) % 32 / 4; }
__device__ inline int own_column() { return int(threadIdx.x) % 4 * 2; }

// Where something begins, and the end of the matrix.
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

// One number for every row or every column, or for all; none where there is no data.
struct Vector {
  const void* data;
  int32_t m, n;  // strides in elements: along the left operand, along the right one
  int64_t batch;

  Vector() = default;
  Vector(const CutlassPyArray& x, bool swap)
      : data(x.data), m(int32_t(swap ? x.col : x.row)), n(int32_t(swap ? x.row : x.col)), batch(x.batch) {}

  // Of a tile that begins at this corner: every 128th number of those along it, from this thread's on. As memory has
  // them, for to convert them is to wait for them. What is outside reads the last one.
  template <class T, int count>
  __device__ void read(const Corner& at, uint32_t (&bits)[count]) const {
    const auto* from = static_cast<const typename T::Type*>(data) + at.batch * batch;
    const int first = (n ? at.n : at.m) + int(threadIdx.x) % 128, end = n ? at.end_n : at.end_m;
#pragma unroll
    for (int i = 0; i < count; ++i) bits[i] = from[int64_t(min(first + i * 128, end - 1)) * (n ? n : m)];
  }
};

// What vectors come to: lines of numbers for a tile's columns and for its rows. The first lines are factors, the others
// are added; a vector changes nothing of what it does not lie along.
template <int count_, int factors_>
struct Lines {
  static constexpr int count = count_, factors = factors_, room = count ? count : 1;

  static __device__ constexpr float nothing(int line) { return line < factors ? 1 : -0.0f; }
  static __device__ void join(int line, float& to, float x) { to = line < factors ? to * x : to + x; }
};

struct EpilogueArguments {
  Factor alpha, beta, scale_out;
  Vector bias, scale_a, scale_b;
  activation::Number function;
  float parameters[2];
  bool bias_by_rows;  // there is one, with a number for every row
  bool scaled;        // there are scales, or factors in blocks

  EpilogueArguments() = default;
  EpilogueArguments(const CutlassPyEpilogue& e, bool swap)
      : alpha(e.alpha),
        beta(e.beta),
        scale_out(e.scale_out),
        bias(e.bias, swap),
        scale_a(e.scale_a, swap),
        scale_b(e.scale_b, swap),
        function(activation::Number(e.activation)),
        parameters{float(e.parameters[0]), float(e.parameters[1])},
        bias_by_rows(bias.data && !bias.n),
        scaled(scale_a.data || scale_b.data || scale_out.device || scale_out.value != 1) {}
};

// The matrix that an epilogue reads or writes beside D: C is added, a gate is activated in the product's stead (aux, by
// a derivative), aux is what D's activation is applied to.
enum class Role { none, source, gate, aux };

// alpha * acc; with `scaled` times scale_a, scale_b and at the end scale_out; plus a bias of dtype `Bias` (void: none);
// an activation of all; a matrix in that role, in D's dtype; `sums_of_columns` of D for a bias gradient. Which vectors
// there are, along which axis they lie, and which activation it is, the launch tells: one function serves them all.
template <class D, class Bias, bool scaled, Role role, bool sums_of_columns>
struct Fused {
  static constexpr bool biased = !std::is_void_v<Bias>, with_matrix = role != Role::none;
  using Matrices = std::conditional_t<with_matrix, Dtypes<D>, Dtypes<>>;
  static constexpr int operands = with_matrix + sums_of_columns, reads = role == Role::source || role == Role::gate;
  static constexpr Beside matrix{Beside::like_d, int(sizeof(typename D::Type))};
  static constexpr Beside column_sums{Beside::column_sums, 0, Reduces::columns};
  static constexpr Beside beside[] = {with_matrix ? matrix : column_sums, column_sums};
  using Sums = Reduction<user::Sum, 0, with_matrix, Reduces::columns>;
  using Reductions = std::conditional_t<sums_of_columns, sm90::Reductions<Sums>, sm90::Reductions<>>;
  static constexpr bool quick = sizeof(typename D::Type) <= 2;  // its approximations round less than D does
  static constexpr int most_straight(int held) {                // units
    return !quick || held > 160 ? 1 : scaled || sums_of_columns ? 2 : 4;
  }
  static constexpr int vectors = 2 * scaled + biased;
  using Lines = sm90::Lines<scaled + biased, scaled>;  // both scales, and the bias
  // Whether what is plain has code of its own; beside that of f32 results, so many sums would not stay in registers.
  static constexpr bool may_be_plain(int held) { return !with_matrix && !sums_of_columns && (quick || held <= 160); }
  // Sums in s32 that stay so are exact: legality.py lets nothing be applied to them.
  using Number = std::conditional_t<std::is_same_v<D, numbers::S32>, int32_t, float>;
  static_assert(biased ? std::is_same_v<Number, float> : !scaled);

  const EpilogueArguments& given;
  Number alpha, beta = 0;
  float scale_out = 1;

  __device__ explicit Fused(const EpilogueArguments& given, const void*)
      : given(given), alpha(Number(given.alpha.read())) {
    if constexpr (role == Role::source) beta = Number(given.beta.read());
    if constexpr (scaled) scale_out = given.scale_out.read();
  }

  // use(place, line, vector, its dtype) of each vector that is there.
  template <class Use>
  static __device__ void each_vector(const EpilogueArguments& given, const void*, Use use) {
    if constexpr (scaled) {
      if (given.scale_a.data) use(0, 0, given.scale_a, numbers::F32{});
      if (given.scale_b.data) use(1, 0, given.scale_b, numbers::F32{});
    }
    if constexpr (biased) {
      if (given.bias.data) use(vectors - 1, scaled, given.bias, Bias{});
    }
  }

  // Whether there is nothing beside alpha; and what a sum comes to then.
  static __device__ bool is_plain(const EpilogueArguments& given) {
    return given.function == activation::Number::identity && !given.bias.data && !(scaled && given.scaled);
  }
  __device__ Number scaled_alone(Number sum) const { return alpha * sum; }

  // D of some units in z, from a column of the part on: of each number of sums(use), which calls use(unit, place, sum)
  // where it has them in registers, so that they are multiplied and added to as they are picked. `matrices`: of each
  // unit what was read, and what is to be written. take(results, i) sees what is reduced of the i-th unit.
  template <int units, class Matrices, class Staged, class Pick, class Take>
  __device__ void apply(Number (&z)[units][kUnit], Matrices (&matrices)[units], const Staged& lines, int column,
                        Pick sums, Take take) const {
    const auto each = [&](auto use) {
#pragma unroll
      for (int i = 0; i < units; ++i) {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) use(z[i][j], matrices[i][0][j], i, j);
      }
    };
    float columns[Lines::room][units][4], rows[2];
#pragma unroll
    for (int line = 0; line < Lines::count; ++line) {
#pragma unroll
      for (int i = 0; i < units; ++i) lines.get_columns(line, column + i * kUnitColumns, columns[line][i]);
    }
    const auto& added = columns[scaled];
    if constexpr (scaled) {
      lines.get_rows(0, rows);
      rows[0] *= alpha, rows[1] *= alpha;
      sums([&](int i, int j, Number x) { z[i][j] = multiplied(x, rows[row_of(j)]); });
      each([&](Number& x, const Number&, int i, int j) {
        x = x * columns[0][i][column_of(j)] + added[i][column_of(j)];
      });
    } else if constexpr (!biased) {
      sums([&](int i, int j, Number x) { z[i][j] = alpha * x; });
      if constexpr (role == Role::source) each([&](Number& x, const Number& source, int, int) { x += beta * source; });
    } else if constexpr (role == Role::source) {
      sums([&](int i, int j, Number x) { z[i][j] = multiplied(x, alpha); });
      each([&](Number& x, const Number& source, int i, int j) { x = x + beta * source + added[i][column_of(j)]; });
    } else {
      sums([&](int i, int j, Number x) { z[i][j] = multiplied_and_added(x, alpha, added[i][column_of(j)]); });
    }
    if constexpr (biased) {
      if (given.bias_by_rows) {
        lines.get_rows(scaled, rows);
        each([&](Number& x, const Number&, int, int j) { x += rows[row_of(j)]; });
      }
    }
    finish(each);
    if constexpr (sums_of_columns) {
#pragma unroll
      for (int i = 0; i < units; ++i) take(&z[i], i);
    }
  }

 private:
  // each(use(number, what is beside it, its unit, its place)). Branches stand around all units: between those of one,
  // the others would not be computed meanwhile.
  template <class Each>
  __device__ void finish(Each each) const {
    if constexpr (role == Role::aux) each([](const Number& x, Number& aux, int, int) { aux = x; });
    if constexpr (std::is_same_v<Number, float>) {
      if (role == Role::gate || given.function != activation::Number::identity)
        activation::with_activation<quick, role == Role::gate>(given.function, [&](auto f) {
          each([&](float& x, const float& gate, int, int) {
            if constexpr (role == Role::gate) {
              x *= f.apply(gate, given.parameters);
            } else {
              x = f.apply(x, given.parameters);
            }
          });
        });
    }
    if constexpr (scaled) each([&](Number& x, const Number&, int, int) { x *= scale_out; });
  }
};

}  // namespace cutlass_py::sm90
