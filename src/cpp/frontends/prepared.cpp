#include "frontends/prepared.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "arrays/exact_overlap.h"
#include "operations/gemm/facts.h"
#include "operations/gemm/launch_key.h"
#include "operations/gemm/user_epilogue.h"

namespace cutlass_py {
namespace {

bool only_out(const Keywords& given) {
  bool others = !given.stream.is_none() || !given.epilogue.is_none();
  for (const ArrayKeyword& each : kArrayKeywords) others |= each.role != Role::out && !(given.*each.value).is_none();
  return !others && !given.out.is_none();
}

void check_same(const Operand& x, const Operand& wanted, uint8_t align) {
  const std::string plan = "; the plan takes ";
  if (x.dtype != wanted.dtype) refuse_type(found_dtype(x).adds(plan + dtype_name(wanted.dtype)));
  if (x.device != wanted.device) {
    refuse(found_device(x).adds(plan + to_string(wanted.device)));
  }
  if (x.rank != wanted.rank || !std::equal(x.shape, x.shape + x.rank, wanted.shape)) {
    refuse(found(x).adds(plan + shape_text(wanted.shape, wanted.rank)));
  }
  if (!same_strides(x.shape, x.strides, wanted.strides, x.rank)) {
    refuse(Refusal(x.name,
                   "has strides " + shape_text(x.strides, x.rank) + plan + shape_text(wanted.strides, wanted.rank)));
  }
  if (reinterpret_cast<uintptr_t>(x.data) & ((uintptr_t(1) << align) - 1)) {
    refuse(Refusal(x.name, "starts at an address that is no multiple of " + std::to_string(1 << align) +
                               " bytes, as those of the plan are"));
  }
}

}  // namespace

void set_order(Plan& plan, int raster, int swizzle) {
  if (!raster && !swizzle) return;
  if (!plan.kernel || facts_of(*plan.kernel).api != 3)
    refuse(Refusal("raster or swizzle", "is given").hints("the order of tiles is 3.x kernels'"));
  if (raster) plan.raster = raster;
  if (swizzle) plan.swizzle = swizzle;
}

std::string prepared_repr(const std::string& problem, const Plan& plan) {
  const bool alone = !plan.kernel && plan.provided.is_none();
  return "<Prepared " + problem + ", " + (alone ? "the epilogue alone" : kernel_of(plan)) + ">";
}

Prepared::Prepared(nb::object a, nb::object b, const nb::dict& keywords, int raster, int swizzle)
    : a_(std::move(a)), b_(std::move(b)), kept_(keywords.values()), keywords_(keywords_from(keywords)) {
  Operands operands;
  prototype_ = call_of(operands, a_, b_, keywords_);
  const Problem& p = prototype_.problem;
  if (operands.has_lists()) refuse(Refusal("a plan takes arrays").hints("found lists of matrices"));
  for (int i = 0; i < kRoles; ++i) {
    if (const View* view = operands[Role(i)]) expected_[i] = view->operand;
    align_[i] = class_of(p, mirrored(Role(i), p.transposed)).align;
  }
  if (!operands[Role::out]) expected_[int(Role::out)] = new_result(prototype_);
  Request request;
  operands.describe(request);
  if (request.user) {
    for (const UserRequest::Item& item : request.user->items) {
      user_.push_back(item.array ? *item.array : Operand{});
    }
  }
  prototype_.possible_overlaps.clear();  // decided, and about operands that go with this scope
  plan_ = plan_for(p);
  if (plan_.divided) refuse(no_single_plan(p));
  set_order(plan_, raster, swizzle);
  if (p.device.type == DeviceType::cpu) return;
  const device::Guard guard(p.device.id);
  launch_ = cached_launch(prototype_, plan_);
  prepare_fast_path();
}

// ------------------------------------------------------------------------------------------------ the fast path

void Prepared::prepare_fast_path() {
  int count = 0;
  for (int i = 0; i < kRoles; ++i) {
    if (!has_array(i)) continue;
    const Operand& x = expected_[i];
    if (count == 3) return;
    const uintptr_t align = std::max(1 << align_[i], dtype_size(x.dtype));
    Operand somewhere = x;
    somewhere.data = nullptr;
    fast_operands_[count++] = {&x, align - 1, range_of(somewhere)};
  }
  fast_ = bool(launch_);  // a, b and out are there in any call
}

// Null where the array is not what the plan takes, or needs a closer look.
void* Prepared::address_of(nb::handle array, const FastOperand& operand, const ArrayType*& type) const {
  const Operand& wanted = *operand.expected;
  const ArrayType* found = array_type(array, wanted.name);
  if (!found->exchange || (type && found->exchange != type->exchange)) return nullptr;
  type = found;
  DLTensor x;
  if (found->exchange->dltensor_from_py_object_no_sync(array.ptr(), &x) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  const DtypeRow& dtype = kDtypes[int(wanted.dtype)];
  if (x.ndim != wanted.rank || x.dtype.code != dtype.dlpack_code || x.dtype.bits != dtype.bits || x.dtype.lanes != 1 ||
      x.device.device_type != kDLCUDA || x.device.device_id != wanted.device.id || !x.strides) {
    return nullptr;
  }
  if (!std::equal(x.shape, x.shape + wanted.rank, wanted.shape) ||
      !same_strides(wanted.shape, x.strides, wanted.strides, wanted.rank)) {
    return nullptr;
  }
  char* address = static_cast<char*>(x.data) + x.byte_offset;
  if (!x.data || reinterpret_cast<uintptr_t>(address) & operand.misaligned) return nullptr;
  return wants_gradient(array, *found) || is_lazy(array, *found) ? nullptr : address;
}

bool Prepared::run_fast(nb::handle a, nb::handle b, nb::handle out) const {
  if (a.is_none() || b.is_none()) return false;
  const nb::handle arrays[] = {a, b, out};
  const ArrayType* type = nullptr;
  void* addresses[3];
  Range bytes[3];
  for (int i = 0; i < 3; ++i) {
    if (!(addresses[i] = address_of(arrays[i], fast_operands_[i], type))) return false;
    const auto from = reinterpret_cast<uintptr_t>(addresses[i]);
    bytes[i] = {from + fast_operands_[i].bytes.first, from + fast_operands_[i].bytes.last};
  }
  if (!type->mutable_ || intersect(bytes[0], bytes[2]) || intersect(bytes[1], bytes[2])) return false;
  const int device_id = prototype_.problem.device.id;
  const device::Guard guard(device_id);
  device::Stream stream = nullptr;
  if (type->exchange->current_work_stream(kDLCUDA, device_id, &stream) != 0) {
    raise_for_exchange(*type, "current_work_stream");
  }
  CachedLaunch::Filled launch;
  const auto in = [&](int role) { return &addresses[Role(role) == Role::a ? 0 : Role(role) == Role::b ? 1 : 2]; };
  launch_.fill(launch, in, nullptr, stream);
  {
    nb::gil_scoped_release may_wait;
    launch.run();
  }
  tell_written(out, *type);
  return true;
}

// ------------------------------------------------------------------------------------------------ calls

nb::object Prepared::operator()(nb::handle a, nb::handle b, const Keywords& given, nb::handle workspace_given) {
  const bool plain = workspace_given.is_none() && !instrumentation::asked_for(instrumentation::kAnything);
  if (plain && fast_ && only_out(given) && run_fast(a, b, given.out)) return nb::borrow(given.out);
  Keywords keywords = keywords_;
  for (const ArrayKeyword& each : kArrayKeywords) {
    const nb::handle value = given.*each.value;
    if (value.is_none()) continue;
    if (!has_array(int(each.role))) {
      refuse(Refusal(name_of(each.role), "is given").hints("the plan was made without such an array"));
    }
    keywords.*each.value = value;
  }
  if (!given.epilogue.is_none()) {
    if (prototype_.problem.user < 0) refuse(Refusal("epilogue", "is given").hints("the plan was made without one"));
    keywords.epilogue = given.epilogue;
  }
  Operands operands;
  open_operands(operands, a.is_none() ? nb::handle(a_) : a, b.is_none() ? nb::handle(b_) : b, keywords);
  operands.check_memory("pass an array to the plan");
  if (operands.has_lists()) refuse(Refusal("a plan takes arrays").hints("found lists of matrices"));
  check_devices(operands);
  Workspace workspace;
  workspace.open(workspace_given, operands[Role::a]->operand);
  Execution execution(operands, *operands[Role::a], operands[Role::out], given.stream);
  Request request;
  request.activation = prototype_.problem.activation;
  operands.describe(request);
  check_operands(operands, request);
  if (!plain || !run_cached(launch_, request, nullptr, execution)) {
    Call call = call_on(request);
    run_call(execution, operands, call, &plan_, workspace);
  }
  return execution.finish(keywords.out);
}

std::string Prepared::repr() const {
  nb::object words =
      nb::module_::import_("cutlass_py.operations.gemm.problem_text").attr("describe")(nb::cast(problem()));
  return prepared_repr(nb::cast<std::string>(words), plan_);
}

// The operands of a user's epilogue: even the arrays that the plan keeps may lie elsewhere by now.
void Prepared::take_user(const UserRequest& given, Call& call) const {
  const UserClass& planned = user_class(call.problem.user);
  const UserProgram& program = program_of(planned.program);
  if (given.program != planned.program) {
    refuse(Refusal("epilogue", std::string("is another function, ") + program_of(given.program).name)
               .hints(std::string("the plan takes ") + program.name));
  }
  for (size_t i = 0; i < user_.size(); ++i) {
    const Operand* x = given.items[i].array;
    if (bool(x) != (user_[i].dtype != Dtype::none)) {
      refuse(Refusal(program.names[i], x ? "is an array" : "is a number")
                 .hints(x ? "the plan takes a number" : "the plan takes an array"));
    }
    UserOperand& taken = call.user[i];
    if (!x) {
      taken.value = given.items[i].value;
      continue;
    }
    check_same(*x, user_[i], planned.items[i].align);
    if (x->readonly && taken.written) refuse(Refusal(program.names[i], "is read-only"));
    taken.matrix.data = x->data;
  }
}

void Prepared::check_operands(Operands& operands, const Request& request) const {
  for (int i = 0; i < kRoles; ++i) {
    const Operand* x = request.operands[i];
    if (!x) {
      if (!has_array(i) || Role(i) == Role::out) continue;
      refuse(Refusal(expected_[i].name, "is a number").hints("the plan takes an array"));
    }
    check_same(*x, expected_[i], align_[i]);
  }
  for (Role role : kWritten) {
    const Operand* x = request.at(role);
    if (!x || !request.writes(role)) continue;
    if (x->readonly) refuse(Refusal(x->name, "is read-only"));
    if (!operands[role]->type->mutable_) refuse(Refusal(x->name, "cannot be written"));
    operands[role]->written = true;
  }
}

Call Prepared::call_on(const Request& request) const {
  Call call = prototype_;
  for (int i = 0; i < kRoles; ++i) {
    if (!request.operands[i]) continue;
    const void** address = address_slot(call, Role(i), call.problem.transposed);
    if (address) *address = request.operands[i]->data;
  }
  if (request.user) take_user(*request.user, call);
  check_overlap(request, call);
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

}  // namespace cutlass_py
