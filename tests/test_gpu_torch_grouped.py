"""cutlass_py.torch's grouped products on the device: beside torch's own, captured, and where there is no kernel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from torch.nn import functional  # noqa: E402

import cutlass_py.torch as ct  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

E4M3 = torch.float8_e4m3fn
ENDS = [96, 96, 256, 400]
needs_recipes = pytest.mark.skipif(not hasattr(functional, "ScalingType"), reason="torch has no recipes of scales")


def ends(device: str = gpu.DEVICE) -> torch.Tensor:
    return torch.tensor(ENDS, dtype=torch.int32, device=device)


def of_rows(groups_divide: str) -> tuple[torch.Tensor, ...]:
    """Operands of 512 lines along that axis, a row-major and b column-major, and scales of rows and columns."""
    m, n, k = {"m": (512, 256, 384), "n": (256, 512, 384), "k": (128, 256, 512)}[groups_divide]
    lead = {"m": ((), (4,)), "n": ((4,), ()), "k": ((), ())}[groups_divide]
    a, b = torch.randn(*lead[0], m, k, device=gpu.DEVICE), torch.randn(*lead[1], n, k, device=gpu.DEVICE)
    shapes = ((4 * m,), (4 * n,)) if groups_divide == "k" else ((*lead[0], m), (*lead[1], n))
    scales = [torch.rand(shape, device=gpu.DEVICE) + 0.5 for shape in shapes]
    return a.to(E4M3), b.to(E4M3).mT, *scales


@needs_recipes
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_scales_of_rows_as_torch_has_them(axis, fast):
    """Of k, where no kernel is, group by group."""
    a, b, of_a, of_b = of_rows(axis)
    recipe = functional.ScalingType.RowWise
    given = (a, b, of_a, recipe, of_b, recipe)
    found, wanted = (
        f(*given, offs=ends(), use_fast_accum=fast)
        for f in (ct.scaled_grouped_mm, functional.scaled_grouped_mm)
    )  # fmt: skip
    inside = {"m": (slice(400),), "n": (..., slice(400)), "k": ()}[axis]
    torch.testing.assert_close(found[inside], wanted[inside], rtol=2e-2, atol=2e-1 if fast else 5e-2)
    behind = {"m": found[400:], "n": found[:, 400:], "k": found[:0]}[axis]
    assert (behind == 0).all()


@needs_recipes
@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_blocks_are_those_of_each_group(dtype, squares):
    recipes = functional.ScalingType
    x, w = torch.randn(512, 384, device=gpu.DEVICE), torch.randn(4, 256, 384, device=gpu.DEVICE)
    (a, s), (b, t) = ct.quantize(x, scaling="1x128"), ct.quantize(w, scaling="128x128" if squares else "1x128")
    of_b = (t.mT, recipes.BlockWise128x128) if squares else (t, recipes.BlockWise1x128)
    if not squares and dtype != torch.bfloat16:
        pytest.skip("no such kernel is compiled beforehand")
    found = ct.scaled_grouped_mm(a, b.mT, s, recipes.BlockWise1x128, *of_b, offs=ends(), output_dtype=dtype)
    begin = 0
    for i, end in enumerate(ENDS):
        scales = {"scale_a": s[begin:end], "scale_b": t[i].mT}
        wanted = ct.gemm(a[begin:end], b[i].mT, **scales, out_dtype=torch.float32 if squares else dtype)
        torch.testing.assert_close(found[begin:end].float(), wanted.float(), rtol=2e-2, atol=2e-2)
        begin = end
    assert (found[400:] == 0).all()


@needs_recipes
@pytest.mark.parametrize("divided", ["m", "k"])
def test_a_graph_follows_new_ends(divided):
    a, b, of_a, of_b = of_rows(divided)
    recipe, offs = functional.ScalingType.RowWise, ends()
    call = lambda: ct.scaled_grouped_mm(a, b, of_a, recipe, of_b, recipe, offs=offs)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    offs.copy_(torch.tensor([10, 300, 300, 512]))
    graph.replay()
    assert torch.equal(captured, call())


@needs_recipes
@gpu.quiet
def test_what_has_no_kernel_is_refused_while_a_graph_is_captured():
    a, b, of_a, of_b = of_rows("k")
    recipe, offs = functional.ScalingType.RowWise, ends()
    ct.scaled_grouped_mm(a, b, of_a, recipe, of_b, recipe, offs=offs, output_dtype=torch.float16)
    with pytest.raises(RuntimeError, match="scaled_grouped_mm"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        ct.scaled_grouped_mm(a, b, of_a, recipe, of_b, recipe, offs=offs, output_dtype=torch.float16)


@needs_recipes
@gpu.quiet
def test_compiled():
    a, b, of_a, of_b = of_rows("m")
    recipe = functional.ScalingType.RowWise
    layer = lambda a, b, s, t, offs: ct.scaled_grouped_mm(a, b, s, recipe, t, recipe, offs=offs).relu()  # noqa: E731
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b, of_a, of_b, ends()), layer(a, b, of_a, of_b, ends()))


def test_bytes_are_added_up_in_32_bits():
    a, b = gpu.integers((512, 128), "s8", -128, 128), gpu.integers((4, 256, 128), "s8", -128, 128).mT
    found = ct.grouped_mm(a, b, offs=ends())
    begin = 0
    for i, end in enumerate(ENDS):
        assert torch.equal(found[begin:end].double(), a[begin:end].double() @ b[i].double())
        begin = end
    assert found.dtype == torch.int32 and (found[400:] == 0).all()
