// A mainloop that reads A along its rows. wgmma takes what is no 16-bit number from shared memory along k alone, so A
// goes through registers.
//
// CUTLASS has the loads for it, and a way from shared memory that computes each address anew and reads one step of k
// ahead. Here a thread has two addresses, and reads the next tile of k while the MMAs of the last one run.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/gemm/collective/collective_mma.hpp"
#include "cutlass/gemm/gemm.h"

namespace cutlass_py {

template <class Policy>
constexpr bool through_registers = false;
template <int stages, class Cluster, class Schedule>
constexpr bool through_registers<cutlass::gemm::MainloopSm90TmaGmmaRmemAWarpSpecialized<stages, Cluster, Schedule>> =
    true;

// Whether the mainloop below stands in for what CUTLASS built: tf32 whose B is read along k.
template <class Built>
constexpr bool reads_rows_of_tf32() {
  if constexpr (through_registers<typename Built::DispatchPolicy>) {
    return std::is_same_v<typename Built::TiledMma::ValTypeA, cutlass::tfloat32_t> && !Built::TransposeB &&
           !Built::SwapAB;
  } else {
    return false;
  }
}

// CUTLASS's mainloop, with A in rows of 128 bytes in shared memory, as TMA loads it best (CUTLASS takes 32), and the
// rows of a tile dealt out so that a lane's two of an MMA lie side by side, and that lanes which read at once find
// different banks behind the swizzle. Rows of D are dealt out alike: an epilogue finds no eight neighbours in a warp.
template <class Built>
struct InRows;
template <class Policy, class Tile, class A, class StrideA, class B, class StrideB, class Atom, class Warpgroups,
          class Permutation, class LoadA, class SharedA, class... Rest>
struct InRows<cutlass::gemm::collective::CollectiveMma<
    Policy, Tile, A, StrideA, B, StrideB, cute::TiledMMA<Atom, Warpgroups, Permutation>, LoadA, SharedA, Rest...>> {
  template <int... extents>
  using Ints = cute::tuple<cute::Int<extents>...>;
  using Rows = cute::Layout<  // (lane / 4, value, warp, warpgroup)
      cute::tuple<Ints<2, 2, 2>, cute::_2, Ints<2, 2>, decltype(cute::size<0>(Warpgroups{}))>,
      cute::tuple<Ints<2, 16, 4>, cute::_1, Ints<8, 32>, cute::_64>>;
  using type = cutlass::gemm::collective::CollectiveMma<
      Policy, Tile, A, StrideA, B, StrideB,
      cute::TiledMMA<Atom, Warpgroups, cute::Tile<Rows, cute::Underscore, cute::Underscore>>, LoadA,
      cute::GMMA::Layout_MN_SW128_Atom<cutlass::tfloat32_t>, Rest...>;
};

template <class BuiltByCutlass>
struct RegisterMainloop : InRows<BuiltByCutlass>::type {
  using Built = typename InRows<BuiltByCutlass>::type;
  using Pipeline = typename Built::MainloopPipeline;
  using State = typename Built::PipelineState;
  using TiledMma = typename Built::TiledMma;
  using Element = typename TiledMma::ValTypeA;
  static constexpr int kGroup = cutlass::NumThreadsPerWarpGroup;
  static constexpr int kValues = 4;  // of A that a thread has of an MMA: two rows, two k

  template <class Sums>
  CUTLASS_DEVICE void mma(Pipeline pipeline, State stage, Sums& sums, int k_tiles, int thread,
                          typename Built::TensorStorage& shared, typename Built::Params const&) {
    const int group = __shfl_sync(0xffffffff, thread / kGroup, 0);  // the same in a warp, as far as the compiler knows
    auto slice = TiledMma{}.get_slice(thread);
    auto warpgroup = TiledMma{}.get_slice(group * kGroup);
    auto part_a = [&](auto layout) {
      return slice.partition_A(cute::make_tensor(cute::make_smem_ptr(shared.smem_A.data()), layout));
    };
    const typename Built::SmemLayoutA layout_a;
    using Plain = decltype(part_a(cute::get_nonswizzle_portion(layout_a)).layout());
    const Reader<Plain> read(part_a(layout_a));
    cute::Tensor smem_b = cute::make_tensor(cute::make_smem_ptr(shared.smem_B.data()), typename Built::SmemLayoutB{});
    cute::Tensor b = warpgroup.make_fragment_B(warpgroup.partition_B(smem_b));  // (MMA, MMA_N, MMA_K, stage)
    cute::clear(sums);
    if (k_tiles > 0) multiply_all(pipeline, stage, read, b, sums, k_tiles);
  }

  // mma returns with MMAs in flight, so that a pingpong kernel's other warpgroup can begin its own.
  CUTLASS_DEVICE void mma_tail(Pipeline pipeline, State stage, int k_tiles) {
    cute::warpgroup_wait<0>();
    if (k_tiles == 0) return;
    stage.advance(k_tiles - 1);
    pipeline.consumer_release(stage);
  }

 private:
  // Where a thread's part of A lies in shared memory, (value, MMA_M, MMA_K, stage), in `Layout` without the swizzle.
  // The pairs of rows at both k have addresses of their own; those of other MMAs lie whole swizzles away from them.
  template <class Layout>
  struct Reader {
    uint32_t at[2];

    static constexpr int offset(int value, int row, int step, int stage) { return Layout{}(value, row, step, stage); }

    template <class Swizzled>
    CUTLASS_DEVICE explicit Reader(Swizzled const& swizzled) {
      constexpr int swizzle = 8 * 32;  // elements, after which it is the same again
      static_assert(offset(1, 0, 0, 0) == 1 && offset(3, 0, 0, 0) == offset(2, 0, 0, 0) + 1, "pairs are neighbours");
      static_assert(
          offset(0, 1, 0, 0) % swizzle == 0 && offset(0, 0, 1, 0) % swizzle == 0 && offset(0, 0, 0, 1) % swizzle == 0,
          "MMAs lie whole swizzles apart");
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) at[i] = cute::cast_smem_ptr_to_uint(&swizzled(2 * i, 0, 0, 0));
    }

    CUTLASS_DEVICE auto fragment() const {
      return cute::make_tensor<uint32_t>(cute::make_shape(cute::Int<kValues>{}, cute::get<1>(cute::shape(Layout{})),
                                                          cute::get<2>(cute::shape(Layout{}))));
    }

    template <class Fragment>
    CUTLASS_DEVICE void load(Fragment& a, int stage) const {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size(a); i += 2) {
        const int value = i % kValues, row = i / kValues % int(cute::size<1>(a)),
                  step = i / int(cute::size<0>(a) * cute::size<1>(a));
        const uint32_t bytes = sizeof(Element) * (offset(value, row, step, stage) - offset(value, 0, 0, 0));
        asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                     : "=r"(a(value, row, step)), "=r"(a(value + 1, row, step))
                     : "r"(at[value / 2] + bytes));
      }
    }
  };

  // The MMAs of a tile of k are in flight while the next one is read.
  template <class Read, class B, class Sums>
  CUTLASS_DEVICE static void multiply_all(Pipeline& pipeline, State stage, Read const& read, B const& b, Sums& sums,
                                          int k_tiles) {
    cute::Tensor even = read.fragment();
    cute::Tensor odd = read.fragment();
    State last = stage;
    auto step = [&](auto& a, auto& next, int tile) CUTLASS_LAMBDA_FUNC_INLINE {
      multiply(a, b, sums, stage.index());
      cute::warpgroup_wait<1>();  // for MMAs of all four warps, which have what each read of A
      if (tile > 0) pipeline.consumer_release(last);
      last = stage;
      ++stage;
      if (tile + 1 == k_tiles) return false;
      pipeline.consumer_wait(stage);
      read.load(next, stage.index());
      return true;
    };
    pipeline.consumer_wait(stage);
    read.load(even, stage.index());
    for (int tile = 0; step(even, odd, tile) && step(odd, even, tile + 1); tile += 2) {
    }
    cute::warpgroup_fence_operand(sums);
  }

  // Starts the MMAs of one tile of k.
  template <class A, class B, class Sums>
  CUTLASS_DEVICE static void multiply(A& a, B const& b, Sums& sums, int stage) {
    cute::Tensor typed = cute::recast<Element>(a);
    cute::warpgroup_fence_operand(sums);
    cute::warpgroup_arrive();
    CUTLASS_PRAGMA_UNROLL
    for (int k = 0; k < cute::size<2>(a); ++k)
      cute::gemm(TiledMma{}, typed(cute::_, cute::_, k), b(cute::_, cute::_, k, stage), sums);
    cute::warpgroup_commit_batch();
  }
};

}  // namespace cutlass_py
