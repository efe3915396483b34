"""What kernels for a few rows or columns take: the formula by which they are launched (kernels/gemv/shape.h).

It was fitted on an H200. Of another GPU it is told multiprocessors and memory, and a calibration knows how much longer
that takes (`gemv`).
"""

from __future__ import annotations

from ... import _core
from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from .calibration import calibration_of

_PACKED = 256  # alignment of what was packed, bytes


def estimate(c: GemmConfig, gpu: Gpu, p: Problem, k: int, batch: int) -> float:
    """Microseconds of so many products as the problem's, each of this length of k."""
    swap, known = SCHEDULES[c.schedule].swap, calibration_of(gpu).tiled
    matrix, layout = (c.a, c.layout[0]) if swap else (c.b, c.layout[1])
    lies, alignment = (p.layout_a, p.align_a) if swap else (p.layout_b, p.align_b)
    rows, columns = (p.n, p.m) if swap else (p.m, p.n)
    only_factor = not (p.c or p.bias or p.scale_a or p.scale_b or p.scale_out or p.device_alpha)
    return known["gemv"] * _core.gemv_microseconds(
        (rows, columns, k, batch),
        along_k=layout == ("t" if swap else "n"),
        size=DTYPES[matrix].itemsize,
        alignment=alignment if layout == lies else _PACKED,
        only_factor=only_factor and p.activation == "identity",
        sm_count=gpu.sm_count,
        memory=known["memory"],
    )


def least(gpu: Gpu, moved_bytes: int) -> float:
    """What no such kernel falls below that moves so many bytes."""
    known = calibration_of(gpu).tiled
    return known["gemv"] * _core.gemv_least(moved_bytes, gpu.sm_count, known["memory"])
