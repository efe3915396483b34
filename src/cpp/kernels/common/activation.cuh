// The activations, for fused and composed epilogues alike, and on the host for who checks a kernel (emit.py).
//
// Each is a struct with `apply(x, parameters)`. `Fast` uses the hardware's approximations, for results of 16 bits and
// less: its own relative error is below theirs at every x. So 1 + tanh is never taken, which would leave little of the
// small values on the negative side. NaN goes through every one of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace cutlass_py {
namespace activation {

inline constexpr float kLog2E = 1.44269504f;  // log2(e)

// Beside an x that says what T is: null does where there are none.
template <class T>
using Numbers = const std::common_type_t<T>*;

// tanh.approx: relative error 2^-11.
template <bool Fast, class T>
__host__ __device__ T hyperbolic_tangent(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (Fast && sizeof(T) == 4) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
#endif
  return ::tanh(x);
}

// 2^x and 1 / x by the hardware: relative errors of 2^-22 and 2^-23.
__host__ __device__ inline float quick_exp2(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return ::exp2f(x);
#endif
}
__host__ __device__ inline float quick_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return 1 / x;
#endif
}

// 1 / (1 + exp(-x)). Fast: relative error (4 + |x|) * 2^-23 down to -87, and 0 below.
template <bool Fast, class T>
__host__ __device__ T logistic(T x) {
  if constexpr (Fast && sizeof(T) == 4) {
    return quick_reciprocal(1 + quick_exp2(x * -kLog2E));
  } else {
    return T(1) / (T(1) + ::exp(-x));
  }
}

// NaN goes through, of either, which fmin and fmax drop. Of two zeros the instruction takes +0 as the larger one.
template <class T>
__host__ __device__ T at_least(T x, T low) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {  // in one instruction
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(low));
    return x;
  }
#endif
  return x < low || low != low ? low : x;
}
template <class T>
__host__ __device__ T at_most(T x, T high) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(high));
    return x;
  }
#endif
  return x > high || high != high ? high : x;
}

inline constexpr double kSqrtHalf = 0.70710678118654752440;        // 1 / sqrt(2)
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;     // sqrt(2 / pi)
inline constexpr double kInverseSqrt2Pi = 0.39894228040143267794;  // 1 / sqrt(2 pi)
// Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415
inline constexpr double kGeluCubic = 0.044715;

template <bool Fast>
struct identity {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x;
  }
};

template <bool Fast>
struct relu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return at_least(x, T(0));
  }
};

template <bool Fast>
struct leaky_relu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T> slope) {
    return x < T(0) ? slope[0] * x : x;
  }
};

// The share of the normal distribution that lies below x; 1 + erf would leave nothing of a small one. Fast: relative
// error 2^-14.8 down to where that is no normal number, -13. In the form of Abramowitz and Stegun, Handbook of
// Mathematical Functions, 7.1.26; the coefficients have the least relative error of the tail.
template <bool Fast, class T>
__host__ __device__ T normal_share(T x) {
  if constexpr (Fast && sizeof(T) == 4) {
    const float t = quick_reciprocal(1 + 0.376505404f * ::fabsf(x));
    const float polynomial =
        t * (0.149687910f + t * (0.158006930f + t * (0.085284830f + t * (0.197972130f + t * -0.090966020f))));
    const float tail = polynomial * quick_exp2(x * x * (-0.5f * kLog2E));
    return x < 0 ? tail : 1 - tail;  // of NaN the latter
  } else {
    return T(0.5) * ::erfc(x * T(-kSqrtHalf));
  }
}

template <bool Fast>
struct gelu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x * normal_share<Fast>(x);
  }
};

// (1 + tanh(u)) / 2 is the logistic function of 2 u.
template <bool Fast>
struct gelu_tanh {
  template <class T>
  static __host__ __device__ T share(T x) {
    return logistic<Fast>(x * (T(2 * kSqrt2OverPi) + T(2 * kSqrt2OverPi * kGeluCubic) * x * x));
  }
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x * share(x);
  }
};

template <bool Fast>
struct silu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x * logistic<Fast>(x);
  }
};

template <bool Fast>
struct sigmoid {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return logistic<Fast>(x);
  }
};

template <bool Fast>
struct tanh {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return hyperbolic_tangent<Fast>(x);
  }
};

template <bool Fast>
struct hardswish {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x * at_most(at_least(x + T(3), T(0)), T(6)) * T(1.0 / 6);
  }
};

template <bool Fast>
struct clamp {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T> bounds) {
    return at_most(at_least(x, bounds[0]), bounds[1]);
  }
};

template <bool Fast>
struct d_relu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return x > T(0) ? T(1) : x <= T(0) ? T(0) : x;  // NaN stays
  }
};

template <bool Fast>
struct d_gelu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    return normal_share<false>(x) + x * ::exp(T(-0.5) * x * x) * T(kInverseSqrt2Pi);
  }
};

template <bool Fast>
struct d_gelu_tanh {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    const T s = gelu_tanh<Fast>::share(x);
    const T square = at_most(x * x, T(1e6));  // beyond, s * (1 - s) is 0; infinity would make NaN of it
    const T slope = T(2 * kSqrt2OverPi) + T(6 * kSqrt2OverPi * kGeluCubic) * square;
    return s + s * x * (T(1) - s) * slope;
  }
};

template <bool Fast>
struct d_silu {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    const T s = logistic<Fast>(x);
    return s + s * x * (T(1) - s);
  }
};

template <bool Fast>
struct d_sigmoid {
  template <class T>
  static __host__ __device__ T apply(T x, Numbers<T>) {
    const T s = logistic<Fast>(x);
    return s * (T(1) - s);
  }
};

// All, in the order of their numbers (CutlassPyEpilogue::activation; compose_kernel.cuh holds them against the
// generated ones).
#define CUTLASS_PY_ACTIVATIONS(X) \
  X(identity)                     \
  X(relu)                         \
  X(leaky_relu)                   \
  X(gelu)                         \
  X(gelu_tanh)                    \
  X(silu)                         \
  X(sigmoid)                      \
  X(tanh)                         \
  X(hardswish)                    \
  X(clamp)                        \
  X(d_relu)                       \
  X(d_gelu)                       \
  X(d_gelu_tanh)                  \
  X(d_silu)                       \
  X(d_sigmoid)

enum class Number : int32_t {
#define CUTLASS_PY_ACTIVATION(NAME) NAME,
  CUTLASS_PY_ACTIVATIONS(CUTLASS_PY_ACTIVATION)
#undef CUTLASS_PY_ACTIVATION
};

#define CUTLASS_PY_ACTIVATION(NAME) +1
inline constexpr int kCount = 0 CUTLASS_PY_ACTIVATIONS(CUTLASS_PY_ACTIVATION);
#undef CUTLASS_PY_ACTIVATION

constexpr bool is_derivative(Number x) {
  return x == Number::d_relu || x == Number::d_gelu || x == Number::d_gelu_tanh || x == Number::d_silu ||
         x == Number::d_sigmoid;
}

template <Number number, bool Fast>
struct Numbered;
#define CUTLASS_PY_ACTIVATION(NAME)     \
  template <bool Fast>                  \
  struct Numbered<Number::NAME, Fast> { \
    using Function = NAME<Fast>;        \
  };
CUTLASS_PY_ACTIVATIONS(CUTLASS_PY_ACTIVATION)
#undef CUTLASS_PY_ACTIVATION

// use(f) of that number, one of [begin, end); of a derivative only where there may be some. By comparisons, for a
// switch reads from memory where it goes.
template <bool Fast, bool derivatives, int begin = 0, int end = kCount, class Use>
__device__ void with_activation(Number number, Use use) {
  constexpr int middle = (begin + end) / 2;
  if constexpr (end - begin > 1) {
    if (int(number) < middle) {
      with_activation<Fast, derivatives, begin, middle>(number, use);
    } else {
      with_activation<Fast, derivatives, middle, end>(number, use);
    }
  } else if constexpr (derivatives || !is_derivative(Number(begin))) {
    use(typename Numbered<Number(begin), Fast>::Function());
  }
}

// use(f, its derivative), by the number of the latter.
template <bool Fast, class Use>
__device__ void with_differentiated(Number derivative, Use use) {
  switch (derivative) {
    case Number::d_relu: return use(relu<Fast>(), d_relu<Fast>());
    case Number::d_gelu: return use(gelu<Fast>(), d_gelu<Fast>());
    case Number::d_gelu_tanh: return use(gelu_tanh<Fast>(), d_gelu_tanh<Fast>());
    case Number::d_silu: return use(silu<Fast>(), d_silu<Fast>());
    default: return use(sigmoid<Fast>(), d_sigmoid<Fast>());
  }
}

}  // namespace activation

// An activation as CUTLASS's functors on fragments (or single numbers) of T, with run-time parameters.
template <template <bool> class F, bool Fast, class T>
struct ActivationFunctor {
  struct Parameters {
    T values[2] = {};
  };
  template <class Fragment>
  struct Of {
    using Arguments = Parameters;
    __device__ Fragment operator()(const Fragment& x, const Parameters& p) const {
      Fragment y;
#pragma unroll
      for (int i = 0; i < Fragment::kElements; ++i) y[i] = F<Fast>::apply(x[i], p.values);
      return y;
    }
  };
  // f(x) * z
  template <class Fragment>
  struct Times {
    using Arguments = Parameters;
    __device__ Fragment operator()(const Fragment& x, const Fragment& z, const Parameters& p) const {
      Fragment y;
#pragma unroll
      for (int i = 0; i < Fragment::kElements; ++i) y[i] = F<Fast>::apply(x[i], p.values) * z[i];
      return y;
    }
  };
};

}  // namespace cutlass_py
