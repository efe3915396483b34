"""Epilogues that users write: what is traced, what is refused and how, and what the CPU makes of them."""

from __future__ import annotations

import copy
import math
import pickle
import re
from functools import partial, wraps

import ml_dtypes
import numpy as np
import pytest
from stand_in import in_python

import cutlass_py
from cutlass_py import EpilogueError, GemmArguments, TensorSpec, _core, epilogue, explain, functions, gemm
from cutlass_py.declaration.epilogue_ir import OPERATIONS
from cutlass_py.epilogues.specialization import specialization
from cutlass_py.functions import cast, clamp, exp, gelu, leaky_relu, maximum, minimum, relu, tanh, where
from cutlass_py.functions import max as max_over
from cutlass_py.functions import min as min_over
from cutlass_py.functions import sum as sum_over

BF16 = ml_dtypes.bfloat16


@epilogue
def gelu_bias(accum, alpha, bias):
    return gelu(alpha * accum + bias)


@epilogue
def everything(accum, scale, column, residual):
    z = scale * accum + column
    d = where((z > 0) | ~(residual < 0), tanh(z), clamp(z - residual, -2, 2))
    return d, {"z": z, "rows": sum_over(d, axis=-1), "columns": max_over(z, axis=-2), "least": min_over(d, axis=-1)}


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def operands(m=5, n=6, k=7, batch=(), dtype=np.float32):
    random = np.random.default_rng(7)
    return (random.standard_normal((*batch, *shape)).astype(dtype) for shape in ((m, k), (k, n), (m, n)))


# ---------------------------------------------------------------------------------------- tracing


def test_a_function_is_called_once_and_never_again():
    calls = []

    @epilogue
    def counted(accum, bias):
        calls.append((accum, bias))
        return accum + bias

    a, b, c = operands()
    for _ in range(3):
        gemm(a, b, epilogue=counted(bias=c))
    assert len(calls) == 1


def test_a_function_that_wraps_an_epilogue_is_its_own():
    base = epilogue(lambda accum, alpha: accum * alpha)

    @epilogue
    @wraps(base)
    def doubled(accum, alpha):
        return 2 * base.__wrapped__(accum, alpha)

    a, b, _ = operands()
    np.testing.assert_allclose(gemm(a, b, epilogue=doubled(alpha=0.5)), a @ b, rtol=1e-5)
    np.testing.assert_allclose(gemm(a, b, epilogue=base(alpha=0.5)), a @ b / 2, rtol=1e-5)
    halved = epilogue(partial(lambda accum, alpha: accum * alpha, alpha=0.5))
    assert copy.deepcopy(halved) is halved


def test_what_the_source_looks_like_does_not_matter():
    def twice(function):
        @wraps(function)
        def wrapper(*given, **named):
            return 2 * function(*given, **named)

        return wrapper

    slope, scope = 0.5, {}
    exec("from cutlass_py import epilogue\nf = epilogue(lambda accum, c: 2 * (accum * 0.5 + c))", scope)
    made = [
        scope["f"],
        epilogue(lambda accum, c: 2 * (accum * slope + c)),
        epilogue(twice(lambda accum, c: accum * slope + c)),
    ]
    a, b, c = operands()
    results = [gemm(a, b, epilogue=each(c=c)) for each in made]
    assert all(np.array_equal(each, results[0]) for each in results)
    np.testing.assert_allclose(results[0], 2 * (0.5 * (a @ b) + c), rtol=1e-5)


def test_the_same_content_is_the_same_epilogue_under_any_name():
    def named(function, **given):
        args = GemmArguments(TensorSpec((64, 64), "bf16"), TensorSpec((64, 64), "bf16"), epilogue=function(**given))
        return specialization(args.problem.user).epilogue

    bias = TensorSpec((64,), "f32")
    one = named(epilogue(lambda accum, alpha, bias: relu(alpha * accum + bias)), alpha=2, bias=bias)
    other = named(epilogue(lambda x, p, q: relu(p * x + q)), p=TensorSpec((1,), "f32"), q=bias)
    assert one is other  # where a factor lies makes no difference to the kernel
    assert one is not named(epilogue(lambda x, p, q: relu(x * p + q)), p=2, q=bias)  # a.b is another program than b.a
    assert one is not named(epilogue(lambda x, p, q: relu(p * x + q)), p=2, q=TensorSpec((64, 1), "f32"))
    assert one.name.startswith("user_") and one.name not in cutlass_py.declaration.families.EPILOGUES


def test_equal_values_are_computed_once_and_unused_ones_not_at_all():
    program = epilogue(lambda accum, c: (exp(accum) + exp(accum), exp(c))[0]).program
    assert [node.op for i, node in enumerate(program.nodes) if i in program.used] == ["accum", "exp", "add"]


def test_numpy_functions_of_the_same_names():
    function = epilogue(
        lambda x, c: np.where(x > 0, np.maximum(np.exp(-x), c), np.square(np.absolute(x)) + np.float32(1))
    )
    a, b, c = operands()
    acc = a @ b
    expected = np.where(acc > 0, np.maximum(np.exp(-acc), c), acc * acc + 1)
    np.testing.assert_allclose(gemm(a, b, epilogue=function(c=c)), expected, rtol=1e-5)


def test_the_function_itself_runs_on_arrays():
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    d, further = everything.__wrapped__(x, 2.0, np.float32(1), x)
    assert d.shape == (3, 4) and further["rows"].shape == (3, 1) and further["columns"].shape == (1, 4)
    np.testing.assert_allclose(further["rows"], d.sum(-1, keepdims=True))


# ---------------------------------------------------------------------------------------- what is refused

REFUSED = {
    "branches on a traced value": lambda x: 1.0 if x > 0 else x,
    r"branches on a traced value .*minimum\(\)": lambda x: min(x, 2.0),
    "branches on a traced value .*where": lambda x: x and 1.0,
    "calls numpy.sin, which is not among": lambda x: np.sin(x),
    "calls numpy.add.reduce": lambda x: np.add.reduce(x),
    "calls numpy.concatenate": lambda x: np.concatenate([x, x]),
    r"calls numpy.exp with where=": lambda x: np.exp(x, where=True),
    "makes a number of a traced value": lambda x: math.exp(x),
    "makes a number of a traced value .*functions": lambda x: float(x),
    "makes an array of a traced value": lambda x: np.asarray(x),
    "makes an array of a traced value, which": lambda x: np.array(x),
    r"formats a traced value by '\.3f'; it has no value yet": lambda x: f"{x:.3f}",
    "uses a traced value as an index": lambda x: [1.0, 2.0][x],
    "uses a traced value as a key": lambda x: {x: 1.0},
    "stands for one element": lambda x: x[0],
    "stands for one element: it has no length": lambda x: len(x),
    "stands for one element.*": lambda x: sum(x),
    "asks a traced value for .shape": lambda x: x.shape,
    "takes a ndarray; expected a traced value or a number": lambda x: x + np.ones(3),
    "takes a str": lambda x: x + "1",
    "takes a complex": lambda x: x * 1j,
    "too large": lambda x: x * 10**400,
    "raises to a power": lambda x: x**0.5,
    "raises to a power that is traced": lambda x: 2.0**x,
    "casts to 'f12'; expected one of f16": lambda x: cast(x, "f12"),
    "sum over axis=0; expected -1": lambda x: sum_over(x, axis=0),
    r"sum over axis=\(-2, -1\); expected -1 .* or None": lambda x: sum_over(x, axis=(-2, -1)),
    "max over axis=True; expected": lambda x: max_over(x, axis=True),
    "joins numbers by & | or ~": lambda x: x & 3,
    "joins numbers by & .* what comparisons yield": lambda x: ~x,
    r"uses //, which is not among \+ - \* / \*\*": lambda x: x // 2,
    "uses //, which": lambda x: 7.0 // x,
    "uses %, which": lambda x: x % 2,
    r"uses divmod\(\), which": lambda x: divmod(x, 2),
    r"uses \^, which": lambda x: (x > 0) ^ (x < 1),
    r"uses \^, which is": lambda x: True ^ (x < 1),
    "uses @, which": lambda x: x @ x,
    "uses <<, which": lambda x: x << 1,
    r"calls pow\(\) with a modulus": lambda x: pow(x, 2, 5),
    "calls the epilogue gelu_bias; its function is gelu_bias.__wrapped__": lambda x: gelu_bias(x, 1.0, 2.0),
    "calls the epilogue gelu_bias": lambda x: gelu_bias(accum=x, alpha=1.0, bias=2.0),
    "calls the epilogue gelu_bias; its function": lambda x: x + gelu_bias(alpha=1.0, bias=2.0),
    "takes the sum of a float; expected a traced value": lambda x: (x, {"n": sum_over(1.0, -1)}),
    "takes the max of a float; expected a traced value": lambda x: (x, {"n": max_over(3.0, -2)}),
    "takes the min of a ndarray; expected": lambda x: (x, {"n": min_over(np.ones((2, 2)), -2)}),
    "computes with a reduction, which is known": lambda x: 2.0 ** sum_over(x, -1),
    "computes with a reduction, which is known only": lambda x: True & sum_over(x, -1),
    "computes with a reduction": lambda x: x - max_over(x, axis=-1),
    "computes with a reduction, which": lambda x: max_over(x, axis=-1) * 2,
    "computes with a reduction, which is": lambda x: x / sum_over(x),
    "NameError: name 'unknown'": lambda x: unknown(x),  # noqa: F821
    "returns a NoneType as d": lambda x: None,
    "returns a list as d": lambda x: [x],
    "returns a bool_? as d|returns a str as d": lambda x: "d",
    "returns a reduction as d": lambda x: sum_over(x, axis=-1),
    r"returns a tuple that is not \(d, {name: value}\)": lambda x: (x, x),
    "returns a dict as z": lambda x: (x, {"z": {}}),
    "returns an output called 1": lambda x: (x, {1: x}),
    "returns an output called 'c'": lambda x, c: (x, {"c": x}),
    r"has \*c; expected parameters by name": lambda x, *c: x,
    r"c=None; expected a number as a default": lambda x, c=None: x,
    r"expected the sum \(accum\) as the first parameter": lambda: 1.0,
}


TO_JAX = r"^epilogue <lambda>: .*test_user_epilogue\.py:\d+: gives a traced value to jax, whose"


@pytest.mark.parametrize("name", ["exp", "asarray", "maximum", "where", "gelu", "relu", "silu"])
def test_functions_of_jax_are_refused_on_the_line_that_calls_them(name):
    jax = pytest.importorskip("jax")
    function = getattr(jax.numpy, name, None) or getattr(jax.nn, name)
    further = {"maximum": (0.0,), "where": (1.0, 0.0)}.get(name, ())
    with pytest.raises(EpilogueError, match=TO_JAX):
        epilogue(lambda x: function(x, *further))


def test_a_library_that_names_what_it_was_given():
    scope = {"__name__": "cupy.core"}
    exec("def exp(x):\n    raise TypeError(f'Unsupported type {type(x)}')", scope)
    with pytest.raises(EpilogueError, match=TO_JAX.replace("jax", "cupy")) as caught:
        epilogue(lambda x: scope["exp"](x))
    assert "Unsupported type" in str(caught.value.__cause__)
    with pytest.raises(EpilogueError, match=": TypeError: Unsupported type <class 'int'>$"):
        epilogue(lambda x: scope["exp"](1))


def test_torch_functions_are_refused_by_name():
    torch = pytest.importorskip("torch")
    with pytest.raises(EpilogueError, match=r"test_user_epilogue\.py:\d+: calls torch.relu, which is not among"):
        epilogue(lambda x: torch.relu(x))
    with pytest.raises(EpilogueError, match=r"test_user_epilogue\.py:\d+: takes a Tensor; .*passed as parameters"):
        epilogue(lambda x: torch.ones(2) * x)


def test_reductions_of_arrays_outside_of_a_trace():
    with pytest.raises(EpilogueError):
        epilogue(lambda x: sum_over(1.0, -1))
    assert (sum_over(np.ones((2, 3)), -1) == 3).all() and sum_over(1.0, -1) == 1


@pytest.mark.parametrize("x", [2.0, np.ones((2, 3), np.float32)], ids=["number", "array"])
@pytest.mark.parametrize("dtype", ["s8", "f32", "foo", None])
def test_casts_of_arrays_are_to_the_same_dtypes(x, dtype):
    with pytest.raises(ValueError, match=f"^functions: casts to {dtype!r}; expected one of f16, bf16, e4m3, e5m2$"):
        cast(x, dtype)
    with pytest.raises(EpilogueError, match=rf"\.py:\d+: casts to {dtype!r}; expected one of f16, bf16, e4m3, e5m2$"):
        epilogue(lambda accum: accum * cast(2.0, dtype))


@pytest.mark.parametrize("axis", [0, 1, -3, (-2, -1), True, -1.0])
@pytest.mark.parametrize("function", [sum_over, max_over, min_over])
def test_reductions_of_arrays_are_over_the_same_axes(function, axis):
    with pytest.raises(ValueError, match=rf"^functions: .* over axis={re.escape(repr(axis))}; expected -1 .* or None$"):
        function(np.ones((4, 2, 3)), axis)


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_expressed_is_refused_with_its_line(reason):
    function = REFUSED[reason]
    line = function.__code__.co_firstlineno
    with pytest.raises(EpilogueError, match=rf"^epilogue <lambda>: .*test_user_epilogue\.py:{line}: .*{reason}"):
        epilogue(function)


def test_a_refusal_that_the_function_catches_stands():
    def catches(accum):
        try:
            return np.sin(accum)
        except Exception:
            return accum

    def fails_later(accum):
        try:
            return math.exp(accum)
        except Exception:
            return accum.shape

    for function, reason in ((catches, "calls numpy.sin"), (fails_later, "makes a number of a traced value")):
        line = function.__code__.co_firstlineno + 2
        with pytest.raises(EpilogueError, match=rf"test_user_epilogue\.py:{line}: {reason}"):
            epilogue(function)


def test_a_traced_value_may_be_printed(capsys):
    epilogue(lambda accum: print(accum, f"{accum}") or accum)
    assert capsys.readouterr().out == "<traced value 0 of <lambda>> <traced value 0 of <lambda>>\n"


def test_the_line_is_that_of_the_users_code_however_deep():
    def helper(x):
        y = x * 2
        if y > 1:
            return y
        return x

    with pytest.raises(EpilogueError) as error:
        epilogue(lambda accum: helper(accum) + 1)
    assert f":{helper.__code__.co_firstlineno + 2}: branches" in str(error.value)


def test_a_value_of_another_trace():
    kept = []
    epilogue(lambda x: kept.append(x) or x)
    with pytest.raises(EpilogueError, match="that another function left behind"):
        epilogue(lambda x: x + kept[0])


@pytest.mark.parametrize("function", [3, "relu", None])
def test_no_function(function):
    with pytest.raises(TypeError, match="expected a function"):
        epilogue(function)


def test_a_builtin_has_no_known_parameters():
    with pytest.raises(EpilogueError, match="expected a Python function"):
        epilogue(max)


def test_too_many_parameters():
    names = ", ".join(f"p{i}" for i in range(17))
    with pytest.raises(EpilogueError, match="17 parameters and outputs; expected at most 16"):
        epilogue(eval(f"lambda accum, {names}: accum"))


# ---------------------------------------------------------------------------------------- the call


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


ALONE = ("c", "bias", "aux", "gate", "scale_a", "scale_b", "scale_out", "bias_grad")


@pytest.mark.parametrize("keyword", [*ALONE, "alpha", "beta", "activation"])
def test_it_says_all_that_happens(keyword):
    a, b, c = operands()
    value = {"alpha": 0.5, "beta": 1.0, "activation": "relu"}.get(keyword, c)
    with pytest.raises(ValueError, match=f"gemm: {keyword} is given beside epilogue; make it a parameter"):
        gemm(a, b, epilogue=gelu_bias(alpha=1, bias=c), **{keyword: value})


@pytest.mark.parametrize("given", [gelu_bias, gelu, "gelu", 3])
def test_what_is_no_call(given):
    a, b, _ = operands()
    with pytest.raises(
        TypeError, match=r"epilogue is an? [\w.]+; expected a call of a function under @cutlass_py.epilogue"
    ):
        gemm(a, b, epilogue=given)


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


ONE = epilogue(lambda x: (x, {"one": sum_over(x)}))


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


# ---------------------------------------------------------------------------------------- numbers on the CPU


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16, np.float16])
def test_against_float64(dtype):
    a, b, _ = operands(33, 17, 40, dtype=dtype)
    bias = np.linspace(-1, 1, 17).astype(dtype)
    d = gemm(a, b, epilogue=gelu_bias(alpha=0.5, bias=bias))
    z = 0.5 * (a.astype(float) @ b.astype(float)) + bias.astype(float)
    assert d.dtype == dtype
    eps = {2: 2**-8 if dtype is BF16 else 2**-10, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(d.astype(float), z * (1 + erf(z / math.sqrt(2))) / 2, rtol=eps, atol=eps)


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_several_outputs(batch, layout):
    a, b, residual = operands(5, 6, 7, batch)
    scale, column = np.full(1, 0.5, np.float32), np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    z, out = (np.full((*batch, 5, 6), np.nan, np.float32) for _ in range(2))
    if layout == "n":
        z, out = (x.swapaxes(-1, -2).copy().swapaxes(-1, -2) for x in (z, out))
    rows, least = (np.full((*batch, 5, 1), np.nan, np.float32) for _ in range(2))
    columns = np.full((*batch, 1, 6), np.nan, np.float32)
    given = {"scale": scale, "column": column, "residual": residual}
    gemm(a, b, out=out, epilogue=everything(**given, z=z, rows=rows, columns=columns, least=least))
    z64 = 0.5 * (a.astype(float) @ b) + column
    d64 = np.where((z64 > 0) | (residual >= 0), np.tanh(z64), np.clip(z64 - residual, -2, 2))
    found = (z, out, rows, columns, least)
    exact = (z64, d64, d64.sum(-1, keepdims=True), z64.max(-2, keepdims=True), d64.min(-1, keepdims=True))
    for ours, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_a_batch_that_shares_b():
    """It folds into tall problems, but not under a reduction over the rows of each."""
    a, b = next(operands(5, 6, 7, (3,))), np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32)
    row, acc = np.arange(6, dtype=np.float32), a.astype(float) @ b
    rows, columns = np.empty((3, 5, 1), np.float32), np.empty((3, 1, 6), np.float32)
    f = epilogue(lambda x, row: (x + row, {"s": sum_over(x, axis=-1)}))
    args = GemmArguments(a, b, epilogue=f(row=row, s=rows))
    assert args.problem.batch == 1 and np.allclose(args.run(), acc + row, atol=1e-5)
    np.testing.assert_allclose(rows, acc.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
    g = epilogue(lambda x: (x, {"t": sum_over(x, axis=-2)}))
    args = GemmArguments(a, b, epilogue=g(t=columns))
    assert args.problem.batch == 3 and np.allclose(args.run(), acc, atol=1e-5)
    np.testing.assert_allclose(columns, acc.sum(-2, keepdims=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("batch", "shape"), [
    ((), ()), ((), (1,)), ((), (1, 1)), ((3,), (3,)), ((3,), (3, 1, 1)), ((2, 3), (2, 3)), ((2, 3), (2, 3, 1, 1)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_single_values(batch, shape, layout, dtype):
    a, b, c = operands(5, 6, 7, batch, dtype)
    out = np.empty((*batch, 5, 6), dtype)
    out = out if layout == "t" else out.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    f = epilogue(lambda x, c: (x * c, {"total": sum_over(x * c), "most": max_over(x), "least": min_over(x, axis=None)}))
    total, most, least = (np.full(shape, np.nan, dtype) for _ in range(3))
    gemm(a, b, out=out, epilogue=f(c=c, total=total, most=most, least=least))
    acc = a.astype(float) @ b
    np.testing.assert_allclose(out, acc * c, rtol=1e-4, atol=1e-5)
    for ours, exact in ((total, (acc * c).sum((-2, -1))), (most, acc.max((-2, -1))), (least, acc.min((-2, -1)))):
        np.testing.assert_allclose(ours.reshape(batch), exact, rtol=1e-4, atol=1e-5)


def test_single_values_of_vectors_and_of_a_batch_that_shares_b():
    a, b, _ = operands(3, 6, 7)
    one = np.full((), np.nan, np.float32)
    for x, y in ((a[0], b), (a, b[:, 0]), (a[0], b[:, 0])):
        gemm(x, y, epilogue=ONE(one=one))
        np.testing.assert_allclose(one, (x.astype(float) @ y).sum(), rtol=1e-4, atol=1e-5)
    a, ones = next(operands(5, 6, 7, (3,))), np.full((3, 1, 1), np.nan, np.float32)
    args = GemmArguments(a, b, epilogue=ONE(one=ones))
    assert args.problem.batch == 3  # it does not fold: each has a value of its own
    args.run()
    np.testing.assert_allclose(ones[:, 0, 0], (a.astype(float) @ b).sum((1, 2)), rtol=1e-4, atol=1e-5)


def test_nan_goes_through_single_values():
    a, b, _ = operands()
    a[2, 3] = np.nan
    f = epilogue(lambda x: (x, {"total": sum_over(x), "most": max_over(x), "least": min_over(x)}))
    values = np.zeros((3, 1), np.float32)
    gemm(a, b, epilogue=f(total=values[0], most=values[1], least=values[2]))
    assert np.isnan(values).all()


def test_reductions_of_arrays():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert sum_over(x).shape == (2, 1, 1) and np.array_equal(sum_over(x)[:, 0, 0], x.sum((1, 2)))
    assert np.array_equal(max_over(x, axis=None), min_over(-x) * -1)


def test_a_batch_without_a_single_stride():
    a, b = np.ones((2, 3, 4, 5), np.float32).transpose(1, 0, 2, 3), np.ones((3, 2, 5, 6), np.float32)
    with pytest.raises(ValueError, match="epilogue is given but the batch of the operands has no single stride"):
        gemm(a, b, epilogue=epilogue(lambda x: x)())


def test_vectors_of_one_dimension():
    a, b, _ = operands(5, 6, 7)
    f = epilogue(lambda x, row, c: (x * row + c, {"s": sum_over(x, axis=-1), "t": sum_over(x, axis=-2)}))
    s, t, row = np.empty(5, np.float32), np.empty(6, np.float32), np.arange(6, dtype=np.float32)
    d = gemm(a, b, epilogue=f(row=row, c=2, s=s, t=t))
    acc = a.astype(float) @ b
    for ours, expected in ((d, acc * row + 2), (s, acc.sum(1)), (t, acc.sum(0))):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    f = epilogue(lambda x, c: x + c)
    np.testing.assert_allclose(gemm(a[0], b, epilogue=f(c=row)), acc[0] + row, rtol=1e-4, atol=1e-5)
    column = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(gemm(a, b[:, 0], epilogue=f(c=column)), acc[:, 0] + column, rtol=1e-4, atol=1e-5)


def test_no_terms_and_no_elements():
    f = epilogue(lambda x, c: x * c + 1)
    a, b = np.full((3, 0), np.nan, np.float32), np.full((0, 4), np.nan, np.float32)
    assert np.array_equal(gemm(a, b, epilogue=f(c=2)), np.ones((3, 4), np.float32))
    assert gemm(np.empty((0, 3), np.float32), np.empty((3, 4), np.float32), epilogue=f(c=2)).shape == (0, 4)


def test_a_result_is_rounded_once_and_a_cast_before():
    third = np.full((1, 1), 1 / 3, np.float32)
    one = np.ones((1, 1), np.float32)
    f, g = epilogue(lambda x: 3 * x), epilogue(lambda x: 3 * cast(x, "bf16"))
    assert gemm(third, one, epilogue=f()) == np.float32(3) * np.float32(1 / 3)
    assert gemm(third, one, epilogue=g()) == np.float32(3 * float(BF16(1 / 3)))
    huge = epilogue(lambda x: 1e6 * x)
    e4m3 = gemm(
        one.astype(ml_dtypes.float8_e4m3fn), one.astype(ml_dtypes.float8_e4m3fn), epilogue=huge(), out_dtype="e4m3"
    )
    assert float(e4m3[0, 0]) == 448  # saturates, as every result in fp8
    assert gemm(one.astype(np.int8), one.astype(np.int8), epilogue=huge(), out_dtype="s8") == 127
    assert gemm(one.astype(np.int8), one.astype(np.int8), epilogue=f(), out_dtype="f32") == 3


def test_nan_goes_through():
    a, b = np.full((1, 1), np.nan, np.float32), np.ones((1, 1), np.float32)
    for function in (lambda x: maximum(x, 0), lambda x: minimum(0, x), lambda x: clamp(x, -1, 1), relu, gelu):
        assert np.isnan(gemm(a, b, epilogue=epilogue(function)()))


@pytest.mark.parametrize("name", [name for name in functions.__all__ if name not in ("cast", "sum", "max", "min")])
def test_functions_are_the_same_traced_and_on_arrays(name):
    function = getattr(functions, name)
    x = np.linspace(0.1, 3, 30, dtype=np.float32)[:, None]
    further = {"where": 2, "minimum": 1, "maximum": 1, "clamp": 2}.get(name, 0)
    given = [np.float32(0.5), np.float32(1.5)][:further]
    if name == "where":
        traced = epilogue(lambda accum: function(accum > 1, *given))
        expected = function(x > 1, *given)
    else:
        traced = epilogue(lambda accum: function(accum, *given))
        expected = function(x, *given)
    assert np.array_equal(gemm(x, np.ones((1, 1), np.float32), epilogue=traced()), expected)


def test_functions_of_whole_numbers():
    for function in (functions.erf, functions.gelu, functions.tanh, functions.exp, functions.rsqrt):
        expected = function(np.array([1.0, 2.0]))
        assert np.array_equal(function(np.array([1, 2])), expected) and function(2) == expected[1]


def test_numbers_of_the_surrounding_program_stay_numbers():
    a, b, _ = operands()
    function = epilogue(lambda accum: accum * functions.where(True, 2.0, 3.0) + leaky_relu(-1.0, 0.5))
    np.testing.assert_allclose(gemm(a, b, epilogue=function()), a @ b * 2 - 0.5, rtol=1e-5, atol=1e-5)
    function = epilogue(lambda accum: functions.where((accum > 0) & (len("abc") > 2) | np.False_, accum, 0))
    np.testing.assert_allclose(gemm(a, b, epilogue=function()), np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)


def test_activations_are_those_of_gemm():
    a, b, _ = operands(20, 30, 10)
    for name in ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"):
        ours = gemm(a, b, epilogue=epilogue(getattr(functions, name))())
        assert np.array_equal(ours, gemm(a, b, activation=name)), name
    ours = gemm(a, b, epilogue=epilogue(leaky_relu)())
    np.testing.assert_allclose(ours, gemm(a, b, activation="leaky_relu"), rtol=1e-6)


def test_every_operation_has_its_numpy_twin():
    from cutlass_py.epilogues.reference import FUNCTIONS

    assert FUNCTIONS.keys() == OPERATIONS.keys()


# ---------------------------------------------------------------------------------------- questions


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


def test_a_parameter_may_be_called_self():
    a, b, _ = operands()
    call = epilogue(lambda accum, self: accum + self)(self=1)
    np.testing.assert_allclose(np.asarray(gemm(a, b, epilogue=call)), np.asarray(gemm(a, b)) + 1, rtol=1e-6)


def test_an_epilogue_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(gelu_bias)) is gelu_bias and copy.deepcopy(gelu_bias) is gelu_bias
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(epilogue(lambda accum: accum))


@pytest.mark.parametrize("program", [-1, 10**6])
def test_a_program_that_is_not_there(program):
    with pytest.raises(ValueError, match="no such program"):
        _core.EpilogueCall(program, ())


def test_calls_of_an_epilogue_are_values():
    call = gelu_bias(alpha=0.5, bias=2)
    assert isinstance(call, _core.EpilogueCall) and call.values == (0.5, 2)
    a, b, _ = operands()
    assert np.array_equal(gemm(a, b, epilogue=call), gemm(a, b, epilogue=call))
    with pytest.raises(ValueError, match="one value for each name"):
        _core.EpilogueCall(call.program, (1,))


def test_a_reduction_that_another_function_left_behind():
    left = []

    @cutlass_py.epilogue
    def first(accum, x):
        left.append(functions.sum(accum * x, axis=-1))
        return accum, {"s": left[0]}

    with pytest.raises(EpilogueError, match="returns a reduction as s that another function left behind"):

        @cutlass_py.epilogue
        def second(accum, y):
            return accum + y, {"s": left[0]}


@pytest.mark.parametrize("number", [np.float32(0), np.float64(0), np.int64(0), np.array(0.0)], ids=repr)
def test_numpys_numbers_on_the_left_of_a_comparison(number):
    @cutlass_py.epilogue
    def positive(accum):
        return functions.where(number < accum, accum, 0.0)

    a = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    eye = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(cutlass_py.gemm(a, eye, epilogue=positive()), np.maximum(a, 0))


def test_a_default_that_is_no_float():
    with pytest.raises(EpilogueError, match="a default is too large for a float"):

        @cutlass_py.epilogue
        def huge(accum, x=10**400):
            return accum * x


@pytest.mark.parametrize(("m", "n", "axis", "shape"), [(0, 5, -1, (0, 1)), (3, 0, -2, (0,))])
def test_reductions_of_nothing_to_nothing(m, n, axis, shape):
    @cutlass_py.epilogue
    def sums(accum):
        return accum, {"s": functions.sum(accum, axis=axis)}

    a, b = np.ones((m, 4), np.float32), np.ones((4, n), np.float32)
    assert cutlass_py.gemm(a, b, epilogue=sums(s=np.empty(shape, np.float32))).shape == (m, n)


def test_values_of_a_long_epilogue_do_not_pile_up():
    import tracemalloc

    @cutlass_py.epilogue
    def long(accum):
        for _ in range(40):
            accum = accum * 1.5 - accum
        return accum

    a, b = np.ones((512, 8), np.float32), np.ones((8, 512), np.float32)
    cutlass_py.gemm(a, b, epilogue=long())
    tracemalloc.start()
    cutlass_py.gemm(a, b, epilogue=long())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 512 * 512 * 4


def test_without_one_nothing_of_them_is_imported():
    code = """
import sys
import numpy, cutlass_py
from cutlass_py.dispatch.candidates import rank
from specs import problem
a = numpy.ones((4, 4), "f4")
cutlass_py.gemm(a, a)
assert rank(problem(64, 64, 64).problem, compiled=False)
print(*sys.modules)
"""
    loaded = set(in_python(code).split())
    assert "cutlass_py.epilogues.specialization" in loaded
    theirs = ("user_epilogue", "tracing", "functions")
    theirs = (*(f"epilogues.{name}" for name in theirs), "declaration.epilogue_ir", "declaration.epilogue_cpp")
    assert not {f"cutlass_py.{name}" for name in theirs} & loaded
