"""The estimates of our own wgmma kernels: finite, in the best order, and fitted to what was measured."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from specs import grouped_problem

from cutlass_py import _core
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.declaration.families import FAMILIES, find
from cutlass_py.declaration.validation import Resolved
from cutlass_py.kernels.kernel_description import KernelDescription
from cutlass_py.kernels.registry import cutlass_kernel
from cutlass_py.operations.gemm import cost, wgmma_estimate
from cutlass_py.operations.gemm.calibration import SUMS, calibration_of, instead, nearest_of
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.operations.gemm.tile_order import tile_order, tile_orders
from cutlass_py.operations.grouped_gemm.operation import order_of

LEAN = FAMILIES["sm90_lean"].declared
TILE = "sm90_lean_bf16_bf16_f32_bf16_{}_128x128x64_{}_lean{}_fused"


def config(layout: str = "tn", cluster: str = "1x1x1", schedule: str = "pingpong"):
    found = find(TILE.format(layout, cluster, schedule))
    assert found
    return found


@pytest.fixture(autouse=True)
def formula():
    """By the formula alone."""
    with instead(ABSENT, replace(calibration_of(ABSENT), residual={})):
        yield


def us(c, m: int, n: int, k: int, batch: int = 1, activation: str = "identity") -> float:
    return wgmma_estimate.estimate(c, ABSENT, m, n, k, batch, activation)[0]


@pytest.mark.parametrize(
    "extents", [(1, 16, 8), (1, 1, 1), (4096, 4096, 4096), (7, 100000, 33), (300000, 8, 16), (3395, 1418, 1 << 20)]
)
def test_every_kind_of_kernel_has_a_time(extents):
    for c in LEAN[:: len(LEAN) // 500]:
        found, raster, swizzle = wgmma_estimate.estimate(c, ABSENT, *extents, 3)
        assert math.isfinite(found) and found > 1 and raster in (1, 2) and swizzle in (1, 2, 4, 8), c.name


@pytest.mark.parametrize("extents", [(0, 64, 64, 1), (64, 0, 64, 1), (64, 64, 0, 1), (64, 64, 64, 0)])
def test_nothing_to_compute_takes_a_launch(extents):
    assert 1 < us(config(), *extents) < 10


def test_more_takes_longer():
    c = config()
    assert us(c, 4096, 4096, 4096) < us(c, 4096, 4096, 8192) < us(c, 4096, 8192, 8192)
    assert us(c, 4096, 4096, 4096, 1) < us(c, 4096, 4096, 4096, 2)
    assert us(c, 4096, 4096, 4096) < us(c, 4096, 4096, 4104)  # lines that begin anywhere


def test_an_activation_takes_longer_and_of_one_tile_one_warpgroup_twice_as_long():
    extents = (1024, 1024, 64)  # a tile for each multiprocessor
    added = {}
    for schedule in ("leanpingpong", "leancoop"):
        c = replace(config(), schedule=schedule)
        times = [us(c, *extents, activation=f) for f in ("identity", "relu", "gelu_tanh")]
        assert times == sorted(set(times))
        added[schedule] = times[2] - times[0]
    assert added["leanpingpong"] == pytest.approx(2 * added["leancoop"])


def test_what_an_epilogue_that_is_not_told_applies_is_in_the_rates():
    c = replace(config(), epilogue="linear")
    assert us(c, 512, 512, 512, activation="gelu") == us(c, 512, 512, 512)


def test_what_has_no_registers_left_beside_its_sums_takes_longer_to_finish():
    added = {}
    for columns in (128, 192):
        told = find(f"sm90_lean_e4m3_e4m3_fast_bf16_tn_128x{columns}x128_1x1x1_leanpingpong_fused_scaled")
        assert told
        plain = replace(told, epilogue="linear")
        added[columns] = us(told, 8192, 8192, 128) - us(plain, 8192, 8192, 128)
    assert added[128] == 0 and added[192] > 10


def test_the_more_lines_neighbours_share_the_better():
    """As measured: 1, 1.4 and 1.9, where each of three rows of tiles has 128 columns."""
    c = find("sm90_lean_bf16_bf16_f32_bf16_tn_64x128x64_1x1x1_leanpingpong_fused")
    arms = _core.WgmmaArms([(192, 16384, 2048, 1)] * 3, [wgmma_estimate.design_of(c)] * 3, [(1, 1), (2, 2), (2, 1)])
    down, in_pairs, across = wgmma_estimate.estimates("usual", ABSENT).times(arms)
    assert down < in_pairs < across


@pytest.mark.parametrize("schedule", ["pingpong", "pingpongswap"])
def test_orders_of_ours_are_those_that_differ(schedule):
    several, row = (arguments({"m": m, "n": 512, "k": 64, "a": "bf16"}).problem for m in (256, 128))
    single = cutlass_kernel(config(schedule=schedule))
    bands = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]  # along m, of four columns of tiles, and along n, of two rows
    assert sorted(tile_orders(single, several)) == bands and not list(tile_orders(single, row))
    pairs = cutlass_kernel(config(cluster="1x2x1", schedule=schedule))  # of columns, or swapped of rows: one of them
    assert sorted(tile_orders(pairs, several)) == ([] if "swap" in schedule else [(1, 1), (1, 2), (2, 1), (2, 2)])


def test_what_leaves_no_registers_is_what_the_kernel_says():
    text = (Path(__file__).parent.parent / "src" / "cpp" / "kernels" / "sm90" / "epilogue.cuh").read_text()
    assert re.search(r"bool roomy\(int held\) \{ return held <= (\d+) ", text)[1] == str(wgmma_estimate._ROOMY)


def test_the_order_is_the_best_of_all():
    c = config()
    formula = wgmma_estimate.estimates("usual", ABSENT)
    product, orders = (8192, 16384, 8192, 1), [(raster, swizzle) for raster in (1, 2) for swizzle in (1, 2, 4, 8)]
    times = formula.times(_core.WgmmaArms([product] * 8, [wgmma_estimate.design_of(c)] * 8, orders))
    best, *order = wgmma_estimate.estimate(c, ABSENT, *product)
    assert best == pytest.approx(min(times)) and max(times) > best
    assert times[orders.index(tuple(order))] == pytest.approx(best)


def test_slices_help_few_tiles_of_a_long_k_while_all_clusters_run_at_once():
    whole, slices = config(), config(cluster="1x1x7")
    assert us(slices, 128, 128, 16384) < 0.5 * us(whole, 128, 128, 16384)
    fits = ABSENT.clusters[7]
    last, next_one = (us(slices, 128, 128 * tiles, 16384) for tiles in (fits, fits + 1))
    assert next_one > 1.3 * last


def test_orientations_of_one_problem_are_alike():
    usual, swapped = config("tn"), config("tn", schedule="pingpongswap")
    assert us(usual, 2048, 512, 1024) == pytest.approx(us(swapped, 512, 2048, 1024), rel=0.05)


def test_factors_of_its_own_for_each_column_take_longer():
    name = "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x{}x128_1x1x1_leancoop{}_fused"
    shared, swapped, across = (find(name.format(*x)) for x in ((128, "block"), (128, "blockswap"), (112, "block")))
    assert shared and swapped and across
    assert us(swapped, 8192, 8192, 8192) > 1.1 * us(shared, 8192, 8192, 8192)
    assert us(across, 1024, 112 * 16, 8192) > us(shared, 1024, 128 * 16, 8192)  # parts of two groups


@pytest.mark.parametrize(
    ("tile", "schedule", "turns"),
    [
        ("128x64", "leancoopblockswap", True),  # few columns
        ("128x80", "leancoopblockswap", False),  # two parts lie beside the sums
        ("128x128", "leancoopblock", False),
        ("128x144", "leancoopblockswap", True),  # they have no room
        ("256x96", "leancoop", False),
        ("64x128", "leanpingpongblock", False),
    ],
)
def test_who_adds_promoted_sums_by_turns(tile, schedule, turns):
    given = KernelDescription(a="e4m3", tile=(*map(int, tile.split("x")), 128), schedule=schedule)
    assert wgmma_estimate.adds_by_turns(Resolved(given).config) == turns


def test_registers_of_promoted_sums_are_those_of_the_kernel():
    text = (Path(__file__).parent.parent / "src" / "cpp" / "kernels" / "sm90" / "multiply.cuh").read_text()
    assert re.search(r"kMostRegisters = (\d+);", text)[1] == str(wgmma_estimate._MOST_REGISTERS)
    assert re.search(r"X::blocks == 1 && X::registers <= (\d+);", text)[1] == str(wgmma_estimate._FEW_REGISTERS)


def test_only_promoted_sums_are_added_by_turns():
    c = find(TILE.format("tn", "1x1x1", "coop").replace("128x128x64", "128x256x64"))
    assert c and not wgmma_estimate.adds_by_turns(c)


def test_estimates_of_a_problem_tell_layouts_apart():
    p = arguments({"m": 2048, "n": 2056, "k": 2048, "a": "bf16", "layout": "nn"}, "cuda:0").problem
    estimates = cost.Estimates(p, ABSENT)
    times = {layout: estimates.product(cutlass_kernel(config(layout))) for layout in ("tn", "nt")}
    assert times["tn"] == us(config("tn"), 2048, 2056, 2048) and times["nt"] == us(config("nt"), 2048, 2056, 2048)
    assert times["tn"] != times["nt"]
    assert (
        tile_order(cutlass_kernel(config("nn")), p, ABSENT)
        == wgmma_estimate.estimate(config("nn"), ABSENT, 2048, 2056, 2048, 1)[1:]
    )


def _tree(name: str, threshold: float, low: float, high: float):
    """One that asks a single question."""
    feature = _core.wgmma_features().index(name)
    return [feature] + [0] * 14, [threshold] + [0.0] * 14, [low] * 8 + [high] * 8


def test_trees_say_what_the_formula_leaves():
    known, c, product = calibration_of(ABSENT), config(), (4096, 4096, 4096, 1)
    constants, design = known.constants("usual"), wgmma_estimate.design_of(c)
    trees = [_tree("k", 4096, 0.02, -0.05), _tree("tile_n", 127.5, -0.04, 0.03), _tree("idle", -1, 0, 0.01)]
    model = _core.WgmmaEstimates(constants, ABSENT.clusters, trees)
    time, *order = model.best(product, design)
    assert math.log(time / us(c, *product)) == pytest.approx(0.02 + 0.03 + 0.01)
    arms = _core.WgmmaArms([product], [design], [tuple(order)])
    assert model.times(arms) == [pytest.approx(us(c, *product))] and model.residuals(arms) == [pytest.approx(0.06)]
    features = dict(zip(_core.wgmma_features(), model.features(arms)[0], strict=True))
    assert features["tile_m"] == features["tile_n"] == 128 and features["left"] == features["k"] == 4096
    assert features["left_begins"] == features["right_begins"] == 1024  # bytes, as lines of 4096 do, and of more
    assert features["columns_begin"] == 1024  # elements
    for k, begins in ((4224, 256), (4160, 128), (4128, 64), (4112, 32), (4104, 16)):
        other = dict(
            zip(
                _core.wgmma_features(),
                model.features(_core.WgmmaArms([(4096, 4096, k, 1)], [design], [tuple(order)]))[0],
                strict=True,
            )
        )
        assert other["left_begins"] == begins
    assert features["waves"] == pytest.approx(1024 / ABSENT.clusters[1]) and features["microseconds"] > 1
    bold = _core.WgmmaEstimates(constants, ABSENT.clusters, [_tree("k", 1, 0, -7.0)])
    assert math.log(bold.best(product, design)[0] / us(c, *product)) == pytest.approx(-0.1)  # no further


@pytest.mark.parametrize("sums", SUMS)
def test_what_ships_moves_no_estimate_far(sums):
    model = _core.WgmmaEstimates(nearest_of(ABSENT).constants(sums), ABSENT.clusters, nearest_of(ABSENT).trees(sums))
    kernels = [*LEAN, *FAMILIES["sm90_grouped"].declared]
    designs = [wgmma_estimate.design_of(c) for c in kernels if wgmma_estimate.sums_of(c) == sums]
    designs = designs[:: 40 if len(designs) > 400 else 6]
    groups, order = (16, order_of(grouped_problem().problem)) if sums == "groups" else (1, (1, 1))
    products = [(m, n, k, groups) for m in (1, 100, 5000) for n in (64, 3000) for k in (64, 5000)]
    arms = _core.WgmmaArms(products * len(designs), [x for x in designs for _ in products],
                           [order] * len(designs) * len(products))  # fmt: skip
    found = model.residuals(arms)
    assert -0.1 <= min(found) < -0.02 and 0.02 < max(found) <= 0.1
    assert abs(sum(found) / len(found)) < 0.05


@pytest.mark.parametrize("sums", SUMS)
def test_an_estimate_is_a_time(sums):
    """Of lines that begin anywhere, too, of which the fit may have seen none."""
    model = _core.WgmmaEstimates(nearest_of(ABSENT).constants(sums), ABSENT.clusters, nearest_of(ABSENT).trees(sums))
    kernels = [*FAMILIES["sm90_lean"].core, *FAMILIES["sm90_grouped"].core]
    for design in {wgmma_estimate.design_of(c) for c in kernels if wgmma_estimate.sums_of(c) == sums}:
        for m, n, k in itertools.product((1, 40, 5000), (24, 48, 1040, 4096), (8, 24, 1040, 1048, 4096)):
            us = model.best((m, n, k, 3), design)[0]
            assert 0.1 < us < 1e6, (design, m, n, k, us)


def test_a_formula_wants_every_constant():
    with pytest.raises(ValueError, match="one number for each"):
        _core.WgmmaEstimates([1.0], ABSENT.clusters)
    constants = calibration_of(ABSENT).constants("usual")
    with pytest.raises(ValueError, match="15 features"):
        _core.WgmmaEstimates(constants, ABSENT.clusters, [([0], [1.0], [1.0])])
    with pytest.raises(ValueError, match="each"):
        _core.WgmmaArms([(1, 1, 1, 1)], [], [])
