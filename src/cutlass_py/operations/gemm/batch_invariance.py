"""Which kernels give a row of D the same bits, whatever is beside it: those that sum k, and finish the sums, alike.

All of our own do, of every tile, layout and orientation, where k is in as many parts (canonical.cpp says how many); and
what they leave to be finished elsewhere is rounded there as they do. CUTLASS's 2.x kernels begin with the k that fills
no tile: among themselves their bits are the same, and those of others where there is no such rest. Stream-K cuts k by
the rest of the problem. Found kernel by kernel on an H200 (tests/test_gpu_batch_invariance.py).
"""

from __future__ import annotations

from functools import cache

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.epilogues import epilogue_named
from ...declaration.families import FAMILIES

_WHOLE = 16  # of k: what the instructions of all others begin at multiples of


def sums_refusal(c: GemmConfig, p: Problem, gpu: Gpu | None) -> str | None:
    """Why a kernel may give a row other bits than one that other rows may get; None where it does not."""
    schedule, how = SCHEDULES[c.schedule], None
    if schedule.lean:
        return None
    if schedule.stream_k:
        how = "cuts k by how many tiles there are"
    elif _ours_take(c, p, gpu) and c.accumulator != "s32":
        how = "sums unlike our own kernels, which take such rows too"
    elif epilogue_named(c.epilogue).activation != "identity" or (c.api == 3 and (p.c or p.k % _WHOLE)):
        how = "rounds unlike others that take such rows"
    return how and f"{how}; batch_invariant=True is asked for"


def _ours_take(c: GemmConfig, p: Problem, gpu: Gpu | None) -> bool:
    lowest, highest = FAMILIES["sm90_lean"].cc
    return bool(gpu and lowest <= gpu.cc <= highest and not p.pointers and c.a in _ours())


@cache
def _ours() -> frozenset[str]:
    """What our own kernels multiply."""
    return frozenset(c.a for c in FAMILIES["sm90_lean"].declared)
