"""What gemm has to compute, in NumPy's float64, and how closely a result must agree. Knows nothing of the package.

Operands are float64 arrays that hold values of the dtype under test (`rounded`), whatever framework they came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
FLOATS, FP8 = ("f16", "bf16", "f32", "f64"), ("e4m3", "e5m2")
INTEGERS, COMPLEX = ("s8", "u8", "s32"), ("c64", "c128")
REAL = (*FLOATS, *FP8, *INTEGERS)
# Half a unit in the last place of 1, and the smallest subnormal: what storing a value in a dtype may cost.
ROUNDOFF = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-24, "f64": 2**-53, "e4m3": 2**-4, "e5m2": 2**-3, "tf32": 2**-11}
ROUNDOFF |= {"c64": 2**-24, "c128": 2**-53}
TINY = {"f16": 2**-24, "bf16": 2**-133, "f32": 2**-149, "f64": 5e-324, "e4m3": 2**-9, "e5m2": 2**-16}
TINY |= {"c64": 2**-149, "c128": 5e-324}


# What gemm returns where that is not the operands' dtype.
DEFAULT_OUT = {"e4m3": "bf16", "e5m2": "bf16", "s8": "s32", "u8": "s32"}


def nan(*shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


def matrices(rng, m=6, n=5, k=4):
    """a, b and an out, in f32."""
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    return a, b, nan(m, n)


def close(found, wanted):
    """Small f32 results of random values."""
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=1e-5, atol=1e-5)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Float64 (complex128) values as `dtype` holds them: one rounding, to nearest even.

    Integers and fp8 saturate at the largest finite value; NaN becomes 0 in integers.
    """
    with np.errstate(all="ignore"):
        if dtype in COMPLEX:
            return np.asarray(x, np.complex128).astype(NUMPY[dtype]).astype(np.complex128)
        x = np.asarray(x, np.float64)
        if dtype in INTEGERS:
            limits = np.iinfo(NUMPY[dtype])
            return np.where(np.isnan(x), 0, np.minimum(np.maximum(np.rint(x), limits.min), limits.max))
        if dtype in FP8:
            most = float(ml_dtypes.finfo(NUMPY[dtype]).max)
            x = np.where(np.abs(x) > most, np.copysign(most, x), x)
        if dtype in ("bf16", *FP8):  # ml_dtypes goes through f32, and would round twice
            step = np.maximum(np.ldexp(2 * ROUNDOFF[dtype], np.frexp(x)[1] - 1), TINY[dtype])
            x = np.where(np.isfinite(x), np.rint(x / step) * step, x)
        return x.astype(NUMPY[dtype]).astype(np.float64)


def integers(
    rng: np.random.Generator, shape: Sequence[int], dtype: str = "f64", low: int = -2, high: int = 2
) -> np.ndarray:
    """Small integers: sums of their products are exact in f32 up to k of millions, so results compare exactly."""
    low = max(low, 0) if dtype == "u8" else low
    values = rng.integers(low, high, shape, endpoint=True).astype(np.float64)
    if dtype in COMPLEX:
        values = values + 1j * rng.integers(low, high, shape, endpoint=True)
    assert np.array_equal(rounded(values, dtype), values), f"{dtype} does not hold the integers {low}..{high}"
    return values


def reference(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, alpha: float = 1, beta: float | None = None
) -> np.ndarray:
    """alpha * (a @ b) + beta * c. With alpha = 0 neither a nor b is read, with beta = 0 c is not; k = 0 sums to 0."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = np.zeros((*batch, a.shape[-2], b.shape[-1]))
    with np.errstate(all="ignore"):
        if alpha != 0 and a.shape[-1] > 0:
            result = alpha * (a @ b)
        if c is not None and beta != 0:
            result = result + (1 if beta is None else beta) * c
    return result


# ---------------------------------------------------------------------------------------- epilogues


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x.ravel()]).reshape(x.shape)


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    """By the logistic function: x * s(2 u), u the argument of tanh; 1 + tanh(u) would cancel."""
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _d_gelu_tanh(x: np.ndarray) -> np.ndarray:
    u, du = (math.sqrt(2 / math.pi) * v for v in (x + 0.044715 * x**3, 1 + 3 * 0.044715 * x**2))
    s = 1 / (1 + np.exp(-2 * u))
    return s + x * s * (1 - s) * 2 * du


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _d_silu(x: np.ndarray) -> np.ndarray:
    e = np.exp(-x)
    return (1 + e + x * e) / (1 + e) ** 2


ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": lambda x: np.where(x < 0, 0, x),
    "leaky_relu": lambda x, slope=0.01: np.where(x < 0, slope * x, x),
    "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}
DERIVATIVES = {
    "d_relu": lambda x: np.where(np.isnan(x), x, x > 0),
    "d_gelu": lambda x: (1 + _erf(x / math.sqrt(2))) / 2 + x * _normal(x),
    "d_gelu_tanh": _d_gelu_tanh,
    "d_silu": _d_silu,
    "d_sigmoid": lambda x: np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2,
}


@dataclass(frozen=True)
class Epilogue:
    """Float64 values of the steps: z before the activation, y behind it, d = scale_out * y."""

    z: np.ndarray
    y: np.ndarray
    d: np.ndarray


def reference_epilogue(
    product: np.ndarray,
    *,
    alpha: complex = 1,
    beta: complex = 1,
    c: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    activation: str | None = None,
    parameters: Sequence[float] = (),
    aux: np.ndarray | None = None,
    gate: np.ndarray | None = None,
    scale_a: np.ndarray | float = 1,
    scale_b: np.ndarray | float = 1,
    scale_out: float = 1,
) -> Epilogue:
    """What happens to a product (..., m, n). Vectors as gemm takes them: a scale_a of one dimension is a column."""
    column = np.asarray(scale_a)[:, None] if np.ndim(scale_a) == 1 and np.size(scale_a) > 1 else np.asarray(scale_a)
    name = activation or "identity"
    with np.errstate(all="ignore"):
        z = alpha * column * scale_b * product
        z = z if c is None or beta == 0 else z + beta * c
        z = z if bias is None else z + bias
        if name in DERIVATIVES:
            y = z * DERIVATIVES[name](aux)
        elif gate is not None:
            y = z * ACTIVATIONS[name](gate, *parameters)
        else:
            y = ACTIVATIONS[name](z, *parameters)
        return Epilogue(z, y, scale_out * y)


def assert_near(d: np.ndarray, expected: np.ndarray, dtype: str, relative: float, size: float = 1) -> None:
    """|d - rounded(expected)| <= relative * (size + |expected|) + one unit in the last place of `dtype`."""
    wanted = rounded(expected, dtype)
    assert d.shape == wanted.shape, f"result is {d.shape}; expected {wanted.shape}"
    unit = 1 if dtype in INTEGERS else 2 * ROUNDOFF[dtype] * np.abs(wanted) + TINY[dtype]
    error = np.abs(d - wanted) / (relative * (size + np.abs(wanted)) + unit)
    assert np.isfinite(d).all() and (error.size == 0 or error.max() <= 1), f"{np.max(error):.3g} times the bound"


def assert_exact(d: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """d (as float64, complex128) is `expected` after one rounding to `dtype`; NaN where that is NaN."""
    wanted = rounded(expected, dtype)
    assert d.shape == wanted.shape, f"result is {d.shape}; expected {wanted.shape}"
    different = ~((d == wanted) | (np.isnan(d) & np.isnan(wanted)))
    if different.any():
        where = tuple(int(i[0]) for i in np.nonzero(different))
        raise AssertionError(
            f"{different.sum()} of {d.size} elements differ, first at {where}: {d[where]}; expected {wanted[where]}"
        )


def error_bound(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    alpha: float = 1,
    beta: float | None = None,
    *,
    dtype: str,
    accumulator: str = "f32",
    multiply: str | None = None,
) -> np.ndarray:
    """Elementwise bound on |d - reference|: gamma_k of the accumulator, rounding of the operands, rounding of D.

    `multiply` names a dtype that the operands are rounded to first ("tf32"). Tensor cores truncate where they add, so
    the unit of the accumulator is counted twice.
    """
    k = a.shape[-1]
    unit = 2 * ROUNDOFF[accumulator]
    gamma = k * unit / (1 - k * unit)
    if multiply:
        gamma += 4 * ROUNDOFF[multiply]  # truncated, on both sides
    result = np.abs(reference(a, b, c, alpha, beta))
    size = reference(
        np.abs(a), np.abs(b), None if c is None else np.abs(c), abs(alpha), None if beta is None else abs(beta)
    )
    return (gamma + 4 * unit) * size + 2 * ROUNDOFF[dtype] * result + TINY[dtype]


def assert_close(d: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, **how: object) -> None:
    """|d - reference| <= error_bound elementwise; keywords are those of `error_bound`."""
    scale = {name: how[name] for name in ("alpha", "beta") if name in how}
    expected = reference(a, b, c, **scale)
    assert d.shape == expected.shape, f"result is {d.shape}; expected {expected.shape}"
    ratio = np.abs(d - expected) / error_bound(a, b, c, **how)
    assert np.isfinite(d).all(), f"{(~np.isfinite(d)).sum()} elements are not finite"
    assert ratio.size == 0 or ratio.max() <= 1, f"the error is {ratio.max():.3g} times the bound"


def elements(size: int, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    """Which of `size` elements of a buffer a strided view of it holds."""
    inside = np.zeros(size, bool)
    if 0 not in shape:
        np.lib.stride_tricks.as_strided(inside[offset:], tuple(shape), tuple(strides))[...] = True
    return inside


def assert_untouched(before: np.ndarray, after: np.ndarray, inside: np.ndarray) -> None:
    """Two images of a buffer, as integers, agree outside of the elements a view of it holds."""
    changed = (before != after).reshape(inside.size, -1).any(axis=1) & ~inside
    assert not changed.any(), (
        f"{changed.sum()} elements outside of out were written, first at {np.flatnonzero(changed)[0]}"
    )


# ---------------------------------------------------------------------------------------- quantize

LIMITS = {"e4m3": 448, "e5m2": 57344, "s8": 127}


def quantized(x: np.ndarray, q: str, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of `q` and f32 scales of an array of two dimensions at least, group by group."""
    rows, cols = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, 128), "128x128": (128, 128)}[scaling]
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    batch, m, k = x.shape[:-2], *x.shape[-2:]
    codes = np.zeros(x.shape, NUMPY[q])
    if scaling == "tensor":
        codes.reshape(-1)[:], scale = _group(x.reshape(-1), q)
        return codes, np.float32(scale)
    scales = np.ones((*batch, -(-m // rows), -(-k // cols) if cols else 1), np.float32)
    for *lead, i, j in np.ndindex(scales.shape):
        group = (*lead, slice(i * rows, (i + 1) * rows), slice(j * cols, (j + 1) * cols) if cols else slice(None))
        codes[group], scales[(*lead, i, j)] = _group(x[group], q)
    return codes, scales


def _group(x: np.ndarray, q: str) -> tuple[np.ndarray, np.float32]:
    """By the definition: the scale of the largest finite magnitude, one rounding, saturation."""
    finite = np.abs(x[np.isfinite(x)])
    amax = finite.max() if finite.size else np.float32(0)
    scale = max(amax * (np.float32(1) / np.float32(LIMITS[q])), np.float32(2**-126)) if amax > 0 else np.float32(1)
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.clip(x * (np.float32(1) / scale), -LIMITS[q], LIMITS[q])
        return (np.nan_to_num(np.rint(y)) if q == "s8" else y).astype(NUMPY[q]), np.float32(scale)


def assert_same_codes(found: np.ndarray, wanted: np.ndarray) -> None:
    """Bit for bit, but for the sign of NaN."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    nan_there = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan_there)
    np.testing.assert_array_equal(found.view(np.uint8)[~nan_there], wanted.view(np.uint8)[~nan_there])
