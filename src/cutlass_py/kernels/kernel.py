"""Kernels as objects: what each says of itself and computes, compiling and running it. Which there are: registry.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Protocol

from .. import _core
from .._core import Prepared, PreparedGroups
from ..arrays.gpu import Gpu, gpu_of
from ..declaration.config import Family, KernelConfig
from ..declaration.families import FAMILIES
from ..epilogues.fusion import with_epilogue
from ..epilogues.specialization import specialization_of
from ..errors import CompileError
from .adaptation import Way
from .metadata import CPU, KernelMetadata
from .operation import (
    Arguments,
    Estimates,
    Interface,
    Operation,
    Problem,
    arguments_of,
    describe,
    operation_named,
    operation_of,
)


class Registry(Protocol):
    """What kernels ask of the registry, which is built on them."""

    def kernel_named(self, name: str, caller: str = ...) -> Kernel:
        """The kernel of that name."""

    def cutlass_kernel(self, config: KernelConfig) -> CutlassKernel:
        """The kernel of a configuration, declared or not."""

    def forget(self) -> None:
        """Looks at what is compiled anew."""

    def artifact_of(self, kernel: Kernel) -> Any:
        """What compiling a kernel leaves."""

    def is_artifact(self, artifact: Any) -> bool:
        """Whether it is an Artifact."""


@dataclass(frozen=True)
class Status:
    """An answer with its reason: true, or `error` says why not."""

    error: str | None = None

    def __bool__(self) -> bool:
        return self.error is None


class Kernel(ABC):
    """One kernel: `name`, whether it is `compiled`, its `metadata`, what it `supports`, and `run`."""

    name: str
    compiled: bool
    deterministic = True
    batch_invariant = False
    registry: ClassVar[Registry]  # set by registry.py, which makes kernels

    def __reduce__(self) -> Any:
        return self.registry.kernel_named, (self.name, "pickle")

    @property
    @abstractmethod
    def metadata(self) -> KernelMetadata:
        """Operands (legality), design (performance) and epilogue."""

    @property
    @abstractmethod
    def operation(self) -> Operation:
        """What it computes."""

    def bits_refusal(self, p: Problem, gpu: Gpu | None) -> str | None:
        """Why it need not give those bits again that the problem asks for; None where it does."""
        if p.deterministic and not self.deterministic:
            return "need not give the same bits again; deterministic=True is asked for"
        if p.batch_invariant and not self.batch_invariant:
            return "does not say that a row's bits are its own; batch_invariant=True is asked for"
        return None

    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """The way to compute `p` with this kernel, or the reason that there is none."""
        if self.operation.name != p.operation:
            return f"is a kernel of {self.operation.name}; {p.operation} is asked for"
        return self.bits_refusal(p, gpu) or self._way(p, gpu)

    @abstractmethod
    def _way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """The way, or the reason that there is none, whether or not the same bits are asked for again."""

    def supports(self, args: Arguments) -> Status:
        """Whether the kernel computes these arguments as they lie: no packing, no composed epilogue.

        Compiled or not makes no difference here; see `compiled`.

        Raises:
            TypeError: `args` is no arguments of an operation.
        """
        p = arguments_of("supports", args).problem
        reason = self._unfit(p)
        return Status(reason and reason + operation_of(p).caveat(p))

    def _unfit(self, p: Problem) -> str | None:
        """Why it cannot do a problem alone; None where it can."""
        way = self.way(p, gpu_of(p))
        return way if isinstance(way, str) else next(iter(way.detours), None)

    def compile(self, args: Arguments | None = None) -> Any:
        """Compile and load the kernel, or take it from the cache, where it is not in the built set (docs/jit.md).

        Args:
            args: what it will be run on: refused here where the kernel does not support it. The machine code is the
                same for all arguments, but for a user's epilogue, with which the kernel is another one.

        Raises:
            ValueError: the kernel does not support `args`.
            CompileError: there is no compiler, it failed, or CUTLASS_PY_JIT forbids it.
        """
        kernel = self
        if args is not None:
            p = arguments_of("compile", args).problem
            if reason := self._unfit(p):
                raise ValueError(f"compile: kernel {self.name} does not fit {describe(p)}: {reason}")
            kernel = self.with_epilogue(p)
        kernel.load()
        return kernel.registry.artifact_of(kernel)

    def with_epilogue(self, p: Problem) -> Kernel:
        """This kernel with the user's epilogue that a problem asks for; itself where there is none, or it cannot."""
        return self

    def load(self) -> None:
        """Brings the kernel into this process, compiled if need be."""
        return  # a Python function is there

    def run(self, args: Arguments, artifact: Any = None, *, stream: Any = None, workspace: Any = None) -> Any:
        """Run this kernel on the arguments, compiled first if need be; returns out, or a new result.

        Args:
            args: arrays, not TensorSpecs.
            artifact: what `compile` returned. Not needed; one of another kernel is refused.
            stream: as in gemm.
            workspace: an array of workspace_size(args) bytes (u8) on the device, aligned to 256 bytes, in place of the
                package's own pool. It is used on the launch's stream.

        Raises:
            ValueError: the kernel does not support the arguments, or the artifact or the workspace does not fit.
            CompileError: as `compile` does.
        """
        args = arguments_of("run", args)
        if artifact is not None:
            if not self.registry.is_artifact(artifact):
                raise TypeError(f"run: artifact is {_core.described_type(artifact)}; expected what compile returned")
            wanted = self.with_epilogue(args.problem).name
            if artifact.kernel not in (self.name, wanted):
                raise ValueError(f"run: artifact is of kernel {artifact.kernel}; expected one of {wanted}")
        return args.run(kernel=self, stream=stream, workspace=workspace)

    def workspace_size(self, args: Arguments) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            ValueError: the kernel does not support the arguments; they are lists, whose scratch is the package's own.
            CompileError: as `compile` does.
        """
        return arguments_of("workspace_size", args).workspace_size(kernel=self)

    def plan(
        self, args: Arguments, *, raster: str | None = None, swizzle: int | None = None
    ) -> Prepared | PreparedGroups:
        """A call of this kernel prepared, compiled if need be; see Arguments.plan.

        Raises:
            ValueError: the kernel does not support the arguments, or they are lists of matrices; its tiles have no
                order to choose.
            CompileError: as `compile` does.
        """
        return arguments_of("plan", args).plan(kernel=self, raster=raster, swizzle=swizzle)

    def source(self) -> str:
        """The kernel as one translation unit of CUDA C++ that needs CUTLASS's headers alone (docs/shipping.md).

        Raises:
            ValueError: it is no CUTLASS kernel.
            CompileError: this package's headers are missing.
        """
        raise not_of_cutlass(self, "source")

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{'' if self.compiled else ' (not compiled)'}>"


def not_of_cutlass(kernel: Kernel, caller: str) -> ValueError:
    """What a function that takes CUTLASS kernels says of another one."""
    where = "computes on the CPU" if kernel.metadata.cc == CPU else "is a Python function"
    return ValueError(f"{caller}: kernel {kernel.name} {where}; expected a CUTLASS kernel")


class PythonKernel(Kernel):
    """A kernel that is written in Python, or started from it (providers/)."""

    compiled = True

    @property
    def operation(self) -> Operation:
        """As its metadata say."""
        return operation_named(self.metadata.operation)

    @abstractmethod
    def concerns(self, p: Problem) -> bool:
        """Whether a problem is on the kernel's kind of device, and of its dtypes."""

    @abstractmethod
    def answer(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """As `way`, which passes over what fails to answer.

        Raises:
            ProviderError: it failed to answer.
        """

    @abstractmethod
    def microseconds(self, p: Problem) -> float:
        """Its own estimate; infinite where there is none."""

    @abstractmethod
    def call(self, **given: Any) -> None:
        """Runs a canonical call; called from C++ with device and stream ready."""


class CutlassKernel(Kernel):
    """A kernel of the declaration (families.py)."""

    batch_invariant = True
    bounded = True  # no estimate of it is below what the model thinks possible

    def __init__(self, config: Any, facts: dict[str, Any] | None) -> None:
        self.config = config
        self.name = config.name
        self.facts = facts
        self.compiled = facts is not None
        self.design = self.operation.design(config)
        self._metadata: KernelMetadata | None = None

    def load(self) -> None:
        """As in Kernel."""
        if not self.compiled:
            self.loaded(self._facts())
            self.registry.forget()

    def loaded(self, facts: dict[str, Any]) -> None:
        """Its library is part of this process from now on, and says this of it; the registry is told by the caller."""
        self.facts = facts
        self.compiled, self._metadata = True, None

    def _facts(self) -> dict[str, Any]:
        from ..compiling.compiler import load

        return load(self.config)

    def bits_refusal(self, p: Problem, gpu: Gpu | None) -> str | None:
        """As in Kernel: also where it sums in another order than kernels that other rows may get."""
        refusal = super().bits_refusal(p, gpu)
        if refusal or not p.batch_invariant or self.config.own_source:  # of which the user has said so
            return refusal
        return self.operation.sums_refusal(self.config, p, gpu)

    def with_epilogue(self, p: Problem) -> Kernel:
        """As in Kernel."""
        config = self._config_for(p)
        return self if config is self.config or isinstance(config, str) else self.registry.cutlass_kernel(config)

    def ready(self) -> None:
        """Loads the kernel; where compiling it failed in this process before, fails again at once."""
        if self.compiled:
            return
        from ..compiling.compiler import failed

        if self.name in failed:
            raise CompileError(failed[self.name])
        self.load()

    def source(self) -> str:
        """As in Kernel."""
        from ..compiling.single_source import source

        return source(self.config)

    @property
    def operation(self) -> Operation:
        """What it computes."""
        return operation_named(self.family.operation)

    @property
    def family(self) -> Family:
        """The family's row in the declaration."""
        return FAMILIES[self.config.family]

    @cached_property
    def interface(self) -> Interface:
        """What legality depends on."""
        return self.operation.interface_of(self.config)

    @property
    def metadata(self) -> KernelMetadata:
        """From the declaration, and from the compiled kernel where there is one."""
        if self._metadata is None:
            self._metadata = self.operation.metadata_of(self)
        return self._metadata

    def _way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """As in Kernel; with the user's epilogue that a problem asks for."""
        config = self._config_for(p)
        if isinstance(config, str):
            return config
        interface = self.interface if config is self.config else self.operation.interface_of(config)
        way = interface.way(p, gpu)
        return way if isinstance(way, str) else self.operation.parts_refusal(self, p) or way

    def _config_for(self, p: Problem) -> KernelConfig | str:
        """This design with the user's epilogue that a problem asks for, or why there is none; as it is if none is."""
        asked, config = specialization_of(p), self.config
        if asked and not self.interface.epilogue.user:
            config = with_epilogue(config, asked.epilogue)
        changed: KernelConfig | str = config
        return changed

    def microseconds(self, estimates: Estimates, splits: int = 1) -> float:
        """What the product takes by the model, k in so many parts; infinite where compiling it would take minutes."""
        if self.config.superseded and not self.compiled:
            return inf
        return estimates.product(self, splits)
