"""What kernels for a few rows or columns take: the formula by which they are launched (kernels/gemv/shape.h).

Of its result a calibration knows how much longer a GPU takes (`gemv`), beside the H200 that it was fitted to.
"""

from __future__ import annotations

from ... import _core
from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from .calibration import calibration_of


def estimate(c: GemmConfig, gpu: Gpu, p: Problem, k: int, batch: int) -> float:
    """Microseconds of so many products as the problem's, each of this length of k."""
    swap = SCHEDULES[c.schedule].swap
    matrix, along_k = (c.a, c.layout[0] == "t") if swap else (c.b, c.layout[1] == "n")
    rows, columns = (p.n, p.m) if swap else (p.m, p.n)
    only_factor = not (p.c or p.bias or p.scale_a or p.scale_b or p.scale_out or p.device_alpha)
    return calibration_of(gpu).tiled["gemv"] * _core.gemv_microseconds(
        (rows, columns, k, batch),
        along_k=along_k,
        size=DTYPES[matrix].itemsize,
        alignment=p.align_a if swap else p.align_b,
        only_factor=only_factor and p.activation == "identity",
        sm_count=gpu.sm_count,
    )


def least(gpu: Gpu, moved_bytes: int) -> float:
    """What no such kernel falls below that moves so many bytes."""
    return calibration_of(gpu).tiled["gemv"] * _core.gemv_least(moved_bytes)
