// Shapes by numpy.matmul's rules: vectors, broadcasting, and the batch as one stride and a loop over the rest.
#include <algorithm>
#include <iterator>

#include "operations/gemm/canonical.h"

namespace cutlass_py {
namespace {

void check_extents(const Operand& x) {
  if (x.rank < 1) refuse(found(x).expects("at least 1 dimension"));
  for (int i = 0; i < x.rank; ++i) {
    if (x.shape[i] < 0) refuse(found(x).hints("extents must not be negative"));
    if (x.shape[i] > kMostExtent)
      refuse(found(x).hints("extents above " + std::to_string(kMostExtent) + " are not supported"));
  }
}

// numpy's rule: aligned at the end, equal or 1 on one side.
void broadcast(const Operand& a, const Operand& b, Extents& e) {
  const int lead_a = std::max(a.rank - 2, 0), lead_b = std::max(b.rank - 2, 0);
  e.rank = std::max(lead_a, lead_b);
  for (int i = 0; i < e.rank; ++i) {
    const int ia = i - (e.rank - lead_a), ib = i - (e.rank - lead_b);
    const int64_t x = ia < 0 ? 1 : a.shape[ia], y = ib < 0 ? 1 : b.shape[ib];
    if (x != y && x != 1 && y != 1) refuse(found(a).but(found(b)).hints("batch extents must agree or be 1"));
    e.batch[i] = x == 1 ? y : x;
  }
}

// Whether the outer of two batch dimensions continues the inner one for every operand.
bool continues(const BatchedOperands& parts, int outer, int inner, int64_t extent) {
  for (int i = 0; i < parts.count; ++i) {
    const BatchedOperand& part = parts.items[i];
    if (part.strides[outer] != part.strides[inner] * extent) return false;
  }
  return true;
}

// Drops a dimension of the batch.
void drop(BatchedOperands& parts, int64_t* extents, int& rank, int dimension) {
  --rank;
  for (int i = dimension; i < rank; ++i) {
    extents[i] = extents[i + 1];
    for (int j = 0; j < parts.count; ++j) parts.items[j].strides[i] = parts.items[j].strides[i + 1];
  }
}

bool merge_two(BatchedOperands& parts, int64_t* extents, int& rank) {
  for (int outer = 0; outer < rank; ++outer) {
    for (int inner = 0; inner < rank; ++inner) {
      if (outer == inner || extents[outer] > kMostExtent / extents[inner]) continue;
      if (!continues(parts, outer, inner, extents[inner])) continue;
      extents[inner] *= extents[outer];
      drop(parts, extents, rank, outer);
      return true;
    }
  }
  return false;
}

// Every combination of indices of these dimensions, as what it moves each operand by.
std::vector<Shift> all_shifts(const BatchedOperands& parts, const int64_t* extents, int rank) {
  std::vector<Shift> shifts{Shift{}};
  for (int i = 0; i < rank; ++i) {
    const size_t before = shifts.size();
    shifts.reserve(before * size_t(extents[i]));
    for (int64_t index = 1; index < extents[i]; ++index) {
      for (size_t j = 0; j < before; ++j) {
        Shift shift = shifts[j];
        for (int x = 0; x < parts.count; ++x) {
          const BatchedOperand& part = parts.items[x];
          if (part.role >= 0) shift.bytes[part.role] += index * part.strides[i] * element_size(*part.matrix);
        }
        shifts.push_back(shift);
      }
    }
  }
  return shifts;
}

}  // namespace

int Extents::result(int64_t* shape) const {
  int rank_of_result = std::copy(batch, batch + rank, shape) - shape;
  if (!no_rows) shape[rank_of_result++] = m;
  if (!no_cols) shape[rank_of_result++] = result_columns();
  return rank_of_result;
}

Extents extents_of(const Operand& a, const Operand& b) {
  check_extents(a);
  check_extents(b);
  Extents e;
  e.no_rows = a.rank == 1, e.no_cols = b.rank == 1;
  e.m = e.no_rows ? 1 : a.shape[a.rank - 2];
  e.n = e.no_cols ? 1 : b.shape[b.rank - 1];
  e.k = a.shape[a.rank - 1];
  if (e.k != b.shape[e.no_cols ? 0 : b.rank - 2]) refuse(found(a).but(found(b)).hints("inner extents must agree"));
  broadcast(a, b, e);
  return e;
}

bool batch_fits(const Operand& x, int core, const Extents& e) {
  const int lead = x.rank - core;
  if (lead < 0 || lead > e.rank) return false;
  for (int i = 0; i < lead; ++i) {
    if (x.shape[i] != 1 && x.shape[i] != e.batch[e.rank - lead + i]) return false;
  }
  return true;
}

bool fits_result(const Operand& x, const Extents& e) {
  int64_t shape[kMaxRank];
  const int rank = e.result(shape), core = e.core(), lead = x.rank - core;
  const bool same_matrix = lead >= 0 && std::equal(x.shape + lead, x.shape + x.rank, shape + rank - core);
  return same_matrix && batch_fits(x, core, e);
}

void check_result_shape(const Operand& x, const Extents& e, bool broadcast) {
  int64_t shape[kMaxRank];
  const int rank = e.result(shape), core = e.core();
  if (x.rank == rank && std::equal(x.shape, x.shape + rank, shape)) return;
  if (broadcast && fits_result(x, e)) return;
  const std::string full = shape_text(shape, rank);
  const bool either = broadcast && e.rank;
  refuse(found(x).expects(either ? shape_text(shape + e.rank, core) + " or " + full : full));
}

Matrix matrix_of(const Operand& x, bool no_rows, bool no_cols) {
  Matrix matrix{x.data, x.dtype, 0, 0, 0};
  int axis = x.rank;
  if (!no_cols) matrix.col = x.strides[--axis];
  if (!no_rows) matrix.row = x.strides[--axis];
  return matrix;
}

BatchedOperand& BatchedOperands::next(CutlassPyArray& matrix, int role) {
  if (size_t(count) == std::size(items)) throw std::logic_error(in_operation("more operands than there are"));
  BatchedOperand& part = items[count++];
  part.matrix = &matrix, part.role = role;
  return part;
}

void BatchedOperands::add(CutlassPyArray& matrix, Role role, const Operand& x, int core, const Extents& e) {
  add(matrix, int(role), x, core, e);
}

void BatchedOperands::add_user(CutlassPyArray& matrix, const Operand& x, int core, const Extents& e) {
  add(matrix, -1, x, core, e);
}

void BatchedOperands::add(CutlassPyArray& matrix, int role, const Operand& x, int core, const Extents& e) {
  BatchedOperand& part = next(matrix, role);
  const int missing = e.rank - (x.rank - core);
  for (int i = 0; i < e.rank; ++i) {
    part.strides[i] = i >= missing && x.shape[i - missing] > 1 ? x.strides[i - missing] : 0;
  }
}

void BatchedOperands::add_new(CutlassPyArray& matrix, Role role, const Extents& e) {
  BatchedOperand& part = next(matrix, int(role));
  int64_t step = e.m * e.result_columns();
  for (int i = e.rank - 1; i >= 0; --i) part.strides[i] = step, step *= e.batch[i];
}

int64_t collapse_batch(const Extents& e, BatchedOperands& parts, std::vector<Shift>& loop) {
  if (e.rank == 0) return 1;
  int rank = e.rank;
  int64_t extents[kMaxRank];
  std::copy(e.batch, e.batch + rank, extents);
  if (std::find(extents, extents + rank, 0) != extents + rank) return 0;
  for (int i = rank - 1; i >= 0; --i) {
    if (extents[i] == 1) drop(parts, extents, rank, i);
  }
  while (merge_two(parts, extents, rank)) {
  }
  if (rank == 0) return 1;
  const int largest = int(std::max_element(extents, extents + rank) - extents);
  const int64_t batch = extents[largest];
  for (int i = 0; i < parts.count; ++i) parts.items[i].matrix->batch = parts.items[i].strides[largest];
  drop(parts, extents, rank, largest);
  if (rank) loop = all_shifts(parts, extents, rank);
  return batch;
}

}  // namespace cutlass_py
