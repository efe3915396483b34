"""quantize on the CPU: every framework, dtype, scaling and layout against the definition; errors; the engines."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    CPU_FRAMEWORKS,
    MUTABLE,
    NEGATIVE,
    NO_UNIT_STRIDE,
    UNIT_STRIDE,
    dtype_of,
    framework_of,
    make,
    placed,
    to_numpy,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import LIMITS, NUMPY, assert_same_codes, quantized, rounded

import cutlass_py
from cutlass_py import QuantizeArguments, TensorSpec, _core, explain, gemm, get_kernels, quantize
from cutlass_py.declaration.families import find, named
from cutlass_py.declaration.quantize import ALIASES, SCALINGS, SOURCES
from cutlass_py.dispatch.planning import plan

PLACED = [(f, kind) for f in MUTABLE for kind in (*UNIT_STRIDE, *NO_UNIT_STRIDE, *(NEGATIVE if f == "numpy" else ()))]
SHAPES = [(3, 5), (1, 128), (129, 257), (300, 64), (2, 130, 140), (2, 3, 4, 200)]


def values(rng, shape, dtype="f32"):
    """Several orders of magnitude, with what is special in each group: zeros, NaN, infinities, subnormals."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    flat = x.reshape(-1)
    for i, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-140)):
        if flat.size > 20:
            flat[i * flat.size // 7] = special
    return x if dtype == "f64" else rounded(x, dtype)


def codes(q) -> np.ndarray:
    """A result's bits as NumPy has its dtype."""
    if framework_of(q) == "torch":
        import torch

        return q.contiguous().view(torch.uint8).numpy().view(NUMPY[dtype_of(q)])
    return np.asarray(q)


def check(found, x, q, scaling):
    """Both results against the definition, bit for bit."""
    wide = x if x.ndim > 1 else x[None]
    wanted, scales = quantized(wide, q, scaling)
    assert_same_codes(codes(found[0]), wanted.reshape(x.shape))
    expected = scales.reshape(scales.shape[1:] if x.ndim == 1 and scales.ndim else scales.shape)
    assert dtype_of(found[1]) == "f32"
    np.testing.assert_array_equal(to_numpy(found[1]), expected.astype(np.float64))


# ---------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_the_definition(rng, dtype, q, scaling, shape):
    x = values(rng, shape, dtype)
    check(quantize(make("numpy", x, dtype), q, scaling=scaling), x, q, scaling)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_every_framework_gets_its_own_arrays(rng, framework, q, scaling):
    x = values(rng, (130, 200), "bf16")
    found = quantize(make(framework, x, "bf16"), q, scaling=scaling)
    assert [framework_of(each) for each in found] == [framework] * 2
    check(found, x, q, scaling)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(("framework", "kind"), PLACED)
def test_every_layout_is_read_and_written(rng, framework, kind, scaling):
    x = values(rng, (2, 131, 137), "f32")
    out = placed(framework, None, "e4m3", kind, x.shape)
    groups = quantized(x, "e4m3", scaling)[1].shape
    scales = placed(framework, None, "f32", kind, groups) if len(groups) == 3 else None
    given = scales.array if scales else None
    q, s = quantize(make(framework, x, "f32", kind), scaling=scaling, out=out.array, scales=given)
    assert q is out.array and (s is given or given is None)
    check((q, s), x, "e4m3", scaling)
    out.assert_rest_untouched()
    if scales:
        scales.assert_rest_untouched()


def test_a_vector_is_one_row(rng):
    x = values(rng, (300,))
    for scaling, shape in (("tensor", ()), ("row", (1,)), ("1x128", (3,)), ("block", (3,))):
        found = quantize(x.astype(np.float32), scaling=scaling)
        assert found[1].shape == shape
        check(found, x, "e4m3", ALIASES.get(scaling, scaling))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=2), st.integers(0, 140), st.integers(0, 300), st.sampled_from(list(SCALINGS)),
    st.sampled_from(list(LIMITS)), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_extents(batch, m, k, scaling, q, seed):
    x = values(np.random.default_rng(seed), (*batch, m, k), "f16")
    check(quantize(x.astype(np.float16), q, scaling=scaling), x, q, scaling)


def test_what_cannot_be_scaled():
    """Zeros, nothing finite, and what is so small that its factor would not be normal."""
    q, scales = quantize(
        np.array([[0, -0.0], [np.nan, np.inf], [2**-149, 0], [1e38, -3e38]], np.float32), scaling="row"
    )
    np.testing.assert_array_equal(scales[:3, 0], np.float32([1, 1, 2**-126]))
    np.testing.assert_array_equal(q[0].view(np.uint8), [0, 0x80])
    assert np.isnan(q[1, 0]) and q[1, 1] == 448 and q[2, 0] == 0 and q[3, 1] == -448
    assert quantize(np.float64([[1e300, 1.0]]), "s8")[0].tolist() == [[127, 127]]  # beyond f32 it is infinite
    assert quantize(np.float32([[np.nan, -np.inf, -5]]), "s8")[0].tolist() == [[0, -127, -127]]


def test_a_product_of_what_was_quantized(rng):
    """gemm takes both results as they are: vectors of rows and columns, and blocks as its kernels read them."""
    a, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((200, 384), (256, 384)))
    for scaling_a, scaling_w in (("tensor", "tensor"), ("row", "row"), ("1x128", "128x128"), ("block", "1x128")):
        (qa, sa), (qw, sw) = quantize(a, scaling=scaling_a), quantize(w, scaling=scaling_w)
        d = gemm(qa, qw.T, scale_a=sa, scale_b=sw.T, out_dtype="f32")
        error = np.abs(d - a @ w.T)
        assert error.max() < 0.05 * np.abs(a).max() * np.abs(w).max() * np.sqrt(384)


@pytest.mark.parametrize("framework", MUTABLE)
def test_new_scales_lie_as_kernels_read_them(rng, framework):
    x = make(framework, rng.standard_normal((2, 5, 300)), "f32")
    strides = lambda s: s.stride() if framework == "torch" else tuple(step // 4 for step in s.strides)  # noqa: E731
    assert strides(quantize(x, scaling="1x128")[1]) == (24, 1, 8)
    assert strides(quantize(x, scaling="row")[1])[:2] == (5, 1)


# ---------------------------------------------------------------------------------------- errors

X = np.ones((4, 6), np.float32)
HUGE = r"^quantize: {} would be \({}\) of {}; expected less than 2\*\*63 bytes$"


@pytest.mark.parametrize(
    ("x", "dtype", "given", "message"),
    [
        (X.astype(np.int8), "e4m3", {}, "quantize: x is s8; expected f32, bf16, f16 or f64"),
        (X.astype(np.complex64), "e4m3", {}, "quantize: x is c64; expected f32, bf16, f16 or f64"),
        (X[0, 0, ...], "e4m3", {}, r"quantize: x is \(\); expected"),
        ([[1.0]], "e4m3", {}, "quantize: x is a list"),
        (X, "f16", {}, "quantize: dtype is f16; expected e4m3, e5m2 or s8"),
        (X, "fp8", {}, "quantize: dtype is 'fp8'; expected e4m3, e5m2 or s8$"),
        (X, None, {}, "quantize: dtype is None; expected e4m3, e5m2 or s8$"),
        (X, ["e4m3"], {}, "quantize: dtype is a list; expected e4m3, e5m2 or s8$"),
        (X.astype(np.int16), "e4m3", {}, "quantize: x has dtype int16; expected f32, bf16, f16 or f64$"),
        (TensorSpec((2**40, 2**30), "f32"), "e4m3", {}, HUGE.format("out", "1099511627776, 1073741824", "e4m3")),
        (TensorSpec((2**61, 0), "f32"), "s8", {"scaling": "row"}, HUGE.format("scales", f"{2**61}, 1", "f32")),
        (TensorSpec((2**31, 1, 1), "f32"), "s8", {"scaling": "128x128"}, r"quantize: x is .*; .* 2\*\*31 groups"),
        (X, "e4m3", {"scaling": "column"}, "quantize: scaling is 'column'; expected"),
        (X, "e4m3", {"scaling": 128}, "quantize: scaling is 128; expected"),
        (X[0], "e4m3", {"scaling": "128x128"}, r"quantize: x is \(6,\); expected 2 dimensions"),
        (X, "s8", {"out": np.ones((4, 5), np.int8)}, r"quantize: out is \(4, 5\); expected \(4, 6\)"),
        (X, "s8", {"out": np.ones((4, 6), np.uint8)}, "quantize: out is u8; expected s8"),
        (X, "s8", {"scales": np.ones((4, 1), np.float32)}, r"quantize: scales is \(4, 1\); expected \(\)"),
        (X, "s8", {"scales": np.ones((), np.float64)}, "quantize: scales is f64; expected f32"),
        (X, "s8", {"out": X.view(np.int8)[:, :6]}, "quantize: out shares elements with x; what is written has memory"),
        (X, "s8", {"out": np.broadcast_to(np.int8(0), (4, 6))}, "quantize: out is read-only"),
        (X, "s8", {"kernel": "cpu_gemm_numpy"}, "quantize: kernel cpu_gemm_numpy .*: is a kernel of gemm; quantize is"),
        (X, "s8", {"kernel": "nothing"}, "quantize: no kernel is called 'nothing'"),
        (X, "s8", {"stream": "x"}, "quantize: stream is a str; expected"),
        (X, "s8", {"scaling": "\ud800"}, "quantize: scaling is "),
    ],
)  # fmt: skip
def test_bad_input(x, dtype, given, message):
    kind = TypeError if "dtype is" in message else (ValueError, TypeError)
    with pytest.raises(kind, match=message):
        (QuantizeArguments if isinstance(x, TensorSpec) else quantize)(x, dtype, **given)
    assert quantize(X)[1] == np.float32(1 / 448)  # the next call works


def test_scales_that_share_elements_with_what_is_written():
    memory = np.zeros(64, np.uint8)
    out, scales = memory[:24].view(np.int8).reshape(4, 6), memory[8:24].view(np.float32).reshape(4, 1)
    with pytest.raises(ValueError, match="quantize: scales shares elements with out"):
        quantize(X, "s8", scaling="row", out=out, scales=scales)


def test_a_gradient_is_not_lost_silently():
    torch = pytest.importorskip("torch")
    with pytest.raises((ValueError, TypeError), match="x requires a gradient"):
        quantize(torch.ones(4, 6, requires_grad=True))


# ---------------------------------------------------------------------------------------- the engines


def test_arguments_are_a_value():
    args = QuantizeArguments(X, "s8", scaling="block")
    assert repr(args) == "QuantizeArguments(quantize (4, 6): f32 -> s8 by 1x128 on cpu)"
    assert (args.problem.rows, args.problem.cols, args.problem.batch, args.problem.operation) == (4, 6, 1, "quantize")
    for again in (pickle.loads(pickle.dumps(args)), copy.copy(args)):
        assert repr(again) == repr(args)
    q, scales = args.run()
    check((q, scales), X.astype(np.float64), "s8", "1x128")
    with pytest.raises(TypeError, match=r"plan: args is a .*QuantizeArguments; such calls are not prepared"):
        args.plan()
    with pytest.raises(ValueError, match="run: workspace is given"):
        args.run(workspace=X)
    assert args.workspace_size() == 0


def test_the_cpu_has_one_kernel():
    args = QuantizeArguments(X)
    (kernel,) = get_kernels(args)
    assert (
        kernel.name == "cpu_quantize_numpy"
        and kernel.supports(args)
        and not kernel.supports(QuantizeArguments(TensorSpec((4, 6), "f32", device="cuda")))
    )
    assert kernel in get_kernels(operation="quantize") and kernel not in get_kernels()
    check(kernel.run(args), X.astype(np.float64), "e4m3", "tensor")
    check(quantize(X, kernel=kernel), X.astype(np.float64), "e4m3", "tensor")
    text = str(explain(args))
    assert text.splitlines()[:2] == ["quantize (4, 6): f32 -> e4m3 by tensor on cpu", "chosen: cpu_quantize_numpy"]


def test_declared_kernels_are_found_by_dtypes_and_scaling():
    args = QuantizeArguments(TensorSpec((4096, 7168), "bf16", device="cuda"), scaling="1x128")
    (kernel,) = get_kernels(args, compiled=False)
    assert kernel.name == "quantize_bf16_e4m3_1x128"
    assert [kernel.metadata.operands[name].dtype for name in ("x", "q", "scales")] == ["bf16", "e4m3", "f32"]
    assert (kernel.metadata.operation, kernel.operation.name) == ("quantize", "quantize")
    found = explain(args)
    assert found.problem == "quantize (4096, 7168): bf16 -> e4m3 by 1x128 on cuda:0"
    assert kernel in (*found.not_compiled, *(choice.route.kernel for choice in found.ranking))
    other = get_kernels(operation="quantize", compiled=False, where=lambda m: m.name == "quantize_f32_s8_row")[0]
    assert other.supports(args).error == "converts f32 to s8; asked for is bf16 to e4m3"


FACTS = {name: facts for name, facts in _core.kernel_facts().items() if name in named("declared", "quantize")}


@pytest.mark.skipif(not FACTS, reason="the package was built without kernels")
def test_compiled_kernels_are_what_was_declared():
    for name, facts in FACTS.items():
        c = find(name)
        rows, cols = SCALINGS[c.scaling]
        assert (facts["x"], facts["q"], facts["rows"], facts["cols"]) == (c.x, c.q, rows, cols), name
        assert get_kernels(operation="quantize", where=lambda m, name=name: m.name == name)[0].metadata.design.threads


def test_where_no_kernel_is_compiled(built):
    """What would fit is named, and kernels of other operations are not counted."""
    built(["sm80_gemm_f16_f16_f32_f16_tn_128x128x32_64x64x32_s4_a8_linearc"])
    args = QuantizeArguments(TensorSpec((4, 256), "bf16", device="cuda"), scaling="row")
    with pytest.raises(cutlass_py.NoKernelError) as error:
        plan(args.problem)
    problem = "quantize (4, 256): bf16 -> e4m3 by row on cuda:0"
    assert f"none of 1 compiled kernels fits {problem}. Nearest:" in str(error.value)
    assert "quantize_bf16_e4m3_row: is declared but not in the built set" in str(error.value)


def test_kernels_are_of_one_operation():
    for wrong in ("conv", [], None):
        with pytest.raises(ValueError, match="get_kernels: operation is .*; expected one of gemm, quantize"):
            get_kernels(operation=wrong)
    with pytest.raises(TypeError, match="expected GemmArguments or another operation's"):
        get_kernels(3)
    gemm_kernel = get_kernels()[0]
    assert not gemm_kernel.supports(QuantizeArguments(X))


def test_a_kernel_of_ones_own():
    seen = []
    operands = {"x": cutlass_py.OperandMetadata("f32"), "q": cutlass_py.OperandMetadata("*")}
    metadata = cutlass_py.KernelMetadata("mine", operands, "f32", cc=(0, 0), operation="quantize")

    def run(call):
        seen.append(call)
        np.asarray(call.q)[...] = 7
        np.asarray(call.scales)[...] = 2

    with cutlass_py.register_kernel(metadata, run, estimate=lambda p: 1.0) as registration:
        q, scales = quantize(X, "s8", scaling="row")
        assert (q == 7).all() and (scales == 2).all() and seen[0].problem.scaling == "row"
        assert gemm(X, X.T).shape == (4, 4)  # it is not asked
        assert registration.kernels[0].metadata.epilogue == "q = x / scales; scales = amax / limit"
    with (
        cutlass_py.register_kernel(metadata, lambda call: 1, estimate=lambda p: 1.0),
        pytest.raises(cutlass_py.ProviderError, match=r"expected None: the result goes to call\.q and call\.scales$"),
    ):
        quantize(X, "s8", kernel="mine")
    assert (quantize(X, "s8")[0] == 127).all()
    wrong = {"a": cutlass_py.OperandMetadata("f32")}
    with pytest.raises(ValueError, match="mine has no operand x, q"):
        cutlass_py.register_kernel(cutlass_py.KernelMetadata("mine", wrong, "*", operation="quantize"), run)
    with pytest.raises(ValueError, match="mine: operation is 'conv'; expected one of gemm, quantize"):
        cutlass_py.register_kernel(cutlass_py.KernelMetadata("mine", operands, "*", operation="conv"), run)


def test_problem_files_hold_both_operations(tmp_path):
    from cutlass_py.kernels.problem_files import arguments, read

    (tmp_path / "p.json").write_text(
        '[{"m": 8, "n": 8, "k": 8, "a": "bf16"}, {"operation": "quantize", "rows": 8, "cols": 256, "x": "bf16"}]'
    )
    both = read(tmp_path / "p.json")
    assert [args.problem.operation for args in both] == ["gemm", "quantize"]
    entry = {"operation": "quantize", "rows": 5, "cols": 7, "batch": 3, "x": "f16", "q": "s8", "scaling": "row"}
    p = arguments(entry | {"layout": "n"}).problem
    assert (p.rows, p.cols, p.batch, p.x, p.q, p.scaling, p.layout_x) == (5, 7, 3, "f16", "s8", "row", "n")
    for wrong, message in (
        ({"color": 1}, "color: no such key"), ({"x": "s8"}, "x: 's8'; expected one of f32"),
        ({"rows": -1}, "rows: -1; expected a whole number"), ({"rows": None}, "rows: missing"),
        ({"scaling": "col"}, "scaling: 'col'; expected one of"), ({"operation": "conv"}, "operation: 'conv'; expected"),
        ({"operation": ["conv"]}, r"operation: \['conv'\]; expected"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            arguments(entry | wrong)


def test_explain_on_the_command_line(capsys):
    from cutlass_py.commands import main

    assert main(["explain", "--problem", '{"operation": "quantize", "rows": 8, "cols": 256, "x": "bf16"}']) == 0
    assert capsys.readouterr().out.startswith("quantize (8, 256): bf16 -> e4m3 by tensor on cuda:0\n")


# ---------------------------------------------------------------------------------------- torch


def test_torch_by_the_operator(rng):
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    x = values(rng, (3, 130, 200), "bf16")
    tensor = make("torch", x, "bf16")
    for scaling in (*SCALINGS, *ALIASES):
        found = ct.quantize(tensor, torch.float8_e5m2, scaling=scaling)
        check(found, x, "e5m2", ALIASES.get(scaling, scaling))
        out, scales = torch.empty_like(found[0]), torch.empty_like(found[1])
        again = ct.quantize(tensor, "e5m2", scaling=scaling, out=out, scales=scales)
        assert again[0] is out and again[1] is scales
        check(again, x, "e5m2", ALIASES.get(scaling, scaling))
        finite = tensor.nan_to_num(1, 1, 1)  # opcheck compares NaN too
        group = SCALINGS[ALIASES.get(scaling, scaling)]
        torch.library.opcheck(torch.ops.cutlass_py.quantize.default, (finite, *group, "e4m3"))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_torch_straight_through(rng, scaling):
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    x = torch.from_numpy(rng.standard_normal((130, 200))).requires_grad_()
    q, scales = ct.quantize(x, scaling=scaling)
    assert q.requires_grad and not scales.requires_grad
    spread = scales.double()
    if scaling.endswith("128"):
        spread = spread.repeat_interleave(128, 1)[:, :200]
    if scaling == "128x128":
        spread = spread.repeat_interleave(128, 0)[:130]
    (q.double() * 2).sum().backward()  # the gradient of q is 2, which fp8 holds
    torch.testing.assert_close(x.grad, (2 / spread).expand(130, 200), rtol=1e-6, atol=0)
    assert not ct.quantize(x, "s8", scaling=scaling)[0].requires_grad
    with pytest.raises(ValueError, match="quantize: out is given; expected none, where a gradient is asked for"):
        ct.quantize(x, scaling=scaling, out=q.detach())


@pytest.mark.parametrize("scaling", SCALINGS)
def test_torch_compiled_and_mapped(rng, scaling):
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    x = values(rng, (3, 130, 200), "f32")
    tensor = make("torch", x, "f32")
    graph = torch.compile(lambda t: ct.quantize(t, "s8", scaling=scaling), backend="aot_eager", fullgraph=True)
    check(graph(tensor), x, "s8", scaling)
    mapped = torch.vmap(lambda t: ct.quantize(t, "s8", scaling=scaling), in_dims=1)(tensor.transpose(0, 1))
    for i in range(3):
        check((mapped[0][i], mapped[1][i]), x[i], "s8", scaling)


def test_torch_func(rng):
    """grad, vjp and vmap of each other, as gemm has them; and no example at all."""
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    def loss(t, scaling):
        q, scales = ct.quantize(t, scaling=scaling)
        return (q.float() * scales * 1024).sum()  # fp8 has no small gradients

    x = torch.from_numpy(rng.standard_normal((4, 6, 8)).astype(np.float32))
    for scaling in ("tensor", "row"):  # the gradient of q is its scale in fp8, and is divided by the scale
        gradient = torch.func.grad(loss)(x[0], scaling)
        mapped = torch.vmap(torch.func.grad(loss), in_dims=(0, None))(x, scaling)
        _, pull = torch.func.vjp(lambda t, by=scaling: loss(t, by), x[0])
        for found in (gradient, mapped[0], pull(torch.ones(()))[0]):
            assert found.shape == (6, 8)
            torch.testing.assert_close(found, torch.full((6, 8), 1024.0), rtol=0.07, atol=0)
        torch.testing.assert_close(gradient, mapped[0])
        q, scales = torch.vmap(lambda t, by=scaling: ct.quantize(t, scaling=by))(x[:0])
        assert (q.shape, q.dtype) == ((0, 6, 8), torch.float8_e4m3fn)
        assert scales.shape == ((0,) if scaling == "tensor" else (0, 6, 1))


def test_torch_takes_dtypes_by_any_name():
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    for dtype in ("s8", "int8", np.int8, torch.int8):
        assert ct.quantize(torch.ones(2, 2), dtype)[0].dtype == torch.int8
        assert ct.quantize(torch.ones(2, 2), dtype, scales=torch.zeros(()))[0].dtype == torch.int8


def test_torch_refuses_what_quantize_refuses():
    torch = pytest.importorskip("torch")
    import cutlass_py.torch as ct

    for wrong, message in (
        ((torch.ones(2, 2), "f16"), "quantize: dtype is"), ((torch.ones(2, 2), torch.float16), "quantize: dtype is"),
        ((torch.ones(2, 2, dtype=torch.int8),), "quantize: x is s8"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=message):
            ct.quantize(*wrong)
    for scaling in ("col", [], {}, None):
        with pytest.raises(ValueError, match="quantize: scaling is "):
            ct.quantize(torch.ones(2, 2), scaling=scaling)
    for x in (1, None, np.ones((2, 2), np.float32), [torch.ones(2, 2)]):
        with pytest.raises(TypeError, match="quantize: x is .*; expected a torch.Tensor"):
            ct.quantize(x)
    for kernel in (1, [], object()):
        with pytest.raises(TypeError, match="quantize: kernel is an? .*; expected a Kernel or its name"):
            ct.quantize(torch.ones(2, 2), kernel=kernel)
    with pytest.raises(TypeError, match="quantize: dtype is"):
        ct.quantize(torch.ones(2, 2), [])


# ---------------------------------------------------------------------------------------- JAX


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_jax_under_jit(rng, dtype, q, scaling):
    jax = pytest.importorskip("jax")
    import cutlass_py.jax as cj

    x = values(rng, (2, 130, 200), dtype)
    array = make("jax", x, dtype)
    check(cj.quantize(array, q, scaling=scaling), x, q, scaling)
    check(jax.jit(lambda t: cj.quantize(t, q, scaling=scaling))(array), x, q, scaling)
    mapped = jax.vmap(lambda t: cj.quantize(t, q, scaling=scaling))(array)
    for i in range(2):
        check((mapped[0][i], mapped[1][i]), x[i], q, scaling)
    check(cj.quantize(array[0, 0], q, scaling="block"), x[0, 0], q, "1x128")


def test_jax_straight_through(rng):
    jax = pytest.importorskip("jax")
    import cutlass_py.jax as cj

    x = make("jax", rounded(rng.standard_normal((130, 200)), "f32"), "f32")
    for scaling in SCALINGS:
        scales = np.asarray(cj.quantize(x, scaling=scaling)[1], np.float64)
        if scaling.endswith("128"):
            scales = scales.repeat(128, axis=1)[:, :200]
        if scaling == "128x128":
            scales = scales.repeat(128, axis=0)[:130]
        gradient = jax.grad(lambda t, by=scaling: (cj.quantize(t, scaling=by)[0].astype(np.float32) * 2).sum())(x)
        np.testing.assert_allclose(gradient, np.broadcast_to(2 / scales, x.shape), rtol=1e-6)
        integers = jax.grad(lambda t, by=scaling: cj.quantize(t, "s8", scaling=by)[0].astype(np.float32).sum())(x)
        assert not integers.any()


def test_jax_refuses_what_quantize_refuses():
    pytest.importorskip("jax")
    import cutlass_py.jax as cj

    x = make("jax", np.ones((4, 6)), "f32")
    for wrong, message in (
        ({"dtype": "f16"}, "quantize: dtype is f16"), ({"scaling": "col"}, "quantize: scaling is 'col'"),
        ({"dtype": ml_dtypes.bfloat16}, "quantize: dtype is bf16"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=message):
            cj.quantize(x, **wrong)
    for dtype in (None, [], "fp8"):
        with pytest.raises(TypeError, match="quantize: dtype is"):
            cj.quantize(x, dtype)
    with pytest.raises((ValueError, TypeError), match="quantize: x is s8"):
        cj.quantize(x.astype(np.int8))
    with pytest.raises(ValueError, match="quantize: x has 9 dimensions; expected at most 8"):
        cj.quantize(x.reshape(4, 6, *(1,) * 7))
