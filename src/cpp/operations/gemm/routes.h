// The routes to a product by numbers: of every kernel that can be on one, what it takes with all that surrounds it.
//
// Which routes there are does not depend on extents, but for what divides them (legality.py): routes.py lists them once
// for all problems that are alike, and asks here for each one's extents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "operations/gemm/estimate.h"
#include "operations/gemm/gemv_estimate.h"
#include "operations/gemm/problem.h"
#include "operations/gemm/tiled_estimate.h"

namespace cutlass_py {

// Constants of what surrounds kernels (cost.py).
struct Beside {
  double launch, rate, transposed, cut;
};

// What surrounds a kernel, by the bytes of an element that each of its launches moves; 0 where there is none.
struct Detours {
  int pack_a, pack_b;
  bool turn_a, turn_b;     // rows into columns
  int pack_scales;         // of a factor of scale_a, in blocks
  int finish, finish_sum;  // all that is read and written as D is; and of each part of k
  int sums;

  double microseconds(const Problem& p, int64_t parts, const Beside& beside) const;
};

// A kernel that is not of the formula for wgmma alone. `formula`: none where its time has to be asked for.
struct OtherKernel {
  int m, n, k;
  bool swap;
  int slices;
  int access;        // bytes that a thread loads at once; 0 where the kernel sees to that
  int size, d_size;  // bytes of an element of A and B, and of D
  std::variant<std::monostate, double, TiledDesign, GemvDesign> formula;
  std::optional<EstimatedDesign> own;  // one of ours, with more than its formula knows of
};

// What formulas leave of whole routes: what kernels of different formulas take beside each other.
struct RouteResidual {
  Trees trees;

  // Of a time by the formulas, `around` of it beside the kernel: what it is with the residual.
  double applied(const Problem& p, const EstimatedDesign& x, int64_t parts, double around, double us) const;
  double applied(const Problem& p, const OtherKernel& x, int64_t parts, double around, double us) const;
};

// What its trees are grown on, by its names; nothing of kernels that are only asked.
std::vector<const char*> route_feature_names();
std::vector<float> route_features(const Problem& p, const EstimatedDesign& x, int64_t parts, double around, double us);
std::vector<float> route_features(const Problem& p, const OtherKernel& x, int64_t parts, double around, double us);

// Kernels that reach a problem in one way, or with k in parts in another one.
struct RouteGroup {
  Detours least;  // by layouts and dtypes alone
  Detours whole;
  std::optional<Detours> parts;
  bool few_rows;  // they are bounded as kernels for few rows are
  double behind;  // how much longer k takes as a whole than estimated
  // Those of the formula for wgmma, and then the others.
  std::shared_ptr<const WgmmaEstimates> model;
  std::function<std::shared_ptr<WgmmaDesigns>()> designs;  // asked once, where they may be of use
  std::vector<OtherKernel> others;
  std::shared_ptr<const WgmmaDesigns> own;  // once they were asked for, as find does, under the GIL
};

// What no kernel is faster than: by the bytes of an element of A and of B.
struct Floor {
  double launch, memory;
  double longer;  // as in GemvDesign
  gemv::Machine on;
  int size_a, size_b;
};

struct Route {
  double microseconds;
  int group, kernel;  // by their places, the latter in its group
  int64_t parts;
  bool summed;  // by an elementwise kernel, as k is in parts; there may be one alone
};

// Of a kernel by group and place, k in so many parts.
using Ask = std::function<double(int, int, int64_t)>;

class Routes {
 public:
  using Groups = std::vector<std::shared_ptr<RouteGroup>>;

  Routes(Groups groups, const Floor& floor, const Beside& beside, std::shared_ptr<const RouteResidual> residual,
         int sm_count)
      : groups_(std::move(groups)),
        floor_(floor),
        beside_(beside),
        residual_(std::move(residual)),
        sm_count_(sm_count) {}

  // All of them, or one that none is faster than; those of a group are together, and of equals an earlier one is taken.
  // `cuts`: k may be in parts.
  std::vector<Route> find(const Problem& p, bool every, bool cuts, const Ask& ask) const;

 private:
  class Search;
  Groups groups_;
  Floor floor_;
  Beside beside_;
  std::shared_ptr<const RouteResidual> residual_;
  int sm_count_;
};

}  // namespace cutlass_py
