"""cutlass_py::gemm as torch sees it: opcheck, fake tensors, vmap, torch.compile, torch.export."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py.torch import perceptron  # noqa: E402
from cutlass_py.torch.operators import Call, operator  # noqa: E402

vmap = torch.func.vmap
# torch's own code, on its way through a compilation
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)
    torch._dynamo.reset()


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def test_the_schema_is_the_tuple():
    schema = operator._schema
    assert [argument.name for argument in schema.arguments] == list(Call._fields)
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    assert {name: () if value == [] else value for name, value in defaults.items()} == Call._field_defaults
    assert not schema.is_mutable


OPTIONS = {
    "plain": {},
    "batch": {"a": (2, 3, 4), "c": (3, 5), "beta_value": 0.5},
    "keep": {"bias": (5,), "activation": "gelu", "aux_dtype": torch.float32},
    "gate": {"gate": (3, 5), "activation": "silu", "bias_grad": "n"},
    "wide sums": {"activation": "tanh", "bias_grad": "n", "bias_grad_dtype": torch.float64},
    "derivative": {"aux": (3, 5), "activation": "d_gelu_tanh"},
    "scales": {"scale_a": (3,), "scale_b": (1, 5), "alpha": (1,), "scale_out": (), "bias_grad": "m"},
    "parameters": {"activation": "clamp", "parameters": [-1.0, 0.5], "out_dtype": torch.float64},
}


@quiet
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_opcheck(options):
    given = {"a": (3, 4), "b": (4, 5)} | options
    call = Call(**{name: randn(*x).requires_grad_() if isinstance(x, tuple) else x for name, x in given.items()})
    assert set(torch.library.opcheck(operator, tuple(call)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("device", ["meta", "fake"])
@pytest.mark.parametrize(
    ("dtype", "keywords"),
    [
        (torch.bfloat16, {}),
        (torch.bfloat16, {"out_dtype": "f32"}),
        (torch.float8_e4m3fn, {}),
        (torch.int8, {}),
        (torch.float32, {"compute": "tf32"}),
        (torch.complex64, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (4, 5)), ((0, 4), (4, 5))])
def test_fake_results_are_like_the_real_ones(shapes, dtype, keywords, device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = (torch.ones(shape).to(dtype) for shape in shapes)
    real = ct.gemm(a, b, **keywords)
    if device == "meta":
        fake = ct.gemm(a.to("meta"), b.to("meta"), **keywords)
    else:
        with FakeTensorMode() as mode:
            fake = ct.gemm(mode.from_tensor(a), mode.from_tensor(b), **keywords)
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (ValueError, "inner extents must agree", lambda a: ct.gemm(a, a)),
        (TypeError, "a is torch.int64; expected one of torch.float16", lambda a: ct.gemm(a.long(), a.mT.long())),
        (ValueError, "compute='f16' is not one of 'f32', 'tf32'", lambda a: ct.gemm(a, a.mT, compute="f16")),
        (RuntimeError, "^mm: input is .* but mat2 is .* inner extents", lambda a: ct.mm(a, a)),
    ],
)
def test_fake_operands_are_checked(error, match, call):
    with pytest.raises(error, match=match):
        call(torch.empty(3, 4, device="meta"))


# ---------------------------------------------------------------------------------------------------- vmap


def scaled(a, b, x, y):
    return ct.gemm(a, b, scale_a=x, scale_b=y)


MAPPED = {
    "both": (ct.mm, [(2, 3, 4), (2, 4, 5)], (0, 0)),
    "a, inside": (ct.mm, [(3, 2, 4), (4, 5)], (1, None)),
    "b, last": (ct.mm, [(3, 4), (4, 5, 2)], (None, 2)),
    "ranks": (ct.matmul, [(2, 7, 3, 4), (2, 4, 5)], (0, 0)),
    "ranks of b": (ct.matmul, [(2, 3, 4), (2, 7, 4, 5)], (0, 0)),
    "vectors": (ct.matmul, [(2, 4), (2, 4, 5)], (0, 0)),
    "dots": (ct.matmul, [(2, 4), (2, 4)], (0, 0)),
    "bias": (ct.linear, [(2, 3, 4), (5, 4), (2, 5)], (0, None, 0)),
    "bias alone": (ct.linear, [(3, 4), (5, 4), (2, 5)], (None, None, 0)),
    "weights": (ct.linear, [(3, 4), (2, 5, 4), (5,)], (None, 0, None)),
    "column": (ct.addmm, [(2, 3, 1), (3, 4), (4, 5)], (0, None, None)),
    "c": (ct.addmm, [(3, 2, 5), (2, 3, 4), (4, 5)], (1, 0, None)),
    "gate": (lambda a, b, g: ct.gemm(a, b, gate=g, activation="silu"), [(2, 3, 4), (4, 5), (3, 2, 5)], (0, None, 1)),
    "aux": (lambda a, b, x: ct.gemm(a, b, aux=x, activation="d_relu"), [(3, 4), (2, 4, 5), (3, 5)], (None, 0, None)),
    "scales": (scaled, [(3, 4), (4, 5), (2, 3), (2, 5)], (None, None, 0, 0)),
    "one scale": (scaled, [(2, 3, 4), (4, 5), (2,), (2, 1)], (0, None, 0, 0)),
    "alpha": (lambda a, b, x: ct.gemm(a, b, alpha=x, scale_out=x), [(2, 3, 4), (4, 5), (2,)], (0, None, 0)),
    "activation": (lambda a, b: ct.gemm(a, b, activation="gelu"), [(2, 3, 4), (2, 4, 5)], (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize(("function", "shapes", "dims"), MAPPED.values(), ids=MAPPED)
def test_vmap(function, shapes, dims):
    operands = [randn(*shape) for shape in shapes]
    pairs = list(zip(operands, dims, strict=True))
    expected = [function(*(x if d is None else x.select(d, i) for x, d in pairs)) for i in range(2)]
    torch.testing.assert_close(vmap(function, dims)(*operands), torch.stack(expected))


def test_vmap_is_one_call():
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    a, b = randn(2, 6, 3, 4), randn(6, 4, 5)
    with Count():
        d = vmap(vmap(ct.mm), (0, None))(a, b)
    torch.testing.assert_close(d, a @ b)
    assert calls.count(operator) == 1


# ---------------------------------------------------------------------------------------------------- torch.compile


def step(x, w, bias, gate):
    y = ct.gemm(x, w.mT, bias=bias, gate=gate, activation="silu")
    return ct.linear(torch.sin(y), w.mT) + ct.addmm(x, y, w, beta=0.5) + ct.mlp(x, w, w.mT, bias, activation="gelu")


def operands(rows):
    return [x.requires_grad_() for x in (randn(rows, 4), randn(5, 4), randn(5), randn(rows, 5))]


def values_and_gradients(function, given):
    d = function(*given)
    return d, *torch.autograd.grad(d.square().sum(), given)


@quiet
@pytest.mark.parametrize("dynamic", [True, None])
def test_compile(dynamic):
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 6, 9):
        given = operands(rows)
        torch.testing.assert_close(values_and_gradients(compiled, given), values_and_gradients(step, given))
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), step(*given))


@quiet
def test_compile_by_inductor():
    def layer(x, w, bias):
        return ct.gemm(x, w.mT, bias=bias, activation="silu")

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (3, 6):
        given = operands(rows)[:3]
        torch.testing.assert_close(values_and_gradients(compiled, given), values_and_gradients(layer, given))


@quiet
def test_compile_of_out_autocast_and_transforms():
    model = torch.nn.Sequential(ct.Linear(4, 6, activation="gelu"), ct.Linear(6, 4))

    def program(x, out):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        ct.mm(x, x.mT, out=out)
        gradient = torch.func.grad(lambda x: ct.mm(x, x.mT).square().sum())(x)
        return y.float() + gradient + vmap(ct.matmul, (0, None))(x, torch.eye(4))

    x, out, expected = randn(3, 4), torch.empty(3, 3), torch.empty(3, 3)
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, out), program(x, expected))
    torch.testing.assert_close(out, expected)


@quiet
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_compile_of_rows_that_depend_on_data(activation):
    def program(x, w):
        return ct.mlp(x[x[:, 0] > 0], w, w.mT, activation=activation).square().sum()

    x, w = randn(6, 4), randn(5, 4).requires_grad_()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        found = torch.autograd.grad(compiled(x, w), w)
    torch.testing.assert_close(found, torch.autograd.grad(program(x, w), w))


@quiet
def test_a_graph_that_breaks_around_an_mlp(monkeypatch):
    """Its own code runs eagerly then, and that of its node is compiled, or each apart."""

    def breaking(call, run=perceptron.run):
        torch._dynamo.graph_break()
        return run(call)

    operands = [randn(*s).requires_grad_() for s in ((3, 4), (5, 4), (6, 5))]
    apart = torch._dynamo.disable(ct.mlp, recursive=False)
    for f in (lambda *operands: apart(*operands), lambda *operands: ct.mlp(*operands)):
        compiled = torch.compile(f, backend="eager")
        torch.testing.assert_close(values_and_gradients(compiled, operands), values_and_gradients(ct.mlp, operands))
        with pytest.raises(RuntimeError, match=r"mlp: second derivatives"):
            torch.autograd.grad(compiled(*operands).square().sum(), operands, create_graph=True)
        monkeypatch.setattr(perceptron, "run", breaking)


@quiet
def test_the_graph_holds_the_operator():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    torch.compile(lambda a, b: ct.gemm(a, b, activation="relu"), backend=backend, fullgraph=True)(
        randn(3, 4), randn(4, 5)
    )
    assert len(re.findall(r"torch\.ops\.cutlass_py\.gemm\.default\(", graphs[0])) == 1


class Deployed(torch.nn.Module):
    """Layers whose derivatives read z."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = ct.Linear(4, 6, activation="gelu"), torch.nn.Parameter(randn(8, 6))

    def forward(self, x):
        return ct.mlp(self.layer(x), self.weight, self.weight.mT, activation="silu")


@quiet
@pytest.mark.parametrize(
    "record",
    [
        torch.jit.trace,
        lambda model, x: torch.export.export(model, x, strict=False).module(),
        lambda model, x: torch.export.export(model, x, strict=True).module(),
    ],
    ids=["jit.trace", "export", "export strictly"],
)
def test_recorded_programs_have_the_operator_and_keep_no_z(record):
    calls = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is operator:
                calls.append(Call(*args, **(kwargs or {})))
            return function(*args, **(kwargs or {}))

    model, x = Deployed(), randn(3, 4)
    program = record(model, (randn(3, 4),))
    with Seen(), torch.no_grad():
        torch.testing.assert_close(program(x), model(x))
    assert len(calls) == 6 and all(call.aux_dtype is None for call in calls)
    found, expected = (torch.autograd.grad(f(x).square().sum(), f.parameters()) for f in (program, model))
    torch.testing.assert_close(found, expected)


@quiet
@pytest.mark.parametrize("call", [ct.linear, ct.mlp, "a layer"], ids=["linear", "mlp", "a layer"])
def test_branches_are_compiled(call):
    """torch.cond would take weight.mT, an attribute, for a second operand of its branches."""
    first, second = randn(5, 4).requires_grad_(), randn(2, 5).requires_grad_()
    layer = ct.Linear(4, 5, activation="relu")
    weights = (first, second) if call is ct.mlp else (first,)

    def branch(x):
        return layer(x) if call == "a layer" else call(x, *weights)

    def program(x):
        return torch.cond(x.sum() > 0, branch, lambda x: branch(-x), (x,))

    x, given = randn(3, 4), tuple(layer.parameters()) if call == "a layer" else weights
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    found, expected = compiled(x), branch(x if x.sum() > 0 else -x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), given) for y in (found, expected)))


@quiet
@pytest.mark.parametrize("keywords", [{}, {"alpha": 2.0}], ids=str)
def test_backward_passes_of_eager_calls_are_compiled_as_a_whole(keywords):
    """By torch's compiled autograd, which traces the nodes that eager calls recorded."""

    def backward():
        y = ct.gemm(x, first.mT, activation="gelu", **keywords)
        ct.mlp(y, second, second.mT).square().sum().backward()
        return [(w.grad, setattr(w, "grad", None))[0] for w in (first, second)]

    x, first, second = randn(3, 4), randn(5, 4).requires_grad_(), randn(2, 5).requires_grad_()
    expected = backward()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        found = backward()
    torch.testing.assert_close(found, expected)
