"""JAX: a mixture of experts in bf16 trains for 100 steps, by ragged_dot and by dense products of every expert."""

import os
import sys
import time

import cutlass_py

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
except ImportError:
    print("jax_moe: JAX is not installed")
    sys.exit()
import jax.numpy as jnp

import cutlass_py.jax

on_gpu = jax.default_backend() == "gpu"
tokens, width, hidden, experts, steps = (8192, 2048, 1024, 16, 100) if on_gpu else (256, 32, 32, 4, 100)
top, rate = 2, 0.1 / width
print("on", jax.devices()[0].device_kind, f"({tokens} tokens, {experts} experts, {width} -> {hidden} -> {width})")


def block(key):
    """Router, gate and value side by side, and the way back, of each expert."""
    keys = jax.random.split(key, 3)
    shapes = (width, experts), (experts, width, 2 * hidden), (experts, hidden, width)
    return [jax.random.normal(k, shape) / shape[-2] ** 0.5 for k, shape in zip(keys, shapes, strict=True)]


keys = jax.random.split(jax.random.key(0), 3)
start, teacher = block(keys[0]), block(keys[1])  # the second is to be learnt
start[0] = teacher[0]  # with the same experts for the same tokens
x = jax.random.normal(keys[2], (tokens, width)).astype(jnp.bfloat16)


def routed(x, router):
    """The shares of the best experts of each token, and which they are."""
    scores, chosen = jax.lax.top_k(x.astype(jnp.float32) @ router, top)
    return jax.nn.softmax(scores), chosen


def by_groups(x, router, up, down):
    shares, chosen = routed(x, router)
    order = jnp.argsort(chosen.ravel())  # tokens by their expert, each as often as it has experts
    sizes = jnp.bincount(chosen.ravel(), length=experts).astype(jnp.int32)
    z = cutlass_py.jax.ragged_dot(x[order // top], up, sizes)
    gate, value = jnp.split(z, 2, -1)
    y = cutlass_py.jax.ragged_dot(jax.nn.silu(gate) * value, down, sizes)
    return jnp.einsum("tcd,tc->td", y[jnp.argsort(order)].reshape(tokens, top, width), shares.astype(y.dtype))


def by_every_expert(x, router, up, down):
    shares, chosen = routed(x, router)
    of_expert = (jax.nn.one_hot(chosen, experts) * shares[..., None]).sum(1)  # 0 of those that were not chosen
    gate, value = jnp.split(jnp.einsum("td,edh->eth", x, up), 2, -1)
    y = jnp.einsum("eth,ehd->etd", jax.nn.silu(gate) * value, down)
    return jnp.einsum("etd,te->td", y, of_expert.astype(y.dtype))


def train(mixture):
    """The losses of all steps, and the seconds of one. Weights and moments are kept in f32 (Adam)."""

    def loss_of(weights, x, y):
        router, *others = weights
        return jnp.mean((mixture(x, router, *(w.astype(jnp.bfloat16) for w in others)).astype(jnp.float32) - y) ** 2)

    def step(state, x, y, count):
        weights, first, second = state
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)

        def moved(w, m, v):
            return w - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

        return (jax.tree.map(moved, weights, first, second), first, second), loss

    step = jax.jit(step, donate_argnums=0)
    y = jax.jit(by_every_expert)(x.astype(jnp.float32), *teacher)
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


ours, seconds = train(by_groups)
theirs, dense = train(by_every_expert)
for count in (0, 9, 49, steps - 1):
    print(f"step {count + 1:3}   loss {ours[count]:.5f}   by every expert {theirs[count]:.5f}")
worst = max(abs(p - q) for p, q in zip(ours, theirs, strict=True)) / theirs[0]  # a token may take another expert
print(f"curves differ by {worst:.2%} of the first loss")
print(f"{seconds * 1e3:.2f} ms a step, by every expert {dense * 1e3:.2f} ms")
if not ours[-1] < ours[0] / 2 or worst > 0.02:
    sys.exit("jax_moe: the loss does not fall as it should")
