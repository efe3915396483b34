"""cutlass_py.torch.grouped_mm and gmm on the CPU: values, gradients, the operator as torch sees it, errors."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_derivatives import THEIRS, check, leaf, seed  # noqa: E402, F401 (a fixture)

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import clamp  # noqa: E402
from cutlass_py.torch.grouped import _ACTIVATIONS, _Call, operator  # noqa: E402

theirs = getattr(torch.nn.functional, "grouped_mm", None)
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ENDS = [2, 2, 5, 5]  # of the seven lines two are in no group; two groups are empty
SHAPES = {
    "rows": ((7, 3), (4, 3, 5)),
    "k": ((3, 7), (7, 5)),
    "columns": ((4, 3, 5), (5, 7)),
    "none": ((4, 2, 3), (4, 3, 5)),
}
BIASES = pytest.mark.parametrize(
    ("mode", "bias"), [(mode, bias) for mode in SHAPES for bias in ("", "n", "gn") if (mode, bias) != ("columns", "gn")]
)


def int32(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def operands(mode, *, bias="", dtype=torch.float64):
    """a, b, and a bias of (n,) or of (g, n)."""
    a, b = (leaf(*shape, dtype=dtype) for shape in SHAPES[mode])
    shape = {"": None, "n": b.shape[-1:], "gn": (len(ENDS), b.shape[-1])}[bias]
    return a, b, None if shape is None else leaf(*shape, dtype=dtype)


def offs_of(mode):
    return None if mode == "none" else int32(*ENDS)


def expected(mode, a, b, bias=None, f=lambda z: z, ends=ENDS):
    """A loop of torch's own products, in f64."""
    a, b, bias = (None if x is None else x.double() for x in (a, b, bias))
    z, begin = [], 0
    for i, end in enumerate(ends):
        lines = slice(begin, end)
        x = a[i] if a.dim() == 3 else a[lines] if mode == "rows" else a[:, lines]
        y = b[i] if b.dim() == 3 else b[lines] if mode == "k" else b[:, lines]
        row = 0 if bias is None else bias[i] if bias.dim() == 2 else bias[lines] if mode == "columns" else bias
        z.append(f(x @ y + row))
        begin = end
    if mode in ("k", "none"):
        return torch.stack(z)
    rest = (a.shape[0] - begin, b.shape[-1]) if mode == "rows" else (a.shape[1], b.shape[1] - begin)
    return torch.cat([*z, a.new_zeros(rest)], 0 if mode == "rows" else 1)


@BIASES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_values_and_gradients_are_those_of_a_loop(mode, dtype, bias):
    a, b, row = operands(mode, bias=bias, dtype=dtype)
    d = ct.grouped_mm(a, b, offs=offs_of(mode), bias=row, activation="gelu")
    wanted = expected(mode, a, b, row, THEIRS["gelu"])
    assert d.dtype == dtype and d.is_contiguous()
    tolerance = {"rtol": 3e-2, "atol": 6e-2} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(d, wanted.to(dtype), **tolerance)
    given = [x for x in (a, b, row) if x is not None]
    weight = torch.randn_like(d)
    found = torch.autograd.grad(d, given, weight)
    for x, y in zip(found, torch.autograd.grad(wanted, given, weight.double()), strict=True):
        torch.testing.assert_close(x, y, **tolerance)


@pytest.mark.skipif(theirs is None, reason="torch has no grouped_mm")
@pytest.mark.parametrize("mode", SHAPES)
def test_results_are_those_of_torch(mode):
    shapes = {"rows": ((32, 16), (4, 16, 8)), "k": ((8, 32), (32, 16)), "columns": ((4, 8, 16), (16, 32))}
    a, b = (leaf(*s, dtype=torch.bfloat16) for s in (shapes | {"none": ((4, 8, 16), (4, 16, 24))})[mode])
    offs = None if mode == "none" else int32(8, 8, 24, 32)
    ours, wanted = (f(a, b, offs=offs) for f in (ct.grouped_mm, theirs))
    torch.testing.assert_close(ours, wanted)
    weight = torch.randn_like(ours)
    for x, y in zip(*(torch.autograd.grad(d, (a, b), weight) for d in (ours, wanted)), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("mode", SHAPES)
def test_bytes_are_added_up_in_32_bits(mode, dtype):
    a, b = (torch.randint(0, 128, shape).to(dtype) for shape in SHAPES[mode])
    d = ct.grouped_mm(a, b, offs=offs_of(mode))
    assert d.dtype == torch.int32
    torch.testing.assert_close(d, expected(mode, a, b).to(torch.int32))
    wide = ct.grouped_mm(a, b, offs=offs_of(mode), activation="relu", out_dtype=torch.float32)
    torch.testing.assert_close(wide, expected(mode, a, b).float())


def test_rows_have_no_gaps_where_torch_pads_them():
    a, b = leaf(8, 16, dtype=torch.bfloat16), leaf(2, 5, 16, dtype=torch.bfloat16).mT.contiguous()
    assert ct.grouped_mm(a, b, offs=int32(3, 8)).stride() == (5, 1)


@pytest.mark.parametrize("ends", [[], [0], [0, 0, 7], [7, 7], [1, 3, 4, 6]], ids=str)
def test_any_groups(ends):
    for mode, shapes in {"rows": ((7, 3), (len(ends), 3, 5)), "columns": ((len(ends), 3, 5), (5, 7))}.items():
        a, b = (leaf(*shape) for shape in shapes)
        bias = leaf(b.shape[-1])
        d = ct.grouped_mm(a, b, offs=int32(*ends), bias=bias)
        wanted = expected(mode, a, b, bias, ends=ends) if ends else torch.zeros_like(d)
        torch.testing.assert_close(d, wanted)
        found = torch.autograd.grad(d.sum(), (a, b, bias))
        if ends:
            torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), (a, b, bias)))
        else:
            assert not any(x.any() for x in found)


@pytest.mark.parametrize("mode", ["rows", "columns"])
def test_lines_behind_the_last_group_are_zeros(mode):
    """Whatever stands there in the operand or arrives as a gradient."""
    a, b, row = operands(mode, bias="n")
    rest = (slice(5, None),) if mode == "rows" else (slice(None), slice(5, None))
    divided = a if mode == "rows" else b
    divided.data[rest] = torch.nan
    d = ct.grouped_mm(a, b, offs=offs_of(mode), bias=row, activation="sigmoid")
    assert (d[rest] == 0).all() and (d > 0).any()
    weight = torch.ones_like(d)
    weight[rest] = torch.nan
    found = dict(zip("ab+", torch.autograd.grad(d, (a, b, row), weight), strict=True))
    assert all(x.isfinite().all() for x in found.values())
    assert (found["a" if mode == "rows" else "b"][rest] == 0).all()


# ---------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("activation", [None, "gelu", "tanh"])
@BIASES
def test_derivatives(mode, bias, activation):
    f = partial(ct.grouped_mm, offs=offs_of(mode), activation=activation)
    a, b, row = operands(mode, bias=bias)
    if row is None:
        check(f, a, b)
    else:
        check(lambda a, b, row: f(a, b, bias=row), a, b, row)


@pytest.mark.parametrize("activation", [*(x for x in _ACTIVATIONS if x != "clamp"), clamp(-1, 0.5)], ids=str)
def test_every_activation_has_a_gradient(activation):
    a, b, _ = operands("rows")
    assert torch.autograd.gradcheck(lambda a, b: ct.grouped_mm(a, b, offs=int32(*ENDS), activation=activation), (a, b))


def test_z_is_computed_again_where_it_was_not_kept():
    a, b, row = operands("rows", bias="gn")
    check(lambda a, b, row: operator(a, b, int32(*ENDS), row, "silu")[0], a, b, row)


@pytest.mark.parametrize("out_dtype", ["f32", torch.float64, "e4m3"], ids=str)
def test_out_dtype(out_dtype):
    a, b, _ = operands("rows", dtype=torch.bfloat16)
    d = ct.grouped_mm(a, b, offs=int32(*ENDS), out_dtype=out_dtype, activation="tanh")
    dtype = {"f32": torch.float32, "e4m3": torch.float8_e4m3fn}.get(out_dtype, out_dtype)
    assert d.dtype == dtype
    wanted = expected("rows", a, b, f=torch.tanh)
    torch.testing.assert_close(d.double(), wanted, rtol=0.07, atol=0.01)
    found, grads = (torch.autograd.grad(x.double().sum(), (a, b)) for x in (d, wanted))
    for x, y in zip(found, grads, strict=True):
        assert x.dtype == torch.bfloat16
        torch.testing.assert_close(x, y, rtol=0.05, atol=0.05)


def test_gradients_lie_as_their_operands():
    x, weight = leaf(7, 3), leaf(4, 5, 3)
    ct.grouped_mm(x, weight.mT, offs=int32(*ENDS)).sum().backward()
    assert weight.grad.is_contiguous() and x.grad.is_contiguous()
    turned = leaf(3, 7)
    ct.grouped_mm(turned.mT, weight.mT, offs=int32(*ENDS)).sum().backward()
    assert turned.grad.is_contiguous()


def test_only_what_is_trained_is_multiplied():
    a, b, _ = operands("rows")
    for trained, products in (((a, b), 3), ((a,), 2)):
        with FlopCounterMode(display=False) as counted:
            torch.autograd.grad(ct.grouped_mm(a, b, offs=int32(*ENDS)).sum(), trained)
        assert counted.get_total_flops() == products * 2 * 7 * 3 * 5


@quiet
def test_torch_func():
    a, b = (x.detach() for x in operands("rows")[:2])

    def f(product):
        return lambda a, b: product(a, b).sin().sum()

    def ours(a, b):
        return ct.grouped_mm(a, b, offs=int32(*ENDS), activation="gelu")

    def loop(a, b):
        return expected("rows", a, b, f=THEIRS["gelu"])

    for transform in (torch.func.grad, lambda f, i: torch.func.jacrev(torch.func.jacrev(f, i), i)):
        torch.testing.assert_close(transform(f(ours), 1)(a, b), transform(f(loop), 1)(a, b))
    many = torch.randn(2, *a.shape, dtype=a.dtype)
    torch.testing.assert_close(torch.vmap(ours, (0, None))(many, b), torch.stack([loop(x, b) for x in many]))
    assert torch.vmap(ours, (0, None))(many[:0], b).shape == (0, *loop(many[0], b).shape)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(f(ours), (a, b), (a, b))


# ---------------------------------------------------------------------------------------------------- as torch sees it


def test_the_schema_is_the_tuple():
    assert [argument.name for argument in operator._schema.arguments] == list(_Call._fields)
    defaults = {x.name: x.default_value for x in operator._schema.arguments if x.has_default_value()}
    assert {name: () if value == [] else value for name, value in defaults.items()} == _Call._field_defaults


@quiet
@pytest.mark.parametrize("keep_z", [False, True])
@pytest.mark.parametrize("mode", ["rows", "k", "columns"])
def test_opcheck(mode, keep_z):
    a, b, row = operands(mode, bias="n")
    given = (a, b, int32(*ENDS), row, "gelu", [], None, keep_z)
    assert set(torch.library.opcheck(operator, given).values()) == {"SUCCESS"}


@quiet
@pytest.mark.parametrize("activation", [None, "silu", "relu"])
def test_compiled_for_any_sizes(activation):
    torch._dynamo.reset()

    def layer(a, b, offs, row):
        return ct.grouped_mm(a, b, offs=offs, bias=row, activation=activation) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for m, k, n in ((7, 4, 5), (9, 6, 8), (12, 6, 3)):
        given = leaf(m, k), leaf(4, k, n), leaf(4, n)
        found, wanted = (f(given[0], given[1], int32(*ENDS), given[2]) for f in (compiled, layer))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(x.sum(), given) for x in (found, wanted)))


@quiet
@pytest.mark.parametrize("mode", ["k", "columns", "none"])
def test_other_modes_are_compiled(mode):
    torch._dynamo.reset()
    a, b, row = operands(mode, bias="n")
    f = lambda a, b, row, offs: ct.grouped_mm(a, b, offs=offs, bias=row, activation="gelu")  # noqa: E731
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    found, wanted = (each(a, b, row, offs_of(mode)) for each in (compiled, f))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), (a, b, row)) for x in (found, wanted)))


@quiet
def test_compiled_gmm():
    torch._dynamo.reset()
    compiled = torch.compile(ct.gmm, fullgraph=True, backend="aot_eager", dynamic=True)
    a, b, sizes = leaf(7, 3), leaf(3, 5, 3), torch.tensor([2, 0, 4])
    found, wanted = (f(a, b, sizes, trans_b=True) for f in (compiled, ct.gmm))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), (a, b)) for x in (found, wanted)))


@pytest.mark.parametrize("offs", ["cpu", "cuda"])
def test_fake_results_of_a_device(offs):
    """Ends may lie on the CPU beside operands on the device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in SHAPES["rows"])
        d = ct.grouped_mm(a, b, offs=torch.empty(4, dtype=torch.int32, device=offs), activation="gelu")
        assert (d.device.type, d.shape, d.dtype) == ("cuda", (7, 5), torch.bfloat16)
        with pytest.raises(RuntimeError, match="mat_a is on cuda:0 but mat_b is on cpu"):
            ct.grouped_mm(a, b.cpu(), offs=torch.empty(4, dtype=torch.int32, device=offs))


@pytest.mark.parametrize("mode", ["rows", "none"])
def test_autocast(mode):
    a, b, row = operands(mode, bias="gn", dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        d = ct.grouped_mm(a, b, offs=offs_of(mode), bias=row, activation="gelu")
        wide = ct.grouped_mm(a, b, offs=offs_of(mode), bias=row, out_dtype="f32")
        assert ct.grouped_mm(*(x.double() for x in (a, b)), offs=offs_of(mode)).dtype == torch.float64
    assert (d.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(d.double(), expected(mode, a, b, row, THEIRS["gelu"]), rtol=0.03, atol=0.06)
    assert {x.dtype for x in torch.autograd.grad(d.float().sum(), (a, b, row))} == {torch.float32}


def test_torch_fx_records_the_call():
    traced = torch.fx.symbolic_trace(lambda a, b, offs: ct.grouped_mm(a, b, offs=offs, activation="relu"))
    a, b, _ = operands("rows")
    torch.testing.assert_close(traced(a, b, int32(*ENDS)), expected("rows", a, b, f=torch.relu))


# ---------------------------------------------------------------------------------------------------- gmm


@pytest.mark.parametrize("trans_b", [False, True])
def test_gmm(trans_b):
    a, b, sizes = leaf(7, 3), leaf(3, 5, 3) if trans_b else leaf(3, 3, 5), torch.tensor([2, 0, 4])
    wanted = expected("rows", a, b.mT if trans_b else b, ends=[2, 2, 6])
    torch.testing.assert_close(ct.gmm(a, b, sizes, trans_b), wanted)
    check(lambda a, b: ct.gmm(a, b, sizes, trans_b=trans_b), a, b)


# ---------------------------------------------------------------------------------------------------- errors

A, B, O3 = torch.zeros(7, 3), torch.zeros(3, 3, 5), int32(2, 2, 5)
BOTH = "mat_a is (7, 3) but mat_b is (3, 3, 5)"
STACKED = "mat_a is (3, 7, 3) but mat_b is (3, 3, 5)"
REFUSED = [
    ("mat_a is (3,); expected 2 or 3 dimensions", lambda: ct.grouped_mm(A[0], B, offs=O3)),
    ("mat_b is (1, 3, 3, 5); expected 2 or 3 dimensions", lambda: ct.grouped_mm(A, B[None], offs=O3)),
    ("mat_a is torch.sparse_coo; expected torch.strided", lambda: ct.grouped_mm(A.to_sparse(), B, offs=O3)),
    ("mat_a is torch.int16; expected one of torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, ",
     lambda: ct.grouped_mm(A.to(torch.int16), B, offs=O3)),
    ("mat_a is torch.int8 but mat_b is torch.float32; expected the same dtype",
     lambda: ct.grouped_mm(A.to(torch.int8), B, offs=O3)),
    ("mat_a is torch.float32 but mat_b is torch.float64; expected the same dtype",
     lambda: ct.grouped_mm(A, B.double(), offs=O3)),
    ("mat_a is (7, 3) but mat_b is (3, 2, 5); inner extents must agree", lambda: ct.grouped_mm(A, B[:, 1:], offs=O3)),
    ("mat_a is (7, 3) but mat_b is (7, 3); inner extents must agree", lambda: ct.grouped_mm(A, A, offs=O3)),
    ("mat_a is (2, 7, 3) but mat_b is (3, 3, 5); batch extents must agree",
     lambda: ct.grouped_mm(A.expand(2, 7, 3), B)),
    (f"offs is not given but {BOTH}; expected it unless both have 3 dimensions", lambda: ct.grouped_mm(A, B)),
    (f"offs is given but {STACKED}; expected it unless both have 3 dimensions",
     lambda: ct.grouped_mm(A.expand(3, 7, 3), B, offs=O3)),
    ("offs is (1, 3); expected (3,)", lambda: ct.grouped_mm(A, B, offs=O3[None])),
    ("offs is (2,); expected (3,)", lambda: ct.grouped_mm(A, B, offs=O3[:2])),
    ("offs is (1, 3); expected (G,)", lambda: ct.grouped_mm(A.mT, A, offs=O3[None])),
    ("offs is torch.int64; expected torch.int32", lambda: ct.grouped_mm(A, B, offs=O3.long())),
    ("offs[0] is -1; expected 0 to 7", lambda: ct.grouped_mm(A, B, offs=int32(-1, 2, 5))),
    ("offs[1] is 1 but offs[0] is 2; expected no decrease", lambda: ct.grouped_mm(A, B, offs=int32(2, 1, 5))),
    ("offs[2] is 8; expected 7 at most", lambda: ct.grouped_mm(A, B, offs=int32(2, 2, 8))),
    ("bias is (4,); expected (5,)", lambda: ct.grouped_mm(A, B, offs=O3, bias=torch.zeros(4))),
    ("bias is (2, 5); expected (3, 5)", lambda: ct.grouped_mm(A, B, offs=O3, bias=torch.zeros(2, 5))),
    ("bias is (3, 7); expected (7,)", lambda: ct.grouped_mm(B.mT, A.mT, offs=O3, bias=torch.zeros(3, 7))),
    ("bias is f16; expected f32", lambda: ct.grouped_mm(A, B, offs=O3, bias=torch.zeros(5).half())),
    ("out_dtype is 'x'; expected one of f16, bf16, f32,", lambda: ct.grouped_mm(A, B, offs=O3, out_dtype="x")),
    ("activation='d_gelu' is not one of identity, relu,", lambda: ct.grouped_mm(A, B, offs=O3, activation="d_gelu")),
    ("activation='clamp' has parameters; expected cutlass_py.clamp(low, high)",
     lambda: ct.grouped_mm(A, B, offs=O3, activation="clamp")),
]  # fmt: skip
REFUSED_BY_GMM = [
    ("a is (3,); expected 2 dimensions", lambda: ct.gmm(A[0], B, O3.long())),
    ("b is (7, 3); expected 3 dimensions", lambda: ct.gmm(A, A, O3.long())),
    ("batch_sizes is (1, 3); expected 1 dimension", lambda: ct.gmm(A, B, O3.long()[None])),
    ("batch_sizes is torch.int32; expected torch.int64", lambda: ct.gmm(A, B, O3)),
    ("a is (7, 3) but b is (3, 5, 3); inner extents must agree", lambda: ct.gmm(A, B, O3.long(), trans_b=True)),
    ("cumsum(batch_sizes)[2] is 9; expected 7 at most", lambda: ct.gmm(A, B, O3.long())),
    ("cumsum(batch_sizes)[1] is 1 but cumsum(batch_sizes)[0] is 2; expected no decrease",
     lambda: ct.gmm(A, B, torch.tensor([2, -1, 3]))),
    ("cumsum(batch_sizes)[0] is 4294967299; expected 7 at most",
     lambda: ct.gmm(A, B, torch.tensor([2**32 + 3, 0, 6]))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_errors(message, call):
    with pytest.raises(RuntimeError, match="^grouped_mm: " + re.escape(message)):
        call()


@pytest.mark.parametrize(("message", "call"), REFUSED_BY_GMM, ids=[message for message, _ in REFUSED_BY_GMM])
def test_errors_of_gmm(message, call):
    with pytest.raises(RuntimeError, match="^gmm: " + re.escape(message)):
        call()


def test_what_is_no_tensor():
    for name, given in {"mat_a": (0, B), "mat_b": (A, 0)}.items():
        with pytest.raises(TypeError, match=f"grouped_mm: {name} is an int; expected a torch.Tensor"):
            ct.grouped_mm(*given, offs=O3)
    with pytest.raises(TypeError, match="grouped_mm: offs is a list; expected a torch.Tensor"):
        ct.grouped_mm(A, B, offs=[2, 2, 5])
    with pytest.raises(TypeError, match="gmm: batch_sizes is a list; expected a torch.Tensor"):
        ct.gmm(A, B, [2, 2, 3])


def test_fake_operands_are_checked():
    a, b, offs, bias = (x.to("meta") for x in (A, B, O3, torch.zeros(5).half()))
    with pytest.raises(RuntimeError, match="grouped_mm: bias is f16; expected f32"):
        ct.grouped_mm(a, b, offs=offs, bias=bias)


# ---------------------------------------------------------------------------------------------------- the page


def test_the_experts_of_the_page():
    """The program of the section gives what a loop over tokens does."""
    page = (Path(__file__).resolve().parent.parent / "docs" / "torch.md").read_text()
    section = page.split("## Grouped products\n")[1].split("\n## ")[0]
    names = {"torch": torch, "ct": ct}
    exec(section.split("```python\n")[1].split("```")[0].replace('device="cuda"', 'device="cpu"'), names)
    x, y, router = (names[name].double() for name in ("x", "y", "router"))
    up, down, bias = (names[name].double() for name in ("up", "down", "bias"))
    scores = (x @ router).softmax(-1)
    wanted = torch.zeros_like(x)
    for token, chosen in enumerate(names["chosen"].tolist()):
        for expert in chosen:
            hidden = THEIRS["silu"](x[token] @ up[expert] + bias[expert])
            wanted[token] += scores[token, expert] * (hidden @ down[expert])
    torch.testing.assert_close(y, wanted, rtol=0.05, atol=0.05)
