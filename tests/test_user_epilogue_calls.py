"""Calls of epilogues that users write: their operands by name, kinds and shape, in place, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from own_epilogues import ONE, gelu_bias, operands

import cutlass_py
from cutlass_py import GemmArguments, TensorSpec, _core, epilogue, explain, gemm
from cutlass_py.epilogues.specialization import specialization
from cutlass_py.functions import gelu
from cutlass_py.functions import sum as sum_over


def test_operands_are_given_by_name():
    with pytest.raises(TypeError, match="epilogue gelu_bias misses bias; expected alpha, bias"):
        gelu_bias(alpha=1)
    with pytest.raises(TypeError, match="epilogue gelu_bias has no gamma and misses bias; expected alpha, bias"):
        gelu_bias(alpha=1, gamma=2)
    with pytest.raises(TypeError, match="epilogue gelu_bias has no gamma; expected alpha, bias"):
        gelu_bias(alpha=1, bias=2, gamma=3)
    with pytest.raises(TypeError, match="epilogue gelu_bias takes its operands by name; expected alpha, bias"):
        gelu_bias(1, bias=2)
    with pytest.raises(TypeError, match="misses z"):
        epilogue(lambda x: (x, {"z": x}))()


def test_defaults():
    scaled = epilogue(lambda accum, alpha=2.0, *, beta=1: alpha * accum + beta)
    a, b, _ = operands()
    np.testing.assert_allclose(gemm(a, b, epilogue=scaled()), 2 * (a @ b) + 1, rtol=1e-5)
    np.testing.assert_allclose(gemm(a, b, epilogue=scaled(beta=-1)), 2 * (a @ b) - 1, rtol=1e-5, atol=1e-6)
    of_all = epilogue(lambda accum=0.0, alpha=2.0: alpha * accum)
    np.testing.assert_allclose(gemm(a, b, epilogue=of_all()), 2 * (a @ b), rtol=1e-5)


def test_kinds_follow_from_what_is_given():
    f = epilogue(lambda x, p, q, r, s, t, u: x + p + q + r + s + t + u)

    def spec(*shape):
        return TensorSpec(shape, "f32")

    given = {"p": 1, "q": spec(1, 1), "r": spec(8), "s": spec(1, 8), "t": spec(4, 1), "u": spec(4, 8)}
    args = GemmArguments(TensorSpec((4, 16), "bf16"), TensorSpec((16, 8), "bf16"), epilogue=f(**given))
    assert specialization(args.problem.user).kinds == ("h", "s", "n", "n", "m", "t")
    turned = GemmArguments(
        TensorSpec((4, 16), "bf16"), TensorSpec((16, 8), "bf16"), epilogue=f(**given),
        out=TensorSpec((4, 8), "bf16", strides=(1, 4)),
    )  # fmt: skip
    assert turned.problem.transposed and specialization(turned.problem.user).kinds == ("h", "s", "m", "m", "n", "t")
    assert not specialization(turned.problem.user).regular[5]


def test_a_parameter_may_be_called_self():
    a, b, _ = operands()
    call = epilogue(lambda accum, self: accum + self)(self=1)
    np.testing.assert_allclose(np.asarray(gemm(a, b, epilogue=call)), np.asarray(gemm(a, b)) + 1, rtol=1e-6)


def test_calls_of_an_epilogue_are_values():
    call = gelu_bias(alpha=0.5, bias=2)
    assert isinstance(call, _core.EpilogueCall) and call.values == (0.5, 2)
    a, b, _ = operands()
    assert np.array_equal(gemm(a, b, epilogue=call), gemm(a, b, epilogue=call))
    with pytest.raises(ValueError, match="one value for each name"):
        _core.EpilogueCall(call.program, (1,))


def test_explain_names_the_function():
    a, b, c = operands()
    text = str(explain(a, b, epilogue=gelu_bias(alpha=1, bias=c)))
    assert "gelu_bias(accum, alpha, bias)" in text and "cpu_gemm_numpy" in text
    same = epilogue(lambda accum, p, q: gelu(p * accum + q))
    assert "<lambda>(accum, p, q)" in str(explain(a, b, epilogue=same(p=1, q=c)))


def test_registering_leaves_no_kernel_behind():
    before = cutlass_py.get_kernels()
    a, b, c = operands()
    gemm(a, b, epilogue=gelu_bias(alpha=1, bias=c))
    assert cutlass_py.get_kernels() == before


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("given", [gelu_bias, gelu, "gelu", 3])
def test_what_is_no_call(given):
    a, b, _ = operands()
    with pytest.raises(
        TypeError, match=r"epilogue is an? [\w.]+; expected a call of a function under @cutlass_py.epilogue"
    ):
        gemm(a, b, epilogue=given)


@pytest.mark.parametrize("program", [-1, 10**6])
def test_a_program_that_is_not_there(program):
    with pytest.raises(ValueError, match="no such program"):
        _core.EpilogueCall(program, ())


ALONE = ("c", "bias", "aux", "gate", "scale_a", "scale_b", "scale_out", "bias_grad")


@pytest.mark.parametrize("keyword", [*ALONE, "alpha", "beta", "activation"])
def test_it_says_all_that_happens(keyword):
    a, b, c = operands()
    value = {"alpha": 0.5, "beta": 1.0, "activation": "relu"}.get(keyword, c)
    with pytest.raises(ValueError, match=f"gemm: {keyword} is given beside epilogue; make it a parameter"):
        gemm(a, b, epilogue=gelu_bias(alpha=1, bias=c), **{keyword: value})


def test_operands_that_do_not_fit():
    a, b, c = operands()
    f = epilogue(lambda x, c: (x + c, {"z": x, "s": sum_over(x, axis=-1)}))
    z, s = np.empty((5, 6), np.float32), np.empty((5, 1), np.float32)
    good = {"c": c, "z": z, "s": s}

    def refused(error, match, **wrong):
        with pytest.raises(error, match=match):
            gemm(a, b, epilogue=f(**{**good, **wrong}))

    refused(
        ValueError, r"c is \(5, 5\); expected a number, one element, \(6,\), \(1, 6\), \(5, 1\) or \(5, 6\)", c=c[:, :5]
    )
    refused(ValueError, r"z is \(6, 5\); expected \(5, 6\)", z=z.T)
    refused(ValueError, r"s is \(6,\); expected \(5,\) or \(5, 1\)", s=np.empty(6, np.float32))
    refused(TypeError, "s is f64; expected f32", s=np.empty((5, 1)))
    refused(TypeError, "c is f64; the epilogue computes in f32", c=c.astype(np.float64))
    refused(TypeError, "c is c64; expected a real dtype", c=c.astype(np.complex64))
    refused(TypeError, "z is s8; expected floats", z=np.empty((5, 6), np.int8))
    refused(TypeError, "c is a list; expected a number", c=[1, 2])
    refused(TypeError, "c is a complex; expected a number", c=1j)
    refused(TypeError, "z is a float; expected an array", z=1.0)
    refused(ValueError, "z shares elements with s; what is written has memory of its own", s=z[:, :1])
    refused(ValueError, "z shares elements with a", z=a.reshape(-1)[:30].reshape(5, 6))
    refused(ValueError, "z overlaps itself", z=np.lib.stride_tricks.as_strided(z, (5, 6), (0, 4)))
    locked = z.copy()
    locked.flags.writeable = False
    refused(ValueError, "z is read-only", z=locked)
    with pytest.raises(ValueError, match="a is on cpu but c is on cuda:0"):
        GemmArguments(a, b, epilogue=f(**{**good, "c": TensorSpec((5, 6), "f32")}))


@pytest.mark.parametrize(("batch", "shape", "expected"), [
    ((), (2,), r"\(\), \(1,\) or \(1, 1\)"),
    ((), (5, 1), r"\(\), \(1,\) or \(1, 1\)"),
    ((), (1, 1, 1), r"\(\), \(1,\) or \(1, 1\)"),
    ((3,), (), r"\(3,\) or \(3, 1, 1\)"),
    ((3,), (1, 1), r"\(3,\) or \(3, 1, 1\)"),
    ((3,), (3, 1), r"\(3,\) or \(3, 1, 1\)"),
    ((2, 3), (6,), r"\(2, 3\) or \(2, 3, 1, 1\)"),
])  # fmt: skip
def test_shapes_that_a_single_value_has_not(batch, shape, expected):
    a, b, _ = operands(5, 6, 7, batch)
    found = str(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"gemm: one is {found}; expected {expected}$"):
        gemm(a, b, epilogue=ONE(one=np.empty(shape, np.float32)))


def test_a_single_value_is_an_array():
    a, b, _ = operands()
    with pytest.raises(TypeError, match="one is f64; expected f32"):
        gemm(a, b, epilogue=ONE(one=np.empty(())))
    with pytest.raises(TypeError, match="one is a float; expected an array"):
        gemm(a, b, epilogue=ONE(one=1.0))
    with pytest.raises(ValueError, match="one reduces over no elements"):
        gemm(a[:0], b, epilogue=ONE(one=np.empty((), np.float32)))
    with pytest.raises(ValueError, match="one shares elements with a; what is written has memory of its own"):
        gemm(a, b, epilogue=ONE(one=a[0, 0:1]))


def test_a_batch_without_a_single_stride():
    a, b = np.ones((2, 3, 4, 5), np.float32).transpose(1, 0, 2, 3), np.ones((3, 2, 5, 6), np.float32)
    with pytest.raises(ValueError, match="epilogue is given but the batch of the operands has no single stride"):
        gemm(a, b, epilogue=epilogue(lambda x: x)())


def test_problems_that_have_none():
    a, b, c = operands()
    f = gelu_bias(alpha=1, bias=1)
    with pytest.raises(TypeError, match="epilogue is given but the result is s32"):
        gemm(a.astype(np.int8), b.astype(np.int8), epilogue=f)
    with pytest.raises(TypeError, match="epilogue is given but a is c64"):
        gemm(a.astype(np.complex64), b.astype(np.complex64), epilogue=f)
    with pytest.raises(ValueError, match="epilogue is given with a list of matrices"):
        gemm([a, a], [b, b], epilogue=f)
    s = np.empty((1, 6), np.float32)
    with pytest.raises(ValueError, match="s reduces over no elements"):
        gemm(a[:0], b, epilogue=epilogue(lambda x: (x, {"s": sum_over(x, axis=-2)}))(s=s))


# ---------------------------------------------------------------------------------------- in place


def test_out_may_be_a_matrix_that_is_read_and_nothing_else():
    a, b, c = operands()
    f = epilogue(lambda x, c: x + c)
    expected = a @ b + c
    assert gemm(a, b, out=c, epilogue=f(c=c)) is c
    np.testing.assert_allclose(c, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="out shares elements with c; it may only be a whole matrix"):
        gemm(a, b, out=c, epilogue=f(c=c[:1]))


@pytest.mark.parametrize("kept", [np.s_[:1, :], np.s_[0, :], np.s_[:, :1], np.s_[:, 0], np.s_[:1, :1]])
def test_out_of_one_row_or_column_is_a_matrix_too(kept):
    a, b, _ = operands()
    a, b = (a[kept[0]] if kept[0] != np.s_[:] else a), (b[:, kept[1]] if kept[1] != np.s_[:] else b)
    c = np.ones_like(a @ b)
    f = epilogue(lambda x, c: x + c)
    args = GemmArguments(a, b, out=c, epilogue=f(c=c))
    assert specialization(args.problem.user).kinds == ("t",)
    expected = a @ b + c
    np.testing.assert_allclose(args.run(), expected, rtol=1e-5)


def test_specs_are_never_in_place():
    a, b, row = (TensorSpec(shape, "f32", device="cpu") for shape in ((1, 7), (7, 6), (1, 6)))
    args = GemmArguments(a, b, out=row, epilogue=epilogue(lambda x, c: x + c)(c=row))
    assert specialization(args.problem.user).kinds == ("n",)
