"""The error function, which NumPy does not have, of whole arrays: within 4 units in the last place of f64.

Rational functions of W. J. Cody, Rational Chebyshev Approximations for the Error Function, Mathematics of Computation
23 (1969): of x**2 near zero, and of x for the complement, whose last range is left out (it only tells how small the
complement is).
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Coefficients of numerator and denominator, of the highest power first.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)  # fmt: skip
_FAR = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_CHUNK = 1 << 13  # elements whose intermediate values stay in cache


def erf(x: Any) -> Any:
    """The error function of an array of floats, in its dtype; NaN stays."""
    out = np.empty(x.shape, x.dtype)
    given, found = x.reshape(-1), out.reshape(-1)
    for start in range(0, given.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        found[part] = _erf(given[part].astype(np.float64))
    return out


def _erf(x: Any) -> Any:
    size = np.abs(x)
    near = x * _ratio(_NEAR, np.minimum(size, 0.5) ** 2)
    far = np.clip(size, 0.5, 6)  # at 6 the complement is below what 1 - it can show
    far = 1 - np.exp(-far * far) * _ratio(_FAR, far)
    return np.where(size < 0.5, near, np.copysign(far, x))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Any) -> Any:
    over, under = (_polynomial(c, x) for c in coefficients)
    return over / under


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total
