"""The C++ of kernels and of the libraries that hold them, and what nvcc is told: functions of the declaration.

The same text whether it is compiled with the package or on demand. Standard library and the tables only.
"""

from __future__ import annotations

from .config import SCHEDULES, Family, KernelConfig
from .dtypes import DTYPES
from .epilogues import Epilogue, epilogue_named
from .families import FAMILIES

_LAYOUT_CPP = {"t": "cutlass::layout::RowMajor", "n": "cutlass::layout::ColumnMajor"}
# 2.x: operator class, instruction shape and operation by (family, dtype of A).
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


def _fields_3x(c: KernelConfig) -> dict[str, str]:
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


def _fields_2x(c: KernelConfig) -> dict[str, str]:
    op_class, instruction, operation = INSTRUCTION[c.family, c.a]
    activation, this = epilogue_named(c.epilogue).activation, f"config_{c.name}"
    plain = activation == "identity"
    return {
        "using Arch": FAMILIES[c.family].cpp_arch,
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
            f"Linear2x<{this}, Compute>" if plain else f"Activated2x<{this}, Compute, activation::{activation}>"
        ),
    }


def definition(c: KernelConfig) -> str:
    """The C++ that defines one kernel, without its family's header."""
    family, user = FAMILIES[c.family], epilogue_named(c.epilogue).user
    launcher = f"User{family.launcher}" if user else family.launcher
    fields = {
        "using A": DTYPES[c.a].cpp,
        "using B": DTYPES[c.b].cpp,
        "using D": DTYPES[c.d].cpp,
        "using Accumulator": DTYPES[c.accumulator].cpp,
        "using LayoutA": _LAYOUT_CPP[c.layout[0]],
        "using LayoutB": _LAYOUT_CPP[c.layout[1]],
        **({"using Program": user.name} if user else {}),
        **(_fields_3x(c) if family.api == 3 else _fields_2x(c)),
    }
    body = "".join(f"  {name} = {value};\n" for name, value in fields.items())
    return (
        f"{user.definition if user else ''}namespace cutlass_py {{\nstruct config_{c.name} {{\n{body}}};\n}}\n"
        f"CUTLASS_PY_KERNEL({c.name}, cutlass_py::{launcher}<cutlass_py::config_{c.name}>)\n"
    )


_USUAL_WIDTHS = (256, 192, 128, 96, 64, 32, 16, 8)


def odd_width(c: KernelConfig) -> bool:
    """Whether a tile is as wide as an instruction that CuTe only has on request: it would be cut into narrow ones.

    The header with all of them takes a minute to compile.
    """
    return c.api == 3 and c.tile[1] not in _USUAL_WIDTHS


def source(configs: list[KernelConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    family = FAMILIES[configs[0].family]
    user = epilogue_named(configs[0].epilogue).user
    header = f"kernels/cutlass{family.api}x/user_epilogue.cuh" if user else family.header
    widths = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n" if any(map(odd_width, configs)) else ""
    return f'{widths}#include "{header}"\n\n' + "\n".join(map(definition, configs))


_ENTRY_POINT = """\
// The table of contents of a kernel library, which cutlass_py_library returns.
#include "abi/kernel.h"
#include "kernels/common/error_string.h"

extern "C" {{
{declarations}extern const CutlassPyElementwise cutlass_py_elementwise;
}}

static const CutlassPyKernel* const kernels[] = {{
{entries}    nullptr,
}};

extern "C" __attribute__((visibility("default"))) const CutlassPyLibrary* cutlass_py_library() {{
  static const CutlassPyLibrary library = {{
      CUTLASS_PY_ABI,
      {count},
      kernels,
      {elementwise},
      &cutlass_py::error_string,
  }};
  return &library;
}}
"""


def entry_point(configs: list[KernelConfig], *, elementwise: bool) -> str:
    """The function that every kernel library exports, over kernels that are compiled beside it.

    Args:
        configs: the kernels.
        elementwise: whether the elementwise kernels are linked into the same library.
    """
    return _ENTRY_POINT.format(
        declarations="".join(f"extern const CutlassPyKernel cutlass_py_{c.name};\n" for c in configs),
        entries="".join(f"    &cutlass_py_{c.name},\n" for c in configs),
        count=len(configs),
        elementwise="&cutlass_py_elementwise" if elementwise else "nullptr",
    )


_FLAGS = (
    "-DNDEBUG",  # in every build type: with assertions ptxas serialises wgmma (message C7510)
    "--expt-relaxed-constexpr",  # CUTLASS calls constexpr std functions on the device
    "-Xfatbin=-compress-all",  # a fifth of the size, at no cost
)
_OVERLAP = "-DCUTLASS_ENABLE_GDC_FOR_SM90=1"  # CUTLASS 4.2 does not compile stream-K with it


def flags(family: Family, gencode: tuple[str, ...]) -> list[str]:
    """What nvcc is told about the kernels of a family, whoever starts it."""
    overlap = [_OVERLAP] if family.overlaps else []
    return [*_FLAGS, *overlap, *(f"-gencode={entry}" for entry in gencode)]
