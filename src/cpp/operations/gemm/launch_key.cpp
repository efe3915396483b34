#include "operations/gemm/launch_key.h"

#include <cstddef>
#include <cstring>
#include <string>

namespace cutlass_py {
namespace {

uint64_t bits(double x) {
  uint64_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

constexpr size_t kMostLetters = sizeof(uint64_t);  // of an arithmetic's name; what is longer is none
constexpr bool names_are_words() {
  for (const ComputeRow& row : kCompute) {
    if (std::char_traits<char>::length(row.name) > kMostLetters) return false;
  }
  return true;
}
static_assert(names_are_words(), "a call with an arithmetic of a longer name would not be kept");

uint64_t word_of(const char* name) {
  uint64_t word = 0;
  std::memcpy(&word, name, std::strlen(name));
  return word;
}

// All that canonicalise asks of the factors that are numbers: which are 0 and which are 1.
uint64_t word_of_numbers(const Request& r) {
  const auto kind = [](double x) { return x == 0 ? 0 : x == 1 ? 1 : 2; };
  const auto kind_of = [&](const CutlassPyScalar& x) { return x.imaginary != 0 ? 2 : kind(x.value); };
  return uint64_t(kind_of(r.alpha) | kind_of(r.beta) << 2 | kind_of(r.scale_out) << 4 | kind(r.scale_a) << 6 |
                  kind(r.scale_b) << 8 | kind(numbers_of(r).alpha.value) << 10);
}

size_t offset_in(const CutlassPyGemm& arguments, const void* member) {
  return size_t(static_cast<const char*>(member) - reinterpret_cast<const char*>(&arguments));
}

// False for calls that are not kept.
bool put(Key& key, const Request& r, bool jit) {
  static_assert(sizeof(Request) == 256, "everything that canonicalise reads of a request is looked at here");
  const bool no_arithmetic = r.compute && (!*r.compute || std::strlen(r.compute) > kMostLetters);
  if (r.lists || r.user || no_arithmetic) return false;  // the last will be refused
  const Device device = r.at(Role::a)->device;           // that of all operands
  key.put(uint64_t(device.type) << 32 | uint32_t(device.id));
  key.put(uint64_t(uint16_t(r.splits)) | uint64_t(r.activation) << 16 | uint64_t(r.out_dtype) << 24 |
          uint64_t(r.has_beta) << 32 | uint64_t(r.has_scale_a) << 33 | uint64_t(r.has_scale_b) << 34 |
          uint64_t(r.has_scale_out) << 35 | uint64_t(r.repeats) << 36 | uint64_t(jit) << 38 | uint64_t(r.gated) << 39 |
          word_of_numbers(r) << 40 | uint64_t(r.interleaved) << 52);
  key.put(r.compute ? word_of(r.compute) : 0);
  for (double x : r.parameters) key.put(bits(x));
  for (int i = 0; i < kRoles; ++i) {
    const Operand* x = r.operands[i];
    if (!x) continue;
    if (!put_operand(key, i, *x)) return false;
  }
  return true;
}

}  // namespace

Key launch_key(const Request& request, bool jit, CutlassPyOperation operation) {
  Key key(operation);
  if (!put(key, request, jit)) key.clear();
  return key;
}

CachedLaunch cached_launch(const Call& call, const DevicePlan& plan) {
  std::optional<CutlassPyGemm> single = single_launch(call, plan);
  if (!single) return {};
  CutlassPyGemm& g = *single;
  CachedLaunch launch(plan, call.problem.device.id, g);
  for (int i = 0; i < kRoles; ++i) {
    const void** slot = address_slot(g, Role(i), call.problem.transposed);
    if (slot) launch.add_address(i, offset_in(g, slot));
  }
  for (const CutlassPyScalar* x : {&g.epilogue.alpha, &g.epilogue.beta, &g.epilogue.scale_out}) {
    launch.add_number(offset_in(g, x));
  }
  launch.set_result(offset_in(g, &g.d), new_result(call));
  return launch;
}

LaunchNumbers::LaunchNumbers(const Request& request) {
  const Factors numbers = numbers_of(request);
  values[0] = numbers.alpha, values[1] = numbers.beta, values[2] = numbers.scale_out;
}

}  // namespace cutlass_py
