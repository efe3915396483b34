// How a product is laid out over blocks, and what it takes: what a warp has at once, and a formula that says how many
// warps share out k.
//
// The formula is a sum, fitted to random problems on an H200, each by all of its shapes; on others its choice
// takes 1.04 times as long as the best shape (docs/performance/choice.md).
#pragma once

#include <cstdint>

namespace cutlass_py::gemv {

constexpr int kMostWarps = 16, kMostRows = 2;  // of a block; vectors that are multiplied at once
constexpr int kShared = 32768;                 // bytes of the vectors in shared memory at once

// The matrix in memory: bytes of an element, whether its lines lie along k, bytes that a lane reads of a line at once.
struct Matrix {
  int size;
  bool along_k;
  int granule;

  constexpr int elements() const { return granule / size; }
  constexpr int number() const { return size == 8 ? 8 : 4; }                // bytes of what is computed in
  constexpr int part(int rows) const { return kShared / number() / rows; }  // of k, of so many vectors at once
  // Columns of the result that a warp has: four lines along k; or 64 bytes of the lines across it.
  constexpr int columns() const { return along_k ? 4 : 64 / size; }
  // Lanes that read a line of k; those that are left read the next ones.
  constexpr int lanes() const { return along_k || granule < 2 ? 32 : 64 / granule; }
  // Granules that a lane reads of its columns, one behind the other along k.
  constexpr int steps(int rows) const {
    return along_k ? (granule == 16 ? 2 : granule == 4 ? 4 : 8) / rows : (granule == 16 ? 8 : 32) / across();
  }
  // And beside each other.
  constexpr int across() const { return along_k ? 1 : columns() / lanes() / elements(); }
  // Of k, that a warp reads at once.
  constexpr int span(int rows) const { return along_k ? steps(rows) * 32 * elements() : steps(rows) * (32 / lanes()); }
};

// Multiprocessors, and bytes that memory brings in a microsecond: an H200's, for a choice among shapes, which it does
// not change.
struct Machine {
  int sm_count;
  double memory = 3.96e6;
};

struct Product {
  int64_t rows, columns, k, batch;
};

// A block: so many rows at once, its warps, and how many of them share out k. The others have other columns.
struct Shape {
  int rows, warps, sharing;
  double microseconds;

  int columns(const Matrix& x) const { return warps / sharing * x.columns(); }
};

// Of a block that is alone, with nothing in the caches; where the epilogue is more than a factor.
constexpr double kLaunch = 2.76, kFinish = 0.43;
constexpr double kPart = 0.153, kStaged = 0.144;      // of the vectors, a part, and a number of it by every thread
constexpr double kTurn = 0.14, kLoad = 0.0137;        // every time that a warp reads, and each of a lane's granules
constexpr double kWarp = 0.0278;                      // of a multiprocessor that has many: each of its warps,
constexpr double kIssue = 0.00072, kNumber = 0.0004;  // and what it reads, by granules and by numbers
constexpr double kBytes = 0.673;                      // all operands, in what memory takes for them
constexpr double kAgain = 1.15e-5;                    // and each time that rows read them, by one multiprocessor
constexpr int kRegisters = 100, kMultiprocessor = 65536, kMostBlocks = 6;  // of a thread, about; what there is of them

inline double microseconds(const Shape& x, const Matrix& m, const Product& p, bool only_factor, const Machine& on) {
  const auto ceil_div = [](int64_t a, int64_t b) { return double((a + b - 1) / b); };
  const int64_t part = m.part(x.rows), span = m.span(x.rows), groups = (p.rows + x.rows - 1) / x.rows;
  const double blocks = ceil_div(p.columns, x.columns(m)) * double(groups * p.batch);
  const double turns = double(p.k / part) * ceil_div(part, x.sharing * span) + ceil_div(p.k % part, x.sharing * span);
  const double staged = ceil_div(p.k, span) * double(span * x.rows) / (32 * x.warps);
  const double loads = m.steps(x.rows) * (m.along_k ? m.columns() : m.across());
  const int fitting = kMultiprocessor / (kRegisters * 32 * x.warps);
  const double waves =
      ceil_div(int64_t(blocks), int64_t(on.sm_count) * (fitting < kMostBlocks ? fitting : kMostBlocks));
  const double warps = ceil_div(int64_t(blocks), on.sm_count) * x.warps;
  const double bytes = double(p.columns * p.k + p.rows * p.k) * m.size * double(p.batch);
  return kLaunch + (only_factor ? 0 : kFinish) +
         waves * (ceil_div(p.k, part) * kPart + staged * kStaged + turns * (kTurn + loads * kLoad)) +
         warps * (turns * loads * (kIssue + m.elements() * x.rows * kNumber) + kWarp) +
         bytes * (kBytes / on.memory + double(groups) * kAgain / on.sm_count);
}

// Of any product that moves so many bytes.
inline double least(double bytes, const Machine& on) {
  return kLaunch + kPart + kStaged + kTurn + bytes * (kBytes / on.memory + kAgain / on.sm_count);
}

inline Shape best_shape(const Matrix& m, const Product& p, bool only_factor, const Machine& on) {
  Shape best{};
  for (int rows = 1; rows <= (p.rows > 1 ? kMostRows : 1); ++rows) {
    for (int warps = 4; warps <= kMostWarps; warps *= 2) {
      for (int sharing = 1; sharing <= warps; sharing *= 2) {
        Shape x{rows, warps, sharing, 0};
        x.microseconds = microseconds(x, m, p, only_factor, on);
        if (!best.rows || x.microseconds < best.microseconds) best = x;
        if (sharing * m.span(rows) >= p.k) break;  // all others would have nothing to do
      }
    }
  }
  return best;
}

// The largest granule that lines which begin at multiples of `alignment` bytes, and hold `length`, are whole numbers
// of.
inline int granule_of(int size, int64_t alignment, int64_t length) {
  const int64_t common = alignment | length;
  return common % 16 == 0 ? 16 : common % 4 == 0 && size < 4 ? 4 : size;
}

}  // namespace cutlass_py::gemv
