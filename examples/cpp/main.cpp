// A kernel of cutlass_py from C++: found by what it multiplies, or by the name given, run on device memory, checked.
//
//   gemm [kernel]
//
// Without a GPU it lists the kernels and leaves.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernel.h"

namespace {

constexpr int m = 256, n = 192, k = 128;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Exact f32 of row-major matrices is what this program can fill and check without a type of its own. Every element may
// be read by itself, so that any extent will do.
bool fits(const CutlassPyGemmFacts& f) {
  return !std::strcmp(f.a, "f32") && !std::strcmp(f.b, "f32") && !std::strcmp(f.d, "f32") &&
         !std::strcmp(f.acc, "f32") && !std::strcmp(f.layout, "tt") && f.align_a == 1 && f.align_b == 1;
}

const CutlassPyGemmFacts& facts_of(const CutlassPyKernel& kernel) {
  return *static_cast<const CutlassPyGemmFacts*>(kernel.facts);
}

const CutlassPyKernel* find(const CutlassPyLibrary& library, const char* name) {
  for (int i = 0; i < library.count; ++i) {
    const CutlassPyKernel* kernel = library.kernels[i];
    if (kernel->operation != CUTLASS_PY_GEMM || !fits(facts_of(*kernel))) continue;
    if (!name || !std::strcmp(kernel->name, name)) return kernel;
  }
  return nullptr;
}

void list(const CutlassPyLibrary& library) {
  for (int i = 0; i < library.count; ++i) {
    const CutlassPyKernel& kernel = *library.kernels[i];
    if (kernel.operation != CUTLASS_PY_GEMM) continue;
    const CutlassPyGemmFacts& f = facts_of(kernel);
    std::printf("%s: %s x %s -> %s, tile %dx%dx%d, %d threads\n", kernel.name, f.a, f.b, f.d, f.tile[0], f.tile[1],
                f.tile[2], f.threads);
  }
}

float* on_device(const std::vector<float>& values) {
  float* memory = nullptr;
  check(cudaMalloc(&memory, values.size() * sizeof(float)), "cudaMalloc");
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

// D = A @ B on the current device.
std::vector<float> multiply(const CutlassPyLibrary& library, const CutlassPyKernel& kernel, const std::vector<float>& a,
                            const std::vector<float>& b) {
  std::vector<float> d(m * n);
  CutlassPyGemm g{};
  g.m = m, g.n = n, g.k = k, g.batch = 1;
  g.a = on_device(a), g.lda = k;
  g.b = on_device(b), g.ldb = n;
  g.d = on_device(d), g.ldd = n;
  g.epilogue.alpha.value = g.epilogue.scale_out.value = 1;
  CutlassPyLaunch launch{};  // on the default stream
  launch.swizzle = 1;
  launch.kernel = &kernel;
  check(cudaGetDevice(&launch.device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&launch.sm_count, cudaDevAttrMultiProcessorCount, launch.device),
        "cudaDeviceGetAttribute");
  check(cudaMalloc(&launch.workspace, kernel.workspace_size(&g, &launch) + 1), "cudaMalloc");

  if (const int status = kernel.run(&g, &launch)) {
    std::fprintf(stderr, "%s: %s\n", kernel.name, library.error_string(status));
    std::exit(1);
  }
  check(cudaMemcpy(d.data(), g.d, d.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (void* memory : {const_cast<void*>(g.a), const_cast<void*>(g.b), g.d, launch.workspace}) cudaFree(memory);
  return d;
}

}  // namespace

int main(int count, char** arguments) {
  const CutlassPyLibrary& library = *cutlass_py_library();
  if (library.abi != CUTLASS_PY_ABI) {
    std::fprintf(stderr, "the library has kernel ABI %d; expected %d\n", library.abi, CUTLASS_PY_ABI);
    return 1;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
    list(library);
    std::printf("%d kernels; there is no GPU to run one on\n", library.count);
    return 0;
  }
  const CutlassPyKernel* kernel = find(library, count > 1 ? arguments[1] : nullptr);
  if (!kernel) {
    std::fprintf(stderr, "no kernel multiplies row-major matrices in exact f32%s\n", count > 1 ? " by that name" : "");
    return 1;
  }

  std::vector<float> a(m * k), b(k * n);
  for (size_t i = 0; i < a.size(); ++i) a[i] = float(int(i * 7 % 5) - 2);
  for (size_t i = 0; i < b.size(); ++i) b[i] = float(int(i * 3 % 7) - 3);
  const std::vector<float> d = multiply(library, *kernel, a, b);
  int wrong = 0;
  for (int row = 0; row < m; row += 17) {
    for (int col = 0; col < n; col += 13) {
      float sum = 0;
      for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
      wrong += d[row * n + col] != sum;  // small integers: every sum is exact
    }
  }
  std::printf("%s: %d wrong values\n", kernel->name, wrong);
  return wrong ? 1 : 0;
}
