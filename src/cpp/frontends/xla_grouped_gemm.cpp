#include "frontends/xla_grouped_gemm.h"

#include <algorithm>
#include <cstddef>

#include "operations/grouped_gemm/rest.h"

namespace cutlass_py::grouping {

void XlaGroupedGemm::read(const xla::CallFrame& frame, Device device) {
  numbers.array = XlaGemm::read(frame, device, true);
  numbers.sizes = true;
  if (!numbers.array) refuse(Refusal("the call lacks sizes"));
  groups = groups_of(request, numbers);
}

Key XlaGroupedGemm::key() const {
  Key key = launch_key(request, false, CUTLASS_PY_GROUPED_GEMM);
  if (key && !put_operand(key, kRoles, *numbers.array)) key.clear();
  return with_plan(key);
}

bool XlaGroupedGemm::fill(const CachedLaunch& known, CachedLaunch::Filled& launch, device::Stream stream) const {
  if (!provably_apart(request) || !provably_disjoint(*request.at(Role::out), *numbers.array)) return false;
  const auto address_of = [&](int i) {
    const Operand* x = i == kRoles ? numbers.array : request.operands[i];
    return x ? &x->data : nullptr;
  };
  known.fill(launch, address_of, LaunchNumbers(request).values, stream);
  return true;
}

void XlaGroupedGemm::canonicalise() {
  call = grouping::canonicalise(request, groups, numbers, 0);
  if (!call.possible_overlaps.empty()) refuse(call.possible_overlaps.front().refusal);
  if (!provably_disjoint(*request.at(Role::out), *numbers.array)) {
    refuse(Refusal("out", "shares elements with", "overlap").beside("sizes"));
  }
}

// Without groups there are lines all the same.
bool XlaGroupedGemm::nothing_to_do() const {
  const Operand& out = *request.at(Role::out);
  return std::find(out.shape, out.shape + out.rank, 0) != out.shape + out.rank;
}

void XlaGroupedGemm::run(device::Stream stream) {
  if (!XlaGemm::nothing_to_do()) XlaGemm::run(stream);
}

CachedLaunch XlaGroupedGemm::cached_launch() const {
  CachedLaunch launch = XlaGemm::cached_launch();
  if (launch) launch.add_address(kRoles, offsetof(CutlassPyGemm, groups) + offsetof(CutlassPyGroups, numbers));
  return launch;
}

void XlaGroupedGemm::finish(device::Stream stream) const {
  clear_rest(*request.at(Role::out), groups, numbers, stream);
}

}  // namespace cutlass_py::grouping
