"""The error function of arrays and its complement, against those of numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cutlass_py.epilogues.erf import erf, erfc


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_everywhere(dtype):
    x = np.concatenate([np.linspace(-7, 7, 20001), np.logspace(-30, 1, 500), [0.5, -0.5, 6, 1e30]]).astype(dtype)
    wanted = np.array([math.erf(v) for v in x])
    units = np.abs(erf(x) - wanted) / np.spacing(np.abs(wanted).astype(dtype))
    assert units.max() <= (0.51 if dtype is np.float32 else 4)  # f32 is rounded once


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_complement_has_its_digits_where_it_is_small(dtype):
    x = np.concatenate([np.linspace(-7, 26, 20001), [0.5, -0.5, 4, -4]]).astype(dtype)
    wanted = np.array([math.erfc(v) for v in x])
    smallest = np.finfo(dtype).smallest_subnormal
    np.testing.assert_allclose(erfc(x), wanted, rtol=1e-13 if dtype is np.float64 else 2**-23.9, atol=smallest)
    found = erfc(np.array([np.nan, np.inf, -np.inf, 0.0, 30, 1e30]))
    assert np.isnan(found[0]) and found[1:].tolist() == [0, 2, 1, 0, 0]


def test_special_values_and_shapes():
    found = erf(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0]))
    assert np.isnan(found[0]) and found[1:].tolist() == [1, -1, 0, 0] and np.signbit(found[4])
    x = np.linspace(-1, 1, 3 * 10000).reshape(3, 10000)
    for view in (x, x.T, x[:, ::-3], x[0, 0], x[:0]):
        wanted = np.reshape([math.erf(v) for v in view.ravel()], view.shape)
        np.testing.assert_allclose(erf(view), wanted, rtol=1e-15)
