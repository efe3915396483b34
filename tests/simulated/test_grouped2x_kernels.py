"""2.x kernels of groups: which tiles there are, where matrices lie, whatever groups divide and tells them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simulator
from helpers import placed
from reference import integers
from simulator import streamed

from cutlass_py import explain, gemm, grouped_gemm
from cutlass_py.operations.grouped_gemm.arguments import GroupedArguments

AXES = ("m", "n", "k", "batch")
KIND = {"t": "padded", "n": "column"}
SIZES = ([70, 0, 130, 5], [3] * 40, [0, 0, 300], [1], [0, 0])


@pytest.fixture
def on() -> Any:
    """A framework with a current stream."""
    return streamed(simulator.stream())


class Case:
    """Operands in a layout, and the definition over what is there of the result."""

    def __init__(self, rng: Any, axis: str, layout: str, sizes: list[int], total: int | None = None) -> None:
        self.axis, self.sizes = axis, sizes
        groups, rest = len(sizes), 9
        total = total or (max(sizes) if axis == "batch" else sum(sizes)) + rest
        m, n, k = (total if axis in ("m", "batch") else 71, total if axis == "n" else 137, total if axis == "k" else 19)
        a = (groups, m, k) if axis in ("n", "batch") else (m, k)
        b = (groups, k, n) if axis in ("m", "batch") else (k, n)
        self.x, self.y = integers(rng, a), integers(rng, b)
        self.a, self.b = (
            placed("numpy", values, "f32", KIND[order]).array
            for values, order in zip((self.x, self.y), layout, strict=True)
        )
        self.out = placed("numpy", None, "f32", "padded", shape=(groups, m, n) if axis in ("k", "batch") else (m, n))
        self.out.array[...] = 7

    def wanted(self, finish: Any = lambda i, z: z) -> np.ndarray:
        found, at = np.full(self.out.array.shape, 7.0), 0
        for i, size in enumerate(self.sizes):
            lines = slice(0, size) if self.axis == "batch" else slice(at, at + size)
            if self.axis == "m":
                found[lines] = finish(i, self.x[lines] @ self.y[i])
            elif self.axis == "n":
                found[:, lines] = finish(i, self.x[i] @ self.y[:, lines])
            elif self.axis == "k":
                found[i] = finish(i, self.x[:, lines] @ self.y[lines])
            else:
                found[i, lines] = finish(i, self.x[i, lines] @ self.y[i])
            at += size
        return found

    def run(self, on: Any, told: Any, how: str, **keywords: Any) -> None:
        grouped_gemm(on(self.a), on(self.b), out=on(self.out.array), **{how: on(told)}, **keywords)
        simulator.run()
        self.out.assert_rest_untouched()


@pytest.mark.parametrize("sizes", SIZES, ids=lambda x: f"{len(x)}-{sum(x)}")
@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("axis", AXES)
def test_groups(on, rng, axis, layout, sizes):
    ends = np.cumsum(sizes)
    ways = [("sizes", sizes), ("offsets", ends), ("offsets", np.r_[0, ends])]
    for how, told in ways[: 1 if axis == "batch" else 3]:
        case = Case(rng, axis, layout, sizes)
        case.run(on, np.array(told, "i4"), how)
        np.testing.assert_array_equal(case.out.array, case.wanted())


@pytest.mark.parametrize("axis", AXES)
def test_c_and_a_bias_of_each_group(on, rng, axis):
    sizes = [70, 0, 130, 5]
    case = Case(rng, axis, "tn", sizes)
    told, how = np.array(sizes, "i4"), "sizes"
    case.run(on, told, how, c=on(case.out.array), alpha=2, beta=3)
    np.testing.assert_array_equal(case.out.array, case.wanted(lambda i, z: 2 * z + 21))
    case.out.array[...] = 7
    n = case.out.array.shape[-1]
    bias = integers(rng, (n,) if axis == "n" else (4, n)).astype("f4")
    ends = np.cumsum(sizes)
    case.run(on, told, how, bias=on(bias))
    wanted = case.wanted(lambda i, z: z + (bias[ends[i] - sizes[i] : ends[i]] if axis == "n" else bias[i]))
    np.testing.assert_array_equal(case.out.array, wanted)


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_numbers_are_cut_off(on, rng, axis):
    """Whatever they are, what surrounds the result stays; sizes end with the extent."""
    for told in ([-5, 2**31 - 1, -(2**31), 40], [100, 50, 80, 20], [2**30] * 4):
        for how in ("sizes", "offsets"):
            Case(rng, axis, "tn", [0] * 4, 120).run(on, np.array(told, "i4"), how)
    case = Case(rng, axis, "tn", [60, 60, 0, 0], 120)
    case.run(on, np.array([60, 2**30, 30, 2**31 - 1], "i4"), "sizes")
    np.testing.assert_array_equal(case.out.array, case.wanted())


def test_a_result_by_columns_is_computed_turned(on, rng):
    case = Case(rng, "m", "tn", [70, 0, 130, 5])
    out = placed("numpy", None, "f32", "column", shape=case.out.array.shape)
    out.array[...] = 7
    args = GroupedArguments(on(case.a), on(case.b), out=on(out.array), sizes=on(np.array(case.sizes, "i4")))
    assert args.problem.transposed and explain(args).chosen
    args.run()
    simulator.run()
    np.testing.assert_array_equal(out.array, case.wanted())


UNEVEN = [(70, 19, 130), (3, 0, 6), (1, 30, 65), (0, 4, 7), (64, 64, 64), (129, 2, 1)]


def pairs(rng: Any, layout: str) -> Any:
    """Matrices of any sizes, as numbers and as they lie."""
    x = [[integers(rng, shape) for shape in ((m, k), (k, n))] for m, k, n in UNEVEN]
    laid = [
        [placed("numpy", values, "f32", KIND[order]).array for values, order in zip(pair, layout, strict=True)]
        for pair in x
    ]
    return [list(each) for each in zip(*x, strict=True)] + [list(each) for each in zip(*laid, strict=True)]


@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
def test_lists_of_matrices_that_differ(on, rng, layout):
    x, y, a, b = pairs(rng, layout)
    lists = [[on(matrix) for matrix in each] for each in (a, b)]
    outs = [placed("numpy", None, "f32", "padded", shape=(m, n)) for m, _, n in UNEVEN]
    cs = [integers(rng, (m, n)).astype("f4") for m, _, n in UNEVEN]
    gemm(*lists, out=[on(out.array) for out in outs], c=[on(c) for c in cs], alpha=2, beta=3)
    simulator.run()
    for i, out in enumerate(outs):
        np.testing.assert_array_equal(out.array, 2 * x[i] @ y[i] + 3 * cs[i])
        out.assert_rest_untouched()
    turned = [placed("numpy", None, "f32", "column", shape=(m, n)) for m, _, n in UNEVEN]
    gemm(*lists, out=[on(out.array) for out in turned])
    simulator.run()
    for i, out in enumerate(turned):
        np.testing.assert_array_equal(out.array, x[i] @ y[i])
        out.assert_rest_untouched()


def test_lists_without_a_product_and_with_a_bias(on, rng):
    x, y, a, b = pairs(rng, "tn")
    lists = [[on(matrix) for matrix in each] for each in (a, b)]
    outs = [placed("numpy", None, "f32", "padded", shape=(m, n)) for m, _, n in UNEVEN]
    cs = [integers(rng, (m, n)).astype("f4") for m, _, n in UNEVEN]
    gemm(*lists, out=[on(out.array) for out in outs], c=[on(c) for c in cs], alpha=0)
    simulator.run()
    for out, c in zip(outs, cs, strict=True):
        np.testing.assert_array_equal(out.array, c)
    bias = integers(rng, (64,)).astype("f4")
    left = [on(np.ones((m, 64), "f4")) for m in (3, 70, 1)]
    results = [np.zeros((m, 64), "f4") for m in (3, 70, 1)]
    gemm(left, on(b[4]), out=[on(out) for out in results], bias=on(bias))
    simulator.run()
    for out in results:
        np.testing.assert_array_equal(out, np.ones(out.shape) @ y[4] + bias)
