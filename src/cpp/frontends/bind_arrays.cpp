// What the extension has of arrays, in names and docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "arrays/dlpack_view.h"
#include "arrays/gc_traverse.h"
#include "arrays/metadata.h"
#include "frontends/bindings.h"
#include "runtime/borrowed_tensor.h"
#include "runtime/buffer.h"

namespace cutlass_py {

using namespace nb::literals;

void bind_arrays(nb::module_& m) {
  nb::class_<TensorSpec>(m, "TensorSpecBase", "What TensorSpec (arguments.py) gives friendlier arguments to.")
      .def(
          "__init__",
          [](TensorSpec* self, std::vector<int64_t> shape, std::vector<int64_t> strides, nb::handle dtype,
             int device_id, int64_t alignment) {
            Device device = device_id < 0 ? Device{} : Device{DeviceType::cuda, device_id};
            const Dtype type = dtype_from(dtype, "dtype", "TensorSpec");
            const std::string extents = std::to_string(shape.size());
            if (shape.size() > kMaxRank) {
              const std::string most = std::to_string(kMaxRank);
              throw std::invalid_argument("TensorSpec: " + extents + " dimensions; expected at most " + most);
            }
            if (strides.size() != shape.size()) {
              const std::string found = std::to_string(strides.size());
              throw std::invalid_argument("TensorSpec: " + extents + " extents but " + found + " strides");
            }
            new (self) TensorSpec{std::move(shape), std::move(strides), type, device, alignment};
          },
          "shape"_a, "strides"_a, "dtype"_a.none(), "device_id"_a, "alignment"_a)
      .def_ro("shape", &TensorSpec::shape)
      .def_ro("strides", &TensorSpec::strides, "In elements.")
      .def_prop_ro("dtype", [](const TensorSpec& s) { return dtype_name(s.dtype); })
      .def_prop_ro("device", [](const TensorSpec& s) { return to_string(s.device); })
      .def_ro("alignment", &TensorSpec::alignment, "Of the first element, in bytes.");
  nb::class_<TypedView>(m, "TypedView", nb::type_slots(collected<TypedView>()),
                        "An array of bytes or integers read as another dtype; made by cutlass_py.view.")
      .def(
          "__init__",
          [](TypedView* self, nb::object array, nb::handle dtype) {
            new (self) TypedView{std::move(array), dtype_from(dtype, "dtype", "view")};
          },
          "array"_a, "dtype"_a.none())
      .def_ro("array", &TypedView::array, "The array as it was given.")
      .def_prop_ro("dtype", [](const TypedView& v) { return dtype_name(v.dtype); });
  nb::class_<Buffer>(m, "Buffer", "Device memory that hands itself over by DLPack.")
      .def(
          "__init__",
          [](Buffer* self, std::vector<int64_t> shape, nb::handle dtype, int device_id) {
            new (self) Buffer(std::move(shape), dtype_from(dtype, "dtype"), device_id);
          },
          "shape"_a, "dtype"_a, "device_id"_a)
      .def(
          "__dlpack__",
          [](const Buffer& b, nb::handle stream, nb::handle max_version, nb::handle dl_device, nb::handle copy) {
            check_handed_over_as_it_lies(b.device(), dl_device, copy);
            return b.dlpack(stream, max_version);
          },
          nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
          "copy"_a = nb::none())
      .def(
          "read_on", &Buffer::read_on, "stream"_a,
          "What is queued on this stream until the memory is given back may read it still then. The stream has to live "
          "as long.")
      .def_prop_ro("dtype", [](const Buffer& b) { return dtype_name(b.dtype()); })
      .def("__len__", &Buffer::length)
      .def("__getitem__", &Buffer::matrix, "index"_a, "One matrix of a batch, in the same memory.")
      .def("__dlpack_device__", [](const Buffer& b) { return dlpack_device(b.device()); });
  nb::class_<BorrowedTensor>(
      m, "Operand",
      "An array of a call, lent to a kernel for the length of its run: (batch, rows, cols), or () for a "
      "factor. Hands itself over by DLPack, without a copy. Repeats where a stride is 0.")
      .def(
          "__dlpack__",
          [](const BorrowedTensor& x, nb::handle stream, nb::handle max_version, nb::handle dl_device,
             nb::handle copy) {
            check_handed_over_as_it_lies(x.tensor().device, dl_device, copy);
            return x.dlpack(stream, max_version);
          },
          nb::kw_only(), "stream"_a.none() = -1, "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
          "copy"_a = nb::none())
      .def("__dlpack_device__", [](const BorrowedTensor& x) { return dlpack_device(x.tensor().device); })
      .def_prop_ro("__array_interface__", &BorrowedTensor::array_interface)
      .def_prop_ro("address", &BorrowedTensor::address, "Of the first element. BufferError once the run is over.")
      .def_prop_ro("dtype", [](const BorrowedTensor& x) { return dtype_name(x.tensor().dtype); })
      .def_prop_ro("shape", [](const BorrowedTensor& x) { return tuple_of(x.tensor().shape); })
      .def_prop_ro(
          "strides", [](const BorrowedTensor& x) { return tuple_of(x.tensor().strides); }, "In elements.")
      .def_prop_ro("device", [](const BorrowedTensor& x) { return to_string(x.tensor().device); });
}

}  // namespace cutlass_py
