"""The benchmarks' parts without a GPU: suites, the clock, one case in each of its modes, host times."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import SMALL, FakeGpu, record_of

import cutlass_py
from cutlass_py.bench import cases, frameworks, host, results, suites, timing
from cutlass_py.bench.report import choice_ratio, faults, row, summarise, summary_table
from cutlass_py.bench.results import INVARIANT, OURS
from cutlass_py.bench.suites import ARITHMETICS, Case, case_of
from cutlass_py.commands import main
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.dispatch import autotune, tuned
from cutlass_py.kernels.operation import class_of
from cutlass_py.operations.gemm import problems
from cutlass_py.operations.gemm.suites import SUITES


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


def test_each_case_is_there_once():
    x, y = (1, 8, 8, 8), (1, 8, 8, 16)
    found = suites.cases(["square", "square"], ["bf16", "bf16"], ["tn", "tn"], extra=[x, y, x])
    assert len(found) == len(set(found)) == 9 and [case.shape for case in found[-2:]] == [x, y]


def test_every_nth():
    assert [case.shape[1] for case in suites.cases(["square"], layouts=["tn"], every=3)] == [256, 2048, 16384]


def test_both_regimes_time_what_the_gpu_does():
    fake_gpu = FakeGpu()
    arms = [timing.Arm("slow", lambda i: fake_gpu.tick(50)), timing.Arm("fast", lambda i: fake_gpu.tick(10))]
    rough = {arm.name: timing.rough_us(fake_gpu, arm) for arm in arms}
    assert rough == {"slow": 50, "fast": 10}
    for regime in timing.REGIMES:
        found = timing.regime_us(fake_gpu, regime, arms, 3, rough, budget_ms=2.0)
        assert found["us"] == pytest.approx({"slow": 50, "fast": 10})
        assert all(len(rounds) == timing.ROUNDS for rounds in found["rounds_us"].values())
    assert found["neighbour_us"] == pytest.approx(2) and found["queue_filled"]
    assert found["rounds_us"]["fast"][0] == pytest.approx(12)


def test_a_clock_that_falls_between_rounds_is_no_ones_advantage():
    """Theirs is a tenth slower in every round; medians of each alone would say that it is faster."""
    rounds = {"theirs": [11.0, 11, 11, 22, 22], "ours": [10.0, 10, 20, 20, 20]}
    assert timing.ratio_of(rounds, "theirs", "ours") == pytest.approx(1.1)


def test_long_calls_begin_when_the_clock_has_settled():
    """A tenth of a second of the first arm comes before the first window; short calls need none."""
    for us, before in ((50.0, 100_000), (20.0, 0)):
        fake_gpu = FakeGpu()
        timing.sustained_us(
            fake_gpu, [timing.Arm("x", lambda i, gpu=fake_gpu, us=us: gpu.tick(us))], 1, {"x": us}, 1.0, 2
        )
        calls = 2 * 2 * 0.25e3 + 2 * 0.5e3  # two windows, and a replay of a quarter before each
        assert fake_gpu.now >= before and abs(fake_gpu.now - before) < 2 * calls


@pytest.mark.parametrize("sets", [1, 3, 37, 120, 512])
def test_a_graph_goes_through_all_operand_sets(sets):
    """Whole rounds of them: of a round begun, the next replay would find the first sets in the cache."""
    fake_gpu, captured = FakeGpu(), []
    fake_gpu.capture = lambda launch, calls: captured.append(calls) or (lambda: None)
    timing.sustained_us(fake_gpu, [timing.Arm("x", lambda i: None)], sets, {"x": 12.0}, 20.0, 5)
    assert captured == [max(83 // sets, 1) * sets]


def test_a_burst_spins_for_as_long_as_queueing_takes(monkeypatch):
    """And not for as long as the GPU works: each burst would take it half as long again."""
    fake_gpu, clock, spins = FakeGpu(), [0.0], []

    def launch(i):
        clock[0] += 4e-6

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(fake_gpu, "synchronize", lambda: clock.__setitem__(0, clock[0] + 1.0))
    monkeypatch.setattr(fake_gpu, "spin", spins.append)
    timing.mixed_us(fake_gpu, [timing.Arm("x", launch)], {"x": 98.0}, 5.0, 5)
    # Ten calls of 4 us, and the elementwise kernel alone, in each of five rounds.
    assert sorted(spins) == pytest.approx([100.0] * 5 + [100 + 1.5 * 10 * 4] * 5)


def test_bursts_go_through_all_operand_sets(monkeypatch):
    """Each set is met again only after all others, whichever arm is at it: one burst's may fit in the cache."""
    monkeypatch.setattr(timing, "_MOST_BURST", 3)
    fake_gpu, sets = FakeGpu(), []
    timing.mixed_us(fake_gpu, [timing.Arm(name, sets.append) for name in "xy"], {"x": 1.0, "y": 1.0}, 5.0, 5)
    assert sets == list(range(2 * 3 * (2 + timing.ROUNDS)))


def test_light_load_is_half_of_copies():
    fake_gpu, copies = FakeGpu(), []
    fake_gpu.copies = lambda us: copies.append(us) or (lambda: fake_gpu.tick(us))
    arms = [timing.Arm(name, lambda i, us=us: fake_gpu.tick(us)) for name, us in (("x", 5.0), ("y", 7.0))]
    found = timing.regime_us(fake_gpu, "light", arms, 1, {"x": 5.0, "y": 7.0}, 1.0)
    assert copies == [5.0] and found["neighbour_us"] == pytest.approx(5.0)
    assert found["us"] == pytest.approx({"x": 5.0, "y": 7.0})


@pytest.mark.parametrize(("us", "count"), [(1.0, 1), (300.0, 3)])
def test_copies_are_as_long_as_asked_for(us, count):
    fake_gpu, arrays = FakeGpu(), []
    fake_gpu.random = lambda shape, dtype: arrays.append(np.full(shape, len(arrays), np.int8)) or arrays[-1]
    fake_gpu.copies(us)()
    assert arrays[0].size == arrays[1].size == us / count * 2e6 and (arrays[1] == 0).all()


def test_a_burst_that_is_not_queued_in_time_says_so():
    fake_gpu = FakeGpu(full=False)
    found = timing.regime_us(fake_gpu, "mixed", [timing.Arm("x", lambda i: fake_gpu.tick(5))], 1, {"x": 5}, 1.0)
    assert not found["queue_filled"]


def test_a_burst_that_was_late_once_says_so():
    """The times of that round are among the medians."""
    fake_gpu = FakeGpu()
    late = iter([True] * 4)  # all tries of the first round
    fake_gpu.passed = lambda event: next(late, False)
    found = timing.regime_us(fake_gpu, "mixed", [timing.Arm("x", lambda i: fake_gpu.tick(5))], 1, {"x": 5}, 1.0)
    assert not found["queue_filled"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
def test_a_case(fake_gpu, dtype):
    record = cases.measure(replace(SMALL, dtype=dtype), cases.Settings(budget_ms=1.0), fake_gpu)
    assert record["wrong"] == [] and record["error"]["cutlass_py"] < 0.02
    assert record["chosen"]["kernel"] == "cpu_gemm_numpy" and record["mode"] == "default"
    for regime in timing.REGIMES:
        assert record[regime]["ratio"] == pytest.approx(1.5)
    assert record["mixed"]["ratio_with_neighbour"] == pytest.approx(32 / 22)
    assert json.loads(results.dumps(record))["dtype"] == dtype
    assert "1.500" in row(record, timing.REGIMES)


def test_a_row_says_what_surrounds_the_kernel(fake_gpu):
    record = cases.measure(SMALL, cases.Settings(budget_ms=1.0), fake_gpu)
    assert record["chosen"]["pack_scales"] is False and row(record, timing.REGIMES).endswith("cpu_gemm_numpy")
    record["chosen"] |= {"pack_a": "t", "pack_scales": True, "scratch": "f32"}
    assert row(record, timing.REGIMES).endswith(" packs a, packs scale_a, composed")
    record["chosen"]["splits"] = 4
    assert row(record, timing.REGIMES).endswith(" packs a, packs scale_a, splits k by 4")


def test_scales_are_arrays_on_both_sides(fake_gpu, monkeypatch):
    monkeypatch.setattr(FakeGpu, "dtypes", ("e4m3",))
    record = cases.measure(Case("shape", "e4m3", "tn", (1, 32, 16, 16)), cases.Settings(("sustained",)), fake_gpu)
    assert record["wrong"] == []
    assert all(call["scale_a"].shape == (1,) and call["scale_b"].dtype == "float32" for call in fake_gpu.calls)


@pytest.mark.parametrize("off", [0.5, float("nan")])
def test_a_wrong_result_is_seen(fake_gpu, off):
    fake_gpu.off = off
    record = cases.measure(SMALL, cases.Settings(("sustained",), budget_ms=1.0), fake_gpu)
    assert record["wrong"] == ["cutlass_py"]
    for each in (record, json.loads(results.dumps(record))):
        assert faults([each])[0].startswith("WRONG: f32 tn (24, 16, 8): cutlass_py is off by ")


@pytest.mark.parametrize(
    "dtype, m, off, wrong",
    [("f32", 1, 0.01, True), ("tf32", 1, 0.01, False), ("tf32", 1, 0.5, True), ("tf32", 2, 0.01, True)],
)
def test_a_vector_that_is_rounded_is_no_fault(fake_gpu, dtype, m, off, wrong):
    """torch multiplies vectors in f32, whether or not tf32 is allowed."""
    fake_gpu.off = off
    record = cases.measure(Case("shape", dtype, "tn", (1, m, 64, 64)), cases.Settings(("sustained",)), fake_gpu)
    assert record["wrong"] == ["cutlass_py"] * wrong


def test_a_sweep(fake_gpu):
    settings = cases.Settings(("sustained",), suites.SWEEP, budget_ms=1.0)
    record = cases.measure(SMALL, settings, fake_gpu)
    assert list(record["sustained"]["us"]) == ["numpy", "cutlass_py", "cpu_gemm_numpy"]
    assert {call["kernel"].name for call in fake_gpu.calls if call["kernel"]} == {"cpu_gemm_numpy"}
    assert summarise([record])[0]["choice"] == pytest.approx(1)
    rounds = {"torch": [1.0] * 3, "cutlass_py": [4.0, 8, 12], "x": [3.0, 7, 6], "y": [5.0, 9, 13]}
    assert choice_ratio({"rounds_us": rounds | {"neighbour": [1.0, 4, 3]}}) == 2 / 3


def test_the_fastest_of_a_sweep_are_timed_once_more(fake_gpu, monkeypatch):
    """The least of many noisy times is too low; what is said of the choice goes by the second reading."""
    names = [f"kernel{i}" for i in range(9)]
    readings = []

    def regime_us(fake_gpu, regime, arms, sets, rough, budget_ms):
        first = not readings
        readings.append((budget_ms, [arm.name for arm in arms]))
        us = {arm.name: 20.0 - (int(arm.name[6:]) if first and arm.name in names else 0) for arm in arms}
        return {"us": us, "rounds_us": {name: [x] for name, x in us.items()}}

    monkeypatch.setattr(cases, "regime_us", regime_us)
    monkeypatch.setattr(cases, "_forced", lambda *_: [type("K", (), {"name": name})() for name in names])
    monkeypatch.setattr(cases, "gemm", lambda a, b, out, **_: fake_gpu.tick(20.0) or out.__setitem__(..., a @ b))
    record = cases.measure(SMALL, cases.Settings(("sustained",), suites.SWEEP, budget_ms=8.0), fake_gpu)
    assert readings == [
        (2.0, ["numpy", "cutlass_py", *names]),
        (8.0, ["numpy", "cutlass_py", "kernel8", "kernel7", "kernel6"]),
    ]
    assert min(record["sustained"]["us"].values()) == 12.0 and choice_ratio(record["sustained"]) == 1.0
    assert summarise([record])[0]["choice"] == 1.0


@pytest.mark.parametrize(("settings", "names"), [
    ({}, ["x_64", "y_64", "x_128", "y_128"]),
    ({"best": 3}, ["x_64", "y_64", "x_128"]),
    ({"kernels": ("*_128", "x_64")}, ["x_64", "x_128", "y_128"]),
    ({"kernels": ("?_128", "X_64"), "best": 1}, ["x_128"]),
    ({"kernels": ("x",)}, []),
])  # fmt: skip
def test_a_sweep_of_some_kernels(fake_gpu, monkeypatch, settings, names):
    """The first of those that are asked for, in the order of the model."""
    kernels = [SimpleNamespace(name=name) for name in ("x_64", "y_64", "x_128", "y_128")]
    monkeypatch.setattr(cases, "swept", lambda args, patterns: cases.matching(kernels, patterns or ["*"]))
    monkeypatch.setattr(cases, "gemm", lambda a, b, out, **_: fake_gpu.tick(20.0) or out.__setitem__(..., a @ b))
    record = cases.measure(SMALL, cases.Settings(("sustained",), suites.SWEEP, budget_ms=1.0, **settings), fake_gpu)
    assert list(record["sustained"]["us"]) == ["numpy", "cutlass_py", *names]


LEAN = [
    f"sm90_lean_bf16_bf16_f32_bf16_tn_128x{n}x64_1x2x1_lean{how}_fused" for n, how in ((256, "coop"), (128, "pingpong"))
]
CUTLASS = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_linear"
OTHERS = [name.replace("_tn_", "_tt_") for name in (LEAN[1], CUTLASS)]


@pytest.mark.parametrize(("patterns", "names"), [
    ([], [*LEAN, CUTLASS]),
    (["sm90_lean_*"], LEAN),
    ([LEAN[1]], LEAN[1:]),
    (["*128x128x64*"], [LEAN[1], CUTLASS]),
    (["*_tt_*"], []),
])  # fmt: skip
def test_kernels_that_are_named_are_some_of_all(built, patterns, names):
    built([*LEAN, CUTLASS, *OTHERS])
    args = problems.arguments(Case("llm", "bf16", "tn", (1, 4096, 4096, 4096)).problem())
    found = cases.swept(args, patterns)
    assert {kernel.name for kernel in found} == set(names)
    assert found == [kernel for kernel in cutlass_py.get_kernels(args) if kernel.name in names]


@pytest.mark.parametrize("shape", [(1, 16, 4096, 4096), (1, 512, 512, 8192), (4, 1024, 1024, 1024)])
def test_the_order_of_named_kernels_is_that_of_get_kernels(core, shape):
    args = problems.arguments(Case("llm", "bf16", "tn", shape).problem())
    wanted = cutlass_py.get_kernels(args)
    assert len(wanted) > 5 and cases.swept(args, ["*"]) == wanted


def test_the_best_found_stands_beside_the_choice():
    """By the second reading, where there is one; the choice counts among the kernels."""
    x, y = (Case("llm", "bf16", "tn", (1, m, 8, 8)) for m in (8, 16))
    first = {"x": 0.25, "y": 2.0}
    finals = {"ratio": 0.9, "us": {}, "rounds_us": {"torch": [0.9], "cutlass_py": [1.0], "x": [0.5]}}
    records = [record_of(x, 1.0, mode="sweep", **first), record_of(y, 3.0, mode="sweep", z=4.0)]
    records[0]["sustained"]["finals"] = finals
    choice, best = summarise(records)
    assert (choice["worst"], choice["worst_shape"], choice["geomean"]) == (0.9, [1, 8, 8, 8], pytest.approx(2.7**0.5))
    assert (best["of"], best["worst"], best["percentile_5"]) == ("best found", 1.8, 1.8)
    assert best["geomean"] == pytest.approx(5.4**0.5) and choice["choice"] == pytest.approx(0.5**0.5)
    titles, cells = summary_table([choice, best])
    rows = [dict(zip(titles, line, strict=True)) for line in cells]
    assert [(r["mode"], r["5%"], r["worst"], r["choice"]) for r in rows] == [
        ("sweep", "0.900", "0.900", "0.707"), ("sweep: best found", "1.800", "1.800", ""),
    ]  # fmt: skip
    records[0]["sustained"] = {"ratio": 1.0, "us": {}, "choice": 0.5}  # of a summary, which has no rounds
    assert [row.get("of") for row in summarise(records)] == [None]
    nothing_beside = [record_of(each, 2.0, mode="sweep") for each in (x, y)]
    assert [row.get("of") for row in summarise(nothing_beside)] == [None]


def test_of_a_sweep_the_second_reading_is_shown():
    """Ratio and times; the fastest kernel by it, where the regime has read that one again."""
    record = record_of(Case("llm", "bf16", "tn", (1, 8, 8, 8)), 1.5, 1.5, mode="sweep", x=0.5, y=0.9)
    record |= {"chosen": {"kernel": "c"}, "error": {"torch": 0.0, "cutlass_py": 0.0}}
    record["sustained"]["finals"] = {"ratio": 1.25, "us": {"torch": 5.0, "cutlass_py": 4.0, "x": 3.0, "y": 2.5}}
    record["mixed"]["finals"] = {"ratio": 1.2, "us": {"torch": 6.0, "cutlass_py": 5.0, "x": 3.0}, "queue_filled": False}
    choice, fastest = row(record, timing.REGIMES).splitlines()
    assert re.findall(r"[\d.]+", choice.split("|", 1)[1])[:6] == ["5.00", "4.00", "1.250", "6.00", "5.00", "1.200"]
    assert "1.200? |" in choice and fastest == "  y: sustained 2.50 us, ratio 2.000"


def test_a_kernel_that_fails_does_not_lose_the_case(fake_gpu, monkeypatch):
    good, bad = (type("K", (), {"name": name})() for name in ("good", "bad"))

    def gemm(a, b, out, kernel=None, **_):
        if kernel is bad:
            raise ValueError("not this one")
        fake_gpu.tick(20.0)
        out[...] = a @ b

    monkeypatch.setattr(cases, "_forced", lambda *_: [bad, good])
    monkeypatch.setattr(cases, "gemm", gemm)
    record = cases.measure(SMALL, cases.Settings(("sustained",), suites.SWEEP, budget_ms=1.0), fake_gpu)
    assert list(record["sustained"]["us"]) == ["numpy", "cutlass_py", "good"]
    assert faults([record]) == ["FAILED: f32 tn (24, 16, 8): bad: ValueError: not this one"]


def test_what_tuning_finds_is_kept(fake_gpu, monkeypatch):
    """As an entry of a table of tuned choices, under its class; and the times of each kernel's orders of tiles."""
    entry = tuned.Entry("x", 2, 1, 4, 5.0, 13000, "0.1.0")
    route = SimpleNamespace(kernel=SimpleNamespace(name="x"), splits=2)
    measured = [
        autotune.Measurement(SimpleNamespace(route=route, raster=raster, swizzle=swizzle), us)
        for us, raster, swizzle in ((5.0, 1, 4), (6.0, 0, 1), (7.0, 0, 1))
    ]

    def tune(args):
        tuned._tables.setdefault("here", {})[class_of(args.problem)] = entry
        return autotune.Tuning("", measured[0], measured[1], tuple(measured))

    monkeypatch.setattr(autotune, "tune", tune)
    monkeypatch.setattr(cases, "gpu_of", lambda p: "this")
    monkeypatch.setattr(tuned, "table", lambda gpu: tuned._tables["here"])
    with tuned.afresh():
        found = cases.measure(SMALL, cases.Settings(("sustained",), suites.TUNED, budget_ms=1.0), fake_gpu)["tuning"]
    assert found["class"].startswith("m=24 n=16 k=8 ") and tuned.Entry(**found["entry"]) == entry
    assert (found["us"], found["default_us"]) == (5.0, 6.0)
    assert found["orders"] == {"x splits=2": {"1,4": 5.0, "0,1": 6.0}}


def test_cuts_of_k(fake_gpu):
    settings = cases.Settings(("sustained",), splits=(1, "stream"), budget_ms=1.0)
    record = cases.measure(SMALL, settings, fake_gpu)
    assert [found["splits"] for found in record["decompositions"]] == [1, "stream"]
    assert row(record, ["sustained"]).splitlines()[1].startswith("  splits=1 ")


def test_what_no_row_may_depend_on_is_timed_beside_the_choice(fake_gpu):
    settings = cases.Settings(("sustained",), batch_invariant=True, budget_ms=1.0)
    record = cases.measure(SMALL, settings, fake_gpu)
    us = record["sustained"]["us"]
    assert list(us)[1:] == [OURS, INVARIANT] and record["error"][INVARIANT] < 1e-2
    found, beside = summarise([record])
    assert beside["of"] == INVARIANT and beside["over default"] == pytest.approx(us[OURS] / us[INVARIANT], rel=0.3)
    header, cells = summary_table([found, beside])
    assert header[-1] == "over default" and cells[0][-1] == "1.000"


def test_orders_of_tiles(fake_gpu, monkeypatch, capsys):
    """Each raster and swizzle of the choice, or of the kernel asked for, by a plan of its own."""
    plans = []

    def plan(self, *, kernel, raster, swizzle):
        plans.append((kernel, raster, swizzle))
        us = 10.0 + swizzle if raster == "m" else 30.0
        return lambda a, b, out, **_: fake_gpu.tick(us) or out.__setitem__(..., a @ b)

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
    assert cases.order_arms(cases.Operands(SMALL, fake_gpu), None) == []  # a CPU's kernel has no tiles


@pytest.fixture
def torch_here(monkeypatch):
    """torch, which draws on the CPU in place of the GPU."""
    torch = pytest.importorskip("torch")
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, device: rand(*shape))
    return torch


def test_factors_in_blocks(torch_here):
    """As torch's scaled_mm wants them."""
    torch, gpu = torch_here, frameworks.Torch()
    case = Case("deepgemm", "e4m3_block", "tn", (1, 4, 256, 300))
    x, y = gpu.scales(case)
    assert (x.shape, x.stride()) == ((4, 3), (1, 4)) and (y.shape, y.stride()) == ((3, 2), (1, 4))
    a, b = torch.ones(4, 300).to(torch.float8_e4m3fn), torch.ones(300, 256).to(torch.float8_e4m3fn)
    blocks = torch.tensor([128.0, 128.0, 44.0])
    expected = (x * blocks) @ y.repeat_interleave(128, 1)
    assert torch.allclose(gpu.product(case, a, b, x, y), expected)


def test_factors_by_row_and_column(torch_here):
    torch, gpu = torch_here, frameworks.Torch()
    case = Case("random", "e4m3_vector", "tn", (1, 4, 256, 32))
    x, y = gpu.scales(case)
    assert (x.shape, y.shape) == ((4, 1), (1, 256))
    assert (case.problem()["scale_a"], case.problem()["scale_b"]) == ("vector", "vector")
    a, b = torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones(32, 256).to(torch.float8_e4m3fn)
    assert torch.allclose(gpu.product(case, a, b, x, y), 32 * x * y)


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
