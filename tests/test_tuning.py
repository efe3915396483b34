"""Tuned choices without a GPU: classes and tables as text, what selection does with them, `tune` on a clock of ours."""

from __future__ import annotations

import dataclasses
import io
import json
import threading

import pytest
from specs import CORE, problem

import cutlass_py
from cutlass_py import CudaKernel, GemmArguments, TensorSpec, _core, cache, explain, registry
from cutlass_py.choice import tuned, tuning
from cutlass_py.choice.select import best, plan, rank
from cutlass_py.choice.tuned import APART, CLASS, Entry, class_of
from cutlass_py.commands import main
from cutlass_py.gpu import ABSENT, Gpu, device
from cutlass_py.registry import kernel_named

HOST = TensorSpec((8, 8), "f32", device="cpu")
INFO = {"name": ABSENT.name, "cc": 90, "sm_count": 132, "driver": 13000}
FEW_TILES = {"m": 128, "n": 256, "k": 8192}


@pytest.fixture(autouse=True)
def table(tmp_path, monkeypatch):
    """An empty cache directory; the path of the stand-in GPU's table."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    tuned.forget()
    yield tuned.path_of(ABSENT)
    tuned.forget()


@pytest.fixture
def core(built):
    built([k.name for k in CORE])


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
        return measured

    return start


TABLE = '{"format": 1, "gpu": "%%s", "sm_count": 132, "entries": {"m=1": %s}}'
UNUSABLE = [
    ("splits", "2"), ("splits", 0), ("splits", 1 << 40), ("raster", 3), ("swizzle", 3), ("swizzle", 10**30),
    ("microseconds", 0), ("kernel", None),
]  # fmt: skip


def entry_for(choice, **changes):
    values = {"kernel": choice.route.kernel.name, "splits": choice.route.splits, "raster": 0, "swizzle": 1}
    return Entry(**values | {"microseconds": 1.5, "driver": 13000, "version": "0.1.0"} | changes)


def remember(p, entry):
    tuned.record(ABSENT, {class_of(p): entry})


def values_of(**changes):
    values = {"kernel": "x", "splits": 1, "raster": 0, "swizzle": 1, "microseconds": 1, "driver": 1, "version": ""}
    return json.dumps(values | changes)


# ---------------------------------------------------------------------------------------- classes


def test_a_machine_without_a_gpu_assumes_what_the_real_one_says(monkeypatch):
    info = {"name": "NVIDIA H200", "cc": 90, "sm_count": 132}
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr(_core, "device_info", lambda ordinal: info)
    real = device.__wrapped__(0)
    assert real == dataclasses.replace(ABSENT, absent=False)
    assert tuned.path_of(ABSENT) == tuned.path_of(real)
    assert (str(real), str(ABSENT)) == ("NVIDIA H200", "an absent NVIDIA H200")


def test_every_attribute_of_a_problem_is_in_its_class_or_left_out_knowingly():
    attributes = {name for name in dir(_core.Problem) if not name.startswith("_")}
    assert set(CLASS) | set(APART) == attributes and not set(CLASS) & set(APART)


def test_classes_tell_problems_apart_and_nothing_else():
    base = {"m": 512, "n": 256, "k": 128}
    variants = [
        {}, {"m": 513}, {"dtype": "f16"}, {"layout": "nn"}, {"out_dtype": "f32"}, {"activation": "relu"},
        {"deterministic": True}, {"alpha": 2.0}, {"splits": 2},
    ]  # fmt: skip
    classes = [class_of(problem(**base | x).problem) for x in variants]
    assert len(set(classes[:7])) == 7
    assert classes[7] == classes[8] == classes[0]
    assert classes[0].startswith("m=512 n=256 k=128 batch=1 a=bf16 b=bf16 d=bf16")


# ---------------------------------------------------------------------------------------- selection


def test_a_tuned_choice_comes_first_and_says_so(core):
    args = problem(512, 512, 512)
    ranking = rank(args.problem)
    last = next(choice for choice in reversed(ranking) if choice.route.splits == 1)
    remember(args.problem, entry_for(last, raster=2, swizzle=4))
    first = rank(args.problem)[0]
    assert first.route == last.route and first.measured and first.microseconds == 1.5
    assert best(args.problem) == first and len(rank(args.problem)) == len(ranking)
    made = plan(args.problem)
    assert (made.kernel, made.raster, made.swizzle) == (last.route.kernel.name, 2, 4)
    assert "measured 1.5 us" in str(explain(args))
    assert "estimated" in str(explain(problem(512, 512, 513)))


def test_tuned_splits_are_taken(core):
    args = problem(**FEW_TILES)
    split = next(choice for choice in rank(args.problem) if choice.route.splits > 1)
    remember(args.problem, entry_for(split, splits=3))
    made = plan(args.problem)
    assert made.splits == 3 and made.scratch == split.route.kernel.interface.d
    assert plan(problem(**FEW_TILES, splits=1).problem).splits == 1


@pytest.mark.parametrize("name", ["unknown", "not compiled", "another dtype"])
def test_an_entry_that_cannot_be_taken_is_passed_over(core, name):
    args = problem(512, 512, 512)
    usual = rank(args.problem)
    other = {
        "unknown": "sm70_gemm",
        "not compiled": next(k.name for k in cutlass_py.get_kernels(args, compiled=False) if not k.compiled),
        "another dtype": rank(problem(512, 512, 512, dtype="f16").problem)[0].route.kernel.name,
    }[name]
    remember(args.problem, entry_for(usual[0], kernel=other))
    assert rank(args.problem) == usual and best(args.problem) == usual[0]


def test_a_kernel_that_is_not_compiled_is_taken_within_jit(core):
    args = problem(512, 512, 512)
    name = next(k.name for k in cutlass_py.get_kernels(args, compiled=False) if not k.compiled)
    remember(args.problem, entry_for(rank(args.problem)[0], kernel=name))
    with cutlass_py.jit():
        assert rank(args.problem)[0].route.kernel.name == name


# ---------------------------------------------------------------------------------------- tables


def test_tables_are_kept_merged_and_read_by_later_processes(core, table):
    x, y = problem(512, 512, 512), problem(1024, 512, 512)
    remember(x.problem, entry_for(rank(x.problem)[0]))
    tuned.forget()
    remember(y.problem, entry_for(rank(y.problem)[0], swizzle=2))
    tuned.forget()
    remember(x.problem, entry_for(rank(x.problem)[0], microseconds=2))
    tuned.forget()
    assert tuned.lookup(x.problem, ABSENT)[0].microseconds == 2
    assert tuned.lookup(y.problem, ABSENT)[0].swizzle == 2
    assert len(tuned.read(table, ABSENT)) == 2 and table.read_text().count("\n  ") == 2


def test_what_another_process_has_found_since_stays_in_the_file(core, table):
    x, y = problem(512, 512, 512), problem(1024, 512, 512)
    remember(x.problem, entry_for(rank(x.problem)[0]))
    newer = entry_for(rank(x.problem)[1])
    table.write_text(tuned.dumps(ABSENT, {class_of(x.problem): newer}))
    remember(y.problem, entry_for(rank(y.problem)[0]))
    assert tuned.read(table, ABSENT)[class_of(x.problem)] == newer and len(tuned.read(table, ABSENT)) == 2


def test_threads_lose_nothing(core):
    problems = [problem(512, 512, 64 * i).problem for i in range(1, 17)]
    entry = entry_for(rank(problems[0])[0])
    threads = [threading.Thread(target=remember, args=(p, entry)) for p in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tuned.forget()
    assert all(tuned.lookup(p, ABSENT) == [entry] for p in problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a table of tuned choices of format 1"),
        ('{"format": 2}', "expected a table of tuned choices of format 1"),
        ('{"format": 1, "gpu": "a GPU", "sm_count": 7, "entries": {}}', "a GPU with 7 multiprocessors; expected"),
        ('{"format": 1, "gpu": "%s", "sm_count": 132, "entries": []}', "entries is not an object"),
        ('{"format": 1, "gpu": "%s", "sm_count": [132], "entries": {}}', r"sm_count is \[132\]; expected a name and a"),
        ('{"format": 1, "gpu": "%s", "sm_count": Infinity, "entries": {}}', "sm_count is inf; expected a name and a"),
        ('{"format": 1, "entries": {}}', "gpu is None, sm_count is None; expected a name and a number"),
        ('{"format": 1, "gpu": "%s", "sm_count": 132, "entries": {"m=1": 3}}', "m=1: expected an object of kernel"),
        ("[" * 100_000, "not JSON"),
        *((TABLE % values_of(**{name: value}), f"m=1: {name} is {value!r}") for name, value in UNUSABLE),
    ],
)
def test_what_is_no_table_is_refused_and_does_not_stop_gemm(core, table, text, message):
    table.write_text(text.replace("%s", ABSENT.name))
    with pytest.raises(ValueError, match=message):
        tuned.read(table, ABSENT)
    args = problem(512, 512, 512)
    with pytest.warns(RuntimeWarning, match=message):
        assert best(args.problem)
    assert best(args.problem)  # says so once
    with pytest.raises(ValueError, match=message):
        remember(args.problem, entry_for(rank(args.problem)[0]))
    assert table.read_text() == text.replace("%s", ABSENT.name)


@pytest.mark.parametrize("obstacle", ["lock", "directory"])
def test_a_table_that_cannot_be_written_holds_for_the_process(core, table, monkeypatch, obstacle):
    known, args = problem(256, 512, 512), problem(512, 512, 512)
    remember(known.problem, entry_for(rank(known.problem)[0]))
    tuned.forget()
    if obstacle == "lock":
        table.with_suffix(".lock").unlink(missing_ok=True)
        table.with_suffix(".lock").mkdir()
    else:
        monkeypatch.setattr(cache, "_writable", lambda: cache._private("it is full"))
    chosen = rank(args.problem)[-1]
    with pytest.warns(RuntimeWarning, match="compiles or tunes is lost"):
        remember(args.problem, entry_for(chosen))
    assert best(args.problem).measured and best(known.problem).measured


@pytest.mark.parametrize("home", ["none", "a file"])
def test_without_a_cache_directory_gemm_goes_by_the_model(core, monkeypatch, tmp_path, home):
    monkeypatch.delenv("CUTLASS_PY_CACHE_DIR")
    if home == "none":

        def nobody(*_, **__):
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr("platformdirs.user_cache_path", nobody)
    else:
        (tmp_path / "home").write_text("")
        monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "home" / "cutlass_py")
    assert not best(problem(512, 512, 512).problem).measured
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", "~nobody-of-this-name")
    assert not best(problem(512, 512, 512).problem).measured


def test_splits_are_taken_from_kernels_that_have_them(core):
    args = problem(**FEW_TILES)
    stream_k = next(choice for choice in rank(args.problem) if "streamk" in choice.route.kernel.name)
    remember(args.problem, entry_for(stream_k, splits=4))
    assert not any(choice.measured for choice in rank(args.problem))


def test_gpus_have_tables_of_their_own():
    paths = {
        tuned.path_of(Gpu(name, 90, count, 1.0)) for name in ("NVIDIA H100 PCIe", "NVIDIA H200") for count in (114, 132)
    }
    assert (
        len(paths) == 4
        and tuned.path_of(Gpu("NVIDIA H100 PCIe", 90, 114, 1.0)).name == "tuned-nvidia-h100-pcie-114.json"
    )


# ---------------------------------------------------------------------------------------- tune


def test_tune_keeps_the_fastest(clock):
    args = problem(512, 512, 512)
    usual = tuning._distinct(rank(args.problem))
    slow = usual[4]
    ours = slow.route.kernel.name
    measured = clock(lambda made: (3.0 if made.kernel == ours and made.splits == 1 else 4.0) + made.raster / 100)
    found = cutlass_py.tune(args, candidates=12)
    assert [len(plans) for plans in measured][0] == min(12, len(usual))
    assert found.best.choice.route == slow.route and found.best.microseconds == 3
    assert found.default.choice == usual[0] and found.default.microseconds == 4
    times = [m.microseconds for m in found.measured][: len(measured[1])]
    assert times == sorted(times) and times[0] < times[-1] and "1.33 times as fast as the choice before" in str(found)
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
        cutlass_py.tune(problem(512, 512, 512))
    assert {"one", "another", alike.name} <= {made.kernel for made in measured[0]}


def test_tune_tries_the_orders_of_tiles(clock):
    args = problem(4096, 4096, 4096)
    clock(lambda made: 5.0 - made.raster - made.swizzle / 10)
    chosen = cutlass_py.tune(args).best.choice
    assert (chosen.raster, chosen.swizzle) == (2, 2) and best(args.problem).swizzle == 2


def test_tune_passes_over_what_does_not_run(clock):
    args = problem(512, 512, 512)
    usual = rank(args.problem)
    first = usual[0].route.kernel.name
    clock(lambda made: float("inf") if made.kernel == first else 4.0)
    tuning = cutlass_py.tune(args)
    assert all(m.choice.route.kernel.name != first for m in tuning.measured)
    assert tuning.default is None and "the choice before does not run" in str(tuning)
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
    tuning = cutlass_py.tune(problem(**FEW_TILES, splits=2))
    assert all(m.choice.route.splits == 2 for m in tuning.measured)
    assert not tuned.lookup(problem(**FEW_TILES).problem, ABSENT)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (GemmArguments(HOST, HOST), ValueError, "on the CPU; kernels are measured on a GPU"),
        (problem(8, 8, 0), ValueError, "no product to compute"),
        (problem(8, 0, 8), ValueError, "no product to compute"),
        (3, TypeError, "^tune: a is an int and b is missing; expected both operands, or GemmArguments$"),
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
    measured = clock(lambda made: 4.0 if made.splits == 1 else 2.0)
    p = problem(**FEW_TILES).problem
    plan(p)
    assert not measured
    with cutlass_py.autotuning():
        assert _core.tuning_allowed()
        assert plan(p).splits > 1
        calls = len(measured)
        assert calls == 2
        plan(p)
        plan(problem(**FEW_TILES, splits=2).problem)
        plan(problem(8, 8, 0).problem)
        assert len(measured) == calls
        plan(problem(512, 512, 512).problem)
        assert len(measured) == 2 * calls and _core.tuning_allowed()
    assert not _core.tuning_allowed()


@pytest.mark.parametrize("obstacle", ["memory", "table"])
def test_autotuning_that_fails_warns_once_and_lets_the_call_run(clock, table, monkeypatch, obstacle):
    measured = clock(lambda made: float("inf") if obstacle == "memory" else 4.0)
    if obstacle == "table":
        table.write_text("{")
        with pytest.warns(RuntimeWarning, match="tuned choices are left out"):
            tuned.table(ABSENT)
    monkeypatch.setattr("cutlass_py.choice.tuning._given_up", set())
    p = problem(512, 512, 512).problem
    with cutlass_py.autotuning():
        with pytest.warns(RuntimeWarning, match="is not tuned: "):
            assert plan(p).kernel
        before = len(measured)
        assert plan(p).kernel and len(measured) == before
    assert obstacle == "memory" or not measured  # nothing is measured that cannot be kept


def test_autotuning_does_not_compile_and_does_not_wait_for_what_is_not_there(clock):
    measured = clock(lambda made: 4.0)
    p = problem(512, 512, 512).problem
    other = next(k.name for k in cutlass_py.get_kernels(problem(512, 512, 512), compiled=False) if not k.compiled)
    remember(p, entry_for(rank(p)[0], kernel=other))
    with cutlass_py.autotuning():
        plan(p)
    assert measured and best(p).measured


def test_autotuning_is_over_after_an_error_and_holds_for_one_thread():
    with pytest.raises(KeyError), cutlass_py.autotuning():
        seen = []
        thread = threading.Thread(target=lambda: seen.append(_core.tuning_allowed()))
        thread.start()
        thread.join()
        assert seen == [False]
        raise KeyError
    assert not _core.tuning_allowed()


# ---------------------------------------------------------------------------------------- command line


@pytest.fixture
def gpu(clock, monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr("cutlass_py.gpu.device", lambda ordinal: ABSENT)
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


def test_command_prints_json(gpu, tmp_path, capsys):
    (tmp_path / "problems.json").write_text(json.dumps([{"m": 512, "n": 512, "k": 512, "a": "bf16"}]))
    assert main(["tune", str(tmp_path / "problems.json"), "--json", "--candidates", "3"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["default"]["microseconds"] == 4 and len(found["measured"]) >= 3


def test_command_needs_a_gpu(capsys):
    if _core.device_count():
        pytest.skip("there is one")
    assert main(["tune"]) == 2
    assert "tune: needs a GPU" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- shipped tables


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Two directories of tables, the first above the second; what puts a table of the stand-in GPU into one."""
    places = [tmp_path / "pack", tmp_path / "package"]
    monkeypatch.setattr(tuned, "PLACES", places)

    def put(index, entries):
        places[index].mkdir(exist_ok=True)
        (places[index] / tuned.file_name(ABSENT.name, ABSENT.sm_count)).write_text(tuned.dumps(ABSENT, entries))
        tuned.forget()

    return put


def test_the_package_s_own_directory_is_there():
    (place,) = tuned.PLACES
    assert place.is_dir() and (place / "README.md").is_file()
    for path in place.glob("*.json"):  # what is shipped is a table of the GPU that its name says
        content = json.loads(path.read_text())
        gpu = Gpu(content["gpu"], 90, content["sm_count"], 1.0)
        assert path.name == tuned.file_name(gpu.name, gpu.sm_count) and tuned.read(path, gpu)


def test_shipped_tables_are_below_the_user_s(core, shipped):
    args = problem(512, 512, 512)
    usual = rank(args.problem)
    key = class_of(args.problem)
    assert not best(args.problem).measured
    shipped(1, {key: entry_for(usual[3])})
    assert best(args.problem).route == usual[3].route and best(args.problem).measured
    shipped(0, {key: entry_for(usual[2])})
    assert best(args.problem).route == usual[2].route
    remember(args.problem, entry_for(usual[1]))
    assert best(args.problem).route == usual[1].route
    assert [entry.kernel for entry in tuned.lookup(args.problem, ABSENT)] == [
        choice.route.kernel.name for choice in usual[1:4]
    ]


def test_an_entry_that_cannot_be_taken_leaves_the_word_to_the_next(core, shipped):
    args = problem(512, 512, 512)
    usual = rank(args.problem)
    key = class_of(args.problem)
    shipped(0, {key: entry_for(usual[2], kernel="of_another_version")})
    shipped(1, {key: entry_for(usual[3])})
    assert best(args.problem).route == usual[3].route


def test_a_broken_shipped_table_warns_and_is_left_out(core, shipped):
    args = problem(512, 512, 512)
    shipped(0, {})
    (tuned.PLACES[0] / tuned.file_name(ABSENT.name, ABSENT.sm_count)).write_text("{")
    with pytest.warns(RuntimeWarning, match="tuned choices are left out: .*pack.*not JSON"):
        assert not best(args.problem).measured


def test_afresh_sees_shipped_tables_alone_and_keeps_nothing(clock, shipped):
    args, other = problem(512, 512, 512), problem(256, 512, 512)
    usual = tuning._distinct(rank(args.problem))
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
