"""Errors about the keywords of gemm: factors, bias, scales, activations, gate, aux, splits, compute and kernel."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import A3, C64, COLUMN, F32, I8, ONE, ROW, A, B, C, assert_refused, zeros

from cutlass_py import Activation, GemmArguments, TensorSpec, clamp, gemm, get_kernels, leaky_relu

NAMES = "'identity', 'relu', 'leaky_relu', 'gelu', 'gelu_tanh', 'silu', 'sigmoid', 'tanh', 'hardswish', 'd_relu'"


def frozen(*shape):
    array = zeros(*shape)
    array.flags.writeable = False
    return array


# What is called, the type of the error, and what its message says.
CASES = {
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
    "beta list": (lambda: gemm(A, B, c=C, beta=[1]), TypeError, "gemm: beta is a list; expected a number"),
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
    # arithmetic and kernels
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
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_message(call, error, message):
    assert_refused(call, error, message)
