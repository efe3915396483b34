"""cutlass_py.torch on a GPU: values, gradients, training, torch.compile, graphs, streams, leaks, two devices."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from leaks import assert_nothing_stays  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import cutlass_py.torch as ct  # noqa: E402

pytestmark = pytest.mark.gpu
FLOATS = ("f16", "bf16", "f32", "f64")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)


def spin(milliseconds: float = 30) -> None:
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def near(found, wanted, dtype="bf16"):
    """In norm, to a few roundings of the dtype."""
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    unit = 8 * torch.finfo(gpu.DTYPES[dtype]).eps
    error = (gpu.wide(found) - gpu.wide(wanted)).norm() / gpu.wide(wanted).norm().clamp_min(1e-30)
    assert error < unit, f"off by {error:.2e} of the norm; expected at most {unit:.2e}"


# ------------------------------------------------------------------------------------------------ values


SHAPES = [(1, 1, 1), (64, 128, 96), (65, 96, 112), (129, 257, 99), (512, 768, 1000)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products(dtype, shape):
    m, n, k = shape
    a, b, c = gpu.integers((m, k), dtype), gpu.integers((k, n), dtype), gpu.integers((m, n), dtype)
    product = gpu.expected(a, b)
    gpu.assert_exact(ct.mm(a, b), product)
    gpu.assert_exact(ct.mm(a, b, out=torch.empty_like(c)), product)
    gpu.assert_exact(ct.matmul(a, b[:, 0]), product[:, 0])
    gpu.assert_exact(ct.addmm(c, a, b, beta=-1, alpha=2), 2 * product - c.double())
    gpu.assert_exact(ct.addmm(c[0], a, b), product + c[0].double())
    gpu.assert_exact(ct.linear(a, b.mT.contiguous(), c[0]), product + c[0].double())
    gpu.assert_exact(ct.linear(a[None], b.mT.contiguous())[0], product)
    batch = torch.stack([a, -a, 2 * a])
    expected = torch.stack([product, -product, 2 * product])
    gpu.assert_exact(ct.bmm(batch, b.expand(3, k, n)), expected)
    gpu.assert_exact(ct.baddbmm(c, batch, b.expand(3, k, n), beta=3), expected + 3 * c.double())
    gpu.assert_exact(torch.func.vmap(ct.mm, (0, None))(batch, b), expected)


def test_bytes_wrap_around_and_fp8_keeps_its_dtype():
    a, b = gpu.normals((64, 128), "s8"), gpu.normals((128, 96), "s8")
    wrapped = gpu.expected(a, b).long().to(torch.int8)
    assert torch.equal(ct.mm(a, b), wrapped)
    if torch.cuda.get_device_capability() == (9, 0):
        e = gpu.integers((64, 128), "e4m3")
        assert ct.mm(e, e.mT).dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("given", ["f32", "f16", "f64"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(given, dtype):
    a, b, c = gpu.integers((64, 128), given), gpu.integers((128, 96), given), gpu.integers((96,), given)
    with torch.autocast("cuda", dtype=dtype):
        for ours, theirs in (
            (ct.mm(a, b), torch.mm(a, b)),
            (ct.addmm(c, a, b), torch.addmm(c, a, b)),
            (ct.linear(a, b.mT, c), functional.linear(a, b.mT, c)),
        ):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


# ------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "hardswish"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_gradients(dtype, activation):
    operands = [gpu.normals(s, dtype, 0.3).requires_grad_() for s in ((4, 100, 256), (192, 256), (192,))]
    wide = [x.detach().double().requires_grad_() for x in operands]
    d = ct.gemm(operands[0], operands[1].mT, bias=operands[2], activation=activation)
    before = wide[0] @ wide[1].mT + wide[2]
    expected = gpu.apply(activation, before)
    near(d, expected, dtype)
    # Derivatives have steps at 0 and +-3, of either value there, and a rounded sum may lie on a step's other side.
    away = torch.stack([(before - step).abs() for step in (-3, 0, 3)]).amin(0) > 2**-6
    weight = gpu.normals(tuple(d.shape), dtype) * away
    found = torch.autograd.grad(d, operands, weight)
    for grad, wanted in zip(found, torch.autograd.grad(expected, wide, weight.double()), strict=True):
        assert grad.dtype == gpu.DTYPES[dtype]
        near(grad, wanted, dtype)
    assert found[1].is_contiguous()


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_mlp_is_fused_backwards(activation):
    operands = [
        gpu.normals(s, "bf16", 0.2).requires_grad_() for s in ((256, 128), (512, 128), (96, 512), (512,), (96,))
    ]
    x, w1, w2, b1, b2 = wide = [t.detach().double().requires_grad_() for t in operands]
    d, expected = ct.mlp(*operands, activation=activation), gpu.apply(activation, x @ w1.mT + b1) @ w2.mT + b2
    near(d, expected)
    weight = gpu.normals(tuple(d.shape), "bf16")
    found = torch.autograd.grad(d, operands, weight)
    for grad, wanted in zip(found, torch.autograd.grad(expected, wide, weight.double()), strict=True):
        near(grad, wanted)


def test_swiglu():
    x, w1, w3 = (gpu.normals(s, "bf16", 0.3).requires_grad_() for s in ((128, 256), (384, 256), (384, 256)))
    y, v1, v3 = wide = [t.detach().double().requires_grad_() for t in (x, w1, w3)]
    d = ct.gemm(x, w3.mT, gate=ct.gemm(x, w1.mT), activation="silu")
    expected = functional.silu(y @ v1.mT) * (y @ v3.mT)
    near(d, expected)
    found = torch.autograd.grad(d.float().square().sum(), (x, w1, w3))
    for grad, wanted in zip(found, torch.autograd.grad(expected.square().sum(), wide), strict=True):
        near(grad, wanted)


def test_f64_derivatives():
    a, b, bias = (gpu.normals(s, "f64").requires_grad_() for s in ((3, 4), (4, 5), (5,)))
    for activation in ("silu", "gelu"):
        function = lambda a, b, bias, f=activation: ct.gemm(a, b, bias=bias, activation=f)  # noqa: E731
        assert torch.autograd.gradcheck(function, (a, b, bias))
        assert torch.autograd.gradgradcheck(function, (a, b, bias))


# ------------------------------------------------------------------------------------------------ training


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


def losses(model, run, steps=20):
    torch.manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for _ in range(steps):
        x = torch.randn(4, 64, 256, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = run(x)
        loss = functional.mse_loss(y.float(), x.flip(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.detach())
    return torch.stack(found)


@gpu.quiet
@pytest.mark.parametrize("mode", ["eager", "default", "reduce-overhead"])
def test_a_block_trains_as_with_stock_layers(mode):
    torch._dynamo.reset()
    stock = Block().cuda()
    ours = copy.deepcopy(stock)
    assert len(ct.replace_linear(ours).replaced) == 4
    run = ours if mode == "eager" else torch.compile(ours, mode=mode, fullgraph=True)
    wanted, found = losses(stock, stock), losses(ours, run)
    assert found[-1] < found[0]
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0)


@gpu.quiet
def test_reduce_overhead_replays_a_graph():
    """Values follow the inputs, which a stale pointer in a captured graph would not."""
    torch._dynamo.reset()
    weight, bias = gpu.integers((96, 128), "bf16"), gpu.integers((96,), "bf16")
    layer = torch.compile(
        lambda x: ct.gemm(x, weight.mT, bias=bias, activation="relu"), mode="reduce-overhead", fullgraph=True
    )
    torch._dynamo.utils.counters.clear()
    for _ in range(6):
        x = gpu.integers((64, 128), "bf16")
        torch.compiler.cudagraph_mark_step_begin()
        gpu.assert_exact(layer(x).clone(), torch.relu(gpu.expected(x, weight.mT) + bias.double()))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


@gpu.quiet
def test_compile_with_dynamic_shapes():
    torch._dynamo.reset()
    weight = gpu.integers((96, 128), "bf16")
    layer = torch.compile(lambda x: ct.linear(x, weight) + 1, dynamic=True, fullgraph=True)
    for rows in (3, 64, 130):
        x = gpu.integers((rows, 128), "bf16")
        gpu.assert_exact(layer(x), gpu.expected(x, weight.mT) + 1)


# ------------------------------------------------------------------------------------------------ graphs and streams


def test_capture_of_a_training_step():
    x, weight = gpu.integers((64, 128), "bf16"), gpu.integers((96, 128), "bf16").requires_grad_()
    bias = gpu.integers((96,), "bf16").requires_grad_()

    def step():
        weight.grad = bias.grad = None
        ct.linear(x, weight, bias).sum().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    weight.grad = bias.grad = None
    with torch.cuda.graph(graph):
        ct.linear(x, weight, bias).sum().backward()
    for _ in range(3):
        x.copy_(gpu.integers((64, 128), "bf16"))
        graph.replay()
        gpu.assert_exact(weight.grad, x.double().sum(0).expand(96, 128))
        gpu.assert_exact(bias.grad, torch.full((96,), 64.0, device="cuda", dtype=torch.float64))


def test_capture_of_straight_calls():
    a, b, out = gpu.integers((64, 128), "bf16"), gpu.integers((128, 96), "bf16"), torch.empty(64, 96, device="cuda")
    out = out.bfloat16()
    ct.mm(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ct.mm(a, b, out=out)
        fresh = ct.matmul(a, b)
    a.neg_()
    graph.replay()
    for d in (out, fresh):
        gpu.assert_exact(d, gpu.expected(a, b))


@pytest.mark.parametrize("grad", [False, True], ids=["straight", "recorded"])
def test_a_late_producer_on_a_side_stream(grad):
    a, b = gpu.integers((256, 256), "bf16"), gpu.integers((256, 256), "bf16").requires_grad_(grad)
    source, reference = a.clone(), gpu.expected(a, b.detach())
    a.zero_()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        spin()
        a.copy_(source)
        d = ct.mm(a, b)
        result = d.detach() + 0
        if grad:
            spin()
            d.sum().backward()  # runs on the stream of its forward pass
            gradient = b.grad + 0
    side.synchronize()
    gpu.assert_exact(result, reference)
    if grad:
        gpu.assert_exact(gradient, source.double().sum(0)[:, None].expand(256, 256))


def test_memory_is_given_back_behind_the_launch():
    """A result that is dropped at once may be allocated again: on the same stream that is in order."""
    a, b = gpu.integers((512, 512), "bf16"), gpu.integers((512, 512), "bf16")
    reference = gpu.expected(a, b)
    kept = []
    for _ in range(50):
        ct.mm(-a, b)  # dropped; were its memory used again too early, the wrong sign would show
        kept.append(ct.mm(a, b))
    for d in kept:
        gpu.assert_exact(d, reference)


# ------------------------------------------------------------------------------------------------ leaks


def test_nothing_leaks():
    a, b, out = (gpu.integers((64, 64), "bf16") for _ in range(3))
    bias = a[0]

    def straight():
        ct.mm(a, b, out=out)
        ct.linear(a, b, bias)

    assert_nothing_stays(straight, (a, b, out, bias), used=gpu.used)


def test_nothing_that_gradients_take_leaks():
    a, bias = (gpu.integers(shape, "bf16") for shape in ((64, 64), (64,)))
    weight = gpu.integers((64, 64), "bf16").requires_grad_()

    def step():
        weight.grad = None
        ct.gemm(a, weight.mT, bias=bias, activation="gelu").sum().backward()

    assert_nothing_stays(step, (a, bias, weight), count=20_000, used=gpu.used)


# ------------------------------------------------------------------------------------------------ two devices


two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@two
def test_the_device_of_the_operands():
    for device in ("cuda:1", "cuda:0"):
        a, b = torch.ones(64, 32, device=device), torch.ones(32, 48, device=device, requires_grad=True)
        d = ct.mm(a, b)
        d.sum().backward()
        assert d.device == b.grad.device == torch.device(device) and (d == 32).all() and (b.grad == 64).all()


def work(rank: int, port: int) -> None:
    from test_torch_sharding import tensor_parallel_mlp
    from torch.distributed.device_mesh import init_device_mesh

    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cuda", (2,))
    for dtype in (torch.float32, torch.bfloat16):
        tensor_parallel_mlp(mesh, "cuda", dtype)
    torch.distributed.destroy_process_group()


@two
@gpu.quiet
def test_tensor_parallel_mlp():
    from test_torch_sharding import free_port

    torch.multiprocessing.spawn(work, (free_port(),), nprocs=2)
