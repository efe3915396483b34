"""Kernels for few rows or columns: when they are chosen, what is said of them, and the formula that launches them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specs import problem

from cutlass_py import _core
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.dispatch.candidates import rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.kernel_description import KernelDescription
from cutlass_py.kernels.registry import cutlass_kernel
from cutlass_py.operations.gemm import gemv_estimate


def families_of(args) -> set[str]:
    return {choice.route.kernel.family.name for choice in rank(args.problem)}


@pytest.mark.parametrize(("m", "n", "k", "layout"), [(1, 405, 1025, "tn"), (2, 1600, 64, "nn"), (3, 689, 129, "tt")])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_few_rows_or_columns_go_to_the_cuda_cores(core, m, n, k, layout, dtype):
    for extents, schedule in (((m, n), "rows"), ((n, m), "columns")):
        chosen = plan(problem(*extents, k, dtype=dtype, layout=layout).problem).kernel
        same = m == 1  # of a vector either operand may be the matrix: the caller's layouts say which is read as it lies
        assert chosen.startswith("simt_gemv") and (same or f"_{schedule}_" in chosen), chosen


def test_many_rows_do_not(core):
    assert not plan(problem(512, 512, 512).problem).kernel.startswith("simt_gemv")


def test_fp8_has_them_where_it_has_tensor_cores(core):
    assert "sm90_gemv" in families_of(problem(1, 512, 512, dtype="e4m3"))
    a100 = replace(ABSENT, cc=80)
    kernels = [cutlass_kernel(c) for c in FAMILIES["sm90_gemv"].core]
    p = problem(1, 512, 512, dtype="e4m3").problem
    assert all(isinstance(kernel.way(p, a100), str) for kernel in kernels)


def test_their_sums_are_not_those_of_many_rows(core):
    assert {"simt_gemv"} & families_of(problem(2, 512, 512))
    assert not {"simt_gemv"} & families_of(problem(2, 512, 512, batch_invariant=True))
    kernel = cutlass_kernel(next(c for c in FAMILIES["simt_gemv"].core if c.a == "bf16"))
    said = kernel.bits_refusal(problem(2, 512, 512, batch_invariant=True).problem, ABSENT)
    assert said and "shares out k by what other rows there are" in said


def test_what_they_are_not():
    """No lists, no functions of users, and no description of one."""
    kernel = cutlass_kernel(next(c for c in FAMILIES["simt_gemv"].core if c.d == "bf16"))
    assert not kernel.interface.takes_lists and not kernel.interface.granules and kernel.interface.align_d == 1
    with pytest.raises(TypeError, match="no CUTLASS kernel of this package's templates"):
        KernelDescription.of(kernel)


def us(rows: int, columns: int, k: int, batch: int = 1, **keywords) -> float:
    usual = {"along_k": True, "size": 2, "alignment": 16, "only_factor": True, "sm_count": 132}
    return _core.gemv_microseconds((rows, columns, k, batch), **{**usual, **keywords})


def test_the_formula_grows_with_what_there_is_to_do():
    base = us(1, 4096, 4096)
    assert base < us(1, 8192, 4096) < us(1, 8192, 8192) and base < us(2, 4096, 4096) < us(9, 4096, 4096)
    assert base < us(1, 4096, 4096, 2) and base < us(1, 4096, 4096, only_factor=False)
    assert base < us(1, 4096, 4096, alignment=4) < us(1, 4096, 4096, alignment=2)
    assert base == us(1, 4096, 4096, alignment=256) and us(1, 4096, 4098) == us(1, 4096, 4098, alignment=4)
    assert us(1, 4096, 4096, sm_count=66) > base


@pytest.mark.parametrize(
    "extents", [(1, 1, 1, 1), (1, 1, 1 << 20, 1), (70000, 3, 5, 1), (1, 1 << 20, 7, 1), (1, 9, 9, 70000)]
)
@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_product_has_a_time_above_the_least(extents, along_k, size):
    rows, columns, k, batch = extents
    found = us(*extents, along_k=along_k, size=size, alignment=size)
    assert _core.gemv_least((rows + columns) * k * batch * size) <= found < 1e7


def test_least_is_below_every_estimate():
    for c in FAMILIES["simt_gemv"].core:
        p = problem(3, 640, 320, dtype=c.a, layout=c.layout).problem
        moved = c.slices * (3 * 320 + 320 * 640) * (4 if c.a == "f32" else 2)
        assert gemv_estimate.least(ABSENT, moved) <= gemv_estimate.estimate(c, ABSENT, p, p.k, 1)
        assert SCHEDULES[c.schedule].gemv
