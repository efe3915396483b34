// The composed epilogue of complex results: d = alpha * acc + beta * c + bias, any strides. (Real ones: compose.cu.)
#include <algorithm>

#include "kernels/elementwise/elementwise.h"

namespace cutlass_py {
namespace {

constexpr int kWidth = 32, kHeight = 8;  // elements of a block, one by each thread

template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real real, imaginary;

  template <class Other>
  static __device__ Complex from(const Complex<Other>& x) {
    return {Real(x.real), Real(x.imaginary)};
  }
  __device__ Complex operator+(Complex x) const { return {real + x.real, imaginary + x.imaginary}; }
  __device__ Complex operator*(Complex x) const {
    return {real * x.real - imaginary * x.imaginary, real * x.imaginary + imaginary * x.real};
  }
  __device__ bool is_zero() const { return real == 0 && imaginary == 0; }
};

struct Operands {
  CutlassPyArray acc, c, bias, d;
  CutlassPyScalar alpha, beta;
  Dtype scalar_dtype;
  int parts;
  int64_t part_stride, batch, rows, cols, tiles_per_row;
};

template <class Real>
__device__ Complex<Real> load(const void* data, Dtype dtype, int64_t index) {
  if (dtype == Dtype::c128) return Complex<Real>::from(static_cast<const Complex<double>*>(data)[index]);
  return Complex<Real>::from(static_cast<const Complex<float>*>(data)[index]);
}

template <class Real>
__device__ Complex<Real> read(const CutlassPyScalar& scalar, Dtype dtype) {
  if (scalar.device) return load<Real>(scalar.device, dtype, 0);
  return {Real(scalar.value), Real(scalar.imaginary)};
}

template <class Real>
__global__ void __launch_bounds__(kWidth* kHeight) complex_kernel(const __grid_constant__ Operands p) {
  const int64_t row = blockIdx.x / p.tiles_per_row * kHeight + threadIdx.y;
  const int64_t col = blockIdx.x % p.tiles_per_row * kWidth + threadIdx.x;
  if (row >= p.rows || col >= p.cols) return;
  const Complex<Real> alpha = read<Real>(p.alpha, p.scalar_dtype), beta = read<Real>(p.beta, p.scalar_dtype);
  const bool reads_c = p.c.data && !beta.is_zero();
  for (int64_t batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
    const auto index = [&](const CutlassPyArray& x) { return batch * x.batch + row * x.row + col * x.col; };
    const auto element = [&](const CutlassPyArray& x, int64_t offset) {
      return load<Real>(x.data, Dtype(x.dtype), index(x) + offset);
    };
    Complex<Real> z{};
    if (p.acc.data) {
      for (int part = 0; part < p.parts; ++part) z = z + element(p.acc, part * p.part_stride);
      z = alpha * z;
    }
    if (reads_c) z = z + beta * element(p.c, 0);
    if (p.bias.data) z = z + element(p.bias, 0);
    if (Dtype(p.d.dtype) == Dtype::c128) {
      static_cast<Complex<double>*>(p.d.data)[index(p.d)] = Complex<double>::from(z);
    } else {
      static_cast<Complex<float>*>(p.d.data)[index(p.d)] = Complex<float>::from(z);
    }
  }
}

}  // namespace

int compose_complex(const CutlassPyArray* acc, int32_t parts, int64_t part_stride, const CutlassPyEpilogue& epilogue,
                    const CutlassPyArray& d, int64_t batch, int64_t rows, int64_t cols, cudaStream_t stream) {
  if (batch * rows * cols == 0) return 0;
  const bool turn = runs_along_rows(d, rows, cols);
  if (turn) std::swap(rows, cols);
  const auto oriented = [turn](const CutlassPyArray& x) { return turn ? transposed(x) : x; };
  Operands p{oriented(*acc), oriented(epilogue.c), oriented(epilogue.bias), oriented(d)};
  p.alpha = epilogue.alpha, p.beta = epilogue.beta;
  p.scalar_dtype = scalar_dtype(Dtype(acc->dtype));
  p.parts = parts, p.part_stride = part_stride;
  p.batch = batch, p.rows = rows, p.cols = cols, p.tiles_per_row = ceil_div(cols, kWidth);
  const int64_t blocks = p.tiles_per_row * ceil_div(rows, kHeight);
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  bool wide = p.scalar_dtype == Dtype::c128;
  for (const CutlassPyArray* x : {&p.c, &p.bias, &p.d}) wide |= x->data && Dtype(x->dtype) == Dtype::c128;
  auto* kernel = wide ? &complex_kernel<double> : &complex_kernel<float>;
  return queue(kernel, dim3(unsigned(blocks), unsigned(std::min(batch, kMostBlocksY))), dim3(kWidth, kHeight), stream,
               p);
}

}  // namespace cutlass_py
