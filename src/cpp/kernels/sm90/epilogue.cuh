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

  // Of a part that begins at this corner: the numbers of this thread's two rows, or the first is that of the column
  // which it stages. As memory has them, for to convert them is to wait for them. What is outside reads the last one.
  template <class T>
  __device__ void read(const Corner& at, uint32_t (&bits)[2]) const {
    const auto* from = static_cast<const typename T::Type*>(data) + at.batch * batch;
    const int first = n ? at.n + int(threadIdx.x) % kStaged : at.m + own_row(), end = n ? at.end_n : at.end_m;
#pragma unroll
    for (int i = 0; i < 2; ++i) bits[i] = from[int64_t(min(first + i * 8, end - 1)) * (n ? n : m)];
  }
};

// What vectors come to in a part: a number for each of this thread's rows, and one for the column which it stages. The
// first lines are factors, the others are added; a vector changes nothing of what it does not lie along.
template <int count_, int factors_>
struct Lines {
  static constexpr int count = count_, factors = factors_, room = count ? count : 1;
  using Columns = float[room][4];  // of a thread in a unit

  float rows[room][2], column[room];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < count; ++i) rows[i][0] = rows[i][1] = column[i] = i < factors ? 1 : -0.0f;
  }
  template <class T>
  __device__ void take(int line, const Vector& x, const uint32_t (&bits)[2]) {
    const auto join = [&](float& to, int i) {
      const float value = T::value(typename T::Type(bits[i]));
      to = line < factors ? to * value : to + value;
    };
    if (x.n) {
      join(column[line], 0);
    } else {
      join(rows[line][0], 0), join(rows[line][1], 1);
    }
  }

  // Of the i-th number in a unit.
  __device__ float sum(int line, const Columns& columns, int i) const {
    return rows[line][row_of(i)] + columns[line][column_of(i)];
  }
};

struct EpilogueArguments {
  Factor alpha, beta, scale_out;
  Vector bias, scale_a, scale_b;
  activation::Number function;
  float parameters[2];
  bool lined;  // there are vectors
  bool plain;  // there is nothing but alpha

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
        lined(e.bias.data || e.scale_a.data || e.scale_b.data),
        plain(!lined && !e.scale_out.device && e.scale_out.value == 1 && function == activation::Number::identity) {}
};

// The matrix that an epilogue reads or writes beside D: C is added, a gate is activated in the product's stead (aux, by
// a derivative), aux is what D's activation is applied to.
enum class Role { none, source, gate, aux };

// alpha * acc; with `scaled` times scale_a, scale_b and at the end scale_out; plus a bias of dtype `Bias` (void: none);
// an activation of all; a matrix in that role, in D's dtype; `sums` of D's columns for a bias gradient. Which vectors
// there are, along which axis they lie, and which activation it is, the launch tells: one function serves them all.
template <class D, class Bias, bool scaled, Role role, bool sums>
struct Fused {
  static constexpr bool biased = !std::is_void_v<Bias>, with_matrix = role != Role::none;
  using Matrices = std::conditional_t<with_matrix, Dtypes<D>, Dtypes<>>;
  static constexpr int operands = with_matrix + sums, reads = role == Role::source || role == Role::gate;
  static constexpr Beside matrix{Beside::like_d, int(sizeof(typename D::Type))};
  static constexpr Beside column_sums{Beside::column_sums, 0, Reduces::columns};
  static constexpr Beside beside[] = {with_matrix ? matrix : column_sums, column_sums};
  using Sums = Reduction<user::Sum, 0, with_matrix, Reduces::columns>;
  using Reductions = std::conditional_t<sums, sm90::Reductions<Sums>, sm90::Reductions<>>;
  static constexpr bool quick = sizeof(typename D::Type) <= 2;  // its approximations round less than D does
  static constexpr int most_straight(int held) {                // units
    return !quick || held > 160 ? 1 : scaled || sums ? 2 : 4;
  }
  static constexpr int vectors = 2 * scaled + biased;
  using Lines = sm90::Lines<scaled + biased, scaled>;  // both scales, and the bias
  // Whether what is plain has code of its own; beside that of f32 results, so many sums would not stay in registers.
  static constexpr bool may_be_plain(int held) { return !with_matrix && !sums && (quick || held <= 160); }
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

  static __device__ bool lined(const EpilogueArguments& given) { return given.lined; }

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

  // z: the sums of some units, and then D; `read`: of each what was read beside it, and what is to be written.
  // take(results, i) sees what is reduced of the i-th unit.
  template <int units, class Unit, class Take>
  __device__ void apply(Number (&z)[units][kUnit], Unit (&read)[units], const Lines& lines, Take take) const {
    const auto each = [&](auto use) {
#pragma unroll
      for (int i = 0; i < units; ++i) {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) use(z[i][j], read[i], j);
      }
    };
    if constexpr (scaled) {
      begin_scaled(each, lines);
    } else {
      begin(each, lines);
    }
    finish(each);
    if constexpr (sums) {
#pragma unroll
      for (int i = 0; i < units; ++i) take(&z[i], i);
    }
  }

  // All that there is to do where nothing is beside alpha.
  template <int units>
  __device__ void scale(Number (&z)[units][kUnit]) const {
#pragma unroll
    for (auto& unit : z) {
#pragma unroll
      for (Number& x : unit) x *= alpha;
    }
  }

 private:
  // each(use(number, what is beside its unit, its place)). Branches stand around all units: between those of one, the
  // others would not be computed meanwhile. A bias is added as the sum is scaled, by one instruction.
  template <class Each>
  __device__ void begin(Each each, const Lines& lines) const {
    const auto add = [&](auto plus) {
      each([&](Number& x, const auto& unit, int j) {
        Number z = alpha * x;
        if constexpr (role == Role::source) z += beta * unit.beside[0][j];
        x = plus(z, unit, j);
      });
    };
    if constexpr (biased) {
      if (given.lined && given.bias.n)
        return add([](Number z, const auto& unit, int j) { return z + unit.columns[scaled][column_of(j)]; });
      if (given.lined) return add([&](Number z, const auto&, int j) { return z + lines.rows[scaled][row_of(j)]; });
    }
    add([](Number z, const auto&, int) { return z; });
  }
  template <class Each>
  __device__ void begin_scaled(Each each, const Lines& lines) const {
    if (!given.lined) return each([&](Number& x, const auto&, int) { x *= alpha; });
    each([&](Number& x, const auto& unit, int j) {
      x *= alpha * lines.rows[0][row_of(j)], x *= unit.columns[0][column_of(j)];
    });
    if (given.bias.data && given.bias.n) {
      each([&](Number& x, const auto& unit, int j) { x += unit.columns[scaled][column_of(j)]; });
    } else if (given.bias.data) {
      each([&](Number& x, const auto&, int j) { x += lines.rows[scaled][row_of(j)]; });
    }
  }

  template <class Each>
  __device__ void finish(Each each) const {
    if constexpr (role == Role::aux) each([](Number& x, auto& unit, int j) { unit.beside[0][j] = x; });
    if constexpr (std::is_same_v<Number, float>) {
      activation::with_activation<quick, role == Role::gate>(given.function, [&](auto f) {
        each([&](float& x, const auto& unit, int j) {
          if constexpr (role == Role::gate) {
            x *= f.apply(unit.beside[0][j], given.parameters);
          } else {
            x = f.apply(x, given.parameters);
          }
        });
      });
    }
    if constexpr (scaled) each([&](Number& x, const auto&, int) { x *= scale_out; });
  }
};

}  // namespace cutlass_py::sm90
