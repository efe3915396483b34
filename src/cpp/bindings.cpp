// The extension module: names C++ functions and holds their docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "buffer.h"
#include "build_info.h"
#include "call.h"
#include "device.h"
#include "dlpack_view.h"
#include "metadata.h"
#include "plan.h"
#include "registry.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

constexpr const char* kGemmDoc = R"(D = alpha * (a @ b) + beta * c, by a prebuilt CUTLASS kernel (NumPy on the CPU).

Args:
    a: (m, k) or (batch, m, k). Any array that speaks DLPack, row- or column-major without a copy.
    b: (k, n) or (batch, k, n), of a's dtype and on a's device. Batch extents agree or are 1.
    out: (m, n) or (batch, m, n), written and returned. Strided views are fine; it may be c itself, and otherwise
        shares no element with the inputs.
    c: the addend, of the shape of the result (a 2-D c is added to every batch), any float dtype.
    alpha: factor of the product. With 0, a and b are not read.
    beta: factor of c, 1 by default. With 0, c is not read.
    compute: arithmetic: "f32" (the default: accumulation in f32; for f32 inputs exact multiplication too), "tf32"
        (f32 inputs on tensor cores), "f64" (f64 inputs).
    out_dtype: dtype of a new result, by default the inputs' (fp8: bf16). A name ("bf16"), NumPy's or
        ml_dtypes' dtype, or the framework's own.
    kernel: run this kernel (a Kernel or its name) and no other; it must take the operands as they lie. Compiled
        first if it is declared but not there (docs/jit.md).
    stream: CUDA stream to launch on: an int, a torch or CuPy stream, or anything with __cuda_stream__. By
        default the framework's current stream. With it, ordering other streams behind the launch is the caller's.

Returns:
    `out`, or a new row-major array of a's framework on a's device.

Raises:
    ValueError: ranks, shapes, devices, strides or overlap that do not fit; a `kernel` that does not.
    TypeError: an operand that is no array, or a dtype that does not fit.
    NoKernelError: no kernel can compute this problem.
    CompileError: the kernel asked for, or chosen within `jit`, cannot be compiled.
    CudaError: a CUDA or CUTLASS call failed.)";

Keywords keywords(nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta, nb::handle compute,
                  nb::handle out_dtype, nb::handle kernel, nb::handle stream) {
  return {out, c, alpha, beta, compute, out_dtype, kernel, stream};
}

using Facts = nb::typed<nb::dict, nb::str, nb::any>;

Facts facts_dict(const CutlassPyKernel& kernel) {
  const CutlassPyFacts& f = kernel.facts;
  Facts facts;
  facts["a"] = f.a, facts["b"] = f.b, facts["accumulator"] = f.acc, facts["c"] = f.c, facts["d"] = f.d;
  facts["layout"] = f.layout, facts["api"] = f.api;
  facts["tile"] = nb::make_tuple(f.tile[0], f.tile[1], f.tile[2]);
  facts["cluster"] = nb::make_tuple(f.cluster[0], f.cluster[1], f.cluster[2]);
  facts["threads"] = f.threads, facts["smem_bytes"] = f.smem_bytes, facts["stages"] = f.stages;
  facts["align_a"] = f.align_a, facts["align_b"] = f.align_b, facts["align_c"] = f.align_c,
  facts["align_d"] = f.align_d;
  return facts;
}

nb::typed<nb::dict, nb::str, nb::str> build_info() {
  nb::typed<nb::dict, nb::str, nb::str> info;
  info["cuda"] = CUTLASS_PY_BUILD_CUDA, info["nvcc"] = CUTLASS_PY_BUILD_NVCC;
  info["cutlass"] = CUTLASS_PY_BUILD_CUTLASS, info["dlpack"] = CUTLASS_PY_BUILD_DLPACK;
  info["archs"] = CUTLASS_PY_BUILD_ARCHS, info["kernels"] = CUTLASS_PY_BUILD_KERNELS;
  return info;
}

template <char Problem::* Field>
nb::str letter(const Problem& p) {
  return nb::str(&(p.*Field), 1);
}

template <Dtype Problem::* Field>
std::optional<nb::str> dtype(const Problem& p) {
  if (p.*Field == Dtype::none) return std::nullopt;
  return nb::str(dtype_name(p.*Field));
}

template <uint8_t Problem::* Field>
int align(const Problem& p) {
  return 1 << p.*Field;
}

void bind_problem(nb::module_& m) {
  nb::class_<Problem>(
      m, "Problem",
      "A call in canonical form: D (m, n) row-major, batch folded where it can be. Layouts: 't' row-major, "
      "'n' column-major, 'x' no unit stride. Alignments in bytes, 16 at most.")
      .def_ro("m", &Problem::m)
      .def_ro("n", &Problem::n)
      .def_ro("k", &Problem::k)
      .def_ro("batch", &Problem::batch)
      .def_prop_ro("a", &dtype<&Problem::a>)
      .def_prop_ro("b", &dtype<&Problem::b>)
      .def_prop_ro("c", &dtype<&Problem::c>, "None where C is absent or not read (beta = 0).")
      .def_prop_ro("d", &dtype<&Problem::d>)
      .def_prop_ro("compute", &dtype<&Problem::compute>, "Dtype of the kernel's operands.")
      .def_prop_ro("accumulator", &dtype<&Problem::accumulator>)
      .def_prop_ro("layout_a", &letter<&Problem::layout_a>)
      .def_prop_ro("layout_b", &letter<&Problem::layout_b>)
      .def_prop_ro("layout_c", &letter<&Problem::layout_c>)
      .def_prop_ro("layout_d", &letter<&Problem::layout_d>)
      .def_prop_ro("align_a", &align<&Problem::align_a>)
      .def_prop_ro("align_b", &align<&Problem::align_b>)
      .def_prop_ro("align_c", &align<&Problem::align_c>)
      .def_prop_ro("align_d", &align<&Problem::align_d>)
      .def_ro("empty_product", &Problem::empty_product, "k = 0 or alpha = 0: a and b are not read.")
      .def_ro("transposed", &Problem::transposed, "a and b changed places because D is column-major.")
      .def_ro("kernel", &Problem::kernel, "Number of the kernel asked for, -1 for none.")
      .def_prop_ro(
          "jit", [](const Problem& p) { return p.jit != 0; },
          "Whether selection may take kernels that are yet to be compiled.")
      .def_prop_ro("device", [](const Problem& p) { return to_string(p.device); })
      .def_prop_ro(
          "device_id", [](const Problem& p) { return p.device.type == DeviceType::cpu ? -1 : p.device.id; },
          "CUDA ordinal, -1 on the CPU.")
      .def("__eq__", [](const Problem& x,
                        nb::handle y) { return nb::isinstance<Problem>(y) && x == nb::cast<const Problem&>(y); })
      .def("__hash__", [](const Problem& p) { return int64_t(ProblemHash()(p) >> 1); });
}

void bind_metadata(nb::module_& m) {
  nb::class_<TensorSpec>(m, "TensorSpecBase", "What TensorSpec (arguments.py) gives friendlier arguments to.")
      .def(
          "__init__",
          [](TensorSpec* self, std::vector<int64_t> shape, std::vector<int64_t> strides, nb::handle dtype,
             int device_id, int64_t alignment) {
            Device device = device_id < 0 ? Device{} : Device{DeviceType::cuda, device_id};
            new (self) TensorSpec{std::move(shape), std::move(strides), dtype_from(dtype, "dtype"), device, alignment};
          },
          "shape"_a, "strides"_a, "dtype"_a, "device_id"_a, "alignment"_a)
      .def_ro("shape", &TensorSpec::shape)
      .def_ro("strides", &TensorSpec::strides, "In elements.")
      .def_prop_ro("dtype", [](const TensorSpec& s) { return dtype_name(s.dtype); })
      .def_prop_ro("device", [](const TensorSpec& s) { return to_string(s.device); })
      .def_ro("alignment", &TensorSpec::alignment, "Of the first element, in bytes.");
  nb::class_<TypedView>(m, "TypedView", "An array of bytes or integers read as another dtype; made by cutlass_py.view.")
      .def(
          "__init__",
          [](TypedView* self, nb::object array, nb::handle dtype) {
            new (self) TypedView{std::move(array), dtype_from(dtype, "dtype")};
          },
          "array"_a, "dtype"_a)
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
          [](const Buffer& b, nb::handle stream, nb::handle max_version, nb::handle, nb::handle) {
            return b.dlpack(stream, max_version);
          },
          nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
          "copy"_a = nb::none())
      .def_prop_ro("dtype", [](const Buffer& b) { return dtype_name(b.dtype()); })
      .def("__dlpack_device__", &Buffer::dlpack_device);
}

}  // namespace
}  // namespace cutlass_py

NB_MODULE(_core, m) {
  using namespace cutlass_py;
  m.doc() = "The warm path of cutlass_py: DLPack views, canonical problems, the plan table, launches.";

  nb::set_leak_warnings(false);  // the tables of types, dtypes and plans live as long as the process, and hold objects

  nb::exception<CudaError>(m, "CudaError", PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const DtypeError& dtype_error) {
      PyErr_SetString(PyExc_TypeError, dtype_error.what());
    }
  });

  m.def(
      "gemm",
      [](nb::handle a, nb::handle b, nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta,
         nb::handle compute, nb::handle out_dtype, nb::handle kernel,
         nb::handle stream) { return gemm(a, b, keywords(out, c, alpha, beta, compute, out_dtype, kernel, stream)); },
      "a"_a.none(), "b"_a.none(), nb::kw_only(), "out"_a = nb::none(), "c"_a = nb::none(), "alpha"_a.none() = 1.0,
      "beta"_a = nb::none(), "compute"_a = nb::none(), "out_dtype"_a = nb::none(), "kernel"_a = nb::none(),
      "stream"_a = nb::none(), kGemmDoc);
  m.def(
      "problem",
      [](nb::handle a, nb::handle b, nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta,
         nb::handle compute, nb::handle out_dtype, nb::handle kernel) {
        return problem_of(a, b, keywords(out, c, alpha, beta, compute, out_dtype, kernel, nb::none()));
      },
      "a"_a.none(), "b"_a.none(), nb::kw_only(), "out"_a = nb::none(), "c"_a = nb::none(), "alpha"_a.none() = 1.0,
      "beta"_a = nb::none(), "compute"_a = nb::none(), "out_dtype"_a = nb::none(), "kernel"_a = nb::none(),
      "The canonical problem of a gemm call, which is not run. Takes TensorSpecs as well as arrays.");
  m.def("clear_plans", &clear_plans, "Forget every choice made so far: the next call of each class selects again.");

  m.def(
      "kernel_facts",
      [] {
        nb::typed<nb::dict, nb::str, Facts> all;
        for (const KernelEntry& entry : loaded_kernels()) all[entry.kernel->name] = facts_dict(*entry.kernel);
        return all;
      },
      "Loaded kernels by name, with what their C++ types say of themselves.");
  m.def(
      "load_library", [](const std::string& path) { load_library(path); }, "path"_a,
      "Load a kernel library: its kernels join kernel_facts(). Loading it again does nothing.");
  m.def(
      "allow_jit", [](bool allowed) { return std::exchange(jit_allowed, allowed); }, "allowed"_a,
      "Set whether this thread's calls may take kernels that are yet to be compiled; returns what held before.");
  m.def("device_count", &device::count, "CUDA devices; 0 without a driver.");
  m.def("why_no_device", &device::why_none, "Why device_count() is 0.");
  m.def(
      "device_info",
      [](int ordinal) {
        const device::Info& info = device::info(ordinal);
        Facts dict;
        dict["name"] = info.name, dict["cc"] = info.cc, dict["sm_count"] = info.sm_count, dict["driver"] = info.driver;
        return dict;
      },
      "device_id"_a, "Name, compute capability times ten, multiprocessors and driver version of a device.");
  m.def("build_info", &build_info, "How the package was built.");

  bind_problem(m);
  bind_metadata(m);
}
