"""Calibrations: files that can be taken or not, the nearest GPU, and constants found in times that follow from them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from specs import A100, problem

from cutlass_py import _core
from cutlass_py.arrays.gpu import ABSENT, Gpu
from cutlass_py.calibrating import fitting, measuring, residual
from cutlass_py.commands import main
from cutlass_py.declaration.families import named
from cutlass_py.dispatch.candidates import rank
from cutlass_py.kernels.adaptation import Way
from cutlass_py.kernels.operation import operation_named
from cutlass_py.kernels.registry import kernel_named
from cutlass_py.operations.gemm import calibration
from cutlass_py.operations.gemm.calibration import BESIDE, ROUTES, SUMS, TILED, calibration_of, instead, nearest_of
from cutlass_py.operations.gemm.cost import Estimates
from cutlass_py.operations.gemm.wgmma_estimate import estimate
from cutlass_py.operations.grouped_gemm.operation import mean_product

H200 = replace(ABSENT, absent=False, driver=13000)
INFO = {"name": H200.name, "cc": H200.cc, "sm_count": H200.sm_count, "driver": H200.driver}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """The user's calibrations are here."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    calibration.forget()
    yield tmp_path
    monkeypatch.undo()
    calibration.forget()


def took(estimates, plan):
    kernel, way = kernel_named(plan.kernel), Way(plan.pack_a, plan.pack_b, plan.scratch)
    return estimates.product(kernel, plan.splits) + estimates.detours(way, kernel.interface, plan.splits)


@pytest.fixture
def gpu(core, monkeypatch):
    """A GPU of which times are those of other constants: returns these."""
    known = nearest_of(H200)
    usual = known.sums["usual"]
    truth = replace(
        known,
        sums=known.sums | {"usual": usual | {"low": usual["low"] + 0.8, "load": usual["load"] - 0.5}},
        tiled=known.tiled | {"launch": 3.5},
        beside=known.beside | {"launch": 8.0, "rate": known.beside["rate"] / 2},
    )

    def measure(p, plans, rounds, group_ends):
        assert not group_ends
        with instead(H200, truth):
            estimates = Estimates(p, H200)
            return [[us * x for x in (1.0, 1.02, 0.98, 1.01)[:rounds]] for us in map(partial(took, estimates), plans)]

    monkeypatch.setattr(_core, "measure", measure)
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr(_core, "device_info", lambda ordinal: INFO)
    monkeypatch.setattr(_core, "clusters_at_once", lambda ordinal: ABSENT.clusters)
    from cutlass_py.arrays.gpu import device

    device.cache_clear()
    yield truth
    monkeypatch.undo()
    device.cache_clear()


# ---------------------------------------------------------------------------------------- files


def test_what_ships_is_whole():
    (own,) = calibration.shipped()
    assert own.gpu == "NVIDIA H200" and list(own.sums) == list(SUMS)
    assert {*TILED} <= set(own.tiled) and set(own.beside) == set(BESIDE)
    assert len(own.dumps()) < 150_000
    for sums in SUMS:
        assert len(own.constants(sums)) == len(_core.wgmma_constants())


def test_what_ships_has_trees_for_every_way_to_sum_and_for_routes():
    own = nearest_of(H200)
    for of in (*SUMS, ROUTES):
        trees = own.trees(of)
        assert len(trees) == len(own.residual[of]) >= 30
        assert [calibration.line_of(tree) for tree in trees] == own.residual[of]


def saved(path, **changes):
    path.write_text(replace(nearest_of(H200), driver=H200.driver, **changes).dumps())
    calibration.forget()


def test_the_users_own_is_taken_first(place):
    from cutlass_py import __version__

    saved(place / calibration.name_of(H200), version=__version__, beside=dict.fromkeys(BESIDE, 7.0))
    assert calibration_of(H200).beside == dict.fromkeys(BESIDE, 7.0)
    assert calibration_of(A100).beside["launch"] != 7.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-200], "not JSON"),
        (lambda text: text.replace('"cc": 90', '"cc": 91'), "its digest is not that of its contents"),
        (lambda text: "[]", "expected a calibration of format 3"),
        (lambda text: text.replace('"format": 3', '"format": 9'), "expected a calibration of format 3"),
        (lambda text: text.replace('"format": 3', '"format": 1'), "format 3: `calibrate` makes one"),
    ],
)
def test_what_is_torn_or_edited_is_named_and_passed_over(place, change, message):
    path = place / calibration.name_of(H200)
    saved(path, version="0.0")
    path.write_text(change(path.read_text()))
    calibration.forget()
    with pytest.warns(RuntimeWarning, match=f"a calibration is left out: .*{message}"):
        assert calibration_of(H200) == nearest_of(H200)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "NVIDIA L40S"}, "is of NVIDIA L40S with 132 multiprocessors"),
        ({"sm_count": 114}, "is of NVIDIA H200 with 114 multiprocessors"),
        ({"version": "7.7"}, "version 7.7; expected"),
        ({"tiled": {}}, "is of other constants than this version has"),
        ({"beside": dict.fromkeys(BESIDE, math.nan)}, "a constant is no number"),
        ({"features": [["tile_m"], ["kind"]]}, "is of other constants than this version has"),
        ({"residual": {"fast": ["0>1 5"]}}, "a tree has 15 features"),
        ({"residual": {"slow": []}}, "is of other constants than this version has"),
        ({"residual": {"fast": [" ".join(["0>nan"] * 15 + ["0"] * 16)]}}, "a threshold is no number"),
        ({"residual": {"fast": [" ".join(["0>1"] * 15 + ["9" * 400] * 16)]}}, "of what the formula leaves"),
        ({"residual": {"routes": ["0>1 5"]}}, "a tree has 15 features"),
        ({"residual": {"fast": ["x>1 5"]}}, "of what the formula leaves: invalid literal"),
        ({"residual": {"fast": [" ".join(["99>1"] * 15 + ["0"] * 16)]}}, "a tree's features are those named"),
    ],
)
def test_what_is_of_another_gpu_or_version_is_named_and_passed_over(place, changes, message):
    from cutlass_py import __version__

    saved(place / calibration.name_of(H200), **{"version": __version__, **changes})
    with pytest.warns(RuntimeWarning, match=message):
        assert calibration_of(H200) == nearest_of(H200)


def test_another_driver_is_another_gpu(place):
    from cutlass_py import __version__

    saved(place / calibration.name_of(H200), version=__version__)
    with pytest.warns(RuntimeWarning, match="driver 13000, version .*; expected .* driver 14000"):
        assert calibration_of(replace(H200, driver=14000)) == nearest_of(H200)


# ---------------------------------------------------------------------------------------- the nearest


def test_a_gpu_that_nobody_calibrated_has_the_nearest_ones():
    own, h100 = nearest_of(H200), nearest_of(Gpu("NVIDIA H100 PCIe", 90, 114, 2000.0))
    assert not own.nearest and h100.nearest and h100.gpu == own.gpu
    assert h100.tiled["rate sm80_gemm bf16"] == pytest.approx(own.tiled["rate sm80_gemm bf16"] * 114 / 132)
    assert h100.beside["rate"] == pytest.approx(own.beside["rate"] * 2000 / own.bandwidth)
    assert h100.sums["usual"]["memory"] == pytest.approx(own.sums["usual"]["memory"] + math.log(2000 / own.bandwidth))
    for gpu in (A100, Gpu("unheard of", 121, 9, 0.0)):
        assert rank(problem(512, 512, 512).problem, gpu=gpu, compiled=False)


def test_info_says_whose_constants_choose(capsys, gpu):
    assert main(["info"]) == 0 and "by what was measured on NVIDIA H200\n" in capsys.readouterr().out
    assert main(["info", "--json"]) == 0
    assert "measured on NVIDIA H200" in json.loads(capsys.readouterr().out)["devices"][0]["estimates"]
    assert calibration.said(A100).startswith("in proportion to what was measured on NVIDIA H200")


# ---------------------------------------------------------------------------------------- measuring, fitting


def test_every_part_that_there_are_kernels_for_is_measured(built):
    built(named("core") | named("core", "grouped_gemm"))
    assert measuring.parts(H200) == list(measuring.SECONDS)
    assert measuring.parts(A100) == [measuring.ROUTES]


@pytest.fixture
def no_trees(monkeypatch):
    """As if LightGBM were not installed: growing takes longer than all else."""
    monkeypatch.setattr(fitting, "can_grow", lambda: False)


@pytest.mark.parametrize("trees", [True, False], ids=["LightGBM", "without"])
def test_constants_are_found_in_what_follows_from_them(gpu, trees, monkeypatch):
    if trees:
        pytest.importorskip("lightgbm")
    monkeypatch.setattr(fitting, "can_grow", lambda: trees)
    known = nearest_of(H200)
    parts = {part: list(measuring.measure(part, H200, 2.0, 3)) for part in ("usual", measuring.ROUTES)}
    found = fitting.fitted(known, parts, H200, [3])
    for part in parts:
        assert (found.residual[part] != known.residual[part]) == trees
    assert found.residual["fast"] == known.residual["fast"] and found.evidence["seeds"] == [3]
    assert found.sums["fast"] == known.sums["fast"]
    assert found.sums["usual"]["low"] > known.sums["usual"]["low"] + 0.3
    assert found.beside["launch"] == pytest.approx(gpu.beside["launch"], rel=0.3)
    scores = found.evidence["held_out"]
    for part, entries in parts.items():
        assert scores[part]["problems"] == len(entries)
        assert scores[part]["after"]["geomean"] >= scores[part]["before"]["geomean"] - 0.005
        assert len(scores[part]["worst"]) <= 10


def test_nothing_is_held_out_that_the_constants_have_seen(gpu, no_trees, monkeypatch):
    """Where all of it was seen, a quarter is, as a calibration that is repeated has it."""
    entries = [{**e, "seed": i % 3} for i, e in enumerate(measuring.measure("usual", H200, 2.0, 3))]
    known = replace(nearest_of(H200), evidence={"seeds": [1, 2]})
    held = []
    monkeypatch.setattr(
        fitting, "choices", lambda part, known, held_out, gpu: held.append(held_out) or np.ones(len(held_out))
    )
    fitted_to = []
    monkeypatch.setattr(fitting, "fit", lambda part, known, found, gpu: fitted_to.append(found) or known)
    fitting.fitted(known, {"usual": entries}, H200, [0, 1, 2])
    assert {e["seed"] for e in held[0]} == {0} and len(held[0]) == -(-len(entries[::3]) // 4)
    assert len(fitted_to[0]) == len(entries) - len(held[0])
    assert not [e for e in held[0] if any(e is x for x in fitted_to[0])]
    seen = replace(known, evidence={"seeds": [0], "earlier": [1, 2]})
    assert fitting.fitted(seen, {"usual": entries}, H200, [0, 1, 2]).evidence["earlier"] == [0, 1, 2]
    assert len(held[-1]) == -(-len(entries) // 4)
    few = [{**e, "seed": 0 if i < 7 else 1} for i, e in enumerate(entries)]  # too few to judge by
    fitting.fitted(known, {"usual": few}, H200, [0, 1])
    assert len(held[-1]) == -(-len(entries) // 4)


@pytest.mark.parametrize("part", ["groups", "depth"])
def test_groups_are_as_unequal_as_experts(gpu, built, no_trees, monkeypatch, part):
    """And constants follow from times of the tiles that they have, whatever the choice knows of them."""
    built(named("core", "grouped_gemm"))
    known = nearest_of(H200)
    truth = replace(known, sums=known.sums | {part: known.sums[part] | {"low": known.sums[part]["low"] + 0.8}})

    def measure(p, plans, rounds, group_ends):
        sizes = np.diff(group_ends, prepend=0).tolist()
        assert p.stacked or (len(sizes) == p.batch and sum(sizes) == (p.m if part == "groups" else p.k))
        configs = [kernel_named(plan.kernel).config for plan in plans]
        with instead(H200, truth):
            return [[estimate(c, H200, *mean_product(p, c, sizes))[0]] * rounds for c in configs]

    monkeypatch.setattr(_core, "measure", measure)
    entries = list(measuring.measure(part, H200, 1.5, 3))
    spreads = [max(entry["sizes"]) / (sum(entry["sizes"]) / len(entry["sizes"])) for entry in entries if entry["sizes"]]
    assert min(spreads) < 1.1 and max(spreads) > 3
    found = fitting.fit(part, known, entries, H200)
    assert found.sums[part]["low"] > known.sums[part]["low"] + 0.1


def test_what_a_call_would_choose_is_measured(gpu, built):
    """In the order that it would have, and in no other."""
    built(named("core", "grouped_gemm"))
    operation = operation_named("grouped_gemm")
    for entry in itertools.islice(measuring.drawn_groups(Random(3)), 30):
        p = measuring.problem_of({**entry, "activation": "identity"})
        arms = {(arm.route.kernel.name, arm.raster, arm.swizzle) for arm in measuring.arms_of(p, H200, Random(4))}
        kernels = [kernel_named(name) for name in named("core", "grouped_gemm")]
        takes = [k for k in kernels if k.config.family == "sm90_grouped" and isinstance(k.way(p, H200), Way)]
        direct = [k for k in takes if not k.way(p, H200).detours]
        best = min(direct, key=lambda k: operation.forced(k, k.way(p, H200), p, H200)[0])
        order = operation.tile_order(best, p, H200)
        assert (best.name, *order) in arms
        assert entry["axis"] == "batch" or {arm[1:] for arm in arms} == {order}


def test_trees_are_grown_on_what_is_left(gpu):
    """What LightGBM found is what C++ adds up, and what follows from two facts of an arm is found again."""
    pytest.importorskip("lightgbm")
    known = nearest_of(H200)
    entries = list(measuring.measure("usual", H200, 2.0, 3))
    readings = fitting.WgmmaReadings(entries, ABSENT.clusters)
    constants = known.constants("usual")
    features = np.array(_core.WgmmaEstimates(constants, ABSENT.clusters).features(readings.arms))
    names = _core.wgmma_features()
    wide, long = features[:, names.index("tile_n")] > 64, features[:, names.index("k")] > 1000
    left = 0.05 * wide - 0.03 * long
    trees = residual.boosted(features, left, readings.weights)
    for grown in (trees, [calibration._tree(calibration.line_of(tree)) for tree in trees]):
        model = _core.WgmmaEstimates(constants, ABSENT.clusters, grown)
        assert np.abs(np.array(model.residuals(readings.arms)) - left).mean() < 0.005


def test_routes_take_what_their_trees_say(gpu):
    """A time moves by the sum of the trees and by a tenth at most; that of a kernel without a formula does not."""
    features = _core.route_features()
    by_rows = [features.index("rows")] * 15, [1000.0] * 15
    p = problem(2000, 512, 512).problem
    design = _core.GemvDesign(
        swap=False, packed=False, along_k=True, only_factor=True, size=2, sm_count=132, memory=4e6, longer=1.0
    )
    given = {"tile": (2, 4, 256), "swap": False, "slices": 1, "access": 0, "size": 2, "d_size": 4, "own": None}
    kernel, asked = _core.OtherKernel(**given, formula=design), _core.OtherKernel(**given, formula=None)
    assert dict(zip(features, _core.RouteResidual.features(p, kernel, 2, 3.0, 12.0), strict=True)) == {
        "kind": 3, "tile_m": 0, "tile_n": 0, "tile_k": 0, "slices": 1, "swap": 0, "access": 0, "size": 2, "d_size": 4,
        "align_d": 4, "rows": 2000, "columns": 512, "k": 256, "batch": 1, "parts": 2, "tiles": 0, "steps": 0,
        "rows_full": 1, "columns_full": 1, "around": 0.25, "microseconds": 12,
    }  # fmt: skip
    assert _core.RouteResidual.features(p, asked, 1, 0.0, 10.0) == []
    for value, factor in ((0.02, math.exp(0.04)), (-0.5, math.exp(-0.1))):
        known = _core.RouteResidual([(*by_rows, [-7.0] * 8 + [value] * 8)] * 2)
        assert known.applied(p, kernel, 1, 0.0, 10.0) == pytest.approx(10 * factor, rel=1e-6)
        assert known.applied(p, asked, 1, 0.0, 10.0) == 10


def test_a_tree_of_any_shape_is_complete():
    leaf = [{"leaf_value": value} for value in (1.0, 2.0, 3.0)]
    low = {"split_feature": 2, "threshold": 0.5, "left_child": leaf[0], "right_child": leaf[1]}
    root = {"split_feature": 7, "threshold": 9.0, "left_child": low, "right_child": leaf[2]}
    features, thresholds, values = residual.complete(root)
    assert (features[:3], thresholds[:3]) == ([7, 2, 0], [9.0, 0.5, 0.0])
    assert values == [1.0] * 4 + [2.0] * 4 + [3.0] * 8
    assert residual.complete(leaf[1]) == ([0] * 15, [0.0] * 15, [2.0] * 16)


def test_a_problem_that_comes_twice_is_judged_twice(gpu):
    """With another activation, too: of either the formula's first order is there."""
    (entry,) = itertools.islice(measuring.measure("usual", H200, 5.0, 3), 1)
    readings = fitting.WgmmaReadings([entry, {**entry, "activation": "gelu_tanh"}], ABSENT.clusters)
    estimated = readings.with_residual(np.array(nearest_of(H200).constants("usual")), [])
    finite = np.add.reduceat(np.isfinite(estimated), readings.first)
    assert finite[0] == finite[1] > 1


def test_several_calibrations_are_fitted_to_together(gpu, no_trees, place, capsys, monkeypatch):
    monkeypatch.setattr(measuring, "parts", lambda gpu: ["usual"])
    files = [str(place / name) for name in ("one", "two")]
    for seed, name in enumerate(files):
        options = ["--seconds", "1", "--keep", name, "--export", str(place / "x.json")]
        assert main(["calibrate", "--seed", str(seed), *options]) == 0
    problems = [len(json.loads(Path(name).read_text())["parts"]["usual"]) for name in files]
    capsys.readouterr()
    of = []
    fit = fitting.fitted
    monkeypatch.setattr(fitting, "fitted", lambda known, parts, *rest: of.append(parts) or fit(known, parts, *rest))
    assert main(["calibrate", "--measured", *files, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seeds"] == [0, 1] and said["held_out"]["usual"]["problems"] == sum(problems)
    assert calibration_of(H200).evidence["seeds"] == [0, 1]
    assert [entry["seed"] for entry in of[0]["usual"]] == [0] * problems[0] + [1] * problems[1]
    assert main(["calibrate", "--measured", files[0], files[0]]) == 2
    assert "seed 0 is in another of the files" in capsys.readouterr().err
    assert main(["calibrate", "--measured", files[0], "--seed", "5"]) == 2
    assert "--seed is of problems to be measured" in capsys.readouterr().err


def test_the_command_measures_fits_and_is_taken(gpu, no_trees, place, capsys, monkeypatch):
    monkeypatch.setattr(measuring, "parts", lambda gpu: ["usual"])
    assert main(["calibrate", "--seconds", "3", "--seed", "5"]) == 0
    said = capsys.readouterr().out
    path = place / calibration.name_of(H200)
    assert str(path) in said and "seeds 5;" in said and not path.with_suffix(".measured").exists()
    found = calibration_of(H200)
    assert (
        found.evidence["seeds"] == [5] and not found.nearest and found.sums["usual"] != nearest_of(H200).sums["usual"]
    )
    p = problem(64, 64, 64).problem
    assert Estimates(p, H200).known is found


def test_the_command_goes_on_where_it_was_interrupted(gpu, no_trees, place, monkeypatch):
    asked, measure = [], measuring.measure

    def interrupted(part, *rest):
        asked.append(part)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return measure(part, *rest)

    monkeypatch.setattr(measuring, "parts", lambda gpu: ["usual", measuring.ROUTES])
    monkeypatch.setattr(measuring, "measure", interrupted)
    assert main(["calibrate", "--seconds", "1"]) == 130 and asked == ["usual", measuring.ROUTES]
    seed = json.loads(next(place.glob("*.measured")).read_text())["seed"]
    assert main(["calibrate", "--seconds", "1"]) == 0 and asked[2:] == [measuring.ROUTES]
    assert calibration_of(H200).evidence["seeds"] == [seed]


def test_measurements_of_something_else_are_not_gone_on_with(gpu, place, capsys):
    kept = place / "kept.json"
    for content in ("{", json.dumps({"gpu": "x", "driver": 1, "version": "1", "seed": 1, "parts": {}})):
        kept.write_text(content)
        assert main(["calibrate", "--keep", str(kept)]) == 2 and kept.read_text() == content
        assert "holds no measurements of NVIDIA H200, driver 13000" in capsys.readouterr().err


def test_nothing_measured_is_no_calibration(gpu, place, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "measure", lambda *asked: iter(()))
    assert main(["calibrate", "--seconds", "1"]) == 2 and "too few problems were measured" in capsys.readouterr().err
    assert not (place / calibration.name_of(H200)).exists()


def test_what_the_command_cannot_do(place, capsys):
    assert main(["calibrate"]) == 2 and "calibrate: needs a GPU" in capsys.readouterr().err
    assert main(["calibrate", "--measured", str(place / "none")]) == 2
    assert "there is no such file" in capsys.readouterr().err
