// The operands of one call, viewed in the order in which errors should name them.
#pragma once

#include "dlpack_view.h"

namespace cutlass_py {

struct Operands {
  View a, b, c, out;
  View* given[4];  // those that are there: a, b, then c, then out
  int count = 0;

  void open(nb::handle a_, nb::handle b_, nb::handle c_, nb::handle out_) {
    add(a, a_, "a");
    add(b, b_, "b");
    if (!c_.is_none()) add(c, c_, "c");
    if (out_.is_none()) return;
    add(out, out_, "out");
    if (!out.type->mutable_) {
      throw nb::type_error("gemm: out is a JAX array, which is immutable; use the returned array instead");
    }
  }

 private:
  void add(View& view, nb::handle object, const char* name) {
    view.open(object, name);
    given[count++] = &view;
  }
};

}  // namespace cutlass_py
