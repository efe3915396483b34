// What the extension has of grouped_gemm, in names and docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "arrays/gc_traverse.h"
#include "frontends/bindings.h"
#include "frontends/prepared_groups.h"
#include "frontends/xla_grouped_gemm.h"
#include "frontends/xla_handler.h"
#include "operations/grouped_gemm/call.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

constexpr const char* kDoc = R"(Many products of unequal size in one launch: D = epilogue(a @ b) for each group.

Groups divide one axis, which the ranks of a and b say:

    a (M, K), b (G, K, N) -> (M, N)       rows: those of a group are multiplied by its own b
    a (M, K), b (K, N) -> (G, M, N)       k: a product for each group, 0 (or beta * c) for an empty one
    a (G, M, K), b (K, N) -> (M, N)       columns: those of a group by its own a
    a (G, M, K), b (G, K, N) -> (G, M, N) of each matrix the first `sizes` rows

Args:
    a, b: arrays that speak DLPack, of dtypes as in gemm.
    offsets: (G,), where each group ends, or (G + 1,), where each begins and the last one ends; without decrease. int32
        or int64. On the device they are read when the kernel runs, so that a captured graph follows new numbers: what
        is out of bounds is cut off there. In host memory they are checked.
    sizes: (G,), likewise; one of the two is given.
    gather: (M,) of int32 or int64, where groups divide rows: row i of the product is that of row gather[i] of a, which
        may have any number of rows then. They are copied before the product, into memory of the package's own. In host
        memory the numbers are checked; on the device there are zeros in place of a row that a does not have.
    out: written and returned. Lines of D that belong to no group keep what they hold.
    c, aux: as in gemm, of the shape of D.
    alpha, beta, activation, compute, out_dtype, deterministic, kernel, stream: as in gemm.
    gated: as in gemm, where groups divide rows, or with the first rows of each matrix: b has 2 N columns, and so
        have bias, scale_b and aux.
    bias: (N,), or (G, N): one row for each group. Where groups divide columns, (N,) alone.
    scale_a: a number, one element, (M,), or (G, M) where groups do not divide rows: one factor for each row of the
        product.
    scale_b: a number, one element, (N,), or (G, N) where groups do not divide columns: one for each column. fp8 also
        takes both in blocks, in any strides: they lie as the operands, with ceil(K / 128) in place of K, and of
        scale_b ceil(N / 128) or N in place of N: (M, ceil(K / 128)) and (G, ceil(K / 128), ceil(N / 128)), say. Where
        groups divide columns, each of them has a factor of its own; where they divide k, there are no blocks.
    scale_out: a number or one element.
    expected: lines of a group, about: a hint for the choice of a kernel where sizes are on the device.

Returns:
    `out`, or a new row-major array; its lines that belong to no group are not written.

Raises:
    ValueError: shapes, offsets, sizes or rows that do not fit; the message names the first bad entry.
    TypeError: an operand that is no array, or a dtype that does not fit.
    NoKernelError: no kernel takes groups of this problem, and the host does not know where they lie. Where it does,
        each is computed as a product of its own.
    CompileError, CudaError: as gemm.)";

Keywords keywords_of(nb::handle out, nb::handle c, nb::handle alpha, nb::handle beta, nb::handle bias,
                     nb::handle activation, nb::handle gated, nb::handle aux, nb::handle scale_a, nb::handle scale_b,
                     nb::handle scale_out, nb::handle compute, nb::handle out_dtype, nb::handle deterministic,
                     nb::handle kernel, nb::handle stream) {
  Keywords k;
  k.out = out, k.c = c, k.alpha = alpha, k.beta = beta, k.bias = bias, k.activation = activation, k.gated = gated,
  k.aux = aux;
  k.scale_a = scale_a, k.scale_b = scale_b, k.scale_out = scale_out, k.compute = compute, k.out_dtype = out_dtype;
  k.deterministic = deterministic, k.batch_invariant = Py_False, k.kernel = kernel, k.stream = stream;
  return k;
}

constexpr const char* kPreparedGroupsDoc =
    R"(Run it: grouped_gemm on these arrays by the plan's kernel, without choosing anew.

Args:
    a, b, out: as in grouped_gemm. What is None, here and below, is what the plan was made with; where it was made
        without `out`, a new array is returned.
    offsets, sizes, gather: other numbers, where the plan was made with such.
    c, bias, aux, alpha, beta, scale_a, scale_b, scale_out: arrays in place of those that the plan was made with.
        Numbers and names stay those of the plan.
    stream: as in grouped_gemm.
    workspace: Kernel.workspace_size bytes (u8) of device memory, aligned to 256 bytes, instead of the package's own
        pool, from which the rows of `gather` still are. It is used on the stream of the launch; the caller orders
        other uses of it.

Returns:
    As grouped_gemm.

Raises:
    ValueError: the arrays make another problem than the plan is of, or one has no place in it; overlap; a workspace
        that does not fit.
    TypeError: no array, or dtypes that do not go together.
    CudaError: a CUDA or CUTLASS call failed.)";

void bind_prepared_groups(nb::module_& m) {
  nb::class_<PreparedGroups>(
      m, "PreparedGroups", nb::type_slots(collected<PreparedGroups>()),
      "A grouped_gemm call whose legality and plan are settled; made by GroupedArguments.plan. Calling it with arrays "
      "of the same problem launches it on them: wherever its groups begin, and of any leading dimension that is "
      "aligned as the plan's.")
      .def(
          "__init__",
          [](PreparedGroups* self, nb::object a, nb::object b, nb::typed<nb::dict, nb::str, nb::any> groups,
             nb::typed<nb::dict, nb::str, nb::any> keywords, int raster,
             int swizzle) { new (self) PreparedGroups(std::move(a), std::move(b), groups, keywords, raster, swizzle); },
          "a"_a, "b"_a, "groups"_a, "keywords"_a, "raster"_a, "swizzle"_a)
      .def(
          "__call__",
          [](const PreparedGroups& self, nb::handle a, nb::handle b, nb::handle out, nb::handle offsets,
             nb::handle sizes, nb::handle gather, nb::handle c, nb::handle bias, nb::handle aux, nb::handle alpha,
             nb::handle beta, nb::handle scale_a, nb::handle scale_b, nb::handle scale_out, nb::handle stream,
             nb::handle workspace) {
            Keywords given;
            given.out = out, given.c = c, given.bias = bias, given.aux = aux, given.alpha = alpha, given.beta = beta;
            given.scale_a = scale_a, given.scale_b = scale_b, given.scale_out = scale_out, given.stream = stream;
            return self(a, b, {offsets, sizes, gather, nb::none()}, given, workspace);
          },
          "a"_a = nb::none(), "b"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "offsets"_a = nb::none(),
          "sizes"_a = nb::none(), "gather"_a = nb::none(), "c"_a = nb::none(), "bias"_a = nb::none(),
          "aux"_a = nb::none(), "alpha"_a = nb::none(), "beta"_a = nb::none(), "scale_a"_a = nb::none(),
          "scale_b"_a = nb::none(), "scale_out"_a = nb::none(), "stream"_a = nb::none(), "workspace"_a = nb::none(),
          kPreparedGroupsDoc)
      .def_prop_ro("problem", &PreparedGroups::problem, "What it computes.")
      .def("__repr__", [](const PreparedGroups& self) { return self.repr(); });
}

}  // namespace

Facts grouped_gemm_facts(const CutlassPyKernel& kernel) { return gemm_facts(kernel); }

void bind_grouped_gemm(nb::module_& m) {
  m.def(
      "grouped_gemm",
      [](nb::handle a, nb::handle b, nb::handle offsets, nb::handle sizes, nb::handle gather, nb::handle out,
         nb::handle c, nb::handle alpha, nb::handle beta, nb::handle bias, nb::handle activation, nb::handle gated,
         nb::handle aux, nb::handle scale_a, nb::handle scale_b, nb::handle scale_out, nb::handle expected,
         nb::handle compute, nb::handle out_dtype, nb::handle deterministic, nb::handle kernel, nb::handle stream) {
        const Keywords k = keywords_of(out, c, alpha, beta, bias, activation, gated, aux, scale_a, scale_b, scale_out,
                                       compute, out_dtype, deterministic, kernel, stream);
        return grouping::grouped_gemm(a, b, {offsets, sizes, gather, expected}, k);
      },
      "a"_a.none(), "b"_a.none(), nb::kw_only(), "offsets"_a = nb::none(), "sizes"_a = nb::none(),
      "gather"_a = nb::none(), "out"_a = nb::none(), "c"_a = nb::none(), "alpha"_a.none() = 1.0, "beta"_a = nb::none(),
      "bias"_a = nb::none(), "activation"_a = nb::none(), "gated"_a = nb::none(), "aux"_a = nb::none(),
      "scale_a"_a = nb::none(), "scale_b"_a = nb::none(), "scale_out"_a = nb::none(), "expected"_a = nb::none(),
      "compute"_a = nb::none(), "out_dtype"_a = nb::none(), "deterministic"_a.none() = false, "kernel"_a = nb::none(),
      "stream"_a = nb::none(), kDoc);
  m.def(
      "grouped_problem",
      [](nb::handle a, nb::handle b, nb::handle offsets, nb::handle sizes, nb::handle expected,
         const nb::typed<nb::dict, nb::str, nb::any>& keywords, nb::handle gather) {
        return grouping::problem_of(a, b, {offsets, sizes, gather, expected}, keywords_from(keywords));
      },
      "a"_a.none(), "b"_a.none(), "offsets"_a.none(), "sizes"_a.none(), "expected"_a.none(), "keywords"_a,
      "gather"_a = nb::none(),
      "The canonical problem of a grouped_gemm call with these of gemm's keywords, which is not run. Takes TensorSpecs "
      "as well as arrays.");
  m.def(
      "grouped_scratch_bytes",
      [](nb::handle a, nb::handle b, nb::handle offsets, nb::handle sizes, nb::handle gather,
         const nb::typed<nb::dict, nb::str, nb::any>& keywords, nb::handle plan, int sm_count) {
        const grouping::Asked asked{offsets, sizes, gather, nb::none()};
        return grouping::scratch_bytes_of(a, b, asked, keywords_from(keywords), plan, sm_count);
      },
      "a"_a, "b"_a, "offsets"_a.none(), "sizes"_a.none(), "gather"_a.none(), "keywords"_a, "plan"_a, "sm_count"_a,
      "As `scratch_bytes`, of a grouped_gemm call.");
  m.def(
      "group_ends",
      [](nb::handle a, nb::handle b, nb::handle offsets, nb::handle sizes, nb::handle gather,
         const nb::typed<nb::dict, nb::str, nb::any>& keywords) {
        return grouping::ends_of(a, b, {offsets, sizes, gather, nb::none()}, keywords_from(keywords));
      },
      "a"_a.none(), "b"_a.none(), "offsets"_a.none(), "sizes"_a.none(), "gather"_a.none(), "keywords"_a,
      "Where the groups of a grouped_gemm call end, or how many first rows of each matrix are in use; empty where a "
      "TensorSpec tells groups apart. Waits for numbers on the device.");
  bind_prepared_groups(m);
  m.def(
      "xla_grouped_gemm_handler",
      [] { return nb::capsule(reinterpret_cast<void*>(&xla_handler<grouping::XlaGroupedGemm>)); },
      "As `xla_gemm_handler`, of grouped_gemm.");
}

}  // namespace cutlass_py
