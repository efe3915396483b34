"""Layers with a node of their own (torch/layer_gradient.py): products with at most a bias and an activation."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_derivatives import check, leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import leaky_relu  # noqa: E402


def layer(activation):
    return lambda a, b, bias: ct.gemm(a, b, bias=bias, activation=activation)


def module(activation):
    """An activated Linear of these parameters, without a module's hooks: FlopCounterMode's fail of autograd.grad."""
    return lambda x, weight, bias: ct.Linear.forward(
        SimpleNamespace(weight=weight, bias=bias, activation=activation), x
    )


LAYERS = {
    "mm": (ct.mm, (3, 4), (4, 5)),
    "bmm": (ct.bmm, (2, 3, 4), (2, 4, 5)),
    "heads": (ct.matmul, (2, 2, 3, 4), (2, 2, 4, 5)),
    "batch and matrix": (ct.matmul, (2, 2, 3, 4), (4, 5)),
    "addmm": (lambda a, b, bias: ct.addmm(bias, a, b), (3, 4), (4, 5), (5,)),
    "baddbmm": (lambda a, b, bias: ct.baddbmm(bias, a, b), (2, 3, 4), (2, 4, 5), (5,)),
    "linear": (ct.linear, (2, 3, 4), (5, 4), (5,)),
    "one row": (ct.linear, (1, 1), (1, 1), (1,)),
    "no rows": (ct.linear, (0, 4), (5, 4), (5,)),
    "gelu": (layer("gelu"), (2, 3, 4), (4, 5), (5,)),
    "relu": (layer("relu"), (3, 4), (4, 5), (5,)),
    "leaky_relu": (layer(leaky_relu(0.25)), (2, 3, 4), (2, 4, 5), (5,)),
    "identity": (layer("identity"), (3, 4), (4, 5), (5,)),
    "module": (module("gelu"), (2, 3, 4), (5, 4), (5,)),
    "module of D": (module("sigmoid"), (3, 4), (5, 4), (5,)),
    "silu without a bias": (lambda a, b: ct.gemm(a, b, activation="silu"), (3, 4), (4, 5)),
}


@pytest.mark.parametrize(("function", "shapes"), [(f, shapes) for f, *shapes in LAYERS.values()], ids=LAYERS)
def test_layers_have_a_node_of_their_own(function, shapes):
    operands = [leaf(*shape) for shape in shapes]
    d = function(*operands)
    assert d.grad_fn.name() == "_LayerBackward"
    check(function, *operands)
    turned = [x.detach().mT.contiguous().mT.requires_grad_() if x.dim() > 1 else x for x in operands]
    check(function, *turned)
    check(lambda *x: function(*(y.expand(y.shape) for y in x)).sum(), *operands)  # whose gradient is one number
    for i, x in enumerate(operands):
        only = [y if i == j else y.detach() for j, y in enumerate(operands)]
        (found,) = torch.autograd.grad(function(*only).square().sum(), x)
        with FlopCounterMode(display=False):  # the operator and its node
            (expected,) = torch.autograd.grad(function(*only).square().sum(), x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() and found.dtype == x.dtype


def test_a_factor_of_one_is_none_and_one_beyond_floats_is_refused():
    a, b = leaf(3, 4), leaf(4, 5)
    assert ct.gemm(a, b, alpha=1).grad_fn.name() == "_LayerBackward"
    with pytest.raises(ValueError, match="gemm: alpha is too large for a float"):
        ct.gemm(a, b, alpha=10**400)


@pytest.mark.parametrize("activation", [None, "gelu"], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_backward_pass_reads_the_weight_that_the_forward_pass_had(activation, frozen):
    """As torch's layers: a parameter may get other memory, another dtype or none meanwhile."""
    x, layer = leaf(3, 4), ct.Linear(4, 5, dtype=torch.float64, activation=activation).requires_grad_(not frozen)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    for change in (lambda w: w.zero_(), lambda w: w.bfloat16(), lambda w: w.new_empty(0)):
        y, before = layer(x), layer.weight.data
        layer.weight.data = change(before.clone())
        (found,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(found, expected)
        layer.weight.data = before


def test_a_weight_that_was_frozen_in_the_forward_pass_has_no_part_in_second_derivatives():
    x, layer = leaf(3, 4), ct.Linear(4, 5, dtype=torch.float64).requires_grad_(False)
    y = layer(x)
    layer.requires_grad_(True)
    (found,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    found.square().sum().backward()
    assert layer.weight.grad is None and x.grad is not None


def test_negated_gradients_with_a_unit_stride_keep_their_sign():
    x, w = leaf(3, 4), leaf(5, 4)
    for function, operands in ((ct.linear, (x, w)), (ct.mm, (x, w.mT))):
        found = torch.autograd.grad(function(*operands), (x, w), torch._neg_view(torch.ones(3, 5, dtype=x.dtype)))
        for gradient, wanted in zip(found, (-w.sum(0).expand(3, 4), -x.sum(0).expand(5, 4)), strict=True):
            torch.testing.assert_close(gradient, wanted)


def test_negated_views_with_a_unit_stride_keep_their_sign_where_a_gradient_is_asked_for():
    w = leaf(3, 3)
    x = torch._neg_view(torch.randn(3, 3, dtype=w.dtype))
    assert x.is_neg() and x.stride() == (3, 1)
    for a, b in ((x, w), (w, x)):
        torch.testing.assert_close(ct.mm(a, b), a @ b)
        torch.testing.assert_close(ct.gemm(a, b, activation="relu"), torch.relu(a @ b))
    leaf_of_a_view = torch._neg_view(w).detach().requires_grad_()
    with torch.no_grad(), pytest.raises(ValueError, match="a is a lazily negated"):
        cutlass_py.gemm(leaf_of_a_view, w)


@pytest.mark.parametrize("function", [ct.mm, lambda a, b: ct.gemm(a, b, activation="relu")], ids=["mm", "gemm"])
def test_what_a_hook_raises_is_raised_and_nothing_is_computed_again(function):
    calls = []

    def pack(x):
        calls.append(x)
        raise ValueError("of the hook")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), pytest.raises(ValueError, match="of the hook"):
        function(leaf(3, 4), leaf(4, 5))
    assert len(calls) == 1


def test_who_has_to_see_the_backward_pass_of_a_product_sees_it():
    x, w = leaf(3, 4), leaf(5, 4)
    d = ct.linear(x, w)
    with FlopCounterMode(display=False) as counter:
        d.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 3 * 4 * 5
    torch.testing.assert_close(w.grad, x.detach().sum(0).expand(5, 4))


@pytest.mark.parametrize("wrong", [{"alpha": None}, {"splits": False}, {"kernel": False}, {"compute": False}], ids=str)
def test_a_gradient_makes_no_wrong_argument_right(wrong):
    for a in (leaf(3, 4), leaf(3, 4).detach()):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} is "):
            ct.gemm(a, leaf(4, 2).detach(), **wrong)


@pytest.mark.parametrize(
    "factors",
    [{"scale_a": 0.0, "scale_b": math.inf}, {"alpha": 0, "scale_b": math.inf},
     {"alpha": 1e200, "scale_a": 1e200, "scale_b": 1e-300}],
)  # fmt: skip
def test_factors_are_multiplied_as_gemm_does(factors):
    a, b = leaf(3, 4), leaf(4, 2)
    with torch.no_grad():
        wanted = ct.gemm(a, b, **factors)
    torch.testing.assert_close(ct.gemm(a, b, **factors), wanted)
    compiled = torch.compile(lambda a, b: ct.gemm(a, b, **factors), backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), wanted)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("needed", list(product((False, True), repeat=5)), ids=str)
def test_a_perceptron_keeps_what_its_gradient_reads(needed, activation):
    operands = [leaf(*shape) for shape in ((6, 4), (5, 4), (3, 5), (5,), (3,))]
    operands = [y if wanted else y.detach() for y, wanted in zip(operands, needed, strict=True)]
    x, w1, w2, b1, b2 = operands
    needs_x, needs_w1, needs_w2, needs_b1, needs_b2 = needed
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        d = ct.mlp(x, w1, w2, b1, b2, activation=activation)
    hidden = needs_x or needs_w1 or needs_b1
    read = [y for y, wanted in ((x, needs_w1), (w1, needs_x), (w2, hidden)) if wanted]
    assert {t.data_ptr() for t in read} == {p for p in kept if p in {y.data_ptr() for y in operands}}
    values = sum(t.shape == (6, 5) for t in kept.values())
    assert values == (hidden or needs_w2 if activation == "relu" else hidden + needs_w2)
    if any(needed):
        same = [y.detach().requires_grad_(y.requires_grad) for y in operands]
        f = torch.nn.functional
        wanted = f.linear(getattr(f, activation)(f.linear(same[0], same[1], same[3])), same[2], same[4])
        for result in (d, wanted):
            result.square().sum().backward()
        for y, z in zip(operands, same, strict=True):
            torch.testing.assert_close(y.grad, z.grad)


@pytest.mark.parametrize("needed", list(product((False, True), repeat=3)), ids=str)
def test_a_product_keeps_what_its_gradient_reads(needed):
    """As torch does: what is trained alone may be written to before the backward pass; frozen layers keep no input."""
    x, w, bias = (leaf(*shape) for shape in ((3, 4), (5, 4), (5,)))
    operands, kept = [y if wanted else y.detach() for y, wanted in zip((x, w, bias), needed, strict=True)], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        d = ct.linear(*operands)
    assert {t.data_ptr() for t in kept} == {y.data_ptr() for y, wanted in ((w, needed[0]), (x, needed[1])) if wanted}
    if any(needed):
        with torch.no_grad():
            for y, wanted in ((x, needed[1]), (w, needed[0])):
                if not wanted:
                    y.zero_()
        d.sum().backward()


def test_a_product_without_a_gradient_passes_none_on():
    class Ends(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    a, b = leaf(3, 4), leaf(4, 5)
    Ends.apply(ct.mm(a, b)).sum().backward()
    assert a.grad is None and b.grad is None


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize(("function", "shapes"), [(f, shapes) for f, *shapes in LAYERS.values()], ids=LAYERS)
def test_batched_gradients(function, shapes):
    """Which torch computes by a vmap of its own: jacobian(vectorize=True), is_grads_batched."""
    if shapes[0][0]:
        assert torch.autograd.gradcheck(function, [leaf(*shape) for shape in shapes], check_batched_grad=True)
    a, b = leaf(3, 4), leaf(4, 5)
    d, grads = ct.gemm(a, b, activation="silu"), torch.randn(6, 3, 5, dtype=torch.float64)
    (found,) = torch.autograd.grad(d, a, grads, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(found, torch.stack([torch.autograd.grad(d, a, g, retain_graph=True)[0] for g in grads]))


@pytest.mark.parametrize("other", ["a vector", "a repeated batch", "another factor", "a wider result", "a conjugate"])
def test_other_products_have_the_node_of_every_epilogue(other):
    a, b = leaf(2, 3, 4), leaf(4, 5)
    d = {
        "a vector": lambda: ct.matmul(a, b[:, 0]),
        "a repeated batch": lambda: ct.matmul(a[0], b.expand(2, 4, 5)),
        "another factor": lambda: ct.addmm(b[0], a[0], b, alpha=2),
        "a wider result": lambda: ct.mm(a[0].bfloat16(), b.bfloat16(), torch.float32),
        "a conjugate": lambda: ct.mm(a[0].to(torch.complex128).conj(), b.to(torch.complex128)),
    }[other]()
    node = d.grad_fn
    while node.name() != "_GemmBackward" and node.next_functions:
        node = node.next_functions[0][0]
    assert node.name() == "_GemmBackward"
