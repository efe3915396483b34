"""Calls by the hundred thousand, and what they leave behind: references, memory of this process and of the device."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

CALLS = 100_000  # what is promised of a device; fewer where a call takes long


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def needs_the_device_alone() -> None:
    """Skips beside other workers, who take and give memory of the device too."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("memory of the device is counted: needs a GPU without other workers")


def assert_nothing_stays(
    call: Callable[[], Any],
    watched: Sequence[Any],
    *,
    count: int = CALLS,
    host: int = 2 << 20,
    used: Callable[[], int] | None = None,
    device: int = 8 << 20,
) -> None:
    """Repeats a call, after a tenth of it for warming up.

    Args:
        call: without arguments; what it returns is dropped.
        watched: objects whose counts of references have to stay.
        host: bytes by which this process may grow.
        used: bytes in use of the device, once it is idle; asked every thousand calls, so that no queue grows long.
        device: bytes by which they may grow.
    """
    if used:
        needs_the_device_alone()

    def repeat(times: int) -> tuple[list[int], int, int]:
        for i in range(times):
            call()
            if used and i % 1000 == 999:
                used()
        gc.collect()
        return [sys.getrefcount(x) for x in watched], used() if used else 0, resident()

    references, of_device, of_host = repeat(max(count // 10, 100))
    after = repeat(count)
    assert after[0] == references
    assert after[1] - of_device < device
    assert after[2] - of_host < host
