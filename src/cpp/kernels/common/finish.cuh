// What is done to a product's elements before they are stored (CutlassPyEpilogue in kernel.h), whoever has summed them:
// the composed epilogue, and kernels that finish elements one by one.
//
// Dtypes, strides and the activation are switched at run time, once for the elements that a thread holds of a row.
#pragma once

#include "abi/kernel.h"
#include "kernels/common/activation.cuh"
#include "kernels/common/conversion.cuh"

namespace cutlass_py {

// An operand; strides in bytes. Absent where data is null.
struct Array {
  char* data;
  int64_t row, col, batch;
  Dtype dtype;
  int size;
};

struct Factor {
  double value;
  const void* device;  // or null
};

struct Finish {
  Array c, bias, scale_a, scale_b, argument, aux, d;  // the activation is taken at `argument`, without it at z
  Factor alpha, beta, scale_out;
  Dtype factor_dtype;
  activation::Number activation;
  bool fast;  // its approximations round less than the results do
  double parameters[2];
};

inline Array array_of(const CutlassPyArray& x) {
  const int size = dtype_size(Dtype(x.dtype));
  return {static_cast<char*>(x.data), x.row * size, x.col * size, x.batch * size, Dtype(x.dtype), size};
}
inline Factor factor_of(const CutlassPyScalar& scalar) { return {scalar.value, scalar.device}; }

// Without what an epilogue sums. oriented(array): as it is, or with rows and columns in each other's place.
template <class Orient>
Finish finish_of(const CutlassPyEpilogue& e, const CutlassPyArray& d, Dtype factors, Orient oriented) {
  const auto operand = [&](const CutlassPyArray& x) { return x.data ? array_of(oriented(x)) : Array{}; };
  Finish p{};
  if (e.beta.device || e.beta.value != 0) p.c = operand(e.c);
  p.bias = operand(e.bias), p.scale_a = operand(e.scale_a), p.scale_b = operand(e.scale_b), p.d = operand(d);
  p.activation = activation::Number(e.activation);
  const bool derivative = activation::is_derivative(p.activation);
  p.argument = operand(derivative ? e.aux : e.gate), p.aux = derivative ? Array{} : operand(e.aux);
  p.alpha = factor_of(e.alpha), p.beta = factor_of(e.beta), p.scale_out = factor_of(e.scale_out);
  p.factor_dtype = factors;
  p.fast = p.d.size <= 2 && !e.bias_grad.data;
  p.parameters[0] = e.parameters[0], p.parameters[1] = e.parameters[1];
  return p;
}

// Elements of a row from (row, col) on, `step` columns apart.
struct Place {
  int64_t batch;
  uint32_t row, col, step;
};

// ------------------------------------------------------------------------------------------------ memory

__device__ inline char* address(const Array& x, const Place& at) {
  return x.data + at.batch * x.batch + int64_t(at.row) * x.row + int64_t(at.col) * x.col;
}

template <bool kVector>
__device__ bool packed(const Array& x) {
  return kVector && x.col != 0;  // a stride of 0 repeats one element
}

// Only loads: what they bring is looked at in `numbers`, after every load of an element is on its way. By vectors there
// are four.
template <class T, bool kVector, int kElements>
__device__ void load(const Array& x, const Place& at, int count, Word<T> (&words)[kElements]) {
  const char* from = address(x, at);
  if constexpr (kVector) {
    if (packed<kVector>(x)) {
      if (x.size == 4) {
        *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
      } else if (x.size == 2) {
        *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
      } else {
        words[0] = *reinterpret_cast<const uint32_t*>(from);
      }
      return;
    }
  }
  const int64_t step = at.step * x.col;
  const auto each = [&](auto element) {
    using Element = decltype(element);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i < count) words[i] = *reinterpret_cast<const Element*>(from + i * step);
    }
  };
  if (x.size == 1) return each(uint8_t());
  if (x.size == 2) return each(uint16_t());
  if (x.size == 4) return each(uint32_t());
  if constexpr (sizeof(T) == 8) each(uint64_t());
}

template <class T, bool kVector, int kElements>
__device__ void numbers_of(const Array& x, const Word<T> (&words)[kElements], T (&value)[kElements]) {
  if constexpr (kVector) {
    if (packed<kVector>(x)) return decode<true, T>(x.dtype, words, value);
  }
  decode<false, T>(x.dtype, words, value);
}

// The numbers of an operand that many threads share: in cache, so nothing else is kept waiting.
template <class T, bool kVector, int kElements>
__device__ void load_numbers(const Array& x, const Place& at, int count, T (&value)[kElements]) {
  alignas(16) Word<T> words[kElements] = {};
  load<T, kVector>(x, at, count, words);
  numbers_of<T, kVector>(x, words, value);
}

template <class T, bool kVector, int kElements>
__device__ void store(const Array& x, const Place& at, int count, const T (&value)[kElements]) {
  char* to = address(x, at);
  encode(x.dtype, value, [&](const auto& bits) {
    using Element = std::decay_t<decltype(bits[0])>;
    if constexpr (kVector && sizeof(Element) <= 4) {
      struct alignas(kElements * sizeof(Element)) Vector {
        Element element[kElements];
      } vector;
#pragma unroll
      for (int i = 0; i < kElements; ++i) vector.element[i] = bits[i];
      *reinterpret_cast<Vector*>(to) = vector;
    } else {
      const int64_t step = at.step * x.col;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (i < count) *reinterpret_cast<Element*>(to + i * step) = bits[i];
      }
    }
  });
}

template <class T>
__device__ T read(const Factor& factor, Dtype dtype) {
  if (!factor.device) return T(factor.value);
  return dtype == Dtype::f64 ? T(*static_cast<const double*>(factor.device))
                             : T(*static_cast<const float*>(factor.device));
}

// ------------------------------------------------------------------------------------------------ arithmetic

template <bool kFast, class T, int kElements>
__device__ void activate(const Finish& p, T (&x)[kElements]) {
  const T parameters[] = {T(p.parameters[0]), T(p.parameters[1])};
  activation::with_activation<kFast, true>(p.activation, [&](auto f) {
    constexpr int kUnroll = sizeof(T) == 4 ? kElements : 1;
#pragma unroll kUnroll
    for (T& value : x) value = f.apply(value, parameters);
  });
}

// In double by a call: rare, and inlined it would be most of what there is to compile.
template <int kElements>
__device__ __noinline__ void activate_apart(const Finish& p, double (&x)[kElements]) {
  activate<false>(p, x);
}

template <class T>
struct Factors {
  T alpha, beta, scale_out;

  __device__ explicit Factors(const Finish& p)
      : alpha(read<T>(p.alpha, p.factor_dtype)),
        beta(read<T>(p.beta, p.factor_dtype)),
        scale_out(read<T>(p.scale_out, p.factor_dtype)) {}
};

__device__ inline float fused(float x, float y, float z) { return fmaf(x, y, z); }
__device__ inline double fused(double x, double y, double z) { return fma(x, y, z); }

// y for the elements at a place, but for scale_out; aux is written here. product(z) leaves their sums in z, where there
// is a product; it is asked once the loads of the matrices are on their way.
template <class T, bool kVector, int kElements, class Product>
__device__ void finish(const Finish& p, const Factors<T>& factors, const Place& at, int count, bool has_product,
                       Product product, T (&y)[kElements]) {
  const auto each = [](auto apply) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) apply(i);
  };
  alignas(16) Word<T> c[kElements] = {}, argument[kElements] = {};
  const bool reads_c = p.c.data && factors.beta != T(0);
  if (reads_c) load<T, kVector>(p.c, at, count, c);
  if (p.argument.data) load<T, kVector>(p.argument, at, count, argument);

  // acc * factor + bias, rounded once; or with C in between, each rounded. As our own kernels do it
  // (kernels/sm90/epilogue.cuh): a row may be finished by them, or here, and has the same bits.
  T z[kElements] = {}, factor[kElements], bias[kElements], value[kElements];
  each([&](int i) { factor[i] = 1, bias[i] = T(-0.0); });
  if (p.bias.data) load_numbers<T, kVector>(p.bias, at, count, bias);
  if (has_product) {
    const auto multiply_by = [&](const Array& scale) {
      if (!scale.data) return;
      load_numbers<T, kVector>(scale, at, count, value);
      each([&](int i) { factor[i] *= value[i]; });
    };
    multiply_by(p.scale_a);
    multiply_by(p.scale_b);
    each([&](int i) { factor[i] *= factors.alpha; });
    product(z);
  }
  if (reads_c) {
    numbers_of<T, kVector>(p.c, c, value);
    each([&](int i) { z[i] = fused(factors.beta, value[i], has_product ? z[i] * factor[i] : T(0)) + bias[i]; });
  } else if (has_product) {
    each([&](int i) { z[i] = fused(z[i], factor[i], bias[i]); });
  } else {
    each([&](int i) { z[i] += bias[i]; });
  }
  if (p.aux.data) store<T, kVector>(p.aux, at, count, z);

  each([&](int i) { y[i] = z[i]; });
  if (p.argument.data) numbers_of<T, kVector>(p.argument, argument, y);
  if constexpr (sizeof(T) == 4) p.fast ? activate<true>(p, y) : activate<false>(p, y);
  if constexpr (sizeof(T) == 8) activate_apart(p, y);
  if (p.argument.data) each([&](int i) { y[i] *= z[i]; });
}

}  // namespace cutlass_py
