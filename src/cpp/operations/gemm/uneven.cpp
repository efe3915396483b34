#include "operations/gemm/uneven.h"

#include <algorithm>
#include <tuple>

#include "operations/gemm/canonical.h"

namespace cutlass_py::uneven {
namespace {

constexpr Role kListed[] = {Role::a, Role::b, Role::c, Role::out};
constexpr uint64_t kUnit = 16;             // bytes that accesses are aligned to, at most; also elements of an extent
constexpr int64_t kResultAlignment = 256;  // bytes

// The i-th matrix; what is no list is that of all.
const Operand& matrix_at(const Operand& x, size_t i) { return x.matrices ? (*x.matrices)[i] : x; }

std::vector<Operand> matrices_of(const Operand& x, size_t count) {
  std::vector<Operand> found;
  for (size_t i = 0; i < count; ++i) found.push_back(matrix_at(x, i));
  return found;
}

// ------------------------------------------------------------------------------------------------ what stands for all

// The lowest bit that is set, below kUnit; else 0.
int64_t lowest(uint64_t bits) {
  const uint64_t bit = bits & (~bits + 1);
  return bit < kUnit ? int64_t(bit) : 0;
}

// An extent that all have, or about the mean, and a multiple of what all are multiples of.
class Extent {
 public:
  void add(int64_t extent) {
    alike_ = alike_ && (!count_ || extent == first_);
    if (!count_++) first_ = extent;
    sum_ += extent, bits_ |= uint64_t(extent);
  }
  int64_t usual() const { return alike_ ? first_ : round_up(ceil_of(sum_, count_), int64_t(kUnit)) + lowest(bits_); }

 private:
  static int64_t ceil_of(int64_t x, int64_t by) { return (x + by - 1) / by; }
  int64_t count_ = 0, first_ = 0, sum_ = 0;
  uint64_t bits_ = 0;
  bool alike_ = true;
};

// Elements between the lines of a matrix that lie in this layout, aligned where there is one line at most; -1 where it
// does not lie so.
int64_t leading(const Operand& x, char layout) {
  const int along = layout == 't' ? 1 : 0, across = 1 - along;
  const int64_t line = x.shape[along], lines = x.shape[across];
  if (line > 1 && x.strides[along] != 1) return -1;
  if (lines <= 1) return round_up(std::max<int64_t>(line, 1), int64_t(kUnit));
  const bool apart = x.strides[across] >= std::max<int64_t>(line, 1);
  return apart && x.strides[across] * dtype_size(x.dtype) <= kMostStride ? x.strides[across] : -1;
}

char layout_of(const std::vector<Operand>& matrices) {
  for (const char layout : {'t', 'n'}) {
    const auto lies = [&](const Operand& x) { return leading(x, layout) > 0; };
    if (std::all_of(matrices.begin(), matrices.end(), lies)) return layout;
  }
  return 'x';
}

// A matrix without memory, in the layout and of the alignment that all have.
Operand stand_in(const Operand& like, const std::vector<Operand>& matrices, int64_t rows, int64_t cols) {
  Operand x = like;
  const char layout = layout_of(matrices);
  const int64_t size = dtype_size(x.dtype);
  uint64_t bits = 0;
  for (const Operand& each : matrices) {
    bits |= reinterpret_cast<uintptr_t>(each.data) | uint64_t(layout == 'x' ? 0 : leading(each, layout) * size);
  }
  const int64_t line = std::max<int64_t>(layout == 'n' ? rows : cols, 1);
  const int64_t ld = round_up(line, int64_t(kUnit)) + lowest(bits) / size;
  x.list = nullptr, x.matrices = nullptr, x.uneven = false, x.metadata_only = true;
  x.data = reinterpret_cast<void*>(uintptr_t(kResultAlignment) + uintptr_t(lowest(bits)));
  x.rank = 2, x.shape[0] = rows, x.shape[1] = cols;
  x.strides[0] = layout == 'n'   ? 1
                 : layout == 't' ? ld
                                 : 2 * ld,
  x.strides[1] = layout == 'n'   ? ld
                 : layout == 't' ? 1
                                 : 2;
  return x;
}

// ------------------------------------------------------------------------------------------------ as one problem

// A matrix as the product has it, where that is transposed.
Operand turned(Operand x, bool transposed) {
  if (transposed) std::swap(x.shape[0], x.shape[1]), std::swap(x.strides[0], x.strides[1]);
  return x;
}

void list(std::vector<void*>& pointers, const std::vector<Operand>& matrices) {
  for (const Operand& x : matrices) pointers.push_back(x.data);
}

// New results lie in one allocation.
std::vector<Operand> new_results(const std::vector<Operand>& a, const std::vector<Operand>& b, const Call& call,
                                 int64_t& elements) {
  const int64_t unit = kResultAlignment / dtype_size(call.problem.d);
  std::vector<Operand> made;
  for (size_t i = 0; i < a.size(); ++i) {
    Operand& x = made.emplace_back();
    x.name = name_of(Role::out), x.dtype = call.problem.d, x.device = call.problem.device;
    const int64_t shape[] = {a[i].shape[0], b[i].shape[1]};
    x.set_row_major(shape, 2);
    x.data = reinterpret_cast<void*>(uintptr_t(elements * dtype_size(x.dtype)));
    elements += round_up(shape[0] * shape[1], unit);
  }
  return made;
}

}  // namespace

size_t count_of(const Request& r) {
  const Operand& a = *r.at(Role::a);
  return size_t(a.matrices ? a.shape[0] : r.at(Role::b)->shape[0]);
}

Product::Product(const Request& lists, size_t i) : request(lists) {
  for (const Role role : kListed) {
    if (!lists.at(role)) continue;
    held_[int(role)] = matrix_at(*lists.at(role), i);
    request.operands[int(role)] = &held_[int(role)];
  }
}

bool apart(const Request& r) { return r.repeats == Repeats::row || r.splits > 1 || r.splits < 0; }

void check_apart(const Request& r, bool reads_c) {
  struct Piece {
    Range range;
    Role role;
    size_t product;  // of what all share, no one's
    Operand matrix;
  };
  const size_t count = count_of(r);
  std::vector<Piece> pieces;
  for (const Role role : kListed) {
    const Operand* x = r.at(role);
    if (!x || x->metadata_only || (role == Role::c && !reads_c)) continue;
    for (size_t i = 0; i < (x->matrices ? count : 1); ++i) {
      const Operand matrix = matrix_at(*x, i);
      pieces.push_back({range_of(matrix), role, x->matrices ? i : count, matrix});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& x, const Piece& y) { return x.range.first < y.range.first; });
  int left = 1 << 14;  // pairs whose bytes interleave
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = i + 1; j < pieces.size() && pieces[j].range.first < pieces[i].range.last; ++j) {
      const bool turn = pieces[j].role == Role::out;
      const Piece &written = pieces[turn ? j : i], &other = pieces[turn ? i : j];
      if (written.role != Role::out || written.product == other.product || !intersect(written.range, other.range)) {
        continue;
      }
      if (--left >= 0 && provably_disjoint(written.matrix, other.matrix)) continue;
      refuse(Refusal(written.matrix.name, "shares elements with", "overlap")
                 .beside(other.matrix.name)
                 .hints(left < 0 ? "or cannot be told apart: too many matrices interleave"
                                 : "matrices of a list are computed in any order"));
    }
  }
}

Call canonicalise(const Request& r) {
  const size_t count = count_of(r);
  std::vector<Operand> of[std::size(kListed)];
  for (size_t i = 0; i < std::size(kListed); ++i) {
    if (const Operand* x = r.at(kListed[i])) of[i] = matrices_of(*x, count);
  }
  const auto& [as, bs, cs, outs] = of;
  Extent rows, columns, depth;
  for (size_t i = 0; i < count; ++i) {
    rows.add(as[i].shape[0]), columns.add(bs[i].shape[1]), depth.add(as[i].shape[1]);
  }
  const int64_t m = rows.usual(), n = columns.usual(), k = depth.usual();
  const std::pair<int64_t, int64_t> shapes[] = {{m, k}, {k, n}, {m, n}, {m, n}};
  Request usual = r;
  Operand held[std::size(kListed)];
  for (size_t i = 0; i < std::size(kListed); ++i) {
    if (of[i].empty()) continue;
    held[i] = stand_in(*r.at(kListed[i]), of[i], shapes[i].first, shapes[i].second);
    usual.operands[int(kListed[i])] = &held[i];
  }
  Call call = cutlass_py::canonicalise(usual);
  Problem& p = call.problem;
  p.grouped = 'l', p.told = true, p.batch = int32_t(count), p.splits = 0;
  p.pointers = p.device.type == DeviceType::cuda;
  const bool no_product = p.empty_product && p.m && p.n;  // of all: a kernel sums nothing
  if (no_product) p.k = 0, p.empty_product = false;
  int64_t elements = 0;
  if (outs.empty()) call.made = new_results(as, bs, call, elements);
  call.out_rank = 1, call.out_shape[0] = elements;
  const bool turn = p.transposed;
  const auto& results = outs.empty() ? call.made : outs;
  const auto& [left, right] = turn ? std::tie(bs, as) : std::tie(as, bs);
  for (size_t i = 0; i < count; ++i) {
    const Operand a = turned(left[i], turn), b = turned(right[i], turn), d = turned(results[i], turn);
    CutlassPyExtents& x = call.extents.emplace_back();
    x.m = a.shape[0], x.n = b.shape[1], x.k = no_product ? 0 : a.shape[1];
    x.lda = leading(a, p.layout_a), x.ldb = leading(b, p.layout_b);
    x.ldc = x.ldd = leading(d, 't');
    if (p.has_c()) x.ldc = leading(turned(cs[i], turn), 't');
  }
  list(call.pointers_a, left), list(call.pointers_b, right);
  if (p.has_c()) list(call.pointers_c, cs);
  if (!outs.empty()) list(call.pointers_d, outs);
  return call;
}

}  // namespace cutlass_py::uneven
