"""What kernels of groups are estimated by: how many lines are usual, products of one size with as many tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from specs import grouped_problem

from cutlass_py import GroupedArguments, TensorSpec
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.declaration.families import find
from cutlass_py.kernels.adaptation import Way
from cutlass_py.kernels.operation import operation_named
from cutlass_py.kernels.registry import kernel_named
from cutlass_py.operations.gemm import wgmma_estimate
from cutlass_py.operations.gemm.cost import design_of as formula_of
from cutlass_py.operations.grouped_gemm.operation import OPERATION, mean_product, products

TALL = "sm90_grouped_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingponggrouped_fused"
WIDE = "sm90_grouped_bf16_bf16_f32_bf16_tn_128x192x64_1x1x1_leanpingponggroupedswap_fused"
PORTABLE = "sm80_grouped_bf16_bf16_f32_bf16_tn_64x64x32_32x32x32_s6_a8_persistent_linearc_told"
DEEP = "sm90_grouped_bf16_bf16_f32_bf16_nt_128x128x64_1x1x1_leanpingpongdeep_fused"


@pytest.mark.parametrize(
    ("said", "seen"),
    [(None, 0), (1, 1), (2, 2), (3, 3), (139, 140), (140, 140), (4096, 4096), (2**31, 4096), (2**62 + 1, 4096)],
)
def test_lines_that_are_usual_are_no_more_than_there_are(said, seen):
    """To an eighth of a power of two, so that few problems are told apart."""
    assert grouped_problem(expected=said).problem.expected == seen


@pytest.mark.parametrize(
    ("sizes", "usual"), [([300, 0, 0, 304], 304), ([0, 0, 0, 0], 0), ([1, 1, 1, 2], 1), ([4096, 0, 0, 0], 4096)]
)
def test_numbers_in_host_memory_say_how_many_lines_are_usual(sizes, usual):
    """Of the groups that have any: those which have none take no time. The caller's word goes before."""
    a, b = TensorSpec((4096, 64), "bf16", device="cuda:63"), TensorSpec((4, 64, 128), "bf16", device="cuda:63")
    for numbers in ({"sizes": np.array(sizes, "i4")}, {"offsets": np.cumsum(sizes)}):
        p = GroupedArguments(a, b, **numbers).problem
        assert (p.expected, p.usual) == (0, usual) and mean_product(p)[0] == (usual or 1024)
        p = GroupedArguments(a, b, **numbers, expected=10).problem
        assert (p.expected, p.usual) == (10, usual) and mean_product(p)[0] == 10
    on_cpu = GroupedArguments(np.zeros((4096, 64)), np.zeros((4, 64, 128)), sizes=np.array(sizes, "i4"))
    assert on_cpu.problem.usual == 0


def test_products_of_one_size_that_have_as_many_tiles():
    """By sizes and by what is usual; groups of k begin where all of it does."""
    tall, deep = find(TALL), find(DEEP)
    p = grouped_problem(m=600, groups=4).problem
    assert mean_product(p) == (150, 2048, 1024, 4)
    assert mean_product(p, tall, [300, 0, 0, 300]) == (384, 2048, 1024, 2)  # nothing is read of the others
    assert mean_product(p, tall, [100, 0, 0, 20]) == (60, 2048, 1024, 2)
    assert mean_product(p, tall, [150] * 4) == (256, 2048, 1024, 4)
    assert mean_product(p, tall) == (256, 2048, 1024, 4)
    assert mean_product(grouped_problem(m=600, groups=4, expected=300).problem) == (304, 2048, 1024, 2)
    assert mean_product(grouped_problem("k", k=4096, groups=7).problem, deep) == (4096, 2048, 640, 7)
    assert mean_product(grouped_problem("k", k=4096, groups=7, expected=4096).problem, deep) == (4096, 2048, 4096, 7)
    assert mean_product(grouped_problem("k", k=4104, groups=7).problem, deep) == (4096, 2048, 592, 7)


@pytest.mark.parametrize(
    ("name", "lines"), [(TALL, {256: (3, 4), 640: (1, 1)}), (PORTABLE, {192: (3, 4), 640: (1, 1)})]
)
def test_one_choice_is_made_for_all_that_sizes_may_be(name, lines):
    """Tiles as even groups, uniform, exponential ones, or a quarter of all have them; the time is the mean of these."""
    kernel, gpu = kernel_named(name), replace(ABSENT, absent=False)
    p = grouped_problem(m=600, groups=4).problem
    seen = products(p, kernel.config)
    assert {m: (spreads, groups) for (m, _, _, groups), spreads in seen.items()} == lines
    c, order = kernel.config, OPERATION.tile_order(kernel, p, gpu)
    if c.api == 2:
        by_product = {one: formula_of(c, p, gpu).of_product(*one) for one in seen}
    else:
        model = wgmma_estimate.estimates("groups", gpu)
        by_product = {one: model.in_order(one, wgmma_estimate.design_of(c), order) for one in seen}
    alone = [us for one, us in by_product.items() for _ in range(seen[one])]
    mean, *_ = OPERATION.forced(kernel, Way(), p, gpu)
    assert min(alone) < mean < max(alone) and mean == pytest.approx(np.exp(np.mean(np.log(alone))), rel=1e-6)


def extents(p, name):
    """Of the axis that groups divide, of each product and how many, by a kernel."""
    config = find(name)
    return {
        (m if p.grouped == "m" else n, groups): spreads for (m, n, _, groups), spreads in products(p, config).items()
    }


def test_sizes_may_be_no_larger_than_all_of_them():
    """One group has all lines; two or three may leave them to one of them; no line is there twice."""
    assert extents(grouped_problem(m=600, groups=1).problem, TALL) == {(640, 1): 4}
    assert extents(grouped_problem(m=600, groups=2).problem, TALL) == {(384, 2): 3, (640, 1): 1}
    assert extents(grouped_problem(m=600, groups=3).problem, TALL) == {(256, 3): 3, (640, 1): 1}
    assert extents(grouped_problem(m=3, groups=128).problem, TALL) == {(1, 3): 3, (3, 1): 1}
    assert extents(grouped_problem(m=600, groups=4, expected=10**6).problem, TALL) == {(640, 1): 4}
    for mean in range(1, 128):  # rounding makes no lines
        assert extents(grouped_problem(m=8 * mean, groups=8).problem, WIDE)[mean, 8] >= 2


def test_no_group_without_lines_is_among_those_that_have_some():
    """By the caller's word, and by what the host knows."""
    a, b = TensorSpec((600, 1024), "bf16", device="cuda:63"), TensorSpec((4, 1024, 2048), "bf16", device="cuda:63")
    by_host = GroupedArguments(a, b, sizes=np.array([300, 0, 300, 0], "i4")).problem
    for p in (grouped_problem(m=600, groups=4, expected=300).problem, by_host):
        assert extents(p, TALL) == {(384, 2): 4}
        assert mean_product(p, find(TALL), [300, 0, 0, 300]) == (384, 2048, 1024, 2)
    assert extents(grouped_problem(m=600, groups=4).problem, TALL) == {(256, 4): 3, (640, 1): 1}


def test_tiles_of_groups_are_as_high_or_as_wide_as_they_lie():
    """Of rows the tile's rows, of columns its columns; the other way round where operands change places."""
    rows, columns = grouped_problem(m=600, groups=4).problem, grouped_problem("n", n=600, m=2048, groups=4).problem
    assert extents(rows, WIDE) == {(150, 4): 2, (384, 2): 1, (768, 1): 1}  # 192
    assert extents(columns, WIDE) == {(256, 4): 3, (640, 1): 1}  # 128
    assert extents(rows, TALL) == extents(columns, TALL) == {(256, 4): 3, (640, 1): 1}


@pytest.mark.parametrize("name", [TALL, WIDE])
def test_tiles_of_groups_lie_in_one_order(name):
    """Along the weights in bands of lines, and estimated so: which order the formula finds best does not count."""
    kernel, gpu = kernel_named(name), replace(ABSENT, absent=False)
    design, model = wgmma_estimate.design_of(kernel.config), wgmma_estimate.estimates("groups", gpu)
    for axis, m, n in (("m", 64 * 236, 4096), ("n", 4096, 64 * 236)):
        p = grouped_problem(axis, m=m, n=n, k=4096, groups=64).problem
        order, seen = OPERATION.tile_order(kernel, p, gpu), products(p, kernel.config)
        assert order == (2 if axis == "m" else 1, 4)
        us = [model.in_order(one, design, order) for one, spreads in seen.items() for _ in range(spreads)]
        mean, *_ = OPERATION.forced(kernel, Way(), p, gpu)
        assert mean == pytest.approx(np.exp(np.mean(np.log(us))), rel=1e-9)
        assert any(model.best(one, design)[0] < 0.999 * model.in_order(one, design, order) for one in seen)
        for one in seen:
            by_order = {order: model.in_order(one, design, order) for order in design.orders(*one[:2])}
            assert model.best(one, design) == (pytest.approx(min(by_order.values())), *min(by_order, key=by_order.get))
        assert set(OPERATION.tile_orders(kernel, p)) == {(raster, band) for raster in (1, 2) for band in (1, 2, 4, 8)}
    assert OPERATION.tile_orders(kernel, grouped_problem(m=64 * 8, groups=64, n=4096).problem) == ()
    assert model.in_order((128, 128, 0, 1), design, order) == model.best((128, 128, 0, 1), design)[0]  # nothing to do


def test_a_class_is_of_any_sizes_that_the_host_knows():
    a, b = TensorSpec((4096, 64), "bf16", device="cuda:63"), TensorSpec((4, 64, 128), "bf16", device="cuda:63")
    problems = [GroupedArguments(a, b, sizes=np.array(x, "i4")).problem for x in ([300, 0, 0, 304], [7, 7, 7, 7])]
    told, other = (operation_named("grouped_gemm").key_of(p) for p in problems)
    assert told == other and problems[0].usual != problems[1].usual
    assert " expected=9" in operation_named("grouped_gemm").key_of(grouped_problem(expected=9).problem)
