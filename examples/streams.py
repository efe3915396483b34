"""Streams: the framework's current one, one given by stream=, and CUDA graphs."""

import sys

import cutlass_py

try:
    import torch
except ImportError:
    print("streams: torch is not installed")
    sys.exit()
if not torch.cuda.is_available():
    print("streams: no GPU, and streams are a matter of GPUs")
    sys.exit()

a, b = (torch.randn(1024, 1024, device="cuda").half() for _ in range(2))
out = torch.empty_like(a)
expected = a @ b


def check(title: str) -> None:
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected, atol=0.1, rtol=0.01)
    print(f"{title}: right")
    out.zero_()
    torch.cuda.synchronize()


# By default a call takes its place in the current stream of the operands' framework.
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    cutlass_py.gemm(a, b, out=out)
check("current stream")

# With stream= the launch waits for what the current stream holds already, and nothing waits for the launch: whoever
# reads the result elsewhere orders that, as with any explicit stream.
cutlass_py.gemm(a, b, out=out, stream=side)
torch.cuda.current_stream().wait_stream(side)
check("stream=")

# Capture: no allocation outlives the graph and nothing waits on the host. What must be compiled has to be there before.
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    cutlass_py.gemm(a, b, out=out)
graph.replay()
check("graph replay")

# Arrays of several frameworks in one call are ordered by events.
try:
    import cupy
except ImportError:
    print("CuPy is not installed: no mixed call")
else:
    cutlass_py.gemm(a, cupy.from_dlpack(b), out=out)
    check("torch and CuPy together")
