// Kernels by name: loads kernel libraries (shared objects that export cutlass_py_library), and cubins, and finds
// kernels in them.
#pragma once

#include <array>
#include <list>
#include <string>

#include "abi/kernel.h"

namespace cutlass_py {

struct KernelEntry {
  const CutlassPyKernel* kernel;
  const CutlassPyLibrary* origin;
  std::string path;  // of the library's file
};

// Loads a library, or a cubin, once; throws std::runtime_error with the loader's reason, or on another ABI. `only`: the
// one kernel of it that joins the others; null, and nothing is loaded, where it holds none of that name.
const CutlassPyLibrary* load_library(const std::string& path, const std::string& only = "");

// The library built with the package, which lies beside the extension; null in a package built without CUDA.
const CutlassPyLibrary* builtin_library();

// By the size of a cluster, how many of it a device runs at once, with a multiprocessor for every block. Where that
// library does not tell, as many as there are multiprocessors for; of size 0 none. Loads kernels: not for warm calls.
std::array<int, 9> clusters_at_once(int ordinal);

// All kernels of all loaded libraries. `find_kernel` returns null for an unknown name; what it returns stays.
const std::list<KernelEntry>& loaded_kernels();
const KernelEntry* find_kernel(const std::string& name);
const KernelEntry& loaded_kernel(const std::string& name);  // throws std::runtime_error where it is not there

// A kernel is not found any more, nor is its library known, which stays loaded: plans may hold it.
void forget_kernel(const std::string& name);

}  // namespace cutlass_py
