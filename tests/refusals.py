"""What the tests of errors call gemm with, and that a refusal leaves all of it as it was."""

from __future__ import annotations

import numpy as np
import pytest

from cutlass_py import gemm

F32 = np.float32
A = np.ones((3, 4), F32)
B = np.ones((4, 5), F32)
C = np.ones((3, 5), F32)
A3, B3, C3 = (np.ones((2, *x.shape), F32) for x in (A, B, C))
BUFFER = np.zeros((8, 8), F32)
STORAGE = "f16, bf16, f32, f64, e4m3, e5m2, s8, u8, s32, c64, c128"
I8, C64 = np.ones((3, 4), np.int8), np.ones((3, 4), np.complex64)
ROW, COLUMN, ONE = np.ones(5, F32), np.ones((3, 1), F32), np.ones(1, F32)
LIST_A, LIST_B = [A, A.copy(), A.copy()], [B, B.copy(), B.copy()]


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def assert_refused(call, error, message):
    """A call raises this error and writes nothing, and the next call works."""
    BUFFER[...] = 7
    before = [x.copy() for x in (A, B, C, BUFFER)]
    with pytest.raises(error, match=message):
        call()
    assert all(np.array_equal(x, y) for x, y in zip((A, B, C, BUFFER), before, strict=True)), "something was written"
    assert (gemm(A, B) == 4).all()  # the next call works
