"""Suites that are drawn anew: what a seed draws, what is said of it, and results that a later run goes on with."""

from __future__ import annotations

import json
import random
import re
import secrets
from datetime import datetime
from math import exp, log, log2
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpu import record_of

from cutlass_py.bench import environment as bench_environment
from cutlass_py.bench import frameworks, results, runs, suites
from cutlass_py.bench.report import summarise, summary_table
from cutlass_py.bench.suites import Case, case_of
from cutlass_py.commands import main
from cutlass_py.operations.gemm import suites as gemm_suites
from cutlass_py.operations.gemm.suites import RANDOM, few_tiles

ROOT = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------------------------------- the draw


@pytest.mark.parametrize(("suite", "first"), [
    ("random", [(1, 24, 2472, 1320), (1, 1, 64, 99), (1, 64, 128, 2112), (1, 280, 14827, 7648)]),
    ("random-batched", [(12, 33, 24, 99), (33, 20, 23, 128), (3, 50, 1664, 128), (2, 1032, 32, 80)]),
    ("random-odd", [(1, 25, 4, 1545), (1, 2, 193, 212), (1, 1, 141, 21), (1, 68, 1, 30)]),
])  # fmt: skip
def test_a_seed_draws_the_same_problems_for_ever(suite, first):
    """Stored results name their seed: a change of the draw would make them say something else."""
    assert list(RANDOM[suite].shapes(7, 4)) == first
    assert RANDOM[suite].shapes(7, 40)[:4] == tuple(first) and RANDOM[suite].shapes(8, 4) != tuple(first)


def test_nothing_but_uniform_numbers_is_asked_of_the_generator(monkeypatch):
    """What Python promises to keep is `random()` of a seed; `choice`, `randrange` and others have changed."""
    numbers = random.Random(3).random
    monkeypatch.setattr(gemm_suites, "Random", lambda seed: SimpleNamespace(random=numbers))
    assert len(RANDOM["random"].shapes(3)) == 200 and len(RANDOM["random-odd"].shapes(3)) == 50


@pytest.mark.parametrize(("suite", "least", "most"), [
    ("random", (1, 1, 64, 64), (1, 16384, 16384, 16384)),
    ("random-batched", (2, 16, 16, 16), (511, 2048, 2048, 2048)),
    ("random-layer", (1, 1, 1024, 1024), (1, 4096, 16384, 16384)),
    ("random-odd", (1, 1, 1, 17), (1, 16383, 16383, 16383)),
])  # fmt: skip
def test_extents_are_log_uniform_and_problems_bounded(suite, least, most):
    found = RANDOM[suite].shapes(1, 4000)
    assert len(set(found)) == 4000
    for index, (low, high) in enumerate(zip(least, most, strict=True)):
        extents = [shape[index] for shape in found]
        assert low <= min(extents) and max(extents) <= high
        if high > low:
            assert min(extents) < 1.1 * low + 1 and max(extents) > 0.9 * high
            middle = exp(sum(map(log, extents)) / 4000)
            assert abs(log2(middle) - log2(low * high) / 2) < 0.6  # of 7 to 14 octaves
    assert max(b * m * n * k for b, m, n, k in found) <= 8192**3
    assert max(b * (m * k + k * n + m * n) for b, m, n, k in found) <= 2**29


@pytest.mark.parametrize("suite", RANDOM)
def test_the_documented_ranges(monkeypatch, suite):
    """Those of the least and the greatest number that the generator gives."""
    text = (ROOT / "docs" / "performance" / "measuring.md").read_text()
    count, *cells = re.search(rf"^\| `{suite}` \|(.*)\|[^|]*\|$", text, re.MULTILINE)[1].split("|")
    batch, m, *n_and_k = ([int(x) for x in re.findall(r"\d+", x)] for cell in cells for x in cell.split(","))
    found = []
    for uniform in (0.0, 1 - 2.0**-53):
        monkeypatch.setattr(gemm_suites, "Random", lambda seed, x=uniform: SimpleNamespace(random=lambda: x))
        found.append(RANDOM[suite].draw(gemm_suites.Draws(0)))
    n, k = n_and_k if len(n_and_k) == 2 else n_and_k * 2
    wanted = [(each[0], each[-1]) for each in (batch, m, n, k)]
    assert list(zip(*found, strict=True)) == wanted and int(count) == RANDOM[suite].count


def test_extents_are_aligned_in_all_ways():
    """A fifth is left as it comes; multiples of 128 and sizes of models are there, and odd suites have none of 8."""
    n = [shape[2] for shape in RANDOM["random"].shapes(1, 4000)]
    shares = [sum(x % granule == 0 for x in n) / 4000 for granule in (8, 64, 128)]
    assert shares == pytest.approx([0.80, 0.58, 0.43], abs=0.03)
    assert sum(x in (896, 11008, 13696) for x in n) > 20
    odd = RANDOM["random-odd"].shapes(1)
    assert all(extent % 8 for shape in odd for extent in shape[1:])
    assert {1} == {m for _, m, _, _ in odd if m < 2} == {n for _, _, n, _ in odd if n < 2}


@pytest.mark.parametrize(("shape", "few"), [
    ((1, 16, 4160, 1501), True), ((1, 16, 4161, 1501), False), ((1, 16, 4160, 1500), False),
    ((65, 64, 64, 2000), True), ((33, 64, 65, 2000), False), ((1, 65, 2048, 9000), True),
])  # fmt: skip
def test_few_tiles_and_long_k(shape, few):
    assert few_tiles(shape) == few


def test_cases_of_a_seed():
    found = suites.cases(["random", "square"], ["bf16", "e4m3"], ["tn"], seed=3, count=30)
    dense = RANDOM["random"].shapes(3, 30)
    assert [c.shape for c in found if (c.suite, c.dtype) == ("random", "bf16")] == list(dense)
    fp8 = [c.shape for c in found if (c.suite, c.dtype) == ("random", "e4m3")]
    assert fp8 == [shape for shape in dense if shape[2] % 16 == shape[3] % 16 == 0] and 0 < len(fp8) < 30
    assert len(suites.cases(["random"], layouts=["tn"], every=7)) == 29


# ---------------------------------------------------------------------------------------- what is said


@pytest.mark.parametrize(("count", "place"), [(1, 1), (20, 1), (21, 2), (40, 2), (200, 10)])
def test_the_5th_percentile(count, place):
    assert results.percentile(range(count, 0, -1), 5) == place


def test_the_summary_of_drawn_problems():
    """By layout and regime; few tiles and long k apart, below. Other suites have neither."""
    shapes = [(1, 8, 64, 2000), (1, 64, 64, 4096), *((1, 4096, 4096, 64 + i) for i in range(38))]
    ratios = [0.5, 2.0, 0.6, *(1.0 + i / 100 for i in range(37))]
    records = [
        record_of(Case("random", "bf16", layout, shape), ratio, ratio + 1)
        for layout in ("tn", "nn")
        for shape, ratio in zip(shapes, ratios, strict=True)
    ]
    rows = summarise(records)
    assert [(r["layout"], r["regime"], r.get("class"), r["cases"]) for r in rows] == [
        (layout, regime, name, cases)
        for layout in ("tn", "nn")
        for regime in ("sustained", "mixed")
        for name, cases in ((None, 40), ("few tiles, long k", 2))
    ]
    assert (rows[0]["percentile_5"], rows[0]["worst"], rows[0]["worst_shape"]) == (0.6, 0.5, [1, 8, 64, 2000])
    assert (rows[1]["percentile_5"], rows[1]["geomean"]) == (0.5, 1.0)
    titles, cells = summary_table(rows)
    line = dict(zip(titles, cells[1], strict=True))
    assert (
        line["suite"] == "random: few tiles, long k" and line["5%"] == "0.500" and line["worst at"] == "(8, 64, 2000)"
    )
    other = summarise([record_of(Case("llm", "bf16", "tn", shapes[0]), 0.5)])
    assert len(other) == 1 and "5%" not in summary_table(other)[0]


# ---------------------------------------------------------------------------------------- the command


@pytest.fixture
def measured(fake_gpu, monkeypatch):
    """The cases that are measured, each as twice as fast."""
    found = []

    def measure(case, settings, gpu):
        found.append(case)
        return record_of(case, 2.0) | {"chosen": {"kernel": "x"}, "error": {"cutlass_py": 0.0}}

    monkeypatch.setattr(runs, "measure", measure)
    return found


def test_a_new_seed_is_printed_and_kept(measured, monkeypatch, capsys, tmp_path):
    path = tmp_path / "x.json"
    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)
    options = ["bench", "--suite", "random", "--layout", "tn", "--regime", "sustained"]
    assert main([*options, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    found = results.read(path)
    assert "200 cases, seed 4294967295\n" in printed and (found["seed"], found["count"]) == (4294967295, None)
    assert "random: few tiles, long k" in printed
    first = [case.shape for case in measured]
    assert tuple(first) == RANDOM["random"].shapes(4294967295)
    measured.clear()
    assert main([*options, "--seed", "4294967295", "--count", "210", "--json"]) == 0
    assert [case.shape for case in measured][:200] == first and len(measured) == 210
    assert json.loads(capsys.readouterr().out)["seed"] == 4294967295


def test_a_run_goes_on_where_it_ended(measured, monkeypatch, capsys, tmp_path):
    """With the seed of the file; what failed is measured again, and a larger count adds to it."""
    path, measure, left = tmp_path / "x.json", runs.measure, [7]

    def ends(case, settings, gpu):
        left[0] -= 1
        if left[0] == 3:
            raise MemoryError
        if left[0] < 0:
            raise KeyboardInterrupt
        return measure(case, settings, gpu)

    options = ["bench", "--suite", "random-odd", "--layout", "tn", "--commit", "abc", "--json", str(path), "--resume"]
    dates = [f"2026-01-0{day}T00:00:00+00:00" for day in range(1, 9)]
    monkeypatch.setattr(
        bench_environment, "datetime", SimpleNamespace(now=lambda _: datetime.fromisoformat(dates.pop(0)))
    )
    monkeypatch.setattr(runs, "measure", ends)
    assert main([*options, "--count", "10"]) == 130  # there is no file yet
    before = results.read(path)
    assert len(before["cases"]) == 7 and len(measured) == 6 and not before["complete"]
    monkeypatch.setattr(runs, "measure", measure)
    measured.clear()
    assert main(options) == 0 and "10 cases, 6 of them measured before, seed " in capsys.readouterr().out
    found = results.read(path)
    assert len(measured) == 4 and found["complete"] and before["date"].startswith("2026-01-01")
    assert found["date"] == before["date"] and [date[:10] for date in found["resumed"]] == ["2026-01-02"]
    assert (found["seed"], found["count"]) == (before["seed"], 10)
    drawn = RANDOM["random-odd"].shapes(before["seed"], 12)
    assert {case_of(record).shape for record in found["cases"]} == set(drawn[:10])
    measured.clear()
    assert main([*options, "--count", "12"]) == 0
    assert [case.shape for case in measured] == list(drawn[10:])
    assert results.read(path)["date"] == before["date"] and len(results.read(path)["resumed"]) == 2
    monkeypatch.setattr(runs, "warm_up", lambda *_: pytest.fail("nothing is left to measure"))
    assert main(options) == 0 and len(measured) == 2


@pytest.mark.parametrize(("more", "message"), [
    (["--suite", "random", "--seed", "8"], "its seed is 7; expected 8"),
    (["--suite", "random", "--commit", "def"], "its commit is 'abc'; expected 'def'"),
    (["--suite", "random", "--budget-ms", "9"], "its settings is "),
    (["--suite", "random", "--count", "2"], "it has 1 cases that are not asked for, such as bf16 tn (64, 128, 2112)"),
    (["--suite", "square"], "its seed is 7; expected None"),
])  # fmt: skip
def test_a_run_goes_on_with_nothing_else(measured, capsys, tmp_path, more, message):
    path = tmp_path / "x.json"
    options = ["bench", "--layout", "tn", "--commit", "abc", "--json", str(path)]
    assert main([*options, "--suite", "random", "--seed", "7", "--count", "3"]) == 0
    before, _ = path.read_bytes(), capsys.readouterr()
    assert main([*options, "--resume", *more]) == 2
    said = capsys.readouterr().err
    assert f"bench: cannot go on with {path}: " in said and message in said and path.read_bytes() == before


def test_a_case_that_is_no_random_one_goes_on_too(fake_gpu, capsys, tmp_path):
    path = tmp_path / "x.json"
    options = ["bench", "--shape", "24,16,8", "24,16,8", "--dtype", "f32", "--budget-ms", "1", "--commit", "abc"]
    options += ["--json", str(path), "--resume"]
    for calls in (True, False):
        fake_gpu.calls.clear()
        assert main(options) == 0 and bool(fake_gpu.calls) == calls
        found = results.read(path)
        assert len(found["cases"]) == 4 and found["complete"]
    for content, message in (
        ("{}", "holds no cases of suites"),
        ("null", "expected an object as `bench --json` writes"),
    ):
        path.write_text(f'{{"machine": {content}, "rows": []}}')
        assert main(options) == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("commit", [None, "abc+changes"])
def test_a_run_goes_on_with_a_commit_alone(measured, monkeypatch, capsys, tmp_path, commit):
    """No name, and changes that have none, may be those of another tree: that is said before anything is measured."""
    monkeypatch.setattr(bench_environment, "_commit", lambda: commit)
    path = tmp_path / "x.json"
    options = ["bench", "--shape", "24,16,8", "--dtype", "f32", "--json", str(path)]
    assert main(options) == 0 and measured
    before = path.read_bytes()
    measured.clear()
    for place in (path, tmp_path / "y.json"):
        assert main([*options, "--resume", "--json", str(place)]) == 2
        said = capsys.readouterr().err
        assert (
            f"one commit; found {commit}, which may stand for several trees: name what is measured by --commit" in said
        )
    assert not measured and path.read_bytes() == before and not (tmp_path / "y.json").exists()


@pytest.mark.parametrize(("options", "message"), [
    (["--seed", "7"], f"--seed and --count are of --suite {', '.join(RANDOM)}; found none of them"),
    (["--suite", "llm", "--count", "7"], "random-odd; found llm"),
    (["--bars", "key", "--seed", "7"], "random-odd; found none of them"),
    (["--suite", "random", "--resume"], "--resume goes on with a file: expected --json FILE"),
    (["--suite", "random", "--resume", "--json"], "--resume goes on with a file: expected --json FILE"),
    (["--suite", "random-odd", "--dtype", "s8"], "the reference takes none of these problems"),
    (["--from", "results.json", "--seed", "7"], "bench: --from measures nothing: of the other options only"),
    (["--operation", "gemm", "--seed", "7"], "only --every and --json without a file go with --operation"),
])  # fmt: skip
def test_wrong_usage(fake_gpu, capsys, options, message):
    assert main(["bench", *options]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out


@pytest.mark.parametrize("options", [["--seed", "-1"], ["--seed", "x"], ["--count", "0"], ["--count", "1.5"]])
def test_numbers_that_are_none(capsys, options):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--suite", "random", *options])
    assert stopped.value.code == 2
    least = {"--seed": 0, "--count": 1}[options[0]]
    assert f"argument {options[0]}: '{options[1]}' is no whole number of {least} or more" in capsys.readouterr().err


def test_without_a_gpu_what_is_wrong_is_said_first(monkeypatch, capsys):
    monkeypatch.setattr(frameworks, "framework", lambda: pytest.fail("a GPU is asked for"))
    assert main(["bench", "--suite", "square", "--seed", "1"]) == 2
    assert "found square" in capsys.readouterr().err
