#include "frontends/xla_quantize.h"

#include <iterator>
#include <string_view>

namespace cutlass_py::quantization {
namespace {

int scaling_of(std::string_view name) {
  for (const Scaling& each : kScalings) {
    if (name == each.name) return int(&each - kScalings);
  }
  refuse(Refusal("scaling", "is '" + std::string(name) + "'").expects("what cutlass_py.jax writes"));
}

}  // namespace

void XlaQuantize::read(const xla::CallFrame& frame, Device device) {
  const Attributes attributes(frame);
  read_operands(frame, attributes, device, {kNames, kRoles, operands, request.operands});
  for (const Operand* operand : request.operands) {
    if (!operand) refuse(Refusal("the call lacks x, out or scales"));
  }
  request.q = request.at(Role::out)->dtype;
  check_dtype(request.q, kTo, kToNames, found_dtype(*request.at(Role::out)));
  request.scaling = scaling_of(attributes.text("scaling"));
  read_launch(attributes, plan);
}

Key XlaQuantize::key() const {
  Key key = launch_key(request, false);
  put_launch(key, plan);
  return key;
}

bool XlaQuantize::fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const {
  if (!provably_apart(request)) return false;
  known.fill(launch, request.operands, nullptr, stream);
  return true;
}

void XlaQuantize::canonicalise() {
  call = quantization::canonicalise(request);
  if (!call.possible_overlaps.empty()) refuse(call.possible_overlaps.front().refusal);
}

}  // namespace cutlass_py::quantization
