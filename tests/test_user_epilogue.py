"""Epilogues that users write, as they are traced: what of a function is kept, what is refused and with which line."""

from __future__ import annotations

import copy
import math
import pickle
import re
from functools import partial, wraps

import numpy as np
import pytest
from own_epilogues import everything, gelu_bias, operands
from stand_in import in_python

import cutlass_py
from cutlass_py import EpilogueError, GemmArguments, TensorSpec, epilogue, functions, gemm
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.epilogues.specialization import specialization
from cutlass_py.functions import cast, exp, relu
from cutlass_py.functions import max as max_over
from cutlass_py.functions import min as min_over
from cutlass_py.functions import sum as sum_over

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
    assert one.name.startswith("user_") and one.name not in EPILOGUES


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


def test_an_epilogue_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(gelu_bias)) is gelu_bias and copy.deepcopy(gelu_bias) is gelu_bias
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(epilogue(lambda accum: accum))


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


def test_a_default_that_is_no_float():
    with pytest.raises(EpilogueError, match="a default is too large for a float"):

        @cutlass_py.epilogue
        def huge(accum, x=10**400):
            return accum * x
