"""What the GPU tests share: operands in torch on the device, poisoned outputs in guard bands, a float64 oracle."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import pi, prod, sqrt
from typing import Any

import pytest
import torch

from cutlass_py.declaration.dtypes import COMPUTE, PAIRS, STORAGE
from cutlass_py.declaration.dtypes import DTYPES as _ROWS
from cutlass_py.declaration.epilogues import ACTIVATIONS
from cutlass_py.epilogues.activations import Activation, clamp, leaky_relu

DEVICE = "cuda"
DTYPES = {name: getattr(torch, _ROWS[name].numpy) for name in STORAGE}
COMPLEX = ("c64", "c128")
INTEGER = ("s8", "u8", "s32")
REAL = tuple(name for name in DTYPES if name not in COMPLEX)
# Inputs and the arithmetic asked for: (dtype of a, dtype of b, compute).
ARITHMETIC = [
    (a, b, compute)
    for a, row in COMPUTE.items()
    for b in COMPUTE
    if a == b or (a, b) in PAIRS or (b, a) in PAIRS
    for compute in row
]
# torch's own code, on its way through a compilation
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
GUARD = 64  # elements before and after, and 16 bytes of padding behind each row


def cases(rows: Iterable[Any]) -> list[Any]:
    """Parameters of a test: dtypes of operands, alone or in tuples. Kernels of 8-bit floats run on 9.0 alone."""
    found = []
    for row in rows:
        names = (row,) if isinstance(row, str) else tuple(row)
        marks = [pytest.mark.sm90] if {"e4m3", "e5m2"} & set(names) else []
        found.append(pytest.param(*names, marks=marks, id="-".join(names)))
    return found


def name_of(dtype: torch.dtype) -> str:
    """This package's name of a dtype."""
    return next(name for name, found in DTYPES.items() if found == dtype)


# ---------------------------------------------------------------------------------------------------- operands


def integers(shape: tuple[int, ...], dtype: str, low: int = -2, high: int = 3) -> torch.Tensor:
    """Small integers: products and sums of them are exact in every dtype here up to k of some thousands."""
    if dtype in COMPLEX:
        parts = [integers(shape, "f64", low, high) for _ in range(2)]
        return torch.complex(*parts).to(DTYPES[dtype])
    low = max(low, 0) if dtype == "u8" else low
    return torch.randint(low, high, shape, device=DEVICE).float().to(DTYPES[dtype])


def normals(shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> torch.Tensor:
    """Normally distributed values; of integer dtypes within -100 to 100 (0 to 100)."""
    if dtype in INTEGER:
        return torch.randint(0 if dtype == "u8" else -100, 101, shape, device=DEVICE).to(DTYPES[dtype])
    base = torch.complex64 if dtype == "c64" else torch.complex128 if dtype == "c128" else torch.float32
    return (scale * torch.randn(shape, device=DEVICE, dtype=base)).to(DTYPES[dtype])


def poison(storage: torch.Tensor) -> int:
    """Fills memory with NaN, or with 85 and the like where the dtype has none; returns the byte."""
    byte = 0x55 if name_of(storage.dtype) in INTEGER else 0xFF
    storage.view(torch.uint8).fill_(byte)
    return byte


def laid_out(x: torch.Tensor, layout: str, *, pad: int = 0, offset: int = 0) -> torch.Tensor:
    """x in memory row-major ('t') or column-major ('n'), rows padded by `pad`, base moved by `offset` elements."""
    source = x if layout == "t" else x.mT
    *lead, rows, cols = source.shape
    ld = cols + pad
    storage = torch.empty(prod(lead) * rows * ld + offset, device=DEVICE, dtype=x.dtype)
    poison(storage)
    view = storage[offset:].view(*lead, rows, ld)[..., :cols]
    view.copy_(source)
    return view if layout == "t" else view.mT


@dataclass
class Guarded:
    """An output of poison inside a buffer of poison: `check` finds any element written outside."""

    view: torch.Tensor
    buffer: torch.Tensor
    byte: int

    def written_outside(self) -> torch.Tensor:
        """Of every element of the buffer, whether it was, on the device."""
        written = (self.buffer.view(torch.uint8).view(len(self.buffer), -1) != self.byte).any(1)
        written.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).fill_(False)
        return written

    def check(self) -> None:
        written = self.written_outside()
        assert not written.any(), f"{int(written.sum())} elements outside of out were written"


def guarded(shape: tuple[int, ...], dtype: str, layout: str = "t", pad: int | None = None, step: int = 1) -> Guarded:
    """A poisoned output; `pad` elements behind each row (16 bytes by default, so that rows stay aligned)."""
    itemsize = DTYPES[dtype].itemsize
    *lead, rows, cols = shape if layout == "t" else (*shape[:-2], shape[-1], shape[-2])
    if pad is None:
        pad = -cols * itemsize % 16 // itemsize + 16 // itemsize
    ld = cols * step + pad
    count = prod(lead) * rows * ld
    buffer = torch.empty(count + 2 * GUARD, device=DEVICE, dtype=DTYPES[dtype])
    byte = poison(buffer)
    view = buffer[GUARD : GUARD + count].view(*lead, rows, ld)[..., : cols * step : step]
    return Guarded(view if layout == "t" else view.mT, buffer, byte)


def filled(values: torch.Tensor, layout: str = "t", pad: int | None = None) -> torch.Tensor:
    """A copy of the values with padded, aligned rows."""
    held = guarded(tuple(values.shape), name_of(values.dtype), layout, pad).view
    return held.copy_(values)


def used() -> int:
    """Bytes in use of the device, once it is idle."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


# ---------------------------------------------------------------------------------------------------- oracle


def overlapping_edges(graph: torch.cuda.CUDAGraph) -> int:
    """How many launches of a graph may begin before the one that they follow has ended, as the driver says."""
    driver, raw, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t(0)
    assert driver.cuGraphGetEdges_v2(raw, None, None, None, ctypes.byref(count)) == 0
    nodes, edges = [(ctypes.c_void_p * count.value)() for _ in range(2)], (ctypes.c_ubyte * (8 * count.value))()
    assert driver.cuGraphGetEdges_v2(raw, *nodes, edges, ctypes.byref(count)) == 0
    return sum(edges[8 * i + 2] == 1 for i in range(count.value))  # the third byte is the edge's type


def assert_same_bits(found: list[torch.Tensor]) -> None:
    """The results of equal calls."""
    for d in found[1:]:
        assert torch.equal(d.view(torch.uint8), found[0].view(torch.uint8))


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in float64 or complex128."""
    if x.dtype.is_complex:
        return x.to(torch.complex128)
    return (x.float() if x.dtype.itemsize == 1 else x).double()


def expected(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, alpha: complex = 1, beta: complex = 1
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c in float64, by NumPy on the host where small, by torch on the device where large."""
    big = a.shape[-2] * a.shape[-1] * b.shape[-1] > 2**22
    x, y = (wide(t) if big else wide(t).cpu() for t in (a, b))
    product = x @ y if big else torch.from_numpy(x.numpy() @ y.numpy())
    result = alpha * product.to(DEVICE)
    return result if c is None else result + beta * wide(c)


def _logit_of_gelu(x: torch.Tensor) -> torch.Tensor:
    """(1 + tanh(u)) / 2 is the sigmoid of this, without the cancellation."""
    return 2 * sqrt(2 / pi) * (x + 0.044715 * x**3)


def _step(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x), x, (x > 0).double())


def _d_gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    s, other = (torch.sigmoid(sign * _logit_of_gelu(x)) for sign in (1, -1))
    return s + x * s * other * 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x)


# The functions of epilogues.ACTIVATIONS, of a float64 tensor and the parameters.
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "identity": lambda x: x,
    "relu": lambda x: torch.where(x < 0, torch.zeros_like(x), x),
    "leaky_relu": lambda x, slope: torch.where(x < 0, slope * x, x),
    "gelu": lambda x: x * torch.erfc(-x / sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * torch.sigmoid(_logit_of_gelu(x)),
    "silu": lambda x: x * torch.sigmoid(x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": lambda x: x * torch.clamp(x + 3, 0, 6) / 6,
    "clamp": torch.clamp,
    "d_relu": _step,
    "d_gelu": lambda x: torch.erfc(-x / sqrt(2)) / 2 + x * torch.exp(-x * x / 2) / sqrt(2 * pi),
    "d_gelu_tanh": _d_gelu_tanh,
    "d_silu": lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    "d_sigmoid": lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
}
PLAIN = tuple(name for name, row in ACTIVATIONS.items() if not row.derivative)
DERIVATIVES = tuple(name for name, row in ACTIVATIONS.items() if row.derivative)
# Exact for small integers, with the parameters below.
EXACT = ("identity", "relu", "leaky_relu", "clamp", "d_relu")


def activation(name: str) -> str | Activation:
    """What `activation=` takes, with parameters that keep integers exact."""
    return {"leaky_relu": leaky_relu(0.5), "clamp": clamp(-5, 6)}.get(name, name)


def apply(activation: str | Activation | None, x: torch.Tensor) -> torch.Tensor:
    """The activation of float64 values."""
    if isinstance(activation, Activation):
        return FUNCTIONS[activation.name](x, *activation.parameters)
    return FUNCTIONS[activation or "identity"](x)


@dataclass
class Result:
    """What an epilogue gives in float64: z, y = f(z) before scale_out, and d."""

    z: torch.Tensor
    y: torch.Tensor
    d: torch.Tensor


def epilogue(
    product: torch.Tensor,
    *,
    alpha: Any = 1,
    beta: Any = 1,
    c: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale_a: Any = 1,
    scale_b: Any = 1,
    scale_out: Any = 1,
    activation: str | Activation | None = None,
    gate: torch.Tensor | None = None,
    aux: torch.Tensor | None = None,
    **_: Any,
) -> Result:
    """The epilogue of gemm's docstring on a float64 product; takes gemm's keywords, and passes over the others."""

    def factor(x: Any, column: bool = False) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return wide(x.reshape(()) if x.numel() == 1 else x[:, None] if column and x.ndim == 1 else x)

    z = factor(alpha) * factor(scale_a, column=True) * factor(scale_b) * product
    if c is not None:
        z = z + factor(beta) * wide(c)
    if bias is not None:
        z = z + wide(bias)
    name = activation.name if isinstance(activation, Activation) else activation or "identity"
    if ACTIVATIONS[name].derivative:
        assert aux is not None
        y = z * apply(activation, wide(aux))
    elif gate is not None:
        y = z * apply(activation, wide(gate))
    else:
        y = apply(activation, z)
    return Result(z, y, factor(scale_out) * y)


def saturated(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Float64 values as `dtype` holds them: to nearest even; 8 bits and integers saturate; NaN is 0 in integers."""
    if dtype in INTEGER:
        limits = torch.iinfo(DTYPES[dtype])
        return torch.nan_to_num(x, nan=0.0).round().clamp(limits.min, limits.max)
    if DTYPES[dtype].itemsize == 1:
        limit = torch.finfo(DTYPES[dtype]).max
        x = x.clamp(-limit, limit)
    return wide(x.to(DTYPES[dtype]))


# ---------------------------------------------------------------------------------------------------- assertions


def same(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Of each element whether it is equal, or NaN on both sides."""
    return (found == wanted) | (torch.isnan(found) & torch.isnan(wanted))


def storing(wanted: torch.Tensor, dtype: str) -> torch.Tensor:
    """What storing values in a dtype may cost."""
    if dtype in INTEGER:
        return torch.full_like(wanted, 0.51)
    limits = torch.finfo(DTYPES[dtype])
    return limits.eps * wanted.abs() + limits.smallest_normal * limits.eps


def assert_exact(d: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal to the last bit after rounding the reference once to d's dtype."""
    found, wanted = wide(d), saturated(reference, name_of(d.dtype))
    assert found.shape == wanted.shape, f"the result is {tuple(found.shape)}; expected {tuple(wanted.shape)}"
    different = ~same(found, wanted)
    if different.any():
        where = tuple(different.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(different.sum())} of {d.numel()} elements differ, first at {where}: {found[where]}; "
            f"expected {wanted[where]}"
        )


def excess(d: torch.Tensor, reference: torch.Tensor, error: torch.Tensor | float) -> torch.Tensor:
    """|d - reference| over error and what storing the result in d's dtype costs; 0 of NaN where that is NaN.

    Between two that are close there may be a half, which integers round to either side, or the largest f16.
    """
    dtype = name_of(d.dtype)
    found, wanted = wide(d), saturated(reference, dtype)
    equal = same(found, wanted)
    if dtype in INTEGER:
        limits = torch.iinfo(d.dtype)
        wanted = reference.clamp(limits.min, limits.max)
    if dtype == "f16":  # infinity stands for all from half way on
        beyond = torch.copysign(reference.abs().clamp(min=65520.0), found)
        found, wanted = torch.where(torch.isinf(found), beyond, found), reference
    return torch.where(equal, 0.0, (found - wanted).abs() / (error + storing(wanted, dtype)))


def assert_near(d: torch.Tensor, reference: torch.Tensor, error: torch.Tensor | float) -> None:
    """|d - reference| <= error and what storing the result in d's dtype costs, elementwise; NaN where that is NaN."""
    times = excess(d, reference, error)
    far = ~(times <= 1)
    if far.any():
        where = tuple(far.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(far.sum())} of {d.numel()} elements are off, by {float(times[far].max()):.3g} times the bound; "
            f"first at {where}: {wide(d)[where]}; expected {reference.expand(d.shape)[where]}"
        )


def product_error(a: torch.Tensor, b: torch.Tensor, unit: float = 2**-23) -> torch.Tensor:
    """gamma_k (|a| @ |b|): what summing k products in a dtype of this unit may cost."""
    k = a.shape[-1]
    gamma = k * unit / max(1 - k * unit, 0.5)
    return gamma * (wide(a).abs() @ wide(b).abs()) + 1e-30


def assert_close(
    d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, reference: torch.Tensor, unit: float = 2**-23
) -> None:
    """|d - reference| <= gamma_k (|a| @ |b|) and one rounding to d's dtype, elementwise."""
    assert_near(d, reference, product_error(a, b, unit))


def epilogue_error(
    name: str, result: Result, at: torch.Tensor, error: torch.Tensor | float, *, fast: bool
) -> torch.Tensor:
    """Bound on the error of y = f(z), or z * f(at) with a gate or a derivative, from that of z.

    Args:
        at: where the function is evaluated: z, gate or aux.
        fast: tanh and gelu may be by the hardware's functions, as in kernels whose result has 16 bits or less.
    """
    own = own_error(name, at.nan_to_num(0, 0, 0), fast)
    if at is result.z:
        return 1.6 * error + own + 2**-21 * result.y.abs()
    return apply(activation(name), at).abs() * error + own * result.z.abs() + 2**-21 * result.y.abs()


def own_error(name: str, x: torch.Tensor, fast: bool) -> torch.Tensor | float:
    """Bound on the error of f(x) itself: relative to the value, or to the terms of a sum that may cancel."""
    if name in EXACT:
        return 0.0
    function = name.removeprefix("d_")
    if function in ("silu", "sigmoid", "gelu_tanh"):  # the logistic function loses digits of its argument in exp
        logit = _logit_of_gelu(x) if function == "gelu_tanh" else x
        terms = torch.sigmoid(logit) * (1 + 3 * logit.abs()) if name != function else FUNCTIONS[name](x).abs()
        return 2**-21 * (1 + logit.abs()) * terms + 2**-118  # exp overflows
    if name == "tanh":
        return (2**-11 if fast else 2**-21) * torch.tanh(x).abs()
    if name == "hardswish":
        return 2**-21 * x.abs()
    tail = torch.erfc(-x / sqrt(2)) / 2
    terms = x.abs() * (tail if name == "gelu" else torch.exp(-x * x / 2) / sqrt(2 * pi)) + tail * (name == "d_gelu")
    relative = 2**-14.8 if fast and name == "gelu" else 2**-22 * (4 + x * x)  # exp loses digits of its argument
    return relative * terms + 2**-118
