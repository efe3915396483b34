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

from cutlass_py import grouped_gemm, view
from cutlass_py.declaration.config import SCHEDULES
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
    return (*(("m",) if c.layout[0] == "t" else ()), *(("n",) if c.layout[1] == "n" else ()), "batch")


def shapes(axis: str, total: int, groups: int) -> list[tuple[int, ...]]:
    m, n, k = (total if axis in ("m", "batch") else 72, total if axis == "n" else 136, total if axis == "k" else 72)
    a = (groups, m, k) if axis in ("n", "batch") else (m, k)
    b = (groups, k, n) if axis in ("m", "batch") else (k, n)
    return [a, b, (groups, m, n) if axis in ("k", "batch") else (m, n)]


def run(
    on: Any, name: str, axis: str, sizes: list[int], told: np.ndarray, how: str, total: int, rng: Any
) -> tuple[Any, Any]:
    """What the kernel leaves, and the definition over what was there before."""
    c = find(name)
    a, b, d = shapes(axis, total, len(sizes))
    numbers = [integers(rng, shape, dtype) for shape, dtype in ((a, c.a), (b, c.b))]
    given = [
        typed(on, placed("numpy", x, c.a, ALIGNED[layout]).array, c.a)
        for x, layout in zip(numbers, c.layout, strict=True)
    ]
    out = placed("numpy", None, c.d, "aligned", d)
    before = out.array.astype("f8")
    grouped_gemm(*given, out=typed(on, out.array, c.d), kernel=name, **{how: on(told)})
    simulator.run()
    out.assert_rest_untouched()
    wanted, at, (x, y) = before.copy(), 0, numbers
    for i, size in enumerate(sizes):
        lines = slice(0, size) if axis == "batch" else slice(at, at + size)
        if axis == "m":
            wanted[lines] = rounded(x[lines] @ y[i], c.d)
        elif axis == "n":
            wanted[:, lines] = rounded(x[i] @ y[:, lines], c.d)
        elif axis == "k":
            wanted[i] = rounded(x[:, lines] @ y[lines], c.d)
        else:
            wanted[i, lines] = rounded(x[i, lines] @ y[i], c.d)
        at += size
    return out.array.astype("f8"), wanted


@pytest.mark.parametrize("sizes", SIZES, ids=lambda x: f"{len(x)}-{sum(x)}")
@pytest.mark.parametrize("name", GROUPED)
def test_groups(on, rng, name, sizes):
    ends = np.cumsum(sizes)
    ways = [("sizes", sizes), ("offsets", ends), ("offsets", np.r_[0, ends])]
    for i, axis in enumerate(axes_of(name)):  # each way with some of the sizes: all of them would take minutes
        total = -(-((max(sizes) if axis == "batch" else sum(sizes)) + 9) // 8) * 8
        how, told = ways[0 if axis == "batch" else (i + len(sizes) + GROUPED.index(name)) % 3]
        found, wanted = run(on, name, axis, sizes, np.array(told, "i4"), how, total, rng)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", GROUPED[:2] + GROUPED[4:5])
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
