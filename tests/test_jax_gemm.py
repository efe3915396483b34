"""cutlass_py.jax on the CPU: the results of cutlass_py.gemm, its rules and messages, with jit and without."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import make
from reference import NUMPY, rounded

import cutlass_py

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.experimental import sparse  # noqa: E402

import cutlass_py.jax as cj  # noqa: E402


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def values(shape, dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * (20 if dtype in ("s8", "u8") else 1)
    if dtype in ("c64", "c128"):
        x = x + 1j * generator.standard_normal(shape)
    return rounded(x, dtype).astype(NUMPY[dtype])


def array(x):
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def bits(x) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


def both(a, b, **keywords):
    """The same call by NumPy's arrays and by JAX's, without jit and with; both must agree."""
    expected = cutlass_py.gemm(a, b, **keywords)
    arrays = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    others = {name: x for name, x in keywords.items() if name not in arrays}

    def call(a, b, arrays):
        return cj.gemm(a, b, **arrays, **others)

    operands = array(a), array(b), {name: array(x) for name, x in arrays.items()}
    found = call(*operands)
    np.testing.assert_array_equal(bits(found), bits(jax.jit(call)(*operands)))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return np.asarray(found), np.asarray(expected)


def ulps(dtype: str) -> float:
    """Relative difference that two orders of summation, or two exp, may leave behind a rounding to dtype."""
    return {"f16": 2**-9, "bf16": 2**-6, "e4m3": 2**-3, "e5m2": 2**-2, "f64": 1e-12, "c128": 1e-12}.get(dtype, 2e-5)


def assert_close(found, expected, dtype: str) -> None:
    kind = np.complex128 if dtype in ("c64", "c128") else np.float64
    np.testing.assert_allclose(found.astype(kind), expected.astype(kind), rtol=ulps(dtype), atol=ulps(dtype))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "e4m3", "e5m2", "c64", "c128"])
def test_product(dtype):
    found, expected = both(values((5, 17), dtype), values((17, 6), dtype, 1))
    assert_close(found, expected, "bf16" if dtype in ("e4m3", "e5m2") else dtype)


@pytest.mark.parametrize("pair", [("s8", "s8"), ("u8", "s8"), ("u8", "u8")])
@pytest.mark.parametrize("out", ["s32", "s8", "u8", "f32", "bf16"])
def test_integers_are_exact(pair, out):
    a, b = values((5, 17), pair[0]), values((17, 6), pair[1], 1)
    np.testing.assert_array_equal(*both(a, b, out_dtype=out))
    np.testing.assert_array_equal(*both(a, b, out_dtype=out, alpha=0.37, bias=values((6,), "f32")))


def test_integers_without_x64():
    a, b, bias = values((5, 17), "s8"), values((17, 6), "s8", 1), values((6,), "f32")
    with jax.enable_x64(False):
        np.testing.assert_array_equal(*both(a, b))
        np.testing.assert_array_equal(*both(a, b, out_dtype="s8", alpha=0.37, bias=bias))


def test_sums_of_integers_wrap_around():
    a, b = np.full((1, 70000), 255, np.uint8), np.full((70000, 1), 255, np.uint8)
    found, expected = both(a, b)
    assert found[0, 0] == expected[0, 0] == 70000 * 255 * 255 - 2**32


@pytest.mark.parametrize("a, b", [("e4m3", "e5m2"), ("e5m2", "e4m3")])
@pytest.mark.parametrize("out", ["e4m3", "e5m2", "f16", "f32"])
def test_fp8(a, b, out):
    x, y = values((4, 16), a), values((16, 3), b, 1)
    found, expected = both(x, y, out_dtype=out, scale_a=0.5, scale_out=np.float32(3))
    assert_close(found, expected, out)


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "s8", "u8", "s32", "f16"])
def test_results_saturate_or_overflow_as_they_do_in_gemm(dtype):
    a = np.array([[1e30], [-1e30], [np.inf], [np.nan], [1.5], [2.5], [1e5]], np.float32)
    found, expected = both(a, np.ones((1, 1), np.float32), out_dtype=dtype)
    np.testing.assert_array_equal(found.astype(float), expected.astype(float))


@pytest.mark.parametrize(
    "source, out", [("f32", "bf16"), ("f32", "e4m3"), ("f64", "bf16"), ("f64", "f16"), ("f64", "e5m2")]
)
def test_results_are_rounded_once(source, out):
    # Halfway between two values of `out`, and a little above or below: more than f32 or f16 holds.
    x = np.array(
        [
            1 + step * (i + 0.5) * (1 + e)
            for i in range(4)
            for step in (2**-7, 2**-3, 2**-10)
            for e in (0, 2**-26, -(2**-26))
        ]
    )
    a = x.astype(NUMPY[source])[:, None]
    found, _ = both(a, np.ones((1, 1), NUMPY[source]), out_dtype=out)
    np.testing.assert_array_equal(found.astype(float), rounded(a.astype(float), out))


def test_a_rounding_is_not_left_out_where_the_result_is_widened():
    a, b = jnp.asarray(values((8, 32), "bf16")), jnp.asarray(values((32, 8), "bf16", 1))
    wide = jax.jit(lambda a, b: cj.gemm(a, b).astype(jnp.float32))(a, b)
    np.testing.assert_array_equal(wide, wide.astype(jnp.bfloat16).astype(jnp.float32))


@pytest.mark.parametrize(
    "activation", ["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish"]
)
@pytest.mark.parametrize("operand", [None, "gate"])
def test_activations(activation, operand):
    x = {operand: values((5, 6), "f32", 2)} if operand else {}
    found, expected = both(values((5, 17), "f32"), values((17, 6), "f32", 1), activation=activation, **x)
    assert_close(found, expected, "f32")


@pytest.mark.parametrize("activation", ["d_relu", "d_gelu", "d_gelu_tanh", "d_silu"])
def test_derivatives(activation):
    aux = values((5, 6), "f32", 2)
    aux[0, :4] = [1e30, -1e30, 0, np.nan]
    found, expected = both(values((5, 17), "f32"), values((17, 6), "f32", 1), activation=activation, aux=aux)
    assert_close(found, expected, "f32")


def test_parameters_of_activations():
    a, b = values((5, 17), "f32"), values((17, 6), "f32", 1)
    for activation in (cutlass_py.clamp(-0.5, 1.25), cutlass_py.leaky_relu(0.3), cutlass_py.leaky_relu()):
        assert_close(*both(a, b, activation=activation), "f32")


@pytest.mark.parametrize("bias", [(6,), (1, 6), (5, 1), (1, 1, 6)])
@pytest.mark.parametrize("scales", [((1, 1, 1), (1,)), ((5,), (6,)), ((5, 1), (1, 6)), ((1,), (1, 1))])
def test_every_operand_at_once(bias, scales):
    a, b = values((2, 5, 17), "bf16"), values((17, 6), "bf16", 1)
    found, expected = both(
        a, b, c=values((5, 6), "f32", 2), alpha=np.asarray([0.75], np.float32), beta=np.asarray(-2, np.float32),
        bias=values(bias, "f32", 3), activation="silu", scale_a=np.abs(values(scales[0], "f32", 4)),
        scale_b=np.abs(values(scales[1], "f32", 5)), scale_out=np.asarray([[1.5]], np.float32), out_dtype="f32",
    )  # fmt: skip
    assert_close(found, expected, "f32")


def test_complex_factors():
    a, b, c = values((5, 17), "c64"), values((17, 6), "c64", 1), values((5, 6), "c64", 2)
    assert_close(*both(a, b, c=c, alpha=0.5 - 2j, beta=1j, bias=values((6,), "c64", 3)), "c64")
    assert_close(*both(a, b, alpha=np.complex64(0.5 - 2j)), "c64")


@pytest.mark.parametrize(
    "a, b",
    [
        ((17,), (17,)),
        ((17,), (17, 6)),
        ((5, 17), (17,)),
        ((17,), (3, 17, 6)),
        ((3, 5, 17), (17,)),
        ((2, 1, 5, 17), (3, 17, 6)),
    ],
)
def test_shapes(a, b):
    x, y = values(a, "f32"), values(b, "f32", 1)
    c = values(np.matmul(x, y).shape, "f32", 2)
    assert_close(*both(x, y, c=c, beta=0.5), "f32")


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (0, 0, 0)])
def test_no_elements(shape):
    m, k, n = shape
    both(np.ones((m, k), np.float32), np.ones((k, n), np.float32), bias=np.ones(n, np.float32))


@pytest.mark.parametrize("name", ["alpha", "scale_a", "scale_b"])
@pytest.mark.parametrize("factor", [np.inf, np.nan])
@pytest.mark.parametrize("layout", ["tt", "nn"])
def test_without_k_no_factor_reaches_the_result(name, factor, layout):
    a, b = (np.ones((2, 0)), np.ones((0, 2)))
    assert not cutlass_py.gemm(a, b, **{name: factor}).any()
    given = (a, b) if layout == "tt" else (a.T, b.T)
    for value in (factor, jnp.float64(factor)):
        np.testing.assert_array_equal(cj.gemm(*given, layout=layout, **{name: value}), 0)


@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
def test_layout(layout):
    a, b = values((2, 5, 17), "f32"), values((17, 6), "f32", 1)
    lying = [jnp.asarray(np.swapaxes(x, -1, -2) if lies == "n" else x) for x, lies in zip((a, b), layout, strict=True)]
    assert_close(np.asarray(cj.gemm(*lying, layout=layout)), cutlass_py.gemm(a, b), "f32")
    assert_close(np.asarray(cj.matmul(*lying, layout=layout)), cutlass_py.gemm(a, b), "f32")


def test_what_is_not_read_does_not_leak():
    nan, one = jnp.full((3, 3), jnp.nan, jnp.float32), jnp.ones((3, 3), jnp.float32)
    np.testing.assert_array_equal(cj.gemm(one, one, c=nan, beta=0), 3)
    np.testing.assert_array_equal(cj.gemm(one, one, c=nan, beta=jnp.zeros((), jnp.float32)), 3)
    np.testing.assert_array_equal(cj.gemm(nan, nan, c=one, alpha=0), 1)


def struct(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 1)])
def test_what_gemm_writes_is_returned(shape):
    a, b, bias = values((5, 17), "bf16"), values((17, 6), "bf16", 1), values((6,), "bf16", 2)
    d, aux, sums = cj.gemm(
        jnp.asarray(a), jnp.asarray(b), bias=jnp.asarray(bias), activation="gelu_tanh",
        aux=struct(5, 6, dtype="bfloat16"), bias_grad=struct(*shape),
    )  # fmt: skip
    z, total = np.zeros((5, 6), a.dtype), np.zeros(shape, np.float32)
    expected = cutlass_py.gemm(a, b, bias=bias, activation="gelu_tanh", aux=z, bias_grad=total)
    assert_close(np.asarray(d), expected, "bf16")
    assert_close(np.asarray(aux), z, "bf16")
    assert_close(np.asarray(sums), total, "f32")


def test_bias_grad_of_f64_is_summed_in_f64():
    a = jnp.ones((9, 1), jnp.float32).at[0].set(2.0**25)
    _, total = cj.gemm(a, jnp.ones((1, 1), jnp.float32), bias_grad=struct(1, dtype="float64"))
    assert total[0] == 2**25 + 8


def test_aux_of_vectors_has_the_shape_of_the_result():
    for a, b in [((17,), (17,)), ((17,), (17, 6)), ((5, 17), (17,)), ((2, 5, 17), (17,))]:
        x, y = jnp.asarray(values(a, "f32")), jnp.asarray(values(b, "f32", 1))
        shape = np.matmul(x, y).shape
        d, aux = cj.gemm(x, y, activation="relu", aux=struct(*shape))
        assert d.shape == aux.shape == shape
        np.testing.assert_array_equal(d, np.maximum(aux, 0))


def test_shapes_are_known_without_arrays():
    d, aux = jax.eval_shape(
        lambda a, b: cj.gemm(a, b, activation="relu", aux=struct(5, 6)), struct(5, 17), struct(17, 6)
    )
    assert d.shape == aux.shape == (5, 6) and d.dtype == aux.dtype == np.float32
    assert jax.eval_shape(cj.gemm, struct(5, 17, dtype="int8"), struct(17, 6, dtype="int8")).dtype == np.int32


# ------------------------------------------------------------------------------------------------ refusals

ONE = np.ones((3, 3), np.float32)


def test_only_results_of_64_bits_enable_them(monkeypatch):
    """By cutlass_py.gemm on arrays of JAX: entering the context takes microseconds."""
    entered, enable = [], jax.enable_x64
    arrays = {name: make("jax", np.eye(3), name) for name in ("f32", "bf16", "f64", "c64", "c128")}
    monkeypatch.setattr(jax, "enable_x64", lambda on: entered.append(on) or enable(on))
    for name, x in arrays.items():
        entered.clear()
        d = cutlass_py.gemm(x, x)
        assert isinstance(d, jax.Array) and d.dtype == x.dtype
        assert entered == ([True] if name in ("f64", "c128") else [])


def test_results_of_gemm_are_put_on_the_cpu_explicitly():
    a = jnp.asarray(ONE)
    with jax.transfer_guard("disallow"):
        assert cutlass_py.gemm(a, a).devices() == a.devices()


def test_results_of_gemm_where_jax_has_no_cpu(monkeypatch):
    """JAX_PLATFORMS=cuda, and operands in pinned memory."""
    a = jnp.asarray(ONE)

    def refuse(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(jax, "local_devices", refuse)
    assert (cutlass_py.gemm(a, a) == 3).all()


@pytest.mark.parametrize(
    "keywords, error, message",
    [
        ({"b": ONE[:2]}, ValueError, "a is (3, 3) but b is (2, 3); inner extents must agree"),
        ({"b": ONE.astype(np.int8)}, TypeError, "a is f32 but b is s8; f32 goes with f32"),
        ({"c": ONE[:2]}, ValueError, "c is (2, 3); expected (3, 3)"),
        ({"beta": 2.0}, ValueError, "beta is given but c is not"),
        ({"beta": np.ones((), np.float32)}, ValueError, "beta is given but c is not"),
        ({"bias": ONE[0, :2]}, ValueError, "bias is (2,); expected (3,), (1, 3) or (3, 1)"),
        ({"bias": ONE[0].astype(np.float64)}, TypeError, "bias is f64; expected f32"),
        ({"alpha": ONE}, ValueError, "alpha is (3, 3); expected a number or an array of one element"),
        ({"alpha": "x"}, TypeError, "alpha is a str; expected a number"),
        ({"activation": "abs"}, ValueError, "activation='abs' is not one of "),
        ({"activation": "clamp"}, ValueError, "activation='clamp' has parameters"),
        ({"activation": "d_gelu"}, ValueError, "activation='d_gelu' needs aux"),
        ({"activation": "relu", "aux": struct(3, 4)}, ValueError, "aux is (3, 4); expected (3, 3)"),
        ({"bias_grad": struct(4)}, ValueError, "bias_grad is (4,); expected (3,), (1, 3) or (3, 1)"),
        ({"compute": "f16"}, ValueError, "compute='f16' is not one of 'f32', 'tf32', '3xtf32' for f32 inputs"),
        ({"splits": 0}, ValueError, "splits is 0; expected 1 to 32767, or 'stream'"),
        ({"deterministic": 1}, TypeError, "deterministic is an int; expected True or False"),
        ({"out_dtype": "f12"}, TypeError, "out_dtype is 'f12'; expected one of "),
        ({"kernel": "no_such"}, ValueError, "no kernel is called 'no_such'"),
        ({"layout": "ab"}, ValueError, "layout is 'ab'; expected one of tn, tt, nt, nn"),
        ({"a": ONE[0], "layout": "nt"}, ValueError, "a is (3,); expected a matrix where the layout says n"),
        ({"a": [ONE, ONE]}, TypeError, "a is a list; in JAX pass a batch, an array of 3 dimensions"),
        ({"a": 3.0}, TypeError, "a is a float; expected an array"),
        ({"b": None}, TypeError, "b is a NoneType; expected an array"),
        ({"bias": 3.0}, TypeError, "bias is a float; expected an array"),
        ({"gate": struct(3, 3)}, TypeError, "gate is a jax.ShapeDtypeStruct; expected an array"),
        ({"activation": "relu", "aux": ONE}, TypeError, "aux is a jax"),
        ({"activation": "relu", "aux": (3, 3)}, TypeError, "aux is a tuple; expected jax.ShapeDtypeStruct of what"),
        ({"activation": "d_relu", "aux": struct(3, 3)}, TypeError, "aux is a jax.ShapeDtypeStruct; expected an array"),
        ({"bias_grad": ONE[0]}, TypeError, "bias_grad is a jax"),
    ],
)
def test_refusals(keywords, error, message):
    given = {"a": ONE, "b": ONE} | keywords
    a, b = (array(given.pop(name)) for name in "ab")
    with pytest.raises(error) as found:
        cj.gemm(a, b, **{name: array(x) for name, x in given.items()})
    assert f"gemm: {message}" in str(found.value)


@pytest.mark.parametrize("dtype", [">f4", "O", "U3", "g", "m8[s]", [("x", "f4")]], ids=str)
@pytest.mark.parametrize("name", ["a", "bias", "alpha"])
def test_dtypes_that_jax_does_not_take(dtype, name):
    x = np.ones({"a": (3, 3), "bias": 3, "alpha": ()}[name], "i4").astype(dtype)
    message = f"gemm: {name} is a numpy.ndarray of {x.dtype}, which JAX does not take"
    with pytest.raises(TypeError, match=re.escape(message)):
        cj.gemm(**{"a": ONE, "b": ONE} | {name: x})


@pytest.mark.parametrize(
    "make",
    [
        jax.new_ref,
        sparse.BCOO.fromdense,
        lambda x: cutlass_py.TensorSpec(x.shape, "f32"),
        lambda x: pytest.importorskip("torch").ones(3, 3, requires_grad=True),
        list,
    ],
)
def test_what_is_no_array_of_jax_or_numpy(make):
    x = make(jnp.asarray(ONE))
    with pytest.raises(TypeError, match="^gemm: bias is a.*; expected an array of JAX or NumPy"):
        cj.gemm(ONE, ONE, bias=x)
    with pytest.raises(TypeError, match="^mlp: the weight of layer 0 is a.*; expected an array of JAX or NumPy"):
        cj.mlp(ONE, [(x, None)])


def test_arrays_of_numpy_and_by_jaxs_protocol():
    class Wrapped:
        def __jax_array__(self):
            return jnp.asarray(ONE)

    np.testing.assert_array_equal(cj.gemm(Wrapped(), ONE, c=ONE), 4)
    assert cj.gemm(ONE[0], ONE[0], c=np.float32(2)) == 5
    masked = np.ma.masked_array(ONE)
    with pytest.raises(TypeError, match=r"a is a numpy.ma.*MaskedArray of float32, which JAX does not take"):
        cj.gemm(masked, ONE)


def test_numbers_of_parts_and_shapes_are_not_traced():
    assert cj.gemm(ONE, ONE, splits=jnp.int32(2)).shape == (3, 3)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda splits: cj.gemm(ONE, ONE, splits=splits))(2)
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("m, 3"), jnp.float32)
    with pytest.raises(TypeError, match=re.escape("gemm: a is (m, 3), a symbolic shape; expected numbers")):
        jax.eval_shape(cj.matmul, rows, ONE)
    batch = jax.ShapeDtypeStruct(jax.export.symbolic_shape("m, 3, 3"), jnp.float32)
    for name, of in (("a", batch), ("bias", rows)):
        call = jax.vmap(lambda x, name=name: cj.gemm(**{"a": ONE, "b": ONE} | {name: x}))
        with pytest.raises(TypeError, match="gemm: vmap over m elements, a symbolic axis; expected a number"):
            jax.export.export(jax.jit(call))(of)


def test_errors_name_the_shapes_that_were_given():
    a, b = jnp.ones((2, 5, 17)), jnp.ones((6, 16))
    with pytest.raises(ValueError, match=re.escape("but b is (6, 16) lying transposed; inner")):
        cj.gemm(a, b, layout="tn")
    with pytest.raises(ValueError, match=re.escape("a is (2, 5, 17) lying transposed but")):
        cj.gemm(a, b, layout="nt")


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "s8", "c64"])
def test_numbers_may_be_traced(dtype, x64):
    with jax.enable_x64(x64):
        a, c = jnp.asarray(values((4, 4), dtype)), jnp.asarray(values((4, 4), "c64" if dtype == "c64" else "f32", 1))
        call = jax.jit(lambda **keywords: cj.gemm(a, a, c=c, **keywords))
        scales = {} if dtype == "c64" else {"scale_out": 3, "scale_a": 2.0}
        for numbers in ({"alpha": 2, "beta": 0.5}, {"alpha": -1.5, "beta": 1} | scales):
            assert_close(np.asarray(call(**numbers)), np.asarray(cj.gemm(a, a, c=c, **numbers)), dtype)
        if dtype == "c64":
            assert_close(np.asarray(call(alpha=2j)), np.asarray(cj.gemm(a, a, c=c, alpha=2j)), dtype)
        else:
            with pytest.raises(TypeError, match="alpha is c(64|128); expected f32"):
                call(alpha=2j)


def test_64_bits_need_x64():
    with jax.enable_x64(False):
        one = jnp.ones((3, 3), jnp.float32)
        for keywords in ({"out_dtype": "f64"}, {"aux": struct(3, 3, dtype=np.dtype("float64"))}):
            with pytest.raises(TypeError, match="is f64, which needs jax.config.update"):
                cj.gemm(one, one, **keywords)


def test_a_kernel_runs_on_cuda_alone():
    kernel = cutlass_py.get_kernels(compiled=False)[0]
    one = jnp.ones((3, 3), jnp.float32)
    with pytest.raises(ValueError, match=f"kernel {kernel.name} runs on CUDA devices"):
        cj.gemm(one, one, kernel=kernel)


def test_importing_the_package_does_not_import_jax():
    code = "import sys, cutlass_py; cutlass_py.get_kernels; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
