"""Kernels found and run by hand on a GPU: plans on new tensors, the caller's workspace, streams, graphs, refusals."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import why_not  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GemmArguments, KernelDescription, get_kernels, unregister  # noqa: E402
from cutlass_py.declaration.families import added  # noqa: E402

pytestmark = pytest.mark.gpu


def operands(m=264, n=136, k=200, dtype="bf16", layout="tn"):
    a, b = gpu.integers((m, k), dtype), gpu.integers((k, n), dtype)
    return gpu.laid_out(a, layout[0]), gpu.laid_out(b, layout[1]), gpu.guarded((m, n), dtype)


def scratchy(args: GemmArguments) -> cutlass_py.Kernel:
    """A kernel that needs a workspace for these arguments."""
    kernel = next((k for k in get_kernels(args) if k.workspace_size(args)), None)
    if kernel is None:
        pytest.skip("no kernel of the built set needs a workspace here")
    return kernel


# ---------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_every_kernel_found_runs_by_a_plan_on_new_tensors(dtype, layout):
    a, b, out = operands(dtype=dtype, layout=layout)
    args = GemmArguments(a, b, out=out.view)
    found = get_kernels(args)
    assert found
    for kernel in found:
        plan = kernel.plan(args)
        for _ in range(2):
            x, y, z = operands(dtype=dtype, layout=layout)
            assert plan(x, y, z.view) is z.view
            gpu.assert_exact(z.view, gpu.expected(x, y))
            z.check()
    assert torch.equal(out.buffer.view(torch.uint8), torch.full_like(out.buffer.view(torch.uint8), out.byte))


@pytest.mark.parametrize(
    ("extents", "keywords"),
    [((264, 136, 200), {}), ((97, 131, 61), {}), ((128, 128, 4096), {"splits": 3}), ((96, 80, 0), {"alpha": 2.0})],
    ids=["straight", "packed", "split", "no terms"],
)
def test_a_plan_of_gemms_own_choice(extents, keywords):
    def fresh():
        return operands(*extents)

    a, b, out = fresh()
    args = GemmArguments(a, b, out=out.view, **keywords)
    plan = args.plan()
    for workspace in (None, memory(args.workspace_size())):
        x, y, z = fresh()
        plan(x, y, z.view, workspace=workspace)
        gpu.assert_exact(z.view, gpu.expected(x, y) * keywords.get("alpha", 1.0))
        z.check()


def test_tiles_in_any_order():
    a, b, out = operands(1030, 1048, 136)
    args = GemmArguments(a, b, out=out.view)
    kernel = next((k for k in get_kernels(args) if k.metadata.api == 3), None)
    if kernel is None:
        pytest.skip("no 3.x kernel takes this")
    for raster, swizzle in product((None, "m", "n"), (None, 1, 2, 4, 8)):
        out.view.fill_(float("nan"))
        kernel.plan(args, raster=raster, swizzle=swizzle)()
        gpu.assert_exact(out.view, gpu.expected(a, b))
    out.check()


def test_a_column_major_result():
    a, b, _ = operands()
    out = gpu.guarded((264, 136), "bf16", "n")
    for kernel in get_kernels(GemmArguments(a, b, out=out.view)):
        plan = kernel.plan(GemmArguments(a, b, out=out.view))
        x, y, _ = operands()
        z = gpu.guarded((264, 136), "bf16", "n")
        plan(x, y, z.view)
        gpu.assert_exact(z.view, gpu.expected(x, y))
        z.check()


def test_every_array_of_the_epilogue_may_be_new():
    a, b, out = operands()
    c, alpha = gpu.filled(gpu.integers((264, 136), "bf16")), torch.full((1,), 2.0, device="cuda")
    args = GemmArguments(a, b, out=out.view, c=c, alpha=alpha)
    for kernel in get_kernels(args):
        x, y, z = operands()
        other, factor = gpu.filled(gpu.integers((264, 136), "bf16")), torch.full((1,), -1.0, device="cuda")
        kernel.plan(args)(x, y, z.view, c=other, alpha=factor)
        gpu.assert_exact(z.view, gpu.expected(x, y, other, -1.0))
        z.check()


def test_a_plan_makes_results_and_takes_what_it_was_made_with():
    a, b, out = operands()
    kernel = get_kernels(GemmArguments(a, b))[0]
    plan = kernel.plan(GemmArguments(a, b))
    first, second = plan(), plan()
    assert first.data_ptr() != second.data_ptr()
    gpu.assert_exact(first, gpu.expected(a, b))
    whole = torch.empty_like(first)
    assert plan(a, b, whole) is whole
    gpu.assert_exact(whole, gpu.expected(a, b))


def test_what_a_plan_and_gemm_write_counts_as_modified():
    a, b, out = operands()
    args = GemmArguments(a, b, out=out.view)
    plan, d = get_kernels(args)[0].plan(args), operands()[2].view
    calls = [lambda: plan(a, b, d), lambda: plan(out=d), lambda: cutlass_py.gemm(a, b, out=d)]
    before = [x._version for x in (a, b, d)]
    for count, call in enumerate((*calls, *calls), start=1):
        call()
        assert [x._version - y for x, y in zip((a, b, d), before, strict=True)] == [0, 0, count]


def test_what_is_not_like_the_first_is_refused_and_writes_nothing():
    a, b, out = operands(256, 128, 192)
    args = GemmArguments(a, b, out=out.view)
    plan = get_kernels(args)[0].plan(args)
    grown = torch.zeros(256 * 192 + 1, device="cuda", dtype=torch.bfloat16)[1:].view(256, 192)
    cases = [
        (a[:128], b, ValueError, r"a is \(128, 192\); the plan takes \(256, 192\)"),
        (a.half(), b, TypeError, "a is f16; the plan takes bf16"),
        (a, b.contiguous(), ValueError, "b has strides"),
        (a.cpu(), b, ValueError, "a is on cpu|a is on cuda:0 but b"),
        (grown, b, ValueError, "a starts at an address that is no multiple of 16 bytes"),
        (a.clone().requires_grad_(), b, ValueError, "a requires a gradient"),
    ]
    for x, y, error, message in cases:
        with pytest.raises(error, match=message):
            plan(x, y, out.view)
    square, other = gpu.integers((128, 128), "bf16"), gpu.integers((128, 128), "bf16")
    args = GemmArguments(square, other, out=torch.empty_like(square))
    with pytest.raises(ValueError, match="out shares elements with a"):
        get_kernels(args)[0].plan(args)(square, other, square)
    torch.cuda.synchronize()
    assert torch.equal(out.buffer.view(torch.uint8), torch.full_like(out.buffer.view(torch.uint8), out.byte))


def test_a_plan_follows_the_current_stream_and_a_given_one():
    a, b, out = operands(512, 512, 512)
    args = GemmArguments(a, b, out=out.view)
    plan = get_kernels(args)[0].plan(args)
    plan(a, b, out.view)
    side = torch.cuda.Stream()
    for given in (False, True):
        x, source = torch.zeros_like(a), gpu.integers(tuple(a.shape), "bf16")
        z = gpu.guarded((512, 512), "bf16")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            x.copy_(source)
            if not given:
                plan(x, b, z.view)
        if given:
            plan(x, b, z.view, stream=side)
        side.synchronize()
        gpu.assert_exact(z.view, gpu.expected(source, b))
        z.check()


def test_plans_on_two_streams_at_once():
    a, b, _ = operands(512, 512, 512)
    outs = [gpu.guarded((512, 512), "bf16") for _ in range(2)]
    args = GemmArguments(a, b, out=outs[0].view)
    plan = get_kernels(args)[0].plan(args)
    streams = [torch.cuda.Stream() for _ in outs]
    inputs = [gpu.integers(tuple(a.shape), "bf16") for _ in outs]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, x, z in zip(streams, inputs, outs, strict=True):
            with torch.cuda.stream(stream):
                plan(x, b, z.view)
    torch.cuda.synchronize()
    for x, z in zip(inputs, outs, strict=True):
        gpu.assert_exact(z.view, gpu.expected(x, b))
        z.check()


def test_a_graph_of_a_plan_reads_what_the_tensors_hold_when_it_is_replayed():
    a, b, out = operands()
    args = GemmArguments(a, b, out=out.view)
    for kernel in get_kernels(args)[:4]:
        plan = kernel.plan(args)
        plan(a, b, out.view)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan(a, b, out.view)
        x, y, z = operands()
        plan(x, y, z.view)  # other tensors in between leave the graph alone
        for _ in range(2):
            a.copy_(gpu.integers(tuple(a.shape), "bf16"))
            out.view.fill_(float("nan"))
            graph.replay()
            gpu.assert_exact(out.view, gpu.expected(a, b))
        gpu.assert_exact(z.view, gpu.expected(x, y))
        out.check()


def test_a_plan_reads_and_writes_where_new_tensors_lie():
    """Freed memory comes back at the same address, and at others: nothing of the first call is held on to."""
    a, b, out = operands(128, 128, 128)
    args = GemmArguments(a, b, out=out.view)
    plan = get_kernels(args)[0].plan(args)
    for _ in range(10):
        x, y, z = operands(128, 128, 128)
        plan(x, y, z.view)
        gpu.assert_exact(z.view, gpu.expected(x, y))
        z.check()
        del x, y, z


# ---------------------------------------------------------------------------------------- workspace


def memory(size: int) -> torch.Tensor:
    """Bytes from a multiple of 256 on."""
    whole = torch.full((size + 255,), 0xAB, device="cuda", dtype=torch.uint8)
    return whole[-whole.data_ptr() % 256 :][:size]


def split(m=128, n=128, k=4096) -> GemmArguments:
    a, b = (
        gpu.laid_out(gpu.integers((m, k), "bf16", -1, 2), "t"),
        gpu.laid_out(gpu.integers((k, n), "bf16", -1, 2), "n"),
    )
    return GemmArguments(a, b, out=torch.full((m, n), float("nan"), device="cuda"), splits=3)


@pytest.mark.parametrize("kind", ["parts of k", "stream-K"])
def test_a_workspace_of_the_caller_is_all_that_is_used(kind):
    args = split()
    if kind == "stream-K":
        args = args.replace(splits="stream", out=torch.empty(128, 128, device="cuda", dtype=torch.bfloat16))
    kernel = scratchy(args)
    needed = kernel.workspace_size(args)
    buffer = memory(needed + 512)
    kernel.run(args, kernel.compile(), workspace=buffer[256 : 256 + needed])
    gpu.assert_exact(args.keywords["out"], gpu.expected(args.a, args.b))
    assert (buffer[:256] == 0xAB).all() and (buffer[256 + needed :] == 0xAB).all()
    assert (buffer[256 : 256 + needed] != 0xAB).any()


def test_a_workspace_that_does_not_do():
    args = split()
    kernel = scratchy(args)
    needed = kernel.workspace_size(args)
    buffer = memory(needed + 256)
    for workspace, message in [
        (buffer[: needed - 1], f"workspace has {needed - 1} bytes; expected at least {needed}"),
        (buffer[16 : 16 + needed], "workspace starts at an address that is no multiple of 256 bytes"),
        (torch.empty(needed, dtype=torch.uint8), "workspace is on cpu"),
        (buffer[::2], "with strides"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel.run(args, workspace=workspace)
    with pytest.raises(TypeError, match="workspace is f32; expected bytes"):
        kernel.run(args, workspace=buffer.view(torch.float32))
    torch.cuda.synchronize()
    assert args.keywords["out"].isnan().all()


def test_a_workspace_in_a_graph():
    args = split()
    kernel = scratchy(args)
    plan, out = kernel.plan(args), args.keywords["out"]
    workspace = memory(kernel.workspace_size(args))
    plan(workspace=workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(workspace=workspace)
    args.a.copy_(gpu.integers(tuple(args.a.shape), "bf16", -1, 2))
    out.fill_(float("nan"))
    graph.replay()
    gpu.assert_exact(out, gpu.expected(args.a, args.b))


def test_what_needs_no_workspace_takes_an_empty_one():
    a, b, out = operands()
    args = GemmArguments(a, b, out=out.view)
    kernel = next(k for k in get_kernels(args) if k.workspace_size(args) == 0)
    kernel.run(args, workspace=torch.empty(0, device="cuda", dtype=torch.uint8))
    gpu.assert_exact(out.view, gpu.expected(a, b))


def test_an_artifact_names_the_built_set():
    a, b, _ = operands()
    kernel = get_kernels(GemmArguments(a, b))[0]
    artifact = kernel.compile(GemmArguments(a, b))
    assert artifact.kernel == kernel.name and artifact.built and artifact.library.is_file()
    assert artifact.arch == kernel.family.arch


# ---------------------------------------------------------------------------------------- described kernels

WHY_NOT = why_not()
DESCRIBED = [
    KernelDescription(a="bf16", tile=(64, 48, 64)),
    KernelDescription(a="bf16", tile=(64, 80, 64), schedule="pingpongswap"),
    KernelDescription(a="f16", tile=(128, 32, 64), schedule="coop", cluster=(4, 2, 1), layout="nt", epilogue="linearc"),
    KernelDescription(a="bf16", tile=(256, 192, 64), schedule="coop", cluster=(2, 1, 1), layout="tt"),
    KernelDescription(a="e4m3", tile=(64, 64, 32), d="f32"),
    KernelDescription(a="s8", tile=(64, 48, 128)),
    KernelDescription(a="f16", tile=(128, 64, 64), instruction="tensorop", warps=(2, 2, 1), stages=3, layout="nn"),
    KernelDescription(a="bf16", tile=(64, 128, 32), instruction="tensorop", warps=(1, 4, 1), stages=2, layout="tt"),
    KernelDescription(a="s8", tile=(64, 128, 64), instruction="tensorop", warps=(2, 2, 1), stages=2),
    KernelDescription(a="f64", tile=(64, 32, 16), instruction="tensorop", warps=(2, 1, 1), stages=4),
    KernelDescription(a="f32", tile=(32, 64, 8), instruction="simt", warps=(1, 2, 1), stages=3),
]


@pytest.mark.sm90
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("description", DESCRIBED, ids=lambda d: f"{d.a}-{'x'.join(map(str, d.tile))}-{d.instruction}")
def test_a_described_kernel_computes(description, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_PY_JIT", "1")
    kernel = description.kernel()
    try:
        c = kernel.config
        a, b = gpu.integers((264, 160), c.a, -1, 2), gpu.integers((160, 208), c.a, -1, 2)
        a, b = gpu.laid_out(a, c.layout[0]), gpu.laid_out(b, c.layout[1])
        out = gpu.guarded((264, 208), c.d)
        assert kernel.run(GemmArguments(a, b, out=out.view)) is out.view
        gpu.assert_exact(out.view, gpu.expected(a, b))
        out.check()
        assert kernel.metadata.design.registers in range(16, 256)
    finally:
        if kernel.name in added:
            unregister(kernel)


def test_registers_are_the_driver_s_answer():
    found = get_kernels(where=lambda m: m.api > 0 and m.design.registers > 0)
    assert found and all(16 <= k.metadata.design.registers <= 255 for k in found)
