"""Arguments as values, and ordinary NumPy arrays, which are read in place."""

from __future__ import annotations

import copy
import pickle
import re
import sys

import numpy as np
import pytest
from reference import close, matrices
from specs import operand, problem, vector

import cutlass_py
from cutlass_py import GemmArguments, TensorSpec, _core
from cutlass_py.bench import host

# ---------------------------------------------------------------------------------------- values


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


# ---------------------------------------------------------------------------------------- without memory


def specs():
    yield TensorSpec((3, 4), "f32")
    yield TensorSpec((3, 4), "bf16")
    yield TensorSpec((4, 3), "f32")
    yield TensorSpec((3, 4), "f32", (1, 3))
    yield TensorSpec((3, 4), "f32", device="cuda:1")
    yield TensorSpec((3, 4), "f32", device="cpu")
    yield TensorSpec((3, 4), "f32", alignment=16)
    yield TensorSpec((), "f32")


def test_specs_are_values():
    ours, theirs = list(specs()), list(specs())
    assert ours == theirs and len(set(ours) | set(theirs)) == len(ours)
    assert all((x == y) == (i == j) for i, x in enumerate(ours) for j, y in enumerate(theirs))
    assert ours[0] == TensorSpec([3, 4], "float32", [4, 1], "cuda:0", 256) and ours[0] != (3, 4)
    for again in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        for spec in ours:
            assert again(spec) == spec and again(spec).alignment == spec.alignment
    assert [eval(repr(spec)) for spec in ours] == ours


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_specs_take_devices_of_torch(device):
    torch = pytest.importorskip("torch")
    assert TensorSpec((3, 4), "f32", device=torch.device(device)) == TensorSpec((3, 4), "f32", device=device)


def test_a_question_refuses_keywords_that_it_does_not_know():
    a = np.ones((3, 3))
    with pytest.raises(TypeError, match=r"keywords are .*'biass'.*, of which it does not know all"):
        _core.problem(a, a, biass=a)


def test_arguments_are_copied_and_pickled():
    a, b = np.ones((3, 4)), np.ones((4, 5))
    described = GemmArguments(TensorSpec(a.shape, "bf16"), TensorSpec(b.shape, "bf16"), activation="gelu", splits=2)
    for again in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert repr(again(described)) == repr(described) and again(described).keywords == described.keywords
        np.testing.assert_array_equal(again(GemmArguments(a, b, alpha=0.5)).run(), np.full((3, 5), 2.0))


def test_a_deep_copy_shares_no_operand():
    a, b, out = np.ones((3, 4)), np.ones((4, 5)), np.zeros((3, 5))
    first = GemmArguments(a, b, c=out, out=out)
    copied = copy.deepcopy(first)
    assert copied.run() is copied.keywords["c"] and not out.any()
    assert copy.copy(first).run() is out and (out == 4).all()


def test_what_making_them_costs_has_a_row_of_host_times_and_so_has_a_query():
    pytest.importorskip("torch")
    rows = {row.ours: row for row in host.torch_rows("cpu", "float32")}
    for ours, kind in (("GemmArguments(a, b, out=c)", GemmArguments), ("get_kernels(args, compiled=False)", list)):
        assert isinstance(eval(ours, rows[ours].names), kind) and eval(rows[ours].theirs, rows[ours].names) is not None


def absent():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    from torch._subclasses.fake_tensor import FakeTensorMode

    yield torch.empty(8, 4, device="meta"), "'torch.float32'"
    with FakeTensorMode():
        yield torch.empty(8, 4, dtype=torch.bfloat16), "'torch.bfloat16'"
    yield jax.ShapeDtypeStruct((8, 4), "float16"), "'float16'"


@pytest.mark.filterwarnings("ignore")
def test_metadata_of_frameworks_are_pointed_to_specs():
    for x, dtype in absent():
        for operands in ({"a": x, "b": operand(4, 8, "t")}, {"a": operand(8, 8, "t"), "b": x}):
            spec = f"TensorSpec((8, 4), {dtype})"
            with pytest.raises((TypeError, ValueError), match=rf"; {re.escape(spec)} describes an operand that has no"):
                GemmArguments(**operands)
            assert eval(spec).shape == [8, 4]


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
    with pytest.raises(ValueError, match="gemm: a is a numpy.ndarray that cannot be exported: .* multiple of itemsize"):
        cutlass_py.gemm(record["x"], b)
    close(cutlass_py.gemm(cutlass_py.view(a.view(np.int32).view(np.uint32), "f32"), b), a @ b)


@pytest.mark.parametrize(("dtype", "least"), [("s8", 1), ("bf16", 2), ("f32", 4), ("c128", 16)])
def test_an_alignment_that_no_array_has(dtype, least):
    assert TensorSpec((4, 4), dtype, alignment=least).alignment == least
    if least > 1:
        with pytest.raises(ValueError, match=f"alignment is {least // 2}; expected {least} at least, of {dtype}"):
            TensorSpec((4, 4), dtype, alignment=least // 2)
