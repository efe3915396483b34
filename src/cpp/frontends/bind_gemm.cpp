// What the extension has of gemm, in names and docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "arrays/gc_traverse.h"
#include "frontends/bindings.h"
#include "frontends/prepared.h"
#include "frontends/torch_fast_path.h"
#include "frontends/xla_gemm.h"
#include "frontends/xla_handler.h"
#include "operations/gemm/call.h"
#include "operations/gemm/canonical.h"
#include "operations/gemm/facts.h"
#include "operations/gemm/sample.h"
#include "operations/gemm/user_epilogue.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

constexpr const char* kGemmDoc = R"(D = epilogue(a @ b), by a prebuilt CUTLASS kernel (NumPy on the CPU).

f is the activation; what has a default is optional:

    z = alpha * scale_a * scale_b * (a @ b) + beta * c + bias
    D = scale_out * f(z);  with gate: scale_out * f(gate) * z;  for a derivative f': scale_out * f'(aux) * z

Args:
    a: (m, k), (k,) or (..., m, k). Any array that speaks DLPack, row- or column-major without a copy; or a list of
        (m, k) matrices of one dtype, of any shapes and strides.
    b: (k, n), (k,) or (..., k, n), on a's device, of a's dtype (e4m3 and e5m2 may be mixed, and so may s8 and u8). Or
        a list, as long as a's. Shapes follow numpy.matmul: batches broadcast, the axis that a vector lacks is missing
        in the result.
    out: written and returned, of the shape of the result. Strided views are fine. It may be exactly c, gate or an aux
        that is read, and otherwise shares no element with anything. A list for lists.
    c: the addend, of the shape of the result or with batch dimensions that broadcast to it, any real dtype (complex
        for complex operands). A list, or one matrix for all, for lists.
    alpha: factor of the product. A number, or an array of one element that is read when the kernel runs. With the
        number 0, here or as a scale, a and b are not read, whatever the other factors are. With a 0 in an array they
        are.
    beta: factor of c, a number or such an array; 1 by default. With the number 0, c is not read.
    bias: (n,) or (1, n), one value per column; (m, 1), one per row; batch dimensions in front broadcast. Of D's dtype
        or f32 (f64 operands: or f64; integer D: f32 or s32).
    activation: None, "identity", "relu", "leaky_relu", "gelu" (by erf), "gelu_tanh", "silu", "sigmoid", "tanh",
        "hardswish", cutlass_py.leaky_relu(slope), cutlass_py.clamp(low, high), or a derivative: "d_relu", "d_gelu",
        "d_gelu_tanh", "d_silu", "d_sigmoid". Complex operands take none. slope, low and high are rounded to the dtype
        that the epilogue is computed in.
    aux: of the shape of D, any real dtype. With a derivative it is read: the values at which the derivative is taken
        (its batch dimensions broadcast). Otherwise it is written, and receives z.
    gate: of the shape of D (batch dimensions broadcast), any real dtype. The activation applies to it, not to z.
    scale_a: factor of the rows of a: a number, an array of one element, (m,) or (..., m, 1).
    scale_b: factor of the columns of b: a number, an array of one element, (n,) or (..., 1, n). Where alpha is an
        array, a number other than 1 is refused, here and as scale_a.
        fp8 operands also take both in blocks, of any strides: a scale_a of (..., m, ceil(k / 128)), one factor for
        every row and 128 of k, and a scale_b of (..., ceil(k / 128), ceil(n / 128)), one for every 128 of k by 128
        columns, or of (..., ceil(k / 128), n). The last block of an extent may be shorter. Kernels read a scale_a
        whose columns are contiguous and start at multiples of 16 bytes; any other is packed first.
    scale_out: factor of the result: a number or an array of one element.
    gated: "silu", "gelu", "gelu_tanh", "relu" or "sigmoid": the columns of b are n gates and then n values, and D has
        n: D = scale_out * f(z of the gates) * z of the values; bias and scale_b have 2 n numbers, an aux is (m, 2 n).
        With the name of a derivative ("d_silu") z is the gradient of such a D, aux is that (m, 2 n), and D has its
        shape: the gradients of gates and values. Behind a name, "_interleaved" says that all of these have a value
        behind each gate. Beside it are no activation, gate, c, bias_grad and lists.
    bias_grad: (n,), (1, n) or (m, 1), of D's dtype, f32 or f64; written. Receives sums of f(z), f(gate) * z or
        f'(aux) * z, before scale_out, over the other axis and over the batch; of a D of 16 bits or f32 before or
        after it is rounded, as the kernel has it. They are computed in f64, and before rounding, if it is f64. The
        batch must have a single stride in every operand.
    epilogue: a call of a function under @cutlass_py.epilogue: D is what that makes of a @ b. It replaces c, alpha and
        everything up to here; on a GPU a kernel is compiled for it (docs/epilogues.md).
    compute: arithmetic: "f32" (f16, bf16, fp8: accumulation in f32; f32: exact multiplication too; c64), "tf32" and
        "3xtf32" (f32 on tensor cores, the second with f32's accuracy), "f64" (f64, c128), "s32" (integers), "f16"
        (f16 may be summed in f16), "fast" (fp8 without promotion: sums of about 14 bits). The first is the default.
    out_dtype: dtype of a new result, by default the inputs' (fp8: bf16, integers: s32). A name ("bf16"), NumPy's or
        ml_dtypes' dtype, or the framework's own. Any real dtype; c64 or c128 for complex operands.
    splits: parts of k computed side by side: None (selection decides), 1 (no split) to 32767, or "stream" (stream-K).
    deterministic: take only kernels that give the same bits on every run.
    batch_invariant: the bits of a row of D depend on that row of a, on b and on the keywords alone: not on m, on the
        batch, nor on what else is in it (docs/gemm.md, "Batch invariance"). It implies deterministic; k is cut by n
        and k alone, so that there are no splits beside it, and "fast" and "f16" sums are f32.
    kernel: run this kernel (a Kernel or its name) and no other; it must take the operands as they lie. Compiled
        first if it is declared but not there (docs/jit.md).
    stream: CUDA stream to launch on: an int, a torch or CuPy stream, or anything with `__cuda_stream__`. By
        default the framework's current stream. Where it is given, the caller orders other streams behind the launch.

Arrays of factors and scales are f32 (f64, c64, c128 where the sum is). Complex operands take no scales, activation,
gate, gated, aux or bias_grad. Lists take no gate, gated, aux or bias_grad, and share their bias and scales.

Rounding: sums of integers wrap around at 32 bits. Every result is rounded once, to nearest even: to s8, u8, s32, e4m3
and e5m2 it saturates at the largest finite value, infinities included, and NaN stays NaN in fp8 and becomes 0 in
integers; to wider floats it overflows to infinity.

Returns:
    `out`, or a new row-major array of a's framework on a's device; for lists a list, whose matrices share
    one allocation (with JAX, each has its own).

Raises:
    ValueError: ranks, shapes, devices, strides, names or overlap that do not fit; a `kernel` that does not.
    TypeError: an operand that is no array, or a dtype that does not fit.
    NoKernelError: no kernel can compute this problem.
    CompileError: the kernel asked for, chosen within `jit`, or with `epilogue`, cannot be compiled.
    CudaError: a CUDA or CUTLASS call failed.)";

constexpr const char* kPreparedDoc = R"(Run it: gemm on these arrays by the plan's kernel, without choosing anew.

Args:
    a, b, out: as in gemm. What is None, here and below, is what the plan was made with; where it was made without
        `out`, a new array is returned.
    c, bias, gate, aux, alpha, beta, scale_a, scale_b, scale_out, bias_grad: arrays in place of those that the plan was
        made with. Numbers and names stay those of the plan.
    epilogue: a call of the plan's own function (docs/epilogues.md), with all of its operands. Numbers may be others,
        arrays are like those of the plan.
    stream: as in gemm.
    workspace: Kernel.workspace_size bytes (u8) of device memory, aligned to 256 bytes, instead of the package's own
        pool. It is used on the stream of the launch; the caller orders other uses of it.

Returns:
    As gemm.

Raises:
    ValueError: an array whose shape, strides, device or alignment is not the plan's, one that the plan has no place
        for, overlap, an epilogue of another function, or a workspace that does not fit. The message names the operand.
    TypeError: no array, or one of another dtype.
    CudaError: a CUDA or CUTLASS call failed.)";

template <char Problem::* Field>
nb::str letter(const Problem& p) {
  return nb::str(&(p.*Field), 1);
}

template <Dtype Problem::* Field>
std::optional<nb::str> dtype(const Problem& p) {
  if (p.*Field == Dtype::none) return std::nullopt;
  return nb::str(dtype_name(p.*Field));
}

// "" where there is none.
template <char Problem::* Field>
std::string mark(const Problem& p) {
  return p.*Field ? std::string(1, p.*Field) : "";
}

template <uint8_t Problem::* Field>
int align(const Problem& p) {
  return 1 << p.*Field;
}

void bind_problem(nb::module_& m) {
  nb::class_<Problem>(
      m, "Problem",
      "A call in canonical form: D (m, n) row-major, batch folded where it can be. Layouts: 't' row-major, "
      "'n' column-major, 'x' no unit stride. Alignments in bytes, 16 at most. Dtypes are None, layouts and other marks "
      "empty where an operand is absent.")
      .def_prop_ro(
          "operation", [](const Problem& p) { return p.grouped ? "grouped_gemm" : "gemm"; }, "Its name.")
      .def_ro("m", &Problem::m, "Rows of D.")
      .def_ro("n", &Problem::n, "Columns of D.")
      .def_ro("k", &Problem::k, "Length of the sums.")
      .def_ro("batch", &Problem::batch, "Products of these extents.")
      .def_prop_ro("a", &dtype<&Problem::a>, "Dtype of A in memory.")
      .def_prop_ro("b", &dtype<&Problem::b>, "Dtype of B in memory.")
      .def_prop_ro("c", &dtype<&Problem::c>, "None where C is absent or not read (beta = 0).")
      .def_prop_ro("d", &dtype<&Problem::d>, "Dtype of D.")
      .def_prop_ro("operand_a", &dtype<&Problem::operand_a>, "What kernels multiply: tf32 for f32 with compute='tf32'.")
      .def_prop_ro("operand_b", &dtype<&Problem::operand_b>, "As operand_a.")
      .def_prop_ro("accumulator", &dtype<&Problem::accumulator>, "Dtype of the sums.")
      .def_prop_ro("layout_a", &letter<&Problem::layout_a>, "'t', 'n' or 'x'.")
      .def_prop_ro("layout_b", &letter<&Problem::layout_b>, "'t', 'n' or 'x'.")
      .def_prop_ro("layout_c", &mark<&Problem::layout_c>, "'t' as D lies, or 'x'; likewise of gate and aux.")
      .def_prop_ro("layout_d", &letter<&Problem::layout_d>, "'t' or 'x'.")
      .def_prop_ro("align_a", &align<&Problem::align_a>, "Of address, rows and batches.")
      .def_prop_ro("align_b", &align<&Problem::align_b>, "As align_a.")
      .def_prop_ro("align_c", &align<&Problem::align_c>, "As align_a.")
      .def_prop_ro("align_d", &align<&Problem::align_d>, "As align_a.")
      .def_ro("empty_product", &Problem::empty_product,
              "k = 0, a factor of 0 or no elements of D: a and b are not read.")
      .def_ro("transposed", &Problem::transposed, "a and b changed places because D is column-major.")
      .def_prop_ro(
          "activation", [](const Problem& p) { return kActivations[int(p.activation)].name; }, "Its name.")
      .def_prop_ro("bias", &dtype<&Problem::bias>, "Dtype of the bias.")
      .def_prop_ro("bias_axis", &mark<&Problem::bias_axis>, "'n': one value per column of D, 'm': one per row.")
      .def_prop_ro("align_bias", &align<&Problem::align_bias>, "1 also where it has no unit stride.")
      .def_prop_ro("gate", &dtype<&Problem::gate>, "Dtype of the gate.")
      .def_prop_ro("layout_gate", &mark<&Problem::layout_gate>, "As layout_c.")
      .def_prop_ro("align_gate", &align<&Problem::align_gate>, "As align_a.")
      .def_prop_ro("aux", &dtype<&Problem::aux>, "Dtype of aux.")
      .def_prop_ro("layout_aux", &mark<&Problem::layout_aux>, "As layout_c.")
      .def_prop_ro("align_aux", &align<&Problem::align_aux>, "As align_a.")
      .def_prop_ro("bias_grad", &dtype<&Problem::bias_grad>, "Dtype of the bias gradient.")
      .def_prop_ro("bias_grad_axis", &mark<&Problem::bias_grad_axis>, "As bias_axis.")
      .def_prop_ro("scale_a", &mark<&Problem::scale_a>,
                   "'s': one factor in memory, 'v': a vector, 'x': a vector without unit stride. Numbers are in alpha. "
                   "In blocks, for each 128 of k: 'r' for every row (of scale_b: column), 'p' likewise where scale_a "
                   "has to be packed, 'b' for every 128 columns.")
      .def_prop_ro("scale_b", &mark<&Problem::scale_b>, "As scale_a, of the columns of B.")
      .def_prop_ro("block", &Problem::block, "Columns of B that share a factor where scales are in blocks, else 0.")
      .def_prop_ro("scale_out", &mark<&Problem::scale_out>, "'h': a number, 's': one factor in memory.")
      .def_ro("device_alpha", &Problem::device_alpha, "alpha is an array.")
      .def_ro("device_beta", &Problem::device_beta, "beta is an array.")
      .def_ro("plain_sum", &Problem::plain_sum, "Of integers: alpha is 1, nothing else scales, and no c is added.")
      .def_ro("pointers", &Problem::pointers, "The operands are lists of matrices that do not lie evenly.")
      .def_prop_ro(
          "deterministic", [](const Problem& p) { return p.repeats != Repeats::no; },
          "The same bits on every run are asked for.")
      .def_prop_ro(
          "batch_invariant", [](const Problem& p) { return p.repeats == Repeats::row; },
          "A row's bits may not depend on what is beside it; `splits` is what that asks for.")
      .def_ro("jit", &Problem::jit, "A declared kernel may be compiled for it.")
      .def_ro("splits", &Problem::splits, "Parts of k asked for; 0: none in particular, -1: stream-K.")
      .def_prop_ro("pairs", &mark<&Problem::pairs>,
                   "'b': columns of B are gates and then as many values, 'd': those of D are.")
      .def_ro("interleaved", &Problem::interleaved, "A value lies behind each gate, and not all behind all.")
      .def_prop_ro("columns_of_b", &Problem::columns_of_b, "n, or where they are gates and values twice as many.")
      .def_prop_ro("grouped", &mark<&Problem::grouped>,
                   "The axis that groups divide, 'm', 'n' or 'k', whose extent is that of all together; 'l': lists "
                   "whose matrices differ, by extents that are usual for them.")
      .def_prop_ro("stacked", &Problem::stacked, "The rows of each group are the first ones of a matrix of its own.")
      .def_prop_ro(
          "gathered", [](const Problem& p) { return p.rows == GroupRows::gathered; },
          "The rows of a are found by their numbers, and copied before the product.")
      .def_ro("told", &Problem::told, "Where groups lie, the host knows.")
      .def_prop_ro(
          "expected", [](const Problem& p) { return lines_of_code(p.expected); },
          "Lines of a group, to an eighth of a power of 2; 0 where the caller has not said it.")
      .def_prop_ro(
          "usual", [](const Problem& p) { return lines_of_code(p.usual); },
          "Likewise of those that have any, in the mean; 0 where the host does not know them.")
      .def_ro("kernel", &Problem::kernel, "Number of the kernel asked for, -1 for none.")
      .def_ro("user", &Problem::user, "Number of the user's epilogue and the kinds of its operands, -1 for none.")
      .def_prop_ro(
          "device", [](const Problem& p) { return to_string(p.device); }, "Of all operands.")
      .def_prop_ro(
          "device_id", [](const Problem& p) { return p.device.type == DeviceType::cpu ? -1 : p.device.id; },
          "CUDA ordinal, -1 on the CPU.")
      .def(
          "launches",
          [](const Problem& p, int splits) {
            const Splits parts(p, splits);
            nb::typed<nb::list, nb::typed<nb::tuple, int64_t, int64_t>> found;
            parts.each(
                [&](int64_t first, int64_t count) { found.append(nb::make_tuple(count, parts.length_of(first))); });
            return found;
          },
          "splits"_a, "What a kernel is launched for where k is cut into so many parts: (parts, length of each).")
      .def_prop_ro(
          "signature",
          [](const Problem& p) {
            const Problem signature = without_extents(p);
            return nb::bytes(&signature, sizeof signature);
          },
          "The same for problems that differ in extents, and in how A, B and D are aligned, alone.")
      .def("__eq__", [](const Problem& x,
                        nb::handle y) { return nb::isinstance<Problem>(y) && x == nb::cast<const Problem&>(y); })
      .def("__hash__", [](const Problem& p) { return int64_t(Key(CUTLASS_PY_GEMM, p).hash() >> 1); });
}

void bind_user_epilogue(nb::module_& m) {
  nb::class_<EpilogueCall>(m, "EpilogueCall", nb::type_slots(collected<EpilogueCall>()),
                           "A user's epilogue with its operands: what gemm's `epilogue` takes.")
      .def(
          "__init__",
          [](EpilogueCall* self, int32_t program, nb::typed<nb::tuple, nb::any, nb::ellipsis> values) {
            if (!is_program(program)) throw nb::value_error("no such program");
            if (nb::len(values) != program_of(program).names.size()) throw nb::value_error("one value for each name");
            new (self) EpilogueCall{program, std::move(values)};
          },
          "program"_a, "values"_a)
      .def_ro("program", &EpilogueCall::program)
      .def_prop_ro(
          "values", [](const EpilogueCall& call) { return nb::typed<nb::tuple, nb::any, nb::ellipsis>(call.values); },
          "In the order of the program's parameters, then its outputs.");
  m.def(
      "add_program",
      [](std::string name, std::vector<std::string> names, std::string roles, std::vector<int> reductions,
         std::vector<int> firsts) {
        const size_t count = names.size();
        const bool same = roles.size() == count && reductions.size() == count && firsts.size() == count;
        if (!same || count > size_t(kMostUserOperands)) {
          throw nb::value_error("expected a role, a reduction and a first for each name, at most 16");
        }
        return add_program(
            {std::move(name), std::move(names), std::move(roles), std::move(reductions), std::move(firsts)});
      },
      "name"_a, "names"_a, "roles"_a, "reductions"_a, "firsts"_a,
      "Number of a traced function: its name, those of parameters and outputs; of each 'r' (read), 'w' (a written "
      "matrix), or for reductions 'm' or 'n' (written along that axis of D) or 's' (a single value); the reduction's "
      "index in REDUCTIONS (epilogue_ir.py), -1 for none; and the first that reduces the same value, or itself.");
  m.def(
      "user_class",
      [](int32_t number) {
        const UserClass& user = user_class(number);
        nb::typed<nb::list, nb::typed<nb::tuple, nb::str, nb::any, int, bool>> items;
        for (const UserClass::Item& item : user.items) {
          nb::object dtype = item.dtype == Dtype::none ? nb::none() : nb::object(nb::str(dtype_name(item.dtype)));
          items.append(nb::make_tuple(nb::str(&item.kind, 1), dtype, 1 << item.align, item.regular));
        }
        return std::make_pair(user.program, items);
      },
      "number"_a,
      "What Problem.user stands for: the program's number; of each of its operands kind, dtype, bytes of alignment, "
      "and whether it is a matrix that lies as D does or a "
      "vector of unit stride.");
}

void bind_prepared(nb::module_& m) {
  nb::class_<Prepared>(
      m, "Prepared", nb::type_slots(collected<Prepared>()),
      "A call whose legality and plan are settled; made by GemmArguments.plan. Calling it with arrays of the "
      "same shapes, strides, dtypes, device and alignment launches it on them.")
      .def(
          "__init__",
          [](Prepared* self, nb::object a, nb::object b, nb::typed<nb::dict, nb::str, nb::any> keywords, int raster,
             int swizzle) { new (self) Prepared(std::move(a), std::move(b), keywords, raster, swizzle); },
          "a"_a, "b"_a, "keywords"_a, "raster"_a, "swizzle"_a)
      .def(
          "__call__",
          [](Prepared& self, nb::handle a, nb::handle b, nb::handle out) {  // fewer arguments to take apart
            Keywords given;
            given.out = out;
            return self(a, b, given, nb::handle(Py_None));
          },
          "a"_a.none(), "b"_a.none(), "out"_a.none(), "As below, with these three alone.")
      .def(
          "__call__",
          [](Prepared& self, nb::handle a, nb::handle b, nb::handle out, nb::handle c, nb::handle bias, nb::handle gate,
             nb::handle aux, nb::handle alpha, nb::handle beta, nb::handle scale_a, nb::handle scale_b,
             nb::handle scale_out, nb::handle bias_grad, nb::handle epilogue, nb::handle stream, nb::handle workspace) {
            Keywords given;
            given.out = out, given.c = c, given.bias = bias, given.gate = gate, given.aux = aux;
            given.alpha = alpha, given.beta = beta;
            given.scale_a = scale_a, given.scale_b = scale_b, given.scale_out = scale_out;
            given.bias_grad = bias_grad, given.epilogue = epilogue, given.stream = stream;
            return self(a, b, given, workspace);
          },
          "a"_a = nb::none(), "b"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "c"_a = nb::none(),
          "bias"_a = nb::none(), "gate"_a = nb::none(), "aux"_a = nb::none(), "alpha"_a = nb::none(),
          "beta"_a = nb::none(), "scale_a"_a = nb::none(), "scale_b"_a = nb::none(), "scale_out"_a = nb::none(),
          "bias_grad"_a = nb::none(), "epilogue"_a = nb::none(), "stream"_a = nb::none(), "workspace"_a = nb::none(),
          kPreparedDoc)
      .def_prop_ro("problem", &Prepared::problem, "What it computes.")
      .def("__repr__", [](const Prepared& self) { return self.repr(); });
}

// The keywords, by their names as parameters of a function, in the table's order.
#define CUTLASS_PY_KEYWORD(NAME, DEFAULT, ROLE) NAME,

void bind_torch(nb::module_& m) {
  m.def(
      "set_torch_hooks",
      [](nb::tuple tensor_types, nb::tuple number_types, nb::tuple modes, nb::object function_mode,
         nb::object no_interceptors, nb::tuple forward_level, nb::object autocasting, nb::object cast,
         nb::object record_layer) {
        set_torch_hooks({tensor_types, number_types, modes, function_mode, no_interceptors, forward_level, autocasting,
                         cast, record_layer});
      },
      nb::sig("def set_torch_hooks(tensor_types: tuple[Any, ...], number_types: tuple[Any, ...], "
              "modes: tuple[Any, ...], function_mode: object, no_interceptors: object, "
              "forward_level: tuple[dict[str, Any], str], autocasting: object, cast: object, record_layer: object) "
              "-> None"),
      "tensor_types"_a, "number_types"_a, "modes"_a, "function_mode"_a, "no_interceptors"_a, "forward_level"_a,
      "autocasting"_a, "cast"_a, "record_layer"_a,
      "What of torch the fast path looks at and calls; torch/functions.py says it once.");
  m.def("fast_product", &fast_product, "a"_a.none(), "b"_a.none(), "out"_a.none(), "bias"_a.none(), "rank"_a,
        "gemm(a, b, out=out, bias=bias) of torch tensors, recorded where a gradient is asked for; or None where torch "
        "may mean something else by it, or gemm refuses it.");
  m.def("fast_linear", &fast_linear, "input"_a.none(), "weight"_a.none(), "bias"_a.none(), "activation"_a.none(),
        "gemm(input, weight.t(), bias=bias, activation=activation) of torch tensors; or None, as fast_product.");
  m.def(
      "fast_gemm",
      [](nb::handle a, nb::handle b, nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta, nb::handle bias,
         nb::handle activation, nb::handle aux, nb::handle gate, nb::handle gated, nb::handle scale_a,
         nb::handle scale_b, nb::handle scale_out, nb::handle bias_grad, nb::handle compute, nb::handle out_dtype,
         nb::handle splits, nb::handle deterministic, nb::handle batch_invariant, nb::handle kernel, bool uncast) {
        const nb::handle epilogue = Py_None, stream = Py_None;
        const Keywords keywords{
#include "gemm_keywords.inc"
        };
        return fast_gemm(a, b, keywords, uncast);
      },
      "a"_a.none(), "b"_a.none(), "out"_a = nb::none(), "c"_a = nb::none(), "alpha"_a.none() = 1.0,
      "beta"_a = nb::none(), "bias"_a = nb::none(), "activation"_a = nb::none(), "aux"_a = nb::none(),
      "gate"_a = nb::none(), "gated"_a = nb::none(), "scale_a"_a = nb::none(), "scale_b"_a = nb::none(),
      "scale_out"_a = nb::none(), "bias_grad"_a = nb::none(), "compute"_a = nb::none(), "out_dtype"_a = nb::none(),
      "splits"_a = nb::none(), "deterministic"_a.none() = false, "batch_invariant"_a.none() = false,
      "kernel"_a = nb::none(), "uncast"_a = true,
      "gemm of torch tensors, recorded if that is a layer with a gradient; or None where something has to see it, a "
      "gradient is asked of anything else, or gemm refuses it; also where autocast may have to cast what is `uncast`.");
}

void bind_xla(nb::module_& m) {
  m.def(
      "xla_gemm_handler", [] { return nb::capsule(reinterpret_cast<void*>(&xla_handler<XlaGemm>)); },
      "gemm as a custom call of XLA's typed FFI, for jax.ffi.register_ffi_target.");
  m.def(
      "xla_stream_handler", [] { return nb::capsule(reinterpret_cast<void*>(&xla_stream_handler)); },
      "A custom call without operands, which learns XLA's stream.");
  m.def(
      "xla_stream", [](int device_id) { return uintptr_t(xla_stream(device_id)); }, "device_id"_a,
      "The stream that xla_stream_handler has learned. IndexError if it has not run on this device.");
}

}  // namespace

Facts gemm_facts(const CutlassPyKernel& kernel) {
  const CutlassPyGemmFacts& f = facts_of(kernel);
  Facts facts;
  facts["a"] = f.a, facts["b"] = f.b, facts["accumulator"] = f.acc, facts["c"] = f.c, facts["d"] = f.d;
  facts["layout"] = f.layout, facts["api"] = f.api;
  facts["tile"] = nb::make_tuple(f.tile[0], f.tile[1], f.tile[2]);
  facts["cluster"] = nb::make_tuple(f.cluster[0], f.cluster[1], f.cluster[2]);
  facts["threads"] = f.threads, facts["smem_bytes"] = f.smem_bytes, facts["stages"] = f.stages;
  facts["align_a"] = f.align_a, facts["align_b"] = f.align_b, facts["align_c"] = f.align_c,
  facts["align_d"] = f.align_d, facts["pointers"] = bool(f.pointers);
  return facts;
}

void bind_gemm(nb::module_& m) {
  m.def(
      "gemm",
      [](nb::handle a, nb::handle b, nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta, nb::handle bias,
         nb::handle activation, nb::handle aux, nb::handle gate, nb::handle gated, nb::handle scale_a,
         nb::handle scale_b, nb::handle scale_out, nb::handle bias_grad, nb::handle epilogue, nb::handle compute,
         nb::handle out_dtype, nb::handle splits, nb::handle deterministic, nb::handle batch_invariant,
         nb::handle kernel, nb::handle stream) {
        const Keywords keywords{
#include "gemm_keywords.inc"
        };
        return gemm(a, b, keywords);
      },
      "a"_a.none(), "b"_a.none(), nb::kw_only(), "out"_a = nb::none(), "c"_a = nb::none(), "alpha"_a.none() = 1.0,
      "beta"_a = nb::none(), "bias"_a = nb::none(), "activation"_a = nb::none(), "aux"_a = nb::none(),
      "gate"_a = nb::none(), "gated"_a = nb::none(), "scale_a"_a = nb::none(), "scale_b"_a = nb::none(),
      "scale_out"_a = nb::none(), "bias_grad"_a = nb::none(), "epilogue"_a = nb::none(), "compute"_a = nb::none(),
      "out_dtype"_a = nb::none(), "splits"_a = nb::none(), "deterministic"_a.none() = false,
      "batch_invariant"_a.none() = false, "kernel"_a = nb::none(), "stream"_a = nb::none(), kGemmDoc);
  m.def(
      "problem",
      [](nb::handle a, nb::handle b, const nb::kwargs& keywords) { return problem_of(a, b, keywords_from(keywords)); },
      nb::sig("def problem(a: object, b: object, **keywords: Any) -> Problem"), "a"_a.none(), "b"_a.none(),
      "keywords"_a, "The canonical problem of a gemm call, which is not run. Takes TensorSpecs as well as arrays.");
  m.def(
      "scratch_bytes",
      [](nb::handle a, nb::handle b, nb::typed<nb::dict, nb::str, nb::any> keywords, nb::handle plan, int sm_count) {
        return scratch_bytes_of(a, b, keywords_from(keywords), plan, sm_count);
      },
      "a"_a, "b"_a, "keywords"_a, "plan"_a, "sm_count"_a,
      "Bytes of scratch that gemm takes for a call with these keywords (of `problem`) by a plan (LaunchPlan) on a "
      "device with so many multiprocessors. Takes TensorSpecs as well as arrays.");
  m.def(
      "call_facts",
      [](nb::handle a, nb::handle b, nb::typed<nb::dict, nb::str, nb::any> keywords) {
        return Facts(facts(a, b, keywords_from(keywords)));
      },
      "a"_a, "b"_a, "keywords"_a,
      "Operands and factors of a call with these keywords (of `problem`), as reproducer.py takes them.");
  m.def(
      "measure",
      [](const Problem& problem, const std::vector<nb::object>& plans, int rounds,
         const std::vector<int64_t>& group_ends) {
        std::vector<Plan> taken;
        for (const nb::object& plan : plans) taken.push_back(plan_from(plan, problem));
        return measure(problem, taken, rounds, group_ends);
      },
      "problem"_a, "plans"_a, "rounds"_a, "group_ends"_a = std::vector<int64_t>(),
      "Microseconds of each plan of a problem, on operands made up for it, from a cold cache: one number for each "
      "round, "
      "of which there are fewer where they take long; infinite where a plan does not run. Groups end at `group_ends`; "
      "without these their sizes are made up, too.");
  bind_estimate(m);
  bind_routes(m);
  bind_problem(m);
  bind_user_epilogue(m);
  bind_prepared(m);
  bind_torch(m);
  bind_xla(m);
}

#undef CUTLASS_PY_KEYWORD

}  // namespace cutlass_py
