"""Kernels that users bring, on a GPU: CuTe DSL, Triton, torch functions and CUDA C++, against float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import why_not  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import (  # noqa: E402
    KernelMetadata,
    OperandMetadata,
    ProviderError,
    explain,
    get_kernels,
    register_kernel,
    register_provider,
)
from cutlass_py.compiling import cache  # noqa: E402
from cutlass_py.dispatch import tuned  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
pytestmark = pytest.mark.gpu
WHY_NOT = why_not()
# Extents, batch: around tiles, single rows and columns, k of one and beyond a tile.
SHAPES = [
    (1, 1, 1, None), (16, 16, 16, None), (129, 65, 33, None), (1, 300, 70, None), (300, 1, 70, None), (64, 64, 1, None),
    (200, 136, 264, 3), (17, 9, 5, 70),
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test finds what another compiled or measured, and nothing is left registered."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_PY_JIT", "1")
    tuned.forget()
    before = get_kernels(compiled=False)
    yield
    tuned.forget()
    assert get_kernels(compiled=False) == before


def operands(m, n, k, batch, dtype, layout="tt", **keywords):
    lead = () if batch is None else (batch,)
    a, b = gpu.integers((*lead, m, k), dtype), gpu.integers((*lead, k, n), dtype)
    return gpu.laid_out(a, layout[0], **keywords), gpu.laid_out(b, layout[1], **keywords)


def check(kernel, a, b, d="", **keywords) -> None:
    """The kernel into a poisoned output, exactly, and nothing beside it."""
    lead = a.shape[:-2]
    out = gpu.guarded((*lead, a.shape[-2], b.shape[-1]), d or gpu.name_of(a.dtype))
    assert cutlass_py.gemm(a, b, out=out.view, kernel=kernel, **keywords) is out.view
    gpu.assert_exact(out.view, gpu.expected(a, b, alpha=keywords.get("alpha", 1)))
    out.check()


def check_error(kernel, a, b, eps: float) -> None:
    """Normal operands: within the bound of a sum of rounded products."""
    bound = (a.shape[-1] + 2) * eps * (gpu.wide(a).abs() @ gpu.wide(b).abs())
    assert ((cutlass_py.gemm(a, b, kernel=kernel).double() - gpu.wide(a) @ gpu.wide(b)).abs() <= bound).all()


# ---------------------------------------------------------------------------------------- a torch function

METADATA = KernelMetadata(
    "own_torch", {name: OperandMetadata("f32") for name in ("a", "b", "d")}, "f32", epilogue="linear"
)
seen = []


def in_torch(call) -> None:
    a, b, d = (torch.from_dlpack(x) for x in (call.a, call.b, call.d))
    stream = torch.cuda.current_stream()
    seen.append((a.data_ptr(), d.data_ptr(), call.stream, stream.cuda_stream, torch.cuda.current_device()))
    d.copy_(call.alpha * (a @ b))


@pytest.fixture
def own():
    """The function, registered; what it saw of its calls."""
    seen.clear()
    with register_kernel(METADATA, in_torch) as registration:
        yield registration.kernels[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operands_reach_a_function_as_they_lie(own, shape):
    a, b = operands(*shape, "f32", "nt", pad=3)
    check(own, a, b, alpha=2)
    assert seen[0][0] == a.data_ptr()


def test_the_stream_of_the_call_is_the_current_one(own):
    a, b = operands(64, 64, 64, None, "f32")
    side, given = torch.cuda.Stream(), torch.cuda.Stream()
    wanted = gpu.expected(a, b)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        first = cutlass_py.gemm(a, b, kernel=own)
    second = cutlass_py.gemm(a, b, kernel=own, stream=given)
    torch.cuda.synchronize()
    assert [x[2] for x in seen] == [x[3] for x in seen] == [side.cuda_stream, given.cuda_stream]
    gpu.assert_exact(first, wanted)
    gpu.assert_exact(second, wanted)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_captured_call_runs_again_in_the_graph(own):
    a, b = operands(64, 64, 64, None, "f32")
    out = torch.zeros(64, 64, device=gpu.DEVICE)
    cutlass_py.gemm(a, b, out=out, kernel=own)  # what torch sets up at first use cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.gemm(a, b, out=out, kernel=own)
    a.copy_(gpu.integers((64, 64), "f32"))
    graph.replay()
    gpu.assert_exact(out, gpu.expected(a, b))
    assert len(seen) == 2


class Asking:
    """An operand as a consumer asks for it that passes this stream, or none (...)."""

    def __init__(self, operand, stream):
        self.operand, self.stream = operand, {} if stream is ... else {"stream": stream}

    def __dlpack__(self, *, stream=None, **given):
        return self.operand.__dlpack__(**given, **self.stream)

    def __dlpack_device__(self):
        return self.operand.__dlpack_device__()


@pytest.mark.parametrize("stream", [None, 1])
def test_a_consumer_on_the_default_stream_follows_the_launch(stream):
    copies, side = [], torch.cuda.Stream()

    def copied(call):
        with torch.cuda.stream(torch.cuda.default_stream()):
            copies.append(torch.from_dlpack(Asking(call.a, stream)).clone())
        in_torch(call)

    source, b = operands(64, 64, 64, None, "f32")
    a = torch.zeros_like(source)
    with register_kernel(METADATA, copied) as registration:
        cutlass_py.gemm(source, b, kernel=registration.kernels[0])
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            a.copy_(source)
            out = cutlass_py.gemm(a, b, kernel=registration.kernels[0])
        torch.cuda.default_stream().synchronize()
        assert torch.equal(copies[1][0], source)
        side.synchronize()
        gpu.assert_exact(out, gpu.expected(source, b))


@pytest.mark.parametrize("stream", [..., -1])
def test_a_consumer_that_names_no_stream_may_be_captured(stream):
    def product(call):
        a, b, d = (torch.from_dlpack(Asking(x, stream)) for x in (call.a, call.b, call.d))
        torch.matmul(a, b, out=d)

    a, b = operands(64, 64, 64, None, "f32")
    out = torch.zeros(64, 64, device=gpu.DEVICE)
    with register_kernel(METADATA, product) as registration:
        cutlass_py.gemm(a, b, out=out, kernel=registration.kernels[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cutlass_py.gemm(a, b, out=out, kernel=registration.kernels[0])
    a.copy_(gpu.integers((64, 64), "f32"))
    graph.replay()
    gpu.assert_exact(out, gpu.expected(a, b))


@pytest.mark.parametrize("framework", ["cupy", "jax"])
def test_operands_of_other_frameworks(own, framework):
    np = pytest.importorskip("numpy")
    x = np.arange(12.0, dtype="f4").reshape(3, 4)
    if framework == "cupy":
        cupy = pytest.importorskip("cupy")
        found = cupy.asnumpy(cutlass_py.gemm(cupy.asarray(x), cupy.asarray(x.T), kernel=own))
    else:
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU")
        a = jax.device_put(x, jax.devices("gpu")[0])
        found = np.asarray(cutlass_py.gemm(a, a.T, kernel=own))
    assert (found == x @ x.T).all()


def test_a_function_that_fails_leaves_the_device_usable(own):
    def fails(call):
        raise RuntimeError("not today")

    a, b = operands(64, 64, 64, None, "f32")
    other = KernelMetadata("own_failing", METADATA.operands, "f32")
    with register_kernel(other, fails):
        with pytest.raises(ProviderError, match="provider own_failing, kernel own_failing: run raised RuntimeError"):
            cutlass_py.gemm(a, b, kernel="own_failing")
        gpu.assert_exact(cutlass_py.gemm(a, b, kernel=own), gpu.expected(a, b))
        with pytest.warns(RuntimeWarning, match="not measured: provider own_failing"):
            tuning = cutlass_py.tune(a, b)
    names = {m.choice.route.kernel.name for m in tuning.measured}
    assert "own_torch" in names and "own_failing" not in names


def test_tuning_measures_functions_and_keeps_the_fastest(own):
    a, b = operands(256, 256, 256, None, "f32")
    tuning = cutlass_py.tune(a, b)
    timed = {m.choice.route.kernel.name: m.microseconds for m in tuning.measured}
    assert 0 < timed["own_torch"] < 1e6
    assert explain(a, b).chosen.route == tuning.best.choice.route
    gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))


def test_a_list_goes_one_by_one(own):
    a = [gpu.integers((8, 5), "f32") for _ in range(3)]
    b = [gpu.integers((5, 6), "f32") for _ in range(3)]
    with register_kernel(KernelMetadata("own_chosen", METADATA.operands, "f32"), in_torch, estimate=lambda p: 0.001):
        for d, x, y in zip(cutlass_py.gemm(a, b), a, b, strict=True):
            gpu.assert_exact(d, gpu.expected(x, y))


# ---------------------------------------------------------------------------------------- CUDA C++

needs_nvcc = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@needs_nvcc
def test_cuda_source():
    from own_kernel import DGEMM

    with register_kernel(DGEMM) as registration:
        for shape in SHAPES:
            check(registration.kernels[0], *operands(*shape, "f64", pad=1), alpha=-3)
        assert registration.kernels[0].compiled and len(cache.entries()) == 1


@needs_nvcc
def test_a_cuda_source_is_packed_for_composed_and_split_as_any_other():
    from own_kernel import DGEMM

    with register_kernel(DGEMM, estimate=lambda p: 0.001) as registration:
        registration.kernels[0].compile()
        a, b = operands(700, 500, 1000, None, "f64", "nn")  # more than kernels for few rows are fast for
        bias, c = gpu.integers((500,), "f64"), gpu.integers((700, 500), "f64")
        keywords = {"bias": bias, "c": c, "activation": "relu"}
        assert explain(a, b, **keywords).chosen.route.kernel is registration.kernels[0]
        gpu.assert_exact(cutlass_py.gemm(a, b, **keywords), torch.relu(gpu.expected(a, b, c) + gpu.wide(bias)))
        x, y = a.contiguous(), b.contiguous()
        gpu.assert_exact(cutlass_py.gemm(x, y, splits=4, kernel="own_dgemm"), gpu.expected(a, b))
        tuning = cutlass_py.tune(a, b)
        assert "own_dgemm" in {m.choice.route.kernel.name for m in tuning.measured}
    gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))


@needs_nvcc
def test_a_device_type():
    from own_kernel import RELU

    with register_kernel(RELU, estimate="model") as registration:
        (kernel,) = registration.kernels
        kernel.compile()
        a, b = operands(200, 136, 264, 3, "f16", "tn")
        c = gpu.integers((3, 200, 136), "f16")
        d = cutlass_py.gemm(a, b, c=c, activation="relu", kernel=kernel)
        gpu.assert_exact(d, torch.relu(gpu.expected(a, b, c)))
        bias = gpu.integers((136,), "f16")
        d = cutlass_py.gemm(a[0], b[0], bias=bias, activation="relu", kernel=kernel)
        gpu.assert_exact(d, torch.relu(gpu.expected(a[0], b[0]) + gpu.wide(bias)))
        lists = [[matrix.clone(memory_format=torch.preserve_format) for matrix in x] for x in (a, b)]
        for d, x, y in zip(cutlass_py.gemm(*lists, activation="relu", kernel=kernel), a, b, strict=True):
            gpu.assert_exact(d, torch.relu(gpu.expected(x, y)))


@needs_nvcc
@pytest.mark.sm90
def test_a_device_type_of_3x():
    from own_kernel import HOPPER

    with register_kernel(HOPPER, estimate="model") as registration:
        (kernel,) = registration.kernels
        kernel.compile()
        a, b = operands(520, 264, 136, 2, "f16", "tn")
        c = gpu.integers((2, 520, 264), "f16")
        d = cutlass_py.gemm(a, b, c=c, beta=2, kernel=kernel)
        gpu.assert_exact(d, gpu.expected(a, b, c, beta=2))
        check(kernel, a, b)


@needs_nvcc
@pytest.mark.sm90
@pytest.mark.parametrize("waits", [True, False])
def test_a_device_type_overlaps_where_it_waits(waits):
    """CUTLASS's kernels that load by cp.async never wait for what they read."""
    from own_kernel import HOPPER

    own = HOPPER
    if not waits:
        text = HOPPER.source.replace("cutlass::gemm::KernelTmaW", "cutlass::gemm::KernelCpAsyncW")
        text = text.replace("cute::_2", "cute::_1")
        text = text.replace("TmaWarpSpecializedCooperative>::", "NoSmemWarpSpecialized>::")
        own = replace(HOPPER, source=text, cluster=(1, 1, 1), align_d=1)  # stores element by element
    with register_kernel(own) as registration:
        registration.kernels[0].compile()
        a, b = operands(512, 512, 512, None, "f16", "tn")
        half, out = torch.empty(512, 512, device="cuda", dtype=torch.float16), torch.empty_like(a)
        cutlass_py.gemm(a, b, out=half)
        cutlass_py.gemm(half, b, out=out, kernel=own.name)
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            cutlass_py.gemm(a, b, out=half)
            cutlass_py.gemm(half, b, out=out, kernel=own.name)
        assert gpu.overlapping_edges(graph) == waits
        graph.replay()
        gpu.assert_exact(out, gpu.expected(gpu.expected(a, b).half(), b).half().double())


# ---------------------------------------------------------------------------------------- CuTe DSL and Triton

their_warnings = pytest.mark.filterwarnings("ignore")  # of other packages, as they compile


@pytest.fixture(scope="module")
def cute_dsl():
    """The kernels of examples/own_cute_dsl.py, compiled once."""
    pytest.importorskip("cutlass.cute", reason="nvidia-cutlass-dsl is not installed")
    from own_cute_dsl import CuteDsl

    return CuteDsl()


@their_warnings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["tn", "tt", "nt", "nn"])
def test_cute_dsl(cute_dsl, shape, layout):
    with register_provider(cute_dsl) as registration:
        for kernel in registration.kernels:
            check(kernel, *operands(*shape, "f64", layout, pad=1), alpha=0.5)


@their_warnings
def test_cute_dsl_against_float64(cute_dsl):
    a, b = gpu.normals((300, 500), "f64"), gpu.normals((500, 200), "f64")
    with register_provider(cute_dsl) as registration:
        args = cutlass_py.GemmArguments(a, b)
        found = get_kernels(args, where=lambda m: m.family == "cute_dgemm")
        assert found == list(registration.kernels)
        for kernel in found:
            check_error(kernel, a, b, 2.0**-53)
        tuning = cutlass_py.tune(args)
        assert {k.name for k in found} <= {m.choice.route.kernel.name for m in tuning.measured}


@their_warnings
def test_cute_dsl_in_a_graph(cute_dsl):
    a, b = operands(64, 48, 32, None, "f64")
    out = torch.zeros(64, 48, device=gpu.DEVICE, dtype=torch.float64)
    with register_provider(cute_dsl) as registration:
        kernel = registration.kernels[0]
        kernel.compile()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cutlass_py.gemm(a, b, out=out, kernel=kernel)
    a.copy_(gpu.integers((64, 32), "f64"))
    graph.replay()
    gpu.assert_exact(out, gpu.expected(a, b))


@pytest.fixture
def triton():
    """The provider of examples/own_triton.py."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from own_triton import Triton

    with register_provider(Triton()) as registration:
        yield registration


@their_warnings
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["tn", "nt"])
def test_triton(triton, shape, layout):
    for kernel in triton.kernels:
        check(kernel, *operands(*shape, kernel.metadata.operands["a"].dtype, layout, pad=1), alpha=0.5)


@their_warnings
def test_triton_against_float64_tuned_and_on_a_stream(triton):
    kernel = triton.kernels[0]
    a, b = gpu.normals((300, 512), "f16"), gpu.normals((512, 200), "f16")
    wanted, bound = gpu.wide(a) @ gpu.wide(b), gpu.wide(a).abs() @ gpu.wide(b).abs()
    side = torch.cuda.Stream()
    d = cutlass_py.gemm(a, b, kernel=kernel, stream=side)
    torch.cuda.synchronize()
    assert ((d.double() - wanted).abs() <= 2.0**-11 * wanted.abs() + 514 * 2.0**-23 * bound).all()
    assert kernel.name in {m.choice.route.kernel.name for m in cutlass_py.tune(a, b).measured}
