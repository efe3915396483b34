"""Kernels for few rows or columns: when they are chosen, what is said of them, and the formula that launches them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from specs import operand, problem

from cutlass_py import GemmArguments, _core
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.calibrating.fitting import RouteReadings
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.adaptation import Way
from cutlass_py.kernels.kernel_description import KernelDescription
from cutlass_py.kernels.registry import cutlass_kernel
from cutlass_py.operations.gemm import routes
from cutlass_py.operations.gemm.calibration import calibration_of
from cutlass_py.operations.gemm.routes import may_overlap


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


def us(rows: int, columns: int, k: int, batch: int = 1, *, alignment: int = 256, **changes) -> float:
    usual = {
        "swap": False, "packed": False, "along_k": True, "only_factor": True, "size": 2, "sm_count": 132, "memory": 4e6,
        "longer": 1.0,
    }  # fmt: skip
    design = usual | changes
    dtype, layout = {1: "e4m3", 2: "bf16", 4: "f32"}[design["size"]], "n" if design["along_k"] else "t"
    b = operand(k, columns, layout, dtype, alignment=alignment)
    return _core.GemvDesign(**design).microseconds(GemmArguments(operand(rows, k, "t", dtype), b).problem, k, batch)


def test_the_formula_grows_with_what_there_is_to_do():
    base = us(1, 4096, 4096)
    assert base < us(1, 8192, 4096) < us(1, 8192, 8192) and base < us(2, 4096, 4096) < us(9, 4096, 4096)
    assert base < us(1, 4096, 4096, 2) and base < us(1, 4096, 4096, only_factor=False)
    assert base < us(1, 4096, 4096, alignment=4) < us(1, 4096, 4096, alignment=2)
    assert base == us(1, 4096, 4096, alignment=16) and us(1, 4096, 4098) == us(1, 4096, 4098, alignment=4)
    assert base == us(1, 4096, 4096, alignment=2, packed=True)
    assert us(4096, 2, 4096, swap=True) == us(2, 4096, 4096) and us(1, 4096, 4096, longer=1.5) == 1.5 * base
    assert us(1, 4096, 4096, sm_count=66) > base
    assert us(1, 4096, 4096, memory=0.3e6) > 2 * 4096 * 4096 / 0.3e6 * 0.6  # no GPU is faster than its memory


@pytest.mark.parametrize(
    "extents", [(1, 1, 1, 1), (1, 1, 1 << 20, 1), (70000, 3, 5, 1), (1, 1 << 20, 7, 1), (1, 9, 9, 70000)]
)
@pytest.mark.parametrize("along_k", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_product_has_a_time(extents, along_k, size):
    assert 1 < us(*extents, along_k=along_k, size=size, alignment=size) < 1e7


@pytest.mark.parametrize("dtype", ["bf16", "f32", "e4m3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_bound_hides_the_fastest(built, dtype, layout):
    built(c.name for family in ("simt_gemv", "sm90_gemv") for c in FAMILIES[family].core)
    for extents in ((3, 640, 320), (640, 3, 320), (2, 8, 16), (1, 9000, 5000), (1, 1, 1 << 20), (3, 5, 70000)):
        p = problem(*extents, dtype=dtype, layout=layout).problem
        assert best(p) == rank(p)[0]


def test_launches_overlap_with_whatever_they_read(monkeypatch):
    """Every thread waits before it reads; not where launches cannot."""
    kernel = cutlass_kernel(next(c for c in FAMILIES["simt_gemv"].core if c.a == "bf16"))
    assert may_overlap(kernel, Way(), problem(2, 64, 64).problem)
    assert may_overlap(kernel, Way(), problem(2, 64, 64, c=operand(2, 64, "t")).problem)
    monkeypatch.setattr(routes, "gpu_of", lambda p: replace(ABSENT, cc=80))
    assert not may_overlap(kernel, Way(), problem(2, 64, 64).problem)


def test_metadata_promise_no_bits_of_rows():
    for family in ("simt_gemv", "sm90_gemv"):
        kernel = cutlass_kernel(FAMILIES[family].core[0])
        assert not kernel.metadata.batch_invariant and kernel.metadata.design.stages == 1


def test_a_calibration_fits_how_long_they_take(core):
    """A constant that is moved moves what it is of, and nothing else."""
    entries = [
        {
            "problem": {"m": 2, "n": 700 + i, "k": 301, "batch": 1, "a": "bf16", "layout": "tn"},
            "routes": [
                choice.route.record() | {"us": [choice.microseconds] * 3}
                for choice in rank(problem(2, 700 + i, 301).problem)[:6]
            ],
        }
        for i in range(3)
    ]
    readings = RouteReadings(entries, calibration_of(ABSENT), ABSENT)
    start = readings.start()
    moved = start.copy()
    moved[readings.names.index(("tiled", "gemv"))] += 0.5
    of_vectors = np.array(["gemv" in x["kernel"] for entry in entries for x in entry["routes"]])
    ratio = readings.estimates(moved) / readings.estimates(start)
    assert len(ratio) == len(of_vectors) and of_vectors.any() and not of_vectors.all()
    assert (ratio[of_vectors] > 1.1).all() and np.allclose(ratio[~of_vectors], 1)
