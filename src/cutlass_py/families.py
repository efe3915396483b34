"""What exists: the tables of dtypes, schedules, epilogues and kernel families, and the C++ source of any kernel.

The only place where a tile, a dtype, a schedule or an architecture is written down. CMake, the registry, the documents
and the tests read it. Standard library only, no imports from the package: the build runs it before the package exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

# ---------------------------------------------------------------------------------------------------- dtypes


@dataclass(frozen=True)
class Dtype:
    """A number format: its CUTLASS type, DLPack type code, and the name NumPy, ml_dtypes and torch give it."""

    name: str
    bits: int
    cpp: str
    dlpack: int
    numpy: str
    storage: str = ""  # the dtype of the array in memory, where that is not the dtype itself

    @property
    def itemsize(self) -> int:
        return self.bits // 8


# The order is the numbering used by C++ (dtype.h): append only.
_DTYPES = [
    Dtype("f16", 16, "cutlass::half_t", 2, "float16"),
    Dtype("bf16", 16, "cutlass::bfloat16_t", 4, "bfloat16"),
    Dtype("f32", 32, "float", 2, "float32"),
    Dtype("f64", 64, "double", 2, "float64"),
    Dtype("tf32", 32, "float", 2, "float32", storage="f32"),
    Dtype("e4m3", 8, "cutlass::float_e4m3_t", 10, "float8_e4m3fn"),
    Dtype("e5m2", 8, "cutlass::float_e5m2_t", 12, "float8_e5m2"),
    Dtype("s8", 8, "int8_t", 0, "int8"),
    Dtype("u8", 8, "uint8_t", 1, "uint8"),
    Dtype("s32", 32, "int32_t", 0, "int32"),
    Dtype("c64", 64, "cutlass::complex<float>", 5, "complex64"),
    Dtype("c128", 128, "cutlass::complex<double>", 5, "complex128"),
    Dtype("tf32x3", 32, "float", 2, "float32", storage="f32"),  # three tf32 products that add up to f32's accuracy
    Dtype("fast", 32, "float", 2, "float32", storage="f32"),  # an fp8 sum that stays in the tensor cores: about 14 bits
]
DTYPES = {d.name: d for d in _DTYPES}
# What an array can hold: every dtype but those that only name an arithmetic.
STORAGE = {d.name: index for index, d in enumerate(_DTYPES) if not d.storage}


@dataclass(frozen=True)
class Arithmetic:
    """What `compute=` names: the dtype kernels multiply, the one they sum in, and the default one of the result."""

    operand: str
    accumulator: str
    output: str


def _fp8(operand: str) -> dict[str, Arithmetic]:
    return {"f32": Arithmetic(operand, "f32", "bf16"), "fast": Arithmetic(operand, "fast", "bf16")}


# Input dtype -> {compute name: arithmetic}, the default first.
COMPUTE = {
    "f16": {"f32": Arithmetic("f16", "f32", "f16"), "f16": Arithmetic("f16", "f16", "f16")},
    "bf16": {"f32": Arithmetic("bf16", "f32", "bf16")},
    "f32": {
        "f32": Arithmetic("f32", "f32", "f32"),
        "tf32": Arithmetic("tf32", "f32", "f32"),
        "3xtf32": Arithmetic("tf32x3", "f32", "f32"),
    },
    "f64": {"f64": Arithmetic("f64", "f64", "f64")},
    "e4m3": _fp8("e4m3"),
    "e5m2": _fp8("e5m2"),
    "s8": {"s32": Arithmetic("s8", "s32", "s32")},
    "u8": {"s32": Arithmetic("u8", "s32", "s32")},
    "c64": {"f32": Arithmetic("c64", "c64", "c64")},
    "c128": {"f64": Arithmetic("c128", "c128", "c128")},
}
# Input dtypes that may be multiplied with each other; every dtype also with itself.
PAIRS = (("e4m3", "e5m2"), ("s8", "u8"))
# A problem that allows the first accumulator may also be summed in the second, which is more accurate.
WIDER = {"fast": "f32", "f16": "f32"}

# Layouts as in BLAS, for A then B: t row-major, n column-major. D is always row-major (problem.h transposes).
LAYOUTS = ("tn", "tt", "nt", "nn")
_LAYOUT_CPP = {"t": "cutlass::layout::RowMajor", "n": "cutlass::layout::ColumnMajor"}

# ---------------------------------------------------------------------------------------------------- schedules


@dataclass(frozen=True)
class Schedule:
    """How a 3.x kernel runs its tiles: the mainloop's and the epilogue's policy, and whether A and B swap places."""

    name: str
    mainloop: str
    epilogue: str
    swap: bool = False

    @property
    def pingpong(self) -> bool:
        """Whether two warpgroups take turns: one stores its tile while the other multiplies."""
        return "Pingpong" in self.mainloop

    @property
    def tma_store(self) -> bool:
        """Whether D leaves by TMA, which writes whole 16-byte granules; otherwise element by element."""
        return "NoSmem" not in self.epilogue


_COOP = ("cutlass::gemm::KernelTmaWarpSpecializedCooperative", "cutlass::epilogue::TmaWarpSpecializedCooperative")
_PINGPONG = ("cutlass::gemm::KernelTmaWarpSpecializedPingpong", "cutlass::epilogue::TmaWarpSpecialized")
_DIRECT = "cutlass::epilogue::NoSmemWarpSpecialized"
SCHEDULES = {
    s.name: s
    for s in [
        Schedule("coop", *_COOP),
        Schedule("pingpong", *_PINGPONG),
        Schedule("coopswap", *_COOP, swap=True),
        Schedule("pingpongswap", *_PINGPONG, swap=True),
        Schedule("coopdirect", _COOP[0], _DIRECT),
        Schedule("pingpongdirect", _PINGPONG[0], _DIRECT),
    ]
}

# ---------------------------------------------------------------------------------------------------- activations


@dataclass(frozen=True)
class Activation:
    """A function that an epilogue applies; C++ has it as cutlass_py::<name> (activation.h).

    Attributes:
        parameters: name and default of each run-time parameter; None where it has to be given.
        derivative: it takes `aux`, where the function was evaluated, and multiplies the product by its value.
        formula: as documented.
    """

    name: str
    formula: str
    parameters: tuple[tuple[str, float | None], ...] = ()
    derivative: bool = False


# The order is the numbering used by C++ (activation.h): append only. identity stands for no activation.
_ACTIVATIONS = [
    Activation("identity", "x"),
    Activation("relu", "max(x, 0)"),
    Activation("leaky_relu", "x if x > 0 else slope * x", (("slope", 0.01),)),
    Activation("gelu", "x * (1 + erf(x / sqrt(2))) / 2"),
    Activation("gelu_tanh", "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2"),
    Activation("silu", "x / (1 + exp(-x))"),
    Activation("sigmoid", "1 / (1 + exp(-x))"),
    Activation("tanh", "tanh(x)"),
    Activation("hardswish", "x * min(max(x + 3, 0), 6) / 6"),
    Activation("clamp", "min(max(x, low), high)", (("low", None), ("high", None))),
    Activation("d_relu", "1 if x > 0 else 0", derivative=True),
    Activation("d_gelu", "(1 + erf(x / sqrt(2))) / 2 + x * exp(-x**2 / 2) / sqrt(2 * pi)", derivative=True),
    Activation(
        "d_gelu_tanh",
        "(1 + t) / 2 + x * (1 - t**2) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2) / 2, t as in gelu_tanh",
        derivative=True,
    ),
    Activation("d_silu", "s * (1 + x * (1 - s)), s = sigmoid(x)", derivative=True),
]
ACTIVATIONS = {a.name: a for a in _ACTIVATIONS}

# ---------------------------------------------------------------------------------------------------- epilogues


@dataclass(frozen=True)
class Epilogue:
    """What happens to the accumulator before it is stored. `source`: whether C can be read."""

    name: str
    formula: str
    source: bool


EPILOGUES = {
    e.name: e
    for e in [
        Epilogue("linear", "alpha * acc", source=False),
        Epilogue("linearc", "alpha * acc + beta * C", source=True),  # beta = 0 leaves C unread
    ]
}

# ---------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True, order=True)
class KernelConfig:
    """One kernel: everything that tells it from the others. Its name and source are functions of this value."""

    family: str
    a: str
    b: str
    d: str
    layout: str
    tile: tuple[int, int, int]
    epilogue: str
    cluster: tuple[int, int, int] = (1, 1, 1)
    schedule: str = ""  # 3.x
    warp: tuple[int, int, int] = (0, 0, 0)  # 2.x
    stages: int = 0  # 2.x; 3.x takes what fits
    align: int = 0  # 2.x: elements per access of A and B

    @property
    def accumulator(self) -> str:
        return {"f64": "f64"}.get(self.a, "f32")

    @property
    def align_d(self) -> int:
        """Elements per access of C and D, which their base, rows and extent must be multiples of."""
        vector = 16 // DTYPES[self.d].itemsize
        if self.schedule:
            return vector if SCHEDULES[self.schedule].tma_store else 1
        return vector if self.align * DTYPES[self.a].itemsize == 16 else 1

    @cached_property
    def name(self) -> str:
        """General to particular: family, dtypes (A, B, accumulator, D), layout, tile, design, epilogue."""
        if self.schedule:
            design = [_x(self.cluster), self.schedule]
        else:
            design = [_x(self.warp), f"s{self.stages}", f"a{self.align}"]
        dtypes = [self.a, self.b, self.accumulator, self.d]
        return "_".join([self.family, *dtypes, self.layout, _x(self.tile), *design, self.epilogue])


def _x(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))


@dataclass(frozen=True)
class Family:
    """Kernels that share a template: who can run them, how they are compiled, and which are declared."""

    name: str
    title: str
    api: int  # CUTLASS generation: 2 or 3
    cc: tuple[int, int]  # lowest compute capability that runs them, times ten, and the highest
    arch: str  # the entry of CUTLASS_PY_ARCHS that asks for them
    gencode: tuple[str, ...]
    header: str
    cpp_arch: str
    full: tuple[KernelConfig, ...] = field(repr=False)
    core: tuple[KernelConfig, ...] = field(repr=False)
    per_file: int = 6  # kernels per translation unit: headers cost more than a kernel, and each 0.8 GB of memory


Tile = tuple[int, int, int]


def _sm90(dtype: str, layout: str, d: str, epilogue: str, design: tuple[Tile, Tile, str]) -> KernelConfig:
    tile, cluster, schedule = design
    return KernelConfig("sm90_gemm", dtype, dtype, d, layout, tile, epilogue, cluster, schedule)


# Tile, cluster, schedule. What each is worth on an H200: benchmarks/results.
_SM90_TMA: list[tuple[Tile, Tile, str]] = [
    ((128, 256, 64), (1, 2, 1), "coop"),
    ((128, 256, 64), (2, 1, 1), "coop"),
    ((256, 128, 64), (1, 2, 1), "coop"),
    ((256, 128, 64), (2, 1, 1), "coop"),
    ((128, 128, 64), (1, 1, 1), "pingpong"),
    ((128, 128, 64), (2, 1, 1), "pingpong"),
    ((64, 256, 64), (2, 1, 1), "pingpong"),
    ((64, 128, 64), (1, 1, 1), "pingpong"),
    ((128, 256, 64), (1, 2, 1), "coopswap"),
    ((128, 256, 64), (2, 1, 1), "coopswap"),
    ((128, 128, 64), (1, 1, 1), "pingpongswap"),
    ((64, 64, 128), (1, 1, 1), "pingpongswap"),
    ((64, 32, 128), (1, 1, 1), "pingpongswap"),
    ((64, 16, 128), (1, 1, 1), "pingpongswap"),
]
# Stores D element by element: any D alignment. Also the kernel under a composed epilogue, hence the f32 D.
_SM90_DIRECT: list[tuple[Tile, Tile, str]] = [
    ((128, 128, 64), (1, 1, 1), "pingpongdirect"),
    ((128, 256, 64), (2, 1, 1), "coopdirect"),
]


def _sm90_full() -> Iterator[KernelConfig]:
    for dtype, layout in product(("bf16", "f16"), LAYOUTS):
        for d, epilogue, design in product((dtype, "f32"), ("linear", "linearc"), _SM90_TMA):
            if not (design[0][:2] == (128, 256) and d == "f32"):  # the f32 tile of D leaves no room for stages
                yield _sm90(dtype, layout, d, epilogue, design)
        for d, design in product((dtype, "f32"), _SM90_DIRECT):
            yield _sm90(dtype, layout, d, "linearc", design)


def _sm90_core() -> Iterator[KernelConfig]:
    # By how much each adds over shapes of the `llm` and `square` suites, within what two cores compile in eight
    # minutes. Best of these against best of all designs in the bf16 sweep (benchmarks/results): tn 99.5%, tt 98%, nt
    # and nn 94%; `medium` would bring nt and nn to 99%. f16 was not swept: by bf16's times its sets reach 91% (tn) and
    # 87% (tt).
    designs = {
        f"{_x(tile)}_{_x(cluster)}_{schedule}": (tile, cluster, schedule) for tile, cluster, schedule in _SM90_TMA
    }
    large = designs["128x256x64_1x2x1_coop"]
    medium = designs["64x256x64_2x1x1_pingpong"]
    square = designs["128x128x64_2x1x1_pingpong"]
    small = designs["64x128x64_1x1x1_pingpong"]
    skinny64, skinny32, skinny16 = (designs[f"64x{n}x128_1x1x1_pingpongswap"] for n in (64, 32, 16))
    lean = {
        ("bf16", "tn"): [large, medium, square, small, skinny64, skinny32, skinny16],
        ("bf16", "tt"): [large, medium, small, skinny64, skinny16],
        ("bf16", "nt"): [large, small, skinny64, skinny16],
        ("bf16", "nn"): [large, small, skinny64, skinny16],
        ("f16", "tn"): [large, small, skinny16],
        ("f16", "tt"): [large, small],
        ("f16", "nt"): [large, small],
        ("f16", "nn"): [large, small],
    }
    for (dtype, layout), chosen in lean.items():
        for design in chosen:
            yield _sm90(dtype, layout, dtype, "linear", design)
        if dtype == "bf16":
            yield _sm90(dtype, layout, dtype, "linearc", square)
        yield _sm90(dtype, layout, dtype, "linearc", _SM90_DIRECT[0])
        if layout == "tn" or (dtype, layout) == ("bf16", "tt"):  # the others pack an operand for an f32 D
            yield _sm90(dtype, layout, "f32", "linearc", _SM90_DIRECT[0])


# Tile, warp tile, stages of the 2.x kernels, by accesses of `align` elements. cp.async moves 4 bytes or more: below
# that the two-stage pipeline through registers is the only one.
_SM80_HALF: dict[int, list[tuple[Tile, Tile, int]]] = {
    8: [((128, 128, 32), (64, 64, 32), 4), ((64, 64, 32), (32, 32, 32), 6)],
    4: [((128, 128, 32), (64, 64, 32), 4)],
    2: [((128, 128, 32), (64, 64, 32), 4)],
    1: [((128, 128, 32), (64, 64, 32), 2)],
}
_SM80_HALF_MORE: dict[int, list[tuple[Tile, Tile, int]]] = {
    8: [((128, 256, 32), (64, 64, 32), 3), ((256, 128, 32), (64, 64, 32), 3)],
    2: [((64, 64, 32), (32, 32, 32), 4)],
    1: [((64, 64, 32), (32, 32, 32), 2)],
}
_SM80_TF32: dict[int, list[tuple[Tile, Tile, int]]] = {
    4: [((128, 128, 16), (64, 64, 16), 4)],
    2: [((128, 128, 16), (64, 64, 16), 4)],
    1: [((128, 128, 16), (64, 64, 16), 4)],
}
_SIMT_F32: list[tuple[Tile, Tile, int]] = [((128, 128, 8), (32, 64, 8), 4), ((64, 64, 8), (32, 32, 8), 4)]
_SM80_F64: list[tuple[Tile, Tile, int]] = [((128, 128, 16), (32, 64, 16), 3), ((64, 64, 16), (32, 32, 16), 3)]
_SM90_F64: list[tuple[Tile, Tile, int]] = [((128, 128, 16), (64, 32, 16), 3)]


def _2x(family: str, dtype: str, layout: str, d: str, align: int, design: tuple[Tile, Tile, int]) -> KernelConfig:
    tile, warp, stages = design
    return KernelConfig(family, dtype, dtype, d, layout, tile, "linearc", warp=warp, stages=stages, align=align)


def _sm80(half_ladders: list[dict[int, list[tuple[Tile, Tile, int]]]]) -> Iterator[KernelConfig]:
    for layout in LAYOUTS:
        for dtype, ladder in product(("bf16", "f16"), half_ladders):
            for d, (align, designs) in product((dtype, "f32"), ladder.items()):
                for design in designs:
                    yield _2x("sm80_gemm", dtype, layout, d, align, design)
        for align, designs in _SM80_TF32.items():
            for design in designs:
                yield _2x("sm80_gemm", "tf32", layout, "f32", align, design)
        for design in _SM80_F64:
            yield _2x("sm80_gemm", "f64", layout, "f64", 1, design)


def _simt() -> Iterator[KernelConfig]:
    for layout, design in product(LAYOUTS, _SIMT_F32):
        yield _2x("simt_gemm", "f32", layout, "f32", 1, design)


def _sm90_f64() -> Iterator[KernelConfig]:
    for layout, design in product(LAYOUTS, _SM90_F64):
        yield _2x("sm90_dgemm", "f64", layout, "f64", 1, design)


# sm_80 machine code does not run on 9.0: without its own copy every kernel would cost the driver 0.4 s of PTX
# compilation. The PTX serves whatever comes after.
_SM80_GENCODE = ("arch=compute_80,code=[sm_80,sm_90,compute_80]",)

FAMILIES = {
    f.name: f
    for f in [
        Family(
            "sm90_gemm",
            "TMA + wgmma",
            api=3,
            cc=(90, 90),  # sm_90a code is architecture-specific: it runs on 9.0 alone
            arch="90a",
            gencode=("arch=compute_90a,code=sm_90a",),
            header="gemm/api3x.cuh",
            cpp_arch="cutlass::arch::Sm90",
            full=tuple(_sm90_full()),
            core=tuple(_sm90_core()),
        ),
        Family(
            "sm80_gemm",
            "mma.sync tensor cores",
            api=2,
            cc=(80, 999),
            arch="80",
            gencode=_SM80_GENCODE,
            header="gemm/api2x.cuh",
            cpp_arch="cutlass::arch::Sm80",
            full=tuple(_sm80([_SM80_HALF, _SM80_HALF_MORE])),
            core=tuple(_sm80([_SM80_HALF])),
            per_file=24,
        ),
        Family(
            "simt_gemm",
            "exact f32 on the CUDA cores",
            api=2,
            cc=(80, 999),
            arch="80",
            gencode=_SM80_GENCODE,
            header="gemm/api2x.cuh",
            cpp_arch="cutlass::arch::Sm80",
            full=tuple(_simt()),
            core=tuple(_simt()),
            per_file=24,
        ),
        Family(
            "sm90_dgemm",
            "f64 tensor cores with the sm90 instruction shape",
            api=2,
            cc=(90, 90),
            arch="90a",
            gencode=("arch=compute_90,code=sm_90",),
            header="gemm/api2x.cuh",
            cpp_arch="cutlass::arch::Sm90",
            full=tuple(_sm90_f64()),
            core=tuple(_sm90_f64()),
            per_file=24,
        ),
    ]
}

# 2.x: operator class and instruction shape by (family, dtype of the operands).
_INSTRUCTION = {
    ("sm80_gemm", "f16"): ("TensorOp", (16, 8, 16)),
    ("sm80_gemm", "bf16"): ("TensorOp", (16, 8, 16)),
    ("sm80_gemm", "tf32"): ("TensorOp", (16, 8, 8)),
    ("sm80_gemm", "f64"): ("TensorOp", (8, 8, 4)),
    ("sm90_dgemm", "f64"): ("TensorOp", (16, 8, 4)),
    ("simt_gemm", "f32"): ("Simt", (1, 1, 1)),
}


def declared() -> dict[str, KernelConfig]:
    """Every declared kernel by name, compiled or not."""
    return {c.name: c for f in FAMILIES.values() for c in (*f.full, *f.core)}


def select(kernels: str, archs: list[str]) -> list[KernelConfig]:
    """The kernels to build.

    Args:
        kernels: "core", "full", or the path of a file with one kernel name per line (# starts a comment).
        archs: entries of CUTLASS_PY_ARCHS, such as ["80", "90a"].

    Raises:
        ValueError: an architecture or a kernel name that is not declared.
    """
    known = sorted({f.arch for f in FAMILIES.values()})
    for arch in archs:
        if arch not in known:
            raise ValueError(f"CUTLASS_PY_ARCHS: {arch!r} is not one of {', '.join(known)}")
    if kernels in ("core", "full"):
        wanted = [c for f in FAMILIES.values() for c in getattr(f, kernels)]
    else:
        with open(kernels, encoding="utf-8") as file:
            names = [line.split("#")[0].strip() for line in file]
        configs = declared()
        for name in filter(None, names):
            if name not in configs:
                raise ValueError(f"{kernels}: no kernel is called {name!r}")
        wanted = [configs[name] for name in filter(None, names)]
    return [c for c in dict.fromkeys(wanted) if FAMILIES[c.family].arch in archs]


# ---------------------------------------------------------------------------------------------------- C++


def _shape(template: str, extents: tuple[int, ...]) -> str:
    parts = [f"cute::_{x}" for x in extents] if template == "cute::Shape" else [str(x) for x in extents]
    return f"{template}<{', '.join(parts)}>"


def _fields_3x(c: KernelConfig) -> dict[str, str]:
    schedule = SCHEDULES[c.schedule]
    return {
        "using C": DTYPES[c.d].cpp if EPILOGUES[c.epilogue].source else "void",
        "using Tile": _shape("cute::Shape", c.tile),
        "using Cluster": _shape("cute::Shape", c.cluster),
        "using MainloopSchedule": schedule.mainloop,
        "using EpilogueSchedule": schedule.epilogue,
        "static constexpr bool swap": str(schedule.swap).lower(),
    }


def _fields_2x(c: KernelConfig) -> dict[str, str]:
    op_class, instruction = _INSTRUCTION[c.family, c.a]
    return {
        "using Arch": FAMILIES[c.family].cpp_arch,
        "using OpClass": f"cutlass::arch::OpClass{op_class}",
        "using Tile": _shape("cutlass::gemm::GemmShape", c.tile),
        "using Warp": _shape("cutlass::gemm::GemmShape", c.warp),
        "using Instruction": _shape("cutlass::gemm::GemmShape", instruction),
        "static constexpr int stages": str(c.stages),
        "static constexpr int align": str(c.align),
        "static constexpr int align_d": str(c.align_d),
    }


def definition(c: KernelConfig) -> str:
    """The C++ that defines one kernel, without its family's header."""
    api = FAMILIES[c.family].api
    fields = {
        "using A": DTYPES[c.a].cpp,
        "using B": DTYPES[c.b].cpp,
        "using D": DTYPES[c.d].cpp,
        "using Accumulator": DTYPES[c.accumulator].cpp,
        "using LayoutA": _LAYOUT_CPP[c.layout[0]],
        "using LayoutB": _LAYOUT_CPP[c.layout[1]],
        **(_fields_3x(c) if api == 3 else _fields_2x(c)),
    }
    body = "".join(f"  {name} = {value};\n" for name, value in fields.items())
    return (
        f"struct config_{c.name} {{\n{body}}};\nCUTLASS_PY_KERNEL({c.name}, cutlass_py::Gemm{api}x<config_{c.name}>)\n"
    )


def source(configs: list[KernelConfig]) -> str:
    """A whole translation unit with kernels of one family."""
    header = FAMILIES[configs[0].family].header
    return f'#include "{header}"\n\n' + "\n".join(map(definition, configs))
