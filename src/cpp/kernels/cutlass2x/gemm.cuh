// CUTLASS 2.x kernels (mma.sync tensor cores, SIMT) from a configuration struct.
//
// These carry sm80 and everything that TMA cannot: any alignment down to one element, exact f32, complex numbers, and
// f64 (with the sm90 instruction shape on Hopper). D = activation(alpha * acc + beta * C), where a bias along n is a C
// whose rows are all the same. C is read only when beta is not 0, decided at run time inside the epilogue.
#pragma once

#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/epilogue/thread/linear_combination_generic.h"
#include "cutlass/gemm/device/gemm_universal.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/cutlass_types.cuh"
#include "kernels/common/descriptor.cuh"

// CUTLASS has products of 8-bit integers with saturating sums only. Here as everywhere else, sums in s32 wrap around.
template <class A, class B>
struct cutlass::arch::Mma<cutlass::gemm::GemmShape<16, 8, 32>, 32, A, cutlass::layout::RowMajor, B,
                          cutlass::layout::ColumnMajor, int, cutlass::layout::RowMajor, cutlass::arch::OpMultiplyAdd> {
  using Shape = cutlass::gemm::GemmShape<16, 8, 32>;
  using ElementA = A;
  using LayoutA = cutlass::layout::RowMajor;
  using FragmentA = cutlass::Array<A, 16>;
  using ElementB = B;
  using LayoutB = cutlass::layout::ColumnMajor;
  using FragmentB = cutlass::Array<B, 8>;
  using ElementC = int;
  using LayoutC = cutlass::layout::RowMajor;
  using FragmentC = cutlass::Array<int, 4>;
  using Operator = cutlass::arch::OpMultiplyAdd;
  using ArchTag = cutlass::arch::Sm80;

  CUTLASS_DEVICE void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b, const FragmentC& c) const {
    constexpr bool signed_a = std::is_same_v<A, int8_t>, signed_b = std::is_same_v<B, int8_t>;
    const auto* x = reinterpret_cast<const uint32_t*>(&a);
    const auto* y = reinterpret_cast<const uint32_t*>(&b);
#define CUTLASS_PY_MMA(TYPES)                                                                                         \
  asm volatile(                                                                                                       \
      "mma.sync.aligned.m16n8k32.row.col.s32." TYPES ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                                                                \
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]))
    if constexpr (signed_a && signed_b) {
      CUTLASS_PY_MMA("s8.s8");
    } else if constexpr (signed_a) {
      CUTLASS_PY_MMA("s8.u8");
    } else if constexpr (signed_b) {
      CUTLASS_PY_MMA("u8.s8");
    } else {
      CUTLASS_PY_MMA("u8.u8");
    }
#undef CUTLASS_PY_MMA
  }
};

// CUTLASS adds the products of c64 in another order in the corners of a thread's tile: a row's bits would depend on
// where it lies. As it multiplies all other numbers, the order is one.
template <class Shape>
struct cutlass::gemm::thread::MmaGeneric<Shape, cutlass::complex<float>, cutlass::layout::ColumnMajor,
                                         cutlass::complex<float>, cutlass::layout::RowMajor, cutlass::complex<float>,
                                         cutlass::layout::RowMajor, cutlass::arch::OpMultiplyAdd>
    : MmaGeneric<Shape, cutlass::complex<float>, cutlass::layout::ColumnMajor, cutlass::complex<float>,
                 cutlass::layout::RowMajor, cutlass::complex<float>, cutlass::layout::RowMajor,
                 cutlass::arch::OpMultiplyAddComplex> {};

namespace cutlass_py {

// D = alpha * acc + beta * C, and the same through an activation.
template <class Config, class Compute>
using Linear2x = cutlass::epilogue::thread::LinearCombination<typename Config::D, Config::align_d,
                                                              typename Config::Accumulator, Compute>;
template <class Config, class Compute, template <bool> class F>
using Activated2x = cutlass::epilogue::thread::LinearCombinationGeneric<
    ActivationFunctor<F, sizeof(typename Config::D) <= 2, Compute>::template Of, typename Config::D, Config::align_d,
    typename Config::Accumulator, Compute>;

// Through one that the launch tells. Where it is chosen is compiled once, and not for each access of a tile.
template <bool Fast, class T>
struct ToldActivation {
  struct Parameters {
    T values[2] = {};
    activation::Number function{};
  };
  template <class Fragment>
  struct Of {
    using Arguments = Parameters;
    __device__ Fragment operator()(const Fragment& x, const Parameters& p) const {
      Fragment y;
      activation::with_activation<Fast, false>(p.function, [&](auto f) {
#pragma unroll
        for (int i = 0; i < Fragment::kElements; ++i) y[i] = decltype(f)::apply(x[i], p.values);
      });
      return y;
    }
  };
};
template <class Config, class Compute>
using Told2x = cutlass::epilogue::thread::LinearCombinationGeneric<
    ToldActivation<sizeof(typename Config::D) <= 2, Compute>::template Of, typename Config::D, Config::align_d,
    typename Config::Accumulator, Compute, cutlass::epilogue::thread::ScaleType::Default,
    cutlass::FloatRoundStyle::round_to_nearest, true>;

// The device type of a configuration; one that has such a type already is taken at its word (wrap_device_gemm.cuh).
template <class Config, class = void>
struct Device2x {
  using Compute = EpilogueCompute<typename Config::Accumulator, typename Config::D>;
  using Swizzle = std::conditional_t<Config::stream_k, cutlass::gemm::threadblock::ThreadblockSwizzleStreamK,
                                     cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>>;
  using type = cutlass::gemm::device::GemmUniversal<
      typename Config::A, typename Config::LayoutA, typename Config::B, typename Config::LayoutB, typename Config::D,
      cutlass::layout::RowMajor, typename Config::Accumulator, typename Config::OpClass, typename Config::Arch,
      typename Config::Tile, typename Config::Warp, typename Config::Instruction,
      typename Config::template Epilogue<Compute>, Swizzle, Config::stages, Config::align, Config::align,
      typename Config::Math>;
};
template <class Config>
struct Device2x<Config, std::void_t<typename Config::Device>> {
  using type = typename Config::Device;
};

// Whether an epilogue has run-time parameters of its own (Activated2x), and is told its activation (Told2x).
template <class Params, class = void>
constexpr bool has_values = false;
template <class Params>
constexpr bool has_values<Params, std::void_t<decltype(Params::values)>> = true;
template <class Params, class = void>
constexpr bool is_told = false;
template <class Params>
constexpr bool is_told<Params, std::void_t<decltype(Params::function)>> = true;

// The kernel of a configuration, and what its epilogue is told.
template <class Config>
struct Parts2x {
  using Compute = EpilogueCompute<typename Config::Accumulator, typename Config::D>;
  using Epilogue = typename Config::template Epilogue<Compute>;
  using Device = typename Device2x<Config>::type;
  using Kernel = typename Device::GemmKernel;

  // A factor that may be complex.
  static Compute number(const CutlassPyScalar& scalar) {
    if constexpr (cutlass::is_complex<Compute>::value) {
      using Real = typename Compute::value_type;
      return Compute(Real(scalar.value), Real(scalar.imaginary));
    } else {
      return Compute(scalar.value);
    }
  }

  static typename Epilogue::Params epilogue(const CutlassPyGemm& g) {
    const CutlassPyEpilogue& e = g.epilogue;
    typename Epilogue::Params params(number(e.alpha), e.bias.data ? Compute(1) : number(e.beta));
    params.alpha_ptr = static_cast<const Compute*>(e.alpha.device);
    if (!e.bias.data) params.beta_ptr = static_cast<const Compute*>(e.beta.device);
    if constexpr (has_values<typename Epilogue::Params>)
      params.values[0] = Compute(e.parameters[0]), params.values[1] = Compute(e.parameters[1]);
    if constexpr (is_told<typename Epilogue::Params>) params.function = activation::Number(e.activation);
    return params;
  }
};

// Thread blocks of a kernel that a multiprocessor holds at once. Each device is asked once, and not twice in every
// call.
class Occupancy {
 public:
  int operator()(const void* function, int threads, int smem_bytes, int device) {
    std::atomic<int>& blocks = known_[device & 63];
    if (blocks.load(std::memory_order_relaxed)) return blocks;
    int found = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, function, threads, smem_bytes)) cudaGetLastError();
    if (found > 0) blocks = found;
    return found > 0 ? found : 1;
  }

 private:
  std::atomic<int> known_[64]{};
};

template <class Config, class Parts = Parts2x<Config>>
struct Gemm2x {
  using RowMajor = cutlass::layout::RowMajor;
  using ElementA = typename Config::A;
  using ElementB = typename Config::B;
  using ElementD = typename Config::D;
  using Accumulator = typename Config::Accumulator;
  static constexpr bool stream_k = Config::stream_k;
  using Kernel = typename Parts::Kernel;
  using Arguments = typename Kernel::Arguments;
  static constexpr int smem_bytes = int(sizeof(typename Kernel::SharedStorage));
  static constexpr int kMostSharedMemory = 227 << 10;  // of a multiprocessor
  inline static DriverLauncher launcher;

  static constexpr CutlassPyGemmFacts facts() {
    using Tile = typename Kernel::Mma::Shape;
    return CutlassPyGemmFacts{dtype_name<ElementA>,
                              dtype_name<ElementB>,
                              dtype_name<Accumulator>,
                              dtype_name<ElementD>,
                              dtype_name<ElementD>,
                              {layout_letter<typename Config::LayoutA>, layout_letter<typename Config::LayoutB>, '\0'},
                              2,
                              {Tile::kM, Tile::kN, Tile::kK},
                              {1, 1, 1},
                              Kernel::kThreadCount,
                              smem_bytes,
                              Kernel::Mma::kStages,
                              Kernel::kAlignmentA,
                              Kernel::kAlignmentB,
                              Kernel::Epilogue::kElementsPerAccess,
                              Kernel::Epilogue::kElementsPerAccess,
                              !stream_k};
  }

  static Arguments arguments(const CutlassPyGemm& g) {
    using Mode = cutlass::gemm::GemmUniversalMode;
    const Mode mode = g.pointers ? Mode::kArray : g.batch > 1 ? Mode::kBatched : Mode::kGemm;
    const CutlassPyEpilogue& e = g.epilogue;
    const CutlassPyArray absent{g.d, 0, g.ldd, 1, g.batch_d};
    const CutlassPyArray& c = e.bias.data ? e.bias : e.c.data ? e.c : absent;
    return Arguments(mode, {g.m, g.n, g.k}, g.batch, Parts::epilogue(g), g.a, g.b, c.data, g.d, g.batch_a, g.batch_b,
                     c.batch, g.batch_d, g.lda, g.ldb, c.row, g.ldd);
  }

  static const void* function() { return reinterpret_cast<const void*>(&cutlass::Kernel2<Kernel>); }

  static int registers() { return registers_of(function()); }

  // Stream-K spreads its work over all of them.
  static int occupancy(int device) {
    static Occupancy known;
    return known(function(), Kernel::kThreadCount, smem_bytes, device);
  }

  static typename Kernel::Params params_of(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    return typename Kernel::Params(arguments(g), launch.sm_count, stream_k ? occupancy(launch.device) : 1);
  }

  static int prepare_once(const CutlassPyLaunch& launch) {
    return launcher.prepare(function(), smem_bytes, launch.device);
  }

  static size_t workspace_size(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    if constexpr (stream_k) {
      if (!prepare_once(launch)) return params_of(g, launch).get_workspace_size();
      // There is no device to ask: enough for whatever shared memory lets run at once.
      size_t most = 0;
      for (int blocks = 1; blocks <= kMostSharedMemory / smem_bytes; ++blocks) {
        most = std::max(most, typename Kernel::Params(arguments(g), launch.sm_count, blocks).get_workspace_size());
      }
      return most;
    } else {
      return 0;
    }
  }

  static int launch_part(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    typename Kernel::Params params = params_of(g, launch);
    if constexpr (stream_k) {  // clears its barriers
      cutlass::Status status = params.init_workspace(launch.workspace, cudaStream_t(launch.stream));
      if (status != cutlass::Status::kSuccess) return -int(status);
    }
    cudaLaunchConfig_t config{};
    config.gridDim = params.get_grid_dims();
    config.blockDim = dim3(Kernel::kThreadCount, 1, 1);
    config.dynamicSmemBytes = smem_bytes;
    config.stream = cudaStream_t(launch.stream);
    void* kernel_args[] = {&params};
    return launcher.launch(function(), config, kernel_args, launch.device);
  }

  // grid.y and grid.z end at 65535: longer problems go as several launches.
  static int run(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    if (int error = prepare_once(launch)) return error;

    constexpr int32_t most_batches = 65535;
    constexpr int32_t most_columns = 65535 / 8 * 8 * Kernel::Mma::Shape::kN;
    for (int64_t batch = 0; batch < g.batch; batch += most_batches) {
      for (int64_t column = 0; column < g.n; column += most_columns) {
        CutlassPyGemm part = g;
        part.batch = g.batch - batch < most_batches ? g.batch - batch : most_batches;
        part.n = int32_t(g.n - column < most_columns ? g.n - column : most_columns);
        const bool whole = part.n == g.n && part.batch == g.batch;
        if (g.pointers ? part.n < g.n : g.epilogue.user && !whole) {
          return -int(cutlass::Status::kErrorInvalidProblem);  // legality.py forbids it
        }
        if (g.pointers) {
          part.a = static_cast<const void* const*>(g.a) + batch;
          part.b = static_cast<const void* const*>(g.b) + batch;
          part.d = static_cast<void**>(g.d) + batch;
          if (g.epilogue.c.data) part.epilogue.c.data = static_cast<void**>(g.epilogue.c.data) + batch;
        } else {
          constexpr bool row_major_b = std::is_same_v<typename Config::LayoutB, RowMajor>;
          part.a = static_cast<const ElementA*>(g.a) + batch * g.batch_a;
          part.b = static_cast<const ElementB*>(g.b) + batch * g.batch_b + column * (row_major_b ? 1 : g.ldb);
          advance(part.epilogue.c, batch, column);
          advance(part.epilogue.bias, batch, column);
          part.d = static_cast<ElementD*>(g.d) + batch * g.batch_d + column;
        }
        if (int error = launch_part(part, launch)) return error;
      }
    }
    return 0;
  }

  static void advance(CutlassPyArray& array, int64_t batch, int64_t column) {
    if (array.data) array.data = static_cast<ElementD*>(array.data) + batch * array.batch + column;
  }
};

}  // namespace cutlass_py
