"""benchmarks/ragged_dot.py: which problems JAX's own can compute, and a run on the CPU."""

from __future__ import annotations

import json

import pytest

from cutlass_py.operations.grouped_gemm.suites import Experts

SMALL = Experts("rows", "3/4 empty", (0, 5, *[0] * 13, 3), 16, 24)


@pytest.fixture
def ragged(script):
    pytest.importorskip("jax")
    return script("ragged_dot")


def test_problems_that_every_expert_may_multiply_whole(ragged):
    """A seed draws the same ones; more of them go on where fewer end."""
    found = ragged.problems(7, 12)
    assert found == ragged.problems(7, 12) and ragged.problems(7, 5) == found[:5] and ragged.problems(8, 5) != found[:5]
    for p in found:
        assert len(p.sizes) >= 16 and len(p.sizes) * p.flop <= 2e13 and 2 * len(p.sizes) * p.lines * p.k <= 8e9


def test_a_run(ragged, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ragged, "problems", lambda seed, number: [SMALL] * number)
    path = tmp_path / "x.json"
    assert ragged.main(["--problems", "2", "--seed", "3", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["seed"] == 3 and len(found["timed"]) == 2
    for record in found["timed"]:
        assert {*record["us"]} == {*record["bytes"]} == {"jax", "cutlass_py"} and record["error"] < 0.01
        assert record["ratio"] == pytest.approx(record["us"]["jax"] / record["us"]["cutlass_py"], rel=1e-4)
    printed = capsys.readouterr().out
    assert "2 problems, seed 3" in printed and "JAX's time over ours: " in printed


def test_one_that_fails_does_not_lose_the_others(ragged, monkeypatch, tmp_path, capsys):
    measure = ragged.measure

    def fails(p, jax):
        if p is SMALL:
            raise MemoryError
        return measure(p, jax)

    other = Experts("rows", "even", (2,) * 16, 16, 24)
    monkeypatch.setattr(ragged, "measure", fails)
    monkeypatch.setattr(ragged, "problems", lambda seed, number: [SMALL, other])
    path = tmp_path / "x.json"
    assert ragged.main(["--json", str(path)]) == 1 and len(json.loads(path.read_text())["timed"]) == 1
    assert f"FAILED: {SMALL}: MemoryError" in capsys.readouterr().out


def test_a_wrong_result_is_told(ragged, monkeypatch, tmp_path, capsys):
    import jax

    arms = {"jax": jax.lax.ragged_dot, "cutlass_py": lambda *given: jax.lax.ragged_dot(*given) + 1}
    monkeypatch.setattr(ragged, "_arms", lambda jax, cj: arms)
    monkeypatch.setattr(ragged, "problems", lambda seed, number: [SMALL] * number)
    assert ragged.main(["--problems", "1", "--json", str(tmp_path / "x.json")]) == 1
    assert f"WRONG: {SMALL}\n" in capsys.readouterr().out
