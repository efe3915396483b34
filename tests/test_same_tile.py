"""benchmarks/same_tile.py: which kernels are a pair, and what is said of their times."""

from __future__ import annotations

import pytest

from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.families import find


@pytest.fixture
def same_tile(script):
    return script("same_tile")


@pytest.mark.parametrize(
    "dtype, least", [("bf16", 20), ("f16", 20), ("tf32", 3), ("e4m3", 3), ("e4m3_fast", 3), ("s8", 3)]
)
def test_pairs_differ_in_nothing_but_the_family(same_tile, dtype, least):
    found = same_tile.pairs(dtype, "tn")
    assert len(set(found)) == len(found) >= least
    for ours, theirs in (map(find, pair) for pair in found):
        assert (ours.family, theirs.family) == ("sm90_lean", "sm90_gemm")
        same = [(c.a, c.b, c.accumulator, c.d, c.layout, c.tile, c.cluster) for c in (ours, theirs)]
        assert same[0] == same[1]
        mine, other = (SCHEDULES[c.schedule] for c in (ours, theirs))
        assert (mine.pingpong, mine.swap) == (other.pingpong, other.swap)


def test_problems_are_those_that_both_kernels_read(same_tile):
    def fits(dtype, layout, shape):
        return same_tile.fits(same_tile.Case("", dtype, layout, shape), same_tile.pairs(dtype, layout)[0])

    drawn = {(1, 8, 8, 8): True, (1, 7, 8, 8): True, (1, 8, 7, 8): False, (1, 8, 8, 7): False}
    assert {shape: fits("bf16", "tn", shape) for shape in drawn} == drawn
    assert not fits("bf16", "nn", (1, 7, 8, 8)) and not fits("e4m3", "tn", (1, 8, 8, 8))
    assert fits("e4m3", "tn", (1, 16, 16, 16))


def test_names_are_those_of_all_pairs(same_tile, capsys):
    assert same_tile.main(["--names", "--layout", "nt"]) == 0
    names = capsys.readouterr().out.split()
    assert names == [name for pair in same_tile.pairs("bf16", "nt") for name in pair]


def test_without_a_pair_that_is_compiled_it_says_what_to_build(same_tile, capsys, monkeypatch):
    monkeypatch.setattr(same_tile.cutlass_py, "get_kernels", list)
    assert same_tile.main([]) == 2
    assert "--names prints what to build" in capsys.readouterr().err


def record(same_tile, tile: int, *ratios: float):
    return {
        "kernels": same_tile.pairs("bf16", "tn")[tile],
        **{"m": 2, "n": 3, "k": 4},
        "error": {same_tile.OURS: 0.5},
        "wrong": [],
        **{regime: {"ratio": ratio} for regime, ratio in zip(same_tile.REGIMES, ratios, strict=True)},
    }


def test_every_reading_is_judged_and_their_mean(same_tile, capsys):
    records = [record(same_tile, 0, 1.21, 1.0), record(same_tile, 0, 1.0, 0.94), record(same_tile, 1, 1.0, 1.0)]
    assert same_tile.verdicts(records, same_tile.REGIMES) == 2
    said = capsys.readouterr().out
    assert "reached: sustained, geometric mean of 3 = 1.066, bar 1.0" in said
    assert "reached: sustained, least of 3 = 1.000, bar 0.95" in said
    assert "MISSED: mixed, geometric mean of 3 = 0.980, bar 1.0" in said
    assert "MISSED: mixed, least of 3 = 0.940, bar 0.95" in said
    assert f"  1.100   1.000  {records[0]['kernels'][0]}" in said


def test_a_wrong_result_is_a_failure_whatever_its_time(same_tile, capsys):
    found = record(same_tile, 0, 2.0, 2.0)
    assert same_tile.verdicts([found], same_tile.REGIMES) == 0
    assert same_tile.verdicts([found | {"wrong": [same_tile.OURS]}], same_tile.REGIMES) == 1
    assert f"{same_tile.OURS}: off by 5.0e-01" in capsys.readouterr().out
