"""quantize on the device: every kernel, layout and edge against the definition, bit for bit, and what it is for."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from leaks import assert_nothing_stays  # noqa: E402
from reference import LIMITS, NUMPY, assert_same_codes, quantized  # noqa: E402

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import QuantizeArguments, quantize  # noqa: E402
from cutlass_py.declaration.quantize import SCALINGS  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [k for k in cutlass_py.get_kernels(operation="quantize") if k.metadata.cc != (0, 0)]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
every_scaling = pytest.mark.parametrize("scaling", SCALINGS)
# Edges of vectors, of groups and of what a block of threads holds in registers.
SHAPES = [(1, 1), (3, 5), (1, 128), (127, 129), (300, 1000), (2, 130, 264), (2, 2, 5, 4096), (3, 70_000)]


def values(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Several orders of magnitude, with what is special here and there."""
    x = torch.randn(shape, device=gpu.DEVICE, dtype=torch.float64)
    x *= 10.0 ** torch.randint(-3, 4, shape, device=gpu.DEVICE)
    flat = x.view(-1)
    for i, special in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.0**-140, 1e30)):
        if flat.numel() > 20:
            flat[i * flat.numel() // 8] = special
    return x.to(gpu.DTYPES[dtype])


def host(x: torch.Tensor) -> np.ndarray:
    """As NumPy has its dtype."""
    x = x.detach().cpu().contiguous()
    name = gpu.name_of(x.dtype)
    if x.dtype.itemsize == 1 or name == "bf16":
        carried = torch.uint8 if x.dtype.itemsize == 1 else torch.int16
        return x.view(carried).numpy().view(NUMPY[name])
    return x.numpy()


def check(found: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, q: str, scaling: str) -> None:
    """Both results against the definition."""
    wanted, scales = quantized(host(x), q, scaling)
    assert_same_codes(host(found[0]), wanted)
    np.testing.assert_array_equal(host(found[1]), scales)


@every_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_definition(kernel: Any, shape: tuple[int, ...]) -> None:
    c = kernel.config
    x = values(shape, c.x)
    assert kernel.supports(QuantizeArguments(x, c.q, scaling=c.scaling))
    check(quantize(x, c.q, scaling=c.scaling, kernel=kernel), x, c.q, c.scaling)
    check(quantize(x, c.q, scaling=c.scaling), x, c.q, c.scaling)


@every_kernel
@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("pad", "offset"), [(0, 0), (16, 0), (3, 1), (1, 5)])
def test_every_layout_is_read_and_written(kernel: Any, layout: str, pad: int, offset: int) -> None:
    c = kernel.config
    x = gpu.laid_out(values((2, 131, 264), c.x), layout, pad=pad, offset=offset)
    for result, step in (("t", 1), ("n", 1), ("t", 3)):
        out = gpu.guarded(tuple(x.shape), c.q, result, pad=pad, step=step)
        groups = quantized(host(x), c.q, c.scaling)[1].shape
        scales = gpu.guarded(groups, "f32", result, pad=1) if groups else None
        found = quantize(x, c.q, scaling=c.scaling, out=out.view, scales=scales.view if scales else None)
        assert found[0] is out.view
        check(found, x, c.q, c.scaling)
        out.check()
        if scales:
            scales.check()


@every_scaling
def test_other_strides(scaling: str) -> None:
    base = values((4, 300, 520), "bf16")
    for x in (
        base[:, ::2, ::3], base.permute(1, 0, 2), base.permute(2, 1, 0), base[:1].expand(3, 300, 520),
        base[0, 0].expand(200, 520), base.transpose(0, 2)[::5], base[:, 1:, 1:], base[..., :0], base[:0],
    ):  # fmt: skip
        check(quantize(x, scaling=scaling), x, "e4m3", scaling)


@every_scaling
def test_large(scaling: str) -> None:
    """More elements than 32 bits count, of which a part is looked at."""
    x = torch.empty((65_537, 65_536), device=gpu.DEVICE, dtype=torch.bfloat16)
    x[:-128].fill_(0.5)
    x[-128:] = values((128, 65_536), "bf16").clamp(-3, 3)
    q, scales = quantize(x, "s8", scaling=scaling)
    if scaling == "tensor":
        assert scales.item() == np.float32(3) * (np.float32(1) / np.float32(127))
        assert (q[0] == torch.round(0.5 / scales).to(torch.int8)).all()
        return
    assert (q[:-256] == 127).all()
    rows = slice(-1, None) if scaling == "128x128" else slice(-128, None)
    check((q[rows], scales[rows]), x[rows], "s8", scaling)


@every_scaling
@pytest.mark.parametrize("q", LIMITS)
def test_captured_and_replayed(q: str, scaling: str) -> None:
    x = values((300, 1000), "f32")
    out, scales = quantize(x, q, scaling=scaling)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        quantize(x, q, scaling=scaling, out=out, scales=scales)
    x.copy_(values((300, 1000), "f32"))
    graph.replay()
    check((out, scales), x, q, scaling)


@gpu.quiet
@every_scaling
def test_torch_in_streams_and_compiled(scaling: str) -> None:
    x = values((300, 1000), "bf16")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = ct.quantize(x, scaling=scaling)
    stream.synchronize()
    check(found, x, "e4m3", scaling)
    check(torch.compile(ct.quantize)(x, scaling=scaling), x, "e4m3", scaling)


@every_scaling
def test_other_frameworks(scaling: str) -> None:
    cupy = pytest.importorskip("cupy")
    x = values((300, 1000), "f32")
    q, scales = quantize(cupy.from_dlpack(x), "s8", scaling=scaling)
    assert isinstance(q, cupy.ndarray) and isinstance(scales, cupy.ndarray)
    check((torch.from_dlpack(q), torch.from_dlpack(scales)), x, "s8", scaling)


@pytest.mark.sm90
@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128"])
def test_what_gemm_makes_of_it(scaling: str) -> None:
    """No scale is packed first, and the product is that of f32 up to the rounding of both operands."""
    m, n, k = 300, 512, 1024
    a, w = gpu.normals((m, k), "bf16"), gpu.normals((n, k), "bf16")
    qa, sa = quantize(a, scaling=scaling)
    qw, sw = quantize(w, scaling="128x128" if scaling == "1x128" else scaling)
    scale_b = sw if scaling == "tensor" else sw.T
    if scaling == "1x128":
        assert sa.stride() == (1, ceil(m / 4) * 4)
        assert "packs" not in str(cutlass_py.explain(qa, qw.T, scale_a=sa, scale_b=scale_b).chosen)
    d = cutlass_py.gemm(qa, qw.T, scale_a=sa, scale_b=scale_b).float()
    wanted = a.float() @ w.float().T
    assert (d - wanted).norm() / wanted.norm() < 0.06


def test_calls_leave_nothing_behind() -> None:
    x = values((64, 256), "bf16")
    assert_nothing_stays(lambda: quantize(x, scaling="1x128"), [x], count=20_000)


def test_it_can_be_tuned() -> None:
    tuning = cutlass_py.tune(QuantizeArguments(values((512, 1024), "bf16"), scaling="row"))
    assert tuning.best.choice.route.kernel.name == "quantize_bf16_e4m3_row" and tuning.best.microseconds > 0
