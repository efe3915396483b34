"""The plan of a launch: what C++ repeats on every call of a class of problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..kernels.adaptation import STEPS, Way
from ..kernels.kernel import CutlassKernel, PythonKernel
from ..kernels.operation import Problem, operation_of
from .candidates import Choice


@dataclass(frozen=True)
class LaunchPlan:
    """What the warm path needs to repeat a choice: `struct Plan` in C++."""

    kernel: str | None = None
    pack_a: str | None = None
    pack_b: str | None = None
    scratch: str | None = None
    splits: int = 1
    raster: int = 0
    swizzle: int = 1
    overlap: bool = False
    each: bool = False  # several products (a list of matrices, say), one after the other
    provided: Callable[..., None] | None = None  # PythonKernel.call of one that does all of it
    pack_scales: bool = False
    sums: bool = False

    @property
    def provided_name(self) -> str | None:
        """Name of the kernel written in Python; None where it is another."""
        kernel = getattr(self.provided, "__self__", None)
        return kernel.name if isinstance(kernel, PythonKernel) else None

    @property
    def steps(self) -> list[str]:
        """What surrounds the kernel, in words."""
        return Way.of(partial(getattr, self)).steps(self.splits)

    def __str__(self) -> str:
        if self.each:
            return "one matrix after the other"
        return ", ".join([self.kernel or self.provided_name or "the epilogue alone", *self.steps])


def launch_plan_of(choice: Choice, p: Problem) -> LaunchPlan:
    """The plan that carries out a choice; its kernel is compiled if need be.

    Raises:
        CompileError: it cannot be compiled.
    """
    route, kernel = choice.route, choice.route.kernel
    if isinstance(kernel, PythonKernel):
        return LaunchPlan(provided=kernel.call)
    assert isinstance(kernel, CutlassKernel)
    kernel.ready()
    way = route.way
    return LaunchPlan(
        kernel.name,
        splits=route.splits,
        raster=choice.raster,
        swizzle=choice.swizzle,
        overlap=operation_of(p).may_overlap(kernel, way, p),
        **{name: getattr(way, name) for name in STEPS},
    )
