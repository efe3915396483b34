"""Kernels of groups, thread by thread: tiles that end within a group and beyond it, numbers of any kind and value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simulator
from helpers import placed
from reference import integers, rounded
from simulator import streamed
from sm90_kernels import GROUPED

from cutlass_py import GroupedArguments, TensorSpec, _core, grouped_gemm, tune, view
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.dtypes import DTYPES, compute_of
from cutlass_py.declaration.families import find

ALIGNED = {"t": "aligned", "n": "aligned_column"}
SIZES = ([70, 0, 130, 5], [3] * 40, [0, 0, 300], [1])


@pytest.fixture
def on() -> Any:
    """A framework with a current stream."""
    return streamed(simulator.stream())


def typed(on: Any, x: np.ndarray, dtype: str) -> Any:
    return on(x) if dtype in ("f32", "f16") else view(on(x.view(f"u{x.itemsize}")), dtype)


def axes_of(name: str) -> tuple[str, ...]:
    c = find(name)
    if SCHEDULES[c.schedule].grouping == "depth":
        return ("k",)
    columns = c.layout[1] == "n" and SCHEDULES[c.schedule].block <= 1  # of which each has factors of its own
    return (*(("m",) if c.layout[0] == "t" else ()), *(("n",) if columns else ()), "batch")


def shapes(axis: str, total: int, groups: int, k: int) -> list[tuple[int, ...]]:
    m, n, k = (total if axis in ("m", "batch") else 72, total if axis == "n" else 136, total if axis == "k" else k)
    a = (groups, m, k) if axis in ("n", "batch") else (m, k)
    b = (groups, k, n) if axis in ("m", "batch") else (k, n)
    return [a, b, (groups, m, n) if axis in ("k", "batch") else (m, n)]


def scales_of(name: str, rng: Any, a: tuple[int, ...], b: tuple[int, ...], of_each: int = 0) -> dict[str, np.ndarray]:
    """Powers of two, for operands of these shapes: of each row and column, or of blocks, which lie in any order.

    `of_each` groups has its own, where these shapes do not say so.
    """
    c, draw = find(name), lambda *shape: (2.0 ** rng.integers(-2, 3, shape)).astype("f4")
    (*of_a, m, k), (*of_b, _, n), block = a, b, SCHEDULES[c.schedule].block
    if block:
        lines = -(-k // 128)
        return {
            "scale_a": draw(*of_a, lines, m).swapaxes(-1, -2),
            "scale_b": draw(*of_b, -(-n // block), lines).swapaxes(-1, -2),
        }
    each = (of_each,) if of_each else ()
    return {"scale_a": draw(*each, *of_a, m), "scale_b": draw(*each, *of_b, n)} if c.epilogue.endswith("scaled") else {}


def scaled(x: np.ndarray, y: np.ndarray, scale_a: Any = None, scale_b: Any = None) -> list[np.ndarray]:
    """Operands by their scales, which change nothing but exponents."""
    if scale_a is None:
        return [x, y]
    if scale_a.ndim == x.ndim:
        block = 1 if scale_b.shape[-1] == y.shape[-1] else 128
        of_a, of_b = scale_a.repeat(128, -1), scale_b.repeat(128, -2).repeat(block, -1)
        return [x * of_a[..., : x.shape[-1]], y * of_b[..., : y.shape[-2], : y.shape[-1]]]
    return [x * scale_a[..., None], y * scale_b[..., None, :]]


def run(
    on: Any,
    name: str,
    axis: str,
    sizes: list[int],
    told: np.ndarray,
    how: str,
    total: int,
    rng: Any,
    alpha: float = 1.0,
) -> tuple[Any, Any]:
    """What the kernel leaves, and the definition over what was there before."""
    c = find(name)
    k = 264 if SCHEDULES[c.schedule].block else 72 if DTYPES[c.a].bits > 8 else 136
    a, b, d = shapes(axis, total, len(sizes), k)
    dtypes = [DTYPES[dtype].stored for dtype in (c.a, c.b)]
    numbers = [integers(rng, shape, dtype) for shape, dtype in zip((a, b), dtypes, strict=True)]
    scales = scales_of(name, rng, a, b, len(sizes) if axis == "k" else 0)
    at, (x, y) = 0, numbers if axis == "k" else scaled(*numbers, **scales)
    x = alpha * x
    behind = slice(sum(sizes), None)
    if c.accumulator != "s32" and axis in ("m", "n"):  # what belongs to nobody
        end = (behind,) if axis == "m" else (..., behind)
        numbers[axis == "n"][end] = np.nan
        for scale in [scales["scale_a" if axis == "m" else "scale_b"]] if scales else []:
            scale[end] = np.nan
    elif c.accumulator != "s32" and axis == "k":
        numbers[0][:, behind] = numbers[1][behind] = np.nan
    given = [
        typed(on, placed("numpy", x, dtype, ALIGNED[layout]).array, dtype)
        for x, dtype, layout in zip(numbers, dtypes, c.layout, strict=True)
    ]
    out = placed("numpy", None, c.d, "aligned", d)
    before = out.array.astype("f8")
    keywords = {key: on(scale) for key, scale in scales.items()} | {"compute": compute_of(c.a, c.accumulator)}
    grouped_gemm(*given, out=typed(on, out.array, c.d), kernel=name, alpha=alpha, **{how: on(told)}, **keywords)
    simulator.run()
    out.assert_rest_untouched()
    wanted = before.copy()
    for i, size in enumerate(sizes):
        lines = slice(0, size) if axis == "batch" else slice(at, at + size)
        if axis == "m":
            wanted[lines] = rounded(x[lines] @ y[i], c.d)
        elif axis == "n":
            wanted[:, lines] = rounded(x[i] @ y[:, lines], c.d)
        elif axis == "k":
            of_group = [scale[i] for scale in scales.values()]
            wanted[i] = rounded(np.matmul(*scaled(x[:, lines], y[lines], *of_group)), c.d)
        else:
            wanted[i, lines] = rounded(x[i, lines] @ y[i], c.d)
        at += size
    return out.array.astype("f8"), wanted


DEEP = [name for name in GROUPED if axes_of(name) == ("k",)]
# Of 16 bits with all sizes, of others with every other: all of them would take minutes. Groups of k end with an
# instruction's part of it, too.
SIZED = [
    pytest.param(name, sizes, id=f"{name}-{len(sizes)}-{sum(sizes)}")
    for i, name in enumerate(GROUPED)
    for j, sizes in enumerate([*SIZES, [80, 48, 0, 128]])
    if (name in DEEP if j == len(SIZES) else DTYPES[find(name).a].bits == 16 or (i + j) % 2)
]


@pytest.mark.parametrize(("name", "sizes"), SIZED)
def test_groups(on, rng, name, sizes):
    ends = np.cumsum(sizes)
    ways = [("sizes", sizes), ("offsets", ends), ("offsets", np.r_[0, ends])]
    axes = list(enumerate(axes_of(name)))
    for i, axis in [axes[GROUPED.index(name) % len(axes)]] if len(sizes) > 32 else axes:
        total = -(-((max(sizes) if axis == "batch" else sum(sizes)) + 9) // 8) * 8
        # Likewise each way with some of the sizes.
        how, told = ways[0 if axis == "batch" else (i + len(sizes) + GROUPED.index(name)) % 3]
        found, wanted = run(on, name, axis, sizes, np.array(told, "i4"), how, total, rng)
        np.testing.assert_array_equal(found, wanted)


SOME = [*GROUPED[:2], GROUPED[4], *(name for name in GROUPED if "x32x128_" in name and "e4m3" in name)]


@pytest.mark.parametrize("name", SOME)
def test_numbers_are_cut_off(on, rng, name):
    """Whatever they are, what surrounds the result stays."""
    axis = axes_of(name)[0]
    for told in ([-5, 2**31 - 1, -(2**31), 40], [100, 50, 80, 20], [2**30] * 4):
        for how in ("sizes", "offsets"):
            run(on, name, axis, [0, 0, 0, 0], np.array(told, "i4"), how, 120, rng)


@pytest.mark.parametrize("name", [x for x in GROUPED if axes_of(x)[0] != "batch"][:2])
def test_sizes_end_with_the_extent(on, rng, name):
    """A group that is too long takes what is left, nothing of those in front of it, and leaves nothing behind."""
    axis = axes_of(name)[0]
    found, wanted = run(on, name, axis, [60, 60, 0, 0], np.array([60, 100, 30, 2**31 - 1], "i4"), "sizes", 120, rng)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("kind", "told"), [("i4", False), ("i4", True), ("i8", True)])
@pytest.mark.parametrize("layout", ["row", "aligned_column"])
def test_rows_by_their_numbers(on, rng, kind, told, layout):
    """On the device, or `told` by the host. A row may be in several groups, or in none; others are zeros."""
    name = next(x for x in GROUPED if axes_of(x)[0] == "m")
    c, sizes = find(name), [70, 0, 5]
    x, y = integers(rng, (40, 72), c.a), integers(rng, (3, 72, 136), c.b)
    a, b = placed("numpy", x, c.a, layout).array, placed("numpy", y, c.b, ALIGNED[c.layout[1]]).array
    out = placed("numpy", None, c.d, "aligned", (80, 136))
    rows = rng.integers(0, 40, 80).astype(kind)
    if not told:
        rows[3], rows[71] = 40, -1
    wanted = out.array.astype("f8")
    x = np.r_[x, np.zeros((1, 72))][np.where((rows < 0) | (rows > 39), 40, rows)]
    wanted[:70], wanted[70:75] = rounded(x[:70] @ y[0], c.d), rounded(x[70:75] @ y[2], c.d)
    grouped_gemm(
        typed(on, a, c.a),
        typed(on, b, c.b),
        sizes=on(np.array(sizes, "i4")),
        gather=rows if told else on(rows),
        out=typed(on, out.array, c.d),
        kernel=name,
    )
    simulator.run()
    out.assert_rest_untouched()
    np.testing.assert_array_equal(out.array.astype("f8"), wanted)


@pytest.mark.parametrize("name", [GROUPED[0], *(name for name in GROUPED if name.endswith("scaled"))][:5])
def test_nothing_of_k(on, rng, name):
    """Zeros of the lines that groups have, whatever sums them."""
    sizes = [70, 0, 5]
    found, wanted = run(on, name, "m", sizes, np.array(sizes, "i4"), "sizes", 80, rng, alpha=0.0)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", [x for x in GROUPED if "batch" in axes_of(x)][:2])
def test_a_matrix_that_groups_share(on, rng, name):
    """Of matrices that lie on top of one another each still has lines of its own."""
    c, sizes = find(name), [70, 0, 5]
    x, y = integers(rng, (3, 72, 64), c.a), integers(rng, (64, 136), c.b)
    a = placed("numpy", x, c.a, ALIGNED[c.layout[0]]).array
    b = np.broadcast_to(placed("numpy", y, c.b, ALIGNED[c.layout[1]]).array, (3, 64, 136))
    out = placed("numpy", None, c.d, "aligned", (3, 72, 136))
    wanted = out.array.astype("f8")
    grouped_gemm(
        typed(on, a, c.a),
        typed(on, b, c.b),
        out=typed(on, out.array, c.d),
        sizes=on(np.array(sizes, "i4")),
        kernel=name,
    )
    simulator.run()
    for i, size in enumerate(sizes):
        wanted[i, :size] = rounded(x[i, :size] @ y, c.d)
    np.testing.assert_array_equal(out.array.astype("f8"), wanted)


@pytest.mark.parametrize("told", [False, True])
def test_plans(on, rng, told):
    """Of other sizes than they were made with, in another order of tiles, with scratch of the caller's."""
    x, y = integers(rng, (205, 72), "bf16"), integers(rng, (4, 72, 136), "bf16")
    a, b = (typed(on, placed("numpy", z, "bf16", "aligned").array, "bf16") for z in (x, y))

    def sizes(*given):
        return np.array(given, "i4") if told else on(np.array(given, "i4"))

    name = next(x for x in GROUPED if x.endswith("tn_128x128x64_1x1x1_leanpingponggrouped_fused"))
    args = GroupedArguments(a, b, sizes=sizes(205, 0, 0, 0))
    with pytest.raises(ValueError, match="reads b column-major"):
        args.plan(kernel=name)
    plan, needed = args.plan(swizzle=2, raster="m"), args.workspace_size()
    assert needed >= y.nbytes // 4  # where b is packed
    for given in ([70, 0, 130, 5], [0, 5, 0, 100]):
        out = placed("numpy", None, "bf16", "aligned", (205, 136))
        wanted, at = out.array.astype("f8"), 0
        plan(out=typed(on, out.array, "bf16"), sizes=sizes(*given), workspace=on(aligned_bytes(needed)))
        simulator.run()
        for i, size in enumerate(given):
            wanted[at : at + size] = rounded(x[at : at + size] @ y[i], "bf16")
            at += size
        np.testing.assert_array_equal(out.array.astype("f8"), wanted)
        out.assert_rest_untouched()
    with pytest.raises(ValueError, match=f"workspace has {needed - 1} bytes; expected at least {needed}"):
        plan(workspace=on(aligned_bytes(needed - 1)))
    with pytest.raises(ValueError, match="out is aligned to [248] bytes; the plan takes 16"):
        plan(out=typed(on, placed("numpy", None, "bf16", "row", (205, 137)).array[:, 1:], "bf16"))
    elsewhere = on(np.array([1, 2, 3, 4], "i4")) if told else np.array([1, 2, 3, 4], "i4")
    with pytest.raises(ValueError, match="sizes is (on the device|in host memory); the plan takes numbers"):
        plan(sizes=elsewhere)


@pytest.mark.parametrize("told", [False, True])
def test_tuning_knows_where_groups_end(on, monkeypatch, tmp_path, told):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    a, b = (on(np.ones(shape, "f4")) for shape in ((40, 64), (3, 64, 32)))
    ends, given, measure = np.array([5, 5, 37], "i4"), [], _core.measure

    def watched(*arguments, **keywords):
        given.append(keywords)
        return measure(*arguments, **keywords)

    monkeypatch.setattr(_core, "measure", watched)
    tune(GroupedArguments(a, b, offsets=ends if told else on(ends), compute="tf32"))
    assert given and all(x == {"group_ends": [5, 5, 37]} for x in given)
    with pytest.raises(ValueError, match="group_ends has 2 numbers; expected 3"):
        measure(GroupedArguments(a, b, offsets=on(ends)).problem, [], 1, group_ends=[5, 5])
    wrong = GroupedArguments(a, b, offsets=on(ends[::-1].copy()))
    with pytest.raises(ValueError, match=r"offsets\[1\] is 5 but offsets\[0\] is 37; expected no decrease"):
        tune(wrong)
    rows, sizes = on(np.arange(40, dtype="i4")), on(np.array([1, 2, 3], "i4"))
    assert GroupedArguments(a, b, sizes=sizes, gather=rows).group_ends() == [1, 3, 6]
    assert (
        GroupedArguments(
            TensorSpec((4, 8), "f32"), TensorSpec((2, 8, 8), "f32"), sizes=TensorSpec((2,), "s32")
        ).group_ends()
        == []
    )


def aligned_bytes(count: int) -> np.ndarray:
    bytes = np.zeros(count + 256, "u1")
    begin = -bytes.ctypes.data % 256
    return bytes[begin : begin + count]


def test_what_takes_several_products_has_no_plan(on, rng):
    a, b = on(rng.standard_normal((8, 16)).astype("f4")), on(rng.standard_normal((2, 16, 8)).astype("f4"))
    args = GroupedArguments(
        a,
        b,
        sizes=np.array([3, 5], "i4"),
        out_dtype="f16",
        deterministic=True,
        activation="d_relu",
        aux=on(np.ones((8, 8), "f4")),
    )
    for ask in (args.plan, args.workspace_size):
        with pytest.raises(ValueError, match="no kernel makes all of this, so that there is no plan of one"):
            ask()


@pytest.mark.parametrize("name", [name for name in DEEP if find(name).accumulator != "s32"])
def test_what_is_beside_a_group_of_k_reaches_nothing(on, rng, name):
    """Not even NaN, in the instruction where one group ends and another begins."""
    c, sizes = find(name), [70, 21, 40]
    begin, end = 70, 91
    shapes_ = shapes("k", 136, 3, 0)
    dtypes = [DTYPES[dtype].stored for dtype in (c.a, c.b)]
    x, y = (integers(rng, shape, dtype) for shape, dtype in zip(shapes_[:2], dtypes, strict=True))
    wanted = rounded(x[:, begin:end].astype("f8") @ y[begin:end].astype("f8"), c.d)
    x[:, :begin] = x[:, end:] = y[:begin] = y[end:] = np.nan
    given = [
        typed(on, placed("numpy", each, dtype, ALIGNED[layout]).array, dtype)
        for each, dtype, layout in zip((x, y), dtypes, c.layout, strict=True)
    ]
    out = placed("numpy", None, c.d, "aligned", shapes_[2])
    compute = compute_of(c.a, c.accumulator)
    grouped_gemm(*given, out=typed(on, out.array, c.d), kernel=name, sizes=on(np.array(sizes, "i4")), compute=compute)
    simulator.run()
    np.testing.assert_array_equal(out.array[1].astype("f8"), wanted)
