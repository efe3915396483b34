// Epilogues that users write (epilogue=), on 2.x kernels: as cutlass3x/user_epilogue.cuh says, with this generation's
// visitors. D is one more store. Loads and stores go straight to memory, `align_d` elements at once.
#pragma once

#include "kernels/cutlass2x/gemm.cuh"
// CUTLASS's visitors expect what it includes.
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"
#include "cutlass/gemm/kernel/default_gemm_universal_with_visitor.h"
#include "kernels/common/user_epilogue.cuh"

namespace cutlass_py {
namespace user {

namespace visitor = cutlass::epilogue::threadblock;
constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
using Rows = cute::Stride<int64_t, cute::_1, int64_t>;

// CUTLASS's OutputTileThreadLayout, which it has for tensor cores alone, for kernels of the CUDA cores: where in D the
// elements lie that a thread sees. A warp takes whole rows. In a step it takes one of each of its groups of rows, which
// change from warp to warp; after a step it takes the next row of each, then come the next groups.
template <class Config>
struct SimtThreads : Parts2x<Config>::Kernel::Epilogue::OutputTileIterator::ThreadMap {
  using Map = typename Parts2x<Config>::Kernel::Epilogue::OutputTileIterator::ThreadMap;
  template <int i>
  using Int = cute::Int<i>;
  using Shape = typename Map::Shape;
  using Count = typename Map::Count;
  using Detail = typename Map::Detail;
  using Iterations = typename Map::Iterations;
  static_assert(Shape::kRow == 1 && Detail::kWarpsRemainingForRows == 1 && Iterations::kCluster == 1);
  static constexpr int Stages = 1;

  using Warps = Int<Detail::kWarpsRemainingForGroups>;  // beside each other; each cluster of rows has so many
  using ThreadShape = cute::Shape<Int<Detail::kAccessWidth>, Warps, Int<Shape::kCluster>>;
  using RowShape = cute::Shape<Int<Map::kElementsPerAccess>, Int<Detail::kAccessWidth>, Int<Iterations::kColumn>>;
  using ColumnShape =
      cute::Shape<Int<Count::kRow>, Warps, Int<Iterations::kGroup>, Int<Count::kGroup>, Int<Shape::kCluster>>;
  static constexpr int kRows = Count::kRow * Shape::kGroup * Count::kGroup * Shape::kCluster;
  using Tile = cute::Shape<Int<kRows>, Int<Shape::kColumn>, cute::_1>;

  // Modes: vector, columns and rows of a fragment, then steps: rows, groups, clusters.
  template <class Tensor>
  static CUTLASS_DEVICE auto partition(Tensor&& x, int thread, cutlass::gemm::GemmCoord at) {
    using namespace cute;
    const auto tile =
        local_tile(x, Tile{}, make_coord(_, _, _), Step<_1, _1, Underscore>{})(_, _, at.m(), at.n(), at.k());
    const auto by_rows = make_layout(get<1>(tile.layout()), get<0>(tile.layout()));
    const auto elements =
        make_tensor(tile.data(), composition(by_rows, make_layout(append(RowShape{}, ColumnShape{}))));
    const auto [lane, warp, cluster] = idx2crd(thread, ThreadShape{});
    const auto own = elements(_, lane, _, make_coord(_, warp, _, _, cluster));
    return make_tensor(own.data(), append<6>(select<0, 1, 3, 2, 4>(flatten(own.layout()))));
  }
};

// The context of loads and stores.
template <class Config>
struct Types2x {
  using D = typename Config::D;
  using Compute = EpilogueCompute<typename Config::Accumulator, D>;
  using Threads = std::conditional_t<
      std::is_same_v<typename Config::OpClass, cutlass::arch::OpClassSimt>, SimtThreads<Config>,
      visitor::OutputTileThreadLayout<typename Config::Tile, typename Config::Warp, D, Config::align_d, 1>>;
};

// A number, or one in device memory.
template <class X, int index>
struct Number {
  using Node = visitor::VisitorScalarBroadcast<typename X::Compute>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    using Compute = typename X::Compute;
    const CutlassPyOperand& x = operand(g, index);
    return {{Compute(x.value)}, {static_cast<const Compute*>(x.array.data)}, {}};
  }
};

template <class X, int index, char axis, class Element>
struct Vector {
  using Column = visitor::VisitorColBroadcast<typename X::Threads, Element, cute::Stride<cute::_1, cute::_0, int64_t>>;
  using Row = visitor::VisitorRowBroadcast<typename X::Threads, Element, cute::Stride<cute::_0, cute::_1, int64_t>>;
  using Node = std::conditional_t<axis == 'm', Column, Row>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {static_cast<const Element*>(x.data), Element(0), {{}, {}, x.batch}};
  }
};

template <class X, int index, class Element>
struct Matrix {
  using Node = visitor::VisitorAuxLoad<typename X::Threads, Element, Rows>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {static_cast<Element*>(x.data), Element(0), {x.row, {}, x.batch}};
  }
};

template <class X, int index, class Element>
struct Source : Matrix<X, index, Element> {};

template <class X, int index, class Element>
struct Store {
  using Node = visitor::VisitorAuxStore<typename X::Threads, Element, kRound, Rows>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {static_cast<Element*>(x.data), {x.row, {}, x.batch}};
  }
};

// What is stored already.
template <class X>
struct Stored {
  using Compute = typename X::Compute;
  using Node = visitor::VisitorCompute<cutlass::epilogue::thread::Identity, Compute, Compute, kRound>;
  static typename Node::Arguments arguments(const CutlassPyGemm&) { return {}; }
};

// The values of a reduction go to scratch memory as they are: an elementwise kernel reduces them, whatever the axis.
// They go once: `first` is the first operand that reduces them.
struct Sum {};
struct Max {};
struct Min {};
template <class X, int index, char axis, class Element, class Reduction, int first>
struct Reduce : std::conditional_t<first == index, Store<X, index, Element>, Stored<X>> {};

// D itself.
template <class X>
struct Result {
  using Node = visitor::VisitorAuxStore<typename X::Threads, typename X::D, kRound, Rows>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {static_cast<typename X::D*>(g.d), {g.ldd, {}, g.batch_d}};
  }
};

template <class X, class Program, class Loads, class Stores>
struct Node;

template <class X, class Program, class... Loads, class... Stores>
struct Node<X, Program, List<Loads...>, List<Stores...>>
    : visitor::VisitorImpl2x<typename Loads::Node..., typename Result<X>::Node, typename Stores::Node...> {
  using Impl = visitor::VisitorImpl2x<typename Loads::Node..., typename Result<X>::Node, typename Stores::Node...>;
  using Impl::Impl;
  using Compute = typename X::Compute;
  static constexpr int kLoads = sizeof...(Loads), kStores = 1 + sizeof...(Stores);

  static typename Impl::Arguments arguments(const CutlassPyGemm& g) {
    return typename Impl::Arguments{Loads::arguments(g)..., Result<X>::arguments(g), Stores::arguments(g)...};
  }

  template <class CallbacksImpl>
  struct Callbacks : CallbacksImpl {
    CUTLASS_DEVICE Callbacks(CallbacksImpl&& impl) : CallbacksImpl(cute::forward<CallbacksImpl>(impl)) {}
    using CallbacksImpl::callbacks_tuple;

    template <class Element, int N>
    CUTLASS_DEVICE auto visit(int step, int row, int column, int fragment, const cutlass::Array<Element, N>& sum) {
      cutlass::Array<Compute, N> in[1 + kLoads], out[kStores];
      in[0] = converted(sum);
      cute::for_each(cute::make_seq<kLoads>{}, [&](auto i) {
        in[1 + i] = converted(cute::get<i>(callbacks_tuple).visit(step, row, column, fragment, sum));
      });
      evaluate<Program, false>(in, out);
      cute::for_each(cute::make_seq<kStores>{}, [&](auto i) {
        cute::get<kLoads + i>(callbacks_tuple).visit(step, row, column, fragment, sum, out[i]);
      });
      return out[0];
    }

   private:
    template <class Element, int N>
    static CUTLASS_DEVICE cutlass::Array<Compute, N> converted(const cutlass::Array<Element, N>& x) {
      return cutlass::NumericArrayConverter<Compute, Element, N, kRound>{}(x);
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape shape) {
    auto impl = Impl::get_callbacks(tile, thread, shape);
    return Callbacks<decltype(impl)>(cute::move(impl));
  }
};

}  // namespace user

template <class Config>
struct UserParts2x {
  using X = user::Types2x<Config>;
  using Program = typename Config::Program;
  using Node = user::Node<X, Program, typename Program::template Loads<X>, typename Program::template Stores<X>>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      typename Config::A, typename Config::LayoutA, cutlass::ComplexTransform::kNone, Config::align, typename Config::B,
      typename Config::LayoutB, cutlass::ComplexTransform::kNone, Config::align, typename Config::D,
      cutlass::layout::RowMajor, Config::align_d, typename Config::Accumulator, typename X::Compute,
      typename Config::OpClass, typename Config::Arch, typename Config::Tile, typename Config::Warp,
      typename Config::Instruction, Node, cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, Config::stages,
      typename Config::Math>::GemmKernel;
  static typename Node::Arguments epilogue(const CutlassPyGemm& g) { return Node::arguments(g); }
};

template <class Config>
struct UserGemm2x : Gemm2x<Config, UserParts2x<Config>> {};

}  // namespace cutlass_py
