#include "operations/grouped_gemm/call.h"

#include <nanobind/stl/string.h>

#include <string>

#include "arrays/exact_overlap.h"
#include "arrays/metadata.h"
#include "runtime/plan_table.h"

namespace cutlass_py::grouping {
namespace {

// What tells groups apart, viewed: among the operands, or alone in host memory beside operands of a device.
class NumbersView {
 public:
  NumbersView(Operands& operands, const Asked& asked) {
    const bool by_sizes = asked.offsets.is_none();
    if (by_sizes == asked.sizes.is_none()) {
      refuse(Refusal("offsets", by_sizes ? "is missing, and so is sizes" : "is given beside sizes")
                 .expects("one of the two"));
    }
    const nb::handle given = by_sizes ? asked.sizes : asked.offsets;
    const char* name = by_sizes ? "sizes" : "offsets";
    numbers_.sizes = by_sizes, numbers_.wide = is_wide(given);
    // Of 64 bits there is no integer among the dtypes of operands: they are seen as others of that size.
    held_ = numbers_.wide ? nb::cast(TypedView{nb::borrow(given), Dtype::f64}) : nb::borrow(given);
    alone_.open(held_, name);
    const Device device = operands[Role::a]->operand.device;
    is_alone_ = alone_.operand.device.type == DeviceType::cpu && device.type == DeviceType::cuda;
    if (is_alone_) {
      if (!alone_.complete) alone_.import(nullptr);
      numbers_.array = &alone_.operand;
    } else {
      numbers_.array = &operands.add(held_, name).operand;
    }
  }
  const Numbers& operator*() const { return numbers_; }
  void check_memory() const {
    if (numbers_.array->metadata_only)
      refuse_type(Refusal(numbers_.array->name, "is a TensorSpec").expects("an array"));
  }

 private:
  static bool is_wide(nb::handle x) {
    const nb::object dtype = nb::getattr(x, "dtype", nb::none());
    const std::string text = dtype.is_none() ? "" : nb::cast<std::string>(nb::str(dtype));
    return text == "int64" || text == "torch.int64";
  }

  nb::object held_;
  View alone_;
  bool is_alone_ = false;
  Numbers numbers_;
};

int64_t expected_from(nb::handle value) {
  if (value.is_none()) return 0;
  const int64_t lines = PyIndex_Check(value.ptr()) ? PyLong_AsLongLong(nb::int_(value).ptr()) : -1;
  PyErr_Clear();
  if (lines < 1)
    refuse(Refusal("expected", "is " + nb::cast<std::string>(nb::repr(value))).expects("lines of a group, 1 or more"));
  return lines;
}

void check_asked(const Operands& operands, const Keywords& keywords) {
  if (operands.has_lists()) refuse_type(Refusal("a", "is a list").expects("arrays: gemm takes lists"));
  if (!keywords.epilogue.is_none()) refuse(Refusal("epilogue", "is given").hints("groups have none of the user's"));
}

Call canonical_call(const Request& request, const Groups& groups, const Numbers& numbers, const Asked& asked,
                    const Keywords& keywords) {
  Call call = canonicalise(request, groups, numbers, expected_from(asked.expected));
  call.problem.kernel = kernel_id(keywords.kernel);
  call.problem.jit = jit_allowed;
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

using Lines = std::vector<std::pair<int64_t, int64_t>>;

// One dense product after the other.
void run_each(const Request& request, const Groups& groups, const Lines& lines, device::Stream stream) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const DenseOperands of_one(request, groups, int64_t(i), lines[i].first, lines[i].second);
    Call one = cutlass_py::canonicalise(of_one.request);
    one.problem.jit = jit_allowed;
    if (nothing_to_do(one.problem)) continue;
    const Plan plan = plan_for(one.problem);
    run_all(one, [&] { run_by_plan(one, plan, stream); });
  }
}

void tell(Call& call, const Groups& groups, const Lines& lines) {
  for (const auto& [begin, end] : lines) call.group_ends.push_back(end);
  call.groups.numbers = nullptr, call.groups.wide = 1;
  call.groups.kind = groups.stacked ? CUTLASS_PY_GROUP_FIRST : CUTLASS_PY_GROUP_ENDS;
}

}  // namespace

nb::object grouped_gemm(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords) {
  const OperationScope operation("grouped_gemm");
  Operands operands;
  open_operands(operands, a, b, keywords);
  operands.check_memory("use explain or get_kernels");
  check_asked(operands, keywords);
  const NumbersView numbers(operands, asked);
  numbers.check_memory();
  check_devices(operands);
  Execution execution(operands, *operands[Role::a], operands[Role::out], keywords.stream);
  Request request = request_from(operands, keywords);
  const Groups groups = groups_of(request, *numbers);
  Call call = canonical_call(request, groups, *numbers, asked, keywords);
  const Lines lines = (*numbers).on_host() ? read(groups, *numbers) : Lines();
  const bool divided =
      execution.on_host() || (call.problem.told && !nothing_to_do(call.problem) && plan_for(call.problem).divided);
  Workspace none;
  if (!divided) {
    if (call.problem.told) tell(call, groups, lines);
    run_call(execution, operands, call, nullptr, none);
    return execution.finish(keywords.out);
  }
  Operand made;
  if (!request.at(Role::out)) {
    made = new_result(call);
    made.data = execution.new_result(made);
    request.operands[int(Role::out)] = &made;
  }
  execution.run([&] { run_each(request, groups, lines, execution.stream()); });
  return execution.finish(keywords.out);
}

Problem problem_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords) {
  const OperationScope operation("grouped_gemm");
  Operands operands;
  open_operands(operands, a, b, keywords);
  check_asked(operands, keywords);
  const NumbersView numbers(operands, asked);
  check_devices(operands);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  const Request request = request_from(operands, keywords);
  const Groups groups = groups_of(request, *numbers);
  return canonical_call(request, groups, *numbers, asked, keywords).problem;
}

}  // namespace cutlass_py::grouping
