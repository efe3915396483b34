"""Kernels as objects: what exists, what each can run and why not, and the detours to what it cannot take directly.

Legality is decided here and only here, from the declaration and the canonical problem. CUTLASS's own can_implement is
not asked: it accepts misaligned pointers and refuses extents that run (docs/design.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from . import _core
from ._core import Problem
from .arguments import GemmArguments, problem_of
from .families import DTYPES, EPILOGUES, FAMILIES, SCHEDULES, Family, KernelConfig, declared
from .gpu import Gpu, gpu_of


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


@dataclass(frozen=True)
class Route:
    """How a kernel reaches a problem. Without detours it reads and writes the operands as they lie.

    Attributes:
        pack_a, pack_b: layout the operand is copied into first, or None.
        scratch: dtype of a product that the elementwise kernel then finishes into out, or None.
        detours: the reason of each, in words.
    """

    kernel: Kernel
    pack_a: str | None = None
    pack_b: str | None = None
    scratch: str | None = None
    detours: tuple[str, ...] = ()


class Kernel(ABC):
    """One kernel: `name`, whether it is `compiled`, its `metadata`, what it `supports`, and `run`."""

    name: str
    compiled: bool
    host: Callable[..., None] | None = None  # computes on the CPU, where the kernel is a Python function

    @property
    @abstractmethod
    def metadata(self) -> KernelMetadata:
        """Operands (legality), design (performance) and epilogue."""

    @abstractmethod
    def route(self, p: Problem, gpu: Gpu | None) -> Route | Status:
        """The way to compute `p` with this kernel, or a Status with the reason that there is none."""

    def supports(self, args: GemmArguments) -> Status:
        """Whether the kernel computes these arguments as they lie: no packing, no composed epilogue.

        Compiled or not makes no difference here; see `compiled`.
        """
        p = problem_of(args)
        found = self.route(p, gpu_of(p))
        if isinstance(found, Status):
            return found
        return Status(found.detours[0] if found.detours else None)

    def run(self, args: GemmArguments, *, stream: Any = None) -> Any:
        """Run this kernel on the arguments; returns out.

        Raises:
            ValueError: the kernel does not support them, or is not compiled.
        """
        return args.run(kernel=self, stream=stream)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{'' if self.compiled else ' (not compiled)'}>"


class CutlassKernel(Kernel):
    """A kernel of the declaration tables (families.py)."""

    def __init__(self, config: KernelConfig, facts: dict[str, Any] | None) -> None:
        self.config = config
        self.name = config.name
        self.facts = facts
        self.compiled = facts is not None

    @property
    def family(self) -> Family:
        """The family's row in the declaration."""
        return FAMILIES[self.config.family]

    @cached_property
    def align_ab(self) -> int:
        """Elements per access of A and B. TMA reads rows of 16 bytes."""
        c = self.config
        return c.align or 16 // DTYPES[c.a].itemsize

    @property
    def metadata(self) -> KernelMetadata:
        """From the declaration, and from the compiled kernel where there is one."""
        c, facts = self.config, self.facts or {}
        storage_a = DTYPES[c.a].storage or c.a
        operand = OperandMetadata(storage_a, c.layout[0], self.align_ab * DTYPES[c.a].itemsize)
        output = OperandMetadata(c.d, "t", c.align_d * DTYPES[c.d].itemsize)
        operands = {"a": operand, "b": OperandMetadata(operand.dtype, c.layout[1], operand.alignment), "d": output}
        if EPILOGUES[c.epilogue].source:
            operands["c"] = output
        design = Design(
            c.tile, c.cluster, c.schedule, c.stages or facts.get("stages", 0), facts.get("threads", 0),
            facts.get("smem_bytes", 0),
        )  # fmt: skip
        return KernelMetadata(
            c.name, c.family, self.family.api, operands, c.accumulator, design, EPILOGUES[c.epilogue].formula
        )

    def route(self, p: Problem, gpu: Gpu | None) -> Route | Status:
        """Directly, or by packing operands and finishing D elsewhere; a Status where no detour helps."""
        if error := self._obstacle(p, gpu):
            return Status(error)
        c, size = self.config, DTYPES[self.config.a].itemsize
        detour_a = _operand_detour("a", p.layout_a, p.align_a, c.layout[0], self.align_ab * size)
        detour_b = _operand_detour("b", p.layout_b, p.align_b, c.layout[1], self.align_ab * size)
        detour_d = self._output_detour(p)
        if detour_d and c.d != c.accumulator:
            return Status(detour_d)  # a product rounded to 16 bits cannot be finished elsewhere
        return Route(
            self,
            pack_a=c.layout[0] if detour_a else None,
            pack_b=c.layout[1] if detour_b else None,
            scratch=c.d if detour_d else None,
            detours=tuple(filter(None, (detour_a, detour_b, detour_d))),
        )

    def _obstacle(self, p: Problem, gpu: Gpu | None) -> str | None:
        c, (lowest, highest) = self.config, self.family.cc
        if gpu is None:
            return "runs on a GPU; the operands are on the CPU"
        if not lowest <= gpu.cc <= highest:
            return f"runs on compute capability {_range(lowest, highest)}; {gpu.name} has {gpu.cc / 10:.1f}"
        if p.operand_a != c.a:
            return f"multiplies {c.a}; the operands are {p.operand_a}"
        if self.family.api == 2:
            # 2.x reads whole vectors along the contiguous axis; TMA clips at the extent.
            for axis in ("k" if c.layout[0] == "t" else "m", "n" if c.layout[1] == "t" else "k"):
                if getattr(p, axis) % self.align_ab:
                    return f"reads vectors of {self.align_ab} along {axis}; {axis} is {getattr(p, axis)}"
            if p.n % c.align_d:
                return f"writes vectors of {c.align_d} along n; n is {p.n}"
        return None

    def _output_detour(self, p: Problem) -> str | None:
        """Why D cannot be written, or C read, in place."""
        c, bytes_d = self.config, self.config.align_d * DTYPES[self.config.d].itemsize
        if p.d != c.d:
            return f"writes {c.d}; out is {p.d}"
        if p.layout_d != "t":
            return "out has no unit stride"
        if p.align_d < bytes_d:
            return f"writes {bytes_d} bytes at once; out is aligned to {p.align_d}"
        if self.family.api == 3 and SCHEDULES[c.schedule].tma_store and p.n % c.align_d:
            return f"TMA writes rows in granules of {c.align_d} elements; n is {p.n}"
        if not p.c:
            return None
        if not EPILOGUES[c.epilogue].source:
            return "does not read C"
        if p.c != c.d:
            return f"reads C in {c.d}; c is {p.c}"
        if p.layout_c != "t":
            return "c does not lie as out does"
        if p.align_c < bytes_d:
            return f"reads C by {bytes_d} bytes; c is aligned to {p.align_c}"
        return None


def _operand_detour(name: str, layout: str, align: int, wanted: str, bytes_wanted: int) -> str | None:
    words = {"t": "row-major", "n": "column-major"}
    if layout == "x":
        return f"{name} has no unit stride"
    if layout != wanted:
        return f"reads {name} {words[wanted]}; it is {words[layout]}"
    if align < bytes_wanted:
        return f"reads {name} by {bytes_wanted} bytes; it is aligned to {align}"
    return None


def _range(lowest: int, highest: int) -> str:
    if lowest == highest:
        return f"{lowest / 10:.1f} only"
    return f"{lowest / 10:.1f} and newer" if highest == 999 else f"{lowest / 10:.1f} to {highest / 10:.1f}"


# ---------------------------------------------------------------------------------------------------- what exists


@cache
def all_kernels() -> tuple[Kernel, ...]:
    """Every kernel: the declaration, compiled or not, and the CPU's. The index of a kernel is its number."""
    from .providers.numpy import KERNELS

    facts = _core.kernel_facts()
    return (*(CutlassKernel(config, facts.get(name)) for name, config in declared().items()), *KERNELS)


@cache
def _by_name() -> dict[str, int]:
    return {kernel.name: number for number, kernel in enumerate(all_kernels())}


def number_of(kernel: Kernel | str) -> int:
    """Number of a kernel given by name or object, as Problem.kernel holds it.

    Raises:
        ValueError: no kernel has that name.
    """
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"gemm: kernel is a {type(kernel).__name__}; expected a Kernel or its name")
    if name not in _by_name():
        raise ValueError(f"gemm: no kernel is called {name!r}; cutlass_py.get_kernels() lists them")
    return _by_name()[name]


@cache
def _by_operand() -> dict[str, tuple[Kernel, ...]]:
    """Kernels by the dtype they multiply: the first cut of every question."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in all_kernels():
        groups.setdefault(kernel.config.a if isinstance(kernel, CutlassKernel) else "*", []).append(kernel)
    return {dtype: tuple(kernels) for dtype, kernels in groups.items()}


def candidates(p: Problem) -> Iterator[Kernel]:
    """Kernels worth asking about a problem, compiled or not."""
    if p.device_id >= 0:
        yield from _by_operand().get(p.operand_a or "", ())
    else:
        yield from _by_operand()["*"]


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
        compiled: False includes kernels that are declared but not in the built set.
    """
    if args is not None:
        from .select import rank

        kernels = [choice.route.kernel for choice in rank(problem_of(args), compiled=compiled) if choice.direct]
    else:
        kernels = [kernel for kernel in all_kernels() if kernel.compiled or not compiled]
    if cc is not None:
        kernels = [k for k in kernels if isinstance(k, CutlassKernel) and k.family.cc[0] <= cc <= k.family.cc[1]]
    return [k for k in kernels if where is None or where(k.metadata)]
