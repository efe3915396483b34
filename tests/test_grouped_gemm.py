"""grouped_gemm on the CPU: every mode, way to tell groups and dtype against a loop of products; errors; the engines."""

from __future__ import annotations

import pickle

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
import pytest
from specs import grouped_problem

import cutlass_py
from cutlass_py import GroupedArguments, NoKernelError, TensorSpec, explain, get_kernels, grouped_gemm
from cutlass_py.declaration.families import FAMILIES, named
from cutlass_py.diagnostics import reproducer
from cutlass_py.kernels.operation import class_of
from cutlass_py.kernels.registry import kernel_named

MODES = ("m", "n", "k", "batch")
SIZES = [3, 0, 5, 2, 0]
UNWRITTEN = 7


def shapes(axis, m, n, k, groups):
    """Of a, b and the result; the axis that groups divide has the extent of all together, or what each may have."""
    a = (groups, m, k) if axis in ("n", "batch") else (m, k)
    b = (groups, k, n) if axis in ("m", "batch") else (k, n)
    return a, b, (groups, m, n) if axis in ("k", "batch") else (m, n)


def drawn(rng, axis, sizes, dtype, rest=2, m=4, n=6, k=8):
    """Operands of these groups, and a result that nobody has written."""
    total = max(sizes) + rest if axis == "batch" else sum(sizes) + rest
    extents = {"m": m, "n": n, "k": k} | {"m" if axis == "batch" else axis: total}
    a, b, d = shapes(axis, *extents.values(), len(sizes))
    integers = [rng.integers(-3, 4, shape).astype(dtype) for shape in (a, b)]
    return *integers, np.full(d, UNWRITTEN, dtype)


def groups_of(axis, sizes):
    """The lines of each: of a matrix of its own, or one behind the other."""
    ends = np.cumsum(sizes)
    return [(0, s) if axis == "batch" else (e - s, e) for s, e in zip(sizes, ends, strict=True)]


def expected(axis, a, b, d, sizes, finish=lambda i, z: z):
    """The definition: a loop of products in f64, over what is there in d."""
    a, b, d = (x.astype("f8") for x in (a, b, d))
    for i, (begin, end) in enumerate(groups_of(axis, sizes)):
        lines = slice(begin, end)
        if axis == "m":
            d[lines] = finish(i, a[lines] @ b[i])
        elif axis == "n":
            d[:, lines] = finish(i, a[i] @ b[:, lines])
        elif axis == "k":
            d[i] = finish(i, a[:, lines] @ b[lines])
        else:
            d[i, lines] = finish(i, a[i, lines] @ b[i])
    return d


def told(axis, sizes, how, kind):
    """Keywords that tell groups apart."""
    if how == "sizes" or axis == "batch":
        return {"sizes": np.array(sizes, kind)}
    ends = np.cumsum(sizes)
    return {"offsets": (ends if how == "ends" else np.r_[0, ends]).astype(kind)}


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("how", ["ends", "starts", "sizes"])
@pytest.mark.parametrize("axis", MODES)
def test_groups_are_products(rng, axis, how, kind):
    a, b, out = drawn(rng, axis, SIZES, "f4")
    wanted = expected(axis, a, b, out, SIZES)
    given = told(axis, SIZES, how, kind)
    assert grouped_gemm(a, b, out=out, **given) is out
    np.testing.assert_array_equal(out, wanted)
    if axis != "k" or how == "ends":  # without `out` numbers of k are ends
        new = grouped_gemm(a, b, **given)
        assert new.shape == out.shape and new.flags.c_contiguous
        for i, (begin, end) in enumerate(groups_of(axis, SIZES)):
            where = {"m": np.s_[begin:end], "n": np.s_[:, begin:end], "k": np.s_[i], "batch": np.s_[i, begin:end]}[axis]
            np.testing.assert_array_equal(new[where], wanted[where])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("axis", MODES)
def test_every_dtype(rng, axis, dtype):
    a, b, out = drawn(rng, axis, SIZES, "f4")
    a, b = (abs(x).astype(dtype) for x in (a, b))
    result = {"int8": "i4", "uint8": "i4", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    out = out.astype(result)
    wanted = expected(axis, a.real, b.real, out.real, SIZES)
    grouped_gemm(a, b, out=out, **told(axis, SIZES, "ends", "i4"))
    np.testing.assert_array_equal(out.real.astype("f8"), wanted)


@pytest.mark.parametrize("turned", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("axis", MODES)
def test_columns_may_lie_together(rng, axis, turned):
    arrays = list(drawn(rng, axis, SIZES, "f4"))
    wanted = expected(axis, *arrays, SIZES)
    for i in turned:
        arrays[i] = arrays[i].swapaxes(-1, -2).copy().swapaxes(-1, -2)
    a, b, out = arrays
    grouped_gemm(a, b, out=out, **told(axis, SIZES, "ends", "i4"))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("axis", MODES)
def test_an_epilogue_of_each_group(rng, axis):
    a, b, out = drawn(rng, axis, SIZES, "f4")
    n = out.shape[-1]
    bias = rng.integers(-3, 4, (n,) if axis == "n" else (len(SIZES), n)).astype("f4")
    c, aux = rng.integers(-3, 4, out.shape).astype("f4"), np.zeros_like(out)
    of = groups_of(axis, SIZES)

    def finish(i, z):
        begin, end = of[i]
        rows = slice(None) if axis in ("n", "k") else slice(begin, end)
        columns = slice(begin, end) if axis == "n" else slice(None)
        beside = c[i][rows, columns] if c.ndim == 3 else c[rows, columns]
        return np.maximum(2 * z + 3 * beside + (bias[columns] if bias.ndim == 1 else bias[i]), 0)

    wanted = expected(axis, a, b, out, SIZES, finish)
    given = told(axis, SIZES, "ends", "i4")
    grouped_gemm(a, b, out=out, bias=bias, c=c, alpha=2, beta=3, activation="relu", aux=aux, **given)
    np.testing.assert_array_equal(out, wanted)
    assert (np.maximum(aux, 0) == out)[out != UNWRITTEN].all()


@pytest.mark.parametrize("axis", MODES)
@pytest.mark.parametrize("sizes", [[0, 0], [9], [0, 9, 0]], ids=str)
def test_empty_groups_and_one_that_has_everything(rng, axis, sizes):
    a, b, out = drawn(rng, axis, sizes, "f4", rest=0)
    wanted = expected(axis, a, b, out, sizes)
    grouped_gemm(a, b, out=out, **told(axis, sizes, "ends", "i4"))
    np.testing.assert_array_equal(out, wanted)


def test_no_groups_and_no_k():
    a, out = np.ones((4, 8), "f4"), np.full((4, 6), 7, "f4")
    grouped_gemm(a, np.ones((0, 8, 6), "f4"), out=out, offsets=np.zeros(0, "i4"))
    assert (out == 7).all()
    assert grouped_gemm(a, np.ones((8, 6), "f4"), offsets=np.zeros(0, "i4")).shape == (0, 4, 6)
    grouped_gemm(np.ones((4, 0), "f4"), np.ones((2, 0, 6), "f4"), out=out, offsets=np.array([1, 3], "i4"))
    assert (out[:3] == 0).all() and (out[3] == 7).all()


def test_what_belongs_to_nobody_is_not_read(rng):
    """NaN behind the last group never reaches a result."""
    for axis in MODES:
        a, b, out = drawn(rng, axis, SIZES, "f4")
        wanted = expected(axis, a, b, out, SIZES)
        total = sum(SIZES)
        if axis == "m":
            a[total:] = np.nan
        elif axis == "n":
            b[:, total:] = np.nan
        elif axis == "k":
            a[:, total:], b[total:] = np.nan, np.nan
        else:
            for i, size in enumerate(SIZES):
                a[i, size:] = np.nan
        grouped_gemm(a, b, out=out, **told(axis, SIZES, "ends", "i4"))
        np.testing.assert_array_equal(out, wanted)


# ---------------------------------------------------------------------------------------- rows by number


@pytest.mark.parametrize("kind", ["i4", "i8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex128"])
@pytest.mark.parametrize("how", ["rows", "columns", "backwards"])
def test_rows_by_their_numbers(rng, how, dtype, kind):
    """However a lies, and however many rows it has: the product is that of the rows one behind the other."""
    _, b, out = drawn(rng, "m", SIZES, "f4")
    a = rng.integers(-3, 4, (5, 8)).astype(dtype)
    a = {"rows": a, "columns": a.T.copy().T, "backwards": a[::-1, ::-1]}[how]
    out = out.astype({"int8": "i4"}.get(dtype, dtype))
    rows = rng.integers(0, 5, len(out)).astype(kind)
    given = told("m", SIZES, "ends", "i4")
    wanted = out.copy()
    grouped_gemm(a[rows], b.astype(dtype), out=wanted, **given)
    found = grouped_gemm(a, b.astype(dtype), gather=rows, out=out, **given)
    assert found is out
    np.testing.assert_array_equal(out, wanted)
    new = grouped_gemm(a, b.astype(dtype), gather=rows, **given)
    assert new.shape == out.shape
    np.testing.assert_array_equal(new[: sum(SIZES)], wanted[: sum(SIZES)])


def test_rows_by_their_numbers_and_all_else(rng):
    """Epilogues are about rows of the product; a column-major result and k of nothing are no exception."""
    _, b, out = drawn(rng, "m", SIZES, "f4")
    a, rows = rng.integers(-3, 4, (5, 8)).astype("f4"), rng.integers(0, 5, len(out))
    scale, bias = 2.0 ** rng.integers(-2, 3, len(out)).astype("f4"), rng.integers(-3, 4, (len(SIZES), 6)).astype("f4")
    given = {"scale_a": scale, "bias": bias, "activation": "relu", **told("m", SIZES, "sizes", "i8")}
    wanted = grouped_gemm(a[rows], b, out=out.copy(), **given)
    np.testing.assert_array_equal(grouped_gemm(a, b, gather=rows, out=out.copy(order="F"), **given), wanted)
    nothing = grouped_gemm(np.ones((5, 0), "f4"), b[:, :0], gather=rows, **told("m", SIZES, "ends", "i4"))
    assert (nothing[: sum(SIZES)] == 0).all()
    assert grouped_gemm(a, b, gather=rows[:0], sizes=np.zeros(len(SIZES), "i4")).shape == (0, 6)


def test_rows_by_their_numbers_are_explained(core):
    args = grouped_problem(gather=1000, m=4096)
    assert tuple(args.a.shape) == (1000, 1024) and args.problem.m == 4096 and args.problem.gathered
    text = str(explain(args))
    assert "8 groups of rows of a by their numbers" in text
    assert "copies the rows of a that gather numbers first" in text
    plain = grouped_problem(m=4096)
    assert class_of(args.problem) == class_of(plain.problem) and args.problem != plain.problem
    assert "gather" not in str(explain(plain))
    unaligned = grouped_problem(gather=1000, layout="nn")  # the rows are aligned wherever they come from
    assert not explain(unaligned).chosen.route.way.pack_a


# ---------------------------------------------------------------------------------------- errors

A, B, B3 = np.ones((12, 8), "f4"), np.ones((8, 6), "f4"), np.ones((4, 8, 6), "f4")
ENDS = np.array([3, 3, 8, 10], "i4")
DENSE = "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_leanpingpong_fused"


@pytest.mark.parametrize(
    ("a", "b", "keywords", "error", "message"),
    [
        (A, B3, {}, ValueError, "offsets is missing, and so is sizes"),
        (A, B3, {"offsets": ENDS, "sizes": ENDS}, ValueError, "offsets is given beside sizes"),
        (
            A,
            B3,
            {"offsets": ENDS[:2]},
            ValueError,
            r"offsets is \(2,\); expected \(4,\), the end of each group, or one",
        ),
        (A, B3, {"sizes": ENDS[:3]}, ValueError, r"sizes is \(3,\); expected \(4,\)"),
        (A, B3, {"offsets": np.array([3, 2, 8, 10], "i4")}, ValueError, r"offsets\[1\] is 2 but offsets\[0\] is 3"),
        (A, B3, {"offsets": np.array([3, 4, 8, 20], "i8")}, ValueError, r"offsets\[3\] is 20; expected 12 at most"),
        (A, B3, {"offsets": np.array([-1, 4, 8, 9], "i4")}, ValueError, r"offsets\[0\] is -1; expected 0 to 12"),
        (A, B3, {"sizes": np.array([3, -1, 2, 2], "i4")}, ValueError, r"sizes\[1\] is -1; expected 0 to 12"),
        (A, B3, {"sizes": np.array([3, 9, 2, 2], "i4")}, ValueError, r"sizes\[2\] ends a group at 14; expected 12"),
        (A, B3, {"sizes": np.array([2**40, 0, 0, 0], "i8")}, ValueError, r"sizes\[0\] is 1099511627776"),
        (A, B3, {"offsets": ENDS.astype("f4")}, TypeError, "offsets is f32; expected int32 or int64"),
        (A, B3, {"offsets": ENDS.astype("u1")}, TypeError, "offsets is u8; expected int32 or int64"),
        (A, B3, {"offsets": ENDS[None]}, ValueError, r"offsets is \(1, 4\); expected one dimension"),
        (A, B3, {"offsets": np.repeat(ENDS, 2)[::2]}, ValueError, "with gaps between its numbers"),
        (A, B3, {"offsets": [3, 3, 8, 10]}, TypeError, "offsets is a list"),
        (A, B3, {"offsets": ENDS, "expected": 0}, ValueError, "expected is 0; expected lines of a group"),
        (A, B3, {"offsets": ENDS, "expected": "x"}, ValueError, "expected is 'x'"),
        (
            A,
            B3,
            {"offsets": ENDS, "bias": np.ones((2, 6), "f4")},
            ValueError,
            r"bias is \(2, 6\); expected \(6,\) or \(4, 6\)",
        ),
        (
            A,
            B3,
            {"offsets": ENDS, "bias": np.ones(3, "f4")},
            ValueError,
            r"bias is \(3,\); expected \(6,\) or \(4, 6\)",
        ),
        (A, B3, {"offsets": ENDS, "scale_b": np.ones(3, "f4")}, ValueError, r"scale_b is \(3,\); expected \(6,\) or"),
        (A, B3, {"offsets": ENDS, "scale_a": np.ones(7, "f4")}, ValueError, r"scale_a is \(7,\); expected \(12,\)"),
        (A.T, A, {"offsets": ENDS, "scale_a": np.ones(7, "f4")}, ValueError, r"\(7,\); expected \(8,\) or \(4, 8\)"),
        (
            B3.mT,
            B3,
            {"sizes": ENDS, "scale_a": np.ones((3, 6), "f4")},
            ValueError,
            r"scale_a is \(3, 6\); expected \(6,\) or \(4, 6\)",
        ),
        (B3.mT, B, {"offsets": ENDS, "bias": np.ones((4, 6), "f4")}, ValueError, r"bias is \(4, 6\); expected \(6,\)"),
        (A, B3, {"offsets": ENDS.astype("u8")}, TypeError, "offsets has dtype .*; expected int32 or int64"),
        (A, B3, {"offsets": ENDS > 3}, TypeError, "offsets has dtype .*; expected int32 or int64"),
        (A, [B], {"offsets": ENDS}, TypeError, "b is a list; expected an array"),
        (A, B3, {"offsets": ENDS, "out": [A]}, TypeError, "out is a list; expected an array"),
        (A, B3, {"offsets": ENDS, "kernel": DENSE}, ValueError, "kernel"),
        (A, B3, {"offsets": ENDS, "kernel": "cpu_gemm_numpy"}, ValueError, "kernel"),
        (A, B3, {"offsets": ENDS, "out": np.ones((11, 6), "f4")}, ValueError, r"out is \(11, 6\); expected \(12, 6\)"),
        (A, B3, {"offsets": ENDS, "c": np.ones((4, 6), "f4")}, ValueError, r"c is \(4, 6\); expected \(12, 6\)"),
        (A, B3[:, :6], {"offsets": ENDS}, ValueError, "inner extents must agree"),
        (A, B[0], {"offsets": ENDS}, ValueError, r"b is \(6,\); expected 2 dimensions, or 3"),
        (B3.swapaxes(1, 2), B3, {"offsets": ENDS}, ValueError, "pass sizes: the rows of each group"),
        (B3.swapaxes(1, 2)[:3], B3, {"sizes": ENDS}, ValueError, "one matrix of each for every group"),
        (
            A,
            B3,
            {"offsets": ENDS, "gather": np.array([0, 12])},
            ValueError,
            r"gather\[1\] is 12; expected a row of a: 0",
        ),
        (A, B3, {"offsets": ENDS, "gather": np.array([-1])}, ValueError, r"gather\[0\] is -1; expected a row of a"),
        (A, B3, {"offsets": ENDS, "gather": np.zeros(9, "i4")}, ValueError, r"offsets\[3\] is 10; expected 9 at most"),
        (A, B3, {"offsets": ENDS, "gather": np.zeros(9, "f4")}, TypeError, "gather is f32; expected int32 or int64"),
        (
            A,
            B3,
            {"offsets": ENDS, "gather": np.zeros((9, 1), "i4")},
            ValueError,
            r"gather is \(9, 1\); expected one dim",
        ),
        (A, B3, {"offsets": ENDS, "gather": np.zeros(9, "i4")[::2]}, ValueError, "gather is .* with gaps between"),
        (A, B3, {"offsets": ENDS, "gather": [0, 1]}, TypeError, "gather is a list"),
        (A.T, A, {"offsets": ENDS, "gather": np.zeros(9, "i4")}, ValueError, "gather picks rows: a has 2 dimensions"),
        (B3.mT, B3, {"sizes": ENDS, "gather": np.zeros(9, "i4")}, ValueError, "gather picks rows: a has 2 dimensions"),
        ([A, A], [B, B], {"offsets": ENDS}, TypeError, "a is a list; expected an array: gemm takes lists"),
        (A, B3, {"offsets": ENDS, "activation": "gelo"}, ValueError, "activation='gelo' is not one of"),
        (A, B3, {"offsets": ENDS, "compute": "tf64"}, ValueError, "compute='tf64' is not one of"),
    ],
)
def test_what_does_not_fit_is_named(a, b, keywords, error, message):
    with pytest.raises(error, match=f"grouped_gemm: .*{message}"):
        grouped_gemm(a, b, **keywords)


def test_a_result_that_is_an_operand_is_refused():
    a = np.ones((12, 8), "f4")
    for keywords in ({"out": a}, {"out": np.ones((12, 8), "f4"), "aux": a}):
        with pytest.raises(ValueError, match="shares elements with a"):
            grouped_gemm(a, np.ones((4, 8, 8), "f4"), offsets=ENDS, **keywords)
    numbers = np.zeros(80, "i4")
    numbers[:4] = ENDS
    with pytest.raises(ValueError, match="out shares elements with offsets"):
        grouped_gemm(A, B3, offsets=numbers[:4], out=numbers[:72].view("f4").reshape(12, 6))
    grouped_gemm(A, B3, offsets=numbers[:4], out=numbers[8:].view("f4").reshape(12, 6))
    numbers[8:] = 0
    with pytest.raises(ValueError, match="out shares elements with gather"):
        grouped_gemm(A, B3, offsets=ENDS, gather=numbers[8:20], out=numbers[8:].view("f4").reshape(12, 6))
    with pytest.raises(ValueError, match="out shares elements with a"):
        grouped_gemm(a, np.ones((4, 8, 8), "f4"), offsets=ENDS, gather=numbers[30:42], out=a)
    c = np.ones((12, 6), "f4")
    assert grouped_gemm(A, B3, c=c, out=c, offsets=ENDS) is c and c[0, 0] == 9 and c[11, 0] == 1


# ---------------------------------------------------------------------------------------- the engines


@pytest.fixture
def core(built):
    """As if the core set of this operation were compiled, and nothing else."""
    built(named("core", "grouped_gemm"))


def test_kernels_by_what_groups_divide(core):
    for axis, layout, schedule in (
        ("m", "tn", "grouped"),
        ("n", "tn", "grouped"),
        ("k", "nt", "deep"),
        ("batch", "tn", "grouped"),
    ):
        configs = [k.config for k in get_kernels(grouped_problem(axis, layout=layout))]
        assert {c.schedule == "persistent" for c in configs} == {True, False}, axis
        assert all(schedule in c.schedule for c in configs if c.api == 3), axis
    names = {k.name for k in get_kernels(compiled=False, operation="grouped_gemm")}
    assert {k.name for k in get_kernels(grouped_problem())} < names and not any("lean_" in name for name in names)


ARITHMETIC = [
    ("bf16", None), ("f16", None), ("f32", None), ("f32", "tf32"), ("f32", "3xtf32"), ("f64", None), ("c64", None),
    ("c128", None), ("s8", None), ("u8", None),
]  # fmt: skip


@pytest.mark.parametrize("axis", MODES)
@pytest.mark.parametrize("layout", ["tn", "tt", "nn", "nt"])
@pytest.mark.parametrize(("dtype", "compute"), ARITHMETIC)
def test_every_dtype_has_a_kernel_of_any_alignment(core, dtype, compute, layout, axis):
    """On any GPU, as groups begin anywhere; 8-bit integers in layout tn alone, packed otherwise."""
    for extents in ({}, {"m": 4099, "n": 2047, "k": 1023}):
        args = grouped_problem(axis, dtype=dtype, layout=layout, compute=compute, **extents)
        old = [k for k in get_kernels(args) if k.config.api == 2]
        assert old or (dtype in ("s8", "u8") and layout != "tn")
        chosen = explain(args).chosen
        both_packed = axis == "k" and layout == "nt"  # takes longer than reading them element by element
        ours = dtype in ("bf16", "f16", "s8") or ((dtype, compute) == ("f32", "tf32") and not both_packed)
        assert chosen and (chosen.route.kernel.config.api == 3) == (ours and not extents), chosen


@pytest.mark.parametrize(
    ("axis", "layout", "align", "reason"),
    [
        ("m", "tn", 8, None),
        ("m", "nn", 8, "reads a by whole granules, at which not every group begins"),
        ("m", "nn", 1, None),
        ("batch", "nn", 8, None),
        ("n", "tt", 8, "reads b by whole granules, at which not every group begins"),
        ("n", "tn", 8, "writes vectors of 8 along n, at which not every group begins"),
        ("n", "tn", 4, None),
        ("n", "nn", 2, None),
        ("k", "nt", 8, None),
        ("k", "tt", 8, "reads a by whole granules, at which not every group begins"),
        ("k", "nn", 8, "reads b by whole granules, at which not every group begins"),
        ("k", "tn", 1, None),
    ],
)
def test_where_groups_begin_is_read_by_single_elements(axis, layout, align, reason):
    wanted = ("sm80_grouped", "f16", "f16", layout, align)
    alike = [
        kernel_named(c.name)
        for c in FAMILIES["sm80_grouped"].declared
        if (c.family, c.a, c.d, c.layout, c.align) == wanted
    ]
    assert alike and {k.supports(grouped_problem(axis, layout=layout, dtype="f16")).error for k in alike} == {reason}


def test_what_kernels_of_groups_apply(core):
    """A bias instead of c, and any activation; nothing else may come behind them."""

    def chosen(**keywords):
        return explain(grouped_problem(dtype="f32", **keywords)).chosen

    assert chosen() and chosen(bias="f32")
    assert chosen(bias="f32", activation="silu") and not chosen(d="bf16")


def test_a_choice_for_every_size(core):
    """Many rows go to wide tiles, few to the narrow side of one; `expected` says which they are."""

    def tile(**keywords):
        config = explain(grouped_problem(**keywords)).chosen.route.kernel.config
        return config.tile, config.schedule

    assert tile(m=65536)[0][0] * tile(m=65536)[0][1] >= 128 * 128
    (_, n, _), schedule = tile(groups=128, m=256)
    assert n <= 32 and schedule.endswith("swap")
    assert tile(groups=128, m=65536, expected=2) == tile(groups=128, m=256)


def test_groups_never_become_one_taller_product():
    """Whatever lies on top of one another, or is shared: a group has lines of its own."""

    def extents(a, b, axis, **keywords):
        told = {"sizes" if axis == "batch" else "offsets": TensorSpec((4,), "s32", device="cuda:63")}
        specs = {name: TensorSpec(x[0], "bf16", x[1], device="cuda:63") for name, x in keywords.items()}
        operands = [TensorSpec(shape, "bf16", strides, device="cuda:63") for shape, strides in (a, b)]
        p = GroupedArguments(*operands, **told, **specs).problem
        return {p.m, p.n}, p.k, p.batch

    assert extents(((4, 8, 64), None), ((64, 32), None), "n") == ({8, 32}, 64, 4)
    assert extents(((4096, 64), None), ((4, 64, 1), None), "m") == ({4096, 1}, 64, 4)
    assert extents(((4, 8, 64), None), ((4, 64, 32), [0, 32, 1]), "batch") == ({8, 32}, 64, 4)
    assert extents(((8, 64), [0, 1]), ((64, 32), None), "k") == ({8, 32}, 64, 4)
    assert extents(((8, 64), [0, 1]), ((64, 32), None), "k", out=((4, 8, 32), None)) == ({8, 32}, 64, 4)
    assert extents(((8, 64), None), ((64, 32), [1, 0]), "k", out=((4, 8, 32), [256, 1, 8])) == ({8, 32}, 64, 4)
    p = grouped_problem("n", groups=4, m=64, n=64, k=64, bias="bf16").problem
    assert (p.m, p.n, p.batch) == (64, 64, 4)


def test_what_groups_divide_is_read_along_k(core):
    """A group may begin where no granule does: its operand is packed otherwise."""
    packed = explain(grouped_problem(layout="nn")).chosen.route.way
    assert packed.pack_a == "t" and not packed.pack_b
    assert not explain(grouped_problem("batch", layout="nn")).chosen.route.way.pack_a
    deep = explain(grouped_problem("k", layout="tn")).chosen.route.way
    assert (deep.pack_a, deep.pack_b) == ("n", "t")


def test_what_no_kernel_takes_is_divided_where_the_host_knows_groups(core):
    a, b = TensorSpec((64, 32), "e4m3", device="cuda:63"), TensorSpec((32, 16), "e4m3", device="cuda:63")
    on_device = TensorSpec((4,), "s32", device="cuda:63")
    args = GroupedArguments(a, b, offsets=on_device, out_dtype="e4m3")
    assert "no kernel fits" in str(explain(args))
    assert not args.problem.told and class_of(args.problem).endswith("grouped=k")
    with pytest.raises(NoKernelError):
        cutlass_py.dispatch.planning.plan(args.problem)


def test_problems_in_words_and_as_json():
    args = grouped_problem(expected=100, bias="bf16", activation="silu")
    assert repr(args) == (
        "GroupedArguments(8 groups of rows of a, about 99 each: (4096, 2048, 1024) tn: bf16 @ bf16 + bias -> silu -> "
        "bf16 on cuda:63)"
    )
    assert "4 groups of k" in repr(grouped_problem("k", groups=4))
    for entry, message in (({"axis": "x"}, "axis: 'x'"), ({"rows": 1}, "rows: no such key"), ({"m": -1}, "m: -1")):
        with pytest.raises(ValueError, match=message):
            grouped_problem(**entry)


def test_the_log_has_a_line_for_each_group(rng, caplog):
    a, b, _ = drawn(rng, "m", SIZES, "f4")
    cutlass_py.log("calls")
    try:
        grouped_gemm(a, b, **told("m", SIZES, "ends", "i4"))
    finally:
        cutlass_py.log("off")
    lines = [r.getMessage() for r in caplog.records]
    assert [x[:14] for x in lines if x.startswith("gemm")] == ["gemm (3, 6, 8)", "gemm (5, 6, 8)", "gemm (2, 6, 8)"]


def test_arguments_are_the_call(rng):
    a, b, out = drawn(rng, "m", SIZES, "f4")
    wanted = expected("m", a, b, out, SIZES)
    given = told("m", SIZES, "ends", "i4")
    np.testing.assert_array_equal(GroupedArguments(a, b, out=out, **given).run(), wanted)
    with pytest.raises(ValueError, match=r"offsets\[1\] is 2"):
        GroupedArguments(a, b, offsets=np.array([9, 2, 9, 9, 9], "i4"))
    again = pickle.loads(pickle.dumps(GroupedArguments(a, b, **given)))
    np.testing.assert_array_equal(again.replace(out=out).run(), wanted)
    with pytest.raises(TypeError, match="script: args is .*GroupedArguments; expected GemmArguments"):
        reproducer.script(again)
    GroupedArguments(a, b, **given).run(workspace=np.empty(0, "u1"))
    with pytest.raises(TypeError, match=r"workspace is f32; expected bytes \(u8\)"):
        GroupedArguments(a, b, **given).run(workspace=out)
