"""Kernels as objects: what exists, what each can run, by number and by what it multiplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from . import _core, packs
from ._core import Prepared, Problem
from .arguments import GemmArguments, describe, problem_of
from .artifact import Artifact
from .carriers import carrier
from .cost import Estimates, design
from .dtypes import DTYPES
from .epilogues import ACTIVATIONS, Epilogue
from .errors import CompileError
from .families import FAMILIES, Family, KernelConfig, added, find, named
from .gpu import Gpu, gpu_of
from .legality import Interface, Way, function_of, interface_of
from .metadata import CPU, Design, KernelMetadata, OperandMetadata
from .user_epilogue import asked_by


@dataclass(frozen=True)
class Status:
    """An answer with its reason: true, or `error` says why not."""

    error: str | None = None

    def __bool__(self) -> bool:
        return self.error is None


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

    def compile(self, args: GemmArguments | None = None) -> Artifact:
        """Compile and load the kernel, or take it from the cache, where it is not in the built set (docs/jit.md).

        Args:
            args: what it will be run on: refused here where the kernel does not support it. The machine code is the
                same for all arguments.

        Raises:
            ValueError: the kernel does not support `args`.
            CompileError: there is no compiler, it failed, or CUTLASS_PY_JIT forbids it.
        """
        if args is not None and not (status := self.supports(args)):
            raise ValueError(f"compile: kernel {self.name} does not fit {describe(problem_of(args))}: {status.error}")
        self.load()
        return self._artifact()

    def load(self) -> None:
        """Brings the kernel into this process, compiled if need be."""
        return  # a Python function is there

    def _artifact(self) -> Artifact:
        return Artifact(self.name, "cpu" if self.metadata.cc == CPU else "cuda", None, True)

    def run(
        self, args: GemmArguments, artifact: Artifact | None = None, *, stream: Any = None, workspace: Any = None
    ) -> Any:
        """Run this kernel on the arguments, compiled first if need be; returns out, or a new result.

        Args:
            args: arrays, not TensorSpecs.
            artifact: what `compile` returned. Not needed; one of another kernel is refused.
            stream: as in gemm.
            workspace: an array of workspace_size(args) bytes (u8) on the device, aligned to 256 bytes, in place of the
                package's own pool. It is used on the launch's stream.

        Raises:
            ValueError: the kernel does not support the arguments, or the artifact or the workspace does not do.
            CompileError: as `compile` does.
        """
        if artifact is not None and artifact.kernel != self.name:
            raise ValueError(f"run: artifact is of kernel {artifact.kernel}; expected one of {self.name}")
        if workspace is None:
            return args.run(kernel=self, stream=stream)
        return self.plan(args)(stream=stream, workspace=workspace)

    def workspace_size(self, args: GemmArguments) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            ValueError: the kernel does not support the arguments; they are lists, whose scratch is the package's own.
            CompileError: as `compile` does.
        """
        from .select import plan

        p = _core.problem(args.a, args.b, **args.keywords, kernel=self)
        chosen, gpu = plan(p), gpu_of(p)
        if gpu is None or chosen.provided:
            return 0
        return _core.scratch_bytes(args.a, args.b, args.keywords, chosen, gpu.sm_count)

    def plan(self, args: GemmArguments) -> Prepared:
        """A call prepared: `plan(a, b, out)` runs it on new arrays, without checking and choosing anew.

        The kernel is compiled if need be. The plan keeps `args`, whose arrays are the defaults of its call; TensorSpecs
        do where every call brings arrays, which it does not for `epilogue`. New arrays have the shapes, strides, dtypes
        and device of the first, and are aligned as they are; whatever else differs is refused by name.

        Raises:
            ValueError: the kernel does not support the arguments, or they are lists of matrices.
            CompileError: as `compile` does.
        """
        return Prepared(args.a, args.b, {**args.keywords, "kernel": self})

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

    def load(self) -> None:
        """As in Kernel."""
        if not self.compiled:
            self.loaded(self._facts())

    def loaded(self, facts: dict[str, Any]) -> None:
        """Its library is part of this process from now on, and says this of it."""
        self.facts = facts
        self.compiled, self._metadata = True, None
        forget()

    def _facts(self) -> dict[str, Any]:
        from .compiler import load

        return load(self.config)

    def _artifact(self) -> Artifact:
        library, package = (Path(file).resolve() for file in (_core.kernel_library(self.name), _core.__file__))
        return Artifact(self.name, self.family.arch, library, library.parent == package.parent)

    def ready(self) -> None:
        """As compile, but where that failed in this process before, it fails again at once."""
        from .compiler import failed

        if not self.compiled and self.name in failed:
            raise CompileError(failed[self.name])
        self.load()

    def source(self) -> str:
        """The kernel as one translation unit of CUDA C++ that needs CUTLASS's headers alone.

        Raises:
            CompileError: this package's headers are missing (docs/shipping.md).
        """
        from .emit import source

        return source(self.config)

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
                facts.get("smem_bytes", 0), self.name,
            )  # fmt: skip
            epilogue = self.interface.epilogue.formula
            self._metadata = KernelMetadata(
                self.name, _operands(self.interface), c.accumulator, epilogue, c.family, c.api, design, self.family.cc
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

    def microseconds(self, estimates: Estimates, splits: int = 1) -> float:
        """What the product takes by the model, k in so many parts."""
        return estimates.product(self, splits)


@cache
def _operands(i: Interface) -> dict[str, OperandMetadata]:
    epilogue, output = i.epilogue, OperandMetadata(i.d, "t", i.bytes_d)
    derivative = ACTIVATIONS[epilogue.activation].derivative
    operands = {
        "a": OperandMetadata(DTYPES[i.a].stored, i.layout[0], i.bytes_ab),
        "b": OperandMetadata(DTYPES[i.b].stored, i.layout[1], i.bytes_ab),
        "d": output,
    }
    operands |= {"c": output} if epilogue.source else {}
    operands |= {"aux" if derivative else "gate": output} if epilogue.gated else {}
    operands |= {"aux": output} if epilogue.aux else {}
    if i.block:
        operands["scale_a"] = OperandMetadata("f32", "n", 16) if i.tma_scales else OperandMetadata("f32", "*", 4)
        operands["scale_b"] = OperandMetadata("f32", "*", 4)
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


_registered: dict[str, Kernel] = {}  # by name, in the order of registration; the CPU's come first
_registering = RLock()


def registered() -> dict[str, Kernel]:
    """Kernels that are not of the declaration: the CPU's, and those that users brought (register.py)."""
    with _registering:
        if not _registered:
            from .provider import kernels_of
            from .providers.numpy import NumpyProvider

            _registered.update((kernel.name, kernel) for kernel in kernels_of(NumpyProvider()))
        return dict(_registered)


def register(kernels: Sequence[Kernel]) -> None:
    """Adds kernels. register.py is the public side.

    Raises:
        ValueError: a name is taken; nothing is added then.
    """
    with _registering:
        taken = registered()
        for kernel in kernels:
            if kernel.name in taken or find(kernel.name) or kernel.name in _core.kernel_facts():
                raise ValueError(f"register: a kernel is called {kernel.name!r} already")
            taken[kernel.name] = kernel
        _registered.update(taken)
        forget()


def unregister(kernels: Sequence[Kernel]) -> None:
    """Removes kernels that are registered; their names, plans and libraries are forgotten."""
    with _registering:
        for kernel in kernels:
            del _registered[kernel.name]
            forget_kernel(kernel.name)


@cache
def all_kernels(compiled: bool = False) -> tuple[Kernel, ...]:
    """Every kernel in the order of declaration, what was registered last; or those that are compiled."""
    packs.load()
    if compiled:
        configs = [config for name in _core.kernel_facts() if (config := find(name))]
    else:
        configs = list((named("declared") | added).values())
    brought = (kernel for kernel in registered().values() if kernel.compiled or not compiled)
    return (*map(_cutlass_kernel, configs), *brought)


Signature = tuple[str, str, str, str, tuple[str, bool]]


@cache
def by_signature(compiled: bool) -> dict[Signature, dict[Interface, list[CutlassKernel]]]:
    """Likewise, by everything that a kernel needs in common with operands that it takes as they lie."""
    groups: dict[Signature, dict[Interface, list[CutlassKernel]]] = {}
    for (a, b), interfaces in by_operands(compiled).items():
        for interface, kernels in interfaces.items():
            groups.setdefault((a, b, interface.layout, interface.d, interface.function), {})[interface] = kernels
    return groups


@cache
def by_operands(compiled: bool) -> dict[tuple[str, str], dict[Interface, list[CutlassKernel]]]:
    """Kernels by the dtypes they multiply, then by interface: what a question goes through."""
    groups: dict[tuple[str, str], dict[Interface, list[CutlassKernel]]] = {}
    for kernel in all_kernels(compiled):
        if isinstance(kernel, CutlassKernel):
            group = groups.setdefault((kernel.config.a, kernel.config.b), {})
            group.setdefault(kernel.interface, []).append(kernel)
    return groups


def add(config: KernelConfig) -> CutlassKernel:
    """A kernel whose library is part of this process joins the others, whether or not it is declared."""
    packs.load()  # what is compiled is asked for once, below
    if not find(config.name):
        added[config.name] = config
    kernel = _cutlass_kernel(config)
    if not kernel.compiled:
        kernel.loaded(_core.kernel_facts()[config.name])
    forget()
    return kernel


def remove(name: str) -> bool:
    """Forgets a kernel that was described or loaded; whether there was one."""
    if added.pop(name, None) is None:
        return False
    forget_kernel(name)
    return True


def forget() -> None:
    """Looks at the declaration and at what is compiled anew."""
    for listed in (_facts, all_kernels, by_operands, by_signature, _carriers):
        listed.cache_clear()
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


def forget_kernel(name: str) -> None:
    """Gives up the object, the number and the library of a kernel that is there no more; plans that hold it go on."""
    _cutlass.pop(name, None)
    with _numbering:
        if (number := _numbers.pop(name, None)) is not None:
            _numbered[number] = None
    _core.forget_kernel(name)
    forget()


@cache
def _carriers(a: str, b: str, epilogue: Epilogue) -> dict[Interface, list[CutlassKernel]]:
    """Every declared design for these dtypes with a user's epilogue, compiled or not."""
    declared = (kernel.config for group in by_operands(False).get((a, b), {}).values() for kernel in group)
    configs = {c: None for config in declared if isinstance(c := carrier(config, epilogue), KernelConfig)}
    groups: dict[Interface, list[CutlassKernel]] = {}
    for kernel in map(_cutlass_kernel, configs):
        groups.setdefault(kernel.interface, []).append(kernel)
    return groups


def straight_candidates(p: Problem, compiled: bool) -> dict[Interface, list[CutlassKernel]]:
    """Of these, the ones that may take the operands as they lie. Others would pack or finish elsewhere."""
    if p.device_id < 0:
        return {}
    if p.user >= 0:
        return candidates(p, compiled)
    signature = (p.operand_a or "", p.operand_b or "", p.layout_a + p.layout_b, p.d or "", function_of(p))
    return by_signature(compiled).get(signature, {})


# Kernels that were asked for; their index is the number that Problem.kernel holds. None where one was unregistered.
_numbered: list[Kernel | None] = []


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


def find_kernel(name: str) -> Kernel | None:
    """The kernel of that name."""
    packs.load()
    if config := find(name):
        return _cutlass_kernel(config)
    return registered().get(name)


def kernel_named(name: str) -> Kernel:
    """The kernel of that name.

    Raises:
        ValueError: there is none.
    """
    if kernel := find_kernel(name):
        return kernel
    if (carrying := _cutlass.get(name)) and carrying.interface.epilogue.user:  # declared nowhere
        return carrying
    raise ValueError(f"gemm: no kernel is called {name!r}; cutlass_py.get_kernels() lists them")


def numbered(number: int) -> Kernel:
    """The kernel that number_of gave this number to.

    Raises:
        ValueError: it was unregistered since.
    """
    if (kernel := _numbered[number]) is None:
        raise ValueError("gemm: the kernel that was asked for is not registered any more")
    return kernel


def _on(cc: int | str) -> Callable[[Kernel], bool]:
    """Whether a kernel runs on a compute capability; "90a": whether it is one of that architecture's own."""
    text = str(cc)
    if any(family.arch == text and not text.isdecimal() for family in FAMILIES.values()):
        return lambda kernel: isinstance(kernel, CutlassKernel) and kernel.family.arch == text
    if isinstance(cc, bool) or not text.isdecimal():
        own = " or ".join(sorted({repr(f.arch) for f in FAMILIES.values() if not f.arch.isdecimal()}))
        raise ValueError(
            f"get_kernels: cc is {cc!r}; expected a compute capability times ten, such as 80 or '90', or {own}"
        )
    return lambda kernel: kernel.metadata.cc[0] <= int(text) <= kernel.metadata.cc[1]


def get_kernels(
    args: GemmArguments | None = None,
    where: Callable[[KernelMetadata], bool] | None = None,
    *,
    cc: int | str | None = None,
    compiled: bool = True,
) -> list[Kernel]:
    """Kernels, best first where arguments are given; explain(args) has the reason for the order.

    Args:
        args: only kernels that support these arguments as they lie, in the order in which `gemm` would take them: what
            `tune` measured for them, then by the model's estimate. Without it, every kernel in the order of
            declaration.
        where: only kernels whose metadata satisfies this predicate.
        cc: only kernels that run on this compute capability: 80, 86, 90, "90", ...; "90a" for those of the
            architecture's own instructions, which run nowhere else.
        compiled: False includes kernels that are declared but neither in the built set nor compiled since.

    Raises:
        ValueError: there is no such `cc`.
    """
    runs = None if cc is None else _on(cc)
    if args is not None:
        from .select import rank_straight

        kernels = [choice.route.kernel for choice in rank_straight(problem_of(args), compiled=compiled)]
    else:
        kernels = list(all_kernels(compiled))
    if runs is not None:
        kernels = [kernel for kernel in kernels if runs(kernel)]
    return [k for k in kernels if where is None or where(k.metadata)]
