"""Errors about arguments are values, of which a sentence is made; other functions tell them by their own names."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cutlass_py
from cutlass_py import _core
from cutlass_py.errors import ArgumentError, ArgumentTypeError, ArgumentValueError, wrong_type, wrong_value

A, B = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)


def refusal(*operands, **keywords):
    with pytest.raises(ArgumentError) as raised:
        cutlass_py.gemm(*operands, **keywords)
    return raised.value


CALLS = {
    "shapes": (lambda: refusal(A, B.T), ArgumentValueError, {
        "operand": "a", "found": "is (3, 4)", "other": "b", "other_found": "is (5, 4)", "about": "shape",
        "hint": "inner extents must agree",
    }),
    "a shape": (lambda: refusal(A, B, bias=np.ones(7, np.float32)), ArgumentValueError, {
        "operand": "bias", "found": "is (7,)", "about": "shape",
    }),
    "dtypes": (lambda: refusal(A, B.astype(np.float64)), ArgumentTypeError, {
        "operand": "a", "found": "is f32", "other": "b", "other_found": "is f64", "about": "dtype",
    }),
    "overlap": (lambda: refusal(A, A.T.copy(), out=A[:, :3]), ArgumentValueError, {
        "operand": "out", "found": "shares elements with", "other": "a", "about": "overlap",
    }),
    "no array": (lambda: refusal(A, 3), ArgumentTypeError, {"operand": "b", "found": "is an int"}),
    "keyword": (lambda: refusal(A, B, activation="x"), ArgumentValueError, {"operand": "activation"}),
    "number": (lambda: refusal(A, B, splits=0), ArgumentValueError, {
        "operand": "splits", "found": "is 0", "expected": "1 to 32767, or 'stream'",
    }),
    "dtype's name": (lambda: refusal(A, B, out_dtype="x"), ArgumentTypeError, {
        "operand": "out_dtype", "found": "is 'x'",
    }),
    "Python's check": (lambda: refusal(np.ma.ones((3, 4)), B), ArgumentTypeError, {
        "operand": "a", "hint": "pass a.filled()",
    }),
    "a kernel's name": (lambda: refusal(A, B, kernel=3), ArgumentTypeError, {
        "operand": "kernel", "found": "is an int", "expected": "a Kernel or its name",
    }),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "values"), CALLS.values(), ids=CALLS)
def test_a_refusal_holds_values(call, kind, values):
    error = call()
    assert type(error) is kind and error.operation == "gemm"
    assert {name: getattr(error, name) for name in values} == values
    names = ("operation", "operand", "found", "other", "other_found", "expected", "hint")
    assert str(error) == _core.error_text(*(getattr(error, name) for name in names)), "Python's sentence is C++'s"


def test_they_are_what_they_were():
    assert issubclass(ArgumentValueError, ValueError) and issubclass(ArgumentTypeError, TypeError)
    assert not issubclass(ArgumentValueError, TypeError) and not issubclass(ArgumentTypeError, ValueError)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_they_are_copied_with_their_values(duplicate):
    error = refusal(A, B.T)
    error.args = (f"{error}; and more",)
    again = duplicate(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_another_function_tells_it_by_its_own_names():
    again = refusal(A, B.T).renamed("mm", {"a": "input", "b": "mat2"})
    assert str(again) == "mm: input is (3, 4) but mat2 is (5, 4); inner extents must agree"
    assert type(again) is ArgumentValueError and again.other == "mat2"
    assert str(again.renamed("f", {}, hint="")) == "f: input is (3, 4) but mat2 is (5, 4)"
    nothing_fits = cutlass_py.NoKernelError("none fits", "gemm")
    assert str(nothing_fits) == "gemm: none fits" and str(nothing_fits.renamed("mm")) == "mm: none fits"
    assert str(pickle.loads(pickle.dumps(nothing_fits))) == "gemm: none fits"


def test_sentences():
    assert str(wrong_value("a", "is (3, 4)", "2 dimensions")) == "gemm: a is (3, 4); expected 2 dimensions"
    assert str(wrong_type("a", ".__dlpack__() returned an int")) == "gemm: a.__dlpack__() returned an int"
    assert str(wrong_value(found="a plan takes arrays", operation="plan")) == "plan: a plan takes arrays"
    assert str(wrong_value("x", "is given", other="c", other_found="is not")) == "gemm: x is given but c is not"
    assert (
        str(wrong_value("x", "shares elements with", other="c", hint="copy")) == "gemm: x shares elements with c; copy"
    )
