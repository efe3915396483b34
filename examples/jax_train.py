"""JAX: an MLP in bf16 trains for 100 steps under jit, by cutlass_py's gemms and by XLA's, from the same start."""

import os
import sys
import time

import cutlass_py

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
except ImportError:
    print("jax_train: JAX is not installed")
    sys.exit()
import jax.numpy as jnp

import cutlass_py.jax

on_gpu = jax.default_backend() == "gpu"
rows, width, hidden, steps = (8192, 2048, 8192, 100) if on_gpu else (256, 32, 64, 100)
rate = 0.1 / width
print("on", jax.devices()[0].device_kind, f"({rows} rows, {width} -> {hidden} -> {width})")


def layer(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5, jnp.zeros(outputs)


keys = jax.random.split(jax.random.key(0), 6)
start = [layer(keys[0], width, hidden), layer(keys[1], hidden, width)]
teacher = [layer(keys[2], width, hidden), layer(keys[3], hidden, width)]  # what is to be learnt
x = jax.random.normal(keys[4], (rows, width)).astype(jnp.bfloat16)


def by_xla(x, layers):
    for weight, bias in layers[:-1]:
        x = jax.nn.gelu(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def in_bf16(layers):
    return jax.tree.map(lambda y: y.astype(jnp.bfloat16), layers)


def train(mlp):
    """The losses of all steps, and the seconds of one. Weights and moments are kept in f32 (Adam)."""

    def loss_of(layers, x, y):
        return jnp.mean((mlp(x, in_bf16(layers)).astype(jnp.float32) - y) ** 2)

    def step(state, x, y, count):
        layers, first, second = state
        loss, gradients = jax.value_and_grad(loss_of)(layers, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)

        def moved(w, m, v):
            return w - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

        return (jax.tree.map(moved, layers, first, second), first, second), loss

    step = jax.jit(step, donate_argnums=0)
    y = by_xla(x.astype(jnp.float32), teacher)
    zeros = jax.tree.map(jnp.zeros_like, start)
    state = jax.tree.map(jnp.copy, (start, zeros, zeros))
    losses = []
    for count in range(1, steps + 1):
        if count == 2:  # the first step compiles
            jax.block_until_ready(state)
            began = time.perf_counter()
        state, loss = step(state, x, y, float(count))
        losses.append(loss)
    jax.block_until_ready(state)
    seconds = (time.perf_counter() - began) / (steps - 1)
    return [float(loss) for loss in losses], seconds


ours, seconds = train(lambda x, layers: cutlass_py.jax.mlp(x, layers, activation="gelu_tanh"))
theirs, stock = train(by_xla)
for count in (0, 9, 49, steps - 1):
    print(f"step {count + 1:3}   loss {ours[count]:.5f}   by XLA {theirs[count]:.5f}")
worst = max(abs(p - q) / q for p, q in zip(ours, theirs, strict=True))
print(f"curves differ by {worst:.1%} at most; {seconds * 1e3:.2f} ms a step, by XLA {stock * 1e3:.2f} ms")
if not ours[-1] < ours[0] / 2 or worst > 0.05:
    sys.exit("jax_train: the loss does not fall as it should")
