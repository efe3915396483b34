#include "frontends/prepared.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "arrays/exact_overlap.h"
#include "operations/gemm/addresses.h"
#include "operations/gemm/user_epilogue.h"
#include "runtime/instrumentation.h"

namespace cutlass_py {
namespace {

bool is_there(const Operand& x) { return x.dtype != Dtype::none; }

bool only_out(const Keywords& given) {
  bool others = !given.stream.is_none() || !given.epilogue.is_none();
  for (const ArrayKeyword& each : kArrayKeywords) others |= each.role != Role::out && !(given.*each.value).is_none();
  return !others && !given.out.is_none();
}

uint8_t alignment(const Problem& p, Role role) {
  switch (role) {
    case Role::a: return p.transposed ? p.align_b : p.align_a;
    case Role::b: return p.transposed ? p.align_a : p.align_b;
    case Role::c: return p.align_c;
    case Role::bias: return p.align_bias;
    case Role::gate: return p.align_gate;
    case Role::aux: return p.align_aux;
    case Role::out: return p.align_d;
    case Role::scale_a:
    case Role::scale_b: {
      const Role rows = p.transposed ? Role::scale_b : Role::scale_a;  // blocks of which TMA reads
      return p.block() && p.scale_a == 'r' && role == rows ? 4 : 0;
    }
    default: return 0;
  }
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

Prepared::Prepared(nb::object a, nb::object b, const nb::dict& keywords, int raster, int swizzle)
    : a_(std::move(a)), b_(std::move(b)), kept_(keywords.values()), keywords_(keywords_from(keywords)) {
  Operands operands;
  prototype_ = call_of(operands, a_, b_, keywords_);
  if (operands.has_lists()) refuse(Refusal("a plan takes arrays").hints("found lists of matrices"));
  for (int i = 0; i < kRoles; ++i) {
    if (const View* view = operands[Role(i)]) expected_[i] = view->operand;
    align_[i] = alignment(prototype_.problem, Role(i));
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
  writes_aux_ = !kActivations[int(prototype_.problem.activation)].derivative;
  plan_ = plan_for(prototype_.problem);
  if (raster || swizzle) {
    if (!plan_.kernel || plan_.kernel->facts.api != 3)
      refuse(Refusal("raster or swizzle", "is given").hints("the order of tiles is 3.x kernels'"));
    if (raster) plan_.raster = raster;
    if (swizzle) plan_.swizzle = swizzle;
  }
  prepare_straight();
}

// ------------------------------------------------------------------------------------------------ straight

void Prepared::prepare_straight() {
  const Problem& p = prototype_.problem;
  if (p.device.type == DeviceType::cpu) return;
  const Role roles[] = {Role::a, Role::b, Role::out};
  for (int i = 0; i < kRoles; ++i) {
    if (is_there(expected_[i]) && std::find(roles, roles + 3, Role(i)) == roles + 3) return;
  }
  for (int i = 0; i < 3; ++i) {
    const Operand& x = expected_[int(roles[i])];
    bool unit = false;
    for (int j = 0; j < x.rank; ++j) unit |= x.strides[j] == 1 && x.shape[j] > 1;
    // What View::fill looks into more closely: complex numbers, and views without unit stride.
    if (!unit || is_complex(x.dtype)) return;
    const uintptr_t align = std::max(1 << align_[int(roles[i])], dtype_size(x.dtype));
    Operand somewhere = x;
    somewhere.data = nullptr;
    straight_[i] = {&x, align - 1, range_of(somewhere)};
  }
  const device::Guard guard(p.device.id);
  single_ = single_launch(prototype_, plan_);
}

// Null where the array is not what the plan takes, or needs a closer look.
void* Prepared::address_of(nb::handle array, const Straight& operand, const ArrayType*& type) const {
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
  return wants_gradient(array, *found) ? nullptr : address;
}

bool Prepared::launch_straight(nb::handle a, nb::handle b, nb::handle out) const {
  if (a.is_none() || b.is_none()) return false;
  const nb::handle arrays[] = {a, b, out};
  const ArrayType* type = nullptr;
  void* addresses[3];
  Range bytes[3];
  for (int i = 0; i < 3; ++i) {
    if (!(addresses[i] = address_of(arrays[i], straight_[i], type))) return false;
    const auto from = reinterpret_cast<uintptr_t>(addresses[i]);
    bytes[i] = {from + straight_[i].bytes.first, from + straight_[i].bytes.last};
  }
  if (!type->mutable_ || intersect(bytes[0], bytes[2]) || intersect(bytes[1], bytes[2])) return false;
  const int device_id = prototype_.problem.device.id;
  const device::Guard guard(device_id);
  CutlassPyGemm g = *single_;
  if (type->exchange->current_work_stream(kDLCUDA, device_id, &g.stream) != 0) {
    raise_for_exchange(*type, "current_work_stream");
  }
  const bool swapped = prototype_.problem.transposed;
  g.a = addresses[swapped], g.b = addresses[!swapped], g.d = addresses[2];
  {
    nb::gil_scoped_release may_wait;
    launch(plan_, g);
  }
  tell_written(out, *type);
  return true;
}

// ------------------------------------------------------------------------------------------------ calls

nb::object Prepared::operator()(nb::handle a, nb::handle b, const Keywords& given, nb::handle workspace) {
  const bool straight = single_ && !trace::asked_for(trace::kAnything) && workspace.is_none() && only_out(given);
  if (straight && launch_straight(a, b, given.out)) {
    return nb::borrow(given.out);
  }
  Keywords keywords = keywords_;
  for (const ArrayKeyword& each : kArrayKeywords) {
    const nb::handle value = given.*each.value;
    if (value.is_none()) continue;
    if (!is_there(expected_[int(each.role)])) {
      refuse(Refusal(kRoleNames[int(each.role)], "is given").hints("the plan was made without such an array"));
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
  return execute(operands, *this, keywords.out, given.stream, workspace);
}

std::string Prepared::repr() const {
  nb::object words =
      nb::module_::import_("cutlass_py.operations.gemm.description").attr("describe")(nb::cast(problem()));
  const bool alone = !plan_.kernel && plan_.provided.is_none();
  const std::string kernel = alone ? "the epilogue alone" : trace::kernel_of(plan_);
  return "<Prepared " + nb::cast<std::string>(words) + ", " + kernel + ">";
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
    if (bool(x) != is_there(user_[i])) {
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

Call Prepared::call(Operands& operands) {
  Request r;
  r.activation = prototype_.problem.activation;
  operands.describe(r);
  Call call = prototype_;
  for (int i = 0; i < kRoles; ++i) {
    const Operand* x = r.operands[i];
    if (!x) {
      if (!is_there(expected_[i]) || Role(i) == Role::out) continue;
      refuse(Refusal(expected_[i].name, "is a number").hints("the plan takes an array"));
    }
    check_same(*x, expected_[i], align_[i]);
    if (const void** address = address_slot(call, Role(i), call.problem.transposed)) *address = x->data;
  }
  if (r.user) take_user(*r.user, call);
  for (Role role : {Role::out, Role::bias_grad, Role::aux}) {
    const Operand* x = r.at(role);
    if (!x || (role == Role::aux && !writes_aux_)) continue;
    if (x->readonly) refuse(Refusal(x->name, "is read-only"));
    if (!operands[role]->type->mutable_) refuse(Refusal(x->name, "cannot be written"));
    operands[role]->written = true;
  }
  check_overlap(r, call);
  check_possible_overlaps(call.possible_overlaps);
  return call;
}

}  // namespace cutlass_py
