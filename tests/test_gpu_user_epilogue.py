"""Epilogues that users write, compiled and run on both generations of kernels, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import kept_cache, why_not  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
from cutlass_py import _core, epilogue, explain, gemm  # noqa: E402
from cutlass_py.functions import cast, erf, exp, gelu, minimum, relu, silu, tanh, where  # noqa: E402
from cutlass_py.functions import max as max_over  # noqa: E402
from cutlass_py.functions import min as min_over  # noqa: E402
from cutlass_py.functions import sum as sum_over  # noqa: E402

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.usefixtures("kept_cache"),
]
sm90 = pytest.mark.sm90

M, N, K = 328, 264, 136  # no multiples of a tile, whole granules
SQUARE = "128x128x64_1x2x1_pingpong"
# One of each schedule, and the widest tile.
DESIGNS = [SQUARE, "128x256x64_1x2x1_coop", "64x32x128_1x1x1_pingpongswap", "128x256x64_2x1x1_coopswap"]


@epilogue
def gelu_bias(accum, alpha, bias):
    return gelu(alpha * accum + bias)


@epilogue
def several(accum, factor, column, c, residual):
    z = factor * accum + column
    below = minimum(z - residual, 3.0) * exp(-abs(c)) + cast(z / 3, "bf16")
    return where((z > 0) & ~(c < residual), tanh(z) * erf(c), below), {"z": z, "kept": silu(z)}


@epilogue
def reduced(accum, c):
    d = accum + c
    return relu(d), {"rows": sum_over(d, axis=-1), "columns": sum_over(d, axis=-2), "most": max_over(d, axis=-1)}


@epilogue
def weighed(accum, factor, bias, c):
    d = factor * accum + bias + c
    return d, {"rows": sum_over(d, axis=-1), "columns": sum_over(d, axis=-2), "least": min_over(d, axis=-1)}


@epilogue
def totals(accum, row, column, c):
    d = accum + row + column + c
    outputs = {"rows": sum_over(d, axis=-1), "columns": max_over(d, axis=-2), "total": sum_over(d)}
    return relu(d), {**outputs, "most": max_over(d, axis=None), "least": min_over(accum), "kept": accum}


@epilogue
def single(accum):
    return accum, {"total": sum_over(accum), "most": max_over(accum), "least": min_over(accum)}


@epilogue
def extremes(accum):
    return accum, {"most": max_over(accum, axis=-2), "least": min_over(accum, axis=-2)}


def base(design: str, dtype: str = "bf16", d: str = "", layout: str = "tn") -> str:
    """Named, because small problems would go to the other generation."""
    return f"sm90_gemm_{dtype}_{dtype}_f32_{d or dtype}_{layout}_{design}_linear"


def operands(dtype="bf16", m=M, n=N, k=K, batch=(), layout="tn"):
    """Small integers, whose products are exact."""
    a = gpu.laid_out(gpu.integers((*batch, m, k), dtype, -1, 2), layout[0])
    return a, gpu.laid_out(gpu.integers((*batch, k, n), dtype, -1, 2), layout[1])


def gelu64(z):
    return gpu.FUNCTIONS["gelu"](z)


def check_gelu(a, b, bias, d="bf16", alpha=0.25, layout="t", **keywords):
    z = float(alpha) * gpu.expected(a, b) + gpu.wide(bias)
    out = gpu.guarded(tuple(z.shape), d, layout)
    assert gemm(a, b, out=out.view, epilogue=gelu_bias(alpha=alpha, bias=bias), **keywords) is out.view
    gpu.assert_near(out.view, gelu64(z), gpu.own_error("gelu", z, fast=d != "f32") + 2e-6 * (1 + z.abs()))
    out.check()


def chosen(a, b, call, **keywords):
    return explain(a, b, epilogue=call, **keywords).chosen.route.kernel


# ------------------------------------------------------------------------------------------------ one output


@sm90
@pytest.mark.parametrize("design", DESIGNS)
def test_designs(design):
    a, b = operands()
    for bias in (gpu.integers((N,), "bf16"), gpu.integers((M, 1), "bf16")):
        check_gelu(a, b, bias, kernel=base(design))


@sm90
@pytest.mark.parametrize("layout", ["tn", "tt", "nt", "nn"])
def test_layouts_and_a_result_that_is_column_major(layout):
    a, b = operands("f16", layout=layout)
    check_gelu(a, b, gpu.integers((N,), "f16"), "f16", kernel=base(SQUARE, "f16", layout=layout))
    check_gelu(a, b, gpu.integers((N,), "f16"), "f16", layout="n")


@sm90
def test_dtypes():
    a, b = operands("bf16")
    check_gelu(a, b, gpu.integers((N,), "f32"), "f32", kernel=base(SQUARE, d="f32"))
    a, b = operands("e4m3", k=K + 8)
    check_gelu(a, b, gpu.integers((N,), "f32"), "bf16")
    a, b = operands("s8", n=N + 8, k=K + 8)
    check_gelu(a, b, gpu.integers((N + 8,), "bf16"), "f16")
    a, b = operands("f32")
    tf32 = base("128x128x32_2x1x1_pingpong", "tf32", "f32")
    check_gelu(a, b, gpu.integers((N,), "f32"), "f32", compute="tf32", kernel=tf32)


@pytest.mark.parametrize(("dtype", "n", "keywords"), [
    ("bf16", N - 1, {}), ("f16", N - 2, {}), ("f32", N - 1, {"compute": "3xtf32"}), ("f64", N - 1, {}), ("f32", N, {}),
])  # fmt: skip
def test_the_other_generation(dtype, n, keywords):
    a, b = operands(dtype, n=n)
    bias = gpu.integers((n,), dtype)
    assert chosen(a, b, gelu_bias(alpha=0.25, bias=bias), **keywords).family.api == 2
    check_gelu(a, b, bias, dtype, **keywords)
    check_gelu(a, b, gpu.integers((M, 1), dtype), dtype, **keywords)


def test_by_name_on_the_other_generation():
    kernel = "sm80_gemm_bf16_bf16_f32_bf16_tn_128x128x32_64x64x32_s4_a8_linearc"
    a, b = operands()
    check_gelu(a, b, gpu.integers((N,), "bf16"), kernel=kernel)
    check_several(a, b, kernel=kernel)


@sm90
def test_batches():
    a, b = operands(batch=(3,))
    for kernel in (base(SQUARE), None):
        check_gelu(a, b, gpu.integers((3, 1, N), "bf16"), kernel=kernel)
        check_gelu(a, b[0], gpu.integers((N,), "bf16"), kernel=kernel)


def test_operands_are_packed_first_where_need_be():
    a, b = operands()
    a = gpu.laid_out(a, "t", pad=1)
    bias = gpu.integers((N,), "bf16")
    check_gelu(a, b, bias)
    large = gpu.laid_out(gpu.integers((4096, 1024), "bf16", -1, 2), "t", pad=1)
    b = gpu.laid_out(gpu.integers((1024, N), "bf16", -1, 2), "n")
    assert "packs a first" in str(explain(large, b, epilogue=gelu_bias(alpha=0.25, bias=bias)))
    check_gelu(large, b, bias)


# ------------------------------------------------------------------------------------------------ several


def check_several(a, b, d="bf16", layout="t", **keywords):
    m, n = a.shape[-2], b.shape[-1]
    factor, column = torch.full((1,), 0.5, device="cuda"), gpu.integers((m, 1), "f32")
    c, residual = gpu.filled(gpu.normals((m, n), "bf16"), layout), gpu.filled(gpu.normals((m, n), "f32"), layout)
    outputs = {name: gpu.guarded((m, n), dtype, layout) for name, dtype in (("d", d), ("z", "bf16"), ("kept", "f32"))}
    call = several(factor=factor, column=column, c=c, residual=residual,
                   z=outputs["z"].view, kept=outputs["kept"].view)  # fmt: skip
    gemm(a, b, out=outputs["d"].view, epilogue=call, **keywords)
    z = 0.5 * gpu.expected(a, b) + gpu.wide(column)
    x, r = gpu.wide(c), gpu.wide(residual)
    rounded = gpu.wide((z.float() / 3).bfloat16())
    below = (z - r).clamp(max=3) * torch.exp(-x.abs()) + rounded
    expected = torch.where((z > 0) & ~(x < r), torch.tanh(z) * torch.erf(x), below)
    gpu.assert_near(outputs["d"].view, expected, 4e-6 * (1 + z.abs()))
    gpu.assert_exact(outputs["z"].view, z)
    gpu.assert_near(outputs["kept"].view, gpu.FUNCTIONS["silu"](z), 2e-6 * (1 + z.abs()))
    for output in outputs.values():
        output.check()


@sm90
@pytest.mark.parametrize("design", [SQUARE, "64x32x128_1x1x1_pingpongswap", "128x128x64_1x1x1_pingpong"])
def test_several_outputs(design):
    check_several(*operands(), kernel=base(design))


@sm90
def test_several_outputs_column_major():
    a, b = operands(layout="tn")
    check_several(a, b, layout="n", kernel=base(SQUARE))


def test_several_outputs_on_the_other_generation():
    check_several(*operands(n=N - 1))


@pytest.mark.parametrize("tile", ["128x128x8_32x64x8", "64x64x8_32x32x8"])
def test_several_outputs_in_exact_f32(tile):
    a, b = operands("f32", m=M - 1, n=N - 1)
    check_several(a, b, d="f32", kernel=f"simt_gemm_f32_f32_f32_f32_tn_{tile}_s4_a1_linearc")


@sm90
def test_out_may_be_what_is_read():
    a, b = operands()
    c = gpu.filled(gpu.integers((M, N), "bf16"))
    expected = gpu.expected(a, b) + gpu.wide(c)
    rows, most = torch.empty(M, 1, device="cuda"), torch.empty(M, 1, device="cuda")
    columns = torch.empty(N, device="cuda")
    gemm(a, b, out=c, epilogue=reduced(c=c, rows=rows, columns=columns, most=most))
    gpu.assert_exact(c, expected.clamp(min=0))


# ------------------------------------------------------------------------------------------------ reductions


def check_reduced(a, b, batch=(), source="bf16", **keywords):
    c = gpu.filled(gpu.integers((*batch, M, N), source))
    rows, most = (gpu.guarded((*batch, M, 1), "f32", pad=0) for _ in range(2))
    columns = gpu.guarded((*batch, 1, N), "f32", pad=0)
    d = gemm(a, b, epilogue=reduced(c=c, rows=rows.view, columns=columns.view, most=most.view), **keywords)
    z = gpu.expected(a, b) + gpu.wide(c)
    gpu.assert_exact(d, z.clamp(min=0))
    gpu.assert_exact(rows.view, z.sum(-1, keepdim=True))
    gpu.assert_exact(columns.view, z.sum(-2, keepdim=True))
    gpu.assert_exact(most.view, z.amax(-1, keepdim=True))
    for output in (rows, columns, most):
        output.check()


@sm90
@pytest.mark.parametrize("design", DESIGNS)
def test_reductions(design):
    check_reduced(*operands(), kernel=base(design))


@sm90
@pytest.mark.parametrize(("layout", "design"), [
    ("nn", "128x256x32_2x1x1_coop"), ("nn", "64x128x32_1x1x1_pingpong"),
    ("tt", "128x256x32_2x1x1_coopswap"), ("tt", "64x32x64_1x1x1_pingpongswap"),
])  # fmt: skip
def test_tf32_whose_rows_are_dealt_out(layout, design):
    a, b = operands("f32", layout=layout)
    named = {"compute": "tf32", "kernel": base(design, "tf32", "f32", layout)}
    check_gelu(a, b, gpu.integers((M, 1), "f32"), "f32", **named)
    check_reduced(a, b, source="f32", **named)
    if layout == "nn":
        check_reduced(a, b, **named)
        return
    check_several(a, b, "f32", compute="tf32")  # by other kernels: there are matrices of 16 bits
    with pytest.raises(ValueError, match="takes no matrices of 16 bits"):
        check_reduced(a, b, **named)


@sm90
def test_reductions_beside_several_operands():
    """CUTLASS lays out the workspaces of up to four nodes and of more of them by different rules."""
    a, b = operands()
    bias, c = gpu.integers((N,), "bf16"), gpu.integers((M, N), "bf16")
    rows, least = (gpu.guarded((M, 1), "f32", pad=0) for _ in range(2))
    columns = gpu.guarded((1, N), "f32", pad=0)
    out = gpu.guarded((M, N), "f32")
    call = weighed(factor=2.0, bias=bias, c=c, rows=rows.view, columns=columns.view, least=least.view)
    gemm(a, b, out=out.view, epilogue=call)
    z = 2 * gpu.expected(a, b) + gpu.wide(bias) + gpu.wide(c)
    reduced_to = (z, z.sum(-1, keepdim=True), z.sum(-2, keepdim=True), z.amin(-1, keepdim=True))
    for output, wanted in zip((out, rows, columns, least), reduced_to, strict=True):
        gpu.assert_exact(output.view, wanted)
        output.check()


@sm90
def test_reductions_of_batches_and_of_columns_as_rows():
    check_reduced(*operands(batch=(3,)), batch=(3,))
    a, b = operands()
    out = gpu.guarded((M, N), "bf16", "n")
    most, least = (torch.full((N,), torch.nan, device="cuda") for _ in range(2))
    gemm(a, b, out=out.view, epilogue=extremes(most=most, least=least))
    z = gpu.expected(a, b)
    gpu.assert_exact(out.view, z)
    gpu.assert_exact(most, z.amax(0))
    gpu.assert_exact(least, z.amin(0))


@sm90
@pytest.mark.parametrize("design", DESIGNS[:2])
def test_the_same_bits_on_every_run(design):
    a, b = gpu.normals((1000, 512), "bf16"), gpu.laid_out(gpu.normals((512, 1032), "bf16"), "n")
    c = gpu.normals((1000, 1032), "bf16")
    first = None
    for _ in range(100):
        rows, most = torch.empty(1000, 1, device="cuda"), torch.empty(1000, 1, device="cuda")
        columns = torch.empty(1032, device="cuda")
        call = reduced(c=c, rows=rows, columns=columns, most=most)
        d = gemm(a, b, epilogue=call, kernel=base(design), deterministic=True)
        found = (d, rows, columns, most)
        first = first or found
        assert all(torch.equal(x, y) for x, y in zip(found, first, strict=True))
    z = gpu.wide(a) @ gpu.wide(b) + gpu.wide(c)
    torch.testing.assert_close(first[1].double(), z.sum(-1, keepdim=True), rtol=0, atol=0.05)
    torch.testing.assert_close(first[2].double(), z.sum(0), rtol=0, atol=0.05)


@sm90
def test_nan_goes_through_reductions():
    a, b = operands()
    a[3, 5] = torch.nan
    most, least = (torch.zeros(N, device="cuda") for _ in range(2))
    gemm(a, b, epilogue=extremes(most=most, least=least))
    assert torch.isnan(most).all() and torch.isnan(least).all()


# ------------------------------------------------------------------------------------------------ single values


def check_totals(a, b, scalar="f32", d=None, layout="t", **keywords):
    """All kinds of reductions beside all kinds of operands; small integers, so that every order gives the same sum."""
    *batch, m = a.shape[:-1]
    n = b.shape[-1]
    d = d or gpu.name_of(a.dtype)
    read = {"row": gpu.integers((n,), d), "column": gpu.integers((m, 1), d)}
    read["c"] = gpu.filled(gpu.integers((*batch, m, n), d), layout, pad=0)  # one row or column is a vector
    shapes = {"rows": (m, 1), "columns": (1, n), "total": (1, 1), "most": (1, 1), "least": (1, 1)}
    written = {name: gpu.guarded((*batch, *shape), scalar, pad=0) for name, shape in shapes.items()}
    written["kept"] = gpu.guarded((*batch, m, n), d, layout)
    out = gpu.guarded((*batch, m, n), d, layout)
    call = totals(**read, **{name: x.view for name, x in written.items()})
    gemm(a, b, out=out.view, epilogue=call, **keywords)
    acc = gpu.expected(a, b)
    z = acc + sum(gpu.wide(x) for x in read.values())
    exact = {
        "rows": z.sum(-1, keepdim=True), "columns": z.amax(-2, keepdim=True), "total": z.sum((-2, -1), keepdim=True),
        "most": z.amax((-2, -1), keepdim=True), "least": acc.amin((-2, -1), keepdim=True), "kept": acc,
    }  # fmt: skip
    gpu.assert_exact(out.view, z.clamp(min=0))
    out.check()
    for name, x in written.items():
        gpu.assert_exact(x.view, exact[name])
        x.check()


@sm90
@pytest.mark.parametrize("design", [SQUARE, *DESIGNS[1:3]])
def test_single_values(design):
    check_totals(*operands(), kernel=base(design))


@sm90
def test_single_values_of_batches_and_column_major():
    check_totals(*operands(batch=(3,)), kernel=base(SQUARE))
    check_totals(*operands(layout="tn"), layout="n", kernel=base(SQUARE))


@pytest.mark.parametrize(("dtype", "keywords"), [("bf16", {}), ("f32", {}), ("f32", {"compute": "3xtf32"}),
                                                 ("f64", {})])  # fmt: skip
def test_reductions_of_the_other_generation(dtype, keywords):
    scalar = "f64" if dtype == "f64" else "f32"
    for batch, layout in (((), "t"), ((3,), "t"), ((), "n")):
        a, b = operands(dtype, m=M - 1, n=N - 1, batch=batch)
        check_totals(a, b, scalar, layout=layout, **keywords)


def test_reductions_by_name_on_the_other_generation():
    check_totals(*operands(), kernel="sm80_gemm_bf16_bf16_f32_bf16_tn_128x128x32_64x64x32_s4_a8_linearc")


@pytest.mark.parametrize("extents", [(1, 1, 8), (1, 3000, 16), (3000, 1, 16), (2500, 3001, 8)])
def test_reductions_of_any_extents(extents):
    """One line, one value, and so many that each is cut into parts."""
    m, n, k = extents
    check_totals(*operands("f32", m, n, k))


@pytest.mark.parametrize("n", [N, N - 1])  # either generation
def test_nan_goes_through_single_values(n):
    a, b = operands(n=n)
    a[3, 5] = torch.nan
    found = torch.zeros(3, device="cuda")
    gemm(a, b, epilogue=single(total=found[0], most=found[1], least=found[2].reshape(1, 1)))
    assert torch.isnan(found).all()
    a[3, 5] = torch.inf
    b[5] = 1.0
    gemm(a, b, epilogue=single(total=found[0], most=found[1:2], least=found[2]))
    assert found[0] == torch.inf and found[1] == torch.inf and torch.isfinite(found[2])


@pytest.mark.parametrize(("dtype", "n"), [("bf16", 1032), ("bf16", 1031), ("f64", 1031)])
def test_single_values_are_the_same_bits_on_every_run(dtype, n):
    a, b = gpu.normals((1000, 512), dtype), gpu.laid_out(gpu.normals((512, n), dtype), "n")
    scalar = torch.float64 if dtype == "f64" else torch.float32
    first = None
    for _ in range(100):
        found = torch.empty(3, device="cuda", dtype=scalar)
        call = single(total=found[0], most=found[1], least=found[2])
        d = gemm(a, b, epilogue=call, deterministic=True)
        first = first or (d, found)
        assert torch.equal(d, first[0]) and torch.equal(found, first[1])
    z = gpu.wide(a) @ gpu.wide(b)
    exact = torch.stack([z.sum(), z.amax(), z.amin()])
    torch.testing.assert_close(first[1].double(), exact, rtol=1e-5, atol=1e-9 if dtype == "f64" else 0.5)


@pytest.mark.parametrize("n", [N, N - 1])  # either generation
def test_a_workspace_holds_what_is_reduced(n):
    a, b = operands(n=n)
    found, out = torch.zeros(3, device="cuda"), torch.empty(M, n, device="cuda", dtype=torch.bfloat16)
    called = single(total=found[0], most=found[1], least=found[2])
    args = cutlass_py.GemmArguments(a, b, out=out, epilogue=called)
    kernel = cutlass_py.get_kernels(args, compiled=False)[0]
    needed = kernel.workspace_size(args)
    least = 3 * M * 4 if kernel.family.api == 3 else M * n * 4  # values that all three reduce are there once
    assert least <= needed < 2 * M * n * 4
    whole = torch.full((needed + 767,), 0xAB, device="cuda", dtype=torch.uint8)
    buffer = whole[-whole.data_ptr() % 256 :][: needed + 512]
    plan = kernel.plan(args)
    plan(workspace=buffer[256 : 256 + needed])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(workspace=buffer[256 : 256 + needed])
    a.copy_(gpu.integers((M, K), "bf16", -1, 2))
    found.fill_(torch.nan)
    graph.replay()
    z = gpu.expected(a, b)
    gpu.assert_exact(out, z)
    gpu.assert_exact(found, torch.stack([z.sum(), z.amax(), z.amin()]))
    assert (buffer[:256] == 0xAB).all() and (buffer[256 + needed :] == 0xAB).all()
    with pytest.raises(ValueError, match=f"workspace has {needed - 1} bytes; expected at least {needed}"):
        plan(workspace=buffer[256 : 255 + needed])


# ------------------------------------------------------------------------------------------------ the call


@sm90
def test_a_graph_reads_factors_when_it_runs():
    a, b = operands()
    alpha, bias = torch.full((1,), 0.25, device="cuda"), gpu.integers((N,), "bf16")
    out = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    call = gelu_bias(alpha=alpha, bias=bias)
    gemm(a, b, out=out, epilogue=call)  # compiled and loaded before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out, epilogue=call)
    for value in (0.25, -2.0):
        alpha.fill_(value)
        graph.replay()
        z = value * gpu.expected(a, b) + gpu.wide(bias)
        gpu.assert_near(out, gelu64(z), 2e-6 * (1 + z.abs()))


@pytest.mark.parametrize("n", [N, N - 1])  # either generation
def test_a_plan_takes_another_call_of_its_epilogue(n):
    a, b = operands(n=n)
    called = gelu_bias(alpha=1.0, bias=gpu.integers((n,), "bf16"))
    args = cutlass_py.GemmArguments(a, b, out=torch.empty(M, n, device="cuda", dtype=torch.bfloat16), epilogue=called)
    plan = cutlass_py.get_kernels(args, compiled=False)[0].plan(args)
    for alpha in (0.25, -0.5):
        x, y = operands(n=n)
        bias, out = gpu.integers((n,), "bf16"), gpu.guarded((M, n), "bf16", pad=0)
        assert plan(x, y, out.view, epilogue=gelu_bias(alpha=alpha, bias=bias)) is out.view
        z = alpha * gpu.expected(x, y) + gpu.wide(bias)
        gpu.assert_near(out.view, gelu64(z), gpu.own_error("gelu", z, fast=True) + 2e-6 * (1 + z.abs()))
        out.check()
    with pytest.raises(ValueError, match="bias is a number; the plan takes an array"):
        plan(a, b, out.view, epilogue=gelu_bias(alpha=1.0, bias=0.0))
    with pytest.raises(ValueError, match=r"bias is \(1, .*; the plan takes"):
        plan(a, b, out.view, epilogue=gelu_bias(alpha=1.0, bias=bias[None]))


@sm90
def test_a_plan_takes_other_outputs_of_its_epilogue():
    a, b = operands()

    def fresh():
        c, columns = gpu.filled(gpu.integers((M, N), "bf16")), gpu.guarded((1, N), "f32", pad=0)
        rows, most = (gpu.guarded((M, 1), "f32", pad=0) for _ in range(2))
        return c, rows, columns, most, reduced(c=c, rows=rows.view, columns=columns.view, most=most.view)

    first = fresh()
    args = cutlass_py.GemmArguments(a, b, epilogue=first[-1])
    plan = cutlass_py.get_kernels(args, compiled=False)[0].plan(args)
    for _ in range(2):
        x, y = operands()
        c, rows, columns, most, called = fresh()
        d, z = plan(x, y, epilogue=called), gpu.expected(x, y) + gpu.wide(c)
        gpu.assert_exact(d, z.clamp(min=0))
        for output, expected in ((rows, z.sum(-1, keepdim=True)), (columns, z.sum(0, keepdim=True))):
            gpu.assert_exact(output.view, expected)
        gpu.assert_exact(most.view, z.amax(-1, keepdim=True))
        for output in (rows, columns, most):
            output.check()
    assert all((x.buffer.view(torch.uint8) == x.byte).all() for x in first[1:4])


@sm90
def test_streams():
    a, b = operands()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        check_gelu(a, b, gpu.integers((N,), "bf16"))
    check_gelu(a, b, gpu.integers((N,), "bf16"), stream=torch.cuda.current_stream())


@sm90
def test_the_cpu_computes_the_same():
    a, b = operands()
    bias = gpu.integers((N,), "bf16")
    there = gemm(a, b, epilogue=gelu_bias(alpha=0.25, bias=bias))
    here = gemm(a.cpu(), b.cpu(), epilogue=gelu_bias(alpha=0.25, bias=bias.cpu()))
    torch.testing.assert_close(there.cpu(), here, rtol=2**-7, atol=1e-6)


@sm90
def test_compiled_once_for_a_content_and_not_listed():
    def users() -> set[str]:
        return {name for name in _core.kernel_facts() if "_user_" in name}

    kernels, before = cutlass_py.get_kernels(), users()
    one = epilogue(lambda accum, p: accum * p - 7)
    other = epilogue(lambda x, q: x * q - 7)
    a, b = operands()
    for call in (one(p=2), other(q=3.0), one(p=torch.full((1,), 4.0, device="cuda"))):
        d = gemm(a, b, epilogue=call, out_dtype="f32")
        gpu.assert_exact(d, gpu.expected(a, b) * float(call.values[0]) - 7)
    assert len(users() - before) == 1 and cutlass_py.get_kernels() == kernels


def test_no_terms():
    a, b = torch.empty(8, 0, device="cuda"), torch.empty(0, 8, device="cuda")
    with pytest.raises(ValueError, match="epilogue is given and k is 0; on a GPU"):
        gemm(a, b, epilogue=gelu_bias(alpha=1, bias=1.0))
