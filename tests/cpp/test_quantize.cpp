// Tests of quantize's canonical form: shapes, dimensions that become one, classes, keys; what is kept launches alike.
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string>

#include "check.h"
#include "operations/quantize/launch_key.h"

using namespace cutlass_py;
using namespace cutlass_py::quantization;

namespace {

char place[1 << 16];

int scaling(const std::string& name) {
  for (int i = 0; i < int(std::size(kScalings)); ++i) {
    if (name == kScalings[i].name) return i;
  }
  return -1;
}

Operand array(const char* name, Dtype dtype, std::initializer_list<int64_t> shape, size_t offset = 0) {
  Operand x;
  x.name = name, x.dtype = dtype, x.device = {DeviceType::cuda, 0}, x.data = place + offset;
  x.set_row_major(shape.begin(), int(shape.size()));
  return x;
}

Request request(const Operand& x, const char* name) {
  Request r;
  r.operands[int(Role::x)] = &x, r.q = Dtype::e4m3, r.scaling = scaling(name);
  return r;
}

std::string shape(const Operand& x) { return shape_text(x.shape, x.rank); }

TEST(shapes_of_scales) {
  const Operand x = array("x", Dtype::bf16, {3, 200, 300}), vector = array("x", Dtype::bf16, {300});
  CHECK(shape(canonicalise(request(x, "tensor")).scales) == "()");
  CHECK(shape(canonicalise(request(x, "row")).scales) == "(3, 200, 1)");
  CHECK(shape(canonicalise(request(x, "1x128")).scales) == "(3, 200, 3)");
  CHECK(shape(canonicalise(request(x, "128x128")).scales) == "(3, 2, 3)");
  CHECK(shape(canonicalise(request(vector, "row")).scales) == "(1,)");
  CHECK(shape(canonicalise(request(vector, "1x128")).scales) == "(3,)");
}

TEST(new_scales_in_lines_of_words) {
  const Operand x = array("x", Dtype::bf16, {3, 5, 300});
  Request r = request(x, "1x128");
  r.transposes = true;
  const Call call = canonicalise(r);
  CHECK(shape(call.made) == "(3, 3, 8)" && shape(call.scales) == "(3, 5, 3)");
  CHECK(call.scales.strides[0] == 24 && call.scales.strides[1] == 1 && call.scales.strides[2] == 8);
}

TEST(dimensions_become_one) {
  const Operand x = array("x", Dtype::bf16, {2, 3, 4, 256});
  const auto rank = [&](const char* name) { return canonicalise(request(x, name)).arguments.rank; };
  const auto rows = [&](const char* name) { return canonicalise(request(x, name)).arguments.extent[0]; };
  CHECK(rank("tensor") == 2 && rows("tensor") == 1);
  CHECK(rank("row") == 2 && rows("row") == 24);
  CHECK(rank("1x128") == 2 && rows("1x128") == 24);
  CHECK(rank("128x128") == 3 && rows("128x128") == 6);
  Operand apart = x;  // a gap between the outermost
  apart.strides[0] *= 2;
  const Call call = canonicalise(request(apart, "row"));
  CHECK(call.arguments.rank == 3 && call.arguments.extent[1] == 12 && call.arguments.scale_stride[0] == 12);
}

TEST(classes) {
  const Operand x = array("x", Dtype::bf16, {64, 256}), other = array("x", Dtype::bf16, {64, 256}, 2);
  const Problem p = canonicalise(request(x, "row")).problem, q = canonicalise(request(other, "row")).problem;
  CHECK(p.rows == 64 && p.cols == 256 && p.batch == 1 && p.layout_x == 't' && p.align_x == 4 && p.align_q == 4);
  CHECK(q.align_x == 1 && !(p == q));
  CHECK(!(launch_key(request(x, "row"), false) == launch_key(request(other, "row"), false)));
  CHECK(!(launch_key(request(x, "row"), false) == launch_key(request(x, "tensor"), false)));
  const Operand moved = array("x", Dtype::bf16, {64, 256}, 32);
  CHECK(launch_key(request(x, "row"), false) == launch_key(request(moved, "row"), false));
}

TEST(what_is_kept) {
  const CutlassPyKernel kernel = {"noted", nullptr, nullptr, nullptr, nullptr, CUTLASS_PY_QUANTIZE, nullptr};
  LaunchPlan plan;
  plan.kernel = &kernel;
  const Operand x = array("x", Dtype::bf16, {64, 256}), out = array("out", Dtype::e4m3, {64, 256}, 1 << 15);
  Request r = request(x, "row");
  r.operands[int(Role::out)] = &out;
  const CachedLaunch kept = cached_launch(canonicalise(r), plan);
  const Operand moved = array("x", Dtype::bf16, {64, 256}, 64);
  r.operands[int(Role::x)] = &moved;
  CachedLaunch::Filled launch;
  const Request& again = r;
  kept.fill(launch, again.operands, nullptr, nullptr);
  launch.set_result(place + 8, 1);
  CutlassPyQuantize g;
  std::memcpy(&g, launch.arguments, sizeof g);
  CHECK(g.x == moved.data && g.q == out.data && g.scales == static_cast<void*>(place + 8));
  CHECK(g.rank == 2 && g.extent[0] == 64 && g.extent[1] == 256 && g.scale_stride[0] == 1);
}

std::string refused(const Request& r) {
  const OperationScope operation("quantize");
  try {
    canonicalise(r);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(refusals) {
  const Operand x = array("x", Dtype::bf16, {64, 256}), integers = array("x", Dtype::s32, {64, 256});
  CHECK(refused(request(integers, "row")) == "quantize: x is s32; expected f32, bf16, f16 or f64");
  const Operand vector = array("x", Dtype::bf16, {64});
  CHECK(refused(request(vector, "128x128")) ==
        "quantize: x is (64,); expected 2 dimensions or more with scaling '128x128'");
  Operand out = array("out", Dtype::e4m3, {64, 255}, 1 << 15);
  Request r = request(x, "row");
  r.operands[int(Role::out)] = &out;
  CHECK(refused(r) == "quantize: out is (64, 255); expected (64, 256)");
  out = array("out", Dtype::e4m3, {64, 256}, 1 << 15);
  out.strides[0] = 0;
  CHECK(refused(r) == "quantize: out overlaps itself: it has a stride of 0 or interleaved rows");
  out = array("out", Dtype::e4m3, {64, 256}, 16);
  CHECK(!provably_apart(r) && canonicalise(r).possible_overlaps.size() == 1);
}

}  // namespace
