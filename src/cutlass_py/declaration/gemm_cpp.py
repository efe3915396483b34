"""The C++ of kernels that multiply: a configuration struct for the launcher of its family's header.

Standard library and the tables only.
"""

from __future__ import annotations

from .config import SCHEDULES, Family, GemmConfig, kernel_definition
from .dtypes import DTYPES
from .epilogues import Epilogue, epilogue_named

_LAYOUT_CPP = {"t": "cutlass::layout::RowMajor", "n": "cutlass::layout::ColumnMajor"}
# 2.x: operator class, instruction shape and operation by (family of single products, dtype of A).
INSTRUCTION = {
    ("sm80_gemm", "f16"): ("TensorOp", (16, 8, 16), "OpMultiplyAdd"),
    ("sm80_gemm", "bf16"): ("TensorOp", (16, 8, 16), "OpMultiplyAdd"),
    ("sm80_gemm", "tf32"): ("TensorOp", (16, 8, 8), "OpMultiplyAdd"),
    ("sm80_gemm", "tf32x3"): ("TensorOp", (16, 8, 8), "OpMultiplyAddFastF32"),
    ("sm80_gemm", "f64"): ("TensorOp", (8, 8, 4), "OpMultiplyAdd"),
    ("sm80_gemm", "c128"): ("TensorOp", (8, 8, 4), "OpMultiplyAddComplex"),
    ("sm80_gemm", "s8"): ("TensorOp", (16, 8, 32), "OpMultiplyAdd"),
    ("sm80_gemm", "u8"): ("TensorOp", (16, 8, 32), "OpMultiplyAdd"),
    ("sm90_dgemm", "f64"): ("TensorOp", (16, 8, 4), "OpMultiplyAdd"),
    ("sm90_dgemm", "c128"): ("TensorOp", (16, 8, 4), "OpMultiplyAddComplex"),
    ("simt_gemm", "f32"): ("Simt", (1, 1, 1), "OpMultiplyAdd"),
    ("simt_gemm", "c64"): ("Simt", (1, 1, 1), "OpMultiplyAddComplex"),
}


def _shape(template: str, extents: tuple[int, ...]) -> str:
    parts = [f"cute::_{x}" for x in extents] if template == "cute::Shape" else [str(x) for x in extents]
    return f"{template}<{', '.join(parts)}>"


def _chain(e: Epilogue) -> str:
    """The epilogue of a 3.x kernel as stages of epilogue_visitors.cuh, from the product outwards."""
    if e.user:
        return f"user::Epilogue<X, {e.name}>"
    if e.plain:
        return "visitors::Linear<X>"
    f = f"activation::{e.activation}"
    chain = "visitors::Product<X>"
    chain = f"visitors::Scaled<X, {chain}>" if e.scaled else chain
    chain = f"visitors::Addend<X, {chain}>" if e.source else chain
    chain = f"visitors::Bias<X, '{e.bias}', {chain}>" if e.bias else chain
    chain = f"visitors::AuxStore<X, {chain}>" if e.aux else chain
    if e.gated:
        chain = f"visitors::Gated<X, {f}, {chain}>"
    elif e.activation != "identity":
        chain = f"visitors::Activated<X, {f}, {chain}>"
    return f"visitors::ScaleOut<X, {chain}>" if e.scaled else chain


def _fields_3x(c: GemmConfig) -> dict[str, str]:
    schedule, epilogue = SCHEDULES[c.schedule], epilogue_named(c.epilogue)
    source = c.d if epilogue.source or epilogue.gated else epilogue.user and epilogue.user.source_dtype
    return {
        "using C": DTYPES[source].cpp if source else "void",
        "using BiasElement": DTYPES[c.bias].cpp,
        "using Tile": _shape("cute::Shape", c.tile),
        "using Cluster": _shape("cute::Shape", c.cluster),
        "using MainloopSchedule": schedule.mainloop + ("FP8FastAccum" if c.accumulator == "fast" else ""),
        "using EpilogueSchedule": schedule.epilogue,
        "using Scheduler": f"cutlass::gemm::{'StreamK' if schedule.stream_k else 'Persistent'}Scheduler",
        "template <class X> using Fusion": _chain(epilogue),
        "static constexpr bool swap": str(schedule.swap).lower(),
        "static constexpr bool steady": str(schedule.steady).lower(),
        **({"static constexpr int scale_columns": str(schedule.block)} if schedule.block else {}),
    }


def _fields_2x(family: Family, c: GemmConfig) -> dict[str, str]:
    op_class, instruction, operation = INSTRUCTION[c.single, c.a]
    epilogue, this = epilogue_named(c.epilogue), f"config_{c.name}"
    activated = f"Activated2x<{this}, Compute, activation::{epilogue.activation}>"
    plain = epilogue.activation == "identity"
    return {
        "using Arch": family.cpp_arch,
        "using OpClass": f"cutlass::arch::OpClass{op_class}",
        "using Math": f"cutlass::arch::{operation}",
        "using Tile": _shape("cutlass::gemm::GemmShape", c.tile),
        "using Warp": _shape("cutlass::gemm::GemmShape", c.warp),
        "using Instruction": _shape("cutlass::gemm::GemmShape", instruction),
        "static constexpr int stages": str(c.stages),
        "static constexpr int align": str(c.align),
        "static constexpr int align_d": str(c.align_d),
        "static constexpr bool stream_k": str(SCHEDULES[c.schedule].stream_k).lower(),
        "template <class Compute> using Epilogue": (
            f"Linear2x<{this}, Compute>" if plain else f"Told2x<{this}, Compute>" if epilogue.told else activated
        ),
    }


def definition(family: Family, c: GemmConfig) -> str:
    """The C++ that defines one kernel, without its family's header."""
    user = epilogue_named(c.epilogue).user
    launcher = f"User{family.launcher}" if user else family.launcher
    fields = {
        "using A": DTYPES[c.a].cpp,
        "using B": DTYPES[c.b].cpp,
        "using D": DTYPES[c.d].cpp,
        "using Accumulator": DTYPES[c.accumulator].cpp,
        "using LayoutA": _LAYOUT_CPP[c.layout[0]],
        "using LayoutB": _LAYOUT_CPP[c.layout[1]],
        **({"using Program": user.name} if user else {}),
        **(_fields_3x(c) if family.api == 3 else _fields_2x(family, c)),
    }
    return f"{user.definition if user else ''}{kernel_definition(c.name, launcher, fields)}"


def write(family: Family, configs: list[GemmConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    user = epilogue_named(configs[0].epilogue).user
    header = f"kernels/cutlass{family.api}x/user_epilogue.cuh" if user else family.header
    widths = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n" if any(c.dear_header for c in configs) else ""
    return f'{widths}#include "{header}"\n\n' + "\n".join(definition(family, c) for c in configs)
