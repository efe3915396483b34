#include "operations/gemm/routes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace cutlass_py {

double Detours::microseconds(const Problem& p, int64_t parts, const Beside& beside) const {
  const double m = p.m, n = p.n, k = p.k, batch = p.batch;
  double time = 0;
  const auto move = [&](double bytes) { return beside.launch + bytes / beside.rate; };
  if (pack_a) time += move(2 * m * k * batch * pack_a) * (turn_a ? beside.transposed : 1);
  if (pack_b) time += move(2 * k * n * batch * pack_b) * (turn_b ? beside.transposed : 1);
  if (pack_scales) time += move(2 * m * double(blocks_of(p.k)) * batch * pack_scales);
  if (finish) time += move(m * n * batch * (double(finish_sum) * double(parts) + finish));
  if (sums) time += move(m * n * batch * sums);
  return time;
}

// ------------------------------------------------------------------------------------------------ the residual

namespace {

// How a kernel comes by its operands, and D by its place.
enum class Kind { boxes, direct, unaligned, vectors, tiles };

// A kernel as trees see it; m of one for vectors is 0.
struct Seen {
  Kind kind;
  int m, n, k, slices;
  bool swap;
  int access, size, d_size;
};

std::optional<Seen> seen(const EstimatedDesign& x) {
  const Kind kind = x.unaligned ? Kind::unaligned : x.direct ? Kind::direct : Kind::boxes;
  return Seen{kind, x.m, x.n, x.k, x.slices, x.swap, 0, x.size, x.d_size};
}
std::optional<Seen> seen(const OtherKernel& x) {
  if (x.own) return seen(*x.own);
  if (std::holds_alternative<GemvDesign>(x.formula)) {
    return Seen{Kind::vectors, 0, 0, 0, x.slices, x.swap, 0, x.size, x.d_size};
  }
  if (!x.access) return std::nullopt;
  return Seen{Kind::tiles, x.m, x.n, x.k, x.slices, x.swap, x.access, x.size, x.d_size};
}

#define CUTLASS_PY_ROUTE_FEATURES(X)           \
  X(kind, x.kind)                              \
  X(tile_m, x.m)                               \
  X(tile_n, x.n)                               \
  X(tile_k, x.k)                               \
  X(slices, x.slices)                          \
  X(swap, x.swap)                              \
  X(access, x.access)                          \
  X(size, x.size)                              \
  X(d_size, x.d_size)                          \
  X(align_d, p.align_d)                        \
  X(rows, rows)                                \
  X(columns, columns)                          \
  X(k, k)                                      \
  X(batch, p.batch)                            \
  X(parts, parts)                              \
  X(tiles, tiles_m * tiles_n * batch)          \
  X(steps, steps)                              \
  X(rows_full, full(rows, tiles_m, x.m))       \
  X(columns_full, full(columns, tiles_n, x.n)) \
  X(around, us > 0 ? around / us : 0)          \
  X(microseconds, us)

auto features_of(const Problem& p, const Seen& x, int64_t parts, double around, double us) {
  const double m = p.m, n = double(p.columns_of_b()), batch = double(p.batch) * double(parts);
  const double rows = x.swap ? n : m, columns = x.swap ? m : n;
  const double k = double(blocks_of(p.k, parts));
  const auto count = [](double extent, int tile) { return tile ? std::ceil(extent / tile) : 0; };
  const auto full = [](double extent, double tiles, int tile) { return tiles > 0 ? extent / (tiles * tile) : 1; };
  const double tiles_m = count(rows, x.m), tiles_n = count(columns, x.n), steps = count(k, x.k) / x.slices;
  return std::array{
#define CUTLASS_PY_FEATURE(name, value) float(value),
      CUTLASS_PY_ROUTE_FEATURES(CUTLASS_PY_FEATURE)
#undef CUTLASS_PY_FEATURE
  };
}

template <class Kernel>
double with_residual(const Trees& trees, const Problem& p, const Kernel& kernel, int64_t parts, double around,
                     double us) {
  const std::optional<Seen> x = trees.empty() ? std::nullopt : seen(kernel);
  if (!x || !std::isfinite(us)) return us;
  const double sum = sum_of(trees, features_of(p, *x, parts, around, us).data());
  return us * std::exp(std::clamp(sum, -kMostResidual, kMostResidual));
}

template <class Kernel>
std::vector<float> features_or_none(const Problem& p, const Kernel& kernel, int64_t parts, double around, double us) {
  const std::optional<Seen> x = seen(kernel);
  if (!x) return {};
  const auto found = features_of(p, *x, parts, around, us);
  return {found.begin(), found.end()};
}

}  // namespace

std::vector<const char*> route_feature_names() {
  return {
#define CUTLASS_PY_FEATURE(name, value) #name,
      CUTLASS_PY_ROUTE_FEATURES(CUTLASS_PY_FEATURE)
#undef CUTLASS_PY_FEATURE
  };
}

std::vector<float> route_features(const Problem& p, const EstimatedDesign& x, int64_t parts, double around, double us) {
  return features_or_none(p, x, parts, around, us);
}
std::vector<float> route_features(const Problem& p, const OtherKernel& x, int64_t parts, double around, double us) {
  return features_or_none(p, x, parts, around, us);
}

double RouteResidual::applied(const Problem& p, const EstimatedDesign& x, int64_t parts, double around,
                              double us) const {
  return with_residual(trees, p, x, parts, around, us);
}
double RouteResidual::applied(const Problem& p, const OtherKernel& x, int64_t parts, double around, double us) const {
  return with_residual(trees, p, x, parts, around, us);
}

// ------------------------------------------------------------------------------------------------ the search

// To one product.
class Routes::Search {
 public:
  Search(const Routes& routes, const Problem& p, bool every, const Ask& ask)
      : routes_(routes),
        p_(p),
        every_(every),
        ask_(ask),
        shortest_(routes.residual_->trees.empty() ? 1 : std::exp(-kMostResidual)) {
    const Floor& floor = routes.floor_;
    const double m = p.m, n = double(p.columns_of_b()), k = p.k;
    const double moved = double(p.batch) * (m * k * floor.size_a + k * n * floor.size_b);
    least_ = floor.launch + moved / floor.memory;
    least_of_vectors_ = floor.longer * gemv::least(moved, floor.on);
  }

  std::vector<Route> find(bool cuts) {
    const size_t count = routes_.groups_.size();
    std::vector<double> least(count);
    for (size_t i = 0; i < count; ++i) {
      least[i] = at_least(*routes_.groups_[i], routes_.groups_[i]->least, 1);
    }
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return least[x] < least[y]; });
    const bool parts = cuts && p_.splits != 1 && p_.splits != -1;
    if (parts) count_parts();
    for (const size_t i : order) {
      if (!open(least[i])) break;
      RouteGroup& group = *routes_.groups_[i];
      if (open(at_least(group, group.whole, 1))) whole(group, int(i));
      if (parts && group.parts) in_parts(group, int(i));
    }
    return std::move(found_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kRounding = 1 + 1e-9;  // a sum may be as much smaller as what it is compared with

  // k in parts, of which there are so many where at least so many splits are asked for.
  struct Parts {
    int64_t splits, count;
    double cut;                                         // how much longer a kernel takes than for a batch of so many
    std::vector<std::pair<int64_t, int64_t>> launches;  // parts, and the length of each
  };

  // Whether what takes so long at least by the formulas may yet be of use.
  bool open(double least, double fastest) const { return every_ || least * shortest_ < fastest; }
  bool open(double least) const { return open(least, fastest_); }
  // What a kernel may take for that; anything where all are.
  double limit(double fastest, double around) const {
    return every_ ? kNever : (fastest / shortest_ - around) * kRounding;
  }
  // A route's time with the residual, where it may be of use; else one that is not.
  template <class Kernel>
  double applied(const Kernel& x, int64_t parts, double around, double us, double fastest) const {
    return open(us, fastest) ? routes_.residual_->applied(p_, x, parts, around, us) : us;
  }
  double at_least(const RouteGroup& group, const Detours& detours, int64_t parts) const {
    const double cut = parts > 1 ? std::min(1.0, routes_.beside_.cut) : 1;
    return cut * (group.few_rows ? least_of_vectors_ : least_) + detours.microseconds(p_, parts, routes_.beside_);
  }

  void add(const Route& route) {
    if (every_ || found_.empty()) {
      found_.push_back(route);
    } else if (!(route.microseconds >= found_[0].microseconds)) {  // an estimate may be no number
      found_[0] = route;
    }
    fastest_ = std::min(fastest_, route.microseconds);
  }

  // What a kernel takes; one of our own that is not below a limit, no more than that.
  double time(const RouteGroup& group, const EstimatedDesign& x, int, int, const Parts& parts, double limit) const {
    double sum = 0;
    for (const auto& [count, k] : parts.launches) {
      const double batch = double(p_.batch * count), left = limit / parts.cut - sum;
      sum += best_estimate(*group.model, p_.m, double(p_.columns_of_b()), double(k), batch, x, left).microseconds;
    }
    return parts.cut * sum;
  }
  double time(const RouteGroup&, const OtherKernel& x, int place, int kernel, const Parts& parts, double) const {
    if (std::holds_alternative<std::monostate>(x.formula)) return ask_(place, kernel, parts.count);
    if (const auto* design = std::get_if<TiledDesign>(&x.formula)) return time(*design, parts);
    if (const auto* design = std::get_if<GemvDesign>(&x.formula)) return time(*design, parts);
    return std::get<double>(x.formula);
  }
  template <class Design>
  double time(const Design& x, const Parts& parts) const {
    double sum = 0;
    for (const auto& [count, k] : parts.launches) sum += x.microseconds(p_, k, p_.batch * count);
    return parts.cut * sum;
  }

  // use(kernel, place in the group).
  template <class Use>
  static void each(RouteGroup& group, Use use) {
    int kernel = 0;
    if (group.designs && !group.own) group.own = group.designs();
    if (group.own) {
      for (const EstimatedDesign& x : group.own->each) use(x, kernel++);
    }
    for (const OtherKernel& x : group.others) use(x, kernel++);
  }
  template <class Kernel>
  bool is_alone(const Kernel& x) const {
    return p_.splits <= 0 || x.slices == p_.splits;
  }

  void whole(RouteGroup& group, int place) {
    const double around = group.whole.microseconds(p_, 1, routes_.beside_);
    const Parts all{1, 1, 1, {{1, p_.k}}};
    each(group, [&](const auto& x, int kernel) {
      if (!is_alone(x)) return;
      const double us = time(group, x, place, kernel, all, limit(fastest_, around) / group.behind);
      add({applied(x, 1, around, group.behind * us + around, fastest_), place, kernel, 1, false});
    });
  }

  // Those that were asked for, or that are worth asking about.
  void count_parts() {
    static constexpr int64_t kWorth[] = {2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 28, 32};
    const auto count = [&](int64_t splits) {
      const int64_t count = Splits(p_, splits).count;
      if (!parts_.empty() && parts_.back().count == count) return;
      const Splits parts(p_, count);
      parts_.push_back({splits, count, count > 1 ? routes_.beside_.cut : 1, {}});
      parts.each([&](int64_t first, int64_t of) { parts_.back().launches.emplace_back(of, parts.length_of(first)); });
    };
    if (p_.splits) {
      count(p_.splits);
    } else if (p_.batch <= 1) {  // each part of a batch is a launch of its own
      for (const int64_t splits : kWorth) count(splits);
    }
  }

  // Into how many k may be cut: few tiles, and each part long enough to pay for its epilogue.
  template <class Kernel>
  int64_t most_parts(const Kernel& x) const {
    if (p_.splits) return p_.splits;
    if (p_.k < 8 * x.k) return 0;
    const int64_t rows = x.swap ? p_.n : p_.m, columns = x.swap ? p_.m : p_.n;
    const int64_t tiles = std::max<int64_t>(blocks_of(rows, x.m) * blocks_of(columns, x.n), 1);
    return std::min<int64_t>(2 * routes_.sm_count_ / tiles, p_.k / (4 * x.k));
  }

  void in_parts(RouteGroup& group, int place) {
    if (!open(at_least(group, *group.parts, p_.splits ? parts_[0].count : Splits(p_, 2).count))) return;
    std::vector<double> around;  // of each that may yet be of use; of others infinite
    for (const Parts& x : parts_) {
      const bool may = open(at_least(group, *group.parts, x.count));
      around.push_back(may ? group.parts->microseconds(p_, x.count, routes_.beside_) : kNever);
    }
    each(group, [&](const auto& x, int kernel) {
      if (x.slices != 1) return;
      const int64_t most = most_parts(x);
      std::optional<Route> best;
      for (size_t i = 0; i < parts_.size() && parts_[i].splits <= most; ++i) {
        if (around[i] == kNever) continue;
        const double fastest = best ? std::min(fastest_, best->microseconds) : fastest_;
        const double formulas = time(group, x, place, kernel, parts_[i], limit(fastest, around[i])) + around[i];
        const double us = applied(x, parts_[i].count, around[i], formulas, fastest);
        if (!best || us < best->microseconds) best = Route{us, place, kernel, parts_[i].count, true};
      }
      if (best && (best->microseconds < kNever || p_.splits)) add(*best);
    });
  }

  const Routes& routes_;
  const Problem& p_;
  const bool every_;
  const Ask& ask_;
  const double shortest_;            // of a time with the residual, beside that of the formulas
  double least_, least_of_vectors_;  // of any kernel, and of those for few rows
  double fastest_ = kNever;
  std::vector<Parts> parts_;
  std::vector<Route> found_;
};

std::vector<Route> Routes::find(const Problem& p, bool every, bool cuts, const Ask& ask) const {
  return Search(*this, p, every, ask).find(cuts);
}

}  // namespace cutlass_py
