"""Scales in blocks on the device: every compiled kernel for them by name, and every way to it, against float64."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import kept_cache, why_not  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
from cutlass_py.declaration.config import SCHEDULES  # noqa: E402
from cutlass_py.kernels.kernel import CutlassKernel  # noqa: E402
from cutlass_py.kernels.registry import kernel_named  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.sm90, pytest.mark.usefixtures("kept_cache")]

KERNELS = [k for k in cutlass_py.get_kernels() if isinstance(k, CutlassKernel) and k.interface.block]
PAIRS = sorted({(k.config.a, k.config.b, k.interface.block) for k in KERNELS if k.config.d == "f32"})
OVERLAPPING = "sm90_gemm_bf16_bf16_f32_f32_tn_64x128x64_1x1x1_pingpong_linear"  # few blocks: the next may begin early
# Of our own kernels, which are compiled here, one of each kind: schedules, clusters, factors of columns.
OWN = [
    kernel_named(f"sm90_lean_e4m3_e4m3_f32_{design}")
    for design in (
        "bf16_tn_64x64x128_1x1x1_leanpingpongblock_fused",
        "bf16_tn_64x32x128_1x1x1_leanpingpongblockswap_fused",
        "bf16_tn_128x128x128_1x2x1_leancoopblock_fused",
        "bf16_tn_128x32x128_1x1x1_leancoopblockswap_fused",
        "bf16_tn_128x144x128_1x2x1_leancoopblockswap_fused",
        "bf16_tn_64x32x128_1x1x3_leanpingpongblockswap_fused",
        "f32_tn_128x192x128_2x1x1_leancoopblockswap_fused",
        "bf16_tn_128x64x128_2x1x1_leancoopgroup_fused",
    )
]
BY_NAME = [*KERNELS, *(k for k in OWN if not why_not() and k not in KERNELS)]
every_kernel = pytest.mark.parametrize("kernel", BY_NAME, ids=lambda k: k.name)
every_pair = pytest.mark.parametrize(("a_dtype", "b_dtype", "block"), PAIRS, ids=str)


# ---------------------------------------------------------------------------------------------------- operands


def powers(shape: tuple[int, ...], exact: bool) -> torch.Tensor:
    """Scales: powers of two, which keep products of small integers exact, or anything above 0."""
    if exact:
        return 2.0 ** torch.randint(-1, 2, shape, device=gpu.DEVICE)
    return torch.rand(shape, device=gpu.DEVICE) + 0.25


def quantised(
    m: int, n: int, k: int, a: str = "e4m3", b: str = "e4m3", block: int = 128, *, batch: int = 0, exact: bool = True
) -> dict[str, torch.Tensor]:
    """gemm's operands, as the kernels read them: rows of 16 bytes, factors of A's rows side by side. Gaps are NaN."""
    lead = (batch,) if batch else ()
    make = gpu.integers if exact else gpu.normals
    return {
        "a": gpu.laid_out(make((*lead, m, k), a), "t", pad=-k % 16 + 16, offset=16),
        "b": gpu.laid_out(make((*lead, k, n), b), "n", pad=-k % 16 + 16, offset=16),
        "scale_a": gpu.laid_out(powers((*lead, m, ceil(k / 128)), exact), "n", pad=-m % 4 + 4, offset=4),
        "scale_b": gpu.laid_out(powers((*lead, ceil(k / 128), ceil(n / block)), exact), "n", pad=1, offset=1),
    }


def multiplied_out(x: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B with their scales, in float64."""
    a, b = gpu.wide(x["a"]), gpu.wide(x["b"])
    rows = gpu.wide(x["scale_a"]).repeat_interleave(128, -1)
    columns = gpu.wide(x["scale_b"]).repeat_interleave(128, -2)
    if columns.shape[-1] != b.shape[-1]:
        columns = columns.repeat_interleave(128, -1)
    return a * rows[..., : a.shape[-1]], b * columns[..., : b.shape[-2], : b.shape[-1]]


def product(x: dict[str, torch.Tensor]) -> torch.Tensor:
    a, b = multiplied_out(x)
    return a @ b


def run(x: dict[str, torch.Tensor], **keywords: Any) -> torch.Tensor:
    return cutlass_py.gemm(x["a"], x["b"], scale_a=x["scale_a"], scale_b=x["scale_b"], **keywords)


# ---------------------------------------------------------------------------------------------------- every kernel


def edge_shapes(kernel: CutlassKernel) -> list[tuple[int, int, int, int]]:
    """(batch, m, n, k): around a tile, one row, parts of blocks, several tiles; n in whole stores.

    One block of k is not called so where scales are vectors as well.
    """
    tm, tn, _ = kernel.config.tile
    if SCHEDULES[kernel.config.schedule].swap:
        tm, tn = tn, tm
    shapes = [(0, 1, 1, 130), (0, 1, tn, 256), (0, tm, tn, 384), (0, tm - 1, tn + 1, 129), (0, tm + 2, tn - 2, 255)]
    shapes += [(0, 2 * tm + 1, 3 * tn + 2, 642), (3, tm + 1, tn - 1, 254), (2, 5, 200, 300), (0, tm, 2112, 1024)]
    shapes += [(0, 3, 200, 2), (3, tm + 1, 264, 128)] if kernel.interface.block > 1 else []
    unit = kernel.config.align_d
    return [(batch, m, ceil(n / unit) * unit, k) for batch, m, n, k in shapes]


def check(kernel: CutlassKernel, x: dict[str, torch.Tensor], **keywords: Any) -> None:
    wanted = keywords.get("alpha", 1) * product(x)
    out = gpu.guarded(tuple(wanted.shape), kernel.config.d)
    if kernel.interface.epilogue.source:
        keywords |= {"c": gpu.filled(gpu.integers(tuple(wanted.shape), kernel.config.d)), "beta": -3}
        wanted = wanted - 3 * gpu.wide(keywords["c"])
    assert run(x, out=out.view, kernel=kernel, **keywords) is out.view
    gpu.assert_exact(out.view, wanted)
    out.check()


@every_kernel
def test_edges(kernel):
    c = kernel.config
    for batch, m, n, k in edge_shapes(kernel):
        x = quantised(m, n, k, c.a, c.b, kernel.interface.block, batch=batch)
        check(kernel, x)
        check(kernel, x, alpha=2)


@every_kernel
def test_random(kernel):
    c = kernel.config
    m, n, k = 3 * c.tile[0] + 8, 2 * c.tile[1] + 24, 8 * 128 + 48
    x = quantised(m, n, k, c.a, c.b, kernel.interface.block, exact=False)
    d = run(x, kernel=kernel, out_dtype=c.d)
    a, b = multiplied_out(x)
    gpu.assert_near(d, a @ b, gpu.product_error(a, b, 2**-22))
    for _ in range(5):
        again = run(x, kernel=kernel, out_dtype=c.d)
        assert torch.equal(d.view(torch.uint8), again.view(torch.uint8))


@every_kernel
def test_sums_are_promoted_every_128_of_k(kernel):
    """Sums of one sign: those of the tensor cores alone, of about 14 bits, would fall behind."""
    c = kernel.config
    m, n, k = 64, 128, 1 << 14
    x = quantised(m, n, k, c.a, c.b, kernel.interface.block)
    for name, dtype in (("a", c.a), ("b", c.b)):
        x[name].copy_((torch.rand(x[name].shape, device=gpu.DEVICE) + 0.5).to(gpu.DTYPES[dtype]))
    d, wanted = run(x, kernel=kernel, out_dtype=c.d, alpha=2.0**-8), product(x) / 2**8
    assert ((gpu.wide(d) - wanted).abs() / wanted).max() <= torch.finfo(d.dtype).eps / 2 + 2**-11


@every_kernel
def test_nan_stays_in_its_block(kernel):
    c, block = kernel.config, kernel.interface.block
    m, n, k = 200, 264, 400
    x = quantised(m, n, k, c.a, c.b, block)
    x["scale_a"][7, 2] = torch.nan
    x["scale_b"][1, 1] = torch.nan
    d = torch.isnan(run(x, kernel=kernel, out_dtype=c.d))
    wanted = torch.zeros_like(d)
    wanted[7] = True
    wanted[:, block : 2 * block] = True
    assert torch.equal(d, wanted)


@every_kernel
def test_what_a_batch_shares(kernel):
    """One B and its scales for a whole batch, whose strides are 0."""
    c = kernel.config
    x = quantised(70, 136, 300, c.a, c.b, kernel.interface.block, batch=3)
    x["b"], x["scale_b"] = x["b"][1], x["scale_b"][1]
    check(kernel, x)


@every_kernel
def test_the_same_bits_on_every_run(kernel):
    """Several tiles for each multiprocessor: factors arrive one by one, beside operands that TMA loads."""
    c, (tm, tn, _) = kernel.config, kernel.config.tile
    m, n = (20 * tn, 15 * tm) if SCHEDULES[c.schedule].swap else (20 * tm, 15 * tn)
    for k in (256, 1152):
        x = quantised(m, n, k, c.a, c.b, kernel.interface.block, exact=False)
        gpu.assert_same_bits([run(x, kernel=kernel, out_dtype=c.d) for _ in range(12)])


@every_kernel
def test_scales_that_the_call_before_writes(kernel):
    """Launches overlap: scales may not be read before the kernel in front has written them."""
    c = kernel.config
    m, n, k = 256, 512, 4096
    x = quantised(m, n, k, c.a, c.b, kernel.interface.block)
    rows, columns = ceil(k / 128), x["scale_b"].shape[-1]
    scale = torch.empty((rows, columns), device=gpu.DEVICE)
    left = gpu.integers((32, 8192), "bf16", 1, 2)
    right = [torch.full((columns, 8192), 2.0**-power, device=gpu.DEVICE).bfloat16() for power in (12, 13)]
    x["scale_b"] = scale
    found = []
    for i in range(40):
        cutlass_py.gemm(left, right[i % 2].mT, out=scale, kernel=OVERLAPPING)  # 2 or 1, everywhere
        found.append(run(x, kernel=kernel, out_dtype=c.d))
    torch.cuda.synchronize()
    x["scale_b"] = torch.ones_like(scale)
    once = product(x)
    for i, d in enumerate(found):
        gpu.assert_exact(d, once * (2 - i % 2))


# ---------------------------------------------------------------------------------------------------- every way


def strided(x: torch.Tensor, how: str) -> torch.Tensor:
    if how == "unit steps nowhere":
        return gpu.laid_out(x.repeat_interleave(2, -1), "t")[..., ::2]
    return {
        "rows": lambda: gpu.laid_out(x, "t"),
        "columns": lambda: gpu.laid_out(x, "n"),
        "misaligned": lambda: gpu.laid_out(x, "n", pad=-x.shape[-2] % 4 + 3, offset=1),
    }[how]()


HOW = ("rows", "columns", "misaligned", "unit steps nowhere")


@every_pair
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("layout", ["tn", "tt", "nt", "nn"])
def test_packing(a_dtype, b_dtype, block, how, layout):
    for (m, n, k), batch in (((130, 264, 400), 0), ((33, 136, 272), 2)):
        x = quantised(m, n, k, a_dtype, b_dtype, block, batch=batch)
        wanted = product(x)
        x |= {name: strided(x[name], how) for name in ("scale_a", "scale_b")}
        x |= {"a": gpu.laid_out(x["a"], layout[0]), "b": gpu.laid_out(x["b"], layout[1])}
        for d in ("bf16", "f32", "f16"):
            gpu.assert_exact(run(x, out_dtype=d), wanted)


@every_pair
def test_results_of_every_shape_and_stride(a_dtype, b_dtype, block):
    for m, n, k in ((1, 1, 1), (129, 1, 300), (1, 300, 129), (77, 131, 333), (128, 2112, 512)):
        x = quantised(m, n, k, a_dtype, b_dtype, block)
        for layout, step in (("t", 1), ("n", 1), ("t", 2)):
            out = gpu.guarded((m, n), "bf16", layout, step=step)
            run(x, out=out.view)
            gpu.assert_exact(out.view, product(x))
            out.check()


@every_pair
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_the_rest_of_the_epilogue(a_dtype, b_dtype, block, activation):
    m, n, k = 150, 264, 400
    x = quantised(m, n, k, a_dtype, b_dtype, block)
    c, bias, gate = gpu.integers((m, n), "f32"), gpu.integers((n,), "f32"), gpu.normals((m, n), "bf16")
    aux, total = gpu.guarded((m, n), "f32"), torch.empty(n, device=gpu.DEVICE)
    z = 2 * product(x) - gpu.wide(c) + gpu.wide(bias)
    y = gpu.apply(activation, z)
    given = {"alpha": 2, "c": c, "beta": -1, "bias": bias, "activation": activation, "scale_out": 0.5}
    d = run(x, aux=aux.view, bias_grad=total, out_dtype="f32", **given)
    gpu.assert_exact(aux.view, z)
    aux.check()
    gpu.assert_near(d, y / 2, 1e-5 * (1 + y.abs()))
    gpu.assert_near(total, y.sum(0), 1e-4 * y.abs().sum(0))
    gated = run(x, gate=gate, activation=activation, out_dtype="f32")
    at = gpu.apply(activation, gpu.wide(gate))
    gpu.assert_near(gated, product(x) * at, 1e-4 * (1 + (product(x) * at).abs()))
    narrow = run(x, out_dtype="e4m3", scale_out=2.0**-6)
    gpu.assert_exact(narrow, product(x) / 2**6)


@every_pair
@pytest.mark.parametrize("splits", [2, 3, 7, 32])
def test_parts_of_k(a_dtype, b_dtype, block, splits):
    for k, batch in ((4096, 0), (1000, 0), (1500, 2)):
        x = quantised(72, 200, k, a_dtype, b_dtype, block, batch=batch)
        gpu.assert_exact(run(x, splits=splits, out_dtype="f32"), product(x))
        x["scale_a"] = strided(x["scale_a"], "rows")  # packed first
        gpu.assert_exact(run(x, splits=splits), product(x))


@every_pair
def test_a_factor_read_when_the_kernel_runs(a_dtype, b_dtype, block):
    x, alpha = quantised(64, 128, 300, a_dtype, b_dtype, block), torch.full((1,), 0.25, device=gpu.DEVICE)
    gpu.assert_exact(run(x, alpha=alpha, out_dtype="f32"), product(x) / 4)


@every_pair
def test_graphs(a_dtype, b_dtype, block):
    x, out = quantised(100, 136, 700, a_dtype, b_dtype, block), torch.empty(100, 136, device=gpu.DEVICE)
    x["scale_a"] = strided(x["scale_a"], "rows")
    run(x, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(x, out=out)
    x["scale_a"].mul_(2)
    x["scale_b"].mul_(2)
    out.fill_(torch.nan)
    graph.replay()
    gpu.assert_exact(out, product(x))


@pytest.mark.parametrize(("m", "n", "k"), [(64, 2112, 7168), (128, 7168, 16384), (4096, 4096, 7168), (1, 7168, 2048)])
def test_shapes_of_models(m, n, k):
    x = quantised(m, n, k, exact=False)
    a, b = multiplied_out(x)
    gpu.assert_near(run(x), a @ b, gpu.product_error(a, b, 2**-22))


def test_torch_computes_the_same():
    """On the same arrays: torch's layouts of scales are read as they lie."""
    from torch.nn import functional

    if not hasattr(functional, "scaled_mm"):
        pytest.skip("this torch has no scaled_mm")
    x = quantised(512, 512, 1024, exact=False)
    scale_a = x["scale_a"].T.contiguous().T
    scale_b = x["scale_b"].T.contiguous().T
    kind = functional.ScalingType
    a, b = x["a"].contiguous(), x["b"].T.contiguous().T
    try:
        theirs = functional.scaled_mm(a, b, scale_a, kind.BlockWise1x128, scale_b, kind.BlockWise128x128)
    except (RuntimeError, NotImplementedError, ValueError) as refusal:
        pytest.skip(f"torch refuses: {refusal}")
    args = cutlass_py.GemmArguments(a, b, scale_a=scale_a, scale_b=scale_b)
    assert not cutlass_py.explain(args).chosen.route.way.pack_scales
    first, second = multiplied_out(x)
    error = gpu.product_error(first, second, 2**-22)
    gpu.assert_near(cutlass_py.gemm(a, b, scale_a=scale_a, scale_b=scale_b), first @ second, error)
    gpu.assert_near(theirs, first @ second, error)


@every_pair
def test_tuning(a_dtype, b_dtype, block, monkeypatch, tmp_path):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    cutlass_py.dispatch.tuned.forget()
    for how in ("columns", "rows"):
        x = quantised(128, 256, 1024, a_dtype, b_dtype, block)
        x["scale_a"] = strided(x["scale_a"], how)
        args = {"scale_a": x["scale_a"], "scale_b": x["scale_b"]}
        tuning = cutlass_py.tune(x["a"], x["b"], candidates=4, **args)
        assert tuning.best.choice.route.kernel.interface.block == block
        gpu.assert_exact(run(x), product(x))
    cutlass_py.dispatch.tuned.forget()
