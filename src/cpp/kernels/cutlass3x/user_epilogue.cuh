// Epilogues that users write (epilogue=), on 3.x kernels: one visitor node that loads every input, runs the traced
// function on registers, and hands its results to D, to further outputs and to reductions.
//
// A program is what epilogue_cpp.py writes:
//
//   template <bool fast, class T> static __device__ void compute(const T* in, T* out)   in[0] is the sum, out[0] is D
//   template <class X> using Loads = List<...>, Stores = List<...>      one for each further in and out
//   static constexpr int source                                         the operand that arrives as C, or -1
//
// Loads and stores are templates over the context X of epilogue_visitors.cuh and the index of their operand in the
// table of CutlassPyEpilogue; each has a visitor node and its arguments. cutlass2x/user_epilogue.cuh has them for the
// other generation.
#pragma once

#include <limits>

#include "kernels/common/user_epilogue.cuh"
#include "kernels/cutlass3x/gemm.cuh"

namespace cutlass_py {
namespace user {

namespace visitor = cutlass::epilogue::fusion;
using visitors::kRound;

// ------------------------------------------------------------------------------------------------ loads

// A number, or one in device memory.
template <class X, int index>
struct Number {
  using Node = typename visitors::Factor<X>::Node;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyOperand& x = operand(g, index);
    return visitors::Factor<X>::arguments({x.value, 0, x.array.data});
  }
};

template <class X, int index, char axis, class Element>
struct Vector {
  using Values = visitors::Vector<X, axis, Element, false>;
  using Node = typename Values::Node;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return Values::arguments(operand(g, index).array, Element(0));
  }
};

template <class X>
using Descriptor = typename visitors::AuxStore<X, visitors::Product<X>>::Descriptor;

// A matrix as large as D.
template <class X, int index, class Element>
struct Matrix {
  using Aux = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Descriptor<X>, typename X::LayoutD, Element>;
  using Node = visitor::Sm90AuxLoad<Aux::Stages, typename Descriptor<X>::EpilogueTile, Element, typename Aux::Stride,
                                    typename Aux::SmemLayoutAtom, typename Aux::CopyOpS2R>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {static_cast<const Element*>(x.data), Element(0), X::stride_d(x.row, x.batch)};
  }
};

// The matrix that arrives as C.
template <class X, int index, class Element>
struct Source {
  using Node = visitor::Sm90SrcFetch<typename X::C>;
  static typename Node::Arguments arguments(const CutlassPyGemm&) { return {}; }
};

// ------------------------------------------------------------------------------------------------ stores

template <class X, int index, class Element>
struct Store {
  using Aux = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor<X>, typename X::LayoutD, Element>;
  using Node = visitor::Sm90AuxStore<Aux::Stages, typename Descriptor<X>::EpilogueTile, Element, kRound,
                                     typename Aux::Stride, typename Aux::SmemLayoutAtom, typename Aux::CopyOpR2S>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {static_cast<Element*>(x.data), X::stride_d(x.row, x.batch)};
  }
};

// What a reduction starts from, and how it joins two values or fragments of them. NaN goes through.
struct Sum {
  template <class T>
  using Join = cutlass::plus<T>;
  static double identity() { return 0; }
};
struct Max {
  template <class T>
  using Join = cutlass::maximum_with_nan_propagation<T>;
  static double identity() { return -std::numeric_limits<double>::infinity(); }
};
struct Min {
  template <class T>
  using Join = cutlass::minimum_with_nan_propagation<T>;
  static double identity() { return std::numeric_limits<double>::infinity(); }
};

// CUTLASS (4.2) lets the parts of a workspace that belong to up to four nodes follow each other without a gap, but sets
// their counters to zero as if each began at a multiple of the alignment: so each has to be a multiple long.
template <class Base>
struct WholeWorkspace : Base {
  using Base::Base;
  template <class Shape>
  static size_t get_workspace_size(const Shape& shape, const typename Base::Arguments& arguments) {
    return cutlass::round_nearest(Base::get_workspace_size(shape, arguments), cutlass::MinWorkspaceAlignment);
  }
};

// One value for each column of D (axis n) or each row (axis m), over the other axis. Tiles write their share to the
// workspace, and the last of a line joins them in order: the same bits on every run. For a single value (axis s), one
// for each row goes to scratch memory, and an elementwise kernel reduces those.
template <class X, int index, char axis, class Element, class Reduction, int first>
struct Reduce {
  static constexpr bool along_rows = (axis != 'n') != X::swap;  // of the kernel's own problem
  using Compute = typename X::Compute;
  template <class T>
  using Join = typename Reduction::template Join<T>;
  using Stride = std::conditional_t<along_rows, cute::Stride<cute::_1, cute::_0, int64_t>,
                                    cute::Stride<cute::_0, cute::_1, int64_t>>;
  using Node = WholeWorkspace<std::conditional_t<
      along_rows, visitor::Sm90ColReduction<Join, Join, Join, 0, typename X::Tile, Element, Compute, kRound, Stride>,
      visitor::Sm90RowReduction<Join, Join, Join, 0, typename X::Tile, Element, Compute, kRound, Stride>>>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& x = operand(g, index).array;
    return {x.data, Compute(Reduction::identity()), {{}, {}, x.batch}};
  }
};

// ------------------------------------------------------------------------------------------------ the node

template <class X, class Program, class Loads, class Stores>
struct Node;

template <class X, class Program, class... Loads, class... Stores>
struct Node<X, Program, List<Loads...>, List<Stores...>>
    : visitor::Sm90VisitorImpl<typename Loads::Node..., typename Stores::Node...> {
  using Impl = visitor::Sm90VisitorImpl<typename Loads::Node..., typename Stores::Node...>;
  using Impl::Impl;
  using Compute = typename X::Compute;
  static constexpr int kLoads = sizeof...(Loads), kStores = sizeof...(Stores);
  static constexpr bool kFast = sizeof(typename X::D) <= 2;  // as exact as results of 16 bits

  static typename Impl::Arguments arguments(const CutlassPyGemm& g) {
    return typename Impl::Arguments{Loads::arguments(g)..., Stores::arguments(g)...};
  }

  template <class CallbacksImpl>
  struct Callbacks : CallbacksImpl {
    CUTLASS_DEVICE Callbacks(CallbacksImpl&& impl) : CallbacksImpl(cute::forward<CallbacksImpl>(impl)) {}
    using CallbacksImpl::callbacks_tuple;

    template <class Element, int N>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Element, N>& sum, int epi_v, int epi_m, int epi_n) {
      cutlass::Array<Compute, N> in[1 + kLoads], out[1 + kStores];
      in[0] = converted(sum);
      cute::for_each(cute::make_seq<kLoads>{}, [&](auto i) CUTLASS_LAMBDA_FUNC_INLINE {
        in[1 + i] = converted(cute::get<i>(callbacks_tuple).visit(sum, epi_v, epi_m, epi_n));
      });
      evaluate<Program, kFast>(in, out);
      cute::for_each(cute::make_seq<kStores>{}, [&](auto i) CUTLASS_LAMBDA_FUNC_INLINE {
        cute::get<kLoads + i>(callbacks_tuple).visit(sum, epi_v, epi_m, epi_n, out[1 + i]);
      });
      return out[0];
    }

   private:
    template <class Element, int N>
    static CUTLASS_DEVICE cutlass::Array<Compute, N> converted(const cutlass::Array<Element, N>& x) {
      return cutlass::NumericArrayConverter<Compute, Element, N, kRound>{}(x);
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const visitor::ConsumerStoreArgs<Args...>& args) {
    auto impl = Impl::template get_consumer_store_callbacks<ReferenceSrc>(args);
    return Callbacks<decltype(impl)>(cute::move(impl));
  }
};

// A program as a stage of epilogue_visitors.cuh.
template <class X, class Program>
struct Epilogue {
  using Node = user::Node<X, Program, typename Program::template Loads<X>, typename Program::template Stores<X>>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) { return Node::arguments(g); }
};

}  // namespace user

// As Gemm3x; one of the operands takes the place of C.
template <class Config>
struct UserGemm3x : Functions3x<UserGemm3x<Config>> {
  using Base = Gemm3x<Config>;
  using Kernel = typename Base::Kernel;

  static constexpr CutlassPyGemmFacts facts() { return Base::facts(); }

  static auto arguments(CutlassPyGemm g, const CutlassPyLaunch& launch) {
    constexpr int source = Config::Program::source;
    if constexpr (source >= 0) g.epilogue.c = user::operand(g, source).array;
    return Base::arguments(g, launch);
  }
};

}  // namespace cutlass_py
