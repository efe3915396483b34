"""CuPy, JAX and mixtures on a GPU: streams, ordering, results of the caller's kind. (torch: test_gpu_gemm.py.)"""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import exporters  # noqa: E402
import gpu  # noqa: E402
from leaks import assert_nothing_stays  # noqa: E402

import cutlass_py  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU backend")
    return jax


def values(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-2, 3, (rows, cols)).astype(np.float64)


# ------------------------------------------------------------------------------------------------ CuPy


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "complex64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_cupy(cupy, dtype, order):
    x, y = values(65, 40), values(40, 72, 1)
    if dtype == "complex64":
        x, y = x + 1j * values(65, 40, 2), y - 1j * values(40, 72, 3)
    a, b = cupy.asarray(x.astype(dtype), order=order), cupy.asarray(y.astype(dtype), order=order)
    d = cutlass_py.gemm(a, b)
    result = "int32" if dtype == "int8" else dtype
    assert isinstance(d, cupy.ndarray) and d.dtype == result
    np.testing.assert_array_equal(d.get(), x @ y)
    out = cupy.full((65, 72), 85, result, order=order)
    assert cutlass_py.gemm(a, b, out=out) is out
    np.testing.assert_array_equal(out.get(), x @ y)
    np.testing.assert_array_equal(cutlass_py.gemm(a[::-1], b[:, ::-2]).get(), x[::-1] @ y[:, ::-2])


def test_cupy_bytes_as_bf16(cupy):
    x, y = values(33, 40), values(40, 24, 1)
    import ml_dtypes

    a, b = (cutlass_py.view(cupy.asarray(v.astype(ml_dtypes.bfloat16).view(np.uint16)), "bf16") for v in (x, y))
    d = cutlass_py.gemm(a, b)
    assert isinstance(d, cutlass_py.TypedView) and d.dtype == "bf16"
    np.testing.assert_array_equal(d.array.get().view(ml_dtypes.bfloat16).astype(float), x @ y)
    np.testing.assert_array_equal(cutlass_py.gemm(a, b, out_dtype="f32").get(), x @ y)
    out = cutlass_py.view(cupy.zeros((33, 24), "uint16"), "bf16")
    assert cutlass_py.gemm(a, b, out=out) is out


@pytest.mark.sm90
@pytest.mark.parametrize("names", [("e4m3", "e4m3"), ("e4m3", "e5m2")], ids="-".join)
def test_cupy_bytes_as_fp8(cupy, names):
    import ml_dtypes

    kinds = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
    x, y = values(48, 64), values(64, 80, 1)
    a, b = (
        cutlass_py.view(cupy.asarray(v.astype(kinds[name]).view(np.uint8)), name)
        for v, name in zip((x, y), names, strict=True)
    )
    np.testing.assert_array_equal(cutlass_py.gemm(a, b, out_dtype="f32").get(), x @ y)
    d = cutlass_py.gemm(a, b, alpha=0.25, out_dtype="e4m3")
    assert isinstance(d, cutlass_py.TypedView) and d.dtype == "e4m3" and d.array.dtype == np.uint8
    np.testing.assert_array_equal(d.array.get().view(kinds["e4m3"]), (x @ y / 4).astype(kinds["e4m3"]))


def test_results_come_from_the_pool_of_cupy(cupy):
    a = cupy.ones((256, 256), "float32")
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        d = cutlass_py.gemm(a, a)
        assert pool.used_bytes() == d.nbytes  # a multiple of what pools hand out
        with cupy.cuda.Stream(non_blocking=True) as side:
            e = cutlass_py.gemm(a, a, stream=side)
            assert pool.used_bytes() == d.nbytes + e.nbytes
            side.synchronize()
    assert (d == 256).all() and (e == 256).all()
    del d, e
    gc.collect()
    assert pool.used_bytes() == 0


def test_cupy_no_leak(cupy):
    a, b, out = (cupy.ones((64, 64), "float16") for _ in range(3))

    def calls() -> None:
        cutlass_py.gemm(a, b, out=out)
        cutlass_py.gemm(a, b)

    assert_nothing_stays(calls, (a, b, out, cupy.ndarray), used=gpu.used)


def test_cupy_current_and_explicit_stream(cupy):
    x, y = values(256, 256), values(256, 256, 1)
    a, b = cupy.zeros((256, 256), "float32"), cupy.asarray(y, "float32")
    source = cupy.asarray(x, "float32")
    cupy.cuda.Device().synchronize()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
            torch.cuda._sleep(int(45e6))
        a[...] = source
        d = cutlass_py.gemm(a, b)
    side.synchronize()
    np.testing.assert_array_equal(d.get(), x @ y)
    e = cutlass_py.gemm(a, b, stream=side)
    side.synchronize()
    np.testing.assert_array_equal(e.get(), x @ y)


def test_cupy_graph(cupy):
    x, y = values(64, 48), values(48, 80, 1)
    a, b, out = cupy.asarray(x, "float32"), cupy.asarray(y, "float32"), cupy.zeros((64, 80), "float32")
    cutlass_py.gemm(a, b, out=out)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        cutlass_py.gemm(a, b, out=out)
        graph = stream.end_capture()
        a *= 2
        graph.launch()
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), 2 * (x @ y))


_FULL_QUEUE = """
import sys, time
import cupy, torch
import cutlass_py

a = cupy.ones((64, 64), "float16")
out = cupy.empty_like(a)
args = cutlass_py.GemmArguments(a, a, out=out)
plan = cutlass_py.get_kernels(args)[0].plan(args)
calls = {
    "gemm": lambda: cutlass_py.gemm(a, a, out=out),
    "plan": lambda: plan(a, a, out),
    "packing": lambda: cutlass_py.gemm(a[:, ::-1], a, out=out),
}
call = calls[sys.argv[1]]
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    call()  # chooses and loads
    stream.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(int(2e9))  # a second or more: the queue is full before the function is called
    stream.launch_host_func(lambda seen: seen.append(time.time()), seen := [])
    for _ in range(10_000):
        call()
stream.synchronize()
print(len(seen), float(out[0, 0]))
"""


@pytest.mark.parametrize("call", ["gemm", "plan", "packing"])
def test_a_full_queue_lets_the_interpreter_go(cupy, call):
    """A host function in front of more launches than a stream takes needs the interpreter, or nothing ever moves."""
    done = subprocess.run([sys.executable, "-c", _FULL_QUEUE, call], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "64.0"], done.stderr


# ------------------------------------------------------------------------------------------------ JAX


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_jax(jax, dtype):
    x, y = values(65, 40), values(40, 72, 1)
    a, b = jax.numpy.asarray(x, dtype), jax.numpy.asarray(y, dtype)
    d = cutlass_py.gemm(a, b)
    assert isinstance(d, jax.Array) and d.dtype == dtype
    np.testing.assert_array_equal(np.asarray(d, np.float64), x @ y)
    assert cutlass_py.gemm(a, b, out_dtype="f64").dtype == np.float64
    with pytest.raises(TypeError, match="immutable"):
        cutlass_py.gemm(a, b, out=d)


def test_jax_operands_may_be_dropped_at_once(jax):
    jnp = jax.numpy
    total = jnp.zeros((512, 512), jnp.float32)
    a = jnp.eye(512, dtype=jnp.float32)
    for i in range(200):
        b = jnp.full((512, 512), float(i), jnp.float32) + 0
        d = cutlass_py.gemm(a, b)
        del b
        junk = jnp.full((512, 512), -1.0, jnp.float32) * 2  # takes the memory if it was given back too early
        total = total + d
        del d, junk
    np.testing.assert_array_equal(np.asarray(total), np.full((512, 512), sum(range(200)), np.float32))


def test_jax_results_may_be_dropped_at_once(jax):
    """What reads them is queued, and late; the next product would write into their memory."""
    jnp = jax.numpy
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 64, x))
    late = jax.jit(lambda x, s: x + 0 * s[0, 0])
    ones, twos, eye = jnp.ones((512, 512)), 2 * jnp.ones((512, 512)), jnp.eye(512)
    busy = jnp.eye(2048)
    late(ones, slow(busy))
    cutlass_py.gemm(ones, eye)
    jax.block_until_ready((ones, twos, eye, busy))
    for _ in range(10):
        d = cutlass_py.gemm(ones, eye)
        read = late(d, slow(busy))
        del d
        others = [cutlass_py.gemm(twos, eye) for _ in range(4)]
        np.testing.assert_array_equal(np.asarray(read), np.ones((512, 512)))
        del others


def test_jax_no_leak(jax):
    a = jax.numpy.ones((64, 64), jax.numpy.bfloat16)
    assert_nothing_stays(lambda: cutlass_py.gemm(a, a), (a, type(a)), host=32 << 20, used=gpu.used, device=64 << 20)


def test_jax_waits_and_is_waited_for(jax):
    """The operand is late, its memory is taken again at once, and the result is read at once: all without the host."""
    jnp = jax.numpy
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 64, x))
    late = jax.jit(lambda x, s: x + 0 * s[0, 0])
    x, y = values(512, 512), values(512, 512, 1)
    a, b, busy = jnp.asarray(x, "float32"), jnp.asarray(y, "float32"), jnp.eye(2048, dtype="float32")
    cutlass_py.gemm(late(a, slow(busy)), b).block_until_ready()  # the first call chooses and loads
    for _ in range(10):
        operand = late(a, slow(busy))
        d = cutlass_py.gemm(operand, b)
        del operand
        junk = jnp.full((512, 512), -1.0, jnp.float32) * 2  # takes its memory if it was given back too early
        np.testing.assert_array_equal(np.asarray(d + 1), x @ y + 1)
        del junk


# ------------------------------------------------------------------------------------------------ mixtures


def test_frameworks_may_be_mixed(cupy, jax):
    x, y = values(64, 64), values(64, 64, 1)
    makers = {
        "torch": lambda v: torch.tensor(v, device="cuda", dtype=torch.float32),
        "cupy": lambda v: cupy.asarray(v, "float32"),
        "jax": lambda v: jax.numpy.asarray(v, "float32"),
    }
    kinds = {"torch": torch.Tensor, "cupy": cupy.ndarray, "jax": jax.Array}
    for first, make_a in makers.items():
        for make_b in makers.values():
            d = cutlass_py.gemm(make_a(x), make_b(y))
            assert isinstance(d, kinds[first])
            host = d.cpu().numpy() if first == "torch" else d.get() if first == "cupy" else np.asarray(d)
            np.testing.assert_array_equal(host, x @ y)


def test_a_late_producer_of_another_framework(cupy):
    x, y = values(256, 256), values(256, 256, 1)
    a, b = torch.tensor(x, device="cuda", dtype=torch.float32), cupy.zeros((256, 256), "float32")
    source, out = cupy.asarray(y, "float32"), torch.zeros(256, 256, device="cuda")
    cupy.cuda.Device().synchronize()
    producer = cupy.cuda.Stream(non_blocking=True)
    with producer:
        with torch.cuda.stream(torch.cuda.ExternalStream(producer.ptr)):
            torch.cuda._sleep(int(45e6))
        b[...] = source
        cutlass_py.gemm(a, b, out=out)
        b[...] = 0  # and it is overwritten behind the launch
    np.testing.assert_array_equal(out.cpu().numpy(), x @ y)


def test_jax_is_refused_under_capture(jax):
    a = jax.numpy.ones((64, 64))
    b = torch.ones(64, 64, device="cuda")
    cutlass_py.gemm(b, a)
    a.block_until_ready()  # JAX asks no event of it any more
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b.add(1)
        with pytest.raises(ValueError, match="graph capture"):
            cutlass_py.gemm(b, a)
    gpu.assert_exact(cutlass_py.gemm(b, a), 64 * b.double())


# ------------------------------------------------------------------------------------------------ others


def over(kind, x: torch.Tensor):
    """Memory of a tensor in a ctypes-made exporter."""
    carrier = np.empty(x.shape, np.float32)
    exporter = kind(carrier, data=x.data_ptr(), device=(2, x.device.index))
    exporter.memory = x
    return exporter


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = gpu.integers((65, 40), "f32"), gpu.integers((40, 72), "f32")
    torch.cuda.synchronize()
    return a, b, gpu.expected(a, b)


def test_a_view_without_a_stream_is_exported_for_the_launch_stream():
    """As cuda.core's, whose table allocates nothing and names stream 0."""
    kind = exporters.exchanging(allocate=None)
    a, b, expected = operands()
    x = over(kind, a)
    d = cutlass_py.gemm(x, over(kind, b))
    gpu.assert_exact(torch.from_dlpack(d), expected)
    assert x.requests[0]["stream"] > 2  # this package's own, not the default one
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    d = cutlass_py.gemm(x, over(kind, b), stream=side)
    side.synchronize()
    gpu.assert_exact(torch.from_dlpack(d), expected)
    assert x.requests[1]["stream"] == side.cuda_stream


def test_arrays_without_a_stream_follow_a_call_that_torch_led():
    kind = exporters.exchanging(allocate=None)
    a, b, expected = operands()
    written, weight = torch.zeros_like(expected, dtype=torch.float32), gpu.integers((72, 8), "f32")
    x, w = over(kind, written), over(kind, weight)
    cutlass_py.gemm(a, b, out=x)
    cutlass_py.gemm(x, w)  # the first calls choose and load
    torch.cuda.synchronize()
    written.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(int(45e6))
        cutlass_py.gemm(a, b, out=x)  # behind the spin kernel
    d = cutlass_py.gemm(x, w)  # on our own stream
    gpu.assert_exact(torch.from_dlpack(d), expected.double() @ weight.double())


def test_a_buffer_that_goes_while_its_reader_captures():
    """No event of a stream that captures: it would draw the buffer's own stream into the capture, which then fails."""
    side, x = torch.cuda.Stream(), torch.zeros(4, device=gpu.DEVICE)
    buffer = cutlass_py._core.Buffer((1024,), "f32", 0)
    capsule = buffer.__dlpack__(stream=side.cuda_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        x += 1
        with pytest.raises(BufferError, match="cannot be joined to a capture"):
            buffer.__dlpack__(stream=side.cuda_stream)
        del capsule, buffer
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [2] * 4
    d = cutlass_py._core.Buffer((1024,), "f32", 0)  # gives back what was kept
    assert torch.from_dlpack(d).zero_().sum() == 0


def test_a_current_stream_of_the_exchange_api_is_the_launch_stream():
    side = torch.cuda.Stream()
    kind = exporters.exchanging(stream=side.cuda_stream)
    kind.allocates = lambda shape: len(shape) == 1  # the result is a Buffer then
    a, b, expected = operands()
    out = torch.zeros_like(expected, dtype=torch.float32)
    cutlass_py.gemm(over(kind, a), over(kind, b), out=over(kind, out))  # the first call chooses and loads
    assert out.any()  # loads what asks
    torch.cuda.synchronize()
    out.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(int(45e6))
    cutlass_py.gemm(over(kind, a), over(kind, b), out=over(kind, out))
    assert not side.query() and not out.any()  # behind the spin kernel
    side.synchronize()
    gpu.assert_exact(out, expected)
    gpu.assert_exact(torch.from_dlpack(cutlass_py.gemm(over(kind, a), over(kind, b))), expected)


def test_a_current_stream_that_fails_without_an_exception():
    kind = exporters.exchanging(stream=lambda *_: -1)
    a, b, expected = operands()
    with pytest.raises(RuntimeError, match=r"gemm: current_work_stream of exporters.*Exchanging failed and gave no"):
        cutlass_py.gemm(over(kind, a), over(kind, b))
    gpu.assert_exact(cutlass_py.gemm(a, b), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cuda_core(dtype):
    core = pytest.importorskip("cuda.core")
    view_of = core.utils.StridedMemoryView
    device = core.Device(0)
    device.set_current()
    stream, pinned = device.create_stream(), core.LegacyPinnedMemoryResource()

    def memory_of(array: np.ndarray):
        memory, staged = device.allocate(array.nbytes, stream=stream), pinned.allocate(array.nbytes)
        np.from_dlpack(staged).view(array.dtype).reshape(array.shape)[...] = array
        memory.copy_from(staged, stream=stream)
        stream.sync()
        return memory

    x, y = (values(*shape).astype(dtype) for shape in ((65, 40), (40, 72)))
    a, b = (view_of.from_buffer(memory_of(v), v.shape, dtype=v.dtype) for v in (x, y))
    held = memory_of(np.zeros((65, 72), dtype))
    out = view_of.from_buffer(held, (65, 72), dtype=np.dtype(dtype))
    with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle))):
        torch.cuda._sleep(int(45e6))
    assert cutlass_py.gemm(a, b, out=out, stream=stream) is out
    staged = pinned.allocate(held.size)
    held.copy_to(staged, stream=stream)
    stream.sync()
    np.testing.assert_array_equal(np.from_dlpack(staged).view(dtype).reshape(65, 72), x @ y)

    d = cutlass_py.gemm(a, b, c=out, beta=-1.0, stream=stream)
    seen = view_of.from_any_interface(d, stream_ptr=int(stream.handle))
    assert seen.shape == (65, 72) and seen.device_id == 0
    stream.sync()
    assert not torch.from_dlpack(d).any()
