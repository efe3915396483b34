// A mainloop of promoted fp8 sums that keeps the tensor cores busy while they are added up in f32.
//
// The sum over the k of a tile leaves the tensor cores, and is added to the accumulators by ordinary instructions.
// CUTLASS's mainloop waits for its MMAs, adds, and only then starts the next ones: two warpgroups that do so in step
// leave the tensor cores idle together (inferred; not measured). Here
// - a warpgroup that has registers for two parts of a sum, of 64 rows each, adds one while the MMAs of the other run;
// - two warpgroups that have registers for one part each issue their MMAs by turns, so that one adds while the other's
//   run.
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
  static constexpr int kMostRegisters = 192;  // of a thread, for its accumulators and two parts

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
    if constexpr (in_two_parts<typename Sums::layout_type>()) {
      by_parts(pipeline, stage, a, b, sums, k_tiles, group);
    } else {
      static_assert(kGroups == 2, "only two warpgroups can take turns");
      by_turns(pipeline, stage, a, b, sums, k_tiles, group);
    }
  }

  CUTLASS_DEVICE void mma_tail(Pipeline, State, int) {}  // every stage has been released

 private:
  // Two warpgroups of 64 rows by up to 64 columns are faster by turns (docs/performance/fp8.md).
  template <class Layout>
  static constexpr bool in_two_parts() {
    constexpr int sums = cute::size(Layout{}), part = sums / cute::size<1>(Layout{});
    constexpr bool small = kGroups == 2 && sums == part && part <= 32;
    return sums + 2 * part <= kMostRegisters && !small;
  }

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
  CUTLASS_DEVICE static void by_parts(Pipeline& pipeline, State stage, A const& a, B const& b, Sums& sums, int k_tiles,
                                      int group) {
    constexpr int rows = cute::size<1>(typename Sums::layout_type{});
    constexpr int most = 8 / rows, half = most / 2;  // of more, ptxas runs one MMA after the other
    cute::Tensor even = cute::make_fragment_like(sums(cute::_, 0, cute::_));
    cute::Tensor odd = cute::make_fragment_like(sums(cute::_, 0, cute::_));
    auto join = [&](auto tiles) CUTLASS_LAMBDA_FUNC_INLINE {
      join_parts<decltype(tiles)::value>(pipeline, stage, a, b, even, odd, sums);
      k_tiles -= tiles;
    };
    // Of two warpgroups of a tile, the second one starts with half as many: not both have nothing in flight at once.
    for (bool whole = group == 0; k_tiles > 0; whole = true) {
      if (whole && k_tiles >= most) {
        join(cute::Int<most>{});
      } else if (k_tiles >= half) {
        join(cute::Int<half>{});
      } else {
        join(cute::Int<1>{});
      }
    }
  }

  // Nothing is in flight before and after: with MMAs in flight where a loop begins, ptxas runs all of them one after
  // the other.
  template <int tiles, class A, class B, class Part, class Sums>
  CUTLASS_DEVICE static void join_parts(Pipeline& pipeline, State& stage, A const& a, B const& b, Part& even, Part& odd,
                                        Sums& sums) {
    constexpr int rows = cute::size<1>(typename Sums::layout_type{}), steps = tiles * rows;
    State last = stage;
    CUTLASS_PRAGMA_UNROLL
    for (int step = 0; step <= steps; ++step) {
      const int row = step % rows;
      if (step < steps) {
        if (row == 0) pipeline.consumer_wait(stage);
        multiply(a(cute::_, row, cute::_, stage.index()), b(cute::_, cute::_, cute::_, stage.index()),
                 step % 2 ? odd : even);
      }
      if (step > 0) {
        step < steps ? cute::warpgroup_wait<1>() : cute::warpgroup_wait<0>();
        if (row == 0) pipeline.consumer_release(last);
        Part& done = step % 2 ? even : odd;
        cute::warpgroup_fence_operand(done);
        add(done, sums(cute::_, (step - 1) % rows, cute::_));
      }
      last = stage;
      if (row == rows - 1 && step < steps) ++stage;
    }
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
