"""torch: a transformer block trained with stock layers and with cutlass_py's, each also under torch.compile.

Attention projections and MLP are nn.Linear; replace_linear makes them cutlass_py.torch.Linear, and the MLP one call
whose backward pass is fused across its layers. The block learns to reverse the order of its tokens, in bf16 by
autocast. Real on a GPU, small on a CPU.
"""

import copy
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("torch_train: torch is not installed")
    sys.exit()

import cutlass_py.torch

gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
batch, tokens, width, heads, steps = (8, 1024, 2048, 16, 100) if gpu else (4, 16, 32, 4, 10)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(tokens, width) / 8)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.place
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attention.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))


def train(model):
    """Losses of all steps, and milliseconds per step over the second half."""
    torch.manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        if step == steps // 2:
            start = synchronised()
        x = torch.randn(batch, tokens, width, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(x)
        loss = functional.mse_loss(y.float(), x.flip(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses), 1e3 * (synchronised() - start) / (steps - steps // 2)


def synchronised():
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


torch.manual_seed(0)
stock = Block().to(device)
ours = copy.deepcopy(stock)
print(cutlass_py.torch.replace_linear(ours, fuse=True))
rounded = copy.deepcopy(stock)  # how far curves part by rounding alone: weights off by half a unit of bf16
with torch.no_grad():
    for parameter in rounded.parameters():
        parameter *= 1 + 2**-9 * torch.randn_like(parameter)
backend = "inductor" if gpu else "aot_eager"  # inductor would call a C++ compiler for a CPU


def compiled(model):
    return torch.compile(copy.deepcopy(model), backend=backend, fullgraph=True)


runs = {
    "nn.Linear": stock,
    "nn.Linear, rounded": rounded,
    "replace_linear": ours,
    "nn.Linear, compiled": compiled(stock),
    "replace_linear, compiled": compiled(ours),
}
print(f"\n{'on ' + device:26}{'first loss':>12}{'last':>8}{'off by':>10}{'ms/step':>10}")
reference, noise = None, 0.0
for title, model in runs.items():
    curve, milliseconds = train(model)
    reference = curve if title == "nn.Linear" else reference
    off = ((curve - reference).abs() / reference).max()
    noise = off if title == "nn.Linear, rounded" else noise
    print(f"{title:26}{curve[0]:12.4f}{curve[-1]:8.4f}{off:10.1e}{milliseconds:10.2f}")
    assert curve[-1] < curve[0] and off < 0.01 + 2 * noise, "the losses part from those of stock layers"
