// 2.x kernels of groups for the simulated GPU: which tiles there are and where their matrices lie, as those have it,
// and plain sums in the mainloop's place.
#include <string>

#include "kernels.h"
#include "kernels/common/descriptor.cuh"
#include "kernels/common/driver.cuh"
#include "kernels/cutlass2x/groups.cuh"

namespace simulated {
namespace {

using namespace cutlass_py;

struct Factors {
  float alpha, beta;
};

constexpr int kTile = 64, kThreads = 64;

template <bool rows_a, bool rows_b>
void grouped(const Parameters2x<Factors> p) {
  Tiles2x<kTile, kTile, Parameters2x<Factors>> tiles(p);
  while (tiles.next()) {
    const Product2x x = tiles.product();
    const int64_t lda = p.leading(p.a, &CutlassPyExtents::lda, x), ldb = p.leading(p.b, &CutlassPyExtents::ldb, x),
                  ldc = p.leading(p.c, &CutlassPyExtents::ldc, x), ldd = p.leading(p.d, &CutlassPyExtents::ldd, x);
    const auto *a = p.template address<const float>(p.a, x), *b = p.template address<const float>(p.b, x),
               *c = p.template address<const float>(p.c, x);
    auto* d = p.template address<float>(p.d, x);
    const int row = tiles.m * kTile + int(threadIdx.x);
    for (int column = tiles.n * kTile; row < x.m && column < min(x.n, (tiles.n + 1) * kTile); ++column) {
      float sum = 0;
      for (int64_t k = 0; k < x.k; ++k)
        sum += a[rows_a ? row * lda + k : k * lda + row] * b[rows_b ? k * ldb + column : column * ldb + k];
      d[row * ldd + column] = p.output.alpha * sum + (p.output.beta ? p.output.beta * c[row * ldc + column] : 0);
    }
  }
}

template <bool rows_a, bool rows_b>
struct Grouped {
  static constexpr CutlassPyGemmFacts facts() {
    return {"f32",     "f32",
            "f32",     "f32",
            "f32",     {rows_a ? 't' : 'n', rows_b ? 't' : 'n', '\0'},
            2,         {kTile, kTile, 8},
            {1, 1, 1}, kThreads,
            0,         4,
            1,         1,
            1,         1,
            1};
  }
  static int registers() { return 0; }
  static size_t workspace_size(const CutlassPyGemm&, const CutlassPyLaunch&) { return 0; }
  static int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    const int64_t tiles = most_tiles2x(g, kTile, kTile);
    Parameters2x<Factors> p = parameters2x<Factors>(g, rows_a, rows_b);
    const CutlassPyEpilogue& e = g.epilogue;
    p.output = {float(e.alpha.value), e.bias.data ? 1.0f : float(e.beta.value)};
    cudaLaunchConfig_t config{};
    config.gridDim = unsigned(min(tiles, int64_t(3))), config.blockDim = unsigned(kThreads);
    config.stream = cudaStream_t(launch.stream);
    return DriverLauncher().launch(&grouped<rows_a, rows_b>, config, p, launch.device);
  }
};

template <bool rows_a, bool rows_b>
CutlassPyKernel kernel() {
  static const std::string name = std::string("simt_grouped_f32_f32_f32_f32_") + (rows_a ? 't' : 'n') +
                                  (rows_b ? 't' : 'n') + "_64x64x8_32x32x8_s4_a1_persistent_linearc_told";
  using Launcher = Grouped<rows_a, rows_b>;
  return describe<Launcher>(name.c_str(), &Launcher::run);
}

const CutlassPyKernel all[] = {kernel<true, true>(), kernel<true, false>(), kernel<false, true>(),
                               kernel<false, false>()};

const bool added = [] {
  for (const CutlassPyKernel& each : all) kernels().push_back(&each);
  return true;
}();

}  // namespace
}  // namespace simulated
