"""batch_invariant=True: in how many parts k is summed, which routes are left, and the CPU, where rows are real."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from specs import forced, listed, operand, problem, vector

import cutlass_py
from cutlass_py import GemmArguments, gemm
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.operations.gemm.reference import _row_by_row

FEW_COLUMNS = {"n": 512, "k": 8192}


def parts_of(choice):
    kernel = choice.route.kernel
    return choice.route.splits * (kernel.config.slices if isinstance(kernel, CutlassKernel) else 1)


# ---------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [
        (64, 4096, 8),
        (768, 4096, 8),
        (769, 4096, 4),
        (1600, 2048, 4),
        (1601, 1 << 20, 1),
        (1600, 2047, 1),
        (64, 2047, 1),
    ],
)
def test_n_and_k_alone_say_into_how_many_parts_k_is_cut(n, k, parts):
    for m in (1, 77, 16384):
        p = problem(m, n, k, batch_invariant=True).problem
        assert (p.splits, p.batch_invariant, p.deterministic) == (parts, True, True)
    columns = operand(300, n, "n")  # out is column-major: a and b change places, rows are rows
    assert problem(300, n, k, out=columns, batch_invariant=True).problem.splits == parts


def test_batches_and_lists_and_other_dtypes():
    batch = GemmArguments(operand(3, 8192, "t", batch=9), operand(8192, 512, "n"), batch_invariant=True)
    assert batch.problem.splits == 8
    for dtype in ("f32", "f64", "e4m3", "s8"):
        assert problem(5, **FEW_COLUMNS, dtype=dtype, batch_invariant=True).problem.splits == 1, dtype
    pair = [listed(64, 8192, "t"), [operand(8192, 64, "n")] * 3]
    assert GemmArguments(*pair).problem.pointers
    alone = GemmArguments(*pair, batch_invariant=True).problem  # one after the other
    assert (alone.splits, alone.batch, alone.pointers) == (8, 1, False)


def test_tiles_are_declared_for_those_parts():
    """A kernel that sums slices one after the other is of no other use."""
    slices = {c.slices for c in FAMILIES["sm90_lean"].declared if SCHEDULES[c.schedule].serial}
    asked = {problem(1, n, k, batch_invariant=True).problem.splits for n in (64, 1024, 4096) for k in (64, 2048, 8192)}
    assert slices == asked - {1}


def test_every_choice_sums_in_those_parts(core):
    r = Random(20)
    for _ in range(60):
        m, n, k = (int(2 ** r.uniform(0, octaves)) for octaves in (13, 12, 13.5))
        p = problem(m, n, k, layout=r.choice(LAYOUTS), batch_invariant=True).problem
        choices = rank(p)
        without_empty_ones = sum(parts for parts, _ in p.launches(p.splits))
        assert choices and {parts_of(choice) for choice in choices} <= {p.splits, without_empty_ones}
        assert not any(SCHEDULES[choice.route.kernel.config.schedule].stream_k for choice in choices)
        assert best(p) == choices[0]


def test_few_rows_are_shared_out_and_many_are_not(core):
    """By clusters, or slice by slice in every block; neither through scratch memory."""
    for m, serial in ((16, False), (8192, True)):
        first = rank(problem(m, **FEW_COLUMNS, batch_invariant=True).problem)[0].route
        assert first.direct and first.kernel.config.slices == 8
        assert SCHEDULES[first.kernel.config.schedule].serial == serial


def test_other_epilogues_are_finished_elsewhere_if_need_be(core):
    p = problem(
        4096, **FEW_COLUMNS, aux=operand(4096, 512, "t"), activation="gelu", layout="nt", batch_invariant=True
    ).problem
    assert {parts_of(choice) for choice in rank(p)} == {8}


# ---------------------------------------------------------------------------------------- sums


def test_sums_that_may_be_wider_are(core):
    for dtype, compute in (("e4m3", "fast"), ("f16", "f16")):
        p = problem(64, 512, 512, dtype=dtype, compute=compute, batch_invariant=True).problem
        assert p.accumulator == "f32"
        assert {choice.route.kernel.config.accumulator for choice in rank(p)} == {"f32"}


def test_tf32_is_of_wgmma_where_there_is_that(core):
    p = problem(64, 513, 513, dtype="f32", compute="tf32", batch_invariant=True).problem
    assert {choice.route.kernel.config.api for choice in rank(p)} == {3}
    assert {
        choice.route.kernel.config.api for choice in rank(problem(64, 513, 513, dtype="f32", compute="tf32").problem)
    } == {0, 2, 3}


def test_kernels_that_sum_otherwise_are_refused_by_name(core):
    sliced = "sm90_lean_bf16_bf16_f32_bf16_tn_64x32x128_1x1x4_leanpingpong_fused"
    with pytest.raises(ValueError, match=r"cuts k into 4; batch_invariant=True takes 8"):
        plan(forced(problem(16, **FEW_COLUMNS, batch_invariant=True), sliced))
    with pytest.raises(ValueError, match=r"cuts k into 4; splits are 1"):
        plan(forced(problem(16, **FEW_COLUMNS, splits=1), sliced))
    assert plan(forced(problem(16, **FEW_COLUMNS, splits=4), sliced)).splits == 1
    stream = "sm80_gemm_bf16_bf16_f32_bf16_tn_128x128x32_64x64x32_s4_a8_streamk_linearc"
    with pytest.raises(ValueError, match="cuts k by how many tiles there are; batch_invariant=True is asked for"):
        plan(forced(problem(16, 4096, 4096, batch_invariant=True), stream))


@pytest.mark.parametrize(
    "given", [{"c": operand(64, 512, "t", "f64")}, {"bias": vector(512, "f64")}, {"activation": "relu"}]
)
def test_what_cutlass_rounds_in_its_own_order_is_finished_elsewhere(core, given):
    p = problem(64, 512, 512, dtype="f64", batch_invariant=True, **given).problem
    assert {choice.route.way.scratch for choice in rank(p)} == {"f64"}
    if "c" in given:
        assert any(choice.route.direct for choice in rank(problem(64, 512, 512, dtype="f64", **given).problem))


def test_sums_of_products_that_are_sums_are_not_turned(core):
    """Complex numbers, and f32 in three parts: a column is not computed as a row, nor a column-major result turned."""
    for dtype in ("c64", "tf32x3"):
        column = problem(9, 1, 64, dtype=dtype, batch_invariant=True).problem
        assert (column.transposed, column.layout_d) == (False, "t")
        turned = problem(
            9, 5, 64, dtype=dtype, out=operand(9, 5, "n", "c64" if dtype == "c64" else "f32"), batch_invariant=True
        )
        assert (turned.problem.transposed, turned.problem.layout_d) == (False, "x")
        assert rank(column) and rank(turned.problem)
    assert problem(9, 1, 64, batch_invariant=True).problem.transposed


# ---------------------------------------------------------------------------------------- asking


def test_splits_beside_it_are_refused():
    for splits in (1, 4, "stream"):
        with pytest.raises(ValueError, match=r"splits is given but batch_invariant is True; it cuts k itself"):
            problem(splits=splits, batch_invariant=True)


def test_a_context_asks_for_all_calls_of_the_thread():
    with cutlass_py.batch_invariant():
        assert problem().problem.batch_invariant
        with cutlass_py.batch_invariant():
            pass
        assert problem().problem == problem(batch_invariant=True).problem
        with pytest.raises(ValueError, match="batch_invariant is True"):
            problem(splits=2)
    assert not problem().problem.batch_invariant


def test_a_provider_has_to_say_so(core):
    from test_providers import HOST, metadata, multiply

    from cutlass_py import register_kernel

    args = GemmArguments(HOST, HOST, batch_invariant=True)
    for said in (False, True):
        with register_kernel(metadata(batch_invariant=said), multiply, estimate=lambda p: 1.0):
            assert ("own_f64" in [choice.route.kernel.name for choice in rank(args.problem)]) == said


# ---------------------------------------------------------------------------------------- the CPU


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("columns", [False, True])
def test_rows_have_their_own_bits_on_the_cpu(rng, dtype, columns):
    a, b = (rng.standard_normal(x).astype(dtype) for x in ((130, 513), (513, 70)))
    out = np.empty((130, 70), dtype, order="F" if columns else "C")
    whole = gemm(a, b, out=out, batch_invariant=True)
    np.testing.assert_allclose(whole, a @ b, rtol=1e-3, atol=1e-3)
    for rows in (slice(0, 1), slice(3, 20), slice(60, 130)):
        assert np.array_equal(gemm(a[rows], b, batch_invariant=True), whole[rows])
    batch = gemm(np.stack([a[:5], a[5:10]]), b, batch_invariant=True)
    assert np.array_equal(batch.reshape(10, 70), whole[:10])


def test_no_rows_are_no_rows():
    assert _row_by_row(np.ones((0, 3)), np.ones((3, 2))).shape == (0, 2)
