"""Derivatives of cutlass_py.torch by finite differences in f64, in other dtypes near f64's, and under torch.func."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_derivatives import DERIVATIVES, THEIRS, check, leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import clamp, leaky_relu  # noqa: E402
from cutlass_py.declaration import epilogues  # noqa: E402
from cutlass_py.torch import activations  # noqa: E402

ACTIVATIONS = [name for name, row in epilogues.ACTIVATIONS.items() if not row.derivative and name != "clamp"]
ACTIVATIONS = [None, *ACTIVATIONS[1:], clamp(-0.5, 1), leaky_relu(0.25)]


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


def test_clamp_has_torchs_derivative_at_its_bounds():
    w = torch.eye(3, requires_grad=True)
    x = torch.tensor([[0.0, 0.5, 1.0]])
    ct.gemm(x, w, activation=clamp(0, 1)).sum().backward()
    ours, w.grad = w.grad, None
    torch.clamp(x @ w, 0, 1).sum().backward()
    torch.testing.assert_close(ours, w.grad)


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


# ---------------------------------------------------------------------------------------------------- dtypes


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
