"""What the GPU tests share: operands in torch on the device, exact integers, poisoned outputs inside guard bands."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
GUARD = 64  # elements before and after, and 16 bytes of padding behind each row


def integers(shape: tuple[int, ...], dtype: str, low: int = -2, high: int = 3) -> torch.Tensor:
    """Small integers: products and sums of them are exact in every dtype here up to k of some thousands."""
    return torch.randint(low, high, shape, device="cuda").to(DTYPES[dtype])


def laid_out(x: torch.Tensor, layout: str, *, pad: int = 0, offset: int = 0) -> torch.Tensor:
    """x in memory row-major ('t') or column-major ('n'), rows padded by `pad`, base moved by `offset` elements."""
    source = x if layout == "t" else x.mT
    *lead, rows, cols = source.shape
    ld = cols + pad
    count = rows * ld
    for extent in lead:
        count *= extent
    storage = torch.full((count + offset,), float("nan"), device="cuda", dtype=x.dtype)[offset:]
    view = storage.view(*lead, rows, ld)[..., :cols]
    view.copy_(source)
    return view if layout == "t" else view.mT


@dataclass
class Guarded:
    """An output of NaN inside a buffer of NaN: `check` finds any element written outside."""

    view: torch.Tensor
    buffer: torch.Tensor

    def check(self) -> None:
        inside = torch.zeros_like(self.buffer, dtype=torch.bool)
        inside.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(True)
        outside = self.buffer[~inside]
        assert torch.isnan(outside).all(), f"{int((~torch.isnan(outside)).sum())} elements outside of out were written"


def guarded(shape: tuple[int, ...], dtype: str, layout: str = "t", pad: int | None = None) -> Guarded:
    """A poisoned output; `pad` elements behind each row (16 bytes by default, so that rows stay aligned)."""
    torch_dtype = DTYPES[dtype]
    itemsize = torch_dtype.itemsize
    *lead, rows, cols = shape if layout == "t" else (*shape[:-2], shape[-1], shape[-2])
    if pad is None:
        pad = -cols * itemsize % 16 // itemsize + 16 // itemsize
    ld = cols + pad
    count = rows * ld
    for extent in lead:
        count *= extent
    buffer = torch.full((count + 2 * GUARD,), float("nan"), device="cuda", dtype=torch_dtype)
    view = buffer[GUARD : GUARD + count].view(*lead, rows, ld)[..., :cols]
    return Guarded(view if layout == "t" else view.mT, buffer)


def expected(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, alpha: float = 1, beta: float = 1
) -> torch.Tensor:
    """float64 reference, by NumPy on the host where small and by torch on the device where large."""
    big = a.shape[-2] * a.shape[-1] * b.shape[-1] > 2**27
    x, y = (t.double() if big else t.double().cpu() for t in (a, b))
    product = x @ y if big else torch.from_numpy(x.numpy() @ y.numpy())
    result = alpha * product.to("cuda")
    return result if c is None else result + beta * c.double()


def assert_exact(d: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal to the last bit after rounding the reference once to d's dtype."""
    wanted = reference.to(d.dtype)
    same = (d == wanted) | (torch.isnan(d) & torch.isnan(wanted))
    assert same.all(), f"{int((~same).sum())} of {d.numel()} elements differ, first at {(~same).nonzero()[0].tolist()}"


def assert_close(
    d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, reference: torch.Tensor, unit: float = 2**-23
) -> None:
    """|d - reference| <= gamma_k (|a| @ |b|) plus one rounding to d's dtype, elementwise."""
    k = a.shape[-1]
    gamma = k * unit / (1 - k * unit)
    bound = gamma * (a.double().abs() @ b.double().abs()) + torch.finfo(d.dtype).eps * reference.abs() + 1e-30
    worst = ((d.double() - reference).abs() / bound).max()
    assert worst <= 1, f"error is {float(worst):.2f} times the bound"
