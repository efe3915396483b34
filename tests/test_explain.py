"""Answers of explain: in words, as plain data, as a table; and that every reason says what was expected and found."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from specs import CORE, listed, operand, problem, vector

from cutlass_py import GemmArguments, TensorSpec, explain
from cutlass_py.dispatch import candidates
from cutlass_py.dispatch.candidates import rank
from cutlass_py.kernels.registry import kernel_named
from cutlass_py.operations.gemm.cost import Estimates
from cutlass_py.support import terminal

# ---------------------------------------------------------------------------------------- in words


def test_explain_on_a_problem_without_compiled_kernels(built):
    lines = ["(512, 512, 512) tn: e4m3 @ e4m3 -> bf16 on cuda:63", "no kernel fits"]
    built(["sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear"])
    assert str(explain(problem(dtype="e4m3"))).splitlines()[:2] == lines
    built([])
    assert explain(problem(dtype="e4m3")).note == "no kernel fits: none is compiled in this package"


def test_explain_names_transposition_batch_addend_and_compute():
    args = GemmArguments(operand(9, 5, "t", "f32", batch=3), operand(5, 7, "t", "f32", batch=3),
                         c=operand(9, 7, "t", "f16"), compute="tf32")  # fmt: skip
    assert explain(args).problem == "3 x (9, 7, 5) tt: f32 @ f32 + f16 C -> f32 computed in tf32 on cuda:63"


def test_words_about_a_and_b_say_where_these_changed_places(built):
    name = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear"
    built([name])
    a = operand(2048, 4095, "t", alignment=2)
    args = GemmArguments(a, operand(4095, 4096, "n", pad=1), out=operand(2048, 4096, "n"))
    note = "(a and b have changed places: out is column-major)"
    assert note in str(explain(args)) and note in repr(args)
    status = kernel_named(name).supports(args)
    assert "reads b by 16 bytes" in status.error and status.error.endswith(note)
    with pytest.raises(ValueError, match="does not fit") as refused:
        kernel_named(name).compile(args)
    assert str(refused.value).count(note) == 1


@pytest.mark.parametrize(
    ("keywords", "formula"),
    [
        ({"bias": vector(512), "activation": "gelu"}, "bf16 @ bf16 + bias -> gelu -> bf16"),
        ({"bias": vector((512, 1))}, "bf16 @ bf16 + bias per row -> bf16"),
        ({"aux": operand(512, 512, "t"), "activation": "relu"}, "bf16 @ bf16 (kept in aux) -> relu -> bf16"),
        ({"aux": operand(512, 512, "t"), "activation": "d_relu"}, "bf16 @ bf16 * d_relu(aux) -> bf16"),
        ({"gate": operand(512, 512, "t"), "activation": "silu"}, "bf16 @ bf16 * silu(gate) -> bf16"),
        ({"gate": operand(512, 512, "t")}, "bf16 @ bf16 * gate -> bf16"),
        ({"scale_a": vector(512, "f32"), "scale_out": 0.5}, "bf16 @ bf16 * scale_a * scale_out -> bf16"),
        ({"bias_grad": vector(512, "f32"), "out_dtype": "f32"}, "bf16 @ bf16 -> bias_grad -> f32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_explain_says_the_epilogue(keywords, formula):
    assert explain(problem(**keywords)).problem == f"(512, 512, 512) tn: {formula} on cuda:63"


@pytest.mark.parametrize(("k", "alpha"), [(0, 1.0), (64, 0.0)])
def test_explain_without_a_product(k, alpha):
    answer = explain(problem(k=k, alpha=alpha, c=operand(512, 512, "t")))
    assert answer.chosen is None and answer.ranking == ()
    assert "no product" in str(answer)


def test_explain_without_elements():
    assert explain(problem(0, 8, 8)).note == "the result has no elements"


def test_explain_on_the_cpu_names_the_provider():
    spec = TensorSpec((8, 8), "f32", device="cpu")
    answer = explain(spec, spec)
    assert answer.chosen.route.kernel.name == "cpu_gemm_numpy"
    assert str(answer).startswith("(8, 8, 8) tt: f32 @ f32 -> f32 on cpu\nchosen: cpu_gemm_numpy")
    assert answer.rejected == () and answer.not_compiled == ()


def test_explain_lists_the_kernels_that_cannot(built):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    assert answer.rejected and all(reason for _, reason in answer.rejected)
    taken = {choice.route.kernel.name for choice in answer.ranking}
    assert not taken & {k.name for k, _ in answer.rejected}
    assert f"not possible, {len(answer.rejected)} in all:" in str(answer)


def test_explain_says_what_happens_to_a_list_that_no_kernel_takes(built):
    lists = GemmArguments(listed(64, 64, "t"), listed(64, 64, "t"))
    fit, other = "sm80_gemm_bf16_bf16_f32_bf16_tt_64x64x32_32x32x32_s6_a8_linearc", "simt_gemm_f32_f32_f32_f32_tn"
    built([fit])
    answer = explain(lists)
    assert answer.chosen.route.kernel.name == fit and answer.note == ""
    built([kernel.name for kernel in CORE if kernel.name.startswith(other)])
    answer = explain(lists)
    assert answer.chosen is None and answer.note.startswith("no kernel takes it as a list: one matrix after the other")


def test_explain_takes_keywords_of_arguments_or_none():
    with pytest.raises(TypeError, match="activation belong into the GemmArguments"):
        explain(problem(), activation="relu")


@pytest.mark.parametrize(
    "args",
    [
        problem(),
        problem(layout="tt"),
        problem(k=511),
        problem(dtype="f32", out_dtype="bf16", c=operand(512, 512, "n")),
        problem(bias=vector(512), activation="hardswish"),
        problem(m=64, n=64, k=1 << 16),
    ],
    ids=str,
)
def test_explain_says_why(built, args):
    """Each kind of choice in turn, as if its kernel were the only one compiled."""
    built([k.name for k in CORE])
    ranking = rank(args.problem)
    first = {(choice.route.direct, choice.route.splits > 1): choice for choice in reversed(ranking)}
    for wanted in first.values():
        built([wanted.route.kernel.name])
        answer = explain(args)
        chosen, text = answer.chosen, str(answer)
        assert f"chosen: {wanted.route.kernel.name}" in text
        way = chosen.route.way
        assert all(f"  reason: {reason}" in text for reason in way.detours)
        for name, layout in (("a", way.pack_a), ("b", way.pack_b)):
            assert (f"  packs {name} first" in text) == bool(layout)
        assert ("composed: the product goes through" in text) == bool(way.scratch)
        assert ("splits k into" in text) == (chosen.route.splits > 1)
        assert f"estimated {chosen.microseconds:.1f} us" in text
        assert ("next of " in text) == (len(answer.ranking) > 1)


# ---------------------------------------------------------------------------------------- as data


def test_an_explanation_is_plain_data(built):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    data = json.loads(json.dumps(answer.to_dict()))
    assert data["chosen"] == answer.chosen.route.kernel.name == data["ranking"][0]["kernel"]
    assert [row["microseconds"] for row in data["ranking"]] == sorted(row["microseconds"] for row in data["ranking"])
    assert {row["kernel"]: row["reason"] for row in data["rejected"]} == {k.name: r for k, r in answer.rejected}
    assert set(data["not_compiled"]) == {k.name for k in answer.not_compiled}


def test_rows_are_the_ranking_then_a_miss_for_each_reason(built):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    rows = answer.rows()
    taken, missed = rows[: len(answer.ranking)], rows[len(answer.ranking) :]
    assert all(row.microseconds and not row.reason for row in taken)
    assert [row.reason for row in missed] == list(dict.fromkeys(reason for _, reason in answer.rejected))
    assert sum(row.others for row in missed) == len(answer.rejected)
    assert all(row.microseconds is None for row in missed)
    assert len(answer.rows(most=2)) == 4
    assert any("packs b first" in row.steps for row in taken)


def test_the_nearest_misses_come_first(built):
    built([k.name for k in CORE])
    args = problem(n=97)
    estimates = Estimates(args.problem, candidates.gpu_of(args.problem))
    times = [estimates.product(kernel) for kernel, _ in explain(args).rejected]
    assert times == sorted(times) and len(set(times)) > 1


def test_an_explanation_on_the_cpu_has_no_times():
    spec = TensorSpec((8, 8), "f32", device="cpu")
    (row,) = explain(spec, spec).rows()
    assert row == replace(row, kernel="cpu_gemm_numpy", microseconds=None, reason="")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_show_is_a_table_on_a_terminal(built, monkeypatch):
    pytest.importorskip("rich")
    built([k.name for k in CORE])
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "stdout", Terminal())
    answer = explain(problem(n=97))
    answer.show()
    text = sys.stdout.getvalue()
    assert answer.chosen.route.kernel.name in text and answer.rejected[0][1] in text and "est." in text
    built([])
    answer = explain(problem(n=97))
    answer.show()
    assert f"possible but not in the built set: {len(answer.not_compiled)} kernels" in sys.stdout.getvalue()


def test_show_is_plain_elsewhere(built, monkeypatch, capsys):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    answer.show()
    assert capsys.readouterr().out == f"{answer}\n"
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)  # rich is not there
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    answer.show()
    assert capsys.readouterr().out == f"{answer}\n"
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw, where print says nothing
    answer.show()


@pytest.mark.parametrize("args", [problem(k=511), problem(k=0), problem(dtype="e4m3")], ids=str)
def test_every_explanation_can_be_shown(built, args, monkeypatch):
    built([])
    monkeypatch.setattr(sys, "stdout", Terminal())
    explain(args).show()
    assert sys.stdout.getvalue()


# ---------------------------------------------------------------------------------------- reasons


NAMES = {"a", "b", "c", "k", "m", "n", "out", "aux", "bias", "splits", "batch", "operands", "asked"}


def test_every_reason_says_what_was_expected_and_what_was_found():
    """Over many kernels and problems: two halves, and the name of an operand, an extent or a keyword."""
    shapes = [(512, 512, 512), (65, 97, 33)]
    extras = [{}, {"bias": vector(97, "f32")}, {"c": operand(512, 512, "n")}, {"splits": 4}, {"splits": "stream"}]
    reasons = set()
    for (m, n, k), layout, extra in product(shapes, ("tn", "nt"), extras):
        keywords = {
            key: x for key, x in extra.items() if not (key == "bias" and n != 97) and not (key == "c" and n != 512)
        }
        args = problem(m, n, k, layout, "bf16", **keywords)
        reasons |= {s.error for s in (kernel.supports(args) for kernel in CORE) if s.error}
    args = GemmArguments(listed(64, 64, "t"), listed(64, 64, "n"))
    reasons |= {s.error for s in (kernel.supports(args) for kernel in CORE) if s.error}
    assert len(reasons) > 12
    for reason in reasons:
        expected, _, found = reason.partition("; ")
        assert expected and found and NAMES & set(re.findall(r"\w+", reason)), reason


def test_what_the_readme_shows_is_what_the_core_set_gives(core):
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    shown = re.search(r"explain 1085 2219 2438 --layout tn\n(.+?)\n  \.\.\.\n", readme, re.DOTALL).group(1)
    a, b = TensorSpec((1085, 2438), "bf16"), TensorSpec((2438, 2219), "bf16", (1, 2438))
    assert str(explain(a, b)).startswith(shown)
