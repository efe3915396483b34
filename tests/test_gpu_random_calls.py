"""Random calls on the device, right and wrong ones, each of which can be repeated alone.

CUTLASS_PY_TEST_CALLS says how many (500), or which ("4711:4712"); CUTLASS_PY_TEST_SEED is drawn where it is not given.
"""

from __future__ import annotations

import os
import secrets
from math import ceil

import pytest

torch = pytest.importorskip("torch")

from random_calls import drawn  # noqa: E402
from random_runs import run  # noqa: E402

pytestmark = pytest.mark.gpu

SEED = int(os.environ.get("CUTLASS_PY_TEST_SEED") or secrets.randbelow(2**31))


def chunks() -> list[range]:
    """The calls asked for, in parts that processes share."""
    first, _, last = os.environ.get("CUTLASS_PY_TEST_CALLS", "500").rpartition(":")
    calls = range(int(first or 0), int(last))
    size = max(1, min(1000, ceil(len(calls) / 8)))
    return [calls[i : i + size] for i in range(0, len(calls), size)]


@pytest.mark.parametrize("calls", chunks(), ids=lambda calls: f"{calls.start}-{calls.stop}")
def test_random_calls(calls):
    print(f"CUTLASS_PY_TEST_SEED={SEED}")
    fp8 = torch.cuda.get_device_capability() == (9, 0)
    for index in calls:
        run(drawn(SEED, index, fp8=fp8))
