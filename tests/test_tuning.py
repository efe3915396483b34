"""`tune` and `autotuning` without a GPU, on a clock of ours, and the command line of them."""

from __future__ import annotations

import io
import json
import threading

import pytest
from specs import A100, CORE, problem
from tuned_tables import FEW_TILES, entry_for, remember

import cutlass_py
from cutlass_py import CudaKernel, GemmArguments, TensorSpec, _core
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.commands import main
from cutlass_py.dispatch import autotune, tuned
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels import registry
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.operation import class_of
from cutlass_py.kernels.registry import kernel_named

pytestmark = pytest.mark.usefixtures("table")
HOST = TensorSpec((8, 8), "f32", device="cpu")
INFO = {"name": ABSENT.name, "cc": 90, "sm_count": 132, "driver": 13000}


@pytest.fixture
def clock(core, monkeypatch):
    """A device whose launches take what a function of the plan says; the plans that were measured."""
    measured = []

    def start(microseconds):
        def measure(p, plans, rounds):
            measured.append(list(plans))
            return [[microseconds(each)] * rounds for each in plans]

        monkeypatch.setattr(_core, "measure", measure)
        monkeypatch.setattr(_core, "device_info", lambda ordinal: INFO)
        monkeypatch.setattr(_core, "clusters_at_once", lambda ordinal: ABSENT.clusters)
        return measured

    return start


# ---------------------------------------------------------------------------------------- tune


def test_tune_keeps_the_fastest(clock):
    args = problem(512, 512, 512)
    usual = autotune._distinct(rank(args.problem))
    slow = usual[4]
    ours = slow.route.kernel.name
    measured = clock(lambda made: (3.0 if made.kernel == ours and made.splits == 1 else 4.0) + made.raster / 100)
    found = cutlass_py.tune(args, candidates=12)
    assert [len(plans) for plans in measured][0] == min(12, len(usual))
    assert found.best.choice.route == slow.route and found.best.microseconds == 3.01
    assert found.default.choice == usual[0] and found.default.microseconds == 4 + usual[0].raster / 100
    times = [m.microseconds for m in found.measured][: len(measured[1])]
    assert times == sorted(times) and times[0] < times[-1]
    assert f"{found.default.microseconds / 3.01:.2f} times as fast as the choice before" in str(found)
    assert best(args.problem).route == slow.route
    (entry,) = tuned.lookup(args.problem, ABSENT)
    assert (entry.driver, entry.version) == (13000, cutlass_py.__version__)


def test_kernels_that_compute_alike_are_measured_once(clock):
    """One that could also read c, or add a bias, is no faster than the plain one of its tile."""
    args = problem(512, 512, 512)
    measured = clock(lambda made: 4.0)
    cutlass_py.tune(args, candidates=1000)
    straight = [kernel_named(made.kernel) for made in measured[0] if not made.steps]
    assert len({kernel.design for kernel in straight}) == len(straight) < len(cutlass_py.get_kernels(args))


def test_users_kernels_are_measured_whatever_tiles_others_have(clock):
    alike = next(k for k in CORE if k.config.family == "sm80_gemm" and k.supports(problem(512, 512, 512)))
    c = alike.config
    found = [
        CudaKernel(
            name, c.family, c.a, c.layout, c.tile, source=name, epilogue=c.epilogue, warp=c.warp, stages=c.stages,
            align=c.align,
        )
        for name in ("one", "another")
    ]  # fmt: skip
    measured = clock(lambda made: 4.0)
    with cutlass_py.register_kernel(found[0]) as one, cutlass_py.register_kernel(found[1]) as another:
        for kernel in (*one.kernels, *another.kernels):
            assert kernel.design == alike.design
            kernel.loaded({})
        registry.forget()
        cutlass_py.tune(problem(512, 512, 512), candidates=1000)
    assert {"one", "another", alike.name} <= {made.kernel for made in measured[0]}


def test_tune_tries_the_orders_of_tiles(clock):
    args = problem(4096, 4096, 4096)
    clock(lambda made: 5.0 - made.raster - made.swizzle / 10)
    chosen = cutlass_py.tune(args).best.choice
    assert chosen.raster == 2 and best(args.problem).swizzle == chosen.swizzle >= 2


def test_tune_passes_over_what_does_not_run(clock):
    args = problem(512, 512, 512)
    usual = rank(args.problem)
    first = usual[0].route.kernel.name
    clock(lambda made: float("inf") if made.kernel == first else 4.0)
    autotune = cutlass_py.tune(args)
    assert all(m.choice.route.kernel.name != first for m in autotune.measured)
    assert autotune.default is None and "the choice before does not run" in str(autotune)
    clock(lambda made: float("inf"))
    with pytest.raises(cutlass_py.CudaError, match="none of"):
        cutlass_py.tune(args)


def test_the_default_stays_where_nothing_is_clearly_faster(clock):
    args = problem(512, 512, 512)
    usual = rank(args.problem)[0]
    clock(lambda made: 4.0 if made.kernel == usual.route.kernel.name else 3.99)
    assert cutlass_py.tune(args).best.choice == usual


def test_with_splits_asked_for_nothing_is_kept(clock):
    clock(lambda made: 4.0)
    autotune = cutlass_py.tune(problem(**FEW_TILES, splits=2))
    assert all(m.choice.route.splits * m.choice.route.kernel.config.slices == 2 for m in autotune.measured)
    assert not tuned.lookup(problem(**FEW_TILES).problem, ABSENT)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (GemmArguments(HOST, HOST), ValueError, "on the CPU; kernels are measured on a GPU"),
        (problem(8, 8, 0), ValueError, "no product to compute"),
        (problem(8, 0, 8), ValueError, "no product to compute"),
        (3, TypeError, "^tune: a is an int and b is missing; expected both operands, or GemmArguments or another "),
    ],
)
def test_bad_arguments(clock, args, error, message):
    clock(lambda made: 4.0)
    with pytest.raises(error, match=message):
        cutlass_py.tune(args)


def test_bad_keywords(clock):
    clock(lambda made: 4.0)
    with pytest.raises(ValueError, match="candidates is 0; expected 1 or more"):
        cutlass_py.tune(problem(8, 8, 8), candidates=0)
    with pytest.raises(TypeError, match="^tune: candidates is a str; expected a whole number$"):
        cutlass_py.tune(problem(8, 8, 8), candidates="3")
    with pytest.raises(TypeError, match="tune: alpha belong into the GemmArguments"):
        cutlass_py.tune(problem(8, 8, 8), alpha=2.0)


# ---------------------------------------------------------------------------------------- autotuning


def test_autotuning_measures_each_class_once(clock):
    p = problem(**FEW_TILES).problem
    second = autotune._distinct(rank(p))[1].route.kernel.name
    measured = clock(lambda made: 2.0 if made.kernel == second else 4.0)
    assert plan(p).kernel != second and not measured
    with cutlass_py.autotuning():
        assert _core.tuning_allowed()
        assert plan(p).kernel == second
        calls = len(measured)
        assert calls == 2
        plan(p)
        plan(problem(**FEW_TILES, splits=2).problem)
        plan(problem(8, 8, 0).problem)
        assert len(measured) == calls
        plan(problem(512, 512, 512).problem)
        assert len(measured) == 2 * calls and _core.tuning_allowed()
    assert not _core.tuning_allowed()


def test_quick_autotuning_measures_the_first_few_for_this_process(clock, table):
    second = autotune._distinct(rank(problem(**FEW_TILES).problem))[1].route
    measured = clock(lambda made: 2.0 if (made.kernel, made.splits) == (second.kernel.name, second.splits) else 4.0)
    p = problem(**FEW_TILES).problem
    with cutlass_py.autotuning(quick=True):
        made = plan(p)
        assert (made.kernel, made.splits) == (second.kernel.name, second.splits)
        assert [len(plans) for plans in measured] == [4]
        assert best(p).measured and not table.exists()
        with cutlass_py.autotuning():  # as much as that measures; but not what was measured
            plan(p)
            assert len(measured) == 1
            plan(problem(512, 512, 512).problem)
            assert len(measured) == 3 and len(measured[1]) > 4 and table.exists()
    tuned.forget()
    plan(p)
    assert not best(p).measured and len(measured) == 3


@pytest.mark.parametrize("obstacle", ["memory", "table"])
def test_autotuning_that_fails_warns_once_and_lets_the_call_run(clock, table, monkeypatch, obstacle):
    measured = clock(lambda made: float("inf") if obstacle == "memory" else 4.0)
    if obstacle == "table":
        table.write_text("{")
        with pytest.warns(RuntimeWarning, match="tuned choices are left out"):
            tuned.table(ABSENT)
    monkeypatch.setattr("cutlass_py.dispatch.autotune._given_up", set())
    p = problem(512, 512, 512).problem
    with cutlass_py.autotuning():
        with pytest.warns(RuntimeWarning, match="is not tuned: "):
            assert plan(p).kernel
        before = len(measured)
        assert plan(p).kernel and len(measured) == before
    assert obstacle == "memory" or not measured  # nothing is measured that cannot be kept
    if obstacle == "memory":
        with cutlass_py.autotuning(), pytest.warns(RuntimeWarning, match="is not tuned: "):  # another time
            plan(p)
        assert len(measured) > before


def test_autotuning_does_not_compile_and_does_not_wait_for_what_is_not_there(clock):
    measured = clock(lambda made: 4.0)
    p = problem(512, 512, 512).problem
    other = next(k.name for k in cutlass_py.get_kernels(problem(512, 512, 512), compiled=False) if not k.compiled)
    remember(p, entry_for(rank(p)[0], kernel=other))
    with cutlass_py.autotuning():
        plan(p)
    assert measured and best(p).measured
    plan(problem(256, 512, 512).problem)
    tuned.forget()
    (kept,) = tuned.lookup(p, ABSENT)  # what another build found
    assert kept.kernel == other and not best(p).measured


def test_autotuning_is_over_after_an_error_and_holds_for_one_thread():
    with pytest.raises(KeyError), cutlass_py.autotuning():
        seen = []
        thread = threading.Thread(target=lambda: seen.append(_core.tuning_allowed()))
        thread.start()
        thread.join()
        assert seen == [0]
        raise KeyError
    assert not _core.tuning_allowed()


# ---------------------------------------------------------------------------------------- command line


@pytest.fixture
def gpu(clock, monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr("cutlass_py.arrays.gpu.device", lambda ordinal: ABSENT)
    return clock(lambda made: 4.0)


def test_command_tunes_a_file_and_exports(gpu, tmp_path, capsys):
    problems = [{"m": 512, "n": 512, "k": k, "a": "bf16", "layout": "tn"} for k in (256, 512)]
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    exported = tmp_path / "exported.json"
    assert main(["tune", str(tmp_path / "problems.json"), "--export", str(exported)]) == 0
    assert capsys.readouterr().out.count("times as fast as the choice before") == 2
    assert len(tuned.read(exported, ABSENT)) == 2


def test_command_goes_on_behind_a_problem_that_fails(gpu, tmp_path, capsys):
    problems = [{"m": 512, "n": 512, "k": k, "a": "bf16"} for k in (0, 512)]
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    assert main(["tune", str(tmp_path / "problems.json")]) == 1
    out = capsys.readouterr().out
    assert "error: tune: " in out and "times as fast" in out
    assert main(["tune", str(tmp_path / "problems.json"), "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert "no product" in first["error"] and second["best"]


def test_command_draws_a_table_on_a_terminal(gpu, tmp_path, monkeypatch):
    pytest.importorskip("rich")
    problems = [{"m": 512, "n": 512, "k": k, "a": "bf16"} for k in (0, 512)]
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    monkeypatch.setenv("COLUMNS", "300")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdout", terminal)
    assert main(["tune", str(tmp_path / "problems.json")]) == 1
    text = terminal.getvalue()
    assert "─" in text and "no product" in text and " 4.0 " in text and "times as fast" not in text


def test_command_merges(gpu, tmp_path, capsys, table):
    p = problem(512, 512, 512).problem
    other = tmp_path / "other.json"
    other.write_text(tuned.dumps(ABSENT, {class_of(p): entry_for(rank(p)[0])}))
    assert main(["tune", "--merge", str(other)]) == 0
    assert capsys.readouterr().out == f"{table}: 1 classes of problems\n"
    assert tuned.lookup(p, ABSENT)


def test_command_exports_no_damaged_table_and_says_where_it_cannot_before(gpu, tmp_path, capsys, table):
    exported = tmp_path / "exported.json"
    exported.write_text("before")
    table.write_text("{")
    assert main(["tune", "--export", str(exported)]) == 2
    assert str(table) in capsys.readouterr().err and exported.read_text() == "before"
    assert main(["tune", "--export", str(tmp_path / "none" / "x.json")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_command_prints_json(gpu, tmp_path, capsys):
    (tmp_path / "problems.json").write_text(json.dumps([{"m": 512, "n": 512, "k": 512, "a": "bf16"}]))
    assert main(["tune", str(tmp_path / "problems.json"), "--json", "--candidates", "3"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["default"]["microseconds"] == 4 and len(found["measured"]) >= 3


def test_command_tries_declared_kernels_with_jit(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(CutlassKernel, "ready", lambda self: None)
    (tmp_path / "problems.json").write_text(json.dumps([{"m": 512, "n": 512, "k": 512, "a": "bf16", "layout": "tn"}]))
    for options in ([], ["--jit"]):
        gpu.clear()
        assert main(["tune", str(tmp_path / "problems.json"), *options]) == 0
        assert all(kernel_named(made.kernel).compiled for made in gpu[0]) == (not options)
    assert not _core.jit_allowed()


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 0)
    monkeypatch.setattr(_core, "why_no_device", lambda: "none")


def test_command_needs_a_gpu(no_gpu, tmp_path, capsys):
    (tmp_path / "problems.json").write_text("[]")
    for arguments in ([], [str(tmp_path / "problems.json")], ["--export", str(tmp_path / "x.json")]):
        assert main(["tune", *arguments]) == 2
        assert "tune: needs a GPU: none" in capsys.readouterr().err
    assert main(["tune", str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def test_command_merges_tables_of_a_gpu_that_is_elsewhere(no_gpu, tmp_path, capsys):
    entry = entry_for(rank(problem(512, 512, 512).problem, compiled=False)[0])
    for k in (256, 512):
        table = tuned.dumps(A100, {class_of(problem(512, 512, k).problem): entry})
        (tmp_path / f"{k}.json").write_text(table)
    merge = [f"--merge={tmp_path / '256.json'}", f"--merge={tmp_path / '512.json'}"]
    assert main(["tune", *merge]) == 0
    assert capsys.readouterr().out == f"{tuned.path_of(A100)}: 2 classes of problems\n"
    assert main(["tune", merge[0], "--export", str(tmp_path / "both.json")]) == 0
    assert len(tuned.read(tmp_path / "both.json", A100)) == 2
    (tmp_path / "other.json").write_text(tuned.dumps(ABSENT, {}))
    assert main(["tune", *merge, f"--merge={tmp_path / 'other.json'}"]) == 2
    assert f"expected {A100.name} with 108" in capsys.readouterr().err


def test_afresh_sees_shipped_tables_alone_and_keeps_nothing(clock, shipped):
    args, other = problem(512, 512, 512), problem(256, 512, 512)
    usual = autotune._distinct(rank(args.problem))
    shipped(0, {class_of(other.problem): entry_for(rank(other.problem)[4])})
    remember(args.problem, entry_for(usual[5]))
    clock(lambda made: 3.0 if made.kernel == usual[4].route.kernel.name else 4.0)
    with tuned.afresh():
        assert best(args.problem).route == usual[0].route and best(other.problem).measured
        cutlass_py.tune(args)
        assert best(args.problem).route == usual[4].route
    assert best(args.problem).route == usual[5].route
    tuned.forget()
    assert best(args.problem).route == usual[5].route
