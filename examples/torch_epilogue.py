"""torch: what follows a product in the same call - bias, activations, gates, gradients, scales of fp8."""

import sys

import cutlass_py

try:
    import torch
    from torch.nn import functional
except ImportError:
    print("torch_epilogue: torch is not installed")
    sys.exit()

gemm = cutlass_py.gemm
device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"on {device}")
torch.manual_seed(0)


def check(title, found, expected):
    expected = expected.double()
    print(f"{title:22}{float((found.double() - expected).abs().max() / expected.abs().max()):.1e}")


x = torch.randn(256, 512, device=device).bfloat16() / 16
weight, weight_gate = (torch.randn(768, 512, device=device).bfloat16() for _ in range(2))  # (n, k), as nn.Linear
bias = torch.randn(768, device=device).bfloat16()
z = x.double() @ weight.double().T + bias.double()  # what the activations below apply to

# A linear layer and its activation. aux keeps z, which the backward pass needs.
pre = torch.empty(256, 768, device=device, dtype=torch.bfloat16)
y = gemm(x, weight.T, bias=bias, activation="gelu_tanh", aux=pre)
check("gelu_tanh(x w + b)", y, functional.gelu(z, approximate="tanh"))
check("kept in aux", pre, z)

# An activation with a parameter is a value; no kernel is compiled for it.
check("clamp", gemm(x, weight.T, bias=bias, activation=cutlass_py.clamp(-1, 1)), z.clamp(-1, 1))

# SwiGLU: the second product is multiplied by the activation of the first.
gate = gemm(x, weight_gate.T)
check("silu(x v) * (x w + b)", gemm(x, weight.T, bias=bias, gate=gate, activation="silu"),
      functional.silu(gate.double()) * z)  # fmt: skip

# Backward through that layer: (dy v) times gelu'(z), and the gradient of the bias, summed over the rows.
up = torch.randn(256, 512, device=device).bfloat16() / 16
grad_bias = torch.empty(768, device=device)
grad = gemm(up, weight.T, aux=pre, activation="d_gelu_tanh", bias_grad=grad_bias)
leaf = pre.double().requires_grad_()
functional.gelu(leaf, approximate="tanh").backward(up.double() @ weight.double().T)
check("times gelu_tanh'(z)", grad, leaf.grad)
check("gradient of b", grad_bias, leaf.grad.sum(0))

# fp8 with a scale per row and per column. Factors in arrays are read when the kernel runs: graphs may change them.
a8, b8 = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
rows = torch.rand(256, 1, device=device) + 0.5
cols = torch.rand(768, device=device) + 0.5
check("e4m3 with scales", gemm(a8, b8.T, scale_a=rows, scale_b=cols),
      rows.double() * (a8.double() @ b8.double().T) * cols.double())  # fmt: skip

print(f"\n{cutlass_py.explain(x, weight.T, bias=bias, activation='gelu_tanh')}")
