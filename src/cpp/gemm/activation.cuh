// The activations, for fused and composed epilogues alike, and on the host for who checks a kernel (emit.py).
//
// Each is a struct with `apply(x, parameters)`. `Fast` computes tanh by the hardware (relative error 2^-11): for
// results of 16 bits and less. NaN goes through every one of them.
#pragma once

#include <cuda_runtime.h>

namespace cutlass_py {
namespace activation {

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

template <bool Fast, class T>
__host__ __device__ T logistic(T x) {
  if constexpr (Fast) {
    return T(0.5) + T(0.5) * hyperbolic_tangent<true>(T(0.5) * x);
  } else {
    return T(1) / (T(1) + ::exp(-x));
  }
}

// fmin and fmax drop NaN; a comparison that NaN fails keeps it.
template <class T>
__host__ __device__ T at_least(T x, T low) {
  return x < low ? low : x;
}
template <class T>
__host__ __device__ T at_most(T x, T high) {
  return x > high ? high : x;
}

inline constexpr double kSqrtHalf = 0.70710678118654752440;        // 1 / sqrt(2)
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;     // sqrt(2 / pi)
inline constexpr double kInverseSqrt2Pi = 0.39894228040143267794;  // 1 / sqrt(2 pi)
// Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415
inline constexpr double kGeluCubic = 0.044715;

template <bool Fast>
struct identity {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return x;
  }
};

template <bool Fast>
struct relu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return at_least(x, T(0));
  }
};

template <bool Fast>
struct leaky_relu {
  template <class T>
  static __host__ __device__ T apply(T x, const float* slope) {
    return x < T(0) ? T(slope[0]) * x : x;
  }
};

template <bool Fast>
struct gelu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return T(0.5) * x * (T(1) + ::erf(x * T(kSqrtHalf)));
  }
};

template <bool Fast>
struct gelu_tanh {
  template <class T>
  static __host__ __device__ T inner(T x) {
    return hyperbolic_tangent<Fast>(x * (T(kSqrt2OverPi) + T(kSqrt2OverPi * kGeluCubic) * x * x));
  }
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    const T half = T(0.5) * x;
    return half + half * inner(x);
  }
};

template <bool Fast>
struct silu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    if constexpr (Fast) {
      const T half = T(0.5) * x;
      return half + half * hyperbolic_tangent<true>(half);
    } else {
      return x / (T(1) + ::exp(-x));
    }
  }
};

template <bool Fast>
struct sigmoid {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return logistic<Fast>(x);
  }
};

template <bool Fast>
struct tanh {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return hyperbolic_tangent<Fast>(x);
  }
};

template <bool Fast>
struct hardswish {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return x * at_most(at_least(x + T(3), T(0)), T(6)) * T(1.0 / 6);
  }
};

template <bool Fast>
struct clamp {
  template <class T>
  static __host__ __device__ T apply(T x, const float* bounds) {
    return at_most(at_least(x, T(bounds[0])), T(bounds[1]));
  }
};

template <bool Fast>
struct d_relu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return x > T(0) ? T(1) : x <= T(0) ? T(0) : x;  // NaN stays
  }
};

template <bool Fast>
struct d_gelu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    return T(0.5) * (T(1) + ::erf(x * T(kSqrtHalf))) + x * ::exp(T(-0.5) * x * x) * T(kInverseSqrt2Pi);
  }
};

template <bool Fast>
struct d_gelu_tanh {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    const T t = gelu_tanh<Fast>::inner(x);
    const T square = at_most(x * x, T(1e6));  // beyond, 1 - t * t is 0; infinity would make NaN of it
    const T slope = T(kSqrt2OverPi) + T(3 * kSqrt2OverPi * kGeluCubic) * square;
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope;
  }
};

template <bool Fast>
struct d_silu {
  template <class T>
  static __host__ __device__ T apply(T x, const float*) {
    const T s = logistic<Fast>(x);
    return s + s * x * (T(1) - s);
  }
};

}  // namespace activation

// An activation as CUTLASS's functors on fragments (or single numbers), with run-time parameters.
template <template <bool> class F, bool Fast>
struct ActivationFunctor {
  struct Parameters {
    float values[2] = {};
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
