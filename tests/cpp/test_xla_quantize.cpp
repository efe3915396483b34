// Tests of xla_quantize.cpp: a call frame as XLA builds it becomes the canonical call that it stands for, or a named
// error; what is kept launches alike.
#include "frontends/xla_quantize.h"

#include <string>
#include <utility>

#include "check.h"
#include "no_device.h"
#include "runtime/registry.h"
#include "xla_frame.h"

using namespace cutlass_py;
using namespace cutlass_py::quantization;

template <>
Values cutlass_py::written<XlaQuantize>() {
  return {{"format", kXlaFormat},    {"operands", "x"},      {"results", "out scales"}, {"scaling", "1x128"},
          {"kernel", "some_kernel"}, {"raster", int64_t(0)}, {"swizzle", int64_t(1)},   {"overlap", int64_t(0)}};
}

namespace {

using Frame = FrameOf<XlaQuantize>;

Frame frame(int64_t rows = 64, uintptr_t x = 0) {
  Frame made;
  made.argument({2, rows, 300}, xla::DataType::bf16, x);
  made.result({2, rows, 300}, xla::DataType::e4m3).result({2, rows, 3});
  return made;
}

std::string error(Frame frame) {
  const OperationScope operation("quantize");
  return frame.error();
}

TEST(a_call) {
  XlaQuantize x;
  frame().read(x);
  const Problem& p = x.call.problem;
  CHECK(p.rows == 64 && p.cols == 300 && p.batch == 2 && p.x == Dtype::bf16 && p.q == Dtype::e4m3);
  CHECK(p.layout_x == 't' && p.layout_q == 't' && p.align_x == 3 && p.device == (Device{DeviceType::cuda, 1}));
  CHECK(kScalings[p.scaling].cols == 128 && kScalings[p.scaling].rows == 1);
  const CutlassPyQuantize& g = x.call.arguments;
  CHECK(g.x == x.operands[int(Role::x)].data && g.q == x.operands[int(Role::out)].data);
  CHECK(g.scales == x.operands[int(Role::scales)].data && g.scale_stride[g.rank - 2] == 3);
  CHECK(x.kernel == "some_kernel" && !x.plan.kernel && x.plan.swizzle == 1 && !x.nothing_to_do());
  CHECK(x.range_name() == "some_kernel 2 x (64, 300)");
}

TEST(one_scale_of_everything) {
  XlaQuantize x;
  Frame whole;
  whole.argument({64, 300}).result({64, 300}, xla::DataType::s8).result({}).with("scaling", "tensor");
  whole.read(x);
  CHECK(x.call.problem.q == Dtype::s8 && x.call.problem.x == Dtype::f32 && x.call.scales.rank == 0);
}

TEST(classes) {
  const auto key = [](Frame frame) {
    XlaQuantize x;
    frame.read(x);
    return x.key();
  };
  CHECK(key(frame()) && key(frame()) == key(frame(64, 1 << 20)));
  CHECK(!(key(frame()) == key(frame(65))));
  CHECK(!(key(frame()) == key(std::move(frame().with("kernel", "other_kernel")))));
}

TEST(what_is_kept_launches_alike) {
  XlaQuantize first, second;
  frame().read(first), frame(64, 1 << 20).read(second);
  const CutlassPyKernel kernel{"some_kernel", nullptr, nullptr, nullptr, nullptr, CUTLASS_PY_QUANTIZE, nullptr};
  first.plan.kernel = &kernel, first.plan.sm_count = 7;
  CachedLaunch::Filled launch;
  CHECK(second.fill(first.cached_launch(), launch, &launch));
  CHECK(launch.plan.kernel == &kernel && launch.launch.device == 1 && launch.launch.sm_count == 7);
  CHECK(launch.launch.stream == &launch);
  CHECK(std::memcmp(launch.arguments, &second.call.arguments, sizeof second.call.arguments) == 0);
}

TEST(messages) {
  const std::string writer = "; expected what cutlass_py.jax writes";
  CHECK(error(std::move(frame().with("format", int64_t(9)))) ==
        "quantize: the call was lowered in format 9; this version of cutlass_py reads 3");
  CHECK(error(std::move(frame().with("scaling", "col"))) == "quantize: scaling is 'col'" + writer);
  CHECK(error(std::move(frame().with("results", "out out"))) == "quantize: the call has out twice");
  CHECK(error(std::move(frame().with("results", "out scratch"))) == "quantize: the call lacks x, out or scales");
  CHECK(error(frame(64, 4100)) == "quantize: x is not aligned to 16 bytes, as XLA's buffers are");
  Frame wide;
  wide.argument({64, 300}).result({64, 300}, xla::DataType::f32).result({64, 3});
  CHECK(error(std::move(wide)) == "quantize: out is f32; expected e4m3, e5m2 or s8");
  Frame predicate;
  predicate.argument({64, 300}, xla::DataType(1)).result({64, 300}, xla::DataType::s8).result({64, 3});
  CHECK(error(std::move(predicate)) == "quantize: x has XLA's dtype 1, which quantize lacks");
  Frame fewer;
  fewer.argument({64, 300}).result({64, 300}, xla::DataType::s8).result({64, 2});
  CHECK(error(std::move(fewer)) == "quantize: scales is (64, 2); expected (64, 3)");
}

}  // namespace

namespace cutlass_py {

// What launch.cpp needs.
const CutlassPyLibrary* builtin_library() { return nullptr; }

}  // namespace cutlass_py
