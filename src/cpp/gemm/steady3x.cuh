// A mainloop of promoted fp8 sums that keeps the tensor cores busy while they are added up in f32.
//
// The sum over the k of a tile leaves the tensor cores, and is added to the accumulators by ordinary instructions.
// CUTLASS's mainloop waits for its MMAs, adds, and only then starts the next ones: two warpgroups that do so in step
// leave the tensor cores idle together (inferred; not measured). Here
// - two warpgroups issue their MMAs by turns, 64 rows at a time, so that one adds while the other's run;
// - a warpgroup with 128 rows of up to 96 columns has registers for two parts of a sum: it adds one half of the rows
//   while the MMAs of the other half run.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/gemm/gemm.h"

namespace cutlass_py {

template <class Built>  // CUTLASS's mainloop
struct SteadyMainloop : Built {
  using Pipeline = typename Built::MainloopPipeline;
  using State = typename Built::PipelineState;
  using TiledMma = typename Built::TiledMma;
  static constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kGroups = int(cute::size(TiledMma{})) / kGroup;
  static constexpr int kMostOfTwoParts = 96;  // accumulators of a thread beside as many of its parts

  template <class Sums>
  CUTLASS_DEVICE void mma(Pipeline pipeline, State stage, Sums& sums, int k_tiles, int thread,
                          typename Built::TensorStorage& shared, typename Built::Params const&) {
    const int group = __shfl_sync(0xffffffff, thread / kGroup, 0);  // the same in a warp, as far as the compiler knows
    cute::Tensor smem_a = cute::make_tensor(cute::make_smem_ptr(shared.smem_A.data()), typename Built::SmemLayoutA{});
    cute::Tensor smem_b = cute::make_tensor(cute::make_smem_ptr(shared.smem_B.data()), typename Built::SmemLayoutB{});
    auto slice = TiledMma{}.get_slice(group * kGroup);
    cute::Tensor a = slice.make_fragment_A(slice.partition_A(smem_a));  // (MMA, MMA_M, MMA_K, stage)
    cute::Tensor b = slice.make_fragment_B(slice.partition_B(smem_b));  // (MMA, MMA_N, MMA_K, stage)
    cute::clear(sums);                                                  // (MMA, MMA_M, MMA_N)
    constexpr int rows = cute::size<1>(typename Sums::layout_type{});
    if constexpr (rows == 2 && cute::size(typename Sums::layout_type{}) <= kMostOfTwoParts) {
      by_halves(pipeline, stage, a, b, sums, k_tiles);
    } else {
      static_assert(kGroups == 2, "64 rows at a time for each of two warpgroups, or 128 rows of up to 96 columns");
      by_turns(pipeline, stage, a, b, sums, k_tiles, group);
    }
  }

  CUTLASS_DEVICE void mma_tail(Pipeline, State, int) {}  // every stage has been released

 private:
  template <class A, class B, class Sums>
  CUTLASS_DEVICE static void by_turns(Pipeline& pipeline, State stage, A const& a, B const& b, Sums& sums, int k_tiles,
                                      int group) {
    using cutlass::arch::NamedBarrier;  // that of a group's number is its turn, which the other one passes to it
    constexpr int rows = cute::size<1>(typename Sums::layout_type{});
    cute::Tensor part = cute::make_fragment_like(sums(cute::_, 0, cute::_));
    if (group == 1 && k_tiles > 0) NamedBarrier::arrive(2 * kGroup, 0);
    for (; k_tiles > 0; --k_tiles, ++stage) {
      pipeline.consumer_wait(stage);
      CUTLASS_PRAGMA_UNROLL
      for (int row = 0; row < rows; ++row) {
        NamedBarrier::sync(2 * kGroup, group);
        multiply(a(cute::_, row, cute::_, stage.index()), b(cute::_, cute::_, cute::_, stage.index()), part);
        if (group == 0 || k_tiles > 1 || row < rows - 1) NamedBarrier::arrive(2 * kGroup, 1 - group);
        cute::warpgroup_wait<0>();
        cute::warpgroup_fence_operand(part);
        if (row == rows - 1) pipeline.consumer_release(stage);
        add(part, sums(cute::_, row, cute::_));
      }
    }
  }

  template <class A, class B, class Sums>
  CUTLASS_DEVICE static void by_halves(Pipeline& pipeline, State stage, A const& a, B const& b, Sums& sums,
                                       int k_tiles) {
    cute::Tensor part = cute::make_fragment_like(sums);
    auto start = [&](int row) {
      multiply(a(cute::_, row, cute::_, stage.index()), b(cute::_, cute::_, cute::_, stage.index()),
               part(cute::_, row, cute::_));
    };
    auto finish = [&](int row) {
      auto done = part(cute::_, row, cute::_);
      cute::warpgroup_fence_operand(done);
      add(done, sums(cute::_, row, cute::_));
    };
    // Nothing is in flight where a loop begins: else ptxas would run all MMAs one after the other.
    auto tiles = [&](auto count) {
      State last = stage;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < count; ++i) {
        pipeline.consumer_wait(stage);
        start(0);
        if (i) {
          cute::warpgroup_wait<1>();
          pipeline.consumer_release(last);
          finish(1);
        }
        start(1);
        cute::warpgroup_wait<1>();
        finish(0);
        last = stage;
        ++stage;
      }
      cute::warpgroup_wait<0>();
      pipeline.consumer_release(last);
      finish(1);
    };
    for (; k_tiles >= 4; k_tiles -= 4) tiles(cute::Int<4>{});
    for (; k_tiles > 0; --k_tiles) tiles(cute::Int<1>{});
  }

  // Starts the MMAs of one tile of k, for 64 rows.
  template <class A, class B, class Part>
  CUTLASS_DEVICE static void multiply(A const& a, B const& b, Part&& part) {
    TiledMma mma;
    mma.accumulate_ = cute::GMMA::ScaleOut::Zero;
    cute::warpgroup_fence_operand(part);
    cute::warpgroup_arrive();
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < cute::size<1>(a); ++k) {
      CUTLASS_PRAGMA_UNROLL
      for (int n = 0; n < cute::size<1>(b); ++n) cute::gemm(mma, a(cute::_, k), b(cute::_, n, k), part(cute::_, n));
      mma.accumulate_ = cute::GMMA::ScaleOut::One;
    }
    cute::warpgroup_commit_batch();
  }

  template <class Part, class Sums>
  CUTLASS_DEVICE static void add(Part const& part, Sums&& sums) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(sums); ++i) sums(i) += part(i);
  }
};

}  // namespace cutlass_py
