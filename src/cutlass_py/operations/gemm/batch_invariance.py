"""Which kernels give a row of D the same bits, whatever is beside it: those that sum k alike.

All of our own do, of every tile, layout and orientation, where k is in as many parts (canonical.cpp says how many).
CUTLASS's 2.x kernels begin with the k that fills no tile: among themselves their sums are the same, and those of others
where there is no such rest. Stream-K cuts k by the rest of the problem. What follows a sum is rounded alike by our own
and by the elementwise kernel, which finishes it behind all others (legality.py). Found kernel by kernel on an H200
(tests/test_gpu_batch_invariance.py).
"""

from __future__ import annotations

from functools import cache

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.families import FAMILIES

WHOLE = 16  # of k: what the instructions of all others begin at multiples of; no more is read at once of any extent


def sums_refusal(c: GemmConfig, p: Problem, gpu: Gpu | None) -> str | None:
    """Why a kernel may give a row other bits than one that other rows may get; None where it does not."""
    schedule, how = SCHEDULES[c.schedule], None
    if schedule.lean:
        return None
    lowest, highest = FAMILIES["sm90_lean"].cc
    if schedule.gemv:
        how = "shares out k by what other rows there are"
    elif schedule.stream_k:
        how = "cuts k by how many tiles there are"
    elif gpu and lowest <= gpu.cc <= highest and c.a in _ours() and c.accumulator != "s32":
        how = "sums unlike our own kernels, which take such rows too"
    elif c.api == 3 and p.k % WHOLE:
        how = "sums k in another order than others that take such rows"
    return how and f"{how}; batch_invariant=True is asked for"


@cache
def _ours() -> frozenset[str]:
    """What our own kernels multiply."""
    return frozenset(c.a for c in FAMILIES["sm90_lean"].declared)
