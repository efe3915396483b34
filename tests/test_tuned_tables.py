"""Tables of tuned choices as a script writes them: of exports, of the bench's results, of sweeps in both regimes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from cutlass_py.arrays.gpu import Gpu
from cutlass_py.bench.suites import Case
from cutlass_py.declaration.families import named
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.tuned import Entry
from cutlass_py.kernels.operation import class_of
from cutlass_py.operations.gemm.problems import arguments

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
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
