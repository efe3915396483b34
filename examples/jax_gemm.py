"""JAX, eagerly: arrays in, a new array out. (Inside of jax.jit there are no arrays to hand over.)"""

import os
import sys

import cutlass_py

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
except ImportError:
    print("jax_gemm: JAX is not installed")
    sys.exit()
import jax.numpy as jnp

key_x, key_w = jax.random.split(jax.random.key(0))
x = jax.random.normal(key_x, (256, 384)).astype(jnp.bfloat16)
w = jax.random.normal(key_w, (384, 128)).astype(jnp.bfloat16)

y = cutlass_py.gemm(x, w)
wide = jnp.matmul(x.astype(jnp.float32), w.astype(jnp.float32), precision="highest")
print("on", next(iter(y.devices())), type(y).__name__, y.dtype, y.shape)
print("error ", float(jnp.abs(y.astype(jnp.float32) - wide).max()))

# The result is a JAX array like any other.
print("f32   ", float(jax.jit(jnp.linalg.norm)(cutlass_py.gemm(x, w, out_dtype=jnp.float32) - wide)))

# JAX arrays are immutable: one cannot be `out`.
try:
    cutlass_py.gemm(x, w, out=y)
except TypeError as error:
    print("out=  ", error)
