// The arrays of one call, viewed in the order in which errors should name them.
#pragma once

#include <list>
#include <memory>

#include "arrays/dlpack_view.h"

namespace cutlass_py {

class Operands {
 public:
  Operands() = default;
  ~Operands();
  Operands(const Operands&) = delete;

  // An array; for a, b, c and out also a list or tuple of matrices.
  void open(Role role, nb::handle object);

  View* operator[](Role role) const { return views_[int(role)]; }  // of a list, that of its first matrix
  bool has_lists() const { return bool(lists_); }

  // Every array, the matrices of lists included.
  template <class Function>
  void each(Function function) const {
    for (int i = 0; i < count_; ++i) each_of(order_[i], function);
    if (user_) {
      for (View& view : user_->views) function(view);
    }
  }

  // The array of one role, or the matrices of its list; none where it is absent.
  template <class Function>
  void each_of(Role role, Function function) const {
    if (List* list = list_of(role)) {
      for (Matrix& matrix : list->matrices) function(matrix.view);
    } else if (views_[int(role)]) {
      function(*views_[int(role)]);
    }
  }

  // Tells frameworks of the arrays that were written.
  void tell_written() const;

  // Refuses TensorSpecs, with what to do instead.
  void check_memory(const char* instead) const;

  // A user's epilogue: its program (user_epilogue.h), then an array or a number for each parameter and output, in order.
  void begin_user(int32_t program);
  View& add_user(nb::handle object, const char* name);
  void add_user(double number);

  // Once all are imported: the operands as canonicalise takes them. They live as long as this.
  void describe(Request& request);

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
    Operand joined;

    void join();
  };

  struct Lists {
    std::unique_ptr<List> of[kRoles];
  };

  struct User {
    std::list<View> views;
    UserRequest request;
  };

  List* list_of(Role role) const { return lists_ ? lists_->of[int(role)].get() : nullptr; }
  void open_list(Role role, nb::handle object);
  void check_lists() const;

  Role order_[kRoles];
  int count_ = 0;
  View* views_[kRoles] = {};
  std::unique_ptr<Lists> lists_;                                // where there are any
  std::unique_ptr<User> user_;                                  // likewise
  alignas(View) unsigned char storage_[kRoles * sizeof(View)];  // not initialised: most calls use three of them
};

}  // namespace cutlass_py
