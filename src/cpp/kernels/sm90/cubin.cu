// Loads a kernel from a cubin that brings its own descriptor (cubin.cuh), and counts the clusters that a device runs at
// once: what the package's library alone has of these kernels.
//
// The ELF format is that of <elf.h>. The driver loads a cubin for whatever devices run it (CUDA driver API, library
// management).
#include "kernels/sm90/cubin.cuh"

#include <elf.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/sm90/launch.h"

namespace cutlass_py::sm90 {
namespace {

#define CUTLASS_PY_TEXT_OF(NAME) CUTLASS_PY_TEXT(NAME)
#define CUTLASS_PY_TEXT(NAME) #NAME
constexpr int kMostBlocks = 8;  // of a cluster that every device takes
constexpr const char* kKernel = CUTLASS_PY_TEXT_OF(CUTLASS_PY_CUBIN_KERNEL);
constexpr const char* kJoining = CUTLASS_PY_TEXT_OF(CUTLASS_PY_CUBIN_JOINING);
constexpr const char* kDescriptor = CUTLASS_PY_TEXT_OF(CUTLASS_PY_CUBIN_DESCRIPTOR);

// A file in memory, of which nothing is read that does not lie within it.
struct Bytes {
  const char* begin;
  size_t size;

  template <class T>
  bool read(T& to, size_t at) const {
    if (at > size || size - at < sizeof to) return false;
    std::memcpy(&to, begin + at, sizeof to);
    return true;
  }
  bool holds(const char* text, size_t at) const {
    const size_t length = std::strlen(text) + 1;
    return at <= size && size - at >= length && std::memcmp(begin + at, text, length) == 0;
  }
};

// Where in the file the object lies that a symbol names; false where there is none.
bool find_object(const Bytes& file, const char* name, size_t& at) {
  Elf64_Ehdr head;
  if (!file.read(head, 0) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_ident[EI_CLASS] != ELFCLASS64) {
    return false;
  }
  const auto section = [&](unsigned i, Elf64_Shdr& to) {
    return i < head.e_shnum && file.read(to, head.e_shoff + i * sizeof to);
  };
  Elf64_Shdr table, texts, place;
  for (unsigned i = 0; section(i, table); ++i) {
    if (table.sh_type != SHT_SYMTAB || !section(table.sh_link, texts)) continue;
    Elf64_Sym symbol;
    for (size_t j = 0; j < table.sh_size / sizeof symbol && file.read(symbol, table.sh_offset + j * sizeof symbol);
         ++j) {
      if (!file.holds(name, texts.sh_offset + symbol.st_name) || !section(symbol.st_shndx, place)) continue;
      at = place.sh_offset + symbol.st_value;
      return true;
    }
  }
  return false;
}

bool read(CubinDescriptor& to, const Bytes& file) {
  size_t at;
  int32_t head[2];
  return find_object(file, kDescriptor, at) && file.read(head, at) && head[0] == kCubinVersion &&
         head[1] == int32_t(sizeof to) && file.read(to, at);
}

class Cubin {
 public:
  static const CutlassPyKernel* load(const Bytes& file) {
    auto made = std::make_unique<Cubin>();
    if (!read(made->descriptor_, file)) return nullptr;
    made->code_.assign(file.begin, file.size);
    made->describe();
    return &made.release()->kernel_;  // plans may hold it until the end
  }

 private:
  void describe() {
    facts_ = descriptor_.facts;
    facts_.a = descriptor_.a.characters, facts_.b = descriptor_.b.characters, facts_.acc = descriptor_.acc.characters;
    facts_.c = descriptor_.c.characters, facts_.d = descriptor_.d.characters;
    kernel_ = {
        descriptor_.name.characters, &facts_, &Cubin::workspace_size, &Cubin::run, nullptr, CUTLASS_PY_GEMM, this};
  }

  static Cubin& of(const CutlassPyLaunch& launch) {
    return *static_cast<Cubin*>(const_cast<void*>(launch.kernel->context));
  }
  static size_t workspace_size(const void* arguments, const CutlassPyLaunch* launch) {
    if (!launch->kernel) return 0;
    return sm90::workspace_size(of(*launch).descriptor_.shape, *static_cast<const CutlassPyGemm*>(arguments));
  }
  static int run(const void* arguments, const CutlassPyLaunch* launch) {
    if (!launch->kernel) return cudaErrorInvalidValue;
    return of(*launch).run(*static_cast<const CutlassPyGemm*>(arguments), *launch);
  }

  int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    const Shape& shape = descriptor_.shape;
    if (int error = prepare(kernel_part_, kKernel, shape.shared_bytes, launch.device)) return error;
    Launch made;
    if (int error = fill(made, kernel_part_.launcher, shape, g, launch)) return error;
    void* parameters[] = {&made.p};
    if (int error = this->launch(kernel_part_, made.config, parameters, launch.device)) return error;
    Joining joining;
    if (!fill(joining, shape, g, launch)) return 0;
    if (int error = prepare(joining_part_, kJoining, 0, launch.device)) return error;
    parameters[0] = &joining.p;
    return this->launch(joining_part_, joining.config, parameters, launch.device);
  }

  // One of its functions.
  struct Part {
    DriverLauncher launcher;
    CUkernel kernel = nullptr;  // what the runtime takes for a function's address, too
  };

  static int launch(const Part& part, const cudaLaunchConfig_t& config, void** parameters, int device) {
    return part.launcher.launch(part.kernel, config, parameters, device);
  }
  int prepare(Part& part, const char* name, int shared_bytes, int device) {
    return part.launcher.prepare(
        device, [&](cudaFunction_t& function) { return load(part.kernel, name, shared_bytes, function); });
  }

  // The function on the current device.
  int load(CUkernel& kernel, const char* name, int shared_bytes, cudaFunction_t& function) {
    static const auto load_data = driver_function<decltype(&cuLibraryLoadData)>("cuLibraryLoadData", 12000);
    static const auto get_kernel = driver_function<decltype(&cuLibraryGetKernel)>("cuLibraryGetKernel", 12000);
    static const auto get_function = driver_function<decltype(&cuKernelGetFunction)>("cuKernelGetFunction", 12000);
    static const auto set = driver_function<decltype(&cuFuncSetAttribute)>("cuFuncSetAttribute", 9000);
    if (!load_data || !get_kernel || !get_function || !set) return cudaErrorInsufficientDriver;
    std::lock_guard lock(mutex_);
    if (!library_) {
      CUlibrary loaded;
      const CUresult error = load_data(&loaded, code_.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (error == CUDA_ERROR_NO_BINARY_FOR_GPU) return cudaErrorNoKernelImageForDevice;
      if (error != CUDA_SUCCESS) return cudaErrorInvalidKernelImage;
      library_ = loaded;
    }
    if (!kernel && get_kernel(&kernel, library_, name) != CUDA_SUCCESS) return cudaErrorInvalidDeviceFunction;
    if (get_function(&function, kernel) != CUDA_SUCCESS) return cudaErrorInvalidDeviceFunction;
    const CUresult error = set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
    return error == CUDA_SUCCESS ? 0 : cudaErrorInvalidValue;
  }

  std::string code_;
  CubinDescriptor descriptor_{};
  CutlassPyGemmFacts facts_{};
  CutlassPyKernel kernel_{};
  std::mutex mutex_;
  CUlibrary library_ = nullptr;
  Part kernel_part_, joining_part_;
};

// The driver counts clusters for a kernel, not for a device.
__global__ void nothing() {}

// GPCs are cut differently on each card: multiprocessors by the size do not tell it. With all of the shared memory that
// a block may have, a multiprocessor runs one.
int clusters_at_once(int size, int device, int& clusters) {
  static DriverLauncher launchers[kMostBlocks + 1];  // by size: each remembers one answer for a device
  if (size < 1 || size > kMostBlocks) return cudaErrorInvalidValue;
  int shared_bytes = 0;
  if (int error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) {
    cudaGetLastError();
    return error;
  }
  DriverLauncher& launcher = launchers[size];
  if (int error = launcher.prepare(reinterpret_cast<const void*>(&nothing), shared_bytes, device)) return error;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension, attribute.val.clusterDim = {unsigned(size), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = unsigned(size) * 1024, config.blockDim = unsigned(kThreads);  // more than any device runs at once
  config.dynamicSmemBytes = size_t(shared_bytes), config.attrs = &attribute, config.numAttrs = 1;
  return launcher.clusters_at_once(config, device, clusters);
}

}  // namespace
}  // namespace cutlass_py::sm90

extern "C" int cutlass_py_clusters_at_once(int32_t size, int32_t device, int32_t* clusters) {
  return cutlass_py::sm90::clusters_at_once(size, device, *clusters);
}

extern "C" const CutlassPyKernel* cutlass_py_load_cubin(const void* cubin, size_t size) {
  return cutlass_py::sm90::Cubin::load({static_cast<const char*>(cubin), size});
}
