"""cutlass_py.jax on a GPU: results, gradients and batches against float64 and the CPU, memory, streams, devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from leaks import assert_nothing_stays
from reference import NUMPY, assert_same_codes, quantized, rounded

import cutlass_py
from cutlass_py.declaration.quantize import LIMITS, SCALINGS, SOURCES

jax = pytest.importorskip("jax")
jnp = jax.numpy

import cutlass_py.jax as cj  # noqa: E402

pytestmark = pytest.mark.gpu
TARGET = "cutlass_py_gemm"


@pytest.fixture(autouse=True)
def backend():
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU backend")
    with jax.enable_x64(True):
        yield


def whole(shape, dtype: str = "f32", seed: int = 0) -> np.ndarray:
    """Small integers: sums of their products are exact in every dtype here."""
    generator = np.random.default_rng([seed, *shape])
    x = generator.integers(0 if dtype == "u8" else -2, 3, shape).astype(np.float64)
    return x + 1j * generator.integers(-2, 3, shape) if dtype in ("c64", "c128") else x


def on_device(x, dtype: str):
    return jnp.asarray(x.astype(NUMPY[dtype]))


def normal(shape, dtype="bfloat16", seed: int = 0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def run(call, *arrays):
    """Under jit, by our kernels: nothing multiplies matrices but the custom call."""
    compiled = jax.jit(call).lower(*arrays).compile()
    text = compiled.as_text()
    assert TARGET in text and "cublas" not in text and " dot(" not in text
    return compiled(*arrays)


def on_host(call, *arrays):
    """The same by XLA's operations on the CPU, whose results are compared with cutlass_py.gemm elsewhere."""
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.jit(call)(*jax.device_put(arrays, jax.devices("cpu")[0]))


def assert_close(found, expected, tolerance: float) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        x, y = np.asarray(x).astype(np.complex128), np.asarray(y).astype(np.complex128)
        scale = float(np.abs(y).max()) if y.size else 0.0
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale)


# ------------------------------------------------------------------------------------------------ results

FP8 = pytest.mark.sm90
PAIRS = [
    *((x, x) for x in ("f16", "bf16", "f32", "f64", "s8", "u8", "c64", "c128")),
    ("s8", "u8"),
    pytest.param("e4m3", "e4m3", marks=FP8),
    pytest.param("e4m3", "e5m2", marks=FP8),
]


@pytest.mark.parametrize("a, b", PAIRS)
@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("shape", [(64, 96, 128), (65, 40, 71), (1, 256, 4096), (300, 7, 33)])
def test_products_are_exact(a, b, layout, shape):
    m, n, k = shape
    x, y = whole((m, k), a), whole((k, n), b, 1)
    lying = [
        on_device(np.ascontiguousarray(v.T) if lies == "n" else v, dtype)
        for v, lies, dtype in zip((x, y), layout, (a, b), strict=True)
    ]
    found = run(lambda p, q: cj.gemm(p, q, layout=layout), *lying)
    name = {"e4m3": "bf16", "s8": "s32", "u8": "s32"}.get(a, a)
    np.testing.assert_array_equal(np.asarray(found).astype(x.dtype), rounded(x @ y, name))


def test_a_large_product_against_float64():
    a, b = normal((2048, 1024)), normal((1536, 1024), seed=1)
    found = run(lambda a, b: cj.gemm(a, b, layout="tn", out_dtype="f32"), a, b)
    x, y = np.asarray(a).astype(float), np.asarray(b).astype(float).T
    assert (np.abs(np.asarray(found) - x @ y) <= 1024 * 2**-23 * (np.abs(x) @ np.abs(y))).all()


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "hardswish"])
@pytest.mark.parametrize("out_dtype", ["bf16", "f32"])
def test_epilogues(activation, out_dtype):
    def call(a, b, c, bias, gate, scale):
        return (
            cj.gemm(a, b, bias=bias, activation=activation, out_dtype=out_dtype),
            cj.gemm(a, b, c=c, beta=0.5, alpha=scale, activation=activation, out_dtype=out_dtype),
            cj.gemm(a, b, gate=gate, activation=activation, scale_out=scale, out_dtype=out_dtype),
            *cj.gemm(
                a, b, bias=bias, activation=activation, out_dtype=out_dtype,
                aux=jax.ShapeDtypeStruct((96, 64), "bfloat16"), bias_grad=jax.ShapeDtypeStruct((64,), "float32"),
            ),
        )  # fmt: skip

    arrays = normal((96, 128)), normal((128, 64)), normal((96, 64)), normal((64,), "float32"), normal((96, 64), seed=3)
    arrays = (*arrays, jnp.asarray(0.75, jnp.float32))
    assert_close(run(call, *arrays), on_host(call, *arrays), 2e-2)


def test_bias_grad_behind_a_kernel():
    a, b = whole((96, 64)), whole((32, 64), seed=1)
    sums = jax.ShapeDtypeStruct((32,), "float32")
    found = run(partial(cj.gemm, layout="tn", bias_grad=sums), on_device(a, "bf16"), on_device(b, "bf16"))
    np.testing.assert_array_equal(found[1], (a @ b.T).sum(0))


@pytest.mark.sm90
def test_scaled_fp8():
    a, b = normal((96, 128)).astype("float8_e4m3fn"), normal((64, 128)).astype("float8_e4m3fn")

    def call(a, b, rows, cols, scale):
        return cj.gemm(a, b, layout="tn", scale_a=rows, scale_b=cols, scale_out=scale, out_dtype="e4m3")

    arrays = a, b, abs(normal((96, 1), "float32")), abs(normal((64,), "float32")), jnp.asarray(0.1, jnp.float32)
    assert_close(run(call, *arrays), on_host(call, *arrays), 2**-2)


def test_split_and_packed_products_in_one_computation():
    """Each has scratch of its own, between whose launches XLA reuses memory."""
    a, b = whole((64, 8192)), whole((8192, 64), seed=1)
    odd = whole((1085, 333), seed=2), whole((333, 219), seed=3)

    def call(a, b, p, q):
        parts = [cj.gemm(a, b, splits=s, out_dtype="f32") for s in (1, 3, 8)]
        return (
            *parts,
            cj.gemm(p, q, out_dtype="f32"),
            cj.gemm(p, q, c=cj.gemm(p, q, out_dtype="f32"), out_dtype="f32"),
        )

    x, y = odd[0] @ odd[1], a @ b
    for _ in range(20):
        found = run(call, *(on_device(v, "bf16") for v in (a, b, *odd)))
        for one, expected in zip(found, (y, y, y, x, 2 * x), strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_no_elements(shape):
    m, k, n = shape
    found = jax.jit(lambda a, b, c: cj.gemm(a, b, bias=c))(jnp.ones((m, k)), jnp.ones((k, n)), jnp.ones(n))
    np.testing.assert_array_equal(found, np.full((m, n), k + 1.0))


def test_without_jit_and_beside_cutlass_py_gemm():
    a, b = normal((65, 40), "float32"), normal((40, 72), "float32")
    np.testing.assert_array_equal(np.asarray(cj.gemm(a, b)), np.asarray(cutlass_py.gemm(a, b)))


def test_an_error_arrives_with_its_text(monkeypatch):
    from cutlass_py.jax import device

    plan = device._plan
    monkeypatch.setattr(device, "_plan", lambda *given: (plan(*given)[0] | {"kernel": "no_such"}, plan(*given)[1]))
    with pytest.raises(Exception, match="gemm: kernel no_such, which this computation was lowered with, is not loaded"):
        jax.block_until_ready(jax.jit(lambda a: cj.gemm(a, a) + 41)(jnp.ones((64, 64), jnp.bfloat16)))


def test_export():
    a, b = normal((64, 96)), normal((96, 32))
    exported = jax.export.export(
        jax.jit(cj.gemm), platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(TARGET)],
    )(a, b)  # fmt: skip
    assert_close(exported.call(a, b), on_host(cj.gemm, a, b), 1e-2)


# ------------------------------------------------------------------------------------------------ transformations


@pytest.mark.parametrize("layout", ["tt", "tn", "nt", "nn"])
@pytest.mark.parametrize("activation", [None, "gelu_tanh", "silu"])
def test_grad(layout, activation):
    a = normal((128, 96) if layout[0] == "n" else (96, 128), "float32")
    b = normal((64, 128) if layout[1] == "n" else (128, 64), "float32", seed=1)

    def call(a, b, bias):
        return (cj.gemm(a, b, layout=layout, bias=bias, activation=activation) ** 2).sum()

    gradient = jax.grad(call, (0, 1, 2))
    arrays = a, b, normal((64,), "float32")
    assert_close(run(gradient, *arrays), on_host(gradient, *arrays), 1e-4)


def test_grad_of_mlp():
    layers = [(normal((128, 256)), normal((256,))), (normal((256, 64)), normal((64,)))]
    gradient = jax.grad(lambda x, layers: cj.mlp(x, layers).astype(jnp.float32).sum(), (0, 1))
    assert_close(run(gradient, normal((96, 128)), layers), on_host(gradient, normal((96, 128)), layers), 3e-2)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 2)])
def test_vmap(axes):
    x, y = whole((5, 64, 64)), whole((5, 64, 64), seed=1)
    a, b = (v[0] if axis is None else np.moveaxis(v, 0, axis) for v, axis in zip((x, y), axes, strict=True))
    found = run(jax.vmap(cj.gemm, in_axes=axes), on_device(a, "bf16"), on_device(b, "bf16"))
    x, y = (v[:1] if axis is None else v for v, axis in zip((x, y), axes, strict=True))
    np.testing.assert_array_equal(np.asarray(found, np.float64), rounded(x @ y, "bf16"))


# ------------------------------------------------------------------------------------------------ gates and values


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["tn", "tt"])
@pytest.mark.parametrize("function", ["silu", "gelu"])
def test_gates_and_values(function, layout, dtype):
    """Joined by a kernel (16 bits, Hopper), or by XLA's operations behind the product."""
    x, w = normal((96, 128), dtype), normal((512, 128) if layout == "tn" else (128, 512), dtype, seed=1) / 16
    bias, dy = normal((512,), dtype), normal((96, 64), dtype, seed=2)
    w2, aux = normal((256, 64) if layout == "tn" else (64, 256), dtype, seed=3) / 8, normal((96, 512), dtype, seed=4)
    tolerance = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 1e-4, "float64": 1e-10}[dtype]

    def forward(x, w, bias):
        return cj.gemm(x, w, layout=layout, bias=bias, gated=function, aux=jax.ShapeDtypeStruct((96, 512), dtype))

    def loss(x, w, bias):
        return (cj.gemm(x, w, layout=layout, bias=bias, gated=function).astype(jnp.float32) ** 2).sum()

    def back(dy, w2, aux):
        return cj.gemm(dy, w2, layout=layout, gated=f"d_{function}", aux=aux)

    for call, arrays in ((forward, (x, w, bias)), (jax.grad(loss, (0, 1, 2)), (x, w, bias)), (back, (dy, w2, aux))):
        assert_close(run(call, *arrays), on_host(call, *arrays), tolerance)


@pytest.mark.sm90
def test_gates_and_values_are_one_call():
    call = partial(cj.gemm, layout="tn", gated="silu")
    text = jax.jit(call).lower(normal((512, 128)), normal((1024, 128))).as_text()
    assert "fused_gated" in text and "exponential" not in text


# ------------------------------------------------------------------------------------------------ quantize


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("q", LIMITS)
@pytest.mark.parametrize("dtype", SOURCES)
def test_quantize(dtype, q, scaling):
    """Bit for bit, under jit and vmap and eagerly, by the custom call; straight through on the way back."""
    call = partial(cj.quantize, dtype=q, scaling=scaling)
    for shape in ((3, 5), (300, 1000), (2, 130, 4096)):
        x = np.array(normal(shape, NUMPY[dtype]))
        x.flat[1:5] = np.nan, np.inf, -np.inf, 2.0**-140
        wanted = quantized(x, q, scaling)
        compiled = jax.jit(call).lower(x).compile()
        assert "cutlass_py_quantize" in compiled.as_text()
        for found in (compiled(x), compiled(x), call(jnp.asarray(x))):
            assert_same_codes(np.asarray(found[0]), wanted[0])
            np.testing.assert_array_equal(found[1], wanted[1])
        mapped = jax.jit(jax.vmap(call))(x[None])
        assert_same_codes(np.asarray(mapped[0][0]), wanted[0])
        np.testing.assert_array_equal(mapped[1][0], wanted[1])
    if q != "s8":
        gradient = jax.grad(lambda t: call(t)[0].astype("float32").sum())
        array = normal((130, 264), NUMPY[dtype]) * 8  # a gradient within f16
        assert_close(run_quantize(gradient, array), on_host(gradient, array), 1e-6)


def run_quantize(call, *arrays):
    compiled = jax.jit(call).lower(*arrays).compile()
    assert "cutlass_py_quantize" in compiled.as_text()
    return compiled(*arrays)


def test_quantize_in_a_loop():
    """Its calls may be recorded in a command buffer."""
    x = normal((256, 512), "float32")

    def step(x, _):
        q, scales = cj.quantize(x, "s8", scaling="row")
        return q.astype("float32") * scales, None

    looped = lambda x: jax.lax.scan(step, x, None, length=20)[0]  # noqa: E731
    for _ in range(3):
        assert_close(run_quantize(looped, x), on_host(looped, x), 1e-6)


@FP8
def test_quantize_before_gemm():
    a, w = normal((256, 512)), normal((384, 512), seed=1)

    def product(a, w):
        (qa, sa), (qw, sw) = (cj.quantize(x, scaling="row") for x in (a, w))
        return cj.gemm(qa, qw, layout="tn", scale_a=sa, scale_b=sw.T, out_dtype="f32")

    assert_close(run(product, a, w), on_host(product, a, w), 1e-3)


# ------------------------------------------------------------------------------------------------ memory


def test_a_donated_c_gives_its_memory_to_the_result():
    a, c = whole((256, 256)), whole((256, 256), seed=1)
    call = jax.jit(lambda a, c: cj.gemm(a, a, c=c), donate_argnums=1)
    given = on_device(c, "f32")
    address = given.unsafe_buffer_pointer()
    found = call(on_device(a, "f32"), given)
    assert given.is_deleted() and found.unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(found, a @ a + c)


def test_a_c_that_is_kept_is_not_written():
    a, c = whole((256, 256)), whole((256, 256), seed=1)
    given = on_device(c, "f32")
    for _ in range(3):
        found = jax.jit(lambda a, c: cj.gemm(a, a, c=c))(on_device(a, "f32"), given)
    np.testing.assert_array_equal(given, c)
    np.testing.assert_array_equal(found, a @ a + c)


def test_no_leak():
    a = jnp.ones((64, 64), jnp.bfloat16)
    call = jax.jit(lambda a, c: cj.gemm(a, a, c=c, splits=2, alpha=0.0625))

    held = [a]

    def one() -> None:
        held[0] = call(a, held[0])

    def used() -> int:
        held[0].block_until_ready()
        return jax.devices()[0].memory_stats()["bytes_in_use"]

    one()  # from here on, the first C is not a
    assert_nothing_stays(one, (a,), host=32 << 20, used=used, device=1 << 20)


# ------------------------------------------------------------------------------------------------ streams


def test_a_late_producer_and_an_early_overwriter():
    """All on XLA's stream: the product waits for its operand, and what reuses the operand's memory waits for it."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 64, x))
    late = jax.jit(lambda x, s: x + 0 * s[0, 0])
    product = jax.jit(cj.gemm)
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    x, busy = whole((512, 512)), jnp.eye(2048, dtype=jnp.float32)
    a = on_device(x, "f32")
    for _ in range(10):
        operand = late(a, slow(busy))
        found = product(operand, a)
        overwrite(operand)
        np.testing.assert_array_equal(found, x @ x)


def test_threads():
    a = [on_device(whole((128, 128), seed=i), "f32") for i in range(4)]
    call = jax.jit(cj.gemm)
    wrong = []

    def work(x):
        expected = np.asarray(x, np.float64) @ np.asarray(x, np.float64)
        for _ in range(200):
            if not np.array_equal(call(x, x), expected):
                wrong.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in a]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


RECORDED = """
import jax, jax.numpy as jnp, numpy as np, cutlass_py.jax as cj
a = np.random.default_rng(0).integers(-1, 2, (128, 128)).astype(np.float32)

def step(x, _):
    y = cj.gemm(x, jnp.asarray(a), splits=2, activation="relu")  # scratch, and the elementwise kernel
    return jnp.clip(cj.gemm(y, jnp.asarray(a), c=x), -2, 2), None

def scanned(x):
    return jax.lax.scan(step, x, None, length=50)[0]

def looped(x):
    return jax.lax.while_loop(lambda s: s[0] < 50, lambda s: (s[0] + 1, step(s[1], None)[0]), (0, x))[1]

x = a
for _ in range(50):
    y = np.maximum(x @ a, 0)
    x = np.clip(y @ a + x, -2, 2)
for call in (scanned, looped):
    compiled = jax.jit(call).lower(jnp.asarray(a)).compile()
    for _ in range(5):
        np.testing.assert_array_equal(compiled(jnp.asarray(a)), x)
print("done")
"""


@pytest.mark.parametrize("recorded", ["", "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE"])
def test_loops_with_and_without_command_buffers(recorded):
    """In a process of its own: XLA reads its flags when it starts."""
    flags = f"--xla_gpu_enable_command_buffer={recorded} --xla_gpu_graph_min_graph_size=1"
    environment = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", RECORDED], capture_output=True, text=True, env=environment)
    assert done.stdout == "done\n", done.stderr


# ------------------------------------------------------------------------------------------------ several devices


@pytest.fixture
def mesh():
    if len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    return jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])


def test_shard_map(mesh):
    """Columns of the first weight and rows of the second on each device: a tensor-parallel MLP, and its gradient."""
    spec = jax.sharding.PartitionSpec
    x, w1, w2 = normal((64, 128), "float32"), normal((128, 256), "float32"), normal((256, 64), "float32")

    def local(x, w1, w2):
        return jax.lax.psum(cj.gemm(cj.gemm(x, w1, activation="gelu_tanh"), w2), "x")

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(spec(), spec(None, "x"), spec("x")), out_specs=spec())
    loss = jax.grad(lambda *y: (sharded(*y) ** 2).sum(), (0, 1, 2))
    whole_loss = jax.grad(lambda x, w1, w2: (cj.gemm(cj.gemm(x, w1, activation="gelu_tanh"), w2) ** 2).sum(), (0, 1, 2))
    assert_close(jax.jit(loss)(x, w1, w2), on_host(whole_loss, x, w1, w2), 1e-3)


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_jit_of_sharded_arrays(mesh, by):
    """The same MLP, divided by XLA: along the data's rows, or along columns and rows of the weights."""
    spec = jax.sharding.PartitionSpec
    specs = {"rows": (spec("x"), spec(), spec()), "columns": (spec(), spec(None, "x"), spec("x"))}[by]
    operands = normal((64, 128), "float32"), normal((128, 256), "float32"), normal((256, 64), "float32")
    step = jax.grad(lambda x, w1, w2: (cj.gemm(cj.gemm(x, w1, activation="gelu_tanh"), w2) ** 2).sum(), (0, 1, 2))
    placed = [jax.device_put(x, jax.sharding.NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)]
    compiled = jax.jit(step).lower(*placed).compile()
    assert "cutlass_py_gemm" in compiled.as_text() and "all-gather" not in compiled.as_text()
    assert_close(compiled(*placed), on_host(step, *operands), 1e-3)


def test_each_device_runs_its_own(mesh):
    for device in mesh.devices.ravel():
        a = jax.device_put(whole((96, 96)).astype(np.float32), device)
        found = jax.jit(cj.gemm)(a, a)
        assert found.devices() == {device}
        np.testing.assert_array_equal(found, whole((96, 96)) @ whole((96, 96)))
