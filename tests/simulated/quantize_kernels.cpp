// The kernels that quantize, all of them, for the simulated GPU.
#include "kernels/quantize/quantize.cuh"

#include <string>

#include "kernels.h"

namespace simulated {
namespace {

using namespace cutlass_py::quantization;

template <class X_, class Q_, int rows_, int cols_>
struct Config {
  using X = X_;
  using Q = Q_;
  static constexpr int rows = rows_, cols = cols_;
};

template <class X, class Q, int rows, int cols>
CutlassPyKernel kernel(const char* scaling) {
  static const std::string name = std::string("quantize_") + X::name + "_" + Q::name + "_" + scaling;
  using Launcher = cutlass_py::Quantize<Config<X, Q, rows, cols>>;
  return cutlass_py::describe<Launcher>(name.c_str(), &Launcher::run);
}

#define EACH(X, Q)                                                                        \
  kernel<X, Q, 0, 0>("tensor"), kernel<X, Q, 1, 0>("row"), kernel<X, Q, 1, 128>("1x128"), \
      kernel<X, Q, 128, 128>("128x128"),
#define EACH_OF(X) EACH(X, E4m3) EACH(X, E5m2) EACH(X, S8)
const CutlassPyKernel all[] = {EACH_OF(F32) EACH_OF(Bf16) EACH_OF(F16) EACH_OF(F64)};

const bool added = [] {
  for (const CutlassPyKernel& each : all) kernels().push_back(&each);
  return true;
}();

}  // namespace
}  // namespace simulated
