#include "operations/quantize/call.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "arrays/exact_overlap.h"
#include "operations/quantize/launch_key.h"
#include "operations/quantize/run.h"
#include "runtime/execution.h"
#include "runtime/instrumentation.h"

namespace cutlass_py::quantization {
namespace {

using device::Stream;

const OperandRow kTable[] = {
#define CUTLASS_PY_OPERAND(NAME, SHAPE, WRITTEN, NUMBER, LISTS, IN_PLACE, COMPLEX, MIRROR, SLOT) \
  {#NAME, false, false, Role::NAME == Role::x ? kFromNames.c_str() : nullptr},
#include "quantize_operands.inc"
#undef CUTLASS_PY_OPERAND
};

// ------------------------------------------------------------------------------------------------ what is asked

void open_operands(OperandViews& operands, nb::handle x, const Keywords& keywords) {
  operands.open(int(Role::x), x);
#define CUTLASS_PY_KEYWORD(NAME, DEFAULT, ROLE) \
  if (ROLE > 0 && !keywords.NAME.is_none()) operands.open(ROLE, keywords.NAME);
#include "quantize_keywords.inc"
#undef CUTLASS_PY_KEYWORD
  for (Role role : {Role::out, Role::scales}) {
    if (View* view = operands.at(int(role))) view->will_write("; use the returned array instead");
  }
  const Operand& leading = operands.at(int(Role::x))->operand;
  operands.each([&](const View& view) { check_same_device(leading, view.operand); });
}

Dtype dtype_of(nb::handle value) {
  const Dtype dtype = dtype_from(value, "dtype", current_operation(), kToNames.c_str());
  check_dtype(dtype, kTo, kToNames, Refusal("dtype", std::string("is ") + dtype_name(dtype), "dtype"));
  return dtype;
}

// Its index in kScalings, the first of what means the same.
int scaling_of(nb::handle value) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &size) : nullptr;
  if (!text) PyErr_Clear();  // it has no such letters
  std::string names;
  for (const Scaling& each : kScalings) {
    if (!text || std::string_view(text, size_t(size)) != each.name) {
      names += (names.empty() ? "'" : ", '") + std::string(each.name) + "'";
      continue;
    }
    const auto same = [&](const Scaling& x) { return x.rows == each.rows && x.cols == each.cols; };
    return int(std::find_if(std::begin(kScalings), std::end(kScalings), same) - std::begin(kScalings));
  }
  refuse(Refusal("scaling", "is " + nb::cast<std::string>(nb::repr(value))).expects("one of " + names));
}

// Whether new scales can be handed out transposed: where arrays have it, and are no copies then.
bool transposes(const View& x, const Request& r) {
  const bool wanted = kScalings[r.scaling].rows == 1 && kScalings[r.scaling].cols && x.operand.rank > 1;
  return wanted && !r.at(Role::scales) && x.type->transposes_new(x.operand.device) && !x.operand.metadata_only;
}

Request request_from(OperandViews& operands, const Keywords& keywords) {
  Request r;
  operands.each_operand([&](int index, const Operand& operand) { r.operands[index] = &operand; });
  r.q = dtype_of(keywords.dtype), r.scaling = scaling_of(keywords.scaling);
  r.transposes = transposes(*operands.at(int(Role::x)), r);
  return r;
}

Call canonical_call(const Request& request, const Keywords& keywords) {
  Call call = canonicalise(request);
  call.problem.kernel = kernel_id(keywords.kernel);
  call.problem.jit = jit_allowed;
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

// ------------------------------------------------------------------------------------------------ results

int result_of(Role role) { return role == Role::out ? 0 : 1; }

nb::object transposed(const nb::object& made, int64_t rows) {
  nb::object scales = made.attr("swapaxes")(-1, -2);
  if (rows % 4 == 0) return scales;
  const nb::object none = nb::none();
  return scales[nb::make_tuple(nb::ellipsis(), nb::slice(none, nb::int_(rows), none), nb::slice(none, none, none))];
}

nb::tuple finished(Execution& execution, const Request& r, const Keywords& keywords) {
  execution.finish();  // what was written is told first: to hand out the other result may fail
  nb::object q = execution.result(keywords.out, result_of(Role::out));
  nb::object scales = execution.result(keywords.scales, result_of(Role::scales));
  if (!r.transposes) return nb::make_tuple(q, scales);
  const Operand& x = *r.at(Role::x);
  return nb::make_tuple(q, transposed(scales, x.shape[x.rank - 2]));
}

// ------------------------------------------------------------------------------------------------ running

bool run_cached(const CachedLaunch& known, const Request& request, Execution& execution) {
  if (!known || !provably_apart(request)) return false;
  CachedLaunch::Filled launch;  // to allocate a result may run any Python, which may clear the cache
  known.fill(launch, request.operands, nullptr, execution.stream());
  const Operand made[] = {known.result(0), known.result(1)};
  for (Role role : {Role::out, Role::scales}) {
    const int i = result_of(role);
    if (!request.at(role)) launch.set_result(execution.new_result(made[i], i), i);
  }
  execution.run([&] {
    nb::gil_scoped_release may_wait;
    launch.run();
  });
  return true;
}

void tell(const Call& call, const Plan& plan, Stream stream) {
  nb::dict how;  // as launch_plan.py's LaunchPlan has it
  how["kernel"] = plan.kernel ? nb::object(nb::str(plan.kernel->name)) : nb::none(), how["provided"] = plan.provided;
  nb::module_ told = nb::module_::import_("cutlass_py.diagnostics.instrumentation");
  told.attr("called")(call.problem, reinterpret_cast<uintptr_t>(stream), **how);
}

std::string kernel_of(const Plan& plan) {
  if (plan.kernel) return plan.kernel->name;
  return nb::cast<std::string>(plan.provided.attr("__self__").attr("name"));  // PythonKernel.call
}

void run_call(const Request& request, Call& call, Execution& execution) {
  const auto make_results = [&] {
    if (!request.at(Role::out)) place(call, Role::out, execution.new_result(call.q, result_of(Role::out)));
    if (!request.at(Role::scales)) place(call, Role::scales, execution.new_result(call.made, result_of(Role::scales)));
  };
  if (nothing_to_do(call)) return make_results();
  std::optional<NoTuning> untouched;
  if (tuning_allowed && execution.capturing()) untouched.emplace();  // waiting would end the capture
  const Plan plan = plan_for(call.problem);                          // may refuse: before anything is allocated
  make_results();
  const Stream stream = execution.stream();
  execution.run([&] {
    const instrumentation::Range range([&] { return range_name(call.problem, kernel_of(plan)); });
    if (instrumentation::asked_for(instrumentation::kCalls)) tell(call, plan, stream);
    run_by_plan(call, plan, stream);
  });
}

}  // namespace

nb::tuple quantize(nb::handle x, const Keywords& keywords) {
  const OperationScope operation("quantize");
  OperandViews operands(kTable);
  open_operands(operands, x, keywords);
  operands.check_memory("use explain or get_kernels");
  Execution execution(operands, *operands.at(int(Role::x)), operands.at(int(Role::out)), keywords.stream);
  const Request request = request_from(operands, keywords);
  // The number of a kernel is asked of Python; what is told of calls is told of canonical ones.
  const bool kept =
      !execution.on_host() && keywords.kernel.is_none() && !instrumentation::asked_for(instrumentation::kAnything);
  const Key key = kept ? launch_key(request, jit_allowed) : Key();
  const CachedLaunch* known = key ? launch_cache().find(key) : nullptr;
  if (known && run_cached(*known, request, execution)) return finished(execution, request, keywords);
  const bool is_new = key && !known;  // nothing is found any more where Python code has run
  Call call = canonical_call(request, keywords);
  run_call(request, call, execution);
  if (is_new && !nothing_to_do(call)) {
    if (const Plan* plan = known_plan(call.problem)) launch_cache().keep(key, cached_launch(call, *plan));
  }
  return finished(execution, request, keywords);
}

Problem problem_of(nb::handle x, const Keywords& keywords) {
  const OperationScope operation("quantize");
  OperandViews operands(kTable);
  open_operands(operands, x, keywords);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  return canonical_call(request_from(operands, keywords), keywords).problem;
}

}  // namespace cutlass_py::quantization
