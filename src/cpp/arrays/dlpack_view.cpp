#include "arrays/dlpack_view.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "arrays/metadata.h"
#include "arrays/python_error.h"
#include "arrays/torch_private.h"

namespace cutlass_py {

static std::string name_of_type(nb::handle object) {
  nb::object type = nb::borrow(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))));
  const std::string module = nb::cast<std::string>(nb::str(type.attr("__module__")));
  return (module == "builtins" ? "" : module + ".") + nb::cast<std::string>(nb::str(type.attr("__qualname__")));
}

std::string described_type(nb::handle object) {
  const std::string name = name_of_type(object);
  return (std::strchr("aeioAEIO", name[0]) ? "an " : "a ") + name;
}

std::string shown(nb::handle value) {
  nb::object text = nb::steal(PyLong_Check(value.ptr()) ? PyObject_Repr(value.ptr()) : nullptr);
  PyErr_Clear();  // Python does not write out numbers of many thousand digits
  return text.is_valid() ? nb::cast<std::string>(text) : described_type(value);
}

DLManagedTensorVersioned* new_array(const DLPackExchangeAPI& api, DLTensor& prototype) {
  DLManagedTensorVersioned* made = nullptr;
  const auto ignore = [](void*, const char*, const char*) {};
  if (!api.managed_tensor_allocator || api.managed_tensor_allocator(&prototype, &made, nullptr, ignore) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  int64_t* const end = prototype.shape + prototype.ndim;
  if (made->dl_tensor.data || std::find(prototype.shape, end, 0) != end) return made;
  if (made->deleter) made->deleter(made);
  return nullptr;
}

void raise_for_exchange(const ArrayType& type, const char* function) {
  if (PyErr_Occurred()) nb::raise_python_error();
  const nb::str name = nb::type_name(nb::handle(reinterpret_cast<PyObject*>(type.type)));
  throw std::runtime_error(in_operation(std::string(function) + " of " + name.c_str() + " failed and gave no reason"));
}

namespace {

const DLPackExchangeAPI* exchange_api(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  auto* header =
      static_cast<const DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (header && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  auto* api = reinterpret_cast<const DLPackExchangeAPI*>(header);
  return api && api->dltensor_from_py_object_no_sync && api->current_work_stream ? api : nullptr;
}

// Whether the table is a framework's. A view of memory whose owner is another (cuda.core) makes no arrays, and names
// the default stream where it knows of none: such types export by __dlpack__, ordered as arrays without a stream are.
bool makes_arrays(const DLPackExchangeAPI& api) {
  int64_t extent = 1;
  DLTensor prototype{};
  prototype.device = {kDLCPU, 0};
  prototype.ndim = 1;
  prototype.dtype = {kDLFloat, 32, 1};
  prototype.shape = &extent;
  DLManagedTensorVersioned* made = new_array(api, prototype);
  if (made && made->deleter) made->deleter(made);
  return made;
}

// A data descriptor answers before anything else that the attribute's lookup could find, where the type looks up
// attributes as objects do: with __getattribute__ or __getattr__ it does not.
void find_grad_flag(ArrayType& entry, nb::handle type) {
  void* const lookup = PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type.ptr()), Py_tp_getattro);
  if (lookup != reinterpret_cast<void*>(&PyObject_GenericGetAttr)) return;
  nb::object found = nb::getattr(type, "requires_grad", nb::none());
  PyTypeObject* kind = Py_TYPE(found.ptr());
  if (!PyType_GetSlot(kind, Py_tp_descr_set)) return;
  entry.grad_flag = found;
  entry.read_grad_flag = reinterpret_cast<descrgetfunc>(PyType_GetSlot(kind, Py_tp_descr_get));
}

ArrayType describe(nb::handle object, nb::handle type, const char* operand) {
  ArrayType entry;
  entry.is_spec = nb::isinstance<TensorSpec>(object);
  entry.is_typed_view = nb::isinstance<TypedView>(object);
  if (entry.is_spec || entry.is_typed_view) return entry;
  entry.row = nb::module_::import_("cutlass_py.arrays.frameworks").attr("row")(type);
  const bool known_stream = !entry.row.attr("current_stream").is_none();
  entry.exchange = exchange_api(type);
  if (entry.exchange && !known_stream && !makes_arrays(*entry.exchange)) entry.exchange = nullptr;
  if (!entry.exchange && !nb::hasattr(type, "__dlpack__")) {
    refuse_type(Refusal(operand, "is " + described_type(object))
                    .expects("an array that speaks DLPack (torch, CuPy, JAX, NumPy, ...)"));
  }
  entry.mutable_ = nb::cast<bool>(entry.row.attr("mutable"));
  entry.has_swapaxes = nb::hasattr(type, "swapaxes");
  entry.is_unknown = nb::cast<std::string>(entry.row.attr("name")) == "other";
  auto function = [&](const char* name) {
    nb::object found = entry.row.attr(name);
    return found.is_none() ? nb::object() : found;
  };
  entry.check = function("check");
  entry.exporter = function("export");
  if (nb::object bind = function("current_stream"); bind.is_valid() && !entry.exchange) entry.current_stream = bind();
  entry.is_numpy = name_of_type(object) == "numpy.ndarray";
  if (nb::object bind = function("recording"); bind.is_valid()) {
    entry.recording = bind();
    find_grad_flag(entry, type);
  }
  if (nb::object bind = function("on_write"); bind.is_valid()) entry.on_write = bind();
  for (nb::handle method : entry.row.attr("lazy")) entry.lazy.push_back(type.attr(method));
  if (!entry.lazy.empty()) entry.tensor = tensor_offset(object);
  return entry;
}

// "int64", "bool"; of a type that has no such name its number and width.
std::string name_of(DLDataType type) {
  static const char* const codes[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string bits = std::to_string(type.bits);
  if (type.code >= std::size(codes)) return "DLPack type " + std::to_string(type.code) + " of " + bits + " bits";
  return codes[type.code] + (type.code == kDLBool && type.bits == 8 ? "" : bits);
}

// "f16, bf16, ..."
std::string storage_dtypes() {
  std::string names;
  for (int i = 0; i < kDtypeCount; ++i) {
    if (int(kDtypes[i].storage) == i) names += (names.empty() ? "" : ", ") + std::string(kDtypes[i].name);
  }
  return names;
}

Dtype dtype_of(DLDataType type, const char* name, const char* expected) {
  if (type.lanes != 1) {
    refuse_type(Refusal(name, "has " + std::to_string(type.lanes) + " lanes per element").expects("1"));
  }
  for (int i = 0; i < kDtypeCount; ++i) {
    const DtypeRow& row = kDtypes[i];
    if (row.dlpack_code == type.code && row.bits == type.bits && int(row.storage) == i) return Dtype(i);
  }
  refuse_type(Refusal(name, std::string("has dtype ") + name_of(type))
                  .expects(expected ? expected : "one of " + storage_dtypes()));
}

Device device_of(DLDevice device, const char* name) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost: return {DeviceType::cpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged: return {DeviceType::cuda, device.device_id};
    default:
      refuse(Refusal(name, "is on DLPack device type " + std::to_string(device.device_type))
                 .expects("a CPU or CUDA array"));
  }
}

template <class Tensor>
void delete_managed(void* tensor) {
  auto* managed = static_cast<Tensor*>(tensor);
  if (managed->deleter) managed->deleter(managed);
}

}  // namespace

// Guarded by the GIL. Entries are never removed; the few array types of a process stay.
static std::unordered_map<PyTypeObject*, const ArrayType*>& array_types() {
  static auto* types = new std::unordered_map<PyTypeObject*, const ArrayType*>();
  return *types;
}

const ArrayType* known_array_type(nb::handle object) {
  static const ArrayType* last = nullptr;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (last && last->type == type) return last;
  const auto found = array_types().find(type);
  return found == array_types().end() ? nullptr : last = found->second;
}

const ArrayType* array_type(nb::handle object, const char* operand) {
  if (const ArrayType* known = known_array_type(object)) return known;
  PyTypeObject* type = Py_TYPE(object.ptr());
  nb::handle type_handle(reinterpret_cast<PyObject*>(type));
  ArrayType found = describe(object, type_handle, operand);
  found.type = type;
  type_handle.inc_ref();
  return array_types()[type] = new ArrayType(std::move(found));
}

namespace {

// A framework's refusal (by DLPack a BufferError) in one line, with the operand; it is the cause, if there is one.
[[noreturn]] void refuse_export(nb::handle object, const std::string& name) {
  if (!PyErr_Occurred()) {
    refuse(Refusal(name, "is " + described_type(object) +
                             " that cannot be exported, for a reason that its DLPack exchange API does not give"));
  }
  nb::python_error cause;
  std::string text = nb::cast<std::string>(nb::str(cause.value()));
  if (text.empty()) text = described_type(cause.value());
  text = "is " + described_type(object) + " that cannot be exported: " + text.substr(0, text.find('\n'));
  raise_from(cause, ArgumentError(Refusal(name, text)));
}

// What __dlpack_device__ says, which must be two integers.
Device announced_device(nb::handle object, const char* name) {
  auto refuse_pair = [&](const std::string& found) {
    refuse_type(Refusal(name, std::string(".__dlpack_device__() ") + found).expects("a device type and an id"));
  };
  static PyObject* device = PyUnicode_InternFromString("__dlpack_device__");
  PyObject* arguments[] = {object.ptr()};
  nb::object pair = nb::steal(PyObject_VectorcallMethod(device, arguments, 1, nullptr));
  if (!pair.is_valid()) {
    if (PyErr_ExceptionMatches(PyExc_BufferError)) refuse_export(object, name);
    nb::python_error error;
    if (nb::hasattr(object, "__dlpack_device__")) throw error;
    refuse_type(Refusal(name, "is " + described_type(object) + " without __dlpack_device__")
                    .expects("an array that speaks DLPack"));
  }
  if (!PyTuple_Check(pair.ptr()) || PyTuple_Size(pair.ptr()) != 2) refuse_pair("returned " + described_type(pair));
  int numbers[2];
  for (int i = 0; i < 2; ++i) {
    nb::handle item = PyTuple_GetItem(pair.ptr(), i);
    if (!PyIndex_Check(item.ptr())) refuse_pair("holds " + described_type(item));
    if (!nb::try_cast<int>(nb::int_(item), numbers[i])) refuse_pair("holds a number out of range");
  }
  return device_of({DLDeviceType(numbers[0]), numbers[1]}, name);
}

// What __dlpack__ hands out. Called by hand: nanobind would make its keywords and the version anew each time.
nb::object exported(nb::handle object, nb::handle stream, const char* name) {
  static PyObject *dlpack = PyUnicode_InternFromString("__dlpack__"),
                  *keywords = nb::make_tuple("stream", "max_version").release().ptr(),
                  *version = nb::make_tuple(DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION).release().ptr();
  PyObject* arguments[] = {object.ptr(), stream.ptr(), version};
  nb::object capsule = nb::steal(PyObject_VectorcallMethod(dlpack, arguments, 1, keywords));
  if (!capsule.is_valid() && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();  // exporters older than DLPack 1.0 do not know max_version
    capsule = nb::steal(PyObject_VectorcallMethod(dlpack, arguments, 1, nb::make_tuple("stream").ptr()));
  }
  if (capsule.is_valid()) return capsule;
  if (PyErr_ExceptionMatches(PyExc_BufferError)) refuse_export(object, name);
  nb::raise_python_error();
}

}  // namespace

void View::open(nb::handle given, const char* name) {
  operand.name = name;
  object = given;
  type = array_type(given, name);
  if (type->is_typed_view) {
    auto& view = nb::cast<TypedView&>(given);
    inner = view.array;
    dtype_override_ = view.dtype;
    object = inner;
    type = array_type(inner, name);
    if (type->is_typed_view || type->is_spec) {
      refuse_type(Refusal(name, "is a view of " + described_type(inner)).expects("a view of an array"));
    }
  }
  if (type->is_spec) {
    operand = nb::cast<TensorSpec&>(object).operand(name);
    complete = true;
  } else if (type->exchange) {
    DLTensor tensor;
    if (type->exchange->dltensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) refuse_export(object, name);
    fill(tensor);
    complete = true;
  } else {
    if (!type->recording.is_valid() && type->check.is_valid()) type->check(object, name);
    if (type->is_numpy && fill_from_numpy()) return;
    operand.device = announced_device(object, name);
  }
}

void View::import(void* stream) {
  if (complete) return;
  nb::object consumer_stream = nb::none();
  // DLPack numbers CUDA's legacy default stream 1; 0 is ambiguous there.
  if (operand.device.type == DeviceType::cuda)
    consumer_stream = nb::int_(stream ? reinterpret_cast<uintptr_t>(stream) : 1);
  if (type->exporter.is_valid()) {
    nb::tuple exported;
    try {
      exported = nb::cast<nb::tuple>(type->exporter(object, consumer_stream, operand.name));
    } catch (nb::python_error& error) {
      error.restore();
      if (PyErr_ExceptionMatches(PyExc_BufferError)) refuse_export(object, operand.name);
      nb::raise_python_error();
    }
    const bool viewed = dtype_override_ != Dtype::none;
    if (!viewed && !exported[1].is_none()) dtype_override_ = dtype_from(exported[1], operand.name);
    import_capsule(exported[0]);
  } else {
    import_capsule(exported(object, consumer_stream, operand.name));
  }
  complete = true;
}

void View::import_capsule(nb::object capsule) {
  const std::string name = operand.name;
  PyObject* ptr = capsule.ptr();
  const DLTensor* tensor = nullptr;
  if (PyCapsule_IsValid(ptr, "dltensor_versioned")) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(ptr, "dltensor_versioned"));
    PyCapsule_SetName(ptr, "used_dltensor_versioned");
    managed_ = {&delete_managed<DLManagedTensorVersioned>, managed};
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
      refuse(Refusal(name, "exports DLPack version " + std::to_string(managed->version.major)).expects("1"));
    }
    operand.readonly = managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
    tensor = &managed->dl_tensor;
  } else if (PyCapsule_IsValid(ptr, "dltensor")) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(ptr, "dltensor"));
    PyCapsule_SetName(ptr, "used_dltensor");
    managed_ = {&delete_managed<DLManagedTensor>, managed};
    tensor = &managed->dl_tensor;
  } else if (PyCapsule_IsValid(ptr, "used_dltensor") || PyCapsule_IsValid(ptr, "used_dltensor_versioned")) {
    refuse(Refusal(name, "handed out a DLPack capsule that was already consumed"));
  } else {
    refuse_type(Refusal(name, ".__dlpack__() returned " + described_type(capsule)).expects("a DLPack capsule"));
  }
  fill(*tensor);
}

namespace {

// What __array_struct__ points to; NumPy's ABI since its beginning.
struct ArrayInterface {
  int two, nd;
  char typekind;
  int itemsize, flags;
  Py_intptr_t *shape, *strides;
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x200, kWriteable = 0x400;

// DLPack's code of a kind of NumPy's; ml_dtypes' types ('V', some 'f') count as integers until they are named.
int code_of(char kind, int size) {
  switch (kind) {
    case 'i': return kDLInt;
    case 'u': return kDLUInt;
    case 'f': return size == 2 || size == 4 || size == 8 ? kDLFloat : -1;
    case 'c': return size == 8 || size == 16 ? kDLComplex : -1;
    default: return -1;
  }
}

// `none` where it is no dtype of ours.
Dtype dtype_or_none(nb::handle value) {
  try {
    return dtype_from(value, "dtype");
  } catch (const nb::python_error&) {
    return Dtype::none;
  }
}

}  // namespace

// An ordinary NumPy array, without the capsule and the calls that its export takes. False where it is not ordinary: the
// export then says why, or does it.
bool View::fill_from_numpy() {
  static PyObject *array_struct = PyUnicode_InternFromString("__array_struct__"),
                  *dtype = PyUnicode_InternFromString("dtype");
  nb::object capsule = nb::steal(PyObject_GetAttr(object.ptr(), array_struct));
  const auto* array =
      capsule.is_valid() ? static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr)) : nullptr;
  if (!array) PyErr_Clear();
  if (!array || !(array->flags & kNotSwapped) || array->nd > kMaxRank || array->itemsize < 1) return false;
  int code = code_of(array->typekind, array->itemsize);
  if (code < 0) {
    if (dtype_override_ != Dtype::none || array->itemsize > 2) return false;
    nb::object named = nb::steal(PyObject_GetAttr(object.ptr(), dtype));
    if (!named.is_valid()) nb::raise_python_error();
    const Dtype found = dtype_or_none(named);
    if (dtype_size(found) != array->itemsize) return false;
    dtype_override_ = found;
  }
  int64_t shape[kMaxRank], strides[kMaxRank];
  for (int i = 0; i < array->nd; ++i) {
    if (array->strides[i] % array->itemsize) return false;  // fields of records
    shape[i] = array->shape[i], strides[i] = array->strides[i] / array->itemsize;
  }
  DLTensor tensor{};
  tensor.data = array->data;
  tensor.device = {kDLCPU, 0};
  tensor.ndim = array->nd;
  tensor.dtype = {uint8_t(code < 0 ? kDLUInt : code), uint8_t(array->itemsize * 8), 1};
  tensor.shape = shape, tensor.strides = strides;
  operand.device = {};
  operand.readonly = !(array->flags & kWriteable);
  fill(tensor);
  return complete = true;
}

void View::fill(const DLTensor& tensor) {
  const char* const name = operand.name;
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    refuse(Refusal(name, "has " + std::to_string(tensor.ndim) + " dimensions")
               .expects("at most " + std::to_string(kMaxRank)));
  }
  const Device device = device_of(tensor.device, name);
  if (!type->exchange && device != operand.device) {  // checked against the other operands when it was announced
    refuse(Refusal(name, "was announced on " + to_string(operand.device) + " but lies on " + to_string(device)));
  }
  operand.device = device;
  const int64_t size = tensor.dtype.bits / 8;
  if (dtype_override_ != Dtype::none) {
    if (tensor.dtype.lanes != 1 || size != dtype_size(dtype_override_)) {
      refuse_type(Refusal(name, std::string("is viewed as ") + dtype_name(dtype_override_) + " but its elements have " +
                                    std::to_string(tensor.dtype.bits * tensor.dtype.lanes) + " bits"));
    }
    operand.dtype = dtype_override_;
  } else {
    operand.dtype = dtype_of(tensor.dtype, name, expected);
  }
  operand.rank = tensor.ndim;
  int64_t elements = 1;                            // of the dimensions so far
  const int log2 = __builtin_ctz(unsigned(size));  // a power of two, as it is one of ours
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    operand.shape[i] = tensor.shape[i];
    // Null strides: compact, row-major (DLPack before 1.2). Others go through bytes and back, modulo 2^64: CuPy divides
    // the byte strides of reversed views as unsigned numbers.
    operand.strides[i] = tensor.strides ? int64_t(uint64_t(tensor.strides[i]) << log2) >> log2 : elements;
    elements *= tensor.shape[i];
  }
  if (!tensor.data && elements != 0) {
    refuse(Refusal(
        name, "is " + described_type(object) + " without memory of its own (a fake, distributed or wrapped tensor)"));
  }
  operand.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (reinterpret_cast<uintptr_t>(operand.data) & uintptr_t(size - 1)) {
    refuse(Refusal(name, "starts at an address that is no multiple of its element size"));
  }
  if (type->recording.is_valid()) check();
}

bool ask(nb::handle function) {
  nb::object answer = nb::steal(PyObject_CallNoArgs(function.ptr()));
  const int truth = answer.is_valid() ? PyObject_IsTrue(answer.ptr()) : -1;
  if (truth < 0) nb::raise_python_error();
  return truth;
}

static bool requires_grad(nb::handle array, const ArrayType& type) {
  if (!type.recording.is_valid()) return false;
  static PyObject* name = PyUnicode_InternFromString("requires_grad");
  nb::object flag = nb::steal(type.read_grad_flag ? type.read_grad_flag(type.grad_flag.ptr(), array.ptr(),
                                                                        reinterpret_cast<PyObject*>(type.type))
                                                  : PyObject_GetAttr(array.ptr(), name));
  if (!flag.is_valid()) nb::raise_python_error();
  return flag.ptr() == Py_True;
}

bool wants_gradient(nb::handle array, const ArrayType& type) {
  return requires_grad(array, type) && ask(type.recording);
}

bool is_lazy(nb::handle array, const ArrayType& type) {
  if (type.tensor) return is_lazy_tensor(array, type.tensor);
  for (const nb::object& method : type.lazy) {
    PyObject* arguments[] = {array.ptr()};
    nb::object answer = nb::steal(PyObject_Vectorcall(method.ptr(), arguments, 1, nullptr));
    if (!answer.is_valid()) nb::raise_python_error();
    if (answer.ptr() == Py_True) return true;
  }
  return false;
}

// Called by hand: nanobind takes as long again.
void tell_written(nb::handle array, const ArrayType& type) {
  if (!type.on_write.is_valid()) return;
  nb::object arrays = nb::steal(PyTuple_Pack(1, array.ptr()));
  PyObject* arguments[] = {arrays.ptr()};
  nb::object done = nb::steal(PyObject_Vectorcall(type.on_write.ptr(), arguments, 1, nullptr));
  if (!done.is_valid()) nb::raise_python_error();
}

// torch: a gradient that would be lost, or a lazily negated or conjugated view.
void View::check() {
  if (wants_gradient(object, *type) || is_lazy(object, *type)) type->check(object, operand.name);
}

void View::release() noexcept {
  if (managed_.deleter) managed_.deleter(managed_.tensor);
  managed_ = {};
}

void View::refuse_immutable(const char* instead) const {
  refuse_type(Refusal(operand.name, std::string("is a JAX array, which is immutable") + instead));
}

View::Managed View::take_managed() { return std::exchange(managed_, {}); }

Dtype dtype_from(nb::handle value, const char* parameter, const char* function, const char* expected) {
  static auto* known = new nb::dict();  // value -> index; never freed, the values are types and dtypes
  PyObject* found = PyDict_GetItemWithError(known->ptr(), value.ptr());
  if (found) return Dtype(nb::cast<int>(nb::handle(found)));
  if (PyErr_Occurred()) {  // it has no hash
    PyErr_Clear();
    const OperationScope operation(function);
    refuse_type(Refusal(parameter, "is " + described_type(value))
                    .expects(expected ? expected : "one of " + storage_dtypes() + " or a framework's dtype"));
  }
  nb::object index = nb::module_::import_("cutlass_py.arrays.dtype_names")
                         .attr("dtype_index")(value, parameter, function, expected ? expected : "");
  (*known)[value] = index;
  return Dtype(nb::cast<int>(index));
}

}  // namespace cutlass_py
