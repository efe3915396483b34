"""NumPy, on the CPU: the same calls, checks and errors as on a GPU."""

import ml_dtypes
import numpy as np

import cutlass_py

rng = np.random.default_rng(0)
a, b = rng.standard_normal((100, 80)), rng.standard_normal((80, 60))

print("f64          ", np.abs(cutlass_py.gemm(a, b) - a @ b).max())

# Half types by ml_dtypes, accumulated in f32.
half = cutlass_py.gemm(a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16), out_dtype="f32")
print("bf16 -> f32  ", half.dtype, np.abs(half - a @ b).max())

# A strided destination; what lies between its columns stays as it is.
buffer = np.full((100, 120), -1.0)
cutlass_py.gemm(a, b, out=buffer[:, ::2])
print("strided out  ", np.abs(buffer[:, ::2] - a @ b).max(), (buffer[:, 1::2] == -1).all())

for wrong in (lambda: cutlass_py.gemm(a, b.T), lambda: cutlass_py.gemm(a, b.astype("f4"))):
    try:
        wrong()
    except (ValueError, TypeError) as error:
        print(type(error).__name__, error)

# Questions about a GPU need none: describe the operands instead of making them.
spec = cutlass_py.TensorSpec
problem = cutlass_py.GemmArguments(spec((4096, 4096), "bf16"), spec((4096, 11008), "bf16"))
kernels = cutlass_py.get_kernels(problem, compiled=False, where=lambda m: m.design.tile[0] == 128)
print(f"\n{problem}\n{len(kernels)} declared kernels with 128 rows to a tile, among them\n{kernels[0].name}")
