"""CuPy: half and single precision, an addend, and bfloat16 as a view of 16-bit integers."""

import sys

import cutlass_py

try:
    import cupy as cp
except ImportError:
    print("cupy_gemm: CuPy is not installed")
    sys.exit()
try:
    cp.cuda.runtime.getDeviceCount()
except cp.cuda.runtime.CUDARuntimeError as error:
    print(f"cupy_gemm: CuPy finds no GPU ({error})")
    sys.exit()

rng = cp.random.default_rng(0)
a = rng.standard_normal((300, 500), dtype=cp.float32).astype(cp.float16)
b = rng.standard_normal((500, 200), dtype=cp.float32).astype(cp.float16)

d = cutlass_py.gemm(a, b)
exact = a.astype(cp.float64) @ b.astype(cp.float64)
print("f16          ", d.dtype, float(cp.abs(d.astype(cp.float64) - exact).max()))

# Column-major and strided arrays are read and written as they lie.
out = cp.empty((300, 200), cp.float32, order="F")
cutlass_py.gemm(a, b, out=out, c=cp.ones_like(out), beta=-1.0)
print("f32, F order ", float(cp.abs(out - (exact - 1)).max()))

# CuPy cannot name bfloat16: a view says what the bits are. The upper half of a float32 is its bfloat16.
bits_a = (a.astype(cp.float32).view(cp.uint32) >> 16).astype(cp.uint16)
bits_b = (b.astype(cp.float32).view(cp.uint32) >> 16).astype(cp.uint16)
product = cutlass_py.gemm(cutlass_py.view(bits_a, "bf16"), cutlass_py.view(bits_b, "bf16"), out_dtype="f32")
print("bf16 -> f32  ", product.dtype, float(cp.abs(product - exact).max()))
