"""Calls prepared by `Kernel.plan`, on the CPU: on new arrays, on arrays that differ, of every operand."""

from __future__ import annotations

import gc
import re
import weakref
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from exporters import Exporter
from reference import close, matrices

import cutlass_py
from cutlass_py import GemmArguments, GroupedArguments, TensorSpec, _core, epilogue, grouped_gemm
from cutlass_py.functions import sum as sum_over
from cutlass_py.kernels.registry import kernel_named

BF16 = ml_dtypes.bfloat16
CPU = kernel_named("cpu_gemm_numpy")


def test_a_plan_runs_on_new_arrays(rng):
    a, b, out = matrices(rng)
    plan = CPU.plan(GemmArguments(a, b, out=out))
    for _ in range(3):
        x, y, z = matrices(rng)
        assert plan(x, y, z) is z and np.isnan(out).all()
        close(z, x @ y)
    assert plan() is out
    close(out, a @ b)
    assert plan(out=z) is z
    close(z, a @ b)
    assert plan.problem.kernel >= 0 and (plan.problem.m, plan.problem.n, plan.problem.k) == (6, 5, 4)
    assert repr(plan) == "<Prepared (6, 5, 4) tt: f32 @ f32 -> f32 on cpu, cpu_gemm_numpy>"


def test_a_plan_without_out_makes_results(rng):
    a, b, out = matrices(rng)
    plan = CPU.plan(GemmArguments(a, b))
    first, second = plan(), plan(a, b)
    assert first is not second
    close(first, a @ b)
    assert plan(a, b, out) is out
    close(out, a @ b)
    with pytest.raises(ValueError, match=r"out has strides \(1, 6\); the plan takes \(5, 1\)"):
        plan(a, b, np.empty((5, 6), np.float32).T)


def test_a_plan_of_specs_takes_arrays_alone(rng):
    spec = {"dtype": "f32", "device": "cpu"}
    args = GemmArguments(TensorSpec((6, 4), **spec), TensorSpec((4, 5), **spec), bias=TensorSpec((5,), **spec))
    plan = CPU.plan(args)
    a, b, _ = matrices(rng)
    bias = rng.standard_normal(5).astype(np.float32)
    close(plan(a, b, bias=bias), a @ b + bias)
    with pytest.raises(TypeError, match="bias is a TensorSpec, which has no memory; pass an array to the plan"):
        plan(a, b)


def test_every_array_of_a_plan_may_be_new(rng):
    """Of a transposed problem too, whose a and b change places."""
    for order, f in product("CF", ("relu", "d_relu")):

        def fresh(order=order):
            x = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {
                "a": (6, 4), "b": (4, 5), "c": (6, 5), "bias": (5,), "scale_a": (6, 1), "scale_b": (5,), "aux": (6, 5),
            }.items()}  # fmt: skip
            x |= {name: np.full(1, rng.standard_normal(), np.float32) for name in ("alpha", "beta", "scale_out")}
            return x | {"out": np.full((6, 5), np.nan, np.float32, order=order), "bias_grad": np.empty(5, np.float32)}

        first = fresh()
        plan = CPU.plan(GemmArguments(**first, activation=f))
        x = fresh()
        read = x["aux"].copy()
        assert plan(**x) is x["out"]
        z = x["alpha"] * x["scale_a"] * x["scale_b"] * (x["a"] @ x["b"]) + x["beta"] * x["c"] + x["bias"]
        y = np.maximum(z, 0) if f == "relu" else z * (read > 0)
        close(x["out"], x["scale_out"] * y)
        close(x["bias_grad"], y.sum(0))
        close(x["aux"], z if f == "relu" else read)
        assert np.isnan(first["out"]).all()


BATCHED = [((3, 6, 4), (4, 5)), ((3, 6, 4), (3, 4, 5)), ((2, 3, 6, 4), (3, 4, 5)), ((4,), (4, 5)), ((6, 4), (4,))]


@pytest.mark.parametrize(("left", "right"), BATCHED)
def test_plans_of_batches_and_vectors(rng, left, right):
    a, b, x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (left, right, left, right))
    plan = CPU.plan(GemmArguments(a, b))
    close(plan(x, y), x @ y)
    out = np.empty_like(x @ y)
    close(plan(x, y, out), x @ y)


def test_a_plan_refuses_what_is_not_like_the_first(rng):
    a, b, out = matrices(rng, 8, 8, 8)
    plan = CPU.plan(GemmArguments(a, b, out=out))
    memory = np.zeros(68, np.float32)
    misaligned = memory[1 if memory.ctypes.data % 16 == 0 else 0 :][:64].reshape(8, 8)
    for bad, error, message in [
        (a[:4], ValueError, r"a is \(4, 8\); the plan takes \(8, 8\)"),
        (a[None], ValueError, r"a is \(1, 8, 8\); the plan takes \(8, 8\)"),
        (a.T, ValueError, r"a has strides \(1, 8\); the plan takes \(8, 1\)"),
        (a.astype(np.float64), TypeError, "a is f64; the plan takes f32"),
        (misaligned, ValueError, "a starts at an address that is no multiple of 16 bytes"),
        ([a], ValueError, "a plan takes arrays; found lists of matrices"),
        (out, ValueError, "out shares elements with a"),
        ("a", TypeError, "a is a str; expected an array"),
    ]:
        with pytest.raises(error, match=message):
            plan(bad, b, out)
    for keywords, message in [
        ({"c": out}, "c is given; the plan was made without such an array"),
        ({"alpha": 2.0}, "alpha is given; the plan was made without such an array"),
        ({"bias": b[0]}, "bias is given; the plan was made without such an array"),
    ]:
        with pytest.raises(ValueError, match=message):
            plan(a, b, out, **keywords)
    assert np.isnan(out).all()
    readonly = out.copy()
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        plan(a, b, readonly)


def test_a_factor_of_a_plan_stays_an_array(rng):
    a, b, out = matrices(rng)
    plan = CPU.plan(GemmArguments(a, b, out=out, alpha=np.full(1, 2, np.float32)))
    with pytest.raises(ValueError, match="alpha is a number; the plan takes an array"):
        plan(a, b, out, alpha=3.0)


def test_strides_of_single_elements_do_not_matter(rng):
    a, b, out = matrices(rng, m=1)
    plan = CPU.plan(GemmArguments(a, b, out=out))
    wide = rng.standard_normal((3, 4)).astype(np.float32)
    close(plan(wide[::3], b, out), wide[:1] @ b)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 5), (6, 0, 5), (6, 4, 0)])
def test_strides_without_elements_do_not_matter(m, k, n):
    """Frameworks differ in those of empty arrays."""
    wide = np.ones((8, 8), np.float32)
    operands = [np.ones(shape, np.float32) for shape in ((m, k), (k, n), (m, n))]
    plan = CPU.plan(GemmArguments(*operands[:2], out=operands[2]))
    a, b, out = (x if x.size else wide[: x.shape[0], : x.shape[1]] for x in operands)
    assert plan(a, b, out) is out and (out == k).all()


def test_interleaved_operands_are_compared_on_every_call(rng):
    memory = rng.standard_normal((8, 16)).astype(np.float32)
    a, b, out = memory[:, ::2], rng.standard_normal((8, 8)).astype(np.float32), memory[:, 1::2]
    plan = CPU.plan(GemmArguments(a, b, out=out))
    for _ in range(3):
        wanted = a @ b
        plan(a, b, out)
        close(out, wanted)
    other = np.array(memory)
    with pytest.raises(ValueError, match="out shares elements with a"):
        plan(other[:, ::2], b, other[:, ::2])


def test_no_plan_of_lists(rng):
    a, b, _ = matrices(rng)
    with pytest.raises(ValueError, match="a plan takes arrays; found lists of matrices"):
        CPU.plan(GemmArguments([a, a], [b, b]))


def test_plans_in_other_frameworks(rng):
    torch = pytest.importorskip("torch")
    a, b, out = (torch.from_numpy(x) for x in matrices(rng))
    plan = CPU.plan(GemmArguments(a, b, out=out))
    x, y, z = matrices(rng)
    assert plan(torch.from_numpy(x), torch.from_numpy(y), out) is out
    close(out, x @ y)
    close(plan(x, y, z), x @ y)  # NumPy's arrays are as good
    with pytest.raises(ValueError, match="a requires a gradient"):
        plan(torch.from_numpy(x).requires_grad_(), b, out)
    jax = pytest.importorskip("jax")
    left, right = jax.numpy.asarray(x), jax.numpy.asarray(y)
    close(CPU.plan(GemmArguments(left, right))(left, right), x @ y)
    with pytest.raises(TypeError, match="out is a JAX array, which is immutable"):
        plan(a, b, jax.numpy.zeros((6, 5), "float32"))


def test_a_plan_of_gemms_own_choice(rng):
    a, b, out = matrices(rng)
    args = GemmArguments(a, b, out=out, activation="relu")
    plan = args.plan()
    x, y, z = matrices(rng)
    close(plan(x, y, z), np.maximum(x @ y, 0))
    assert "cpu_gemm_numpy" in repr(plan) and args.workspace_size() == 0


def test_an_order_of_tiles(rng):
    a, b, out = matrices(rng)
    args = GemmArguments(a, b, out=out)
    for order in ({"raster": "k"}, {"swizzle": 3}, {"swizzle": 0}, {"raster": 1}):
        with pytest.raises(ValueError, match="expected 'm' or 'n', and 1, 2, 4 or 8"):
            args.plan(**order)
    with pytest.raises(ValueError, match="raster or swizzle is given; the order of tiles is 3.x kernels'"):
        CPU.plan(args, swizzle=2)
    assert np.isnan(out).all()


@pytest.mark.parametrize("what", [CPU.plan, CPU.run, CPU.workspace_size, CPU.supports, CPU.compile])
def test_what_is_no_arguments(what):
    expected = "expected GemmArguments or another operation's"
    with pytest.raises(TypeError, match=f"^{what.__name__}: args is a str; {expected}$"):
        what("a")


def test_an_artifact_of_something_else(rng):
    a, b, out = matrices(rng)
    with pytest.raises(TypeError, match="artifact is a str; expected what compile returned"):
        CPU.run(GemmArguments(a, b, out=out), "cpu_gemm_numpy")


def test_a_plan_keeps_its_choice_when_plans_are_forgotten(rng):
    a, b, out = matrices(rng)
    plan = CPU.plan(GemmArguments(a, b, out=out))
    _core.clear_plans()
    close(plan(a, b, out), a @ b)


# ---------------------------------------------------------------------------------------- users' epilogues


@epilogue
def shifted(accum, bias):
    return accum + bias


@epilogue
def scaled_rows(accum, scale, bias):
    z = scale * accum + bias
    return z, {"rows": sum_over(z, axis=-1)}


class Moving:
    """An array of a framework that may give it other memory."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_plan_finds_the_operands_of_its_epilogue_where_they_are(rng):
    a, b, _ = matrices(rng)
    bias, rows = Moving(np.zeros(5, np.float32)), Moving(np.zeros((6, 1), np.float32))
    plan = CPU.plan(GemmArguments(a, b, epilogue=scaled_rows(scale=1, bias=bias, rows=rows)))
    first = plan()
    bias.array, rows.array = np.full(5, 2, np.float32), np.zeros((6, 1), np.float32)
    close(plan(), first + 2)
    close(rows.array, (a @ b + 2).sum(1, keepdims=True))
    bias.array = np.zeros(7, np.float32)
    with pytest.raises(ValueError, match=r"bias is \(7,\); the plan takes \(5,\)"):
        plan()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_plan_takes_another_call_of_its_epilogue(rng, order):
    """Of a transposed problem too, whose rows are columns."""
    a, b, out = (np.array(x, order=order) for x in matrices(rng))
    spec = {"dtype": "f32", "device": "cpu"}
    called = scaled_rows(scale=1, bias=TensorSpec((5,), **spec), rows=TensorSpec((6, 1), **spec))
    plan = CPU.plan(GemmArguments(a, b, out=out, epilogue=called))
    for scale, shift in ((2, 0.5), (np.float32(-0.5), 3)):
        x, y = a + shift, b - shift
        bias, rows = np.full(5, shift, np.float32), np.empty((6, 1), np.float32)
        assert plan(x, y, out, epilogue=scaled_rows(scale=scale, bias=bias, rows=rows)) is out
        close(out, scale * (x @ y) + bias)
        close(rows, out.sum(1, keepdims=True))
    with pytest.raises(TypeError, match="bias is a TensorSpec, which has no memory; pass an array to the plan"):
        plan(a, b, out)


def test_a_plan_refuses_what_its_epilogue_was_not_planned_for(rng):
    a, b, out = matrices(rng)
    bias, rows = np.zeros(5, np.float32), np.full((6, 1), np.nan, np.float32)
    plan = CPU.plan(GemmArguments(a, b, out=out, epilogue=scaled_rows(scale=1, bias=bias, rows=rows)))
    given = {"scale": 1, "bias": bias, "rows": rows}
    memory = np.zeros(6, np.float32)
    readonly = rows.copy()
    readonly.flags.writeable = False
    for changed, error, message in [
        ({"bias": np.zeros(7, np.float32)}, ValueError, r"bias is \(7,\); the plan takes \(5,\)"),
        ({"bias": np.zeros(10, np.float32)[::2]}, ValueError, r"bias has strides \(2,\); the plan takes \(1,\)"),
        ({"bias": np.zeros(5, BF16)}, TypeError, "bias is bf16; the plan takes f32"),
        ({"bias": np.zeros(6, np.float32)[1:]}, ValueError, "bias starts at an address that is no multiple of"),
        ({"bias": 1.0}, ValueError, "bias is a number; the plan takes an array"),
        ({"bias": out[0]}, ValueError, "out shares elements with bias"),
        ({"scale": np.ones(1, np.float32)}, ValueError, "scale is an array; the plan takes a number"),
        ({"scale": "1"}, TypeError, "scale is a str; expected a number"),
        ({"rows": readonly}, ValueError, "rows is read-only"),
        ({"bias": memory[:5], "rows": memory[:6, None]}, ValueError, "rows shares elements with bias"),
        ({"rows": Exporter(rows.copy(), device=(2, 0))}, ValueError, "a is on cpu but rows is on cuda:0"),
    ]:
        with pytest.raises(error, match=message):
            plan(a, b, out, epilogue=scaled_rows(**(given | changed)))
    for other, error, message in [
        (shifted(bias=bias), ValueError, "epilogue is another function, shifted; the plan takes scaled_rows"),
        (scaled_rows, TypeError, "epilogue is a .*UserEpilogue; expected a call of a function"),
    ]:
        with pytest.raises(error, match=message):
            plan(a, b, out, epilogue=other)
    assert np.isnan(out).all() and np.isnan(rows).all()
    with pytest.raises(ValueError, match="epilogue is given; the plan was made without one"):
        CPU.plan(GemmArguments(a, b))(a, b, epilogue=scaled_rows(**given))


# ---------------------------------------------------------------------------------------- garbage


@pytest.mark.parametrize("holder", [
    lambda array, b: CPU.plan(GemmArguments(array, b)),
    lambda array, b: CPU.plan(GemmArguments(b, array)),
    lambda array, b: CPU.plan(GemmArguments(b, b, out=array)),
    lambda array, b: CPU.plan(GemmArguments(b, b, epilogue=shifted(bias=array))),
    lambda array, b: shifted(bias=array),
    lambda array, b: cutlass_py.view(array, "f32"),
], ids=["a", "b", "out", "epilogue", "EpilogueCall", "TypedView"])  # fmt: skip
def test_cycles_through_what_keeps_arrays_are_collected(holder):
    array = Exporter(np.zeros((4, 4), np.float32))
    array.held = holder(array, np.zeros((4, 4), np.float32))
    assert gc.is_tracked(array.held)
    gc.collect()
    assert array.held is not None  # reached from here
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------------------------------------------- of groups


def test_a_plan_of_groups_takes_others(rng):
    """Whose sizes are others."""
    a, b, out = rng.standard_normal((7, 5)), rng.standard_normal((3, 5, 4)), np.full((7, 4), np.nan)
    sizes = np.array([2, 0, 5], "i4")
    plan = GroupedArguments(a, b, sizes=sizes, out=out, bias=rng.standard_normal((3, 4))).plan()
    assert plan() is out and np.isfinite(out).all()
    x, bias, others = rng.standard_normal((7, 5)), rng.standard_normal((3, 4)), np.array([3, 3, 1], "i4")
    y = np.empty((7, 4))
    assert plan(x, out=y, sizes=others, bias=bias) is y
    close(y, grouped_gemm(x, b, sizes=others, bias=bias))
    assert plan.problem.grouped == "m" and repr(plan).startswith("<Prepared 3 groups of rows of a: (7, 4, 5) tt: f64")


def test_a_plan_of_groups_is_of_one_problem(rng):
    a, b, sizes = rng.standard_normal((7, 5)), rng.standard_normal((3, 5, 4)), np.array([2, 0, 5], "i4")
    plan = GroupedArguments(a, b, sizes=sizes).plan()
    wrong = [
        (ValueError, "these arrays make 3 groups of rows of a: (6, 4, 5) tt", {"a": a[:6], "sizes": sizes // 2}),
        (ValueError, r"f32 @ f32 -> f32 on cpu; the plan is of 3 groups", {"a": a.astype("f4"), "b": b.astype("f4")}),
        (ValueError, "bias is given; the plan was made without such an array", {"bias": np.ones((3, 4))}),
        (ValueError, "offsets is given beside sizes", {"offsets": np.cumsum(sizes, dtype="i4")}),
        (ValueError, r"sizes\[1\] is -1; expected 0 to 7", {"sizes": np.array([2, -1, 5], "i4")}),
        (TypeError, "workspace is an int; expected", {"workspace": 1}),
        (ValueError, "alpha is given; the plan was made without such an array", {"alpha": 3.0}),
        (ValueError, "scale_a is given; the plan was made without such an array", {"scale_a": np.ones(7)}),
        (ValueError, "gather is given; the plan was made without such an array", {"gather": np.zeros(7, "i4")}),
    ]
    for error, message, given in wrong:
        with pytest.raises(error, match=re.escape(message) if "[" not in message else message):
            plan(**given)
    spread, out = np.zeros((7, 11))[:, 1:6], np.empty((7, 9))[:, 1:5]
    spread[...] = a
    with cutlass_py.batch_invariant():
        close(plan(spread, out=out), grouped_gemm(a, b, sizes=sizes))


def test_what_orders_tiles_is_refused_where_there_are_none(rng):
    arguments = GroupedArguments(rng.standard_normal((7, 5)), rng.standard_normal((5, 4)), offsets=np.array([5], "i8"))
    with pytest.raises(
        ValueError, match="grouped_gemm: raster or swizzle is given; the order of tiles is 3.x kernels'"
    ):
        arguments.plan(swizzle=2)
    with pytest.raises(ValueError, match="plan: raster is 'k', swizzle is None; expected 'm' or 'n', and 1, 2, 4 or 8"):
        arguments.plan(raster="k")
    assert arguments.workspace_size() == 0
    for ask in (arguments.plan, arguments.workspace_size):
        with pytest.raises(ValueError, match="grouped_gemm: kernel cpu_gemm_numpy does not fit"):
            ask(kernel=CPU)


def test_a_plan_of_groups_is_collected():
    class Rows(np.ndarray):
        pass

    a = np.zeros((4, 3)).view(Rows)
    a.plan = GroupedArguments(a, np.zeros((1, 3, 2)), sizes=np.array([4], "i4")).plan()
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None
