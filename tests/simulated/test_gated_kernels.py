"""Kernels of gates and values, thread by thread: functions, edges of tiles, biases, what is kept and what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simulator
from helpers import placed
from reference import integers
from simulator import streamed
from sm90_kernels import GATED

from cutlass_py import GemmArguments, GroupedArguments, explain, gemm, grouped_gemm, view
from cutlass_py.declaration.dtypes import compute_of
from cutlass_py.declaration.epilogues import GATED as FUNCTIONS
from cutlass_py.declaration.epilogues import epilogue_named
from cutlass_py.declaration.families import find
from cutlass_py.epilogues.activation_reference import ACTIVATION_FUNCTIONS

ALIGNED = {"t": "aligned", "n": "aligned_column"}
SIZES = [70, 0, 130, 5]
FORWARD = [name for name in GATED if not epilogue_named(find(name).epilogue).gated]
BACKWARD = [name for name in GATED if name not in FORWARD]


@pytest.fixture
def on() -> Any:
    """A framework with a current stream."""
    return streamed(simulator.stream())


def typed(on: Any, x: np.ndarray, dtype: str) -> Any:
    return on(x) if dtype in ("f32", "f16") else view(on(x.view(f"u{x.itemsize}")), dtype)


def multiply(on: Any, name: str, x: np.ndarray, y: np.ndarray, outs: dict[str, Any], **keywords: Any) -> np.ndarray:
    """By that kernel; the product alone, as float64. Of a grouped one each group has a matrix of y."""
    c = find(name)
    a, b = (
        typed(on, placed("numpy", z, c.a, ALIGNED[layout]).array, c.a)
        for z, layout in zip((x, y), c.layout, strict=True)
    )
    given = {key: typed(on, out.array, c.d) for key, out in outs.items()} | keywords
    given |= {"compute": compute_of(c.a, c.accumulator)}
    if y.ndim == 2:
        gemm(a, b, kernel=name, **given)
        product = x @ y
    else:
        ends = np.cumsum(SIZES)
        grouped_gemm(a, b, offsets=on(ends.astype("i4")), kernel=name, **given)
        product = np.concatenate([x[e - s : e] @ z for e, s, z in zip(ends, SIZES, y, strict=True)])
    simulator.run()
    return product


def operands(rng: Any, name: str, clusters: tuple[float, float], columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Of about so many tiles; half of the columns of y is a whole number of granules."""
    c = find(name)
    grouped = c.family == "sm90_grouped"
    m = sum(SIZES) if grouped else max(int(c.tile[0] * c.cluster[0] * clusters[0]), 1)
    n = max(int(c.tile[1] * c.cluster[1] * clusters[1]) // 16 * 8, 8) * columns
    x = integers(rng, (m, 136), c.a)
    return x, integers(rng, (len(SIZES), 136, n) if grouped else (136, n), c.a)


def scales(on: Any, name: str, rng: Any, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], Any, Any]:
    """Keywords with one for each row and each column of a group, and these numbers; 1 where a kernel has none."""
    if not find(name).epilogue.endswith("scaled"):
        return {}, 1, 1
    of_x, of_y = (
        (2.0 ** rng.integers(-2, 3, shape)).astype("f4") for shape in (x.shape[:1], (*y.shape[:-2], y.shape[-1]))
    )
    of_b = of_y if y.ndim == 3 else of_y[None]
    return {"scale_a": on(of_x if y.ndim == 3 else of_x[:, None]), "scale_b": on(of_b)}, of_x[:, None], of_b


def near(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    step = 2**-7 if dtype == "bf16" else 2**-9
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=step, atol=step)


def rows_of(name: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One row for each row of the result, of what is one for each group."""
    return np.repeat(x, SIZES, axis=0) if find(name).family == "sm90_grouped" else x


@pytest.mark.parametrize("clusters", [(0.3, 0.4), (1, 1), (1.4, 2.3)])
@pytest.mark.parametrize("name", FORWARD)
def test_gates_and_values(on, rng, name, clusters):
    c = find(name)
    x, y = operands(rng, name, clusters, 2)
    half = y.shape[-1] // 2
    with_aux, grouped = epilogue_named(c.epilogue).aux, y.ndim == 3
    bias = integers(rng, (len(SIZES) if grouped else 1, 2 * half), c.d)
    outs = {"out": placed("numpy", None, c.d, "aligned", (x.shape[0], half))}
    if with_aux:
        outs["aux"] = placed("numpy", None, c.d, "aligned", (x.shape[0], 2 * half))
    function = FUNCTIONS[(FORWARD.index(name) + int(clusters[0])) % len(FUNCTIONS)]
    by, of_rows, of_columns = scales(on, name, rng, x, y)
    z = multiply(
        on,
        name,
        x,
        y,
        outs,
        gated=function,
        alpha=0.125,
        bias=typed(on, placed("numpy", bias, c.d, "aligned").array, c.d),
        **by,
    )
    of_columns = rows_of(name, y, of_columns) if by and grouped else of_columns
    z = 0.125 * z * of_rows * of_columns + (rows_of(name, y, bias) if grouped else bias)
    with np.errstate(all="ignore"):
        near(outs["out"].array, ACTIVATION_FUNCTIONS[function](z[:, :half]) * z[:, half:], c.d)
    if with_aux:
        near(outs["aux"].array, z, c.d)
    for out in outs.values():
        out.assert_rest_untouched()


IN_PLACE = [x for x in FORWARD if find(x).layout == "tn" and not epilogue_named(find(x).epilogue).aux]


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_value_behind_each_gate(on, rng, name):
    c = find(name)
    x, y = operands(rng, name, (1, 1.4), 2)
    grouped = y.ndim == 3
    bias = integers(rng, (len(SIZES) if grouped else 1, y.shape[-1]), c.d)
    out = placed("numpy", None, c.d, "aligned", (x.shape[0], y.shape[-1] // 2))
    by, of_rows, of_columns = scales(on, name, rng, x, y)
    given = typed(on, placed("numpy", bias, c.d, "aligned").array, c.d)
    z = multiply(on, name, x, y, {"out": out}, gated="relu_interleaved", alpha=0.125, bias=given, **by)
    of_columns = rows_of(name, y, of_columns) if by and grouped else of_columns
    z = 0.125 * z * of_rows * of_columns + rows_of(name, y, bias)
    near(out.array, np.maximum(z[:, ::2], 0) * z[:, 1::2], c.d)
    out.assert_rest_untouched()


@pytest.mark.parametrize("grouped", [False, True])
def test_gates_and_values_are_packed_as_they_are(on, rng, grouped):
    """Of weights whose rows begin within a granule; of groups also those that lie along n."""
    x, y = integers(rng, (sum(SIZES), 36), "bf16"), integers(rng, (len(SIZES), 36, 48), "bf16")
    a = typed(on, placed("numpy", x, "bf16", "aligned").array, "bf16")
    how = "aligned" if grouped else "column"
    b = typed(on, placed("numpy", y if grouped else y[0], "bf16", how).array, "bf16")
    out = placed("numpy", None, "bf16", "aligned", (sum(SIZES), 24))
    told, keywords = on(np.array(SIZES, "i4")), {"gated": "relu_interleaved", "out": typed(on, out.array, "bf16")}
    arguments = GroupedArguments(a, b, sizes=told, **keywords) if grouped else GemmArguments(a, b, **keywords)
    assert "packs b first" in str(explain(arguments))
    grouped_gemm(a, b, sizes=told, **keywords) if grouped else gemm(a, b, **keywords)
    simulator.run()
    at = np.split(x, np.cumsum(SIZES)[:-1])
    z = np.concatenate([rows @ y[i if grouped else 0] for i, rows in enumerate(at)])
    near(out.array, np.maximum(z[:, ::2], 0) * z[:, 1::2], "bf16")
    out.assert_rest_untouched()


@pytest.mark.parametrize("gated", ["silu", "silu_interleaved"])
def test_the_product_goes_through_memory(on, rng, gated):
    """Where no kernel joins gates and values, forward and backward."""
    x, y = integers(rng, (40, 24), "f16"), integers(rng, (24, 32), "f16")
    parted = (
        (lambda z: (z[:, ::2], z[:, 1::2])) if gated.endswith("interleaved") else (lambda z: np.split(z, 2, axis=1))
    )
    a, b = (on(placed("numpy", z, "f16", "row").array) for z in (x, y))
    out, aux = placed("numpy", None, "f16", "column", (40, 16)), placed("numpy", None, "f32", "row", (40, 32))
    gemm(a, b, gated=gated, out=on(out.array), aux=on(aux.array))
    simulator.run()
    z = x.astype("f8") @ y
    near(aux.array, z, "f16")
    gates, values = parted(z)
    near(out.array, ACTIVATION_FUNCTIONS["silu"](gates) * values, "f16")
    back = placed("numpy", None, "f16", "row", (40, 32))
    y = integers(rng, (24, 16), "f16")
    gemm(a, on(placed("numpy", y, "f16", "row").array), gated=f"d_{gated}", out=on(back.array), aux=on(aux.array))
    simulator.run()
    z = x.astype("f8") @ y
    found_gates, found_values = parted(back.array)
    near(found_gates, z * values * ACTIVATION_FUNCTIONS["d_silu"](gates), "f16")
    near(found_values, z * ACTIVATION_FUNCTIONS["silu"](gates), "f16")
    for x in (out, aux, back):
        x.assert_rest_untouched()


@pytest.mark.parametrize("clusters", [(0.3, 0.4), (1.4, 2.3)])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_of_gates_and_values(on, rng, name, clusters):
    c = find(name)
    x, y = operands(rng, name, clusters, 1)
    n = y.shape[-1]
    kept = placed("numpy", integers(rng, (x.shape[0], 2 * n), c.d), c.d, "aligned")
    gates, values = (part.astype("f8") for part in np.split(kept.array, 2, axis=1))
    out = placed("numpy", None, c.d, "aligned", (x.shape[0], 2 * n))
    function = FUNCTIONS[(BACKWARD.index(name) + int(clusters[0])) % len(FUNCTIONS)]
    z = multiply(on, name, x, y, {"out": out, "aux": kept}, gated=f"d_{function}", alpha=0.125) * 0.125
    derivative = ACTIVATION_FUNCTIONS[f"d_{function}"](gates)
    near(out.array, np.hstack([z * values * derivative, z * ACTIVATION_FUNCTIONS[function](gates)]), c.d)
    out.assert_rest_untouched()


@pytest.mark.parametrize("name", [name for name in BACKWARD if find(name).family == "sm90_lean"])
def test_the_result_may_be_what_is_read(on, rng, name):
    c = find(name)
    x, y = operands(rng, name, (1.4, 1.2), 1)
    n = y.shape[-1]
    kept = placed("numpy", integers(rng, (x.shape[0], 2 * n), c.d), c.d, "aligned")
    gates, values = (part.astype("f8") for part in np.split(kept.array, 2, axis=1))
    z = multiply(on, name, x, y, {"out": kept, "aux": kept}, gated="d_relu")
    near(kept.array, np.hstack([z * values * (gates > 0), z * np.maximum(gates, 0)]), c.d)


def test_what_goes_through_memory_has_no_plan(on, rng):
    a, b = (on(rng.standard_normal(shape).astype("f4")) for shape in ((8, 16), (16, 32)))
    args = GemmArguments(a, b, gated="silu", compute="tf32")
    for ask in (args.plan, args.workspace_size):
        with pytest.raises(ValueError, match="no kernel makes these gates and values into a result"):
            ask()
