# %% [markdown]
# # A kernel of your own
#
# A kernel that this package does not have can join those that it has: it is then listed, filtered, asked, explained,
# tuned and chosen like any other, and taken back without a trace (only plans that you hold go on). There are three
# ways to bring one:
#
# | what you have | how it is registered |
# |---|---|
# | a Python function that computes a call, or launches something that does | `register_kernel(metadata, function)` |
# | a family of those: CuTe DSL, Triton, anything that Python can start | `register_provider(provider)` |
# | CUDA C++, or a CUTLASS type | `register_kernel(CudaKernel(...))`, compiled on demand |
#
# This notebook runs everywhere: the first two on the CPU, with NumPy; the third, and a provider of kernels in CuTe DSL,
# are compiled and run where there is a GPU.

# %%
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import cutlass_py
from cutlass_py import Design, GemmArguments, KernelMetadata, OperandMetadata, Status

names_before = [kernel.name for kernel in cutlass_py.get_kernels(compiled=False)]

# %% [markdown]
# ## The smallest one: a function
#
# Metadata say what the kernel computes: dtypes of the operands and of the sum, where it runs, and the formula that it
# has fused. Layouts and alignments are free unless they are named. This one multiplies f64 on the CPU and applies a
# factor, no more.

# %%
operand = OperandMetadata("f64")
careful = KernelMetadata(
    "careful_product",
    operands={"a": operand, "b": operand, "d": operand},
    accumulator="f64",
    epilogue="linear",  # alpha * acc
    cc=(0, 0),  # the CPU
)

# %% [markdown]
# The function gets the call in canonical form: operands of three axes (batch, rows, columns), of any strides, that
# speak DLPack and are valid until it returns. It writes `d`. Here: sums in NumPy's longest float, rounded once.


# %%
def sum_carefully(call):
    a, b, d = map(np.asarray, (call.a, call.b, call.d))
    d[...] = call.alpha * np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))


registration = cutlass_py.register_kernel(careful, sum_carefully)
registration.kernels

# %% [markdown]
# From here on it is a kernel like the others. Asked for by name, `gemm` runs it, after all of its usual checks:

# %%
rng = np.random.default_rng(0)
a, b = rng.standard_normal((200, 1000)), rng.standard_normal((1000, 100))
d = cutlass_py.gemm(a, b, kernel="careful_product")
exact = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
for title, product in (("careful", d), ("NumPy", a @ b)):
    print(f"{title:8}{float(abs(product - exact).max()):.1e}")
assert abs(d - exact).max() <= abs(a @ b - exact).max()

# %% [markdown]
# It is never asked for what its metadata do not promise. The reasons read like those of any kernel:

# %%
kernel = registration.kernels[0]
for asked in (
    GemmArguments(a, b),
    GemmArguments(a, b, bias=np.ones(100)),
    GemmArguments(a.astype("f4"), b.astype("f4")),
):
    print(asked, "->", kernel.supports(asked).error or "yes")
assert kernel.supports(GemmArguments(a, b)) and not kernel.supports(GemmArguments(a, b, bias=np.ones(100)))

# %% [markdown]
# ## Its place in the order
#
# A kernel that does not say how long it takes stands behind all that do: it is taken where nothing else fits, where it
# is asked for by name, or where `tune` has measured it to be the fastest. One with an estimate, in microseconds,
# competes by it.

# %%
args = GemmArguments(a, b)
print([found.name for found in cutlass_py.get_kernels(args)])
registration.unregister()
with cutlass_py.register_kernel(careful, sum_carefully, estimate=lambda problem: 1e-3 * problem.m * problem.n):
    ranked = [found.name for found in cutlass_py.get_kernels(args)]
    print(ranked)
    print(cutlass_py.explain(args))
assert "careful_product" in ranked

# %% [markdown]
# The registration is also a context: at its end the kernel is gone, its name is free, and plans that used it are
# forgotten.

# %%
try:
    cutlass_py.gemm(a, b, kernel="careful_product")
except ValueError as error:
    print(error)
else:
    raise AssertionError("it is still there")

# %% [markdown]
# ## Several kernels: a provider
#
# Where one implementation has several configurations, keep two things apart: the implementation knows how to multiply;
# the provider knows which kernels there are, what each of them takes, and how to start one. The implementation here
# goes through D in tiles.


# %%
class Tiled:
    """D = alpha * A @ B, a tile of D at a time."""

    def __init__(self, rows, cols):
        self.rows, self.cols = rows, cols

    def __call__(self, a, b, d, alpha):
        for i in range(0, d.shape[1], self.rows):
            for j in range(0, d.shape[2], self.cols):
                d[:, i : i + self.rows, j : j + self.cols] = alpha * (
                    a[:, i : i + self.rows] @ b[:, :, j : j + self.cols]
                )


# %% [markdown]
# The provider has two methods at least. `kernels` is asked once, at registration. `run` may build what it needs at the
# first call of a kernel, as a compiler would; `compile`, which `kernel.compile()` asks, does so ahead of calls (a CUDA
# graph captures no compiling). Memory beside the operands is `run`'s to allocate. `supports` adds a condition that
# metadata cannot express: here, no lone vectors.


# %%
class TiledProvider(cutlass_py.Provider):
    name = "tiled"
    tiles = ((32, 32), (64, 128))

    def __init__(self):
        self.built = {}

    def kernels(self):
        for rows, cols in self.tiles:
            yield KernelMetadata(
                f"tiled_dgemm_{rows}x{cols}",
                operands={"a": operand, "b": operand, "d": operand},
                accumulator="f64",
                epilogue="linear",
                family="tiled_dgemm",
                design=Design(tile=(rows, cols, 1)),
                cc=(0, 0),
            )

    def supports(self, kernel, problem):
        if problem.m == 1 or problem.n == 1:
            return Status(f"multiplies matrices; found a vector ({problem.m} x {problem.n} results)")
        return super().supports(kernel, problem)

    def compile(self, kernel):
        self.built.setdefault(kernel.name, Tiled(*kernel.design.tile[:2]))

    def run(self, kernel, call):
        self.compile(kernel)
        self.built[kernel.name](*map(np.asarray, (call.a, call.b, call.d)), call.alpha)


tiled = cutlass_py.register_provider(TiledProvider())
tiled.kernels

# %% [markdown]
# Discovery finds them by what they are, with arguments or without:

# %%
ours = cutlass_py.get_kernels(args, where=lambda meta: meta.family == "tiled_dgemm")
for found in ours:
    product = found.run(args)
    print(found.name, found.metadata.design.tile, f"{abs(product - a @ b).max():.1e}")
    assert np.allclose(product, a @ b)
assert len(ours) == 2
assert not cutlass_py.get_kernels(args, where=lambda meta: meta.family == "tiled_dgemm" and meta.design.tile[0] == 256)
print(ours[0].supports(GemmArguments(a[0], b)).error)

# %% [markdown]
# `gemm` around it does the rest: batches, broadcasting, strided and transposed operands, a column-major result.

# %%
batch = rng.standard_normal((3, 40, 70))
out = np.empty((3, 50, 40)).transpose(0, 2, 1)
cutlass_py.gemm(batch, b[:70, :50], out=out, alpha=0.5, kernel=ours[1])
assert np.allclose(out, 0.5 * batch @ b[:70, :50])

# %% [markdown]
# A failure inside is reported under the provider's name; the call leaves nothing behind.

# %%
tiled.unregister()

# %% [markdown]
# ## CUDA C++
#
# A `CudaKernel` is source text and a declaration: the family of the package that it belongs to (its CUTLASS generation,
# the GPUs that run it), dtypes, layouts, tile. For a CUTLASS device type that is all; a kernel written by hand defines
# the struct of `kernel.h`. Below: f64 on the CUDA cores, with tiles that no built kernel has.

# %%
dgemm = cutlass_py.CudaKernel(
    "simt_dgemm_128x64",
    family="simt_gemm",
    a="f64",
    layout="tt",
    tile=(128, 64, 8),
    warp=(32, 32, 8),
    stages=2,
    align=1,
    align_d=1,
    epilogue="linearc",
    source="""
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/device/gemm_universal.h"

using Rows = cutlass::layout::RowMajor;
using Scaled = cutlass::epilogue::thread::LinearCombination<double, 1, double, double>;
using Order = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<>;
""",
    device_type="""cutlass::gemm::device::GemmUniversal<
    double, Rows, double, Rows, double, Rows, double, cutlass::arch::OpClassSimt, cutlass::arch::Sm80,
    cutlass::gemm::GemmShape<128, 64, 8>, cutlass::gemm::GemmShape<32, 32, 8>, cutlass::gemm::GemmShape<1, 1, 1>,
    Scaled, Order, 2, 1, 1>""",
)
brought = cutlass_py.register_kernel(dgemm)
kernel = brought.kernels[0]
kernel

# %% [markdown]
# It is declared now, not compiled; questions are answered all the same. `get_kernels(args, compiled=False)` has it
# beside the package's own.

# %%
spec = cutlass_py.TensorSpec((512, 512), "f64")
asked = GemmArguments(spec, spec, c=spec)
print(kernel.supports(asked))
print([found.name for found in cutlass_py.get_kernels(asked, compiled=False)])
assert kernel in cutlass_py.get_kernels(asked, compiled=False)

# %% [markdown]
# Asked for by name, it is compiled, with the package's flags and into the same cache on disk (docs/jit.md). Then the
# facts of the C++ type are compared with the declaration. Where there is a GPU:

# %%
try:
    import torch

    on_gpu = torch.cuda.is_available() and bool(cutlass_py.get_kernels(cc=torch.cuda.get_device_capability()[0] * 10))
except ImportError:
    on_gpu = False
if on_gpu:
    x, y, z = (torch.randn(512, 512, dtype=torch.float64, device="cuda") for _ in range(3))
    d = cutlass_py.gemm(x, y, c=z, beta=2.0, kernel=kernel)
    torch.testing.assert_close(d, x @ y + 2 * z)
    print("compiled to", kernel.compile())
else:
    print("no GPU here: declared, asked, not compiled")

# %% [markdown]
# ## CuTe DSL
#
# `examples/own_cute_dsl.py` has a provider of two f64 kernels in CuTe DSL. Where that is installed
# (`pip install nvidia-cutlass-dsl`), they are found and asked; where there is a GPU too, compiled and run.

# %%
if find_spec("nvidia_cutlass_dsl"):
    here = Path(globals().get("__file__", "own_kernel.py")).resolve()  # a notebook has no file
    sys.path.append(str(here.parents[2] / "examples"))
    from own_cute_dsl import CuteDsl

    with cutlass_py.register_provider(CuteDsl()) as dsl:
        plain = GemmArguments(spec, spec)
        found = cutlass_py.get_kernels(plain, where=lambda meta: meta.family == "cute_dgemm")
        print(found, "with c:", found[0].supports(asked).error)
        assert found == list(dsl.kernels)
        for kernel in found if on_gpu else ():
            kernel.compile()
            torch.testing.assert_close(cutlass_py.gemm(x, y, kernel=kernel), x @ y)
            print(kernel.name, "was compiled and run")
else:
    print("CuTe DSL is not installed")

# %% [markdown]
# ## Without a trace

# %%
brought.unregister()
assert [found.name for found in cutlass_py.get_kernels(compiled=False)] == names_before

# %% [markdown]
# The same in Triton: `examples/own_triton.py`. docs/providers.md has the rules: threads, streams, graphs, errors, and
# what a kernel written by hand must define.
