"""Every arithmetic, result dtype and layout; numpy.matmul's shapes; lists; splits; reproducible results."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py.declaration.dtypes import COMPUTE, LAYOUTS, PAIRS  # noqa: E402

pytestmark = pytest.mark.gpu


def results_of(a: str) -> tuple[str, ...]:
    return gpu.COMPLEX if a in gpu.COMPLEX else gpu.REAL


# ------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("a_dtype,b_dtype,compute", gpu.cases(gpu.ARITHMETIC))
def test_every_arithmetic_result_and_layout(a_dtype, b_dtype, compute, layout):
    for (m, n, k), d in product([(70, 50, 90), (128, 192, 64)], results_of(a_dtype)):
        a = gpu.laid_out(gpu.integers((m, k), a_dtype, -1, 3), layout[0])
        b = gpu.laid_out(gpu.integers((k, n), b_dtype, -2, 2), layout[1])
        out = gpu.guarded((m, n), d)
        cutlass_py.gemm(a, b, out=out.view, compute=compute)
        gpu.assert_exact(out.view, gpu.expected(a, b))
        out.check()


@pytest.mark.parametrize("a_dtype,b_dtype,compute", gpu.cases(gpu.ARITHMETIC))
def test_default_results_of_random_operands(a_dtype, b_dtype, compute):
    m, n, k = 200, 264, 1040
    a, b = gpu.normals((m, k), a_dtype), gpu.laid_out(gpu.normals((k, n), b_dtype), "n")
    d = cutlass_py.gemm(a, b, compute=compute)
    row = COMPUTE[a_dtype][compute]
    assert d.dtype == gpu.DTYPES[row.output]
    if row.accumulator == "s32":
        gpu.assert_exact(d, gpu.expected(a, b))
        return
    unit = {"f64": 2**-52, "c128": 2**-51, "f16": 2**-10, "fast": 2**-13}.get(row.accumulator, 2**-22)
    unit = 2**-9 / k if row.operand == "tf32" else unit  # each operand is rounded to 11 bits
    gpu.assert_close(d, a, b, gpu.expected(a, b), unit)


@pytest.mark.sm90
def test_arithmetics_differ_in_accuracy():
    """compute= is obeyed: what costs accuracy shows, and what promises it keeps it."""
    errors = {}
    for dtype, compute in (("f32", "f32"), ("f32", "3xtf32"), ("f32", "tf32"), ("e4m3", "f32"), ("f16", "f32")):
        a, b = gpu.normals((256, 2048), dtype), gpu.laid_out(gpu.normals((2048, 256), dtype), "n")
        d = cutlass_py.gemm(a, b, compute=compute, out_dtype="f32")
        errors[dtype, compute] = float((d.double() - gpu.expected(a, b)).abs().max() / (gpu.wide(a).abs().max() * 45))
    assert errors["f32", "f32"] < 1e-5 and errors["f32", "3xtf32"] < 1e-5
    assert 1e-5 < errors["f32", "tf32"] < 1e-2
    assert errors["e4m3", "f32"] < 1e-3 and errors["f16", "f32"] < 1e-5


def test_pairs_that_do_not_go_together():
    every = list(COMPUTE)
    for x, y in product(every, every):
        if x == y or (x, y) in PAIRS or (y, x) in PAIRS:
            continue
        a, b = gpu.integers((16, 16), x), gpu.integers((16, 16), y)
        with pytest.raises(TypeError, match=f"{x} but b is {y}; {x} goes with"):
            cutlass_py.gemm(a, b)


# ------------------------------------------------------------------------------------------------ shapes

SHAPES = [
    ((40,), (40,)),
    ((40,), (40, 24)),
    ((33, 40), (40,)),
    ((5, 33, 40), (40,)),
    ((40,), (5, 40, 24)),
    ((2, 3, 33, 40), (40, 24)),
    ((2, 3, 33, 40), (3, 40, 24)),
    ((2, 1, 33, 40), (1, 3, 40, 24)),
    ((33, 40), (2, 3, 40, 24)),
    ((1, 1, 33, 40), (4, 1, 40, 24)),
    ((2, 3, 2, 17, 40), (3, 1, 40, 24)),
    ((0, 33, 40), (40, 24)),
    ((2, 0, 33, 40), (1, 40, 24)),
    ((5, 33, 0), (0, 24)),
]


@pytest.mark.parametrize("dtype", gpu.cases(["bf16", "f32", "s8", "e4m3", "c64"]))
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes_of_matmul(shapes, dtype):
    a, b = (gpu.integers(shape, dtype, -1, 2) for shape in shapes)
    d = cutlass_py.gemm(a, b)
    wanted = torch.matmul(gpu.wide(a), gpu.wide(b))
    assert d.shape == wanted.shape
    gpu.assert_exact(d, wanted)
    out = torch.empty_like(d)
    assert cutlass_py.gemm(a, b, out=out, alpha=2, c=d) is out
    gpu.assert_exact(out, 2 * wanted + gpu.wide(d))


def test_batches_that_do_not_merge():
    """Dimensions that no single stride describes, in operands, results and addends."""
    a = gpu.integers((3, 4, 33, 40), "bf16").transpose(0, 1)
    b = gpu.integers((3, 40, 24), "bf16")
    buffer = gpu.guarded((4, 5, 33, 24), "bf16")
    out = buffer.view[:, 1:4]
    c = gpu.integers((4, 1, 33, 24), "f32")
    assert cutlass_py.gemm(a, b, out=out, c=c, activation="relu") is out
    gpu.assert_exact(out, torch.relu(torch.matmul(gpu.wide(a), gpu.wide(b)) + gpu.wide(c)))
    gpu.Guarded(out, buffer.buffer, buffer.byte).check()


@pytest.mark.parametrize("dtype", gpu.cases(["bf16", "s8", "e4m3", "f64", "c64"]))
def test_batches_beyond_65535(dtype):
    batch, m, n, k = 70_000, 3, 5, 7
    a, b = gpu.integers((batch, m, k), dtype), gpu.integers((batch, k, n), dtype)
    wanted = torch.bmm(gpu.wide(a), gpu.wide(b))
    gpu.assert_exact(cutlass_py.gemm(a, b), wanted)
    if dtype in gpu.COMPLEX:
        return
    bias, total = gpu.integers((n,), "f32"), torch.empty(n, device=gpu.DEVICE, dtype=torch.float64)
    d = cutlass_py.gemm(a, b, bias=bias, activation="relu", bias_grad=total, out_dtype="f32")
    gpu.assert_exact(d, torch.relu(wanted + gpu.wide(bias)))
    gpu.assert_near(total, gpu.wide(d).sum((0, 1)), 1e-6 * gpu.wide(d).sum((0, 1)).max())


# ------------------------------------------------------------------------------------------------ packing


@pytest.mark.parametrize("dtype", gpu.cases(["s8", "e4m3", "bf16", "f32", "f64", "c128"]))
def test_packing_of_every_layout(dtype):
    """Transposes and misaligned copies of every element size: compute by kernels that read along k, or by any other."""
    for m, n, k in ((129, 65, 33), (512, 384, 640), (257, 1000, 511)):
        for layout, pad, offset in product(LAYOUTS, (0, 1, 16), (0, 1)):
            a = gpu.laid_out(gpu.integers((m, k), dtype, -1, 2), layout[0], pad=pad, offset=offset)
            b = gpu.laid_out(gpu.integers((k, n), dtype, -1, 2), layout[1], pad=pad, offset=offset)
            gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))
        a, b = gpu.integers((m, 2 * k), dtype, -1, 2)[:, ::2], gpu.integers((2 * n, k), dtype, -1, 2)[::2].T
        gpu.assert_exact(cutlass_py.gemm(a, b), gpu.expected(a, b))


# ------------------------------------------------------------------------------------------------ lists


@pytest.mark.parametrize("dtype", gpu.cases(["bf16", "f16", "f32", "f64", "s8", "e4m3", "c64"]))
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_lists(dtype, layout):
    for count, (m, n, k) in product((1, 2, 7, 60), ((64, 48, 32), (33, 17, 40))):
        a = [gpu.laid_out(gpu.integers((m, k), dtype, -1, 2), layout[0]) for _ in range(count)]
        b = [gpu.laid_out(gpu.integers((k, n), dtype, -1, 2), layout[1]) for _ in range(count)]
        a[0], a[-1] = a[-1], a[0]
        wanted = torch.stack([gpu.wide(x) @ gpu.wide(y) for x, y in zip(a, b, strict=True)])
        d = cutlass_py.gemm(a, b)
        assert isinstance(d, list) and len(d) == count
        gpu.assert_exact(torch.stack(d), wanted)
        shared = cutlass_py.gemm(a, b[0])
        gpu.assert_exact(torch.stack(shared), torch.stack([gpu.wide(x) @ gpu.wide(b[0]) for x in a]))
        c = [gpu.integers((m, n), gpu.name_of(d[0].dtype)) for _ in range(count)]
        keywords = {} if dtype in gpu.COMPLEX else {"activation": "relu"}
        bias = gpu.integers((n,), gpu.name_of(d[0].dtype))
        result = cutlass_py.gemm(a, b, c=c, alpha=2, beta=-1, bias=bias, **keywords)
        reference = gpu.epilogue(wanted, alpha=2, beta=-1, c=torch.stack(c), bias=bias, **keywords)
        gpu.assert_exact(torch.stack(result), reference.d)


def test_a_list_that_is_refused_matrix_by_matrix_allocates_nothing(monkeypatch):
    a, b = ([gpu.integers((64, 64), "f64") for _ in range(3)] for _ in range(2))
    a[0], a[-1] = a[-1], a[0]  # do not lie evenly
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("a result is allocated"))
    with pytest.raises(cutlass_py.NoKernelError):
        cutlass_py.gemm(a, b, splits="stream", stream=torch.cuda.current_stream())


def test_lists_under_capture():
    """Addresses travel by value: a graph keeps them, the caller's list may go."""
    a = [gpu.integers((64, 32), "bf16") for _ in range(900)]
    b = [gpu.integers((32, 48), "bf16") for _ in range(900)]
    out = [torch.zeros(64, 48, device=gpu.DEVICE, dtype=torch.bfloat16) for _ in range(900)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.gemm([*a[450:], *a[:450]], b, out=out)
    for x in a:
        x.copy_(gpu.integers((64, 32), "bf16"))
    graph.replay()
    wanted = torch.stack([gpu.wide(x) @ gpu.wide(y) for x, y in zip([*a[450:], *a[:450]], b, strict=True)])
    gpu.assert_exact(torch.stack(out), wanted)


# ------------------------------------------------------------------------------------------------ decompositions


def check_parts(shapes, dtype, layout, splits):
    """Plain products, and what another kernel has to finish."""
    for batch, m, n, k in shapes:
        lead = (batch,) if batch > 1 else ()
        a = gpu.laid_out(gpu.integers((*lead, m, k), dtype, -1, 2), layout[0])
        b = gpu.laid_out(gpu.integers((*lead, k, n), dtype, -1, 2), layout[1])
        product_ = gpu.expected(a, b)
        d = cutlass_py.gemm(a, b, splits=splits)
        gpu.assert_exact(d, product_)
        keywords = {"bias": gpu.integers((n,), gpu.name_of(d.dtype)), "alpha": 2, "beta": -1, "c": d}
        keywords |= {} if dtype in gpu.COMPLEX else {"activation": "relu"}
        out = gpu.guarded(tuple(d.shape), gpu.name_of(d.dtype))
        cutlass_py.gemm(a, b, splits=splits, out=out.view, **keywords)
        gpu.assert_exact(out.view, gpu.epilogue(product_, **keywords).d)
        out.check()


@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, 6, 7, None])
@pytest.mark.parametrize("dtype", gpu.cases(["bf16", "f16", "f32", "f64", "s8", "e4m3", "c64"]))
def test_splits(dtype, splits):
    check_parts([(1, 72, 80, 2048), (1, 33, 17, 1000), (3, 40, 136, 520), (1, 128, 128, 65)], dtype, "tn", splits)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_stream_k_of_every_layout(dtype, layout):
    """Extents along which 2.x kernels read and write vectors: core has no others on any GPU."""
    check_parts([(1, 72, 80, 2048), (1, 33, 24, 1000), (1, 300, 264, 1032)], dtype, layout, "stream")


@pytest.mark.sm90
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_stream_k_of_batches_and_any_extents(dtype, layout):
    if not cutlass_py.get_kernels(where=lambda meta: meta.family == "sm90_streamk"):
        pytest.skip("sm90_streamk is not in the built set")
    check_parts([(1, 33, 17, 1000), (3, 40, 136, 520), (1, 128, 128, 65)], dtype, layout, "stream")


def test_split_sums_are_not_rounded_in_between():
    a, b = gpu.normals((64, 8192), "bf16"), gpu.laid_out(gpu.normals((8192, 64), "bf16"), "n")
    reference = gpu.expected(a, b)
    for splits in (1, 2, 7, None):
        gpu.assert_close(cutlass_py.gemm(a, b, splits=splits), a, b, reference, 2**-24)


@pytest.mark.sm90
def test_stream_k():
    for m, n, k in ((256, 384, 4096), (300, 264, 1032), (128, 2112, 7168), (64, 64, 64)):
        a, b = gpu.integers((m, k), "bf16"), gpu.laid_out(gpu.integers((k, n), "bf16"), "n")
        for _ in range(3):
            out = gpu.guarded((m, n), "bf16")
            cutlass_py.gemm(a, b, out=out.view, splits="stream")
            gpu.assert_exact(out.view, gpu.expected(a, b))
            out.check()


# ------------------------------------------------------------------------------------------------ reproducible

CASES = {
    "plain": ((512, 768, 1024), {}),
    "long k": ((64, 256, 16384), {}),
    "splits": ((64, 256, 4096), {"splits": 5}),
    "stream": ((384, 512, 4096), {"splits": "stream"}),
    "bias": ((512, 768, 1024), {"bias": True, "activation": "gelu_tanh"}),
    "bias_grad": ((1030, 520, 256), {"bias_grad": True, "activation": "silu"}),
    "odd": ((511, 333, 777), {"activation": "relu"}),
}


@pytest.mark.sm90
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_repeats_are_the_same_bits_on_every_stream(case):
    (m, n, k), keywords = CASES[case]
    keywords = dict(keywords)
    a, b = gpu.normals((m, k), "bf16"), gpu.laid_out(gpu.normals((k, n), "bf16"), "n")
    if "bias" in keywords:
        keywords["bias"] = gpu.normals((n,), "bf16")
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs, totals = [], []
    torch.cuda.synchronize()
    for i in range(100):
        with torch.cuda.stream(streams[i % 4]):
            out = torch.empty(m, n, device=gpu.DEVICE, dtype=torch.bfloat16)
            if "bias_grad" in keywords:
                keywords["bias_grad"] = torch.empty(n, device=gpu.DEVICE)
                totals.append(keywords["bias_grad"])
            cutlass_py.gemm(a, b, out=out, deterministic=True, **keywords)
            outs.append(out.view(torch.int16))
    torch.cuda.synchronize()
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert all(torch.equal(total.view(torch.int32), totals[0].view(torch.int32)) for total in totals)


def test_the_default_choice_is_reproducible():
    for m, n, k in ((16, 4096, 4096), (1024, 2112, 7168), (65, 97, 20000)):
        a, b = gpu.normals((m, k), "bf16"), gpu.laid_out(gpu.normals((k, n), "bf16"), "n")
        first = cutlass_py.gemm(a, b)
        for _ in range(20):
            assert torch.equal(cutlass_py.gemm(a, b).view(torch.int16), first.view(torch.int16))
