#include "operations/gemm/tiled_estimate.h"

#include <algorithm>
#include <cmath>

namespace cutlass_py {
namespace {

// Two limits at once: near the ridge a little more than the larger.
double norm(double x, double y) { return std::pow(std::pow(x, 4.0) + std::pow(y, 4.0), 0.25); }

// Steps that a multiprocessor takes where those of all tiles are dealt out evenly: a tile is cut into no more parts
// than are worth joining.
double dealt_out(const TiledDesign& x, int64_t tiles, int64_t steps) {
  const double processors = x.sm_count, most = processors / double(std::max<int64_t>(tiles, 1));
  const double parts = std::max(1.0, std::min(most, std::sqrt(double(steps) / x.join)));
  return double(steps) * std::max(double(tiles) / processors, 1 / parts) + x.join * parts;
}

// What is left for the last one is shared out evenly.
double waves(const TiledDesign& x, int64_t tiles, int64_t steps) {
  const auto step = [&](int64_t beside) { return std::max(double(beside) * x.step, x.alone); };
  if (x.stream_k) return dealt_out(x, tiles, steps) * step(1) + x.fill;
  const int64_t at_once = int64_t(x.sm_count) * x.resident, whole = tiles / at_once, rest = tiles % at_once;
  const double last = rest ? step(blocks_of(rest, x.sm_count)) : 0;
  return (double(whole) * step(x.resident) + last) * double(steps) + double(whole + (rest > 0)) * x.fill;
}

}  // namespace

double TiledDesign::microseconds(int64_t rows, int64_t columns, int64_t length, int64_t batch) const {
  const double high = double(rows), wide = double(columns), along = double(length);
  const double moved = double(batch) * (size * (high * along + along * wide) + high * wide * d_size);
  const int64_t tiles = blocks_of(rows, m) * blocks_of(columns, n) * batch;
  return fixed + norm(waves(*this, tiles, blocks_of(length, k)), moved / memory) + deal;
}

}  // namespace cutlass_py
