"""Errors about operands and specs: their type, and that they name the operand, what was found, what was expected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from refusals import A3, C3, C64, COLUMN, F32, I8, LIST_A, LIST_B, STORAGE, A, B, C, assert_refused, zeros

from cutlass_py import CudaError, GemmArguments, NoKernelError, TensorSpec, explain, gemm, get_kernels, view

# What is called, the type of the error, and what its message says.
CASES = {
    # ranks
    "a 0-d": (lambda: gemm(zeros(), B), ValueError, r"gemm: a is \(\); expected at least 1 dimension"),
    "b 0-d": (lambda: gemm(A, zeros()), ValueError, r"gemm: b is \(\); expected at least 1 dimension"),
    "9-d": (lambda: gemm(zeros(*[1] * 9), B), ValueError, "gemm: a has 9 dimensions; expected at most 8"),
    "c vector": (lambda: gemm(A, B, c=C[0]), ValueError, r"gemm: c is \(5,\); expected \(3, 5\)"),
    "vectors": (lambda: gemm(A[0], B[0]), ValueError, r"gemm: a is \(4,\) but b is \(5,\); inner extents must agree"),
    "vector and matrix": (lambda: gemm(A[0], A), ValueError, r"a is \(4,\) but b is \(3, 4\); inner extents must"),
    "out of a vector": (lambda: gemm(A[0], B, out=zeros(1, 5)), ValueError, r"out is \(1, 5\); expected \(5,\)$"),
    "c of a vector": (lambda: gemm(A, B[:, 0], c=COLUMN), ValueError, r"c is \(3, 1\); expected \(3,\)$"),
    "out of two vectors": (lambda: gemm(A[0], A[0], out=zeros(1)), ValueError, r"out is \(1,\); expected \(\)$"),
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
    "b uint16": (
        lambda: gemm(A, B.astype(np.uint16)),
        TypeError,
        rf"gemm: b has dtype uint16.*; expected one of {STORAGE}",
    ),
    "b uint8": (lambda: gemm(A, B.astype(np.uint8)), TypeError, "gemm: a is f32 but b is u8; f32 goes with f32$"),
    "a int32": (
        lambda: gemm(A.astype(np.int32), B),
        TypeError,
        "gemm: a is s32; expected one of f16, bf16, f32, f64, e4m3, e5m2, s8, u8, c64, c128$",
    ),
    "bool": (lambda: gemm(A.astype(bool), B), TypeError, "gemm: a has dtype bool"),
    "complex": (lambda: gemm(A, B.astype(complex)), TypeError, "gemm: a is f32 but b is c128; f32 goes with f32$"),
    "two complex": (
        lambda: gemm(C64, B.astype(complex)),
        TypeError,
        "gemm: a is c64 but b is c128; c64 goes with c64$",
    ),
    "complex out": (
        lambda: gemm(A, B, out_dtype="c64"),
        TypeError,
        "gemm: out_dtype is c64 but a is f32; expected a real dtype",
    ),
    "real out": (
        lambda: gemm(C64, C64.T, out=zeros(3, 3)),
        TypeError,
        "gemm: out is f32 but a is c64; expected c64 or c128",
    ),
    "complex c": (
        lambda: gemm(A, B, c=C.astype(np.complex64)),
        TypeError,
        "gemm: c is c64; expected one of f16, bf16, f32, f64, e4m3, e5m2, s8, u8, s32$",
    ),
    "real c": (lambda: gemm(C64, C64.T, c=zeros(3, 3)), TypeError, "gemm: c is f32; expected one of c64, c128$"),
    "c int": (lambda: gemm(A, B, c=C.astype(int)), TypeError, "gemm: c has dtype int64"),
    "out int": (lambda: gemm(A, B, out=C.astype(int)), TypeError, "gemm: out has dtype int64"),
    "mixed": (lambda: gemm(A, B.astype(np.float64)), TypeError, "gemm: a is f32 but b is f64; f32 goes with f32$"),
    "mixed 8 bit": (
        lambda: gemm(I8, B.astype(ml_dtypes.float8_e5m2)),
        TypeError,
        "gemm: a is s8 but b is e5m2; s8 goes with s8 or u8$",
    ),
    "mixed 16 bit": (
        lambda: gemm(A.astype(np.float16), B.astype(ml_dtypes.bfloat16)),
        TypeError,
        "gemm: a is f16 but b is bf16",
    ),
    "4-d batch": (
        lambda: gemm(zeros(2, 3, 3, 4), zeros(2, 4, 5)),
        ValueError,
        r"a is \(2, 3, 3, 4\) but b is \(2, 4, 5\); batch extents must agree or be 1",
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
    "out_dtype int": (lambda: gemm(A, B, out_dtype=int), TypeError, "gemm: out_dtype is .*int.*; expected one of"),
    "out_dtype number": (lambda: gemm(A, B, out_dtype=3), TypeError, "gemm: out_dtype is 3; expected one of"),
    # lists
    "list empty": (lambda: gemm([], B), ValueError, "gemm: a is an empty list; expected one matrix or more"),
    "list lengths": (
        lambda: gemm(LIST_A, LIST_B[:2]),
        ValueError,
        "gemm: b is a list of 2 matrices but a is one of 3; expected equal lengths",
    ),
    "list of vectors": (
        lambda: gemm([A[0]], [B]),
        ValueError,
        r"gemm: a\[0\] is \(4,\); expected 2 dimensions: lists hold matrices",
    ),
    "list of inner extents": (
        lambda: gemm([A, A[:, :3]], B),
        ValueError,
        r"gemm: a\[1\] is \(3, 3\) but b is \(4, 5\); inner extents must agree",
    ),
    "list of dtypes": (
        lambda: gemm([A, A.astype(np.float16)], B),
        TypeError,
        r"gemm: a\[1\] is f16 but a\[0\] is f32; the matrices of a list agree in dtype",
    ),
    "list of results": (
        lambda: gemm([A, A[:2]], B, out=[zeros(3, 5), zeros(3, 5)]),
        ValueError,
        r"gemm: out\[1\] is \(3, 5\); expected \(2, 5\)",
    ),
    "list of addends": (
        lambda: gemm([A, A[:2]], B, c=zeros(3, 5)),
        ValueError,
        r"gemm: c is \(3, 5\); expected \(2, 5\)",
    ),
    "list of biases": (
        lambda: gemm(A, [B, B[:, :3]], bias=zeros(5)),
        ValueError,
        r"gemm: bias is \(5,\); expected \(3,\)",
    ),
    "list over itself": (
        lambda: (lambda x: gemm([A, A[:2]], B, out=[x[:3], x[2:4]]))(zeros(4, 5)),
        ValueError,
        r"gemm: out\[1\] shares elements with out\[0\]; matrices of a list are computed in any order",
    ),
    "list over another operand": (
        lambda: (lambda x: gemm([A, x], B[:, :4], out=[x[:3], zeros(5, 4)]))(zeros(5, 4)),
        ValueError,
        r"gemm: out\[0\] shares elements with a\[1\]; matrices of a list are",
    ),
    "list over what all share": (
        lambda: (lambda x: gemm([A, A], [B, np.asfortranarray(B)], c=x, out=[x, zeros(3, 5)]))(zeros(3, 5)),
        ValueError,
        r"gemm: out\[0\] shares elements with c; matrices of a list are",
    ),
    "list of numbers": (lambda: gemm(A, [B, 3]), TypeError, r"gemm: b\[1\] is an int; expected an array"),
    "list and batch": (
        lambda: gemm(LIST_A, np.ones((3, 4, 5), F32)),
        ValueError,
        r"gemm: b is \(3, 4, 5\); expected 2 dimensions beside a list of matrices",
    ),
    "list and array out": (
        lambda: gemm(LIST_A, B, out=zeros(3, 3, 5)),
        ValueError,
        "gemm: out is an array but a is a list; expected a list of 3 matrices",
    ),
    "list and list gate": (
        lambda: gemm(LIST_A, B, gate=[C, C, C]),
        ValueError,
        r"^gemm: gate is given with a list of matrices; pass a batch \(an array of 3 dimensions\) instead$",
    ),
    "list gate alone": (lambda: gemm(A, B, gate=[C]), TypeError, "gemm: gate is a list; expected an array that speaks"),
    "list c alone": (lambda: gemm(A, B, c=[C, C]), ValueError, "gemm: c is a list but neither a nor b is one"),
    "list out alone": (lambda: gemm(A, B, out=[zeros(3, 5)]), ValueError, "gemm: out is a list but neither a nor b is"),
    "list inner": (
        lambda: gemm(LIST_A, LIST_A),
        ValueError,
        r"a is \(3, 3, 4\) but b is \(3, 3, 4\); inner extents must",
    ),
    "list and gate": (
        lambda: gemm(LIST_A, B, gate=C),
        ValueError,
        r"gemm: gate is given with a list of matrices; pass a batch \(an array of 3 dimensions\) instead",
    ),
    "list and batch of biases": (
        lambda: gemm(LIST_A, B, bias=zeros(3, 1, 5)),
        ValueError,
        r"gemm: bias is \(3, 1, 5\); lists of matrices share one vector, which has 1 or 2 dimensions",
    ),
    "list and bias": (lambda: gemm(LIST_A, B, bias=zeros(3)), ValueError, r"gemm: bias is \(3,\); expected \(5,\)"),
    "list of a device": (
        lambda: GemmArguments([A, TensorSpec((3, 4), "f32")], B),
        ValueError,
        r"gemm: a\[0\] is on cpu but a\[1\] is on cuda:0",
    ),
    # no arrays
    "list": (
        lambda: gemm([[1.0]], B),
        TypeError,
        r"gemm: a\[0\] is a list; expected an array that speaks DLPack",
    ),
    "str": (lambda: gemm(A, "b"), TypeError, "gemm: b is a str; expected an array that speaks DLPack"),
    "class": (lambda: gemm(np.ndarray, B), TypeError, "gemm: a is a type; expected an array that speaks"),
    "scalar": (lambda: gemm(F32(1), B), TypeError, "gemm: a is a numpy.float32; expected an array that speaks DLPack"),
    "c number": (lambda: gemm(A, B, c=1.0), TypeError, "gemm: c is a float; expected an array that speaks"),
    "out object": (lambda: gemm(A, B, out=object()), TypeError, "gemm: out is an object; expected an array"),
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
    "view as tf32": (lambda: view(A, "tf32"), TypeError, f"^view: dtype is 'tf32'; expected one of {STORAGE}"),
    "view as nothing": (lambda: view(A, None), TypeError, f"^view: dtype is None; expected one of {STORAGE}"),
    "view of no array": (lambda: gemm(view([1], "f32"), B), TypeError, "gemm: a is a list; expected an array"),
    # specs and questions
    "spec rank": (lambda: TensorSpec((1,) * 9, "f32"), ValueError, "TensorSpec: 9 dimensions; expected at most 8"),
    "view order": (lambda: view(np.ones(4, np.int32), ">f4"), TypeError, "^view: dtype is '>f4'; expected one of"),
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
    "spec dtype": (
        lambda: TensorSpec((3, 4), "f33"),
        TypeError,
        f"^TensorSpec: dtype is 'f33'; expected one of {STORAGE}",
    ),
    "spec no dtype": (lambda: TensorSpec((3, 4), None), TypeError, "^TensorSpec: dtype is None; expected one of"),
    "spec list": (lambda: TensorSpec((3, 4), []), TypeError, "^TensorSpec: dtype is a list; expected one of"),
    "spec extent": (lambda: TensorSpec((3.5, 4), "f32"), TypeError, r"TensorSpec: shape is .*; expected whole numbers"),
    "spec too large": (
        lambda: GemmArguments(TensorSpec((2**31, 4), "f32"), TensorSpec((4, 4), "f32")),
        ValueError,
        r"gemm: a is \(2147483648, 4\); extents above 2147482624 are not supported",
    ),
    "a result too large": (
        lambda: gemm(np.broadcast_to(A, (2**30, 1, 3, 4)), np.broadcast_to(B, (2**30, 4, 5)), out_dtype="f64"),
        ValueError,
        r"^gemm: out would be \(1073741824, 1073741824, 3, 5\) of f64; expected less than 2\*\*63 bytes$",
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
    "arguments unknown keyword": (lambda: GemmArguments(A, B, bais=C), TypeError, "bais"),
    "explain an array": (
        lambda: explain(A),
        TypeError,
        "^explain: a is a numpy.ndarray and b is missing; expected both operands, or GemmArguments or another "
        "operation's$",
    ),
    "explain a keyword": (
        lambda: explain(A, bias=C),
        TypeError,
        "^explain: a is a numpy.ndarray and b is missing",
    ),
    "get_kernels of an array": (
        lambda: get_kernels(A),
        TypeError,
        "^get_kernels: args is a numpy.ndarray; expected GemmArguments or another operation's$",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_message(call, error, message):
    assert_refused(call, error, message)


def test_a_refused_out_is_not_written():
    out = np.full((3, 5), 7, F32)
    for keywords in ({"out_dtype": "f64"}, {"beta": 1}, {"c": A}, {"compute": "?"}, {"kernel": "?"}, {"alpha": "?"}):
        with pytest.raises((ValueError, TypeError)):
            gemm(A, B, out=out, **keywords)
    assert (out == 7).all()


@pytest.mark.parametrize("keyword", ["bias_grad", "aux"])
def test_jax_arrays_are_not_written(keyword):
    jax = pytest.importorskip("jax")
    array = jax.numpy.ones((3, 5) if keyword == "aux" else 5)
    with pytest.raises(TypeError, match=f"gemm: {keyword} is a JAX array, which is immutable"):
        gemm(A, B, **{keyword: array})
    assert gemm(A, B, aux=jax.numpy.ones((3, 5)), activation="d_relu").shape == (3, 5), "an aux that is read is fine"


@pytest.mark.parametrize("keyword", ["c", "bias", "gate", "aux", "scale_a", "scale_b", "alpha", "beta", "scale_out"])
def test_gradients_of_every_operand_are_refused(keyword):
    torch = pytest.importorskip("torch")
    shape = {"bias": (5,), "scale_a": (3,), "scale_b": (5,)}.get(keyword, (3, 5))
    x = torch.ones((1,) if keyword in ("alpha", "beta", "scale_out") else shape, requires_grad=True)
    a, b, c = torch.ones(3, 4), torch.ones(4, 5), torch.ones(3, 5)
    keywords = {"c": c, keyword: x} | ({"activation": "d_relu"} if keyword == "aux" else {})
    with pytest.raises(ValueError, match=f"gemm: {keyword} requires a gradient"):
        gemm(a, b, **keywords)
    with torch.no_grad():
        assert gemm(a, b, **keywords).shape == (3, 5)


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
        np.zeros((3, 4), "V0"),
        np.zeros((3, 4), []),
        np.zeros((3, 4), ml_dtypes.int4),
        np.zeros((3, 4), ml_dtypes.float8_e4m3fnuz),
        np.zeros((3, 4), ml_dtypes.bfloat16).astype(">f2"),
    ],
    ids=lambda x: str(x.dtype),
)
def test_numpy_dtypes_that_dlpack_has_not(array):
    with pytest.raises(TypeError, match=rf"gemm: b has dtype .*; expected one of {STORAGE}"):
        gemm(A, array.T)


STREAM = "expected the handle of a CUDA stream, a torch or CuPy stream, or what has __cuda_stream__"
ODD_VALUES = [
    pytest.param(lambda: gemm(None, B), TypeError, "gemm: a is "),
    pytest.param(lambda: gemm(A, B, alpha=None), TypeError, "gemm: alpha is a NoneType"),
    pytest.param(lambda: gemm(A, B, out_dtype=["f32"]), TypeError, "gemm: out_dtype is "),
    pytest.param(lambda: gemm(A, B, compute="\udc80"), ValueError, "gemm: compute"),
    pytest.param(lambda: gemm(A, B, stream="fast"), TypeError, f"^gemm: stream is a str; {STREAM}$"),
    pytest.param(lambda: gemm(A, B, stream=-1), TypeError, f"^gemm: stream is -1; {STREAM}$"),
    pytest.param(lambda: gemm(A, B, stream=True), TypeError, f"^gemm: stream is True; {STREAM}$"),
    pytest.param(lambda: gemm(A, B, stream=10**9999), TypeError, f"^gemm: stream is an int; {STREAM}$"),
    pytest.param(lambda: gemm(A, B, alpha=10**400), (TypeError, ValueError, OverflowError), "alpha .*(large|range)"),
    pytest.param(lambda: gemm(view(view(A, "f32"), "f32"), B), TypeError, "gemm: a is a .*[vV]iew"),
    pytest.param(lambda: gemm(np.ma.masked_array(A, A > 0), B), TypeError, "gemm: a is a .*MaskedArray"),
    pytest.param(lambda: TensorSpec((-3, 4), "f32"), ValueError, "TensorSpec: .*-3"),
    pytest.param(lambda: TensorSpec((2**63, 4), "f32"), ValueError, "TensorSpec: shape is .*; expected numbers of 64"),
    pytest.param(lambda: TensorSpec((2, 2**40, 2**40), "f32"), ValueError, "TensorSpec: strides is .* of 64 bits"),
    pytest.param(lambda: TensorSpec((3.0, 4), "f32"), TypeError, "TensorSpec: shape is .*; expected whole numbers"),
    pytest.param(lambda: TensorSpec(3, "f32"), TypeError, "TensorSpec: shape is 3; expected whole numbers"),
    pytest.param(lambda: TensorSpec("34", "f32"), TypeError, "TensorSpec: shape is '34'; expected whole numbers"),
    pytest.param(lambda: TensorSpec((3, 4), "f32", (4, 1.0)), TypeError, "TensorSpec: strides is .*; expected whole"),
    pytest.param(lambda: TensorSpec((3,), "f32", alignment=2**64), ValueError, "TensorSpec: alignment is .* of 64"),
    pytest.param(lambda: TensorSpec((3,), "f32", alignment="a"), TypeError, "TensorSpec: alignment is .* whole"),
    pytest.param(lambda: TensorSpec((3,), "f32", device="cuda:99999999999999"), ValueError, "TensorSpec: device is"),
    pytest.param(lambda: TensorSpec((3, 4), "f32", device="cuda:\u00b2"), ValueError, "TensorSpec: device"),
    pytest.param(lambda: TensorSpec((3, 4), "f32", device=0), (TypeError, ValueError), "TensorSpec: device"),
    pytest.param(lambda: explain(GemmArguments(A, B), alpha=2), TypeError, "alpha"),
]


@pytest.mark.parametrize(("call", "error", "message"), ODD_VALUES)
def test_odd_values(call, error, message):
    with pytest.raises(error, match=message):
        call()
