"""torch: a mixture of experts trained by grouped products and by a loop over experts.

A router sends each token to the experts that it scores highest. Sorted by expert, tokens are groups of rows:
cutlass_py.torch.grouped_mm multiplies them all by the weights of their experts in one launch, and so do both of its
gradients. The block learns a function of its tokens, in bf16 by autocast. Real on a GPU, small on a CPU.
"""

import copy
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("torch_moe: torch is not installed")
    sys.exit()

import cutlass_py.torch as ct

gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
tokens, width, hidden, experts, top, steps, rate = (
    (16384, 2048, 1024, 64, 8, 100, 3e-4) if gpu else (64, 32, 16, 8, 2, 30, 3e-3)
)


def swiglu(z):
    gate, value = z.chunk(2, -1)
    return functional.silu(gate) * value


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 2 * hidden, width) / width**0.5)  # gates, then values
        self.down = nn.Parameter(torch.randn(experts, width, hidden) / hidden**0.5)

    def forward(self, x):
        shares, chosen = self.router(x).float().softmax(-1).topk(top)  # (tokens, top)
        return self.mixed(x, shares / shares.sum(-1, keepdim=True), chosen)


class Loop(Experts):
    def mixed(self, x, shares, chosen):
        out = torch.zeros_like(x)
        for i in range(experts):
            token, place = (chosen == i).nonzero(as_tuple=True)
            y = swiglu(x[token] @ self.up[i].mT) @ self.down[i].mT
            out.index_add_(0, token, y * shares[token, place, None])
        return out


class Grouped(Experts):
    def mixed(self, x, shares, chosen):
        expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(expert, torch.arange(experts, device=x.device), right=True, out_int32=True)
        token = order // top
        y = ct.grouped_mm(swiglu(ct.grouped_mm(x[token], self.up.mT, offs=ends)), self.down.mT, offs=ends)
        return torch.zeros_like(x).index_add_(0, token, y * shares.flatten()[order, None])


def train(model):
    """Losses of all steps, and milliseconds per step over the second half."""
    torch.manual_seed(1)
    teacher = torch.randn(width, width, device=device) / width**0.5
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        if step == steps // 2:
            start = synchronised()
        x = torch.randn(tokens, width, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            y = model(x)
        loss = functional.mse_loss(y, torch.tanh(x @ teacher))
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
loop = Loop().to(device)
grouped = Grouped().to(device)
grouped.load_state_dict(loop.state_dict())
rounded = copy.deepcopy(loop)  # how far curves part by rounding alone: weights off by half a unit of bf16
with torch.no_grad():
    for parameter in rounded.parameters():
        parameter *= 1 + 2**-9 * torch.randn_like(parameter)

print(f"{'on ' + device:26}{'first loss':>12}{'last':>8}{'off by':>10}{'ms/step':>10}")
reference, noise = None, 0.0
for title, model in {"a loop": loop, "a loop, rounded": rounded, "grouped_mm": grouped}.items():
    curve, milliseconds = train(model)
    reference = curve if reference is None else reference
    off = ((curve - reference).abs() / reference).max()
    noise = off if model is rounded else noise
    print(f"{title:26}{curve[0]:12.4f}{curve[-1]:8.4f}{off:10.1e}{milliseconds:10.2f}")
    assert curve[-1] < curve[0] and off < 0.01 + 2 * noise, "the losses part from those of the loop"
