"""Timing on the GPU: several arms in turn, in two regimes, or in a third."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from statistics import median
from typing import Any, TypeVar

from .frameworks import Framework, Launch

T = TypeVar("T")


@dataclass(frozen=True)
class Arm:
    """One of the things compared. `launch(i)` queues one call, on the i-th of the rotated operand sets."""

    name: str
    launch: Launch


Rounds = dict[str, list[float]]  # microseconds per call by arm, one entry per round

ROUNDS = 5
_SETTLING_SECONDS = 2.0  # what the clock of a GPU that was idle needs
_MOST_NODES = 512  # calls in one graph
# The clock falls in the first tenth of a second of load. That goes before the first window, whose arm alone would
# otherwise run at the higher clock. Calls shorter than _LOAD_US do not bring it down.
_SETTLE_US = 100_000.0
_LOAD_US = 25.0
_MOST_BURST = 150  # calls behind one spin: the launch queue holds about 1000 entries, a call may take several


def rough_us(gpu: Framework, arm: Arm) -> float:
    """A first estimate of one call, to size the real measurement; also the warm-up of everything lazy."""
    arm.launch(0)
    arm.launch(1)
    gpu.spin(200)
    start = gpu.event()
    for i in range(4):
        arm.launch(i)
    end = gpu.event()
    gpu.synchronize()
    return max(gpu.microseconds(start, end) / 4, 1.0)


def warm_up(gpu: Framework, launch: Launch) -> None:
    """Keeps the GPU multiplying until its clock has settled: cold, the first case would run at another one."""
    end = time.perf_counter() + _SETTLING_SECONDS
    while time.perf_counter() < end:
        for i in range(20):
            launch(i)
        gpu.synchronize()


def sustained_us(
    gpu: Framework, arms: Sequence[Arm], sets: int, rough: Mapping[str, float], budget_ms: float, rounds: int
) -> Rounds:
    """Calls back to back without a pause, replayed from one CUDA graph per arm.

    Everything is queued before the host looks at a result, so the GPU never idles and its clock settles. Before each
    window of an arm, its graph is replayed once untimed; every other round takes the arms in reverse order.

    Args:
        gpu: the array library.
        arms: what to compare.
        sets: number of operand sets; a graph goes through all of them, once or several times, so that each has left
            the cache when its turn comes again.
        rough: microseconds of a call by arm, as rough_us tells.
        budget_ms: GPU time per arm, over all rounds.
        rounds: windows per arm.
    """
    graphs: dict[str, tuple[Callable[[], object], int, int]] = {}
    window_us = budget_ms * 1e3 / rounds
    for arm in arms:
        nodes = max(min(int(window_us / rough[arm.name] / 4), _MOST_NODES) // sets, 1) * sets
        replays = max(round(window_us / rough[arm.name] / nodes), 1)
        graphs[arm.name] = (gpu.capture(arm.launch, nodes), nodes, replays)
    replay, nodes, _ = graphs[arms[0].name]
    if rough[arms[0].name] >= _LOAD_US:
        for _ in range(round(_SETTLE_US / rough[arms[0].name] / nodes)):
            replay()
    windows: dict[str, list[tuple[Any, Any]]] = {arm.name: [] for arm in arms}
    for index in range(rounds):
        for arm in _turned(arms, index):
            replay, _, replays = graphs[arm.name]
            replay()
            start = gpu.event()
            for _ in range(replays):
                replay()
            windows[arm.name].append((start, gpu.event()))
    gpu.synchronize()
    calls = {name: nodes * replays for name, (_, nodes, replays) in graphs.items()}
    return {
        name: [gpu.microseconds(start, end) / calls[name] for start, end in pairs] for name, pairs in windows.items()
    }


def _turned(arms: Sequence[T], index: int) -> Sequence[T]:
    return arms if index % 2 == 0 else arms[::-1]


NEIGHBOUR = "neighbour"  # the name under which mixed_us reports its foreign kernel alone


def mixed_us(
    gpu: Framework,
    arms: Sequence[Arm],
    rough: Mapping[str, float],
    budget_ms: float,
    rounds: int,
    neighbour: Callable[[], object] | None = None,
) -> tuple[Rounds, bool]:
    """Calls on a plain stream, each followed by a neighbour, as inside of a model: a small elementwise kernel of the
    library's, unless another is given.

    A burst is queued while the GPU spins, so that host time does not count. The bursts of all arms go through the
    operand sets together, each from where the last one ended, because the sets of one burst may all fit in the cache.
    Times include the neighbour; the arm called NEIGHBOUR is that kernel alone, to be subtracted.

    Returns:
        The rounds, and whether the whole of each burst was queued before the spin ended.
    """
    small, window_us, sets = neighbour or gpu.small_kernel(), budget_ms * 1e3 / rounds, count()

    def burst(arm: Arm, sets: Iterator[int]) -> _Burst:
        calls = min(max(int(window_us / (rough.get(arm.name, 0.0) + 2)), 2), _MOST_BURST)
        return _Burst(gpu, arm, small, calls, sets)

    bursts = [*(burst(arm, sets) for arm in arms), burst(Arm(NEIGHBOUR, lambda i: None), count())]
    times: Rounds = {burst.arm.name: [] for burst in bursts}
    for index in range(rounds):
        for each in _turned(bursts, index):
            times[each.arm.name].append(each.run())
    return times, all(burst.filled for burst in bursts)


class _Burst:
    """Calls and neighbours in turn, behind a spin that outlasts their queueing: `filled` until one did not."""

    def __init__(self, gpu: Framework, arm: Arm, small: Callable[[], object], calls: int, sets: Iterator[int]) -> None:
        self.gpu, self.arm, self.small, self.calls, self.sets, self.filled = gpu, arm, small, calls, sets, True
        self._queue()  # warm
        gpu.synchronize()
        began = time.perf_counter()
        self._queue()
        self.spin_us = 1.5 * (time.perf_counter() - began) * 1e6 + 100
        gpu.synchronize()

    def run(self) -> float:
        for _ in range(4):
            us, filled = self._timed()
            if filled:
                return us
            self.spin_us *= 2
            self.calls = max(self.calls // 2, 2)
        self.filled = False
        return us

    def _queue(self) -> None:
        for i in islice(self.sets, self.calls):
            self.arm.launch(i)
            self.small()

    def _timed(self) -> tuple[float, bool]:
        self.gpu.spin(self.spin_us)
        start = self.gpu.event()
        self._queue()
        end = self.gpu.event()
        filled = not self.gpu.passed(start)
        self.gpu.synchronize()
        return self.gpu.microseconds(start, end) / self.calls, filled


REGIMES = ("sustained", "mixed")
# Like mixed, beside copies in memory that take as long as the fastest arm: a GPU that multiplies half of the time, as
# in training, keeps a higher clock. Not among the bars.
LIGHT = "light"
ALL_REGIMES = (*REGIMES, LIGHT)


def regime_us(
    gpu: Framework, regime: str, arms: Sequence[Arm], sets: int, rough: Mapping[str, float], budget_ms: float
) -> dict[str, Any]:
    """One regime of a case, as it goes into the JSON: medians by arm without the neighbour, and the rounds with it."""
    found: dict[str, Any] = {}
    if regime == "sustained":
        times = sustained_us(gpu, arms, sets, rough, budget_ms, ROUNDS)
    else:
        neighbour = gpu.copies(min(rough[arm.name] for arm in arms)) if regime == LIGHT else None
        times, filled = mixed_us(gpu, arms, rough, budget_ms, ROUNDS, neighbour)
        found = {"queue_filled": filled, "neighbour_us": median(times[NEIGHBOUR])}
    return found | {"us": {name: median(us) for name, us in alone(times).items()}, "rounds_us": times}


def alone(rounds: Rounds) -> Rounds:
    """Times without the neighbour's of the same round, at least 0.1 us."""
    own = {name: times for name, times in rounds.items() if name != NEIGHBOUR}

    def without(times: list[float]) -> list[float]:
        return [max(x - y, 0.1) for x, y in zip(times, rounds.get(NEIGHBOUR, [0.0] * len(times)), strict=True)]

    return {name: without(times) for name, times in own.items()}


def ratio_of(rounds: Rounds, theirs: str, ours: str) -> float:
    """Their time over ours: the median over the rounds. A clock that falls falls for both arms of a later round."""
    return median(t / o for t, o in zip(rounds[theirs], rounds[ours], strict=True))
