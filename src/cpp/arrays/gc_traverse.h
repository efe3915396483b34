// Python's cycle collector told what an object of C++ holds.
#pragma once

#include <nanobind/nanobind.h>

namespace cutlass_py {

namespace nb = nanobind;

// The slots of a type whose held(visit) calls `visit` with each Python object that it owns. There is no tp_clear: these
// objects are made after all that they hold and never changed, as tuples are, so that every cycle through one has a
// member elsewhere that can be cleared.
template <class Type>
const PyType_Slot* collected() {
  static const PyType_Slot slots[] = {
      {Py_tp_traverse, reinterpret_cast<void*>(+[](PyObject* self, visitproc visit, void* arg) -> int {
         Py_VISIT(Py_TYPE(self));
         if (!nb::inst_ready(self)) return 0;  // the collector may run while it is made
         int status = 0;
         nb::inst_ptr<Type>(self)->held([&](nb::handle object) {
           if (!status && object.is_valid()) status = visit(object.ptr(), arg);
         });
         return status;
       })},
      {0, nullptr}};
  return slots;
}

}  // namespace cutlass_py
