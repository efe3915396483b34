"""cutlass_py.torch.mlp on the CPU: its derivatives, how many products they take, what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_derivatives import DERIVATIVES, THEIRS, check, leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import Activation, clamp  # noqa: E402


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
