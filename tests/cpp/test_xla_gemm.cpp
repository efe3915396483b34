// Tests of xla_gemm.cpp: a call frame as XLA builds it becomes the canonical call that it stands for, or a named error.
#include "frontends/xla_gemm.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "check.h"
#include "no_device.h"
#include "runtime/registry.h"
#include "xla_frame.h"

using namespace cutlass_py;

template <>
Values cutlass_py::written<XlaGemm>() {
  return {{"format", kXlaFormat},
          {"operands", "a b"},
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
          {"pack_b", "n"},
          {"scratch", "f32"},
          {"pack_scales", int64_t(0)},
          {"sums", int64_t(1)},
          {"splits", int64_t(3)},
          {"raster", int64_t(1)},
          {"swizzle", int64_t(2)},
          {"overlap", int64_t(1)}};
}

namespace {

using Frame = FrameOf<XlaGemm>;

Frame plain() { return std::move(Frame().argument({3, 4}).argument({4, 5}).result({3, 5})); }

Frame with_scratch() { return std::move(plain().result({1000}, xla::DataType::u8)); }

XlaGemm decoded(Frame frame) {
  XlaGemm x;
  frame.read(x);
  return x;
}

TEST(operands) {
  XlaGemm x = decoded(with_scratch());
  const Problem& p = x.call.problem;
  CHECK(p.m == 3 && p.n == 5 && p.k == 4 && p.batch == 1 && p.layout_a == 't' && p.layout_b == 't');
  CHECK(p.device == (Device{DeviceType::cuda, 1}) && p.a == Dtype::f32 && p.d == Dtype::f32);
  CHECK(x.call.a.data && x.call.d.data && x.call.a.data != x.call.b.data && x.call.lda == 4 && x.call.ldd == 5);
}

TEST(plan) {
  const XlaGemm x = decoded(with_scratch());
  CHECK(x.kernel == "some_kernel" && !x.plan.kernel && x.plan.pack_a == 0 && x.plan.pack_b == 'n');
  CHECK(x.plan.scratch == Dtype::f32 && x.plan.splits == 3 && x.plan.raster == 1 && x.plan.swizzle == 2);
  CHECK(x.plan.overlap && x.plan.sums && !x.plan.pack_scales);
}

TEST(kernel_alone) {
  Frame frame = with_scratch();
  XlaGemm x;
  frame.read(x);
  CHECK(frame.kernel_before == "some_kernel");
}

TEST(layouts) {
  Frame frame;
  frame.argument({4, 3}).argument({2, 5, 4}).result({2, 3, 5}).with("layout", "nn");
  const XlaGemm x = decoded(std::move(frame));
  const Problem& p = x.call.problem;
  CHECK(p.m == 3 && p.n == 5 && p.k == 4 && p.batch == 2 && p.layout_a == 'n' && p.layout_b == 'n');
  CHECK(x.call.a.batch == 0 && x.call.b.batch == 20 && x.call.lda == 3 && x.call.ldb == 4);
}

TEST(epilogue) {
  Frame frame;
  frame.argument({3, 4}).argument({4, 5}).argument({3, 5}, xla::DataType::f32, 4096).argument({1, 5}).argument({});
  frame.result({3, 5}, xla::DataType::f32, 4096).result({3, 5}, xla::DataType::bf16).result({5});
  frame.with("operands", "a b c bias scale_out").with("results", "out aux bias_grad");
  frame.with("alpha", std::vector<double>{2, 0}).with("beta", std::vector<double>{0.5, 0}).with("scale_a", 4.0);
  frame.with("activation", "clamp").with("activation_parameters", std::vector<double>{-1, 0.1});
  const XlaGemm x = decoded(std::move(frame));
  const Epilogue& e = x.call.epilogue;
  CHECK(e.alpha.value == 8 && e.beta.value == 0.5 && e.scale_out.device);
  CHECK(Activation(e.activation) == Activation::clamp && e.parameters[0] == -1 && e.parameters[1] == 0.1);
  CHECK(x.call.problem.c == Dtype::f32 && x.call.problem.bias_axis == 'n' && x.call.problem.aux == Dtype::bf16);
  CHECK(x.call.problem.bias_grad == Dtype::f32 && x.call.problem.bias_grad_axis == 'n');
  CHECK(e.c.data == x.call.d.data);  // one buffer, donated
}

TEST(gates_and_values) {
  Frame frame;
  frame.argument({3, 4}).argument({4, 10}).result({3, 5}).result({3, 10});
  frame.with("results", "out aux").with("activation", "silu").with("gated", int64_t(1));
  const XlaGemm forward = decoded(std::move(frame));
  CHECK(forward.call.problem.pairs == 'b' && forward.call.problem.n == 5);
  CHECK(forward.call.problem.activation == Activation::silu);
  Frame back;
  back.argument({3, 4}).argument({4, 5}).argument({3, 10}).result({3, 10});
  back.with("operands", "a b aux").with("results", "out").with("activation", "d_silu").with("gated", int64_t(1));
  const Problem p = decoded(std::move(back)).call.problem;
  CHECK(p.pairs == 'd' && !p.interleaved);
  Frame by_turns;
  by_turns.argument({3, 4}).argument({4, 10}).result({3, 5});
  by_turns.with("results", "out").with("activation", "silu").with("gated", int64_t(2));
  CHECK(decoded(std::move(by_turns)).call.problem.interleaved);
}

TEST(complex_factors) {
  Frame frame;
  frame.argument({3, 4}, xla::DataType::c64).argument({4, 5}, xla::DataType::c64).result({3, 5}, xla::DataType::c64);
  frame.with("alpha", std::vector<double>{2, -3}).with("results", "out");
  const XlaGemm x = decoded(std::move(frame));
  CHECK(x.call.epilogue.alpha.value == 2 && x.call.epilogue.alpha.imaginary == -3);
}

TEST(dtypes) {
  const std::pair<xla::DataType, Dtype> pairs[] = {
      {xla::DataType::f16, Dtype::f16},   {xla::DataType::bf16, Dtype::bf16}, {xla::DataType::f64, Dtype::f64},
      {xla::DataType::e4m3, Dtype::e4m3}, {xla::DataType::e5m2, Dtype::e5m2}, {xla::DataType::s8, Dtype::s8},
      {xla::DataType::u8, Dtype::u8},     {xla::DataType::c128, Dtype::c128}};
  for (auto [theirs, ours] : pairs) {
    const bool complex = ours == Dtype::c128;
    Frame frame;
    frame.argument({3, 4}, theirs).argument({4, 5}, theirs);
    frame.result({3, 5}, complex ? theirs : xla::DataType::s32).with("results", "out");
    const XlaGemm x = decoded(std::move(frame));
    CHECK(x.call.problem.a == ours && x.call.problem.b == ours);
  }
  Frame predicate;
  predicate.argument({3, 4}, xla::DataType(1)).argument({4, 5}).result({3, 5}).with("results", "out");
  CHECK(predicate.error() == "gemm: a has XLA's dtype 1, which gemm lacks");
}

TEST(compute) {
  CHECK(decoded(std::move(with_scratch().with("compute", "tf32"))).call.problem.operand_a == Dtype::tf32);
}

TEST(scratch) {
  auto given = [](uintptr_t address) {
    return decoded(std::move(plain().result({1000}, xla::DataType::u8, address))).scratch;
  };
  CHECK(given(8192).data == reinterpret_cast<char*>(8192) && given(8192).bytes == 1000);
  CHECK(given(8192 + 128).data == reinterpret_cast<char*>(8192 + 256) && given(8192 + 128).bytes == 1000 - 128);
  CHECK(decoded(std::move(plain().result({0}, xla::DataType::u8))).scratch.bytes == 0);
}

TEST(empty) {
  Frame frame;
  frame.argument({3, 0}).argument({0, 5}).result({3, 5}).with("results", "out");
  const XlaGemm x = decoded(std::move(frame));
  CHECK(x.call.problem.empty_product && !nothing_to_do(x.call.problem));
  Frame none;
  none.argument({0, 4}).argument({4, 5}).result({0, 5}).with("results", "out");
  CHECK(nothing_to_do(decoded(std::move(none)).call.problem));
}

TEST(messages) {
  const std::string writer = "; expected what cutlass_py.jax writes";
  const std::string lacking = " of the call is missing, or of another type" + writer;
  CHECK(with_scratch().with("format", int64_t(9)).error() ==
        "gemm: the call was lowered in format 9; this version of cutlass_py reads 3");
  CHECK(with_scratch().with("format", 1.0).error() == "gemm: attribute format" + lacking);
  CHECK(with_scratch().with("alpha", std::vector<double>{1}).error() == "gemm: attribute alpha" + lacking);
  Frame missing = with_scratch();
  missing.attributes.erase("kernel");
  CHECK(missing.error() == "gemm: attribute kernel" + lacking);
  CHECK(with_scratch().with("operands", "a x").error() == "gemm: the call has an operand 'x'" + writer);
  CHECK(with_scratch().with("operands", "a a").error() == "gemm: the call has a twice");
  CHECK(with_scratch().with("operands", "a c").error() == "gemm: the call lacks a, b or out");
  CHECK(with_scratch().with("layout", "t").error() == "gemm: the call has layout 't'; expected two letters");
  CHECK(with_scratch().with("activation", "abs").error() == "gemm: activation='abs' is not known");
  CHECK(with_scratch().with("scratch", "f12").error() == "gemm: dtype 'f12' is not known");
  CHECK(plain().result({10}).error() == "gemm: scratch is no vector of bytes");
  Frame shifted;
  shifted.argument({3, 4}).argument({4, 5}, xla::DataType::f32, 4100).result({3, 5}).with("results", "out");
  CHECK(shifted.error() == "gemm: b is not aligned to 16 bytes, as XLA's buffers are");
  Frame shared;
  shared.argument({3, 4}, xla::DataType::f32, 4096).argument({4, 5}).result({3, 5}, xla::DataType::f32, 4112);
  CHECK(shared.with("results", "out").error() ==
        "gemm: out shares elements with a; it may only be c, gate or a read aux itself, element for element");
  Frame deep;
  deep.argument({1, 1, 1, 1, 1, 1, 1, 3, 4}).argument({4, 5}).result({3, 5}).with("results", "out");
  CHECK(deep.error() == "gemm: a has 9 dimensions; expected at most 8");
  Frame wrong;
  wrong.argument({3, 4}).argument({6, 5}).result({3, 5}).with("results", "out");
  CHECK(wrong.error() == "gemm: a is (3, 4) but b is (6, 5); inner extents must agree");
  Frame vector;
  vector.argument({4}).argument({4, 5}).result({5}).with("results", "out").with("layout", "nt");
  CHECK(vector.error() == "gemm: a is (4,); expected a matrix where the layout says n");
}

}  // namespace

namespace cutlass_py {

// What run.cpp needs.
const CutlassPyLibrary* builtin_library() { return nullptr; }

}  // namespace cutlass_py
