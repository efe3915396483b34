"""Kernels for few rows or columns on a GPU: k in several parts, lines that begin anywhere, many products."""

from __future__ import annotations

import re
from random import Random

import gpu
import pytest
import torch

import cutlass_py
from cutlass_py import get_kernels
from cutlass_py.declaration.dtypes import LAYOUTS

pytestmark = [pytest.mark.gpu]

SEED = 6


def kernels(dtype: str, layout: str, d: str) -> list[str]:
    found = get_kernels(where=lambda meta: "gemv" in meta.family)
    return [k.name for k in found if re.search(f"gemv_{dtype}_{dtype}_f.._{d}_{layout}_", k.name)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "d"), gpu.cases([("bf16", "f32"), ("f16", "f16"), ("f32", "f32"), ("f64", "f64"), ("e4m3", "bf16")])
)
def test_any_extents_and_places(dtype, d, layout):
    """Around the parts of k that shared memory holds, by bases and rows of any alignment; small integers are exact."""
    if dtype == "e4m3" and layout != "tn":
        pytest.skip("fp8 is read along k")
    torch.manual_seed(SEED)
    r = Random(f"{dtype} {layout}")
    names = kernels(dtype, layout, d)
    assert len(names) == 2
    for k in (2, 31, 4095, 4097, 8192, 8193, 20011):
        m, n = r.choice([2, 3, 5]), r.choice([2, 4, 67, 130])  # of one row the layout does not tell
        for few, many in ((m, n), (n, m)):
            place = {"pad": r.randrange(4), "offset": r.randrange(9)}
            a = gpu.laid_out(gpu.integers((few, k), dtype, -1, 2), layout[0], **place)
            b = gpu.laid_out(gpu.integers((k, many), dtype, -1, 2), layout[1], **place)
            for name in names:
                out = gpu.guarded((few, many), d, pad=r.randrange(3))
                cutlass_py.gemm(a, b, out=out.view, kernel=name)
                out.check()
                gpu.assert_exact(out.view, gpu.expected(a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "d"), gpu.cases([("bf16", "f32"), ("f32", "f32"), ("f64", "f64"), ("e4m3", "bf16")]))
def test_many_columns_by_whole_granules(dtype, d, layout):
    """One and two vectors at once, k within a part of shared memory, beyond one and beyond two."""
    if dtype == "e4m3" and layout != "tn":
        pytest.skip("fp8 is read along k")
    torch.manual_seed(SEED)
    for few, many, k in ((2, 4096, 4096), (4, 4096, 8208), (2, 16384, 528), (3, 2048, 12304)):
        a = gpu.laid_out(gpu.integers((few, k), dtype, -1, 2), layout[0])
        b = gpu.laid_out(gpu.integers((k, many), dtype, -1, 2), layout[1])
        for name in kernels(dtype, layout, d):
            gpu.assert_exact(cutlass_py.gemm(a, b, out_dtype=gpu.DTYPES[d], kernel=name), gpu.expected(a, b))


@pytest.mark.parametrize("batch", [3, 70000])
def test_many_products(batch):
    """More than a grid has blocks along an axis; one operand may be there once."""
    torch.manual_seed(SEED)
    a, b = gpu.integers((batch, 1, 24), "bf16"), gpu.integers((24, 9), "bf16")
    for name in kernels("bf16", "tt", "bf16"):
        found = cutlass_py.gemm(a, b.expand(batch, 24, 9), kernel=name)
        gpu.assert_exact(found, gpu.wide(a) @ gpu.wide(b))


def test_more_rows_than_a_grid_has_blocks():
    torch.manual_seed(SEED)
    a, b = gpu.integers((140001, 8), "bf16"), gpu.integers((8, 3), "bf16")
    (name,) = (name for name in kernels("bf16", "tt", "bf16") if "_rows_" in name)
    gpu.assert_exact(cutlass_py.gemm(a, b, kernel=name), gpu.wide(a) @ gpu.wide(b))


def test_the_same_bits_on_every_run():
    torch.manual_seed(SEED)
    a, b = gpu.normals((2, 9001), "bf16"), gpu.normals((9001, 500), "bf16")
    gpu.assert_same_bits([cutlass_py.gemm(a, b, kernel=kernels("bf16", "tt", "bf16")[0]) for _ in range(5)])


def test_what_is_not_a_number_goes_no_further_than_its_row():
    a, b = gpu.normals((2, 333), "bf16"), gpu.normals((333, 77), "bf16")
    a[1, 5] = float("nan")
    for name in kernels("bf16", "tt", "bf16"):
        found = cutlass_py.gemm(a, b, kernel=name)
        assert found[1].isnan().all() and found[0].isfinite().all()
