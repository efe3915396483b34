#include "problem.h"

#include <algorithm>
#include <limits>

namespace cutlass_py {
namespace {

constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();

std::string shape_of(const Operand& x) {
  std::string text = "(";
  for (int i = 0; i < x.rank; ++i) text += (i ? ", " : "") + std::to_string(x.shape[i]);
  return text + (x.rank == 1 ? ",)" : ")");
}

std::string found(const Operand& x) { return std::string(x.name) + " is " + shape_of(x); }

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument("gemm: " + text); }
[[noreturn]] void refuse_dtype(const std::string& text) { throw DtypeError("gemm: " + text); }

void check_rank(const Operand& x) {
  if (x.rank != 2 && x.rank != 3) refuse(found(x) + "; expected 2 dimensions, or 3 with a batch in front");
  for (int i = 0; i < x.rank; ++i) {
    if (x.shape[i] < 0) refuse(found(x) + "; extents must not be negative");
    if (x.shape[i] > kMostExtent) {
      refuse(found(x) + "; extents above 2147483647 are not supported");
    }
  }
}

int64_t rows(const Operand& x) { return x.shape[x.rank - 2]; }
int64_t cols(const Operand& x) { return x.shape[x.rank - 1]; }
int64_t batch_of(const Operand& x) { return x.rank == 3 ? x.shape[0] : 1; }

// numpy's rule for one dimension: equal, or 1 on one side.
int64_t broadcast_batch(const Operand& a, const Operand& b) {
  int64_t x = batch_of(a), y = batch_of(b);
  if (x != y && x != 1 && y != 1) {
    refuse(found(a) + " but " + found(b) + "; batch extents must agree or be 1");
  }
  return x == 1 ? y : x;
}

Matrix matrix_of(const Operand& x, int64_t batch) {
  Matrix matrix{x.data, x.dtype, x.strides[x.rank - 2], x.strides[x.rank - 1], 0};
  if (batch > 1 && batch_of(x) > 1) matrix.batch = x.strides[0];
  return matrix;
}

void transpose(Matrix& x) { std::swap(x.row, x.col); }

int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Layout and leading dimension of a matrix of these extents. Rows that overlap or run backwards are 'x'.
char layout_of(const Matrix& x, int64_t rows, int64_t cols, int64_t& ld) {
  ld = 0;
  constexpr int64_t most_bytes = int64_t(1) << 40;  // of a TMA stride
  const int64_t largest = std::max({std::abs(x.row), std::abs(x.col), x.batch}) * dtype_size(x.dtype);
  if (x.batch < 0 || largest >= most_bytes) return 'x';
  const int64_t aligned = 16 / dtype_size(x.dtype);
  const bool row_major = (x.col == 1 || cols <= 1) && (rows <= 1 || x.row >= cols);
  const bool col_major = (x.row == 1 || rows <= 1) && (cols <= 1 || x.col >= rows);
  // Where both hold (a vector), take the one whose leading dimension is free and so can be aligned.
  if (row_major && (rows <= 1 || !(col_major && cols <= 1))) {
    ld = rows <= 1 ? round_up(std::max<int64_t>(cols, 1), aligned) : x.row;
    return 't';
  }
  if (col_major) {
    ld = cols <= 1 ? round_up(std::max<int64_t>(rows, 1), aligned) : x.col;
    return 'n';
  }
  return 'x';
}

uint8_t alignment_of(const Matrix& x, int64_t ld, int64_t batch) {
  const int64_t size = dtype_size(x.dtype);
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(x.data) | uint64_t(ld * size) | uint64_t(batch > 1 ? x.batch * size : 0) | 16;
  uint8_t log2 = 0;
  while (!(bits >> log2 & 1)) ++log2;
  return log2;
}

struct Range {
  uintptr_t first, last;  // bytes, last exclusive
};

Range range_of(const Matrix& x, int64_t rows, int64_t cols, int64_t batch) {
  int64_t low = 0, high = 0;
  for (auto [extent, stride] : {std::pair{rows, x.row}, {cols, x.col}, {batch, x.batch}}) {
    (stride < 0 ? low : high) += (extent - 1) * stride;
  }
  const int64_t size = dtype_size(x.dtype);
  const auto base = reinterpret_cast<uintptr_t>(x.data);
  return {base + uintptr_t(low * size), base + uintptr_t((high + 1) * size)};
}

// A destination must not write one element twice.
bool self_overlapping(const Matrix& d, int64_t rows, int64_t cols, int64_t batch) {
  std::pair<int64_t, int64_t> dims[] = {{std::abs(d.row), rows}, {std::abs(d.col), cols}, {std::abs(d.batch), batch}};
  std::sort(std::begin(dims), std::end(dims));
  int64_t span = 1;  // elements covered by the dimensions so far
  for (auto [stride, extent] : dims) {
    if (extent <= 1) continue;
    if (stride < span) return true;
    span = stride * (extent - 1) + span;
  }
  return false;
}

const ComputeRow& compute_row(const Operand& a, const Options& options) {
  std::string known;
  for (const ComputeRow& row : kCompute) {
    if (row.input != a.dtype) continue;
    if (!options.compute || !std::strcmp(row.name, options.compute)) return row;
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  if (known.empty()) refuse_dtype(std::string("no arithmetic for ") + a.name + " of dtype " + dtype_name(a.dtype));
  refuse(std::string("compute='") + options.compute + "' is not one of " + known + " for " + dtype_name(a.dtype) +
         " inputs");
}

// (b, m, k) @ (k, n) with the batch lying on top of the rows is one tall problem.
void fold_batch(Call& call, int64_t& m, int64_t& batch) {
  auto stacked = [&](const Matrix& x) { return x.batch == m * x.row; };
  if (batch <= 1 || call.b.batch != 0 || !stacked(call.a) || !stacked(call.d) || m * batch > kMostExtent) return;
  if (call.c.data && !stacked(call.c)) return;
  m *= batch;
  batch = 1;
  call.a.batch = call.c.batch = call.d.batch = 0;
}

void suspect(Call& call, const char* name, const Matrix& x, int64_t x_rows, int64_t x_cols) {
  const bool disjoint =
      surely_disjoint(x, x_rows, x_cols, call.suspected_out, call.out_rows, call.out_cols, call.out_batch);
  if (!disjoint && x_rows > 0 && x_cols > 0) call.suspects[call.suspect_count++] = {name, x, x_rows, x_cols};
}

// `out` may be c itself, element for element; it may share nothing with anything else.
void check_out(Call& call, const Operand& a, const Operand& b, int64_t m, int64_t n, int64_t k, int64_t batch) {
  if (self_overlapping(call.d, m, n, batch)) refuse("out overlaps itself: it has a stride of 0 or interleaved rows");
  call.suspected_out = call.d;
  call.out_rows = m, call.out_cols = n, call.out_batch = batch;
  suspect(call, a.name, call.a, m, k);
  suspect(call, b.name, call.b, k, n);
  const Matrix &c = call.c, &d = call.d;
  const bool in_place = c.data == d.data && c.dtype == d.dtype && (m <= 1 || c.row == d.row) &&
                        (n <= 1 || c.col == d.col) && (batch <= 1 || c.batch == d.batch);
  if (c.data && !in_place) suspect(call, "c", c, m, n);
}

}  // namespace

void check_same_device(const Operand& a, const Operand& x) {
  if (x.device != a.device) {
    refuse(std::string(a.name) + " is on " + to_string(a.device) + " but " + x.name + " is on " + to_string(x.device));
  }
}

std::string to_string(Device device) {
  return (device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.id));
}

bool surely_disjoint(const Matrix& x, int64_t x_rows, int64_t x_cols, const Matrix& y, int64_t y_rows, int64_t y_cols,
                     int64_t batch) {
  const Range rx = range_of(x, x_rows, x_cols, batch), ry = range_of(y, y_rows, y_cols, batch);
  if (rx.last <= ry.first || ry.last <= rx.first) return true;
  // Column slices of one buffer: the same pitch, and byte intervals that stay apart modulo it.
  const int64_t x_size = dtype_size(x.dtype), y_size = dtype_size(y.dtype), pitch = x.row * x_size;
  if (x.col != 1 || y.col != 1 || pitch <= 0 || pitch != y.row * y_size) return false;
  if (x.batch * x_size % pitch != 0 || y.batch * y_size % pitch != 0) return false;
  const auto from = int64_t(reinterpret_cast<uintptr_t>(x.data)), to = int64_t(reinterpret_cast<uintptr_t>(y.data));
  const int64_t offset = ((to - from) % pitch + pitch) % pitch;
  return offset >= x_cols * x_size && offset + y_cols * y_size <= pitch;
}

Call canonicalise(const Operand& a, const Operand& b, const Operand* c, const Operand* out, const Options& options) {
  check_rank(a);
  check_rank(b);
  if (a.dtype != b.dtype) {
    refuse_dtype(std::string(a.name) + " is " + dtype_name(a.dtype) + " but " + b.name + " is " + dtype_name(b.dtype) +
                 "; both must have the same dtype");
  }
  const ComputeRow& compute = compute_row(a, options);
  if (cols(a) != rows(b)) refuse(found(a) + " but " + found(b) + "; inner extents must agree");

  Call call;
  Problem& p = call.problem;
  int64_t m = rows(a), n = cols(b), k = cols(a), batch = broadcast_batch(a, b);
  call.out_rank = std::max(a.rank, b.rank);
  const int64_t full_shape[3] = {batch, m, n};
  std::copy(full_shape + 3 - call.out_rank, full_shape + 3, call.out_shape);

  Dtype d_dtype = options.out_dtype != Dtype::none ? options.out_dtype : compute.output;
  if (out) {
    if (out->rank != call.out_rank || !std::equal(out->shape, out->shape + out->rank, call.out_shape)) {
      Operand expected = a;
      expected.rank = call.out_rank;
      std::copy(call.out_shape, call.out_shape + call.out_rank, expected.shape);
      refuse(found(*out) + "; expected " + shape_of(expected));
    }
    if (out->readonly) refuse("out is read-only");
    if (options.out_dtype != Dtype::none && options.out_dtype != out->dtype) {
      refuse_dtype(std::string("out is ") + dtype_name(out->dtype) + " but out_dtype is " +
                   dtype_name(options.out_dtype));
    }
    d_dtype = out->dtype;
  }
  if (c) {
    check_rank(*c);
    if (rows(*c) != m || cols(*c) != n || (batch_of(*c) != 1 && batch_of(*c) != batch)) {
      refuse(found(*c) + "; expected (" + std::to_string(m) + ", " + std::to_string(n) + ")" +
             (batch > 1 ? " or (" + std::to_string(batch) + ", " + std::to_string(m) + ", " + std::to_string(n) + ")"
                        : ""));
    }
  } else if (options.has_beta) {
    refuse("beta is given but c is not");
  }
  call.alpha = options.alpha;
  call.beta = !c ? 0 : options.has_beta ? options.beta : 1;

  call.a = matrix_of(a, batch);
  call.b = matrix_of(b, batch);
  if (c && call.beta != 0) call.c = matrix_of(*c, batch);
  if (out) {
    call.d = matrix_of(*out, batch);
  } else {
    call.d = Matrix{nullptr, d_dtype, n, 1, batch > 1 ? m * n : 0};
  }
  call.d.dtype = d_dtype;

  const bool metadata_only =
      a.metadata_only || b.metadata_only || (c && c->metadata_only) || (out && out->metadata_only);
  if (out && !metadata_only && m > 0 && n > 0 && batch > 0) check_out(call, a, b, m, n, k, batch);

  int64_t ldd = 0;
  p.layout_d = layout_of(call.d, m, n, ldd);
  if (p.layout_d == 'n') {  // D^T = B^T A^T
    std::swap(call.a, call.b);
    std::swap(m, n);
    transpose(call.a), transpose(call.b), transpose(call.c), transpose(call.d);
    p.transposed = true;
    p.layout_d = 't';
  }
  fold_batch(call, m, batch);
  if (m > kMostExtent || n > kMostExtent) refuse("extents above 2147483647 are not supported");
  p.m = int32_t(m), p.n = int32_t(n), p.k = int32_t(k), p.batch = int32_t(batch);

  p.layout_a = layout_of(call.a, m, k, call.lda);
  p.layout_b = layout_of(call.b, k, n, call.ldb);
  // A folded column of single elements reads column-major too: D stays row-major, its rows as far apart as they are.
  if (p.layout_d == 't' && layout_of(call.d, m, n, call.ldd) != 't') call.ldd = call.d.row;
  p.align_a = alignment_of(call.a, call.lda, batch);
  p.align_b = alignment_of(call.b, call.ldb, batch);
  p.align_d = alignment_of(call.d, call.ldd, batch);
  if (call.c.data || (c && call.beta != 0)) {
    p.layout_c = layout_of(call.c, m, n, call.ldc) == 't' ? 't' : 'x';
    p.align_c = alignment_of(call.c, call.ldc, batch);
    p.c = c->dtype;
  }
  p.a = a.dtype, p.b = b.dtype, p.d = d_dtype;
  p.compute = compute.operand;
  p.accumulator = compute.accumulator;
  p.empty_product = k == 0 || call.alpha == 0;
  p.device = a.device;
  return call;
}

}  // namespace cutlass_py
