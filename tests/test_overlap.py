"""Operands that share elements with what is written: refused, in every framework, before anything is written."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers import MUTABLE, make
from refusals import A3, BUFFER, F32, LIST_A, A, B, C, assert_refused, zeros

from cutlass_py import GemmArguments, TensorSpec, gemm

SQUARE = BUFFER[:4, :4]
SLOTS = [np.ones((3, 5), F32) for _ in range(4)]

# What is called, the type of the error, and what its message says.
CASES = {
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
}


@pytest.mark.parametrize(("call", "error", "message"), CASES.values(), ids=CASES.keys())
def test_message(call, error, message):
    assert_refused(call, error, message)


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
