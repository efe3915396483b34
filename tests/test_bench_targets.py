"""What must be reached, as data, and the command that measures all of it."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import FakeGpu, record_of

from cutlass_py.bench import frameworks, host, results, runs, suites, targets
from cutlass_py.bench.report import published
from cutlass_py.bench.suites import Case
from cutlass_py.commands import bench, main
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.dispatch import tuned

ROOT = Path(__file__).resolve().parent.parent


def test_every_bar_has_cases_and_every_group_a_bar():
    assert all(bar.cases() for bar in targets.BARS)
    assert set(targets.GROUPS) == {bar.group for bar in targets.BARS} | {"host", "first"}
    assert all(case.shape[1] >= 16 for bar in targets.BARS if bar.group == "fp8" for case in bar.cases())


def test_the_bounds():
    """Every one, beside what is demanded and aimed at: none may slip by itself."""
    (tn, tt, nt, nn), everywhere = [("tn",), ("tt",), ("nt",), ("nn",)], LAYOUTS
    found = {
        (bar.group, bar.dtype, bar.layouts, bar.suites or bar.shapes, bar.of, bar.mode): (bar.bound, bar.target)
        for bar in targets.BARS
    }
    assert len(found) == len(targets.BARS)
    dense, large, square = ("llm", "square"), ("large",), ("square",)
    wanted = {}
    for layout in (tn, tt, nt, nn):
        wanted |= {
            ("dense", "bf16", layout, dense, "geomean", "default"): (1.04 if layout == tn else 1.0, 1.08),
            ("dense", "bf16", layout, dense, "slow", "default"): (0.10, 0.0),
            ("tuned", "bf16", layout, dense, "geomean", "tuned"): (1.06 if layout == tn else 1.03, 1.10),
        }
    wanted |= {
        ("dense", "f16", tn, square, "geomean", "default"): (1.04, 1.08),
        ("dense", "f16", ("tt", "nt", "nn"), square, "geomean", "default"): (1.0, 1.08),
        ("fp8", "e4m3", tn, dense, "geomean", "default"): (1.05, 1.10),
        ("fp8", "e4m3_fast", tn, dense, "geomean", "default"): (1.05, 1.10),
        ("blockwise", "e4m3_block", tn, ("deepgemm",), "geomean", "default"): (1.0, 1.05),
        ("large", "tf32", everywhere, large, "worst", "default"): (0.95, 1.0),
        ("large", "f64", everywhere, large, "worst", "default"): (0.95, 1.0),
        ("int8", "s8", tn, large, "worst", "default"): (1.5, 1.8),
        ("choice", "bf16", ("tn", "tt"), ("sample",), "choice", "sweep"): (0.96, 0.97),
        ("odd", "bf16", everywhere, ("odd",), "geomean", "default"): (1.2, 1.5),
        ("batched", "bf16", everywhere, ("batched",), "geomean", "default"): (1.02, None),
    }
    for bound, layout, shape, dtype in (
        (0.95, tn, (8192, 8192, 8192), "bf16"), (0.95, tn, (2048, 4096, 14336), "bf16"),
        (0.90, tt, (8192, 8192, 8192), "bf16"), (0.90, tt, (2048, 4096, 14336), "bf16"),
        (0.95, tn, (16, 4096, 4096), "bf16"), (2.00, tn, (4096, 4095, 4096), "bf16"),
        (0.90, nn, (4096, 4096, 4096), "f64"),
    ):  # fmt: skip
        wanted["key", dtype, layout, ((1, *shape),), "worst", "default"] = (bound, None)
    assert found == wanted
    assert [bar.rows for bar in targets.BARS if bar.group == "fp8"] == [16, 16]
    assert targets.HOST_BARS == {
        "torch bfloat16 cuda, out=": 0.50, "torch bfloat16 cuda, prepared plan": 0.45,
        "CuPy float16 cuda, out=": 0.50, "cutlass_py.torch cuda, mm over gemm": 1.10,
    }  # fmt: skip
    assert targets.FIRST_CALL_MS == 100 and targets._SLOW == 0.95


@pytest.mark.parametrize(("of", "bound", "value", "reached"), [
    ("geomean", 1.0, 1.0, True), ("geomean", 1.01, 1.0, False), ("worst", 0.5, 0.5, True), ("worst", 0.51, 0.5, False),
    ("slow", 0.5, 0.5, True), ("slow", 0.4, 0.5, False),
])  # fmt: skip
def test_verdicts(of, bound, value, reached):
    shapes = ((1, 16, 16, 16), (1, 32, 32, 32))
    bar = targets.Bar("x", bound, "f16", ("tn",), (), of, shapes=shapes)
    records = [record_of(case, ratio) for case, ratio in zip(bar.cases(), (2.0, 0.5), strict=True)]
    (found,) = targets.verdicts(records, [bar], ["sustained"])
    assert found.found == pytest.approx(value) and found.reached is reached and (found.measured, found.wanted) == (2, 2)
    assert found.word == ("reached" if reached else "MISSED") and found.facts()["reached"] is reached
    (partly,) = targets.verdicts(records[:1], [replace(bar, bound=2.0 if of != "slow" else 0.0)], ["sustained"])
    assert partly.word == "met in part" and partly.met and not partly.reached
    assert targets.verdict_table([partly])[1][0][-1] == "1 of 2"


def test_a_bar_looks_at_its_own_records_alone():
    bar = targets.Bar("x", 1.0, "f16", ("tn",), (), mode=suites.TUNED, shapes=((1, 16, 16, 16),))
    (case,) = bar.cases()
    for other in (record_of(case, 2.0), record_of(replace(case, layout="tt"), 2.0, mode="tuned")):
        (found,) = targets.verdicts([other], [bar], ["sustained"])
        assert found.word == "not measured" and not found.reached
    (found,) = targets.verdicts([record_of(replace(case, suite="llm"), 2.0, mode="tuned")], [bar], ["sustained"])
    assert found.reached  # by whatever suite it was measured


def test_the_bar_of_the_choice():
    bar = targets.Bar("x", 0.9, "f16", ("tn",), (), "choice", mode=suites.SWEEP, shapes=((1, 16, 16, 16),))
    (found,) = targets.verdicts([record_of(*bar.cases(), 2.0, mode="sweep", best=0.8)], [bar])
    assert found.found == pytest.approx(0.8) and not found.reached


@pytest.mark.parametrize(("of", "value"), [("geomean", 1.5), ("worst", 1.5), ("slow", 0.0)])
def test_of_a_sweep_the_second_reading_counts(of, value):
    bar = targets.Bar("x", 1.0, "f16", ("tn",), (), of, mode=suites.SWEEP, shapes=((1, 16, 16, 16),))
    record = record_of(*bar.cases(), 0.5, mode="sweep")
    record["sustained"]["finals"] = {"ratio": 1.5, "us": {}, "rounds_us": {}}
    (found,) = targets.verdicts([record], [bar])
    assert found.found == pytest.approx(value)


def test_bars_of_the_host():
    rows = [{"row": "torch bfloat16 cuda, out=", "ratio": {"median": 0.49}}]
    found = {verdict.what: verdict.word for verdict in targets.host_verdicts(rows)}
    assert found.pop("torch bfloat16 cuda, out=") == "reached" and set(found.values()) == {"not measured"}
    assert targets.first_verdict(None).word == "not measured"
    assert [targets.first_verdict(ms).word for ms in (99.0, 100.0)] == ["reached", "MISSED"]


def test_published_figures_stand_beside():
    case = Case("deepgemm", "e4m3_block", "tn", (1, 64, 2112, 7168))
    record = case.facts() | {"mixed": {"us": {"torch": 20.0, "cutlass_py": 10.0}, "ratio": 2.0}}
    header, cells = published([record, record | {"dtype": "e4m3"}, record | {"m": 65}])
    assert cells == [["(64, 2112, 7168)", "mixed", "206", "97", "194"]] and len(header) == 5


def small_bars(monkeypatch, bound):
    found = [targets.Bar("key", bound, "f32", ("tn",), (), shapes=((1, 24, 16, 8),))]
    found.append(replace(found[0], group="odd", mode=suites.SWEEP, of="choice", bound=0.5))
    monkeypatch.setattr(targets, "BARS", found)
    monkeypatch.setattr(host, "torch_rows", lambda *_: iter(()))
    monkeypatch.setattr(host, "first_call_ms", lambda: 12.5)


@pytest.mark.parametrize(("bound", "code"), [(1.4, 0), (1.6, 1)])
def test_bars_by_one_command(fake_gpu, capsys, tmp_path, monkeypatch, bound, code):
    small_bars(monkeypatch, bound)
    path = tmp_path / "found.json"
    assert main(["bench", "--bars", "key", "odd", "first", "--budget-ms", "1", "--json", str(path)]) == code
    printed = capsys.readouterr().out
    assert printed.count("reached") == (4 if code == 0 else 2) and printed.count("MISSED") == (0 if code == 0 else 2)
    assert "12.5" in printed
    assert main(["bench", "--bars", "--from", str(path), "--json"]) == 1  # the host's are not among them
    again = json.loads(capsys.readouterr().out)["bars"]
    assert {v["group"]: v["reached"] for v in again} == {"key": code == 0, "odd": True, "host": False, "first": True}
    assert [part["mode"] for part in results.read(path)["parts"]] == ["default", "sweep"]


def test_the_documented_commands_measure_every_bar(fake_gpu, monkeypatch):
    """Each within ten minutes, those after tuning apart: the groups that README.md names, and as many cases."""
    text = (ROOT / "benchmarks" / "README.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^python -m cutlass_py (bench --bars .* --json \S+) +# (\d+) cases", text, re.MULTILINE)
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    monkeypatch.setattr(FakeGpu, "dtypes", frameworks.Torch.dtypes)
    groups, modes, everything = [], [], 0
    for command, cases_ in commands:
        options = parser.parse_args(command.split()[1:])
        parts = bench._parts(options, fake_gpu, {})
        assert sum(len(part.cases) for part in parts) == int(cases_) and options.limit_seconds < 600
        groups += options.bars
        modes.append([part.settings.mode for part in parts])
        everything += int(cases_)
    assert sorted(groups) == sorted(targets.GROUPS) and modes == [["default", "sweep"], ["tuned"]]
    parts = bench._parts(parser.parse_args(["--bars"]), fake_gpu, {})
    assert [part.settings.mode for part in parts] == ["default", "sweep", "tuned"]
    assert sum(len(part.cases) for part in parts) == everything


def test_the_choice_is_the_package_s_own(fake_gpu, monkeypatch):
    small_bars(monkeypatch, 1.0)
    seen = []
    measured = runs.measure
    monkeypatch.setattr(
        runs, "measure", lambda case, settings, gpu: seen.append(tuned._detached) or measured(case, settings, fake_gpu)
    )
    assert main(["bench", "--bars", "key", "--budget-ms", "1"]) == 0 and seen == [True] and not tuned._detached


def test_bars_that_were_measured_in_part_are_not_reached(fake_gpu, monkeypatch, capsys):
    small_bars(monkeypatch, 1.0)
    bar = targets.BARS[0]
    monkeypatch.setattr(targets, "BARS", [replace(bar, shapes=((1, 24, 16, 8), (1, 24, 16, 9)))])
    assert main(["bench", "--bars", "key", "--every", "2", "--budget-ms", "1"]) == 1
    assert capsys.readouterr().out.count("met in part") == 2
    assert main(["bench", "--bars", "key", "--budget-ms", "1"]) == 0


def test_host_times_come_first_and_count(fake_gpu, monkeypatch, tmp_path, capsys):
    """What they take is part of the limit; they are in the file from the first time that it is written."""
    small_bars(monkeypatch, 1.0)
    clock, path = [0.0], tmp_path / "found.json"
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(host, "first_call_ms", lambda: clock.__setitem__(0, 50.0) or 12.5)
    assert main(["bench", "--bars", "key", "first", "--limit-seconds", "40", "--json", str(path)]) == 1
    found = results.read(path)
    assert found["first_call_ms"] == 12.5 and found["cases"] == [] and "the time was up" in capsys.readouterr().err


def test_a_host_that_fails_does_not_lose_the_cases(fake_gpu, monkeypatch, capsys, tmp_path):
    small_bars(monkeypatch, 1.0)
    path = tmp_path / "found.json"

    def fails(*_):
        raise RuntimeError("no such thing")
        yield

    monkeypatch.setattr(host, "torch_rows", fails)
    monkeypatch.setattr(host, "cupy_rows", lambda: iter(()))
    monkeypatch.setattr(host, "first_call_ms", lambda: next(fails()))
    assert main(["bench", "--bars", "--budget-ms", "1", "--json", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: torch cuda: RuntimeError: no such thing" in printed and "FAILED: first call: Runtime" in printed
    assert printed.count("reached") == 3 and len(results.read(path)["cases"]) == 2


def test_a_gpu_that_works_no_more_ends_the_run(fake_gpu, capsys, monkeypatch, tmp_path):
    """What was measured before is kept and judged; the cases after it would all fail alike."""
    small_bars(monkeypatch, 1.0)
    bar = targets.BARS[0]
    monkeypatch.setattr(targets, "BARS", [replace(bar, shapes=tuple((1, m, 16, 8) for m in (24, 25, 26, 27)))])
    reference, path = FakeGpu.reference, tmp_path / "found.json"

    def breaks(self, case):
        if case.shape[1] == 26:
            monkeypatch.setattr(FakeGpu, "synchronize", broken)
            broken()
        return reference(self, case)

    def broken(*_):
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(FakeGpu, "reference", breaks)
    assert main(["bench", "--bars", "key", "--budget-ms", "1", "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert "bench: the GPU works no more: RuntimeError: an illegal memory access was encountered: 2 of 4 c" in said.err
    assert said.out.count("FAILED") == 1 and said.out.count("met in part") == 2
    found = results.read(path)["cases"]
    assert len(found) == 2 and found[1]["where"].startswith("test_bench_targets.py:") and found[0]["mixed"]["ratio"] > 1
