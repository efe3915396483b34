"""Kernels that are written in Python, or started from it: what a provider implements, and the objects for its kernels.

The CPU's kernel (providers/numpy.py) is the first of them. Registering: register.py; the guide: docs/providers.md.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from numbers import Real
from typing import Any

from ..arrays.frameworks import launching_on
from ..arrays.gpu import Gpu
from ..declaration.operands import OPERANDS
from ..errors import ProviderError
from ..kernels.adaptation import Way
from ..kernels.kernel import PythonKernel, Status
from ..kernels.metadata import CPU, Design, KernelMetadata, OperandMetadata
from ..kernels.operation import Problem, operation_named, operation_of


class Provider(ABC):
    """Brings kernels into selection: says what there are, which problems each takes, and runs them.

    `name` tells providers apart. Whatever a method raises becomes a ProviderError that names the provider, but for a
    MemoryError of `run`, which passes as it is; nothing of the call that asked is left behind. Where nobody asked for
    the kernel by name, one whose `supports` fails is passed over, and one whose `estimate` fails has none: a
    RuntimeWarning says so once. Methods may be called by any thread that holds the GIL.
    """

    name: str

    @abstractmethod
    def kernels(self) -> Iterable[KernelMetadata]:
        """The kernels, asked for once, when the provider is registered. Names are words: letters, digits and `_`."""

    @abstractmethod
    def run(self, kernel: KernelMetadata, call: Any) -> None:
        """Computes a call that the kernel supports, or launches what does on `call.stream`, into what it writes.

        A call of gemm is a KernelCall, which writes `call.d`; one of quantize a QuantizeCall, which writes `call.q` and
        `call.scales`. It must not wait for the device. Scratch memory is its own to allocate. During CUDA graph capture
        it may be called too: whatever cannot be captured, such as compiling, has to have happened in `compile` or a
        call before.
        """

    def compile(self, kernel: KernelMetadata) -> None:
        """Makes a kernel ready for `run`, on the current device; asked for by `Kernel.compile` alone, at any time.

        By default nothing: what a kernel needs is made in its first call.
        """
        return

    def supports(self, kernel: KernelMetadata, problem: Any) -> Status:
        """Whether the kernel computes a problem as it lies.

        `gemm` asks as it meets a class of problems, and not again for calls of that class; `explain`, `get_kernels` and
        `tune` ask anew. By default, whether the problem is what the metadata say. A provider adds conditions to that,
        or replaces it.
        """
        return operation_named(kernel.operation).metadata_fits(kernel, problem)

    def estimate(self, kernel: KernelMetadata, problem: Any) -> float | None:
        """Microseconds that a supported problem takes, as far as can be said; None where not.

        Kernels with an estimate compete with those of the package by it. Those without one are taken where nothing else
        fits, where they are asked for by name, or where `tune` has measured them to be the fastest.
        """
        return None


class ProvidedKernel(PythonKernel):
    """A kernel of a provider."""

    def __init__(self, provider: Provider, metadata: KernelMetadata) -> None:
        self.provider = provider
        self.name = metadata.name
        self.deterministic, self.batch_invariant = metadata.deterministic, metadata.batch_invariant
        self._metadata = metadata
        self._failures = Failures()

    @property
    def metadata(self) -> KernelMetadata:
        """As the provider says."""
        return self._metadata

    def concerns(self, p: Problem) -> bool:
        """Whether a problem is on the kernel's kind of device, and of its dtypes."""
        m = self._metadata
        if m.operation != p.operation or (m.cc == CPU) != (p.device_id < 0):
            return False
        return all(m.operands[name].dtype in ("*", dtype) for name, dtype in operation_of(p).dtypes(p).items())

    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """As in Kernel; there are no detours. Where the provider fails to answer, that is the reason."""
        try:
            return self.answer(p, gpu)
        except ProviderError as error:
            return self._failures.warned(error)

    def answer(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """Likewise, but where the provider fails.

        Raises:
            ProviderError: it failed to answer.
        """
        return super().way(p, gpu)

    def _way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        if p.splits not in (0, 1) and not p.batch_invariant and p.device_id >= 0:
            return f"splits k as it likes; splits={'stream' if p.splits < 0 else p.splits!r} is asked for"
        status = self._ask("supports", p)
        if not isinstance(status, Status):
            raise self._error(f"supports returned {_what(status)}; expected a Status")
        if not isinstance(status.error, str | None):
            raise self._error(f"supports returned a Status of {_what(status.error)}; expected a reason, or None")
        return Way() if status.error is None else status.error

    def microseconds(self, p: Problem) -> float:
        """The provider's estimate; infinite where there is none, or it fails to make one."""
        try:
            return checked_estimate(self._ask("estimate", p), self._error)
        except ProviderError as error:
            self._failures.warned(error)
            return inf

    def load(self) -> None:
        """As in Kernel: what the provider does ahead of calls.

        Raises:
            ProviderError: it failed.
        """
        self._ask("compile")

    def call(self, **given: Any) -> None:
        """Runs a canonical call, by its names in the operation's `call`; C++ calls it with device and stream ready."""
        call = operation_of(given["problem"]).call(**given)
        try:
            if call.stream is None:
                returned: object = self.provider.run(self._metadata, call)
            else:
                with launching_on(call.problem.device_id, call.stream):
                    returned = self.provider.run(self._metadata, call)
        except MemoryError:
            raise
        except Exception as error:
            raise self._error(f"run raised {type(error).__name__}: {error}") from error
        if returned is not None:
            slots = (x.slot for x in OPERANDS[self._metadata.operation] if x.written == "always")
            written = " and ".join(f"call.{slot}" for slot in slots if "." not in slot)  # those of epilogues are extras
            raise self._error(f"run returned {_what(returned)}; expected None: the result goes to {written}")

    def _ask(self, method: str, *given: Any) -> Any:
        try:
            return getattr(self.provider, method)(self._metadata, *given)
        except Exception as error:
            raise self._error(f"{method} raised {type(error).__name__}: {error}") from error

    def _error(self, what: str) -> ProviderError:
        return ProviderError(f"provider {self.provider.name}, kernel {self.name}: {what}")


class Failures:
    """Failures of a kernel that nobody asked for by name: the first becomes a warning, and stands for all others."""

    def __init__(self) -> None:
        self._warned = False

    def warned(self, error: ProviderError) -> str:
        """The failure in words, and as a warning if it is the first."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"cutlass_py: {error}; calls that do not name the kernel go on without its answer",
                RuntimeWarning,
                stacklevel=2,
            )
        return str(error)


def checked_estimate(estimate: Any, error: Callable[[str], Exception]) -> float:
    """Microseconds as a user's function returned them, infinite for None; raises `error` of anything else."""
    if estimate is None:
        return inf
    number = isinstance(estimate, Real) and not isinstance(estimate, bool)
    try:
        microseconds = float(estimate) if number else inf
    except OverflowError:  # an int of many digits
        microseconds = inf
    if not 0 < microseconds < inf:
        raise error(f"estimate returned {estimate!r}; expected microseconds or None")
    return microseconds


def _what(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


# ---------------------------------------------------------------------------------------------------- metadata


def kernels_of(provider: Provider) -> list[ProvidedKernel]:
    """The kernels of a provider.

    Raises:
        ProviderError: its `kernels` raised, or what it gave are no metadata, or contradict themselves.
    """
    try:
        found = list(provider.kernels())
    except Exception as error:
        raise ProviderError(f"provider {provider.name}: kernels raised {type(error).__name__}: {error}") from error
    usual = getattr(provider.supports, "__func__", None) is Provider.supports
    for m in found:
        if wrong := mistake(m, usual):
            raise ProviderError(f"provider {provider.name}: kernels: {wrong}")
    told = (replace(m, epilogue=operation_named(m.operation).formula_of(m)) for m in found)
    return [ProvidedKernel(provider, m) for m in told]


_KINDS = {"epilogue": str, "family": str, "api": int, "design": Design, "deterministic": bool, "batch_invariant": bool}


def mistake(m: Any, usual: bool = True) -> str | None:
    """What is wrong with metadata in themselves; with `usual`, for a provider without a `supports` of its own."""
    if not isinstance(m, KernelMetadata):
        return f"found {_what(m)}; expected KernelMetadata"
    if not isinstance(m.name, str) or not (m.name.isidentifier() and m.name.isascii()):
        return f"a kernel is called {m.name!r}; expected letters, digits and _"
    if m.operation not in OPERANDS:
        return f"{m.name}: operation is {m.operation!r}; expected one of {', '.join(OPERANDS)}"
    if not isinstance(m.operands, dict) or not all(isinstance(x, OperandMetadata) for x in m.operands.values()):
        return f"{m.name}: operands is {m.operands!r}; expected a dictionary of OperandMetadata by name"
    if not isinstance(m.cc, tuple) or [type(x) for x in m.cc] != [int, int] or m.cc[0] > m.cc[1]:
        return f"{m.name}: cc is {m.cc!r}; expected the lowest and the highest compute capability, such as (80, 999)"
    for field, kind in _KINDS.items():
        if not isinstance(value := getattr(m, field), kind):
            return f"{m.name}: {field} is {value!r}; expected {kind.__name__}"
    return operation_named(m.operation).metadata_mistake(m, usual)
