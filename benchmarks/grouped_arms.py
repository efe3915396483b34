"""What grouped.py times of each kind of problem: operands, our call and torch's, and what stands beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cutlass_py
from cutlass_py.bench.frameworks import Torch
from cutlass_py.bench.results import OURS
from cutlass_py.bench.timing import Arm
from cutlass_py.declaration.dtypes import BLOCK
from cutlass_py.operations.grouped_gemm.suites import Experts

# Arms beside ours.
TORCH, TUNED, COPY, DENSE = "torch", "tuned", "copy", "dense"
SELECT, PLAIN, THREADS, APART, FAST, TORCH_FAST = "select", "plain", "threads", "apart", "fast", "torch fast"
# What is printed: one arm's time over another's, above 1 where ours is faster.
RATIOS = {
    TORCH: (TORCH, OURS), TUNED: (TORCH, TUNED), COPY: (COPY, OURS), DENSE: (DENSE, OURS), SELECT: (SELECT, OURS),
    PLAIN: (PLAIN, OURS), APART: (APART, OURS), FAST: (TORCH_FAST, FAST), THREADS: (DENSE, THREADS),
    f"{DENSE}, {TUNED}": (DENSE, TUNED),
}  # fmt: skip
_COMPUTE = {TORCH, OURS, TUNED, SELECT, APART, FAST, TORCH_FAST}  # the problem's result
TOP = 4  # experts of a token, where rows are gathered
_FP8 = ("fp8", "blocks")


class Operands:
    """`count` sets of a, b and the result; tokens and weights (experts, n, k) are row-major in memory."""

    def __init__(self, p: Experts, gpu: Torch) -> None:
        self.gpu, self.p, experts = gpu, p, len(p.sizes)
        item = 1 if p.kind in _FP8 else 2
        size = item * (p.elements - p.lines * p.n) + 2 * p.lines * p.n // (2 if p.kind == "gated" else 1)
        self.count = min(math.ceil(2 * gpu.l2_bytes() / size), 512)  # of all together twice the cache
        self.sets = []
        for _ in range(self.count):
            dtype = "e4m3" if p.kind in _FP8 else "bf16"
            x = gpu.random((p.lines, p.k), dtype)
            y = gpu.random((p.lines, p.n) if p.deep else (experts, p.n, p.k), dtype)
            columns = p.n // 2 if p.kind == "gated" else p.n
            d = x.new_empty((experts, p.k, p.n) if p.deep else (p.lines, columns), dtype=gpu.torch.bfloat16)
            self.sets.append((x.mT, y, d) if p.deep else (x, y.mT, d))
        self.ends = gpu.torch.tensor(p.ends, dtype=gpu.torch.int32, device=d.device)
        self.beside = self._beside(p, d)
        if p.kind == "gather":
            self.tokens = [gpu.random((max(p.lines // TOP, 1), p.k), "bf16") for _ in range(self.count)]
            self.rows = gpu.torch.randint(0, len(self.tokens[0]), (p.lines,), dtype=gpu.torch.int32, device=d.device)
            self.sets = [(x[self.rows], b, d) for x, (_, b, d) in zip(self.tokens, self.sets, strict=True)]

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.sets[index % self.count]

    def ours(self, kernel: str | None = None, **keywords: Any) -> Callable[[int], None]:
        """Our call, by a kernel's name or the choice."""
        keywords = {**self.beside, **keywords}

        def launch(i: int) -> None:
            a, b, d = self[i]
            cutlass_py.grouped_gemm(a, b, **{"offsets": self.ends, "out": d, "kernel": kernel, **keywords})

        return launch

    def wanted(self, i: int) -> Any:
        """The result of one expert, in f32."""
        (a, b, _), p = self[0], self.p
        at = slice(p.ends[i] - p.sizes[i], p.ends[i])
        x, y = (a[:, at], b[at]) if p.deep else (a[at], b[i])
        x, y = x.float(), y.float()
        if p.kind == "fp8":
            x, y = x * self.beside["scale_a"][at, None], y * self.beside["scale_b"][i]
        if p.kind == "blocks":
            x = x * self.beside["scale_a"][at].repeat_interleave(BLOCK, 1)[:, : p.k]
            factors = self.beside["scale_b"][i].repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            y = y * factors[: p.k, : p.n]
        z = x @ y
        return self.gpu.torch.nn.functional.silu(z[:, : p.n // 2]) * z[:, p.n // 2 :] if p.kind == "gated" else z

    def _beside(self, p: Experts, d: Any) -> dict[str, Any]:
        """What ours is told beside the operands."""
        experts, torch = len(p.sizes), self.gpu.torch

        def factors(*shape: int) -> Any:
            return (torch.rand(shape, device=d.device) + 0.5) / p.k**0.5

        if p.kind == "fp8":
            return {"scale_a": factors(p.lines), "scale_b": factors(experts, p.n)}
        if p.kind == "blocks":
            depth, columns = math.ceil(p.k / BLOCK), math.ceil(p.n / BLOCK)
            return {"scale_a": factors(depth, p.lines).t(), "scale_b": factors(experts, depth, columns)}
        return {"gated": "silu"} if p.kind == "gated" else {}


def arms_of(operands: Operands, kernel: str, is_tuned: bool) -> list[Arm]:
    """torch, and our default choice; where it is tuned, that by name and the tuned one; and what a kind has beside."""
    if operands.p.kind == "gather":
        return _of_gather(operands)
    arms = [Arm(OURS, operands.ours(kernel if is_tuned else None))]
    if is_tuned:
        arms.append(Arm(TUNED, operands.ours()))
    if theirs := _theirs(operands):
        arms.insert(0, Arm(TORCH, theirs))
    beside = {"decode": _copy, "even": _dense, "gated": _apart, "fp8": _fast, "blocks": _dense}.get(operands.p.kind)
    return arms + (beside(operands) if beside else [])


def _theirs(operands: Operands, fast: bool = False) -> Callable[[int], object] | None:
    """torch's call, and what it takes behind it; of scales in blocks torch has none."""
    torch, ends, p = operands.gpu.torch, operands.ends, operands.p
    if p.kind == "blocks":
        return None
    if p.kind == "fp8":
        scales = operands.beside["scale_a"], operands.beside["scale_b"]
        more = {"offs": ends, "out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return lambda i: torch._scaled_grouped_mm(*operands[i][:2], *scales, **more)
    if p.kind == "gated":
        return lambda i: _activated(operands, torch._grouped_mm(*operands[i][:2], offs=ends))
    return lambda i: torch._grouped_mm(*operands[i][:2], offs=ends)


def _activated(operands: Operands, z: Any) -> Any:
    half = operands.p.n // 2
    return operands.gpu.torch.nn.functional.silu(z[:, :half]) * z[:, half:]


def _copy(operands: Operands) -> list[Arm]:
    """A copy that moves as many bytes as the weights have."""

    def copy(i: int) -> None:
        weights = operands[i][1].mT.flatten()
        half = len(weights) // 2
        weights[half : 2 * half].copy_(weights[:half])

    return [Arm(COPY, copy)]


def _dense(operands: Operands) -> list[Arm]:
    """Our dense product of all rows by one expert."""
    beside = {name: x[0] if name == "scale_b" else x for name, x in operands.beside.items()}

    def dense(i: int) -> None:
        a, b, d = operands[i]
        cutlass_py.gemm(a, b[0], out=d, **beside)

    return [Arm(DENSE, dense)]


def _apart(operands: Operands) -> list[Arm]:
    """Our product without gates, and with torch's activation behind it."""
    z = [d.new_empty((operands.p.lines, operands.p.n)) for *_, d in operands.sets]
    operands.gpu.poison(z[0])  # whose result is checked before any other call

    def plain(i: int) -> None:
        operands.ours(gated=None, out=z[i % len(z)])(i)

    def apart(i: int) -> object:
        plain(i)
        return _activated(operands, z[i % len(z)])

    return [Arm(PLAIN, plain), Arm(APART, apart)]


def _fast(operands: Operands) -> list[Arm]:
    """Sums that stay in the tensor cores, by both."""
    theirs = _theirs(operands, fast=True)
    assert theirs
    return [Arm(FAST, operands.ours(compute="fast")), Arm(TORCH_FAST, theirs)]


def _of_gather(operands: Operands) -> list[Arm]:
    """Of rows by their numbers: torch, whose index_select goes before its product (and, as `select`, before ours), and
    ours with `gather`. Beside them the product of rows that lie as they should, and what a kernel might reach whose
    threads load rows: dense products of all rows by one expert, whose rows are aligned, or not."""
    torch, ends, rows = operands.gpu.torch, operands.ends, operands.rows
    lines, k = operands[0][0].shape
    wide = operands.gpu.random((lines, k + 1), "bf16")[:, :k]

    def theirs(i: int) -> object:
        x = torch.index_select(operands.tokens[i % operands.count], 0, rows)
        return torch._grouped_mm(x, operands[i][1], offs=ends)

    def ours(i: int) -> None:
        _, b, d = operands[i]
        cutlass_py.grouped_gemm(operands.tokens[i % operands.count], b, offsets=ends, gather=rows, out=d)

    def select(i: int) -> None:
        _, b, d = operands[i]
        x = torch.index_select(operands.tokens[i % operands.count], 0, rows)
        cutlass_py.grouped_gemm(x, b, offsets=ends, out=d)

    def dense(x: Any) -> Callable[[int], object] | None:
        _, b, d = operands[0]
        kernels = cutlass_py.get_kernels(cutlass_py.GemmArguments(x, b[0], out=d))  # that pack nothing

        def launch(i: int) -> None:
            a, b, d = operands[i]
            cutlass_py.gemm(wide if x is wide else a, b[0], out=d, kernel=kernels[0])

        return launch if kernels else None

    found = {
        TORCH: theirs,
        OURS: ours,
        SELECT: select,
        PLAIN: operands.ours(),
        DENSE: dense(operands[0][0]),
        THREADS: dense(wide),
    }
    return [Arm(name, launch) for name, launch in found.items() if launch]


def computing(p: Experts) -> set[str]:
    """Arms whose result is the problem's."""
    return _COMPUTE | {PLAIN} if p.kind == "gather" else _COMPUTE


def error_of(operands: Operands, arm: Arm) -> float:
    """The largest error in some experts' results, over the largest element; NaN where anything was not written."""
    d, p, error, largest = operands[0][2], operands.p, 0.0, 0.0
    operands.gpu.poison(d)
    result = arm.launch(0)
    result = d if result is None else result
    by_size = sorted(range(len(p.sizes)), key=p.sizes.__getitem__)
    theirs = arm.name in (TORCH, TORCH_FAST)
    for i in {0, by_size[0], by_size[len(by_size) // 2], by_size[-1], len(by_size) - 1}:
        z = result[i] if p.deep else result[p.ends[i] - p.sizes[i] : p.ends[i]]
        if p.sizes[i] or (p.deep and not theirs):  # without lines, a gradient of torch's is anything
            wanted = operands.wanted(i)
            error = max(error, float((z.float() - wanted).abs().max()))
            largest = max(largest, float(wanted.abs().max()))
    return error / largest if theirs or not bool(result.isnan().any()) else math.nan
