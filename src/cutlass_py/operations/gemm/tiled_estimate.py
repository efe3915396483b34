"""What kernels without wgmma take: waves of tiles, as many at once as are resident, by constants of a calibration.

Steps of k at the rate of a family's large tile (`rate`), less for smaller ones (`small`) and for narrow accesses
(`access` and their bytes); of each wave the time to fill its pipelines (`fill`, of a tile of 128x128) and to compute
its epilogue (`instruction`, of one for each of 128x256 elements); or memory, if that takes longer; and a `launch`. Of
stream-K the workspace (`deal`) and parts that are joined (`join`, in steps of k).
"""

from __future__ import annotations

from math import ceil, sqrt

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


def estimate(c: GemmConfig, gpu: Gpu, m: int, n: int, k: int, batch: int, moved: float) -> float:
    """Microseconds, where so many bytes are moved."""
    x = calibration_of(gpu).tiled
    return (
        x["launch"]
        + _both(_waves(c, m, n, k, batch, gpu, x), moved / x["memory"])
        + (x["deal"] if SCHEDULES[c.schedule].stream_k else 0)
    )


def _both(x: float, y: float) -> float:
    """Two limits at once: near the ridge a little more than the larger."""
    norm: float = (x**4 + y**4) ** (1 / 4)
    return norm


def _waves(c: GemmConfig, m: int, n: int, k: int, batch: int, gpu: Gpu, x: dict[str, float]) -> float:
    """What is left for the last one is shared out evenly."""
    tm, tn, tk = c.tile
    tiles, resident = ceil(m / tm) * ceil(n / tn) * batch, _resident(c)
    rate = x[rate_name(c)] * 1e6 / gpu.sm_count
    if tm * tn < _WHOLE:
        rate *= x[small_name(c)]
    access = c.align * DTYPES[c.a].itemsize
    if c.align and DTYPES[c.a].itemsize <= 2 and access < 16:
        rate *= x[f"access{access}"]
    steps, step = ceil(k / tk), 2 * tm * tn * tk / rate
    fill = x["fill"] * (tm + tn) / 256 + x["instruction"] * epilogue_named(c.epilogue).instructions() * tm * tn / 2**15
    if SCHEDULES[c.schedule].stream_k:
        return _dealt_out(tiles, steps, gpu.sm_count, x["join"]) * step + fill
    whole, rest = divmod(tiles, gpu.sm_count * resident)
    at_once = whole * resident + ceil(rest / gpu.sm_count)  # tiles that a multiprocessor has, one after the other
    return at_once * steps * step + (whole + (rest > 0)) * fill


def _dealt_out(tiles: int, steps: int, sm_count: int, join: float) -> float:
    """Steps of k that a multiprocessor takes where those of all tiles are dealt out evenly.

    A tile is cut into no more parts than are worth joining.
    """
    parts = max(1.0, min(sm_count / max(tiles, 1), sqrt(steps / join)))
    return steps * max(tiles / sm_count, 1 / parts) + join * parts


def _resident(c: GemmConfig) -> int:
    """Tiles that fit on a multiprocessor at once, by shared memory and registers."""
    if not all(c.warp):
        return 1
    shared = (c.tile[0] + c.tile[1]) * c.tile[2] * c.stages * DTYPES[c.a].itemsize
    warps = (c.tile[0] // c.warp[0]) * (c.tile[1] // c.warp[1])
    registers = c.tile[0] * c.tile[1] * DTYPES[c.accumulator].itemsize + warps * 8192
    return max(1, min(_SHARED // shared, _WARPS // warps, _REGISTERS // registers))
