"""cutlass_py.jax.ragged_dot on a GPU: groups of every kind, zeros behind them, gradients, numbers that change."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from reference import NUMPY, rounded

jax = pytest.importorskip("jax")
jnp = jax.numpy

from test_gpu_jax import (  # noqa: E402, F401 (two fixtures)
    assert_close,
    backend,
    mesh,
    normal,
    on_device,
    on_host,
    run,
    whole,
)

import cutlass_py.jax as cj  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]
GROUPED = "cutlass_py_grouped_gemm"
SIZES = [(70, 0, 130, 5), (0, 0, 0, 0), (256, 0, 0, 0), (1, 2, 3, 250)]


def run_ragged(call, *arrays, products: int = 1):
    """Under jit, by so many grouped kernels alone, into memory that has NaN."""
    compiled = jax.jit(call).lower(*arrays).compile()
    text = compiled.as_text()
    assert text.count(f'custom_call_target="{GROUPED}"') == products and "cublas" not in text and " dot(" not in text
    for x in jax.tree.leaves(compiled(*arrays)):
        jnp.full(x.shape, jnp.nan).astype(x.dtype).block_until_ready()
    return compiled(*arrays)


def numbers_of(sizes):
    return jnp.asarray(sizes, jnp.int32)


def dimensions(lhs: str, rhs: str):
    """Of rows where rhs has a letter g, else of k."""
    free = "g" in rhs
    contracting = ((lhs.index("k"),), (rhs.index("k"),))
    divided = (lhs.index("m" if free else "k"),)
    return jax.lax.RaggedDotDimensionNumbers((contracting, ((), ())), divided, (rhs.index("g"),) if free else ())


def ragged(a, b, sizes):
    """The definition, of rows."""
    d, at = np.zeros((len(a), b.shape[2])), 0
    for i, size in enumerate(sizes):
        d[at : at + size] = a[at : at + size] @ b[i]
        at += size
    return d


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("d", [None, "f32"])
@pytest.mark.parametrize("k, n", [(64, 136), (264, 8), (200, 1), (72, 40), (8, 264)])
@pytest.mark.parametrize("rhs", ["gkn", "gnk", "kgn"])
def test_ragged_rows_are_exact(rhs, k, n, d, dtype):
    """What is behind the last group is zeros, whatever lies there; one program for all sizes."""
    a, b = whole((256, k)), whole((4, k, n), seed=1)
    right = on_device(np.ascontiguousarray(np.einsum(f"gkn->{rhs}", b)), dtype)
    call = partial(
        cj.ragged_dot_general, ragged_dot_dimension_numbers=dimensions("mk", rhs), preferred_element_type=d and NUMPY[d]
    )
    for sizes in SIZES:
        left = a.copy()
        left[sum(sizes) :] = np.nan
        found = run_ragged(call, on_device(left, dtype), right, numbers_of(sizes))
        assert found.dtype == NUMPY[d or dtype]
        np.testing.assert_array_equal(np.asarray(found, np.float64), rounded(ragged(a, b, sizes), d or dtype))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("m, n", [(64, 136), (264, 8), (72, 40)])
@pytest.mark.parametrize("lhs, rhs", [("km", "kn"), ("mk", "nk")])
def test_ragged_depths_are_exact(lhs, rhs, m, n, dtype):
    """Empty groups have zeros."""
    a, b = whole((256, m)), whole((256, n), seed=1)
    call = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=dimensions(lhs, rhs))
    for sizes in SIZES:
        ends = np.cumsum([0, *sizes])
        x, y = a.copy(), b.copy()
        x[ends[-1] :] = y[ends[-1] :] = np.nan
        given = [on_device(np.ascontiguousarray(z if s[0] == "k" else z.T), dtype) for z, s in ((x, lhs), (y, rhs))]
        found = run_ragged(call, *given, numbers_of(sizes))
        wanted = np.stack([a[i:j].T @ b[i:j] for i, j in zip(ends, ends[1:], strict=False)])
        np.testing.assert_array_equal(np.asarray(found, np.float64), rounded(wanted, dtype))


def test_a_ragged_batch_is_gemm():
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (1,)), ((0,), (0,))), (0,), ())
    a, b = whole((6, 40, 64)), whole((6, 64, 72), seed=1)
    call = partial(cj.ragged_dot_general, ragged_dot_dimension_numbers=numbers)
    found = run(call, on_device(a, "bf16"), on_device(b, "bf16"), numbers_of([2, 4]))
    np.testing.assert_array_equal(np.asarray(found, np.float64), rounded(a @ b, "bf16"))


@pytest.mark.parametrize("d", [None, "float32"])
def test_gradients_of_ragged_dots(d):
    """Once, and twice, by grouped kernels; of lines that belong to nobody they are zeros."""
    a, b = normal((256, 64)), normal((4, 64, 136), seed=1)

    def loss(a, b, sizes):
        return jnp.sin(cj.ragged_dot(a, b, sizes, preferred_element_type=d).astype(jnp.float32)).sum()

    def twice(a, b, sizes):
        return sum((x.astype(jnp.float32) ** 2).sum() for x in jax.grad(loss, (0, 1))(a, b, sizes))

    for sizes in map(numbers_of, SIZES):
        found = run_ragged(jax.grad(loss, (0, 1)), a, b, sizes, products=3)
        assert_close(found, on_host(jax.grad(loss, (0, 1)), a, b, sizes), 3e-2)
        assert not np.asarray(found[0])[int(sizes.sum()) :].any()
        again = jax.jit(jax.grad(twice, (0, 1)))(a, b, sizes)
        assert_close(again, on_host(jax.grad(twice, (0, 1)), a, b, sizes), 6e-2)


def test_numbers_that_change_between_calls_of_one_program():
    a, b = whole((256, 64)), whole((4, 64, 136), seed=1)
    call, given = jax.jit(cj.ragged_dot), (on_device(a, "bf16"), on_device(b, "bf16"))
    found = [call(*given, numbers_of(sizes)) for _ in range(5) for sizes in SIZES]
    for x, sizes in zip(found, SIZES * 5, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float64), ragged(a, b, sizes))
    assert call._cache_size() == 1
    for sizes, same in (((-3, 70, 300, 9), (0, 70, 186, 0)), ((2**31 - 1,) * 4, (256, 0, 0, 0))):  # cut off
        np.testing.assert_array_equal(np.asarray(call(*given, numbers_of(sizes)), np.float64), ragged(a, b, same))


def test_ragged_dots_wait_for_nothing():
    """Numbers that the device is long in finding: the host is done before they are there."""

    @jax.jit
    def slow(x, sizes):
        return sizes + (jax.lax.fori_loop(0, 200, lambda _, y: y @ y / 4096, x)[0, 0] < 0)

    busy, call = jnp.ones((4096, 4096), jnp.float32), jax.jit(cj.ragged_dot)
    a, b, sizes = normal((256, 64)), normal((4, 64, 136)), numbers_of(SIZES[0])
    jax.block_until_ready(call(a, b, slow(busy, sizes)))
    late = slow(busy, sizes)
    found = call(a, b, late)
    assert not late.is_ready() and not found.is_ready()
    assert_close(found, on_host(cj.ragged_dot, a, b, sizes), 2e-2)


def test_ragged_dots_take_no_memory_for_each_group():
    a, b, sizes = normal((4096, 512)), normal((64, 512, 512)), numbers_of([64] * 64)
    gradient = jax.grad(lambda a, b: cj.ragged_dot(a, b, sizes).astype(jnp.float32).sum(), (0, 1))
    assert jax.jit(gradient).lower(a, b).compile().memory_analysis().temp_size_in_bytes < 2 * 4096 * 512 * 4


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)])
def test_vmap_of_ragged_dots(axes):
    a, b, sizes = normal((3, 256, 64)), normal((3, 4, 64, 136)), numbers_of([SIZES[0], SIZES[2], SIZES[3]])
    given = [x if axis == 0 else x[0] for x, axis in zip((a, b, sizes), axes, strict=True)]
    call = jax.vmap(cj.ragged_dot, axes)
    assert_close(run_ragged(call, *given), on_host(call, *given), 2e-2)


def test_a_mixture_of_experts():
    """Routed, forward and back, as its every expert computes it for every token."""
    x, up, down = normal((512, 64)), normal((8, 64, 128)), normal((8, 128, 64), seed=2)
    chosen = jnp.asarray(np.random.default_rng(0).integers(0, 8, 512))

    def routed(x, up, down):
        order, sizes = jnp.argsort(chosen), jnp.bincount(chosen, length=8)
        h = jax.nn.silu(cj.ragged_dot(x[order], up, sizes) / 8)
        return cj.ragged_dot(h, down, sizes)[jnp.argsort(order)]

    def every(x, up, down):
        h = jax.nn.silu(jnp.einsum("td,edh->eth", x, up) / 8)
        return jnp.einsum("eth,ehd->etd", h, down)[chosen, jnp.arange(512)]

    of = lambda f: jax.grad(lambda *y: (f(*y).astype(jnp.float32) ** 2).mean(), (0, 1, 2))  # noqa: E731
    assert_close(run_ragged(routed, x, up, down, products=2), on_host(every, x, up, down), 4e-2)
    assert_close(run_ragged(of(routed), x, up, down, products=6), on_host(of(every), x, up, down), 6e-2)


RAGGED = """
import jax, jax.numpy as jnp, numpy as np, cutlass_py.jax as cj
x = np.random.default_rng(0).integers(-1, 2, (128, 64)).astype(np.float32)
w = np.random.default_rng(1).integers(-1, 2, (4, 64, 64)).astype(np.float32)
a, b = jnp.asarray(x, "bfloat16"), jnp.asarray(w, "bfloat16")

def step(h, sizes):
    return jnp.clip(cj.ragged_dot(h, b, sizes), -1, 1) + a, jnp.roll(sizes, 1) + jnp.array([1, 0, 0, -1])

def looped(sizes):
    return jax.lax.while_loop(lambda s: s[0] < 30, lambda s: (s[0] + 1, *step(*s[1:])), (0, a, sizes))[1]

def scanned(sizes):
    return jax.lax.scan(lambda s, _: (step(*s), None), (a, sizes), None, length=30)[0][0]

for first in ([30, 30, 30, 30], [0, 64, 32, 31], [1, 2, 3, 4]):
    h, sizes = x, np.array(first)
    for _ in range(30):
        d, at = np.zeros((128, 64), "f4"), 0
        for i, size in enumerate(np.maximum(sizes, 0)):
            d[at : at + size] = h[at : at + size] @ w[i]
            at += size
        h, sizes = np.clip(d, -1, 1) + x, np.roll(sizes, 1) + [1, 0, 0, -1]
    for call in (scanned, looped):
        compiled = jax.jit(call).lower(jnp.asarray(first, "int32")).compile()
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(compiled(jnp.asarray(first, "int32")), "f4"), h)
print("done")
"""


@pytest.mark.parametrize("recorded", ["", "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CONDITIONAL,WHILE"])
def test_ragged_dots_with_and_without_command_buffers(recorded):
    """Whose numbers change from step to step: while a graph is recorded nothing may be waited for."""
    flags = f"--xla_gpu_enable_command_buffer={recorded} --xla_gpu_graph_min_graph_size=1"
    environment = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run([sys.executable, "-c", RAGGED], capture_output=True, text=True, env=environment)
    assert done.stdout == "done\n", done.stderr


def test_experts_on_several_devices(request):
    """Each device has half of the experts, and its tokens first; the rest of its result is zeros."""
    spec = jax.sharding.PartitionSpec
    a, b, sizes = normal((256, 64)), normal((4, 64, 136)), numbers_of(SIZES[0])

    def local(a, b, sizes):
        at = jax.lax.axis_index("x") * 2
        begin = jnp.where(jnp.arange(4) < at, sizes, 0).sum()
        d = cj.ragged_dot(jnp.roll(a, -begin, 0), b, jax.lax.dynamic_slice(sizes, (at,), (2,)))
        return jax.lax.psum(jnp.roll(d, begin, 0), "x")

    devices = request.getfixturevalue("mesh")
    divided = jax.shard_map(local, mesh=devices, in_specs=(spec(), spec("x"), spec()), out_specs=spec())
    of = lambda f: jax.grad(lambda a, b: jnp.sin(f(a, b, sizes).astype(jnp.float32)).sum(), (0, 1))  # noqa: E731
    assert_close(jax.jit(divided)(a, b, sizes), on_host(cj.ragged_dot, a, b, sizes), 2e-2)
    assert_close(jax.jit(of(divided))(a, b), on_host(of(cj.ragged_dot), a, b), 4e-2)
