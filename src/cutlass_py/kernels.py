"""Kernels as objects: what exists, what each can run, by number and by what it multiplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

from . import _core
from ._core import Problem
from .arguments import GemmArguments, problem_of
from .carriers import carrier
from .cost import design
from .dtypes import DTYPES
from .epilogues import ACTIVATIONS, Epilogue
from .errors import CompileError
from .families import FAMILIES, Family, KernelConfig, find, named
from .gpu import Gpu, gpu_of
from .legality import Interface, Way, interface_of
from .user_epilogue import asked_by


@dataclass(frozen=True)
class Status:
    """An answer with its reason: true, or `error` says why not."""

    error: str | None = None

    def __bool__(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class OperandMetadata:
    """What a kernel reads or writes: dtype, layout ('t' row-major, 'n' column-major, '*' any), bytes of alignment."""

    dtype: str
    layout: str
    alignment: int


@dataclass(frozen=True)
class Design:
    """How a kernel computes: tile (m, n, k), cluster of tiles, schedule, pipeline stages, threads, shared memory.

    `threads` and `smem_bytes` are read from the compiled kernel, and 0 where it is not compiled; so are the stages of a
    3.x kernel.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    schedule: str
    stages: int
    threads: int
    smem_bytes: int


@dataclass(frozen=True)
class KernelMetadata:
    """Everything get_kernels(where=...) can look at."""

    name: str
    family: str
    api: int
    operands: dict[str, OperandMetadata]
    accumulator: str
    design: Design
    epilogue: str
    deterministic: bool = True  # the same bits on every run


@dataclass(frozen=True)
class Route:
    """A kernel and its way to a problem.

    Attributes:
        splits: parts of k whose sums the elementwise kernel joins in order, as it finishes the product; 1 for none.
    """

    kernel: Kernel
    way: Way = Way()
    splits: int = 1

    @property
    def direct(self) -> bool:
        """Whether the kernel reads and writes the operands as they lie."""
        return not self.way.detours and self.splits == 1


class Kernel(ABC):
    """One kernel: `name`, whether it is `compiled`, its `metadata`, what it `supports`, and `run`."""

    name: str
    compiled: bool
    deterministic = True
    host: Callable[..., None] | None = None  # computes on the CPU, where the kernel is a Python function

    @property
    @abstractmethod
    def metadata(self) -> KernelMetadata:
        """Operands (legality), design (performance) and epilogue."""

    @abstractmethod
    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """The way to compute `p` with this kernel, or the reason that there is none."""

    def supports(self, args: GemmArguments) -> Status:
        """Whether the kernel computes these arguments as they lie: no packing, no composed epilogue.

        Compiled or not makes no difference here; see `compiled`.
        """
        p = problem_of(args)
        way = self.way(p, gpu_of(p))
        if isinstance(way, str):
            return Status(way)
        return Status(way.detours[0] if way.detours else None)

    def compile(self) -> None:
        """Compile and load the kernel, or take it from the cache, where it is not in the built set (docs/jit.md).

        Raises:
            CompileError: there is no compiler, it failed, or CUTLASS_PY_JIT forbids it.
        """
        return  # what is a Python function needs no compiler

    def run(self, args: GemmArguments, *, stream: Any = None) -> Any:
        """Run this kernel on the arguments, compiled first if need be; returns out.

        Raises:
            ValueError: the kernel does not support them.
            CompileError: as `compile` does.
        """
        return args.run(kernel=self, stream=stream)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{'' if self.compiled else ' (not compiled)'}>"


class CutlassKernel(Kernel):
    """A kernel of the declaration (families.py)."""

    def __init__(self, config: KernelConfig, facts: dict[str, Any] | None) -> None:
        self.config = config
        self.name = config.name
        self.facts = facts
        self.compiled = facts is not None
        self.design = design(config)
        self._interface: Interface | None = None
        self._metadata: KernelMetadata | None = None

    def compile(self) -> None:
        """As in Kernel."""
        if not self.compiled:
            from .compiler import load

            self.facts = load(self.config)
            self.compiled, self._metadata = True, None
            _another_is_compiled()

    def ready(self) -> None:
        """As compile, but where that failed in this process before, it fails again at once."""
        from .compiler import failed

        if not self.compiled and self.name in failed:
            raise CompileError(failed[self.name])
        self.compile()

    @property
    def family(self) -> Family:
        """The family's row in the declaration."""
        return FAMILIES[self.config.family]

    @property
    def interface(self) -> Interface:
        """What legality depends on."""
        if self._interface is None:
            self._interface = interface_of(self.config)
        return self._interface

    @property
    def metadata(self) -> KernelMetadata:
        """From the declaration, and from the compiled kernel where there is one."""
        if self._metadata is None:
            c, facts = self.config, self.facts or {}
            design = Design(
                c.tile, c.cluster, c.schedule, c.stages or facts.get("stages", 0), facts.get("threads", 0),
                facts.get("smem_bytes", 0),
            )  # fmt: skip
            epilogue = self.interface.epilogue.formula
            self._metadata = KernelMetadata(
                self.name, c.family, c.api, _operands(self.interface), c.accumulator, design, epilogue
            )
        return self._metadata

    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """As in Kernel."""
        kernel = self.carrying(p)
        return kernel if isinstance(kernel, str) else kernel.interface.way(p, gpu)

    def carrying(self, p: Problem) -> CutlassKernel | str:
        """This kernel with the user's epilogue that a problem asks for, or why there is none; itself where none is."""
        asked = asked_by(p)
        if not asked or self.interface.epilogue.user:
            return self
        config = carrier(self.config, asked.epilogue)
        return config if isinstance(config, str) else _cutlass_kernel(config)


@cache
def _operands(i: Interface) -> dict[str, OperandMetadata]:
    epilogue, output = i.epilogue, OperandMetadata(i.d, "t", i.bytes_d)
    derivative = ACTIVATIONS[epilogue.activation].derivative
    operands = {
        "a": OperandMetadata(DTYPES[i.a].storage or i.a, i.layout[0], i.bytes_ab),
        "b": OperandMetadata(DTYPES[i.b].storage or i.b, i.layout[1], i.bytes_ab),
        "d": output,
    }
    operands |= {"c": output} if epilogue.source else {}
    operands |= {"aux" if derivative else "gate": output} if epilogue.gated else {}
    operands |= {"aux": output} if epilogue.aux else {}
    operands |= {"bias": OperandMetadata(i.bias, epilogue.bias, DTYPES[i.bias].itemsize)} if epilogue.bias else {}
    return operands


# ---------------------------------------------------------------------------------------------------- what exists


_cutlass: dict[str, CutlassKernel] = {}  # by name: one object per kernel, made when it is first asked for


def _cutlass_kernel(config: KernelConfig) -> CutlassKernel:
    if (kernel := _cutlass.get(config.name)) is None:
        kernel = _cutlass.setdefault(config.name, CutlassKernel(config, _facts().get(config.name)))
    return kernel


@cache
def _facts() -> dict[str, dict[str, Any]]:
    return _core.kernel_facts()


def _host_kernels() -> tuple[Kernel, ...]:
    from .providers.numpy import KERNELS

    return KERNELS


@cache
def all_kernels(compiled: bool = False) -> tuple[Kernel, ...]:
    """Every kernel in the order of declaration, the CPU's last; or those that are compiled."""
    if compiled:
        configs = [config for name in _core.kernel_facts() if (config := find(name))]
    else:
        configs = list(named("declared").values())
    return (*map(_cutlass_kernel, configs), *_host_kernels())


@cache
def by_operands(compiled: bool) -> dict[tuple[str, str], dict[Interface, list[CutlassKernel]]]:
    """Kernels by the dtypes they multiply, then by interface: what a question goes through."""
    groups: dict[tuple[str, str], dict[Interface, list[CutlassKernel]]] = {}
    for kernel in all_kernels(compiled):
        if isinstance(kernel, CutlassKernel):
            group = groups.setdefault((kernel.config.a, kernel.config.b), {})
            group.setdefault(kernel.interface, []).append(kernel)
    return groups


def _another_is_compiled() -> None:
    all_kernels.cache_clear()
    by_operands.cache_clear()
    _core.clear_plans()


def candidates(p: Problem, compiled: bool) -> dict[Interface, list[CutlassKernel]]:
    """CUTLASS kernels worth asking about a problem, by interface: none where the operands are in host memory."""
    if p.device_id < 0:
        return {}
    if asked := asked_by(p):
        groups = _carriers(p.operand_a or "", p.operand_b or "", asked.epilogue)
        ready = {i: [kernel for kernel in group if kernel.compiled or not compiled] for i, group in groups.items()}
        return {interface: group for interface, group in ready.items() if group}
    return by_operands(compiled).get((p.operand_a or "", p.operand_b or ""), {})


@cache
def _carriers(a: str, b: str, epilogue: Epilogue) -> dict[Interface, list[CutlassKernel]]:
    """Every declared design for these dtypes with a user's epilogue, compiled or not."""
    declared = (kernel.config for group in by_operands(False).get((a, b), {}).values() for kernel in group)
    configs = {c: None for config in declared if isinstance(c := carrier(config, epilogue), KernelConfig)}
    groups: dict[Interface, list[CutlassKernel]] = {}
    for kernel in map(_cutlass_kernel, configs):
        groups.setdefault(kernel.interface, []).append(kernel)
    return groups


def host_kernels(p: Problem) -> list[Kernel]:
    """Kernels worth asking about a problem in host memory."""
    return list(_host_kernels()) if p.device_id < 0 else []


_numbered: list[Kernel] = []  # kernels that were asked for; their index is the number that Problem.kernel holds


def number_of(kernel: Kernel | str) -> int:
    """Number of a kernel given by name or object, as Problem.kernel holds it.

    Raises:
        ValueError: no kernel has that name.
    """
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"gemm: kernel is a {type(kernel).__name__}; expected a Kernel or its name")
    if name not in _numbers:
        kernel_found = kernel_named(name)
        with _numbering:
            if name not in _numbers:
                _numbered.append(kernel_found)
                _numbers[name] = len(_numbered) - 1
    return _numbers[name]


_numbers: dict[str, int] = {}
_numbering = Lock()  # a number is published when its kernel is there


def kernel_named(name: str) -> Kernel:
    """The kernel of that name.

    Raises:
        ValueError: there is none.
    """
    if known := _cutlass.get(name):
        return known
    if config := find(name):
        return _cutlass_kernel(config)
    for kernel in _host_kernels():
        if kernel.name == name:
            return kernel
    raise ValueError(f"gemm: no kernel is called {name!r}; cutlass_py.get_kernels() lists them")


def numbered(number: int) -> Kernel:
    """The kernel that number_of gave this number to."""
    return _numbered[number]


def get_kernels(
    args: GemmArguments | None = None,
    where: Callable[[KernelMetadata], bool] | None = None,
    *,
    cc: int | None = None,
    compiled: bool = True,
) -> list[Kernel]:
    """Kernels, best first where arguments are given.

    Args:
        args: only kernels that support these arguments as they lie, ordered by the estimate that `gemm` selects with.
            Without it, every kernel in the order of declaration.
        where: only kernels whose metadata satisfies this predicate.
        cc: only kernels that run on this compute capability (80, 86, 90, ...).
        compiled: False includes kernels that are declared but neither in the built set nor compiled since.
    """
    if args is not None:
        from .select import rank

        ranking = rank(problem_of(args), compiled=compiled)
        kernels = [choice.route.kernel for choice in ranking if choice.route.direct]
    else:
        kernels = list(all_kernels(compiled))
    if cc is not None:
        kernels = [k for k in kernels if isinstance(k, CutlassKernel) and k.family.cc[0] <= cc <= k.family.cc[1]]
    return [k for k in kernels if where is None or where(k.metadata)]
