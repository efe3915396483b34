#include "operations/gemm/estimate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace cutlass_py {
namespace {

const double kShortest = std::exp(-kMostResidual);  // of a time with the residual, beside the formula's

double ceil_div(double x, double y) { return std::ceil(x / y); }

// The larger of two, and a little more where they are alike; of shares, whose powers stay finite.
double both(double x, double y, double power) {
  const double more = std::max(x, y);
  return more > 0 ? more * std::pow(1 + std::pow(std::min(x, y) / more, power), 1 / power) : 0;
}

// What is read or written in panels of 64, 32 or 16 columns: one of three numbers.
double by_panel(int columns, double of64, double of32, double of16) {
  return columns % 64 == 0 ? of64 : columns % 32 == 0 ? of32 : of16;
}

// One operand as a cluster loads it: along the tiles' rows, or their columns.
struct Side {
  double extent;  // of the product
  int tile, cluster, sharing;
  bool along;
  int size;
  double tiles = ceil_div(extent, double(tile) * cluster);

  double full() const { return extent / (tiles * tile * cluster); }
  double lines(double tiles) const { return std::min(tiles * tile * cluster, extent); }
  // Of a block's last tile, what lies outside of the operand.
  double outside() const { return std::min(tiles * tile * cluster - extent, double(tile)); }
  // How many of the tiles that a block takes are last ones.
  double last(double waves) const { return std::min(1.0, ceil_div(waves, tiles) / waves); }
  // Lines begin at multiples of so many bytes.
  int begins(double k) const {
    const int64_t line = int64_t(along ? extent : k) * size;
    return int(std::min<int64_t>(line & -line, 1024));
  }
  double slow(const EstimateConstants& c, double k) const {
    const int bytes = begins(k);
    const double more = (bytes < 128) * c.lines64 + (bytes < 64) * c.lines32 + (bytes < 32) * c.lines16;
    return 1 + std::max(more, 0.0);  // of what nobody has measured, constants may say anything
  }
};

Side left_of(const EstimatedDesign& x, double m, double n) {
  return {x.swap ? n : m, x.m, x.cluster_m, x.cluster_n, x.left_along, x.size};
}
Side right_of(const EstimatedDesign& x, double m, double n) {
  return {x.swap ? m : n, x.n, x.cluster_n, x.cluster_m, x.right_along, x.size};
}

// use(order) of those that tell tiles apart: bands are not twice as wide as all of them.
template <class Use>
void each_order(const Side& left, const Side& right, Use use) {
  if (std::min(left.tiles, right.tiles) <= 1) return use(EstimatedOrder{true, 1});
  for (const bool along_m : {true, false}) {
    const double across = (along_m ? right : left).tiles;
    for (int band = 1; band <= 8 && band < 2 * across; band *= 2) use(EstimatedOrder{along_m, band});
  }
}

// What the residual looks at, by names that a calibration repeats, of a Tiling and its time by the formula.
#define CUTLASS_PY_ESTIMATE_FEATURES(X) \
  X(tile_m, x.m)                        \
  X(tile_n, x.n)                        \
  X(cluster_m, x.cluster_m)             \
  X(cluster_n, x.cluster_n)             \
  X(slices, x.slices)                   \
  X(serial, x.serial)                   \
  X(swap, x.swap)                       \
  X(pingpong, x.pingpong)               \
  X(direct, x.direct)                   \
  X(unaligned, x.unaligned)             \
  X(left_along, x.left_along)           \
  X(right_along, x.right_along)         \
  X(instructions, x.instructions)       \
  X(left, left.extent)                  \
  X(right, right.extent)                \
  X(k, k)                               \
  X(batch, batch)                       \
  X(left_tiles, left.tiles)             \
  X(right_tiles, right.tiles)           \
  X(left_full, left.full())             \
  X(right_full, right.full())           \
  X(waves, count / slots)               \
  X(idle, waves - count / slots)        \
  X(loaded, loaded)                     \
  X(microseconds, microseconds)         \
  X(left_begins, left.begins(k))        \
  X(right_begins, right.begins(k))      \
  X(columns_begin, columns_begin())

struct Tiling {
  const EstimateConstants& c;
  const EstimatedDesign& x;
  double k, batch;
  Side left, right;
  double slots, count, waves;
  double loaded;  // bytes of k, by a block

  Tiling(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x)
      : c(model.constants),
        x(x),
        k(k),
        batch(batch),
        left(left_of(x, m, n)),
        right(right_of(x, m, n)),
        slots(std::max(1, model.clusters[size_t(std::min(blocks(), 8))])),
        count(left.tiles * right.tiles * batch),
        waves(ceil_div(count, slots)),
        loaded(loaded_bytes()) {}

  // The largest power of two that divides the columns, up to 1024: lines of D begin at its multiples.
  int columns_begin() const {
    const int64_t columns = int64_t((x.swap ? left : right).extent);
    return int(std::min<int64_t>(columns & -columns, 1024));
  }
  int blocks_of_tile() const { return x.serial ? 1 : x.slices; }
  int blocks() const { return x.cluster_m * x.cluster_n * blocks_of_tile(); }
  // Slices of blocks begin at every other line.
  double loaded_bytes() const {
    if (blocks_of_tile() == 1) return ceil_div(k, x.k) * x.k * x.size;
    return ceil_div(ceil_div(k * x.size, 256), x.slices) * 256;
  }

  double multiply() const {
    const double rate = c.rate * 2 / x.size;
    double line = 2.0 * x.m * x.n * (128 / x.size) / rate * (1 + c.narrow / x.n);
    if (x.m == 64) line *= c.low;
    line *= 1 + x.turns * c.turns + x.by_column * c.columns;
    if (x.right_along) line *= 1 + by_panel(x.n, 0, c.turned32, c.turned16);
    return loaded / 128 * std::max(line, c.step);
  }

  double load(const Side& s, double slow) const {
    return loaded * (s.tile - s.last(waves) * s.outside()) / s.sharing * slow;
  }
  double outside(const Side& s) const {
    return loaded * s.outside() / s.sharing * s.last(waves) * (s.along ? c.outside_along : c.outside);
  }

  // Two that hide each other, and what neither does.
  struct Mainloop {
    double multiply, load, more;
  };
  Mainloop mainloop() const {
    if (x.unaligned) {  // what lies outside is shifted into place, too
      const double lines = loaded / 128;
      const double rows = x.m * (1 + x.left_along * c.unaligned_side) + x.n * (1 + x.right_along * c.unaligned_side);
      return {multiply(), lines * (c.unaligned_line + rows * c.unaligned_row), 0};
    }
    double slow = right.slow(c, k);
    if (x.right_along) slow += std::max(by_panel(x.n, 0, c.panels32, c.panels16), 0.0);
    const double bytes = load(left, left.slow(c, k)) + load(right, slow), per_byte = 1 / c.load;
    const double pauses = x.serial ? (x.slices - 1) * c.series : 0;
    return {multiply(), bytes * per_byte, (outside(left) + outside(right)) * per_byte + pauses};
  }
  double at_once(const Mainloop& main) const { return both(main.multiply, main.load, 1 + c.beside) + main.more; }
  static double at_least(const Mainloop& main) { return std::max(main.multiply, main.load) + main.more; }

  double epilogue() const {
    const double elements = x.m * ceil_div(x.n, x.part) * x.part;
    const double panels = x.swap || x.direct ? 1 : 1 + by_panel(x.part, 0, c.stored32, c.stored16);
    const double time = elements * x.d_size * panels / (c.store * (x.direct ? c.direct : 1)) +
                        c.finish * x.instructions * elements / (128 * 256) * (x.pingpong ? 2 : 1);  // by one warpgroup
    if (blocks_of_tile() == 1) return time;
    return time / x.slices + c.join + elements * 4 / c.joined;
  }

  double tiles(double main) const {
    const double end = epilogue();
    const bool hides = x.pingpong && blocks_of_tile() == 1;  // an epilogue beside the other warpgroup's mainloop
    const double each = hides ? std::max(main, (main + end) / 2) : main + end;
    const double idle = waves > 1 ? waves - count / slots : 0;
    return (waves + c.last * idle) * each + (hides ? main + end - each : 0);
  }

  // Bytes that come in a microsecond: all that memory brings, and what multiprocessors get of it that are few.
  struct Rates {
    double shared, alone;
    double per_byte() const { return std::pow(std::pow(shared, -4) + std::pow(alone, -4), 0.25); }
    double least_per_byte() const { return 1 / std::min(shared, alone); }
  };
  Rates rates() const {
    const double blocks_at_once = std::min(count, slots) * blocks();
    const double half = slots * blocks() / 2, busy = std::clamp(blocks_at_once / half - 1, 0.0, 1.0) / waves;
    return {c.memory / (1 + c.paired * busy), c.alone * blocks_at_once};
  }
  // That come at least, whatever the order.
  double once() const {
    if (c.near < 0) return 0;  // what neighbours share would be taken off
    return batch * (k * x.size * (left.extent + right.extent) + left.extent * right.extent * x.d_size);
  }

  double memory(EstimatedOrder order, double per_byte) const {
    const Side &fast = order.along_m ? right : left, &slow = order.along_m ? left : right;
    const double all = k * x.size, fast_bytes = all * fast.extent, slow_bytes = all * slow.extent;
    const double width = std::min(double(order.band), fast.tiles), at_once = std::min(count / batch, slots);
    const double height = std::min(std::max(at_once / width, 1.0), slow.tiles);
    const double panel = all * fast.lines(width), wave = panel + all * slow.lines(height);
    const auto lost = [&](double bytes) { return c.again / (1 + std::pow(c.kept / bytes, 2)); };
    const double repeats = std::max(slow.tiles / height, 1.0) - 1, bands = ceil_div(fast.tiles, width) - 1;
    const double bytes =
        batch * (fast_bytes * (1 + repeats * lost(wave)) + slow_bytes * (1 + bands * lost(panel + slow_bytes)) +
                 left.extent * right.extent * x.d_size);
    return bytes * per_byte + neighbours(fast, slow, width);
  }

  // What eight multiprocessors beside each other read, each line once.
  double neighbours(const Side& fast, const Side& slow, double width) const {
    const double group = std::clamp(8.0 / blocks(), 1.0, count / batch);
    double wide = std::min(width, group), high = std::fmod(group, width) ? 1 + (group - 1) / width : group / width;
    if (high > slow.tiles) high = slow.tiles, wide = std::min(group / high, fast.tiles);
    const double lines = fast.lines(wide) + slow.lines(high);
    return 1e-6 * c.near * count / slots * k * x.size * lines / (group * blocks());
  }

  auto features(double microseconds) const {
    return std::array{
#define CUTLASS_PY_FEATURE(name, value) float(value),
        CUTLASS_PY_ESTIMATE_FEATURES(CUTLASS_PY_FEATURE)
#undef CUTLASS_PY_FEATURE
    };
  }

  bool empty() const { return !count || !k; }
  double in_order(EstimatedOrder order) const {
    return empty() ? fixed() : fixed() + tiles(at_once(mainloop())) + memory(order, rates().per_byte());
  }
  double fixed() const { return c.launch + c.fill * (blocks() > 1 ? 1 + c.meet : 1); }
};

double residual_of(const Trees& trees, const Tiling& tiling, double microseconds) {
  return std::clamp(sum_of(trees, tiling.features(microseconds).data()), -kMostResidual, kMostResidual);
}

}  // namespace

EstimateConstants constants_of(const double* fitted) {
  EstimateConstants found;
#define CUTLASS_PY_AS_IT_IS(name) found.name = *fitted++;
#define CUTLASS_PY_OF_LOGARITHM(name) found.name = std::exp(*fitted++);
  CUTLASS_PY_ESTIMATE_CONSTANTS(CUTLASS_PY_AS_IT_IS, CUTLASS_PY_OF_LOGARITHM)
#undef CUTLASS_PY_AS_IT_IS
#undef CUTLASS_PY_OF_LOGARITHM
  return found;
}

std::vector<EstimatedOrder> orders_of(const EstimatedDesign& x, double m, double n) {
  std::vector<EstimatedOrder> found;
  each_order(left_of(x, m, n), right_of(x, m, n), [&](EstimatedOrder order) { found.push_back(order); });
  return found;
}

double estimate(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                EstimatedOrder order) {
  return Tiling(model, m, n, k, batch, x).in_order(order);
}

double full_estimate(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                     EstimatedOrder order) {
  const Tiling tiling(model, m, n, k, batch, x);
  const double us = tiling.in_order(order);
  return tiling.empty() ? us : us * std::exp(residual_of(model.residual, tiling, us));
}

std::vector<const char*> feature_names() {
  return {
#define CUTLASS_PY_FEATURE(name, value) #name,
      CUTLASS_PY_ESTIMATE_FEATURES(CUTLASS_PY_FEATURE)
#undef CUTLASS_PY_FEATURE
  };
}

std::vector<float> features(const WgmmaEstimates& model, double m, double n, double k, double batch,
                            const EstimatedDesign& x, double microseconds) {
  const auto found = Tiling(model, m, n, k, batch, x).features(microseconds);
  return {found.begin(), found.end()};
}

double residual(const WgmmaEstimates& model, double m, double n, double k, double batch, const EstimatedDesign& x,
                double microseconds) {
  return residual_of(model.residual, Tiling(model, m, n, k, batch, x), microseconds);
}

Estimate best_estimate(const WgmmaEstimates& model, double m, double n, double k, double batch,
                       const EstimatedDesign& x, double below) {
  const Tiling tiling(model, m, n, k, batch, x);
  if (tiling.empty()) return {tiling.fixed(), {true, 1}};
  const Tiling::Mainloop main = tiling.mainloop();
  const Tiling::Rates rates = tiling.rates();
  const double bound = tiling.fixed() + tiling.tiles(Tiling::at_least(main)) + tiling.once() * rates.least_per_byte();
  const double shortest = model.residual.empty() ? 1 : kShortest;
  if (bound * shortest >= below) return {bound * shortest, {true, 1}};
  const double least = tiling.fixed() + tiling.tiles(tiling.at_once(main)), per_byte = rates.per_byte();
  Estimate best{std::numeric_limits<double>::infinity(), {true, 1}};
  each_order(tiling.left, tiling.right, [&](EstimatedOrder order) {
    const double time = tiling.memory(order, per_byte);
    if (time < best.microseconds) best = {time, order};
  });
  best.microseconds += least;
  if (best.microseconds * shortest < below) {
    best.microseconds *= std::exp(residual_of(model.residual, tiling, best.microseconds));
  } else {
    best.microseconds *= shortest;
  }
  return best;
}

}  // namespace cutlass_py
