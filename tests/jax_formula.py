"""gemm's formula by jnp alone, with which cutlass_py.jax is compared, and arrays for both in f64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def normal(*shape, seed: int = 0, dtype="float64"):
    x = np.random.default_rng([seed, *shape]).standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * np.random.default_rng([seed + 1, *shape]).standard_normal(shape)
    return jnp.asarray(x, dtype)


FUNCTIONS = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "hardswish": jax.nn.hard_swish,
    "d_gelu_tanh": jax.vmap(jax.grad(jax.nn.gelu)),
    "d_silu": jax.vmap(jax.grad(jax.nn.silu)),
    "d_sigmoid": jax.vmap(jax.grad(jax.nn.sigmoid)),
}


def formula(a, b, layout="tt", c=0.0, alpha=1.0, beta=1.0, bias=0.0, activation=None, gate=None, aux=None, scale_a=1.0,
            scale_b=1.0, scale_out=1.0):  # fmt: skip
    """gemm's formula by jnp alone."""
    a, b = (jnp.swapaxes(x, -1, -2) if lies == "n" else x for x, lies in zip((a, b), layout, strict=True))
    z = alpha * scale_a * scale_b * (a @ b) + beta * c + bias
    if aux is not None:
        return scale_out * z * FUNCTIONS[activation](aux.ravel()).reshape(aux.shape)
    return scale_out * (FUNCTIONS[activation](z) if gate is None else z * FUNCTIONS[activation](gate))
