"""A kernel of your own in Triton: 16-bit floats of any strides, summed in f32."""

from __future__ import annotations

from collections.abc import Iterable

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as error:
    print(f"torch or Triton is not installed: {error}")
    raise SystemExit from None

import cutlass_py
from cutlass_py import Design, KernelCall, KernelMetadata, OperandMetadata, Problem, Provider, Status

TILE = (128, 128, 32)


@triton.jit
def multiply(
    a, b, d, m, n, k, alpha,
    batch_a, row_a, col_a, batch_b, row_b, col_b, batch_d, row_d, col_d,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * TILE_M + tl.arange(0, TILE_M)
    cols = tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    batch = tl.program_id(2).to(tl.int64)
    a += batch * batch_a + rows[:, None] * row_a
    b += batch * batch_b + cols[None, :] * col_b
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for first in range(0, k, TILE_K):
        inner = first + tl.arange(0, TILE_K).to(tl.int64)
        left = tl.load(a + inner[None, :] * col_a, mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * row_b, mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    d += batch * batch_d + rows[:, None] * row_d + cols[None, :] * col_d
    tl.store(d, (alpha * total).to(d.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


class Triton(Provider):
    """One kernel for each dtype."""

    name = "triton"

    def kernels(self) -> Iterable[KernelMetadata]:
        for dtype in ("f16", "bf16"):
            operand = OperandMetadata(dtype)
            yield KernelMetadata(
                f"triton_gemm_{dtype}",
                operands={"a": operand, "b": operand, "d": operand},
                accumulator="f32",
                epilogue="linear",
                family="triton_gemm",
                design=Design(tile=TILE, threads=128),
            )

    def supports(self, kernel: KernelMetadata, problem: Problem) -> Status:
        if problem.n > 65535 * TILE[1] or problem.batch > 65535:
            return Status("is one launch, whose grid ends before")
        return super().supports(kernel, problem)

    def run(self, kernel: KernelMetadata, call: KernelCall) -> None:
        # No copy, and on the stream of the call, which is torch's current one here.
        a, b, d = (torch.from_dlpack(x) for x in (call.a, call.b, call.d))
        (batch, m, k), n = a.shape, d.shape[2]
        grid = (triton.cdiv(m, TILE[0]), triton.cdiv(n, TILE[1]), batch)
        strides = (*a.stride(), *b.stride(), *d.stride())
        multiply[grid](a, b, d, m, n, k, call.alpha, *strides, *TILE, num_warps=4)


def main() -> None:
    with cutlass_py.register_provider(Triton()) as registration:
        print(", ".join(kernel.name for kernel in registration.kernels))
        if not torch.cuda.is_available():
            print("not run: no GPU")
            return
        a = torch.randn(1000, 512, dtype=torch.float16, device="cuda")
        b = torch.randn(700, 512, dtype=torch.float16, device="cuda").T
        d = cutlass_py.gemm(a, b, kernel="triton_gemm_f16")
        print(f"triton_gemm_f16: {(d - a @ b).abs().max():.1e} from torch's product")
        print(cutlass_py.tune(a, b))


if __name__ == "__main__":
    main()
