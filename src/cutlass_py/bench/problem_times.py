"""Times of problems of any operation on this GPU, beside what the model says of the kernel that is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from .. import _core
from ..dispatch.candidates import best
from ..dispatch.launch_plan import launch_plan_of
from ..errors import NoKernelError
from ..kernels.operation import Arguments, describe

_ROUNDS = 20


@dataclass(frozen=True)
class Time:
    """One problem.

    Attributes:
        problem: in words.
        kernel: what is chosen for it.
        microseconds: a call takes from a cold cache, the median of some.
        estimate: that the model says, or a table that `tune` wrote.
    """

    problem: str
    kernel: str
    microseconds: float
    estimate: float


def times(problems: Iterable[Arguments]) -> Iterator[Time]:
    """Each problem by the choice for it, on operands made up for it.

    Raises:
        NoKernelError: no kernel fits.
        CudaError: it did not run.
    """
    for args in problems:
        p: Any = args.problem
        if (choice := best(p)) is None:
            raise NoKernelError(f"bench: no kernel fits {describe(p)}")
        (readings,) = _core.measure(p, [launch_plan_of(choice, p)], _ROUNDS)
        yield Time(describe(p), choice.route.kernel.name, median(readings), choice.microseconds)
