"""Every compiled kernel by name, over the edges of its tile, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py.families import DTYPES, EPILOGUES, SCHEDULES  # noqa: E402
from cutlass_py.kernels import CutlassKernel  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [k for k in cutlass_py.get_kernels() if isinstance(k, CutlassKernel)]


def runs_here(kernel: CutlassKernel) -> bool:
    cc = torch.cuda.get_device_capability()
    lowest, highest = kernel.family.cc
    return lowest <= cc[0] * 10 + cc[1] <= highest


def edge_shapes(kernel: CutlassKernel) -> list[tuple[int, int, int, int]]:
    """(batch, m, n, k): tile - 2 .. tile + 2, one, several tiles; rounded to what the kernel's vectors need."""
    c = kernel.config
    tm, tn, tk = c.tile
    if c.schedule and SCHEDULES[c.schedule].swap:
        tm, tn = tn, tm
    unit_m = unit_n = unit_k = 1
    if kernel.family.api == 2:
        unit_k = c.align if "t" == c.layout[0] or "n" == c.layout[1] else 1
        unit_m = c.align if c.layout[0] == "n" else 1
        unit_n = max(c.align if c.layout[1] == "t" else 1, c.align_d)
    elif SCHEDULES[c.schedule].tma_store:
        unit_n = c.align_d
    # k >= 2: a single element has no layout to speak of.
    shapes = [(1, 1, 1, 2), (1, tm - 1, tn + 1, tk + 1), (1, tm + 2, tn - 2, 2 * tk - 1), (1, tm, tn, 3 * tk)]
    shapes += [(1, 2 * tm + 1, 3 * tn + 2, 5 * tk + 2), (3, tm + 1, tn - 1, tk - 2), (1, 1, tn, tk), (1, tm, 1, tk)]

    def up(x: int, unit: int) -> int:
        return -(-max(x, 1) // unit) * unit

    return [(batch, up(m, unit_m), up(n, unit_n), up(k, unit_k)) for batch, m, n, k in shapes]


def storage(dtype: str) -> str:
    return DTYPES[dtype].storage or dtype


def operands(kernel: CutlassKernel, batch: int, m: int, n: int, k: int):
    """Exact integers in the kernel's layout, rows padded so that base and rows have just the alignment it needs."""
    c = kernel.config
    dtype = storage(c.a)
    unit = kernel.align_ab
    lead = (batch,) if batch > 1 else ()

    def operand(shape: tuple[int, int], layout: str) -> torch.Tensor:
        line = shape[1] if layout == "t" else shape[0]
        return gpu.laid_out(gpu.integers((*lead, *shape), dtype), layout, pad=-line % unit + unit, offset=unit)

    return operand((m, k), c.layout[0]), operand((k, n), c.layout[1])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_edges(kernel):
    if not runs_here(kernel):
        pytest.skip("another architecture")
    d_dtype = kernel.config.d
    for batch, m, n, k in edge_shapes(kernel):
        a, b = operands(kernel, batch, m, n, k)
        out = gpu.guarded((*a.shape[:-1], n), d_dtype)
        compute = {"compute": "tf32"} if kernel.config.a == "tf32" else {}
        assert cutlass_py.gemm(a, b, out=out.view, kernel=kernel, **compute) is out.view
        gpu.assert_exact(out.view, gpu.expected(a, b))
        out.check()
        if not EPILOGUES[kernel.config.epilogue].source:
            continue
        c = gpu.guarded((*a.shape[:-1], n), d_dtype)
        c.view.copy_(gpu.integers(tuple(c.view.shape), d_dtype))
        out = gpu.guarded((*a.shape[:-1], n), d_dtype)
        cutlass_py.gemm(a, b, out=out.view, c=c.view, alpha=2, beta=-3, kernel=kernel, **compute)
        gpu.assert_exact(out.view, gpu.expected(a, b, c.view, 2, -3))
        out.check()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_random(kernel):
    if not runs_here(kernel):
        pytest.skip("another architecture")
    c = kernel.config
    m, n, k = 3 * c.tile[0], 2 * c.tile[1], 8 * c.tile[2] + 16
    dtype = gpu.DTYPES[storage(c.a)]
    a = gpu.laid_out(torch.randn(m, k, device="cuda", dtype=dtype), c.layout[0])
    b = gpu.laid_out(torch.randn(k, n, device="cuda", dtype=dtype), c.layout[1])
    d = torch.full((m, n), float("nan"), device="cuda", dtype=gpu.DTYPES[c.d])
    cutlass_py.gemm(a, b, out=d, compute="tf32" if c.a == "tf32" else None, kernel=kernel)
    # Inputs of tf32 are rounded to 11 bits first: two roundings a product.
    unit = {"f64": 2**-52, "tf32": 2**-9 / k}.get(c.a, 2**-23)
    gpu.assert_close(d, a, b, gpu.expected(a, b), unit)
    again = torch.empty_like(d)
    cutlass_py.gemm(a, b, out=again, compute="tf32" if c.a == "tf32" else None, kernel=kernel)
    assert torch.equal(d, again)


@pytest.mark.parametrize("kernel", KERNELS[::7], ids=lambda k: k.name)
def test_without_a_product_a_and_b_are_not_read(kernel):
    if not runs_here(kernel):
        pytest.skip("another architecture")
    m, n = kernel.config.tile[:2]
    a, b = operands(kernel, 1, m, n, 64)
    c = gpu.integers((m, n), kernel.config.d)
    keywords = {"c": c, "beta": 2, "kernel": kernel, "compute": "tf32" if kernel.config.a == "tf32" else None}
    keywords["out_dtype"] = kernel.config.d
    a.fill_(float("nan"))
    gpu.assert_exact(cutlass_py.gemm(a, b, alpha=0, **keywords), 2 * c.double())


def test_a_forced_kernel_and_k_0():
    tma = next(k for k in KERNELS if k.name.startswith("sm90_gemm_bf16_bf16_f32_bf16_tt") and runs_here(k))
    a, b = gpu.integers((64, 0), "bf16"), gpu.integers((0, 64), "bf16")
    assert (cutlass_py.gemm(a, b, kernel=tma) == 0).all()


@pytest.mark.memcheck
def test_one_kernel_of_each_family():
    families = {k.config.family: k for k in KERNELS if runs_here(k) and k.config.a != "tf32"}
    for kernel in families.values():
        m, n, k = kernel.config.tile
        a, b = operands(kernel, 1, m + 8, n + 8, k + 8)
        gpu.assert_exact(cutlass_py.gemm(a, b, out_dtype=kernel.config.d, kernel=kernel), gpu.expected(a, b))


def test_tf32_needs_compute():
    tf32 = next(k for k in KERNELS if k.config.a == "tf32")
    a = torch.ones(8, 8, device="cuda")
    with pytest.raises(ValueError, match="multiplies tf32; the operands are f32"):
        cutlass_py.gemm(a, a, kernel=tf32)
