"""The epilogue through the public call, fused or composed, whichever is chosen: every operand, dtype and function."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402

pytestmark = pytest.mark.gpu

M, N, K = 136, 200, 64
NARROW = ("f16", "bf16", "e4m3", "e5m2", "s8", "u8")


def check(a: torch.Tensor, b: torch.Tensor, d: str = "bf16", layout: str = "t", **keywords: Any) -> gpu.Result:
    """gemm with these keywords into a poisoned output, against float64: exactly, where integers stay exact."""
    product = gpu.expected(a, b)
    out = gpu.guarded(tuple(product.shape), d, layout)
    assert cutlass_py.gemm(a, b, out=out.view, **keywords) is out.view
    out.check()
    result = gpu.epilogue(product, **keywords)
    compare(out.view, result, keywords)
    return result


def compare(d: torch.Tensor, result: gpu.Result, keywords: dict[str, Any], exact: bool | None = None) -> None:
    function = keywords.get("activation") or "identity"
    name = getattr(function, "name", function)
    if name in gpu.EXACT if exact is None else exact:
        gpu.assert_exact(d, result.d)
        return
    argument = keywords.get("gate", keywords.get("aux") if name in gpu.DERIVATIVES else None)
    at = result.z if argument is None else gpu.wide(argument)
    error = gpu.epilogue_error(name, result, at, 0.0, fast=gpu.name_of(d.dtype) in NARROW)
    gpu.assert_near(d, result.d, abs(float(keywords.get("scale_out", 1))) * error)


def operands(dtype: str = "bf16", m: int = M, n: int = N, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    """A row-major and B column-major, so that every fused kernel can take them."""
    return gpu.integers((m, k), dtype, -1, 2), gpu.laid_out(gpu.integers((k, n), dtype, -1, 2), "n")


def vector(axis: str, dtype: str, m: int = M, n: int = N) -> torch.Tensor:
    return gpu.integers((n,) if axis == "n" else (m, 1), dtype)


# ------------------------------------------------------------------------------------------------ functions


@pytest.mark.parametrize(("dtype", "compute"), [("bf16", None), ("f32", "tf32")])
def test_numbers_differ_between_calls_that_are_alike_otherwise(dtype, compute):
    a, b = operands(dtype)
    c = gpu.filled(gpu.integers((M, N), dtype))
    numbers = [(1, 1), (2, 0.5), (0.5, -2), (0, 1), (3, 0), (1, 2), (1, 1)]
    for (alpha, beta), _ in product(numbers, range(2)):
        check(a, b, dtype, alpha=alpha, beta=beta, c=c, compute=compute)
        check(a, b, dtype, alpha=alpha, compute=compute)


@pytest.mark.parametrize("name", gpu.PLAIN)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
def test_activation_bias_and_c(dtype, name):
    a, b = operands(dtype)
    for axis, with_c, n in product(("", "n", "m"), (False, True), (N, N - 1)):
        keywords: dict[str, Any] = {"activation": gpu.activation(name)}
        if axis:
            keywords["bias"] = vector(axis, dtype, n=n)
        if with_c:
            keywords |= {"c": gpu.filled(gpu.integers((M, n), dtype)), "alpha": 0.25, "beta": -2}
        check(a, b[:, :n], dtype, **keywords)


@pytest.mark.parametrize("name", [*gpu.PLAIN, *gpu.DERIVATIVES])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
def test_small_values_keep_their_digits(dtype, name):
    """Far on the negative side functions go to 0, and are as exact as everywhere, fused or composed."""
    a, b = operands(dtype)
    x = torch.linspace(-24, 8, N, device=gpu.DEVICE).to(gpu.DTYPES[dtype])
    matrix = x.expand(M, N).contiguous()
    function = gpu.activation(name)
    if name in gpu.DERIVATIVES:
        check(a, b, dtype, activation=function, aux=matrix)
        return
    check(torch.zeros_like(a), b, dtype, activation=function, bias=x)
    check(torch.zeros_like(a), b, dtype, activation=function, bias=x, c=matrix)
    check(a, b, dtype, activation=function, gate=matrix)


def test_parameters_have_the_digits_of_the_arithmetic():
    for dtype in ("f64", "f32"):
        a, b = (torch.full(shape, 5.0, device=gpu.DEVICE, dtype=gpu.DTYPES[dtype]) for shape in ((M, K), (K, N)))
        clamped = cutlass_py.gemm(a, b, activation=cutlass_py.clamp(0, 0.1))
        assert (clamped == torch.tensor(0.1, dtype=a.dtype)).all()
        leaky = cutlass_py.gemm(a, -b, activation=cutlass_py.leaky_relu(0.1))
        gpu.assert_near(leaky, gpu.wide(a) @ -gpu.wide(b) * 0.1, 1e-11 if dtype == "f64" else 1e-3)
    a, b = (torch.full(shape, 127, device=gpu.DEVICE, dtype=torch.int8) for shape in ((16, 2048), (16, 2048)))
    assert (cutlass_py.gemm(a, b.mT, activation=cutlass_py.clamp(0, 2**24 + 1)) == 2**24 + 1).all()


def test_bias_grad_of_f64_is_summed_in_f64():
    a, grad = torch.ones(9, 1, device=gpu.DEVICE), torch.empty(1, device=gpu.DEVICE, dtype=torch.float64)
    a[0] = 2.0**25
    cutlass_py.gemm(a, torch.ones(1, 1, device=gpu.DEVICE), bias_grad=grad)
    assert grad.item() == 2**25 + 8


@pytest.mark.parametrize("name", gpu.PLAIN)
def test_gate(name):
    a, b = operands()
    for gate_dtype, layout in (("bf16", "t"), ("f32", "t"), ("bf16", "n"), ("e4m3", "t")):
        gate = gpu.laid_out(gpu.integers((M, N), gate_dtype, -4, 5), layout)
        check(a, b, gate=gate, activation=gpu.activation(name), alpha=0.5)
        check(a, b, "f32", gate=gate, activation=gpu.activation(name), bias=vector("n", "f32"), scale_out=2.0)


@pytest.mark.parametrize("name", gpu.DERIVATIVES)
def test_derivative(name):
    a, b = operands()
    for dtype, layout, d in (("bf16", "t", "bf16"), ("f32", "t", "bf16"), ("f16", "n", "f32"), ("f64", "t", "f64")):
        aux = gpu.laid_out(gpu.integers((M, N), dtype, -4, 5), layout)
        check(a, b, d, aux=aux, activation=name)
        before = aux.clone()
        check(a, b, d, aux=aux, activation=name, c=gpu.filled(gpu.integers((M, N), d)), beta=2)
        assert torch.equal(aux, before)
    out = gpu.integers((M, N), "bf16", -3, 4)
    held = out.clone()
    cutlass_py.gemm(a, b, out=out, aux=out, activation=name)  # in place
    compare(out, gpu.epilogue(gpu.expected(a, b), activation=name, aux=held), {"activation": name, "aux": held})


@pytest.mark.parametrize("name", gpu.PLAIN)
def test_aux_receives_z(name):
    a, b = operands()
    bias = vector("n", "bf16")
    for dtype, layout in (("bf16", "t"), ("f32", "t"), ("f16", "n"), ("s8", "t"), ("f64", "t")):
        aux = gpu.guarded((M, N), dtype, layout)
        result = check(a, b, aux=aux.view, activation=gpu.activation(name), bias=bias)
        gpu.assert_exact(aux.view, result.z)
        aux.check()
    gate = gpu.integers((M, N), "bf16")
    for dtype in ("bf16", "f32"):
        aux = gpu.guarded((M, N), dtype)
        result = check(a, b, aux=aux.view, activation=gpu.activation(name), gate=gate)
        gpu.assert_exact(aux.view, result.z)
        aux.check()


def test_a_backward_pass_is_the_gradient():
    """d_gelu with the aux of a gelu, and the gradient of the bias, as autograd has them in float64."""
    x, weight = (t.double().requires_grad_() for t in operands("bf16"))
    bias = vector("n", "f32").double().requires_grad_()
    torch.nn.functional.gelu(x @ weight + bias).sum().backward()
    low, w = x.detach().bfloat16(), weight.detach().bfloat16()
    aux = torch.empty(M, N, device=gpu.DEVICE)
    cutlass_py.gemm(low, w, bias=bias.detach().float(), activation="gelu", aux=aux, out_dtype="f32")
    ones, eye = torch.ones(M, N, device=gpu.DEVICE), torch.eye(N, device=gpu.DEVICE)
    grad = torch.empty(N, device=gpu.DEVICE)
    dz = cutlass_py.gemm(ones, eye, activation="d_gelu", aux=aux, bias_grad=grad)
    gpu.assert_near(grad, bias.grad, 1e-4)
    gpu.assert_near(cutlass_py.gemm(dz, weight.detach().float().T), x.grad, 1e-3)


# ------------------------------------------------------------------------------------------------ dtypes and layouts


@pytest.mark.parametrize("d", gpu.REAL)
def test_every_dtype_of_every_operand(d):
    a, b = operands("bf16")
    for other in gpu.REAL:
        c, gate = (gpu.integers((M, N), other, -3, 4) for _ in range(2))
        aux = gpu.guarded((M, N), other)
        result = check(a, b, d, c=c, beta=2, gate=gate, aux=aux.view, activation="relu")
        gpu.assert_exact(aux.view, result.z)
        check(a, b, d, activation="d_relu", aux=gate, bias=vector("m", "f32"))


@pytest.mark.parametrize("dtype", ["c64", "c128"])
def test_complex(dtype):
    a, b = operands(dtype)
    for d, n, layout in product(gpu.COMPLEX, (N, N - 1), "tn"):
        c, bias = gpu.integers((M, n), d), vector("n", d, n=n)
        check(a, b[:, :n], d, layout, alpha=1 + 2j)
        check(a, b[:, :n], d, layout, alpha=2 - 1j, beta=1j, c=c)
        check(a, b[:, :n], d, layout, c=c.mT.contiguous().mT, bias=bias)
        check(a, b[:, :n], d, layout, bias=vector("m", d))
    factors = [torch.tensor([x], device=gpu.DEVICE, dtype=gpu.DTYPES[dtype]) for x in (1 - 1j, 2 + 1j)]
    product_ = gpu.expected(a, b)
    c = gpu.integers((M, N), dtype)
    d = cutlass_py.gemm(a, b, alpha=factors[0], beta=factors[1], c=c)
    gpu.assert_exact(d, (1 - 1j) * product_ + (2 + 1j) * gpu.wide(c))


@pytest.mark.sanitized
@pytest.mark.scratch
@pytest.mark.parametrize("layout", "tn")
def test_every_operand_at_once_in_any_layout(layout):
    """Strides, odd extents and addresses, broadcast batches: the general path of the composed epilogue."""
    for (batch, m, n), step, pad in product([(1, 65, 97), (3, 70, 128), (5, 1, 33), (2, 300, 1)], (1, 2), (None, 3)):
        a, b = gpu.integers((batch, m, K), "bf16", -1, 2), gpu.integers((K, n), "bf16", -1, 2)
        out = gpu.guarded((batch, m, n), "bf16", layout, pad, step)
        aux = gpu.guarded((batch, m, n), "f32", layout, pad, step)
        keywords = {
            "c": gpu.filled(gpu.integers((1, m, n), "f16"), "n", pad),
            "gate": gpu.filled(gpu.integers((batch, m, n), "f32"), layout, pad),
            "bias": gpu.integers((batch, 1, n), "f32"),
            "scale_a": 2.0 ** torch.randint(-1, 2, (m, 1), device=gpu.DEVICE),
            "scale_b": (2.0 ** torch.randint(-1, 2, (2 * n,), device=gpu.DEVICE))[::2],
            "scale_out": torch.full((1,), 0.5, device=gpu.DEVICE),
            "activation": "relu",
            "alpha": 2,
            "beta": 0.5,
        }
        cutlass_py.gemm(a, b, out=out.view, aux=aux.view, **keywords)
        result = gpu.epilogue(gpu.expected(a, b), **keywords)
        gpu.assert_exact(out.view, result.d)
        gpu.assert_exact(aux.view, result.z)
        out.check()
        aux.check()


def test_column_major_results():
    """D^T is computed: axes of bias and scales change places."""
    a, b = operands()
    scales = [2.0 ** torch.randint(-1, 2, (extent,), device=gpu.DEVICE) for extent in (M, N)]
    for axis in "nm":
        check(a, b, layout="n", bias=vector(axis, "bf16"), activation="relu")
        check(a, b, layout="n", bias=vector(axis, "f32"), scale_a=scales[0], scale_b=scales[1])
        total = torch.empty(N if axis == "n" else (M, 1), device=gpu.DEVICE)
        result = check(a, b, layout="n", bias_grad=total)
        gpu.assert_exact(total, result.y.sum(0) if axis == "n" else result.y.sum(1, keepdim=True))


def test_in_place_c_and_gate():
    for dtype in ("bf16", "f32"):
        a, b = operands(dtype)
        for name, keywords in (("c", {"beta": 2, "bias": vector("n", dtype)}), ("gate", {"activation": "silu"})):
            out = gpu.integers((M, N), dtype)
            held = {**keywords, name: out.clone()}
            cutlass_py.gemm(a, b, out=out, **{**keywords, name: out})
            compare(out, gpu.epilogue(gpu.expected(a, b), **held), held)


def test_without_a_product():
    a, b = operands()
    bias, c = vector("n", "f32"), gpu.integers((M, N), "bf16")
    for x, y, alpha in ((a[:, :0], b[:0], 1), (a, b, 0)):
        for d in ("bf16", "f32", "f64"):
            out = torch.empty(M, N, device=gpu.DEVICE, dtype=gpu.DTYPES[d])
            one = torch.full((1,), 3.0, device=gpu.DEVICE)
            cutlass_py.gemm(x, y, out=out, alpha=alpha, c=c, beta=one, bias=bias, activation="relu")
            gpu.assert_exact(out, torch.relu(3 * gpu.wide(c) + gpu.wide(bias)))
            cutlass_py.gemm(x, y, out=out, alpha=alpha, bias=bias, activation="gelu")
            result = gpu.epilogue(torch.zeros(M, N, device=gpu.DEVICE).double(), bias=bias, activation="gelu")
            gpu.assert_near(out, result.d, 1e-5)


# ------------------------------------------------------------------------------------------------ scales and scalars


@pytest.mark.parametrize("d", ["bf16", "f16", "f32", "e4m3", "e5m2", "s8"])
@pytest.mark.parametrize("dtype", gpu.cases(["e4m3", "e5m2", "s8", "u8", "bf16"]))
def test_scales(dtype, d):
    a, b = operands(dtype)
    rows = 2.0 ** torch.randint(-2, 3, (M,), device=gpu.DEVICE)
    cols = 2.0 ** torch.randint(-2, 3, (N,), device=gpu.DEVICE)
    one = torch.full((1,), 0.25, device=gpu.DEVICE)
    for scale_a, scale_b in ((0.5, 2.0), (one, one), (rows, cols), (rows[:, None], one), (one, cols[None])):
        check(a, b, d, scale_a=scale_a, scale_b=scale_b)
        check(a, b, d, scale_a=scale_a, scale_b=scale_b, scale_out=one, bias=vector("n", "f32"), activation="relu")
    check(a, b, d, scale_a=rows, scale_out=0.5, c=gpu.integers((M, N), "f32"))
    check(a, b, d, scale_b=cols, alpha=torch.full((), 2.0, device=gpu.DEVICE))


@pytest.mark.parametrize("dtype", gpu.cases(["bf16", "f16", "f32", "f64", "s8", "e4m3"]))
@pytest.mark.parametrize("where", ["fused", "composed"])
def test_scalars_in_device_memory(dtype, where):
    a, b = operands(dtype)
    d = {"s8": "s32", "e4m3": "bf16"}.get(dtype, dtype)
    c = gpu.integers((M, N), d if where == "fused" else "f16" if d == "f32" else "f32")
    kind = torch.float64 if dtype == "f64" else torch.float32
    alpha, beta, scale = (torch.tensor(x, device=gpu.DEVICE, dtype=kind) for x in (2.0, -0.5, 0.25))
    check(a, b, d, alpha=alpha)
    check(a, b, d, alpha=alpha, c=c, beta=beta)
    check(a, b, d, alpha=3, c=c, beta=beta)
    check(a, b, d, alpha=alpha, c=c)
    check(a, b, d, scale_out=scale, activation="relu")
    gpu.assert_exact(cutlass_py.gemm(a, b, out_dtype=d, alpha=torch.zeros_like(alpha)), 0 * gpu.expected(a, b))


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_a_beta_of_0_in_device_memory_leaves_c_unread(dtype):
    a, b = operands(dtype)
    nan = torch.full((M, N), float("nan"), device=gpu.DEVICE)  # f32: composed
    beta = torch.zeros((), device=gpu.DEVICE, dtype=torch.float64 if dtype == "f64" else torch.float32)
    gpu.assert_exact(cutlass_py.gemm(a, b, c=nan, beta=beta), gpu.expected(a, b))


@pytest.mark.parametrize("where", ["fused", "composed"])
def test_scalars_may_change_between_replays(where):
    a, b = operands()
    c = gpu.integers((M, N), "bf16" if where == "fused" else "f32")
    out = torch.zeros(M, N, device=gpu.DEVICE, dtype=torch.bfloat16)
    alpha, beta, scale = (torch.ones((), device=gpu.DEVICE) for _ in range(3))
    grad = torch.zeros(N, device=gpu.DEVICE)
    keywords: dict[str, Any] = {"alpha": alpha, "beta": beta, "c": c}
    if where == "composed":
        keywords |= {"scale_out": scale, "activation": "relu", "bias": vector("n", "bf16"), "bias_grad": grad}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.gemm(a, b, out=out, **keywords)
    for values in ((1.0, 1.0, 1.0), (2.0, -1.0, 0.5), (-0.5, 0.0, 2.0)):
        for scalar, value in zip((alpha, beta, scale), values, strict=True):
            scalar.fill_(value)
        a.copy_(gpu.integers((M, K), "bf16", -1, 2))
        graph.replay()
        result = gpu.epilogue(gpu.expected(a, b), **keywords)
        gpu.assert_exact(out, result.d)
        if where == "composed":
            gpu.assert_exact(grad, result.y.sum(0))


# ------------------------------------------------------------------------------------------------ sums


@pytest.mark.parametrize("axis", "nm")
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_bias_grad(axis, dtype):
    for m, n, batch in ((1, 1, 1), (7, 5, 1), (65, 97, 3), (128, 256, 1), (1030, 33, 1), (40, 700, 2), (3000, 520, 1)):
        lead = (batch,) if batch > 1 else ()
        a, b = gpu.integers((*lead, m, 16), "bf16", -1, 2), gpu.integers((*lead, 16, n), "bf16", -1, 2)
        total = gpu.guarded((1, n) if axis == "n" else (m, 1), dtype, "t" if axis == "n" else "n")
        result = check(
            a, b, "bf16" if dtype != "f64" else "f32", bias_grad=total.view, activation="relu", scale_out=2.0
        )
        dims = tuple(range(len(lead))) + ((-2,) if axis == "n" else (-1,))
        wanted = result.y.sum(dims).reshape(total.view.shape)
        gpu.assert_exact(total.view, wanted)
        total.check()


@pytest.mark.parametrize("axis", "nm")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_bias_grad_behind_a_kernel(axis, dtype):
    """D is summed as it was stored, where nothing else is left to do."""
    behind = []
    for m, n, batch in ((8, 8, 1), (72, 104, 3), (128, 256, 1), (1032, 40, 1), (3000, 520, 1)):
        lead = (batch,) if batch > 1 else ()
        a = gpu.integers((*lead, m, 16), "bf16", -1, 2)
        b = gpu.laid_out(gpu.integers((*lead, 16, n), "bf16", -1, 2), "n")
        total = gpu.guarded((1, n) if axis == "n" else (m, 1), "f32", "t" if axis == "n" else "n")
        behind.append(cutlass_py.explain(a, b, out_dtype=dtype, alpha=2, bias_grad=total.view).chosen.route.way.sums)
        result = check(a, b, dtype, alpha=2, bias_grad=total.view)
        dims = tuple(range(len(lead))) + ((-2,) if axis == "n" else (-1,))
        gpu.assert_exact(total.view, result.y.sum(dims).reshape(total.view.shape))
        total.check()
    assert any(behind)  # among the kernels that are compiled, one that writes f32 may be as fast for a small D


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_bias_grad_of_a_derivative(dtype):
    a, b = gpu.normals((1000, K), dtype), gpu.normals((K, 264), dtype)
    aux = gpu.normals((1000, 264), dtype)
    totals = [torch.empty(shape, device=gpu.DEVICE, dtype=torch.float64) for shape in ((264,), (1000, 1))]
    for total in totals:
        cutlass_py.gemm(a, b, activation="d_gelu", aux=aux, bias_grad=total)
    y = gpu.epilogue(gpu.expected(a, b), activation="d_gelu", aux=aux).y
    error = 1e-12 if dtype == "f64" else 2e-6
    gpu.assert_near(totals[0], y.sum(0), error * y.abs().sum(0).max())
    gpu.assert_near(totals[1], y.sum(1, keepdim=True), error * y.abs().sum(1).max())


@pytest.mark.sanitized
def test_bias_grad_of_nothing_is_zero():
    for m, n in ((0, 40), (40, 0)):
        a, b = gpu.integers((m, 16), "bf16"), gpu.integers((16, n), "bf16")
        for shape in ((n,), (m, 1)):
            total = torch.full(shape, float("nan"), device=gpu.DEVICE)
            cutlass_py.gemm(a, b, bias_grad=total)
            assert (total == 0).all()


# ------------------------------------------------------------------------------------------------ special values


@pytest.mark.parametrize("name", gpu.PLAIN)
@pytest.mark.parametrize("d", ["bf16", "f32", "f64"])
def test_nan_and_inf_go_through_functions(d, name):
    a = torch.tensor([[float("nan")], [float("inf")], [float("-inf")], [100.0], [-100.0], [0.0]], device=gpu.DEVICE)
    b = torch.ones(1, 8, device=gpu.DEVICE)
    for x, y in ((a, b), (a.bfloat16(), b.bfloat16())):
        out = cutlass_py.gemm(x, y, activation=gpu.activation(name), out_dtype=d)
        wanted = gpu.apply(gpu.activation(name), gpu.wide(x)).expand(-1, 8)
        gpu.assert_near(out, wanted, 1e-3)
        bias = torch.ones(8, device=gpu.DEVICE, dtype=out.dtype)
        out = cutlass_py.gemm(x, y, activation=gpu.activation(name), out_dtype=d, bias=bias)
        gpu.assert_near(out, gpu.apply(gpu.activation(name), gpu.wide(x) + 1).expand(-1, 8), 1e-3)


@pytest.mark.parametrize("d", ["s8", "u8", "s32", "e4m3", "e5m2", "f16", "bf16"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_rounding_and_saturation(dtype, d):
    """One rule (gemm's docstring), at the values where rounding and saturation decide."""
    inf = float("inf")
    points = [0.5, 1.5, 2.5, -0.5, -2.5, 126.5, 127.5, 128.0, -128.5, -129.0, 255.5, 256.0, 447.0, 464.0, 480.0, 1e30]
    points += [57344.0, 61440.0, 65504.0, 65536.0, 2**31, -(2**31), 2.0**-9, 2.0**-10, 3 * 2.0**-10, 2.0**-16, 2.0**-17]
    points += [inf, -inf, float("nan"), -1e30, 1.0625, 1.1875, 17.0, 19.0, 2.0**-7 * 1.0625, 0.0]
    a = torch.tensor(points, device=gpu.DEVICE).to(gpu.DTYPES[dtype])[:, None]
    b = torch.ones(1, 16, device=gpu.DEVICE, dtype=a.dtype)
    gpu.assert_exact(cutlass_py.gemm(a, b, out_dtype=d), gpu.wide(a).expand(-1, 16))
    out = gpu.guarded((len(points), 15), d)
    cutlass_py.gemm(a, b[:, :15], out=out.view)
    gpu.assert_exact(out.view, gpu.wide(a).expand(-1, 15))
    out.check()


def test_every_code_of_fp8():
    for d in ("e4m3", "e5m2"):
        codes = torch.arange(256, device=gpu.DEVICE, dtype=torch.uint8).view(gpu.DTYPES[d])
        c = codes[None].expand(4, -1)
        zero = torch.zeros(4, 0, device=gpu.DEVICE, dtype=torch.bfloat16)
        back = cutlass_py.gemm(zero, zero.new_zeros(0, 256), c=c, out_dtype="f32")
        wanted = codes.float().expand(4, -1)
        assert torch.equal(torch.isnan(back), torch.isnan(wanted))
        assert torch.equal(back.nan_to_num(7), wanted.nan_to_num(7))


def test_sums_of_integers_wrap_around():
    for dtype, value in (("s8", 127), ("s8", -128), ("u8", 255)):
        k = 140_000
        a = torch.full((8, k), value, device=gpu.DEVICE, dtype=gpu.DTYPES[dtype])
        total = value * value * k
        wrapped = (total + 2**31) % 2**32 - 2**31
        for splits, d in ((None, "s32"), (1, "s32"), (3, "s32"), (3, "f32"), (1, "f64")):
            out = cutlass_py.gemm(a, a.T, out_dtype=d, splits=splits)
            gpu.assert_exact(out, torch.full((8, 8), float(wrapped), device=gpu.DEVICE, dtype=torch.float64))


def test_integers_stay_exact_beyond_24_bits():
    a, b = (torch.full(shape, 127, device=gpu.DEVICE, dtype=torch.int8) for shape in ((64, 4096), (4096, 64)))
    c = torch.randint(-(2**31), 2**31, (64, 64), device=gpu.DEVICE).int() // 2
    bias = torch.randint(-(2**20), 2**20, (64,), device=gpu.DEVICE).int()
    for keywords in ({}, {"c": c}, {"c": c, "beta": -1}, {"bias": bias}, {"bias": bias, "activation": "relu", "c": c}):
        check(a, b, "s32", alpha=3, **keywords)
