"""What an operation is to the engines: candidates, plans, tuning and explanations know operations by this alone.

An operation is a room of `operations/`, whose `operation.py` has the one object, OPERATION.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from .. import _core
from .._core import Problem
from ..arrays.gpu import Gpu
from ..declaration.config import KernelConfig
from ..errors import wrong_type
from .adaptation import Way

if TYPE_CHECKING:
    from ..declaration.epilogues import Epilogue
    from .kernel import CutlassKernel
    from .metadata import OperandMetadata

DEFAULT = "gemm"  # what functions make of operands that come without a name of an operation

# The fields of a route behind its microseconds, which are infinite where nobody can say: most never become a Choice.
Timed = tuple[float, Any, Way, int]


class Arguments(ABC):
    """An operation as a value: its operands and keywords, as arrays or as metadata alone."""

    problem: Problem

    @abstractmethod
    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run it."""

    @abstractmethod
    def plan(self, *, kernel: Any = None, raster: str | None = None, swizzle: int | None = None) -> _core.Prepared:
        """The call prepared, to be run on new arrays."""

    @abstractmethod
    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands."""


class Interface(ABC):
    """The part of a kernel that legality depends on: one object for all kernels that share it."""

    epilogue: Epilogue

    @abstractmethod
    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """How its kernels reach a problem, or the reason that they do not."""

    @abstractmethod
    def alike(self, p: Problem) -> bool:
        """Whether it could take the problem's operands as they lie: the cheap part of `way`."""


class Estimates(ABC):
    """What the kernels of an operation take for one problem on one GPU, in microseconds."""

    p: Problem

    @abstractmethod
    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """Microseconds of the kernel itself, its work in so many parts."""


Groups = dict[Any, list["CutlassKernel"]]  # kernels by their interface


class Operation(ABC):
    """What the engines ask of an operation.

    Attributes:
        name: of the room, and of the function of the package.
        arguments: its Arguments.
        key: attributes of a problem that a choice depends on, in the order of a class's text in tuned tables.
        not_in_key: the others; together they are all that a problem has.
    """

    name: ClassVar[str]
    arguments: ClassVar[type[Arguments]]
    key: ClassVar[tuple[str, ...]]
    not_in_key: ClassVar[tuple[str, ...]]

    def key_of(self, p: Problem) -> str:
        """The class of a problem as text: every attribute of `key` that says something."""
        values = ((name, getattr(p, name)) for name in self.key)
        return " ".join(f"{name}={int(value) if value is True else value}" for name, value in values if value)

    # ------------------------------------------------------------------------------------------------ in words

    @abstractmethod
    def describe(self, p: Problem) -> str:
        """A problem in one line, for messages and tables."""

    @abstractmethod
    def caveat(self, p: Problem) -> str:
        """What has to be known to read words about a problem's operands; empty for most."""

    # ------------------------------------------------------------------------------------------------ legality

    @abstractmethod
    def interface_of(self, config: KernelConfig) -> Interface:
        """What legality depends on of a kernel."""

    @abstractmethod
    def operands_of(self, interface: Any) -> dict[str, OperandMetadata]:
        """The operands that kernels of an interface read and write as they lie."""

    @abstractmethod
    def without_kernel(self, p: Problem) -> str | None:
        """Why no kernel is needed for a problem: nothing or hardly anything is to be computed. None where one is."""

    @abstractmethod
    def dividable(self, p: Problem) -> bool:
        """Whether it is several problems, which may be computed one after the other where no kernel takes them all."""

    # ------------------------------------------------------------------------------------------------ cost

    @abstractmethod
    def design(self, config: KernelConfig) -> int:
        """A number for what estimates look at of a kernel."""

    @abstractmethod
    def estimates(self, p: Problem, gpu: Gpu) -> Estimates:
        """What kernels take for a problem."""

    @abstractmethod
    def routes(self, p: Problem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
        """Every route of CUTLASS kernels to a problem, with its estimate.

        Args:
            every: also those that are certain to be slower than another.
            cuts: also those that cut the problem into parts.
        """

    @abstractmethod
    def forced(self, kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu) -> Timed:
        """The route of a kernel that was asked for by name."""

    @abstractmethod
    def in_parts(self, kernel: CutlassKernel, way: Way, p: Problem, splits: int) -> tuple[Way, int] | None:
        """The way that cuts a problem into so many parts, and how many come of it; None where a kernel cannot."""

    @abstractmethod
    def tile_order(self, kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
        """Raster and swizzle of a kernel's tiles (kernel.h)."""

    @abstractmethod
    def tile_orders(self, kernel: CutlassKernel, p: Problem) -> Iterable[tuple[int, int]]:
        """The orders of a kernel's tiles that are worth measuring."""

    @abstractmethod
    def may_overlap(self, kernel: CutlassKernel, way: Way, p: Problem) -> bool:
        """Whether a launch may start before its predecessor in the stream has ended."""

    @abstractmethod
    def similar(self, p: Problem) -> tuple[str, Callable[[str], str]] | None:
        """The class whose measured choices are estimates of this problem, and what its kernels are called here."""


@cache
def operation_named(name: str) -> Operation:
    """The operation of that name, found as plugins are: rooms are built on this module."""
    found: Operation = import_module(f"cutlass_py.operations.{name}.operation").OPERATION
    return found


def operation_of(p: Problem) -> Operation:
    """The operation that a problem is of."""
    return operation_named(p.operation)


def class_of(p: Problem) -> str:
    """The class of a problem as text, by which tuned tables know it."""
    return operation_of(p).key_of(p)


def describe(p: Problem) -> str:
    """A problem in one line, for messages and tables."""
    return operation_of(p).describe(p)


def arguments_of(function: str, args: Any) -> Arguments:
    """What is Arguments; TypeError, of the function that was called, for what is not."""
    if not isinstance(args, Arguments):
        expected = operation_named(DEFAULT).arguments.__name__
        raise wrong_type("args", f"is {_core.described_type(args)}", expected, operation=function)
    return args


def problem_asked(function: str, a: Any, b: Any, keywords: dict[str, Any]) -> Problem:
    """The problem of a function that takes Arguments, or what those of the default operation are made of."""
    default: Any = operation_named(DEFAULT).arguments
    if b is not None:
        problem: Problem = default(a, b, **keywords).problem
        return problem
    if not isinstance(a, Arguments):
        found = f"a is {_core.described_type(a)} and b is missing"
        raise TypeError(f"{function}: {found}; expected both operands, or {default.__name__}")
    if keywords:
        raise TypeError(f"{function}: {', '.join(keywords)} belong into the {default.__name__}")
    return a.problem
