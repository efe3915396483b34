#include "operations/gemm/call.h"

#include <nanobind/stl/string.h>

#include <optional>

#include "arrays/exact_overlap.h"
#include "operations/gemm/canonical.h"
#include "operations/gemm/facts.h"
#include "operations/gemm/gated.h"
#include "operations/gemm/launch_key.h"
#include "operations/gemm/uneven.h"

namespace cutlass_py {
namespace {

using device::Stream;

// Of a list each product is checked as if it were alone.
Call of_lists(const Request& request) {
  if (request.gated) refuse_beside_lists("gated");
  for (size_t i = 0; i < uneven::count_of(request); ++i) {
    const uneven::Product one(request, i);
    check_possible_overlaps(canonicalise(one.request).possible_overlaps);
  }
  Call call = uneven::canonicalise(request);
  uneven::check_apart(request, call.problem.has_c());
  return call;
}

Call canonical_call(const Request& request, const Keywords& keywords) {
  Call call = request.uneven ? of_lists(request) : canonicalise(request);
  call.problem.kernel = kernel_id(keywords.kernel);
  call.problem.jit = jit_allowed;
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

// Whether no kernel makes gates and values of this problem into a result: the product is stored, and then read.
bool is_apart(const Problem& p, const Execution& execution) {
  return p.pairs && !execution.on_host() && !nothing_to_do(p) && plan_during(execution, p).divided;
}

nb::object gated_apart(Request request, const Call& call, Execution& execution, const Keywords& keywords) {
  Operand made;
  if (!request.at(Role::out)) {
    made = new_result(call);
    made.data = execution.new_result(made);
    request.operands[int(Role::out)] = &made;
  }
  execution.run(
      [&] { run_gated(request, call, execution.stream(), [&](const Request& x) { run_one(execution, x); }); });
  return execution.finish(keywords.out);
}

// Lists whose matrices differ: one launch where a kernel takes them.
void run_lists(Execution& execution, Operands& operands, const Request& request, const Keywords& keywords) {
  Call call = canonical_call(request, keywords);
  bool divided = execution.on_host() || uneven::apart(request);
  if (!divided && !nothing_to_do(call.problem)) divided = plan_during(execution, call.problem).divided;
  Workspace none;
  if (!divided) return run_call(execution, operands, call, nullptr, none);
  if (!request.at(Role::out)) place_result(call, execution.new_result(new_result(call)));
  execution.run([&] {
    for (size_t i = 0; i < uneven::count_of(request); ++i) {
      uneven::Product one(request, i);
      if (!call.made.empty()) one.request.operands[int(Role::out)] = &call.made[i];
      run_one(execution, one.request, call.problem.kernel);
    }
  });
}

}  // namespace

Refusal no_single_plan(const Problem& p) {
  const char* what = p.pairs ? "these gates and values into a result" : "all of this";
  return Refusal(std::string("no kernel makes ") + what + ", so that there is no plan of one");
}

Plan plan_during(const Execution& execution, const Problem& problem) {
  std::optional<NoTuning> untouched;
  if (tuning_allowed && execution.capturing()) untouched.emplace();  // waiting would end the capture
  return plan_for(problem);
}

void check_devices(const Operands& operands) {
  const Operand& a = operands[Role::a]->operand;
  operands.each([&](const View& view) { check_same_device(a, view.operand); });
}

void run_one(const Execution& execution, const Request& request, int32_t kernel) {
  Call call = canonicalise(request);
  call.problem.kernel = kernel;
  call.problem.jit = jit_allowed;
  if (nothing_to_do(call.problem)) return;
  if (is_apart(call.problem, execution)) {
    return run_gated(request, call, execution.stream(), [&](const Request& x) { run_one(execution, x); });
  }
  const Plan plan = plan_during(execution, call.problem);
  const device::Stream stream = execution.stream();
  if (instrumentation::asked_for(instrumentation::kCalls)) tell(call.problem, plan, stream);
  const instrumentation::Range range([&] { return range_name(call.problem, kernel_of(plan)); });
  run_all(call, [&] { run_by_plan(call, plan, stream); });
}

nb::object gemm(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  open_operands(operands, a, b, keywords);
  operands.check_memory("use explain or get_kernels");
  return gemm(operands, keywords);
}

nb::object gemm(Operands& operands, const Keywords& keywords) {
  check_devices(operands);
  Execution execution(operands, *operands[Role::a], operands[Role::out], keywords.stream);
  const Request request = request_from(operands, keywords);
  if (request.uneven) {
    run_lists(execution, operands, request, keywords);
    return execution.finish(keywords.out);
  }
  // The number of a kernel is asked of Python; what is told of calls is told of canonical ones.
  const bool kept =
      !execution.on_host() && keywords.kernel.is_none() && !instrumentation::asked_for(instrumentation::kAnything);
  const Key key = kept ? launch_key(request, jit_allowed) : Key();
  const CachedLaunch* known = key ? launch_cache().find(key) : nullptr;
  if (known && run_cached(*known, request, LaunchNumbers(request).values, execution)) {
    return execution.finish(keywords.out);
  }
  const bool is_new = key && !known;  // nothing is found any more where Python code has run
  Call call = canonical_call(request, keywords);
  if (is_apart(call.problem, execution)) return gated_apart(request, call, execution, keywords);
  Workspace none;
  run_call(execution, operands, call, nullptr, none);
  if (is_new && !nothing_to_do(call.problem)) {
    if (const Plan* plan = known_plan(call.problem)) launch_cache().keep(key, cached_launch(call, *plan));
  }
  return execution.finish(keywords.out);
}

bool run_cached(const CachedLaunch& known, const Request& request, const CutlassPyScalar* numbers,
                Execution& execution) {
  if (!known || !provably_apart(request)) return false;
  CachedLaunch::Filled launch;  // to allocate a result may run any Python, which may clear the cache
  known.fill(launch, request.operands, numbers, execution.stream());
  if (!request.at(Role::out)) {
    const Operand made = known.result();
    launch.set_result(execution.new_result(made));
  }
  execution.run([&] {
    nb::gil_scoped_release may_wait;
    launch.run();
  });
  return true;
}

void run_call(Execution& execution, Operands& operands, Call& call, const Plan* given, Workspace& workspace) {
  const Stream stream = execution.stream();
  const auto make_result = [&] {
    if (!operands[Role::out]) place_result(call, execution.new_result(new_result(call)));
  };
  if (nothing_to_do(call.problem)) {
    if (execution.on_host()) workspace.on(nullptr, operands, 0);
    return make_result();
  }
  const Plan plan = given ? *given : plan_during(execution, call.problem);  // may refuse: before anything is allocated
  const size_t needed = workspace && !execution.on_host() ? scratch_bytes(call, plan) : 0;
  const GivenScratch* scratch = workspace.on(stream, operands, needed);
  make_result();
  const auto run = [&] { run_all(call, [&] { run_by_plan(call, plan, stream, scratch); }); };
  execution.run([&] { watched(operands, call, plan, stream, run); });
}

void Workspace::open(nb::handle array, const Operand& a) {
  if (array.is_none()) return;
  view_.open(array, "workspace");
  if (view_.operand.metadata_only || !view_.type->mutable_) {
    refuse_type(Refusal("workspace", "is " + described_type(array)).expects("an array that can be written"));
  }
  check_same_device(a, view_.operand);
}

const GivenScratch* Workspace::on(Stream stream, const Operands& operands, size_t needed) {
  if (!view_) return nullptr;
  view_.import(stream);
  const Operand& x = view_.operand;
  if (dtype_size(x.dtype) != 1) refuse_type(found_dtype(x).expects("bytes (u8)"));
  if (x.rank != 1 || (x.shape[0] > 1 && x.strides[0] != 1))
    refuse(found(x).adds(" with strides " + shape_text(x.strides, x.rank)).expects("one dimension without gaps"));
  if (x.readonly) refuse(Refusal("workspace", "is read-only"));
  if (size_t(x.shape[0]) < needed) {
    refuse(Refusal("workspace", "has " + std::to_string(x.shape[0]) + " bytes")
               .expects("at least " + std::to_string(needed)));
  }
  if (needed && reinterpret_cast<uintptr_t>(x.data) % kScratchAlignment) {
    refuse(Refusal("workspace",
                   "starts at an address that is no multiple of " + std::to_string(kScratchAlignment) + " bytes"));
  }
  operands.each([&](const View& view) {
    if (!provably_disjoint(x, view.operand))
      refuse(Refusal("workspace", "shares memory with", "overlap").beside(view.operand.name));
  });
  given_ = {static_cast<char*>(x.data), size_t(x.shape[0])};
  return &given_;
}

Call call_of(Operands& operands, nb::handle a, nb::handle b, const Keywords& keywords) {
  open_operands(operands, a, b, keywords);
  check_devices(operands);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  return canonical_call(request_from(operands, keywords), keywords);
}

Problem problem_of(nb::handle a, nb::handle b, const Keywords& keywords) {
  Operands operands;
  return call_of(operands, a, b, keywords).problem;
}

size_t scratch_bytes_of(nb::handle a, nb::handle b, const Keywords& keywords, nb::handle chosen, int sm_count) {
  Operands operands;
  return scratch_bytes_of(call_of(operands, a, b, keywords), chosen, sm_count);
}

size_t scratch_bytes_of(const Call& call, nb::handle chosen, int sm_count) {
  if (call.problem.pointers || call.problem.grouped == 'l')
    refuse(Refusal("lists of matrices have no scratch of their caller's"));
  if (nb::cast<bool>(chosen.attr("each"))) refuse(no_single_plan(call.problem));
  DevicePlan plan = device_plan(chosen);
  plan.sm_count = sm_count;
  // Kernels are asked on the device that they will run on; where there is none, the call is for another machine.
  const Device device = call.problem.device;
  std::optional<device::Guard> guard;
  if (device.type == DeviceType::cuda && device.id < device::count()) guard.emplace(device.id);
  return nothing_to_do(call.problem) ? 0 : scratch_bytes(call, plan);
}

}  // namespace cutlass_py
