// CUTLASS 3.x kernels on fp8 operands whose scales are blocks: a factor for every 128 of k and, beside that, for every
// row of A and every 128 columns of B (or every single one, `scale_columns` in the configuration). The mainloop
// multiplies the sum over each 128 of k by its two factors before it adds it up in f32.
//
// 128 is kernel.h's, and the depth of CUTLASS's blocks. A tile is 128 deep, and its extents are multiples of what
// shares a factor. The last block of k and of n may be shorter: operands read as 0 beyond their extents.
#pragma once

#include "kernels/cutlass3x/gemm.cuh"

namespace cutlass_py {

// Where the factors of one operand lie. `rows` of it (columns of B) share one. TMA loads them where rows lie side by
// side; otherwise every factor is loaded by itself, whatever the strides.
template <int rows, bool tma>
struct BlockScales {
  using Count = int32_t;
  using RowStride = std::conditional_t<tma, cute::_1, int64_t>;
  using Layout =
      cute::Layout<cute::Shape<cute::Shape<cute::Int<rows>, Count>, cute::Shape<cute::_128, Count>, Count>,
                   cute::Stride<cute::Stride<cute::_0, RowStride>, cute::Stride<cute::_0, int64_t>, int64_t>>;

  static Layout layout(int32_t extent, int32_t k, int32_t batch, int64_t row, int64_t block, int64_t batch_stride) {
    auto shape = cute::make_shape(cute::make_shape(cute::Int<rows>{}, cute::ceil_div(extent, rows)),
                                  cute::make_shape(cute::_128{}, cute::ceil_div(k, 128)), batch);
    RowStride row_stride{};
    if constexpr (!tma) row_stride = row;
    return cute::make_layout(shape, cute::make_stride(cute::make_stride(cute::_0{}, row_stride),
                                                      cute::make_stride(cute::_0{}, block), batch_stride));
  }
};

// CUTLASS's cooperative kernel lets the warp that loads single factors start before a predecessor has written them.
template <class Mainloop>
struct WaitingMainloop : Mainloop {
  template <class... Arguments>
  CUTLASS_DEVICE void load_auxiliary(Arguments&&... arguments) {
    cutlass::arch::wait_on_dependent_grids();
    Mainloop::load_auxiliary(static_cast<Arguments&&>(arguments)...);
  }
};

template <class Config>
struct BlockwiseParts3x {
  using X = Types3x<Config>;
  static constexpr int columns = Config::scale_columns;
  // With one factor for each row and each column a tile needs too many of both for CUTLASS to load any by TMA.
  static constexpr bool tma = columns > 1 && !X::swap;
  using OfA = BlockScales<X::swap ? columns : 1, tma>;
  using OfB = BlockScales<X::swap ? 1 : columns, false>;
  using Base = Collectives3x<Config, cute::tuple<typename X::LayoutA, typename OfA::Layout>,
                             cute::tuple<typename X::LayoutB, typename OfB::Layout>>;
  using Epilogue = typename Base::Epilogue;
  using Mainloop = WaitingMainloop<typename Base::Mainloop>;
  static auto fusion_arguments(const CutlassPyGemm& g) { return Base::fusion_arguments(g); }
};

template <class Config>
struct GemmBlockwise3x : Functions3x<GemmBlockwise3x<Config>> {
  using X = Types3x<Config>;
  using Parts = BlockwiseParts3x<Config>;
  using Base = Gemm3x<Config, Parts>;
  using Kernel = typename Base::Kernel;

  static constexpr CutlassPyGemmFacts facts() { return Base::facts(); }

  static auto arguments(const CutlassPyGemm& g, const CutlassPyLaunch& launch) {
    auto args = Base::arguments(g, launch);
    const CutlassPyArray &a = g.epilogue.scale_a, &b = g.epilogue.scale_b;
    const CutlassPyArray &first = X::swap ? b : a, &second = X::swap ? a : b;
    args.mainloop.ptr_SFA = static_cast<const float*>(first.data);
    args.mainloop.ptr_SFB = static_cast<const float*>(second.data);
    args.mainloop.layout_SFA = Parts::OfA::layout(X::swap ? g.n : g.m, g.k, g.batch, X::swap ? b.col : a.row,
                                                  X::swap ? b.row : a.col, first.batch);
    args.mainloop.layout_SFB = Parts::OfB::layout(X::swap ? g.m : g.n, g.k, g.batch, X::swap ? a.row : b.col,
                                                  X::swap ? a.col : b.row, second.batch);
    return args;
  }
};

}  // namespace cutlass_py
