"""cutlass_py.torch.scaled_grouped_mm on the CPU: values by every recipe, the operator as torch sees it, errors."""

from __future__ import annotations

import re
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import cutlass_py.torch as ct  # noqa: E402
from cutlass_py.torch.scaled_grouped import _Call, operator  # noqa: E402

try:
    from torch.nn.functional import ScalingType, SwizzleType
except ImportError:
    pytest.skip("torch has no recipes of scales", allow_module_level=True)

quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
TENSOR, ROW = ScalingType.TensorWise, ScalingType.RowWise
LINE, SQUARE = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
ENDS, M, N, K = [2, 2, 5, 5], 7, 140, 300  # of the lines that groups divide two are in no group
MODES = ("rows", "k", "columns", "none")


def int32(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def operands(mode, pair=(E4M3, E4M3)):
    """Small integers, mat_a row-major and mat_b column-major, and the ends of the groups."""
    m, n, k = {"rows": (M, N, K), "k": (6, N, M), "columns": (6, M, K), "none": (6, N, K)}[mode]
    lead = {"rows": ((), (4,)), "k": ((), ()), "columns": ((4,), ()), "none": ((4,), (4,))}[mode]
    a = torch.randint(-3, 4, (*lead[0], m, k)).float().to(pair[0])
    b = torch.randint(-3, 4, (*lead[1], n, k)).float().to(pair[1]).mT
    return a, b, None if mode == "none" else int32(*ENDS)


def powers(*shape):
    return 2.0 ** torch.randint(-2, 3, shape)


def scale_of(x, recipe, mode, name):
    """By that recipe in torch's shapes, and the operand times its scale."""
    wide, along = x.double(), -1 if name == "a" else -2
    lines, k = (x.shape[-2], x.shape[-1]) if name == "a" else (x.shape[-1], x.shape[-2])
    lead, depth = x.shape[:-2], -(-k // 128)
    if recipe == TENSOR:
        scale = powers(1)
        return scale, wide * scale
    if recipe == ROW and mode == "k":  # of each group
        return powers(len(ENDS) * lines), wide
    if recipe == ROW:
        scale = powers(*lead, lines)
        return scale, wide * scale.unsqueeze(along)
    if recipe == LINE:
        scale = powers(*lead, depth, lines).mT
        by_k = scale.repeat_interleave(128, -1)[..., :k]
        return scale, wide * (by_k if name == "a" else by_k.mT)
    scale = powers(*lead, depth, -(-lines // 128))
    return scale, wide * scale.repeat_interleave(128, -2)[..., :k, :].repeat_interleave(128, -1)[..., :lines]


def expected(mode, a, b, rows=None, columns=None):
    """A loop of products in f64; `rows`, `columns`: factors of each group."""
    if mode == "none":
        return a @ b
    found, begin = [], 0
    for i, end in enumerate(ENDS):
        lines = slice(begin, end)
        x = a[i] if mode == "columns" else a[lines] if mode == "rows" else a[:, lines]
        y = b[i] if mode == "rows" else b[lines] if mode == "k" else b[:, lines]
        z = x @ y
        found.append(z if rows is None else z * rows[i][:, None] * columns[i])
        begin = end
    if mode == "k":
        return torch.stack(found)
    rest = (a.shape[0] - begin, b.shape[-1]) if mode == "rows" else (a.shape[1], b.shape[1] - begin)
    return torch.cat([*found, a.new_zeros(rest)], 0 if mode == "rows" else 1)


RECIPES = [
    (mode, *recipes)
    for mode in MODES
    for recipes in ((TENSOR, TENSOR), (ROW, ROW), (TENSOR, ROW), (LINE, LINE), (LINE, SQUARE))
    if not (mode == "k" and LINE in recipes) and (mode, *recipes) != ("columns", LINE, SQUARE)
]


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32, None], ids=str)
@pytest.mark.parametrize(("mode", "of_a", "of_b"), RECIPES, ids=str)
def test_values_are_those_of_a_loop(mode, of_a, of_b, dtype):
    a, b, offs = operands(mode)
    (scale_a, x), (scale_b, y) = scale_of(a, of_a, mode, "a"), scale_of(b, of_b, mode, "b")
    d = ct.scaled_grouped_mm(a, b, scale_a, of_a, scale_b, of_b, offs=offs, output_dtype=dtype)
    by_group = {}
    if mode == "k" and ROW in (of_a, of_b):
        ones = torch.ones(4, 1)
        by_group["rows"] = scale_a.view(4, -1) if of_a == ROW else ones
        by_group["columns"] = scale_b.view(4, -1) if of_b == ROW else ones
    wanted = expected(mode, x, y, **by_group)
    assert d.dtype == (dtype or BF16) and d.is_contiguous()
    torch.testing.assert_close(d, wanted.to(d.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("pair", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_every_pairing_of_fp8(pair):
    a, b, offs = operands("rows", pair)
    (scale_a, x), (scale_b, y) = scale_of(a, ROW, "rows", "a"), scale_of(b, ROW, "rows", "b")
    d = ct.scaled_grouped_mm(a, b, scale_a, ROW, scale_b, ROW, offs=offs, use_fast_accum=True)
    torch.testing.assert_close(d, expected("rows", x, y).to(BF16), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("mode", "by_group"), [(m, g) for m in MODES for g in (False, True) if (m, g) != ("columns", True)]
)
def test_a_bias(mode, by_group):
    a, b, offs = operands(mode)
    one = torch.ones(1)
    bias = torch.randint(-3, 4, (4, b.shape[-1]) if by_group else (b.shape[-1],)).float()
    call = partial(ct.scaled_grouped_mm, a, b, one, TENSOR, one, TENSOR, offs=offs, output_dtype=torch.float32)
    group = torch.bucketize(torch.arange(5), int32(*ENDS), right=True)
    rows = {"k": bias[:, None], "none": bias[:, None], "rows": bias[group]}[mode] if by_group else bias
    found, wanted = call(bias=bias), call()
    inside = {"rows": (slice(5),), "columns": (..., slice(5))}.get(mode, ())
    rows = rows[:5] if mode == "columns" else rows
    torch.testing.assert_close(found[inside], wanted[inside] + rows)


def test_lists_of_one_names_and_what_pads_a_scale():
    a, b, offs = operands("rows")
    (scale_a, x), (scale_b, y) = scale_of(a, LINE, "rows", "a"), scale_of(b, SQUARE, "rows", "b")
    padded = torch.cat([scale_b, torch.full((4, 1, 2), torch.nan)], 1)  # four lines, as torch's scaled_mm has them
    wanted = expected("rows", x, y).to(BF16)
    call = partial(ct.scaled_grouped_mm, a, b, offs=offs)
    none = SwizzleType.NO_SWIZZLE
    for given in (
        ([scale_a], [LINE], [padded], [SQUARE], [none], [none]),
        (scale_a, "BlockWise1x128", scale_b, "BlockWise128x128", none, []),
    ):
        torch.testing.assert_close(call(*given), wanted, rtol=0, atol=0)
    torch.testing.assert_close(call(scale_a, LINE, scale_b, SQUARE, contraction_dim=(-1, -2)), wanted, rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------- as torch sees it


def test_the_schema_is_the_tuple():
    assert [argument.name for argument in operator._schema.arguments] == list(_Call._fields)
    assert not any(x.has_default_value() for x in operator._schema.arguments)


def case(of_b, mode="rows"):
    a, b, offs = operands(mode)
    of_a = LINE if of_b in (LINE, SQUARE) else of_b
    return a, b, scale_of(a, of_a, mode, "a")[0], of_a, scale_of(b, of_b, mode, "b")[0], of_b, offs


@quiet
@pytest.mark.parametrize("recipe", [TENSOR, ROW, LINE, SQUARE], ids=str)
def test_opcheck(recipe):
    a, b, scale_a, _, scale_b, _, offs = case(recipe)
    given = (a, b, scale_a, scale_b.mT if recipe == LINE else scale_b, offs, None, torch.float32, False)
    # Not its schema, which torch looks at by multiplying fp8 by a number: it cannot.
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    assert set(torch.library.opcheck(operator, given, test_utils=tests).values()) == {"SUCCESS"}


@quiet
@pytest.mark.parametrize(
    ("mode", "recipe"), [(mode, of_b) for mode, of_a, of_b in RECIPES if of_a != TENSOR or of_b != ROW], ids=str
)
def test_compiled(mode, recipe):
    torch._dynamo.reset()
    a, b, scale_a, of_a, scale_b, of_b, offs = case(recipe, mode)

    def layer(a, b, scale_a, scale_b, offs):
        return ct.scaled_grouped_mm(a, b, scale_a, of_a, scale_b, of_b, offs=offs) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    found, wanted = (f(a, b, scale_a, scale_b, offs) for f in (compiled, layer))
    torch.testing.assert_close(found, wanted)


def test_fake_results_of_a_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a = torch.empty(M, K, device="cuda", dtype=E4M3)
        b = torch.empty(4, N, K, device="cuda", dtype=E4M3).mT
        of_a, of_b = torch.empty(M, device="cuda"), torch.empty(4, N, device="cuda")
        d = ct.scaled_grouped_mm(a, b, of_a, ROW, of_b, ROW, offs=torch.empty(4, dtype=torch.int32, device="cuda"))
        assert (d.device.type, d.shape, d.dtype) == ("cuda", (M, N), BF16)
        with pytest.raises(RuntimeError, match="mat_a is on cuda:0 but scale_b is on cpu"):
            offs = torch.empty(4, dtype=torch.int32, device="cuda")
            ct.scaled_grouped_mm(a, b, of_a, ROW, of_b.cpu(), ROW, offs=offs)


def test_operations_are_counted():
    a, b, scale_a, of_a, scale_b, of_b, offs = case(ROW)
    with FlopCounterMode(display=False) as counter:
        ct.scaled_grouped_mm(a, b, scale_a, of_a, scale_b, of_b, offs=offs)
    assert counter.get_total_flops() == 2 * M * N * K


def test_torch_fx_records_the_call():
    traced = torch.fx.symbolic_trace(
        lambda a, b, s, t, offs: ct.scaled_grouped_mm(a, b, s, "RowWise", t, "RowWise", offs=offs)
    )
    a, b, scale_a, of_a, scale_b, of_b, offs = case(ROW)
    wanted = ct.scaled_grouped_mm(a, b, scale_a, of_a, scale_b, of_b, offs=offs)
    torch.testing.assert_close(traced(a, b, scale_a, scale_b, offs), wanted)


# ---------------------------------------------------------------------------------------------------- errors

A, B, O4 = torch.zeros(7, 300).to(E4M3), torch.zeros(4, 300, 140).to(E4M3), int32(*ENDS)
S, T, ONE = torch.ones(7), torch.ones(4, 140), torch.ones(1)
VECTORS = "TensorWise, RowWise"
f = ct.scaled_grouped_mm
REFUSED = [
    ("mat_a is (7,); expected 2 or 3 dimensions", lambda: f(A[:, 0], B, S, ROW, T, ROW, offs=O4)),
    ("mat_a is torch.float32; expected one of torch.float8_e4m3fn, torch.float8_e5m2",
     lambda: f(A.float(), B, S, ROW, T, ROW, offs=O4)),
    ("mat_b is torch.bfloat16; expected one of torch.float8_e4m3fn, torch.float8_e5m2",
     lambda: f(A, B.bfloat16(), S, ROW, T, ROW, offs=O4)),
    ("offs is not given but mat_a is (7, 300)", lambda: f(A, B, S, ROW, T, ROW)),
    ("offs is (3,); expected (4,)", lambda: f(A, B, S, ROW, T, ROW, offs=O4[:3])),
    ("offs is torch.int64; expected torch.int32", lambda: f(A, B, S, ROW, T, ROW, offs=O4.long())),
    ("offs[1] is 1 but offs[0] is 2; expected no decrease", lambda: f(A, B, S, ROW, T, ROW, offs=int32(2, 1, 5, 5))),
    ("scale_a is torch.float64; expected torch.float32", lambda: f(A, B, S.double(), ROW, T, ROW, offs=O4)),
    ("scale_a is (1,); expected (7,)", lambda: f(A, B, ONE, ROW, T, ROW, offs=O4)),
    ("scale_a is (7,); expected one element", lambda: f(A, B, S, TENSOR, ONE, TENSOR, offs=O4)),
    ("scale_b is (140,); expected (4, 140)", lambda: f(A, B, S, ROW, T[0], ROW, offs=O4)),
    ("scale_b is (4, 140); expected (7,)", lambda: f(B.mT, A.mT, T, ROW, T, ROW, offs=O4)),
    ("scale_a is (7,); expected (28,)", lambda: f(A, A.mT[:, :5], S, ROW, S, ROW, offs=O4)),
    ("scale_a is (7, 2); expected (7, 3)", lambda: f(A, B, torch.ones(7, 2), LINE, T, SQUARE, offs=O4)),
    ("scale_b is (4, 3, 140); expected (4, 140, 3)",
     lambda: f(A, B, torch.ones(7, 3), LINE, torch.ones(4, 3, 140), LINE, offs=O4)),
    ("scale_b is (4, 2, 2); expected (4, 3, 2) or (4, 4, 2)",
     lambda: f(A, B, torch.ones(7, 3), LINE, torch.ones(4, 2, 2), SQUARE, offs=O4)),
    (f"scale_recipe_a is BlockWise128x128; expected one of {VECTORS}, BlockWise1x128",
     lambda: f(A, B, S, SQUARE, T, LINE, offs=O4)),
    (f"scale_recipe_a is BlockWise1x32; expected one of {VECTORS}, BlockWise1x128",
     lambda: f(A, B, S, ScalingType.BlockWise1x32, T, ScalingType.BlockWise1x32, offs=O4)),
    (f"scale_recipe_b is BlockWise128x128; expected one of {VECTORS}, BlockWise1x128, where groups divide columns",
     lambda: f(B.mT, A.mT, torch.ones(4, 140, 3), LINE, S, SQUARE, offs=O4)),
    (f"scale_recipe_a is BlockWise1x128; expected one of {VECTORS}, where groups divide k",
     lambda: f(A, A.mT, S, LINE, S, LINE, offs=O4)),
    ("scale_recipe_a is RowWise but scale_recipe_b is BlockWise128x128; expected both in blocks, or neither",
     lambda: f(A, B, S, ROW, torch.ones(4, 3, 2), SQUARE, offs=O4)),
    ("scale_recipe_a is [<_ScalingType.BlockWise1x16: 2>, <_ScalingType.TensorWise: 0>]; expected one of",
     lambda: f(A, B, S, [ScalingType.BlockWise1x16, TENSOR], T, ROW, offs=O4)),
    ("swizzle_b is SWIZZLE_32_4_4; expected NO_SWIZZLE",
     lambda: f(A, B, S, ROW, T, ROW, None, SwizzleType.SWIZZLE_32_4_4, offs=O4)),
    ("output_dtype is torch.float64; expected one of torch.bfloat16, torch.float16, torch.float32",
     lambda: f(A, B, S, ROW, T, ROW, offs=O4, output_dtype=torch.float64)),
    ("contraction_dim is [0, 1]; expected [1, 1]",
     lambda: f(A, B, S, ROW, T, ROW, offs=O4, contraction_dim=(0, 1))),
    ("contraction_dim is [1]; expected [1, 1]", lambda: f(A, B, S, ROW, T, ROW, offs=O4, contraction_dim=[1])),
    ("bias is (7,); expected (140,)", lambda: f(A, B, S, ROW, T, ROW, None, None, S, O4)),
    ("bias is f16; expected one of bf16, f32", lambda: f(A, B, S, ROW, T, ROW, bias=T.half(), offs=O4)),
    ("an operand requires a gradient; expected none",
     lambda: f(A, B, S.clone().requires_grad_(), ROW, T, ROW, offs=O4)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_errors(message, call):
    with pytest.raises(RuntimeError, match="^scaled_grouped_mm: " + re.escape(message)):
        call()


def test_what_is_no_tensor():
    for name, given in {"mat_a": (0, B, S, ROW, T), "scale_a": (A, B, 1.0, ROW, T)}.items():
        with pytest.raises(TypeError, match=f"scaled_grouped_mm: {name} is an? .*; expected a torch.Tensor"):
            f(*given, ROW, offs=O4)
    with pytest.raises(TypeError, match="scaled_grouped_mm: scale_a is a list; expected a torch.Tensor"):
        f(A, B, [S, S], ROW, T, ROW, offs=O4)
