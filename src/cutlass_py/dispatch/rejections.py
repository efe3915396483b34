"""Why not: the kernels that cannot take a problem, each with its reason, and those that are not compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ..arrays.gpu import Gpu, gpu_of
from ..kernels.adaptation import Way
from ..kernels.kernel import Kernel
from ..kernels.operation import Problem, describe, operation_of
from ..kernels.registry import all_kernels, by_operands, concerned, python_kernels

_K = TypeVar("_K", bound=Kernel)


def rejected(p: Problem) -> list[tuple[Kernel, str]]:
    """Compiled kernels that multiply the operands' dtype on their kind of device and still cannot take the problem.

    Kernels that were registered come first, then the greatest loss, by the time that the model would give them.
    """
    gpu = gpu_of(p)
    brought = _unable(python_kernels(p), p, gpu)
    if gpu is None:
        return [*brought]
    if p.user >= 0:  # it is compiled when it is met: declared kernels that cannot carry it, one for each interface
        declared = by_operands(p.operation, tuple(operation_of(p).dtypes(p).values()), False)
        plain = (kernels[0] for interface, kernels in declared.items() if interface.epilogue.plain)
        return [*brought, *_unable(plain, p, gpu)]
    estimates = operation_of(p).estimates(p, gpu)
    compiled = (kernel for kernels in concerned(p, compiled=True).values() for kernel in kernels)
    return [*brought, *sorted(_unable(compiled, p, gpu), key=lambda miss: miss[0].microseconds(estimates))]


def _unable(kernels: Iterable[_K], p: Problem, gpu: Gpu | None) -> list[tuple[_K, str]]:
    """Those of the kernels that cannot take a problem, with the reason."""
    return [(kernel, way) for kernel in kernels if isinstance(way := kernel.way(p, gpu), str)]


def not_compiled(p: Problem) -> list[Kernel]:
    """Kernels that could take the problem but are not in the built set."""
    gpu = gpu_of(p)
    return [
        kernel
        for interface, kernels in concerned(p, compiled=False).items()
        if isinstance(interface.way(p, gpu), Way)
        for kernel in kernels
        if not kernel.compiled and not kernel.bits_refusal(p, gpu)
    ]


def nothing_fits(p: Problem) -> str:
    """The problem, how many were considered, and three with their reasons: those of its dtype before others."""
    unbuilt = "is declared but not in the built set; `with cutlass_py.jit():` compiles it"
    compiled = [kernel for kernel in all_kernels(compiled=True) if kernel.operation.name == p.operation]
    nearest = [(kernel, unbuilt) for kernel in not_compiled(p)[:1]] + rejected(p)
    nearest = nearest or _unable(compiled, p, gpu_of(p))
    lines = "".join(f"\n  {kernel.name}: {reason}" for kernel, reason in nearest[:3])
    return f"none of {len(compiled)} compiled kernels fits {describe(p)}. Nearest:{lines}"
