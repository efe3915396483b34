#include "operations/gemm/canonical.h"

#include <algorithm>
#include <cstdlib>

namespace cutlass_py {
namespace {

// ------------------------------------------------------------------------------------------------ dtypes

std::string partners(Dtype dtype) {
  std::string names;
  for (int i = 0; i < kDtypeCount; ++i) {
    if (int(kDtypes[i].storage) == i && pairs_with(dtype, Dtype(i))) {
      names += (names.empty() ? "" : " or ") + std::string(kDtypes[i].name);
    }
  }
  return names;
}

std::string input_dtypes() {
  std::string names;
  Dtype last = Dtype::none;
  for (const ComputeRow& row : kCompute) {
    if (row.input != last) names += (names.empty() ? "" : ", ") + std::string(dtype_name(row.input));
    last = row.input;
  }
  return names;
}

const ComputeRow& compute_row(const Operand& x, const char* compute) {
  std::string known;
  for (const ComputeRow& row : kCompute) {
    if (row.input != x.dtype) continue;
    if (!compute || !std::strcmp(row.name, compute)) return row;
    known += (known.empty() ? "'" : ", '") + std::string(row.name) + "'";
  }
  if (known.empty()) refuse_type(found_dtype(x).expects("one of " + input_dtypes()));
  refuse(Refusal("compute",
                 std::string("='") + compute + "' is not one of " + known + " for " + dtype_name(x.dtype) + " inputs"));
}

// Which dtypes are multiplied, summed and stored.
void choose_arithmetic(const Request& r, Problem& p) {
  const Operand &a = *r.at(Role::a), &b = *r.at(Role::b);
  const ComputeRow& row = compute_row(a, r.compute);
  if (!pairs_with(a.dtype, b.dtype)) {
    refuse_type(
        found_dtype(a).but(found_dtype(b)).hints(std::string(dtype_name(a.dtype)) + " goes with " + partners(a.dtype)));
  }
  p.a = a.dtype, p.b = b.dtype;
  p.operand_a = row.operand;
  p.operand_b = a.dtype == b.dtype ? row.operand : compute_row(b, r.compute).operand;
  p.accumulator = row.accumulator;
  // These may also be summed in f32, and for a row always in the same way.
  const bool may_be_wider = p.accumulator == Dtype::fast || p.accumulator == Dtype::f16;
  if (may_be_wider && r.repeats == Repeats::row) p.accumulator = Dtype::f32;
  const Operand* out = r.at(Role::out);
  const bool named = r.out_dtype != Dtype::none;
  if (out && named && r.out_dtype != out->dtype) {
    refuse_type(found_dtype(*out).but(Refusal("out_dtype", std::string("is ") + dtype_name(r.out_dtype))));
  }
  p.d = out ? out->dtype : named ? r.out_dtype : row.output;
  if (is_complex(p.d) != is_complex(p.accumulator)) {
    refuse_type(Refusal(out ? "out" : "out_dtype", std::string("is ") + dtype_name(p.d), "dtype")
                    .but(Refusal("a", std::string("is ") + dtype_name(p.a)))
                    .expects(is_complex(p.d) ? "a real dtype" : "c64 or c128"));
  }
}

// Parts of k whose sums are added in order, where a row may not depend on the others: by columns and k alone, however
// few rows there are. As many as keep a GPU busy with few rows, of what our own kernels have
// (docs/performance/choice.md).
int16_t parts_of_row(const Request& r, const Problem& p, const Extents& extents) {
  constexpr int64_t tile = 64, most_tiles = 100, shortest = 512;
  const bool has_slices = dtype_size(p.a) == 2 && p.accumulator == Dtype::f32 && !r.user;
  for (const int parts : {8, 4}) {
    const int64_t tiles = (extents.n + tile - 1) / tile;
    if (has_slices && parts * tiles <= most_tiles && extents.k >= parts * shortest) return int16_t(parts);
  }
  return 1;
}

// ------------------------------------------------------------------------------------------------ the product

// A, B and D, in the coordinates of the caller's.
void read_matrices(const Request& r, const Extents& extents, Call& call, BatchedOperands& parts) {
  const Operand &a = *r.at(Role::a), &b = *r.at(Role::b);
  call.a = matrix_of(a, extents.no_rows, false);
  call.b = matrix_of(b, false, extents.no_cols);
  parts.add(call.a, Role::a, a, 2 - extents.no_rows, extents);
  parts.add(call.b, Role::b, b, 2 - extents.no_cols, extents);
  if (const Operand* out = r.at(Role::out)) {
    check_result_shape(*out, extents, false);
    if (out->readonly) refuse(Refusal("out", "is read-only"));
    call.d = matrix_of(*out, extents.no_rows, extents.no_cols);
    parts.add(call.d, Role::out, *out, extents.core(), extents);
  } else {
    call.d = {nullptr, call.problem.d, extents.result_columns(), 1};
    parts.add_new(call.d, Role::out, extents);
  }
}

// Half of B's columns are gates, the others their values; or of the result's.
void read_pairs(const Request& r, Extents& extents) {
  const Operand& b = *r.at(Role::b);
  if (extents.no_cols) refuse(found(b).expects("2 dimensions or more beside gated"));
  extents.pairs = r.function().derivative ? 'd' : 'b';
  if (extents.pairs == 'd') return;
  if (extents.n % 2) refuse(found(b).expects("an even number of columns beside gated: of gates and as many values"));
  extents.n /= 2;
}

// ------------------------------------------------------------------------------------------------ layouts

// Layout and leading dimension of a matrix of these extents. Rows that overlap or run backwards are 'x'.
char layout_of(const CutlassPyArray& x, int64_t rows, int64_t cols, int64_t& ld) {
  ld = 0;
  const int64_t largest = std::max({std::abs(x.row), std::abs(x.col), x.batch}) * element_size(x);
  if (x.batch < 0 || largest > kMostStride) return 'x';
  const int64_t aligned = 16 / element_size(x);
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

uint8_t log2_of(uint64_t bits) {
  uint8_t log2 = 0;
  for (bits |= 16; !(bits >> log2 & 1);) ++log2;
  return log2;
}

}  // namespace

uint8_t alignment_of(const CutlassPyArray& x, int64_t lines, const Call& call, Role role,
                     const std::vector<void*>* pointers) {
  uint64_t bits = reinterpret_cast<uintptr_t>(x.data) | uint64_t(lines);
  if (pointers && !pointers->empty()) {
    for (const void* pointer : *pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  } else if (call.problem.batch > 1) {
    bits |= uint64_t(x.batch * element_size(x));
  }
  for (const Shift& run : call.loop) bits |= uint64_t(run[role]);
  return log2_of(bits);
}

void settle(CutlassPyArray& x, char& layout, uint8_t& align, const Call& call, Role role,
            const std::vector<void*>* pointers) {
  if (!is_there(x)) return;
  const Problem& p = call.problem;
  int64_t ld = 0;
  layout = layout_of(x, p.m, rectangle_of(p, role).cols, ld) == 't' ? 't' : 'x';
  if (layout == 't') x.row = ld, x.col = 1;
  align = alignment_of(x, ld * element_size(x), call, role, pointers);
}

namespace {

// Whether TMA can read the factors of the rows of A: side by side, and those of each 128 of k aligned. A single block
// of k has the step to the next one free.
bool rows_lie_for_tma(Call& call) {
  const Problem& p = call.problem;
  CutlassPyArray& x = call.epilogue.scale_a;
  if (p.k <= kScaleBlock) x.col = round_up(p.m, 16 / element_size(x));
  if ((p.m > 1 && x.row != 1) || x.col < p.m || x.batch < 0) return false;
  return alignment_of(x, x.col * element_size(x), call, Role::scale_a) >= 4;
}

// Layouts, leading dimensions and alignments, once the extents are what they stay.
void settle_matrices(Call& call) {
  Problem& p = call.problem;
  p.layout_a = layout_of(call.a, p.m, p.k, call.lda);
  Matrix b = call.b;  // of pairs the gates
  if (p.interleaved && p.pairs == 'b') b.col *= 2;
  p.layout_b = layout_of(b, p.k, p.n, call.ldb);
  // A folded column of single elements reads column-major too: D stays row-major, its rows as far apart as they are.
  if (p.layout_d == 't' && layout_of(call.d, p.m, p.n, call.ldd) != 't') call.ldd = call.d.row;
  p.align_a = alignment_of(call.a, call.lda * dtype_size(p.a), call, Role::a, &call.pointers_a);
  const int64_t lines_of_b = call.ldb | (p.layout_b == 'n' ? call.pairs.b : 0);
  p.align_b = alignment_of(call.b, lines_of_b * dtype_size(p.b), call, Role::b, &call.pointers_b);
  p.align_d = alignment_of(call.d, call.ldd * dtype_size(p.d), call, Role::out, &call.pointers_d);
  settle(call.epilogue.c, p.layout_c, p.align_c, call, Role::c, &call.pointers_c);
  settle(call.epilogue.gate, p.layout_gate, p.align_gate, call, Role::gate);
  settle(call.epilogue.aux, p.layout_aux, p.align_aux, call, Role::aux);
  if (p.interleaved && p.layout_aux) p.layout_aux = 'x';
}

void settle_vectors(Call& call) {
  Problem& p = call.problem;
  const Epilogue& e = call.epilogue;
  const bool along_n = p.bias_axis == 'n';
  const bool unit = (along_n ? p.n : p.m) <= 1 || (along_n ? e.bias.col : e.bias.row) == 1;
  if (p.bias != Dtype::none && unit) p.align_bias = alignment_of(e.bias, 0, call, Role::bias);
  if (p.block() && !rows_lie_for_tma(call)) p.scale_a = 'p';
  if (p.scale_a == 'v' && p.m > 1 && e.scale_a.row != 1) p.scale_a = 'x';
  if (p.scale_b == 'v' && p.n > 1 && e.scale_b.col != 1) p.scale_b = 'x';
}

// ------------------------------------------------------------------------------------------------ canonical form

void transpose(CutlassPyArray& x) { std::swap(x.row, x.col); }

char other_axis(char axis) { return axis == 'n' ? 'm' : axis == 'm' ? 'n' : axis; }

// D^T = B^T A^T.
void transpose(Call& call, int64_t& m, int64_t& n) {
  Problem& p = call.problem;
  Epilogue& e = call.epilogue;
  std::swap(m, n);
  std::swap(call.a, call.b);
  std::swap(call.pointers_a, call.pointers_b);
  std::swap(p.a, p.b);
  std::swap(p.operand_a, p.operand_b);
  std::swap(e.scale_a, e.scale_b);
  std::swap(p.scale_a, p.scale_b);
  for (Shift& run : call.loop) {
    std::swap(run[Role::a], run[Role::b]), std::swap(run[Role::scale_a], run[Role::scale_b]);
  }
  each_array(call, [](Role, CutlassPyArray& x) { transpose(x); });
  for (UserOperand& x : call.user) {
    transpose(x.matrix);
    x.kind = other_axis(x.kind);
  }
  p.bias_axis = other_axis(p.bias_axis);
  p.bias_grad_axis = other_axis(p.bias_grad_axis);
  p.transposed = true;
}

// (b, m, k) @ (k, n) with the batch lying on top of the rows is one tall problem.
void fold_batch(Call& call, int64_t& m, int64_t& batch) {
  Epilogue& e = call.epilogue;
  if (batch <= 1 || call.problem.pointers || call.b.batch != 0 || m * batch > kMostExtent) return;
  if (call.problem.bias_grad_axis == 'm') return;  // one sum per row, over the batches
  auto free_row = [&](CutlassPyArray& x) {
    if (x.batch) x.row = x.batch;
  };
  const auto has_rows = [](Role role) {
    const Shape shape = facts_of(role).shape;
    return shape == Shape::left || shape == Shape::result || shape == Shape::rows;
  };
  if (m == 1) {  // a stride that is never taken; NumPy's newaxis makes it 0
    each_array(call, [&](Role role, CutlassPyArray& x) {
      if (has_rows(role)) free_row(x);
    });
    for (UserOperand& x : call.user) {
      if (x.kind == 't') free_row(x.matrix);
    }
  }
  auto stacked = [&](const CutlassPyArray& x) { return !is_there(x) || x.batch == m * x.row; };
  bool all = e.scale_b.batch == 0;
  each_array(call, [&](Role role, const CutlassPyArray& x) {
    if (has_rows(role) || facts_of(role).shape == Shape::vector) all = all && stacked(x);
  });
  for (const UserOperand& x : call.user) all = all && stacked(x.matrix);
  if (!all) return;
  for (UserOperand& x : call.user) x.matrix.batch = 0;
  m *= batch;
  batch = 1;
  each_array(call, [](Role, CutlassPyArray& x) { x.batch = 0; });
}

// ------------------------------------------------------------------------------------------------ lists

// The addresses of a list, of the matrices of an array, or of one that all share.
std::vector<void*> addresses(const Operand& x, int64_t count) {
  if (x.list) return *x.list;
  const int64_t step = x.rank == 3 ? x.strides[0] * dtype_size(x.dtype) : 0;
  std::vector<void*> pointers;
  for (int64_t i = 0; i < count; ++i) pointers.push_back(static_cast<char*>(x.data) + i * step);
  return pointers;
}

bool scattered(const Request& r) {
  return std::any_of(r.operands, r.operands + kRoles, [](const Operand* x) { return x && x->list; });
}

// Matrices that do not lie evenly: one launch takes their addresses. Where there is no product, or no launch, each is a
// problem of its own.
void scatter(const Request& r, Call& call, int64_t& batch) {
  call.pointers_a = addresses(*r.at(Role::a), batch);
  call.pointers_b = addresses(*r.at(Role::b), batch);
  if (call.problem.has_c()) call.pointers_c = addresses(*r.at(Role::c), batch);
  if (const Operand* out = r.at(Role::out)) call.pointers_d = addresses(*out, batch);
  // Rows are the same in a list as alone: each of its matrices is then a problem of its own.
  const bool alone = call.problem.empty_product || r.repeats == Repeats::row;
  call.problem.pointers = r.at(Role::a)->device.type == DeviceType::cuda && !alone;
  if (call.problem.pointers) return;
  auto moved = [](const std::vector<void*>& pointers, int64_t i) {
    return pointers.empty() ? 0 : static_cast<char*>(pointers[size_t(i)]) - static_cast<char*>(pointers[0]);
  };
  for (int64_t i = 0; i < batch; ++i) {
    Shift run{};
    run[Role::a] = moved(call.pointers_a, i), run[Role::b] = moved(call.pointers_b, i);
    run[Role::c] = moved(call.pointers_c, i);
    run[Role::out] = call.pointers_d.empty() ? i * call.d.batch * element_size(call.d) : moved(call.pointers_d, i);
    call.loop.push_back(run);
  }
  for (auto* pointers : {&call.pointers_a, &call.pointers_b, &call.pointers_c, &call.pointers_d}) pointers->clear();
  for (CutlassPyArray* x : {static_cast<CutlassPyArray*>(&call.a), static_cast<CutlassPyArray*>(&call.b),
                            static_cast<CutlassPyArray*>(&call.d), &call.epilogue.c}) {
    x->batch = 0;
  }
  batch = 1;
}

}  // namespace

Call canonicalise(const Request& r, const Request& given) {
  Call call;
  Problem& p = call.problem;
  choose_arithmetic(r, p);
  Extents extents = extents_of(*r.at(Role::a), *r.at(Role::b));
  if (r.gated) read_pairs(r, extents);
  call.out_rank = extents.result(call.out_shape);
  new_result(call);  // refuses what is too large, before anything is computed of its extents
  BatchedOperands parts;
  read_matrices(r, extents, call, parts);
  read_epilogue(r, extents, call, parts);
  if (r.user) read_user(r, extents, call, parts);
  check_overlap(given, call);

  int64_t m = extents.m, n = extents.n, batch = collapse_batch(extents, parts, call.loop);
  if (!call.loop.empty() && (r.at(Role::bias_grad) || r.user)) {
    refuse(Refusal(r.user ? "epilogue" : "bias_grad", "is given but the batch of the operands has no single stride")
               .hints("pass it as one dimension"));
  }
  if (scattered(r) && batch > 0) scatter(r, call, batch);
  if (m == 0 || n == 0 || batch == 0) p.empty_product = true;
  if (!r.grouped) fold_batch(call, m, batch);
  int64_t ldd = 0;
  p.layout_d = layout_of(call.d, m, extents.pairs == 'd' ? 2 * n : n, ldd);
  // Products of these are sums themselves, in an order of a and b.
  const bool in_order = r.repeats == Repeats::row && (is_complex(p.accumulator) || p.operand_a == Dtype::tf32x3);
  if (r.interleaved && extents.pairs == 'd') {
    p.layout_d = 'x';
  } else if (p.layout_d == 'n' && (in_order || extents.pairs == 'b') && n == 1) {
    p.layout_d = 't', ldd = std::max<int64_t>(call.d.row, 1);
  } else if (p.layout_d == 'n' && (p.block() > 1 || in_order || r.gated)) {
    p.layout_d = 'x';  // blocks or pairs of B's columns are none of A's rows: the product is not transposed
  } else if (p.layout_d == 'n') {
    transpose(call, m, n);
    p.layout_d = 't';
    if (!r.grouped) fold_batch(call, m, batch);
  }
  if (m > kMostExtent || n > kMostExtent || batch > kMostExtent)
    refuse(Refusal("extents above " + std::to_string(kMostExtent) + " are not supported"));
  p.m = int32_t(m), p.n = int32_t(n), p.k = int32_t(extents.k), p.batch = int32_t(batch);
  p.pairs = extents.pairs, p.interleaved = r.interleaved;
  call.pairs = pairs_of(call);
  settle_matrices(call);
  settle_vectors(call);
  if (r.user) settle_user(r, call);
  p.splits = r.repeats == Repeats::row ? parts_of_row(r, p, extents) : r.splits;
  p.repeats = r.repeats;
  p.device = r.at(Role::a)->device;
  return call;
}

CutlassPyPairs pairs_of(const Call& call) {
  const Problem& p = call.problem;
  const int64_t columns = p.interleaved ? 1 : p.n;
  const auto behind = [&](bool has, const CutlassPyArray& x) { return has && is_there(x) ? columns * x.col : 0; };
  const Epilogue& e = call.epilogue;
  const bool of_b = p.pairs == 'b';
  return {behind(of_b, call.b), behind(p.pairs == 'd', call.d), behind(p.pairs, e.aux), behind(of_b, e.bias),
          behind(of_b, e.scale_b)};
}

Operand new_result(const Call& call) {
  Operand x;
  x.name = name_of(Role::out);
  x.dtype = call.problem.d;
  x.device = call.problem.device;
  x.set_row_major(call.out_shape, call.out_rank);
  if (!call.made.empty()) x.matrices = &call.made;
  return x;
}

void place_result(Call& call, void* data) {
  call.d.data = data;
  for (Operand& each : call.made) {
    each.data = static_cast<char*>(data) + reinterpret_cast<uintptr_t>(each.data);
    call.pointers_d.push_back(each.data);
  }
  if (!call.problem.pointers || !call.made.empty()) return;
  const int64_t step = call.d.batch * element_size(call.d);
  for (int64_t i = 0; i < call.problem.batch; ++i) call.pointers_d.push_back(static_cast<char*>(data) + i * step);
}

}  // namespace cutlass_py
