// The formula of estimate.h for Python: a design as a value, and what it takes. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "frontends/bindings.h"
#include "frontends/tree_of.h"
#include "operations/gemm/estimate.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

constexpr const char* kNames[] = {
#define CUTLASS_PY_CONSTANT(name) #name,
    CUTLASS_PY_ESTIMATE_CONSTANTS(CUTLASS_PY_CONSTANT, CUTLASS_PY_CONSTANT)
#undef CUTLASS_PY_CONSTANT
};
static_assert(std::size(kNames) == kEstimateConstants);

using Product = std::tuple<double, double, double, double>;

// kernel.h's raster, which counts rows of D.
int raster_of(const EstimatedDesign& x, EstimatedOrder order) { return order.along_m != x.swap ? 1 : 2; }
bool along_m(const EstimatedDesign& x, int raster) { return (raster == 1) != x.swap; }

// Kept here, so that a fit, which asks about them thousands of times, does not hand them over each time.
struct WgmmaArms {
  struct Arm {
    Product product;
    EstimatedDesign design;
    EstimatedOrder order;
  };
  std::vector<Arm> each;

  WgmmaArms(const std::vector<Product>& products, const std::vector<EstimatedDesign>& designs,
            const std::vector<std::pair<int, int>>& orders) {
    if (products.size() != designs.size() || products.size() != orders.size()) {
      throw std::invalid_argument("a product, a design and an order each");
    }
    for (size_t i = 0; i < products.size(); ++i) {
      const auto [raster, swizzle] = orders[i];
      each.push_back({products[i], designs[i], {along_m(designs[i], raster), swizzle}});
    }
  }
};

WgmmaEstimates model_of(const std::vector<double>& constants, const Clusters& clusters,
                        const std::vector<TreeOf>& residual) {
  if (constants.size() != kEstimateConstants) throw std::invalid_argument("one number for each of wgmma_constants()");
  return {constants_of(constants.data()), clusters, trees_of(residual, feature_names().size())};
}

std::tuple<double, int, int> best(const WgmmaEstimates& model, const Product& p, const EstimatedDesign& x) {
  const auto [m, n, k, batch] = p;
  const Estimate found = best_estimate(model, m, n, k, batch, x);
  return {found.microseconds, raster_of(x, found.order), found.order.band};
}

double in_order(const WgmmaEstimates& model, const Product& p, const EstimatedDesign& x, std::pair<int, int> order) {
  const auto [m, n, k, batch] = p;
  return full_estimate(model, m, n, k, batch, x, {along_m(x, order.first), order.second});
}

// what(product, design, its time by the formula) of each.
template <class What>
auto of_each(const WgmmaEstimates& model, const WgmmaArms& arms, What what) {
  std::vector<decltype(what(arms.each[0].product, arms.each[0].design, 0.0))> found;
  for (const auto& [product, x, order] : arms.each) {
    const auto [m, n, k, batch] = product;
    found.push_back(what(product, x, estimate(model, m, n, k, batch, x, order)));
  }
  return found;
}

std::vector<double> times(const WgmmaEstimates& model, const WgmmaArms& arms) {
  return of_each(model, arms, [](const Product&, const EstimatedDesign&, double us) { return us; });
}

std::vector<double> residuals(const WgmmaEstimates& model, const WgmmaArms& arms) {
  return of_each(model, arms, [&](const Product& p, const EstimatedDesign& x, double us) {
    const auto [m, n, k, batch] = p;
    return residual(model, m, n, k, batch, x, us);
  });
}

std::vector<std::vector<float>> features_of(const WgmmaEstimates& model, const WgmmaArms& arms) {
  return of_each(model, arms, [&](const Product& p, const EstimatedDesign& x, double us) {
    const auto [m, n, k, batch] = p;
    return features(model, m, n, k, batch, x, us);
  });
}

}  // namespace

void bind_estimate(nb::module_& m) {
  m.def(
      "wgmma_constants", [] { return std::vector<std::string>(std::begin(kNames), std::end(kNames)); },
      "Names of the constants of WgmmaEstimates, in their order.");
  m.def("wgmma_features", &feature_names, "What the residual of WgmmaEstimates looks at, in the order of its numbers.");
  m.def(
      "wgmma_most_residual", [] { return kMostResidual; },
      "The most by which that moves the logarithm of an estimate.");
  nb::class_<EstimatedDesign>(m, "WgmmaDesign", "What the formula for wgmma kernels knows of one.")
      .def(
          "__init__",
          [](EstimatedDesign* self, std::array<int, 3> tile, std::array<int, 3> cluster, bool serial, bool swap,
             bool pingpong, bool turns, bool by_column, bool left_along, bool right_along, bool direct, bool unaligned,
             int size, int d_size, int part, int instructions) {
            new (self) EstimatedDesign{tile[0],   tile[1],  tile[2], cluster[0], cluster[1],  cluster[2],  serial,
                                       swap,      pingpong, turns,   by_column,  left_along,  right_along, direct,
                                       unaligned, size,     d_size,  part,       instructions};
          },
          nb::kw_only(), "tile"_a, "cluster"_a, "serial"_a, "swap"_a, "pingpong"_a, "turns"_a, "by_column"_a,
          "left_along"_a, "right_along"_a, "direct"_a, "unaligned"_a, "size"_a, "d_size"_a, "part"_a, "instructions"_a,
          "The third extent of a cluster counts slices of k. Sizes are bytes of an element, `d_size` of all that lies "
          "like D; `part` counts columns that are stored at once.")
      .def(
          "orders",
          [](const EstimatedDesign& self, double m, double n) {
            std::vector<std::pair<int, int>> found;
            for (const EstimatedOrder order : orders_of(self, m, n)) {
              found.emplace_back(raster_of(self, order), order.band);
            }
            return found;
          },
          "m"_a, "n"_a,
          "Raster and swizzle of each order that tells the tiles of a product apart; one, of a single row or column.");
  nb::class_<WgmmaDesigns>(m, "WgmmaDesigns", "Several of them.")
      .def(
          "__init__",
          [](WgmmaDesigns* self, std::vector<EstimatedDesign> each) { new (self) WgmmaDesigns{std::move(each)}; },
          "each"_a);
  nb::class_<WgmmaArms>(m, "WgmmaArms", "Products (m, n, k, batch) by kernels, each in an order (raster, swizzle).")
      .def(nb::init<const std::vector<Product>&, const std::vector<EstimatedDesign>&,
                    const std::vector<std::pair<int, int>>&>(),
           "products"_a, "designs"_a, "orders"_a)
      .def("__len__", [](const WgmmaArms& arms) { return arms.each.size(); });
  nb::class_<WgmmaEstimates>(m, "WgmmaEstimates",
                             "What wgmma kernels take, by constants and by how many clusters of each size run at once.")
      .def(
          "__init__",
          [](WgmmaEstimates* self, const std::vector<double>& constants, const Clusters& clusters,
             const std::vector<TreeOf>& residual) {
            new (self) WgmmaEstimates(model_of(constants, clusters, residual));
          },
          "constants"_a, "clusters"_a, "residual"_a = std::vector<TreeOf>(),
          "`residual`: trees whose values add up to the logarithm of time over the formula's; of each the features and "
          "thresholds of its nodes, and the values of its leaves.")
      .def("best", &best, "product"_a, "design"_a,
           "Microseconds of a product (m, n, k, batch) in the best order of tiles, its raster and its swizzle.")
      .def("in_order", &in_order, "product"_a, "design"_a, "order"_a,
           "Microseconds of a product in one order of tiles: raster, swizzle.")
      .def("times", &times, "arms"_a, "Microseconds of each of WgmmaArms, by the formula alone.")
      .def("residuals", &residuals, "arms"_a, "Logarithm of what the trees make of them.")
      .def("features", &features_of, "arms"_a, "What the trees look at, by wgmma_features().");
}

}  // namespace cutlass_py
