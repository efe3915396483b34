"""What gemm and plans queue on a device: results in every order that events allow, failures that lose nothing."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import simulator
from reference import NUMPY, rounded
from simulator import Streamless, streamed
from test_block_scales import SHAPES, quantised

from cutlass_py import CudaError, GemmArguments, TensorSpec, _core, autotuning, explain, gemm, get_kernels, tune, view
from cutlass_py.dispatch import candidates
from cutlass_py.dispatch.launch_plan import launch_plan_of

SEEDS = range(8)
M, N, K = 17, 24, 40


def values(*shape: int, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def empty(*shape: int, dtype: str = "f4") -> np.ndarray:
    return np.full(shape, 85, dtype)


@pytest.fixture
def stream() -> int:
    return simulator.stream()


@pytest.fixture
def on(stream: int) -> Any:
    """A framework with this current stream."""
    return streamed(stream)


# ---------------------------------------------------------------------------------------------------- what is computed


def _laid(x: np.ndarray, layout: str) -> np.ndarray:
    return {"t": np.ascontiguousarray, "n": np.asfortranarray, "x": lambda v: np.repeat(v, 2, -1)[..., ::2]}[layout](x)


# Each goes another way through run.cpp: one launch, packed operands, a composed epilogue, parts of k, stream-K, lists.
WAYS: dict[str, Callable[..., tuple[np.ndarray, dict[str, Any], np.ndarray]]] = {}


def way(function: Any) -> Any:
    WAYS[function.__name__] = function
    return function


@way
def one_launch(x: Any, y: Any) -> Any:
    return x, y, {}, x @ y


@way
def packed(x: Any, y: Any) -> Any:
    return _laid(x, "x"), _laid(y, "x"), {}, x @ y


@way
def composed(x: Any, y: Any) -> Any:
    bias, c = values(N, seed=2), values(M, N, seed=3)
    z = 2 * (x @ y) - c + bias
    return x, y, {"bias": bias, "c": c, "beta": -1, "alpha": 2, "activation": "relu"}, np.maximum(z, 0)


@way
def parts_of_k(x: Any, y: Any) -> Any:
    x, y = values(M, 300, seed=4), values(300, N, seed=5)
    return x, y, {"splits": 4}, x @ y


@way
def stream_k(x: Any, y: Any) -> Any:
    halves = x.astype("f2"), _laid(y, "n").astype("f2", order="K")
    return *halves, {"splits": "stream", "out_dtype": "f32"}, x @ y


@way
def factors_in_memory(x: Any, y: Any) -> Any:
    return x, y, {"alpha": np.full(1, 3, "f4"), "scale_a": values(M, 1, seed=6)}, 3 * values(M, 1, seed=6) * (x @ y)


@way
def sums_of_columns(x: Any, y: Any) -> Any:
    return x, y, {"bias_grad": empty(N)}, x @ y


@way
def sums_of_columns_beside_a_factor(x: Any, y: Any) -> Any:
    return x, y, {"bias_grad": empty(N), "scale_out": 2.0}, 2 * (x @ y)


@way
def batches(x: Any, y: Any) -> Any:
    x, y = values(3, M, K, seed=7), values(3, K, N, seed=8)
    return x, y, {}, x @ y


@way
def batches_without_one_stride(x: Any, y: Any) -> Any:
    x, y = values(2, 3, M, K, seed=7), values(3, K, N, seed=8)
    return x.swapaxes(0, 1)[::-1].swapaxes(0, 1), y, {}, x[:, ::-1] @ y


def _arguments(made: Any, kind: Any) -> tuple[Any, Any, dict[str, Any], np.ndarray]:
    x, y, keywords, expected = made
    given = {name: kind(v) if isinstance(v, np.ndarray) else v for name, v in keywords.items()}
    return kind(x), kind(y), given, expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WAYS)
def test_every_way_gives_the_product(on, name, seed):
    a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
    for _ in range(3):  # the second time by the plan table, the third by what is ready
        d = gemm(a, b, **keywords)
        out = on(empty(*expected.shape))
        assert gemm(a, b, out=out, **keywords) is out
        simulator.run(seed)
        np.testing.assert_array_equal(d.array, expected)
        np.testing.assert_array_equal(out.array, expected)
    if "bias_grad" in keywords:
        sums = expected.sum(0) / keywords.get("scale_out", 1)
        np.testing.assert_array_equal(keywords["bias_grad"].array, sums)


@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn", "xt"])
@pytest.mark.parametrize(("dtype", "result"), [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i1", "i4")])
def test_dtypes_and_layouts(on, dtype, result, layout):
    x, y = values(M, K, dtype=dtype), values(K, N, seed=1, dtype=dtype)
    d = gemm(on(_laid(x, layout[0])), on(_laid(y, layout[1])))
    simulator.run()
    assert d.array.dtype == result
    np.testing.assert_array_equal(d.array, x.astype("f8") @ y.astype("f8"))


def _typed(on: Any, x: np.ndarray, dtype: str) -> Any:
    """As integers, for frameworks that cannot name the dtype. In whole words, by which copies read to the end."""
    values = x.astype(NUMPY[dtype])
    memory = np.empty(-(-values.nbytes // 4), np.uint32)
    narrow = np.ndarray(values.shape, values.dtype, memory, strides=values.strides)
    narrow[...] = values
    return view(on(narrow.view(f"u{narrow.itemsize}")), dtype)


NARROW = ["bf16 bf16 f32", "e4m3 e5m2 bf16", "e5m2 e4m3 e4m3", "u8 u8 s32", "s8 s8 u8"]


@pytest.mark.parametrize("dtypes", NARROW)
def test_dtypes_that_frameworks_cannot_name(on, dtypes):
    a, b, d = dtypes.split()
    x, y = np.abs(values(M, K)), np.abs(values(K, N, seed=1))
    out = _typed(on, empty(M, N), d)
    gemm(_typed(on, x, a), _typed(on, y, b), out=out)
    simulator.run()
    np.testing.assert_array_equal(out.array.array.view(NUMPY[d]).astype("f8"), rounded(x @ y, d))


@pytest.mark.parametrize("shape", SHAPES)
def test_scales_in_blocks(on, rng, shape):
    x, y, rows, columns, wide_x, wide_y = quantised(rng, *shape)
    out = on(empty(shape[0], shape[1]))
    keywords = {"scale_a": on(rows), "scale_b": on(columns)}
    gemm(_typed(on, x, "e4m3"), _typed(on, y, "e4m3"), out=out, **keywords)
    simulator.run()
    np.testing.assert_array_equal(out.array, wide_x @ wide_y)


@pytest.mark.parametrize("seed", SEEDS)
def test_lists(on, seed):
    xs, ys = [values(M, K, seed=i) for i in range(5)], [values(K, N, seed=9 + i) for i in range(5)]
    outs = [on(empty(M, N)) for _ in xs]
    for _ in range(2):
        gemm([on(x) for x in xs], [on(y) for y in ys], out=outs)
        simulator.run(seed)
        for x, y, out in zip(xs, ys, outs, strict=True):
            np.testing.assert_array_equal(out.array, x @ y)
            out.array.fill(85)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["one_launch", "parts_of_k", "stream_k", "batches"])
def test_plans(on, name, seed):
    a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
    out = on(empty(*expected.shape))
    args = GemmArguments(a, b, out=out, **keywords)
    kernel = get_kernels(args)[0]
    plan = kernel.plan(args)
    for _ in range(2):
        out.array.fill(85)
        assert plan(a, b, out) is out
        simulator.run(seed)
        np.testing.assert_array_equal(out.array, expected)
    bytes_needed = kernel.workspace_size(args)
    workspace = on(np.zeros(bytes_needed + 256, "i1"))
    offset = -workspace.array.ctypes.data % 256
    workspace = on(workspace.array[offset : offset + bytes_needed])
    before = simulator.alive()
    plan(a, b, out, workspace=workspace)
    simulator.run(seed)
    assert simulator.alive() == before
    np.testing.assert_array_equal(out.array, expected)


def test_the_device_of_the_operands_is_current():
    on = streamed(simulator.stream(), device=1)
    for name in WAYS:
        a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
        d = gemm(a, b, **keywords)
        simulator.run()
        np.testing.assert_array_equal(d.array, expected)
    assert _core.device_info(0)["name"] == "Simulated GPU"


def test_clusters_of_a_library_that_does_not_count_them():
    assert _core.clusters_at_once(1) == (0, 3, 1, 1, 0, 0, 0, 0, 0)


# ---------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_of_two_frameworks_wait_and_are_waited_for(seed):
    """The first framework's own work writes its operand late; the second one's overwrites its own behind the call."""
    here, there = simulator.stream(), simulator.stream()
    x, y = values(M, K), values(K, N, seed=1)
    late, early, out, read = empty(M, K), y.copy(), empty(M, N), empty(M, N)
    simulator.queue(there, lambda: np.copyto(late, x))
    gemm(streamed(there)(late), streamed(here)(early), out=streamed(here)(out))
    simulator.queue(here, lambda: early.fill(85))
    simulator.queue(there, lambda: late.fill(85))
    simulator.queue(here, lambda: np.copyto(read, out))
    simulator.run(seed)
    np.testing.assert_array_equal(read, x @ y)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_given_stream_follows_the_operands_and_nothing_follows_it(on, stream, seed):
    x, y, side = values(M, K), values(K, N, seed=1), simulator.stream()
    late, out = empty(M, K), empty(M, N)
    simulator.queue(stream, lambda: np.copyto(late, x))
    gemm(on(late), on(y), out=on(out), stream=side)
    read = empty(M, N)
    simulator.queue(side, lambda: np.copyto(read, out))
    simulator.run(seed)
    np.testing.assert_array_equal(read, x @ y)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WAYS)
def test_streamless_operands_may_be_dropped_at_once(name, seed):
    """Their framework takes the memory again as soon as it is given back, on the host and without looking."""
    x, y, keywords, expected = WAYS[name](values(M, K), values(K, N, seed=1))
    owner = simulator.stream()
    lent: list[Streamless] = []

    def dropped(array: np.ndarray) -> Streamless:
        late = np.zeros_like(array)  # of the same strides
        simulator.queue(owner, lambda: np.copyto(late, array))
        lent.append(Streamless(late, owner, dropped=True))
        return lent[-1]

    kinds = {"bias_grad": lambda array: Streamless(array, owner)}  # is written
    given = {n: kinds.get(n, dropped)(v) if isinstance(v, np.ndarray) else v for n, v in keywords.items()}
    d = gemm(dropped(x), dropped(y), **given)
    assert not any(operand.balanced for operand in lent)
    found = simulator.read(d, simulator.stream())
    simulator.run(seed)
    np.testing.assert_array_equal(found, expected)
    assert all(operand.balanced for operand in lent)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_without_a_stream_follows_a_given_one(seed):
    owner, side = simulator.stream(), simulator.stream()
    x, y = values(M, K), values(K, N, seed=1)
    found = simulator.read(gemm(Streamless(x, owner), Streamless(y, owner), stream=side), simulator.stream())
    simulator.run(seed)
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_may_be_dropped_once_its_reader_is_queued(seed):
    owner, reader = simulator.stream(), simulator.stream()
    x, y = values(M, K), values(K, N, seed=1)
    d = gemm(Streamless(x, owner), Streamless(y, owner))
    found = simulator.read(d, reader)
    del d
    gc.collect()
    simulator.run(seed)
    np.testing.assert_array_equal(found, x @ y)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_result_may_be_dropped_once_a_reader_elsewhere_is_queued(seed):
    """As with XLA: the stream that follows the result is not the one that reads it."""
    owner, given, reader = (simulator.stream() for _ in range(3))
    x, y = values(M, K), values(K, N, seed=1)
    d = gemm(Streamless(x, owner), Streamless(y, owner))
    found = simulator.read(d, given, on=reader)
    d.read_on(reader)
    del d
    simulator.run(seed)
    np.testing.assert_array_equal(found, x @ y)


# ---------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("name", WAYS)
def test_graphs(on, stream, name):
    a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
    out = on(empty(*expected.shape))
    gemm(a, b, out=out, **keywords)
    simulator.run()
    with simulator.capture(stream):
        gemm(a, b, out=out, **keywords)
        gemm(a, b, out=out, **keywords)
    for _ in range(2):
        out.array.fill(85)
        simulator.replay(stream)
        simulator.run()
        np.testing.assert_array_equal(out.array, expected)


def test_a_capture_takes_no_other_stream(on, stream):
    other = streamed(simulator.stream())
    x, y = values(M, K), values(K, N, seed=1)
    a, b, out = on(x), on(y), on(empty(M, N))
    with simulator.capture(stream):
        with pytest.raises(ValueError, match="during graph capture all operands must belong to one framework"):
            gemm(a, other(y), out=out)
        with pytest.raises(ValueError, match="during graph capture all operands must belong to one framework"):
            gemm(a, Streamless(y, stream), out=out)
    d = gemm(a, b)
    simulator.run()
    np.testing.assert_array_equal(d.array, x @ y)


def test_a_result_goes_while_its_reader_captures(stream):
    """An event of a stream that captures would end that, so the memory is kept for a while."""
    owner, x, y = simulator.stream(), values(M, K), values(K, N, seed=1)
    d = gemm(Streamless(x, owner), Streamless(y, owner))
    found = simulator.read(d, stream)
    with simulator.capture(stream):
        with pytest.raises(BufferError, match="cannot be joined to a capture"):
            simulator.read(d, stream)
        del d
        gc.collect()
    simulator.run()
    np.testing.assert_array_equal(found, x @ y)
    assert simulator.alive() == 1
    gemm(Streamless(x, owner), Streamless(y, owner))  # whose result goes at once, and the other with it


def test_nothing_is_measured_under_capture(on, stream, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    a, b, out = on(values(M, K)), on(values(K, 20, seed=1)), on(empty(M, 20))
    with autotuning():
        with simulator.capture(stream):
            gemm(a, b, out=out)
    assert not explain(a, b, out=out).chosen.measured
    simulator.replay(stream)
    simulator.run()
    np.testing.assert_array_equal(out.array, a.array @ b.array)


# ---------------------------------------------------------------------------------------------------- failures


def _fails_everywhere(call: Callable[[], Any], step: int = 1) -> int:
    """Lets each call to CUDA fail in turn, or one of so many; how many there are."""
    for after in range(0, 1000, step):
        with simulator.failing(after) as failed:
            try:
                call()
                raised = False
            except CudaError:
                raised = True
            has_failed = failed()
        simulator.run()
        gc.collect()
        simulator.run()
        assert not simulator.wrong() and simulator.alive() == 0
        assert has_failed or not raised
        if not has_failed:
            return after
    raise AssertionError("a call without an end")


@pytest.mark.parametrize("name", WAYS)
def test_a_failure_loses_nothing(on, name):
    a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
    out = on(empty(*expected.shape))
    call = lambda: gemm(a, b, out=out, **keywords)  # noqa: E731
    for _ in range(3):
        assert _fails_everywhere(call) > 0
        np.testing.assert_array_equal(out.array, expected)
        out.array.fill(85)


def test_a_failure_keeps_operands_and_results_of_frameworks_without_streams():
    owner = simulator.stream()
    x, y = values(M, K), values(K, N, seed=1)
    a, b = Streamless(x, owner), Streamless(y, owner)

    def call() -> None:
        d = gemm(a, b)
        simulator.run()
        found = simulator.read(d, owner)
        simulator.run()  # and then d goes, without a word where that fails
        np.testing.assert_array_equal(found, x @ y)

    assert _fails_everywhere(call) >= 4
    gc.collect()
    simulator.run()
    gemm(a, b)  # takes back what is done
    gc.collect()


# ---------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("name", WAYS)
def test_what_is_queued_may_want_the_interpreter(on, name):
    a, b, keywords, expected = _arguments(WAYS[name](values(M, K), values(K, N, seed=1)), on)
    out = on(empty(*expected.shape))
    args = GemmArguments(a, b, out=out, **keywords)
    plans = [kernel.plan(args) for kernel in get_kernels(args)[:1]]  # none where operands have to be packed
    with simulator.full_queues():
        for call in [lambda: gemm(a, b, out=out, **keywords), *(partial(plan, a, b, out) for plan in plans)]:
            for _ in range(3):
                call()
    simulator.run()
    np.testing.assert_array_equal(out.array, expected)


def test_orders_between_streams_may_want_the_interpreter(on):
    owner, x, y = simulator.stream(), values(M, K), values(K, N, seed=1)
    with simulator.full_queues():
        for _ in range(3):
            d = gemm(on(x), streamed(simulator.stream())(y))
            e = gemm(Streamless(x, owner), Streamless(y, owner))
            found = simulator.read(e, owner)
    simulator.run()
    np.testing.assert_array_equal(d.array, x @ y)
    np.testing.assert_array_equal(found, x @ y)


def test_threads_share_plans_and_forget_them():
    x, y = values(M, K), values(K, N, seed=1)
    failures: list[BaseException] = []

    def work() -> None:
        on = streamed(simulator.stream())
        a, b, out = on(x), on(y), on(empty(M, N))
        plan = get_kernels(GemmArguments(a, b, out=out))[0].plan(GemmArguments(a, b, out=out))
        try:
            for i in range(200):
                gemm(a, b, out=out)
                plan(a, b, out)
                gemm(a, b, out=out, splits=2)
                if i % 10 == 0:
                    _core.clear_plans()
        except BaseException as error:
            failures.append(error)
        outs.append(out.array)

    outs: list[np.ndarray] = []
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    simulator.run()
    for out in outs:
        np.testing.assert_array_equal(out, x @ y)


# ---------------------------------------------------------------------------------------------------- tuning


def test_a_failure_while_measuring_loses_nothing():
    """One of a plan leaves that plan out."""
    args = GemmArguments(TensorSpec((M, K), "f32"), TensorSpec((K, N), "f32"), bias_grad=TensorSpec((N,), "f32"))
    plans = [launch_plan_of(choice, args.problem) for choice in candidates.rank(args.problem)[:2]]
    found = []
    assert _fails_everywhere(lambda: found.append(_core.measure(args.problem, plans, 1)), step=7) > 30
    assert {sum(map(math.isfinite, sum(times, []))) for times in found} == {1, 2}


def test_tuning_takes_what_was_fastest(on, tmp_path, monkeypatch):
    """Of kernels of the same dtypes, those that were declared later take longer there."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    a, b, out = on(values(M, K)), on(values(K, N, seed=1)), on(empty(M, N))
    args = GemmArguments(a, b, out=out)
    found = tune(args)
    order = list(_core.kernel_facts())
    names = [timed.choice.route.kernel.name for timed in found.measured]
    assert found.best.choice.route.kernel.name == min(names, key=order.index) != max(names, key=order.index)
    gemm(a, b, out=out)
    chosen = explain(args).chosen
    assert chosen.measured and chosen.route == found.best.choice.route
    simulator.run()
    np.testing.assert_array_equal(out.array, a.array @ b.array)
