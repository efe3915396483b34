"""A kernel of your own in CuTe DSL: an f64 GEMM for any strides (pip install nvidia-cutlass-dsl)."""

from __future__ import annotations

from collections.abc import Iterable

try:
    import cuda.bindings.driver as cuda
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_ptr
except ImportError as error:
    print(f"CuTe DSL is not installed: {error}")
    raise SystemExit from None
try:
    import torch
except ImportError:
    torch = None

import cutlass_py
from cutlass_py import (
    Design,
    GemmArguments,
    KernelCall,
    KernelMetadata,
    OperandMetadata,
    Problem,
    Provider,
    Status,
    TensorSpec,
)

# ---------------------------------------------------------------------------------------- the implementation


class Dgemm:
    """D = alpha * A @ B: each thread of a block sums one element of a tile of D."""

    def __init__(self, rows: int, cols: int) -> None:
        self.rows, self.cols = rows, cols

    @cute.jit
    def __call__(
        self,
        a: cute.Pointer,
        b: cute.Pointer,
        d: cute.Pointer,
        extents: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32, cutlass.Int32],
        strides_a: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
        strides_b: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
        strides_d: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
        alpha: cutlass.Float64,
        stream: cuda.CUstream,
    ):
        batch, m, n, k = extents
        tensor_a = cute.make_tensor(a, cute.make_layout((batch, m, k), stride=strides_a))
        tensor_b = cute.make_tensor(b, cute.make_layout((batch, k, n), stride=strides_b))
        tensor_d = cute.make_tensor(d, cute.make_layout((batch, m, n), stride=strides_d))
        self.kernel(tensor_a, tensor_b, tensor_d, alpha).launch(
            grid=(cute.ceil_div(m, self.rows), cute.ceil_div(n, self.cols), batch),
            block=(self.cols, self.rows, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, alpha: cutlass.Float64):
        down, across, batch = cute.arch.block_idx()
        x, y, _ = cute.arch.thread_idx()
        row, col = down * self.rows + y, across * self.cols + x
        if row < d.shape[1] and col < d.shape[2]:
            total = cutlass.Float64(0)
            for i in range(a.shape[2]):
                total += a[batch, row, i] * b[batch, i, col]
            d[batch, row, col] = alpha * total

    def compile(self):
        """For any extents and strides: all of them are arguments.

        Needs no GPU where CUTE_DSL_ARCH names one, from CuTe DSL 4.5 on.
        """
        return cute.compile(self, *_arguments([(0, (1, 1, 1))] * 3, (1, 1, 1, 1), 1.0, 0))


def _arguments(operands, extents, alpha: float, stream: int) -> list:
    """What Dgemm takes, of addresses with their strides and of numbers."""
    pointers = [make_ptr(cutlass.Float64, address, cute.AddressSpace.gmem, assumed_align=8) for address, _ in operands]
    strides = [tuple(map(cutlass.Int64, strides)) for _, strides in operands]
    return [*pointers, tuple(map(cutlass.Int32, extents)), *strides, cutlass.Float64(alpha), cuda.CUstream(stream)]


# ---------------------------------------------------------------------------------------- the interface


class CuteDsl(Provider):
    """One kernel for each tile."""

    name = "cute_dsl"
    tiles = ((16, 16), (8, 32))

    def __init__(self) -> None:
        self.compiled: dict[str, object] = {}

    def kernels(self) -> Iterable[KernelMetadata]:
        operand = OperandMetadata("f64", alignment=8)  # of any strides
        for rows, cols in self.tiles:
            yield KernelMetadata(
                f"cute_dgemm_{rows}x{cols}",
                operands={"a": operand, "b": operand, "d": operand},
                accumulator="f64",
                epilogue="linear",
                family="cute_dgemm",
                design=Design(tile=(rows, cols, 1), threads=rows * cols),
            )

    def supports(self, kernel: KernelMetadata, problem: Problem) -> Status:
        cols = kernel.design.tile[1]
        if problem.n > 65535 * cols or problem.batch > 65535:
            return Status("is one launch, whose grid ends before")
        return super().supports(kernel, problem)

    def compile(self, kernel: KernelMetadata) -> None:
        if kernel.name not in self.compiled:
            rows, cols, _ = kernel.design.tile
            self.compiled[kernel.name] = Dgemm(rows, cols).compile()

    def run(self, kernel: KernelMetadata, call: KernelCall) -> None:
        self.compile(kernel)  # unless that was done before
        (batch, m, k), n = call.a.shape, call.d.shape[2]
        operands = [(x.address, x.strides) for x in (call.a, call.b, call.d)]
        self.compiled[kernel.name](*_arguments(operands, (batch, m, n, k), call.alpha, call.stream))


def main() -> None:
    spec = TensorSpec((512, 512), "f64")
    with cutlass_py.register_provider(CuteDsl()) as registration:
        for kernel in registration.kernels:
            print(f"{kernel.name}: supports it: {bool(kernel.supports(GemmArguments(spec, spec)))}")
        if not (torch and torch.cuda.is_available()):
            print("not run: no GPU, or no torch to make arrays there")
            return
        a = torch.rand(4, 300, 200, dtype=torch.float64, device="cuda")
        b = torch.rand(4, 100, 200, dtype=torch.float64, device="cuda").mT
        for kernel in registration.kernels:
            kernel.compile()  # or the first call does, which no CUDA graph may capture then
            d = cutlass_py.gemm(a, b, alpha=0.5, kernel=kernel)
            print(f"{kernel.name}: {(d - 0.5 * (a @ b)).abs().max():.1e} from torch's product")
        print(cutlass_py.tune(a, b))


if __name__ == "__main__":
    main()
