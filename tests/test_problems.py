"""Problem files and the options of explain: every key, and errors that name file, entry and key."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_py import GemmArguments
from cutlass_py.commands import main
from cutlass_py.kernels.problem_files import arguments, read
from cutlass_py.operations.gemm.problems import KEYS

GOOD = {"m": 8, "n": 16, "k": 32, "a": "f32"}
BLOCKS = {"scale_a": "block", "scale_b": "block"}
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "problems.md"


def test_an_object_is_a_problem():
    p = arguments({"m": 8, "n": 16, "k": 32, "a": "bf16"}).problem
    assert (p.m, p.n, p.k, p.batch, p.a, p.b, p.c, p.d) == (8, 16, 32, 1, "bf16", "bf16", None, "bf16")
    assert (p.layout_a, p.layout_b, p.device) == ("t", "t", "cuda:0")


def test_the_product():
    entry = {"m": 8, "n": 16, "k": 32, "batch": 3, "layout": "nt", "a": "f32", "b": "f32", "c": "f16", "d": "f64"}
    args = arguments({**entry, "compute": "tf32", "alpha": 2, "beta": 0.5}, "cuda:63")
    p = args.problem
    assert (p.m, p.n, p.k, p.batch, p.a, p.b, p.c, p.d) == (8, 16, 32, 3, "f32", "f32", "f16", "f64")
    assert (p.layout_a, p.layout_b, p.operand_a, p.device) == ("n", "t", "tf32", "cuda:63")
    assert (args.keywords["alpha"], args.keywords["beta"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"a": "e4m3", "b": "e5m2"}, {"a": "e4m3", "b": "e5m2", "d": "bf16"}),
        ({"bias": "f32"}, {"bias": "f32", "bias_axis": "n", "align_bias": 16}),
        ({"bias": "f32", "bias_axis": "m"}, {"bias_axis": "m"}),
        ({"bias": "f32", "batch": 3}, {"bias_axis": "n", "batch": 3}),
        ({"activation": "gelu_tanh"}, {"activation": "gelu_tanh"}),
        ({"activation": ["leaky_relu", 0.1]}, {"activation": "leaky_relu"}),
        ({"activation": ["clamp", -1, 1]}, {"activation": "clamp"}),
        ({"gate": "f16", "activation": "silu", "batch": 2}, {"gate": "f16", "layout_gate": "t", "activation": "silu"}),
        ({"aux": "f32", "activation": "d_gelu"}, {"aux": "f32", "layout_aux": "t"}),
        ({"bias_grad": "f64", "bias_grad_axis": "m"}, {"bias_grad": "f64", "bias_grad_axis": "m"}),
        ({"alpha": "one"}, {"device_alpha": True, "device_beta": False}),
        ({"c": "f32", "beta": "one"}, {"device_beta": True}),
        ({"scale_a": "vector", "scale_b": "one"}, {"scale_a": "v", "scale_b": "s"}),
        ({"scale_a": "one", "scale_b": "vector"}, {"scale_a": "s", "scale_b": "v"}),
        ({"scale_a": 0.5}, {"scale_a": ""}),
        ({"a": "e4m3", "b": "e4m3", "m": 301, "k": 500, **BLOCKS}, {"scale_a": "r", "scale_b": "b", "block": 128}),
        ({"a": "e5m2", "b": "e4m3", "k": 500, "batch": 3, **BLOCKS, "scale_b": "group"}, {"scale_a": "r", "block": 1}),
        ({"scale_out": 0.5}, {"scale_out": "h"}),
        ({"scale_out": "one"}, {"scale_out": "s"}),
        ({"a": "f64", "alpha": "one"}, {"device_alpha": True}),
        ({"a": "c64", "alpha": "one", "c": "c64"}, {"device_alpha": True, "c": "c64"}),
        ({"a": "f16", "compute": "f16", "scale_b": "vector"}, {"accumulator": "f16", "scale_b": "v"}),
        ({"splits": 4}, {"splits": 4}),
        ({"splits": "stream", "deterministic": True}, {"splits": -1, "deterministic": True}),
        ({"bias": None, "c": None, "alpha": None}, {"bias": None, "c": None}),
    ],
    ids=str,
)
def test_the_epilogue(change, fields):
    p = arguments(GOOD | change).problem
    assert {name: getattr(p, name) for name in fields} == fields


def test_every_keyword_of_gemm_has_a_key():
    keywords = set(inspect.signature(GemmArguments).parameters) - {"out", "out_dtype", "epilogue"}  # a function is code
    assert keywords <= set(KEYS)
    assert set(KEYS) - keywords == {"m", "n", "k", "batch", "layout", "d", "bias_axis", "bias_grad_axis"}


def test_every_key_is_documented():
    rows = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(KEYS)


def test_the_examples_of_the_document_are_problems(tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(re.search(r"```json\n(.+?)```", DOCUMENT.read_text(), re.DOTALL).group(1))
    assert len(read(path)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": None}, "m: None; expected a whole number"),
        ({"m": True}, "m: True; expected a whole number"),
        ({"n": 2.5}, "n: 2.5; expected a whole number"),
        ({"k": -1}, "k: -1; expected a whole number"),
        ({"batch": "2"}, "batch: '2'; expected a whole number"),
        ({"layout": "ntn"}, "layout: 'ntn'; expected one of tn, tt, nt, nn"),
        ({"a": "float"}, "a: 'float'; expected one of f16, bf16"),
        ({"a": ["f32"]}, r"a: \['f32'\]; expected one of"),
        ({"b": "tf32"}, "b: 'tf32'; expected one of"),
        ({"b": "f16"}, "b is f16"),
        ({"dtype": "f32"}, "dtype: no such key; expected one of m, n, k, batch, layout, a, b, c, d, compute, alpha"),
        ({"out": "f32"}, "out: no such key"),
        ({"alpha": [1]}, r"alpha: \[1\]; expected a number or 'one'"),
        ({"alpha": "vector"}, "alpha: 'vector'; expected a number or 'one'"),
        ({"scale_a": "x"}, "scale_a: 'x'; expected a number, 'one', 'vector' or 'block'"),
        ({"scale_a": "group"}, "scale_a: 'group'; expected a number, 'one', 'vector' or 'block'"),
        ({"scale_b": "x"}, "scale_b: 'x'; expected a number, 'one', 'vector', 'block' or 'group'"),
        ({"alpha": True}, "alpha: True; expected a number"),
        ({"compute": "f16"}, "compute"),
        ({"beta": 1}, "beta"),
        ({"bias": "n"}, "bias: 'n'; expected one of f16, bf16"),
        ({"bias": "bf16"}, "bias is bf16; expected f32"),
        ({"bias": "f32", "bias_axis": "k"}, "bias_axis: 'k'; expected one of n, m"),
        ({"activation": "swish"}, "activation: 'swish'; expected one of identity, relu"),
        ({"activation": []}, r"activation: \[\]; expected one of"),
        ({"activation": {}}, r"activation: {}; expected one of"),
        ({"activation": ["clamp", "a", 1]}, "expected a list of a name and numbers"),
        ({"activation": ["clamp", 1]}, "activation clamp has 2 parameters; found 1"),
        ({"activation": ["clamp", 5, 1]}, "activation clamp: low is 5 and high is 1; expected low <= high"),
        ({"activation": ["leaky_relu", 10**400]}, "a parameter of activation is too large for a float"),
        ({"m": 10**30}, "m: 10+; expected a whole number, 0 or more and below"),
        ({"bias_axis": "m"}, "bias_axis: given without bias"),
        ({"bias": "f32", "bias_grad_axis": "n"}, "bias_grad_axis: given without bias_grad"),
        ({"activation": "clamp"}, r"has parameters; expected cutlass_py.clamp\(low, high\)"),
        ({"activation": "d_relu"}, "needs aux"),
        ({"gate": 1}, "gate: 1; expected one of"),
        ({"splits": 0}, "splits is 0"),
        ({"deterministic": 1}, "deterministic is an int"),
    ],
    ids=str,
)
def test_a_wrong_entry_names_file_entry_and_key(tmp_path, change, message):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([GOOD, GOOD | change]))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: entry 2: .*{message}"):
        read(path)


@pytest.mark.parametrize("key", GOOD)
def test_a_missing_key_is_named(key):
    with pytest.raises(ValueError, match=f"^{key}: missing"):
        arguments({name: value for name, value in GOOD.items() if name != key})


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[[]]", '[{"m": 8}, 3]', "[" * 100_000], ids=lambda text: text[:9])
def test_a_file_that_is_no_list_of_objects(tmp_path, text):
    path = tmp_path / "problems.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: (not JSON: .+|expected a list of objects)"):
        read(path)


# ---------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--layout tn", "(64, 32, 16) tn: bf16 @ bf16 -> bf16 on cuda:0"),
        ("--dtype f32 --out-dtype f64 --batch 3", "3 x (64, 32, 16) tt: f32 @ f32 -> f64 on cuda:0"),
        ("--a e4m3 --b e5m2 --scale-a vector --scale-out 0.5", "tt: e4m3 @ e5m2 * scale_a * scale_out -> bf16 on"),
        ("--bias f32 --bias-axis m --activation gelu", "tt: bf16 @ bf16 + bias per row -> gelu -> bf16 on"),
        ('--activation ["leaky_relu",0.5] --aux f32', "tt: bf16 @ bf16 (kept in aux) -> leaky_relu -> bf16 on"),
        ("--gate bf16 --activation silu --device cpu", "tt: bf16 @ bf16 * silu(gate) -> bf16 on cpu"),
        ("--compute 3xtf32 --a f32 --deterministic --splits 4", "f32 computed in tf32x3 on"),
    ],
)
def test_explain_takes_every_key(capsys, options, problem):
    assert main(["explain", "64", "32", "16", *options.split()]) == 0
    assert problem in capsys.readouterr().out.splitlines()[0]


def test_a_wrong_option():
    command = [sys.executable, "-m", "cutlass_py", "explain", "64", "32", "16", "--bias", "n"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: bias: 'n'; expected one of f16, ")
