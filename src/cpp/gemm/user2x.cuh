// Epilogues that users write (epilogue=), on 2.x kernels of the tensor cores: as user3x.cuh says, with this
// generation's visitors. D is one more store. Loads and stores go straight to memory, `align_d` elements at once.
#pragma once

#include "gemm/api2x.cuh"
// CUTLASS's visitors expect what it includes.
#include "cutlass/epilogue/threadblock/fusion/visitors.hpp"
#include "cutlass/gemm/kernel/default_gemm_universal_with_visitor.h"
#include "gemm/user.cuh"

namespace cutlass_py {
namespace user {

namespace visitor = cutlass::epilogue::threadblock;
constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;
using Rows = cute::Stride<int64_t, cute::_1, int64_t>;

// The context of loads and stores.
template <class Config>
struct Types2x {
  using D = typename Config::D;
  using Compute = EpilogueCompute<typename Config::Accumulator, D>;
  using Threads = visitor::OutputTileThreadLayout<typename Config::Tile, typename Config::Warp, D, Config::align_d, 1>;
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
