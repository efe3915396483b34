// A Python array as an Operand: through DLPack's C exchange API where the type offers it, otherwise __dlpack__.
//
// Rules kept here: every managed tensor is released exactly once; the consumer's stream is chosen before __dlpack__ is
// called; whatever an exporter hands over is validated before anything else looks at it.
#pragma once

#include <dlpack/dlpack.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <vector>

#include "arrays/operand.h"

namespace cutlass_py {

namespace nb = nanobind;

// What is known of an array type, looked up once per type. `row` is the type's row in frameworks.py; its functions are
// null where it has none.
struct ArrayType {
  PyTypeObject* type = nullptr;                 // a reference is held: heap types may die otherwise
  const DLPackExchangeAPI* exchange = nullptr;  // of a framework; not of views that cannot make arrays
  nb::object row;
  nb::object check;           // sees every array (JAX), or with `recording` those that it refuses
  nb::object exporter;        // instead of __dlpack__ (NumPy with ml_dtypes)
  nb::object current_stream;  // device ordinal -> stream
  bool is_spec = false, is_typed_view = false;
  bool mutable_ = true;          // false: never written (JAX)
  nb::object recording;          // whether gradients are recorded, of arrays that have requires_grad (torch)
  nb::object on_write;           // told a tuple of arrays that were written, where the framework has to know (torch)
  bool is_numpy = false;         // exactly numpy.ndarray: read in place where it is an ordinary array
  std::vector<nb::object> lazy;  // methods that say whether values differ from memory
  std::ptrdiff_t tensor = 0;     // where that is asked without them (torch_private.h); 0: nowhere
  nb::object grad_flag;          // the type's descriptor of requires_grad, and how it is read; null: by its name
  descrgetfunc read_grad_flag = nullptr;

  bool has_swapaxes = false;
  bool is_unknown = false;  // of no framework with a row of its own

  // Whether a new array of its framework can be seen with two axes exchanged: results for unknown frameworks are
  // NumPy's on the CPU, on a device Buffers.
  bool transposes_new(Device device) const {
    return mutable_ && has_swapaxes && (!is_unknown || device.type == DeviceType::cpu);
  }
  bool has_stream() const { return exchange || current_stream.is_valid(); }
};

// The entry of a type that was seen before; null of any other. The returned pointers stay valid.
const ArrayType* known_array_type(nb::handle object);
// The type's entry. Raises TypeError naming `operand` when it is no DLPack array.
const ArrayType* array_type(nb::handle object, const char* operand);

// A new array like the prototype; null where the API's framework refuses to make it, or gives it no memory: torch does
// so where it traces with fake tensors.
DLManagedTensorVersioned* new_array(const DLPackExchangeAPI& api, DLTensor& prototype);

// Raises what a function of the type's exchange API failed with, or an error that names both where it set none.
[[noreturn]] void raise_for_exchange(const ArrayType& type, const char* function);

// Whether the array's framework would record what is computed with it, and whether its values are not what its memory
// holds.
bool wants_gradient(nb::handle array, const ArrayType& type);
bool is_lazy(nb::handle array, const ArrayType& type);

// Tells the array's framework, where it has to know, that the array was written.
void tell_written(nb::handle array, const ArrayType& type);

// The truth of what a function of no arguments returns.
bool ask(nb::handle function);

// A view of one operand. Holds the exporter's managed tensor, if any, until release() or destruction.
class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { release(); }

  // First half: type, and (for exchange API types) everything. Unwraps TypedView.
  void open(nb::handle object, const char* name);
  // Second half, for types that export through __dlpack__: `stream` is the consumer's, used on CUDA devices.
  void import(void* stream);
  void release() noexcept;
  // Gives the managed tensor away, to be released when the device has finished with it.
  struct Managed {
    void (*deleter)(void*) = nullptr;
    void* tensor = nullptr;
  };
  Managed take_managed();

  // The call writes it. Refused where arrays of its framework never change.
  void will_write(const char* instead = "") {
    if (!type->mutable_) refuse_immutable(instead);
    written = true;
  }

  explicit operator bool() const { return type != nullptr; }
  bool complete = false;
  bool written = false;  // by the call, so that its framework has to be told
  const ArrayType* type = nullptr;
  nb::handle object;  // the array itself (borrowed from the caller, or owned by `inner` or a list's tuple)
  nb::object inner;   // the array inside a TypedView
  Operand operand;
  const char* expected = nullptr;  // dtypes, for the message about one that is none of ours; null: all of ours

 private:
  [[noreturn]] void refuse_immutable(const char* instead) const;
  void fill(const DLTensor& tensor);
  bool fill_from_numpy();
  void import_capsule(nb::object capsule);
  void check();
  Dtype dtype_override_ = Dtype::none;
  Managed managed_;
};

// "a numpy.ndarray", "an int", for messages.
std::string described_type(nb::handle object);
// A whole number in digits; another value, and a number of many thousand digits, by its type.
std::string shown(nb::handle value);

// Dtype of a Python value: this package's names, NumPy's and ml_dtypes' dtypes, a framework's own. What is none is
// refused with those that are expected; null: all that arrays have.
Dtype dtype_from(nb::handle value, const char* parameter, const char* function = "gemm",
                 const char* expected = nullptr);

}  // namespace cutlass_py
