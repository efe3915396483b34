// The pieces that canonicalise (canonical.cpp) is put together from: shapes.cpp, epilogue.cpp, user_epilogue.cpp,
// overlap.cpp.
#pragma once

#include <limits>

#include "operations/gemm/problem.h"

namespace cutlass_py {

constexpr int kMostUserOperands = 16;                                        // of one epilogue
constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max() - 1023;  // CUTLASS rounds up to tiles in 32 bits

// ------------------------------------------------------------------------------------------------ shapes

// The extents of a product by numpy.matmul's rules: a vector counts as a row (a) or a column (b), whose axis the result
// does not have; the dimensions in front are broadcast.
struct Extents {
  int64_t m = 0, n = 0, k = 0;
  bool no_rows = false, no_cols = false;  // axes that the result does not have
  int rank = 0;                           // of the batch
  int64_t batch[kMaxRank];

  char pairs = 0;  // as in Problem: columns of B are 2 n, or those of the result

  int core() const { return 2 - no_rows - no_cols; }  // dimensions of one matrix of the result
  int64_t result_columns() const { return pairs == 'd' ? 2 * n : n; }
  // As if gates and values were products of their own: of B's columns; and of aux, which has both in either case.
  Extents of_b() const { return pairs == 'b' ? apart() : *this; }
  Extents of_aux() const { return pairs ? apart() : *this; }
  int result(int64_t* shape) const;  // writes the result's shape, returns its rank

 private:
  Extents apart() const {
    Extents x = *this;
    x.n *= 2, x.pairs = 0;
    return x;
  }
};

Extents extents_of(const Operand& a, const Operand& b);

// One operand as the batch sees it: its matrix, and its stride along each dimension of the batch, 0 where it repeats.
struct BatchedOperand {
  CutlassPyArray* matrix;
  int role;  // -1 for operands of a user's epilogue, whose calls have no loop
  int64_t strides[kMaxRank];
};

struct BatchedOperands {
  BatchedOperand items[kRoles + kMostUserOperands];
  int count = 0;

  // The last `core` dimensions of x are its matrix, which the caller fills in; the others are its batch.
  void add(CutlassPyArray& matrix, Role role, const Operand& x, int core, const Extents& extents);
  void add_user(CutlassPyArray& matrix, const Operand& x, int core, const Extents& extents);
  void add_new(CutlassPyArray& matrix, Role role, const Extents& extents);  // a row-major result

 private:
  void add(CutlassPyArray& matrix, int role, const Operand& x, int core, const Extents& extents);
  BatchedOperand& next(CutlassPyArray& matrix, int role);
};

// Whether the dimensions of x in front of its last `core` broadcast to the batch.
bool batch_fits(const Operand& x, int core, const Extents& extents);

// Whether x has the shape of the result, or one whose batch broadcasts to it.
bool fits_result(const Operand& x, const Extents& extents);
// Refuses x unless it has the shape of the result; `broadcast`: unless it fits.
void check_result_shape(const Operand& x, const Extents& extents, bool broadcast);

// x in the coordinates of the product; an axis that the result does not have has stride 0.
Matrix matrix_of(const Operand& x, bool no_rows, bool no_cols);

// Merges the dimensions of the batch where they lie regularly for every operand. The largest of what is left becomes
// the batch of the matrices, whose extent is returned; the others become the loop.
int64_t collapse_batch(const Extents& extents, BatchedOperands& parts, std::vector<Shift>& loop);

// ------------------------------------------------------------------------------------------------ epilogue

// C, vectors, factors, gate, aux and the rest of the epilogue, in the coordinates of the caller's D. Needs a, b, d,
// the accumulator and k of the problem; sets empty_product.
void read_epilogue(const Request& request, const Extents& extents, Call& call, BatchedOperands& parts);

// What an array is to D: its elements; whether it is a column (..., m, 1) or a row (..., 1, n); the axis that a vector
// goes along: 'n' for (n,) and (..., 1, n), 'm' for (..., m, 1), 0 where it is neither.
int64_t size_of(const Operand& x);
bool is_column(const Operand& x, const Extents& extents);
bool is_row(const Operand& x, const Extents& extents);
char axis_of(const Operand& x, const Extents& extents);
// A vector as a matrix that repeats it along the other axis.
Matrix vector_of(const Operand& x, char axis);

// ------------------------------------------------------------------------------------------------ user's epilogue

// Its operands; sets problem.user once the call is in canonical form.
void read_user(const Request& request, const Extents& extents, Call& call, BatchedOperands& parts);
void settle_user(const Request& request, Call& call);

// ------------------------------------------------------------------------------------------------ layouts

// log2 of bytes that every line of every matrix of an operand is aligned to. `lines`: bytes between them.
uint8_t alignment_of(const CutlassPyArray& x, int64_t lines, const Call& call, Role role,
                     const std::vector<void*>* pointers = nullptr);
// Layout and alignment of an operand that is read or written beside D. Where it lies as D does, its rows are given the
// leading dimension, which a single row has free.
void settle(CutlassPyArray& x, char& layout, uint8_t& align, const Call& call, Role role,
            const std::vector<void*>* pointers = nullptr);

// ------------------------------------------------------------------------------------------------ overlap

// Whatever is written overlaps neither itself nor anything else; what cannot be decided here becomes a suspect.
void check_overlap(const Request& request, Call& call);

}  // namespace cutlass_py
