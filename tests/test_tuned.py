"""Tuned choices as data: classes and tables as text, the user's and the shipped, and what selection makes of them."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest
from specs import DEVICE, problem
from tuned_tables import FEW_TILES, entry_for, remember

import cutlass_py
from cutlass_py import TensorSpec, _core, explain
from cutlass_py.arrays.gpu import ABSENT, Gpu, device, gpu_with
from cutlass_py.compiling import cache
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.operation import class_of
from cutlass_py.operations.gemm.operation import OPERATION

pytestmark = pytest.mark.usefixtures("table")
TABLE = '{"format": 1, "gpu": "%%s", "sm_count": 132, "entries": {"m=1": %s}}'
UNUSABLE = [
    ("splits", "2"), ("splits", 0), ("splits", 1 << 40), ("raster", 3), ("swizzle", 3), ("swizzle", 10**30),
    ("microseconds", 0), ("kernel", None),
]  # fmt: skip


def values_of(**changes):
    values = {"kernel": "x", "splits": 1, "raster": 0, "swizzle": 1, "microseconds": 1, "driver": 1, "version": ""}
    return json.dumps(values | changes)


# ---------------------------------------------------------------------------------------- classes


def test_a_machine_without_a_gpu_assumes_what_the_real_one_says(monkeypatch):
    info = {"name": "NVIDIA H200", "cc": 90, "sm_count": 132, "driver": 13000}
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr(_core, "device_info", lambda ordinal: info)
    monkeypatch.setattr(_core, "clusters_at_once", lambda ordinal: ABSENT.clusters)
    real = device.__wrapped__(0)
    assert real == dataclasses.replace(ABSENT, absent=False, driver=13000)
    assert tuned.path_of(ABSENT) == tuned.path_of(real)
    assert (str(real), str(ABSENT)) == ("NVIDIA H200", "an absent NVIDIA H200")


def test_clusters_of_a_gpu_that_is_not_asked():
    assert ABSENT.clusters == (0, 132, 66, 39, 30, 22, 17, 15, 15)
    assert gpu_with(80).clusters == (0, 108, 54, 36, 27, 21, 18, 15, 13)
    assert Gpu("NVIDIA H100 PCIe", 90, 114, 1.0).clusters == (0, 114, 57, 38, 28, 22, 19, 16, 14)
    assert Gpu("a GPU", 90, 132, 1.0, clusters=(0, 132, 60)).clusters == (0, 132, 60)


def test_every_attribute_of_a_problem_is_in_its_class_or_left_out_knowingly():
    members = {name: getattr(_core.Problem, name) for name in dir(_core.Problem) if not name.startswith("_")}
    attributes = {name for name, member in members.items() if not callable(member)}
    key, others = set(OPERATION.key), set(OPERATION.not_in_key)
    assert key | others == attributes and not key & others


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


# ---------------------------------------------------------------------------------------- shipped tables


def test_the_package_s_own_directory_is_there(monkeypatch):
    monkeypatch.undo()  # by_the_model
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


def test_what_was_measured_of_bf16_is_an_estimate_of_f16(core):
    args, of_bf16 = (problem(512, 512, 512, dtype=dtype).problem for dtype in ("f16", "bf16"))
    usual = rank(args)
    last = usual[-1].route.kernel.name
    remember(of_bf16, entry_for(usual[-1], kernel=last.replace("f16", "bf16"), raster=2))
    first = best(args)
    assert (first.route.kernel.name, first.raster, first.measured) == (last, 2, False)
    assert not tuned.lookup(args, ABSENT)  # autotuning measures it, and keeps what it finds
    remember(args, entry_for(usual[0]))
    assert best(args).route == usual[0].route and best(args).measured


@pytest.mark.parametrize(
    ("dtype", "keywords"),
    [("f16", {"compute": "f16"}), ("f16", {"c": TensorSpec((512, 512), "bf16", device=DEVICE)}), ("e4m3", {})],
)
def test_of_others_it_says_nothing(core, dtype, keywords):
    """Sums in f16 have kernels of their own; of other operands no kernel has the name that f16 would give it."""
    out = TensorSpec((512, 512), "f16", device=DEVICE)
    p = problem(512, 512, 512, dtype=dtype, out=out, **keywords).problem
    key = class_of(p).replace("=f16", "=bf16")
    assert key != class_of(p)
    tuned.record(ABSENT, {key: entry_for(rank(problem(512, 512, 512).problem)[0])}, here=True)
    assert not list(tuned.lookups(p, ABSENT))


def test_a_broken_shipped_table_warns_and_is_left_out(core, shipped):
    args = problem(512, 512, 512)
    shipped(0, {})
    (tuned.PLACES[0] / tuned.file_name(ABSENT.name, ABSENT.sm_count)).write_text("{")
    with pytest.warns(RuntimeWarning, match="tuned choices are left out: .*pack.*not JSON"):
        assert not best(args.problem).measured


def test_the_package_s_own_table_is_looked_up(monkeypatch):
    monkeypatch.undo()  # by_the_model
    tuned.forget()
    try:
        p = problem(m=64, n=4096, k=4096).problem
        (first, *_) = rank(p, compiled=False)
        shipped = tuned.read(tuned.PLACES[0] / tuned.file_name("NVIDIA H200", 132), ABSENT)
        assert first.measured and first.route.kernel.name == shipped[class_of(p)].kernel
    finally:
        tuned.forget()


def test_a_thread_that_forgets_is_no_ones_loss(table):
    """Whoever looks something up meanwhile sees the tables before or after."""
    p, stop, raised = problem(512, 512, 512).problem, threading.Event(), []

    def look():
        try:
            while not stop.is_set():
                tuned.lookup(p, ABSENT)
        except KeyError as error:
            raised.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        tuned.forget()
    stop.set()
    for thread in threads:
        thread.join()
    assert not raised
