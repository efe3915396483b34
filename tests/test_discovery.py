"""Finding and asking: arguments as values, get_kernels over large declarations, explanations as data, runs by hand."""

from __future__ import annotations

import copy
import gc
import io
import json
import re
import sys
import weakref
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from exporters import Exporter
from specs import CORE, listed, operand, problem, vector

import cutlass_py
from cutlass_py import (
    Artifact,
    GemmArguments,
    TensorSpec,
    _core,
    epilogue,
    explain,
    explanation,
    get_kernels,
    kernels,
    select,
)
from cutlass_py.families import FAMILIES
from cutlass_py.kernels import CutlassKernel, kernel_named
from cutlass_py.legality import Interface, Way

CPU = kernel_named("cpu_gemm_numpy")


def matrices(rng, m=6, n=5, k=4, dtype=np.float32):
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    return a, b, np.full((m, n), np.nan, dtype)


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------- arguments


def test_replace_gives_new_tensors_to_the_same_operation(rng):
    a, b, out = matrices(rng)
    args = GemmArguments(a, b, out=out, alpha=2.0, bias=np.ones(5, np.float32))
    x, y, z = matrices(rng)
    again = args.replace(a=x, b=y, out=z)
    assert again.run() is z
    close(z, 2 * x @ y + 1)
    assert np.isnan(out).all() and args.keywords["out"] is out and args.a is a


def test_replace_may_change_the_problem():
    args = problem(bias=vector(512))
    assert args.replace(bias=None).problem.bias is None
    assert args.replace(b=operand(512, 64, "t"), bias=None).problem.n == 64
    assert args.replace() is not args and args.replace().problem == args.problem


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is of Python 3.13")
def test_copy_replace():
    assert copy.replace(problem(), alpha=0.0).problem.empty_product


def test_replace_refuses_what_is_no_keyword():
    with pytest.raises(TypeError, match="kernel"):
        problem().replace(kernel="x")
    with pytest.raises(ValueError, match=r"a is \(512, 3\) but b is \(512, 512\)"):
        problem().replace(a=operand(512, 3, "t"))


# ---------------------------------------------------------------------------------------- NumPy in place


def ndarrays():
    base = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8) % 5
    yield base
    yield base[:, ::-1]
    yield base[:, :, ::2]
    yield base.transpose(0, 2, 1)
    yield base[:, 2:5, 1:]
    yield np.asfortranarray(base[0])
    yield base[0, 0]
    yield base[:0]


@pytest.mark.parametrize("x", list(ndarrays()), ids=lambda x: f"{x.shape}{x.strides}")
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "complex64", "bfloat16", "float8_e4m3fn"]
)
def test_numpy_arrays_are_read_as_their_export_says(x, dtype):
    """An ordinary array is read in place; a subclass goes through __dlpack__."""
    import ml_dtypes  # noqa: F401

    class Exported(np.ndarray):
        pass

    held = x.astype(dtype)  # keeps no reversed strides: views are made again below
    held = np.lib.stride_tricks.as_strided(held, x.shape, held.strides) if x.flags.c_contiguous else _like(x, dtype)
    b = np.ones((held.shape[-1], 3), dtype)
    found, exported = (_core.problem(y, b) for y in (held, held.view(Exported)))
    assert found == exported
    np.testing.assert_array_equal(
        np.asarray(cutlass_py.gemm(held, b)).astype(np.complex128),
        np.asarray(cutlass_py.gemm(held.view(Exported), b)).astype(np.complex128),
    )


def _like(x, dtype):
    """x in another dtype, lying as x lies in its base."""
    base = x.base if x.base is not None else x
    whole = np.ascontiguousarray(base).astype(dtype)
    size = np.dtype(dtype).itemsize
    offset = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    start = whole.reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(start, x.shape, [s // x.itemsize * size for s in x.strides])


def test_numpy_arrays_that_are_not_ordinary_are_refused_as_before(rng):
    a, b, out = matrices(rng)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        cutlass_py.gemm(a, b, out=out)
    for bad in (a.astype(">f4"), a.astype(np.longdouble), a.astype(object), a.astype(bool), a.astype("M8[s]")):
        with pytest.raises((TypeError, ValueError), match="a has dtype"):
            cutlass_py.gemm(bad, b)
    record = np.zeros((6, 4), [("x", "f4"), ("y", "i1")])
    with pytest.raises(BufferError, match="multiple of itemsize"):
        cutlass_py.gemm(record["x"], b)
    close(cutlass_py.gemm(cutlass_py.view(a.view(np.int32).view(np.uint32), "f32"), b), a @ b)


# ---------------------------------------------------------------------------------------- get_kernels


def blown_up(times):
    """The declared kernels, and copies of the tensor-core ones that differ in a tile and count as declared too."""
    configs = [c for family in FAMILIES.values() for c in family.declared]
    wide = [c for c in configs if c.api == 3]
    copies = [replace(c, tile=(c.tile[0] + 64 * i, *c.tile[1:])) for i in range(1, times) for c in wide]
    return {c.name: c for c in (*configs, *copies)}


@pytest.fixture
def declaration(monkeypatch):
    """As if so many kernels were declared."""

    def pretend(times):
        large = blown_up(times)
        monkeypatch.setattr(kernels, "named", lambda part: large)
        monkeypatch.setattr(kernels, "_cutlass", {})
        kernels.forget()
        return large

    yield pretend
    monkeypatch.undo()
    kernels.forget()


@pytest.mark.parametrize(
    "args",
    [
        problem(),
        problem(n=96, bias=vector(96), activation="gelu"),
        problem(layout="tt", dtype="f16"),
        problem(dtype="e4m3", scale_a=vector((512, 1), "f32")),
    ],
    ids=str,
)
def test_a_query_by_arguments_looks_at_few_of_many_kernels(declaration, monkeypatch, args):
    large = declaration(3)
    assert len(large) > 10_000
    asked = []
    way = Interface.way
    monkeypatch.setattr(Interface, "way", lambda self, p, gpu: asked.append(self) or way(self, p, gpu))
    found = get_kernels(args, compiled=False)
    assert len(asked) < 40 and len(asked) == len(set(map(id, asked)))
    monkeypatch.undo()
    assert {k.name for k in found} == {c.name for c in large.values() if CutlassKernel(c, None).supports(args)}


@pytest.mark.parametrize("layout", ["tn", "tt"])
@pytest.mark.parametrize("splits", [None, 1, 3, "stream"])
def test_get_kernels_is_the_order_in_which_gemm_would_take_them(layout, splits):
    args = problem(m=96, n=640, k=4096, layout=layout, splits=splits, out_dtype="f32")
    parts = 3 if splits == 3 else 1
    ranked = [c.route.kernel for c in select.rank(args.problem, compiled=False) if c.route.splits == parts]
    found = get_kernels(args, compiled=False)
    assert found and [k for k in ranked if k in found] == found
    assert all(k.supports(args) for k in found)


def test_a_measured_kernel_comes_first(built, monkeypatch):
    built([k.name for k in CORE])
    args = problem()
    order = get_kernels(args)
    slow = order[-1]
    way = slow.way(args.problem, select.gpu_of(args.problem))
    assert isinstance(way, Way)
    choice = select.Choice(select.Route(slow, way), 1.5, measured=True)
    monkeypatch.setattr(select, "_measured", lambda p, gpu, compiled: choice)
    assert get_kernels(args) == [slow, *order[:-1]]
    row = explain(args).rows()[0]
    assert (row.kernel, row.microseconds, row.measured) == (slow.name, 1.5, True)


@pytest.mark.parametrize(
    ("cc", "families"),
    [
        ("80", {"sm80_gemm", "simt_gemm"}),
        (80, {"sm80_gemm", "simt_gemm"}),
        ("90", set(FAMILIES)),
        (90, set(FAMILIES)),
        ("90a", {"sm90_gemm", "sm90_streamk", "sm90_array", "sm90_block", "sm90_dgemm"}),
        ("100", {"sm80_gemm", "simt_gemm"}),
    ],
)
def test_cc_is_a_number_or_its_text(cc, families):
    assert {k.metadata.family for k in get_kernels(cc=cc, compiled=False)} == families
    found = get_kernels(problem(), where=lambda m: m.design.tile[0] == 128, cc=cc, compiled=False)
    assert found and {k.family.name for k in found} <= families


@pytest.mark.parametrize("cc", ["9.0", "sm_90", "90b", "", -80, True])
def test_cc_that_is_none(cc):
    with pytest.raises(
        ValueError, match="cc is .*; expected a compute capability times ten, such as 80 or '90', or '90a'"
    ):
        get_kernels(cc=cc)


# ---------------------------------------------------------------------------------------- explain as data


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
    estimates = select.Estimates(args.problem, select.gpu_of(args.problem))
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


def test_show_is_plain_elsewhere(built, monkeypatch, capsys):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    answer.show()
    assert capsys.readouterr().out == f"{answer}\n"
    monkeypatch.setattr(explanation, "find_spec", lambda name: None)  # rich is not there
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    answer.show()
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize("args", [problem(k=511), problem(k=0), problem(dtype="e4m3")], ids=str)
def test_every_explanation_can_be_shown(built, args, monkeypatch):
    built([])
    monkeypatch.setattr(sys, "stdout", Terminal())
    explain(args).show()
    assert sys.stdout.getvalue()


NAMES = {"a", "b", "c", "k", "m", "n", "out", "bias", "splits", "batch", "operands", "asked"}


def test_every_reason_says_what_was_expected_and_what_was_found():
    """Over many kernels and problems: two halves, and the name of an operand, an extent or a keyword."""
    shapes = [(512, 512, 512), (65, 97, 33)]
    extras = [{}, {"bias": vector(97, "f32")}, {"c": operand(512, 512, "n")}, {"splits": 4}, {"splits": "stream"}]
    reasons = set()
    for (m, n, k), layout, extra in product(shapes, ("tn", "nt"), extras):
        keywords = {
            key: x for key, x in extra.items() if not (key == "bias" and n != 97) and not (key == "c" and n != 512)
        }
        p = problem(m, n, k, layout, "bf16", **keywords).problem
        reasons |= {s.error for s in (kernel.supports(p) for kernel in CORE) if s.error}
    p = GemmArguments(listed(64, 64, "t"), listed(64, 64, "n")).problem
    reasons |= {s.error for s in (kernel.supports(p) for kernel in CORE) if s.error}
    assert len(reasons) > 12
    for reason in reasons:
        expected, _, found = reason.partition("; ")
        assert expected and found and NAMES & set(re.findall(r"\w+", reason)), reason


# ---------------------------------------------------------------------------------------- run by hand


def test_a_compiled_kernel_says_where_it_is():
    artifact = CPU.compile()
    assert artifact == Artifact("cpu_gemm_numpy", "cpu", None, True)
    spec = TensorSpec((4, 4), "f32", device="cpu")
    assert CPU.compile(GemmArguments(spec, spec)) == artifact


def test_compile_and_run_refuse_what_does_not_fit(rng):
    with pytest.raises(ValueError, match="kernel cpu_gemm_numpy does not fit .*: runs on the CPU; the operands are on"):
        CPU.compile(problem())
    a, b, out = matrices(rng)
    with pytest.raises(ValueError, match="artifact is of kernel other; expected one of cpu_gemm_numpy"):
        CPU.run(GemmArguments(a, b), Artifact("other", "80", None, True))
    with pytest.raises(ValueError, match=f"kernel {CORE[0].name} does not fit"):
        kernel_named(CORE[0].name).plan(GemmArguments(a, b))


def test_run_with_an_artifact_and_a_workspace(rng):
    a, b, out = matrices(rng)
    args = GemmArguments(a, b, out=out)
    assert CPU.workspace_size(args) == 0
    for workspace in (None, np.empty(0, np.uint8), np.empty(9, np.int8)):
        out[:] = np.nan
        assert CPU.run(args, CPU.compile(), workspace=workspace) is out
        close(out, a @ b)


@pytest.mark.parametrize(
    ("workspace", "error", "message"),
    [
        (3, TypeError, "workspace is a builtins.int; expected an array"),
        (np.empty(8, np.float32), TypeError, r"workspace is f32; expected bytes \(u8\)"),
        (
            np.empty((2, 8), np.uint8),
            ValueError,
            r"workspace is \(2, 8\) with strides \(8, 1\); expected one dimension",
        ),
        (np.empty(8, np.uint8)[::2], ValueError, r"workspace is \(4,\) with strides \(2,\); expected one dimension"),
        (np.frombuffer(bytes(8), np.uint8), ValueError, "workspace is read-only"),
        (TensorSpec((8,), "u8", device="cpu"), TypeError, "workspace is a .*TensorSpec; expected an array that can be"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_workspace_that_does_not_do(rng, workspace, error, message):
    a, b, out = matrices(rng)
    with pytest.raises(error, match=message):
        CPU.run(GemmArguments(a, b, out=out), workspace=workspace)
    assert np.isnan(out).all()


def test_a_workspace_lies_beside_the_operands(rng):
    a, b, out = matrices(rng)
    with pytest.raises(ValueError, match="workspace shares memory with out"):
        CPU.run(GemmArguments(a, b, out=out), workspace=out.reshape(-1).view(np.uint8))


# ---------------------------------------------------------------------------------------- plans


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
    memory = np.zeros(65, np.float32)
    for bad, error, message in [
        (a[:4], ValueError, r"a is \(4, 8\); the plan takes \(8, 8\)"),
        (a[None], ValueError, r"a is \(1, 8, 8\); the plan takes \(8, 8\)"),
        (a.T, ValueError, r"a has strides \(1, 8\); the plan takes \(8, 1\)"),
        (a.astype(np.float64), TypeError, "a is f64; the plan takes f32"),
        (memory[1:].reshape(8, 8), ValueError, "a starts at an address that is no multiple of 16 bytes"),
        ([a], ValueError, "a plan takes arrays; found lists of matrices"),
        (out, ValueError, "out shares elements with a"),
        ("a", TypeError, "a is a builtins.str; expected an array"),
    ]:
        if bad.__class__ is np.ndarray and bad.base is memory and bad.ctypes.data % 16 == 0:
            bad = memory[2:].reshape(-1)[:63]  # pragma: no cover
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


def test_a_plan_keeps_its_choice_when_plans_are_forgotten(rng):
    a, b, out = matrices(rng)
    plan = CPU.plan(GemmArguments(a, b, out=out))
    _core.clear_plans()
    close(plan(a, b, out), a @ b)


# ---------------------------------------------------------------------------------------- garbage


@epilogue
def shifted(accum, bias):
    return accum + bias


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
