#include "arrays/dlpack_export.h"

#include <type_traits>
#include <utility>

namespace cutlass_py {
namespace {

struct Export {
  union {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
  } managed;
  Exported tensor;
  std::shared_ptr<const void> owner;
};

template <class Tensor>
constexpr const char* capsule_name = std::is_same_v<Tensor, DLManagedTensor> ? "dltensor" : "dltensor_versioned";

DLDevice device_of(Device device) {
  const bool cuda = device.type == DeviceType::cuda;
  return {cuda ? kDLCUDA : kDLCPU, cuda ? device.id : 0};
}

template <class Tensor>
nb::object capsule_of(Export* exported) {
  auto* managed = reinterpret_cast<Tensor*>(&exported->managed);
  *managed = Tensor{};
  if constexpr (std::is_same_v<Tensor, DLManagedTensorVersioned>) managed->version = {DLPACK_MAJOR_VERSION, 0};
  Exported& from = exported->tensor;
  DLTensor& tensor = managed->dl_tensor;
  tensor.data = from.data;
  tensor.device = device_of(from.device);
  tensor.ndim = int(from.shape.size());
  tensor.dtype = {uint8_t(kDtypes[int(from.dtype)].dlpack_code), uint8_t(kDtypes[int(from.dtype)].bits), 1};
  tensor.shape = from.shape.data();
  tensor.strides = from.strides.empty() ? nullptr : from.strides.data();
  managed->manager_ctx = exported;
  managed->deleter = [](Tensor* self) { delete static_cast<Export*>(self->manager_ctx); };
  return nb::steal(PyCapsule_New(managed, capsule_name<Tensor>, [](PyObject* capsule) {
    // A capsule that nobody consumed still owns its tensor.
    if (!PyCapsule_IsValid(capsule, capsule_name<Tensor>)) return;
    auto* unused = static_cast<Tensor*>(PyCapsule_GetPointer(capsule, capsule_name<Tensor>));
    unused->deleter(unused);
  }));
}

}  // namespace

nb::object dlpack_capsule(const Exported& tensor, std::shared_ptr<const void> owner, nb::handle max_version) {
  // A consumer that names no version knows only the legacy struct.
  const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= DLPACK_MAJOR_VERSION;
  auto* exported = new Export{{}, tensor, std::move(owner)};
  return versioned ? capsule_of<DLManagedTensorVersioned>(exported) : capsule_of<DLManagedTensor>(exported);
}

nb::typed<nb::tuple, int, int> dlpack_device(Device device) {
  const DLDevice found = device_of(device);
  return nb::make_tuple(int(found.device_type), found.device_id);
}

void check_handed_over_as_it_lies(Device device, nb::handle dl_device, nb::handle copy) {
  const int copied = PyObject_IsTrue(copy.ptr());
  if (copied < 0) nb::raise_python_error();
  if (copied) throw nb::buffer_error("the memory is handed over itself, not as a copy");
  if (!dl_device.is_none() && !dlpack_device(device).equal(dl_device)) {
    throw nb::buffer_error(("the memory is handed over where it lies, on " + to_string(device)).c_str());
  }
}

Integers tuple_of(const int64_t* numbers, size_t count, int64_t unit) {
  nb::list list;
  for (size_t i = 0; i < count; ++i) list.append(numbers[i] * unit);
  return Integers(nb::tuple(list));
}

}  // namespace cutlass_py
