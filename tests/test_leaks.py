"""Thousands of calls on the CPU leave nothing behind: no results, operands, exporters or views, nor after errors."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from exporters import A, B, Exporter, RaisingExporter
from helpers import CPU_FRAMEWORKS, to_numpy
from leaks import assert_nothing_stays

from cutlass_py import gemm, view


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_ten_thousand_calls_leak_nothing(framework):
    from helpers import make

    a, b, c = (make(framework, x, "f32") for x in (np.ones((64, 64)), np.ones((64, 64)), np.ones((64, 64))))
    keywords = {} if framework == "jax" else {"out": c}
    gemm(a, b, c=c, **keywords)
    count = 2000 if framework == "jax" else 10_000
    # A leaked 64 x 64 result would be 32 MB or more.
    assert_nothing_stays(lambda: gemm(a, b, c=c, **keywords), (a, b, c, type(a)), count=count)
    assert to_numpy(gemm(a, b)).shape == (64, 64)


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_thousands_of_results_leak_nothing(framework):
    from helpers import make

    a, b = (make(framework, np.ones((64, 64)), "bf16") for _ in range(2))
    gemm(a, b, out_dtype="f32")
    count = 2000 if framework == "jax" else 6000
    assert_nothing_stays(
        lambda: gemm(a, b, out_dtype="f32"), (a, b, "bf16", type(a)), count=count, host=4 << 20
    )  # leaked results would be 32 MB or more


def test_errors_leak_nothing():
    a, b, boom = np.ones((64, 64), np.float32), np.ones((65, 64), np.float32), RaisingExporter(LookupError())

    def call():
        for operands, keywords in (((a, b), {}), ((a, a), {"beta": 1}), ((a, boom), {}), ((a, a), {"compute": "?"})):
            with pytest.raises((ValueError, LookupError)):
                gemm(*operands, **keywords)

    assert_nothing_stays(call, (a, b, boom), count=1500)


def test_exporters_are_not_kept():
    a = Exporter(A)
    count = sys.getrefcount(a)  # the exporter itself keeps its last two exports
    for _ in range(300):
        gemm(a, B)
        with pytest.raises(ValueError, match="inner extents"):
            gemm(a, A)
    assert sys.getrefcount(a) < count + 10 and a.exported == a.deleted == 600


def test_views_are_not_kept():
    bits = np.zeros((4, 4), np.uint16)
    count = sys.getrefcount(bits)
    for _ in range(100):
        gemm(view(bits, "bf16"), view(bits, "bf16"), out=view(np.zeros((4, 4), np.uint16), "bf16"))
    gc.collect()
    assert sys.getrefcount(bits) == count
