"""`bench` as a command: what it measures, what ends it, wrong usage, stored results and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import FakeGpu, record_of

import cutlass_py
from cutlass_py import _core
from cutlass_py.bench import kernel_case, plots, results, runs, targets, timing
from cutlass_py.bench.results import geomean
from cutlass_py.commands import bench, main
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.declaration.families import find, named

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests" / "data" / "results.json"


def test_the_command_measures(fake_gpu, capsys, tmp_path):
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


def test_a_library_without_graphs_is_timed_in_the_other_regime(fake_gpu, monkeypatch, capsys):
    """As CuPy. Kernels that have no reference are replayed all the same."""
    monkeypatch.setattr(FakeGpu, "captures", False)
    monkeypatch.setattr(FakeGpu, "capture", lambda *_: pytest.fail("a graph is made"))
    options = ["bench", "--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "--budget-ms", "1"]
    for more in ((), ("--all-kernels",), ("--regime", "mixed")):
        assert main([*options, *more, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["parts"][0]["regimes"] == ["mixed"] and found["cases"][0]["mixed"]["ratio"] == 1.5
    assert main([*options, "--regime", "sustained"]) == 2
    assert "no graph can be made of numpy's matmul, which is what sustained replays" in capsys.readouterr().err
    assert main(["bench", "--bars", "key"]) == 2
    assert "no graph can be made of numpy's matmul, and the bars are about graphs" in capsys.readouterr().err
    kernel = kernel_case.KernelCase.of(
        find("sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_bias"), (1, 8, 8, 8)
    )
    asked = SimpleNamespace(regime=["sustained"])
    assert bench._regimes(asked, fake_gpu, [kernel]) == timing.REGIMES


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, ImportError, MemoryError, AssertionError])
def test_a_failing_case_does_not_stop_the_others(fake_gpu, capsys, monkeypatch, error):
    reference = FakeGpu.reference

    def refuses(self, case):
        if case.layout == "tn":
            raise error("no memory\nat all")
        return reference(self, case)

    monkeypatch.setattr(FakeGpu, "reference", refuses)
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1"]) == 1
    printed = capsys.readouterr().out
    assert f"FAILED: f32 tn (24, 16, 8): {error.__name__}: no memory\n" in printed and "cpu_gemm_numpy" in printed
    assert fake_gpu.freed == 1


def test_an_error_without_a_word():
    assert results.reason(MemoryError()) == "MemoryError"


def test_a_warm_up_that_fails_is_told(fake_gpu, monkeypatch, capsys):
    monkeypatch.setattr(runs, "warm_up", lambda *_: (_ for _ in ()).throw(MemoryError()))
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--budget-ms", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warm_up_failed"] == "MemoryError" and len(found["cases"]) == 4


def test_wrong_results_count(fake_gpu, capsys):
    fake_gpu.off = 1.0
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--budget-ms", "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cases"][0]["wrong"] == ["cutlass_py"]


@pytest.mark.parametrize("ends", ["limit", "interrupt"])
def test_a_run_that_ends_early_is_kept(fake_gpu, capsys, tmp_path, monkeypatch, ends):
    path = tmp_path / "found.json"
    if ends == "interrupt":
        measured = runs.measure

        def measure(case, settings, fake_gpu):
            if case.layout == "tt":
                raise KeyboardInterrupt
            return measured(case, settings, fake_gpu)

        monkeypatch.setattr(runs, "measure", measure)
    limit = ["--limit-seconds", "-1"] if ends == "limit" else []
    options = ["--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "tt", "--budget-ms", "1", "--json", str(path)]
    assert main(["bench", *options, *limit]) == (130 if ends == "interrupt" else 0)
    found = results.read(path)
    assert not found["complete"] and found["ended"] and len(found["cases"]) == (0 if ends == "limit" else 1)
    assert f"{len(found['cases'])} of 2 cases" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(fake_gpu, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "measure", lambda *_: pytest.fail("a case is measured"))
    (tmp_path / "file").touch()
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--json", str(tmp_path / "file" / "found.json")]) == 2
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "message"), [
    (["nonesuch", "1", "2", "3"], "no kernel is called 'nonesuch'"),
    (["cpu_gemm_numpy", "1", "2", "3"], "computes on the CPU"),
    (["--shape", "8,8,8", "--dtype", "tf32"], "no reference multiplies tf32 here; expected one of f16, bf16, f32, s8"),
    (["--shape", "8,8,8", "--dtype", "s8"], "the reference takes none of these problems"),
    (["--bars", "key", "--suite", "llm"], "--bars says what is measured"),
    (["--bars", "key", "--orders"], "--bars says what is measured"),
    (["--tune", "--all-kernels"], "two different measurements"),
    (["--best", "3"], "--best and --kernels say which of --all-kernels are timed; expected that beside them"),
    (["--kernels", "*"], "--best and --kernels say which of --all-kernels are timed; expected that beside them"),
    (["--all-kernels", "--kernels", "nonesuch*"], "--kernels: no compiled kernel is called 'nonesuch*'"),
    (["--bars", "odd", "--layout", "tn"], "no bar of odd is about these dtypes and layouts alone"),
    (["--bars", "fp8", "--dtype", "bf16", "--from", str(STORED)], "no bar of fp8 is about these dtypes"),
    (["--bars", "first", "--plot", "pictures"], "--plot draws cases, and these bars have none"),
    (["--every", "0"], "must be above 0"),
    (["--from", "/nonexistent.json"], "No such file"),
    (["--from", "results.json", "--json", "others.json"], "bench: --from measures nothing: of the other options only"),
    (["--from", "results.json", "--shape", "8,8,8"], "bench: --from measures nothing: of the other options only"),
    (["--from", "results.json", "--commit", "abc"], "bench: --from measures nothing: of the other options only"),
    (["--from", "results.json", "--budget-ms", "9"], "bench: --from measures nothing: of the other options only"),
    (["--from", "results.json", "--limit-seconds", "9"], "bench: --from measures nothing: of the other options only"),
    (["--from", "results.json", "--every", "2"], "bench: --from measures nothing: of the other options only"),
])  # fmt: skip
def test_wrong_usage(fake_gpu, capsys, options, message):
    assert main(["bench", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out


def test_a_sweep_of_named_kernels(fake_gpu, built, capsys, tmp_path):
    """By patterns or by a file; each must be the name of some compiled kernel."""
    built(named("core"))
    path = tmp_path / "names.txt"
    path.write_text("# some\ncpu_gemm_numpy  # on the host\n\n")
    options = ["bench", "--shape", "24,16,8", "--dtype", "f32", "--layout", "tn", "--budget-ms", "1", "--all-kernels"]
    for kernels in ([str(path)], ["cpu_*", "sm90_lean_*"], ["*_numpy", "--best", "1"]):
        assert main([*options, "--kernels", *kernels, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found["cases"][0]["sustained"]["us"]) == ["numpy", "cutlass_py", "cpu_gemm_numpy"]
        assert [row.get("of") for row in found["summary"]] == [None, "best found"]
    assert (found["parts"][0]["kernels"], found["parts"][0]["best"]) == (["*_numpy"], 1)
    assert "--kernels" not in capsys.readouterr().err
    assert main([*options, "--kernels", "sm90_lean_*", "cpu_*", "--json"]) == 0
    assert "--kernels: no case has a kernel of sm90_lean_*: none takes the operands" in capsys.readouterr().err
    asked = ["sm90_lean_*", *map("sm90_*{}".format, ("128*", "64*", "t*", "2*"))]
    assert main([*options, "--kernels", *asked, "--best", "2", "--json"]) == 1
    said = capsys.readouterr()
    assert (
        "of sm90_*128*, sm90_*2*, sm90_*64*, sm90_*t* and 1 more: none takes" in said.err and "the 2 best" in said.err
    )
    found = json.loads(said.out)
    assert list(found["cases"][0]["sustained"]["us"]) == ["numpy", "cutlass_py"]
    assert [row.get("of") for row in found["summary"]] == [None]
    path.write_text("cpu_gemm_numpy\nsm90_nonesuch\n")
    assert main([*options, "--kernels", "cpu_*", str(path)]) == 2
    assert "--kernels: no compiled kernel is called 'sm90_nonesuch'" in capsys.readouterr().err
    path.write_text("# none\n")
    assert main([*options, "--kernels", str(path)]) == 2
    assert f"--kernels: {path} names no kernel; expected a name a line" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--shape", "8,8"], ["--suite", "none"], ["--splits", "0"], ["--best", "0"], ["--bars", "none"]]
)
def test_options_that_are_none(capsys, options):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options])
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err


def test_an_extent_is_missing(fake_gpu, capsys):
    name = cutlass_py.get_kernels(compiled=False)[0].name
    assert main(["bench", name, "1", "2"]) == 2 and "2 extents behind" in capsys.readouterr().err


@pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert main(["bench"]) == 2
    assert capsys.readouterr().err.startswith("error: bench: needs a GPU: ")


def test_stored_results_of_before_are_read(capsys, tmp_path):
    assert main(["bench", "--from", str(STORED), "--suite", "square", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cases"] == [case for case in results.read(STORED)["cases"] if case["suite"] == "square"]
    assert {row["suite"] for row in found["summary"]} == {"square"}
    assert main(["bench", "--from", str(STORED), "--suite", "square", "--regime", "mixed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["regime"] for row in found["summary"]} == {"mixed"} and "sustained" not in found["cases"][0]
    wanted = {case for bar in targets.BARS if bar.group == "dense" and bar.dtype == "bf16" for case in bar.cases()}
    path = tmp_path / "dense.json"
    results.write(path, results.read(STORED) | {"cases": [record_of(case, 0.98, 1.05) for case in wanted]})
    assert main(["bench", "--from", str(path), "--bars", "dense", "--dtype", "bf16"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("163 of 163") == 16 and (printed.count("MISSED"), printed.count("reached")) == (4, 12)


def test_pictures_need_matplotlib_before_anything_is_measured(fake_gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    monkeypatch.setattr(runs, "measure", lambda *_: pytest.fail("a case is measured"))
    assert main(["bench", "--shape", "24,16,8", "--dtype", "f32", "--plot", str(tmp_path)]) == 2
    assert "--plot needs matplotlib: pip install" in capsys.readouterr().err


def test_pictures(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for place in (tmp_path / "x", tmp_path / "y"):
        options = ["--suite", "square", "--dtype", "bf16", "--layout", "tn"]
        assert main(["bench", "--from", str(STORED), *options, "--plot", str(place)]) == 0
    for name in ("ratio.svg", "roofline.svg"):
        text = (tmp_path / "x" / name).read_text()
        assert text.startswith("<?xml") and "bf16" in text and text == (tmp_path / "y" / name).read_text()
    assert "ratio.svg" in capsys.readouterr().err
    result = results.read(STORED)
    timed = [r for r in result["cases"] if (r["suite"], r["dtype"], r["layout"]) == ("square", "bf16", "tn")]
    means = [f"{regime} {geomean(r[regime]['ratio'] for r in timed):.3f}" for regime in timing.REGIMES]
    assert f">bf16 tn: {', '.join(means)}</text>" in (tmp_path / "x" / "ratio.svg").read_text()


def test_pictures_of_all_bars(tmp_path):
    """Default, tuned and swept cases stand apart, and the files stay small enough for a repository."""
    pytest.importorskip("matplotlib")
    ratios = {"default": (1.0, 1.2), "sweep": (0.5, None), "tuned": (2.0, 3.0)}
    records = []
    for mode, (sustained, mixed) in ratios.items():
        found = {(c.dtype, c.layout, c.shape): c for bar in targets.BARS if bar.mode == mode for c in bar.cases()}
        for index, case in enumerate(found.values()):
            near = 1 + index % 97 / 1e6
            records.append(record_of(case, sustained * near, mixed and mixed / near, mode))
            if mode == "sweep":  # of which the second reading counts
                records[-1]["sustained"] = {"ratio": 9.0, "us": {}, "finals": records[-1]["sustained"]}
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


def test_stored_results_of_other_scripts(capsys, tmp_path):
    stored = tmp_path / "tile_order.json"
    results.write(stored, {"machine": {"gpu": "NVIDIA H200"}, "sustained": [{"layout": "tn", "m": 8, "ratio": {}}]})
    assert main(["bench", "--from", str(stored)]) == 2
    assert "holds no cases" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [("{", "not JSON"), ("[]", "expected an object"), ("{}", "expected")])
def test_what_is_no_result(tmp_path, capsys, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["bench", "--from", str(path)]) == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- any operation


def test_the_suite_of_an_operation(monkeypatch, built, capsys):
    """Each problem by the choice for it; what is timed is a plan of the kernel that is named."""
    seen = []

    def measure(problem, plans, rounds):
        seen.append((problem, plans))
        return [[3.0, 1.0, 2.0]]

    built(named("core"))
    monkeypatch.setattr(_core, "measure", measure)
    monkeypatch.setattr(bench, "_core", SimpleNamespace(device_count=lambda: 1))
    assert main(["bench", "--operation", "gemm", "--every", "40", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(seen) == 5 and {row["microseconds"] for row in found} == {2.0}
    assert [row["kernel"] for row in found] == [plan.kernel for _, (plan,) in seen]
    assert found[0]["problem"] == "(1, 6144, 4096) tn: bf16 @ bf16 -> bf16 on cuda:0" and found[0]["estimate"] > 0
    assert main(["bench", "--operation", "gemm", "--every", "40"]) == 0
    assert "estimate" in capsys.readouterr().out


def test_what_does_not_go_with_an_operation(capsys):
    assert main(["bench", "--operation", "gemm", "--layout", "tn"]) == 2
    assert "only --every and --json without a file go with --operation" in capsys.readouterr().err
