// The arrays of one call, viewed in the order in which errors should name them.
#pragma once

#include <list>
#include <memory>

#include "arrays/dlpack_view.h"

namespace cutlass_py {

// What an operation's table of operands says of one of them, as far as opening it goes.
struct OperandRow {
  const char* name;
  bool may_be_list;      // of matrices
  bool beside_lists;     // may be there while others are lists
  const char* expected;  // dtypes, for the message about one that is none of ours; null: all of ours
};

// Operands by their index in that table, and further ones that have a name alone.
class OperandViews {
 public:
  static constexpr int kMost = 16;

  explicit OperandViews(const OperandRow* table) : table_(table) {}
  ~OperandViews();
  OperandViews(const OperandViews&) = delete;

  // An array, or a list or tuple of matrices where the table allows one.
  void open(int index, nb::handle object);
  // Another one behind those of the table.
  View& add(nb::handle object, const char* name, const char* expected = nullptr) {
    View& view = others_.emplace_back();
    view.expected = expected;
    view.open(object, name);
    return view;
  }

  View* at(int index) const { return views_[index]; }  // of a list, that of its first matrix
  bool has_lists() const { return bool(lists_); }
  int list_length(int index) const;  // -1 where it is no list

  // Every array, the matrices of lists included.
  template <class Function>
  void each(Function function) const {
    for (int i = 0; i < count_; ++i) each_of(order_[i], function);
    for (View& view : others_) function(view);
  }

  // The array of one index, or the matrices of its list; none where it is absent.
  template <class Function>
  void each_of(int index, Function function) const {
    if (List* list = list_of(index)) {
      for (Matrix& matrix : list->matrices) function(matrix.view);
    } else if (views_[index]) {
      function(*views_[index]);
    }
  }

  // Tells frameworks of the arrays that were written.
  void tell_written() const;

  // Refuses TensorSpecs, with what to do instead.
  void check_memory(const char* instead) const;

  // Once all are imported: visit(index, operand). They live as long as this.
  template <class Visit>
  void each_operand(Visit visit) {
    for (int i = 0; i < count_; ++i) {
      List* list = list_of(order_[i]);
      if (list) list->join();
      visit(order_[i], list ? list->joined : views_[order_[i]]->operand);
    }
  }

 private:
  struct Matrix {
    std::string name;  // "a[3]"
    View view;
  };
  struct List {
    const char* name;
    nb::tuple held;  // nothing else keeps the matrices alive if the caller's list changes meanwhile
    std::list<Matrix> matrices;
    std::vector<void*> addresses;
    std::vector<Operand> each;
    Operand joined;

    void join();
  };

  struct Lists {
    std::unique_ptr<List> of[kMost];
  };

  List* list_of(int index) const { return lists_ ? lists_->of[index].get() : nullptr; }
  void open_list(int index, nb::handle object);

  const OperandRow* table_;
  uint8_t order_[kMost];
  int count_ = 0;
  View* views_[kMost] = {};
  std::unique_ptr<Lists> lists_;  // where there are any
  mutable std::list<View> others_;
  alignas(View) unsigned char storage_[kMost * sizeof(View)];  // not initialised: most calls use three of them
};

}  // namespace cutlass_py
