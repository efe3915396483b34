"""What is made of the benchmarks' results: summaries, the page of performance, pictures, what README quotes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cutlass_py.bench.report import summarise
from cutlass_py.bench.results import geomean, percentile
from cutlass_py.bench.suites import DEFAULT, is_case

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"


def test_the_page_is_what_the_results_say(script, capsys):
    performance = script("performance")
    refresh = "refresh it by: python benchmarks/performance.py"
    assert performance.main(["--check"]) == 0, refresh
    assert performance.page(performance.results()) == performance.PAGE.read_text(), refresh


def test_summaries_are_as_they_are_written(script):
    """Small, one for each GPU, in the form that the command gives them, and with nothing that a later run has too."""
    summary = script("summary")
    for path in summary.RESULTS.iterdir():
        found = summary.read_summary(path)
        (gpu,) = {result["machine"]["gpu"] for result in found}
        assert path.name == f"{summary.slug(gpu)}.json" and path.stat().st_size < 200_000
        assert path.read_text() == summary.text(summary.packed(found))


def test_the_page_says_what_its_numbers_are_of(script):
    performance = script("performance")
    text = performance.PAGE.read_text()
    for result in performance.contributing(performance.results()):
        machine = result["machine"]
        for fact in (result["commit"][:7], result["date"][:10], machine["gpu"], machine["driver_version"]):
            assert fact in text
        assert result["versions"]["torch"] in text
        name = re.sub(r"^(.{7})[^+]*", r"\1", result["commit"])
        about = re.findall(
            rf"^\*\*These numbers are of commit {re.escape(name)}\*\*.+?\n\n", text, re.MULTILINE | re.DOTALL
        )
        for record in filter(is_case, result["cases"]):
            assert f"{record['dtype']} {record['mode']} (" in " ".join("".join(about).split())
    assert all(len(line) <= 128 for line in text.splitlines() if not line.startswith("|"))


# What rows of the README's table are about: an arithmetic, and the suite.
QUOTED = {
    "bf16 tn": ("bf16", "random"), "bf16 tt": ("bf16", "random"), "bf16 nn": ("bf16", "random"),
    "bf16 nt": ("bf16", "random"), "of these, rows that are multiples of 16 bytes": ("bf16", "random"),
    "f16, all layouts": ("f16", "random"), "bf16, odd extents, m and n of 1 among them": ("bf16", "random-odd"),
    "bf16, batches": ("bf16", "random-batched"), "e4m3, `torch._scaled_mm`": ("e4m3", "random"),
    "e4m3, fast accumulation": ("e4m3_fast", "random"), "e4m3, scales by row and column": ("e4m3_vector", "random"),
    "e4m3, scales in blocks": ("e4m3_block", "random"), "tf32, all layouts": ("tf32", "random"),
    "s8": ("s8", "random"), "f64, all layouts": ("f64", "random"),
}  # fmt: skip


def by_16_bytes(record) -> bool:
    """Of a record in bf16, whether TMA reads the operands, and stores the result."""
    (a, b), m, n, k = record["layout"], record["m"], record["n"], record["k"]
    return not any(line % 8 for line in (k if a == "t" else m, n if b == "t" else k, n))


def test_the_readme_quotes_the_results(script):
    performance = script("performance")
    found = performance.measured(performance.by_gpu(performance.results())["NVIDIA H200"])
    measured = [r for r in performance.by_suite(found) if r["mode"] == DEFAULT]
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.; ]+) \| ([\d.; ]+) \|$", text, re.MULTILINE)
    assert [row[0] for row in rows] == list(QUOTED)
    for what, count, *quoted in rows:
        dtype, suite = QUOTED[what]
        records = [r for r in measured if (r["dtype"], r["suite"]) == (dtype, suite)]
        if len(what) == len("bf16 tn"):
            records = [r for r in records if r["layout"] == what[-2:]]
        if "16 bytes" in what:
            records = list(filter(by_16_bytes, records))
        assert len(records) == int(count), what
        for regime, said in zip(("sustained", "mixed"), quoted, strict=True):
            ratios = [r[regime]["ratio"] for r in records]
            numbers = geomean(ratios), percentile(ratios, 5), min(ratios)
            assert said == "; ".join(f"{x:.2f}" for x in numbers), what


def test_the_readme_quotes_known_shapes(script):
    performance = script("performance")
    found = performance.measured(performance.by_gpu(performance.results())["NVIDIA H200"])
    rows = [r for r in summarise(performance.by_suite(found)) if (r["suite"], r["dtype"]) == ("llm", "bf16")]
    text = " ".join((ROOT / "README.md").read_text().split())
    count, sustained, mixed = re.search(
        r"Known shapes of language models, (\d+) a layout, reach ([\d., and]+) sustained and ([\d., and]+) mixed in "
        r"bf16 tn, tt, nn and nt,",
        text,
    ).groups()
    for regime, said in (("sustained", sustained), ("mixed", mixed)):
        of_layouts = {r["layout"]: r for r in rows if r["regime"] == regime}
        assert {r["cases"] for r in of_layouts.values()} == {int(count)}
        numbers = [f"{of_layouts[layout]['geomean']:.2f}" for layout in ("tn", "tt", "nn", "nt")]
        assert re.findall(r"[\d.]+\d", said) == numbers


def test_the_pictures_can_be_drawn(script, tmp_path):
    """Those that the site's build puts where the page says."""
    pytest.importorskip("matplotlib")
    performance = script("performance")
    assert performance.main(["--plot", str(tmp_path)]) == 0
    places = re.findall(r"<!-- pictures of (\S+): docs/site/pictures.py -->", performance.PAGE.read_text())
    assert len(places) == len(performance.by_gpu(performance.results())) > 0
    assert sorted(tmp_path.rglob("*.*")) == sorted(
        tmp_path / place / name for place in places for name in ("ratio.svg", "roofline.svg")
    )
    for path in tmp_path.rglob("*.svg"):
        assert path.read_text().startswith("<?xml") and path.stat().st_size < 400_000


def test_losses_are_those_of_both_regimes(script):
    performance = script("performance")
    case = {"suite": "llm", "dtype": "bf16", "layout": "tn", "batch": 1, "n": 64, "k": 32}

    def record(m, sustained, mixed):
        return case | {"m": m, "sustained": {"ratio": sustained}, "mixed": {"ratio": mixed}}

    text, rows = performance.losses([record(1, 0.9, 0.8), record(2, 0.9, 1.0), record(4, 0.5, 0.6), record(8, 1, 1)])
    assert text.startswith("Of 4 problems, 2 are below 0.97 in every regime")
    assert rows.splitlines()[2:] == ["| bf16 tn | (64, 32) | 1 **4** | 0.73 | 0.60 |"]


CUBE = {"suite": "square", "dtype": "bf16", "layout": "tn", "batch": 1, "m": 4096, "n": 4096, "k": 4096}


def run(day, *cases, **more):
    """A result of a day."""
    machine, facts = {"gpu": "x"}, {"commit": f"c{day}", "versions": {}, "reference": "torch"}
    return {"date": f"2026-01-0{day}", **facts, "machine": machine, "cases": [*cases], **more}


def of(ratio, regime="mixed"):
    """A regime of a record."""
    return {regime: {"ratio": ratio, "us": {"torch": 2.0, "cutlass_py": 1.0}}}


@pytest.fixture(params=["as they are", "through a summary"])
def kept(request, script):
    """Results as they were measured, or as a summary has them."""
    summary = script("summary")
    return (
        (lambda found: found)
        if request.param == "as they are"
        else (lambda found: summary.unpacked(json.loads(summary.text(summary.packed(found)))))
    )


def test_a_later_result_counts(script, kept):
    """Under whatever suite it was measured; what nothing is left of is not named."""
    performance = script("performance")

    def dates(found):
        return [result["date"] for result in performance.contributing(found)]

    old, new = (run(day, CUBE | {"suite": suite} | of(day)) for day, suite in ((1, "square"), (2, "llm")))
    assert [r["mixed"]["ratio"] for r in performance.measured(kept([old, new]))] == [2]
    assert dates(kept([old, new])) == dates(kept([new, old])) == [new["date"]]
    other = run(1, *old["cases"], CUBE | {"layout": "tt"} | of(3))
    assert dates(kept([other, new])) == [other["date"], new["date"]]
    failed = run(3, CUBE | {"failed": "MemoryError"})
    assert performance.measured(kept([old, failed])) == []
    assert performance.failures(kept([old, failed])) == ["Failed: bf16 tn (4096, 4096, 4096): MemoryError."]
    assert performance.failures(kept([failed, run(4, CUBE | of(2))])) == []


def test_a_regime_that_only_an_earlier_run_has_stays(script, kept):
    performance = script("performance")
    both, one = run(1, CUBE | of(1.0) | of(1.5, "sustained")), run(2, CUBE | of(2.0))
    (record,) = performance.measured(kept([both, one]))
    assert (record["sustained"]["ratio"], record["mixed"]["ratio"]) == (1.5, 2.0)
    assert len(performance.contributing(kept([both, one]))) == 2
    failed = run(3, CUBE | {"failed": "MemoryError"})
    (record,) = performance.measured(kept([both, failed, run(4, CUBE | of(2.0))]))
    assert "sustained" not in record


def test_summaries_take_results_in(script, tmp_path, capsys):
    """Again, later and in any order; other files are passed over, and what is no result is an error."""
    summary = script("summary")
    slower = {"rounds_us": {"torch": [2.0], "cutlass_py": [1.0], "k": [0.8]}}
    sweep = CUBE | {"mode": "sweep"} | {"sustained": of(2.0, "sustained")["sustained"] | slower}
    files = {
        "new": run(3, CUBE | of(1.23456789), first_call_ms=50.0, host=[{"row": "h", "ratio": {"median": 0.5}}]),
        "old": run(1, CUBE | of(1.0), sweep, host=[{"row": "h", "ratio": {"median": 0.6}}]),
        "nothing": run(2, note="of something else"),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    for name in ("new", "old", "nothing", "new"):
        assert summary.main([str(tmp_path / name), "--into", str(tmp_path / "kept")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'kept' / 'x.json'}: 2 cases of 2 runs"
    old, new = summary.results(tmp_path / "kept")
    assert old["cases"][0]["sustained"]["choice"] == 0.8 and old["host"] == [] and old["commit"] == "c1"
    assert new["cases"][0]["mixed"] == {"ratio": 1.2346, "us": {"torch": 2.0, "cutlass_py": 1.0}}
    assert new["first_call_ms"] == 50.0 and new["host"][0]["ratio"]["median"] == 0.5
    (tmp_path / "x").write_text("[]")
    assert summary.main([str(tmp_path / "x"), "--into", str(tmp_path)]) == 2
    assert "x: expected an object" in capsys.readouterr().err


def test_of_a_sweep_the_second_reading_is_kept(script, kept):
    """Its ratio and times, as the choice beside them is of it; so summaries say the same before and after."""
    us = {"torch": 4.0, "cutlass_py": 2.0, "k": 1.0}
    finals = {"ratio": 2.0, "us": us, "rounds_us": {name: [time] for name, time in us.items()}}
    first = of(3.0, "sustained")["sustained"] | {"finals": finals}
    (found,) = kept([run(1, CUBE | {"mode": "sweep", "sustained": first})])
    (line,) = (row for row in summarise(found["cases"]) if "of" not in row)
    assert (line["geomean"], line["choice"]) == (2.0, 0.5)
    timed = found["cases"][0]["sustained"]
    if "finals" not in timed:
        assert timed == {"ratio": 2.0, "us": {"torch": 4.0, "cutlass_py": 2.0}, "choice": 0.5}


def test_a_problem_stands_in_each_of_its_suites(script):
    """A square is a problem of `llm` too; not of a suite of which nothing was measured in its dtype and mode."""
    performance = script("performance")
    cube, other = CUBE | {"suite": "llm"}, CUBE | {"m": 256, "n": 256, "k": 256}
    found = performance.by_suite(
        [cube, other, CUBE | {"suite": "shape", "m": 1}, CUBE | {"layout": "tt", "mode": "tuned"}]
    )
    assert [(r["suite"], r["m"], r["layout"]) for r in found] == [
        ("llm", 4096, "tn"), ("llm", 1, "tn"), ("square", 4096, "tn"), ("square", 256, "tn"), ("square", 4096, "tt"),
    ]  # fmt: skip


def test_what_other_scripts_write(script, monkeypatch, tmp_path, capsys):
    """Epilogues and host times have their tables, a machine without a GPU its section."""
    performance, summary = script("performance"), script("summary")
    kept = tmp_path / "kept"
    shutil.copytree(performance.RESULTS, kept)
    host = json.loads((DATA / "results.json").read_text()) | {"date": "2026-12-01"}
    cpu = {"gpu": None, "cpu": "A processor", "cpus": 8, "system": "linux"}
    row = host.pop("host")[0] | {"row": "NumPy float32 cpu, out="}
    ratios = {"fused / plain": 1.02, "torch / default": 1.1}
    fused = {"m": 8192, "n": 4096, "k": 4096, "activation": "gelu", "mixed": {"us": {"plain": 7.0}, "ratio": ratios}}
    files = {
        "host_cost-cpu": host | {"machine": cpu, "cases": [], "rows": [row]},
        "epilogue_speed-h200": host | {"cases": [fused]},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        assert summary.main([str(tmp_path / f"{name}.json"), "--into", str(kept)]) == 0
    monkeypatch.setattr(performance, "RESULTS", kept)
    text = performance.page(performance.results(kept))
    assert "## no GPU" in text and "A processor, 8 processors, no GPU, torch" in text
    assert re.search(r"^\| gelu \| \(8192, 4096, 4096\) \| mixed \| 7.0 \| 1.020 \| .*1.100", text, re.MULTILINE)
    (kept / "x.json").write_text("[]")
    assert performance.main(["--check"]) == 2 and "x.json: expected a summary" in capsys.readouterr().err


def test_another_page_is_noticed(script, monkeypatch, tmp_path, capsys):
    performance = script("performance")
    monkeypatch.setattr(performance, "PAGE", tmp_path / "page.md")
    assert performance.main(["--check"]) == 1
