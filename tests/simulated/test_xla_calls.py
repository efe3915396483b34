"""What cutlass_py.jax queues on a device: XLA's custom call with every step that a plan may have.

JAX's CPU makes the calls. `register` is for good, but no other test here uses JAX.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
import simulator

jax = pytest.importorskip("jax")
import xla_on_host  # noqa: E402
from reference import NUMPY, assert_same_codes, quantized  # noqa: E402

import cutlass_py.jax as cj  # noqa: E402
from cutlass_py import GemmArguments, TensorSpec  # noqa: E402
from cutlass_py.declaration.quantize import LIMITS, SCALINGS  # noqa: E402
from cutlass_py.dispatch import planning  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="compiles with g++")


@pytest.fixture(scope="module", autouse=True)
def custom_call(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The device has come so far when XLA reads a result, and takes scratch back."""
    if simulator.is_here():
        xla_on_host.register(xla_on_host.build(tmp_path_factory.mktemp("xla")), after=simulator.run)


M, N, K = 48, 32, 256
SUMS, AUX = jax.ShapeDtypeStruct((N,), "float32"), jax.ShapeDtypeStruct((M, N), "bfloat16")
# What a plan does beside its kernel, and keywords for which it does. b lies by columns, and by rows to be packed.
STEPS: dict[str, dict[str, Any]] = {
    "": {},
    "packs b": {"compute": "tf32", "batch_invariant": True},  # which few rows on the CUDA cores are not
    "sums D": {"bias_grad": SUMS},
    "composed": {"bias_grad": SUMS, "aux": AUX, "activation": "relu", "out_dtype": "float32"},
    "splits k by 2": {"splits": 9},  # of 128 each there are no more, and no kernel has so many slices
}


def values(*shape: int, seed: int, dtype: str) -> Any:
    return jax.numpy.asarray(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_a_plan_is_taken(step: str) -> None:
    keywords, dtype = STEPS[step], "float32" if step == "packs b" else "bfloat16"
    a, b = values(M, K, seed=1, dtype=dtype), values(K, N, seed=2, dtype=dtype)
    lie = TensorSpec(a.shape, dtype), TensorSpec(b.shape, dtype, None if step == "packs b" else (1, K))
    specs = {x: TensorSpec(y.shape, y.dtype.name) for x, y in keywords.items() if isinstance(y, jax.ShapeDtypeStruct)}
    assert planning.plan(GemmArguments(*lie, **{**keywords, **specs}).problem).steps == ([step] if step else [])
    layout, right = ("tt", b) if step == "packs b" else ("tn", b.T)
    found = jax.jit(partial(cj.gemm, layout=layout, **keywords))(a, right)
    z = np.asarray(a, "f4") @ np.asarray(b, "f4")
    y = np.maximum(z, 0) if "activation" in keywords else z
    expected = [y, *([z] if "aux" in keywords else []), *([y.sum(0)] if "bias_grad" in keywords else [])]
    for x, want in zip(found if len(expected) > 1 else [found], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(x, "f4"), want)


# ------------------------------------------------------------------------------------------------ quantize


def special(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Several orders of magnitude, with what is special here and there."""
    generator = np.random.default_rng(shape)
    x = generator.standard_normal(shape) * 10.0 ** generator.integers(-3, 4, shape)
    for i, value in enumerate((np.nan, np.inf, -np.inf, 0.0, 2.0**-140, 6e4) if x.size > 20 else ()):
        x.flat[i * x.size // 7] = value
    return x.astype(NUMPY[dtype])


def is_one_call(call: Any, x: Any) -> bool:
    """Whether what is lowered has one custom call."""
    return jax.jit(call).lower(x).as_text().count("custom_call @cutlass_py_quantize") == 1


def check(found: Any, x: np.ndarray, q: str, scaling: str) -> None:
    wanted, scales = quantized(x, q, scaling)
    assert_same_codes(np.asarray(found[0]), wanted)
    np.testing.assert_array_equal(np.asarray(found[1]), scales)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
def test_quantize_runs_its_kernels(q: str, scaling: str) -> None:
    call = partial(cj.quantize, dtype=q, scaling=scaling)
    for dtype in ("bf16", "f32", "f16"):
        for shape in ((3, 5), (130, 264), (2, 2, 5, 300), (0, 128), (3, 0)):
            x = special(shape, dtype)
            array = jax.numpy.asarray(x)
            check(call(array), x, q, scaling)
            for _ in range(2):  # planned, then by the launch that is kept
                check(jax.jit(call)(array), x, q, scaling)
            assert is_one_call(call, array) == bool(quantized(x, q, scaling)[1].size)


def test_quantize_of_vectors_and_under_transformations() -> None:
    x = special((3, 200), "f32")
    array = jax.numpy.asarray(x)
    for scaling in ("tensor", "row", "block"):
        codes, scales = jax.jit(partial(cj.quantize, scaling=scaling))(array[0])
        wanted = quantized(x[:1], "e4m3", "1x128" if scaling == "block" else scaling)
        assert_same_codes(np.asarray(codes), wanted[0][0])
        np.testing.assert_array_equal(np.asarray(scales), wanted[1][0] if scaling != "tensor" else wanted[1])
    for scaling in SCALINGS:
        call = partial(cj.quantize, scaling=scaling)
        mapped = jax.vmap(call)(array[None])
        assert is_one_call(jax.vmap(call), array[None])
        check((mapped[0][0], mapped[1][0]), x, "e4m3", scaling)
        gradient = jax.grad(lambda t, call=call: call(jax.jit(lambda y: y * 1)(t))[0].astype("float32").sum())
        assert is_one_call(gradient, array) and gradient(array).shape == x.shape
    nine = jax.vmap(partial(cj.quantize, scaling="row"))(array.reshape(3, *(1,) * 6, 1, 200))
    check((nine[0].reshape(x.shape), nine[1].reshape(3, 1)), x, "e4m3", "row")


def test_quantize_and_gemm_in_one_program() -> None:
    """Both find their launches in one cache."""
    a, w = values(32, 256, seed=1, dtype="bfloat16"), values(48, 256, seed=2, dtype="bfloat16")

    @jax.jit
    def call(a: Any, w: Any) -> Any:
        qa, sa = cj.quantize(a, "s8", scaling="row")
        qw, sw = cj.quantize(w, "s8", scaling="row")
        return cj.gemm(qa, qw, layout="tn", scale_a=sa, scale_b=sw.T, out_dtype="f32"), sa, sw

    for _ in range(2):
        d, sa, sw = call(a, w)
        exact = np.asarray(a, "f4") @ np.asarray(w, "f4").T
        np.testing.assert_allclose(np.asarray(d), exact, atol=2 * np.abs(exact).max() / 127)


# ------------------------------------------------------------------------------------------------ ragged dots


def ragged(a: np.ndarray, b: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The definition, of rows."""
    d, at = np.zeros((len(a), b.shape[2]), "f4"), 0
    for i, size in enumerate(sizes):
        d[at : at + size] = a[at : at + size] @ b[i]
        at += size
    return d


def test_ragged_dots_follow_their_sizes() -> None:
    """By rows, forward and back, with one program for all sizes: what is behind the last group is zeros."""
    a, b = values(120, 64, seed=1, dtype="float16"), values(3, 64, 72, seed=2, dtype="float16")
    wide = lambda x: np.asarray(x, "f4")  # noqa: E731
    weights = jax.numpy.arange(72, dtype="float16") % 3 - 1

    @jax.jit
    def call(a: Any, b: Any, sizes: Any) -> Any:
        loss = lambda a, b: (cj.ragged_dot(a, b, sizes) * weights).sum()  # noqa: E731
        return cj.ragged_dot(a, b, sizes, preferred_element_type="float16"), *jax.grad(loss, (0, 1))(a, b)

    text = call.lower(a, b, jax.numpy.zeros(3, "int32")).as_text()
    assert text.count("custom_call @cutlass_py_grouped_gemm") == 3 and "dot_general" not in text
    for sizes in ([70, 0, 30], [0, 0, 0], [1, 118, 1], [0, 90, 0]):
        dirty = a.at[sum(sizes) :].set(np.nan)
        d, d_a, d_b = call(dirty, b, jax.numpy.asarray(sizes, "int32"))
        np.testing.assert_array_equal(wide(d), ragged(wide(a), wide(b), sizes))
        ones = np.broadcast_to(wide(weights), (120, 72))
        np.testing.assert_array_equal(wide(d_a), ragged(ones, wide(b).swapaxes(1, 2), sizes))
        at = np.cumsum([0, *sizes])
        for i in range(3):
            lines = slice(at[i], at[i + 1])
            np.testing.assert_array_equal(wide(d_b)[i], wide(a)[lines].T @ ones[lines])
        # Of one column, whose D is canonically a row.
        column = jax.jit(cj.ragged_dot)(dirty, b[:, :, :1], jax.numpy.asarray(sizes, "int32"))
        np.testing.assert_array_equal(wide(column), ragged(wide(a), wide(b)[:, :, :1], sizes))
