// What the extension has of quantize, in names and docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "frontends/bindings.h"
#include "frontends/xla_handler.h"
#include "frontends/xla_quantize.h"
#include "operations/quantize/call.h"
#include "operations/quantize/sample.h"

namespace cutlass_py {
namespace quantization {
namespace {

using namespace nb::literals;

constexpr const char* kQuantizeDoc = R"(x in 8 bits and the scales that undo it: x is about q * scale.

A scale is amax * (1 / limit), but 2^-126 at least: amax is the largest |x| of a group's finite elements, limit the largest
value of q (448 for e4m3, 57344 for e5m2, 127 for s8). It is 1 where amax is 0.

Args:
    x: (..., m, k) or (k,), of f32, bf16, f16 or f64. Any array that speaks DLPack, of any strides.
    dtype: of q: "e4m3", "e5m2", "s8", NumPy's or ml_dtypes' dtype, or the framework's own.
    scaling: what shares a scale, and so the shape of scales:
        "tensor": everything; ().
        "row": a row; (..., m, 1), of a vector (1,).
        "1x128" or "block": 128 of a row; (..., m, ceil(k / 128)), of a vector (ceil(k / 128),). As gemm's scale_a.
        "128x128": 128 rows by 128 columns; (..., ceil(m / 128), ceil(k / 128)). As gemm's scale_b.
        The last group of an extent may be smaller.
    out: written and returned as q, of x's shape. Strided views are fine. It shares no element with x or scales.
    scales: f32, written and returned likewise.
    kernel: run this kernel (a Kernel or its name) and no other.
    stream: CUDA stream to launch on, as in gemm.

All arithmetic is f32: x is converted to it, multiplied by 1 / scale, and rounded to nearest even. Results saturate at
limit, infinities too; NaN stays NaN in fp8 and becomes 0 in s8, which ends at -127.

Returns:
    (q, scales): what was given, or new arrays of x's framework on x's device. New scales are row-major, but those of
    "1x128" lie as gemm's kernels read a scale_a, where the framework has such views: m runs fastest, in lines of a multiple
    of 16 bytes.

Raises:
    ValueError: ranks, shapes, devices, names or overlap that do not fit; a `kernel` that does not.
    TypeError: an operand that is no array, or a dtype that does not fit.
    NoKernelError: no kernel can compute this problem.
    CompileError: the kernel asked for, or chosen within `jit`, cannot be compiled.
    CudaError: a CUDA call failed.)";

template <char Problem::* Field>
nb::str letter(const Problem& p) {
  return nb::str(&(p.*Field), 1);
}

template <Dtype Problem::* Field>
const char* dtype(const Problem& p) {
  return dtype_name(p.*Field);
}

template <uint8_t Problem::* Field>
int align(const Problem& p) {
  return 1 << p.*Field;
}

void bind_problem(nb::module_& m) {
  nb::class_<Problem>(m, "QuantizeProblem",
                      "A call of quantize in canonical form. Layouts: 't' columns side by side, 'n' rows side by side, "
                      "'x' neither. Alignments in bytes, 16 at most.")
      .def_prop_ro(
          "operation", [](const Problem&) { return "quantize"; }, "Its name.")
      .def_ro("rows", &Problem::rows, "Of each matrix; 1 for a vector.")
      .def_ro("cols", &Problem::cols, "Of each matrix.")
      .def_ro("batch", &Problem::batch, "Matrices: the product of the leading extents.")
      .def_prop_ro("x", &dtype<&Problem::x>, "Dtype of x.")
      .def_prop_ro("q", &dtype<&Problem::q>, "Dtype of the result.")
      .def_prop_ro(
          "scaling", [](const Problem& p) { return kScalings[p.scaling].name; },
          "'tensor', 'row', '1x128' or '128x128'.")
      .def_prop_ro("layout_x", &letter<&Problem::layout_x>, "'t', 'n' or 'x'.")
      .def_prop_ro("layout_q", &letter<&Problem::layout_q>, "'t', 'n' or 'x'.")
      .def_prop_ro("align_x", &align<&Problem::align_x>, "Of address, lines and matrices.")
      .def_prop_ro("align_q", &align<&Problem::align_q>, "As align_x.")
      .def_ro("jit", &Problem::jit, "A declared kernel may be compiled for it.")
      .def_ro("kernel", &Problem::kernel, "Number of the kernel asked for, -1 for none.")
      .def_ro("user", &Problem::user, "-1: it has no epilogue that a user could write.")
      .def_prop_ro(
          "splits", [](const Problem&) { return 0; }, "0: nothing is divided.")
      .def_prop_ro(
          "deterministic", [](const Problem&) { return false; }, "Every kernel gives the same bits on every run.")
      .def_prop_ro(
          "batch_invariant", [](const Problem&) { return false; }, "Every group's bits are its own.")
      .def_prop_ro(
          "device", [](const Problem& p) { return to_string(p.device); }, "Of all operands.")
      .def_prop_ro(
          "device_id", [](const Problem& p) { return p.device.type == DeviceType::cpu ? -1 : p.device.id; },
          "CUDA ordinal, -1 on the CPU.")
      .def("__eq__", [](const Problem& x,
                        nb::handle y) { return nb::isinstance<Problem>(y) && x == nb::cast<const Problem&>(y); })
      .def("__hash__", [](const Problem& p) { return int64_t(Key(CUTLASS_PY_QUANTIZE, p).hash() >> 1); });
}

}  // namespace
}  // namespace quantization

Facts quantize_facts(const CutlassPyKernel& kernel) {
  const auto& f = *static_cast<const CutlassPyQuantizeFacts*>(kernel.facts);
  Facts facts;
  facts["x"] = f.x, facts["q"] = f.q, facts["rows"] = f.rows, facts["cols"] = f.cols, facts["threads"] = f.threads;
  return facts;
}

void bind_quantize(nb::module_& m) {
  using namespace nb::literals;
  using quantization::Plan;
  quantization::bind_problem(m);
  m.def(
      "quantize",
      [](nb::handle x, nb::handle dtype, nb::handle scaling, nb::handle out, nb::handle scales, nb::handle kernel,
         nb::handle stream) -> nb::typed<nb::tuple, nb::any, nb::any> {
        return quantization::quantize(x, {dtype, scaling, out, scales, kernel, stream});
      },
      "x"_a.none(), "dtype"_a.none() = "e4m3", nb::kw_only(), "scaling"_a.none() = "tensor", "out"_a = nb::none(),
      "scales"_a = nb::none(), "kernel"_a = nb::none(), "stream"_a = nb::none(), quantization::kQuantizeDoc);
  m.def(
      "quantize_problem",
      [](nb::handle x, nb::handle dtype, nb::handle scaling, nb::handle out, nb::handle scales, nb::handle kernel) {
        return quantization::problem_of(x, {dtype, scaling, out, scales, kernel, nb::handle(Py_None)});
      },
      "x"_a.none(), "dtype"_a.none() = "e4m3", nb::kw_only(), "scaling"_a.none() = "tensor", "out"_a = nb::none(),
      "scales"_a = nb::none(), "kernel"_a = nb::none(),
      "The canonical problem of a quantize call, which is not run. Takes a TensorSpec as well as arrays.");
  m.def(
      "measure",
      [](const quantization::Problem& problem, const std::vector<nb::object>& plans, int rounds) {
        std::vector<Plan> taken;
        for (const nb::object& plan : plans) taken.push_back(quantization::plan_from(plan, problem));
        return quantization::measure(problem, taken, rounds);
      },
      "problem"_a, "plans"_a, "rounds"_a, "As above, of quantize.");
  m.def(
      "xla_quantize_handler",
      [] { return nb::capsule(reinterpret_cast<void*>(&xla_handler<quantization::XlaQuantize>)); },
      "quantize as a custom call of XLA's typed FFI, as xla_gemm_handler.");
}

}  // namespace cutlass_py
