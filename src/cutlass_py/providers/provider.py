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

from .._core import Problem
from ..arrays.frameworks import launching_on
from ..arrays.gpu import Gpu, gpu_of
from ..declaration.dtypes import ARITHMETICS, DTYPES, PAIRS, STORAGE
from ..declaration.epilogues import EPILOGUES, Epilogue
from ..declaration.operands import OPERANDS
from ..errors import ProviderError
from ..kernels.adaptation import Way
from ..kernels.kernel import PythonKernel, Status
from ..kernels.metadata import CPU, Design, KernelMetadata, OperandMetadata
from ..operations.gemm.call import KernelCall
from ..operations.gemm.legality import Interface


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
    def run(self, kernel: KernelMetadata, call: KernelCall) -> None:
        """Computes a call that the kernel supports, or launches what does on `call.stream`, into `call.d`.

        It must not wait for the device. Scratch memory is its own to allocate. During CUDA graph capture it may be
        called too: whatever cannot be captured, such as compiling, has to have happened in `compile` or a call before.
        """

    def compile(self, kernel: KernelMetadata) -> None:
        """Makes a kernel ready for `run`, on the current device; asked for by `Kernel.compile` alone, at any time.

        By default nothing: what a kernel needs is made in its first call.
        """
        return

    def supports(self, kernel: KernelMetadata, problem: Problem) -> Status:
        """Whether the kernel computes a problem as it lies.

        `gemm` asks as it meets a class of problems, and not again for calls of that class; `explain`, `get_kernels` and
        `tune` ask anew. By default, whether `metadata_fits`. A provider adds conditions to that, or replaces it.
        """
        return metadata_fits(kernel, problem)

    def estimate(self, kernel: KernelMetadata, problem: Problem) -> float | None:
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
        self.deterministic = metadata.deterministic
        self._metadata = metadata
        self._failures = Failures()

    @property
    def metadata(self) -> KernelMetadata:
        """As the provider says."""
        return self._metadata

    def concerns(self, p: Problem) -> bool:
        """Whether a problem is on the kernel's kind of device, and of its dtypes."""
        operands = self._metadata.operands
        dtypes = ((operands["a"].dtype, p.operand_a), (operands["b"].dtype, p.operand_b))
        return (self._metadata.cc == CPU) == (p.device_id < 0) and all(x in ("*", y) for x, y in dtypes)

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
        if p.splits not in (0, 1) and p.device_id >= 0:
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
        """Runs a canonical call, by the names of KernelCall; called from C++ with device and stream ready."""
        call = KernelCall(**given)
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
            raise self._error(f"run returned {_what(returned)}; expected None: the result goes to call.d")

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

_FORMULAS = {e.formula: e for e in EPILOGUES.values()}
_LIKE_D = tuple(x.name for x in OPERANDS["gemm"] if x.shape == "result" and x.name != "out")
# The layouts that each operand may have: D, and what lies like it, is row-major; a vector goes along n or m.
_BY_SHAPE = {
    "left": ("t", "n", "*"), "right": ("t", "n", "*"), "result": ("t", "*"), "vector": ("n", "m", "*"),
    "sum": ("n", "m", "*"), "rows": ("t", "n", "m", "*"), "columns": ("t", "n", "m", "*"),
}  # fmt: skip
_LAYOUTS = {"d" if x.name == "out" else x.name: _BY_SHAPE[x.shape] for x in OPERANDS["gemm"] if x.shape in _BY_SHAPE}
_ALIGNMENTS = (1, 2, 4, 8, 16)  # bytes: a Problem tells no more
_KINDS = {"epilogue": str, "family": str, "api": int, "design": Design, "deterministic": bool}
FACTORS = tuple(dict.fromkeys(x.operand for x in ARITHMETICS))  # dtypes that are multiplied
SUMS = tuple(dict.fromkeys(x.accumulator for x in ARITHMETICS))
_HOST = Gpu("the CPU", 0, 1, 0.0)


def metadata_fits(m: KernelMetadata, p: Problem) -> Status:
    """Whether a problem is what the metadata say: device, dtypes, layouts, alignments, sums and epilogue.

    Factors have to be numbers, and there has to be a product.

    Raises:
        ValueError: the metadata's epilogue is none of the package's formulas, which nothing can be concluded from.
    """
    gpu = gpu_of(p)
    if (m.cc == CPU) != (gpu is None):
        return Status(f"runs on {'the CPU' if m.cc == CPU else 'a GPU'}; the operands are on {p.device}")
    if p.empty_product:
        return Status("multiplies; there is no product (k = 0 or alpha = 0)")
    if p.device_alpha or p.device_beta or p.scale_out == "s":
        return Status("takes factors as numbers; one of them is an array")
    way = _interface(m, p).way(p, gpu or _HOST)
    if isinstance(way, Way):
        return Status(way.detours[0] if way.detours else _other_than_said(m, p))
    return Status(way)


def _other_than_said(m: KernelMetadata, p: Problem) -> str | None:
    """Why c, gate, aux or bias is not as the metadata say of it: an Interface expects of all of them what D is."""
    for name in (*_LIKE_D, "bias"):
        said, dtype = m.operands.get(name), getattr(p, name)
        if not said or not dtype:
            continue
        if said.dtype not in ("*", dtype):
            return f"takes {name} in {said.dtype}; it is {dtype}"
        if (align := getattr(p, f"align_{name}")) < said.alignment:
            return f"takes {name} by {said.alignment} bytes; it is aligned to {align}"
    return None


def _interface(m: KernelMetadata, p: Problem) -> Interface:
    """Metadata as legality takes them; where they say "*", what the problem has."""
    if unknown := _unknown_formula(m):
        raise ValueError(unknown)
    a, b, d = (m.operands[name] for name in ("a", "b", "d"))
    dtypes = {"a": (a.dtype, p.operand_a), "b": (b.dtype, p.operand_b), "d": (d.dtype, p.d)}
    dtypes["accumulator"] = (m.accumulator, p.accumulator)
    known = {name: str(asked) if said == "*" else said for name, (said, asked) in dtypes.items()}
    return Interface(
        api=0,  # which metadata say for people alone
        cc=m.cc,
        bias=str(p.bias or known["d"]),
        layout=a.layout + b.layout,
        epilogue=_formula(m),
        align_a=a.alignment // DTYPES[known["a"]].itemsize or 1,
        align_b=b.alignment // DTYPES[known["b"]].itemsize or 1,
        align_d=d.alignment // DTYPES[known["d"]].itemsize or 1,
        granules=False,
        stream_k=False,
        pointers=False,
        block=0,
        tma_scales=False,
        takes_lists=False,
        bias_as_c=False,
        **known,
    )


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
    return [ProvidedKernel(provider, _with_formula(m)) for m in found]


def mistake(m: Any, usual: bool = True) -> str | None:
    """What is wrong with metadata in themselves; with `usual`, for a provider without a `supports` of its own."""
    if not isinstance(m, KernelMetadata):
        return f"found {_what(m)}; expected KernelMetadata"
    if not isinstance(m.name, str) or not (m.name.isidentifier() and m.name.isascii()):
        return f"a kernel is called {m.name!r}; expected letters, digits and _"
    if not isinstance(m.operands, dict) or not all(isinstance(x, OperandMetadata) for x in m.operands.values()):
        return f"{m.name}: operands is {m.operands!r}; expected a dictionary of OperandMetadata by name"
    if missing := [name for name in ("a", "b", "d") if name not in m.operands]:
        return f"{m.name} has no operand {', '.join(missing)}"
    for name, x in m.operands.items():
        if wrong := _operand_mistake(name, x):
            return f"{m.name}{wrong}"
    if m.accumulator not in ("*", *SUMS):
        return f"{m.name}: accumulator is {m.accumulator!r}; expected one of {', '.join(SUMS)}, or '*'"
    if wrong := product_mistake(m.operands["a"].dtype, m.operands["b"].dtype, m.accumulator):
        return f"{m.name}: {wrong}"
    if not isinstance(m.cc, tuple) or [type(x) for x in m.cc] != [int, int] or m.cc[0] > m.cc[1]:
        return f"{m.name}: cc is {m.cc!r}; expected the lowest and the highest compute capability, such as (80, 999)"
    for field, kind in _KINDS.items():
        if not isinstance(value := getattr(m, field), kind):
            return f"{m.name}: {field} is {value!r}; expected {kind.__name__}"
    return (_unknown_formula(m) or _contradiction(m)) if usual else None


def _contradiction(m: KernelMetadata) -> str | None:
    """Why no problem is both what the metadata say of an operand and what is concluded from the rest."""
    d, axis = m.operands["d"].dtype, _formula(m).bias
    for name in _LIKE_D:
        said = m.operands.get(name, OperandMetadata("*")).dtype
        if "*" not in (d, said) and said != d:
            return f"{m.name}: {name} is {said!r}; expected d's dtype, {d!r}, or a provider with its own supports"
    along = m.operands.get("bias", OperandMetadata("*")).layout
    if axis and along not in ("*", axis):
        return f"{m.name}: bias has layout {along!r}; expected {axis!r}, as epilogue {m.epilogue!r} has it"
    return None


def _operand_mistake(name: str, x: OperandMetadata) -> str | None:
    if name not in _LAYOUTS:
        return f" has an operand {name!r}; expected {', '.join(_LAYOUTS)}"
    dtypes = FACTORS if name in ("a", "b") else tuple(STORAGE)
    if x.dtype not in ("*", *dtypes):
        return f": {name} is {x.dtype!r}; expected one of {', '.join(dtypes)}, or '*'"
    if x.layout not in _LAYOUTS[name]:
        return f": {name} has layout {x.layout!r}; expected {', '.join(map(repr, _LAYOUTS[name]))}"
    if type(x.alignment) is not int or x.alignment not in _ALIGNMENTS:
        return f": {name} has alignment {x.alignment!r}; expected bytes: {', '.join(map(str, _ALIGNMENTS))}"
    if x.layout == "*" and x.dtype != "*" and x.alignment > DTYPES[x.dtype].itemsize:
        return f": {name} has any strides and an alignment of {x.alignment}; expected one of an element"
    return None


def product_mistake(a: str, b: str, accumulator: str) -> str | None:
    """Why gemm never asks for such a product: it does not multiply the dtypes with each other, or not sum them so."""
    partners = next((pair for pair in PAIRS if a in pair), (a,))
    if "*" not in (a, b) and b not in partners:
        return f"b is {b!r}; expected what {a} is multiplied with: {', '.join(partners)}"
    sums = dict.fromkeys(x.accumulator for x in ARITHMETICS if x.operand in (a, b))
    if sums and accumulator not in ("*", *sums):
        return f"accumulator is {accumulator!r}; expected what {a if a != '*' else b} is summed in: {', '.join(sums)}"
    return None


def _unknown_formula(m: KernelMetadata) -> str | None:
    """Why nothing can be concluded from an epilogue."""
    if m.epilogue in EPILOGUES or m.epilogue in _FORMULAS:
        return None
    return f"{m.name}: epilogue is {m.epilogue!r}; expected a name of EPILOGUES, or a provider with its own supports"


def _formula(m: KernelMetadata) -> Epilogue:
    return EPILOGUES.get(m.epilogue) or _FORMULAS[m.epilogue]


def _with_formula(m: KernelMetadata) -> KernelMetadata:
    return replace(m, epilogue=EPILOGUES[m.epilogue].formula) if m.epilogue in EPILOGUES else m
