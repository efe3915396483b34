"""What gemm has to compute, in NumPy's float64, and how closely a result must agree. Knows nothing of the package.

Operands are float64 arrays that hold values of the dtype under test (`rounded`), whatever framework they came from.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

NUMPY = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
# Half a unit in the last place of 1, and the smallest subnormal: what storing a value in a dtype may cost.
ROUNDOFF = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-24, "f64": 2**-53, "e4m3": 2**-4, "e5m2": 2**-3, "tf32": 2**-11}
TINY = {"f16": 2**-24, "bf16": 2**-133, "f32": 2**-149, "f64": 5e-324, "e4m3": 2**-9, "e5m2": 2**-16}


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Float64 values as `dtype` holds them: one rounding, to nearest even."""
    with np.errstate(all="ignore"):
        return np.asarray(x, np.float64).astype(NUMPY[dtype]).astype(np.float64)


def integers(
    rng: np.random.Generator, shape: Sequence[int], dtype: str = "f64", low: int = -2, high: int = 2
) -> np.ndarray:
    """Small integers: sums of their products are exact in f32 up to k of millions, so results compare exactly."""
    values = rng.integers(low, high, shape, endpoint=True).astype(np.float64)
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


def assert_exact(d: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """d (as float64) is `expected` after one rounding to `dtype`; NaN where that is NaN."""
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
    changed = (before != after) & ~inside
    assert not changed.any(), (
        f"{changed.sum()} elements outside of out were written, first at {np.flatnonzero(changed)[0]}"
    )
