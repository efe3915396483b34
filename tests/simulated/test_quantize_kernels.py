"""The kernels that quantize, thread by thread, and calls on the simulated GPU: dtypes, scalings, layouts, edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simulator
from helpers import NEGATIVE, NO_UNIT_STRIDE, UNIT_STRIDE, Placed, placed
from reference import LIMITS, NUMPY, assert_same_codes, quantized
from simulator import streamed
from test_quantize import values

from cutlass_py import TensorSpec, _core, explain, quantize, view
from cutlass_py.declaration.quantize import SCALINGS, SOURCES
from cutlass_py.operations.quantize.arguments import QuantizeArguments

LAYOUTS = ("aligned", *UNIT_STRIDE, *NO_UNIT_STRIDE, *NEGATIVE)
NATIVE = {"f32": "f4", "f16": "f2", "f64": "f8", "s8": "i1"}  # what DLPack's oldest frameworks name
EXTENTS = [(1, 1), (3, 1), (1, 3), (2, 127), (5, 128), (129, 129), (130, 300), (1, 1025), (33, 64)]


@pytest.fixture
def on() -> Any:
    """A framework with a current stream."""
    return streamed(simulator.stream())


def typed(on: Any, x: np.ndarray, dtype: str) -> Any:
    """An array of the framework, as integers where it cannot name the dtype."""
    return on(x) if dtype in NATIVE else view(on(x.view(f"u{x.itemsize}")), dtype)


def destination(shape: tuple[int, ...], dtype: str, layout: str) -> Placed:
    matrix = len(shape) > 1
    return placed("numpy", None, dtype, layout if matrix else "row", shape)


def check(on: Any, x: np.ndarray, dtype: str, q: str, scaling: str, layout: str, written: str) -> None:
    wanted, scales = quantized(x, q, scaling)
    source = placed("numpy", x, dtype, layout)
    out, factors = destination(x.shape, q, written), destination(scales.shape, "f32", written)
    given = typed(on, source.array, dtype)
    out_given, factors_given = typed(on, out.array, q), on(factors.array)
    found = quantize(given, q, scaling=scaling, out=out_given, scales=factors_given)
    assert found[0] is out_given and found[1] is factors_given
    simulator.run()
    np.testing.assert_array_equal(factors.array, scales)
    assert_same_codes(np.ascontiguousarray(out.array), wanted)
    for each in (source, out, factors):
        each.assert_rest_untouched()


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_every_kernel(on, rng, dtype, q, scaling):
    for shape, layout in zip(EXTENTS, ("row", "column", "offset") * 3, strict=True):
        check(on, values(rng, shape, dtype), dtype, q, scaling, layout, "row")
    check(on, values(rng, (2, 131, 144), dtype), dtype, q, scaling, "aligned", "aligned")
    check(on, values(rng, (2, 131, 144), dtype), dtype, q, scaling, "padded_column", "aligned")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("dtype", "q"), [("f32", "s8"), ("bf16", "e4m3"), ("f64", "e5m2")])
def test_every_layout(on, rng, dtype, q, scaling, layout):
    shape = (3, 37, 140)
    for written in ("aligned", "row", "column", "strided", "negative"):
        check(on, values(rng, shape, dtype), dtype, q, scaling, layout, written)


@pytest.mark.parametrize("layout", ["aligned", "row", "offset", "column"])
@pytest.mark.parametrize(("dtype", "cols"), [("f32", 33000), ("bf16", 40961)])
def test_long_rows(on, rng, dtype, cols, layout):
    """Longer than registers hold, with the largest element at the very end."""
    x = values(rng, (2, cols), dtype)
    x[1, -1] = 2.0**20
    for given, scaling in ((x, "row"), (x, "tensor"), (x[1:], "row")):  # one alone is everything
        check(on, given, dtype, "e4m3", scaling, layout, "row")


@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_has_no_scale(on, scaling):
    for fill in (0.0, -0.0, np.nan, np.inf, 2.0**-149, 2.0**-130, 3e38):
        check(on, np.full((3, 130), fill), "f32", "e4m3", scaling, "row", "row")
        check(on, np.full((3, 130), fill), "f32", "s8", scaling, "column", "row")
    check(on, np.full((3, 130), 1e300), "f64", "e5m2", scaling, "row", "row")  # beyond f32 it is infinite


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 5), (0, 2, 3)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_without_elements(on, scaling, shape):
    check(on, np.zeros(shape), "f32", "s8", scaling, "row", "row")


def test_more_dimensions_than_kernels_need(on, rng):
    x = values(rng, (2, 3, 2, 5, 140), "f32").astype("f4")
    for given in (x, x.transpose(2, 1, 0, 3, 4), x[:, ::-1, :, ::2], np.broadcast_to(x[:, :1], x.shape)):
        for scaling in SCALINGS:
            wanted, scales = quantized(given, "s8", scaling)
            q, s = (np.full(y.shape, 85, y.dtype) for y in (wanted, scales))
            quantize(on(given), "s8", scaling=scaling, out=on(q), scales=on(s))
            simulator.run()
            np.testing.assert_array_equal(s, scales)
            np.testing.assert_array_equal(q, wanted)


# ---------------------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_new_results(on, rng, dtype, scaling):
    """By the plan, then by the launch that was kept."""
    for seed in range(4):
        x = values(np.random.default_rng(seed), (2, 6, 140), dtype).astype(NUMPY[dtype])
        wanted, scales = quantized(x, "s8", scaling)
        q, s = quantize(on(x), "s8", scaling=scaling)
        out = on(np.full(x.shape, 85, "i1"))
        again = quantize(on(x), "s8", scaling=scaling, out=out)
        factors = on(np.full(scales.shape, 85, "f4"))
        last = quantize(on(x), "s8", scaling=scaling, scales=factors)
        simulator.run(seed)
        assert again[0] is out and last[1] is factors
        for found in ((q, s), again, last):
            np.testing.assert_array_equal(found[0].array, wanted)
            np.testing.assert_array_equal(found[1].array, scales)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_warm_calls_ask_nobody(on, rng, scaling, monkeypatch):
    from cutlass_py.dispatch import planning

    asked: list[Any] = []
    plan = planning.plan
    monkeypatch.setattr(planning, "plan", lambda p, **keywords: asked.append(p) or plan(p, **keywords))
    _core.clear_plans()
    for _ in range(3):
        x = values(rng, (6, 140)).astype("f4")
        quantize(on(x), "s8", scaling=scaling)
        simulator.run()
    assert len(asked) == 1 and asked[0] == QuantizeArguments(on(x), "s8", scaling=scaling).problem


def test_a_vector(on, rng):
    x = values(rng, (300,)).astype("f4")
    for scaling, shape in (("tensor", ()), ("row", (1,)), ("1x128", (3,))):
        q, s = quantize(on(x), "s8", scaling=scaling)
        simulator.run()
        wanted, scales = quantized(x[None], "s8", scaling)
        assert s.array.shape == shape
        np.testing.assert_array_equal(q.array, wanted[0])
        np.testing.assert_array_equal(s.array, scales.reshape(shape))


def test_a_stream_of_ones_own(on, rng):
    x, stream = values(rng, (6, 140)).astype("f4"), simulator.stream()
    out, scales = on(np.zeros((6, 140), "i1")), on(np.zeros((), "f4"))
    quantize(on(x), "s8", out=out, scales=scales, stream=stream)
    simulator.run()
    np.testing.assert_array_equal(out.array, quantized(x, "s8", "tensor")[0])


def test_a_captured_call_is_replayed(rng):
    stream = simulator.stream()
    on = streamed(stream)
    x, out, scales = on(np.zeros((6, 140), "f4")), on(np.zeros((6, 140), "i1")), on(np.zeros((), "f4"))
    quantize(x, "s8", out=out, scales=scales)
    simulator.run()
    with simulator.capture(stream):
        quantize(x, "s8", out=out, scales=scales)
    for seed in (1, 2):
        x.array[...] = values(np.random.default_rng(seed), (6, 140)).astype("f4")
        simulator.replay(stream)
        simulator.run()
        np.testing.assert_array_equal(out.array, quantized(x.array, "s8", "tensor")[0])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_what_fails_says_so(on, rng, scaling):
    x = values(rng, (6, 140)).astype("f4")
    wanted, factors = quantized(x, "s8", scaling)
    out, scales = on(np.zeros(wanted.shape, "i1")), on(np.zeros(factors.shape, "f4"))
    with simulator.failing(0) as failed:
        with pytest.raises(_core.CudaError, match="^quantize: "):
            quantize(on(x), "s8", scaling=scaling, out=out, scales=scales)
        assert failed()
    quantize(on(x), "s8", scaling=scaling, out=out, scales=scales)
    simulator.run()
    np.testing.assert_array_equal(out.array, wanted)


def test_the_kernel_is_named():
    args = QuantizeArguments(TensorSpec((6, 140), "f32", device="cuda"), "s8", scaling="row")
    assert "chosen: quantize_f32_s8_row" in str(explain(args))


def test_kernels_are_measured():
    args = QuantizeArguments(TensorSpec((6, 140), "bf16", device="cuda"), "e4m3", scaling="1x128")
    from cutlass_py.dispatch.planning import plan

    for problem in (args.problem, QuantizeArguments(TensorSpec((6, 9), "f64", (1, 7), device="cuda"), "s8").problem):
        (times,) = _core.measure(problem, [plan(problem)], 3)
        assert times and all(np.isfinite(times))
