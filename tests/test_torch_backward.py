"""The backward pass of cutlass_py.torch: which products it computes, what is kept and may not be written, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_derivatives import leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import _core  # noqa: E402
from cutlass_py.torch import layer_gradient, operators  # noqa: E402


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


def test_zeros_that_torch_has_not_made_yet():
    zeros, w = torch._efficientzerotensor(3, 4), torch.randn(4, 5)
    assert torch.equal(ct.mm(zeros, w), torch.zeros(3, 5))


@pytest.mark.parametrize("call", [ct.mm, lambda x, w: ct.gemm(x, w, alpha=2) / 2, lambda x, w: ct.mlp(x, w.mT, w)])
def test_a_sparse_gradient(call):
    x, w, index = leaf(3, 4), leaf(4, 4), torch.tensor([[0, 2], [1, 1], [3, 0]])
    found = torch.autograd.grad(torch.gather(call(x, w), 1, index, sparse_grad=True).sum(), (x, w))
    expected = torch.autograd.grad(torch.gather(call(x, w), 1, index).sum(), (x, w))
    torch.testing.assert_close(found, expected)


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


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(ct.Linear(4, 6, activation="gelu"), ct.Linear(6, 4, activation="silu")).double()
    x = leaf(3, 4)
    plain = torch.autograd.grad(model(x).sum(), (x, *model.parameters()))
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close((x.grad, *(p.grad for p in model.parameters())), plain)


# ------------------------------------------------------------------------------------------------ what is kept


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


def test_in_place_changes_are_noticed():
    a, b = leaf(3, 4), leaf(4, 5)
    held = b.detach().clone()
    d = ct.mm(a, held)
    held += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        d.sum().backward()


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


# ---------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("within", [cutlass_py.jit, cutlass_py.autotuning, partial(cutlass_py.autotuning, quick=True)])
@pytest.mark.parametrize("layers", ["gemm", "mlp", "linear"])
def test_a_backward_pass_on_another_thread_is_allowed_what_the_forward_pass_was(within, layers, monkeypatch):
    allowed = _core.jit_allowed if within is cutlass_py.jit else _core.tuning_allowed
    with within():
        told = allowed()
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
    assert seen == [told] * (len(seen) // 2) + [0] * (len(seen) // 2) and seen
    for y, expected in ((inside, told), (outside, 0)):
        seen.clear()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(backward, y, later=True).result()
        assert len(seen) >= 4 and set(seen) == {expected}
    y = forward()
    seen.clear()
    with within():
        torch.autograd.grad(y.sum(), x)
    assert set(seen) == {told}  # the backward pass's own thread counts too
