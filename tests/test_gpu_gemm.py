"""The front door on a GPU: layouts, alignments, dtypes, batches, composed epilogues, conventions, streams, errors."""

from __future__ import annotations

import threading
from itertools import product

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from leaks import assert_nothing_stays  # noqa: E402
from stand_in import python  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py.declaration.dtypes import COMPUTE  # noqa: E402

pytestmark = pytest.mark.gpu

LAYOUTS = ("tn", "tt", "nt", "nn")
SHAPES = [(1, 1, 1), (1, 100, 64), (100, 1, 64), (65, 96, 112), (197, 224, 272), (129, 257, 99), (512, 768, 1000)]
# Arithmetics by (dtype, compute), each with the default dtype of its result.
ARITHMETIC = {
    (a, compute): COMPUTE[a][compute].output for a, b, compute in gpu.ARITHMETIC if a == b and a not in ("u8", "e5m2")
}


def steps_of(a, b, **keywords) -> str:
    return str(cutlass_py.explain(a, b, **keywords))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype,compute", gpu.cases(ARITHMETIC))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_alignment(dtype, compute, layout, shape):
    m, n, k = shape
    for pad, offset, d_layout in product((0, 3), (0, 1), "tn"):
        a = gpu.laid_out(gpu.integers((m, k), dtype, -1, 2), layout[0], pad=pad, offset=offset)
        b = gpu.laid_out(gpu.integers((k, n), dtype, -1, 2), layout[1], pad=pad, offset=offset)
        out = gpu.guarded((m, n), ARITHMETIC[dtype, compute], d_layout, pad=pad)
        cutlass_py.gemm(a, b, out=out.view, compute=compute)
        gpu.assert_exact(out.view, gpu.expected(a, b))
        out.check()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype,output", [("bf16", "bf16"), ("f32", "f32"), ("e4m3", "bf16")])
def test_calls_of_a_class_seen_before(dtype, output, layout):
    """Other values and addresses; in between other alignments, a bias, an addend, a result that shares elements.

    New results keep what they hold.
    """
    m, n, k = 64, 96, 128
    made = []
    for turn in range(6):
        offset = int(turn % 3 == 2)
        a = gpu.laid_out(gpu.integers((m, k), dtype, -1, 2), layout[0], offset=offset)
        b = gpu.laid_out(gpu.integers((k, n), dtype, -1, 2), layout[1], offset=offset)
        bias, c = gpu.integers((n,), output), gpu.integers((m, n), output)
        for extra, more in (({}, 0), ({"bias": bias}, bias), ({}, 0), ({"c": c}, c), ({}, 0)):
            out = gpu.guarded((m, n), output, "tn"[turn // 3])
            cutlass_py.gemm(a, b, out=out.view, **extra)
            gpu.assert_exact(out.view, gpu.expected(a, b) + more)
            out.check()
            made.append((cutlass_py.gemm(a, b, **extra), gpu.expected(a, b) + more))
        for _ in range(2):
            total = c.clone()
            assert cutlass_py.gemm(a, b, c=total, out=total) is total
            gpu.assert_exact(total, gpu.expected(a, b) + c)
    for d, wanted in made:
        assert d.is_contiguous()
        gpu.assert_exact(d, wanted)
    square = gpu.integers((k, k), output)
    for _ in range(2):
        cutlass_py.gemm(square, square, out=torch.empty_like(square))
        with pytest.raises(ValueError, match="out shares elements with b"):
            cutlass_py.gemm(square.clone(), square, out=square)


@pytest.mark.parametrize("c_dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("c_layout", "tn")
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
def test_addend_of_any_dtype_and_layout(dtype, c_dtype, c_layout):
    a, b = gpu.integers((130, 64), dtype), gpu.integers((64, 136), dtype)
    c = gpu.laid_out(gpu.integers((130, 136), c_dtype), c_layout, pad=5)
    for alpha, beta in ((1, None), (2.0, -1.0), (-1, 0.5), (0, 1), (0.0, 3)):
        out = gpu.guarded((130, 136), dtype)
        keywords = {} if beta is None else {"beta": beta}
        cutlass_py.gemm(a, b, out=out.view, c=c, alpha=alpha, **keywords)
        gpu.assert_exact(out.view, gpu.expected(a, b, c, alpha, 1 if beta is None else beta))
        out.check()


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_fp8_results_and_addends(dtype):
    a, b = gpu.integers((64, 32), "bf16"), gpu.integers((32, 48), "bf16")
    c = gpu.integers((64, 48), dtype)
    d = cutlass_py.gemm(a, b, c=c, out_dtype=gpu.DTYPES[dtype])
    assert d.dtype == gpu.DTYPES[dtype]
    gpu.assert_exact(d, gpu.expected(a, b, c))
    large = cutlass_py.gemm(
        a.new_full((2, 1), 1000.0), a.new_tensor([[1000.0, -1000.0, 0.25]]), out_dtype=dtype
    ).float()
    limit = torch.finfo(d.dtype).max
    assert (large[:, 0] == limit).all() and (large[:, 1] == -limit).all() and (large[:, 2] > 0).all()


@pytest.mark.sanitized
@pytest.mark.scratch
def test_composed_result_is_rounded_once():
    a, b = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16), torch.randn(512, 256, device="cuda").bfloat16()
    c = torch.randn(256, 256, device="cuda")  # f32 beside a bf16 result
    assert "composed" in steps_of(a, b, c=c, out_dtype="bf16")
    d = cutlass_py.gemm(a, b, c=c, alpha=0.5, beta=2.0)
    reference = gpu.expected(a, b, c, 0.5, 2.0)
    error = (d.double() - reference).abs()
    assert (error <= 2**-8 * reference.abs() + 1e-4).all()


@pytest.mark.sanitized
@pytest.mark.scratch
def test_no_unit_stride_is_packed():
    a = gpu.integers((100, 2 * 70), "bf16")[:, ::2]
    b = gpu.integers((3 * 70, 60), "bf16")[::3].T.contiguous().T[:, ::1]
    out = gpu.guarded((100, 120), "bf16").view[:, ::2]
    assert "packs a first" in steps_of(a, b)
    cutlass_py.gemm(a, b, out=out)
    gpu.assert_exact(out, gpu.expected(a, b))


def test_strided_out_is_computed_beside():
    a, b = gpu.integers((64, 64), "f16"), gpu.integers((64, 64), "f16")
    buffer = torch.full((64, 128), float("nan"), device="cuda", dtype=torch.float16)
    cutlass_py.gemm(a, b, out=buffer[:, ::2])
    gpu.assert_exact(buffer[:, ::2], gpu.expected(a, b))
    assert torch.isnan(buffer[:, 1::2]).all()


def test_large_misaligned_operands_are_packed():
    a = gpu.laid_out(gpu.integers((1024, 1023), "bf16"), "t")
    b = gpu.laid_out(gpu.integers((1023, 1024), "bf16"), "n")
    d = cutlass_py.gemm(a, b)
    gpu.assert_exact(d, gpu.expected(a, b))


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
@pytest.mark.parametrize("case", ["both", "a", "b", "one", "folded", "expanded", "single"])
def test_batches(dtype, case):
    shapes = {
        "both": ((5, 33, 40), (5, 40, 24)),
        "a": ((5, 33, 40), (40, 24)),
        "b": ((33, 40), (5, 40, 24)),
        "one": ((1, 33, 40), (5, 40, 24)),
        "folded": ((5, 32, 40), (40, 24)),
        "expanded": ((5, 32, 40), (40, 24)),
        "single": ((16, 1, 64), (64, 1)),
    }
    a, b = (gpu.integers(shape, dtype) for shape in shapes[case])
    if case == "expanded":
        b = b.expand(5, 40, 24)
    d = cutlass_py.gemm(a, b)
    assert d.shape == torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1])
    gpu.assert_exact(d, gpu.expected(a, b))
    c = gpu.integers(tuple(d.shape[-2:]), dtype)
    gpu.assert_exact(cutlass_py.gemm(a, b, c=c, beta=2), gpu.expected(a, b, c, 1, 2))


@pytest.mark.parametrize("dtype,m,n,k", [("bf16", 8, 8, 8), ("bf16", 3, 5, 7), ("f32", 4, 4, 4)])
def test_batch_beyond_65535(dtype, m, n, k):
    a, b = gpu.integers((70_000, m, k), dtype), gpu.integers((70_000, k, n), dtype)
    gpu.assert_exact(cutlass_py.gemm(a, b), torch.bmm(a.double(), b.double()))
    strided = gpu.integers((70_000, m, 2 * k), dtype)[:, :, ::2]
    gpu.assert_exact(cutlass_py.gemm(strided, b, out_dtype="f64"), torch.bmm(strided.double(), b.double()))


@pytest.mark.sanitized
def test_conventions():
    a, b = gpu.integers((64, 32), "bf16"), gpu.integers((32, 48), "bf16")
    nan = torch.full((64, 48), float("nan"), device="cuda", dtype=torch.bfloat16)
    c = gpu.integers((64, 48), "bf16")
    gpu.assert_exact(cutlass_py.gemm(a, b, c=nan, beta=0), gpu.expected(a, b))
    bad = torch.full_like(a, float("nan"))
    gpu.assert_exact(cutlass_py.gemm(bad, b, c=c, alpha=0), c.double())
    assert (cutlass_py.gemm(bad, b, alpha=0) == 0).all()
    empty = cutlass_py.gemm(a[:, :0], b[:0], c=c, beta=3)
    gpu.assert_exact(empty, 3 * c.double())
    assert (cutlass_py.gemm(a[:, :0], b[:0]) == 0).all()
    for x, y in ((a[:0], b), (a, b[:, :0]), (a[:0, :0], b[:0])):
        assert cutlass_py.gemm(x, y).shape == (x.shape[0], y.shape[1])


def test_nan_and_inf_stay_in_their_row_and_column():
    a, b = gpu.integers((96, 64), "bf16", 1, 3), gpu.integers((64, 80), "bf16", 1, 3)
    a[5, 7] = float("nan")
    b[9, 11] = float("inf")
    d = cutlass_py.gemm(a, b)
    nan, inf = torch.isnan(d), torch.isinf(d)
    assert nan[5].all() and nan.sum() == 80
    assert inf[:, 11].sum() == 95 and inf.sum() == 95


def test_in_place_addend():
    for dtype in ("bf16", "f32"):
        a, b = gpu.integers((64, 32), dtype), gpu.integers((32, 64), dtype)
        c = gpu.integers((64, 64), dtype)
        reference = gpu.expected(a, b, c, 1, 2)
        assert cutlass_py.gemm(a, b, out=c, c=c, beta=2) is c
        gpu.assert_exact(c, reference)


def test_overlap_is_about_elements():
    buffer = gpu.integers((64, 128), "bf16")
    b = gpu.integers((64, 64), "bf16")
    reference = gpu.expected(buffer[:, 64:], b)
    cutlass_py.gemm(buffer[:, 64:], b, out=buffer[:, :64])
    gpu.assert_exact(buffer[:, :64], reference)
    with pytest.raises(ValueError, match="out shares elements with a"):
        cutlass_py.gemm(buffer[:, 63:127], b, out=buffer[:, :64])


def test_more_than_2_31_elements():
    free, _ = torch.cuda.mem_get_info()
    if free < 30 << 30:
        pytest.skip("needs 30 GB of device memory")
    m, k, n = 2**17 + 3, 2**14 + 8, 16
    a = torch.randint(-1, 2, (m, k), device="cuda", dtype=torch.int8).to(torch.bfloat16)
    b = gpu.integers((k, n), "bf16", -1, 2)
    out = torch.full((m, n), float("nan"), device="cuda")
    cutlass_py.gemm(a, b, out=out)
    for rows in (slice(0, 64), slice(m - 64, m), slice(m // 2, m // 2 + 64)):
        gpu.assert_exact(out[rows], gpu.expected(a[rows], b))
    # The ladder below TMA, with the same extent along n: b has more than 2^31 elements.
    wide = a.T[:8, :]  # (8, m) column-major
    d = cutlass_py.gemm(a[:5, :8], wide[:, : m - 2], out_dtype="f32")
    gpu.assert_exact(d[:, -64:], gpu.expected(a[:5, :8], wide[:, m - 66 : m - 2]))
    gpu.assert_exact(cutlass_py.gemm(a.T[:3], a[:, :5], out_dtype="f32"), (a.T[:3].double() @ a[:, :5].double()))


def test_columns_beyond_a_grid():
    n = 65535 * 128 + 1000
    a, b = gpu.integers((2, 3), "f32"), gpu.integers((3, n), "f32")
    d = cutlass_py.gemm(a, b)
    gpu.assert_exact(d[:, -2000:], gpu.expected(a, b[:, -2000:]))
    gpu.assert_exact(d[:, :2000], gpu.expected(a, b[:, :2000]))


# ------------------------------------------------------------------------------------------------ streams and graphs


def spin(milliseconds: int = 30) -> None:
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_runs_on_the_current_stream():
    a, b = gpu.integers((256, 256), "bf16"), gpu.integers((256, 256), "bf16")
    reference = gpu.expected(a, b)
    source = a.clone()
    a.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        spin()
        a.copy_(source)  # the producer is late
        d = cutlass_py.gemm(a, b)
        e = d + 0
    side.synchronize()
    gpu.assert_exact(e, reference)


@pytest.mark.parametrize("form", ["torch", "int", "protocol", "default", "zero"])
def test_explicit_stream_follows_the_current_one(form):
    a, b = gpu.integers((256, 256), "f16"), gpu.integers((256, 256), "f16")
    source, reference = a.clone(), gpu.expected(a, b)
    a.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()

    class Protocol:
        def __cuda_stream__(self):
            return (0, side.cuda_stream)

    spin()
    a.copy_(source)
    default = torch.cuda.default_stream()
    stream = {"torch": side, "int": side.cuda_stream, "protocol": Protocol(), "default": default, "zero": 0}[form]
    d = cutlass_py.gemm(a, b, stream=stream)
    (default if form in ("default", "zero") else side).synchronize()
    gpu.assert_exact(d, reference)


@pytest.mark.parametrize("case", ["direct", "packed", "composed", "two", "k0"])
def test_graph_capture_and_replay(case):
    m, n, k = (128, 256, 64) if case != "packed" else (1024, 1024, 1023)
    a, b = gpu.integers((m, k), "bf16"), gpu.integers((k, n), "bf16")
    out = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
    second = torch.zeros(m, n, device="cuda", dtype=torch.bfloat16)
    c = gpu.integers((m, n), "f32")

    def work() -> None:
        if case == "composed":
            cutlass_py.gemm(a, b, out=out, c=c, beta=2)
        elif case == "k0":
            cutlass_py.gemm(a[:, :0], b[:0], out=out, c=c)
        else:
            cutlass_py.gemm(a, b, out=out)
        if case == "two":
            cutlass_py.gemm(a, b, out=second)
            out.add_(second)
            cutlass_py.gemm(a, b, out=second)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(3):
        a.copy_(gpu.integers((m, k), "bf16"))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        reference = gpu.expected(a, b)
        wanted = {"composed": reference + 2 * c.double(), "two": 2 * reference, "k0": c.double()}.get(case, reference)
        gpu.assert_exact(out, wanted)


def test_graph_capture_with_a_new_output():
    a, b = gpu.integers((128, 64), "bf16"), gpu.integers((64, 96), "bf16")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = cutlass_py.gemm(a, b)
    a.copy_(gpu.integers((128, 64), "bf16"))
    graph.replay()
    gpu.assert_exact(d, gpu.expected(a, b))


@pytest.mark.sm90
def test_launches_overlap_in_a_graph_behind_one_of_ours_alone():
    a, b = gpu.integers((512, 512), "bf16"), gpu.integers((512, 512), "bf16")
    out = [torch.empty(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    cutlass_py.gemm(a, b, out=out[0])  # the plan, and the kernel loaded
    assert "sm90_" in cutlass_py.explain(a, b).chosen.route.kernel.name
    alone, between = (torch.cuda.CUDAGraph(keep_graph=True) for _ in range(2))
    with torch.cuda.graph(alone):
        for d in out:
            cutlass_py.gemm(a, b, out=d)
    with torch.cuda.graph(between):
        for d in out:
            cutlass_py.gemm(a, b, out=d)
            d.add_(1)
    assert gpu.overlapping_edges(alone) == 2
    assert gpu.overlapping_edges(between) == 0


FIRST_CALL = """
import torch, cutlass_py
a, b = torch.ones(256, 256, device="cuda"), torch.ones(256, 256, device="cuda", dtype=torch.bfloat16)
for x, keywords in ((a, {"splits": 2}), (b, {"activation": "hardswish"}), (b, {})):  # scratch of ours; composed; plain
    out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.gemm(x, x, out=out, **keywords)
    graph.replay()
    assert (out == 256).all(), (out, keywords)
"""


def test_the_first_call_of_a_process_may_stand_in_a_capture():
    done = python(FIRST_CALL)
    assert done.returncode == 0, done.stderr


@pytest.mark.sm90
@pytest.mark.parametrize("axis", ["n", "m"])
def test_a_bias_that_the_call_before_writes(axis):
    """Whatever kernels are chosen: here parts of k are summed, and values stored one at a time."""
    m, n, k = 512, 1001, 4096
    a, b = gpu.integers((m, k), "bf16"), gpu.integers((k, n + 7), "bf16")[:, :n]
    reference = gpu.expected(a, b)
    bias = torch.zeros((n,) if axis == "n" else (m, 1), device="cuda")
    row = bias.view(1, -1)
    left = gpu.integers((1, 8192), "bf16", 1, 2)
    right = [torch.full((row.shape[1], 8192), 2.0**-power, device="cuda").bfloat16().mT for power in (13, 12)]  # 1 or 2
    found = []
    for i in range(100):
        cutlass_py.gemm(left, right[i % 2], out=row)
        found.append(cutlass_py.gemm(a, b, bias=bias, out_dtype="f32"))
    torch.cuda.synchronize()
    for i, d in enumerate(found):
        gpu.assert_exact(d, reference + 1 + i % 2)


def test_a_chain_in_a_graph_reads_what_the_link_before_wrote():
    shuffle = torch.eye(1024, device="cuda", dtype=torch.bfloat16)[torch.randperm(1024)]
    x = gpu.integers((1024, 1024), "bf16")
    links = [torch.empty_like(x) for _ in range(12)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for before, after in zip([x, *links], links, strict=False):
            cutlass_py.gemm(shuffle, before, out=after)
    for _ in range(20):
        x.copy_(gpu.integers((1024, 1024), "bf16"))
        graph.replay()
        wanted = x
        for _ in links:
            wanted = shuffle @ wanted
        torch.testing.assert_close(links[-1], wanted, rtol=0, atol=0)


def test_capture_with_a_second_stream_is_refused():
    a, b = gpu.integers((64, 64), "bf16"), gpu.integers((64, 64), "bf16")
    out, side = torch.zeros_like(a), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.gemm(a, b, out=out)
        with pytest.raises(ValueError, match="during graph capture"):
            cutlass_py.gemm(a, b, out=out, stream=side)
    graph.replay()
    gpu.assert_exact(out, gpu.expected(a, b))


@pytest.mark.parametrize("shape", [(256, 256, 256), (1000, 1000, 999)], ids=str)
def test_launches_in_a_row_keep_their_order(shape):
    """Overlapping launches, scratch used again at once, and a late producer: each call sees what came before it."""
    m, n, k = shape
    for _ in range(5):
        a, b = gpu.integers((m, k), "bf16"), gpu.integers((k, n), "bf16", -1, 2)
        late, source = torch.zeros_like(a), a.clone()
        first, second = (torch.zeros(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        reference = gpu.expected(a, b)
        torch.cuda.synchronize()
        spin(3)
        late.copy_(source)
        cutlass_py.gemm(late, b, out=first)
        cutlass_py.gemm(late, b, out=second, c=first, beta=2)  # reads what was just written
        cutlass_py.gemm(late, b, out=first, c=second, alpha=0)  # writes what was just read
        cutlass_py.gemm(late, b, out=second, c=second, beta=-1)  # in place
        late.zero_()
        gpu.assert_exact(first, reference + 2 * reference.to(torch.bfloat16).double())
        gpu.assert_exact(second, reference - first.double())


def test_two_threads():
    failures = []

    def work(seed: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(150):
                    m, n, k = 64 + (seed * 37 + i * 13) % 200, 72 + i % 40, 32 + i % 50
                    a, b = gpu.integers((m, k), "bf16"), gpu.integers((k, n), "bf16")
                    gpu.assert_exact(cutlass_py.gemm(a, b), (a.double() @ b.double()))
                    if i % 50 == 49:
                        cutlass_py._core.clear_plans()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_device_is_left_as_it_was():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(1):
        a, b = gpu.integers((64, 64), "bf16"), gpu.integers((64, 64), "bf16")
    assert torch.cuda.current_device() == 0
    d = cutlass_py.gemm(a, b)
    assert torch.cuda.current_device() == 0 and d.device.index == 1
    with torch.cuda.device(1):
        gpu.assert_exact(d, a.double() @ b.double())
    with pytest.raises(ValueError, match="a is on cuda:1 but b is on cuda:0"):
        cutlass_py.gemm(a, b.to("cuda:0"))


# ------------------------------------------------------------------------------------------------ errors and leaks


def test_mixed_devices_are_named():
    a = torch.ones(4, 4)
    with pytest.raises(ValueError, match="a is on cpu but b is on cuda:0"):
        cutlass_py.gemm(a, a.cuda())


def test_errors_leave_nothing_behind():
    a, b = gpu.integers((32, 32), "bf16"), gpu.integers((32, 32), "bf16")
    for bad in ({"out": a}, {"kernel": "sm90_gemm_nothing"}, {"compute": "tf32"}, {"out": a[:16]}, {"beta": 2.0}):
        with pytest.raises((ValueError, TypeError)):
            cutlass_py.gemm(a, b, **bad)
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
    with pytest.raises(cutlass_py.NoKernelError, match="none of .* kernels fits"):
        cutlass_py.gemm(a.double(), b.double(), splits="stream")
    gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))


def test_no_leak():
    a, b = gpu.integers((64, 64), "bf16"), gpu.integers((64, 64), "bf16")
    strided = gpu.integers((64, 128), "bf16")[:, ::2]
    out = torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)

    def calls() -> None:
        cutlass_py.gemm(a, b, out=out)
        cutlass_py.gemm(a, b)
        cutlass_py.gemm(strided, b, out=out, c=out)

    assert_nothing_stays(calls, (a, b, out, strided, torch.Tensor), used=gpu.used)
