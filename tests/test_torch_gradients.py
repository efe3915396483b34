"""Derivatives of cutlass_py.torch by finite differences in f64, and what the backward pass computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import Activation, _core, clamp, leaky_relu  # noqa: E402
from cutlass_py.declaration import epilogues  # noqa: E402
from cutlass_py.torch import activations, layer_gradient, operators  # noqa: E402

ACTIVATIONS = [name for name, row in epilogues.ACTIVATIONS.items() if not row.derivative and name != "clamp"]
ACTIVATIONS = [None, *ACTIVATIONS[1:], clamp(-0.5, 1), leaky_relu(0.25)]
DERIVATIVES = [name for name, row in epilogues.ACTIVATIONS.items() if row.derivative]
THEIRS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "tanh": torch.tanh}
THEIRS |= {"gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def check(function, *operands):
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


def test_the_tables_are_covered():
    plain = {name for name, row in epilogues.ACTIVATIONS.items() if not row.derivative}
    assert set(activations._VALUE) == set(activations._DERIVATIVE) == plain
    assert {f"d_{name}" for name in activations._SECOND} == set(DERIVATIVES)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_activations(activation, scale):
    check(
        lambda a, b, bias: ct.gemm(a, b, bias=bias, activation=activation, scale_out=scale),
        leaf(3, 4),
        leaf(4, 5),
        leaf(5),
    )


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_gates(activation):
    check(lambda a, b, gate: ct.gemm(a, b, gate=gate, activation=activation), leaf(2, 3, 4), leaf(4, 5), leaf(3, 5))


@pytest.mark.parametrize("activation", DERIVATIVES)
def test_derivatives(activation):
    check(lambda a, b, aux: ct.gemm(a, b, aux=aux, activation=activation), leaf(3, 4), leaf(4, 5), leaf(3, 5))


BROADCAST = [("gate", name) for name in THEIRS] + [("aux", name) for name in DERIVATIVES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("operand", "activation"), BROADCAST, ids=str)
def test_what_is_broadcast_over_the_batch(operand, activation, dtype):
    """In dtypes for which torch's kernels on the CPU are others than in f64, and a gradient for each example."""

    def loss(a, b, x):
        return ct.gemm(a, b, activation=activation, **{operand: x}).double().square().sum()

    given = [x.detach().to(dtype) for x in (leaf(2, 3, 4), leaf(4, 5), leaf(3, 5))]
    found, wanted = (
        torch.autograd.grad(loss(*leaves), leaves)
        for leaves in ([x.to(y).requires_grad_() for x in given] for y in (dtype, torch.float64))
    )
    for grad, right in zip(found, wanted, strict=True):
        assert (
            grad.dtype == dtype
            and (grad.double() - right).norm() <= (0.03 if dtype.itemsize == 2 else 1e-5) * right.norm()
        )

    a, b, x = given
    grads = torch.func.grad(loss, (0, 2))
    each = torch.func.vmap(grads, (0, None, None))(a[:, None], b, x)
    torch.testing.assert_close(each, tuple(map(torch.stack, zip(*(grads(y[None], b, x) for y in a), strict=True))))


@pytest.mark.parametrize("activation", [None, "gelu", "relu", "tanh"])
def test_fp8_results(activation):
    values = [x.detach().bfloat16() for x in (leaf(3, 4), leaf(4, 5))]
    scale = torch.tensor(2.0, requires_grad=True)
    for scale_out in (None, 2.0, scale):
        a, b = (x.clone().requires_grad_() for x in values)
        d = ct.gemm(a, b, activation=activation, scale_out=scale_out, out_dtype=torch.float8_e4m3fn)
        d.float().sum().backward()
        wide = [x.double().requires_grad_() for x in values]
        expected = THEIRS.get(activation, lambda x: x)(wide[0] @ wide[1]) * (1 if scale_out is None else 2)
        expected.sum().backward()
        for x, y in zip((a, b), wide, strict=True):
            assert (x.grad.double() - y.grad).norm() < 0.1 * y.grad.norm()
    torch.testing.assert_close(scale.grad.double(), expected.sum().detach() / 2, rtol=0.1, atol=0.3)


def test_aux_of_fewer_bits_does_not_make_gradients_coarser():
    a, b = leaf(3, 4), leaf(4, 5)
    aux = torch.empty(3, 5, dtype=torch.float8_e4m3fn)
    d = ct.gemm(a, b, activation="gelu", aux=aux)
    torch.testing.assert_close(torch.autograd.grad(d.sum(), (a, b)), torch.autograd.grad(F.gelu(a @ b).sum(), (a, b)))
    torch.testing.assert_close(aux.detach().double(), (a @ b).detach(), rtol=0.07, atol=0.01)


def test_z_is_computed_again_beside_a_bias_of_8_bits():
    a, b, dtype = leaf(3, 4, dtype=torch.bfloat16), torch.randn(4, 5).bfloat16(), torch.float8_e4m3fn
    ones = torch.ones(3, 5, dtype=dtype)
    d = ct.gemm(a, b, bias=ones[0], activation="gelu", aux=torch.empty_like(ones), out_dtype=dtype)
    (grad,) = torch.autograd.grad(d, a, ones)
    wide = a.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(wide @ b.double() + 1).sum(), wide)
    torch.testing.assert_close(grad.double(), expected, rtol=0.05, atol=0.05)


def test_eager_gradients_are_those_of_the_operator(monkeypatch):
    """Where nothing else has to see a call, it is recorded without torch's dispatch."""
    from cutlass_py.torch import gradients

    calls, below = [], gradients._below
    monkeypatch.setattr(gradients, "_below", lambda *call: calls.append(call) or below(*call))
    a, b, bias = leaf(3, 4), leaf(4, 5), leaf(5)

    def step():
        sums = torch.zeros(5, dtype=torch.float64)
        d = ct.gemm(a, b, bias=bias, activation="silu", bias_grad=sums)
        return d, sums, *torch.autograd.grad(d.square().sum() + sums.sum(), (a, b, bias), create_graph=True)

    direct = step()
    assert not calls
    with FlopCounterMode(display=False):
        seen = step()
    assert calls
    torch.testing.assert_close(direct, seen)


def test_sums_in_f64_of_operands_in_f32():
    """Every way sums 2**25 and eight ones in f64, and takes an incoming gradient in it."""
    x = torch.ones(9, 1)
    x[0] = 2.0**25

    def step(a):
        sums = torch.zeros(1, dtype=torch.float64)
        ct.gemm(a, torch.ones(1, 1), bias_grad=sums)
        return sums, *torch.autograd.grad(sums.square().sum(), a)

    recorded = step(x.clone().requires_grad_())
    with FlopCounterMode(display=False):
        seen = step(x.clone().requires_grad_())
    compiled = torch.compile(step, backend="aot_eager")(x.clone().requires_grad_())
    for sums, gradient in (recorded, seen, compiled):
        assert sums.item() == 2**25 + 8
        torch.testing.assert_close(gradient, torch.full((9, 1), 2.0 * (2**25 + 8)))


@pytest.mark.parametrize("activation", [name.removeprefix("d_") for name in DERIVATIVES])
def test_mlp(activation):
    operands = leaf(2, 2, 4), leaf(6, 4), leaf(5, 6), leaf(6), leaf(5)
    check(lambda *operands: ct.mlp(*operands, activation=activation), *operands)


@pytest.mark.parametrize("trained", range(5))
def test_mlp_of_which_one_operand_is_trained(trained):
    operands = [
        x if i == trained else x.detach() for i, x in enumerate((leaf(2, 4), leaf(6, 4), leaf(5, 6), leaf(6), leaf(5)))
    ]
    check(lambda x: ct.mlp(*operands[:trained], x, *operands[trained + 1 :]), operands[trained])


def test_mlp_is_what_it_says():
    x, w1, w2, b1, b2 = leaf(2, 3, 4), leaf(6, 4), leaf(5, 6), leaf(6), leaf(5)
    for name, f in THEIRS.items():
        expected = f(x @ w1.mT + b1) @ w2.mT + b2
        d = ct.mlp(x, w1, w2, b1, b2, activation=name)
        torch.testing.assert_close(d, expected)
        with torch.no_grad():
            torch.testing.assert_close(ct.mlp(x, w1, w2, b1, b2, activation=name), expected)
        weight = torch.randn_like(d)
        found, wanted = (torch.autograd.grad(y, (x, w1, w2, b1, b2), weight) for y in (d, expected))
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(ct.mlp(x, w1, w2), torch.nn.functional.gelu(x @ w1.mT) @ w2.mT)
    torch.testing.assert_close(
        ct.mlp(x, w1, w2, activation=clamp(0, 1)), (x @ w1.mT).clamp(0, 1) @ w2.mT
    )  # without a fused derivative


@pytest.mark.parametrize("mapped", [(None, None, 0), (0, None, None), (None, 0, 0)], ids=str)
def test_second_derivatives_of_a_mapped_mlp(mapped):
    """Of an ensemble over the last layer, for one, whose hidden values are not mapped."""
    shapes = [(2, *s) if dim == 0 else s for s, dim in zip(((3, 4), (5, 4), (6, 5)), mapped, strict=True)]
    operands = [leaf(*s) for s in shapes]

    def second(f):
        d = torch.func.vmap(f, mapped)(*operands)
        grads = torch.autograd.grad(d.sin().sum(), operands, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in grads), operands)

    expected = second(lambda x, w1, w2: torch.nn.functional.gelu(x @ w1.mT) @ w2.mT)
    torch.testing.assert_close(second(ct.mlp), expected)


@pytest.mark.parametrize("call", [
    lambda a, b, s: ct.mlp(a, b.mT, b),
    lambda a, b, s: ct.gemm(a, b, alpha=s),
    lambda a, b, s: ct.gemm(a, b, scale_out=s),
    lambda a, b, s: ct.gemm(a, b, activation="d_gelu", aux=s.expand(3, 5)),
    lambda a, b, s: ct.mm(a, b),
])  # fmt: skip
def test_a_pullback_is_called_after_its_transform(call):
    """What it has kept are torch.func's own tensors, without memory."""
    operands = leaf(3, 4), leaf(4, 5), leaf(1)
    d, pullback = torch.func.vjp(call, *(x.detach() for x in operands))
    found = pullback(torch.ones_like(d))
    expected = torch.autograd.grad(call(*operands).sum(), operands, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, expected)


def test_zeros_that_torch_has_not_made_yet():
    zeros, w = torch._efficientzerotensor(3, 4), torch.randn(4, 5)
    assert torch.equal(ct.mm(zeros, w), torch.zeros(3, 5))


@pytest.mark.parametrize("call", [ct.mm, lambda x, w: ct.gemm(x, w, alpha=2) / 2, lambda x, w: ct.mlp(x, w.mT, w)])
def test_a_sparse_gradient(call):
    x, w, index = leaf(3, 4), leaf(4, 4), torch.tensor([[0, 2], [1, 1], [3, 0]])
    found = torch.autograd.grad(torch.gather(call(x, w), 1, index, sparse_grad=True).sum(), (x, w))
    expected = torch.autograd.grad(torch.gather(call(x, w), 1, index).sum(), (x, w))
    torch.testing.assert_close(found, expected)


def test_values_beyond_f16_within_a_backward_pass():
    """What a factor brings into D's range need not have been in it before."""
    a, b = torch.full((2, 100), 100.0).half(), torch.full((100, 3), 100.0).half()
    for name in ("alpha", "scale_a"):
        factor = torch.tensor([1e-3], requires_grad=True)
        d = ct.gemm(a, b, **{name: factor})
        (grad,) = torch.autograd.grad(d.float().sum(), factor)
        torch.testing.assert_close(grad, torch.tensor([6e6]))
    x = (a / 100).requires_grad_()
    for activation in ("gelu", "silu", "relu"):
        d = ct.gemm(x, b * 10, activation=activation, scale_out=1e-3)
        (grad,) = torch.autograd.grad(d.float().sum(), x)
        torch.testing.assert_close(grad, torch.full((2, 100), 3.0).half())
    gate = torch.full((2, 3), -10.0).half().requires_grad_()
    d = ct.gemm(a, b / 10, gate=gate, activation="silu")
    (grad,) = torch.autograd.grad(d.float().sum(), gate)
    wide = gate.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad((1e5 * torch.nn.functional.silu(wide)).sum(), wide)
    torch.testing.assert_close(grad.float(), expected, rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("name", ["alpha", "scale_a", "scale_b"])
def test_the_factor_of_an_fp8_result(name):
    factor = torch.full((1,), 2.0, requires_grad=True)
    a, b = torch.rand(3, 4).bfloat16(), torch.rand(4, 5).bfloat16()
    d = ct.gemm(a, b, **{name: factor}, out_dtype=torch.float8_e4m3fn)
    (grad,) = torch.autograd.grad(d.float().sum(), factor)
    torch.testing.assert_close(grad, (a.float() @ b.float()).sum().reshape(1), rtol=1e-2, atol=0.0)


FACTORS = {
    "vectors": ((3, 4), (4, 5), {"scale_a": (3,), "scale_b": (5,)}),
    "columns and rows": ((2, 3, 4), (4, 5), {"scale_a": (2, 3, 1), "scale_b": (1, 5)}),
    "batches of both": ((2, 3, 4), (4, 5), {"scale_a": (2, 3, 1), "scale_b": (2, 1, 5)}),
    "single": ((2, 3, 4), (4, 5), {"scale_a": (1,), "scale_b": (), "scale_out": (1,)}),
    "factors": ((3, 4), (4, 5), {"alpha": (1,), "beta": (), "c": (3, 5), "scale_out": ()}),
    "everything": (
        (2, 3, 4),
        (2, 4, 5),
        {"alpha": (), "beta": (1,), "c": (3, 5), "bias": (3, 1), "scale_a": (3,), "scale_b": (2, 1, 5)},
    ),
}


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("a", "b", "others"), FACTORS.values(), ids=FACTORS)
def test_scales_and_factors(a, b, others, activation):
    def call(a, b, *rest):
        return ct.gemm(a, b, activation=activation, **dict(zip(others, rest, strict=True)))

    check(call, leaf(*a), leaf(*b), *(leaf(*shape) for shape in others.values()))


def test_complex():
    a, b, c = (leaf(*s, dtype=torch.complex128) for s in ((3, 4), (4, 5), (5,)))
    check(lambda a, b, c: ct.gemm(a, b, bias=c, alpha=1 - 2j), a, b, c)
    check(lambda a, b, c: ct.addmm(c, a, b, beta=2 + 1j, alpha=1j), a, b, c)
    check(lambda a, b: ct.mm(a.conj(), b.mH), a, leaf(5, 4, dtype=torch.complex128))


def test_aux_and_bias_grad():
    def call(a, b, bias):
        aux, sums = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
        return ct.gemm(a, b, bias=bias, activation="gelu", aux=aux, bias_grad=sums), aux, sums

    check(call, leaf(3, 4), leaf(4, 5), leaf(5))

    def column(a, b):
        sums = torch.zeros(3, 1, dtype=torch.float64)
        return ct.gemm(a, b, activation="tanh", bias_grad=sums), sums

    check(column, leaf(3, 4), leaf(4, 5))


@pytest.mark.parametrize("shapes", [((2, 1, 3, 4), (3, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((4,), (4,))])
def test_what_is_repeated_is_summed(shapes):
    check(ct.matmul, *(leaf(*shape) for shape in shapes))


def test_gradients_lie_as_their_operands():
    weight = leaf(5, 4)
    ct.linear(leaf(2, 3, 4), weight).square().sum().backward()
    assert weight.grad.is_contiguous()
    seen = {}

    def note(name):
        return lambda grad: seen.update({name: grad.stride()})

    a, b = leaf(3, 4), leaf(5, 4).detach().mT.requires_grad_()
    a.register_hook(note("a")), b.register_hook(note("b"))
    ct.mm(a, b).square().sum().backward()
    assert seen == {"a": a.stride(), "b": b.stride()}


def test_only_what_is_needed_is_computed():
    from torch.utils.flop_counter import FlopCounterMode

    a, b = leaf(3, 4), leaf(4, 5)
    for operands, products in (((a, b), 3), ((a.detach(), b), 2), ((a, b.detach()), 2)):
        with FlopCounterMode(display=False) as counter:
            ct.gemm(*operands, bias=leaf(5), activation="gelu", scale_out=2.0).sum().backward()
        assert counter.get_total_flops() == products * 2 * 3 * 4 * 5
    with FlopCounterMode(display=False) as counter:
        ct.mlp(a, leaf(6, 4), leaf(5, 6), leaf(6), leaf(5)).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 3 * 6 * (4 + 5)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ct.linear, [(3, 4), (5, 4), (5,)]),
        (ct.mm, [(3, 4), (4, 5)]),
        (lambda a, w, bias: ct.gemm(a.sin(), w.mT, bias=bias, alpha=2, activation="gelu"), [(3, 4), (5, 4), (5,)]),
        (ct.mlp, [(3, 4), (6, 4), (5, 6), (6,), (5,)]),
    ],
    ids=["linear", "mm", "gemm", "mlp"],
)
def test_products_that_nobody_asks_for_are_not_computed(function, shapes):
    """As in autograd.grad(d, x) of a layer that is trained otherwise."""
    operands = [leaf(*shape) for shape in shapes]
    d = function(*operands)
    expected, all_flops = counted(lambda: torch.autograd.grad(d.sum(), operands, retain_graph=True))
    for i, x in enumerate(operands):
        (found,), flops = counted(lambda x=x: torch.autograd.grad(d.sum(), x, retain_graph=True))
        assert flops < all_flops
        torch.testing.assert_close(found, expected[i])
        _, as_many = counted(lambda x=x: d.sum().backward(inputs=[x], retain_graph=True))
        assert as_many == flops
        torch.testing.assert_close(x.grad, expected[i])
    operands = [leaf(*shape) if i == 0 else y for i, (shape, y) in enumerate(zip(shapes, operands, strict=True))]
    theirs = [x.detach().requires_grad_(i == 0) for i, x in enumerate(operands)]  # where the rest is frozen
    flops = [counted(lambda x=x: torch.autograd.grad(function(*x).sum(), x[0]))[1] for x in (operands, theirs)]
    assert flops[0] == flops[1]


def counted(function):
    """Its result, and the operations of its products."""
    with FlopCounterMode(display=False) as counter:
        result = function()
    return result, counter.get_total_flops()


# ---------------------------------------------------------------------------------------- what is kept, dtypes


@pytest.mark.parametrize("alpha", [1, 2])  # a layer, and the node of every epilogue
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "gelu"])
def test_what_is_kept_for_the_backward_pass(activation, alpha):
    """Where f' follows from the result, nothing but that is kept; else z is, once."""
    a, b = leaf(30, 40), leaf(40, 50)
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
        d = ct.gemm(a, b, alpha=alpha, activation=activation)
    assert (d.data_ptr() in kept) == (activation != "gelu")
    assert sum(x.numel() == d.numel() for x in kept.values()) == 1


def test_16_bits_are_close_to_f64():
    x, w, bias = leaf(64, 128), leaf(96, 128), leaf(96)
    narrow = [t.detach().bfloat16().requires_grad_() for t in (x, w, bias)]
    wide = [t.detach().double().requires_grad_() for t in narrow]
    weight = torch.randn(64, 96).bfloat16()
    for activation in ("gelu_tanh", "silu", "relu", "tanh"):
        d = ct.gemm(narrow[0], narrow[1].mT, bias=narrow[2], activation=activation)
        expected = THEIRS[activation](wide[0] @ wide[1].mT + wide[2])
        found, wanted = torch.autograd.grad(d, narrow, weight), torch.autograd.grad(expected, wide, weight.double())
        for grad, right in zip(found, wanted, strict=True):
            assert grad.dtype == torch.bfloat16
            assert (grad.double() - right).norm() < 0.01 * right.norm()


def test_f32_results_of_16_bits():
    a, b = (leaf(*s, dtype=torch.bfloat16) for s in ((3, 4), (4, 5)))
    d = ct.gemm(a, b, out_dtype="f32", activation="gelu")
    d.sum().backward()
    assert d.dtype == torch.float32 and a.grad.dtype == b.grad.dtype == torch.bfloat16


def test_fp8_operands():
    a, b = torch.ones(3, 4).to(torch.float8_e4m3fn), torch.ones(4, 5).to(torch.float8_e4m3fn)
    bias, scale = leaf(5, dtype=torch.float32), torch.tensor(2.0, requires_grad=True)
    d = ct.gemm(a, b, bias=bias, scale_a=scale, activation="gelu", out_dtype="f32")
    d.sum().backward()
    assert bias.grad.shape == (5,) and scale.grad.abs() > 0
    with pytest.raises(TypeError, match="a requires a gradient and is torch.float8_e4m3fn; expected a float of 16"):
        ct.gemm(a.requires_grad_(), b)


def test_compute_and_determinism_are_kept(monkeypatch):
    from cutlass_py import _core

    seen, real = [], _core.gemm

    class Core:
        @staticmethod
        def gemm(*arguments, **keywords):
            seen.append((keywords["compute"], keywords["deterministic"], keywords["splits"], keywords["kernel"]))
            return real(*arguments, **keywords)

    monkeypatch.setattr("cutlass_py.torch.operators._core", Core)
    a, b = (leaf(*s, dtype=torch.float32) for s in ((3, 4), (4, 5)))
    ct.gemm(a, b, compute="3xtf32", deterministic=True, splits=2, kernel="cpu_gemm_numpy").sum().backward()
    assert seen[0] == ("3xtf32", True, 2, "cpu_gemm_numpy") and seen[1:] == [("3xtf32", True, None, None)] * 2


def test_gradients_of_expanded_and_absent_gradients():
    a, b = leaf(3, 4), leaf(4, 5)
    pre = torch.zeros(3, 5, dtype=torch.float64)
    d = ct.gemm(a, b, activation="gelu", aux=pre)
    pre.sum().backward()  # nothing comes back from d
    torch.testing.assert_close(a.grad, b.detach().sum(1).expand(3, 4))
    assert d.requires_grad


def test_in_place_changes_are_noticed():
    a, b = leaf(3, 4), leaf(4, 5)
    held = b.detach().clone()
    d = ct.mm(a, held)
    held += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        d.sum().backward()


# ---------------------------------------------------------------------------------------------------- torch.func


def test_transforms_of_torch_func():
    x, w = torch.randn(3, 4, dtype=torch.float64), leaf(4, 5)
    rev = torch.func.jacrev
    transforms = (torch.func.grad, lambda g: rev(rev(g)), lambda g: rev(rev(rev(g))))
    for name, f in THEIRS.items():

        def ours(x, w=w, name=name):
            return ct.gemm(x, w, activation=name).sum()

        def theirs(x, w=w, f=f):
            return f(x @ w).sum()

        for transform in transforms:
            torch.testing.assert_close(transform(ours)(x), transform(theirs)(x), msg=f"{name}")
        torch.testing.assert_close(*(torch.autograd.functional.hessian(g, x) for g in (ours, theirs)))
        outer = [torch.autograd.grad(torch.func.grad(g)(x).square().sum(), w)[0] for g in (ours, theirs)]
        torch.testing.assert_close(*outer)


def test_gradients_of_each_example():
    x, w, bias = (torch.randn(s, dtype=torch.float64) for s in ((6, 3, 4), (5, 4), (5,)))

    def loss(f):
        return lambda w, bias, x: f(x, w, bias).square().sum()

    for ours, theirs in (
        (ct.linear, torch.nn.functional.linear),
        (lambda x, w, b: ct.mlp(x, w, w.mT, b), lambda x, w, b: torch.nn.functional.gelu(x @ w.mT + b) @ w),
    ):
        each = [torch.func.vmap(torch.func.grad(loss(f), (0, 1)), (None, None, 0))(w, bias, x) for f in (ours, theirs)]
        torch.testing.assert_close(*each)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(ct.Linear(4, 6, activation="gelu"), ct.Linear(6, 4, activation="silu")).double()
    x = leaf(3, 4)
    plain = torch.autograd.grad(model(x).sum(), (x, *model.parameters()))
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close((x.grad, *(p.grad for p in model.parameters())), plain)


# ------------------------------------------------------------------------------------------------ what is kept


@cutlass_py.epilogue
def twice(accum):
    return accum, {"double": 2 * accum}


PLAIN = {  # calls of cutlass_py.gemm itself, which write `kept`
    "gemm": lambda a, b, kept: cutlass_py.gemm(a, b, out=kept),
    "view": lambda a, b, kept: cutlass_py.gemm(a, b, out=cutlass_py.view(kept, "f32")),
    "list": lambda a, b, kept: cutlass_py.gemm([a, a], [b, b], out=[torch.empty(3, 5), kept]),
    "aux": lambda a, b, kept: cutlass_py.gemm(a, b, activation="relu", aux=kept),
    "bias_grad": lambda a, b, kept: cutlass_py.gemm(a, b, bias_grad=kept[:1]),
    "epilogue": lambda a, b, kept: cutlass_py.gemm(a, b, epilogue=twice(double=kept)),
    "plan": lambda a, b, kept: cutlass_py.GemmArguments(a, b, out=torch.empty(3, 5)).plan()(out=kept),
}


@pytest.mark.parametrize("call", PLAIN.values(), ids=PLAIN)
def test_the_plain_function_tells_autograd_what_it_writes(call):
    a, b, kept = torch.rand(3, 4), torch.rand(4, 5), torch.rand(3, 5)
    y = (torch.ones(3, 5, requires_grad=True) * kept).sum()
    call(a, b, kept)
    assert (a._version, b._version, kept._version) == (0, 0, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_what_is_read_or_refused_is_not_told():
    a, b, z, wrong = torch.rand(3, 4), torch.rand(4, 5), torch.rand(3, 5), torch.rand(3, 6)
    cutlass_py.gemm(a, b, activation="d_relu", aux=z)
    with pytest.raises(ValueError, match="out is"):
        cutlass_py.gemm(a, b, out=wrong)
    assert z._version == wrong._version == 0


@pytest.mark.parametrize("function", ["mm", "matmul", "gemm", "aux", "bias_grad"])
def test_what_was_kept_may_not_be_written(function):
    a, b = torch.rand(3, 4), torch.rand(4, 5)
    kept = torch.rand(5) if function == "bias_grad" else torch.rand(3, 5)
    weight = torch.ones_like(kept, requires_grad=True)
    y = (weight * kept).sum()
    calls = {
        "mm": lambda: ct.mm(a, b, out=kept),
        "matmul": lambda: ct.matmul(a, b, out=kept),
        "gemm": lambda: ct.gemm(a, b, out=kept, alpha=2.0),
        "aux": lambda: ct.gemm(a, b, activation="relu", aux=kept),
        "bias_grad": lambda: ct.gemm(a, b, bias_grad=kept),
    }
    with torch.no_grad():
        calls[function]()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_inference_tensors_may_be_written():
    with torch.inference_mode():
        a, b, out = torch.rand(3, 4), torch.rand(4, 5), torch.zeros(3, 5)
        torch.testing.assert_close(ct.mm(a, b, out=out), a @ b)
    torch.testing.assert_close(cutlass_py.gemm(a, a.mT, out=out[:, :3]), a @ a.mT)


@pytest.mark.parametrize("trainable", ["x", "w1", "w2", "b1", "b2"])
def test_mlp_multiplies_only_for_what_is_trained(trainable):
    shapes = {"x": (6, 4), "w1": (8, 4), "w2": (5, 8), "b1": (8,), "b2": (5,)}
    ours = {name: torch.randn(shape, requires_grad=name == trainable) for name, shape in shapes.items()}
    theirs = {name: x.detach().clone().requires_grad_(name == trainable) for name, x in ours.items()}
    with FlopCounterMode(display=False) as counted:
        ct.mlp(*ours.values(), activation="relu").square().sum().backward()
    with FlopCounterMode(display=False) as wanted:
        x, w1, w2, b1, b2 = theirs.values()
        F.linear(F.relu(F.linear(x, w1, b1)), w2, b2).square().sum().backward()
    assert counted.get_total_flops() == wanted.get_total_flops()
    torch.testing.assert_close(ours[trainable].grad, theirs[trainable].grad)


def test_mlp_is_fused_backwards_by_an_activation_too():
    x, w1, w2 = leaf(3, 4), leaf(6, 4), leaf(5, 6)
    named, made = (ct.mlp(x, w1, w2, activation=f) for f in ("silu", Activation("silu")))
    assert torch.equal(named, made)
    assert "_MlpBackward" in str([made.grad_fn, made.grad_fn.next_functions])


def test_mlp_without_inputs():
    x, w1, w2 = torch.rand(3, 0), torch.rand(4, 0, requires_grad=True), torch.rand(2, 4, requires_grad=True)
    ct.mlp(x, w1, w2, activation="relu").sum().backward()
    assert w1.grad.shape == (4, 0) and (w2.grad == 0).all()


@pytest.mark.parametrize("grad", [False, True])
def test_mlp_refuses(grad):
    x, w1, w2 = (torch.rand(shape, requires_grad=grad) for shape in ((3, 4), (5, 4), (2, 5)))
    for error, match, call in [
        (
            TypeError,
            "mlp: input is a numpy.ndarray; expected a torch.Tensor",
            lambda: ct.mlp(x.numpy(force=True), w1, w2),
        ),
        (TypeError, "mlp: weight2 is a NoneType; expected a torch.Tensor", lambda: ct.mlp(x, w1, None)),
        (ValueError, r"mlp: input is \(\); expected at least 1 dimension", lambda: ct.mlp(x[0, 0], w1, w2)),
        (ValueError, r"mlp: weight1 is \(1, 5, 4\); expected 2 dimensions", lambda: ct.mlp(x, w1[None], w2)),
        (ValueError, r"mlp: bias1 is \(1, 5\); expected 1 dimension", lambda: ct.mlp(x, w1, w2, torch.rand(1, 5))),
        (
            ValueError,
            r"mlp: weight1 is \(5, 4\) but weight2 is \(4, 6\); expected 5 columns of weight2",
            lambda: ct.mlp(x, w1, torch.rand(4, 6)),
        ),
        (
            ValueError,
            r"mlp: input is \(3, 5\) but weight1 is \(5, 4\); expected 5 columns of weight1",
            lambda: ct.mlp(torch.rand(3, 5), w1, w2),
        ),
        (
            ValueError,
            r"mlp: bias2 is \(3, 1\); expected 1 dimension",
            lambda: ct.mlp(x, w1, w2, None, torch.rand(3, 1)),
        ),
    ]:
        with pytest.raises(error, match=match):
            call()


def test_clamp_has_torchs_derivative_at_its_bounds():
    w = torch.eye(3, requires_grad=True)
    x = torch.tensor([[0.0, 0.5, 1.0]])
    ct.gemm(x, w, activation=clamp(0, 1)).sum().backward()
    ours, w.grad = w.grad, None
    torch.clamp(x @ w, 0, 1).sum().backward()
    torch.testing.assert_close(ours, w.grad)


# ---------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("within", [cutlass_py.jit, cutlass_py.autotuning])
@pytest.mark.parametrize("layers", ["gemm", "mlp", "linear"])
def test_a_backward_pass_on_another_thread_is_allowed_what_the_forward_pass_was(within, layers, monkeypatch):
    allowed = {cutlass_py.jit: _core.jit_allowed, cutlass_py.autotuning: _core.tuning_allowed}[within]
    seen = []

    def watched(real):
        def call(*operands, **keywords):
            seen.append(allowed())
            return real(*operands, **keywords)

        return call

    monkeypatch.setattr(operators, "_core", SimpleNamespace(gemm=watched(cutlass_py.gemm)))
    for name in ("_gemm", "_fast_gemm"):
        monkeypatch.setattr(layer_gradient, name, watched(getattr(layer_gradient, name)))
    x, w1, w2 = leaf(4, 5), leaf(6, 5), leaf(3, 6)

    def forward():
        if layers == "linear":
            return ct.linear(x, w1)
        return (
            ct.mlp(x, w1, w2, activation="relu") if layers == "mlp" else ct.gemm(x, w1.mT, alpha=2, activation="relu")
        )

    def backward(y, later):
        gradients = torch.autograd.grad(y.sum(), (x, w1), create_graph=later)
        if later:
            torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, w1))
        assert not allowed()

    with within():
        inside = forward()
    outside = forward()
    assert seen == [True] * (len(seen) // 2) + [False] * (len(seen) // 2) and seen
    for y, expected in ((inside, True), (outside, False)):
        seen.clear()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(backward, y, later=True).result()
        assert len(seen) >= 4 and set(seen) == {expected}
    y = forward()
    seen.clear()
    with within():
        torch.autograd.grad(y.sum(), x)
    assert set(seen) == {True}  # the backward pass's own thread counts too
