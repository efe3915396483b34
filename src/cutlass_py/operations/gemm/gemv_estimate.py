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


def design_of(c: GemmConfig, gpu: Gpu, p: Problem) -> _core.GemvDesign:
    """What the formula knows of a kernel on such a GPU, for a problem: nothing of its extents."""
    swap, known = SCHEDULES[c.schedule].swap, calibration_of(gpu).tiled
    matrix, layout = (c.a, c.layout[0]) if swap else (c.b, c.layout[1])
    only_factor = not (p.c or p.bias or p.scale_a or p.scale_b or p.scale_out or p.device_alpha)
    return _core.GemvDesign(
        swap=swap,
        packed=layout != (p.layout_a if swap else p.layout_b),
        along_k=layout == ("t" if swap else "n"),
        only_factor=only_factor and p.activation == "identity",
        size=DTYPES[matrix].itemsize,
        sm_count=gpu.sm_count,
        memory=known["memory"],
        longer=known["gemv"],
    )
