"""Number formats and arithmetics: dtypes, what `compute=` means for each, which go together.

Standard library only, no imports from the package: the build reads it before the package exists.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dtype:
    """A number format: its CUTLASS type, DLPack type code, and the name NumPy, ml_dtypes and torch give it."""

    name: str
    bits: int
    cpp: str
    dlpack: int
    numpy: str
    storage: str = ""  # the dtype of the array in memory, where that is not the dtype itself; `stored` in any case
    mantissa: int = 0  # bits of it as a number lies in memory, or each part of a complex one; integers have none
    scalar: str = "f32"  # the dtype of factors and scales in memory beside sums in this one

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.bits // 8

    @property
    def roundoff(self) -> float:
        """What rounding to it costs at most, relatively; 0 for integers, whose sums are exact."""
        return 0.5 ** (self.mantissa + 1) if self.mantissa else 0.0

    @property
    def stored(self) -> str:
        """The dtype of the array in memory."""
        return self.storage or self.name


# The order is the numbering used by C++ (dtype.h): append only.
_DTYPES = [
    Dtype("f16", 16, "cutlass::half_t", 2, "float16", mantissa=10),
    Dtype("bf16", 16, "cutlass::bfloat16_t", 4, "bfloat16", mantissa=7),
    Dtype("f32", 32, "float", 2, "float32", mantissa=23),
    Dtype("f64", 64, "double", 2, "float64", mantissa=52, scalar="f64"),
    Dtype("tf32", 32, "float", 2, "float32", storage="f32", mantissa=23),
    Dtype("e4m3", 8, "cutlass::float_e4m3_t", 10, "float8_e4m3fn", mantissa=3),
    Dtype("e5m2", 8, "cutlass::float_e5m2_t", 12, "float8_e5m2", mantissa=2),
    Dtype("s8", 8, "int8_t", 0, "int8"),
    Dtype("u8", 8, "uint8_t", 1, "uint8"),
    Dtype("s32", 32, "int32_t", 0, "int32"),
    Dtype("c64", 64, "cutlass::complex<float>", 5, "complex64", mantissa=23, scalar="c64"),
    Dtype("c128", 128, "cutlass::complex<double>", 5, "complex128", mantissa=52, scalar="c128"),
    # Three tf32 products that add up to f32's accuracy.
    Dtype("tf32x3", 32, "float", 2, "float32", storage="f32", mantissa=23),
    # An fp8 sum that stays in the tensor cores: about 14 bits.
    Dtype("fast", 32, "float", 2, "float32", storage="f32", mantissa=23),
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
ARITHMETICS = [x for row in COMPUTE.values() for x in row.values()]


def arithmetic(dtype: str, compute: str | None = None) -> Arithmetic:
    """What `compute` names for inputs of this dtype, by default the first; KeyError where that is nothing."""
    row = COMPUTE[dtype]
    return row[compute or next(iter(row))]


def usual_arithmetic(operand: str) -> Arithmetic:
    """The first with factors of this dtype."""
    return next(x for x in ARITHMETICS if x.operand == operand)


def compute_of(operand: str, accumulator: str) -> str:
    """The name of such products in `compute`."""
    named = ((name, x) for row in COMPUTE.values() for name, x in row.items())
    return next(name for name, x in named if (x.operand, x.accumulator) == (operand, accumulator))


# Input dtypes that may be multiplied with each other; every dtype also with itself.
PAIRS = (("e4m3", "e5m2"), ("s8", "u8"))
# A problem that allows the first accumulator may also be summed in the second, which is more accurate.
WIDER = {"fast": "f32", "f16": "f32"}

# What shares a factor where scales are in blocks: so many elements of k, and of B so many columns, or each by itself.
BLOCK = 128

# Layouts as in BLAS, for A then B: t row-major, n column-major. D is always row-major (problem.h transposes).
LAYOUTS = ("tn", "tt", "nt", "nn")
