#include "operations/grouped_gemm/groups.h"

#include <algorithm>
#include <string>

namespace cutlass_py::grouping {
namespace {

bool is_one_element(const Operand& x) {
  return std::all_of(x.shape, x.shape + x.rank, [](int64_t extent) { return extent == 1; });
}

bool is_scale(Shape shape) { return shape == Shape::rows || shape == Shape::columns; }

// Whether it lies as a, b or the result does: they themselves, and scales in blocks.
bool is_matrix(const Groups& g, Role role, const Operand& x) {
  const Shape shape = facts_of(role).shape;
  if (!is_scale(shape)) return shape == Shape::left || shape == Shape::right || shape == Shape::result;
  const bool each = g.stacked || g.axis == (shape == Shape::rows ? 'n' : 'm');
  return g.axis != 'k' && x.rank == (each ? 3 : 2) && !is_one_element(x);
}

// What groups are to an operand: it has a matrix for each, or a vector; its rows or its columns are divided; or it is
// shared.
enum class Part { each, rows, columns, shared };

Part part_of(const Groups& g, Role role, const Operand& x) {
  const Shape shape = facts_of(role).shape;
  if (shape == Shape::factor || (is_scale(shape) && is_one_element(x))) return Part::shared;
  const bool matrix = is_matrix(g, role, x);
  if (!matrix && x.rank == 2) return Part::each;
  switch (shape) {
    case Shape::left:
    case Shape::rows:
      if (matrix && (g.stacked || g.axis == 'n')) return Part::each;
      return g.axis == 'm' ? Part::rows : matrix ? Part::columns : Part::shared;
    case Shape::right: return g.stacked || g.axis == 'm' ? Part::each : g.axis == 'n' ? Part::columns : Part::rows;
    case Shape::result: return g.stacked || g.axis == 'k' ? Part::each : g.axis == 'm' ? Part::rows : Part::columns;
    default:
      if (matrix && g.axis == 'm') return Part::each;
      return g.axis == 'n' ? Part::columns : Part::shared;
  }
}

void insert(Operand& x, int at, int64_t extent, int64_t stride) {
  std::copy_backward(x.shape + at, x.shape + x.rank, x.shape + x.rank + 1);
  std::copy_backward(x.strides + at, x.strides + x.rank, x.strides + x.rank + 1);
  x.shape[at] = extent, x.strides[at] = stride;
  ++x.rank;
}

// The i-th along the first dimension, which is gone then.
void pick(Operand& x, int64_t i) {
  x.data = static_cast<char*>(x.data) + i * x.strides[0] * dtype_size(x.dtype);
  --x.rank;
  std::copy(x.shape + 1, x.shape + 1 + x.rank, x.shape);
  std::copy(x.strides + 1, x.strides + 1 + x.rank, x.strides);
}

void narrow(Operand& x, int dimension, int64_t begin, int64_t end) {
  x.data = static_cast<char*>(x.data) + begin * x.strides[dimension] * dtype_size(x.dtype);
  x.shape[dimension] = end - begin;
}

void check_ranks(const Request& r) {
  for (const Role role : {Role::a, Role::b}) {
    const Operand& x = *r.at(role);
    if (x.rank != 2 && x.rank != 3) refuse(found(x).expects("2 dimensions, or 3: a matrix for each group"));
  }
}

using Extents = std::vector<int64_t>;

void check_shape(const Operand& x, const std::vector<Extents>& expected) {
  std::string texts;
  for (const Extents& shape : expected) {
    if (x.rank == int(shape.size()) && std::equal(shape.begin(), shape.end(), x.shape)) return;
    texts += (texts.empty() ? "" : " or ") + shape_text(shape.data(), int(shape.size()));
  }
  refuse(found(x).expects(texts));
}

// Those of a bias or of a scale: a vector for all groups, or one for each where they do not divide it; of scales of fp8
// also blocks, which lie as the operand that they scale. Where its columns are divided, a block would have columns of
// two groups: each has factors of its own.
std::vector<Extents> shapes_of(const Request& r, const Groups& g, Role role) {
  const Operand &a = *r.at(Role::a), &b = *r.at(Role::b);
  const bool of_rows = role == Role::scale_a;
  const char own = of_rows ? 'm' : 'n';
  const int64_t lines = of_rows ? a.shape[a.rank - 2] : b.shape[b.rank - 1];
  std::vector<Extents> shapes{{lines}};
  if (g.axis != own || (of_rows && g.stacked)) shapes.push_back({g.count, lines});
  if (role == Role::bias || g.axis == 'k' || !is_fp8(a.dtype) || !is_fp8(b.dtype)) return shapes;
  const int64_t depth = blocks_of(a.shape[a.rank - 1]);
  const auto add_blocks = [&](int64_t rows, int64_t columns) {
    const bool each = (of_rows ? a : b).rank == 3;
    shapes.push_back(each ? Extents{g.count, rows, columns} : Extents{rows, columns});
  };
  const Role beside = of_rows ? Role::scale_b : Role::scale_a;
  const Operand* other = r.at(beside);
  if (other && depth > 1 && is_matrix(g, beside, *other)) shapes.clear();  // both are blocks, or neither is
  if (of_rows) add_blocks(lines, depth);
  if (!of_rows && g.axis != 'n') add_blocks(depth, blocks_of(lines));
  if (!of_rows) add_blocks(depth, lines);
  return shapes;
}

// Of operands whose shape the dense product would name otherwise.
void check_shapes(const Request& r, const Groups& g) {
  const Operand &a = *r.at(Role::a), &b = *r.at(Role::b);
  const int64_t m = a.shape[a.rank - 2], k = a.shape[a.rank - 1], n = b.shape[b.rank - 1];
  const bool back = r.gated && r.function().derivative;
  if (r.gated && g.axis != 'm') {
    refuse(Refusal("gated", "is given")
               .but(Refusal("groups", g.axis == 'k' ? "divide k" : "divide columns"))
               .expects("groups of rows"));
  }
  if (k != b.shape[b.rank - 2]) refuse(found(a).but(found(b)).hints("inner extents must agree"));
  for (const Role role : {Role::c, Role::aux, Role::out}) {
    const Operand* x = r.at(role);
    if (!x) continue;
    const int64_t columns = back ? 2 * n : r.gated && role != Role::aux ? n / 2 : n;
    if (g.stacked || g.axis == 'k') {
      check_shape(*x, {{g.count, m, columns}});
    } else {
      check_shape(*x, {{m, columns}});
    }
  }
  for (const Role role : {Role::bias, Role::scale_a, Role::scale_b}) {
    const Operand* x = r.at(role);
    if (x && (role == Role::bias || !is_one_element(*x))) check_shape(*x, shapes_of(r, g, role));
  }
}

}  // namespace

void Numbers::check() const {
  const Operand& x = *array;
  if (x.dtype != Dtype::s32 && !wide) refuse_type(found_dtype(x).expects(dtypes));
  if (x.rank != 1) refuse(found(x).expects("one dimension"));
  if (x.shape[0] > 1 && x.strides[0] != 1) refuse(found(x).adds(" with gaps between its numbers").expects("none"));
}

int64_t Numbers::operator[](int64_t i) const {
  const char* at = static_cast<const char*>(array->data) + i * array->strides[0] * dtype_size(array->dtype);
  return wide ? *reinterpret_cast<const int64_t*>(at) : *reinterpret_cast<const int32_t*>(at);
}

Groups groups_of(const Request& r, const Numbers& numbers) {
  check_ranks(r);
  const Operand &a = *r.at(Role::a), &b = *r.at(Role::b), &x = *numbers.array;
  Groups g;
  g.stacked = a.rank == 3 && b.rank == 3;
  g.axis = g.stacked || b.rank == 3 ? 'm' : a.rank == 3 ? 'n' : 'k';
  g.total = g.axis == 'm' ? a.shape[a.rank - 2] : g.axis == 'n' ? b.shape[1] : a.shape[1];
  if (g.stacked && a.shape[0] != b.shape[0]) refuse(found(a).but(found(b)).hints("one matrix of each for every group"));
  if (g.stacked && !numbers.sizes) {
    refuse(Refusal("offsets", "is given beside a and b of 3 dimensions").hints("pass sizes: the rows of each group"));
  }
  numbers.check();
  const Operand* out = r.at(Role::out);
  if (a.rank == 3 || b.rank == 3) {
    g.count = b.rank == 3 ? b.shape[0] : a.shape[0];
  } else {
    g.count = out && out->rank == 3 && !numbers.sizes && x.shape[0] == out->shape[0] + 1 ? out->shape[0] : x.shape[0];
  }
  const bool starts = !numbers.sizes && x.shape[0] == g.count + 1;
  if (x.shape[0] != g.count && !starts) {
    const std::string count = std::to_string(g.count);
    refuse(found(x).expects("(" + count + ",)" + (numbers.sizes ? "" : ", the end of each group") +
                            (numbers.sizes ? "" : ", or one more: starts")));
  }
  g.kind = g.stacked       ? CUTLASS_PY_GROUP_FIRST
           : numbers.sizes ? CUTLASS_PY_GROUP_SIZES
           : starts        ? CUTLASS_PY_GROUP_STARTS
                           : CUTLASS_PY_GROUP_ENDS;
  check_shapes(r, g);
  return g;
}

std::vector<std::pair<int64_t, int64_t>> read(const Groups& g, const Numbers& numbers) {
  std::vector<std::pair<int64_t, int64_t>> lines;
  const bool starts = g.kind == CUTLASS_PY_GROUP_STARTS;
  int64_t at = 0;
  for (int64_t i = 0; i < numbers.array->shape[0]; ++i) {
    const int64_t x = numbers[i], begin = g.stacked ? 0 : at, end = numbers.sizes ? begin + x : x;
    const std::string value = "is " + std::to_string(x);
    if (x < 0 || (numbers.sizes && x > g.total)) {
      refuse(Refusal(numbers.name_of(i), value).expects("0 to " + std::to_string(g.total)));
    }
    if (end < begin) {
      refuse(Refusal(numbers.name_of(i), value)
                 .but(Refusal(numbers.name_of(i - 1), "is " + std::to_string(begin)))
                 .expects("no decrease"));
    }
    if (end > g.total) {
      const std::string reach = numbers.sizes ? "ends a group at " + std::to_string(end) : value;
      refuse(Refusal(numbers.name_of(i), reach).expects(std::to_string(g.total) + " at most"));
    }
    if (!starts || i) lines.emplace_back(begin, end);
    at = end;
  }
  return lines;
}

DenseOperands::DenseOperands(const Request& given, const Groups& g) : request(given) {
  request.grouped = true;
  for (int i = 0; i < kRoles; ++i) {
    if (!given.operands[i]) continue;
    const Role role = Role(i);
    Operand& x = held_[i] = *given.operands[i];
    const bool each = part_of(g, role, x) == Part::each, matrix = is_matrix(g, role, x);
    if (matrix && !each) insert(x, 0, g.count, 0);
    if (each && !matrix) insert(x, facts_of(role).shape == Shape::rows ? 2 : 1, 1, 0);
    request.operands[i] = &x;
  }
}

DenseOperands::DenseOperands(const Request& given, const Groups& g, int64_t group, int64_t begin, int64_t end)
    : request(given) {
  for (int i = 0; i < kRoles; ++i) {
    if (!given.operands[i]) continue;
    const Role role = Role(i);
    Operand& x = held_[i] = *given.operands[i];
    const Shape shape = facts_of(role).shape;
    switch (part_of(g, role, x)) {
      case Part::each:
        pick(x, group);
        if (g.stacked && (shape == Shape::left || shape == Shape::result || shape == Shape::rows)) {
          narrow(x, 0, begin, end);
        }
        break;
      case Part::rows: narrow(x, 0, begin, end); break;
      case Part::columns: narrow(x, x.rank - 1, begin, end); break;
      case Part::shared: break;
    }
    request.operands[i] = &x;
  }
}

Call canonicalise(const Request& given, const Groups& g, const Numbers& numbers, int64_t expected) {
  const DenseOperands operands(given, g);
  Call call = cutlass_py::canonicalise(operands.request, given);
  Problem& p = call.problem;
  p.grouped = g.axis == 'k' ? 'k' : (g.axis == 'm') == p.transposed ? 'n' : 'm';
  p.rows = g.stacked ? GroupRows::first : GroupRows::together, p.told = numbers.on_host();
  p.splits = 0;  // whoever asks for batch invariance: k is never in parts here
  p.expected = code_of_lines(std::min(expected, std::max<int64_t>(g.total, 1)));
  call.groups = {numbers.array->data, g.kind, numbers.wide, p.grouped};
  if (p.empty_product && g.axis != 'k' && p.m && p.n && p.batch) {
    p.k = 0, p.empty_product = false;  // of other lines nothing may be written: a kernel sums nothing
  }
  if (g.stacked || g.axis == 'k') return call;
  call.d.batch = call.epilogue.c.batch = call.epilogue.aux.batch = 0;
  const Operand& a = *given.at(Role::a);
  const int64_t columns = call.out_shape[call.out_rank - 1];
  call.out_rank = 2, call.out_shape[0] = a.shape[a.rank - 2], call.out_shape[1] = columns;
  return call;
}

}  // namespace cutlass_py::grouping
