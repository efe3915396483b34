// Routes and the formulas of kernels without wgmma for Python: designs as values, and what they take. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "frontends/bindings.h"
#include "frontends/tree_of.h"
#include "operations/gemm/routes.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

using Constants = std::array<double, 4>;
using RouteKernel = std::variant<EstimatedDesign, OtherKernel>;

Beside beside_of(const Constants& x) { return {x[0], x[1], x[2], x[3]}; }

constexpr const char* kProductsDoc = "Of so many products as a problem's, each of this length of k.";

}  // namespace

void bind_routes(nb::module_& m) {
  nb::class_<TiledDesign>(m, "TiledDesign", "What the formula for kernels without wgmma knows of one, on some GPU.")
      .def(
          "__init__",
          [](TiledDesign* self, std::array<int, 3> tile, int resident, bool stream_k, int size, int d_size, double step,
             double alone, double fill, double join, double fixed, double deal, double memory, int sm_count) {
            new (self) TiledDesign{tile[0], tile[1], tile[2], resident, stream_k, size,   d_size,  step,
                                   alone,   fill,    join,    fixed,    deal,     memory, sm_count};
          },
          nb::kw_only(), "tile"_a, "resident"_a, "stream_k"_a, "size"_a, "d_size"_a, "step"_a, "alone"_a, "fill"_a,
          "join"_a, "fixed"_a, "deal"_a, "memory"_a, "sm_count"_a,
          "Microseconds of a `step` of k of a tile and the least of it (`alone`), of a wave (`fill`), of any product "
          "(`fixed`, and `deal`); steps that it takes to `join` a tile; bytes that come from `memory` in one. Sizes as "
          "of a WgmmaDesign.")
      .def("microseconds", nb::overload_cast<const Problem&, int64_t, int64_t>(&TiledDesign::microseconds, nb::const_),
           "p"_a, "k"_a, "batch"_a, kProductsDoc)
      .def("of_product", nb::overload_cast<int64_t, int64_t, int64_t, int64_t>(&TiledDesign::microseconds, nb::const_),
           "m"_a, "n"_a, "k"_a, "batch"_a, "Microseconds of so many products of these extents.");
  nb::class_<GemvDesign>(m, "GemvDesign", "What the formula for kernels for a few rows knows of one, on some GPU.")
      .def(
          "__init__",
          [](GemvDesign* self, bool swap, bool packed, bool along_k, bool only_factor, int size, int sm_count,
             double memory, double longer) {
            new (self) GemvDesign{swap, packed, along_k, only_factor, size, {sm_count, memory}, longer};
          },
          nb::kw_only(), "swap"_a, "packed"_a, "along_k"_a, "only_factor"_a, "size"_a, "sm_count"_a, "memory"_a,
          "longer"_a,
          "Elements of the matrix have `size` bytes; its lines may lie `along_k`, after it was `packed`. "
          "`only_factor`: nothing else is applied; `memory` as of a TiledDesign. It takes so many times `longer` than "
          "the formula says.")
      .def("microseconds", &GemvDesign::microseconds, "p"_a, "k"_a, "batch"_a, kProductsDoc);
  nb::class_<Detours>(m, "Detours", "What surrounds a kernel, by the bytes of an element that it moves.")
      .def(
          "__init__",
          [](Detours* self, int pack_a, int pack_b, bool turn_a, bool turn_b, int pack_scales, int finish,
             int finish_sum,
             int sums) { new (self) Detours{pack_a, pack_b, turn_a, turn_b, pack_scales, finish, finish_sum, sums}; },
          nb::kw_only(), "pack_a"_a, "pack_b"_a, "turn_a"_a, "turn_b"_a, "pack_scales"_a, "finish"_a, "finish_sum"_a,
          "sums"_a,
          "0 for what there is not. Copies may `turn` rows into columns; what finishes a product reads and writes "
          "`finish` bytes, and `finish_sum` of each part of k.")
      .def(
          "microseconds",
          [](const Detours& self, const Problem& p, int64_t parts, const Constants& beside) {
            return self.microseconds(p, parts, beside_of(beside));
          },
          "p"_a, "parts"_a, "beside"_a, "Of a product with k in so many parts, by the constants that cost.py names.");
  nb::class_<OtherKernel>(m, "OtherKernel", "A kernel that is not of the formula for wgmma alone.")
      .def(
          "__init__",
          [](OtherKernel* self, std::array<int, 3> tile, bool swap, int slices, int access, int size, int d_size,
             std::variant<std::monostate, double, TiledDesign, GemvDesign> formula,
             std::optional<EstimatedDesign> own) {
            new (self) OtherKernel{
                tile[0], tile[1], tile[2], swap, slices, access, size, d_size, std::move(formula), std::move(own)};
          },
          nb::kw_only(), "tile"_a, "swap"_a, "slices"_a, "access"_a, "size"_a, "d_size"_a, "formula"_a.none(),
          "own"_a.none(),
          "A thread loads `access` bytes at once, 0 where the kernel sees to that. `formula`: or what any product "
          "takes; None where that has to be asked for. `own`: a design of ours with a user's epilogue.");
  m.def("route_features", &route_feature_names, "What a RouteResidual looks at, in the order of its numbers.");
  nb::class_<RouteResidual>(m, "RouteResidual", "What formulas leave of whole routes.")
      .def(
          "__init__",
          [](RouteResidual* self, const std::vector<TreeOf>& trees) {
            new (self) RouteResidual{trees_of(trees, route_feature_names().size())};
          },
          "trees"_a, "As the `residual` of WgmmaEstimates, by route_features().")
      .def(
          "applied",
          [](const RouteResidual& self, const Problem& p, const RouteKernel& kernel, int64_t parts, double around,
             double us) {
            return std::visit([&](const auto& x) { return self.applied(p, x, parts, around, us); }, kernel);
          },
          "p"_a, "kernel"_a, "parts"_a, "around"_a, "microseconds"_a,
          "A time by the formulas, of which so much is `around` the kernel, with the residual.")
      .def_static(
          "features",
          [](const Problem& p, const RouteKernel& kernel, int64_t parts, double around, double us) {
            return std::visit([&](const auto& x) { return route_features(p, x, parts, around, us); }, kernel);
          },
          "p"_a, "kernel"_a, "parts"_a, "around"_a, "microseconds"_a,
          "What the trees look at; nothing of a kernel that is only asked.");
  nb::class_<RouteGroup>(m, "RouteGroup", "Kernels that reach a problem in one way, or with k in parts in another one.")
      .def(
          "__init__",
          [](RouteGroup* self, const Detours& least, const Detours& whole, std::optional<Detours> parts, bool few_rows,
             double behind, std::shared_ptr<WgmmaEstimates> model,
             std::function<std::shared_ptr<WgmmaDesigns>()> designs, std::vector<OtherKernel> others) {
            new (self) RouteGroup{
                least, whole, parts, few_rows, behind, std::move(model), std::move(designs), std::move(others), {}};
          },
          nb::kw_only(), "least"_a, "whole"_a, "parts"_a.none(), "few_rows"_a, "behind"_a, "model"_a.none(),
          "designs"_a.none(), "others"_a,
          "`least`: by layouts and dtypes alone. `behind`: how much longer k takes as a whole than estimated. "
          "`designs()`: of those that `model` is about, asked once.");
  nb::class_<Routes>(m, "Routes", "The routes to problems that differ in extents alone.")
      .def(
          "__init__",
          [](Routes* self, Routes::Groups groups, double launch, double memory, std::array<int, 2> sizes, double longer,
             double gemv_memory, const Constants& beside, std::shared_ptr<RouteResidual> residual, int sm_count) {
            const Floor floor{launch, memory, longer, {sm_count, gemv_memory}, sizes[0], sizes[1]};
            new (self) Routes(std::move(groups), floor, beside_of(beside), std::move(residual), sm_count);
          },
          nb::kw_only(), "groups"_a, "launch"_a, "memory"_a, "sizes"_a, "longer"_a, "gemv_memory"_a, "beside"_a,
          "residual"_a, "sm_count"_a,
          "No kernel takes less than a `launch`, and bytes of A and B (`sizes` of an element) that come from `memory` "
          "in a microsecond; those for few rows are bounded by their own formula.")
      .def(
          "find",
          [](const Routes& self, const Problem& p, bool every, bool cuts, const Ask& ask) {
            std::vector<std::tuple<double, int, int, int64_t, bool>> found;
            for (const Route& x : self.find(p, every, cuts, ask)) {
              found.emplace_back(x.microseconds, x.group, x.kernel, x.parts, x.summed);
            }
            return found;
          },
          "p"_a, "every"_a, "cuts"_a, "ask"_a,
          "Microseconds, the places of the group and of the kernel in it (first those of `designs`), parts of k, and "
          "whether an elementwise kernel sums them: of every route, or of the first one that none is faster than. "
          "`cuts`: k may be in parts. `ask(group, kernel, parts)` is asked for the time of kernels without a formula.");
}

}  // namespace cutlass_py
