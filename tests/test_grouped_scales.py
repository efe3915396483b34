"""Scales of grouped products on the CPU: vectors and blocks in every mode, errors; kernels of fp8 and the like."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (registers float8 with NumPy)
import numpy as np
import pytest
from specs import grouped_problem
from test_grouped_gemm import MODES, SIZES, drawn, expected, groups_of, told

from cutlass_py import explain, grouped_gemm
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.families import named


def powers(rng, *shape):
    return (2.0 ** rng.integers(-2, 3, shape)).astype("f4")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("axis", MODES)
def test_scales_by_row_and_by_column_of_each_group(rng, axis, shared):
    """A vector for all groups, or one for each; what they divide has one."""
    a, b, out = drawn(rng, axis, SIZES, "f4")
    lead = [() if shared or axis == divided else (len(SIZES),) for divided in "mn"]
    rows, columns = powers(rng, *lead[0], a.shape[-2]), powers(rng, *lead[1], b.shape[-1])
    scaled_a, scaled_b = a * rows[..., None], b * columns[..., None, :]
    if axis == "k":  # where operands have no matrix for each
        scaled_a, scaled_b = a, b
    at = groups_of(axis, SIZES)

    def finish(i, z):
        return z * (rows if shared else rows[i])[:, None] * (columns if shared else columns[i]) if axis == "k" else z

    wanted = expected(axis, scaled_a, scaled_b, out, SIZES, finish)
    assert at and grouped_gemm(a, b, out=out, scale_a=rows, scale_b=columns, **told(axis, SIZES, "ends", "i4")) is out
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
@pytest.mark.parametrize("axis", MODES)
def test_scales_of_one_element(rng, axis, shape):
    a, b, out = drawn(rng, axis, SIZES, "f4")
    wanted = expected(axis, a, b, out, SIZES, lambda i, z: 6 * z)
    scales = {"scale_a": np.full(shape, 2, "f4"), "scale_b": np.full(shape, 3, "f4")}
    grouped_gemm(a, b, out=out, **scales, **told(axis, SIZES, "ends", "i4"))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("k", [8, 128, 300])
@pytest.mark.parametrize(("axis", "columns"), [("m", 1), ("m", 128), ("n", 1), ("batch", 1), ("batch", 128)])
def test_scales_in_blocks(rng, axis, columns, k):
    """They lie as the operand that they scale, in any strides; of columns that groups divide each has its own."""
    sizes = [100, 0, 40] if axis == "n" else SIZES
    a, b, out = drawn(rng, axis, sizes, "f4", n=140, k=k)
    (*of_a, m, _), (*of_b, _, n), lines = a.shape, b.shape, -(-k // 128)
    scale_a = powers(rng, *of_a, lines, m).swapaxes(-1, -2)
    scale_b = powers(rng, *of_b, -(-n // columns), lines).swapaxes(-1, -2)
    by_k = scale_b.repeat(columns, -1)[..., :n].repeat(128, -2)[..., :k, :]
    wanted = expected(axis, a * scale_a.repeat(128, -1)[..., :k], b * by_k, out, sizes)
    fp8 = (x.astype("float8_e4m3fn") for x in (a, b))
    grouped_gemm(*fp8, out=out, scale_a=scale_a, scale_b=scale_b, **told(axis, sizes, "ends", "i4"))
    np.testing.assert_array_equal(out, wanted)


# ---------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("axis", "shapes", "message"),
    [
        (
            "m",
            ((12, 2), (4, 6, 2)),
            r"scale_b is \(4, 6, 2\); expected \(4, 2, 2\) or \(4, 2, 200\)",
        ),
        ("m", ((12, 1), (4, 2, 2)), r"scale_a is \(12, 1\); expected \(12, 2\)"),
        ("m", ((12,), (4, 2, 2)), r"scale_a is \(12,\); expected \(12, 2\)"),
        ("m", ((12, 2), (4, 200)), r"scale_b is \(4, 200\); expected \(4, 2, 2\) or \(4, 2, 200\)"),
        ("n", ((4, 12, 2), (2, 2)), r"scale_b is \(2, 2\); expected \(2, 200\)"),
        ("k", ((12, 2), (2, 2)), r"scale_a is \(12, 2\); expected \(12,\) or \(4, 12\)"),
        ("batch", ((12, 2), (4, 2, 2)), r"scale_a is \(12, 2\); expected \(4, 12, 2\)"),
    ],
)
def test_scales_in_blocks_that_do_not_fit(axis, shapes, message):
    a = np.ones((4, 12, 200) if axis in ("n", "batch") else (12, 200), "float8_e4m3fn")
    b = np.ones((4, 200, 200) if axis in ("m", "batch") else (200, 200), "float8_e4m3fn")
    given = {name: np.ones(shape, "f4") for name, shape in zip(("scale_a", "scale_b"), shapes, strict=True)}
    with pytest.raises(ValueError, match=f"grouped_gemm: .*{message}"):
        grouped_gemm(a, b, **given, **told(axis, [1, 2, 3, 4], "ends", "i4"))


# ---------------------------------------------------------------------------------------- kernels


@pytest.fixture
def core(built):
    """As if the core set of this operation were compiled, and nothing else."""
    built(named("core", "grouped_gemm"))


@pytest.mark.parametrize("d", ["bf16", "f32"])
@pytest.mark.parametrize("pair", [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"), ("e5m2", "e5m2")], ids="_".join)
def test_kernels_of_fp8_by_scales(core, pair, d):
    """Vectors, blocks of columns and those of each: for every pair; sums of each kind."""
    given = {"b": pair[1], "d": d}

    def chosen(axis="m", **keywords):
        return explain(grouped_problem(axis, dtype=pair[0], **given, **keywords)).chosen.route.kernel.config

    for axis in ("m", "n", "batch"):
        vectors = chosen(axis, scale_a="vector", scale_b="vector")
        assert (vectors.accumulator, vectors.epilogue, SCHEDULES[vectors.schedule].block) == ("f32", "fused_scaled", 0)
        if d == "bf16":
            assert chosen(axis, compute="fast").accumulator == "fast"
        if axis != "n":
            assert SCHEDULES[chosen(axis, scale_a="block", scale_b="block").schedule].block == 128
        if pair[0] == pair[1] == "e4m3" and d == "bf16":
            assert SCHEDULES[chosen(axis, scale_a="block", scale_b="group").schedule].block == 1


@pytest.mark.parametrize(
    ("dtype", "keywords"),
    [
        ("e4m3", {"d": "f16"}), ("s8", {}), ("s8", {"d": "bf16", "scale_a": "vector", "scale_b": "vector"}),
        ("f32", {"compute": "tf32"}),
    ],
)  # fmt: skip
def test_other_dtypes_have_kernels(core, dtype, keywords):
    for axis in ("m", "n", "batch"):
        assert explain(grouped_problem(axis, dtype=dtype, **keywords)).chosen.route.kernel.config.a in (dtype, "tf32")


def test_operands_of_a_byte_are_read_along_k_alone(core):
    way = explain(grouped_problem(dtype="e4m3", layout="tt")).chosen.route.way
    assert (way.pack_a, way.pack_b) == (None, "n")
    way = explain(grouped_problem("k", dtype="e4m3", layout="nt")).chosen.route.way
    assert (way.pack_a, way.pack_b) == ("t", "n")
    assert not explain(grouped_problem("k", dtype="e4m3", layout="tn")).chosen.route.way.detours
