#include "arrays/operands.h"

#include <algorithm>
#include <initializer_list>

#include "operations/gemm/canonical.h"

namespace cutlass_py {
namespace {

// The step between addresses that lie evenly, in bytes; -1 where they do not, or where no batch stride says it.
int64_t even_step(const std::vector<void*>& addresses, int64_t size) {
  auto step = [&](size_t i) { return static_cast<char*>(addresses[i]) - static_cast<char*>(addresses[i - 1]); };
  if (addresses.size() == 1) return 0;
  for (size_t i = 2; i < addresses.size(); ++i) {
    if (step(i) != step(1)) return -1;
  }
  return step(1) >= 0 && step(1) <= kMostStride && step(1) % size == 0 ? step(1) : -1;
}

std::string described(const Operand& x) {
  return found(x) + " of " + dtype_name(x.dtype) + " with strides " + shape_text(x.strides, x.rank);
}

bool alike(const Operand& x, const Operand& y) {
  const bool same = x.dtype == y.dtype && std::equal(x.shape, x.shape + 2, y.shape);
  return same && same_strides(x.shape, x.strides, y.strides, 2);
}

bool is_one_of(Role role, std::initializer_list<Role> roles) {
  return std::find(roles.begin(), roles.end(), role) != roles.end();
}

}  // namespace

void Operands::open(Role role, nb::handle object) {
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    if (is_one_of(role, {Role::a, Role::b, Role::c, Role::out})) return open_list(role, object);
    if (lists_ && is_one_of(role, {Role::gate, Role::aux, Role::bias_grad})) refuse_beside_lists(kRoleNames[int(role)]);
  }
  View* view = new (storage_ + int(role) * sizeof(View)) View;  // View() would zero it first
  views_[int(role)] = view;
  order_[count_++] = role;
  if (is_one_of(role, {Role::alpha, Role::beta, Role::scale_a, Role::scale_b, Role::scale_out})) {
    view->expected = "f32, or the operands' dtype where that is f64, c64 or c128";
  }
  view->open(object, kRoleNames[int(role)]);
}

Operands::~Operands() {
  for (int i = 0; i < count_; ++i) {
    if (!list_of(order_[i])) views_[int(order_[i])]->~View();
  }
}

void Operands::open_list(Role role, nb::handle object) {
  const char* name = kRoleNames[int(role)];
  auto list = std::make_unique<List>();
  list->name = name;
  list->held = nb::steal<nb::tuple>(PySequence_Tuple(object.ptr()));
  if (!list->held.is_valid()) nb::raise_python_error();
  for (nb::handle array : list->held) {
    Matrix& matrix = list->matrices.emplace_back();
    matrix.name = std::string(name) + "[" + std::to_string(list->matrices.size() - 1) + "]";
    matrix.view.open(array, matrix.name.c_str());
  }
  if (list->matrices.empty()) refuse(std::string(name) + " is an empty list; expected one matrix or more");
  views_[int(role)] = &list->matrices.front().view;
  if (!lists_) lists_ = std::make_unique<Lists>();
  lists_->of[int(role)] = std::move(list);
  order_[count_++] = role;
}

void Operands::List::join() {
  const Operand& first = matrices.front().view.operand;
  joined = first;
  joined.name = name;
  addresses.clear();
  for (const Matrix& matrix : matrices) {
    const Operand& x = matrix.view.operand;
    if (x.rank != 2) refuse(found(x) + "; expected 2 dimensions: lists hold matrices");
    if (!alike(x, first)) {
      refuse(described(x) + " but " + described(first) + "; the matrices of a list agree in shape, dtype and strides");
    }
    joined.readonly |= x.readonly;
    joined.metadata_only |= x.metadata_only;
    addresses.push_back(x.data);
  }
  const int64_t size = dtype_size(first.dtype);
  // TensorSpecs have no addresses that could lie evenly.
  const int64_t step = joined.metadata_only && addresses.size() > 1 ? -1 : even_step(addresses, size);
  const int64_t shape[] = {int64_t(addresses.size()), first.shape[0], first.shape[1]};
  const int64_t strides[] = {step < 0 ? 0 : step / size, first.strides[0], first.strides[1]};
  joined.rank = 3;
  std::copy(shape, shape + 3, joined.shape);
  std::copy(strides, strides + 3, joined.strides);
  if (step < 0) joined.list = &addresses;
}

// Lists go with lists of the same length, and with one matrix that all share.
void Operands::check_lists() const {
  const List* first = list_of(Role::a) ? list_of(Role::a) : list_of(Role::b);
  for (Role role : {Role::a, Role::b, Role::c, Role::out}) {
    const View* view = views_[int(role)];
    if (!view) continue;
    if (const List* list = list_of(role)) {
      if (!first) refuse(std::string(list->name) + " is a list but neither a nor b is one");
      if (list->matrices.size() == first->matrices.size()) continue;
      refuse(std::string(list->name) + " is a list of " + std::to_string(list->matrices.size()) + " matrices but " +
             first->name + " is one of " + std::to_string(first->matrices.size()) + "; expected equal lengths");
    } else if (role == Role::out) {
      refuse(std::string("out is an array but ") + first->name + " is a list; expected a list of " +
             std::to_string(first->matrices.size()) + " matrices");
    } else if (view->operand.rank != 2) {
      refuse(found(view->operand) + "; expected 2 dimensions beside a list of matrices");
    }
  }
}

void Operands::tell_written() const {
  each([](const View& view) {
    if (view.written) cutlass_py::tell_written(view.object, *view.type);
  });
}

void Operands::check_memory(const char* instead) const {
  each([&](const View& view) {
    if (!view.operand.metadata_only) return;
    refuse_type(std::string(view.operand.name) + " is a TensorSpec, which has no memory; " + instead);
  });
}

void Operands::begin_user(int32_t program) {
  user_ = std::make_unique<User>();
  user_->request.program = program;
}

View& Operands::add_user(nb::handle object, const char* name) {
  View& view = user_->views.emplace_back();
  view.open(object, name);
  user_->request.items.push_back({&view.operand, 0});
  return view;
}

void Operands::add_user(double number) { user_->request.items.push_back({nullptr, number}); }

void Operands::describe(Request& request) {
  if (user_) request.user = &user_->request;
  request.lists = has_lists();
  if (request.lists) check_lists();
  for (int i = 0; i < count_; ++i) {
    const Role role = order_[i];
    List* list = list_of(role);
    if (list) list->join();
    request.operands[int(role)] = list ? &list->joined : &views_[int(role)]->operand;
  }
}

}  // namespace cutlass_py
