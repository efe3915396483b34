"""What kernels without wgmma take: the formula of tiled_estimate.h, and what it knows of a kernel.

By constants of a calibration. Tiles that a multiprocessor has at once share its tensor cores (`rate`, of a family and
what it multiplies) and its `shared` memory, from which warps read their fragments, or wait for asynchronous `copies`,
which take the CUDA cores `turned` times as long where k is contiguous. A step of k of few tiles waits for one warp,
which takes `alone` times as long as a quarter of the cores could, and a `step` for what it reads; or for memory, whose
`latency` the stages that are asked for ahead share. Of each wave the time to fill its pipelines (`fill`, of a tile of
128x128) and to compute its epilogue (`instruction`, of one for each of 128x256 elements); or `memory`; and a `launch`.
Of stream-K the workspace (`deal`) and parts that are joined (`join`, in steps of k).
"""

from __future__ import annotations

from math import hypot

from ... import _core
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from .calibration import calibration_of

_WARPS, _REGISTERS, _SHARED = 48, 200_000, 200_000  # that a multiprocessor has for blocks: warps, and bytes


def rate_name(c: GemmConfig) -> str:
    """The constant that has a kernel's rate: of its family, or that of single products, and of what it multiplies."""
    return f"rate {c.single} {c.a}"


def design_of(c: GemmConfig, gpu: Gpu, d_size: int) -> _core.TiledDesign:
    """Of a kernel on such a GPU, where D and what lies like it have so many bytes for each element."""
    x = calibration_of(gpu).tiled
    stream_k, (tm, tn, tk) = SCHEDULES[c.schedule].stream_k, c.tile
    size, (wm, wn, _) = DTYPES[c.a].itemsize, _warp(c)
    rate, warps = x[rate_name(c)] * 1e6 / gpu.sm_count, tm // wm * (tn // wn)
    moved = (warps * (wm + wn) + tm + tn) * tk * size  # to the tensor cores, and into shared memory
    turned = x["turned"] if c.single == "simt_gemm" else 1.0
    lines = tm * (turned if c.layout[0] == "t" else 1) + tn * (turned if c.layout[1] == "n" else 1)
    copied = lines * tk / c.align / x["copies"] if c.align else 0.0
    return _core.TiledDesign(
        tile=c.tile,
        resident=_resident(c),
        stream_k=stream_k,
        size=size,
        d_size=d_size,
        step=max(hypot(2 * tm * tn * tk / rate, moved / x["shared"]), copied),
        alone=max(x["alone"] * 8 * wm * wn * tk / rate + x["step"], x["latency"] / max(c.stages - 1, 1)),
        fill=x["fill"] * (tm + tn) / 256
        + x["instruction"] * epilogue_named(c.epilogue).instructions() * tm * tn / 2**15,
        join=x["join"],
        fixed=x["launch"],
        deal=x["deal"] if stream_k else 0.0,
        memory=x["memory"],
        sm_count=gpu.sm_count,
    )


def _warp(c: GemmConfig) -> tuple[int, int, int]:
    """The part of a tile that a warp has; of TMA's kernels, which do not say, an eighth."""
    return c.warp if all(c.warp) else (c.tile[0] // 2, c.tile[1] // 4, c.tile[2])


def _resident(c: GemmConfig) -> int:
    """Tiles that fit on a multiprocessor at once, by shared memory and registers."""
    if not all(c.warp):
        return 1
    shared = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    registers = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize + warps * 8192
    return max(1, min(_SHARED // shared, _WARPS // warps, _REGISTERS // registers))
