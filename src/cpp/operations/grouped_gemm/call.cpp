#include "operations/grouped_gemm/call.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>

#include "arrays/exact_overlap.h"
#include "arrays/metadata.h"
#include "operations/gemm/facts.h"
#include "operations/grouped_gemm/gather.h"
#include "runtime/plan_table.h"

namespace cutlass_py::grouping {
namespace {

// Numbers, viewed: among the operands, or alone in host memory beside operands of a device.
class NumbersView {
 public:
  NumbersView(Operands& operands, nb::handle given, const char* name, bool sizes = false) {
    numbers_.sizes = sizes, numbers_.wide = is_wide(given);
    // Of 64 bits there is no integer among the dtypes of operands: they are seen as others of that size.
    held_ = numbers_.wide ? nb::cast(TypedView{nb::borrow(given), Dtype::f64}) : nb::borrow(given);
    alone_.expected = Numbers::dtypes;
    alone_.open(held_, name);
    const Device device = operands[Role::a]->operand.device;
    is_alone_ = alone_.operand.device.type == DeviceType::cpu && device.type == DeviceType::cuda;
    if (is_alone_) {
      if (!alone_.complete) alone_.import(nullptr);
      numbers_.array = &alone_.operand;
    } else {
      numbers_.array = &operands.add(held_, name, Numbers::dtypes).operand;
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

// What tells groups apart.
NumbersView of_groups(Operands& operands, const Asked& asked) {
  const bool by_sizes = asked.offsets.is_none();
  if (by_sizes == asked.sizes.is_none()) {
    refuse(Refusal("offsets", by_sizes ? "is missing, and so is sizes" : "is given beside sizes")
               .expects("one of the two"));
  }
  return NumbersView(operands, by_sizes ? asked.sizes : asked.offsets, by_sizes ? "sizes" : "offsets", by_sizes);
}

int64_t expected_from(nb::handle value) {
  if (value.is_none()) return 0;
  const int64_t lines = PyIndex_Check(value.ptr()) ? PyLong_AsLongLong(nb::int_(value).ptr()) : -1;
  PyErr_Clear();
  if (lines < 1)
    refuse(Refusal("expected", "is " + nb::cast<std::string>(nb::repr(value))).expects("lines of a group, 1 or more"));
  return lines;
}

void check_asked(nb::handle a, nb::handle b, const Keywords& keywords) {
  const std::pair<Role, nb::handle> arrays[] = {
      {Role::a, a}, {Role::b, b}, {Role::c, keywords.c}, {Role::out, keywords.out}};
  for (const auto& [role, x] : arrays) {
    const char* kind = PyList_Check(x.ptr()) ? "is a list" : PyTuple_Check(x.ptr()) ? "is a tuple" : nullptr;
    if (kind) refuse_type(Refusal(name_of(role), kind).expects("an array: gemm takes lists"));
  }
  if (!keywords.epilogue.is_none()) refuse(Refusal("epilogue", "is given").hints("groups have none of the user's"));
}

using Lines = std::vector<std::pair<int64_t, int64_t>>;

// Of groups that have any; 0 where nobody knows.
int64_t usual_lines(const Lines& lines) {
  int64_t sum = 0, count = 0;
  for (const auto& [begin, end] : lines) sum += end - begin, count += end > begin;
  return count ? sum / count : 0;
}

// `gather`: where rows are found by their numbers, which `request` then has as they will lie.
Call canonical_call(const Request& request, const Groups& groups, const Numbers& numbers, const Lines& lines,
                    const Gather* gather, const Asked& asked, const Keywords& keywords) {
  Call call = canonicalise(request, groups, numbers, expected_from(asked.expected));
  if (call.problem.device.type == DeviceType::cuda) call.problem.usual = code_of_lines(usual_lines(lines));
  if (gather) call.problem.rows = GroupRows::gathered;
  call.problem.kernel = kernel_id(keywords.kernel);
  call.problem.jit = jit_allowed;
  std::vector<const Operand*> others = {numbers.array};
  if (gather) others.insert(others.end(), {gather->source(), gather->numbers()});
  for (const Role role : {Role::out, Role::aux}) {  // what is written before other blocks have read the numbers
    const Operand* x = request.at(role);
    if (!x || x->metadata_only || !request.writes(role)) continue;
    for (const Operand* other : others) {
      if (other->metadata_only || x->device != other->device || provably_disjoint(*x, *other)) continue;
      Refusal shared = Refusal(x->name, "shares elements with", "overlap").beside(other->name);
      call.possible_overlaps.push_back({x, other, shared.hints("what is written has memory of its own")});
    }
  }
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

// One dense product after the other.
void run_each(const Execution& execution, const Request& request, const Groups& groups, const Lines& lines) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (groups.axis != 'k' && lines[i].first == lines[i].second) continue;
    const DenseOperands of_one(request, groups, int64_t(i), lines[i].first, lines[i].second);
    run_one(execution, of_one.request);
  }
}

void tell_groups(Call& call, const Groups& groups, const Lines& lines) {
  for (const auto& [begin, end] : lines) call.group_ends.push_back(end);
  call.groups.numbers = nullptr, call.groups.wide = 1;
  call.groups.kind = groups.stacked ? CUTLASS_PY_GROUP_FIRST : CUTLASS_PY_GROUP_ENDS;
}

}  // namespace

std::string described(const Problem& p) {
  const nb::object text = nb::module_::import_("cutlass_py.operations.grouped_gemm.problem_text").attr("describe");
  return nb::cast<std::string>(text(nb::cast(p)));
}

namespace {

// Which bits are asked for again, whether declared kernels may be compiled, and how many lines are usual makes no other
// problem of it; nor do arrays that are aligned to more bytes.
void check_same(Problem found, const Problem& planned, const Operand& numbers) {
  constexpr std::pair<Role, uint8_t Problem::*> kAligned[] = {
      {Role::a, &Problem::align_a},    {Role::b, &Problem::align_b},       {Role::c, &Problem::align_c},
      {Role::out, &Problem::align_d},  {Role::bias, &Problem::align_bias}, {Role::gate, &Problem::align_gate},
      {Role::aux, &Problem::align_aux}};
  found.jit = planned.jit, found.repeats = planned.repeats, found.usual = planned.usual;
  for (const auto& [role, align] : kAligned) {
    const int bytes = 1 << found.*align, taken = 1 << planned.*align;
    if (bytes < taken && planned.device.type == DeviceType::cuda) {
      refuse(Refusal(name_of(mirrored(role, planned.transposed)), "is aligned to " + std::to_string(bytes) + " bytes")
                 .hints("the plan takes " + std::to_string(taken)));
    }
    found.*align = planned.*align;
  }
  if (found.told != planned.told) {
    const char *host = "in host memory", *device = "on the device";
    refuse(Refusal(numbers.name, std::string("is ") + (found.told ? host : device))
               .hints(std::string("the plan takes numbers ") + (planned.told ? host : device)));
  }
  if (!(found == planned))
    refuse(Refusal("these arrays make " + described(found)).hints("the plan is of " + described(planned)));
}

}  // namespace

nb::object grouped_gemm(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords,
                        const Settled* settled) {
  const OperationScope operation("grouped_gemm");
  check_asked(a, b, keywords);
  Operands operands;
  open_operands(operands, a, b, keywords);
  operands.check_memory("use explain or get_kernels");
  const NumbersView numbers = of_groups(operands, asked);
  numbers.check_memory();
  std::optional<NumbersView> rows;
  if (!asked.gather.is_none()) rows.emplace(operands, asked.gather, "gather"), rows->check_memory();
  check_devices(operands);
  Workspace workspace;
  if (settled) workspace.open(settled->workspace, operands[Role::a]->operand);
  Execution execution(operands, *operands[Role::a], operands[Role::out], keywords.stream);
  Request request = request_from(operands, keywords);
  std::optional<Gather> gather;
  if (rows) gather.emplace(request, **rows);
  const Groups groups = groups_of(request, *numbers);
  const Lines lines = (*numbers).on_host() ? read(groups, *numbers) : Lines();
  Call call = canonical_call(request, groups, *numbers, lines, gather ? &*gather : nullptr, asked, keywords);
  if (settled) check_same(call.problem, settled->problem, *(*numbers).array);
  bool divided = execution.on_host();
  if (divided && !keywords.kernel.is_none()) plan_for(call.problem);  // refuses what is no kernel of groups
  if (!divided && !settled && call.problem.told && !nothing_to_do(call.problem)) {
    divided = plan_during(execution, call.problem).divided;
  }
  if (gather && !nothing_to_do(call.problem)) {
    if (!execution.on_host() && !settled) plan_during(execution, call.problem);  // may refuse: before allocations
    *address_slot(call, Role::a, call.problem.transposed) = gather->run(execution);
  }
  if (!divided) {
    if (call.problem.told) tell_groups(call, groups, lines);
    run_call(execution, operands, call, settled ? &settled->plan : nullptr, workspace);
    return execution.finish(keywords.out);
  }
  workspace.on(nullptr, operands, 0);
  Operand made;
  if (!request.at(Role::out)) {
    made = new_result(call);
    made.data = execution.new_result(made);
    request.operands[int(Role::out)] = &made;
  }
  execution.run([&] { run_each(execution, request, groups, lines); });
  return execution.finish(keywords.out);
}

namespace {

// Numbers of the device as the host has them, which waits.
Lines read_back(const Groups& groups, Numbers numbers) {
  const Operand& x = *numbers.array;
  std::vector<char> memory(size_t(x.shape[0]) * size_t(dtype_size(x.dtype)));
  {
    const device::Guard guard(x.device.id);
    nb::gil_scoped_release waiting;
    device::copy(memory.data(), x.data, memory.size(), device::own_stream(x.device.id));
    device::synchronize();
  }
  Operand copied = x;
  copied.data = memory.data(), numbers.array = &copied;
  return read(groups, numbers);
}

// use(the canonical call of operands that may be TensorSpecs, the request, its groups and the numbers that tell them)
template <class Use>
auto with_call(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords, Use use) {
  const OperationScope operation("grouped_gemm");
  check_asked(a, b, keywords);
  Operands operands;
  open_operands(operands, a, b, keywords);
  const NumbersView numbers = of_groups(operands, asked);
  std::optional<NumbersView> rows;
  if (!asked.gather.is_none()) rows.emplace(operands, asked.gather, "gather");
  check_devices(operands);
  operands.each([](View& view) {
    if (view.complete) return;
    const bool cuda = view.operand.device.type == DeviceType::cuda;
    view.import(cuda ? device::own_stream(view.operand.device.id) : nullptr);
  });
  Request request = request_from(operands, keywords);
  std::optional<Gather> gather;
  if (rows) gather.emplace(request, **rows);
  const Groups groups = groups_of(request, *numbers);
  const bool known = (*numbers).on_host() && !(*numbers).array->metadata_only;
  Lines lines = known ? read(groups, *numbers) : Lines();
  Call call = canonical_call(request, groups, *numbers, lines, gather ? &*gather : nullptr, asked, keywords);
  if (call.problem.told && !known) lines.resize(size_t(groups.count));
  if (call.problem.told) tell_groups(call, groups, lines);
  return use(call, request, groups, *numbers);
}

}  // namespace

Problem problem_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords) {
  return with_call(a, b, asked, keywords, [](const Call& call, auto&...) { return call.problem; });
}

Planned planned_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords) {
  return with_call(a, b, asked, keywords, [](const Call& call, const Request& request, auto&...) {
    Planned found{call.problem};
    for (int i = 0; i < kRoles; ++i) found.arrays[size_t(i)] = request.operands[i];
    return found;
  });
}

size_t scratch_bytes_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords, nb::handle plan,
                        int sm_count) {
  return with_call(a, b, asked, keywords,
                   [&](const Call& call, auto&...) { return cutlass_py::scratch_bytes_of(call, plan, sm_count); });
}

std::vector<int64_t> ends_of(nb::handle a, nb::handle b, const Asked& asked, const Keywords& keywords) {
  return with_call(a, b, asked, keywords,
                   [](const Call& call, const Request&, const Groups& groups, const Numbers& numbers) {
                     std::vector<int64_t> ends;
                     if (numbers.array->metadata_only) return ends;
                     if (call.problem.told) return call.group_ends;
                     for (const auto& [begin, end] : read_back(groups, numbers)) ends.push_back(end);
                     return ends;
                   });
}

}  // namespace cutlass_py::grouping
