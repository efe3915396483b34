// Tests of the launch cache: a call of a class that was seen before is launched as canonicalise would have it, whatever
// else the request says.
#include "operations/gemm/launch_key.h"

#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "no_device.h"
#include "runtime/registry.h"

using namespace cutlass_py;

namespace {

struct Launched {
  CutlassPyGemm g;
  CutlassPyLaunch launch;
};
std::optional<Launched> launched;

size_t no_bytes(const void*, const CutlassPyLaunch*) { return 0; }
size_t some_bytes(const void*, const CutlassPyLaunch*) { return 1024; }
int note(const void* arguments, const CutlassPyLaunch* launch) {
  launched = {*static_cast<const CutlassPyGemm*>(arguments), *launch};
  return 0;
}
const CutlassPyKernel noted = {"noted", {}, &no_bytes, &note, nullptr, CUTLASS_PY_GEMM, nullptr};
const CutlassPyKernel with_scratch = {"with scratch", {}, &some_bytes, &note, nullptr, CUTLASS_PY_GEMM, nullptr};

// All that a kernel is told.
std::string shown(const Launched& x) {
  std::string text;
  const auto put = [&](auto... values) { ((text += std::to_string(values) + " "), ...); };
  const auto address = [](const void* x) { return reinterpret_cast<uintptr_t>(x); };
  const auto& [g, launch] = x;
  const CutlassPyEpilogue& e = g.epilogue;
  put(g.m, g.n, g.k, g.batch, address(g.a), address(g.b), address(g.d), g.lda, g.ldb, g.ldd, g.batch_a, g.batch_b,
      g.batch_d, g.pointers, launch.device, launch.sm_count, launch.raster, launch.swizzle, launch.overlap,
      address(launch.workspace), address(launch.stream), e.activation, e.parameters[0], e.parameters[1],
      address(e.user));
  for (const CutlassPyScalar& x : {e.alpha, e.beta, e.scale_out}) put(x.value, x.imaginary, address(x.device));
  for (const CutlassPyArray& x : {e.c, e.bias, e.scale_a, e.scale_b, e.gate, e.aux, e.bias_grad}) {
    put(address(x.data), x.dtype, x.row, x.col, x.batch);
  }
  return text;
}

// Requests at random, of few kinds: they repeat, and differ in one thing.
class Requests {
 public:
  const Request& next() {
    if (of(12) == 0) start();
    change();
    for (int i = 0; i < kRoles; ++i) request_.operands[i] = there_[i] ? &operands_[i] : nullptr;
    return request_;
  }

 private:
  int of(int count) { return int(random_() % unsigned(count)); }
  template <class T>
  T one(std::initializer_list<T> choices) {
    return choices.begin()[of(int(choices.size()))];
  }

  void place(Role role, std::vector<int64_t> shape, Dtype dtype) {
    Operand& x = operands_[int(role)];
    there_[int(role)] = true;
    x = {};
    x.name = name_of(role);
    x.dtype = dtype;
    x.device = {DeviceType::cuda, 0};
    x.rank = int(shape.size());
    std::copy(shape.begin(), shape.end(), x.shape);
    stride(x);
    move(role);
  }

  void stride(Operand& x) {
    int64_t packed = one<int64_t>({1, 1, 1, 1, 2});
    for (int i = x.rank - 1; i >= 0; --i)
      x.strides[i] = packed, packed = packed * x.shape[i] + one<int64_t>({0, 0, 0, 8, 1});
    if (x.rank >= 2 && of(4) == 0) {
      x.strides[x.rank - 2] = 1, x.strides[x.rank - 1] = x.shape[x.rank - 2] + one<int64_t>({0, 0, 8});
    }
    if (x.rank == 3 && of(6) == 0) x.strides[0] = 0;
  }

  void move(Role role) {
    Operand& x = operands_[int(role)];
    const uintptr_t region = of(30) ? uintptr_t(role) + 1 : uintptr_t(of(kRoles)) + 1;
    const int64_t bytes = one<int64_t>({0, 0, 16, 32, 256, 8, 4, 2, 1, 24}) / dtype_size(x.dtype) * dtype_size(x.dtype);
    x.data = reinterpret_cast<void*>((region << 32) + uintptr_t(bytes));
  }

  void start() {
    request_ = {};
    std::fill(there_, there_ + kRoles, false);
    const auto extent = [&] { return one<int64_t>({1, 2, 8, 64, 130, 256}); };
    m_ = extent(), n_ = extent(), k_ = extent();
    const Dtype dtype = one({Dtype::f32, Dtype::bf16, Dtype::bf16, Dtype::e4m3, Dtype::s8, Dtype::c64});
    d_ = dtype == Dtype::e4m3 ? Dtype::bf16 : dtype == Dtype::s8 ? Dtype::s32 : dtype;
    scalar_ = dtype == Dtype::c64 ? Dtype::c64 : Dtype::f32;
    lead_.clear();
    if (of(3) == 0) lead_ = {one<int64_t>({1, 2, 3})};
    place(Role::a, with_lead({m_, k_}), dtype);
    place(Role::b, of(2) ? with_lead({k_, n_}) : std::vector<int64_t>{k_, n_}, dtype);
    place(Role::out, with_lead({m_, n_}), d_);
  }

  std::vector<int64_t> with_lead(std::vector<int64_t> core) const {
    core.insert(core.begin(), lead_.begin(), lead_.end());
    return core;
  }

  void toggle(Role role, std::vector<int64_t> shape, Dtype dtype) {
    if (there_[int(role)]) {
      there_[int(role)] = false;
    } else {
      place(role, shape, dtype);
    }
  }

  void change() {
    const Role some = Role(of(kRoles));
    const std::vector<int64_t> like_d = with_lead({m_, n_}), one_element = {1};
    switch (of(34)) {
      case 0: return stride(operands_[int(some)]);
      case 1: return toggle(Role::c, like_d, one({d_, Dtype::f32}));
      case 2: return toggle(Role::bias, of(2) ? std::vector<int64_t>{n_} : std::vector<int64_t>{m_, 1}, d_);
      case 3: return toggle(Role::gate, like_d, d_);
      case 4: return toggle(Role::aux, like_d, d_);
      case 5: return toggle(Role::scale_a, of(2) ? one_element : std::vector<int64_t>{m_, blocks_of(k_)}, scalar_);
      case 6:
        return toggle(Role::scale_b, of(2) ? one_element : std::vector<int64_t>{blocks_of(k_), blocks_of(n_)}, scalar_);
      case 7: return toggle(Role::alpha, one_element, scalar_);
      case 8: request_.has_beta = !there_[int(Role::beta)]; return toggle(Role::beta, one_element, scalar_);
      case 9: return toggle(Role::scale_out, one_element, scalar_);
      case 10: return toggle(Role::bias_grad, {n_}, d_);
      case 11: request_.activation = Activation(of(kActivationCount)); return;
      case 12: request_.parameters[of(2)] = of(2); return;
      case 13: request_.splits = int16_t(of(4) - 1); return;
      case 14: request_.repeats = Repeats((int(request_.repeats) + 1) % 3); return;
      case 15: request_.out_dtype = request_.out_dtype == d_ ? Dtype::none : d_; return;
      case 16: request_.alpha = {of(4) / 2.0, 0, nullptr}; return;
      case 17: request_.has_beta = true, request_.beta = {of(4) / 2.0, 0, nullptr}; return;
      case 18: request_.has_scale_a = true, request_.scale_a = of(4) / 2.0; return;
      case 19: request_.has_scale_b = true, request_.scale_b = of(4); return;
      case 20: request_.has_scale_out = true, request_.scale_out = {of(4) / 2.0, 0, nullptr}; return;
      case 21: operands_[int(some)].readonly = !operands_[int(some)].readonly; return;
      case 22: {
        const int32_t id = of(2);
        for (Operand& x : operands_) x.device.id = id;
        return;
      }
      case 23: operands_[int(some)].dtype = one({Dtype::f32, Dtype::bf16, Dtype::f16}); return;
      case 24: operands_[int(some)].shape[0] = one<int64_t>({1, 2, 8}); return;
      case 25:
        request_.compute = one<const char*>({nullptr, nullptr, "f32", "tf32", "fast", "", "tensorfloat32"});
        return;
      case 26: return toggle(Role::out, like_d, d_);
      case 27: {  // in place
        const Role read = one({Role::c, Role::gate, Role::aux});
        if (!there_[int(Role::out)] || !there_[int(read)]) return;
        operands_[int(read)] = operands_[int(Role::out)];
        operands_[int(read)].name = name_of(read);
        return;
      }
      default:
        if (there_[int(some)]) move(some);
    }
  }

  std::mt19937 random_{1};
  Request request_;
  Operand operands_[kRoles];
  bool there_[kRoles] = {};
  int64_t m_ = 1, n_ = 1, k_ = 1;
  std::vector<int64_t> lead_;
  Dtype d_ = Dtype::f32, scalar_ = Dtype::f32;
};

// Each class of problems has a plan of its own, which a launch shows as its order of tiles.
DevicePlan plan_of(const Problem& problem) {
  static std::unordered_map<std::string, int> numbers;
  DevicePlan plan;
  plan.kernel = &noted;
  plan.raster =
      numbers.emplace(std::string(reinterpret_cast<const char*>(&problem), sizeof problem), int(numbers.size()))
          .first->second;
  if (problem.empty_product) plan.kernel = nullptr;
  return plan;
}

std::optional<Call> call_or_none(const Request& request) {
  try {
    return canonicalise(request);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

TEST(a_class_seen_before_is_launched_as_the_first_call_was) {
  const device::Stream stream = reinterpret_cast<void*>(uintptr_t(0x51));
  Requests requests;
  requests.next();
  int seen = 0, refused = 0, new_results = 0, in_place = 0;
  for (int i = 0; i < 300'000; ++i) {
    const Request& request = requests.next();
    if (!request.operands[int(Role::a)]) continue;
    const Key key = launch_key(request, false);
    std::optional<Call> call = call_or_none(request);
    void* const result = request.at(Role::out) ? nullptr : reinterpret_cast<void*>((uintptr_t(99) << 32) + 256u * i);
    if (call && result) place_result(*call, result);
    refused += !call;
    const CachedLaunch* const known = key ? launch_cache().find(key) : nullptr;
    if (!known) {
      if (key && call) launch_cache().keep(key, cached_launch(*call, plan_of(call->problem)));
      continue;
    }
    if (!*known || !provably_apart(request)) continue;
    ++seen;
    std::optional<CutlassPyGemm> first;
    if (call) first = single_launch(*call, plan_of(call->problem));
    CachedLaunch::Filled launch;
    known->fill(launch, request.operands, LaunchNumbers(request).values, stream);
    if (result) launch.set_result(result);
    launch.run();
    new_results += bool(result);
    const Operand *out = request.at(Role::out), *c = request.at(Role::c), *gate = request.at(Role::gate);
    in_place += out && ((c && c->data == out->data) || (gate && gate->data == out->data));
    CHECK(call && call->possible_overlaps.empty() && first);
    CutlassPyLaunch where = plan_of(call->problem).on(call->problem.device.id);
    where.stream = stream;
    CHECK(shown({*first, where}) == shown(*launched));
  }
  CHECK(seen > 10'000 && refused > 10'000 && new_results > 1'000 && in_place > 100);
}

TEST(which_calls_are_seen_again) {
  static float memory_of_all[64];
  Operand a, b, out;
  const auto lay = [](Operand& x, const char* name, float* data) {
    x.name = name, x.data = data, x.dtype = Dtype::f32, x.device = {DeviceType::cuda, 0}, x.rank = 2;
    x.shape[0] = x.shape[1] = 4, x.strides[0] = 4, x.strides[1] = 1;
  };
  lay(a, "a", memory_of_all), lay(b, "b", memory_of_all + 16), lay(out, "out", memory_of_all + 32);
  Request request;
  request.operands[int(Role::a)] = &a, request.operands[int(Role::b)] = &b, request.operands[int(Role::out)] = &out;
  const auto asked = [](const Request& r, bool jit = false) { return launch_key(r, jit); };
  CHECK(asked(request) && !(asked(request) == asked(request, true)));
  CHECK(!launch_cache().find(asked(request)));
  const Call call = canonicalise(request);
  launch_cache().keep(asked(request), cached_launch(call, plan_of(call.problem)));
  CHECK(launch_cache().find(asked(request)) && !launch_cache().find(asked(request, true)));
  CHECK(*launch_cache().find(asked(request)));
  launch_cache().clear();
  CHECK(!launch_cache().find(asked(request)));
  DevicePlan plan;
  plan.kernel = &with_scratch;
  CHECK(!cached_launch(call, plan));
  Request other = request;
  other.alpha.value = 2;
  CHECK(asked(other) && !(asked(other) == asked(request)));
  request.alpha.value = 3;
  CHECK(asked(other) == asked(request));
  other = request, other.compute = "tf32";
  CHECK(asked(other) && !(asked(other) == asked(request)));
  for (const char* none : {"", "tensorfloat32"}) CHECK(other.compute = none, !asked(other));
  other = request, other.lists = true;
  CHECK(!asked(other));
  CHECK(provably_apart(request));
  Operand c = out;
  request.operands[int(Role::c)] = &c;
  CHECK(provably_apart(request));
  request.operands[int(Role::c)] = nullptr;
  out.data = memory_of_all + 20;
  CHECK(!provably_apart(request));
}

}  // namespace

namespace cutlass_py {

// What run.cpp needs for other calls.
const CutlassPyLibrary* builtin_library() { return nullptr; }

}  // namespace cutlass_py
