"""Shapes on the CPU: vectors, batches of any rank, lists of matrices, against float64."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import (
    CPU_FRAMEWORKS,
    framework_of,
    make,
    placed,
    to_numpy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import DEFAULT_OUT, assert_exact, integers, nan, reference

import cutlass_py
from cutlass_py import gemm

# ---------------------------------------------------------------------------------------- batches


BATCHES = {
    "both": ((3, 4, 5), (3, 5, 6)),
    "a": ((3, 4, 5), (5, 6)),
    "b": ((4, 5), (3, 5, 6)),
    "one_a": ((1, 4, 5), (3, 5, 6)),
    "one_b": ((3, 4, 5), (1, 5, 6)),
    "one": ((1, 4, 5), (1, 5, 6)),
    "one_and_matrix": ((1, 4, 5), (5, 6)),
    "rows_of_one": ((7, 1, 5), (5, 6)),
    "columns_of_one": ((7, 4, 5), (5, 1)),
    "scalars": ((7, 1, 5), (5, 1)),
}


@pytest.mark.parametrize("case", BATCHES)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_batches(rng, framework, case):
    a, b = (integers(rng, shape) for shape in BATCHES[case])
    expected = reference(a, b)
    x, y = make(framework, a, "f32"), make(framework, b, "f32")
    d = gemm(x, y)
    assert d.shape == expected.shape
    assert_exact(to_numpy(d), expected, "f32")
    for c_shape in {expected.shape[-2:], expected.shape, (1, *expected.shape[-2:])}:
        if len(c_shape) <= expected.ndim:
            c = integers(rng, c_shape)
            assert_exact(to_numpy(gemm(x, y, c=make(framework, c, "f32"))), reference(a, b, c), "f32")


@pytest.mark.parametrize("kind", ["row", "column", "padded", "strided", "batch_inner", "negative"])
@pytest.mark.parametrize("case", BATCHES)
def test_batched_out_in_any_layout(rng, case, kind):
    a, b = (integers(rng, shape) for shape in BATCHES[case])
    expected = reference(a, b)
    out = placed("numpy", None, "f32", kind, shape=expected.shape)
    gemm(a.astype(np.float32), b.astype(np.float32), out=out.array)
    assert_exact(to_numpy(out.array), expected, "f32")
    out.assert_rest_untouched()


@pytest.mark.parametrize("operand", ["a", "b", "both"])
def test_expanded_batch_has_stride_zero(rng, operand):
    a, b = integers(rng, (3, 4, 5)), integers(rng, (3, 5, 6))
    if operand in ("a", "both"):
        a = np.broadcast_to(a[:1], a.shape)
    if operand in ("b", "both"):
        b = np.broadcast_to(b[:1], b.shape)
    x, y = (
        np.broadcast_to(v[:1].astype(np.float32), v.shape) if 0 in v.strides else v.astype(np.float32) for v in (a, b)
    )
    assert_exact(to_numpy(gemm(x, y)), reference(a, b), "f32")


def test_expanded_rows_and_columns(rng):
    row, column = integers(rng, (1, 6)), integers(rng, (6, 1))
    x = np.broadcast_to(row.astype(np.float32), (4, 6))
    y = np.broadcast_to(column.astype(np.float32), (6, 5))
    assert_exact(to_numpy(gemm(x, y)), np.broadcast_to(row @ column, (4, 5)), "f32")


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((5,), (5, 6)),
        ((4, 5), (5,)),
        ((5,), (5,)),
        ((5,), (3, 5, 6)),
        ((2, 3, 4, 5), (5,)),
        ((0,), (0, 3)),
        ((3, 0), (0,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_vectors(rng, framework, a_shape, b_shape):
    a, b = integers(rng, a_shape), integers(rng, b_shape)
    x, y = make(framework, a, "f32"), make(framework, b, "f32")
    d = gemm(x, y)
    assert d.shape == (a @ b).shape and framework_of(d) == framework
    assert_exact(to_numpy(d), np.asarray(a @ b), "f32")
    c = integers(rng, (a @ b).shape)
    assert_exact(to_numpy(gemm(x, y, c=make(framework, c, "f32"))), np.asarray(a @ b + c), "f32")
    if framework != "jax":
        out = make(framework, np.zeros((a @ b).shape), "f32")
        assert gemm(x, y, out=out) is out
        assert_exact(to_numpy(out), np.asarray(a @ b), "f32")


def test_vectors_with_strides(rng):
    a, b = integers(rng, (9, 5)).astype(np.float32), integers(rng, (9, 5)).astype(np.float32)
    assert_exact(to_numpy(gemm(a[:, 2], b[::-1])), np.asarray(a[:, 2] @ b[::-1]).astype(np.float64), "f32")
    out = np.full((5, 4), np.nan, np.float32)
    gemm(a.T, b[:, 1], out=out[:, 3])
    assert_exact(to_numpy(out[:, 3]), (a.T @ b[:, 1]).astype(np.float64), "f32")
    assert np.isnan(out[:, :3]).all()


@st.composite
def batched(draw, batch, core):
    """Float32 integers whose batch broadcasts to `batch`: fewer dimensions, extents of 1, axes in any order."""
    lead = list(batch[draw(st.integers(0, len(batch))) :])
    lead = [1 if draw(st.booleans()) and draw(st.booleans()) else extent for extent in lead]
    shape = (*lead, *core)
    order = draw(st.permutations(range(len(shape))))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    x = seed.integers(-3, 4, [shape[i] for i in order]).astype(np.float32)
    x = x.transpose(np.argsort(order))
    if draw(st.booleans()) and lead and lead[0] > 1:
        x = np.broadcast_to(x[:1], x.shape)  # a stride of 0
    return x


small = st.integers(1, 3)


@settings(max_examples=200)
@given(data=st.data(), batch=st.lists(st.integers(0, 3), max_size=4).map(tuple), m=small, n=small, k=small)
def test_batches_of_many_dimensions(data, batch, m, n, k):
    a = data.draw(st.one_of(batched(batch, (m, k)), batched((), (k,))))
    b = data.draw(batched(batch, (k, n)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    d = gemm(a, b)
    assert d.shape == expected.shape
    assert_exact(to_numpy(d), expected, "f32")
    lead = expected.shape[: expected.ndim - 1 - (a.ndim > 1)]
    c = data.draw(batched(lead, expected.shape[len(lead) :]))
    out = np.full(expected.shape[::-1], np.nan, np.float32).T
    assert gemm(a, b, c=c, out=out, alpha=2) is out
    assert_exact(to_numpy(out), 2 * expected + c, "f32")


def test_seven_dimensions(rng):
    a, b = integers(rng, (2, 1, 2, 1, 2, 3, 4)), integers(rng, (2, 1, 2, 1, 4, 5))
    assert_exact(to_numpy(gemm(a, b)), a @ b, "f64")


# ---------------------------------------------------------------------------------------- lists of matrices


def spaced(rng, shapes, dtype, framework, regular):
    """Matrices of a list: slices of one array, or one by one, out of order."""
    values = [integers(rng, shape, dtype) for shape in shapes]
    if regular:
        batch = make(framework, np.stack(values), dtype)
        return values, [batch[i] for i in range(len(shapes))]
    arrays = {i: make(framework, values[i], dtype) for i in (2, 0, 3, 1)}
    return values, [arrays[i] for i in range(len(shapes))]


@pytest.mark.parametrize("regular", [True, False], ids=["regular", "scattered"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_lists_of_matrices(rng, framework, dtype, regular):
    a, xs = spaced(rng, [(4, 5)] * 4, dtype, framework, regular)
    b, ys = spaced(rng, [(5, 6)] * 4, dtype, framework, regular)
    out_dtype = DEFAULT_OUT.get(dtype, dtype)
    c, zs = spaced(rng, [(4, 6)] * 4, out_dtype, framework, regular)
    ds = gemm(xs, tuple(ys), c=zs, alpha=2)
    assert isinstance(ds, list) and [framework_of(d) for d in ds] == [framework] * 4
    for i in range(4):
        assert_exact(to_numpy(ds[i]), reference(a[i], b[i], c[i], 2), out_dtype)
    for shared in (gemm(xs[0], ys), gemm(xs, ys[0])):
        assert len(shared) == 4 and shared[3].shape == (4, 6)
    assert_exact(to_numpy(gemm(xs[1], ys)[2]), reference(a[1], b[2]), out_dtype)
    assert_exact(to_numpy(gemm(xs, ys[1], c=zs[0])[2]), reference(a[2], b[1], c[0]), out_dtype)
    if framework != "jax":
        outs = [placed(framework, None, out_dtype, "column", shape=(4, 6)) for _ in range(4)]
        given = [out.array for out in outs]
        assert gemm(xs, ys, out=given, c=zs) is given
        for i in range(4):
            assert_exact(to_numpy(given[i]), reference(a[i], b[i], c[i]), out_dtype)
            outs[i].assert_rest_untouched()


def test_lists_in_place_and_with_vectors(rng):
    a, xs = spaced(rng, [(4, 5)] * 4, "f32", "numpy", False)
    c, zs = spaced(rng, [(4, 6)] * 4, "f32", "numpy", False)
    b, bias, scale = integers(rng, (5, 6)), integers(rng, (6,)), integers(rng, (4,))
    y, v, s = (x.astype(np.float32) for x in (b, bias, scale))
    assert gemm(xs, y, c=zs, out=zs, bias=v, scale_a=s, activation="relu") is zs
    for i in range(4):
        assert_exact(to_numpy(zs[i]), np.maximum(scale[:, None] * (a[i] @ b) + c[i] + bias, 0), "f32")


def test_lists_of_one_of_empty_and_of_unread_matrices(rng):
    a, b = integers(rng, (4, 5)).astype(np.float32), integers(rng, (5, 6)).astype(np.float32)
    (d,) = gemm([a], [b])
    assert_exact(to_numpy(d), reference(a, b), "f32")
    c = [np.full((4, 6), value, np.float32) for value in (1, 2, 3)]
    unread = [nan(4, 5) for _ in range(3)]
    for i, d in enumerate(gemm(unread, b, c=[c[2], c[0], c[1]], alpha=0)):
        assert (d == (3, 1, 2)[i]).all()
    assert [d.shape for d in gemm([a[:, :0]] * 2, b[:0])] == [(4, 6)] * 2
    assert [d.shape for d in gemm([a[:0]] * 2, b)] == [(0, 6)] * 2
    same = gemm([a, a, a], b)
    assert all(np.array_equal(same[0], d) for d in same)


def test_lists_of_column_slices_in_any_order(rng):
    """Their bytes interleave, and no single stride describes them."""
    a, xs = spaced(rng, [(4, 5)] * 4, "f32", "numpy", False)
    b = integers(rng, (5, 4))
    buffer, order = nan(4, 17), (0, 8, 12, 4)
    outs = [buffer[:, first : first + 4] for first in order]
    buffer[:, 16] = 7
    gemm(xs, b.astype(np.float32), out=outs)
    for i, first in enumerate(order):
        assert_exact(to_numpy(buffer[:, first : first + 4]), a[i] @ b, "f32")
    assert (buffer[:, 16] == 7).all()
    many = np.zeros((2, 400), np.float32)
    halves = [many[:, 2 * i : 2 * i + 2] for i in (1, 0, *range(2, 200))]
    with pytest.raises(ValueError, match="gemm: out overlaps itself: .* cannot be told apart"):
        gemm([xs[0][:2]] * 200, b[:, :2].astype(np.float32), out=halves)


def test_a_list_that_changes_during_its_call():
    """The call goes on with the matrices that it was given."""

    class Clearing:
        def __init__(self, array, matrices):
            self.array, self.matrices = array, matrices

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **keywords):
            self.matrices.clear()
            gc.collect()
            return self.array.__dlpack__(**keywords)

    eye = np.eye(1024, dtype=np.float32)
    a = [np.full_like(eye, i) for i in range(3)]
    found = gemm(a, [eye, eye, Clearing(eye, a)])
    assert not a and [(d == i).all() for i, d in enumerate(found)] == [True] * 3


# ---------------------------------------------------------------------------------------- matrices that differ

UNEVEN = [(4, 5, 6), (1, 3, 2), (7, 5, 1), (3, 0, 6), (0, 2, 5), (20, 33, 17)]


def uneven(rng, dtype, framework, shapes=UNEVEN, order="row"):
    """Pairs of matrices of any sizes, in NumPy and in a framework; columns lie together where asked for."""
    pairs = [[integers(rng, shape, dtype) for shape in ((m, k), (k, n))] for m, k, n in shapes]

    def placed_as(x):
        return placed("numpy", x, dtype, order).array if framework == "numpy" else make(framework, x, dtype)

    return [list(each) for each in zip(*pairs, strict=True)] + [
        list(each) for each in zip(*([placed_as(x) for x in pair] for pair in pairs), strict=True)
    ]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8", "c64"])
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_lists_of_matrices_that_differ(rng, framework, dtype):
    a, b, xs, ys = uneven(rng, dtype, framework)
    out_dtype = DEFAULT_OUT.get(dtype, dtype)
    c = [integers(rng, (m, n), out_dtype) for m, _, n in UNEVEN]
    zs = [make(framework, x, out_dtype) for x in c]
    ds = gemm(xs, tuple(ys), c=zs, alpha=2)
    assert isinstance(ds, list) and [framework_of(d) for d in ds] == [framework] * len(UNEVEN)
    for i, (m, _, n) in enumerate(UNEVEN):
        assert ds[i].shape == (m, n)
        assert_exact(to_numpy(ds[i]), reference(a[i], b[i], c[i], 2), out_dtype)
    if framework != "jax":
        outs = [placed(framework, None, out_dtype, "column", shape=(m, n)) for m, _, n in UNEVEN]
        given = [out.array for out in outs]
        assert gemm(xs, ys, out=given, c=zs, beta=3) is given
        for i in range(len(UNEVEN)):
            assert_exact(to_numpy(given[i]), reference(a[i], b[i], c[i], 1, 3), out_dtype)
            outs[i].assert_rest_untouched()


@pytest.mark.parametrize("order", ["row", "column", "padded", "strided", "negative"])
def test_lists_that_differ_in_any_layout(rng, order):
    a, b, xs, ys = uneven(rng, "f32", "numpy", order=order)
    outs = [placed("numpy", None, "f32", order, shape=(m, n)) for m, _, n in UNEVEN]
    gemm(xs, ys, out=[out.array for out in outs])
    for i, out in enumerate(outs):
        assert_exact(to_numpy(out.array), reference(a[i], b[i]), "f32")
        out.assert_rest_untouched()
    for i, d in enumerate(gemm(xs, ys, batch_invariant=True)):
        assert_exact(to_numpy(d), reference(a[i], b[i]), "f32")


def test_lists_that_differ_in_place_and_beside_one_matrix_for_all(rng):
    shapes = [(4, 5, 6), (1, 5, 6), (9, 5, 6)]
    a, b, xs, ys = uneven(rng, "f32", "numpy", shapes)
    bias, c = integers(rng, (6,)), [integers(rng, (m, 6)) for m, _, _ in shapes]
    zs = [x.astype(np.float32) for x in c]
    assert gemm(xs, ys[0], c=zs, out=zs, bias=bias.astype(np.float32), activation="relu") is zs
    for i in range(3):
        assert_exact(to_numpy(zs[i]), np.maximum(a[i] @ b[0] + c[i] + bias, 0), "f32")
    for i, d in enumerate(gemm(xs[0], [y[:, :n] for y, n in zip(ys, (6, 1, 3), strict=True)])):
        assert_exact(to_numpy(d), reference(a[0], b[i][:, : (6, 1, 3)[i]]), "f32")
    # The same shapes in different layouts.
    turned = [np.asfortranarray(x.astype(np.float32)) if i % 2 else x.astype(np.float32) for i, x in enumerate(b)]
    for i, d in enumerate(gemm(xs[0], turned)):
        assert_exact(to_numpy(d), reference(a[0], b[i]), "f32")
    unread = [nan(m, 5) for m, _, _ in shapes]
    for i, d in enumerate(gemm(unread, ys, c=zs, alpha=0)):
        assert np.array_equal(d, zs[i])
    assert [d.shape for d in gemm([x[:0] for x in xs], [y[:, :n] for y, n in zip(ys, (2, 3, 4), strict=True)])] == [
        (0, 2), (0, 3), (0, 4),
    ]  # fmt: skip


def test_results_that_differ_share_memory_and_nothing_else(rng):
    a, b, xs, ys = uneven(rng, "f32", "numpy")
    ds = gemm(xs, ys)
    assert len({d.base.__array_interface__["data"][0] for d in ds if d.base is not None}) == 1
    for d in ds:
        assert d.flags.c_contiguous and (not d.size or d.ctypes.data % 16 == ds[0].ctypes.data % 16)
        d[...] = 7
    assert all((d == 7).all() for d in ds)
    bits = [make("numpy", x, "bf16").view(np.uint16) for x in a]
    views = [cutlass_py.view(x, "bf16") for x in bits]
    for i, d in enumerate(gemm(views, [cutlass_py.view(make("numpy", y, "bf16").view(np.uint16), "bf16") for y in b])):
        assert isinstance(d, cutlass_py.TypedView)
        assert_exact(to_numpy(d), reference(a[i], b[i]), "bf16")


def test_lists_of_specs_are_scattered():
    spec = cutlass_py.TensorSpec((4, 4), "f32")
    for a, b in (([spec] * 3, [spec] * 3), ([spec] * 3, spec), (spec, (spec, spec))):
        p = cutlass_py.GemmArguments(a, b).problem
        assert p.pointers and p.batch == max(len(x) for x in (a, b) if x is not spec)
    assert not cutlass_py.GemmArguments([spec], [spec]).problem.pointers


@pytest.mark.skipif("jax" not in CPU_FRAMEWORKS, reason="needs jax")
def test_no_matrix_of_an_out_list_may_be_immutable(rng):
    a, b = integers(rng, (4, 5)).astype(np.float32), integers(rng, (5, 6)).astype(np.float32)
    out = [nan(4, 6), make("jax", np.zeros((4, 6)), "f32")]
    with pytest.raises(TypeError, match=r"gemm: out\[1\] is a JAX array, which is immutable; use the returned array"):
        gemm([a, a], b, out=out)


def test_results_of_lists_of_views(rng):
    a = integers(rng, (4, 4), "bf16")
    bits = [make("numpy", a, "bf16").view(np.uint16) for _ in range(2)]
    views = [cutlass_py.view(x, "bf16") for x in bits]
    for d in gemm(views, views):
        assert isinstance(d, cutlass_py.TypedView)
        assert_exact(to_numpy(d), reference(a, a), "bf16")
