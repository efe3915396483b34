// A product with few rows, or few columns, as the C ABI has it, from the configuration that gemv_cpp.py writes: dtypes
// of A, B and D, the layout, and whether A is the matrix (`swap`) and the columns of B are the vectors, or B and the
// rows of A.
#pragma once

#include "abi/kernel.h"
#include "kernels/common/descriptor.cuh"
#include "kernels/common/driver.cuh"
#include "kernels/common/queue.cuh"
#include "kernels/gemv/kernel.cuh"

namespace cutlass_py {
namespace gemv {

// One for all kernels that launch it.
template <class MatrixDtype, class VectorDtype, bool along_k, int rows, int bytes>
struct Function {
  inline static DriverLauncher launcher;

  static int run(const cudaLaunchConfig_t& config, Parameters& p, int device) {
    auto* function = &kernel<MatrixDtype, VectorDtype, along_k, rows, bytes>;
    if (int error = launcher.prepare(reinterpret_cast<const void*>(function), 0, device)) return error;
    return launcher.launch(function, config, p, device);
  }
};

// Of an epilogue: whether it is alpha * acc.
inline bool only_factor(const CutlassPyEpilogue& e) {
  const bool arrays = e.bias.data || e.scale_a.data || e.scale_b.data || e.alpha.device || e.scale_out.device;
  const bool reads_c = e.c.data && (e.beta.device || e.beta.value != 0);
  return !arrays && !reads_c && e.activation == 0 && e.scale_out.value == 1;
}

}  // namespace gemv

template <class Config>
struct Gemv {
  using A = typename Config::A;
  using B = typename Config::B;
  using MatrixDtype = std::conditional_t<Config::swap, A, B>;
  using VectorDtype = std::conditional_t<Config::swap, B, A>;
  static constexpr bool a_along_k = !Config::a_along, b_along_k = !Config::b_along;
  static constexpr bool along_k = Config::swap ? a_along_k : b_along_k;
  static constexpr int size = int(sizeof(typename MatrixDtype::Type));

  static constexpr CutlassPyGemmFacts facts() {
    constexpr gemv::Matrix x{size, along_k, 16};
    constexpr int bytes = gemv::kShared + gemv::kMostWarps * x.columns() * gemv::kMostRows * x.number();
    return {A::name,
            B::name,
            Config::Sum::name,
            Config::D::name,
            Config::D::name,
            {Config::a_along ? 'n' : 't', Config::b_along ? 't' : 'n', '\0'},
            0,
            {gemv::kMostRows, x.columns(), x.span(gemv::kMostRows)},
            {1, 1, 1},
            32 * gemv::kMostWarps,
            bytes,
            1,
            1,
            1,
            1,
            1,
            0};
  }
  static size_t workspace_size(const CutlassPyGemm&, const CutlassPyLaunch&) { return 0; }
  static int registers() {
    return registers_of(reinterpret_cast<const void*>(&gemv::kernel<MatrixDtype, VectorDtype, along_k, 1, 16>));
  }

  static int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    gemv::Parameters p{};
    const auto side = [&](bool is_a) {
      return Side(is_a ? g.a : g.b, is_a ? g.lda : g.ldb, is_a ? g.batch_a : g.batch_b);
    };
    const Side matrix = side(Config::swap), vectors = side(!Config::swap);
    constexpr int vector_size = int(sizeof(typename VectorDtype::Type));
    constexpr bool vectors_along_k = Config::swap ? b_along_k : a_along_k;
    p.matrix = matrix.data, p.line = matrix.line * size, p.matrix_batch = matrix.batch * size;
    p.vectors = vectors.data, p.vectors_batch = vectors.batch * vector_size;
    p.row = (vectors_along_k ? vectors.line : 1) * vector_size,
    p.step = (vectors_along_k ? 1 : vectors.line) * vector_size;
    p.rows = Config::swap ? g.n : g.m, p.columns = Config::swap ? g.m : g.n, p.k = g.k, p.batch = g.batch;
    p.columns_are_rows = Config::swap;
    p.only_factor = gemv::only_factor(g.epilogue), p.factor = g.epilogue.alpha.value;
    const CutlassPyArray d{g.d, int32_t(Config::d), g.ldd, 1, g.batch_d};
    p.finish = finish_of(g.epilogue, d, Config::factors, [](const CutlassPyArray& x) { return x; });

    const int64_t begins = int64_t(reinterpret_cast<uintptr_t>(p.matrix)) | p.line | (g.batch > 1 ? p.matrix_batch : 0);
    const int granule = gemv::granule_of(size, begins, int64_t(along_k ? p.k : p.columns) * size);
    const gemv::Matrix lies{size, along_k, granule};
    const gemv::Shape shape =
        gemv::best_shape(lies, {p.rows, p.columns, p.k, p.batch}, p.only_factor, {launch.sm_count});
    p.sharing = shape.sharing;
    const int64_t groups = ceil_div(p.rows, shape.rows) * p.batch;
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim =
        dim3(unsigned(ceil_div(p.columns, shape.columns(lies))), unsigned(groups < 65535 ? groups : 65535));
    config.blockDim = unsigned(32 * shape.warps), config.stream = cudaStream_t(launch.stream);
    config.attrs = &overlap, config.numAttrs = launch.overlap ? 1 : 0;
    return shape.rows == 1 ? run<1>(granule, config, p, launch.device)
                           : run<gemv::kMostRows>(granule, config, p, launch.device);
  }

 private:
  struct Side {
    const char* data;
    int64_t line, batch;

    Side(const void* data, int64_t line, int64_t batch)
        : data(static_cast<const char*>(data)), line(line), batch(batch) {}
  };

  template <int rows>
  static int run(int granule, const cudaLaunchConfig_t& config, gemv::Parameters& p, int device) {
    if (granule == 16) return gemv::Function<MatrixDtype, VectorDtype, along_k, rows, 16>::run(config, p, device);
    if constexpr (size < 4) {
      if (granule == 4) return gemv::Function<MatrixDtype, VectorDtype, along_k, rows, 4>::run(config, p, device);
    }
    return gemv::Function<MatrixDtype, VectorDtype, along_k, rows, size>::run(config, p, device);
  }
};

}  // namespace cutlass_py
