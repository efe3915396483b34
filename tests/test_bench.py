"""The benchmarks without a GPU: suites, bars and reports as data, the whole command on a clock of ours."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import FakeGpu

import cutlass_py
from cutlass_py import _core, problems, tuned, tuning
from cutlass_py.bench import (
    bars,
    cases,
    frameworks,
    host,
    one_kernel,
    plots,
    results,
    runs,
    suites,
    surroundings,
    timing,
)
from cutlass_py.bench.report import choice_ratio, faults, published, row, summarise
from cutlass_py.bench.results import geomean
from cutlass_py.bench.suites import ARITHMETICS, SUITES, Case, case_of
from cutlass_py.commands import bench, main
from cutlass_py.dtypes import DTYPES, LAYOUTS, STORAGE
from cutlass_py.families import FAMILIES, find
from cutlass_py.kernels import CutlassKernel

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "benchmarks" / "results" / "kernel_speed-h200-llm-square-odd-batched.json"
SMALL = Case("shape", "f32", "tn", (1, 24, 16, 8))


@pytest.fixture
def gpu(monkeypatch):
    """A library whose calls take 30 us where ours take 20; it is what the command finds."""
    fake = FakeGpu()
    calls = []

    def gemm(a, b, **keywords):
        calls.append(keywords)
        fake.tick(20.0)
        if max(*a.shape, *b.shape) < 1000:
            cutlass_py.gemm(a, b, **keywords)
            if fake.off:
                keywords["out"][...] += fake.off

    fake.calls = calls
    monkeypatch.setattr(cases, "gemm", gemm)
    monkeypatch.setattr(frameworks, "framework", lambda: fake)
    monkeypatch.setattr(runs, "warm_up", lambda *_: None)
    monkeypatch.setattr(runs, "Operands", lambda case, gpu: cases.Operands(SMALL, gpu))
    monkeypatch.setattr(surroundings, "_versions", lambda: {"numpy": "0"})
    return fake


# ---------------------------------------------------------------------------------------- suites


def test_suites():
    assert [len(SUITES[name]) for name in ("llm", "square", "odd", "batched")] == [156, 7, 6, 4]
    assert len(suites.cases(["llm", "square"])) == 4 * 163
    assert {shape[1] for shape in SUITES["sample"]} >= {1, 8, 64, 512, 8192}


@pytest.mark.parametrize("dtype", ARITHMETICS)
def test_only_what_the_reference_computes(dtype):
    found = suites.cases(["odd", "batched", "square"], [dtype], LAYOUTS, extra=[(1, 8, 8, 8)])
    arithmetic = ARITHMETICS[dtype]
    assert {case.layout for case in found} == set(arithmetic.layouts)
    assert all(case.arithmetic.takes(case.shape) for case in found)
    if arithmetic.reference != "matmul":
        assert not any(case.suite == "batched" for case in found)
        assert all(n % 16 == 0 and k % 16 == 0 for case in found for _, _, n, k in [case.shape])


def test_formats():
    assert ARITHMETICS["e4m3_fast"].formats == ("e4m3", "fast", "bf16")
    assert (ARITHMETICS["s8"].result, ARITHMETICS["tf32"].result) == ("s32", "f32")
    assert Case("x", "e4m3", "tn", (1, 2, 3, 4)).moved_bytes == 8 + 12 + 2 * 6
    assert case_of(SMALL.facts()) == SMALL and str(SMALL) == "f32 tn (24, 16, 8)"
    assert str(Case("x", "f16", "tt", (3, 2, 3, 4))) == "f16 tt 3 x (2, 3, 4)"


def test_every_nth():
    assert [case.shape[1] for case in suites.cases(["square"], layouts=["tn"], every=3)] == [256, 2048, 16384]


# ---------------------------------------------------------------------------------------- timing


def test_both_regimes_time_what_the_gpu_does():
    gpu = FakeGpu()
    arms = [timing.Arm("slow", lambda i: gpu.tick(50)), timing.Arm("fast", lambda i: gpu.tick(10))]
    rough = {arm.name: timing.rough_us(gpu, arm) for arm in arms}
    assert rough == {"slow": 50, "fast": 10}
    for regime in timing.REGIMES:
        found = timing.regime_us(gpu, regime, arms, 3, rough, budget_ms=2.0)
        assert found["us"] == pytest.approx({"slow": 50, "fast": 10})
        assert all(len(rounds) == timing.ROUNDS for rounds in found["rounds_us"].values())
    assert found["neighbour_us"] == pytest.approx(2) and found["queue_filled"]
    assert found["rounds_us"]["fast"][0] == pytest.approx(12)


def test_a_burst_spins_for_as_long_as_queueing_takes(monkeypatch):
    """And not for as long as the GPU works: each burst would take it half as long again."""
    gpu, clock, spins = FakeGpu(), [0.0], []

    def launch(i):
        clock[0] += 4e-6

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(gpu, "synchronize", lambda: clock.__setitem__(0, clock[0] + 1.0))
    monkeypatch.setattr(gpu, "spin", spins.append)
    timing.mixed_us(gpu, [timing.Arm("x", launch)], {"x": 98.0}, 5.0, 5)
    # Ten calls of 4 us, and the elementwise kernel alone, in each of five rounds.
    assert sorted(spins) == pytest.approx([100.0] * 5 + [100 + 1.5 * 10 * 4] * 5)


def test_bursts_go_through_all_operand_sets(monkeypatch):
    """Each set is met again only after all others, whichever arm is at it: one burst's may fit in the cache."""
    monkeypatch.setattr(timing, "_MOST_BURST", 3)
    gpu, sets = FakeGpu(), []
    timing.mixed_us(gpu, [timing.Arm(name, sets.append) for name in "xy"], {"x": 1.0, "y": 1.0}, 5.0, 5)
    assert sets == list(range(2 * 3 * (2 + timing.ROUNDS)))


def test_a_burst_that_is_not_queued_in_time_says_so():
    gpu = FakeGpu(full=False)
    found = timing.regime_us(gpu, "mixed", [timing.Arm("x", lambda i: gpu.tick(5))], 1, {"x": 5}, 1.0)
    assert not found["queue_filled"]


# ---------------------------------------------------------------------------------------- a case


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
def test_a_case(gpu, dtype):
    record = cases.measure(replace(SMALL, dtype=dtype), cases.Settings(budget_ms=1.0), gpu)
    assert record["wrong"] == [] and record["error"]["cutlass_py"] < 0.02
    assert record["chosen"]["kernel"] == "cpu_gemm_numpy" and record["mode"] == "default"
    for regime in timing.REGIMES:
        assert record[regime]["ratio"] == pytest.approx(1.5)
    assert record["mixed"]["ratio_with_neighbour"] == pytest.approx(32 / 22)
    assert json.loads(results.dumps(record))["dtype"] == dtype
    assert "1.500" in row(record, timing.REGIMES)


def test_scales_are_arrays_on_both_sides(gpu, monkeypatch):
    monkeypatch.setattr(FakeGpu, "dtypes", ("e4m3",))
    record = cases.measure(Case("shape", "e4m3", "tn", (1, 32, 16, 16)), cases.Settings(("sustained",)), gpu)
    assert record["wrong"] == []
    assert all(call["scale_a"].shape == (1,) and call["scale_b"].dtype == "float32" for call in gpu.calls)


@pytest.mark.parametrize("off", [0.5, float("nan")])
def test_a_wrong_result_is_seen(gpu, off):
    gpu.off = off
    record = cases.measure(SMALL, cases.Settings(("sustained",), budget_ms=1.0), gpu)
    assert record["wrong"] == ["cutlass_py"]
    for each in (record, json.loads(results.dumps(record))):
        assert faults([each])[0].startswith("WRONG: f32 tn (24, 16, 8): cutlass_py is off by ")


def test_a_sweep(gpu):
    settings = cases.Settings(("sustained",), suites.SWEEP, budget_ms=1.0)
    record = cases.measure(SMALL, settings, gpu)
    assert list(record["sustained"]["us"]) == ["numpy", "cutlass_py", "cpu_gemm_numpy"]
    assert {call["kernel"].name for call in gpu.calls if call["kernel"]} == {"cpu_gemm_numpy"}
    assert summarise([record])[0]["choice"] == pytest.approx(1)
    assert choice_ratio({"us": {"torch": 1, "cutlass_py": 4, "x": 3, "y": 5}}) == 0.75


def test_the_fastest_of_a_sweep_are_timed_once_more(gpu, monkeypatch):
    """The least of many noisy times is too low; what is said of the choice goes by the second reading."""
    names = [f"kernel{i}" for i in range(9)]
    readings = []

    def regime_us(gpu, regime, arms, sets, rough, budget_ms):
        first = not readings
        readings.append((budget_ms, [arm.name for arm in arms]))
        us = {arm.name: 20.0 - (int(arm.name[6:]) if first and arm.name in names else 0) for arm in arms}
        return {"us": us, "rounds_us": {}}

    monkeypatch.setattr(cases, "regime_us", regime_us)
    monkeypatch.setattr(cases, "_forced", lambda *_: [type("K", (), {"name": name})() for name in names])
    monkeypatch.setattr(cases, "gemm", lambda a, b, out, **_: gpu.tick(20.0) or out.__setitem__(..., a @ b))
    record = cases.measure(SMALL, cases.Settings(("sustained",), suites.SWEEP, budget_ms=8.0), gpu)
    assert readings == [
        (2.0, ["numpy", "cutlass_py", *names]),
        (8.0, ["numpy", "cutlass_py", "kernel8", "kernel7", "kernel6"]),
    ]
    assert min(record["sustained"]["us"].values()) == 12.0 and choice_ratio(record["sustained"]) == 1.0
    assert summarise([record])[0]["choice"] == 1.0


def test_a_kernel_that_fails_does_not_lose_the_case(gpu, monkeypatch):
    good, bad = (type("K", (), {"name": name})() for name in ("good", "bad"))

    def gemm(a, b, out, kernel=None, **_):
        if kernel is bad:
            raise ValueError("not this one")
        gpu.tick(20.0)
        out[...] = a @ b

    monkeypatch.setattr(cases, "_forced", lambda *_: [bad, good])
    monkeypatch.setattr(cases, "gemm", gemm)
    record = cases.measure(SMALL, cases.Settings(("sustained",), suites.SWEEP, budget_ms=1.0), gpu)
    assert list(record["sustained"]["us"]) == ["numpy", "cutlass_py", "good"]
    assert faults([record]) == ["FAILED: f32 tn (24, 16, 8): bad: ValueError: not this one"]


def test_what_tuning_finds_is_kept(gpu, monkeypatch):
    """As an entry of a table of tuned choices, under its class; and the times of each kernel's orders of tiles."""
    entry = tuned.Entry("x", 2, 1, 4, 5.0, 13000, "0.1.0")
    route = SimpleNamespace(kernel=SimpleNamespace(name="x"), splits=2)
    measured = [
        tuning.Measurement(SimpleNamespace(route=route, raster=raster, swizzle=swizzle), us)
        for us, raster, swizzle in ((5.0, 1, 4), (6.0, 0, 1), (7.0, 0, 1))
    ]

    def tune(args):
        tuned._tables.setdefault("here", {})[tuned.class_of(args.problem)] = entry
        return tuning.Tuning("", measured[0], measured[1], tuple(measured))

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(cases, "gpu_of", lambda p: "this")
    monkeypatch.setattr(tuned, "table", lambda gpu: tuned._tables["here"])
    with tuned.afresh():
        found = cases.measure(SMALL, cases.Settings(("sustained",), suites.TUNED, budget_ms=1.0), gpu)["tuning"]
    assert found["class"].startswith("m=24 n=16 k=8 ") and tuned.Entry(**found["entry"]) == entry
    assert (found["us"], found["default_us"]) == (5.0, 6.0)
    assert found["orders"] == {"x splits=2": {"1,4": 5.0, "0,1": 6.0}}


def test_cuts_of_k(gpu):
    settings = cases.Settings(("sustained",), splits=(1, "stream"), budget_ms=1.0)
    record = cases.measure(SMALL, settings, gpu)
    assert [found["splits"] for found in record["decompositions"]] == [1, "stream"]
    assert row(record, ["sustained"]).splitlines()[1].startswith("  splits=1 ")


def test_orders_of_tiles(gpu, monkeypatch, capsys):
    """Each raster and swizzle of the choice, or of the kernel asked for, by a plan of its own."""
    plans = []

    def plan(self, *, kernel, raster, swizzle):
        plans.append((kernel, raster, swizzle))
        us = 10.0 + swizzle if raster == "m" else 30.0
        return lambda a, b, out, **_: gpu.tick(us) or out.__setitem__(..., a @ b)

    monkeypatch.setattr(cutlass_py.GemmArguments, "plan", plan)
    options = ["--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "--budget-ms", "1"]
    assert main(["bench", *options, "--orders", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["cases"]
    us = dict(list(record["sustained"]["us"].items())[2:])
    assert us == pytest.approx({
        "raster=m swizzle=1": 11, "raster=m swizzle=2": 12, "raster=m swizzle=4": 14, "raster=m swizzle=8": 18,
        **{f"raster=n swizzle={swizzle}": 30 for swizzle in (1, 2, 4, 8)},
    })  # fmt: skip
    assert plans == [(None, raster, swizzle) for raster in "mn" for swizzle in (1, 2, 4, 8)]
    assert main(["bench", *options, "--orders"]) == 0
    assert "  raster=m swizzle=1: sustained 11.00 us, ratio 2.727\n" in capsys.readouterr().out
    monkeypatch.undo()
    assert cases.order_arms(cases.Operands(SMALL, gpu), None) == []  # a CPU's kernel has no tiles


# ---------------------------------------------------------------------------------------- bars


def record_of(case, sustained, mixed=None, mode="default", **us):
    record = case.facts() | {"mode": mode}
    for regime, ratio in (("sustained", sustained), ("mixed", mixed)):
        if ratio:
            record[regime] = {"ratio": ratio, "us": {"torch": ratio, "cutlass_py": 1.0, **us}}
    return record


def test_every_bar_has_cases_and_every_group_a_bar():
    assert all(bar.cases() for bar in bars.BARS)
    assert set(bars.GROUPS) == {bar.group for bar in bars.BARS} | {"host", "first"}
    assert all(case.shape[1] >= 16 for bar in bars.BARS if bar.group == "fp8" for case in bar.cases())


def test_the_bounds():
    """Every one, beside what is demanded and aimed at: none may slip by itself."""
    (tn, tt, nt, nn), everywhere = [("tn",), ("tt",), ("nt",), ("nn",)], LAYOUTS
    found = {
        (bar.group, bar.dtype, bar.layouts, bar.suites or bar.shapes, bar.of, bar.mode): (bar.bound, bar.target)
        for bar in bars.BARS
    }
    assert len(found) == len(bars.BARS)
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
    assert [bar.rows for bar in bars.BARS if bar.group == "fp8"] == [16, 16]
    assert [(bar.row, bar.bound) for bar in bars.HOST_BARS] == [
        ("torch bfloat16 cuda, out=", 0.50), ("torch bfloat16 cuda, prepared plan", 0.45),
        ("CuPy float16 cuda, out=", 0.50), ("cutlass_py.torch cuda, mm over gemm", 1.10),
    ]  # fmt: skip
    assert bars.FIRST_CALL_MS == 100 and bars._SLOW == 0.95


@pytest.mark.parametrize(("of", "bound", "value", "reached"), [
    ("geomean", 1.0, 1.0, True), ("geomean", 1.01, 1.0, False), ("worst", 0.5, 0.5, True), ("worst", 0.51, 0.5, False),
    ("slow", 0.5, 0.5, True), ("slow", 0.4, 0.5, False),
])  # fmt: skip
def test_verdicts(of, bound, value, reached):
    shapes = ((1, 16, 16, 16), (1, 32, 32, 32))
    bar = bars.Bar("x", bound, "f16", ("tn",), (), of, shapes=shapes)
    records = [record_of(case, ratio) for case, ratio in zip(bar.cases(), (2.0, 0.5), strict=True)]
    (found,) = bars.verdicts(records, [bar], ["sustained"])
    assert found.found == pytest.approx(value) and found.reached is reached and (found.measured, found.wanted) == (2, 2)
    assert found.word == ("reached" if reached else "MISSED") and found.facts()["reached"] is reached
    (partly,) = bars.verdicts(records[:1], [replace(bar, bound=2.0 if of != "slow" else 0.0)], ["sustained"])
    assert partly.word == "met in part" and partly.met and not partly.reached
    assert bars.verdict_table([partly])[1][0][-1] == "1 of 2"


def test_a_bar_looks_at_its_own_records_alone():
    bar = bars.Bar("x", 1.0, "f16", ("tn",), (), mode=suites.TUNED, shapes=((1, 16, 16, 16),))
    (case,) = bar.cases()
    for other in (record_of(case, 2.0), record_of(replace(case, layout="tt"), 2.0, mode="tuned")):
        (found,) = bars.verdicts([other], [bar], ["sustained"])
        assert found.word == "not measured" and not found.reached
    (found,) = bars.verdicts([record_of(replace(case, suite="llm"), 2.0, mode="tuned")], [bar], ["sustained"])
    assert found.reached  # by whatever suite it was measured


def test_the_bar_of_the_choice():
    bar = bars.Bar("x", 0.9, "f16", ("tn",), (), "choice", mode=suites.SWEEP, shapes=((1, 16, 16, 16),))
    (found,) = bars.verdicts([record_of(*bar.cases(), 2.0, mode="sweep", best=0.8)], [bar])
    assert found.found == pytest.approx(0.8) and not found.reached


def test_bars_of_the_host():
    rows = [{"row": "torch bfloat16 cuda, out=", "ratio": {"median": 0.49}}]
    found = {verdict.what: verdict.word for verdict in bars.host_verdicts(rows)}
    assert found.pop("torch bfloat16 cuda, out=") == "reached" and set(found.values()) == {"not measured"}
    assert bars.first_verdict(None).word == "not measured"
    assert [bars.first_verdict(ms).word for ms in (99.0, 100.0)] == ["reached", "MISSED"]


def test_published_figures_stand_beside():
    case = Case("deepgemm", "e4m3_block", "tn", (1, 64, 2112, 7168))
    record = case.facts() | {"mixed": {"us": {"torch": 20.0, "cutlass_py": 10.0}, "ratio": 2.0}}
    header, cells = published([record, record | {"dtype": "e4m3"}, record | {"m": 65}])
    assert cells == [["(64, 2112, 7168)", "mixed", "206", "97", "194"]] and len(header) == 5


def test_factors_in_blocks():
    """As torch's scaled_mm wants them, on the CPU in place of the GPU."""
    torch = pytest.importorskip("torch")
    gpu = frameworks.Torch()
    case = Case("deepgemm", "e4m3_block", "tn", (1, 4, 256, 300))
    with pytest.MonkeyPatch.context() as patch:
        rand = torch.rand
        patch.setattr(torch, "rand", lambda *shape, device: rand(*shape))
        x, y = gpu.scales(case)
    assert (x.shape, x.stride()) == ((4, 3), (1, 4)) and (y.shape, y.stride()) == ((3, 2), (1, 4))
    a, b = torch.ones(4, 300).to(torch.float8_e4m3fn), torch.ones(300, 256).to(torch.float8_e4m3fn)
    blocks = torch.tensor([128.0, 128.0, 44.0])
    expected = (x * blocks) @ y.repeat_interleave(128, 1)
    assert torch.allclose(gpu.product(case, a, b, x, y), expected)


@pytest.mark.parametrize("overloads", [["default", "out"], ["default"]])
def test_torch_gets_the_factors_of_b_with_their_padding(monkeypatch, overloads):
    """Rows up to a multiple of four blocks of k, without which it refuses them; and D where it takes one."""
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F

    seen = {}

    def out(a, b, x, of_a, swizzle_a, y, of_b, swizzle_b, bias, kind, contracted, fast, *, out):
        seen.update(y=y[0], kinds=(of_a, of_b), kind=kind, d=out)

    def scaled_mm(a, b, x, of_a, y, of_b, output_dtype):
        seen.update(y=y, kinds=([of_a.value], [of_b.value]), kind=output_dtype)

    operator = SimpleNamespace(overloads=lambda: overloads, out=out)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(aten=SimpleNamespace(_scaled_mm_v2=operator)))
    monkeypatch.setattr(F, "scaled_mm", scaled_mm)
    factors = torch.arange(2.0 * 8).reshape(2, 8).t()[:5]
    frameworks.Torch().reference(Case("x", "e4m3_block", "tn", (1, 4, 256, 640)))("a", "b", "d", "x", factors)
    assert (seen["y"].shape, seen["y"].stride(), seen["y"].data_ptr()) == ((8, 2), (1, 8), factors.data_ptr())
    assert seen["kinds"] == ([F.ScalingType.BlockWise1x128.value], [F.ScalingType.BlockWise128x128.value])
    assert seen["kind"] is torch.bfloat16 and seen.get("d") == ("d" if "out" in overloads else None)


# ---------------------------------------------------------------------------------------- the command


def test_the_command_measures(gpu, capsys, tmp_path):
    path = tmp_path / "found.json"
    options = ["--shape", "24,16,8", "2,8,8,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1"]
    assert main(["bench", *options, "--json", str(path), "--commit", "abc"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("cpu_gemm_numpy") == 4 and "f32 tt 2 x (8, 8, 8)" in printed
    found = results.read(path)
    assert found["complete"] and found["commit"] == "abc" and found["reference"] == "numpy"
    assert len(found["cases"]) == 4 and all(line["geomean"] == 1.5 for line in found["summary"])
    assert found["parts"][0]["regimes"] == ["sustained", "mixed"] and str(tmp_path) not in found["command"]
    assert main(["bench", "--from", str(path), "--layout", "tn", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cases"]) == 2


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, ImportError, MemoryError, AssertionError])
def test_a_failing_case_does_not_stop_the_others(gpu, capsys, monkeypatch, error):
    reference = FakeGpu.reference

    def refuses(self, case):
        if case.layout == "tn":
            raise error("no memory\nat all")
        return reference(self, case)

    monkeypatch.setattr(FakeGpu, "reference", refuses)
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1"]) == 1
    printed = capsys.readouterr().out
    assert f"FAILED: f32 tn (24, 16, 8): {error.__name__}: no memory\n" in printed and "cpu_gemm_numpy" in printed
    assert gpu.freed == 1


def test_an_error_without_a_word():
    assert results.reason(MemoryError()) == "MemoryError"


def test_a_gpu_that_works_no_more_ends_the_run(gpu, capsys, monkeypatch, tmp_path):
    """What was measured before is kept and judged; the cases after it would all fail alike."""
    small_bars(monkeypatch, 1.0)
    bar = bars.BARS[0]
    monkeypatch.setattr(bars, "BARS", [replace(bar, shapes=tuple((1, m, 16, 8) for m in (24, 25, 26, 27)))])
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
    assert len(found) == 2 and found[1]["where"].startswith("test_bench.py:") and found[0]["mixed"]["ratio"] > 1


def test_a_warm_up_that_fails_is_told(gpu, monkeypatch, capsys):
    monkeypatch.setattr(runs, "warm_up", lambda *_: (_ for _ in ()).throw(MemoryError()))
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--budget-ms", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warm_up_failed"] == "MemoryError" and len(found["cases"]) == 4


def test_a_host_that_fails_does_not_lose_the_cases(gpu, monkeypatch, capsys, tmp_path):
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


def test_the_documented_commands_measure_every_bar(gpu, monkeypatch):
    """Each within ten minutes, those after tuning apart: the groups that README.md names, and as many cases."""
    text = (ROOT / "benchmarks" / "README.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^python -m cutlass_py (bench --bars .* --json \S+) +# (\d+) cases", text, re.MULTILINE)
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    groups, modes, everything = [], [], 0
    for command, cases_ in commands:
        options = parser.parse_args(command.split()[1:])
        parts = bench._parts(options, frameworks.Torch.dtypes)
        assert sum(len(part.cases) for part in parts) == int(cases_) and options.limit_seconds < 600
        groups += options.bars
        modes.append([part.settings.mode for part in parts])
        everything += int(cases_)
    assert sorted(groups) == sorted(bars.GROUPS) and modes == [["default", "sweep"], ["tuned"]]
    parts = bench._parts(parser.parse_args(["--bars"]), frameworks.Torch.dtypes)
    assert [part.settings.mode for part in parts] == ["default", "sweep", "tuned"]
    assert sum(len(part.cases) for part in parts) == everything


def test_host_times_come_first_and_count(gpu, monkeypatch, tmp_path, capsys):
    """What they take is part of the limit; they are in the file from the first time that it is written."""
    small_bars(monkeypatch, 1.0)
    clock, path = [0.0], tmp_path / "found.json"
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(host, "first_call_ms", lambda: clock.__setitem__(0, 50.0) or 12.5)
    assert main(["bench", "--bars", "key", "first", "--limit-seconds", "40", "--json", str(path)]) == 1
    found = results.read(path)
    assert found["first_call_ms"] == 12.5 and found["cases"] == [] and "the time was up" in capsys.readouterr().err


def test_bars_that_were_measured_in_part_are_not_reached(gpu, monkeypatch, capsys):
    small_bars(monkeypatch, 1.0)
    bar = bars.BARS[0]
    monkeypatch.setattr(bars, "BARS", [replace(bar, shapes=((1, 24, 16, 8), (1, 24, 16, 9)))])
    assert main(["bench", "--bars", "key", "--every", "2", "--budget-ms", "1"]) == 1
    assert capsys.readouterr().out.count("met in part") == 2
    assert main(["bench", "--bars", "key", "--budget-ms", "1"]) == 0


def test_wrong_results_count(gpu, capsys):
    gpu.off = 1.0
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--budget-ms", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cases"][0]["wrong"] == ["cutlass_py"]


@pytest.mark.parametrize("ends", ["limit", "interrupt"])
def test_a_run_that_ends_early_is_kept(gpu, capsys, tmp_path, monkeypatch, ends):
    path = tmp_path / "found.json"
    if ends == "interrupt":
        measured = runs.measure

        def measure(case, settings, gpu):
            if case.layout == "tt":
                raise KeyboardInterrupt
            return measured(case, settings, gpu)

        monkeypatch.setattr(runs, "measure", measure)
    limit = ["--limit-seconds", "-1"] if ends == "limit" else []
    options = ["--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1", "--json", str(path)]
    assert main(["bench", *options, *limit]) == 0
    found = results.read(path)
    assert not found["complete"] and len(found["cases"]) == (0 if ends == "limit" else 1)
    assert f"{len(found['cases'])} of 2 cases" in capsys.readouterr().err


def small_bars(monkeypatch, bound):
    found = [bars.Bar("key", bound, "f32", ("tn",), (), shapes=((1, 24, 16, 8),))]
    found.append(replace(found[0], group="odd", mode=suites.SWEEP, of="choice", bound=0.5))
    monkeypatch.setattr(bars, "BARS", found)
    monkeypatch.setattr(host, "torch_rows", lambda *_: iter(()))
    monkeypatch.setattr(host, "first_call_ms", lambda: 12.5)


@pytest.mark.parametrize(("bound", "code"), [(1.4, 0), (1.6, 1)])
def test_bars_by_one_command(gpu, capsys, tmp_path, monkeypatch, bound, code):
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


def test_the_choice_is_the_package_s_own(gpu, monkeypatch):
    small_bars(monkeypatch, 1.0)
    seen = []
    measured = runs.measure
    monkeypatch.setattr(
        runs, "measure", lambda case, settings, gpu: seen.append(tuned._detached) or measured(case, settings, gpu)
    )
    assert main(["bench", "--bars", "key", "--budget-ms", "1"]) == 0 and seen == [True] and not tuned._detached


def test_one_kernel_by_name(gpu, capsys, monkeypatch):
    declared = cutlass_py.get_kernels(compiled=False)
    kernel = next(k for k in declared if k.name.startswith("simt_gemm_f32") and "_tn_" in k.name)
    compiled = []
    monkeypatch.setattr(type(kernel), "load", lambda self: compiled.append(self.name))

    def gemm(a, b, out, kernel=None, **_):
        gpu.tick(80.0 if kernel else 0.0)  # beside the 20 of every call
        out[...] = a @ b

    monkeypatch.setattr(cutlass_py, "gemm", gemm)
    command = ["bench", kernel.name, "24", "16", "8", "--regime", "mixed", "--budget-ms", "1"]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["cases"][0]
    assert list(record["mixed"]["us"]) == ["numpy", "cutlass_py", kernel.name] and compiled == [kernel.name]
    assert (record["layout"], record["dtype"], record["m"]) == ("tn", "f32", 24)
    assert main(command) == 0  # slow as it is, it is what was asked for
    assert ": mixed 100.00 us, ratio 0.300\n" in capsys.readouterr().out


DECLARED = [c for family in FAMILIES.values() for c in family.declared]
BY_NAME = {
    c.name: c  # one of each arithmetic, each schedule, each epilogue
    for found in (
        {(c.family, c.a, c.b, c.accumulator, c.d): c for c in DECLARED},
        {c.schedule: c for c in DECLARED},
        {c.epilogue: c for c in DECLARED},
    )
    for c in found.values()
}


@pytest.fixture
def runs_anything(gpu, monkeypatch):
    """Kernels by name take 10 us more than the choice, and compute what the CPU's kernel does."""

    def gemm(a, b, kernel=None, **keywords):
        gpu.tick(10.0 if kernel else 0.0)
        cpu_gemm(a, b, **keywords)

    cpu_gemm = cutlass_py.gemm
    monkeypatch.setattr(CutlassKernel, "load", lambda self: None)
    monkeypatch.setattr(cases, "gemm", lambda a, b, **keywords: gpu.tick(20.0) or gemm(a, b, **keywords))


@pytest.mark.parametrize("config", BY_NAME.values(), ids=lambda c: c.name)
def test_every_kind_of_kernel_by_name(gpu, runs_anything, config):
    """With every operand of its epilogue; beside a reference where there is one for it."""
    kernel = CutlassKernel(config, None)
    shape = (1, 48, 256, 384) if kernel.interface.block else (1, 48, 32, 64)
    if config.name.startswith("sm90_array"):
        with pytest.raises(ValueError, match="lists of matrices: expected B M N K, with a B of 3 or more"):
            one_kernel.KernelCase.of(config, shape)
        shape = (4, *shape[1:])
    case = bench._case_of(kernel, shape, frameworks.Torch.dtypes)
    assert case.compared == (not isinstance(case, one_kernel.KernelCase))
    args = problems.arguments(case.problem())
    if not kernel.interface.pointers:
        assert kernel.supports(args) or case.compared
    if case.compared:
        return
    record = cases.measure(case, cases.Settings(("sustained",), kernel=config.name, budget_ms=0.2), gpu)
    assert record["wrong"] == [] and 0 < record["limit"] <= 1 and json.loads(results.dumps(record))
    us = record["sustained"]["us"]
    assert us == pytest.approx({"cutlass_py": 20, config.name: 30}) and "ratio" not in record["sustained"]
    operands = {name for name in (*kernel.metadata.operands, "out") if name != "d"} - {"a", "b"}
    a, b, given = one_kernel.KernelOperands(case, gpu).call(0)
    if config.d == "s32":
        operands.discard("c")
    assert operands <= {name for name, x in given.items() if x is not None}
    assert isinstance(a, list) == kernel.interface.pointers and record["flop"] >= case.flop


@pytest.mark.parametrize("dtype", STORAGE)
def test_copies_in_host_memory(dtype):
    torch = pytest.importorskip("torch")
    values = (torch.arange(12) % 5).reshape(3, 4).to(getattr(torch, DTYPES[dtype].numpy)).T
    found = frameworks.Torch().host(values)
    assert (
        found.dtype.name == DTYPES[dtype].numpy
        and (found.astype("complex64") == (np.arange(12) % 5).reshape(3, 4).T).all()
    )


GATED = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_pingpong_gate_silu"


@pytest.mark.parametrize("off", [0.0, 20.0, float("nan")])
def test_one_kernel_without_a_reference(gpu, runs_anything, capsys, monkeypatch, off):
    assert "gate" in find(GATED).epilogue
    cpu = cases.gemm

    def gemm(a, b, **keywords):
        cpu(a, b, **keywords)
        if keywords["kernel"]:
            keywords["out"][-1, -1] += off

    monkeypatch.setattr(cases, "gemm", gemm)
    command = ["bench", GATED, "96", "64", "32", "--regime", "sustained", "--budget-ms", "1"]
    assert main([*command, "--json"]) == (1 if off else 0)
    found = json.loads(capsys.readouterr().out)
    (record,) = found["cases"]
    assert record["wrong"] == ([GATED] if off else []) and found["summary"] == []
    assert record["moved_bytes"] == 2 * (96 * 32 + 32 * 64 + 2 * 96 * 64) and record["flop"] == 2 * 96 * 64 * 32
    assert main(command) == (1 if off else 0)
    printed = capsys.readouterr().out
    rates = f"{2 * 96 * 64 * 32 / 30e6:.4g} TFLOP/s, {record['moved_bytes'] / 30e3:.4g} GB/s"
    assert f": sustained 30.00 us, {rates}\n" in printed and "ratio" not in printed.split("sustained 30.00")[1]
    assert ("rounding by" in printed) == bool(off)


@pytest.mark.parametrize(("options", "message"), [
    (["nonesuch", "1", "2", "3"], "no kernel is called 'nonesuch'"),
    (["cpu_gemm_numpy", "1", "2", "3"], "computes on the CPU"),
    (["--shape", "8,8,8", "--dtype", "tf32"], "no reference multiplies tf32 here; expected one of f16, bf16, f32, s8"),
    (["--shape", "8,8,8", "--dtype", "s8"], "the reference takes none of these problems"),
    (["--bars", "key", "--suite", "llm"], "--bars says what is measured"),
    (["--bars", "key", "--orders"], "--bars says what is measured"),
    (["--tune", "--all-kernels"], "two different measurements"),
    (["--every", "0"], "must be above 0"),
    (["--from", "/nonexistent.json"], "No such file"),
])  # fmt: skip
def test_wrong_usage(gpu, capsys, options, message):
    assert main(["bench", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out


@pytest.mark.parametrize("options", [["--shape", "8,8"], ["--suite", "none"], ["--splits", "0"], ["--bars", "none"]])
def test_options_that_are_none(capsys, options):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options])
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err


def test_an_extent_is_missing(gpu, capsys):
    name = cutlass_py.get_kernels(compiled=False)[0].name
    assert main(["bench", name, "1", "2"]) == 2 and "2 extents behind" in capsys.readouterr().err


@pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert main(["bench"]) == 2
    assert capsys.readouterr().err.startswith("error: bench: needs a GPU: ")


# ---------------------------------------------------------------------------------------- stored results, pictures


def test_stored_results_of_before_are_read(capsys):
    assert main(["bench", "--from", str(STORED), "--suite", "square", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["cases"]) == 28
    assert main(["bench", "--from", str(STORED), "--bars", "dense", "--dtype", "bf16"]) == 1
    assert capsys.readouterr().out.count("163 of 163") == 16


def test_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for place in (tmp_path / "x", tmp_path / "y"):
        assert main(["bench", "--from", str(STORED), "--suite", "square", "--layout", "tn", "--plot", str(place)]) == 0
    for name in ("ratio.svg", "roofline.svg"):
        text = (tmp_path / "x" / name).read_text()
        assert text.startswith("<?xml") and "bf16" in text and text == (tmp_path / "y" / name).read_text()
    assert "ratio.svg" in capsys.readouterr().err
    result = results.read(STORED)
    timed = [r for r in result["cases"] if (r["suite"], r["layout"]) == ("square", "tn")]
    means = [f"{regime} {geomean(r[regime]['ratio'] for r in timed):.3f}" for regime in timing.REGIMES]
    assert f">bf16 tn: {', '.join(means)}</text>" in (tmp_path / "x" / "ratio.svg").read_text()


def test_pictures_of_all_bars(tmp_path):
    """Default, tuned and swept cases stand apart, and the files stay small enough for a repository."""
    pytest.importorskip("matplotlib")
    ratios = {"default": (1.0, 1.2), "sweep": (0.5, None), "tuned": (2.0, 3.0)}
    records = []
    for mode, (sustained, mixed) in ratios.items():
        found = {(c.dtype, c.layout, c.shape): c for bar in bars.BARS if bar.mode == mode for c in bar.cases()}
        for index, case in enumerate(found.values()):
            near = 1 + index % 97 / 1e6
            records.append(record_of(case, sustained * near, mixed and mixed / near, mode))
    machine = {"compute_capability": 90, "sm_count": 132, "clocks.max.sm": 1980.0}
    ratio, roofline = plots.draw({"cases": records, "machine": machine}, tmp_path)
    assert max(path.stat().st_size for path in (ratio, roofline)) < 250_000
    titles = re.findall(r">([^<]*sustained 0.500|[^<]*sustained [12].000, [^<]*)<", ratio.read_text())
    wanted = [f"bf16 {layout}: sustained 1.000, mixed 1.200" for layout in LAYOUTS]
    wanted += [f"bf16 {layout}, tuned: sustained 2.000, mixed 3.000" for layout in LAYOUTS]
    wanted += ["bf16 tn tt, sweep: sustained 0.500", "f64 tn tt nt nn: sustained 1.000, mixed 1.200"]
    assert set(wanted) <= set(titles) and len(titles) == 16
    assert re.findall(r">(bf16, [^<]*)<", roofline.read_text()) == [
        "bf16, sustained", "bf16, sustained, sweep", "bf16, sustained, tuned",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["host_cost-h200", "kernel_speed-h200-sweep"])
def test_nothing_to_plot(tmp_path, capsys, name):
    stored = ROOT / "benchmarks" / "results" / f"{name}.json"
    assert main(["bench", "--from", str(stored), "--plot", str(tmp_path)]) == 2
    assert "holds no cases" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("[]", "expected an object"), ("{}", "expected")])
def test_what_is_no_result(tmp_path, capsys, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["bench", "--from", str(path)]) == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the host


def test_the_first_call_of_a_process():
    assert 0 < host.first_call_ms(1) < 60_000


def test_a_first_call_that_fails(monkeypatch):
    monkeypatch.setattr(host, "_CALL", "raise SystemExit(1)")
    with pytest.raises(RuntimeError, match="the first call failed"):
        host.first_call_ms(1)


def test_host_times():
    calls = []
    times = host.host_us(
        {"ours": "f(1)", "theirs": "f(2)"}, {"f": calls.append}, lambda: calls.append(0), seconds=0, batch=3
    )
    assert set(times) == {"ours", "theirs"} and all(t.minimum <= t.median for t in times.values())
    assert calls[:8] == [1, 1, 1, 0, 2, 2, 2, 0]


def test_groups_that_are_absent():
    def absent():
        raise host.Absent("no such thing")
        yield

    def fails():
        raise MemoryError
        yield

    row = host.Row("r", "f()", "f()", {"f": int})
    groups = {"x": absent, "y": fails, "z": lambda: iter([row])}
    records, skipped, failed = host.measure_all(groups, 0.0, lambda record: None)
    assert [record["row"] for record in records] == ["r"]
    assert skipped == {"x": "no such thing"} and failed == {"y": "MemoryError"}
