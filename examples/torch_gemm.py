"""torch: out=, a weight stored as (n, k), an addend, tf32, batches, and the answer to "why this kernel?"."""

import sys

import cutlass_py

try:
    import torch
except ImportError:
    print("torch_gemm: torch is not installed")
    sys.exit()

device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"on {device}")
torch.manual_seed(0)

x = torch.randn(512, 1024, device=device).bfloat16()  # (m, k)
weight = torch.randn(768, 1024, device=device).bfloat16()  # (n, k), as nn.Linear holds it

# A transposed view is a layout, not a copy.
y = cutlass_py.gemm(x, weight.T)
print("new result   ", tuple(y.shape), y.dtype)

out = torch.empty_like(y)
assert cutlass_py.gemm(x, weight.T, out=out) is out

# D = alpha * (A @ B) + beta * C; out may be c itself.
residual = torch.ones_like(y)
cutlass_py.gemm(x, weight.T, c=residual, alpha=0.5, beta=2.0, out=residual)
print("alpha, beta  ", float((residual.double() - (0.5 * (x.double() @ weight.double().T) + 2)).abs().max()))

# f32 is exact unless asked otherwise, and a result may be wider than its operands.
a, b = torch.randn(256, 256, device=device), torch.randn(256, 256, device=device)
for compute in ("f32", "tf32"):
    error = (cutlass_py.gemm(a, b, compute=compute).double() - a.double() @ b.double()).abs().max()
    print(f"{compute:13}", float(error))
print("f32 from bf16", cutlass_py.gemm(x, weight.T, out_dtype=torch.float32).dtype)

# A batch of one broadcasts, and so does a matrix.
heads = torch.randn(8, 64, 1024, device=device).bfloat16()
print("batched      ", tuple(cutlass_py.gemm(heads, weight.T).shape))

print(f"\n{cutlass_py.explain(x, weight.T)}")
