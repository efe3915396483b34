"""Gates and values on the device: every kernel of them, what is composed, groups, graphs, cutlass_py.torch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py.declaration.dtypes import compute_of  # noqa: E402
from cutlass_py.declaration.epilogues import EPILOGUES, GATED  # noqa: E402
from cutlass_py.kernels.kernel import CutlassKernel  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

SIZES = [70, 0, 130, 5]


def kernels(operation: str, back: bool) -> list[Any]:
    found = [k for k in cutlass_py.get_kernels(operation=operation) if isinstance(k, CutlassKernel)]
    epilogues = [EPILOGUES[k.config.epilogue] for k in found]
    return [k for k, e in zip(found, epilogues, strict=True) if e.pairs and e.gated == back]


def operand(shape: tuple[int, ...], order: str, dtype: str) -> torch.Tensor:
    x = gpu.integers(shape if order == "t" else (*shape[:-2], shape[-1], shape[-2]), dtype, -1, 2)
    return x if order == "t" else x.mT


def halves(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :]


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    step = {torch.bfloat16: 2**-7, torch.float16: 2**-9, torch.float32: 2**-18, torch.float64: 2**-40}[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=step, atol=step)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if b.ndim == 2:
        return a.double() @ b.double()
    rows = a[: sum(SIZES)].double().split(SIZES)
    return torch.cat([x @ y.double() for x, y in zip(rows, b, strict=True)])


def by_turns(x: torch.Tensor) -> torch.Tensor:
    """The same with a value behind each gate."""
    bits = x.view(torch.uint8) if x.itemsize == 1 else x
    return torch.stack(halves(bits), -1).flatten(-2).view(x.dtype)


def powers(x: torch.Tensor) -> torch.Tensor:
    return 2.0 ** torch.randint(-2, 3, x.shape, device=gpu.DEVICE)


def of_row(x: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """In f64, one for each row of the result where there is one for each group."""
    return x.double().repeat_interleave(torch.tensor(SIZES, device=gpu.DEVICE), 0) if lead else x.double()


def groups(b: torch.Tensor) -> dict[str, Any]:
    return {"sizes": torch.tensor(SIZES, dtype=torch.int32, device=gpu.DEVICE)} if b.ndim == 3 else {}


@pytest.mark.parametrize("operation", ["gemm", "grouped_gemm"])
@pytest.mark.parametrize("function", GATED)
def test_every_kernel(operation, function):
    """Edges of tiles, a bias for either half, rows of nobody."""
    call = getattr(cutlass_py, operation)
    for i, kernel in enumerate(kernels(operation, back=False)):
        c = kernel.config
        m, n, k = (208 if operation == "gemm" else sum(SIZES) + 3), (264, 72, 512)[i % 3], (208, 64)[i % 2]
        lead = (len(SIZES),) if operation == "grouped_gemm" else ()
        a, b = operand((m, k), c.layout[0], c.a), operand((*lead, k, 2 * n), c.layout[1], c.a)
        bias = gpu.integers((*lead, 2 * n), c.d)
        out, keywords = gpu.guarded((m, n), c.d, "t"), groups(b)
        if EPILOGUES[c.epilogue].aux:
            keywords["aux"] = torch.full((m, 2 * n), 7.0, device=gpu.DEVICE).to(gpu.DTYPES[c.d])
        of_rows, of_columns = torch.ones(m, device=gpu.DEVICE), torch.ones((*lead, 2 * n), device=gpu.DEVICE)
        if EPILOGUES[c.epilogue].scaled:
            of_rows, of_columns = powers(of_rows), powers(of_columns)
            keywords |= {"scale_a": of_rows, "scale_b": of_columns}
        arithmetic = {"compute": compute_of(c.a, c.accumulator), "kernel": kernel}
        rows = sum(SIZES) if lead else m
        # A value behind each gate is read in place where lines lie along k.
        ways = [("", b, {"bias": bias, **keywords})]
        if c.layout[1] == "n" and "aux" not in keywords:
            turned = {key: by_turns(x) for key, x in {"bias": bias, **keywords}.items() if key in ("bias", "scale_b")}
            ways.append(("_interleaved", by_turns(b).mT.contiguous().mT, {**keywords, **turned}))
        for suffix, matrix, given in ways:
            out.view.fill_(7)
            call(a, matrix, out=out.view, gated=function + suffix, alpha=0.125, **given, **arithmetic)
            z = 0.125 * product(a, b) * of_rows[:rows, None] * of_row(of_columns, lead) + of_row(bias, lead)
            gates, values = halves(z)
            near(out.view[:rows], gpu.apply(function, gates) * values)
        out.check()
        if "aux" in keywords:
            near(keywords["aux"][:rows], z)
            assert (keywords["aux"][rows:] == 7).all()


@pytest.mark.parametrize("operation", ["gemm", "grouped_gemm"])
@pytest.mark.parametrize("function", GATED)
def test_every_kernel_of_gradients(operation, function):
    call = getattr(cutlass_py, operation)
    for i, kernel in enumerate(kernels(operation, back=True)):
        c = kernel.config
        m, n, k = (208 if operation == "gemm" else sum(SIZES) + 3), (264, 72)[i % 2], 200
        lead = (len(SIZES),) if operation == "grouped_gemm" else ()
        a, b = operand((m, k), c.layout[0], c.a), operand((*lead, k, n), c.layout[1], c.a)
        aux = gpu.integers((m, 2 * n), c.d)
        out = torch.full((m, 2 * n), 7.0, device=gpu.DEVICE).to(gpu.DTYPES[c.d])
        call(a, b, out=out, gated=f"d_{function}", aux=aux, alpha=0.125, kernel=kernel, **groups(b))
        rows = sum(SIZES) if lead else m
        z, (gates, values) = 0.125 * product(a, b), halves(aux[:rows].double())
        wanted = [z * values * gpu.apply(f"d_{function}", gates), z * gpu.apply(function, gates)]
        near(out[:rows], torch.cat(wanted, -1))
        assert (out[rows:] == 7).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 256, 128), (37, 51, 29), (1, 8, 64), (130, 24, 0)])
def test_the_default_choice(dtype, m, n, k):
    """Joined by a kernel, or behind the product: whatever the dtype and the alignment."""
    a, b = gpu.integers((m, k), dtype, -1, 2), gpu.integers((k, 2 * n), dtype, -1, 2)
    bias, aux = gpu.integers((2 * n,), dtype), torch.empty((m, 2 * n), device=gpu.DEVICE).to(gpu.DTYPES[dtype])
    d = cutlass_py.gemm(a, b, gated="silu", bias=bias, aux=aux)
    z = product(a, b) + bias.double()
    gates, values = halves(z)
    near(d, gpu.apply("silu", gates) * values)
    near(aux, z)
    dy, w = gpu.integers((m, k), dtype, -1, 2), gpu.integers((k, n), dtype, -1, 2)
    back = product(dy, w)
    gates, values = halves(aux.double())
    wanted = torch.cat([back * values * gpu.apply("d_silu", gates), back * gpu.apply("silu", gates)], -1)
    near(cutlass_py.gemm(dy, w, gated="d_silu", aux=aux), wanted)
    near(cutlass_py.gemm(dy, w, gated="d_silu", aux=aux, out=aux), wanted)


def test_a_graph_follows_its_operands():
    a, b = gpu.integers((256, 128), "bf16", -1, 2), gpu.integers((4, 128, 512), "bf16", -1, 2)
    ends, out = (
        torch.tensor([64, 64, 200, 256], dtype=torch.int32, device=gpu.DEVICE),
        torch.empty((256, 256), dtype=torch.bfloat16, device=gpu.DEVICE),
    )
    cutlass_py.grouped_gemm(a, b, offsets=ends, gated="silu", out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cutlass_py.grouped_gemm(a, b, offsets=ends, gated="silu", out=out)
    ends.copy_(torch.tensor([0, 100, 101, 256]))
    graph.replay()
    for i, (begin, end) in enumerate([(0, 0), (0, 100), (100, 101), (101, 256)]):
        gates, values = halves(product(a[begin:end], b[i]))
        near(out[begin:end], gpu.apply("silu", gates) * values)


def test_tune_finds_a_kernel_of_gates_and_values():
    a, b = gpu.filled(gpu.integers((512, 1024), "bf16")), gpu.filled(gpu.integers((1024, 4096), "bf16"))
    found = cutlass_py.tune(a, b, gated="silu")
    assert "gated" in found.best.choice.route.kernel.name


# ---------------------------------------------------------------------------------------------------- torch


def leaf(*shape: int, dtype: str, scale: float = 1.0) -> torch.Tensor:
    x = torch.randn(shape, device=gpu.DEVICE, generator=torch.Generator(gpu.DEVICE).manual_seed(sum(shape)))
    return (scale * x).to(gpu.DTYPES[dtype]).requires_grad_()


def layer(function: str, grouped: bool, dtype: str) -> tuple[Any, list[torch.Tensor], Any]:
    """A call of cutlass_py.torch, the operands of a layer, whose weight lies as torch has it, and the same in f64."""
    m, n, k = 208, 264, 128
    lead = (len(SIZES),) if grouped else ()
    a, weight = leaf(m, k, dtype=dtype), leaf(*lead, 2 * n, k, dtype=dtype, scale=k**-0.5)
    bias = leaf(*lead, 2 * n, dtype=dtype)
    ends = torch.tensor(SIZES, device=gpu.DEVICE).cumsum(0).int()

    def ours(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if grouped:
            return ct.grouped_mm(a, weight.mT, offs=ends, bias=bias, gated=function)
        return ct.gemm(a, weight.mT, bias=bias, gated=function)

    def wanted(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if not grouped:
            gates, values = halves(a.double() @ weight.double().mT + bias.double())
            return gpu.apply(function, gates) * values
        rows = a.double()[: sum(SIZES)].split(SIZES)
        z = [x @ w.mT + row for x, w, row in zip(rows, weight.double(), bias.double(), strict=True)]
        gates, values = halves(torch.cat(z))
        return torch.cat([gpu.apply(function, gates) * values, a.new_zeros(m - sum(SIZES), n).double()])

    return ours, [a, weight, bias], wanted


def alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    near = 3e-2 if found.dtype.itemsize == 2 else 1e-4 if found.dtype == torch.float32 else 1e-10
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=near, atol=near * float(wanted.detach().abs().max())
    )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("function", ["silu", "gelu_tanh", "relu"])
def test_torch_values_and_gradients(function, grouped, dtype):
    """f32 and f64 have no kernels of groups: those are known to the host, and z is written all the same."""
    ours, given, wanted = layer(function, grouped, dtype)
    d, e = ours(*given), wanted(*given)
    assert d.dtype == gpu.DTYPES[dtype]
    alike(d, e)
    weight = torch.randn_like(e)
    found = torch.autograd.grad(d, given, weight.to(d.dtype))
    for x, y in zip(found, torch.autograd.grad(e, given, weight), strict=True):
        alike(x, y)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_graph_of_torch_waits_for_nobody(keeps):
    """A forward pass with and without what the backward pass reads: else its capture is refused."""
    ours, given, wanted = layer("silu", True, "bf16")
    with torch.set_grad_enabled(keeps):
        ours(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            d = ours(*given)
    graph.replay()
    alike(d, wanted(*given))


@gpu.quiet
@pytest.mark.parametrize("grouped", [False, True])
def test_torch_compile(grouped):
    torch._dynamo.reset()
    ours, given, _ = layer("silu", grouped, "bf16")
    found, d = torch.compile(ours, fullgraph=True)(*given), ours(*given)
    alike(found, d)
    weight = torch.randn_like(d)
    for x, y in zip(*(torch.autograd.grad(x, given, weight) for x in (found, d)), strict=True):
        alike(x, y)


def test_experts_of_transformers():
    transformers = pytest.importorskip("transformers", minversion="5.17")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_experts_per_tok=2, max_position_embeddings=64, num_local_experts=4,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(gpu.DEVICE, torch.bfloat16)
    experts = next(x for name, x in model.named_modules() if name.endswith("experts"))
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = leaf(48, 128, dtype="bf16")
    index = torch.stack([torch.randperm(4, device=gpu.DEVICE)[:2] for _ in range(48)])
    shares = torch.rand(48, 2, device=gpu.DEVICE).bfloat16()
    results = []
    for name in (ct.register_experts(), "eager"):
        model.set_experts_implementation(name)
        d = experts(x, index, shares)
        results.append((d, *torch.autograd.grad(d.float().sum(), (x, *experts.parameters()))))
    for found, wanted in zip(*results, strict=True):
        alike(found, wanted)
