"""cutlass_py.jax.ragged_dot and ragged_dot_general on the CPU, against JAX's own and against masked products."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from reference import NUMPY, rounded

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.lax import DotAlgorithmPreset, Precision, RaggedDotDimensionNumbers  # noqa: E402
from jax_formula import normal, wide  # noqa: E402, F401 (a fixture)

import cutlass_py.jax as cj  # noqa: E402
from cutlass_py import NoKernelError, _core  # noqa: E402
from cutlass_py.dispatch import planning  # noqa: E402
from cutlass_py.dispatch.launch_plan import LaunchPlan  # noqa: E402

EXTENT = {"b": 2, "c": 3, "g": 4, "j": 2, "k": 12, "m": 13, "n": 5, "p": 2, "x": 3, "y": 2}


def dimensions(lhs: str, rhs: str, divided: str) -> RaggedDotDimensionNumbers:
    """Of operands by letters: b and c of a batch, j and k summed, g of groups."""
    common = [[[x.index(i) for i in lhs if i in letters] for x in (lhs, rhs)] for letters in ("kj", "bc")]
    return RaggedDotDimensionNumbers(common, [lhs.index(divided)], [rhs.index("g")] if "g" in rhs else [])


# Operands, the dimension that is divided, and what sizes have in front of the groups.
FREE = [
    ("mk", "gkn", "m", ""), ("mk", "gnk", "m", ""), ("km", "kgn", "m", ""), ("mkj", "gjpkn", "m", ""),
    ("xmk", "gkn", "m", ""), ("xmk", "gkn", "m", "x"), ("mxk", "gkn", "m", ""), ("xcmyk", "gckn", "m", "cx"),
    ("bmk", "gbkn", "m", ""), ("bmk", "bgnk", "m", "b"), ("bxmk", "gbkn", "m", "bx"), ("cbmk", "gbckn", "m", ""),
    ("m", "gn", "m", ""),
]  # fmt: skip
CONTRACTING = [
    ("mk", "kn", "k", ""), ("km", "kn", "k", ""), ("km", "nk", "k", ""), ("kjmx", "kjnp", "k", ""),
    ("jkm", "jkn", "k", ""), ("bmk", "bkn", "k", ""), ("bkm", "kbn", "k", "b"), ("jkm", "jkn", "k", "j"),
]  # fmt: skip
BATCH = [("bmk", "bkn", "b", ""), ("mbk", "nkb", "b", ""), ("bcmk", "bcnk", "c", "b"), ("bxmkj", "bjkn", "b", "")]


def operands(lhs: str, rhs: str, divided: str, prefix: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """Sizes of four groups, one of them empty, that leave lines behind; both operands have NaN in those."""
    random = np.random.default_rng(seed)
    a, b = (normal(*(EXTENT[i] for i in x), seed=seed) for x in (lhs, rhs))
    shares = random.permuted(np.broadcast_to([0.0, 0.2, 0.4, 0.25], (*(EXTENT[i] for i in prefix), 4)), axis=-1)
    return a, b, jnp.asarray((shares * EXTENT[divided]).astype(int), jnp.int32)


def masked(lhs: str, rhs: str, divided: str, prefix: str, a: Any, b: Any, sizes: Any) -> Any:
    """The definition: a product for each group, of which all lines but its own are zeros."""
    free = [*(i for i in lhs if i not in "bckj"), *(i for i in rhs if i not in "bckjg")]
    result = "".join(["g" * (divided in "kj"), *(i for i in lhs if i in "bc"), *free])
    if divided in "bc":
        return jnp.einsum(f"{lhs},{rhs}->{result}", a, b)
    ends = jnp.cumsum(sizes, -1)[..., None]
    lines = jnp.arange(EXTENT[divided])
    mask = ((ends - sizes[..., None] <= lines) & (lines < ends)).astype(a.dtype)
    return jnp.einsum(f"{lhs},{rhs},{prefix}g{divided}->{result}", a, b, mask)


def identity(case: Any) -> str:
    return "-".join(filter(None, case))


@pytest.mark.parametrize("case", FREE + CONTRACTING + BATCH, ids=identity)
def test_every_kind_of_dimensions(case):
    """Values and gradients by the definition, values by JAX's function too."""
    a, b, sizes = operands(*case)
    numbers = dimensions(*case[:3])
    ours, theirs = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=numbers), partial(masked, *case)
    jaxs = partial(jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
    found, *expected = jax.jit(lambda *x: [f(*x) for f in (ours, theirs, jaxs)])(a, b, sizes)
    for wanted in expected:
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    if case == CONTRACTING[-1]:  # by JAX's own function, which has no gradient of this
        return
    gradients = [jax.grad(lambda a, b, f=f: jnp.sin(f(a, b, sizes)).sum(), (0, 1)) for f in (ours, theirs)]
    for x, y in zip(*jax.jit(lambda a, b: [f(a, b) for f in gradients])(a, b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", [FREE[0], FREE[1], CONTRACTING[0]], ids=identity)
def test_second_derivatives(case):
    """Reverse over reverse, and forward over reverse."""
    a, b, sizes = operands(*case)
    numbers = dimensions(*case[:3])

    def second(call: Any, a: Any, b: Any) -> Any:
        gradient = jax.grad(lambda a, b: jnp.sin(call(a, b, sizes)).sum(), (0, 1))
        twice = jax.grad(lambda a, b: sum((x**2).sum() for x in gradient(a, b)), (0, 1))
        return twice(a, b), jax.jvp(gradient, (a, b), (2 * a, b * b))

    calls = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=numbers), partial(masked, *case)
    found, expected = jax.jit(lambda a, b: [second(call, a, b) for call in calls])(a, b)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    "sizes", [[0, 0, 0], [13, 0, 0], [0, 0, 13], [1, 2, 3], [20, 5, 5], [5, 20, 5]], ids=lambda x: "-".join(map(str, x))
)
def test_sizes(sizes):
    """What is behind the last group is zeros, whatever lies there; groups end with the dimension."""
    a, b = np.array(normal(13, 12)), normal(3, 12, 5)
    ends = np.minimum(np.cumsum(sizes), 13)
    expected = np.concatenate([a[i:j] @ b[g] for g, (i, j) in enumerate(zip([0, *ends], ends, strict=False))])
    a[ends[-1] :] = np.nan
    for dtype in ("int32", "int8", "uint8", "int64", "uint32"):
        found = np.asarray(cj.ragged_dot(a, b, jnp.asarray(sizes, dtype)))
        np.testing.assert_allclose(found[: ends[-1]], expected, rtol=1e-12)
        assert not found[ends[-1] :].any()
    # Of the gradients likewise: nothing of lines that belong to nobody, and zeros for them and for empty groups.
    d = np.where(np.arange(13)[:, None] < ends[-1], normal(13, 5), np.nan)
    back = jax.jit(lambda a, b, d: jax.vjp(lambda a, b: cj.ragged_dot(a, b, jnp.asarray(sizes)), a, b)[1](d))
    d_a, d_b = (np.asarray(x) for x in back(a, b, d))
    assert not np.isnan(d_a).any() and not np.isnan(d_b).any() and not d_a[ends[-1] :].any()
    assert all(np.any(d_b[i]) == bool(j > k) for i, (j, k) in enumerate(zip(ends, [0, *ends], strict=False)))


def test_sizes_may_change_from_call_to_call():
    call = jax.jit(cj.ragged_dot)
    a, b = normal(13, 12), normal(3, 12, 5)
    for sizes in ([1, 2, 3], [0, 13, 0], [4, 4, 4]):
        sizes = jnp.asarray(sizes)
        np.testing.assert_allclose(call(a, b, sizes), jax.lax.ragged_dot(a, b, sizes), rtol=1e-12)
    for sizes, same in (([-3, 5, 2**31 - 1], [0, 5, 8]), ([2**31 - 1] * 3, [13, 0, 0])):  # cut off, as kernels do
        np.testing.assert_array_equal(call(a, b, jnp.asarray(sizes, "int32")), call(a, b, jnp.asarray(same, "int32")))
    assert call._cache_size() == 2  # of numbers of 64 bits, and of 32


@pytest.mark.parametrize("shapes", [((0, 4), (2, 4, 3)), ((5, 0), (2, 0, 3)), ((5, 4), (2, 4, 0)), ((5, 4), (0, 4, 3))])
def test_no_elements(shapes):
    a, b = (jnp.ones(shape) for shape in shapes)
    sizes = jnp.ones(len(b), jnp.int32)
    found, (d_a, d_b) = cj.ragged_dot(a, b, sizes), jax.grad(lambda *x: cj.ragged_dot(*x, sizes).sum(), (0, 1))(a, b)
    assert found.shape == (len(a), b.shape[2]) and not found.any() and (d_a.shape, d_b.shape) == shapes


# ------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "a, b, d",
    [
        ("bf16", "bf16", None), ("bf16", "bf16", "f32"), ("f16", "f16", None), ("f16", "f16", "f32"),
        ("f32", "f32", None), ("f32", "f32", "bf16"), ("f64", "f64", None), ("c64", "c64", None),
        ("c128", "c128", None), ("s8", "s8", "s32"), ("u8", "u8", "s32"), ("s8", "u8", "s32"), ("s8", "s8", "f32"),
        ("e4m3", "e4m3", "f32"), ("e4m3", "e5m2", "bf16"), ("e4m3", "e4m3", None),
    ],
)  # fmt: skip
def test_dtypes(a, b, d, turned):
    """Sums are exact here, and rounded once."""
    random = np.random.default_rng(0)
    x, y = (random.integers(0 if dtype == "u8" else -2, 3, shape) for dtype, shape in ((a, (13, 12)), (b, (3, 12, 5))))
    sizes, result = np.array([4, 0, 7]), d or a
    ends = np.cumsum(sizes)
    z = np.concatenate(
        [*(x[e - n : e] @ y[i] for i, (e, n) in enumerate(zip(ends, sizes, strict=True))), np.zeros((2, 5))]
    )
    right = jnp.asarray(np.swapaxes(y, 1, 2) if turned else y, NUMPY[b])
    numbers = dimensions("mk", "gnk" if turned else "gkn", "m")
    found = cj.ragged_dot_general(
        jnp.asarray(x, NUMPY[a]), right, jnp.asarray(sizes), numbers, preferred_element_type=d and NUMPY[d]
    )
    assert found.dtype == NUMPY[result]
    np.testing.assert_array_equal(np.asarray(found).astype("c16" if a[0] == "c" else "f8"), rounded(z, result))
    if a in ("s8", "u8", "c64", "c128"):
        return
    call = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
    of_a = jax.grad(lambda p: call(p, right, jnp.asarray(sizes)).astype("f8").sum())(jnp.asarray(x, NUMPY[a]))
    wanted = np.concatenate([*(np.repeat(y[i].sum(1)[None], n, 0) for i, n in enumerate(sizes)), np.zeros((2, 12))])
    assert of_a.dtype == NUMPY[a]
    np.testing.assert_array_equal(np.asarray(of_a).astype(float), rounded(wanted, a))


def test_gradients_have_the_dtypes_of_their_operands():
    a, b = normal(13, 12, dtype="bfloat16"), normal(3, 12, 5, dtype="bfloat16")
    call = lambda *x: cj.ragged_dot(*x, jnp.array([4, 0, 7]), preferred_element_type="float32").sum()  # noqa: E731
    found = jax.grad(call, (0, 1))(a, b)
    assert [x.dtype for x in found] == [jnp.bfloat16] * 2
    of_float = jax.grad(call, (0, 1))(a.astype("float32"), b.astype("float32"))
    for x, y in zip(found, of_float, strict=True):
        np.testing.assert_allclose(np.asarray(x, "f4"), y, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("precision", [None, "highest", Precision.HIGH, (Precision.DEFAULT, Precision.HIGHEST),
                                       DotAlgorithmPreset.DEFAULT, "F32_F32_F32", "TF32_TF32_F32",
                                       DotAlgorithmPreset.TF32_TF32_F32_X3])  # fmt: skip
def test_precision(precision):
    a, b, sizes = normal(13, 12, dtype="float32"), normal(3, 12, 5, dtype="float32"), jnp.array([4, 0, 7])
    compute = {"TF32_TF32_F32": "tf32", "TF32_TF32_F32_X3": "3xtf32"}.get(getattr(precision, "name", precision))
    text = str(jax.make_jaxpr(partial(cj.ragged_dot, precision=precision))(a, b, sizes))
    assert f"compute={compute!r}" in text
    np.testing.assert_allclose(
        cj.ragged_dot(a, b, sizes, precision), jax.lax.ragged_dot(a, b, sizes, "highest"), rtol=1e-5, atol=1e-6
    )


# ------------------------------------------------------------------------------------------------ transformations


def products_of(call: Any, *arrays: Any) -> tuple[int, str]:
    """How many grouped products a call is, and its text."""
    text = str(jax.make_jaxpr(call)(*arrays))
    assert "ragged_dot" not in text.replace("name=ragged_dot", "") and "dot_general" not in text
    return text.count("cutlass_py_grouped_gemm["), text


@pytest.mark.parametrize(
    "axes",
    [(1, None, None), (None, 0, None), (None, 3, None), (None, None, 0), (0, 1, None), (1, 0, 0), (0, None, 1)],
)
@pytest.mark.parametrize("case", [("mk", "gkn", "m"), ("mk", "gnk", "m"), ("km", "kn", "k")], ids=identity)
def test_vmap(case, axes):
    """One launch where one operand has the batch, and products one after the other where groups differ."""
    a, b, sizes = operands(*case, "")
    given = []
    for x, axis, seed in zip((a, b, sizes), axes, range(3), strict=True):
        more = jnp.stack([x, normal(*x.shape, seed=seed + 9) if x.ndim > 1 else jnp.roll(x, 1), x])
        given.append(x if axis is None else jnp.moveaxis(more, 0, min(axis, x.ndim)))
    axes = tuple(axis if axis is None else min(axis, x.ndim - 1) for axis, x in zip(axes, given, strict=True))
    ours = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=dimensions(*case))
    count, text = products_of(jax.vmap(ours, axes), *given)
    assert count == 1 and ("scan" in text) == (sum(axis is not None for axis in axes) > 1 or axes[2] is not None)

    def of(call: Any, *arrays: Any) -> Any:
        """The value and both gradients."""
        gradient = jax.grad(lambda *x: jnp.sin(call(*x)).sum(), (0, 1))
        return jax.vmap(lambda *x: (call(*x), *gradient(*x)), axes)(*arrays)

    calls = ours, partial(masked, *case, "")
    for x, y in zip(*jax.jit(lambda *arrays: [of(call, *arrays) for call in calls])(*given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_gradients_are_grouped_products():
    arrays = normal(13, 12), normal(3, 12, 5), jnp.array([4, 0, 7])
    for number, wanted in ((0, 1), (1, 1), ((0, 1), 2)):  # the product itself is needed by none
        gradient = jax.grad(lambda *x: cj.ragged_dot(*x).sum(), number)
        assert products_of(jax.jit(gradient), *arrays)[0] in (wanted, wanted + 1)
    for rhs in ("gkn", "gnk"):  # no operand is turned
        general = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=dimensions("mk", rhs, "m"))
        b = arrays[1] if rhs == "gkn" else jnp.swapaxes(arrays[1], 1, 2)
        text = products_of(jax.grad(lambda *x, f=general: f(*x).sum(), (0, 1)), arrays[0], b, arrays[2])[1]
        assert "transpose" not in text


def test_under_the_usual_transformations():
    """scan, checkpointed gradients, jacobians either way, linearize and its transpose."""
    x, w, sizes = normal(13, 12), normal(3, 12, 12), jnp.array([4, 0, 7])
    ours, theirs = (partial(call, sizes=sizes) for call in (by_ours, partial(masked, "mk", "gkn", "m", "")))

    def recurrent(f: Any, x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, _: (jnp.tanh(f(h, w)), None), x, None, length=3)[0].sum()

    def transformed(f: Any) -> Any:
        of_w = lambda w: f(x, w)[:5].sum(1)  # noqa: E731
        value, linear = jax.linearize(lambda x: f(x, w), x)
        (back,) = jax.linear_transpose(lambda x: f(x, w), x)(value)
        twice = jax.grad(jax.checkpoint(partial(recurrent, f)), (0, 1))(x, w)
        return twice, jax.jacfwd(of_w)(w), jax.jacrev(of_w)(w), linear(x), back

    for p, q in zip(*(jax.tree.leaves(jax.jit(transformed, static_argnums=0)(f)) for f in (ours, theirs)), strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-9)


def by_ours(a: Any, b: Any, sizes: Any) -> Any:
    return cj.ragged_dot(a, b, sizes)


# ------------------------------------------------------------------------------------------------ what is refused

SIZES = jnp.array([4, 0, 7])


@pytest.mark.parametrize(
    "arguments, keywords, error, message",
    [
        ((jnp.ones((13, 12)), jnp.ones((3, 12, 5)), SIZES), {"group_offset": jnp.zeros(1, "int32")}, ValueError,
         r"ragged_dot: group_offset is given; expected None, all that JAX has"),
        (([1.0], jnp.ones((3, 12, 5)), SIZES), {}, TypeError, r"ragged_dot: lhs is a list"),
        ((jnp.ones((13, 12)), "b", SIZES), {}, TypeError, r"ragged_dot: rhs is a str; expected an array of JAX or N"),
        ((jnp.ones((13, 12)), jnp.ones((3, 12, 5)), [1, 2, 3]), {}, TypeError, r"ragged_dot: group_sizes is a list"),
        ((jnp.ones((13, 12)), jnp.ones((3, 12, 5)), SIZES * 1.0), {}, TypeError, r"group_sizes.dtype"),
        ((jnp.ones((13, 11)), jnp.ones((3, 12, 5)), SIZES), {}, TypeError, r"contracting dimensions"),
        ((jnp.ones((13, 12)), jnp.ones((4, 12, 5)), SIZES), {}, TypeError, r"group dimension size to be 3, got 4"),
        ((jnp.ones((13, 12), "int8"), jnp.ones((3, 12, 5), "int8"), SIZES), {}, TypeError,
         r"ragged_dot: preferred_element_type is not given beside int8; expected int32"),
        ((jnp.ones((13, 12), "int32"), jnp.ones((3, 12, 5), "int32"), SIZES), {}, TypeError,
         r"ragged_dot: lhs is s32; expected one of f16"),
        ((jnp.ones((13, 12), "int16"), jnp.ones((3, 12, 5), "int16"), SIZES), {"preferred_element_type": "int32"},
         TypeError, r"ragged_dot: lhs is dtype\('int16'\); expected one of"),
        ((jnp.ones((13, 12), "bfloat16"), jnp.ones((3, 12, 5), "float32"), SIZES), {}, TypeError,
         r"ragged_dot: lhs is bf16 but rhs is f32; bf16 goes with bf16"),
        ((jnp.ones((13, 12), "float32"), jnp.ones((3, 12, 5), "float32"), SIZES), {"precision": "BF16_BF16_F32"},
         TypeError, r"ragged_dot: precision is BF16_BF16_F32 beside f32; expected F32_F32_F32 or TF32_TF32_F32 or "),
    ],
)  # fmt: skip
def test_refused(arguments, keywords, error, message):
    for call in (cj.ragged_dot, jax.jit(cj.ragged_dot, static_argnames=("precision", "preferred_element_type"))):
        if call is not cj.ragged_dot and not all(hasattr(x, "shape") for x in arguments):
            continue
        with pytest.raises(error, match=message):
            call(*arguments, **keywords)


def test_refused_dimensions():
    a, b = jnp.ones((13, 12)), jnp.ones((3, 12, 5))
    with pytest.raises(TypeError, match="ragged_dot_general: ragged_dot_dimension_numbers is tuple; expected Ragged"):
        cj.ragged_dot_general(a, b, SIZES, (((1,), (1,)), ((), ())))
    with pytest.raises(TypeError, match="exactly one lhs ragged dimension"):
        cj.ragged_dot_general(a, b, SIZES, RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0, 1), (0,)))
    with pytest.raises(TypeError, match="exactly one rhs group dimension"):
        cj.ragged_dot_general(a, b, SIZES, RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), ()))
    with pytest.raises(TypeError, match=r"expected group_sizes to have shape \(3,\)|group_sizes to have shape"):
        cj.ragged_dot(a, b, jnp.ones((2, 3), "int32"))


def test_without_a_grouped_kernel_a_call_for_cuda_is_refused(monkeypatch):
    """As it is lowered: JAX's own function does not run in place of it."""

    def none(problem: Any, provided: bool) -> LaunchPlan:
        raise NoKernelError(f"none fits {problem.a}", "gemm")

    monkeypatch.setattr(planning, "plan", none)
    with pytest.raises(NoKernelError, match="^ragged_dot: none fits f64$"):
        for_cuda(cj.ragged_dot, jnp.ones((16, 16)), jnp.ones((3, 16, 16)), SIZES)


def for_cuda(call: Any, *arrays: Any) -> str:
    """The lowered text, whether there is a GPU or not."""
    check = jax.export.DisabledSafetyCheck.custom_call("cutlass_py_grouped_gemm")
    return jax.export.export(jax.jit(call), platforms=["cuda"], disabled_checks=[check])(*arrays).mlir_module()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_for_cuda_every_product_is_one_custom_call(dtype, monkeypatch):
    """Forward and both gradients, whatever is turned, and what is batched: nothing of JAX's own, no operand turned."""
    monkeypatch.setattr(planning, "plan", lambda problem, provided: LaunchPlan("some_kernel"))
    monkeypatch.setattr(_core, "grouped_scratch_bytes", lambda *given: 512)
    a, b, sizes = jnp.ones((64, 32), dtype), jnp.ones((3, 32, 48), dtype), jnp.array([4, 0, 7], jnp.int32)

    def loss(a: Any, b: Any, sizes: Any, numbers: Any) -> Any:
        found = cj.ragged_dot_general(a, b, sizes, numbers, preferred_element_type="float32")
        return jnp.sin(found).sum()

    for rhs, right in (("gkn", b), ("gnk", jnp.swapaxes(b, 1, 2))):
        text = for_cuda(jax.grad(partial(loss, numbers=dimensions("mk", rhs, "m")), (0, 1)), a, right, sizes)
        assert text.count("custom_call @cutlass_py_grouped_gemm") == 3
        assert not re.search(r"stablehlo\.(dot_general|transpose|while)", text)
        assert 'operands = "a b sizes"' in text and 'results = "out scratch"' in text and "tensor<768xui8>" in text
        assert text.count('layout = "nt"') == 1 and "3 groups of rows of a: (64, 48, 32)" in text
    text = for_cuda(jax.vmap(cj.ragged_dot, (0, None, None)), jnp.stack([a, a]), b, sizes)
    assert text.count("custom_call @cutlass_py_grouped_gemm") == 1 and "3 groups of rows of a: (128, 48, 32)" in text
    assert "custom_call @" not in for_cuda(cj.ragged_dot, a, b[:0], sizes[:0])  # nothing to multiply: zeros
