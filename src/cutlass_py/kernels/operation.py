"""What an operation is to the engines: candidates, plans, tuning and explanations know operations by this alone.

An operation is a room of `operations/`, whose `operation.py` has the one object, OPERATION.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .. import _core
from ..arrays.gpu import Gpu
from ..declaration.operands import DEFAULT
from ..errors import wrong_type
from .adaptation import Way

if TYPE_CHECKING:
    from ..declaration.epilogues import Epilogue
    from .kernel import CutlassKernel, Status
    from .metadata import KernelMetadata


class Problem(Protocol):
    """What the engines look at of a problem of any operation; the rest of it is the operation's own."""

    @property
    def operation(self) -> str:
        """The name of its operation."""

    @property
    def device(self) -> str:
        """Where its operands are, in words."""

    @property
    def device_id(self) -> int:
        """The CUDA ordinal of that; -1 in host memory."""

    @property
    def kernel(self) -> int:
        """Number of the kernel that was asked for; -1 for none."""

    @property
    def user(self) -> int:
        """Number of the user's epilogue; -1 for none."""

    @property
    def splits(self) -> int:
        """Parts that were asked for; 0 for as many as are best."""

    @property
    def deterministic(self) -> bool:
        """Whether the same bits are asked for again."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's bits may not depend on what is beside it."""

    @property
    def jit(self) -> bool:
        """Whether it was asked for within `jit`."""


# The fields of a route behind its microseconds, which are infinite where nobody can say: most never become a Choice.
Timed = tuple[float, Any, Way, int]


class Arguments(ABC):
    """An operation as a value: its operands and keywords, as arrays or as metadata alone."""

    problem: Problem

    @abstractmethod
    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run it."""

    def plan(
        self, *, kernel: Any = None, raster: str | None = None, swizzle: int | None = None
    ) -> _core.Prepared | _core.PreparedGroups:
        """The call prepared, to be run on new arrays.

        Raises:
            TypeError: calls of the operation are not prepared.
        """
        raise TypeError(f"plan: args is {_core.described_type(self)}; such calls are not prepared: run them")

    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands."""
        return 0

    def group_ends(self) -> list[int]:
        """Where groups end, as far as arrays say so, for `tune`; of most operations there are none."""
        return []


class KernelCall(Protocol):
    """One call in canonical form, as kernels in Python get it; the operation's own has its operands and keywords."""

    @property
    def problem(self) -> Any:
        """What is to be computed."""

    @property
    def stream(self) -> int | None:
        """The CUDA stream to launch on, as a number; None on the CPU."""


class Interface(ABC):
    """The part of a kernel that legality depends on: one object for all kernels that share it."""

    epilogue: Epilogue

    @abstractmethod
    def way(self, p: Any, gpu: Gpu | None) -> Way | str:
        """How its kernels reach a problem, or the reason that they do not."""

    @abstractmethod
    def alike(self, p: Any) -> bool:
        """Whether it could take the problem's operands as they lie: the cheap part of `way`."""


class Estimates(ABC):
    """What the kernels of an operation take for one problem on one GPU, in microseconds."""

    p: Any

    @abstractmethod
    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """Microseconds of the kernel itself, its work in so many parts."""


class Groups(dict[Any, list["CutlassKernel"]]):
    """Kernels by their interface.

    Attributes:
        kept: what an operation has made of them, for as long as they are these.
    """

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.kept: dict[Any, Any] = {}


class Operation(ABC):
    """What the engines ask of an operation.

    Attributes:
        name: of the room, and of the function of the package.
        arguments: its Arguments.
        call: its KernelCall, made from the names under which C++ hands them over.
        keys: of a problem as a JSON object, each with what it means.
        key: attributes of a problem that a choice depends on, in the order of a class's text in tuned tables.
        not_in_key: the others; together they are all that a problem has.
    """

    name: ClassVar[str]
    arguments: ClassVar[type[Arguments]]
    call: ClassVar[Callable[..., KernelCall]]
    keys: ClassVar[dict[str, str]]
    key: ClassVar[tuple[str, ...]]
    not_in_key: ClassVar[tuple[str, ...]]

    def key_of(self, p: Any) -> str:
        """The class of a problem as text: every attribute of `key` that says something."""
        values = ((name, getattr(p, name)) for name in self.key)
        return " ".join(f"{name}={int(value) if value is True else value}" for name, value in values if value)

    @abstractmethod
    def arguments_from(self, entry: Mapping[str, Any], device: str) -> Arguments:
        """What a JSON object says, as TensorSpecs on a device."""

    @property
    @abstractmethod
    def suite(self) -> Iterable[Mapping[str, Any]]:
        """Problems that are worth timing, as JSON objects."""

    # ------------------------------------------------------------------------------------------------ in words

    @abstractmethod
    def describe(self, p: Any) -> str:
        """A problem in one line, for messages and tables."""

    def caveat(self, p: Any) -> str:
        """What has to be known to read words about a problem's operands; empty for most."""
        return ""

    def first(self, p: Any) -> str:
        """What is done to a problem's operands before any kernel sees them; "" for nothing."""
        return ""

    def fused(self, interface: Any, p: Any) -> str:
        """What kernels of an interface do to a problem's result before they store it, as a formula; "" for nothing."""
        return ""

    # ------------------------------------------------------------------------------------------------ legality

    @abstractmethod
    def interface_of(self, config: Any) -> Interface:
        """What legality depends on of a kernel."""

    @abstractmethod
    def metadata_of(self, kernel: CutlassKernel) -> KernelMetadata:
        """What a kernel says of itself: by its declaration, and by what was compiled, where it was."""

    @abstractmethod
    def metadata_fits(self, m: KernelMetadata, p: Any) -> Status:
        """Whether a problem is what the metadata of a user's kernel say."""

    @abstractmethod
    def metadata_mistake(self, m: KernelMetadata, usual: bool) -> str | None:
        """What is wrong with such metadata in themselves; with `usual`, where `metadata_fits` is to be asked."""

    @abstractmethod
    def formula_of(self, m: KernelMetadata) -> str:
        """What a user's kernel computes: the formula of what its metadata call the epilogue."""

    @abstractmethod
    def dtypes(self, p: Any) -> dict[str, str]:
        """The dtypes by which kernels for a problem are found, by operand, in the order of KernelConfig.operands."""

    # ------------------------------------------------------------------------------------------------ on the CPU

    @property
    @abstractmethod
    def host_kernel(self) -> KernelMetadata:
        """The kernel that takes every problem in host memory."""

    @abstractmethod
    def compute(self, call: Any) -> None:
        """What it does: the definition of the operation, in NumPy."""

    @abstractmethod
    def without_kernel(self, p: Any) -> str | None:
        """Why no kernel is needed for a problem: nothing or hardly anything is to be computed. None where one is."""

    def divided(self, p: Any) -> str:
        """In words, how several problems are made of it where no kernel takes it; empty where none are."""
        return ""

    # ------------------------------------------------------------------------------------------------ cost

    @abstractmethod
    def design(self, config: Any) -> int:
        """A number for what estimates look at of a kernel."""

    @abstractmethod
    def estimates(self, p: Any, gpu: Gpu) -> Estimates:
        """What kernels take for a problem."""

    @abstractmethod
    def routes(self, p: Any, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
        """Every route of CUTLASS kernels to a problem, with its estimate.

        Args:
            every: also those that are certain to be slower than another.
            cuts: also those that cut the problem into parts.
        """

    @abstractmethod
    def forced(self, kernel: CutlassKernel, way: Way, p: Any, gpu: Gpu) -> Timed:
        """The route of a kernel that was asked for by name."""

    def sums_refusal(self, config: Any, p: Any, gpu: Gpu | None) -> str | None:
        """Why a kernel may give a row other bits than one that is taken for other rows; None where it does not."""
        return None

    def parts_refusal(self, kernel: CutlassKernel, p: Any) -> str | None:
        """Why a kernel cannot compute a problem in the parts that are asked for; None where it can."""
        return None

    def in_parts(self, kernel: CutlassKernel, way: Way, p: Any, splits: int) -> tuple[Way, int] | None:
        """The way that cuts a problem into so many parts, and how many come of it; None where a kernel cannot."""
        return (way, 1) if splits == 1 else None

    def tile_order(self, kernel: CutlassKernel, p: Any, gpu: Gpu) -> tuple[int, int]:
        """Raster and swizzle of a kernel's tiles (kernel.h)."""
        return 0, 1

    def tile_orders(self, kernel: CutlassKernel, p: Any) -> Iterable[tuple[int, int]]:
        """The orders of a kernel's tiles that are worth measuring."""
        return ()

    def may_overlap(self, kernel: CutlassKernel, way: Way, p: Any) -> bool:
        """Whether a launch may start before its predecessor in the stream has ended."""
        return False

    def similar(self, p: Any) -> tuple[str, Callable[[str], str]] | None:
        """The class whose measured choices are estimates of this problem, and what its kernels are called here."""
        return None


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
        raise wrong_type("args", f"is {_core.described_type(args)}", _named_arguments(), operation=function)
    return args


def _named_arguments() -> str:
    return f"{operation_named(DEFAULT).arguments.__name__} or another operation's"


def arguments_asked(function: str, a: Any, b: Any, keywords: dict[str, Any]) -> Arguments:
    """Those of a function that takes Arguments, or what those of the default operation are made of."""
    default: Any = operation_named(DEFAULT).arguments
    if b is not None:
        made: Arguments = default(a, b, **keywords)
        return made
    if not isinstance(a, Arguments):
        found = f"a is {_core.described_type(a)} and b is missing"
        raise TypeError(f"{function}: {found}; expected both operands, or {_named_arguments()}")
    if keywords:
        raise TypeError(f"{function}: {', '.join(keywords)} belong into the {type(a).__name__}")
    return a
