"""batch_invariant=True on a GPU: the bits of a row are its own, by every compiled kernel and by every choice."""

from __future__ import annotations

from random import Random
from typing import Any

import gpu
import pytest
import torch

import cutlass_py
from cutlass_py import GemmArguments, get_kernels
from cutlass_py.arrays.gpu import device
from cutlass_py.declaration.dtypes import LAYOUTS, arithmetic
from cutlass_py.epilogues.activations import clamp

pytestmark = [pytest.mark.gpu]

SEED = 20
# (n, k) for each number of parts that k is cut into: by n and k alone, of 16 bits.
PARTS = {1: (192, 800), 4: (1536, 2064), 8: (136, 4112)}
SIXTEEN = ("bf16", "f16")
EPILOGUES: dict[str, Any] = {
    "plain": lambda m, n, d: {},
    "bias": lambda m, n, d: {"bias": gpu.normals((n,), d), "alpha": 0.7},
    "bias and gelu": lambda m, n, d: {"bias": gpu.normals((n,), d), "activation": "gelu_tanh", "alpha": 0.7},
    "bias of rows": lambda m, n, d: {"bias": gpu.normals((m, 1), d), "activation": "relu", "alpha": 0.7},
    "addend": lambda m, n, d: {"c": gpu.normals((m, n), d), "beta": -1.3, "alpha": 0.3},
    "addend and bias": lambda m, n, d: {"c": gpu.normals((m, n), d), "bias": gpu.normals((n,), d), "alpha": 0.3},
    "gate": lambda m, n, d: {"gate": gpu.normals((m, n), d), "activation": "silu"},
    "derivative": lambda m, n, d: {"aux": gpu.normals((m, n), d), "activation": "d_gelu"},
    "scales": lambda m, n, d: {
        "scale_a": torch.rand(m, 1, device=gpu.DEVICE), "scale_b": torch.rand(n, device=gpu.DEVICE),
        "bias": gpu.normals((n,), d), "activation": clamp(-3.0, 3.0), "alpha": 0.7,
    },
}  # fmt: skip


def wide(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Values of many magnitudes, whose sums in f32 depend on their order; of integers any."""
    if dtype in gpu.INTEGER:
        return gpu.normals(shape, dtype)
    exponents = torch.randint(-6, 6, shape, device=gpu.DEVICE)
    return gpu.normals(shape, "f64" if dtype == "f64" else "f32").mul(2.0**exponents).to(gpu.DTYPES[dtype])


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def rows_of(keywords: dict[str, Any], rows: slice, m: int) -> dict[str, Any]:
    """What has rows beside a is cut with it."""
    return {name: x[rows] if getattr(x, "shape", (0,))[0] == m else x for name, x in keywords.items()}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("bf16", None), ("f16", None), ("e4m3", None), ("f32", "tf32"), ("f32", "f32"), ("f64", None), ("s8", None)],
)
def test_every_kernel_gives_a_row_the_same_bits(dtype, compute, layout, parts):
    """Whatever tile, family and orientation; and the choice does, of a few rows alone."""
    torch.manual_seed(SEED)
    (n, k), m = PARTS[parts], 200
    a, b = (gpu.laid_out(wide(x, dtype), lies) for x, lies in zip(((m, k), (k, n)), layout, strict=True))
    d = arithmetic(dtype, compute).output
    for result in dict.fromkeys((d, "f32")) if dtype in SIXTEEN else (d,):
        keywords = {"compute": compute, "batch_invariant": True}
        args = GemmArguments(a, b, out=torch.empty(m, n, device=gpu.DEVICE, dtype=gpu.DTYPES[result]), **keywords)
        assert args.problem.splits == (parts if dtype in SIXTEEN else 1)
        expected = args.run().clone()
        kernels = get_kernels(args)
        assert len(kernels) > (4 if dtype in SIXTEEN else 0) or layout != "tn"
        for kernel in kernels:
            assert same(args.run(kernel=kernel), expected), kernel.name
        for rows in (1, 2, 40, 199):
            alone = cutlass_py.gemm(a[:rows], b, out_dtype=result, **keywords)
            assert same(alone, expected[:rows]), f"{rows} rows"


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(
    ("dtype", "d"),
    [
        ("bf16", "bf16"),
        ("f16", "f16"),
        ("bf16", "f32"),
        pytest.param("e4m3", "f32", marks=pytest.mark.sm90),
        pytest.param("e4m3", "bf16", marks=pytest.mark.sm90),
        ("s8", "f32"),
        ("f64", "f64"),
    ],
)
def test_epilogues_leave_rows_alone(dtype, d, name, parts):
    """Whether the kernel applies them, or another one behind it."""
    torch.manual_seed(SEED)
    (n, k), m = PARTS[parts], 777
    a, b = wide((m, k), dtype), wide((n, k), dtype).t()
    keywords = EPILOGUES[name](m, n, d) | {"out_dtype": d}
    if dtype == "f64":
        keywords = {key: x.double() if isinstance(x, torch.Tensor) else x for key, x in keywords.items()}
    expected = cutlass_py.gemm(a, b, batch_invariant=True, **keywords)
    for rows in (slice(0, 1), slice(5, 21), slice(100, 260)):
        found = cutlass_py.gemm(a[rows], b, batch_invariant=True, **rows_of(keywords, rows, m))
        assert same(found, expected[rows]), rows
    args = GemmArguments(a, b, out=torch.empty_like(expected), batch_invariant=True, **keywords)
    for kernel in get_kernels(args):
        assert same(args.run(kernel=kernel), expected), kernel.name


@pytest.mark.parametrize("dtype", [*SIXTEEN, "f32", "f64", pytest.param("e4m3", marks=pytest.mark.sm90)])
def test_rows_of_any_problem(dtype):
    """Extents, layouts and alignments at random: rows among others, alone, in a batch, and where they lie oddly."""
    r = Random(SEED)
    torch.manual_seed(SEED)
    for _ in range(12):
        n, k = (int(2 ** r.uniform(4, 12.5)) for _ in range(2))
        if dtype != "e4m3" and r.random() < 0.5:
            n, k = n | 1, k | 1
        elif dtype == "e4m3":
            n, k = (max(16, x // 16 * 16) for x in (n, k))
        layout = "tn" if dtype == "e4m3" else r.choice(LAYOUTS)
        a, b = gpu.laid_out(wide((1500, k), dtype), layout[0]), gpu.laid_out(wide((k, n), dtype), layout[1])
        compute = r.choice(["tf32", "f32"]) if dtype == "f32" else None
        keywords = {"compute": compute, "batch_invariant": True}
        expected = cutlass_py.gemm(a, b, **keywords)
        for rows in (1, 3, 16, 100, 777):
            first = r.randrange(1500 - rows)
            found = cutlass_py.gemm(a[first : first + rows], b, **keywords)
            assert same(found, expected[first : first + rows]), (n, k, layout, rows, first)
        moved = gpu.laid_out(a[:9], layout[0], offset=0 if dtype == "e4m3" else 1)
        assert same(cutlass_py.gemm(moved, b, **keywords), expected[:9]), (n, k, layout, "moved")
        batch = torch.stack([a[:50], a[50:100]])
        assert same(cutlass_py.gemm(batch, b, **keywords).reshape(100, n), expected[:100]), (n, k, layout, "batch")


def test_results_that_lie_by_columns():
    """Where a and b change places, rows are what the caller calls so."""
    torch.manual_seed(SEED)
    (n, k), m = PARTS[8], 400
    a, b = wide((m, k), "bf16"), wide((k, n), "bf16")
    out = torch.empty(n, m, device=gpu.DEVICE, dtype=torch.bfloat16).t()
    expected = cutlass_py.gemm(a, b, out=out, batch_invariant=True)
    assert GemmArguments(a, b, out=out, batch_invariant=True).problem.splits == 8
    few = torch.empty(n, 3, device=gpu.DEVICE, dtype=torch.bfloat16).t()
    assert same(cutlass_py.gemm(a[:3], b, out=few, batch_invariant=True), expected[:3])
    assert same(cutlass_py.gemm(a[:3], b, batch_invariant=True), expected[:3])


@pytest.mark.parametrize(("dtype", "compute"), [("c64", None), ("c128", None), ("f32", "3xtf32"), ("bf16", None)])
@pytest.mark.parametrize("n", [1, 33])
def test_a_column_and_other_arithmetics(dtype, compute, n):
    torch.manual_seed(SEED)
    a, b = gpu.normals((70, 203), dtype), gpu.normals((203, n), dtype)
    expected = cutlass_py.gemm(a, b, compute=compute, batch_invariant=True)
    for rows in (slice(0, 1), slice(3, 5), slice(10, 61)):
        found = cutlass_py.gemm(a[rows], b, compute=compute, batch_invariant=True)
        assert torch.equal(torch.view_as_real(found) if found.is_complex() else found,
                           torch.view_as_real(expected[rows]) if found.is_complex() else expected[rows])  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_an_addend_that_all_rows_share_and_matrices_of_a_list(dtype):
    """What a single row has in place, many have finished elsewhere; and lists lie anyhow."""
    torch.manual_seed(SEED)
    a, b, row = wide((90, 136), dtype), wide((136, 72), dtype), gpu.normals((72,), dtype)
    given = {"alpha": 0.3, "beta": -1.3, "batch_invariant": True}
    expected = cutlass_py.gemm(a, b, c=row.expand(90, 72), **given)
    for rows in (1, 7):
        assert same(cutlass_py.gemm(a[:rows], b, c=row.expand(rows, 72), **given), expected[:rows]), rows
    others = [wide((90, 136), dtype) for _ in range(3)]
    alone = cutlass_py.gemm(a, b, batch_invariant=True)
    for listed in ([a], [a, others[0]], [a, *others]):
        found = cutlass_py.gemm(listed, [b.clone() for _ in listed], batch_invariant=True)
        assert same(found[0], alone), len(listed)


def test_kernels_that_cut_otherwise_are_refused():
    if device(0).cc != 90:
        pytest.skip("such kernels are of 9.0")
    (n, k), m = PARTS[8], 64
    args = GemmArguments(wide((m, k), "bf16"), wide((k, n), "bf16"), batch_invariant=True)
    sliced = [kernel for kernel in get_kernels(GemmArguments(args.a, args.b)) if kernel.config.slices == 4]
    with pytest.raises(ValueError, match="cuts k into 4; batch_invariant=True takes 8"):
        args.run(kernel=sliced[0])
