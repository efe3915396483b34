"""`get_kernels`: every kernel, or those that fit a call, best first."""

from __future__ import annotations

from collections.abc import Callable

from .. import _core
from ..declaration.families import FAMILIES
from ..declaration.operands import DEFAULT, OPERANDS
from ..kernels.kernel import CutlassKernel, Kernel
from ..kernels.metadata import KernelMetadata
from ..kernels.operation import Arguments, arguments_of
from ..kernels.registry import all_kernels, gc_paused
from .candidates import in_place_kernels


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
    args: Arguments | None = None,
    where: Callable[[KernelMetadata], bool] | None = None,
    *,
    cc: int | str | None = None,
    compiled: bool = True,
    operation: str = DEFAULT,
) -> list[Kernel]:
    """Kernels, best first where arguments are given; explain(args) has the reason for the order.

    Args:
        args: only kernels that support these arguments as they lie, in the order in which `gemm` would take them: what
            `tune` measured for them, then by the model's estimate. Without it, every kernel: by name, with
            `compiled=False` in the order of declaration; what was registered comes last.
        where: only kernels whose metadata satisfies this predicate.
        cc: only kernels that run on this compute capability: 80, 86, 90, "90", ...; "90a" for those of the
            architecture's own instructions, which run nowhere else.
        compiled: False includes kernels that are declared but neither in the built set nor compiled since. Those of a
            user's epilogue in `args` are included either way, as `gemm` compiles them.
        operation: what they compute, where no arguments say it.

    Raises:
        ValueError: there is no such `cc`, or no such operation.
        TypeError: `args` is no arguments of an operation, or `where` no function.
    """
    if where is not None and not callable(where):
        raise TypeError(f"get_kernels: where is {_core.described_type(where)}; expected a function of KernelMetadata")
    runs = None if cc is None else _on(cc)
    if args is not None:
        p = arguments_of("get_kernels", args).problem
        kernels = in_place_kernels(p, compiled=compiled and p.user < 0)
    else:
        if operation not in tuple(OPERANDS):  # it need not have a hash
            raise ValueError(f"get_kernels: operation is {operation!r}; expected one of {', '.join(OPERANDS)}")
        kernels = [kernel for kernel in all_kernels(compiled) if kernel.operation.name == operation]
    if runs is not None:
        kernels = [kernel for kernel in kernels if runs(kernel)]
    if where is None:
        return kernels
    with gc_paused():
        return [k for k in kernels if where(k.metadata)]
