"""Scales in blocks: what is read as one, numbers on the CPU against float64, and how kernels are chosen for them."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
import pytest
from helpers import to_numpy
from reference import NUMPY, assert_exact
from specs import DEVICE, operand, vector

import cutlass_py
from cutlass_py import GemmArguments, NoKernelError, TensorSpec, explain, gemm
from cutlass_py.declaration import codegen
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.families import find, named
from cutlass_py.dispatch.candidates import rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import kernel_named

KERNELS = [CutlassKernel(c, None) for c in named("declared").values() if SCHEDULES[c.schedule].block]
BLOCK = "sm90_block_e4m3_e4m3_f32_bf16_tn_128x128x128_2x1x1_coopblock_linear"
BLOCK_F32 = "sm90_block_e4m3_e4m3_f32_f32_tn_64x128x128_1x1x1_pingpongblock_linear"
SWAP = "sm90_block_e4m3_e4m3_f32_bf16_tn_128x32x128_1x1x1_pingpongblockswap_linear"
GROUP = "sm90_block_e4m3_e4m3_f32_bf16_tn_128x128x128_1x1x1_coopgroup_linear"
# Whole blocks, parts of them, single ones, rows and columns.
SHAPES = [(256, 384, 512), (70, 300, 528), (5, 130, 129), (1, 2112 // 8, 300), (3, 1, 260), (1, 1, 400), (33, 129, 100)]


def blocks(extent, block=128):
    return ceil(extent / block)


def quantised(rng, m, n, k, a="e4m3", b="e4m3", block=128, batch=()):
    """A, B and their scales as NumPy arrays, all exact in f32; and A and B multiplied out, in float64."""
    x = rng.integers(-2, 3, (*batch, m, k)).astype(NUMPY[a])
    y = rng.integers(-2, 3, (*batch, k, n)).astype(NUMPY[b])
    rows = (2.0 ** rng.integers(-2, 3, (*batch, m, blocks(k)))).astype(np.float32)
    columns = (2.0 ** rng.integers(-2, 3, (*batch, blocks(k), blocks(n, block)))).astype(np.float32)
    return x, y, rows, columns, multiplied_out(x, rows, 128), multiplied_out(y, columns, block, down=True)


def multiplied_out(x, scale, block, down=False):
    """x with each factor repeated over what shares it."""
    wide = scale.astype(np.float64)
    wide = wide.repeat(128, -2).repeat(block, -1) if down else wide.repeat(128, -1)
    return x.astype(np.float64) * wide[..., : x.shape[-2], : x.shape[-1]]


def spec(shape, strides=None, dtype="f32", **keywords):
    return TensorSpec(shape, dtype, strides, DEVICE, **keywords)


def asked(m=512, n=512, k=512, *, scale_a=None, scale_b=None, layout="tn", dtype="e4m3", **keywords):
    """GemmArguments of specs with scales as kernels read them, or as they are given."""
    scale_a = scale_a or spec((m, blocks(k)), (1, ceil(m / 4) * 4))
    scale_b = scale_b or spec((blocks(k), blocks(n)))
    a, b = operand(m, k, layout[0], dtype), operand(k, n, layout[1], dtype)
    return GemmArguments(a, b, scale_a=scale_a, scale_b=scale_b, **keywords)


# ---------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("block", [128, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pair", [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")], ids="-".join)
def test_products(rng, pair, shape, block):
    a, b, rows, columns, x, y = quantised(rng, *shape, *pair, block)
    assert_exact(to_numpy(gemm(a, b, scale_a=rows, scale_b=columns, out_dtype="f32")), x @ y, "f32")
    assert_exact(to_numpy(gemm(a, b, scale_a=rows, scale_b=columns)), x @ y, "bf16")


def test_random_products(rng):
    m, n, k = 64, 2112 // 4, 2048
    a = rng.standard_normal((m, k)).astype(NUMPY["e4m3"])
    b = rng.standard_normal((n, k)).astype(NUMPY["e4m3"]).T
    rows, columns = (rng.random((size, blocks(k))).astype(np.float32) for size in (m, blocks(n)))
    x, y = multiplied_out(a, rows, 128), multiplied_out(b, columns.T, 128, down=True)
    d = to_numpy(gemm(a, b, scale_a=rows, scale_b=columns.T, out_dtype="f32"))
    assert (abs(d - x @ y) <= 2.0**-23 * k * (abs(x) @ abs(y))).all()


def test_every_stride_means_the_same(rng):
    m, n, k = 37, 260, 300
    a, b, rows, columns, x, y = quantised(rng, m, n, k)
    padded = np.full((blocks(k), 40), np.nan, np.float32)
    padded[:, :m] = rows.T
    spread = np.full((2 * m, 3 * blocks(k)), np.nan, np.float32)
    spread[::2, ::3] = rows
    for scale_a in (rows, np.asfortranarray(rows), padded[:, :m].T, spread[::2, ::3], rows[::-1].copy()[::-1]):
        for scale_b in (columns, np.asfortranarray(columns), columns[::-1].copy()[::-1]):
            assert_exact(to_numpy(gemm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype="f32")), x @ y, "f32")


def test_batches(rng):
    a, b, rows, columns, x, y = quantised(rng, 20, 150, 200, batch=(2, 3))
    assert_exact(to_numpy(gemm(a, b, scale_a=rows, scale_b=columns, out_dtype="f32")), x @ y, "f32")
    one = {"scale_a": rows[:, :1], "scale_b": columns[0, 0]}  # repeated along the batch
    wanted = multiplied_out(a, rows[:, :1], 128) @ multiplied_out(b[0], columns[0, 0], 128, down=True)
    assert_exact(to_numpy(gemm(a, b[0], out_dtype="f32", **one)), wanted, "f32")
    wanted = multiplied_out(a, rows, 128) @ multiplied_out(b[0, 0], columns[0, 0], 128, down=True)
    assert_exact(to_numpy(gemm(a, b[0, 0], scale_a=rows, scale_b=columns[0, 0], out_dtype="f32")), wanted, "f32")


@pytest.mark.parametrize("block", [128, 1])
def test_vectors_and_results_that_lie_the_other_way(rng, block):
    m, n, k = 48, 160, 320
    a, b, rows, columns, x, y = quantised(rng, m, n, k, block=block)
    scales = {"scale_a": rows, "scale_b": columns}
    column_major = np.full((n, m), np.nan, np.float32).T
    assert gemm(a, b, out=column_major, **scales) is column_major
    assert_exact(to_numpy(column_major), x @ y, "f32")
    row = gemm(a[0], b, scale_a=rows[:1], scale_b=columns, out_dtype="f32")
    assert row.shape == (n,)
    assert_exact(to_numpy(row), (x @ y)[0], "f32")
    column = gemm(a, b[:, 0], scale_a=rows, scale_b=columns[:, :1], out_dtype="f32")
    assert_exact(to_numpy(column), (x @ y)[:, 0], "f32")


def test_the_rest_of_the_epilogue(rng):
    m, n, k = 40, 260, 300
    a, b, rows, columns, x, y = quantised(rng, m, n, k)
    c, bias = rng.integers(-3, 4, (m, n)).astype(np.float32), rng.integers(-3, 4, n).astype(np.float32)
    aux = np.full((m, n), np.nan, np.float32)
    d = gemm(
        a, b, scale_a=rows, scale_b=columns, alpha=2, c=c, beta=-1, bias=bias, activation="relu", aux=aux,
        scale_out=0.5, out_dtype="f32",
    )  # fmt: skip
    z = 2 * (x @ y) - c + bias
    assert_exact(aux.astype(np.float64), z, "f32")
    assert_exact(to_numpy(d), 0.5 * np.maximum(z, 0), "f32")
    assert_exact(to_numpy(gemm(a, b, scale_a=rows, scale_b=columns, compute="fast", out_dtype="f32")), x @ y, "f32")


def test_what_is_not_read(rng):
    a, b, rows, columns, x, y = quantised(rng, 4, 300, 300)
    nan = np.full_like(rows, np.nan)
    assert (gemm(a, b, scale_a=nan, scale_b=columns, alpha=0, out_dtype="f32") == 0).all()
    empty = gemm(a[:, :0], b[:0], scale_a=rows[:, :0], scale_b=columns[:0], out_dtype="f32")
    assert (empty == 0).all()
    assert gemm(a[:0], b, scale_a=rows[:0], scale_b=columns).shape == (0, 300)
    rows[1, 2] = np.nan  # one row, nothing else
    d = np.isnan(to_numpy(gemm(a, b, scale_a=rows, scale_b=columns, out_dtype="f32")))
    assert d[1].all() and d.sum() == 300


# ---------------------------------------------------------------------------------------- what is read as blocks


@pytest.mark.parametrize(
    ("m", "n", "k", "scale_a", "scale_b", "marks"),
    [
        (512, 512, 512, (512, 4), (4, 4), ("r", "b")),
        (512, 512, 512, (512, 4), (4, 512), ("r", "r")),
        (512, 2112, 7168, (512, 56), (56, 17), ("r", "b")),
        (512, 300, 130, (512, 2), (2, 3), ("r", "b")),
        # One block of k: columns are blocks where the other one can only be blocks.
        (512, 512, 128, (512, 1), (1, 4), ("r", "b")),
        (512, 512, 128, (512, 1), (1, 512), ("v", "v")),
        (512, 512, 128, (512, 1), (512,), ("v", "v")),
        (512, 128, 128, (512, 1), (1, 1), ("v", "s")),
        (1, 512, 100, (1, 1), (1, 4), ("r", "b")),
        (1, 128, 100, (1, 1), (1, 1), ("s", "s")),
        # One row, one column.
        (1, 512, 512, (1, 4), (4, 4), ("r", "b")),
        (512, 1, 512, (512, 4), (4, 1), ("r", "b")),
        (512, 4, 512, (512,), (4,), ("v", "v")),
    ],
    ids=str,
)
def test_shapes_that_are_blocks(m, n, k, scale_a, scale_b, marks):
    strides = (1, ceil(m / 4) * 4) if len(scale_a) == 2 else None
    p = asked(m, n, k, scale_a=spec(scale_a, strides), scale_b=spec(scale_b)).problem
    assert (p.scale_a, p.scale_b) == marks
    assert p.block == {"b": 128, "r": 1}.get(marks[1], 0)


def test_one_block_of_k_means_what_vectors_mean(rng):
    m, n, k = 30, 200, 100
    a, b, rows, _, x, _ = quantised(rng, m, n, k)
    one = np.float32([[0.5, 0.5]])
    in_blocks = gemm(a, b, scale_a=rows, scale_b=one, out_dtype="f32")
    by_vectors = gemm(a, b, scale_a=rows, scale_b=np.full((1, n), 0.5, np.float32), out_dtype="f32")
    assert_exact(to_numpy(in_blocks), x @ b.astype(np.float64) * 0.5, "f32")
    assert np.array_equal(in_blocks, by_vectors)


@pytest.mark.parametrize(
    ("scale_a", "mark"),
    [
        (spec((512, 4), (1, 512)), "r"),
        (spec((512, 4), (1, 516)), "r"),
        (spec((512, 4), (1, 513)), "p"),  # torch's layout, where the rows are no multiple of 4
        (spec((512, 4), (1, 512), alignment=4), "p"),
        (spec((512, 4)), "p"),
        (spec((512, 4), (2, 1024)), "p"),
        (spec((512, 4), (1, 0)), "p"),
        (spec((2, 512, 4), (2048, 1, 512)), "r"),
        (spec((2, 512, 4), (2050, 1, 512)), "p"),
    ],
    ids=str,
)
def test_rows_that_tma_can_read(scale_a, mark):
    a = operand(512, 512, "t", "e4m3", batch=2 if len(scale_a.shape) == 3 else None)
    args = GemmArguments(a, operand(512, 512, "n", "e4m3"), scale_a=scale_a, scale_b=spec((4, 4)))
    assert args.problem.scale_a == mark


def test_a_single_block_has_its_step_free():
    """Whatever torch says the stride of an extent of 1 is."""
    assert asked(512, 512, 128, scale_a=spec((512, 1), (1, 1)), scale_b=spec((1, 4))).problem.scale_a == "r"
    assert asked(1, 512, 512, scale_a=spec((1, 4), (1, 4)), scale_b=spec((4, 4))).problem.scale_a == "r"
    assert asked(1, 512, 512, scale_a=spec((1, 4), (4, 1)), scale_b=spec((4, 4))).problem.scale_a == "p"


FP8 = np.ones((3, 260), NUMPY["e4m3"])
FP8_B = np.ones((260, 300), NUMPY["e4m3"])
A, B = np.ones((3, 3), np.float32), np.ones((3, 3), np.float32)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"scale_a": A}, ValueError, r"scale_b is not given beside blocks: scale_a is \(3, 3\); expected \(3, 3\) or"),
        ({"scale_b": B}, ValueError, r"scale_a is not given beside blocks: scale_b is \(3, 3\); expected \(3, 3\)$"),
        ({"scale_a": A, "scale_b": 2.0}, ValueError, r"scale_b is a number beside blocks: scale_a is \(3, 3\)"),
        (
            {"scale_a": A, "scale_b": np.ones(300, np.float32)},
            ValueError,
            r"scale_b is \(300,\) beside blocks: scale_a is \(3, 3\); expected \(3, 3\) or \(3, 300\)$",
        ),
        (
            {"scale_a": np.ones((3, 1), np.float32), "scale_b": B},
            ValueError,
            r"scale_a is \(3, 1\) beside blocks: scale_b is \(3, 3\); expected \(3, 3\)$",
        ),
        ({"scale_a": np.ones((1, 3), np.float32), "scale_b": B}, ValueError, r"scale_a is \(1, 3\) beside blocks"),
        (
            {"scale_a": np.ones((3, 2), np.float32)},
            ValueError,
            r"scale_a is \(3, 2\); expected one element, \(3,\) or \(3, 1\); in blocks: \(3, 3\)$",
        ),
        (
            {"scale_b": np.ones((3, 2), np.float32)},
            ValueError,
            r"scale_b is \(3, 2\); expected one element, \(300,\) or \(1, 300\); in blocks: \(3, 3\) or \(3, 300\)$",
        ),
        ({"scale_a": A.astype(np.float64), "scale_b": B}, TypeError, "scale_a is f64; expected f32"),
        ({"scale_a": A, "scale_b": B.astype(np.float16)}, TypeError, "scale_b is f16; expected f32"),
        ({"scale_a": A[None].repeat(2, 0), "scale_b": B}, ValueError, r"scale_a is \(2, 3, 3\) beside blocks"),
        ({"scale_a": A, "scale_b": B, "alpha": np.ones(3, np.float32)}, ValueError, "alpha is"),
    ],
    ids=str,
)
def test_errors(keywords, error, message):
    with pytest.raises(error, match=f"gemm: {message}"):
        gemm(FP8, FP8_B, **keywords)


def test_other_dtypes_have_no_blocks():
    x = np.ones((3, 260), np.float32)
    with pytest.raises(ValueError, match=r"scale_a is \(3, 3\); expected one element, \(3,\) or \(3, 1\)$"):
        gemm(x, x.T, scale_a=A, scale_b=np.ones((3, 1), np.float32))


def test_lists_have_no_blocks():
    with pytest.raises(ValueError, match=r"scale_a is \(3, 3\), blocks, which lists of matrices do not take; pass a b"):
        gemm([FP8, FP8.copy()], [FP8_B, FP8_B.copy()], scale_a=A, scale_b=B)


def test_they_must_be_on_the_device_of_a():
    with pytest.raises(ValueError, match="gemm: a is on cuda:63 but scale_a is on cpu"):
        asked(scale_a=TensorSpec((512, 4), "f32", device="cpu"))


def test_a_result_may_not_lie_in_them():
    scale = np.ones((260, 3), np.float32)
    with pytest.raises(ValueError, match="out shares elements with scale_a"):
        gemm(FP8_B.T[:260, :260], FP8_B[:, :3], scale_a=scale, scale_b=np.ones((3, 1), np.float32), out=scale)


# ---------------------------------------------------------------------------------------- kernels


def test_tiles_hold_whole_blocks():
    for k in KERNELS:
        c, schedule = k.config, SCHEDULES[k.config.schedule]
        assert c.tile[2] == 128 and c.layout == "tn" and k.interface.epilogue.plain
        columns = c.tile[0 if schedule.swap else 1]  # of B
        assert schedule.lean or columns % schedule.block == 0
        # Two sums for each element of the tile, by one warpgroup or two; of our own of 64 rows at a time.
        assert schedule.lean or c.tile[0] * c.tile[1] <= 64 * 128 * (1 if schedule.pingpong else 2)


def test_what_is_in_which_set():
    core, declared = (
        {(c.a, c.b, c.d, SCHEDULES[c.schedule].block) for c in named(part).values() if SCHEDULES[c.schedule].block}
        for part in ("core", "declared")
    )
    pairs = list(product(("e4m3", "e5m2"), repeat=2))
    # A product in f32 serves every epilogue: another kernel finishes it.
    assert core == {(*pair, d, 128) for pair in pairs for d in ("bf16", "f32")} | {("e4m3", "e4m3", "bf16", 1)}
    assert {(*pair, "f32", block) for pair in pairs for block in (128, 1)} <= declared


def test_the_source_says_what_shares_a_factor():
    text = codegen.source([find(BLOCK)])
    assert '#include "kernels/cutlass3x/blockwise.cuh"' in text and "GemmBlockwise3x<" in text
    assert "KernelTmaWarpSpecializedCooperativeFP8Blockwise;" in text
    assert "scale_columns = 128;" in text and "swap = false;" in text
    assert "scale_columns = 1;" in codegen.source([find(GROUP)])
    assert "swap = true;" in codegen.source([find(SWAP)])
    assert "scale_columns" not in codegen.source([next(iter(named("core").values()))])


def test_metadata_names_the_scales():
    operands = kernel_named(BLOCK).metadata.operands
    assert (operands["scale_a"].dtype, operands["scale_a"].layout, operands["scale_a"].alignment) == ("f32", "n", 16)
    assert (operands["scale_b"].layout, operands["scale_b"].alignment) == ("*", 4)
    assert kernel_named(SWAP).metadata.operands["scale_a"].layout == "*"


@pytest.mark.parametrize(
    ("kernel", "args", "reason"),
    [
        (BLOCK, asked(), None),
        (BLOCK, asked(2112, 2112, 7168), None),
        (BLOCK, asked(compute="fast"), None),
        (SWAP, asked(), None),
        (SWAP, asked(scale_a=spec((512, 4))), None),
        (GROUP, asked(scale_a=spec((512, 4)), scale_b=spec((4, 512))), None),
        (
            BLOCK,
            asked(scale_b=spec((4, 512))),
            "applies scales in blocks of 128 of k by 128 columns; scale_b has one for",
        ),
        (GROUP, asked(), "applies scales in blocks of 128 of k by each column; scale_b has one for 128 columns"),
        (
            BLOCK,
            GemmArguments(operand(512, 512, "t", "e4m3"), operand(512, 512, "n", "e4m3")),
            "applies scales in blocks of 128 of k by 128 columns; there are none",
        ),
        (
            "sm90_gemm_e4m3_e4m3_f32_bf16_tn_128x96x128_1x1x1_pingpongsteady_scaled",
            asked(),
            "does not apply scales in blocks; scale_a and scale_b are",
        ),
        (
            BLOCK,
            asked(scale_a=spec((512, 4))),
            "reads scale_a by rows that lie side by side, 16 bytes aligned; it lies",
        ),
        (BLOCK, asked(dtype="e5m2"), "multiplies e4m3; the operands are e5m2"),
        (BLOCK, asked(layout="tt"), "reads b column-major; it is row-major"),
        (BLOCK, asked(k=520), "reads a by 16 bytes; it is aligned to 8"),
        (BLOCK, asked(n=500), "writes 16 bytes at once; out is aligned to 8"),
        (BLOCK, asked(out_dtype="f32"), "writes bf16; out is f32"),
        (BLOCK, asked(bias=vector(512)), "adds no bias along n"),
        (BLOCK, asked(scale_out=0.5), "does not apply scales"),
        (BLOCK, asked(out=operand(512, 512, "n")), "writes rows without gaps; out has no unit stride"),
        (BLOCK, asked(splits="stream"), r"does not deal out its k loops"),
    ],
    ids=str,
)
def test_what_a_kernel_takes(kernel, args, reason):
    status = kernel_named(kernel).supports(args)
    assert (status.error or "").startswith(reason or "") and bool(status) == (reason is None)


def test_nothing_else_takes_them():
    found = rank(asked().problem, compiled=False)
    assert found and all(SCHEDULES[c.route.kernel.config.schedule].block for c in found)
    plain = GemmArguments(operand(512, 512, "t", "e4m3"), operand(512, 512, "n", "e4m3"))
    assert not any(SCHEDULES[c.route.kernel.config.schedule].block for c in rank(plain.problem, compiled=False))


def test_plans(built):
    built([BLOCK, BLOCK_F32])
    lean = plan(asked(4096, 4096, 4096).problem)
    assert (lean.kernel, lean.scratch, lean.pack_scales, lean.overlap) == (BLOCK, None, False, True)
    packed = plan(asked(4096, 4096, 4096, scale_a=spec((4096, 32))).problem)
    assert (packed.kernel, packed.pack_scales) == (BLOCK, True)
    for keywords in ({"bias": vector(4096)}, {"activation": "silu"}, {"scale_out": 2.0}, {"out_dtype": "e4m3"}):
        composed = plan(asked(4096, 4096, 4096, **keywords).problem)
        assert (composed.kernel, composed.scratch, composed.overlap) == (BLOCK_F32, "f32", True)
    column_major = asked(4096, 4096, 4096, out=operand(4096, 4096, "n"))
    assert not column_major.problem.transposed and plan(column_major.problem).scratch == "f32"
    long = plan(asked(64, 256, 1 << 15).problem)
    assert (long.kernel, long.scratch) == (BLOCK_F32, "f32") and long.splits > 1
    assert not plan(asked(4096, 4096, 4096, alpha=spec((1,))).problem).overlap


def test_swapped_kernels_pack_nothing(built):
    built([SWAP])
    chosen = plan(asked(3, 4096, 4096, scale_a=spec((3, 32))).problem)
    assert (chosen.kernel, chosen.pack_scales) == (SWAP, False)


def test_columns_of_their_own_are_transposed_with_the_result(built):
    built([GROUP])
    p = asked(scale_b=spec((4, 512)), out=operand(512, 512, "n"), layout="tn").problem
    assert p.transposed and p.block == 1 and plan(p).kernel == GROUP


def test_what_core_cannot_do_is_said(built):
    built(named("core"))
    with pytest.raises(NoKernelError, match=r"is declared but not in the built set"):
        plan(asked(dtype="e5m2", scale_b=spec((4, 512))).problem)
    assert plan(asked(dtype="e5m2").problem).kernel
    assert plan(asked().problem).kernel and plan(asked(510, 509, 500, layout="tt").problem).scratch == "f32"


def test_explain():
    text = str(explain(asked(scale_a=spec((512, 4)), scale_b=spec((4, 512)))))
    assert "e4m3 @ e4m3 * scale_a[1x128] * scale_b[128x1] -> bf16" in text
    assert "* scale_a[1x128] * scale_b[128x128] + bias -> bf16" in str(explain(asked(bias=vector(512))))


def test_explain_tells_of_packing(built):
    built([BLOCK])
    text = str(explain(asked(scale_a=spec((512, 4)))))
    assert "packs scale_a first" in text and "reason: reads scale_a by rows" in text


def test_a_prepared_call_keeps_their_alignment(rng):
    a, b, rows, columns, x, y = quantised(rng, 8, 140, 300)
    buffer = np.empty(4096, np.float32)
    first = -buffer.ctypes.data % 16 // 4

    def laid(offset):
        return np.lib.stride_tricks.as_strided(buffer[first + offset :], rows.shape, (4, 32))

    laid(0)[...] = rows
    args = GemmArguments(a, b, scale_a=laid(0), scale_b=columns, out_dtype="f32")
    prepared = cutlass_py.get_kernels(args)[0].plan(args)
    assert_exact(to_numpy(prepared(a, b)), x @ y, "f32")
    laid(4)[...] = rows * 2
    assert_exact(to_numpy(prepared(a, b, scale_a=laid(4))), 2 * (x @ y), "f32")
    with pytest.raises(ValueError, match="scale_a starts at an address that is no multiple of 16 bytes"):
        prepared(a, b, scale_a=laid(1))


@pytest.mark.parametrize("aligned", ["scale_a", "scale_b"])
def test_a_prepared_call_with_a_transposed_result_takes_its_own_operands(rng, aligned):
    """What TMA would read is then scale_b, by columns; the other may lie anywhere, in the plan and after it."""
    a, b, rows, columns, x, y = quantised(rng, 8, 140, 300, block=1)
    buffer = np.empty((4, 1024), np.float32)
    first = -buffer.ctypes.data % 16 // 4

    def laid(line, values, offset):
        place = buffer[line, first + offset :][: values.size].reshape(values.shape)
        place[...] = values
        return place

    scales = {
        "scale_a": laid(0, rows, aligned != "scale_a"),
        "scale_b": laid(1, columns, aligned != "scale_b"),
    }
    args = GemmArguments(a, b, **scales, out=np.empty((8, 140), np.float32, order="F"))
    assert args.problem.transposed
    prepared = cutlass_py.get_kernels(args)[0].plan(args)
    assert_exact(to_numpy(prepared()), x @ y, "f32")
    assert_exact(to_numpy(prepared(scale_a=laid(2, rows * 2, 1))), 2 * (x @ y), "f32")
    if aligned == "scale_b":
        with pytest.raises(ValueError, match="scale_b starts at an address that is no multiple of 16 bytes"):
            prepared(scale_b=laid(3, columns, 1))


# ---------------------------------------------------------------------------------------- frameworks


def test_torch(rng):
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    a, b, rows, columns, x, y = quantised(rng, 40, 260, 300)
    a, b = (torch.from_numpy(z.view(np.uint8)).view(torch.float8_e4m3fn) for z in (a, b))
    rows, columns = torch.from_numpy(rows), torch.from_numpy(columns)
    bias = torch.ones(260, requires_grad=True)
    assert_exact(to_numpy(ct.gemm(a, b, scale_a=rows, scale_b=columns, out_dtype="f32")), x @ y, "f32")
    d = ct.gemm(a, b, scale_a=rows, scale_b=columns, bias=bias, activation="relu", out_dtype="f32")
    d.sum().backward()
    assert_exact(to_numpy(bias.grad), (x @ y + 1 > 0).sum(0), "f32")
    for name in ("scale_a", "scale_b"):
        scales = {"scale_a": rows, "scale_b": columns}
        scales[name] = scales[name].clone().requires_grad_()
        with pytest.raises(TypeError, match=f"gemm: {name} requires a gradient, which scales in blocks lack"):
            ct.gemm(a, b, **scales)


def test_torch_vmap(rng):
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    a, b, rows, columns, x, y = quantised(rng, 10, 140, 150, batch=(3,))
    a, b = (torch.from_numpy(z.view(np.uint8)).view(torch.float8_e4m3fn) for z in (a, b))
    rows, columns = torch.from_numpy(rows), torch.from_numpy(columns)
    d = torch.vmap(lambda a, b, s, t: ct.gemm(a, b, scale_a=s, scale_b=t, out_dtype="f32"))(a, b, rows, columns)
    assert_exact(to_numpy(d), x @ y, "f32")
    d = torch.vmap(lambda a, s: ct.gemm(a, b[0], scale_a=s, scale_b=columns[0], out_dtype="f32"))(a, rows)
    assert_exact(to_numpy(d), x @ y[0], "f32")


def test_jax_takes_them_outside_of_jit_alone(rng):
    jnp = pytest.importorskip("jax.numpy")
    import cutlass_py.jax as cj

    a, b, rows, columns, x, y = quantised(rng, 12, 140, 300)
    a, b, rows, columns = map(jnp.asarray, (a, b, rows, columns))
    assert_exact(to_numpy(cutlass_py.gemm(a, b, scale_a=rows, scale_b=columns, out_dtype="f32")), x @ y, "f32")
    with pytest.raises(
        ValueError, match=r"gemm: scale_a is \(12, 3\) and scale_b is \(3, 2\), blocks; cutlass_py.gemm"
    ):
        cj.gemm(a, b, scale_a=rows, scale_b=columns)
