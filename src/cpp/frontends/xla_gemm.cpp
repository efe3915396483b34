#include "frontends/xla_gemm.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace cutlass_py {
namespace {

constexpr const char* kNames[] = {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) #NAME,
#include "gemm_operands.inc"
#undef CUTLASS_PY_OPERAND
    "sizes",
};

// A matrix that lies transposed, as the kernels see it.
void transpose(Operand& x) {
  if (x.rank < 2) refuse(found(x).expects("a matrix where the layout says n"));
  std::swap(x.shape[x.rank - 2], x.shape[x.rank - 1]);
  std::swap(x.strides[x.rank - 2], x.strides[x.rank - 1]);
}

void read_layout(const Attributes& attributes, XlaGemm& x) {
  const Request& r = x.request;
  if (!r.at(Role::a) || !r.at(Role::b) || !r.at(Role::out)) refuse(Refusal("the call lacks a, b or out"));
  const std::string_view layout = attributes.text("layout");
  if (layout.size() != 2) refuse(Refusal("the call has layout '" + std::string(layout) + "'").expects("two letters"));
  if (layout[0] == 'n') transpose(x.operands[int(Role::a)]);
  if (layout[1] == 'n') transpose(x.operands[int(Role::b)]);
}

GivenScratch scratch_of(const xla::Buffer& buffer) {
  if (buffer.dtype != xla::DataType::u8 || buffer.rank != 1) refuse(Refusal("scratch", "is no vector of bytes"));
  const uintptr_t address = reinterpret_cast<uintptr_t>(buffer.data), aligned = scratch_aligned(address);
  const size_t bytes = size_t(buffer.dims[0]), lost = size_t(aligned - address);
  return {reinterpret_cast<char*>(aligned), bytes > lost ? bytes - lost : 0};
}

CutlassPyScalar factor(const Attributes& attributes, const char* name) {
  const double* parts = attributes.pair(name);
  return {parts[0], parts[1], nullptr};
}

Activation activation_of(std::string_view name) {
  if (const int found = activation_named(name); found >= 0) return Activation(found);
  refuse(Refusal("activation", "='" + std::string(name) + "' is not known"));
}

void read_keywords(const Attributes& attributes, Request& r) {
  r.alpha = factor(attributes, "alpha");
  r.beta = factor(attributes, "beta");
  r.has_beta = r.at(Role::c);
  r.scale_a = attributes.number("scale_a");
  r.scale_b = attributes.number("scale_b");
  r.scale_out.value = attributes.number("scale_out");
  r.activation = activation_of(attributes.text("activation"));
  r.gated = attributes.integer("gated") != 0, r.interleaved = attributes.integer("gated") == 2;
  const double* parameters = attributes.pair("activation_parameters");
  r.parameters[0] = parameters[0], r.parameters[1] = parameters[1];
}

Dtype dtype_named(std::string_view name) {
  for (int i = 0; i < kDtypeCount; ++i) {
    if (name == kDtypes[i].name) return Dtype(i);
  }
  if (!name.empty()) refuse_type(Refusal("dtype '" + std::string(name) + "' is not known"));
  return Dtype::none;
}

void read_steps(const Attributes& attributes, DevicePlan& plan) {
  auto letter = [&](const char* name) {
    const std::string_view text = attributes.text(name);
    return text.empty() ? char(0) : text[0];
  };
  plan.pack_a = letter("pack_a"), plan.pack_b = letter("pack_b");
  plan.scratch = dtype_named(attributes.text("scratch"));
  plan.pack_scales = attributes.integer("pack_scales") != 0, plan.sums = attributes.integer("sums") != 0;
  plan.splits = int(attributes.integer("splits"));
}

}  // namespace

void XlaGemm::read(const xla::CallFrame& frame, Device device) { read(frame, device, false); }

const Operand* XlaGemm::read(const xla::CallFrame& frame, Device device, bool grouped) {
  const Attributes attributes(frame);
  const Operand* given[kRoles + 1] = {};
  const OperandsByRole roles{kNames, kRoles + grouped, operands, given};
  if (const auto* bytes = read_operands(frame, attributes, device, roles)) scratch = scratch_of(*bytes);
  std::copy(given, given + kRoles, request.operands);
  read_layout(attributes, *this);
  read_keywords(attributes, request);
  compute = attributes.text("compute");
  if (!compute.empty()) request.compute = compute.c_str();
  read_launch(attributes, plan);
  read_steps(attributes, plan);
  return given[kRoles];
}

Key XlaGemm::key() const { return with_plan(launch_key(request, false)); }

Key XlaGemm::with_plan(Key key) const {
  if (!key.has_room(1)) key.clear();
  if (!key) return key;
  key.put(uint64_t(uint8_t(plan.pack_a)) | uint64_t(uint8_t(plan.pack_b)) << 8 | uint64_t(plan.pack_scales) << 16 |
          uint64_t(plan.sums) << 17 | uint64_t(plan.scratch) << 24 | uint64_t(uint32_t(plan.splits)) << 32);
  put_launch(key, plan);
  return key;
}

bool XlaGemm::fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const {
  if (!provably_apart(request)) return false;
  known.fill(launch, request.operands, LaunchNumbers(request).values, stream);
  return true;
}

void XlaGemm::canonicalise() {
  call = cutlass_py::canonicalise(request);
  // XLA's buffers are apart, or the same.
  if (!call.possible_overlaps.empty()) refuse(call.possible_overlaps.front().refusal);
}

void XlaGemm::run(device::Stream stream) {
  run_all(call, [&] { run_on_device(call, plan, stream, &scratch); });
}

}  // namespace cutlass_py
