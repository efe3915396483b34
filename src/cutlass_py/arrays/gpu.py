"""The GPU a problem is for: the real one, or a stand-in when questions are asked on a machine without."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from .. import _core


class OnDevice(Protocol):
    """What has operands somewhere."""

    @property
    def device_id(self) -> int:
        """The CUDA ordinal; -1 in host memory."""


@dataclass(frozen=True)
class Gpu:
    """What selection knows of a device, and of its memory in GB/s, as copies reach it. `absent`: only assumed.

    `clusters`: how many clusters of blocks, each with a multiprocessor of its own, run at once, by their size up to 8.
    Where none are given, what is usual. `driver`: its CUDA version, 13000 for 13.0.
    """

    name: str
    cc: int
    sm_count: int
    bandwidth: float
    absent: bool = False
    clusters: tuple[int, ...] = ()
    driver: int = 0

    def __post_init__(self) -> None:
        if not self.clusters:
            object.__setattr__(self, "clusters", _clusters_of(self.cc, self.sm_count))

    def __str__(self) -> str:
        return f"an absent {self.name}" if self.absent else self.name


@cache
def file_stem(name: str, sm_count: int) -> str:
    """What files about such GPUs are called, by its name and its multiprocessors."""
    return f"{re.sub(r'[^a-zA-Z0-9_]+', '-', name).strip('-').lower()}-{sm_count}"


# By compute capability, times ten: a usual device's name and multiprocessors, and GB/s of memory for each of those,
# which no device says of itself: about right for A100, H100 and H200.
_USUAL = {
    80: ("NVIDIA A100-SXM4-80GB", 108, 14.0),
    86: ("NVIDIA A40", 84, 9.0),
    89: ("NVIDIA L40S", 142, 7.0),
    90: ("NVIDIA H200", 132, 30.0),
}
# GPCs are cut differently on each card, so that clusters leave multiprocessors idle: as seen on an H200.
_CLUSTERS = {(90, 132): (0, 132, 66, 39, 30, 22, 17, 15, 15)}


def _usual(cc: int) -> tuple[str, int, float]:
    return _USUAL.get(cc, (f"GPU of compute capability {cc / 10:.1f}", 132, 30.0))


def bandwidth_of(cc: int, sm_count: int) -> float:
    """GB/s that copies reach, roughly: a guess from the number of multiprocessors."""
    return _usual(cc)[2] * sm_count


def _clusters_of(cc: int, sm_count: int) -> tuple[int, ...]:
    return _CLUSTERS.get((cc, sm_count)) or (0, *(sm_count // size for size in range(1, 9)))


def _stand_in(cc: int) -> Gpu:
    """All that selection would know of a real device, its name for the tables included."""
    name, sm_count, _ = _usual(cc)
    return Gpu(name, cc, sm_count, bandwidth_of(cc, sm_count), absent=True)


ABSENT = _stand_in(90)  # assumed where no device answers


@cache
def device(ordinal: int) -> Gpu:
    """A device here, or the stand-in."""
    if ordinal >= _core.device_count():
        return ABSENT
    info = _core.device_info(ordinal)
    cc, sm_count = info["cc"], info["sm_count"]
    clusters = _core.clusters_at_once(ordinal)
    return Gpu(info["name"], cc, sm_count, bandwidth_of(cc, sm_count), clusters=clusters, driver=info["driver"])


def capabilities() -> tuple[int, ...]:
    """Compute capabilities, times ten, of the devices here; the stand-in's where there are none."""
    count = _core.device_count()
    return tuple(sorted({device(ordinal).cc for ordinal in range(count)})) if count else (ABSENT.cc,)


def gpu_with(cc: int) -> Gpu:
    """A device of this compute capability, times ten: the first here, or a stand-in."""
    here = map(device, range(_core.device_count()))
    return next((gpu for gpu in here if gpu.cc == cc), None) or _stand_in(cc)


def gpu_of(p: OnDevice) -> Gpu | None:
    """The device of a problem, None on the CPU."""
    return None if p.device_id < 0 else device(p.device_id)
