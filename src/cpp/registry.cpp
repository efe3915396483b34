#include "registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace cutlass_py {
namespace {

// Written under `table`: XLA's threads, which do not hold the GIL, may be the first to need a kernel. Libraries stay
// loaded for the life of the process.
std::vector<KernelEntry>& kernels() {
  static auto* list = new std::vector<KernelEntry>();
  return *list;
}
std::unordered_map<std::string, KernelEntry>& by_name() {
  static auto* map = new std::unordered_map<std::string, KernelEntry>();
  return *map;
}

std::unordered_map<std::string, const CutlassPyLibrary*>& libraries() {  // by path
  static auto* map = new std::unordered_map<std::string, const CutlassPyLibrary*>();
  return *map;
}

std::mutex table;  // guards all three

// From the extension's own path: a module's __file__ points elsewhere in an editable install.
std::string directory_of_extension() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&directory_of_extension), &info) || !info.dli_fname) return ".";
  std::string path = info.dli_fname;
  return path.substr(0, path.find_last_of('/'));
}

}  // namespace

const CutlassPyLibrary* load_library(const std::string& path) {
  std::lock_guard lock(table);
  if (auto found = libraries().find(path); found != libraries().end()) return found->second;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw std::runtime_error("cannot load the kernel library: " + std::string(dlerror()));
  auto entry = reinterpret_cast<CutlassPyLibraryEntry>(dlsym(handle, "cutlass_py_library"));
  const CutlassPyLibrary* library = entry ? entry() : nullptr;
  if (!library || library->abi != CUTLASS_PY_ABI) {
    dlclose(handle);
    throw std::runtime_error(path + (library ? " was built for another version of the kernel ABI"
                                             : " is not a kernel library: it does not export cutlass_py_library"));
  }
  for (int i = 0; i < library->count; ++i) {
    const KernelEntry kernel{library->kernels[i], library, path};
    if (by_name().emplace(kernel.kernel->name, kernel).second) kernels().push_back(kernel);
  }
  return libraries()[path] = library;
}

const CutlassPyLibrary* builtin_library() {
#ifdef CUTLASS_PY_WITH_CUDA
  static const CutlassPyLibrary* library = load_library(directory_of_extension() + "/libcutlass_py_kernels.so");
  return library;
#else
  return nullptr;
#endif
}

const std::vector<KernelEntry>& loaded_kernels() {
  builtin_library();
  return kernels();
}

const KernelEntry* find_kernel(const std::string& name) {
  builtin_library();
  std::lock_guard lock(table);
  auto found = by_name().find(name);
  return found == by_name().end() ? nullptr : &found->second;
}

void forget_kernel(const std::string& name) {
  std::lock_guard lock(table);
  auto found = by_name().find(name);
  if (found == by_name().end()) return;
  const CutlassPyKernel* kernel = found->second.kernel;
  const CutlassPyLibrary* origin = found->second.origin;
  static auto* forgotten = new std::vector<std::unordered_map<std::string, KernelEntry>::node_type>();
  forgotten->push_back(by_name().extract(found));  // what has found it, perhaps without the GIL, reads it still
  auto& all = kernels();
  all.erase(std::remove_if(all.begin(), all.end(), [&](const KernelEntry& entry) { return entry.kernel == kernel; }),
            all.end());
  for (auto known = libraries().begin(); known != libraries().end();) {
    known = known->second == origin ? libraries().erase(known) : std::next(known);
  }
}

}  // namespace cutlass_py
