"""What exists: kernel families, and which kernels are core and declared.

The only place where an architecture is written down; tiles.py has the tiles, config.py says what both are made into.
CMake, the registry, the documents and the tests read it. Standard library and siblings that need no more: the build
runs it before the package exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import product
from typing import Any

from . import gemm_cpp, gemv_cpp, lean_cpp, quantize, sm90, tiles
from .config import SCHEDULES, Family, GemmConfig, KernelConfig, nothing
from .dtypes import DTYPES, LAYOUTS
from .epilogues import ACTIVATIONS
from .operands import DEFAULT
from .tiles import Ladder

# ---------------------------------------------------------------------------------------------------- 2.x


def _2x(
    family: str,
    dtypes: sm90.Pair,
    layouts: Iterable[str],
    d: str,
    ladder: Ladder,
    accumulator: str = "f32",
    epilogue: str = "linearc",
    schedule: str = "tiled",
) -> Iterator[GemmConfig]:
    for layout, (align, designs) in product(layouts, ladder.items()):
        for tile, warp, stages in designs:
            yield GemmConfig(
                family, *dtypes, accumulator, d, layout, tile, epilogue, schedule, warp=warp, stages=stages, align=align
            )  # fmt: skip


def _sm80_core() -> Iterator[GemmConfig]:
    """Every dtype and layout, c read where there is one; the commonest activations."""
    for dtype in sm90.HALVES:
        yield from _2x("sm80_gemm", (dtype, dtype), LAYOUTS, dtype, tiles.SM80_HALF)
        yield from _2x("sm80_gemm", (dtype, dtype), ("tn",), dtype, tiles.SM80_HALF_SMALL)
        yield from _2x("sm80_gemm", (dtype, dtype), ("tn",), "f32", tiles.SM80_HALF_WIDE)
    yield from _2x("sm80_gemm", ("tf32", "tf32"), LAYOUTS, "f32", tiles.SM80_TF32)
    yield from _2x("sm80_gemm", ("tf32x3", "tf32x3"), LAYOUTS, "f32", tiles.SM80_TF32X3)
    yield from _2x("sm80_gemm", ("f64", "f64"), LAYOUTS, "f64", tiles.SM80_F64, "f64")
    yield from _2x("sm80_gemm", ("c128", "c128"), LAYOUTS, "c128", tiles.C128, "c128")
    for pair in sm90.INT8:
        yield from _2x("sm80_gemm", pair, ("tn",), "s32", tiles.SM80_INT8, "s32")
    large = {8: tiles.SM80_HALF[8][:1]}
    for dtype, f in product(sm90.HALVES, ("relu", "gelu_tanh", "silu")):
        yield from _2x("sm80_gemm", (dtype, dtype), ("tn",), dtype, large, epilogue=f"linearc_{f}")
    for dtype, d in (("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32")):  # f32 is finished as any other result
        yield from _2x("sm80_gemm", (dtype, dtype), ("tn",), d, tiles.SM80_STREAMK, schedule="streamk")
    yield from _2x("sm80_gemm", ("f16", "f16"), ("tn",), "f16", large, "f16")


def _sm80_declared() -> Iterator[GemmConfig]:
    for dtype in sm90.HALVES:
        yield from _2x("sm80_gemm", (dtype, dtype), LAYOUTS, dtype, tiles.SM80_HALF_MORE)
        for ladder in (tiles.SM80_HALF, tiles.SM80_HALF_MORE):
            yield from _2x("sm80_gemm", (dtype, dtype), LAYOUTS, "f32", ladder)
    yield from _2x("sm80_gemm", ("tf32", "tf32"), LAYOUTS, "f32", tiles.SM80_TF32_MORE)
    yield from _2x("sm80_gemm", ("f64", "f64"), LAYOUTS, "f64", tiles.SM80_F64_MORE, "f64")
    for pair in sm90.INT8:
        yield from _2x("sm80_gemm", pair, ("tn",), "s32", tiles.SM80_INT8_MORE, "s32")
    for dtype in sm90.HALVES:
        for d in (dtype, "f32"):
            yield from _2x("sm80_gemm", (dtype, dtype), LAYOUTS, d, tiles.SM80_STREAMK, schedule="streamk")
    yield from _2x("sm80_gemm", ("f16", "f16"), LAYOUTS, "f16", {8: tiles.SM80_HALF[8]}, "f16")
    plain = [a.name for a in ACTIVATIONS.values() if not a.derivative][1:]
    for dtype, ladder, f in product(sm90.HALVES, (tiles.SM80_HALF, tiles.SM80_HALF_MORE), plain):
        yield from _2x("sm80_gemm", (dtype, dtype), LAYOUTS, dtype, ladder, epilogue=f"linearc_{f}")
    for f in plain:
        yield from _2x("sm80_gemm", ("tf32", "tf32"), LAYOUTS, "f32", tiles.SM80_TF32, epilogue=f"linearc_{f}")


def _simt() -> Iterator[GemmConfig]:
    yield from _2x("simt_gemm", ("f32", "f32"), LAYOUTS, "f32", tiles.SIMT_F32)
    yield from _2x("simt_gemm", ("c64", "c64"), LAYOUTS, "c64", tiles.SIMT_C64, "c64")


def _gemv(
    family: str, dtypes: sm90.Pair, layout: str, d: str, accumulator: str = "f32", epilogue: str = "fusedc_scaled"
) -> Iterator[GemmConfig]:
    for schedule in ("rows", "columns"):
        along_k = layout[0] == "t" if SCHEDULES[schedule].swap else layout[1] == "n"
        tile = gemv_cpp.tile(dtypes[0], along_k)
        yield GemmConfig(family, *dtypes, accumulator, d, layout, tile, epilogue, schedule, stages=1)


def _simt_gemv() -> Iterator[GemmConfig]:
    for a, layout in product((*sm90.HALVES, "f32", "tf32", "tf32x3"), LAYOUTS):
        for d in dict.fromkeys((DTYPES[a].stored, "f32")):
            yield from _gemv("simt_gemv", (a, a), layout, d)
    for layout in LAYOUTS:
        yield from _gemv("simt_gemv", ("f64", "f64"), layout, "f64", "f64", "fusedc")


def _sm90_gemv() -> Iterator[GemmConfig]:
    for pair, d in product(sm90.FP8, sm90.FP8_RESULTS):
        yield from _gemv("sm90_gemv", pair, "tn", d)


def _2x_grouped(
    family: str, dtypes: sm90.Pair, layouts: Iterable[str], d: str, ladder: Ladder, accumulator: str = "f32"
) -> Iterator[GemmConfig]:
    epilogue = "linearc_told" if DTYPES[d].mantissa and accumulator in ("f32", "f64") else "linearc"
    return _2x(family, dtypes, layouts, d, ladder, accumulator, epilogue, "persistent")


# What groups divide is read by whole accesses where a line of it begins each, otherwise by single elements: groups of
# rows with A along k (tn, tt), groups of k with both along the other axis (nt). Groups of columns store single ones.
_WHOLE = ("tn", "tt", "nt")


def _sm80_grouped_core() -> Iterator[GemmConfig]:
    """Every dtype in every layout by single elements, and by whole accesses where those do."""
    for dtype in sm90.HALVES:
        pair = (dtype, dtype)
        yield from _2x_grouped("sm80_grouped", pair, _WHOLE, dtype, tiles.SM80_GROUPED_HALF)
        yield from _2x_grouped("sm80_grouped", pair, LAYOUTS, dtype, tiles.SM80_GROUPED_HALF_ANY)
    yield from _2x_grouped("sm80_grouped", ("tf32", "tf32"), _WHOLE, "f32", tiles.SM80_GROUPED_TF32)
    yield from _2x_grouped("sm80_grouped", ("tf32", "tf32"), LAYOUTS, "f32", tiles.SM80_GROUPED_TF32_ANY)
    yield from _2x_grouped("sm80_grouped", ("tf32x3", "tf32x3"), LAYOUTS, "f32", tiles.SM80_GROUPED_TF32X3)
    yield from _2x_grouped("sm80_grouped", ("f64", "f64"), LAYOUTS, "f64", tiles.SM80_GROUPED_F64, "f64")
    yield from _2x_grouped("sm80_grouped", ("c128", "c128"), LAYOUTS, "c128", tiles.C128, "c128")
    for pair in sm90.INT8:
        yield from _2x_grouped("sm80_grouped", pair, ("tn",), "s32", tiles.SM80_GROUPED_INT8_ANY, "s32")
    yield from _2x_grouped("sm80_grouped", ("s8", "s8"), ("tn",), "s32", tiles.SM80_GROUPED_INT8, "s32")


def _sm80_grouped_declared() -> Iterator[GemmConfig]:
    """All tiles of the single products' ladders."""
    for dtype, ladder in product(sm90.HALVES, (tiles.SM80_HALF, tiles.SM80_HALF_MORE)):
        for d in (dtype, "f32"):
            yield from _2x_grouped("sm80_grouped", (dtype, dtype), LAYOUTS, d, ladder)
    for ladder in (tiles.SM80_TF32, tiles.SM80_TF32_MORE):
        yield from _2x_grouped("sm80_grouped", ("tf32", "tf32"), LAYOUTS, "f32", ladder)
    yield from _2x_grouped("sm80_grouped", ("tf32x3", "tf32x3"), LAYOUTS, "f32", tiles.SM80_TF32X3)
    for ladder in (tiles.SM80_F64, tiles.SM80_F64_MORE):
        yield from _2x_grouped("sm80_grouped", ("f64", "f64"), LAYOUTS, "f64", ladder, "f64")
    for pair, ladder in product(sm90.INT8, (tiles.SM80_INT8, tiles.SM80_INT8_MORE)):
        yield from _2x_grouped("sm80_grouped", pair, ("tn",), "s32", ladder, "s32")


def _simt_grouped() -> Iterator[GemmConfig]:
    yield from _2x_grouped("simt_grouped", ("f32", "f32"), LAYOUTS, "f32", tiles.SIMT_F32)
    yield from _2x_grouped("simt_grouped", ("c64", "c64"), LAYOUTS, "c64", tiles.SIMT_C64, "c64")


def _sm90_f64() -> Iterator[GemmConfig]:
    yield from _2x("sm90_dgemm", ("f64", "f64"), LAYOUTS, "f64", tiles.SM90_F64, "f64")
    yield from _2x("sm90_dgemm", ("c128", "c128"), LAYOUTS, "c128", tiles.C128, "c128")


# ---------------------------------------------------------------------------------------------------- families

# sm_80 machine code does not run on 9.0: without its own copy every kernel would cost the driver 0.4 s of PTX
# compilation. The PTX serves whatever comes after.
_SM80_GENCODE = ("arch=compute_80,code=[sm_80,sm_90,compute_80]",)

# sm_90a code is architecture-specific: it runs on 9.0 alone.
_OURS: dict[str, Any] = {
    "header": "kernels/sm90/gemm.cuh",
    "launcher": "LeanGemm",
    "write": lean_cpp.write,
    "function": lean_cpp.function,
    "overlaps": 90,
    "per_file": 48,
    "core_seconds": 0.5,
    "cubins": True,
}
_hopper = partial(
    Family, api=3, cc=(90, 90), arch="90a", gencode=("arch=compute_90a,code=sm_90a",),
    header="kernels/cutlass3x/gemm.cuh", launcher="Gemm3x", write=gemm_cpp.write,
)  # fmt: skip
_ampere = partial(
    Family, api=2, cc=(80, 999), arch="80", gencode=_SM80_GENCODE,
    header="kernels/cutlass2x/gemm.cuh", launcher="Gemm2x", write=gemm_cpp.write, cpp_arch="cutlass::arch::Sm80",
    per_file=48, core_seconds=2.1,
)  # fmt: skip
_groups_on_ampere = partial(
    _ampere, header="kernels/cutlass2x/grouped.cuh", launcher="Grouped2x", operation="grouped_gemm"
)

_gemv_family = partial(
    Family, api=0, header="kernels/gemv/gemm.cuh", launcher="Gemv", write=gemv_cpp.write, function=gemv_cpp.function,
    overlaps=90, per_file=2,
)  # fmt: skip

FAMILIES = {
    f.name: f
    for f in [
        _hopper(
            "sm90_gemm",
            "TMA + wgmma",
            declare_core=nothing,  # our own do it there
            declare=sm90.sm90_declared,
            overlaps=90,
        ),
        _hopper(
            "sm90_streamk",
            "TMA + wgmma, k loops dealt out evenly",
            declare_core=nothing,
            declare=sm90.streamk,
        ),
        _hopper(
            "sm90_array",
            "TMA + wgmma on lists of matrices",
            header="kernels/cutlass3x/ptr_array.cuh",
            launcher="GemmArray3x",
            declare_core=nothing,
            declare=sm90.array,
        ),
        _hopper(
            "sm90_block",
            "TMA + wgmma, scales in blocks",
            header="kernels/cutlass3x/blockwise.cuh",
            launcher="GemmBlockwise3x",
            declare_core=nothing,
            declare=sm90.block,
            per_file=6,  # twelve took 10 GB
            overlaps=90,
        ),
        _hopper(
            "sm90_dmma",
            "TMA + mma.sync on f64",
            header="kernels/cutlass3x/dmma.cuh",
            launcher="GemmDmma3x",
            declare_core=sm90.dmma,
            overlaps=90,
            core_seconds=9.5,
        ),
        _hopper(
            "sm90_lean",
            "TMA + wgmma, kernels of our own",
            declare_core=sm90.lean_core,
            declare=sm90.lean_declared,
            **_OURS,
        ),
        _hopper(
            "sm90_grouped",
            "groups of unequal size by TMA + wgmma, kernels of our own",
            declare_core=sm90.grouped_core,
            declare=sm90.grouped_declared,
            operation="grouped_gemm",
            **_OURS,
        ),
        _ampere(
            "sm80_gemm",
            "mma.sync tensor cores",
            declare_core=_sm80_core,
            declare=_sm80_declared,
        ),
        _ampere("simt_gemm", "exact f32 and c64 on the CUDA cores", declare_core=_simt),
        _groups_on_ampere(
            "sm80_grouped",
            "groups of unequal size, and lists, by mma.sync tensor cores",
            declare_core=_sm80_grouped_core,
            declare=_sm80_grouped_declared,
        ),
        _groups_on_ampere(
            "simt_grouped",
            "groups of unequal size, and lists, of exact f32 and c64 on the CUDA cores",
            declare_core=_simt_grouped,
        ),
        _ampere(
            "sm90_dgemm",
            "f64 and c128 tensor cores with the sm90 instruction shape",
            cc=(90, 90),
            arch="90a",
            gencode=("arch=compute_90,code=sm_90",),
            cpp_arch="cutlass::arch::Sm90",
            declare_core=_sm90_f64,
        ),
        _gemv_family(
            "simt_gemv",
            "few rows or columns on the CUDA cores, kernels of our own",
            cc=(80, 999),
            arch="80",
            # On 9.0 and newer launches overlap.
            gencode=("arch=compute_80,code=[sm_80,compute_80]", "arch=compute_90,code=[sm_90,compute_90]"),
            declare_core=_simt_gemv,
            core_seconds=7,
        ),
        _gemv_family(
            "sm90_gemv",
            "few rows or columns of fp8 on the CUDA cores, kernels of our own",
            cc=(90, 90),
            arch="90a",
            gencode=("arch=compute_90,code=sm_90",),
            declare_core=_sm90_gemv,
            core_seconds=2,
        ),
        quantize.FAMILY,
    ]
}


def families(operation: str = DEFAULT) -> dict[str, Family]:
    """Those of an operation, by name."""
    return {name: family for name, family in FAMILIES.items() if family.operation == operation}


@cache
def named(part: str, operation: str = DEFAULT) -> dict[str, Any]:
    """Kernels of an operation by name: of "core", or all that are "declared"."""
    return {c.name: c for family in families(operation).values() for c in getattr(family, part)}


added: dict[str, KernelConfig] = {}  # by name: described (kernels/kernel_description.py), or of artifacts and packs


@cache
def _core() -> dict[str, Any]:
    return {c.name: c for family in FAMILIES.values() for c in family.core}


@cache
def _declared(family: str) -> dict[str, Any]:
    return {c.name: c for c in FAMILIES[family].declared}


def find(name: str) -> Any:
    """The KernelConfig of that name, or None; `core` is looked through first, since listing all takes a while."""
    if config := added.get(name) or _core().get(name):
        return config
    families = (family for family in FAMILIES if name.startswith(f"{family}_"))
    return next((c for family in families if (c := _declared(family).get(name))), None)


def listed(path: str) -> list[str]:
    """Names of kernels in a file, one a line (# starts a comment).

    Raises:
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        return [name for line in file if (name := line.split("#")[0].strip())]


def select(kernels: str, archs: list[str]) -> list[KernelConfig]:
    """The kernels to build.

    Args:
        kernels: "core", or the path of a file with one kernel name per line (# starts a comment).
        archs: entries of CUTLASS_PY_ARCHS, such as ["80", "90a"].

    Raises:
        ValueError: an architecture or a kernel name that is not declared.
    """
    known = sorted({f.arch for f in FAMILIES.values()})
    for arch in archs:
        if arch not in known:
            raise ValueError(f"CUTLASS_PY_ARCHS: {arch!r} is not one of {', '.join(known)}")
    if kernels == "core":
        wanted = [c for f in FAMILIES.values() for c in f.core]
    else:
        wanted = []
        for name in listed(kernels):
            if not (config := find(name)):
                raise ValueError(f"{kernels}: no kernel is called {name!r}")
            wanted.append(config)
    return [c for c in dict.fromkeys(wanted) if FAMILIES[c.family].arch in archs]
