"""Every public error: its type, and that the message names the operand, what was found and what was expected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers import MUTABLE, make

from cutlass_py import CudaError, GemmArguments, NoKernelError, TensorSpec, explain, gemm, get_kernels, view

F32 = np.float32
A = np.ones((3, 4), F32)
B = np.ones((4, 5), F32)
C = np.ones((3, 5), F32)
A3, B3, C3 = (np.ones((2, *x.shape), F32) for x in (A, B, C))
BUFFER = np.zeros((8, 8), F32)
SQUARE = BUFFER[:4, :4]
STORAGE = "f16, bf16, f32, f64, e4m3, e5m2"


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


# What is called, the type of the error, and what its message says.
CASES = {
    # ranks
    "a vector": (lambda: gemm(A[0], B), ValueError, r"gemm: a is \(4,\); expected 2 dimensions, or 3 with a batch"),
    "b vector": (lambda: gemm(A, B[:, 0]), ValueError, r"gemm: b is \(4,\); expected 2 dimensions"),
    "a 0-d": (lambda: gemm(zeros(), B), ValueError, r"gemm: a is \(\); expected 2 dimensions"),
    "b 4-d": (lambda: gemm(A, B3[None]), ValueError, r"gemm: b is \(1, 2, 4, 5\); expected 2 dimensions"),
    "c vector": (lambda: gemm(A, B, c=C[0]), ValueError, r"gemm: c is \(5,\); expected 2 dimensions"),
    "9-d": (lambda: gemm(zeros(*[1] * 9), B), ValueError, "gemm: a has 9 dimensions; expected 2 or 3"),
    # shapes
    "inner": (lambda: gemm(A, A), ValueError, r"gemm: a is \(3, 4\) but b is \(3, 4\); inner extents must agree"),
    "inner batched": (lambda: gemm(A3, A), ValueError, r"a is \(2, 3, 4\) but b is \(3, 4\); inner extents must agree"),
    "batch": (
        lambda: gemm(A3, np.ones((3, 4, 5), F32)),
        ValueError,
        r"a is \(2, 3, 4\) but b is \(3, 4, 5\); batch extents must agree or be 1",
    ),
    "batch 0": (
        lambda: gemm(A3, zeros(0, 4, 5)),
        ValueError,
        r"a is \(2, 3, 4\) but b is \(0, 4, 5\); batch extents must agree or be 1",
    ),
    "out shape": (lambda: gemm(A, B, out=zeros(5, 3)), ValueError, r"gemm: out is \(5, 3\); expected \(3, 5\)"),
    "out rank": (lambda: gemm(A, B, out=zeros(1, 3, 5)), ValueError, r"out is \(1, 3, 5\); expected \(3, 5\)"),
    "out of a batch": (lambda: gemm(A3, B, out=zeros(3, 5)), ValueError, r"out is \(3, 5\); expected \(2, 3, 5\)"),
    "out does not broadcast": (
        lambda: gemm(A3, B, out=zeros(1, 3, 5)),
        ValueError,
        r"out is \(1, 3, 5\); expected \(2, 3, 5\)",
    ),
    "c shape": (lambda: gemm(A, B, c=zeros(5, 3)), ValueError, r"gemm: c is \(5, 3\); expected \(3, 5\)$"),
    "c row": (lambda: gemm(A, B, c=zeros(1, 5)), ValueError, r"gemm: c is \(1, 5\); expected \(3, 5\)$"),
    "c of a batch": (
        lambda: gemm(A3, B, c=zeros(3, 3, 5)),
        ValueError,
        r"c is \(3, 3, 5\); expected \(3, 5\) or \(2, 3, 5\)",
    ),
    "c batched alone": (lambda: gemm(A, B, c=C3), ValueError, r"gemm: c is \(2, 3, 5\); expected \(3, 5\)$"),
    # dtypes
    "int": (lambda: gemm(A.astype(int), B), TypeError, rf"gemm: a has dtype int64.*; expected one of {STORAGE}"),
    "b uint8": (
        lambda: gemm(A, B.astype(np.uint8)),
        TypeError,
        rf"gemm: b has dtype uint8.*; expected one of {STORAGE}",
    ),
    "bool": (lambda: gemm(A.astype(bool), B), TypeError, "gemm: a has dtype bool"),
    "complex": (lambda: gemm(A, B.astype(complex)), TypeError, "gemm: b has dtype complex128"),
    "c int": (lambda: gemm(A, B, c=C.astype(int)), TypeError, "gemm: c has dtype int64"),
    "out int": (lambda: gemm(A, B, out=C.astype(int)), TypeError, "gemm: out has dtype int64"),
    "mixed": (lambda: gemm(A, B.astype(np.float64)), TypeError, "gemm: a is f32 but b is f64; both must have the same"),
    "mixed 8 bit": (
        lambda: gemm(A.astype(ml_dtypes.float8_e4m3fn), B.astype(ml_dtypes.float8_e5m2)),
        TypeError,
        "gemm: a is e4m3 but b is e5m2; both must have the same dtype",
    ),
    "mixed 16 bit": (
        lambda: gemm(A.astype(np.float16), B.astype(ml_dtypes.bfloat16)),
        TypeError,
        "gemm: a is f16 but b is bf16",
    ),
    "out and out_dtype": (
        lambda: gemm(A, B, out=zeros(3, 5), out_dtype="f64"),
        TypeError,
        "gemm: out is f32 but out_dtype is f64",
    ),
    "out_dtype name": (
        lambda: gemm(A, B, out_dtype="f33"),
        TypeError,
        f"gemm: out_dtype is 'f33'; expected one of {STORAGE}",
    ),
    "out_dtype tf32": (lambda: gemm(A, B, out_dtype="tf32"), TypeError, "gemm: out_dtype is 'tf32'; expected one of"),
    "out_dtype int": (lambda: gemm(A, B, out_dtype=np.int8), TypeError, "gemm: out_dtype is .*int8.*; expected one of"),
    "out_dtype number": (lambda: gemm(A, B, out_dtype=3), TypeError, "gemm: out_dtype is 3; expected one of"),
    # scalars and options
    "beta alone": (lambda: gemm(A, B, beta=1.0), ValueError, "gemm: beta is given but c is not"),
    "beta zero alone": (lambda: gemm(A, B, out=zeros(3, 5), beta=0), ValueError, "gemm: beta is given but c is not"),
    "alpha str": (lambda: gemm(A, B, alpha="2"), TypeError, "gemm: alpha is a str; expected a number"),
    "alpha complex": (lambda: gemm(A, B, alpha=1j), TypeError, "gemm: alpha is a complex; expected a number"),
    "alpha array": (lambda: gemm(A, B, alpha=np.ones(1)), TypeError, "gemm: alpha is an array; expected a number"),
    "alpha 0-d": (lambda: gemm(A, B, alpha=np.array(2.0)), TypeError, "gemm: alpha is an array; expected a number"),
    "beta list": (lambda: gemm(A, B, c=C, beta=[1]), TypeError, "gemm: beta is a list; expected a number"),
    "compute": (
        lambda: gemm(A, B, compute="f16"),
        ValueError,
        "gemm: compute='f16' is not one of 'f32', 'tf32' for f32",
    ),
    "compute f64": (
        lambda: gemm(A.astype(float), B.astype(float), compute="f32"),
        ValueError,
        "compute='f32' is not one of 'f64' for f64 inputs",
    ),
    "compute type": (lambda: gemm(A, B, compute=32), TypeError, "gemm: compute must be a string such as 'tf32'"),
    "kernel name": (lambda: gemm(A, B, kernel="typo"), ValueError, "gemm: no kernel is called 'typo'; .*get_kernels"),
    "kernel type": (lambda: gemm(A, B, kernel=3), TypeError, "gemm: kernel is a int; expected a Kernel or its name"),
    "kernel of a GPU": (
        lambda: gemm(A, B, kernel=get_kernels(compiled=False)[0]),
        ValueError,
        r"gemm: kernel \w+_gemm_\w+ (is declared but not in the built set|does not fit .*: runs on a GPU)",
    ),
    # no arrays
    "list": (lambda: gemm([[1.0]], B), TypeError, "gemm: a is a builtins.list; expected an array that speaks DLPack"),
    "str": (lambda: gemm(A, "b"), TypeError, "gemm: b is a builtins.str; expected an array that speaks DLPack"),
    "class": (lambda: gemm(np.ndarray, B), TypeError, "gemm: a is a builtins.type; expected an array that speaks"),
    "scalar": (lambda: gemm(F32(1), B), TypeError, "gemm: a is a numpy.float32; expected an array that speaks DLPack"),
    "c number": (lambda: gemm(A, B, c=1.0), TypeError, "gemm: c is a builtins.float; expected an array that speaks"),
    "out object": (lambda: gemm(A, B, out=object()), TypeError, "gemm: out is a builtins.object; expected an array"),
    "spec": (
        lambda: gemm(TensorSpec((3, 4), "f32", device="cpu"), B),
        TypeError,
        "gemm: a is a TensorSpec, which has no",
    ),
    "spec out": (
        lambda: gemm(A, B, out=TensorSpec((3, 5), "f32", device="cpu")),
        TypeError,
        "gemm: out is a TensorSpec",
    ),
    # calls
    "no b": (lambda: gemm(A), TypeError, "incompatible function arguments"),
    "out by position": (lambda: gemm(A, B, C), TypeError, "incompatible function arguments"),
    "unknown keyword": (lambda: gemm(A, B, bais=C), TypeError, "bais"),
    # overlap
    "out is a": (
        lambda: gemm(SQUARE, np.eye(4, dtype=F32), out=SQUARE),
        ValueError,
        "gemm: out shares elements with a;",
    ),
    "out is b": (
        lambda: gemm(np.eye(4, dtype=F32), SQUARE, out=SQUARE),
        ValueError,
        "gemm: out shares elements with b;",
    ),
    "one element": (
        lambda: gemm(SQUARE, np.ones((4, 4), F32), out=BUFFER[3:7, 3:7]),
        ValueError,
        "gemm: out shares elements with a;",
    ),
    "c moved by one": (
        lambda: gemm(np.ones((4, 4), F32), np.ones((4, 4), F32), c=BUFFER[:4, 1:5], out=SQUARE),
        ValueError,
        "gemm: out shares elements with c; it may only be c itself, element for element",
    ),
    "c transposed": (
        lambda: gemm(np.ones((4, 4), F32), np.ones((4, 4), F32), c=SQUARE.T, out=SQUARE),
        ValueError,
        "gemm: out shares elements with c",
    ),
    "c backwards": (
        lambda: gemm(np.ones((4, 4), F32), np.ones((4, 4), F32), c=SQUARE[::-1], out=SQUARE),
        ValueError,
        "gemm: out shares elements with c",
    ),
    "c reread as bf16": (
        lambda: gemm(*[np.ones((4, 4), F32)] * 2, c=BUFFER.view(ml_dtypes.bfloat16)[:4, :4], out=SQUARE),
        ValueError,
        "gemm: out shares elements with c",
    ),
    "strides interleave": (
        lambda: gemm(BUFFER[:, ::2], np.ones((4, 3), F32), out=BUFFER[:, ::3]),
        ValueError,
        "out shares elements with a",
    ),
    "out of stride 0": (
        lambda: gemm(A, B, out=np.lib.stride_tricks.as_strided(zeros(5), (3, 5), (0, 4))),
        ValueError,
        "gemm: out overlaps itself",
    ),
    "out of overlapping rows": (
        lambda: gemm(A, B, out=np.lib.stride_tricks.as_strided(zeros(15), (3, 5), (8, 4))),
        ValueError,
        "gemm: out overlaps itself",
    ),
    "out of a broadcast batch": (
        lambda: gemm(A3, B, out=np.lib.stride_tricks.as_strided(zeros(15), (2, 3, 5), (0, 20, 4))),
        ValueError,
        "gemm: out overlaps itself",
    ),
    # memory
    "misaligned": (
        lambda: gemm(np.frombuffer(bytes(49), np.uint8)[1:].view(F32).reshape(3, 4), B),
        ValueError,
        "gemm: a starts at an address that is no multiple of its element size",
    ),
    # views
    "view of another size": (
        lambda: gemm(view(A, "bf16"), B),
        TypeError,
        "gemm: a is viewed as bf16 but its elements have 32 bits",
    ),
    "view as tf32": (lambda: view(A, "tf32"), TypeError, f"dtype is 'tf32'; expected one of {STORAGE}"),
    "view of no array": (lambda: gemm(view([1], "f32"), B), TypeError, "gemm: a is a builtins.list; expected an array"),
    # specs and questions
    "spec rank": (lambda: TensorSpec((1,) * 9, "f32"), ValueError, "TensorSpec: 9 dimensions; expected at most 8"),
    "spec strides": (lambda: TensorSpec((3, 4), "f32", (1,)), ValueError, "TensorSpec: 2 extents but 1 strides"),
    "spec alignment": (
        lambda: TensorSpec((3, 4), "f32", alignment=12),
        ValueError,
        "TensorSpec: alignment is 12; expected a power of two",
    ),
    "spec alignment 0": (
        lambda: TensorSpec((3, 4), "f32", alignment=0),
        ValueError,
        "alignment is 0; expected a power",
    ),
    "spec device": (
        lambda: TensorSpec((3, 4), "f32", device="tpu"),
        ValueError,
        "TensorSpec: device is 'tpu'; expected 'cpu', 'cuda' or 'cuda:<ordinal>'",
    ),
    "spec ordinal": (lambda: TensorSpec((3, 4), "f32", device="cuda:-1"), ValueError, "device is 'cuda:-1'; expected"),
    "spec dtype": (lambda: TensorSpec((3, 4), "float33"), TypeError, f"dtype is 'float33'; expected one of {STORAGE}"),
    "spec extent": (lambda: TensorSpec((3.5, 4), "f32"), TypeError, "incompatible function arguments"),
    "spec too large": (
        lambda: GemmArguments(TensorSpec((2**31, 4), "f32"), TensorSpec((4, 4), "f32")),
        ValueError,
        r"gemm: a is \(2147483648, 4\); extents above 2147483647 are not supported",
    ),
    "devices": (
        lambda: GemmArguments(TensorSpec((3, 4), "f32"), B),
        ValueError,
        "gemm: a is on cuda:0 but b is on cpu",
    ),
    "two devices": (
        lambda: GemmArguments(TensorSpec((3, 4), "f32"), TensorSpec((4, 5), "f32", device="cuda:1")),
        ValueError,
        "gemm: a is on cuda:0 but b is on cuda:1",
    ),
    "c on a device": (
        lambda: GemmArguments(A, B, c=TensorSpec((3, 5), "f32", device="cuda:3")),
        ValueError,
        "gemm: a is on cpu but c is on cuda:3",
    ),
    "out on a device": (
        lambda: GemmArguments(A, B, out=TensorSpec((3, 5), "f32")),
        ValueError,
        "gemm: a is on cpu but out is on cuda:0",
    ),
    "arguments unknown keyword": (lambda: GemmArguments(A, B, bias=C), TypeError, "bias"),
    "explain an array": (lambda: explain(A), TypeError, "expected GemmArguments, found ndarray"),
    "get_kernels of an array": (lambda: get_kernels(A), TypeError, "expected GemmArguments, found ndarray"),
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_message(call, error, message):
    BUFFER[...] = 7
    before = [x.copy() for x in (A, B, C, BUFFER)]
    with pytest.raises(error, match=message):
        call()
    assert all(np.array_equal(x, y) for x, y in zip((A, B, C, BUFFER), before, strict=True)), "something was written"
    assert (gemm(A, B) == 4).all()  # the next call works


def test_a_refused_out_is_not_written():
    out = np.full((3, 5), 7, F32)
    for keywords in ({"out_dtype": "f64"}, {"beta": 1}, {"c": A}, {"compute": "?"}, {"kernel": "?"}, {"alpha": "?"}):
        with pytest.raises((ValueError, TypeError)):
            gemm(A, B, out=out, **keywords)
    assert (out == 7).all()


def test_types_of_errors():
    assert issubclass(NoKernelError, NotImplementedError)
    assert issubclass(CudaError, RuntimeError)


@pytest.mark.parametrize(
    "array",
    [
        A.astype(object),
        A.astype(np.longdouble),
        A.astype(">f4"),
        A.astype("M8[s]"),
        A.astype("U3"),
        np.zeros((3, 4), [("x", "f4")]),
        np.zeros((3, 4), "V4"),
        np.zeros((3, 4), ml_dtypes.int4),
        np.zeros((3, 4), ml_dtypes.float8_e4m3fnuz),
        np.zeros((3, 4), ml_dtypes.bfloat16).astype(">f2"),
    ],
    ids=lambda x: str(x.dtype),
)
def test_numpy_dtypes_that_dlpack_has_not(array):
    with pytest.raises(TypeError, match=rf"gemm: b has dtype .*; expected one of {STORAGE}"):
        gemm(A, array.T)


ODD_VALUES = [
    pytest.param(lambda: gemm(None, B), TypeError, "gemm: a is "),
    pytest.param(lambda: gemm(A, B, alpha=None), TypeError, "gemm: alpha is a NoneType"),
    pytest.param(lambda: gemm(A, B, out_dtype=["f32"]), TypeError, "gemm: out_dtype is "),
    pytest.param(lambda: gemm(A, B, compute="\udc80"), ValueError, "gemm: compute"),
    pytest.param(lambda: gemm(A, B, stream="fast"), TypeError, "gemm: stream must be an int"),
    pytest.param(lambda: gemm(A, B, alpha=10**400), (TypeError, ValueError, OverflowError), "alpha .*(large|range)"),
    pytest.param(lambda: gemm(view(view(A, "f32"), "f32"), B), TypeError, "gemm: a is a .*[vV]iew"),
    pytest.param(lambda: gemm(np.ma.masked_array(A, A > 0), B), TypeError, "gemm: a is a .*MaskedArray"),
    pytest.param(lambda: TensorSpec((-3, 4), "f32"), ValueError, "TensorSpec: .*-3"),
    pytest.param(lambda: TensorSpec((3, 4), "f32", device="cuda:\u00b2"), ValueError, "TensorSpec: device"),
    pytest.param(lambda: TensorSpec((3, 4), "f32", device=0), (TypeError, ValueError), "TensorSpec: device"),
    pytest.param(lambda: explain(GemmArguments(A, B), alpha=2), TypeError, "alpha"),
]


@pytest.mark.parametrize(("call", "error", "message"), ODD_VALUES)
def test_odd_values(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("framework", MUTABLE)
def test_overlap_is_seen_in_every_framework(framework):
    x = make(framework, np.ones((6, 6)), "bf16")
    for out in (x, x.T):
        with pytest.raises(ValueError, match="gemm: out shares elements with a"):
            gemm(x, make(framework, np.ones((6, 6)), "bf16"), out=out)


def test_overlap_between_frameworks():
    torch = pytest.importorskip("torch")
    x = np.ones((4, 4), F32)
    with pytest.raises(ValueError, match="gemm: out shares elements with b"):
        gemm(np.ones((4, 4), F32), x, out=torch.from_numpy(x))
