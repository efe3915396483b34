// The extension module: what it has beside arrays (bind_arrays.cpp) and operations (bind_*.cpp), in names and
// docstrings. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <iterator>
#include <utility>

#include "arrays/dlpack_view.h"
#include "arrays/python_error.h"
#include "build_info.h"
#include "frontends/bindings.h"
#include "runtime/device.h"
#include "runtime/instrumentation.h"
#include "runtime/plan_table.h"
#include "runtime/registry.h"

namespace cutlass_py {
namespace {

using namespace nb::literals;

Facts facts_dict(const CutlassPyKernel& kernel) {
  using FactsOf = Facts (*)(const CutlassPyKernel&);
  constexpr FactsOf by_operation[] = {
#define CUTLASS_PY_OPERATION(NAME) &NAME##_facts,
#include "operations.inc"
#undef CUTLASS_PY_OPERATION
  };
  const bool known = kernel.operation >= 0 && size_t(kernel.operation) < std::size(by_operation);
  return known ? by_operation[kernel.operation](kernel) : Facts();  // a user's kernel may say anything
}

nb::typed<nb::dict, nb::str, nb::str> build_info() {
  nb::typed<nb::dict, nb::str, nb::str> info;
  info["cuda"] = CUTLASS_PY_BUILD_CUDA, info["nvcc"] = CUTLASS_PY_BUILD_NVCC;
  info["cutlass"] = CUTLASS_PY_BUILD_CUTLASS, info["dlpack"] = CUTLASS_PY_BUILD_DLPACK;
  info["archs"] = CUTLASS_PY_BUILD_ARCHS, info["kernels"] = CUTLASS_PY_BUILD_KERNELS;
  return info;
}

}  // namespace
}  // namespace cutlass_py

NB_MODULE(_core, m) {
  using namespace cutlass_py;
  m.doc() = "The warm path of cutlass_py: DLPack views, canonical problems, the plan table, launches.";

  nb::set_leak_warnings(false);  // the tables of types, dtypes and plans live as long as the process, and hold objects

  nb::exception<CudaError>(m, "CudaError", PyExc_RuntimeError).attr("__doc__") =
      "A CUDA or CUTLASS call failed: the message has the call, and the error's name and text.";
  bind_errors(m);

  m.def(
      "trace", [](unsigned wanted) { return instrumentation::wanted.exchange(wanted); }, "wanted"_a,
      "Set what is told of calls (bits, instrumentation.h); returns what was told before.");
  m.def("has_ranges", &instrumentation::has_ranges, "Whether this build has NVTX.");
  m.def("clear_plans", &clear_plans, "Forget every choice made so far: the next call of each class selects again.");

  m.def(
      "kernel_facts",
      [] {
        nb::typed<nb::dict, nb::str, Facts> all;
        for (const KernelEntry& entry : loaded_kernels()) all[entry.kernel->name] = facts_dict(*entry.kernel);
        return all;
      },
      "Loaded kernels by name, with what their C++ types say of themselves.");
  m.def("kernel_abi", [] { return CUTLASS_PY_ABI; }, "Version of the interface to kernel libraries (kernel.h).");
  m.def(
      "kernel_registers",
      [](const std::string& name) {
        const KernelEntry* entry = find_kernel(name);
        return entry && entry->kernel->registers && device::count() ? entry->kernel->registers() : 0;
      },
      "name"_a, "Registers per thread of a loaded kernel on the current device; 0 where there is no answer.");
  m.def(
      "kernel_library",
      [](const std::string& name) {
        const KernelEntry* entry = find_kernel(name);
        if (!entry) throw std::invalid_argument(in_operation("kernel " + name + " is not loaded"));
        return entry->path;
      },
      "name"_a, "Path of the library that a loaded kernel lies in.");
  m.def(
      "load_library",
      [](const std::string& path, const std::string& kernel) { return load_library(path, kernel) != nullptr; },
      "path"_a, "kernel"_a,
      "Load a library for one of its kernels, which joins kernel_facts(); False where it holds none of that name. "
      "Loading it again does nothing.");
  m.def("forget_kernel", &forget_kernel, "name"_a,
        "A loaded kernel is not found any more; what has found it may go on. Another one may have its name then.");
  m.def(
      "allow_jit", [](bool allowed) { return std::exchange(jit_allowed, allowed); }, "allowed"_a,
      "Set whether this thread's calls may take kernels that are yet to be compiled; returns what held before.");
  m.def("described_type", &described_type, "value"_a.none(), "Its type with an article, for messages: 'an int'.");
  m.def("jit_allowed", [] { return jit_allowed; }, "Whether this thread is within `jit`.");
  m.def(
      "allow_tuning", [](int choices) { return std::exchange(tuning_allowed, choices); }, "choices"_a,
      "Set how many choices of a new class this thread's calls measure, 0 for none; returns what held before.");
  m.def(
      "tuning_allowed", [] { return tuning_allowed; },
      "How many choices of a new class this thread's calls measure: 0 outside of `autotuning`.");
  m.def(
      "ask_batch_invariance", [](bool asked) { return std::exchange(batch_invariance_asked, asked); }, "asked"_a,
      "Set whether this thread's calls are as with batch_invariant=True; returns what held before.");
  m.def(
      "batch_invariance_asked", [] { return batch_invariance_asked; },
      "Whether this thread is within `batch_invariant`.");
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
  m.def(
      "clusters_at_once",
      [](int ordinal) {
        return nb::typed<nb::tuple, int, nb::ellipsis>(nb::tuple(nb::cast(clusters_at_once(ordinal))));
      },
      "device_id"_a, "How many clusters a device runs at once, by their size, from 0 to 8.");
  m.def("build_info", &build_info, "How the package was built.");

  bind_arrays(m);
#define CUTLASS_PY_OPERATION(NAME) bind_##NAME(m);
#include "operations.inc"
#undef CUTLASS_PY_OPERATION
}
