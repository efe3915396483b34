"""Linear, Sequential and replace_linear: drop-in for torch.nn's, and what an exchange leaves alone."""

from __future__ import annotations

import copy
import io
import pickle
import re
import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import Activation, clamp  # noqa: E402
from cutlass_py.declaration.epilogues import ACTIVATIONS  # noqa: E402
from cutlass_py.torch import modules  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [None, "gelu", "relu", clamp(0, 1)], ids=str)
def test_linear_is_nn_linear(bias, activation):
    stock, ours = nn.Linear(4, 6, bias=bias), ct.Linear(4, 6, bias, activation=activation)
    assert isinstance(ours, nn.Linear)
    ours.load_state_dict(stock.state_dict())
    assert list(ours.state_dict()) == list(stock.state_dict())
    f = {None: lambda x: x, "gelu": nn.functional.gelu, "relu": torch.relu}.get(activation, lambda x: x.clamp(0, 1))
    for shape in ((4,), (3, 4), (2, 3, 4), (0, 4)):
        x = torch.randn(shape, requires_grad=True)
        torch.testing.assert_close(ours(x), f(stock(x)))
        grads = [torch.autograd.grad(y.sum(), (x, *m.parameters())) for y, m in ((ours(x), ours), (f(stock(x)), stock))]
        torch.testing.assert_close(*grads)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), f(stock(x)))


def test_linear_casts_fp8_under_autocast_as_nn_linear_does():
    x = torch.randn(3, 4).to(torch.float8_e4m3fn)
    for activation in (None, "relu"):
        layer = ct.Linear(4, 6, activation=activation)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for y in (layer(x), torch.stack([layer(row) for row in x])):
                expected = nn.functional.linear(x, layer.weight, layer.bias)
                torch.testing.assert_close(y, expected.relu() if activation else expected)


def test_linear_is_made_where_and_as_asked():
    layer = ct.Linear(4, 6, activation="silu", device="meta", dtype=torch.bfloat16)
    assert layer.weight.is_meta and layer.weight.dtype == torch.bfloat16
    assert repr(layer) == "Linear(in_features=4, out_features=6, bias=True, activation=silu)"
    assert repr(ct.Linear(4, 6, False)) == "Linear(in_features=4, out_features=6, bias=False)"


def test_linear_takes_the_arguments_of_nn_linear():
    assert ct.Linear(4, 6, True, "meta", torch.float16).weight.dtype == torch.float16
    with pytest.raises(TypeError, match="Linear: input is a NoneType; expected a torch.Tensor"):
        ct.Linear(4, 6, activation="gelu")(None)


@pytest.mark.parametrize("activation", ["swish", "d_gelu", Activation("d_gelu"), "clamp", ["relu"], 3], ids=str)
def test_linear_refuses(activation):
    with pytest.raises(ValueError, match=r"Linear: activation is .*; expected one of identity, relu, .*, clamp\(low"):
        ct.Linear(4, 6, activation=activation)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_linear_refuses_as_nn_linear(activation):
    layer, stock = ct.Linear(4, 6, activation=activation), nn.Linear(4, 6)
    for x, error in ((torch.ones(3, 7), RuntimeError), (torch.ones(3, 4).double(), RuntimeError), ([1.0], TypeError)):
        for module in (layer, stock):
            with pytest.raises(error):
                module(x)
    with pytest.raises(RuntimeError, match=re.escape("inear: input is (3, 7) but weight is (6, 4)")):
        layer(torch.ones(3, 7))


def test_linear_survives_copies_and_files():
    layer = ct.Linear(4, 6, activation=clamp(0, 1))
    x, file = torch.randn(3, 4), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), layer(x)) and other.activation == layer.activation


def test_hooks_and_parametrizations_work_on_linear():
    from torch.nn.utils import parametrizations

    layer, seen = ct.Linear(4, 6), []
    layer.register_forward_hook(lambda *_: seen.append("forward"))
    layer.register_full_backward_hook(lambda *_: seen.append("backward"))
    layer(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert seen == ["forward", "backward"]
    parametrizations.weight_norm(layer)
    assert layer(torch.randn(3, 4)).shape == (3, 6)


# ---------------------------------------------------------------------------------------------------- replace_linear


class Subclass(nn.Linear):
    pass


class Quantised(nn.Module):
    """Looks like those of torch.ao."""


Quantised.__name__ = "QuantLinear"


def model():
    from torch.nn.utils import parametrizations

    hooked, pre_hooked, renewed = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    pre_hooked.register_full_backward_pre_hook(lambda *_: None)
    renewed.forward = lambda x: x
    shared, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    tied.weight = shared.weight
    active = nn.Linear(4, 4)
    active.activation = nn.PReLU()  # which a Linear here would take for its own
    sparse = nn.Linear(4, 4)
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse(), requires_grad=False)
    return nn.ModuleDict(
        {
            "plain": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4, bias=False)),
            "shared": shared,
            "again": shared,
            "tied": tied,
            "ours": ct.Linear(4, 4),
            "active": active,
            "hooked": hooked,
            "pre_hooked": pre_hooked,
            "renewed": renewed,
            "normed": parametrizations.weight_norm(nn.Linear(4, 4)),
            "subclass": Subclass(4, 4),
            "lazy": nn.LazyLinear(4),
            "quantised": Quantised(),
            "meta": nn.Linear(4, 4, device="meta"),
            "bytes": nn.Linear(4, 4).requires_grad_(False).to(torch.float8_e4m3fn),
            "sparse": sparse,
            "attention": nn.MultiheadAttention(4, 2),
        }
    )


def test_replace_linear():
    m = model()
    parameters = {name: p for name, p in m.named_parameters(remove_duplicate=False)}
    modules, state = dict(m.named_modules()), list(m.state_dict())
    report = ct.replace_linear(m)
    assert report.replaced == ["plain.0", "plain.2", "shared", "tied"]
    assert report.left == {
        "active": "it has an attribute activation",
        "hooked": "it has hooks",
        "pre_hooked": "it has hooks",
        "renewed": "its forward is replaced",
        "normed": "parametrized torch.nn.utils.parametrize.ParametrizedLinear",
        "subclass": "of type test_torch_modules.Subclass",
        "lazy": "of type torch.nn.modules.linear.LazyLinear",
        "quantised": "of type test_torch_modules.Quantised",
        "meta": "it is on the meta device",
        "bytes": "its weight is torch.float8_e4m3fn",
        "sparse": "its weight is torch.sparse_coo",
        "attention.out_proj": "of type torch.nn.modules.linear.NonDynamicallyQuantizableLinear",
    }
    assert all(type(m.get_submodule(name)) is ct.Linear for name in report.replaced)
    assert m["shared"] is m["again"] and m["tied"].weight is m["shared"].weight
    assert dict(m.named_modules()) == modules and list(m.state_dict()) == state
    assert all(p is parameters[name] for name, p in m.named_parameters(remove_duplicate=False))
    assert not ct.replace_linear(m).replaced


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_layers_that_are_not_called_in_inference_are_left():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    report = ct.replace_linear(nn.Sequential(layer, nn.Linear(8, 8)))
    why = "nn.TransformerEncoderLayer reads its weight without calling it in inference"
    assert report.replaced == ["1"]
    assert report.left["0.linear1"] == report.left["0.linear2"] == why

    class Own(nn.TransformerEncoderLayer):
        def forward(self, x):
            return self.linear2(torch.relu(self.linear1(x)))

    assert ct.replace_linear(Own(8, 2, 16)).replaced == ["linear1", "linear2"]


def test_the_report_is_a_table():
    lines = str(ct.replace_linear(model())).splitlines()
    assert lines[0] == "plain.0             replaced"
    assert lines[5] == "hooked              left: it has hooks"
    assert lines[-1] == "4 of 16 linear modules replaced"
    assert str(ct.replace_linear(nn.ReLU())) == "0 of 0 linear modules replaced"
    assert str(ct.replace_linear(nn.Linear(2, 2))).startswith("(the model itself)  replaced\n1 of 1")


def test_where():
    report = ct.replace_linear(m := nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 8)), where=lambda name, x: name != "0")
    assert report.replaced == ["1"] and report.left == {"0": "where said no"}
    assert type(m[0]) is nn.Linear


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_trains_as_before(compiled):
    stock = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).double()
    ours = copy.deepcopy(stock)
    ct.replace_linear(ours)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    optimisers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (stock, ours)]
    for _ in range(5):
        x = torch.randn(4, 8, dtype=torch.float64)
        losses = [(m(x) - x).square().mean() for m in (stock, run)]
        for loss, optimiser in zip(losses, optimisers, strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(ours.state_dict(), stock.state_dict())


def test_a_replaced_model_can_be_traced_by_fx():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    ct.replace_linear(model)
    x = torch.rand(5, 4)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), model(x))


def test_a_layer_without_its_weight_is_left_alone():
    layer = nn.Linear(4, 3)
    del layer.weight
    assert ct.replace_linear(nn.Sequential(layer)).left == {"0": "its weight is a NoneType"}


# ---------------------------------------------------------------------------------------------------- Sequential


def perceptron(*more, activation=nn.GELU):
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 4), *more)


@pytest.fixture
def fused_calls(monkeypatch):
    calls = []

    def counted(*operands, **keywords):
        calls.append(keywords["activation"])
        return ct.mlp(*operands, **keywords)

    monkeypatch.setattr(modules, "mlp", counted)
    return calls


FUSED = {"gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, "tanh"), "relu": nn.ReLU, "silu": nn.SiLU}


def test_every_activation_with_a_derivative_is_fused():
    known = {name for name in ACTIVATIONS if f"d_{name}" in ACTIVATIONS}
    assert set(FUSED) == known - {"sigmoid"}  # whose derivative follows from its value


@pytest.mark.parametrize("name, activation", FUSED.items(), ids=FUSED)
def test_a_row_of_layers_is_one_call(activation, name, fused_calls):
    stock = perceptron(activation=activation)
    ours = copy.deepcopy(stock)
    report = ct.replace_linear(ours, fuse=True)
    assert (report.replaced, report.fused) == (["0", "2"], [""])
    assert isinstance(ours, nn.Sequential) and list(ours.state_dict()) == list(stock.state_dict())
    for shape in ((4,), (3, 4), (2, 3, 4), (0, 4)):
        x = torch.randn(shape, requires_grad=True)
        torch.testing.assert_close(ours(x), stock(x))
        torch.testing.assert_close(
            *(torch.autograd.grad(m(x).square().sum(), (x, *m.parameters())) for m in (ours, stock))
        )
    assert set(fused_calls) == {name} and len(fused_calls) == 8


def test_only_rows_of_three_are_fused(fused_calls):
    model = nn.Sequential(
        nn.LayerNorm(4), *perceptron(nn.Dropout(0)), perceptron(nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    )
    stock = copy.deepcopy(model)
    report = ct.replace_linear(model, fuse=True)
    assert report.fused == ["", "5"] and type(model[6]) is nn.Sequential
    assert [line.split() for line in str(report).splitlines()[-2:]] == [
        ["5", "fused"],
        ["5", "of", "5", "linear", "modules", "replaced"],
    ]
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), stock(x))
    assert len(fused_calls) == 2
    torch.testing.assert_close(model[1:3](x), stock[1:3](x))  # a slice is of the same class


def test_nothing_is_fused_unless_asked_for():
    model = perceptron()
    assert not ct.replace_linear(model).fused and type(model) is nn.Sequential
    assert not ct.replace_linear(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), fuse=True).fused
    own = perceptron()
    own.forward = lambda x: x
    assert not ct.replace_linear(own, fuse=True).fused


def test_what_hooks_into_a_row_is_called(fused_calls):
    x, seen = torch.randn(3, 4), []
    for i in range(3):
        model = perceptron()
        ct.replace_linear(model, fuse=True)
        handle = model[i].register_forward_hook(lambda *given: seen.append(given))
        model(x)
        assert len(seen) == i + 1 and len(fused_calls) == i
        handle.remove()
        model(x)
    handle = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given))
    try:
        model(x)
    finally:
        handle.remove()
    assert len(fused_calls) == 3 and len(seen) == 3 + 4


def test_modules_of_a_row_may_be_exchanged(fused_calls):
    model, x = perceptron(), torch.randn(3, 4)
    ct.replace_linear(model, fuse=True)
    model[1] = nn.Tanh()
    torch.testing.assert_close(model(x), model[2](torch.tanh(model[0](x))))
    model[1], model[2] = nn.ReLU(), nn.Linear(8, 2)
    torch.testing.assert_close(model(x), model[2](torch.relu(model[0](x))))
    assert not fused_calls


def test_a_row_refuses_as_its_layers_do():
    stock, ours = perceptron(), perceptron()
    ct.replace_linear(ours, fuse=True)
    x = torch.randn(3, 4)
    for wrong in (torch.randn(3, 5), x.double(), torch.tensor(1.0), x.to("meta")):
        for autocast in (False, True):
            for model in (stock, ours):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast), pytest.raises(RuntimeError):
                    model(wrong)
    with pytest.raises(TypeError, match="expected a torch.Tensor"):
        ours(None)
    for bias in (torch.randn(3), torch.randn(8, dtype=torch.float64)):
        for model in (stock, ours):
            model[0].bias = nn.Parameter(bias)
            with pytest.raises(RuntimeError):
                model(x)


def test_a_bias_that_torch_broadcasts():
    stock, x = perceptron(), torch.randn(3, 4)
    stock[0].bias = nn.Parameter(torch.randn(1))
    ours = copy.deepcopy(stock)
    ct.replace_linear(ours, fuse=True)
    torch.testing.assert_close(ours(x), stock(x))


def test_what_a_hook_raises_in_a_row_is_not_a_refusal(fused_calls):
    model = perceptron()
    ct.replace_linear(model, fuse=True)

    def refuse(x):
        raise ValueError("a hook's own")

    with torch.autograd.graph.saved_tensors_hooks(refuse, refuse), pytest.raises(ValueError, match="a hook's own"):
        model(torch.randn(3, 4))
    assert len(fused_calls) == 1


def test_a_row_can_be_traced():
    model, x = perceptron(), torch.randn(3, 4)
    ct.replace_linear(model, fuse=True)
    traced = torch.fx.symbolic_trace(model)
    assert ct.mlp in [node.target for node in traced.graph.nodes]
    torch.testing.assert_close(traced(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    for rows in (x, torch.randn(5, 4)):
        torch.testing.assert_close(traced(rows), model(rows))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_row_trains_under_autocast(compiled, fused_calls):
    stock, x = perceptron(), torch.randn(16, 4)
    ours = copy.deepcopy(stock)
    ct.replace_linear(ours, fuse=True)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    for model in (stock, run):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        y.float().square().mean().backward()
    for mine, theirs in zip(ours.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0.05, atol=0.01)
    assert len(fused_calls) == 1
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again(x), ours(x))
    assert len(fused_calls) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_row_is_fused_backwards():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd  # takes a second, which no other test of this file needs

    graphs = {}

    def kept(name):
        def compile(graph, inputs):
            graphs[name] = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            return make_boxed_func(graph.forward)

        return compile

    model, x = perceptron(), torch.randn(16, 4)
    ct.replace_linear(model, fuse=True)
    backend = aot_autograd(fw_compiler=kept("forward"), bw_compiler=kept("backward"))
    torch.compile(model, backend=backend, fullgraph=True)(x).sum().backward()
    assert graphs["forward"].count("cutlass_py.gemm.default") == 2
    assert graphs["backward"].count("cutlass_py.gemm.default") == 3  # x has no gradient
    assert not {"aten.gelu_backward.default", "aten.zeros.default", "aten.add.Tensor"} & set(graphs["backward"])
