"""The GPU a problem is for: the real one, or a stand-in when questions are asked on a machine without."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from . import _core
from ._core import Problem


@dataclass(frozen=True)
class Gpu:
    """What selection knows of a device, and of its memory in GB/s, as copies reach it. `absent`: only assumed."""

    name: str
    cc: int
    sm_count: int
    bandwidth: float
    absent: bool = False

    def __str__(self) -> str:
        return f"an absent {self.name}" if self.absent else self.name


# GB/s of memory per multiprocessor, for devices that cannot be asked: about right for A100, H100 and H200.
_BANDWIDTH_PER_SM = {80: 14.0, 86: 9.0, 89: 7.0, 90: 30.0}


def bandwidth_of(cc: int, sm_count: int) -> float:
    """GB/s that copies reach, roughly: a guess from the number of multiprocessors."""
    return _BANDWIDTH_PER_SM.get(cc, 30.0) * sm_count


# Assumed where no device answers: all that selection would know of the real one, its name for the tables included.
ABSENT = Gpu("NVIDIA H200", 90, 132, bandwidth_of(90, 132), absent=True)


@cache
def device(ordinal: int) -> Gpu:
    """A device here, or the stand-in."""
    if ordinal >= _core.device_count():
        return ABSENT
    info = _core.device_info(ordinal)
    cc, sm_count = info["cc"], info["sm_count"]
    return Gpu(info["name"], cc, sm_count, bandwidth_of(cc, sm_count))


def capabilities() -> tuple[int, ...]:
    """Compute capabilities, times ten, of the devices here; the stand-in's where there are none."""
    count = _core.device_count()
    return tuple(sorted({device(ordinal).cc for ordinal in range(count)})) if count else (ABSENT.cc,)


def gpu_of(p: Problem) -> Gpu | None:
    """The device of a problem, None on the CPU."""
    return None if p.device_id < 0 else device(p.device_id)
