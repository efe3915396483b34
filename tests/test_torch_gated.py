"""Gates and values beside each other in cutlass_py.torch, on the CPU: values, derivatives, what torch sees, errors."""

from __future__ import annotations

import re
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch_derivatives import THEIRS, check, leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py.declaration.epilogues import GATED, INTERLEAVED  # noqa: E402
from cutlass_py.torch.grouped import _Call as GroupedCall  # noqa: E402
from cutlass_py.torch.grouped import operator as grouped_operator  # noqa: E402
from cutlass_py.torch.operators import Call, operator  # noqa: E402

quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
M, N, K, ENDS = 7, 3, 4, [2, 2, 5, 5]  # of the rows two are in no group; two groups are empty
THEIRS = THEIRS | {"sigmoid": torch.sigmoid}
NAMES = [*GATED, "silu" + INTERLEAVED]


def gated(function, z):
    gates, values = (z[..., ::2], z[..., 1::2]) if function.endswith(INTERLEAVED) else z.chunk(2, -1)
    return THEIRS[function.removesuffix(INTERLEAVED)](gates) * values


def offs():
    return torch.tensor(ENDS, dtype=torch.int32)


def operands(kind, dtype=torch.float64):
    """a, b, bias: of gemm, of groups of rows, or of a product for each of the matrices."""
    shapes = {
        "gemm": [(M, K), (K, 2 * N), (2 * N,)],
        "rows": [(M, K), (len(ENDS), K, 2 * N), (len(ENDS), 2 * N)],
        "none": [(len(ENDS), 2, K), (len(ENDS), K, 2 * N), (2 * N,)],
    }
    return [leaf(*shape, dtype=dtype) for shape in shapes[kind]]


def call(kind, function):
    if kind == "gemm":
        return lambda a, b, bias: ct.gemm(a, b, bias=bias, gated=function)
    ends = offs() if kind == "rows" else None
    return lambda a, b, bias: ct.grouped_mm(a, b, offs=ends, bias=bias, gated=function)


def expected(kind, function, a, b, bias):
    a, b, bias = (x.double() for x in (a, b, bias))
    if kind != "rows":
        return gated(function, a @ b + bias)
    z, begin = [], 0
    for i, end in enumerate(ENDS):
        z.append(a[begin:end] @ b[i] + bias[i])
        begin = end
    return torch.cat([gated(function, torch.cat(z)), a.new_zeros(M - begin, N)])


KINDS = pytest.mark.parametrize("kind", ["gemm", "rows", "none"])


@KINDS
@pytest.mark.parametrize("function", ["silu", "silu" + INTERLEAVED])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_values_and_gradients(kind, dtype, function):
    given = operands(kind, dtype)
    d, wanted = call(kind, function)(*given), expected(kind, function, *given)
    assert d.dtype == dtype and d.is_contiguous()
    near = {"rtol": 3e-2, "atol": 6e-2} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(d, wanted.to(dtype), **near)
    weight = torch.randn_like(d)
    found = torch.autograd.grad(d, given, weight)
    for x, y in zip(found, torch.autograd.grad(wanted, given, weight.double()), strict=True):
        torch.testing.assert_close(x, y, **near)


@KINDS
@pytest.mark.parametrize("function", NAMES)
def test_derivatives(kind, function):
    check(call(kind, function), *operands(kind))


@pytest.mark.parametrize("function", NAMES)
def test_derivatives_of_a_derivative(function):
    """Of what it multiplies, and of the gates and values that it reads."""
    check(lambda a, b, aux: ct.gemm(a, b, gated=f"d_{function}", aux=aux), leaf(M, K), leaf(K, N), leaf(M, 2 * N))


def test_a_backward_pass_by_hand_is_that_of_autograd():
    a, b, w = leaf(M, K), leaf(K, 2 * N), leaf(N, 5)
    aux = torch.empty(M, 2 * N, dtype=torch.float64)
    with torch.no_grad():
        h = ct.gemm(a, b, gated="silu", aux=aux)
        dy = torch.randn(M, 5, dtype=torch.float64)
        dz = ct.gemm(dy, w.mT, gated="d_silu", aux=aux)
        found = ct.gemm(dz, b.mT), ct.gemm(a.mT, dz), ct.gemm(h.mT, dy)
    wanted = torch.autograd.grad(ct.gemm(ct.gemm(a, b, gated="silu"), w), (a, b, w), dy)
    torch.testing.assert_close(found, wanted)


def test_factors_batches_and_what_is_kept():
    a, b, bias, alpha, scale = leaf(2, M, K), leaf(K, 2 * N), leaf(2 * N), leaf(), leaf(1)

    def ours(a, b, bias, alpha, scale):
        aux = torch.empty(2, M, 2 * N, dtype=a.dtype)
        d = ct.gemm(a, b, bias=bias, alpha=alpha, scale_out=scale, gated="gelu", aux=aux)
        return d, aux

    d, aux = ours(a, b, bias, alpha, scale)
    z = alpha * (a @ b) + bias
    torch.testing.assert_close(aux, z)
    torch.testing.assert_close(d, scale * gated("gelu", z))
    check(ours, a, b, bias, alpha, scale)
    check(
        lambda a, b, aux, scale: ct.gemm(a, b, gated="d_silu", aux=aux, scale_out=scale),
        leaf(2, M, K), leaf(K, N), leaf(M, 2 * N), scale,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_derivative_in_16_bits(dtype):
    """z, which a factor follows, is wider there."""
    a, b, aux, scale = (leaf(*x, dtype=dtype) for x in ((M, K), (K, N), (M, 2 * N), ()))
    scale = scale.detach().float().requires_grad_()
    given = a, b, aux, scale
    d = ct.gemm(a, b, gated="d_gelu", aux=aux, scale_out=scale)
    x, y, z, factor = (x.detach().double().requires_grad_() for x in given)
    gates, values = z.chunk(2, -1)
    of_gates = torch.autograd.grad(THEIRS["gelu"](gates).sum(), gates, create_graph=True)[0]
    wanted = factor * torch.cat((x @ y * values * of_gates, x @ y * THEIRS["gelu"](gates)), -1)
    near = {"rtol": 5e-2, "atol": 1e-1}
    torch.testing.assert_close(d.double(), wanted, **near)
    weight = torch.randn_like(wanted)
    grads = torch.autograd.grad(wanted, (x, y, z, factor), weight)
    for found, grad in zip(torch.autograd.grad(d, given, weight.to(dtype)), grads, strict=True):
        torch.testing.assert_close(found.double(), grad, **near)


@pytest.mark.parametrize("out_dtype", ["f32", torch.float8_e4m3fn], ids=str)
def test_out_dtype(out_dtype):
    a, b, bias = operands("rows", torch.bfloat16)
    d = ct.grouped_mm(a, b, offs=offs(), gated="silu", out_dtype=out_dtype)
    wanted = expected("rows", "silu", a, b, torch.zeros_like(bias))
    torch.testing.assert_close(d.double(), wanted, rtol=0.07, atol=0.01)
    dense, again = ct.gemm(a, b[0], gated="silu", out_dtype=out_dtype), gated("silu", a.double() @ b[0].double())
    for x, y in ((d, wanted), (dense, again)):
        found, grads = (torch.autograd.grad(x.double().sum(), (a, b)) for x in (x, y))
        for g, h in zip(found, grads, strict=True):
            torch.testing.assert_close(g, h, rtol=0.05, atol=0.05)


def test_rows_of_nobody_are_zeros():
    """Whatever stands there in the operand or arrives as a gradient."""
    a, b, bias = operands("rows")
    a.data[ENDS[-1] :] = torch.nan
    d = call("rows", "sigmoid")(a, b, bias)
    assert (d[ENDS[-1] :] == 0).all() and d[: ENDS[-1]].all()
    weight = torch.ones_like(d)
    weight[ENDS[-1] :] = torch.nan
    found = torch.autograd.grad(d, (a, b, bias), weight)
    assert all(x.isfinite().all() for x in found) and (found[0][ENDS[-1] :] == 0).all()


def test_without_columns():
    d = ct.gemm(leaf(M, K), torch.zeros(K, 0, dtype=torch.float64), gated="silu")
    assert d.shape == (M, 0)
    d.sum().backward()


# ---------------------------------------------------------------------------------------------------- as torch sees it


@quiet
@pytest.mark.parametrize("keep_z", [False, True])
def test_opcheck(keep_z):
    a, b, bias = operands("gemm")
    given = Call(
        a, b, bias=bias, activation="silu_interleaved", aux_dtype=torch.float64 if keep_z else None, gated=True
    )
    assert set(torch.library.opcheck(operator, tuple(given)).values()) == {"SUCCESS"}
    a, b, bias = operands("rows")
    given = GroupedCall(a, b, offs(), bias, "gelu", keep_z=keep_z, gated=True)
    assert set(torch.library.opcheck(grouped_operator, tuple(given)).values()) == {"SUCCESS"}


@quiet
def test_opcheck_of_a_derivative():
    given = Call(leaf(M, K), leaf(K, N), aux=leaf(M, 2 * N), activation="d_gelu", gated=True)
    assert set(torch.library.opcheck(operator, tuple(given)).values()) == {"SUCCESS"}


@quiet
@KINDS
def test_compiled_for_any_sizes(kind):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *given: 2 * call(kind, "silu")(*given), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for given in (operands(kind), [leaf(*(x + 4 * (x > 4) for x in y.shape)) for y in operands(kind)]):
        found, wanted = compiled(*given), 2 * call(kind, "silu")(*given)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), given) for x in (found, wanted)))


@quiet
def test_a_compiled_derivative():
    torch._dynamo.reset()
    f = lambda a, b, aux: ct.gemm(a, b, gated="d_silu", aux=aux)  # noqa: E731
    given = leaf(M, K), leaf(K, N), leaf(M, 2 * N)
    found, wanted = (g(*given) for g in (torch.compile(f, fullgraph=True, backend="aot_eager"), f))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(x.sin().sum(), given) for x in (found, wanted)))


@KINDS
def test_autocast(kind):
    given = operands(kind, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        d = call(kind, "silu")(*given)
    assert d.dtype == torch.bfloat16
    torch.testing.assert_close(d.double(), expected(kind, "silu", *given), rtol=0.05, atol=0.08)
    assert {x.dtype for x in torch.autograd.grad(d.float().sum(), given)} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        aux = torch.randn(M, 2 * N)
        assert ct.gemm(given[0].reshape(-1, K)[:M], torch.ones(K, N), gated="d_silu", aux=aux).dtype == torch.bfloat16


@quiet
@KINDS
def test_torch_func(kind):
    a, b, bias = (x.detach() for x in operands(kind))
    ours, theirs = call(kind, "gelu"), partial(expected, kind, "gelu")
    f, g = ((lambda *x, h=h: h(*x).sin().sum()) for h in (ours, theirs))
    torch.testing.assert_close(torch.func.grad(f, (0, 1, 2))(a, b, bias), torch.func.grad(g, (0, 1, 2))(a, b, bias))
    many, biases = torch.randn(2, *a.shape, dtype=a.dtype), torch.randn(2, *bias.shape, dtype=a.dtype)
    for given, dims in (((many, b, bias), (0, None, None)), ((a, b, biases), (None, None, 0))):
        each = [[x if dim is None else x[i] for x, dim in zip(given, dims, strict=True)] for i in range(2)]
        torch.testing.assert_close(torch.vmap(ours, dims)(*given), torch.stack([theirs(*x) for x in each]))


def test_shardings_part_no_gates_from_their_values():
    pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.tensor import Shard

    from cutlass_py.torch.sharding import _shardings

    class Like:
        def __init__(self, *shape):
            self.shape, self.tensor_meta = torch.Size(shape), torch.empty((), dtype=torch.float64)

    def ways(**keywords):
        return {str(results[0]) for results, _ in _shardings(*Call(Like(M, K), Like(K, 2 * N), **keywords))}

    assert str(Shard(1)) in ways() and str(Shard(1)) not in ways(activation="silu", gated=True)
    assert str(Shard(0)) in ways(activation="silu", gated=True)


def test_torch_fx_records_the_call():
    given = operands("rows")
    traced = torch.fx.symbolic_trace(lambda a, b, bias, ends: ct.grouped_mm(a, b, offs=ends, bias=bias, gated="relu"))
    torch.testing.assert_close(traced(*given, offs()), expected("rows", "relu", *given))


# ---------------------------------------------------------------------------------------------------- errors

A, B = torch.zeros(M, K), torch.zeros(len(ENDS), K, 2 * N)
REFUSED = [
    ("gated='tanh' is not one of relu, gelu,", lambda: ct.grouped_mm(A, B, offs=offs(), gated="tanh")),
    ("gated='d_silu' is not one of relu, gelu,", lambda: ct.grouped_mm(A, B, offs=offs(), gated="d_silu")),
    ("activation is given but gated is, too",
     lambda: ct.grouped_mm(A, B, offs=offs(), gated="silu", activation="relu")),
    (f"mat_b is (4, {K}, 5); expected an even number of columns",
     lambda: ct.grouped_mm(A, B[..., 1:], offs=offs(), gated="silu")),
    ("gated is given but groups divide k", lambda: ct.grouped_mm(A.mT, torch.zeros(M, 4), offs=offs(), gated="silu")),
    ("gated is given but groups divide columns", lambda: ct.grouped_mm(B.mT, A.mT[:, :6], offs=offs(), gated="silu")),
    (f"bias is ({N},); expected ({2 * N},)",
     lambda: ct.grouped_mm(A, B, offs=offs(), bias=torch.zeros(N), gated="silu")),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_refused(message, call):
    with pytest.raises(RuntimeError, match="^grouped_mm: " + re.escape(message)):
        call()


@quiet
@pytest.mark.parametrize(
    ("message", "keywords"),
    [
        ("gated='tanh' is not one of", {"gated": "tanh"}),
        ("activation is given but gated is, too", {"gated": "silu", "activation": "relu"}),
        ("c is given but gated is, too", {"gated": "silu", "c": torch.zeros(M, N)}),
    ],
)
def test_refused_by_gemm_compiled_or_not(message, keywords):
    torch._dynamo.reset()
    with pytest.raises(ValueError, match="gemm: " + message):
        ct.gemm(A, B[0], **keywords)
    with pytest.raises(Exception, match=message):
        torch.compile(lambda a, b: ct.gemm(a, b, **keywords), backend="aot_eager")(A, B[0])
