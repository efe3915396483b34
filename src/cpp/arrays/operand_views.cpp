#include "arrays/operand_views.h"

#include <algorithm>

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

bool alike(const Operand& x, const Operand& y) {
  return std::equal(x.shape, x.shape + 2, y.shape) && same_strides(x.shape, x.strides, y.strides, 2);
}

}  // namespace

void OperandViews::open(int index, nb::handle object) {
  const OperandRow& row = table_[index];
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    if (row.may_be_list) return open_list(index, object);
    if (lists_ && !row.beside_lists) refuse_beside_lists(row.name);
  }
  View* view = new (storage_ + size_t(index) * sizeof(View)) View;  // View() would zero it first
  views_[index] = view;
  order_[count_++] = uint8_t(index);
  view->expected = row.expected;
  view->open(object, row.name);
}

OperandViews::~OperandViews() {
  for (int i = 0; i < count_; ++i) {
    if (!list_of(order_[i])) views_[order_[i]]->~View();
  }
}

void OperandViews::open_list(int index, nb::handle object) {
  const char* name = table_[index].name;
  auto list = std::make_unique<List>();
  list->name = name;
  list->held = nb::steal<nb::tuple>(PySequence_Tuple(object.ptr()));
  if (!list->held.is_valid()) nb::raise_python_error();
  for (nb::handle array : list->held) {
    Matrix& matrix = list->matrices.emplace_back();
    matrix.name = std::string(name) + "[" + std::to_string(list->matrices.size() - 1) + "]";
    matrix.view.open(array, matrix.name.c_str());
  }
  if (list->matrices.empty()) refuse(Refusal(name, "is an empty list").expects("one matrix or more"));
  views_[index] = &list->matrices.front().view;
  if (!lists_) lists_ = std::make_unique<Lists>();
  lists_->of[index] = std::move(list);
  order_[count_++] = uint8_t(index);
}

int OperandViews::list_length(int index) const {
  const List* list = list_of(index);
  return list ? int(list->matrices.size()) : -1;
}

void OperandViews::List::join() {
  const Operand& first = matrices.front().view.operand;
  joined = first;
  joined.name = name;
  addresses.clear(), each.clear();
  for (const Matrix& matrix : matrices) {
    const Operand& x = matrix.view.operand;
    if (x.rank != 2) refuse(found(x).expects("2 dimensions: lists hold matrices"));
    if (x.dtype != first.dtype) {
      refuse_type(found_dtype(x).but(found_dtype(first)).hints("the matrices of a list agree in dtype"));
    }
    joined.uneven |= !alike(x, first);
    each.push_back(x);
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
  joined.matrices = &each;
  if (step < 0 && !joined.uneven) joined.list = &addresses;
}

void OperandViews::tell_written() const {
  each([](const View& view) {
    if (view.written) cutlass_py::tell_written(view.object, *view.type);
  });
}

void OperandViews::check_memory(const char* instead) const {
  each([&](const View& view) {
    if (!view.operand.metadata_only) return;
    refuse_type(Refusal(view.operand.name, "is a TensorSpec, which has no memory").hints(instead));
  });
}

}  // namespace cutlass_py
