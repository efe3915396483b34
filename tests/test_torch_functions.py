"""cutlass_py.torch's functions on the CPU, against torch's of the same names: values, dtypes, out=, casts, errors."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from reference import ROUNDOFF

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py.torch import functions  # noqa: E402

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
UNIT = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)


def near(d, expected):
    """Of one dtype and shape, and as close as two summations may be."""
    assert d.dtype == expected.dtype and d.shape == expected.shape, (d.dtype, d.shape, expected.dtype, expected.shape)
    unit = 16 * ROUNDOFF.get(UNIT.get(d.dtype, "f32"), 0)
    torch.testing.assert_close(d, expected, rtol=unit, atol=16 * unit)


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


def under_dispatch_mode(f):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return f()


# name, shapes of the operands, keywords
CALLS = [
    ("mm", [(3, 4), (4, 5)], {}),
    ("mm", [(3, 0), (0, 5)], {}),
    ("mm", [(0, 4), (4, 5)], {}),
    ("bmm", [(2, 3, 4), (2, 4, 5)], {}),
    ("bmm", [(0, 3, 4), (0, 4, 5)], {}),
    ("matmul", [(4,), (4,)], {}),
    ("matmul", [(4,), (4, 5)], {}),
    ("matmul", [(3, 4), (4,)], {}),
    ("matmul", [(2, 3, 4), (4,)], {}),
    ("matmul", [(4,), (2, 4, 5)], {}),
    ("matmul", [(2, 3, 4), (4, 5)], {}),
    ("matmul", [(2, 1, 3, 4), (3, 4, 5)], {}),
    ("addmm", [(3, 5), (3, 4), (4, 5)], {}),
    ("addmm", [(3, 5), (3, 4), (4, 5)], {"beta": 0.5, "alpha": 2}),
    ("addmm", [(5,), (3, 4), (4, 5)], {}),
    ("addmm", [(1, 5), (3, 4), (4, 5)], {"alpha": 3}),
    ("addmm", [(3, 1), (3, 4), (4, 5)], {}),
    ("addmm", [(1,), (3, 4), (4, 5)], {}),
    ("addmm", [(), (3, 4), (4, 5)], {}),
    ("addmm", [(5,), (3, 4), (4, 5)], {"beta": 2}),
    ("addmm", [(3, 5), (3, 0), (0, 5)], {"beta": 2}),
    ("baddbmm", [(2, 3, 5), (2, 3, 4), (2, 4, 5)], {"beta": 0.5, "alpha": 2}),
    ("baddbmm", [(3, 5), (2, 3, 4), (2, 4, 5)], {}),
    ("baddbmm", [(5,), (2, 3, 4), (2, 4, 5)], {}),
    ("baddbmm", [(2, 1, 5), (2, 3, 4), (2, 4, 5)], {}),
    ("baddbmm", [(2, 3, 1), (2, 3, 4), (2, 4, 5)], {"beta": 3}),
    ("linear", [(3, 4), (5, 4)], {}),
    ("linear", [(3, 4), (5, 4), (5,)], {}),
    ("linear", [(4,), (5, 4), (5,)], {}),
    ("linear", [(2, 3, 4), (5, 4), (5,)], {}),
    ("linear", [(3, 4), (5, 4), (1,)], {}),
    ("linear", [(3, 4), (5, 4), ()], {}),
    ("linear", [(3, 4), (4,)], {}),
    ("linear", [(2, 3, 4), (4,), ()], {}),
    ("linear", [(2, 3, 4), (4,), (2, 3)], {}),
    ("linear", [(4,), (4,), ()], {}),
    ("addmm", [(3, 5), (3, 4), (4, 5)], {"beta": 0}),
    ("baddbmm", [(5,), (2, 3, 4), (2, 4, 5)], {"beta": 0.0}),
]


def theirs(name):
    return torch.nn.functional.linear if name == "linear" else getattr(torch, name)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("name", "shapes", "keywords"), CALLS, ids=str)
def test_values_are_torchs(name, shapes, keywords, dtype):
    operands = [randn(*shape, dtype=dtype) for shape in shapes]
    d = getattr(ct, name)(*operands, **keywords)
    near(d, theirs(name)(*operands, **keywords))
    assert d.is_contiguous() and not d.requires_grad


@pytest.mark.parametrize(("name", "shapes", "keywords"), CALLS, ids=str)
def test_gradients_are_torchs(name, shapes, keywords):
    operands = [randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    d, expected = getattr(ct, name)(*operands, **keywords), theirs(name)(*operands, **keywords)
    near(d, expected)
    weight = torch.randn_like(d)
    for grad, wanted in zip(*(torch.autograd.grad(x, operands, weight) for x in (d, expected)), strict=True):
        near(grad, wanted)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_and_lazy_conjugates(dtype):
    a, b, c = randn(3, 4, dtype=dtype), randn(5, 4, dtype=dtype), randn(3, 5, dtype=dtype)
    near(ct.mm(a, b.mH), a @ b.mH)
    near(ct.addmm(c, a.conj(), b.mT, beta=1j, alpha=2 - 1j), torch.addmm(c, a.conj(), b.mT, beta=1j, alpha=2 - 1j))
    negated = a.conj().imag
    assert negated.is_neg()
    near(ct.mm(negated, b.real.mT), negated @ b.real.mT)
    near(ct.mm(negated, b.real.mT, out=torch.empty(3, 5, dtype=negated.dtype)), negated @ b.real.mT)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bytes_wrap_around(dtype):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
    a, b, c = (torch.randint(low, high, shape, dtype=dtype) for shape in ((30, 40), (40, 50), (30, 50)))
    assert torch.equal(ct.mm(a, b), torch.mm(a, b))
    assert torch.equal(ct.addmm(c, a, b, beta=3, alpha=5), torch.addmm(c, a, b, beta=3, alpha=5))
    out = torch.empty(30, 50, dtype=dtype)
    assert ct.matmul(a, b, out=out) is out and torch.equal(out, a @ b)
    for beta in (0, 1):
        with pytest.raises(RuntimeError, match="expand"):
            ct.addmm(c[:, None, :1], a, b, beta=beta)
    for number in (math.inf, math.nan, 1j):
        with pytest.raises(RuntimeError, match=re.escape(f"addmm: beta is {number}; expected a whole number")):
            ct.addmm(c, a, b, beta=number)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_keeps_its_dtype(dtype):
    a, b = torch.ones(3, 4).to(dtype), torch.ones(4, 5).to(dtype)
    assert torch.equal(ct.mm(a, b).float(), torch.full((3, 5), 4.0)) and ct.mm(a, b).dtype == dtype
    assert ct.gemm(a, b).dtype == torch.bfloat16
    assert ct.mm(a, b, torch.float32).dtype == torch.float32


def test_out_dtype():
    a, b, c = randn(3, 4).bfloat16(), randn(4, 5).bfloat16(), randn(3, 5).bfloat16()
    near(ct.mm(a, b, torch.float32), a.float() @ b.float())
    near(ct.addmm(c, a, b, torch.float32), torch.addmm(c.float(), a.float(), b.float()))
    near(ct.bmm(a[None], b[None], out_dtype=torch.float32), (a.float() @ b.float())[None])


def test_operands_may_lie_anyhow():
    a, b = randn(8, 6)[::2, 1:5], randn(5, 12).mT[::3]
    near(ct.mm(a, b), a @ b)
    buffer = torch.zeros(4, 20)
    assert ct.mm(a, b, out=buffer[:, 3:18:3]).data_ptr() == buffer[:, 3:].data_ptr()
    near(buffer[:, 3:18:3], a @ b)
    assert buffer[:, 4::3].count_nonzero() == 0
    near(ct.mm(a, randn(1, 5).expand(4, 5) * 0 + 1), a.sum(1, keepdim=True).expand(4, 5))


@pytest.mark.parametrize("name", ["mm", "bmm", "matmul", "addmm", "baddbmm"])
def test_out_is_resized_as_torch_does(name):
    batch = (2,) if "b" in name[:4] and name != "matmul" else ()
    operands = [randn(*batch, *s) for s in ((3, 5), (3, 4), (4, 5))][0 if name.startswith(("add", "bad")) else 1 :]
    expected = getattr(torch, name)(*operands)
    empty = torch.empty(0)
    assert getattr(ct, name)(*operands, out=empty) is empty
    near(empty, expected)
    with pytest.warns(UserWarning, match=f"{name}: out is .* and was resized"):
        near(getattr(ct, name)(*operands, out=torch.empty(7)), expected)


def test_beta_0_does_not_read():
    a, b, nan = randn(3, 4), randn(4, 5), torch.full((3, 5), torch.nan)
    near(ct.addmm(nan, a, b, beta=0), a @ b)
    near(ct.addmm(nan[0], a, b, beta=0), a @ b)


REFUSED = {
    "rank": (lambda f, *a: f.mm(randn(2, 3, 4), randn(4, 5)), RuntimeError),
    "rank 3": (lambda f: f.bmm(randn(3, 4), randn(4, 5)), RuntimeError),
    "vector": (lambda f: f.mm(randn(4), randn(4, 5)), RuntimeError),
    "scalar": (lambda f: f.matmul(torch.tensor(1.0), randn(4, 5)), RuntimeError),
    "inner": (lambda f: f.mm(randn(2, 3), randn(2, 3)), RuntimeError),
    "batch": (lambda f: f.bmm(randn(3, 2, 3), randn(1, 3, 2)), RuntimeError),
    "batches": (lambda f: f.matmul(randn(3, 2, 3), randn(2, 3, 2)), RuntimeError),
    "dtypes": (lambda f: f.mm(randn(2, 3), randn(3, 2).bfloat16()), RuntimeError),
    "addend dtype": (lambda f: f.addmm(randn(2).bfloat16(), randn(2, 3), randn(3, 2)), RuntimeError),
    "addend": (lambda f: f.addmm(randn(7), randn(2, 3), randn(3, 2)), RuntimeError),
    "addend rank": (lambda f: f.addmm(randn(1, 2, 2), randn(2, 3), randn(3, 2)), RuntimeError),
    "no tensor": (lambda f: f.mm("a", randn(3, 2)), TypeError),
    "no addend": (lambda f: f.addmm(None, randn(2, 3), randn(3, 2)), TypeError),
    "None": (lambda f: f.mm(randn(2, 3), None), TypeError),
    "list": (lambda f: f.matmul([randn(2, 3)], randn(3, 2)), TypeError),
    "out dtype": (lambda f: f.mm(randn(2, 3), randn(3, 2), out=torch.empty(2, 2, dtype=torch.float64)), RuntimeError),
    "out grad": (lambda f: f.mm(randn(2, 3).requires_grad_(), randn(3, 2), out=torch.empty(2, 2)), RuntimeError),
    "grad of out": (lambda f: f.matmul(randn(2, 3), randn(3, 2), out=torch.empty(2, 2).requires_grad_()), RuntimeError),
    "weight": (lambda f: (f.linear if f is ct else theirs("linear"))(randn(2, 3), randn(2, 2, 3)), RuntimeError),
}


@pytest.mark.parametrize(("call", "error"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_of_torchs_types(call, error):
    for module in (ct, torch):
        with pytest.raises(error):
            call(module)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_sums_are_added_up_in_place_whatever_their_shape(m, n):
    a, b, acc = randn(m, 4), randn(4, n), randn(m, n)
    wanted = torch.addmm(acc, a, b)
    assert ct.addmm(acc, a, b, out=acc) is acc
    torch.testing.assert_close(acc, wanted)
    batch = randn(2, m, n)
    wanted = torch.baddbmm(batch, a.expand(2, m, 4), b.expand(2, 4, n))
    ct.baddbmm(batch, a.expand(2, m, 4), b.expand(2, 4, n), out=batch)
    torch.testing.assert_close(batch, wanted)


def test_a_bias_beside_a_vector_has_the_axes_of_the_result():
    x, w, bias = randn(2, 3, 2).mT, randn(3), torch.tensor([[0.0], [100.0]])
    torch.testing.assert_close(ct.linear(x, w, bias), torch.nn.functional.linear(x, w, bias))


def test_messages_name_the_function():
    with pytest.raises(RuntimeError, match="mm: out shares"):
        a = randn(3, 3)
        ct.mm(a, a, out=a)
    with pytest.raises(
        RuntimeError, match=re.escape("mm: input is (2, 3) but mat2 is (2, 3); inner extents must agree")
    ):
        ct.mm(randn(2, 3), randn(2, 3))
    with pytest.raises(RuntimeError, match="addmm: mat1 is torch.float32 but input is torch.float64"):
        ct.addmm(randn(3).double(), randn(2, 3), randn(3, 3))
    with pytest.raises(TypeError, match="lists of matrices go to cutlass_py.gemm"):
        ct.gemm([randn(2, 3)], [randn(3, 2)])


class Raised(ValueError):
    """What a user's code raises within a call."""


class Raising(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.cutlass_py.gemm.default:
            raise Raised("by a mode")
        return function(*args, **(kwargs or {}))


def raising(x):
    raise Raised("by a hook")


@pytest.mark.parametrize("around", [Raising, lambda: torch.autograd.graph.saved_tensors_hooks(raising, raising)])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_what_others_raise_within_a_call_is_passed_on(activation, around):
    x, layer = randn(3, 4), ct.Linear(4, 5, activation=activation)
    with pytest.raises(Raised), around():
        layer(x)


def test_dtypes_that_torch_has_and_gemm_has_not():
    for dtype in (torch.int64, torch.int32, torch.bool):
        with pytest.raises(RuntimeError, match="^mm: "):
            ct.mm(torch.ones(2, 2, dtype=dtype), torch.ones(2, 2, dtype=dtype))


# ---------------------------------------------------------------------------------------------------- gemm


def test_gemm_is_that_of_the_package():
    a, b, bias, pre = randn(3, 4), randn(4, 5), randn(5), torch.empty(3, 5)
    keywords = {"bias": bias, "activation": "gelu", "alpha": 0.5, "scale_out": 2.0}
    assert torch.equal(ct.gemm(a, b, **keywords), cutlass_py.gemm(a, b, **keywords))
    ct.gemm(a, b, aux=pre, **keywords)
    near(pre, 0.5 * a @ b + bias)
    with pytest.raises(ValueError, match="inner extents"):
        ct.gemm(a, a)
    with pytest.raises(ValueError, match="activation='swish'"):
        ct.gemm(a, b, activation="swish")


SAME = {
    "splits": {"splits": "foo"},
    "no splits": {"splits": 0},
    "negative splits": {"splits": -1},
    "NumPy's splits": {"splits": np.int64(2)},
    "dtype of NumPy": {"out_dtype": np.float64},
    "name of NumPy": {"out_dtype": "float64"},
    "activation": {"activation": torch.relu},
    "complex scale": {"scale_out": 1j},
    "scalar": {"alpha": np.float32(0.1)},
    "array": {"alpha": np.array(2, np.float32)},
    "scalars": {"scale_a": np.float64(0.5), "scale_b": np.float32(3)},
    "deterministic": {"deterministic": 1},
    "kernel": {"kernel": "foo"},
    "out": {"out": torch.empty(3, 5), "out_dtype": torch.bfloat16},
    "bias_grad of bytes": {"bias_grad": torch.empty(5, dtype=torch.int8)},
    "bias_grad of fp8": {"bias_grad": torch.empty(5, dtype=torch.float8_e4m3fn)},
    "bias_grad": {"bias_grad": torch.empty(7)},
    "wide bias_grad": {"bias_grad": torch.empty(5, dtype=torch.float64), "bias": torch.full((5,), 2.0**20)},
    "bias_grad of 16 bits": {"bias_grad": torch.empty(3, 1, dtype=torch.bfloat16), "out_dtype": "bf16"},
    "scalar bias_grad": {"bias_grad": torch.empty(())},
    "wide aux": {"aux": torch.empty(3, 5, dtype=torch.float64), "out_dtype": torch.bfloat16, "activation": "gelu"},
    "fp8 aux": {"aux": torch.empty(3, 5, dtype=torch.float8_e5m2), "out_dtype": "f16", "alpha": 1e4},
    "aux of bytes": {"aux": torch.empty(3, 5, dtype=torch.int8), "out_dtype": "bf16", "alpha": 33},
    "nine dimensions": {"c": torch.empty((1,) * 9)},
}


@pytest.mark.parametrize("keywords", SAME.values(), ids=SAME)
def test_every_way_gives_the_same(keywords):
    """Values of what is written, or type and text of the error: straight, with a gradient, and through the operator."""
    a, b = randn(3, 4), randn(4, 5)

    def outcome(a, f=ct.gemm):
        given = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in keywords.items()}
        try:
            d = f(a, b, **given)
        except (ValueError, TypeError) as error:
            return type(error), str(error)
        return [d.detach(), *(given[name].detach() for name in ("aux", "bias_grad") if name in given)]

    expected = outcome(a, cutlass_py.gemm)
    others = [outcome(a), under_dispatch_mode(lambda: outcome(a))]
    if "out" not in keywords:
        others.append(outcome(a.clone().requires_grad_()))
    for other in others:
        assert type(other) is type(expected)
        if isinstance(expected, tuple):
            assert other == expected
        else:
            assert [x.dtype for x in other] == [x.dtype for x in expected]
            assert all(torch.equal(x.double(), y.double()) for x, y in zip(other, expected, strict=True))


def test_compiled_calls_do_not_take_contradictions():
    a, b = randn(3, 4), randn(4, 5)
    for match, keywords in (
        ("out is f32 but out_dtype is bf16", {"out": torch.empty(3, 5), "out_dtype": torch.bfloat16}),
        (r"bias_grad is \(7,\); expected \(5,\), \(1, 5\) or \(3, 1\)", {"bias_grad": torch.empty(7)}),
        ("bias_grad is s8", {"bias_grad": torch.empty(5, dtype=torch.int8)}),
        ("splits is below 1; expected 1 to 32767", {"splits": 0}),
        ("splits is below 1; expected 1 to 32767", {"splits": -1}),
    ):
        with pytest.raises(Exception, match=match):
            torch.compile(lambda k=keywords: ct.gemm(a, b, **k), backend="eager", fullgraph=True)()


def test_operands_on_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="mm: input is on cpu but mat2 is on meta"):
        ct.mm(randn(3, 4), randn(4, 5).to("meta"))


def test_an_addend_of_another_dtype_than_the_result():
    a, b, bias = randn(3, 4).bfloat16(), randn(4, 5).bfloat16(), randn(5).bfloat16()
    expected = a.float() @ b.float() + bias.float()
    near(ct.addmm(bias, a, b, torch.float32), expected)
    near(ct.baddbmm(bias, a[None], b[None], torch.float32), expected[None])
    near(ct.addmm(expected[:, :1].bfloat16(), a, b, torch.float32), a.float() @ b.float() + expected[:, :1].bfloat16())


def test_torch_fx_records_the_functions():
    def program(a, b, bias):
        return ct.linear(ct.addmm(bias, a, b, beta=2), ct.gemm(b, b.mT, activation="relu") @ b, bias=ct.mm(a, b)[0, :4])

    a, b, bias = randn(3, 4), randn(4, 5), randn(5)
    traced = torch.fx.symbolic_trace(program)
    torch.testing.assert_close(traced(a, b, bias), program(a, b, bias))
    called = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    assert {ct.linear, ct.addmm, ct.gemm, ct.mm} <= set(called)
    traced = torch.fx.symbolic_trace(lambda x, bias: ct.mlp(x, b.mT, b, bias2=bias))
    torch.testing.assert_close(traced(a, bias[:4]), ct.mlp(a, b.mT, b, bias2=bias[:4]))
    assert ct.mlp in [node.target for node in traced.graph.nodes]


def test_torch_fx_records_what_comes_beside_the_product():
    """A factor that is computed from a shape, and operands of an epilogue."""
    a, c, gate = randn(2, 3, 4), randn(2, 3, 4), randn(3, 5)
    scaled = torch.fx.symbolic_trace(lambda x: ct.baddbmm(c, x, x.mT @ x, alpha=1 / x.shape[-1]))
    torch.testing.assert_close(scaled(a), ct.baddbmm(c, a, a.mT @ a, alpha=0.25))
    beta = torch.fx.symbolic_trace(lambda beta: ct.addmm(c[0], a[0], a[0].mT @ a[0], beta=beta))
    torch.testing.assert_close(beta(2.0), ct.addmm(c[0], a[0], a[0].mT @ a[0], beta=2.0))
    x, w = randn(3, 4), randn(4, 5)
    traced = torch.fx.symbolic_trace(lambda gate, c: ct.gemm(x, w, gate=gate, c=c))
    torch.testing.assert_close(traced(gate, -gate), ct.gemm(x, w, gate=gate, c=-gate))


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: ct.mm(x, x * 2, out=x), "mm: out shares elements with input$"),
    (lambda x: ct.mm(x * 2, x, out=x), "mm: out shares elements with mat2$"),
    (lambda x: ct.addmm(x[0], x, x, out=x), "addmm: out shares elements with mat1; it may only be input itself"),
    (lambda x: ct.addmm(x[0], x * 2, x * 3, out=x), "addmm: out shares elements with input; it may only be input"),
    (lambda x: ct.mm(x.to_sparse(), x, out=x), "mm: input is torch.sparse_coo; expected torch.strided"),
    (lambda x: ct.linear(x.to_sparse(), x), "linear: input is torch.sparse_coo; expected torch.strided"),
    (lambda x: ct.linear(x, x, x[0].to_sparse()), "linear: bias is torch.sparse_coo; expected torch.strided"),
])  # fmt: skip
def test_operands_are_called_as_torch_calls_them(call, message):
    with pytest.raises(RuntimeError, match=message):
        call(randn(4, 4))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_operand():
    nested = torch.nested.nested_tensor([randn(2, 4), randn(3, 4)], layout=torch.jagged)
    with pytest.raises(RuntimeError, match="linear: input is torch.jagged; expected torch.strided"):
        ct.linear(nested, randn(5, 4))


def test_an_operand_is_not_resized():
    c, a, b = torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)
    for call, out in ((lambda: ct.addmm(c, a, b, out=c), c), (lambda: ct.mm(a, b, out=a[:0]), a)):
        with pytest.raises(RuntimeError, match="out is .* and shares the memory of an operand; expected"):
            call()
        assert torch.equal(out, torch.ones_like(out))


def test_results_lie_where_the_operands_do_whatever_the_default_device():
    bits = torch.zeros(3, 4, dtype=torch.uint16)
    with torch.device("meta"):
        d = cutlass_py.gemm(cutlass_py.view(bits, "bf16"), cutlass_py.view(bits.T, "bf16"))
    assert cutlass_py.gemm(d, d).array.device.type == "cpu"


def test_signature():
    import inspect

    ours = inspect.signature(ct.gemm).parameters
    all_of_gemm = [*inspect.signature(cutlass_py.GemmArguments).parameters, "kernel"]
    assert list(ours) == [name for name in all_of_gemm if name != "epilogue"]  # which has no derivative


@pytest.mark.parametrize("a_shape,b_shape", [((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,))])
def test_the_operator_takes_vectors_too(a_shape, b_shape):
    a, b = randn(*a_shape).requires_grad_(), randn(*b_shape)
    expected = a @ b
    c, gate, aux = (torch.randn_like(expected) for _ in range(3))
    d = ct.gemm(a, b, c=c, gate=gate, activation="relu", aux=aux, beta=2)
    near(d.detach(), (expected + 2 * c).detach() * torch.relu(gate))
    near(aux.detach(), (expected + 2 * c).detach())


def test_what_is_written_has_gradients():
    a, b, bias = (randn(*s, dtype=torch.float64).requires_grad_() for s in ((3, 4), (4, 5), (5,)))
    aux, sums = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.float64)
    d = ct.gemm(a, b, bias=bias, activation="silu", aux=aux, bias_grad=sums)
    z = a @ b + bias
    y = torch.nn.functional.silu(z)
    near(aux, z), near(sums, y.sum(0, keepdim=True))
    weights = [torch.randn_like(x) for x in (d, aux, sums)]
    got = torch.autograd.grad((d, aux, sums), (a, b, bias), weights)
    for grad, wanted in zip(got, torch.autograd.grad((y, z, y.sum(0, True)), (a, b, bias), weights), strict=True):
        near(grad, wanted)


def test_errors_of_the_operator_are_those_of_the_straight_way():
    a, b = randn(3, 4).requires_grad_(), randn(4, 5)
    for error, match, call in [
        (ValueError, "inner extents", lambda: ct.gemm(a, b.mT)),
        (ValueError, "beta is given but c is not", lambda: ct.gemm(a, b, beta=2)),
        (ValueError, "activation='swish'", lambda: ct.gemm(a, b, activation="swish")),
        (ValueError, "aux is .3, 4.; expected .3, 5.", lambda: ct.gemm(a, b, aux=torch.empty(3, 4))),
        (ValueError, "bias is .4,.", lambda: ct.gemm(a, b, bias=randn(4))),
        (ValueError, "compute='f16'", lambda: ct.gemm(a, b, compute="f16")),
        (TypeError, "b is f64", lambda: ct.gemm(a, b.double())),
        (ValueError, "alpha is an array but scale_a is a number", lambda: ct.gemm(a, b, alpha=randn(1), scale_a=2.0)),
        (RuntimeError, "don't support automatic differentiation", lambda: ct.gemm(a, b, out=torch.empty(3, 5))),
        (RuntimeError, "don't support automatic", lambda: ct.gemm(a.detach(), b, out=randn(3, 5).requires_grad_())),
    ]:
        with pytest.raises(error, match=match):
            call()


# ---------------------------------------------------------------------------------------------------- autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("given", [*FLOATS, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    ("name", "shapes", "keywords"), [CALLS[0], CALLS[10], CALLS[12], CALLS[21], CALLS[29]], ids=str
)
def test_autocast_casts_as_for_torch(name, shapes, keywords, given, dtype):
    operands = [torch.randint(-2, 3, shape).to(given) for shape in shapes]
    with torch.autocast("cpu", dtype=dtype):
        near(getattr(ct, name)(*operands, **keywords), theirs(name)(*operands, **keywords))


@pytest.mark.parametrize(
    ("name", "shapes"), [("mm", [(3, 4), (4, 5)]), ("matmul", [(4,), (4, 5)]), ("matmul", [(2, 1, 3, 4), (3, 4, 5)])]
)
@pytest.mark.parametrize("gradient", [False, True])
def test_autocast_casts_once(monkeypatch, name, shapes, gradient):
    casts, cast = [], functions.cast
    monkeypatch.setattr(functions, "cast", lambda *args, **keywords: casts.append(args) or cast(*args, **keywords))
    a, b = (randn(*shape).requires_grad_(gradient) for shape in shapes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near(getattr(ct, name)(a, b), getattr(torch, name)(a, b))
    assert len(casts) == 1


def test_autocast_leaves_out_alone_and_mixed_doubles_apart():
    a, b = randn(3, 4), randn(4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near(ct.mm(a, b, out=torch.empty(3, 5)), torch.mm(a, b, out=torch.empty(3, 5)))
        with pytest.raises(RuntimeError, match="expected the same dtype"):
            ct.mm(a.double(), b)
        bias = randn(5)
        d = ct.gemm(a, b, out_dtype="f32", bias=bias)
        fp8 = a.to(torch.float8_e4m3fn)
        assert ct.gemm(fp8, fp8.mT).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert ct.mm(a, b).dtype == torch.float32
    near(d, a.bfloat16().float() @ b.bfloat16().float() + bias)


def test_autocast_of_every_operand():
    a, b, c, bias, gate = (randn(*s).requires_grad_() for s in ((3, 4), (4, 5), (3, 5), (5,), (3, 5)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        d = ct.gemm(a, b, c=c, bias=bias, gate=gate, activation="silu")
    assert d.dtype == torch.bfloat16
    d.sum().backward()
    assert all(x.grad.dtype == torch.float32 and x.grad.abs().sum() > 0 for x in (a, b, c, bias, gate))
