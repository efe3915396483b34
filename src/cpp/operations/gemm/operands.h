// The arrays of one gemm call, by role.
#pragma once

#include <memory>

#include "arrays/operand_views.h"
#include "operations/gemm/problem.h"

namespace cutlass_py {

class Operands : public OperandViews {
 public:
  Operands();

  void open(Role role, nb::handle object) { OperandViews::open(int(role), object); }
  View* operator[](Role role) const { return at(int(role)); }

  // A user's epilogue: its program (user_epilogue.h), then an array or a number for each parameter and output, in
  // order.
  void begin_user(int32_t program);
  View& add_user(nb::handle object, const char* name);
  void add_user(double number);

  // Once all are imported: the operands as canonicalise takes them. They live as long as this.
  void describe(Request& request);

 private:
  void check_lists() const;

  std::unique_ptr<UserRequest> user_;  // where there is one
};

}  // namespace cutlass_py
