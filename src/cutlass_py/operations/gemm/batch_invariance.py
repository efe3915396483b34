"""Which kernels give a row of D the same bits, whatever is beside it: those that sum k, and finish the sums, alike.

Sums of 16 bits, integers and f64 are the same of every family, tile, layout and orientation, where k is in as many parts
(canonical.cpp says how many); and acc * factor + (beta * C + bias) is rounded alike by most. What differs was found
kernel by kernel on an H200 (tests/test_gpu_batch_invariance.py).
"""

from __future__ import annotations

from functools import cache

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from ...declaration.families import FAMILIES


def sums_refusal(c: GemmConfig, p: Problem, gpu: Gpu | None) -> str | None:
    """Why a kernel may give a row other bits than one that other rows may get; None where it does not."""
    schedule = SCHEDULES[c.schedule]
    if schedule.lean:
        return None
    how = None
    if schedule.stream_k:
        how = "cuts k by how many tiles there are"
    elif DTYPES[c.a].bits == 8 and c.accumulator == "f32":
        how = "promotes sums by the depth of its tile"
    elif epilogue_named(c.epilogue).activation != "identity" or (c.api == 3 and p.c):
        how = "rounds its epilogue unlike others"
    elif (c.a == "tf32" or p.user >= 0) and _ours_take(c, p, gpu):
        how = "rounds unlike our own kernels, which take such rows too"
    return how and f"{how}; batch_invariant=True is asked for"


def _ours_take(c: GemmConfig, p: Problem, gpu: Gpu | None) -> bool:
    lowest, highest = FAMILIES["sm90_lean"].cc
    return bool(gpu and lowest <= gpu.cc <= highest and not p.pointers and c.a in _ours())


@cache
def _ours() -> frozenset[str]:
    """What our own kernels multiply."""
    return frozenset(c.a for c in FAMILIES["sm90_lean"].declared)
