"""Epilogues of one's own: a Python function becomes part of the kernel; on the CPU, NumPy runs the same program."""

import numpy as np

import cutlass_py
from cutlass_py.functions import gelu, sigmoid, where
from cutlass_py.functions import max as max_over
from cutlass_py.functions import sum as sum_over


@cutlass_py.epilogue
def gelu_bias(accum, alpha, bias):
    return gelu(alpha * accum + bias)


@cutlass_py.epilogue
def gated(accum, gate, residual):
    z = accum * sigmoid(gate)
    d = where(z > 0, z, 0.1 * z) + residual
    return d, {"kept": z, "row_sums": sum_over(d, axis=-1), "largest": max_over(d, axis=-2)}


def report(title, found, expected):
    print(f"{title:22}{np.abs(np.asarray(found, float) - expected).max():.1e}")


rng = np.random.default_rng(0)
a, b, gate, residual = (rng.standard_normal(shape, dtype="f4") for shape in ((64, 80), (80, 48), (64, 48), (64, 48)))
bias = rng.standard_normal(48, dtype="f4")

# The function runs on arrays too: in float64 it is its own reference.
product = a.astype(float) @ b
d = cutlass_py.gemm(a, b, epilogue=gelu_bias(alpha=0.5, bias=bias))
report("gelu(x / 2 + bias)", d, gelu_bias.__wrapped__(product, 0.5, bias.astype(float)))

kept, rows, largest = np.empty((64, 48), "f4"), np.empty((64, 1), "f4"), np.empty(48, "f4")
call = gated(gate=gate, residual=residual, kept=kept, row_sums=rows, largest=largest)
d = cutlass_py.gemm(a, b, epilogue=call)
expected, further = gated.__wrapped__(product, gate.astype(float), residual)
report("gated", d, expected)
for name, found in (("kept", kept), ("row_sums", rows), ("largest", largest)):
    report(f"  {name}", found, further[name])

# What cannot be expressed is refused when the function is decorated.
try:
    cutlass_py.epilogue(lambda accum: accum if accum > 0 else 0.0)
except cutlass_py.EpilogueError as error:
    print(f"{type(error).__name__}: ...{str(error)[-80:]}")


def on_the_gpu(name, a, b, bias):
    """A kernel is compiled the first time, which takes about a minute; later processes find it in the cache."""
    try:
        d = cutlass_py.gemm(a, b, epilogue=gelu_bias(alpha=0.5, bias=bias))
    except cutlass_py.CompileError as error:
        print(f"{name}: {error}")
        return
    print(f"{name}: {type(d).__module__}.{type(d).__name__} {d.dtype} {tuple(d.shape)}")
    print(cutlass_py.explain(a, b, epilogue=gelu_bias(alpha=0.5, bias=bias)))


try:
    import torch

    if torch.cuda.is_available():
        x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(384, 256, device="cuda", dtype=torch.bfloat16)
        on_the_gpu("torch", x, w.T, torch.randn(384, device="cuda", dtype=torch.bfloat16))
    else:
        print("torch finds no GPU")
except ImportError:
    print("torch is not installed")

try:
    import cupy

    x, w = (cupy.random.rand(*shape).astype(cupy.float16) for shape in ((512, 256), (384, 256)))
    on_the_gpu("cupy", x, w.T, cupy.random.rand(384).astype(cupy.float16))
except ImportError:
    print("cupy is not installed")
