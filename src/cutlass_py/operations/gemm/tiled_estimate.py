"""What kernels without wgmma take: the formula of tiled_estimate.h, and what it knows of a kernel.

By constants of a calibration: steps of k at the rate of a family's large tile (`rate`), less for smaller ones
(`small`) and for narrow accesses (`access` and their bytes); of each wave the time to fill its pipelines (`fill`, of a
tile of 128x128) and to compute its epilogue (`instruction`, of one for each of 128x256 elements); or `memory`; and a
`launch`. Of stream-K the workspace (`deal`) and parts that are joined (`join`, in steps of k).
"""

from __future__ import annotations

from ... import _core
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from .calibration import calibration_of

_WHOLE = 128 * 128  # elements of a large tile
_WARPS, _REGISTERS, _SHARED = 48, 200_000, 200_000  # that a multiprocessor has for blocks: warps, and bytes


def rate_name(c: GemmConfig) -> str:
    """The constant that has a kernel's rate: of its family, and of what it multiplies."""
    return f"rate {c.family} {c.a}"


def small_name(c: GemmConfig) -> str:
    """And the share of it that smaller tiles reach."""
    return f"small {c.family} {c.a}"


def design_of(c: GemmConfig, gpu: Gpu, d_size: int) -> _core.TiledDesign:
    """Of a kernel on such a GPU, where D and what lies like it have so many bytes for each element."""
    x = calibration_of(gpu).tiled
    stream_k, (tm, tn, tk) = SCHEDULES[c.schedule].stream_k, c.tile
    size = DTYPES[c.a].itemsize
    rate = x[rate_name(c)] * 1e6 / gpu.sm_count
    if tm * tn < _WHOLE:
        rate *= x[small_name(c)]
    access = c.align * size
    if c.align and size <= 2 and access < 16:
        rate *= x[f"access{access}"]
    return _core.TiledDesign(
        tile=c.tile,
        resident=_resident(c),
        stream_k=stream_k,
        size=size,
        d_size=d_size,
        step=2 * tm * tn * tk / rate,
        fill=x["fill"] * (tm + tn) / 256
        + x["instruction"] * epilogue_named(c.epilogue).instructions() * tm * tn / 2**15,
        join=x["join"],
        fixed=x["launch"],
        deal=x["deal"] if stream_k else 0.0,
        memory=x["memory"],
        sm_count=gpu.sm_count,
    )


def _resident(c: GemmConfig) -> int:
    """Tiles that fit on a multiprocessor at once, by shared memory and registers."""
    if not all(c.warp):
        return 1
    shared = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    registers = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize + warps * 8192
    return max(1, min(_SHARED // shared, _WARPS // warps, _REGISTERS // registers))
