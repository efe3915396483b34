# %% [markdown]
# # Basic GEMM
#
# `cutlass_py.gemm(a, b)` chooses a kernel and launches it. This notebook takes the same call apart: describe the
# operation, find the kernels that can do it, ask one of them why or why not, compile it, run it by hand, and prepare it
# to run again.
#
# All of it runs everywhere. Questions about a GPU need none; arrays are multiplied on an NVIDIA GPU through torch where
# there is one, otherwise on the CPU through NumPy.

# %%
import numpy as np

import cutlass_py

try:
    import torch

    on_gpu = torch.cuda.is_available() and bool(cutlass_py.get_kernels(cc=torch.cuda.get_device_capability()[0] * 10))
except ImportError:
    on_gpu = False
print("on", torch.cuda.get_device_name() if on_gpu else "the CPU")

# %% [markdown]
# ## An operation as a value
#
# `GemmArguments` holds what `gemm` would be called with: operands, destination, and every keyword of the epilogue. An
# operand is an array, or a `TensorSpec`: shape, dtype and, where it is not row-major, strides. A spec has no memory and
# its device need not exist, so what follows can be asked on any machine. Here: two products of a batch, in f16 with a
# result in f32, of activations times weights that are stored as (n, k).

# %%
batch, m, n, k = 2, 2048, 14336, 4096


def described(k, dtype):
    """The operation for a depth and a dtype."""
    x = cutlass_py.TensorSpec((batch, m, k), dtype)
    weight = cutlass_py.TensorSpec((batch, k, n), dtype, strides=(n * k, 1, k))
    return cutlass_py.GemmArguments(x, weight, out=cutlass_py.TensorSpec((batch, m, n), "f32"))


args = described(k, "f16")
args

# %% [markdown]
# Two letters say how A and B lie: `t` row-major, `n` column-major. The canonical problem has the rest, and is all that
# a choice of kernel depends on.

# %%
problem = args.problem
print(problem.batch, "x", problem.m, problem.n, problem.k, "summed in", problem.accumulator)
print("layouts", problem.layout_a + problem.layout_b)

# %% [markdown]
# ## Finding kernels
#
# Without arguments `get_kernels` lists what is there. A package holds a hundred to a thousand compiled kernels (only
# NumPy's, if it was built without CUDA), and declares thousands that can be compiled on demand.

# %%
declared = cutlass_py.get_kernels(compiled=False)
print(len(cutlass_py.get_kernels()), "kernels to run at once,", len(declared), "declared")

# %% [markdown]
# With arguments it gives those that read the operands in place, best first: in the order in which `gemm` would take
# them, by the model of `cost.py`, or by what `tune` has measured.

# %%
kernels = cutlass_py.get_kernels(args, compiled=False)
print(len(kernels), "of them fit; the best:")
for kernel in kernels[:3]:
    print(" ", kernel.name)

# %% [markdown]
# A name reads from general to particular: the family, dtypes of A, B, the sum and D, layouts, tile, cluster, schedule,
# epilogue. The same is there as data, typed: `operands` decide what a kernel can do, `design` how fast, `epilogue` is a
# formula, and `fused` has its name and parts.

# %%
best = kernels[0]
print(best.metadata.design)
print(best.metadata.operands["a"], "...", best.metadata.epilogue, "...", best.metadata.fused.name)

# %% [markdown]
# `where` filters by metadata, with arguments or without; `cc` by compute capability.

# %%
square = cutlass_py.get_kernels(args, where=lambda meta: meta.design.tile[:2] == (128, 128), compiled=False)
print(len(square), "with tiles of 128x128")
portable = cutlass_py.get_kernels(args, cc=80, compiled=False)
print(len(portable), "also run on Ampere, such as", portable[0].name)
doubles = cutlass_py.get_kernels(where=lambda meta: meta.operands and meta.operands["a"].dtype == "f64", compiled=False)
print(len(doubles), "multiply f64")
assert square and portable and doubles and not set(doubles) & set(kernels)

# %% [markdown]
# A predicate is a function of `KernelMetadata`. Kernels of all kinds have that one type: where another package asks
# for a class of metadata, ask for `api` (CUTLASS's generation; 0 for kernels that are not CUTLASS's), `family` or
# `design.schedule`.


# %%
def takes_turns(meta: cutlass_py.KernelMetadata) -> bool:
    """3.x kernels for f16 with 128 rows in a tile, two warpgroups of which take turns."""
    if meta.api != 3 or meta.operands["a"].dtype != "f16":
        return False
    return meta.design.tile[0] == 128 and meta.design.schedule.startswith("pingpong")


found = cutlass_py.get_kernels(where=takes_turns, compiled=False)
print(len(found), "in all,", len(cutlass_py.get_kernels(args, where=takes_turns, compiled=False)), "of them fit")
assert found

# %% [markdown]
# ## Asking one
#
# `supports` answers with a `Status`: true, or an `error` that says what was found and what the kernel expects.

# %%
odd = described(k + 1, "f16")
other = described(k, "bf16")  # the kernel is for f16
for asked in (args, odd, other):
    status = best.supports(asked)
    print(bool(status), status.error)
assert best.supports(args) and not best.supports(odd) and not best.supports(other)

# %% [markdown]
# `explain` asks all of them. It says what `gemm` does, which need not be a single launch on the operands in place: it
# may pack one of them first, split k, or finish the result in the elementwise kernel. Within `jit()` it considers all
# declared kernels, otherwise only compiled ones.

# %%
with cutlass_py.jit():
    print(cutlass_py.explain(odd))

# %% [markdown]
# ## Running one by hand
#
# From here on there are arrays. `arrays` makes them where this notebook runs; the calls are the same.


# %%
def arrays(rows, cols, depth):
    """Random operands in f16 and a destination in f32, small integers so that every sum is exact."""
    rng = np.random.default_rng(rows)
    x, weight = (rng.integers(-2, 3, (2, extent, depth)).astype(np.float16) for extent in (rows, cols))
    out = np.zeros((2, rows, cols), np.float32)
    x, weight, out = (torch.from_numpy(array).cuda() for array in (x, weight, out)) if on_gpu else (x, weight, out)
    return x, weight.swapaxes(1, 2), out


a, b, out = arrays(256, 192, 128)
args = cutlass_py.GemmArguments(a, b, out=out)
kernel = cutlass_py.get_kernels(args)[0]
kernel

# %%
returned = kernel.run(args)
assert returned is out and bool((out == a @ b).all())

# %% [markdown]
# `run` compiles the kernel first if it is not there. To do that ahead of time, and to see where the machine code is,
# ask for the artifact. Compiling takes tens of seconds, once; the cache on disk keeps it (docs/jit.md).

# %%
artifact = kernel.compile(args)
artifact

# %%
out[...] = 0
kernel.run(args, artifact)
assert bool((out == a @ b).all())

# %% [markdown]
# The stream is the framework's current one, unless `stream=` gives another, beside the artifact or without. Then
# ordering the streams is up to you.

# %%
out[...] = 0
if on_gpu:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    kernel.run(args, artifact, stream=side)
    torch.cuda.current_stream().wait_stream(side)
else:
    kernel.run(args, artifact, stream=None)  # the CPU has no streams
assert bool((out == a @ b).all())

# %% [markdown]
# Some calls need memory beside their operands: for the parts of a k that is split, for instance. It comes from a pool
# of this package, unless you give it yourself. Most kernels need none, and the CPU never does.

# %%
split = cutlass_py.GemmArguments(a, b, out=out, splits=4)
splitting = cutlass_py.get_kernels(split)[0]
size = splitting.workspace_size(split)
print(splitting.name, "needs", size, "bytes")
if on_gpu:
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
    splitting.run(split, workspace=workspace)
    assert size > 0 and bool((out == a @ b).all())

# %% [markdown]
# ## Again, with other arrays
#
# Arguments are values: `replace` gives the same operation on other operands, checked anew.

# %%
a2, b2, out2 = arrays(64, 192, 128)
kernel.run(args.replace(a=a2, out=out2))
assert bool((out2 == a2 @ b).all())

# %% [markdown]
# Where shapes stay the same, a plan settles everything once: legality, choice, launch. Calling it checks only that the
# new arrays are like the first ones, and launches. For an array that is left out, it uses the one it was made with. A
# plan is what this package has in place of `assume_supported_args`: nothing is assumed, and little is checked again.

# %%
plan = kernel.plan(args)
a3, b3, out3 = arrays(256, 192, 128)
plan(a3, b3, out3)
assert bool((out3 == a3 @ b3).all())

# %% [markdown]
# An array of another shape is refused by name. Nothing is launched then.

# %%
try:
    plan(a2, b3, out3)
except ValueError as error:
    print(error)
else:
    raise AssertionError("a plan took an array of another shape")

# %% [markdown]
# ## All of it in one call
#
# `gemm` does every step above, and remembers the choice for each class of problems. `kernel=` makes the choice yours.

# %%
assert bool((cutlass_py.gemm(a, b) == a @ b).all())
assert cutlass_py.gemm(a, b, out=out, kernel=kernel) is out

# %% [markdown]
# docs/discovery.md has the rules. Next: let the GPU order the kernels instead of the model (docs/tuning.md), or have
# one compiled for an epilogue that no built kernel has (docs/jit.md).
