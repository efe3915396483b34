"""Every public error: its type, and that the message names the operand, what was found and what was expected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers import MUTABLE, make

from cutlass_py import (
    Activation,
    CudaError,
    GemmArguments,
    NoKernelError,
    TensorSpec,
    clamp,
    explain,
    gemm,
    get_kernels,
    leaky_relu,
    view,
)  # fmt: skip

F32 = np.float32
A = np.ones((3, 4), F32)
B = np.ones((4, 5), F32)
C = np.ones((3, 5), F32)
A3, B3, C3 = (np.ones((2, *x.shape), F32) for x in (A, B, C))
BUFFER = np.zeros((8, 8), F32)
SQUARE = BUFFER[:4, :4]
STORAGE = "f16, bf16, f32, f64, e4m3, e5m2, s8, u8, s32, c64, c128"
I8, C64 = np.ones((3, 4), np.int8), np.ones((3, 4), np.complex64)
ROW, COLUMN, ONE = np.ones(5, F32), np.ones((3, 1), F32), np.ones(1, F32)
LIST_A, LIST_B = [A, A.copy(), A.copy()], [B, B.copy(), B.copy()]
NAMES = "'identity', 'relu', 'leaky_relu', 'gelu', 'gelu_tanh', 'silu', 'sigmoid', 'tanh', 'hardswish', 'd_relu'"


SLOTS = [np.ones((3, 5), F32) for _ in range(4)]


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def frozen(*shape):
    array = zeros(*shape)
    array.flags.writeable = False
    return array


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
    # scalars and options
    "beta alone": (lambda: gemm(A, B, beta=1.0), ValueError, "gemm: beta is given but c is not"),
    "beta zero alone": (lambda: gemm(A, B, out=zeros(3, 5), beta=0), ValueError, "gemm: beta is given but c is not"),
    "alpha str": (lambda: gemm(A, B, alpha="2"), TypeError, "gemm: alpha is a str; expected a number"),
    "alpha complex": (lambda: gemm(A, B, alpha=1j), TypeError, "gemm: alpha is a complex; expected a number"),
    "alpha array": (lambda: gemm(A, B, alpha=np.ones(1)), TypeError, "gemm: alpha is f64; expected f32$"),
    "alpha int64": (
        lambda: gemm(A, B, alpha=np.array(2)),
        TypeError,
        "^gemm: alpha has dtype int64; expected f32, or the operands' dtype where that is f64, c64 or c128$",
    ),
    "alpha f32": (
        lambda: gemm(A.astype(float), B.astype(float), alpha=ONE),
        TypeError,
        "gemm: alpha is f32; expected f64$",
    ),
    "alpha of two": (
        lambda: gemm(A, B, alpha=np.ones(2, F32)),
        ValueError,
        r"gemm: alpha is \(2,\); expected a number or an array of one element",
    ),
    "beta of none": (lambda: gemm(A, B, c=C, beta=zeros(0)), ValueError, r"gemm: beta is \(0,\); expected a number or"),
    "beta array alone": (lambda: gemm(A, B, beta=ONE), ValueError, "gemm: beta is given but c is not"),
    "alpha on a device": (
        lambda: GemmArguments(A, B, alpha=TensorSpec((1,), "f32")),
        ValueError,
        "gemm: a is on cpu but alpha is on cuda:0",
    ),
    "alpha numpy complex": (
        lambda: gemm(A, B, alpha=np.complex64(1)),
        TypeError,
        "gemm: alpha is a numpy.complex64; expected a number",
    ),
    "alpha of many digits": (
        lambda: gemm(C64, C64.T, alpha=10**400),
        ValueError,
        "^gemm: alpha is too large for a float$",
    ),
    "alpha str of complex": (
        lambda: gemm(C64, C64.T, alpha="1j"),
        TypeError,
        "gemm: alpha is a str; expected a number",
    ),
    # vectors
    "bias length": (
        lambda: gemm(A, B, bias=np.ones(3, F32)),
        ValueError,
        r"gemm: bias is \(3,\); expected \(5,\), \(1, 5\) or \(3, 1\)",
    ),
    "bias rows": (
        lambda: gemm(A, B, bias=np.ones((5, 1), F32)),
        ValueError,
        r"gemm: bias is \(5, 1\); expected \(5,\)",
    ),
    "bias matrix": (lambda: gemm(A, B, bias=C), ValueError, r"gemm: bias is \(3, 5\); expected \(5,\)"),
    "bias 0-d": (lambda: gemm(A, B, bias=zeros()), ValueError, r"gemm: bias is \(\); expected \(5,\)"),
    "bias batch": (lambda: gemm(A3, B, bias=zeros(3, 1, 5)), ValueError, r"gemm: bias is \(3, 1, 5\); expected \(5,\)"),
    "bias f64": (lambda: gemm(A, B, bias=ROW.astype(float)), TypeError, "gemm: bias is f64; expected f32$"),
    "bias f16": (
        lambda: gemm(A, B, bias=ROW.astype(np.float16), out_dtype="bf16"),
        TypeError,
        "gemm: bias is f16; expected one of bf16, f32$",
    ),
    "bias of integers": (
        lambda: gemm(I8, I8.T, bias=np.ones(3, np.int8)),
        TypeError,
        "gemm: bias is s8; expected one of f32, s32$",
    ),
    "bias of complex": (lambda: gemm(C64, C64.T, bias=np.ones(3, F32)), TypeError, "gemm: bias is f32; expected c64$"),
    "bias number": (lambda: gemm(A, B, bias=1.0), TypeError, "gemm: bias is a float; expected an array"),
    "bias on a device": (
        lambda: GemmArguments(A, B, bias=TensorSpec((5,), "f32")),
        ValueError,
        "gemm: a is on cpu but bias is on cuda:0",
    ),
    "scale_a length": (
        lambda: gemm(A, B, scale_a=ROW),
        ValueError,
        r"gemm: scale_a is \(5,\); expected one element, \(3,\) or \(3, 1\)",
    ),
    "scale_b length": (
        lambda: gemm(A, B, scale_b=COLUMN),
        ValueError,
        r"gemm: scale_b is \(3, 1\); expected one element, \(5,\) or \(1, 5\)",
    ),
    "scale_a dtype": (
        lambda: gemm(A, B, scale_a=np.ones(3, np.float16)),
        TypeError,
        "gemm: scale_a is f16; expected f32$",
    ),
    "scale_a str": (lambda: gemm(A, B, scale_a="2"), TypeError, "gemm: scale_a is a str; expected a number"),
    "scale_out vector": (
        lambda: gemm(A, B, scale_out=ROW),
        ValueError,
        r"gemm: scale_out is \(5,\); expected a number or an array of one element",
    ),
    "scales of two kinds": (
        lambda: gemm(A, B, alpha=ONE, scale_b=2.0),
        ValueError,
        "gemm: alpha is an array but scale_b is a number; pass both as arrays or both as numbers",
    ),
    "scale of complex": (
        lambda: gemm(C64, C64.T, scale_a=2.0),
        TypeError,
        "gemm: scale_a is given but a is c64; complex operands take alpha, beta, c and bias",
    ),
    "gate of complex": (
        lambda: gemm(C64, C64.T, gate=C64[:, :3]),
        TypeError,
        "gemm: gate is given but a is c64; complex",
    ),
    # activations
    "activation": (
        lambda: gemm(A, B, activation="swish"),
        ValueError,
        f"gemm: activation='swish' is not one of {NAMES}",
    ),
    "activation clamp": (
        lambda: gemm(A, B, activation="clamp"),
        ValueError,
        r"gemm: activation='clamp' has parameters; expected cutlass_py.clamp\(low, high\)",
    ),
    "activation type": (
        lambda: gemm(A, B, activation=max),
        TypeError,
        "gemm: activation is a builtin_function_or_method",
    ),
    "activation surrogate": (lambda: gemm(A, B, activation="\udc80"), ValueError, "gemm: activation is no valid text"),
    "slope str": (lambda: leaky_relu("x"), TypeError, "^leaky_relu: slope is 'x'; expected a number$"),
    "slope of many digits": (
        lambda: leaky_relu(10**5000),
        ValueError,
        "^leaky_relu: slope is too large for a float$",
    ),
    "bound str": (lambda: clamp("0", 1), TypeError, "^clamp: low is '0'; expected a number$"),
    "bound none": (lambda: clamp(0, None), TypeError, "^clamp: high is None; expected a number$"),
    "activation parameters": (
        lambda: gemm(A, B, activation=Activation("relu", (1.0,))),
        ValueError,
        "activation relu has 0 parameters; found 1",
    ),
    "activation of complex": (
        lambda: gemm(C64, C64.T, activation="relu"),
        TypeError,
        "gemm: activation='relu' is given but a is c64; complex operands take alpha, beta, c and bias",
    ),
    "activation unknown": (
        lambda: Activation("swish"),
        ValueError,
        "activation: 'swish'; expected one of identity, relu",
    ),
    "activation list": (
        lambda: Activation("clamp", [0.0, 1.0]),
        TypeError,
        r"activation clamp: parameters are \[0.0, 1.0\]; expected a tuple of numbers",
    ),
    "activation bounds": (
        lambda: Activation("clamp", (5.0, 1.0)),
        ValueError,
        "activation clamp: low is 5.0 and high is 1.0; expected low <= high",
    ),
    "activation nan": (lambda: Activation("clamp", (0.0, float("nan"))), ValueError, "low is 0.0 and high is nan"),
    "activation nul": (lambda: gemm(A, B, activation="relu\0x"), ValueError, "gemm: activation is no valid text"),
    "compute nul": (lambda: gemm(A, B, compute="f32\0x"), ValueError, "gemm: compute is no valid text"),
    "splits nul": (lambda: gemm(A, B, splits="stream\0x"), ValueError, "gemm: splits is no valid text"),
    "clamp": (lambda: clamp(2, 1), ValueError, "clamp: low is 2.0 and high is 1.0; expected low <= high"),
    "clamp nan": (
        lambda: clamp(float("nan"), 1),
        ValueError,
        "clamp: low is nan and high is 1.0; expected low <= high",
    ),
    # gate, aux, bias_grad
    "gate shape": (lambda: gemm(A, B, gate=ROW), ValueError, r"gemm: gate is \(5,\); expected \(3, 5\)$"),
    "gate and derivative": (
        lambda: gemm(A, B, gate=C, aux=C, activation="d_silu"),
        ValueError,
        "gemm: gate is given with activation='d_silu'; a derivative takes no gate",
    ),
    "derivative alone": (
        lambda: gemm(A, B, activation="d_gelu"),
        ValueError,
        "gemm: activation='d_gelu' needs aux, where gelu was evaluated",
    ),
    "aux shape": (lambda: gemm(A3, B, aux=C.copy()), ValueError, r"gemm: aux is \(3, 5\); expected \(2, 3, 5\)$"),
    "aux read shape": (
        lambda: gemm(A3, B, aux=C[:2], activation="d_relu"),
        ValueError,
        r"gemm: aux is \(2, 5\); expected \(3, 5\) or \(2, 3, 5\)$",
    ),
    "aux read-only": (lambda: gemm(A, B, aux=frozen(3, 5)), ValueError, "gemm: aux is read-only"),
    "bias_grad read-only": (lambda: gemm(A, B, bias_grad=frozen(5)), ValueError, "gemm: bias_grad is read-only"),
    "bias_grad shape": (
        lambda: gemm(A, B, bias_grad=zeros(3)),
        ValueError,
        r"gemm: bias_grad is \(3,\); expected \(5,\), \(1, 5\) or \(3, 1\)",
    ),
    "bias_grad batch": (
        lambda: gemm(A3, B, bias_grad=zeros(2, 1, 5)),
        ValueError,
        r"gemm: bias_grad is \(2, 1, 5\); expected \(5,\)",
    ),
    "bias_grad dtype": (
        lambda: gemm(A, B, bias_grad=zeros(5, dtype=np.float16)),
        TypeError,
        "gemm: bias_grad is f16; expected one of f32, f64$",
    ),
    "bias_grad of integers": (
        lambda: gemm(I8, I8.T, bias_grad=zeros(3, dtype=np.int32)),
        TypeError,
        "gemm: bias_grad is s32; expected one of f32, f64$",
    ),
    "bias_grad of a looped batch": (
        lambda: gemm(zeros(2, 1, 3, 4), zeros(3, 4, 5), bias_grad=zeros(5)),
        ValueError,
        "gemm: bias_grad is given but the batch of the operands has no single stride; pass it as one dimension",
    ),
    # splits and deterministic
    "splits 0": (lambda: gemm(A, B, splits=0), ValueError, "gemm: splits is 0; expected 1 to 32767, or 'stream'"),
    "splits many": (lambda: gemm(A, B, splits=10**30), ValueError, "gemm: splits is 10+; expected 1 to 32767"),
    "splits str": (lambda: gemm(A, B, splits="k"), ValueError, "gemm: splits='k' is not 'stream'"),
    "splits bool": (lambda: gemm(A, B, splits=True), TypeError, "gemm: splits is a bool; expected a number of parts"),
    "splits float": (lambda: gemm(A, B, splits=2.0), TypeError, "gemm: splits is a float; expected a number of parts"),
    "deterministic": (
        lambda: gemm(A, B, deterministic=1),
        TypeError,
        "gemm: deterministic is an int; expected True or",
    ),
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
    "list of shapes": (
        lambda: gemm([A, A[:2]], B),
        ValueError,
        r"gemm: a\[1\] is \(2, 4\) of f32 with strides \(4, 1\) but a\[0\] is \(3, 4\) of f32 with strides \(4, 1\); "
        "the matrices of a list agree in shape, dtype and strides",
    ),
    "list of dtypes": (
        lambda: gemm([A, A.astype(np.float16)], B),
        ValueError,
        r"gemm: a\[1\] is \(3, 4\) of f16 with .* but a\[0\] is \(3, 4\) of f32",
    ),
    "list of strides": (lambda: gemm([A, np.asfortranarray(A)], B), ValueError, r"with strides \(1, 3\) but a\[0\]"),
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
    "list out twice": (
        lambda: gemm(LIST_A, B, out=[C, C, zeros(3, 5)]),
        ValueError,
        "gemm: out overlaps itself",
    ),
    "list out meets in the middle": (
        lambda: gemm(LIST_A, B, out=[BUFFER[:3, :5], zeros(8, 8)[:3, :5], BUFFER[:3, 3:]]),
        ValueError,
        "gemm: out overlaps itself: matrices of the list share elements",
    ),
    "list out is c moved": (
        lambda: gemm(LIST_A, B, c=SLOTS[1:], out=SLOTS[:3]),
        ValueError,
        "gemm: out shares elements with c; it may only be c, gate or a read aux itself",
    ),
    "list out is b": (
        lambda: gemm([np.ones((4, 4), F32)] * 3, SQUARE, out=[zeros(8, 8)[:4, :4], SQUARE, zeros(8, 8)[:4, :4]]),
        ValueError,
        "gemm: out shares elements with b",
    ),
    "beta list": (lambda: gemm(A, B, c=C, beta=[1]), TypeError, "gemm: beta is a list; expected a number"),
    "compute": (
        lambda: gemm(A, B, compute="f16"),
        ValueError,
        "gemm: compute='f16' is not one of 'f32', 'tf32', '3xtf32' for f32",
    ),
    "compute f64": (
        lambda: gemm(A.astype(float), B.astype(float), compute="f32"),
        ValueError,
        "compute='f32' is not one of 'f64' for f64 inputs",
    ),
    "compute type": (
        lambda: gemm(A, B, compute=32),
        TypeError,
        "gemm: compute is an int; expected a name such as 'tf32'$",
    ),
    "kernel name": (lambda: gemm(A, B, kernel="typo"), ValueError, "gemm: no kernel is called 'typo'; .*get_kernels"),
    "kernel type": (lambda: gemm(A, B, kernel=3), TypeError, "gemm: kernel is an int; expected a Kernel or its name"),
    "kernel of a GPU": (
        lambda: gemm(A, B, kernel=get_kernels(compiled=False)[0]),
        ValueError,
        r"gemm: kernel \w+_gemm_\w+ (is declared but not in the built set|does not fit .*: runs on a GPU)",
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
        "gemm: out shares elements with c; it may only be c, gate or a read aux itself, element for element",
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
    "out is bias": (
        lambda: gemm(A, B, bias=BUFFER[0, :5], out=BUFFER[:3, :5]),
        ValueError,
        "gemm: out shares elements with bias",
    ),
    "out is alpha": (
        lambda: gemm(A, B, alpha=BUFFER[2, 4:5], out=BUFFER[:3, :5]),
        ValueError,
        "gemm: out shares elements with alpha",
    ),
    "out is aux": (
        lambda: gemm(A, B, aux=BUFFER[:3, :5], out=BUFFER[:3, :5]),
        ValueError,
        "gemm: out shares elements with aux",
    ),
    "spec out of a broadcast batch": (
        lambda: GemmArguments(A3, B, out=TensorSpec((2, 3, 5), "f32", (0, 5, 1), device="cpu")),
        ValueError,
        "gemm: out overlaps itself",
    ),
    "out is a beside a spec": (
        lambda: GemmArguments(SQUARE, TensorSpec((4, 4), "f32", device="cpu"), out=SQUARE),
        ValueError,
        "gemm: out shares elements with a;",
    ),
    "aux is c": (
        lambda: gemm(A, B, c=BUFFER[:3, :5], aux=BUFFER[:3, :5]),
        ValueError,
        "gemm: aux shares elements with c; what is written has memory of its own",
    ),
    "aux is a": (lambda: gemm(SQUARE, SQUARE.copy(), aux=SQUARE), ValueError, "gemm: aux shares elements with a;"),
    "aux of stride 0": (
        lambda: gemm(A, B, aux=np.lib.stride_tricks.as_strided(zeros(5), (3, 5), (0, 4))),
        ValueError,
        "gemm: aux overlaps itself",
    ),
    "bias_grad is bias": (
        lambda: gemm(A, B, bias=BUFFER[0, :5], bias_grad=BUFFER[0, :5]),
        ValueError,
        "gemm: bias_grad shares elements with bias;",
    ),
    "bias_grad in out": (
        lambda: gemm(A, B, bias_grad=BUFFER[1, :5], out=BUFFER[:3, :5]),
        ValueError,
        "gemm: out shares elements with bias_grad;",
    ),
    "bias_grad in aux": (
        lambda: gemm(A, B, bias_grad=BUFFER[1, :5], aux=BUFFER[:3, :5]),
        ValueError,
        "gemm: bias_grad shares elements with aux;",
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
