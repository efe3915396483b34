"""Problems and kernels without memory: what the tests of legality and selection ask about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutlass_py import GemmArguments, TensorSpec, _core
from cutlass_py.arrays.gpu import Gpu
from cutlass_py.declaration.config import GemmConfig
from cutlass_py.declaration.dtypes import COMPUTE
from cutlass_py.declaration.families import named
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.operation import operation_named

DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run
A100 = Gpu("an A100", 80, 108, 1500.0)
B200 = Gpu("a B200", 100, 148, 6000.0)
CORE = [CutlassKernel(c, None) for c in named("core").values()]
# Every arithmetic: dtype of the operands, `compute`.
ARITHMETICS = [(dtype, compute) for dtype, row in COMPUTE.items() for compute in row]
# What kernels multiply -> the dtype of the operands, and `compute` where it is not the default.
_ASKED = {"tf32": ("f32", "tf32"), "tf32x3": ("f32", "3xtf32")}


def operand(
    rows: int, cols: int, layout: str, dtype: str = "bf16", pad: int = 0, batch: int | None = None, **keywords: Any
) -> TensorSpec:
    """A (batch, rows, cols) spec, row-major ('t') or column-major ('n') with `pad` more elements per line."""
    keywords.setdefault("device", DEVICE)
    lines, line = (rows, cols) if layout == "t" else (cols, rows)
    ld = line + pad
    strides = [ld, 1] if layout == "t" else [1, ld]
    if batch is None:
        return TensorSpec([rows, cols], dtype, strides, **keywords)
    return TensorSpec([batch, rows, cols], dtype, [ld * lines, *strides], **keywords)


def vector(
    shape: int | Sequence[int], dtype: str = "bf16", strides: Sequence[int] | None = None, **keywords: Any
) -> Any:
    """A spec of one dimension, or of a row or a column."""
    keywords.setdefault("device", DEVICE)
    return TensorSpec([shape] if isinstance(shape, int) else shape, dtype, strides, **keywords)


def listed(rows: int, cols: int, layout: str, dtype: str = "bf16", count: int = 3, alignment: int = 256) -> list[Any]:
    """A list of matrices whose addresses do not lie evenly."""
    return [operand(rows, cols, layout, dtype, alignment=alignment << i) for i in range(count)]


def problem(
    m: int = 512, n: int = 512, k: int = 512, layout: str = "tn", dtype: str = "bf16", pad: int = 0, **keywords: Any
) -> GemmArguments:
    """GemmArguments of specs; `dtype` names what kernels multiply."""
    storage, compute = _ASKED.get(dtype, (dtype, None))
    keywords.setdefault("compute", compute)
    a, b = operand(m, k, layout[0], storage, pad), operand(k, n, layout[1], keywords.pop("b", storage), pad)
    return GemmArguments(a, b, **keywords)


def grouped_problem(
    axis: str = "m", groups: int = 8, m: int = 4096, n: int = 2048, k: int = 1024, dtype: str = "bf16",
    layout: str = "tn", **keywords: Any,
) -> Any:  # fmt: skip
    """GroupedArguments of specs; `axis` is what groups divide, "batch" where each has a matrix of its own."""
    entry = {"groups": groups, "m": m, "n": n, "k": k, "a": dtype, "layout": layout, "axis": axis, **keywords}
    return operation_named("grouped_gemm").arguments_from(entry, DEVICE)


def forced(args: GemmArguments, kernel: Any) -> _core.Problem:
    """The problem of the same arguments with `kernel=`."""
    return _core.problem(args.a, args.b, **args.keywords, kernel=kernel)


def tma(
    epilogue: str = "linear",
    schedule: str = "pingpong",
    d: str = "bf16",
    *,
    family: str = "sm90_gemm",
    dtypes: str = "bf16 bf16 f32",
) -> CutlassKernel:
    """A 3.x kernel that need not be declared: how it is judged depends on its fields alone.

    `dtypes` are of A, B and the accumulator.
    """
    a, b, accumulator = dtypes.split()
    return CutlassKernel(
        GemmConfig(family, a, b, accumulator, d, "tn", (128, 128, 64), epilogue, schedule, (1, 1, 1)), None
    )


def ladder(
    layout: str = "tn",
    family: str = "sm80_gemm",
    dtype: str = "bf16",
    align: int = 8,
    epilogue: str = "linearc",
    schedule: str = "tiled",
) -> CutlassKernel:
    """A 2.x kernel, likewise."""
    design = {"warp": (64, 64, 32), "stages": 4, "align": align}
    return CutlassKernel(
        GemmConfig(family, dtype, dtype, "f32", dtype, layout, (128, 128, 32), epilogue, schedule, **design), None
    )
