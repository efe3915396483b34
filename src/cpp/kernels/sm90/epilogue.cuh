// What happens to sums before they are stored: kernel.h's formula, of which a kernel has what its name says.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "abi/kernel.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/numbers.cuh"
#include "kernels/sm90/design.cuh"
#include "kernels/sm90/instructions.cuh"

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
  int64_t batch, values;

  Vector() = default;
  Vector(const CutlassPyArray& x, bool swap, int64_t values = 0)
      : data(x.data),
        m(int32_t(swap ? x.col : x.row)),
        n(int32_t(swap ? x.row : x.col)),
        batch(x.batch),
        values(values) {}

  // Of a tile that begins at this corner: every 128th number of those along it, from this thread's on. As memory has
  // them, for to convert them is to wait for them. What is outside reads the last one. Of pairs, the lines of a tile
  // are gates and then values, whose numbers lie `values` elements behind.
  template <class X, class T, int count>
  __device__ void read(const Corner& at, uint32_t (&bits)[count]) const {
    const auto* from = static_cast<const typename T::Type*>(data) + at.batch * batch;
    const int begin = n ? at.n : at.m, end = n ? at.end_n : at.end_m;
    const bool pairs = X::pairs == Pairs::right ? n != 0 : X::pairs == Pairs::left && n == 0;
    constexpr int gates = X::pairs == Pairs::right ? X::d_columns : X::d_rows;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      int line = thread_anew() % 128 + i * 128;
      const bool is_value = pairs && line >= gates;
      if (is_value) line -= gates;
      bits[i] = from[int64_t(min(begin + line, end - 1)) * (n ? n : m) + (is_value ? values : 0)];
    }
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
  bool adds_c;
  activation::Number function;
  float parameters[2];

  EpilogueArguments() = default;
  static bool reads_c(const CutlassPyEpilogue& e) { return e.c.data && (e.beta.device || e.beta.value != 0); }
  EpilogueArguments(const CutlassPyEpilogue& e, const CutlassPyPairs& pairs, bool swap)
      : alpha(e.alpha),
        beta(e.beta),
        scale_out(e.scale_out),
        bias(e.bias, swap, pairs.bias),
        scale_a(e.scale_a, swap),
        scale_b(e.scale_b, swap, pairs.scale_b),
        adds_c(reads_c(e)),
        function(activation::Number(e.activation)),
        parameters{float(e.parameters[0]), float(e.parameters[1])} {}
};

// The matrices that an epilogue reads or writes beside D: C is added, a gate is activated in the product's stead (aux,
// by a derivative), aux is what D's activation is applied to. Of pairs, a gate that is a product as well is activated
// (gated), and both halves are stored in aux (gated_aux); or those are read, and D's halves are their gradients.
enum class Role { none, source, gate, aux, gated, gated_aux, d_gated };

// alpha * acc; with `scaled` times scale_a, scale_b and at the end scale_out; plus a bias of dtype `Bias` (void: none);
// an activation of all; a matrix in that role, in D's dtype; `sums_of_columns` of D for a bias gradient. Which vectors
// there are, along which axis they lie, and which activation it is, the launch tells: one function serves them all.
template <class D, class Bias, bool scaled, Role role, bool sums_of_columns>
struct Fused {
  static constexpr bool biased = !std::is_void_v<Bias>, pairs = role >= Role::gated,
                        gated = role == Role::gated || role == Role::gated_aux;
  static constexpr int matrices = role == Role::none || role == Role::gated ? 0
                                  : role == Role::gated_aux                 ? 2
                                  : role == Role::d_gated                   ? 3
                                                                            : 1;
  static constexpr bool with_matrix = matrices > 0;
  using Matrices = std::conditional_t<
      matrices == 3, Dtypes<D, D, D>,
      std::conditional_t<matrices == 2, Dtypes<D, D>, std::conditional_t<matrices == 1, Dtypes<D>, Dtypes<>>>>;
  static constexpr int operands = matrices + sums_of_columns + gated;
  static constexpr int reads = role == Role::source || role == Role::gate ? 1 : role == Role::d_gated ? 2 : 0;
  static constexpr int size = int(sizeof(typename D::Type)), b_values = matrices;  // the latter where gated
  static constexpr Beside like_d{Beside::like_d, size}, aux_values{Beside::aux_values, size},
      d_values{Beside::d_values, size}, of_b{Beside::b_values, 0};
  static constexpr Beside column_sums{Beside::column_sums, 0, Reduces::columns};
  static constexpr Beside beside[] = {with_matrix ? like_d
                                      : gated     ? of_b
                                                  : column_sums,
                                      pairs ? aux_values : column_sums, gated ? of_b : d_values};
  using Sums = Reduction<user::Sum, 0, with_matrix, Reduces::columns>;
  using Reductions = std::conditional_t<sums_of_columns, sm90::Reductions<Sums>, sm90::Reductions<>>;
  static constexpr bool quick = sizeof(typename D::Type) <= 2;  // its approximations round less than D does
  // Beside so many sums of a thread there are few registers.
  static constexpr bool roomy(int held) { return held <= 160 || (quick && !scaled && !with_matrix); }
  static constexpr int most_straight(int held) {  // units
    return !quick || !roomy(held) ? 1 : held > 160 || sums_of_columns ? 2 : 4;
  }
  static constexpr int vectors = 2 * scaled + biased;
  using Lines = sm90::Lines<scaled + biased, scaled>;  // both scales, and the bias
  static constexpr bool may_be_linear(int held) { return !with_matrix && !pairs && !sums_of_columns && roomy(held); }
  // Sums in s32 that stay so are exact: legality.py lets nothing be applied to them.
  using Number = std::conditional_t<std::is_same_v<D, numbers::S32>, int32_t, float>;
  static_assert(biased ? std::is_same_v<Number, float> : !scaled);
  static_assert(!scaled || (role != Role::source && role != Role::d_gated));
  static_assert(!pairs || (!sums_of_columns && std::is_same_v<Number, float>));

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
  static __device__ bool has_vectors(const EpilogueArguments& given) {
    return biased && (given.bias.data || (scaled && (given.scale_a.data || given.scale_b.data)));
  }
  // Whether `scale` and `scale_result` are all there is.
  static __device__ bool is_linear(const EpilogueArguments& given) {
    return given.function == activation::Number::identity;
  }

  // acc * factor + rest, where the rest is a bias: of units from a column of the part on. Where C is part of it, that
  // is to come.
  template <int units, class Staged>
  __device__ void scale(Number (&z)[units][kUnit], const Staged& lines, int column) const {
    if constexpr (role == Role::source) return;
    if constexpr (!biased) {
      each(z, [&](Number& x, int, int) { x *= alpha; });
    } else {
      const bool vectors = has_vectors(given);
      const Line<units, 0, scaled> factors(lines, column, vectors);
      const Line<units, scaled, true> added(lines, column, vectors);
      each(z, [&](Number& x, int i, int j) {
        // The scales first: the same where the operands have changed places.
        const float factor = scaled ? factors.rows[row_of(j)] * factors.columns[i][column_of(j)] * alpha : alpha;
        x = fmaf(x, factor, added.columns[i][column_of(j)] + added.rows[row_of(j)]);
      });
    }
  }
  // The rest: `matrices`, of each unit what was read, and what is to be written. take(results, i) sees what is reduced
  // of the i-th unit. Branches stand around all units: between those of one, the others would not be computed
  // meanwhile.
  template <int units, class Matrices, class Staged, class Take>
  __device__ void finish(Number (&z)[units][kUnit], Matrices (&matrices)[units], const Staged& lines, int column,
                         Take take) const {
    if constexpr (role == Role::source && !biased) {
      each(z, [&](Number& x, int i, int j) { x = x * alpha + beta * matrices[i][0][j]; });
    } else if constexpr (role == Role::source) {
      const Line<units, scaled, true> added(lines, column, has_vectors(given));
      const auto bias = [&](int i, int j) { return added.columns[i][column_of(j)] + added.rows[row_of(j)]; };
      if (given.adds_c) {  // where it takes the product away, the bias is left
        each(z, [&](Number& x, int i, int j) { x = fmaf(beta, matrices[i][0][j], x * alpha) + bias(i, j); });
      } else {
        each(z, [&](Number& x, int i, int j) { x = fmaf(x, alpha, bias(i, j)); });
      }
    }
    if constexpr (role == Role::aux) each(z, [&](const Number& x, int i, int j) { matrices[i][0][j] = x; });
    if constexpr (role == Role::gated_aux) each(z, [&](const Number& x, int i, int j) { matrices[i][1][j] = x; });
    if constexpr (role == Role::d_gated) {
      activation::with_differentiated<quick>(given.function, [&](auto f, auto derivative) {
        each(z, [&](float& x, int i, int j) {
          const float gate = matrices[i][0][j], value = matrices[i][1][j];
          matrices[i][2][j] = x * f.apply(gate, given.parameters);
          x *= value * derivative.apply(gate, given.parameters);
        });
      });
    } else if constexpr (std::is_same_v<Number, float>) {
      if (role == Role::gate || gated || given.function != activation::Number::identity)
        activation::with_activation<quick, role == Role::gate>(given.function, [&](auto f) {
          each(z, [&](float& x, int i, int j) {
            if constexpr (role == Role::gate || gated) {
              x *= f.apply(matrices[i][0][j], given.parameters);
            } else {
              x = f.apply(x, given.parameters);
            }
          });
        });
    }
    scale_result(z);
    if constexpr (sums_of_columns) {
#pragma unroll
      for (int i = 0; i < units; ++i) take(&z[i], i);
    }
  }
  template <int units>
  __device__ void scale_result(Number (&z)[units][kUnit]) const {
    if constexpr (scaled) each(z, [&](Number& x, int, int) { x *= scale_out; });
  }

 private:
  // use(number, its unit, its place)
  template <int units, class Use>
  static __device__ void each(Number (&z)[units][kUnit], Use use) {
#pragma unroll
    for (int i = 0; i < units; ++i) {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) use(z[i][j], i, j);
    }
  }
  // A line's numbers for some units, if it is read; where no vector is there, what changes nothing.
  template <int units, int line, bool read>
  struct Line {
    float columns[units][4], rows[2];

    template <class Staged>
    __device__ Line(const Staged& lines, int column, bool there) {
#pragma unroll
      for (auto& unit : columns) {
#pragma unroll
        for (float& x : unit) x = Lines::nothing(line);
      }
      rows[0] = rows[1] = Lines::nothing(line);
      if (!there || !read) return;
      lines.get_rows(line, rows);
#pragma unroll
      for (int i = 0; i < units; ++i) lines.get_columns(line, column + i * kUnitColumns, columns[i]);
    }
  };
};

}  // namespace cutlass_py::sm90
