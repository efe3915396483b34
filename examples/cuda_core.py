"""cuda.core: memory and a stream without a framework, a GEMM on that stream, and its result as a view again."""

import sys

import numpy as np

import cutlass_py

try:
    from cuda.core import Device, LegacyPinnedMemoryResource
    from cuda.core.utils import StridedMemoryView
except ImportError:
    print("cuda_core: cuda.core is not installed")
    sys.exit()
try:
    device = Device()
    device.set_current()
except Exception as error:  # of the driver, or that there is none: each has a type of its own
    print(f"cuda_core: cuda.core finds no GPU ({error})")
    sys.exit()

stream = device.create_stream()
pinned = LegacyPinnedMemoryResource()


def view(shape, dtype):
    dtype = np.dtype(dtype)
    memory = device.allocate(int(np.prod(shape)) * dtype.itemsize, stream=stream)
    return memory, StridedMemoryView.from_buffer(memory, shape, dtype=dtype)


def to_device(array):
    memory, seen = view(array.shape, array.dtype)
    staged = pinned.allocate(array.nbytes)
    np.from_dlpack(staged).view(array.dtype).reshape(array.shape)[...] = array
    memory.copy_from(staged, stream=stream)
    stream.sync()  # before the staged copy goes
    return seen


def to_host(memory, shape, dtype):
    staged = pinned.allocate(memory.size)
    memory.copy_to(staged, stream=stream)
    stream.sync()
    return np.from_dlpack(staged).view(dtype).reshape(shape).copy()


rng = np.random.default_rng(0)
a, b = rng.standard_normal((256, 384)).astype(np.float16), rng.standard_normal((384, 128)).astype(np.float16)
exact = a.astype(np.float64) @ b.astype(np.float64)

# Memory of cuda.core has no current stream: say on which one the product runs, and it is in order with what is there.
x, y = to_device(a), to_device(b)
memory, out = view(exact.shape, np.float32)
cutlass_py.gemm(x, y, out=out, stream=stream)
found = to_host(memory, exact.shape, np.float32)
print("f16 -> f32   ", found.dtype, float(np.abs(found - exact).max()))

# Without `out` the result is memory of this package, which cuda.core sees like any other.
product = cutlass_py.gemm(x, y, c=out, beta=-1.0, out_dtype="f32", stream=stream)
seen = StridedMemoryView.from_any_interface(product, stream_ptr=int(stream.handle))
print("f32 - f32    ", type(product).__name__, seen.shape, "on device", seen.device_id)

# bfloat16 goes by its bits: cuda.core names that dtype, and hands nothing of it over.
bits = [(v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for v in (a, b)]
cutlass_py.gemm(*(cutlass_py.view(to_device(v), "bf16") for v in bits), out=out, stream=stream)
print("bf16 -> f32  ", float(np.abs(to_host(memory, exact.shape, np.float32) - exact).max()))
