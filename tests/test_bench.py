"""The benchmarks without a GPU: suites, bars and reports as data, the whole command on a clock of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import FakeGpu

import cutlass_py
from cutlass_py import _core, problems, tuned
from cutlass_py.bench import bars, cases, frameworks, host, one_kernel, results, runs, suites, surroundings, timing
from cutlass_py.bench.report import choice_ratio, faults, published, row, summarise
from cutlass_py.bench.suites import ARITHMETICS, SUITES, Case, case_of
from cutlass_py.commands import bench as commands_bench
from cutlass_py.commands import main
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
    assert choice_ratio({"torch": 1, "cutlass_py": 4, "x": 3, "y": 5}) == 0.75


def test_cuts_of_k(gpu):
    settings = cases.Settings(("sustained",), splits=(1, "stream"), budget_ms=1.0)
    record = cases.measure(SMALL, settings, gpu)
    assert [found["splits"] for found in record["decompositions"]] == [1, "stream"]
    assert row(record, ["sustained"]).splitlines()[1].startswith("  splits=1 ")


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
    of_issue = {(bar.group, bar.of): bar.bound for bar in bars.BARS if bar.group not in ("key", "dense", "tuned")}
    assert of_issue == {
        ("fp8", "geomean"): 1.05, ("blockwise", "geomean"): 1.0, ("large", "worst"): 0.95, ("int8", "worst"): 1.5,
        ("choice", "choice"): 0.96, ("odd", "geomean"): 1.2, ("batched", "geomean"): 1.02,
    }  # fmt: skip


@pytest.mark.parametrize(("of", "bound", "value", "reached"), [
    ("geomean", 1.0, 1.0, True), ("geomean", 1.01, 1.0, False), ("worst", 0.5, 0.5, True), ("worst", 0.51, 0.5, False),
    ("slow", 0.5, 0.5, True), ("slow", 0.4, 0.5, False),
])  # fmt: skip
def test_verdicts(of, bound, value, reached):
    shapes = ((1, 16, 16, 16), (1, 32, 32, 32))
    bar = bars.Bar("x", bound, "f16", ("tn",), (), of, shapes=shapes)
    records = [record_of(case, ratio) for case, ratio in zip(bar.cases(), (2.0, 0.5), strict=True)]
    (found,) = bars.verdicts(records, [bar], ["sustained"])
    assert found.found == pytest.approx(value) and found.reached is reached and found.cases == "2 of 2"
    assert found.word == ("reached" if reached else "MISSED")


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


def test_a_failing_case_does_not_stop_the_others(gpu, capsys, monkeypatch):
    reference = FakeGpu.reference

    def refuses(self, case):
        if case.layout == "tn":
            raise RuntimeError("no memory\nat all")
        return reference(self, case)

    monkeypatch.setattr(FakeGpu, "reference", refuses)
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: f32 tn (24, 16, 8): RuntimeError: no memory\n" in printed and "cpu_gemm_numpy" in printed
    assert gpu.freed == 1


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
    case = commands_bench._case_of(kernel, shape, frameworks.Torch.dtypes)
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


def test_nothing_to_plot(tmp_path, capsys):
    stored = ROOT / "benchmarks" / "results" / "host_cost-h200.json"
    assert main(["bench", "--from", str(stored), "--plot", str(tmp_path)]) == 2
    assert "holds no cases" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("[]", "expected an object"), ("{}", "expected")])
def test_what_is_no_result(tmp_path, capsys, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["bench", "--from", str(path)]) == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the host


def test_the_first_call_of_a_process():
    if not _core.device_count():
        assert 0 < host.first_call_ms(1) < 60_000


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

    records, skipped = host.measure_all({"x": absent}, 0.0, lambda record: None)
    assert records == [] and skipped == {"x": "no such thing"}
