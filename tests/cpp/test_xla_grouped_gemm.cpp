// Tests of xla_grouped_gemm.cpp: a call frame with sizes becomes the canonical grouped call that it stands for, behind
// whose launch zeros are queued, or a named error.
#include "frontends/xla_grouped_gemm.h"

#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "no_device.h"
#include "runtime/registry.h"
#include "xla_frame.h"

using namespace cutlass_py;
using cutlass_py::grouping::XlaGroupedGemm;

template <>
Values cutlass_py::written<XlaGroupedGemm>() {
  return {{"format", kXlaFormat},
          {"operands", "a b sizes"},
          {"results", "out scratch"},
          {"layout", "tt"},
          {"alpha", std::vector<double>{1, 0}},
          {"beta", std::vector<double>{1, 0}},
          {"scale_a", 1.0},
          {"scale_b", 1.0},
          {"scale_out", 1.0},
          {"activation", "identity"},
          {"gated", int64_t(0)},
          {"activation_parameters", std::vector<double>{0, 0}},
          {"compute", ""},
          {"kernel", "some_kernel"},
          {"pack_a", ""},
          {"pack_b", ""},
          {"scratch", ""},
          {"pack_scales", int64_t(0)},
          {"sums", int64_t(0)},
          {"splits", int64_t(1)},
          {"raster", int64_t(1)},
          {"swizzle", int64_t(2)},
          {"overlap", int64_t(0)}};
}

namespace {

using Frame = FrameOf<XlaGroupedGemm>;
using xla::DataType;

// What was cleared last.
struct Cleared {
  CutlassPyArray d;
  int64_t rows, cols;
  CutlassPyGroups groups;
  int32_t count;
} cleared;
int clears = 0, launches = 0;
CutlassPyGemm launched;

int clear_rest(const CutlassPyArray* d, int64_t rows, int64_t cols, const CutlassPyGroups* groups, int32_t count,
               void*) {
  cleared = {*d, rows, cols, *groups, count};
  return ++clears, 0;
}
const CutlassPyElementwise elementwise = [] {
  CutlassPyElementwise all{};
  all.clear_rest = &clear_rest;
  return all;
}();
const CutlassPyLibrary library = {CUTLASS_PY_ABI, 0, nullptr, &elementwise, nullptr, nullptr, nullptr};
const CutlassPyKernel kernel = {"some_kernel",
                                nullptr,
                                [](const void*, const CutlassPyLaunch*) { return size_t(0); },
                                [](const void* arguments, const CutlassPyLaunch*) {
                                  launched = *static_cast<const CutlassPyGemm*>(arguments);
                                  return ++launches, 0;
                                },
                                nullptr,
                                CUTLASS_PY_GROUPED_GEMM,
                                nullptr};

Frame halves(std::vector<int64_t> a, std::vector<int64_t> b, std::vector<int64_t> out) {
  Frame frame;
  frame.argument(std::move(a), DataType::bf16).argument(std::move(b), DataType::bf16);
  frame.result(std::move(out), DataType::bf16);
  return frame;
}

// The frame with three groups, and what it becomes.
struct Decoded {
  Frame frame;
  XlaGroupedGemm x;
  explicit Decoded(Frame given, int64_t groups = 3, DataType dtype = DataType::s32) : frame(std::move(given)) {
    frame.argument({groups}, dtype).with("results", "out");
    frame.read(x);
    x.plan.kernel = &kernel;
  }
};

Frame rows() { return halves({40, 16}, {3, 16, 24}, {40, 24}); }

TEST(rows_of_groups) {
  Decoded decoded(rows());
  const Problem& p = decoded.x.call.problem;
  CHECK(p.m == 40 && p.n == 24 && p.k == 16 && p.batch == 3 && p.grouped == 'm' && !p.stacked() && !p.told);
  CHECK(p.layout_a == 't' && p.layout_b == 't' && decoded.x.call.a.batch == 0 && decoded.x.call.b.batch == 16 * 24);
  const CutlassPyGroups& g = decoded.x.call.groups;
  CHECK(g.kind == CUTLASS_PY_GROUP_SIZES && g.axis == 'm' && !g.wide && g.numbers == decoded.x.numbers.array->data);
}

TEST(turned_matrices) {
  Decoded decoded(std::move(halves({40, 16}, {3, 24, 16}, {40, 24}).with("layout", "tn")));
  const Problem& p = decoded.x.call.problem;
  CHECK(p.n == 24 && p.k == 16 && p.layout_b == 'n' && p.grouped == 'm');
}

TEST(groups_of_k) {
  Decoded decoded(std::move(halves({40, 16}, {40, 24}, {3, 16, 24}).with("layout", "nt")));
  const Problem& p = decoded.x.call.problem;
  CHECK(p.m == 16 && p.n == 24 && p.k == 40 && p.batch == 3 && p.grouped == 'k' && p.layout_a == 'n');
  clears = 0;
  decoded.x.finish(nullptr);
  CHECK(!clears);  // every group has a result
}

TEST(zeros_behind_the_last_group) {
  Decoded decoded(rows());
  clears = launches = 0;
  decoded.x.run(nullptr);
  decoded.x.finish(nullptr);
  CHECK(launches == 1 && clears == 1);
  CHECK(cleared.d.data == decoded.x.call.d.data && cleared.d.row == 24 && cleared.d.col == 1);
  CHECK(cleared.rows == 40 && cleared.cols == 24 && cleared.count == 3);
  CHECK(cleared.groups.axis == 'm' && cleared.groups.kind == CUTLASS_PY_GROUP_SIZES && !cleared.groups.wide);
  CHECK(cleared.groups.numbers == decoded.x.numbers.array->data);
}

// Whose D is canonically transposed: the zeros go by what was asked.
TEST(one_column) {
  Decoded decoded(halves({40, 16}, {3, 16, 1}, {40, 1}));
  decoded.x.finish(nullptr);
  CHECK(cleared.rows == 40 && cleared.cols == 1 && cleared.groups.axis == 'm');
}

TEST(no_groups) {
  Decoded decoded(halves({40, 16}, {0, 16, 24}, {40, 24}), 0);
  clears = launches = 0;
  CHECK(!decoded.x.nothing_to_do());
  decoded.x.run(nullptr);
  decoded.x.finish(nullptr);
  CHECK(!launches && clears == 1 && cleared.count == 0);
  CHECK(Decoded(halves({0, 16}, {3, 16, 24}, {0, 24})).x.nothing_to_do());
}

// Another call of the class: its own addresses, that of sizes too.
TEST(cached_launches) {
  Decoded first(rows()), second(rows());
  const CachedLaunch known = first.x.cached_launch();
  CHECK(known && first.x.key() == second.x.key());
  CachedLaunch::Filled launch;
  Operand sizes = *second.x.numbers.array;
  sizes.data = reinterpret_cast<void*>(uintptr_t(1) << 50);
  second.x.numbers.array = &sizes;
  CHECK(second.x.fill(known, launch, nullptr));
  launch.run();
  CHECK(launched.groups.numbers == sizes.data && launched.groups.kind == CUTLASS_PY_GROUP_SIZES);
  CHECK(launched.a == second.x.call.a.data && launched.d == second.x.call.d.data);
  Decoded other(halves({40, 16}, {4, 16, 24}, {40, 24}), 4);
  CHECK(!(other.x.key() == first.x.key()));
  XlaGemm dense;
  dense.request = first.x.request, dense.plan = first.x.plan, dense.kernel = first.x.kernel;
  CHECK(!(dense.key() == first.x.key()));
}

TEST(messages) {
  auto error = [](Frame frame, std::vector<int64_t> sizes = {3}, DataType dtype = DataType::s32) {
    return std::move(frame.with("results", "out")).argument(std::move(sizes), dtype).error();
  };
  CHECK(error(rows(), {4}) == "gemm: sizes is (4,); expected (3,)");
  CHECK(error(rows(), {3, 1}) == "gemm: sizes is (3, 1); expected one dimension");
  CHECK(error(rows(), {3}, DataType::f32) == "gemm: sizes is f32; expected int32 or int64");
  CHECK(error(rows(), {3}, DataType::s64) == "gemm: sizes has XLA's dtype 5, which gemm lacks");
  CHECK(error(std::move(rows().with("operands", "a b c"))) == "gemm: the call lacks sizes");
  CHECK(error(halves({40, 16}, {3, 8, 24}, {40, 24})) ==
        "gemm: a is (40, 16) but b is (3, 8, 24); inner extents must agree");
  CHECK(error(halves({40, 16}, {3, 16, 24}, {3, 40, 24})) == "gemm: out is (3, 40, 24); expected (40, 24)");
  Frame overlap;
  overlap.argument({40, 16}, DataType::bf16).argument({3, 16, 24}, DataType::bf16);
  overlap.argument({3}, DataType::s32, 4096).result({40, 24}, DataType::bf16, 4096).with("results", "out");
  CHECK(overlap.error() == "gemm: out shares elements with sizes");
}

}  // namespace

namespace cutlass_py {

// What run.cpp needs.
const CutlassPyLibrary* builtin_library() { return &library; }

}  // namespace cutlass_py
