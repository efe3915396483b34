#include "runtime/launch_cache.h"

#include <cstring>
#include <string>
#include <unordered_map>

#include "operations/gemm/addresses.h"

namespace cutlass_py {
namespace {

uint64_t bits(double x) {
  uint64_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

// One of an operand's, beside its extents and strides.
uint64_t word_of(Role role, const Operand& x) {
  return uint64_t(role) | uint64_t(x.dtype) << 8 | uint64_t(x.rank) << 16 | uint64_t(x.readonly) << 24 |
         (reinterpret_cast<uintptr_t>(x.data) & 15) << 32;  // no alignment beyond 16 bytes counts
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
  const auto kind_of = [&](const Scalar& x) { return x.imaginary != 0 ? 2 : kind(x.value); };
  return uint64_t(kind_of(r.alpha) | kind_of(r.beta) << 2 | kind_of(r.scale_out) << 4 | kind(r.scale_a) << 6 |
                  kind(r.scale_b) << 8 | kind(numbers_of(r).alpha.value) << 10);
}

void set(CutlassPyScalar& factor, const Scalar& number) {
  factor.value = number.value, factor.imaginary = number.imaginary;
}

struct AskedHash {
  size_t operator()(const Asked& asked) const { return hash_of(asked.words, asked.count); }
};

std::unordered_map<Asked, Ready, AskedHash>& table() {
  static auto* map = new std::unordered_map<Asked, Ready, AskedHash>();
  return *map;
}
constexpr size_t kMostReady = 1 << 12;

}  // namespace

Asked::Asked(const Request& r, bool jit) {
  static_assert(sizeof(Request) == 256, "everything that canonicalise reads of a request is looked at here");
  if (r.lists || r.user) return;
  const bool no_arithmetic = r.compute && (!*r.compute || std::strlen(r.compute) > kMostLetters);
  if (no_arithmetic) return;                    // it will be refused
  const Device device = r.at(Role::a)->device;  // that of all operands
  int next = 0;
  const auto put = [&](uint64_t word) { words[next++] = word; };
  put(uint64_t(device.type) << 32 | uint32_t(device.id));
  put(uint64_t(uint16_t(r.splits)) | uint64_t(r.activation) << 16 | uint64_t(r.out_dtype) << 24 |
      uint64_t(r.has_beta) << 32 | uint64_t(r.has_scale_a) << 33 | uint64_t(r.has_scale_b) << 34 |
      uint64_t(r.has_scale_out) << 35 | uint64_t(r.deterministic) << 36 | uint64_t(jit) << 37 |
      word_of_numbers(r) << 38);
  put(r.compute ? word_of(r.compute) : 0);
  for (double x : r.parameters) put(bits(x));
  for (int i = 0; i < kRoles; ++i) {
    const Operand* x = r.operands[i];
    if (!x) continue;
    if (x->metadata_only || next + 1 + 2 * x->rank > kMost) return;
    put(word_of(Role(i), *x));
    for (int j = 0; j < x->rank; ++j) put(uint64_t(x->shape[j])), put(uint64_t(x->strides[j]));
  }
  count = next;
}

bool Asked::operator==(const Asked& other) const {
  return count == other.count && std::equal(words, words + count, other.words);
}

Ready::Ready(const Call& call, const DevicePlan& plan)
    : plan_(plan),
      result_(new_result(call)),
      transposed_(call.problem.transposed),
      launch_(single_launch(call, plan)) {}

CutlassPyGemm Ready::launch_of(const Request& r, device::Stream stream, void* result) const {
  CutlassPyGemm g = *launch_;
  g.stream = stream;
  if (result) g.d = result;
  const Factors numbers = numbers_of(r);
  set(g.epilogue.alpha, numbers.alpha), set(g.epilogue.beta, numbers.beta);
  set(g.epilogue.scale_out, numbers.scale_out);
  for (int i = 0; i < kRoles; ++i) {
    if (!r.operands[i]) continue;
    if (const void** address = address_slot(g, Role(i), transposed_)) *address = r.operands[i]->data;
  }
  return g;
}

const Ready* find_ready(const Asked& asked) {
  const auto found = table().find(asked);
  return found == table().end() ? nullptr : &found->second;
}

void keep_ready(const Asked& asked, const Ready& ready) {
  if (table().size() >= kMostReady) table().clear();
  table().emplace(asked, ready);
}

void forget_ready() { table().clear(); }

}  // namespace cutlass_py
