"""What is made of results: summaries, the page of performance; of sweeps kernel sets, constants; tuned choices."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py.arrays.gpu import Gpu
from cutlass_py.bench.report import summarise
from cutlass_py.bench.suites import ARITHMETICS, DEFAULT, Case, case_of, is_case
from cutlass_py.bench.targets import verdicts
from cutlass_py.commands import main
from cutlass_py.declaration.families import find, named, select
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.tuned import Entry
from cutlass_py.kernels.operation import class_of
from cutlass_py.operations.gemm.problems import arguments

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
SWEEP = DATA / "sweep.json"  # a fifth of the problems of a sweep on an H200


# ---------------------------------------------------------------------------------------- docs/performance.md


def test_the_page_is_what_the_results_say(script, capsys):
    performance = script("performance")
    refresh = "refresh it by: python benchmarks/performance.py"
    assert performance.main(["--check"]) == 0, refresh
    assert performance.page(performance.results()) == performance.PAGE.read_text(), refresh


def test_summaries_are_as_they_are_written(script):
    """Small, one for each GPU, in the form that the command gives them, and with nothing that a later run has too."""
    summary = script("summary")
    for path in summary.RESULTS.iterdir():
        found = summary.read_summary(path)
        (gpu,) = {result["machine"]["gpu"] for result in found}
        assert path.name == f"{summary.slug(gpu)}.json" and path.stat().st_size < 200_000
        assert path.read_text() == summary.text(summary.packed(found))


def test_the_page_says_what_its_numbers_are_of(script):
    performance = script("performance")
    text = performance.PAGE.read_text()
    for result in performance.contributing(performance.results()):
        machine = result["machine"]
        for fact in (result["commit"][:7], result["date"][:10], machine["gpu"], machine["driver_version"]):
            assert fact in text
        assert result["versions"]["torch"] in text
        name = re.sub(r"^(.{7})[^+]*", r"\1", result["commit"])
        about = re.findall(
            rf"^\*\*These numbers are of commit {re.escape(name)}\*\*.+?\n\n", text, re.MULTILINE | re.DOTALL
        )
        for record in filter(is_case, result["cases"]):
            assert f"{record['dtype']} {record['mode']} (" in " ".join("".join(about).split())
    assert all(len(line) <= 128 for line in text.splitlines() if not line.startswith("|"))


def test_the_readme_quotes_the_results(script):
    performance = script("performance")
    records = performance.measured(performance.by_gpu(performance.results())["NVIDIA H200"])
    measured = {str(case_of(record)): record for record in records if record["mode"] == DEFAULT}
    text = (ROOT / "README.md").read_text()
    quoted = re.findall(r"^\| ([tn]{2} \([\d, ]+\)) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert quoted
    for case, *ratios in quoted:
        record = measured[f"bf16 {case}"]
        assert ratios == [f"{record[regime]['ratio']:.2f}" for regime in ("sustained", "mixed")], case
    rows = summarise(performance.by_suite(list(measured.values())))
    means = {(row["suite"], row["layout"], row["regime"]): row for row in rows if row["dtype"] == "bf16"}
    for suite, words in (("llm", "shapes of language models"), ("square", "squares")):
        count, *said = re.search(
            rf"^\| (\d+) {words}: tn, tt, nt, nn.*? \| (.*) \| (.*) \|$", text, re.MULTILINE
        ).groups()
        for regime, numbers in zip(("sustained", "mixed"), said, strict=True):
            found = [means[suite, layout, regime] for layout in ("tn", "tt", "nt", "nn")]
            assert numbers == ", ".join(f"{row['geomean']:.2f}" for row in found)
            assert {row["cases"] for row in found} == {int(count)}


def test_the_readme_quotes_the_results_of_the_other_gpu(script):
    performance = script("performance")
    records = performance.measured(performance.by_gpu(performance.results())["NVIDIA H100 80GB HBM3"])
    bars = [v for v in verdicts(records) if v.group in ("dense", "fp8") and v.of.startswith("geomean")]
    text = " ".join((ROOT / "README.md").read_text().split())
    count, *dense, promoted, promoted_mixed = re.search(
        r"On an H100, .*? the same (\d+) shapes reach ([\d., ]+) \(sustained\) and ([\d., ]+) \(mixed\) "
        r"in tn, tt, nt, nn; fp8, from m = 16, ([\d.]+) and ([\d.]+)\. ",
        text,
    ).groups()
    for regime, numbers, fp8 in zip(("sustained", "mixed"), dense, (promoted, promoted_mixed), strict=True):
        found = {v.what.split(":")[0]: v for v in bars if v.of.endswith(regime)}
        of_layouts = [found[f"bf16 {layout}"] for layout in ("tn", "tt", "nt", "nn")]
        assert numbers == ", ".join(f"{v.found:.2f}" for v in of_layouts)
        assert {v.measured for v in of_layouts} == {int(count)}
        assert fp8 == f"{found['e4m3 tn'].found:.2f}"


def test_the_pictures_can_be_drawn(script, tmp_path):
    """Those that the site's build puts where the page says."""
    pytest.importorskip("matplotlib")
    performance = script("performance")
    assert performance.main(["--plot", str(tmp_path)]) == 0
    places = re.findall(r"<!-- pictures of (\S+): docs/site/pictures.py -->", performance.PAGE.read_text())
    assert len(places) == len(performance.by_gpu(performance.results())) > 1
    assert sorted(tmp_path.rglob("*.*")) == sorted(
        tmp_path / place / name for place in places for name in ("ratio.svg", "roofline.svg")
    )
    for path in tmp_path.rglob("*.svg"):
        assert path.read_text().startswith("<?xml") and path.stat().st_size < 400_000


def test_losses_are_those_of_both_regimes(script):
    performance = script("performance")
    case = {"suite": "llm", "dtype": "bf16", "layout": "tn", "batch": 1, "n": 64, "k": 32}

    def record(m, sustained, mixed):
        return case | {"m": m, "sustained": {"ratio": sustained}, "mixed": {"ratio": mixed}}

    text, rows = performance.losses([record(1, 0.9, 0.8), record(2, 0.9, 1.0), record(4, 0.5, 0.6), record(8, 1, 1)])
    assert text.startswith("Of 4 problems, 2 are below 0.97 in every regime")
    assert rows.splitlines()[2:] == ["| bf16 tn | (64, 32) | 1 **4** | 0.73 | 0.60 |"]


CUBE = {"suite": "square", "dtype": "bf16", "layout": "tn", "batch": 1, "m": 4096, "n": 4096, "k": 4096}


def run(day, *cases, **more):
    """A result of a day."""
    machine, facts = {"gpu": "x"}, {"commit": f"c{day}", "versions": {}, "reference": "torch"}
    return {"date": f"2026-01-0{day}", **facts, "machine": machine, "cases": [*cases], **more}


def of(ratio, regime="mixed"):
    """A regime of a record."""
    return {regime: {"ratio": ratio, "us": {"torch": 2.0, "cutlass_py": 1.0}}}


@pytest.fixture(params=["as they are", "through a summary"])
def kept(request, script):
    """Results as they were measured, or as a summary has them."""
    summary = script("summary")
    return (
        (lambda found: found)
        if request.param == "as they are"
        else (lambda found: summary.unpacked(json.loads(summary.text(summary.packed(found)))))
    )


def test_a_later_result_counts(script, kept):
    """Under whatever suite it was measured; what nothing is left of is not named."""
    performance = script("performance")

    def dates(found):
        return [result["date"] for result in performance.contributing(found)]

    old, new = (run(day, CUBE | {"suite": suite} | of(day)) for day, suite in ((1, "square"), (2, "llm")))
    assert [r["mixed"]["ratio"] for r in performance.measured(kept([old, new]))] == [2]
    assert dates(kept([old, new])) == dates(kept([new, old])) == [new["date"]]
    other = run(1, *old["cases"], CUBE | {"layout": "tt"} | of(3))
    assert dates(kept([other, new])) == [other["date"], new["date"]]
    failed = run(3, CUBE | {"failed": "MemoryError"})
    assert performance.measured(kept([old, failed])) == []
    assert performance.failures(kept([old, failed])) == ["Failed: bf16 tn (4096, 4096, 4096): MemoryError."]
    assert performance.failures(kept([failed, run(4, CUBE | of(2))])) == []


def test_a_regime_that_only_an_earlier_run_has_stays(script, kept):
    performance = script("performance")
    both, one = run(1, CUBE | of(1.0) | of(1.5, "sustained")), run(2, CUBE | of(2.0))
    (record,) = performance.measured(kept([both, one]))
    assert (record["sustained"]["ratio"], record["mixed"]["ratio"]) == (1.5, 2.0)
    assert len(performance.contributing(kept([both, one]))) == 2
    failed = run(3, CUBE | {"failed": "MemoryError"})
    (record,) = performance.measured(kept([both, failed, run(4, CUBE | of(2.0))]))
    assert "sustained" not in record


def test_summaries_take_results_in(script, tmp_path, capsys):
    """Again, later and in any order; other files are passed over, and what is no result is an error."""
    summary = script("summary")
    slower = {"rounds_us": {"torch": [2.0], "cutlass_py": [1.0], "k": [0.8]}}
    sweep = CUBE | {"mode": "sweep"} | {"sustained": of(2.0, "sustained")["sustained"] | slower}
    files = {
        "new": run(3, CUBE | of(1.23456789), first_call_ms=50.0, host=[{"row": "h", "ratio": {"median": 0.5}}]),
        "old": run(1, CUBE | of(1.0), sweep, host=[{"row": "h", "ratio": {"median": 0.6}}]),
        "nothing": run(2, note="of something else"),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    for name in ("new", "old", "nothing", "new"):
        assert summary.main([str(tmp_path / name), "--into", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'kept' / 'x.json'}: 2 cases of 2 runs"
    old, new = summary.results(tmp_path / "kept")
    assert old["cases"][0]["sustained"]["choice"] == 0.8 and old["host"] == [] and old["commit"] == "c1"
    assert new["cases"][0]["mixed"] == {"ratio": 1.2346, "us": {"torch": 2.0, "cutlass_py": 1.0}}
    assert new["first_call_ms"] == 50.0 and new["host"][0]["ratio"]["median"] == 0.5
    (tmp_path / "x").write_text("[]")
    assert summary.main([str(tmp_path / "x"), "--into", str(tmp_path)]) == 2
    assert "x: expected an object" in capsys.readouterr().err


def test_of_a_sweep_the_second_reading_is_kept(script, kept):
    """Its ratio and times, as the choice beside them is of it; so summaries say the same before and after."""
    us = {"torch": 4.0, "cutlass_py": 2.0, "k": 1.0}
    finals = {"ratio": 2.0, "us": us, "rounds_us": {name: [time] for name, time in us.items()}}
    first = of(3.0, "sustained")["sustained"] | {"finals": finals}
    (found,) = kept([run(1, CUBE | {"mode": "sweep", "sustained": first})])
    (line,) = (row for row in summarise(found["cases"]) if "of" not in row)
    assert (line["geomean"], line["choice"]) == (2.0, 0.5)
    timed = found["cases"][0]["sustained"]
    if "finals" not in timed:
        assert timed == {"ratio": 2.0, "us": {"torch": 4.0, "cutlass_py": 2.0}, "choice": 0.5}


def test_a_problem_stands_in_each_of_its_suites(script):
    """A square is a problem of `llm` too; not of a suite of which nothing was measured in its dtype and mode."""
    performance = script("performance")
    cube, other = CUBE | {"suite": "llm"}, CUBE | {"m": 256, "n": 256, "k": 256}
    found = performance.by_suite(
        [cube, other, CUBE | {"suite": "shape", "m": 1}, CUBE | {"layout": "tt", "mode": "tuned"}]
    )
    assert [(r["suite"], r["m"], r["layout"]) for r in found] == [
        ("llm", 4096, "tn"), ("llm", 1, "tn"), ("square", 4096, "tn"), ("square", 256, "tn"), ("square", 4096, "tt"),
    ]  # fmt: skip


def test_what_other_scripts_write(script, monkeypatch, tmp_path, capsys):
    """Epilogues and host times have their tables, a machine without a GPU its section."""
    performance, summary = script("performance"), script("summary")
    kept = tmp_path / "kept"
    shutil.copytree(performance.RESULTS, kept)
    host = json.loads((DATA / "results.json").read_text()) | {"date": "2026-12-01"}
    cpu = {"gpu": None, "cpu": "A processor", "cpus": 8, "system": "linux"}
    row = host.pop("host")[0] | {"row": "NumPy float32 cpu, out="}
    ratios = {"fused / plain": 1.02, "torch / default": 1.1}
    fused = {"m": 8192, "n": 4096, "k": 4096, "activation": "gelu", "mixed": {"us": {"plain": 7.0}, "ratio": ratios}}
    files = {
        "host_cost-cpu": host | {"machine": cpu, "cases": [], "rows": [row]},
        "epilogue_speed-h200": host | {"cases": [fused]},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        assert summary.main([str(tmp_path / f"{name}.json"), "--into", str(kept)]) == 0
    monkeypatch.setattr(performance, "RESULTS", kept)
    text = performance.page(performance.results(kept))
    assert "## no GPU" in text and "A processor, 8 processors, no GPU, torch" in text
    assert "| gelu | (8192, 4096, 4096) | mixed | 7.0 | 1.020 |   | 1.100 |   |   |" in text
    (kept / "x.json").write_text("[]")
    assert performance.main(["--check"]) == 2 and "x.json: expected a summary" in capsys.readouterr().err


def test_another_page_is_noticed(script, monkeypatch, tmp_path, capsys):
    performance = script("performance")
    monkeypatch.setattr(performance, "PAGE", tmp_path / "page.md")
    assert performance.main(["--check"]) == 1


def test_an_epilogue_that_fails_does_not_lose_the_others(script, monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    speed, path = script("epilogue_speed"), tmp_path / "x.json"

    def measure(shape, f, gpu, args):
        if f == "relu":
            raise ValueError("not this one")
        timed = {"us": {"plain": 1.0}, "ratio": {}}
        record = {"m": 8, "n": 8, "k": 8, "activation": f, "wrong": [], "mixed": timed}
        return record | {"default": {"kernel": "x", "scratch": None}}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    facts = {"machine": {"gpu": "x"}, "versions": {"torch": "0"}}
    for name, value in {"Torch": lambda: None, "environment": lambda commit: facts, "measure": measure}.items():
        monkeypatch.setattr(speed, name, value)
    monkeypatch.setattr(speed, "warm_up", lambda *_: None)
    monkeypatch.setattr(speed, "Operands", lambda *_: None)
    monkeypatch.setattr(speed, "reference_arm", lambda *_: speed.Arm("torch", print))
    options = ["--shape", "8,8,8", "--activation", "relu", "silu", "--regime", "mixed", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["epilogue_speed.py", *options])
    assert speed.main() == 1
    assert "FAILED: relu (8, 8, 8): ValueError: not this one" in capsys.readouterr().out
    assert [case["activation"] for case in json.loads(path.read_text())["cases"]] == ["silu"]


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
    minutes = (kernel_set.seconds(large) + kernel_set.seconds(small)) / 60 / kernel_set._CORES
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


@pytest.mark.parametrize("name", ["kernel_set", "fit_cost"])
@pytest.mark.parametrize(
    ("content", "message"), [(None, "No such file"), ("{", "not JSON"), ('{"rows": []}', "no case was timed")]
)
def test_files_that_are_no_sweeps(script, capsys, tmp_path, name, content, message):
    if name == "fit_cost":
        pytest.importorskip("scipy")
    path = tmp_path / "sweep.json"
    if content is not None:
        path.write_text(content)
    assert script(name).main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{name}: ") and message in said


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
    if find(chosen).api == 3:
        pytest.importorskip("scipy")
        (timed,) = script("fit_cost").cases_of([result], "sustained")
        assert [kernel.name for kernel in timed.kernels] == [chosen] and timed.share() == 1.0


def test_constants_are_found_in_what_follows_from_them(script, capsys, tmp_path):
    pytest.importorskip("scipy")
    fit_cost = script("fit_cost")
    result = json.loads(SWEEP.read_text())
    cases = fit_cost.cases_of([result], "sustained")
    before = fit_cost.values()
    names = list(fit_cost.cost.FITTED_3X)
    moved = {"launch": 5.0, "cooperative": 0.6, "rate": 600.0}
    wanted = dict(zip(names, before, strict=True)) | moved
    try:
        fit_cost.put(wanted.values())
        made = [dataclasses.replace(case, us=case.estimates()) for case in cases]
        found = dict(zip(names, fit_cost.fit(made, before), strict=True))
        assert {name: found[name] for name in moved} == pytest.approx(moved, rel=0.02)
        assert fit_cost.reached(made, wanted.values()) == [1.0] * len(made)
        faster = [dataclasses.replace(case, regime="light", us=[us / 1.2 for us in case.us]) for case in made]
        found = dict(zip(names, fit_cost.fit([*made, *faster], before), strict=True))
        assert {name: found[name] for name in moved} == pytest.approx(moved, rel=0.02)
    finally:
        fit_cost.put(before)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(result))
    assert fit_cost.main([str(path)]) == 0 and fit_cost.values() == before
    assert "on what it was not fitted to: 0.9" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["kernel_set", "fit_cost"])
def test_no_sweep_at_all(script, capsys, tmp_path, name):
    if name == "fit_cost":
        pytest.importorskip("scipy")
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"cases": [{"mode": "default", "sustained": {"us": {"torch": 1, "cutlass_py": 1}}}]}))
    assert script(name).main([str(path)]) == 2 and "--all-kernels" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- tables of tuned choices


H200, H100 = Gpu("NVIDIA H200", 0, 132, 0.0), Gpu("NVIDIA H100 PCIe", 0, 114, 0.0)
KERNEL = next(iter(named("core")))


def export(path, gpu, **microseconds):
    entries = {key: Entry(KERNEL, 1, 0, 1, us, 13000, "0.1.0") for key, us in microseconds.items()}
    path.write_text(tuned.dumps(gpu, entries))
    return str(path)


def test_a_table_is_what_the_results_say(script, tmp_path):
    """Of two GPUs, some classes of each dtype and of each way that they were timed, from 27 runs in their order."""
    tuned_table, found = script("tuned_table"), json.loads((DATA / "tuned_table.json").read_text())
    paths = [tmp_path / str(number) for number in range(len(found["results"]))]
    for path, result in zip(paths, found["results"], strict=True):
        path.write_text(json.dumps(result))
    (tmp_path / "out").mkdir()
    assert tuned_table.main([*map(str, paths), "--out", str(tmp_path / "out")]) == 0
    made = {path.name: json.loads(path.read_text())["entries"] for path in (tmp_path / "out").iterdir()}
    assert made == found["tables"]


def test_exports_become_the_package_s_tables(script, tmp_path, capsys):
    tuned_table = script("tuned_table")
    out = tmp_path / "tables"
    out.mkdir()
    files = [
        export(tmp_path / "x", H200, a=1.0, b=2.0),
        export(tmp_path / "y", H200, b=3.0),
        export(tmp_path / "z", H100, c=4.0),
    ]
    assert tuned_table.main([*files, "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "tuned-nvidia-h100-pcie-114.json",
        "tuned-nvidia-h200-132.json",
    ]
    assert "tuned-nvidia-h200-132.json: 2 classes, 2 of them new; 0 left out" in capsys.readouterr().out
    table = tuned.read(out / "tuned-nvidia-h200-132.json", H200)
    assert {key: entry.microseconds for key, entry in table.items()} == {"a": 1.0, "b": 3.0}
    assert tuned_table.main([export(tmp_path / "w", H200, d=5.0), "--out", str(out)]) == 0
    assert set(tuned.read(out / "tuned-nvidia-h200-132.json", H200)) == {"a", "b", "d"}
    assert tuned_table.main([str(tmp_path / "w"), "--out", str(out), "--afresh"]) == 0
    assert set(tuned.read(out / "tuned-nvidia-h200-132.json", H200)) == {"d"}


def bench_result(path, *tunings):
    result = {"machine": {"gpu": H200.name, "sm_count": H200.sm_count, "driver_cuda": 13000}}
    result |= {
        "versions": {"cutlass_py": "0.1.0"},
        "reference": "torch",
        "cases": [{"mode": "default"}, {"failed": "x"}, *tunings],
    }
    path.write_text(json.dumps(result))
    return str(path)


def test_results_of_the_bench_become_tables_too(script, tmp_path):
    """One run on a GPU gives the bars and the table."""
    tuned_table = script("tuned_table")
    entry = dataclasses.asdict(Entry(KERNEL, 2, 1, 4, 5.0, 13000, "0.1.0"))
    case = {"mode": "tuned", "tuning": {"measured": 3, "us": 5.0, "class": "m=1", "entry": entry}}
    files = [export(tmp_path / "x", H200, a=1.0), bench_result(tmp_path / "y", case)]
    assert tuned_table.main([*files, "--out", str(tmp_path)]) == 0
    table = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200)
    assert set(table) == {"a", "m=1"} and dataclasses.asdict(table["m=1"]) == entry


def swept(shape, chosen, gains):
    """The default choice took 12 us, and the others as much less as is said."""
    case = Case("llm", "bf16", "tn", shape).facts()
    us = {"torch": 10.0, "cutlass_py": 12.0} | {name: 12.0 / gain for name, gain in gains.items()}
    finals = {"us": us, "rounds_us": {name: [each, each, each] for name, each in us.items()}}
    chosen = {"kernel": chosen, "splits": 3, "raster": 0, "swizzle": 4, "pack_a": None, "pack_b": None}
    return case | {"mode": "sweep", "chosen": chosen, "sustained": {"us": us, "finals": finals}}


def test_sweeps_become_tables(script, tmp_path):
    tn = "sm90_gemm_bf16_bf16_f32_bf16_tn_"
    fast, faster = f"{tn}128x128x64_2x1x1_pingpong_linear", f"{tn}128x256x64_1x2x1_coop_linear"
    large, small = (1, 16384, 16384, 16384), (1, 512, 512, 512)
    cases = [
        swept(large, fast, {fast: 1.0, faster: 1.2, "one_of_mine": 2.0}),
        swept(small, fast, {faster: 0.9}),
        swept((1, 256, 256, 256), "one_of_mine", {}),
    ]
    assert script("tuned_table").main([bench_result(tmp_path / "y", *cases), "--out", str(tmp_path)]) == 0
    found = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200)
    classes = [class_of(arguments(Case("", "bf16", "tn", shape).problem()).problem) for shape in (large, small)]
    assert found == dict(
        zip(
            classes,
            [Entry(faster, 1, 1, 2, 10.0, 13000, "0.1.0"), Entry(fast, 3, 0, 4, 12.0, 13000, "0.1.0")],
            strict=True,
        )
    )


def test_finalists_of_sweeps_are_readings_in_both_regimes(script, tmp_path):
    """The fastest in a graph alone is not; a kernel that is not declared (any more) leaves the others."""
    tn, shape = "sm90_gemm_bf16_bf16_f32_bf16_tn_", (1, 512, 512, 512)
    fast, faster = f"{tn}128x128x64_2x1x1_pingpong_linear", f"{tn}128x256x64_1x2x1_coop_linear"
    case = swept(shape, fast, {fast: 1.0, faster: 1.2, "one_of_mine": 2.0}) | {"wrong": []}
    case["mixed"] = swept(shape, fast, {fast: 1.5, faster: 1.2, "one_of_mine": 2.0})["sustained"]
    other = timed(shape, "one_of_mine", (2.0, 2.0), "default")
    files = [bench_result(tmp_path / "y", case, other)]
    assert script("tuned_table").main([*files, "--out", str(tmp_path)]) == 0
    (entry,) = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200).values()
    assert entry == Entry(fast, 1, 0, 1, 12.0, 13000, "0.1.0")
    case["mixed"]["finals"]["rounds_us"]["cutlass_py"] = [7.0] * 3  # the default, in three parts
    assert script("tuned_table").main([bench_result(tmp_path / "y", case), "--out", str(tmp_path)]) == 0
    (entry,) = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200).values()
    assert entry == Entry(fast, 3, 0, 4, 12.0, 13000, "0.1.0")


def timed(shape, kernel, ratios, mode, wrong=(), pack_b=None):
    """As bench writes it; what was tuned is what `tune` took for the fastest."""
    case = Case("llm", "bf16", "tn", shape)
    entry = dataclasses.asdict(Entry(kernel, 2, 1, 4, 5.0, 13000, "0.1.0"))
    chosen = entry | {"pack_a": None, "pack_b": pack_b}
    record = case.facts() | {"mode": mode, "wrong": list(wrong), "chosen": chosen}
    if mode == "tuned":
        record |= {"tuning": {"class": class_of(arguments(case.problem()).problem), "entry": entry}}
    regimes = zip(("sustained", "mixed"), ratios, strict=True)
    return record | {regime: {"us": {"cutlass_py": 7.0}, "ratio": ratio} for regime, ratio in regimes}


def test_what_both_regimes_found_better_is_kept(script, tmp_path, capsys):
    """`tune` measures in a stream; what replays of a graph lose by its choice counts as much."""
    slower, faster = itertools.islice(named("core"), 2)
    shapes = [(1, 64, 64, n) for n in (64, 128, 192, 256)]
    default = bench_result(tmp_path / "x", *(
        timed(shapes[0], faster, (0.93, 0.95), "default"), timed(shapes[1], slower, (0.9, 1.0), "default"),
        timed(shapes[2], slower, (2.0, 2.0), "default", wrong=["cutlass_py"]),
        timed(shapes[3], slower, (2.0, 2.0), "default"),
    ))  # fmt: skip
    after = bench_result(
        tmp_path / "y",
        timed(shapes[0], slower, (0.78, 1.05), "tuned"),
        *(timed(s, faster, (0.95, 1.0), "tuned") for s in shapes[1:3]),
    )
    assert script("tuned_table").main([default, after, "--out", str(tmp_path)]) == 0
    found = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200)
    assert {entry.kernel for entry in found.values()} == {faster} and len(found) == 3
    (tmp_path / "out").mkdir()
    assert script("tuned_table").main([default, "--out", str(tmp_path / "out")]) == 2
    assert "no case was tuned" in capsys.readouterr().err and not list((tmp_path / "out").iterdir())


def test_several_readings_of_a_choice_count_as_one(script, tmp_path):
    """One lucky reading of a choice does not beat two of another."""
    lucky, steady = itertools.islice(named("core"), 2)
    readings = [(lucky, 1.10), (lucky, 0.90), (steady, 1.02), (steady, 1.04)]
    files = [
        bench_result(tmp_path / str(i), timed((1, 64, 64, 64), kernel, (ratio, ratio), "tuned"))
        for i, (kernel, ratio) in enumerate(readings)
    ]
    assert script("tuned_table").main([*files, "--out", str(tmp_path)]) == 0
    (entry,) = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200).values()
    assert entry.kernel == steady


@pytest.mark.parametrize(("ratio", "taken"), [(1.01, False), (1.03, True)])
def test_a_choice_that_copies_must_gain_by_it(script, tmp_path, ratio, taken):
    """By more than two runs differ."""
    in_place, copying = itertools.islice(named("core"), 2)
    shape = 1, 64, 64, 64
    files = [
        bench_result(tmp_path / "x", timed(shape, in_place, (1.0, 1.0), "tuned")),
        bench_result(tmp_path / "y", timed(shape, copying, (ratio, ratio), "tuned", pack_b="n")),
    ]
    assert script("tuned_table").main([*files, "--out", str(tmp_path)]) == 0
    (entry,) = tuned.read(tmp_path / "tuned-nvidia-h200-132.json", H200).values()
    assert entry.kernel == (copying if taken else in_place)


@pytest.mark.parametrize(("tunings", "message"), [
    ([], "no case was tuned"), ([{"tuning": {"class": "m=1", "entry": {"kernel": "x"}}}], "m=1: expected an object of"),
])  # fmt: skip
def test_results_without_a_table(script, tmp_path, capsys, tunings, message):
    assert script("tuned_table").main([bench_result(tmp_path / "y", *tunings), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_kernels_that_are_not_declared_are_left_out(script, tmp_path, capsys):
    path = tmp_path / "x"
    path.write_text(tuned.dumps(H200, {"a": Entry("one_of_mine", 1, 0, 1, 1.0, 13000, "")}))
    assert script("tuned_table").main([str(path), "--out", str(tmp_path)]) == 0
    assert "0 classes, 0 of them new; 1 left out" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"gpu": "x", "sm_count": 1, "format": 0}'])
def test_what_is_no_export(script, tmp_path, capsys, content):
    path, out = tmp_path / "x", tmp_path / "tables"
    path.write_text(content)
    out.mkdir()
    assert script("tuned_table").main([export(tmp_path / "y", H200, a=1.0), str(path), "--out", str(out)]) == 2
    assert "tuned_table: " in capsys.readouterr().err and not list(out.iterdir())


def test_the_package_s_directory_is_where_selection_looks(script, monkeypatch):
    tables = script("tuned_table").TABLES
    monkeypatch.undo()  # by_the_model
    assert tables == ROOT / "src" / "cutlass_py" / "dispatch" / "tables" and tables.is_dir()
    assert tuned.PLACES[-1].parts[-2:] == tables.parts[-2:]
