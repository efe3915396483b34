// f64 products on Hopper, which has no wgmma of f64: TMA loads the tiles, and mma.sync multiplies them.
//
// The GPU is at its power limit here, so that every instruction beside the MMAs costs time. TMA leaves none for
// loading, and reading from shared memory takes constant offsets alone, and no bank twice: in which order the rows and
// columns of a tile are dealt out is free, as long as the epilogue knows.
#pragma once

#include "kernels/cutlass3x/gemm.cuh"

#include "cute/atom/mma_traits_sm90.hpp"
#include "cutlass/gemm/collective/collective_mma.hpp"

namespace cutlass_py {
namespace dmma {

using cute::_1, cute::_2, cute::_4, cute::_8, cute::_16;

using Warps = cute::Layout<cute::Shape<_2, _4, _1>>;  // of a tile, each with a quarter of its columns
constexpr int kStep = 8;                              // k of one MMA
constexpr int kDepth = 16;                            // k of a tile: 128 bytes, as wide as a swizzle

// An MMA's lane has its row of A, or column of B, by lane / 4, and its k by lane % 4. In these orders, lanes that read
// at once find different banks behind the swizzle; rows of A that lie side by side are those of one lane.
template <bool along_k>  // (lane, value, warp)
using Rows = std::conditional_t<along_k, cute::Layout<cute::Shape<_4, _2, _2, _2>, cute::Stride<_2, _1, _8, _16>>,
                                cute::Layout<cute::Shape<_2, _4, _2, _2>, cute::Stride<_8, _2, _1, _16>>>;
template <bool along_k>  // (lane, warp), and two MMAs where rows of B are read
using Columns = std::conditional_t<along_k, cute::Layout<cute::Shape<_4, _2, _4>, cute::Stride<_2, _1, _8>>,
                                   cute::Layout<cute::Shape<_2, _2, _2, _4, _2>, cute::Stride<_1, _8, _2, _16, _4>>>;

// Where a thread's elements of an operand lie in shared memory, (value, MMA, step, stage). Behind the swizzle four of
// them have addresses of their own; all others lie whole swizzles away from one of these.
template <bool along_k, int values, class Layout>
struct Reader {
  static constexpr int second_k = values / 2;  // the value
  static constexpr bool pairs = values == 4 && !along_k;
  uint32_t at[2][2];  // by k of a value; by steps along k, else by MMAs
  Layout layout;

  template <class Swizzled>
  CUTLASS_DEVICE Reader(Swizzled const& swizzled, Layout layout) : layout(layout) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i)
      at[i / 2][i % 2] =
          cute::cast_smem_ptr_to_uint(&swizzled(i / 2 * second_k, along_k ? 0 : i % 2, along_k ? i % 2 : 0, 0));
  }

  // What an MMA takes.
  template <class Fragment>
  CUTLASS_DEVICE void load(Fragment&& fragment, int mma, int step, int stage) const {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values; i += pairs ? 2 : 1) {
      if constexpr (pairs) {
        asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];"
                     : "=d"(fragment(i)), "=d"(fragment(i + 1))
                     : "r"(address(i, mma, step, stage)));
      } else {
        asm volatile("ld.shared.f64 %0, [%1];" : "=d"(fragment(i)) : "r"(address(i, mma, step, stage)));
      }
    }
  }

 private:
  CUTLASS_DEVICE uint32_t address(int value, int mma, int step, int stage) const {
    const int k = value / second_k, which = along_k ? step : mma % 2;
    const int known = layout(k * second_k, along_k ? 0 : which, along_k ? which : 0, 0);
    return at[k][which] + uint32_t(sizeof(double) * (layout(value, mma, step, stage) - known));
  }
};

// Of one thread; `part` makes its part of a tensor with a layout.
template <bool along_k, int values, class Part, class Swizzled>
CUTLASS_DEVICE auto reader(Part const& part, Swizzled const& layout) {
  auto plain = part(cute::get_nonswizzle_portion(layout)).layout();
  return Reader<along_k, values, decltype(plain)>(part(layout), plain);
}

template <bool a_along_k, bool b_along_k, class Built>  // CUTLASS's mainloop, which loads
struct Mainloop : Built {
  using ArchTag = cutlass::arch::Sm90;  // by which the kernel takes its scheduler of tiles
  using Pipeline = typename Built::MainloopPipeline;
  using State = typename Built::PipelineState;
  using TiledMma = typename Built::TiledMma;
  static_assert(cute::size<2>(typename Built::TileShape{}) == kDepth, "a tile is as deep as a swizzle is wide");

  template <class Sums>
  CUTLASS_DEVICE void mma(Pipeline pipeline, State stage, Sums& sums, int k_tiles, int thread,
                          typename Built::TensorStorage& shared, typename Built::Params const&) {
    auto slice = TiledMma{}.get_slice(thread);
    auto part_a = [&](auto layout) {
      return slice.partition_A(cute::make_tensor(cute::make_smem_ptr(shared.smem_A.data()), layout));
    };
    auto part_b = [&](auto layout) {
      return slice.partition_B(cute::make_tensor(cute::make_smem_ptr(shared.smem_B.data()), layout));
    };
    cute::clear(sums);
    if (k_tiles == 0) return;
    multiply(pipeline, stage, reader<a_along_k, 4>(part_a, typename Built::SmemLayoutA{}),
             reader<b_along_k, 2>(part_b, typename Built::SmemLayoutB{}), sums, k_tiles);
  }

  CUTLASS_DEVICE void mma_tail(Pipeline, State, int) {}  // every stage has been released

 private:
  template <class ReadA, class ReadB, class Sums>
  CUTLASS_DEVICE static void multiply(Pipeline& pipeline, State stage, ReadA const& read_a, ReadB const& read_b,
                                      Sums& sums, int k_tiles) {  // sums: (value, row, column)
    constexpr int rows = cute::size<1>(typename Sums::layout_type{});
    constexpr int columns = cute::size<2>(typename Sums::layout_type{});
    constexpr int steps = kDepth / kStep;
    static_assert(steps == 2 && rows % 2 == 0, "what is multiplied, and what is read meanwhile");
    cute::Tensor a = cute::make_tensor<double>(cute::Shape<_4, _2>{});
    cute::Tensor b = cute::make_tensor<double>(cute::Shape<_2, cute::Int<columns>, _2>{});
    auto load_a = [&](int row, int step, State const& from) CUTLASS_LAMBDA_FUNC_INLINE {
      const int buffer = row % 2;
      read_a.load(a(cute::_, buffer), row, step, from.index());
    };
    auto load_b = [&](int step, State const& from) CUTLASS_LAMBDA_FUNC_INLINE {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < columns; ++i) read_b.load(b(cute::_, i, step), i, step, from.index());
    };
    pipeline.consumer_wait(stage);
    load_a(0, 0, stage);
    load_b(0, stage);
    State last = stage;
    CUTLASS_PRAGMA_NO_UNROLL
    for (int tile = 0; tile < k_tiles; ++tile) {
      // Not before: behind the last load, TMA wrote over what loads were about to read, as it seems where the other
      // warpgroup stored its tile (docs/performance/f64.md). MMAs have it by now, since those that take it are behind
      // a branch, which unrolling would remove.
      if (tile > 0) pipeline.consumer_release(last);
      last = stage;
      ++stage;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < steps * rows; ++i) {
        const int step = i / rows, row = i % rows, next = (step + 1) % steps;
        State const& from = step == steps - 1 ? stage : last;  // what is read behind the last tile is not used
        if (step == steps - 1 && row == 1 && tile < k_tiles - 1) pipeline.consumer_wait(stage);
        if (row == 1) load_b(next, from);
        row < rows - 1 ? load_a(row + 1, step, last) : load_a(0, next, from);
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < columns; ++column)
          cute::gemm(TiledMma{}, a(cute::_, row % 2), b(cute::_, column, step), sums(cute::_, row, column));
      }
    }
    pipeline.consumer_release(last);
  }
};

}  // namespace dmma

template <class Config>
struct DmmaParts3x : EpilogueParts3x<Config> {
  using X = Types3x<Config>;
  using StrideA = cutlass::detail::TagToStrideA_t<typename X::LayoutA>;
  using StrideB = cutlass::detail::TagToStrideB_t<typename X::LayoutB>;
  static constexpr bool a_along_k = cutlass::gemm::detail::is_k_major_A<typename X::LayoutA>();
  static constexpr bool b_along_k = cutlass::gemm::detail::is_k_major_B<typename X::LayoutB>();
  using Mma = cute::TiledMMA<cute::MMA_Atom<cute::SM90_16x8x8_F64F64F64F64_TN>, dmma::Warps,
                             cute::Tile<dmma::Rows<a_along_k>, dmma::Columns<b_along_k>, cute::_8>>;
  template <bool along_k>
  using SharedAtom =
      std::conditional_t<along_k, cute::GMMA::Layout_K_SW128_Atom<double>, cute::GMMA::Layout_MN_SW128_Atom<double>>;
  using Unused = cute::Copy_Atom<cute::UniversalCopy<double>, double>;  // CUTLASS's way out of shared memory
  static_assert(cute::size(typename Config::Cluster{}) == 1,
                "in a cluster one thread would release a stage for its warpgroup, whose warps do not go together");
  static constexpr int stages = cutlass::gemm::collective::detail::compute_stage_count_or_override<
      cutlass::gemm::collective::detail::sm90_smem_capacity_bytes, double, double, typename Config::Tile>(
      cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(typename DmmaParts3x::Epilogue::SharedStorage))>{});
  using Built = cutlass::gemm::collective::CollectiveMma<
      cutlass::gemm::MainloopSm120TmaWarpSpecialized<stages, 0, typename Config::Cluster,
                                                     typename Config::MainloopSchedule>,
      typename Config::Tile, double, StrideA, double, StrideB, Mma, cute::SM90_TMA_LOAD, SharedAtom<a_along_k>, Unused,
      cute::identity, cute::SM90_TMA_LOAD, SharedAtom<b_along_k>, Unused, cute::identity>;
  using Mainloop = dmma::Mainloop<a_along_k, b_along_k, Built>;
};

template <class Config>
using GemmDmma3x = Gemm3x<Config, DmmaParts3x<Config>>;

}  // namespace cutlass_py
