// The arrays of one call, viewed in the order in which errors should name them.
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "dlpack_view.h"

namespace cutlass_py {

class Operands {
 public:
  // An array; for a, b, c and out also a list or tuple of matrices.
  void open(Role role, nb::handle object, const char* name);

  View* operator[](Role role) const { return views_[int(role)]; }  // of a list, that of its first matrix
  bool has_lists() const;

  // Every array, the matrices of lists included.
  template <class Function>
  void each(Function function) const {
    for (int i = 0; i < kRoles; ++i) {
      if (lists_[i]) {
        for (Matrix& matrix : lists_[i]->matrices) function(matrix.view);
      } else if (views_[i]) {
        function(*views_[i]);
      }
    }
  }

  // Once all are imported: the operands as canonicalise takes them. They live as long as this.
  void describe(Request& request);

 private:
  struct Matrix {
    std::string name;  // "a[3]"
    View view;
  };
  struct List {
    const char* name;
    std::list<Matrix> matrices;
    std::vector<void*> addresses;
    Operand joined;

    void join();
  };

  void open_list(Role role, nb::handle object, const char* name);
  void check_lists() const;

  View* views_[kRoles] = {};
  std::optional<View> storage_[kRoles];
  std::unique_ptr<List> lists_[kRoles];  // allocated for lists alone
};

}  // namespace cutlass_py
