"""What to sweep, and what is made of sweeps: sets of kernels, and the constants of the model that chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py.bench.suites import ARITHMETICS, Case
from cutlass_py.commands import main
from cutlass_py.declaration.families import find, named, select
from cutlass_py.operations.gemm.problems import arguments

SWEEP = Path(__file__).resolve().parent / "data" / "sweep.json"  # a fifth of the problems of a sweep on an H200

# ---------------------------------------------------------------------------------------- what to sweep


@pytest.mark.parametrize("dtype", ARITHMETICS)
def test_candidates_are_what_the_model_thinks_best(script, dtype):
    candidates = script("candidates")
    layout = ARITHMETICS[dtype].layouts[0]
    small, large = (Case("x", dtype, layout, (1, m, 4096, 4096)) for m in (32, 4096))
    first, both = candidates.candidates([large], 1), candidates.candidates([small, large, large], 1)
    assert len(first) == 1 and both[0] == first[0] and set(both) == {*first, *candidates.candidates([small], 1)}
    assert find(first[0]).layout == layout


def test_candidates_can_be_built(script, capsys, tmp_path):
    """What is printed is a file that the build takes; so are the names of `kernels --all`, cut as the document says."""
    assert script("candidates").main(["--suite", "square", "--layout", "tn", "--best", "3"]) == 0
    printed = capsys.readouterr().out
    assert main(["kernels", "--all", "_128x192x64_"]) == 0
    names = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    for text in (printed, "\n".join(names)):
        path = tmp_path / "names.txt"
        path.write_text(text)
        found = select(str(path), ["80", "90a"])
        assert len(found) == len([line for line in text.splitlines() if not line.startswith("#")]) > 0


def test_no_candidates(script, capsys):
    assert script("candidates").main(["--suite", "batched", "--dtype", "s8"]) == 2
    assert "takes none of these problems" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- kernel sets


def sweep(*problems, suite="llm"):
    """Problems as {kernel: microseconds}."""
    case = {"suite": suite, "dtype": "bf16", "layout": "tn", "batch": 1, "m": 8, "n": 8, "k": 8, "mode": "sweep"}
    arms = {"torch": 1.0, "cutlass_py": 1.0, "splits=2": 0.1, "raster=m swizzle=1": 0.1}
    return {"cases": [case | {"sustained": {"us": arms | times, "ratio": 1.0}} for times in problems]}


def test_the_smallest_set_that_is_good_enough(script):
    kernel_set = script("kernel_set")
    groups = kernel_set.groups_of([sweep({"a": 1, "b": 2, "c": 1.01}, {"a": 2, "b": 1, "c": 1.01})], "sustained")
    assert kernel_set.smallest(groups, 0.02) == ["c"]
    assert set(kernel_set.smallest(groups, 0.0)) == {"a", "b"}  # c, which came first, can go again


def test_each_suite_has_to_be_served(script):
    kernel_set = script("kernel_set")
    results = [sweep(*[{"a": 1, "b": 2}] * 50), sweep({"a": 2, "b": 1}, suite="odd")]
    assert set(kernel_set.smallest(kernel_set.groups_of(results, "sustained"), 0.02)) == {"a", "b"}


def test_kernels_that_were_only_timed_roughly_still_count(script):
    kernel_set = script("kernel_set")
    result = sweep({"a": 1})
    result["cases"][0]["rough_us"] = {"b": 9.0}
    (group,) = kernel_set.groups_of([result], "sustained")
    assert group.problems == [{"a": 1, "b": 9.0}] and group.shares(["b"]) == [1 / 9]
    assert group.shares(["c"]) == [kernel_set._ABSENT]


def test_what_is_affordable_comes_by_gain_for_time(script):
    kernel_set = script("kernel_set")
    tn = [name for name in named("declared") if "_tn_" in name and "bf16_bf16_f32_bf16" in name]
    (slow, large), small = [n for n in tn if find(n).api == 3][:2], next(n for n in tn if find(n).api == 2)
    groups = kernel_set.groups_of(
        [sweep({slow: 5, large: 1, small: 6}, {slow: 1.1, large: 1.2, small: 1})], "sustained"
    )
    kernels = [slow, large, small]
    minutes = (kernel_set.seconds(large) + kernel_set.seconds(small) + 0.1) / 60 / kernel_set._CORES
    assert set(kernel_set.affordable(groups, kernels, minutes)) == {large, small}
    assert kernel_set.affordable(groups, kernels, 0.0) == []


def test_a_sweep_is_reduced(script, capsys, tmp_path):
    kernel_set = script("kernel_set")
    assert kernel_set.main([str(SWEEP), "--json", str(tmp_path / "set.json")]) == 0
    found = json.loads((tmp_path / "set.json").read_text())
    assert 0 < len(found["declared"]["kernels"]) < found["kernels_timed"] / 3
    assert all(row["of_best"] >= 0.98 for row in found["declared"]["reached"].values())
    assert not any(find(name).family == "sm80_gemm" for name in found["declared"]["drop"])
    assert "within 2% of the best found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), ("{", "not JSON"), ('{"rows": []}', "no case was timed")]
)
def test_files_that_are_no_sweeps(script, capsys, tmp_path, content, message):
    path = tmp_path / "sweep.json"
    if content is not None:
        path.write_text(content)
    assert script("kernel_set").main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kernel_set: ") and message in said


def test_what_the_model_takes_of_a_set(script):
    """Its kernels that the choice ranks first, however slow they were; problems that none was timed on do not count."""
    kernel_set = script("kernel_set")
    tn = "sm90_gemm_bf16_bf16_f32_bf16_tn_"
    large, skinny = f"{tn}128x256x64_1x2x1_coop_linear", f"{tn}64x16x128_1x1x1_pingpongswap_linear"
    (group,) = kernel_set.groups_of([sweep({large: 2, skinny: 8, "fast": 1}, {"fast": 1})], "sustained")
    group.cases = [Case("llm", "bf16", "tn", (1, 8192, 8192, 8192))] * 2
    assert group.chosen({large, skinny}) == [(1 / 2, 1 / 2)]
    assert group.chosen({skinny}) == [(1 / 8, 1 / 8)]


@pytest.mark.parametrize("dtype", ARITHMETICS)
def test_sweeps_of_every_dtype(script, dtype):
    """Names of the benchmarks, such as tf32 and e4m3_block, stand for operands, an arithmetic and scales."""
    kernel_set = script("kernel_set")
    case = Case("large", dtype, "tn", (1, 4096, 4096, 4096))
    chosen = cutlass_py.get_kernels(arguments(case.problem()), compiled=False)[0].name
    result = {"machine": {"gpu": "NVIDIA H200", "compute_capability": 90, "sm_count": 132}}
    result["cases"] = [case.facts() | {"sustained": {"us": {"torch": 1.0, "cutlass_py": 2.0, chosen: 2.0, "x": 1.0}}}]
    (group,) = kernel_set.groups_of([result], "sustained")
    assert group.cases == [case] and group.chosen({chosen}) == [(1 / 2, 1 / 2)]


def test_no_sweep_at_all(script, capsys, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"cases": [{"mode": "default", "sustained": {"us": {"torch": 1, "cutlass_py": 1}}}]}))
    assert script("kernel_set").main([str(path)]) == 2 and "--all-kernels" in capsys.readouterr().err
