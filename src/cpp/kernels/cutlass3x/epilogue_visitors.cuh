// Epilogues of 3.x kernels as chains of stages, from the product outwards:
//
//   Product, Scaled, Addend, Bias, AuxStore, Activated or Gated, ScaleOut
//
// A stage is a template over a context X (types of the kernel) and the stage inside; it has the visitor tree `Node` and
// the `arguments` of that tree. codegen.py writes the chain of an epilogue. Axes are the caller's, m and n; a swapped
// kernel sees them exchanged, which only `Vector` has to know.
//
// alpha, beta and scale_out in device memory are read when a kernel starts, before it waits for its predecessor: such
// calls must not overlap (operations/gemm/routes.py).
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
#include "kernels/common/activation.cuh"
#include "kernels/common/cutlass_types.cuh"

namespace cutlass_py {
namespace visitors {

namespace visitor = cutlass::epilogue::fusion;

constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;

// A product of the tree: `Fn` applied to the values of `Children`, in the arithmetic of the epilogue.
template <class X, template <class> class Fn, class... Children>
using Computed =
    visitor::Sm90EVT<visitor::Sm90Compute<Fn, typename X::Compute, typename X::Compute, kRound>, Children...>;

// A factor by value or from device memory.
template <class X>
struct Factor {
  using Node = visitor::Sm90ScalarBroadcast<typename X::Compute, cute::Stride<cute::_0, cute::_0, int64_t>>;
  static typename Node::Arguments arguments(const CutlassPyScalar& scalar) {
    using Compute = typename X::Compute;
    return {{Compute(scalar.value)}, {static_cast<const Compute*>(scalar.device)}, {}};
  }
};

// A broadcast that is first read once the kernel's predecessor has written it. CUTLASS's own, where it may be a single
// element, looks as the kernel starts whether that is zero.
template <class Broadcast>
struct AfterWait : Broadcast {
  using Params = typename Broadcast::Params;
  AfterWait() = default;
  CUTLASS_HOST_DEVICE
  AfterWait(const Params& params, const typename Broadcast::SharedStorage& storage)
      : Broadcast(without_pointer(params), storage) {
    this->params = params;
  }

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const visitor::ConsumerStoreArgs<Args...>& args) {
    cutlass::arch::wait_on_dependent_grids();
    return Broadcast::template get_consumer_store_callbacks<ReferenceSrc>(args);
  }

 private:
  CUTLASS_HOST_DEVICE static Params without_pointer(Params params) {
    auto& [pointer, absent, stride] = params;
    pointer = nullptr;
    return params;
  }
};

// A vector of `Element` along an axis of the caller's problem; absent it is `absent` everywhere. A `dynamic` one may be
// a single element.
template <class X, char axis, class Element, bool dynamic>
struct Vector {
  static constexpr bool along_rows = (axis == 'm') != X::swap;  // of the kernel's own problem
  using Extent = std::conditional_t<dynamic, bool, cute::_1>;
  using Stride =
      std::conditional_t<along_rows, cute::Stride<Extent, cute::_0, int64_t>, cute::Stride<cute::_0, Extent, int64_t>>;
  using Broadcast =
      std::conditional_t<along_rows,
                         visitor::Sm90ColBroadcast<0, typename X::Tile, Element, typename X::Compute, Stride, 1>,
                         visitor::Sm90RowBroadcast<0, typename X::Tile, Element, typename X::Compute, Stride, 1>>;
  using Node = std::conditional_t<dynamic, AfterWait<Broadcast>, Broadcast>;

  static typename Node::Arguments arguments(const CutlassPyArray& array, Element absent) {
    Stride stride{};
    if constexpr (dynamic) cute::get<along_rows ? 0 : 1>(stride) = (axis == 'm' ? array.row : array.col) != 0;
    cute::get<2>(stride) = array.batch;
    return {static_cast<const Element*>(array.data), absent, stride};
  }
};

// alpha * acc
template <class X>
struct Product {
  using Node = Computed<X, cutlass::multiplies, typename Factor<X>::Node, visitor::Sm90AccFetch>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {Factor<X>::arguments(g.epilogue.alpha), {}, {}};
  }
};

// alpha * acc + beta * c by CUTLASS's own operation, which is leanest; c is not loaded where the kernel has none.
template <class X>
struct Linear {
  using Node = visitor::LinearCombination<typename X::D, typename X::Compute, typename X::C, typename X::Compute>;
  template <class Arguments>
  static Arguments arguments(const CutlassPyGemm& g) {
    using Compute = typename X::Compute;
    Arguments args{};
    args.alpha = Compute(g.epilogue.alpha.value);
    args.beta = Compute(g.epilogue.beta.value);
    args.alpha_ptr = static_cast<const Compute*>(g.epilogue.alpha.device);
    args.beta_ptr = static_cast<const Compute*>(g.epilogue.beta.device);
    return args;
  }
};

// scale_a (per row, or one) * scale_b (per column, or one) * inner
template <class X, class Inner>
struct Scaled {
  using ScaleA = Vector<X, 'm', typename X::Compute, true>;
  using ScaleB = Vector<X, 'n', typename X::Compute, true>;
  using Node = Computed<X, cutlass::multiplies, typename ScaleA::Node,
                        Computed<X, cutlass::multiplies, typename ScaleB::Node, typename Inner::Node>>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const typename X::Compute one(1);
    return {ScaleA::arguments(g.epilogue.scale_a, one),
            {ScaleB::arguments(g.epilogue.scale_b, one), Inner::arguments(g), {}},
            {}};
  }
};

// beta * c + inner
template <class X, class Inner>
struct Addend {
  using Node = Computed<X, cutlass::homogeneous_multiply_add, typename Factor<X>::Node,
                        visitor::Sm90SrcFetch<typename X::C>, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {Factor<X>::arguments(g.epilogue.beta), {}, Inner::arguments(g), {}};
  }
};

// inner + bias along an axis
template <class X, char axis, class Inner>
struct Bias {
  using Values = Vector<X, axis, typename X::BiasElement, false>;
  using Node = Computed<X, cutlass::plus, typename Values::Node, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {Values::arguments(g.epilogue.bias, typename X::BiasElement(0)), Inner::arguments(g), {}};
  }
};

// Stores inner as aux, in D's dtype, and passes it on.
template <class X, class Inner>
struct AuxStore {
  using Descriptor = cutlass::epilogue::collective::detail::EpilogueDescriptor<
      typename X::Tile, cutlass::epilogue::collective::EpilogueTileAuto, typename X::C, typename X::D,
      typename X::EpilogueSchedule>;
  using Aux = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, typename X::LayoutD, typename X::D>;
  using Store = visitor::Sm90AuxStore<Aux::Stages, typename Descriptor::EpilogueTile, typename X::D, kRound,
                                      typename Aux::Stride, typename Aux::SmemLayoutAtom, typename Aux::CopyOpR2S>;
  using Node = visitor::Sm90EVT<Store, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    const CutlassPyArray& aux = g.epilogue.aux;
    return {Inner::arguments(g), {static_cast<typename X::D*>(aux.data), X::stride_d(aux.row, aux.batch)}};
  }
};

template <class X, template <bool> class F>
using Functor = ActivationFunctor<F, sizeof(typename X::D) <= 2, typename X::Compute>;

template <class X, template <bool> class F>
typename Functor<X, F>::Parameters parameters(const CutlassPyGemm& g) {
  using Compute = typename X::Compute;
  return {{Compute(g.epilogue.parameters[0]), Compute(g.epilogue.parameters[1])}};
}

template <class X, template <bool> class F, class Inner>
struct Activated {
  using Node = Computed<X, Functor<X, F>::template Of, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {Inner::arguments(g), parameters<X, F>(g)};
  }
};

// f(x) * inner, where x (the gate, or aux of a derivative) arrives as CUTLASS's source C.
template <class X, template <bool> class F, class Inner>
struct Gated {
  using Node = Computed<X, Functor<X, F>::template Times, visitor::Sm90SrcFetch<typename X::C>, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {{}, Inner::arguments(g), parameters<X, F>(g)};
  }
};

// scale_out * inner
template <class X, class Inner>
struct ScaleOut {
  using Node = Computed<X, cutlass::multiplies, typename Factor<X>::Node, typename Inner::Node>;
  static typename Node::Arguments arguments(const CutlassPyGemm& g) {
    return {Factor<X>::arguments(g.epilogue.scale_out), Inner::arguments(g), {}};
  }
};

// A whole chain as CUTLASS takes it. The type of its own says in which arithmetic the values arrive: by default CUTLASS
// expects the accumulator's, which for integers it is not.
template <class X, class Stage>
struct Tree : Stage::Node {
  using Stage::Node::Node;
};

}  // namespace visitors
}  // namespace cutlass_py

template <class X, class Stage>
struct cutlass::epilogue::fusion::FusionCallbacksTraits<cutlass_py::visitors::Tree<X, Stage>> {
  using DispatchPolicy = void;
  using Callbacks = cutlass_py::visitors::Tree<X, Stage>;
  using Operation = cutlass::epilogue::fusion::FusionOperation;
  using CtaTile_MNK = void;
  using EpilogueTile_MN = void;
  using ElementCompute = typename X::Compute;
};
