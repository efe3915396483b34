#include "runtime/registry.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "arrays/refusal.h"
#include "runtime/device.h"

namespace cutlass_py {
namespace {

// XLA's threads, which do not hold the GIL, may be the first to need a kernel. Libraries stay loaded for the life of
// the process.
struct Registry {
  std::mutex mutex;
  std::list<KernelEntry> kernels;
  std::list<KernelEntry> forgotten;  // what has found one, perhaps without the GIL, reads it still
  std::unordered_map<std::string, std::list<KernelEntry>::iterator> by_name;
  std::unordered_map<std::string, const CutlassPyLibrary*> libraries;  // by path
};

Registry& registry() {
  static auto* made = new Registry();
  return *made;
}

// From the extension's own path: a module's __file__ points elsewhere in an editable install.
std::string directory_of_extension() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&directory_of_extension), &info) || !info.dli_fname) return ".";
  std::string path = info.dli_fname;
  return path.substr(0, path.find_last_of('/'));
}

bool is_cubin(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr head{};
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  return file && std::memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_machine == EM_CUDA;
}

// A library of the one kernel that a cubin holds.
struct CubinLibrary {
  const CutlassPyKernel* kernels[1];
  CutlassPyLibrary library;

  static const CutlassPyLibrary* load(const std::string& path) {
    const CutlassPyLibrary* package = builtin_library();
    std::ifstream file(path, std::ios::binary);
    const std::string cubin{std::istreambuf_iterator<char>(file), {}};
    const CutlassPyKernel* kernel =
        package && package->load_cubin ? package->load_cubin(cubin.data(), cubin.size()) : nullptr;
    if (!kernel) {
      throw std::runtime_error(path + (package
                                           ? " holds no kernel of this version of the kernel ABI"
                                           : " is a cubin, which a package that was built without CUDA cannot load"));
    }
    auto* made = new CubinLibrary{{kernel}, *package};
    made->library.count = 1, made->library.kernels = made->kernels;
    return &made->library;
  }
};

const CutlassPyLibrary* load_shared_object(const std::string& path, void*& handle) {
  handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw std::runtime_error("cannot load the kernel library: " + std::string(dlerror()));
  auto entry = reinterpret_cast<CutlassPyLibraryEntry>(dlsym(handle, "cutlass_py_library"));
  const CutlassPyLibrary* library = entry ? entry() : nullptr;
  if (library && library->abi == CUTLASS_PY_ABI) return library;
  dlclose(handle);
  throw std::runtime_error(path + (library ? " was built for another version of the kernel ABI"
                                           : " is not a kernel library: it does not export cutlass_py_library"));
}

// Whether it has the kernel that is asked for, if one is.
bool holds(const CutlassPyLibrary& library, const std::string& kernel) {
  if (kernel.empty()) return true;
  const auto end = library.kernels + library.count;
  return std::any_of(library.kernels, end, [&](const CutlassPyKernel* each) { return each->name == kernel; });
}

}  // namespace

const CutlassPyLibrary* load_library(const std::string& path, const std::string& only) {
  Registry& t = registry();
  const bool cubin = is_cubin(path);
  if (cubin) builtin_library();  // which loads it, and is itself loaded by this function
  std::lock_guard lock(t.mutex);
  if (auto found = t.libraries.find(path); found != t.libraries.end()) {
    return holds(*found->second, only) ? found->second : nullptr;
  }
  void* handle = nullptr;
  const CutlassPyLibrary* library = cubin ? CubinLibrary::load(path) : load_shared_object(path, handle);
  if (!holds(*library, only)) {
    if (handle) dlclose(handle);
    return nullptr;
  }
  for (int i = 0; i < library->count; ++i) {
    const CutlassPyKernel* kernel = library->kernels[i];
    if (t.by_name.count(kernel->name) || (!only.empty() && kernel->name != only)) continue;
    t.kernels.push_back({kernel, library, path});
    t.by_name[kernel->name] = std::prev(t.kernels.end());
  }
  return t.libraries[path] = library;
}

const CutlassPyLibrary* builtin_library() {
#ifdef CUTLASS_PY_WITH_CUDA
  static const CutlassPyLibrary* library = load_library(directory_of_extension() + "/libcutlass_py_kernels.so");
  return library;
#else
  return nullptr;
#endif
}

std::array<int, 9> clusters_at_once(int ordinal) {
  const device::Info& info = device::info(ordinal);
  std::array<int, 9> clusters{0, info.sm_count};
  for (int size = 2; size < int(clusters.size()); ++size) clusters[size_t(size)] = info.sm_count / size;
  const CutlassPyLibrary* package = info.cc >= 90 ? builtin_library() : nullptr;
  if (!package || !package->clusters_at_once) return clusters;
  device::Guard guard(ordinal);
  for (int size = 2; size < int(clusters.size()); ++size) {
    int32_t told = 0;
    if (package->clusters_at_once(size, ordinal, &told) == 0) clusters[size_t(size)] = told;
  }
  return clusters;
}

const std::list<KernelEntry>& loaded_kernels() {
  builtin_library();
  return registry().kernels;
}

const KernelEntry* find_kernel(const std::string& name) {
  builtin_library();
  Registry& t = registry();
  std::lock_guard lock(t.mutex);
  const auto found = t.by_name.find(name);
  return found == t.by_name.end() ? nullptr : &*found->second;
}

const KernelEntry& loaded_kernel(const std::string& name) {
  if (const KernelEntry* entry = find_kernel(name)) return *entry;
  throw std::runtime_error(in_operation("kernel " + name + " is not loaded"));
}

void forget_kernel(const std::string& name) {
  Registry& t = registry();
  std::lock_guard lock(t.mutex);
  const auto found = t.by_name.find(name);
  if (found == t.by_name.end()) return;
  const CutlassPyLibrary* origin = found->second->origin;
  t.forgotten.splice(t.forgotten.end(), t.kernels, found->second);
  t.by_name.erase(found);
  for (auto known = t.libraries.begin(); known != t.libraries.end();) {
    known = known->second == origin ? t.libraries.erase(known) : std::next(known);
  }
}

}  // namespace cutlass_py
