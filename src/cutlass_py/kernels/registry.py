"""The registry: every kernel there is, one object each, found by name, by number and by what it multiplies.

kernel.py says what a kernel is; dispatch/, which of them is taken. The CPU's kernel and installed packs, which are
built on this module, are found by name, as plugins are.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from threading import RLock
from typing import Any, ParamSpec, TypeVar

from .. import _core
from ..declaration.config import KernelConfig
from ..declaration.epilogues import Epilogue
from ..declaration.families import FAMILIES, added, find
from ..declaration.operands import DEFAULT, OPERANDS
from ..epilogues.fusion import with_epilogue
from ..epilogues.specialization import specialization_of
from ..errors import wrong_type, wrong_value
from .kernel import CutlassKernel, Kernel, PythonKernel, not_of_cutlass
from .operation import Groups, Problem, operation_named, operation_of

# ---------------------------------------------------------------------------------------------------- what there is

_T = TypeVar("_T")
_P = ParamSpec("_P")
_lists: dict[Any, Any] = {}  # by what was asked; another one after each `forget`


def _cached_until_reset(listing: Callable[_P, _T]) -> Callable[_P, _T]:
    """What a function lists, kept until `forget`: that starts new lists, so that what it interrupts goes to the old."""

    @wraps(listing)
    def kept(*asked: _P.args, **by_name: _P.kwargs) -> _T:
        lists, key = _lists, (listing, asked, tuple(by_name.items()))
        if key not in lists:
            lists.setdefault(key, listing(*asked, **by_name))  # without a lock, which a fork meanwhile would keep
        found: _T = lists[key]
        return found

    return kept


_paused = False  # whether collections are off, to be switched on by the thread that did it


@contextmanager
def gc_paused() -> Iterator[None]:
    """Without garbage collections: so many new objects, all of which stay, would bring about one of the whole heap.

    Beside torch that takes 0.1 s, more than everything else in a first call. All metadata are another such case.
    """
    global _paused
    on = gc.isenabled()
    _paused = _paused or on
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
            _paused = False


# A child that is forked meanwhile has no thread that would switch them on again.
os.register_at_fork(after_in_child=lambda: gc.enable() if _paused else None)

_cutlass: dict[str, CutlassKernel] = {}  # by name: one object per kernel, made when it is first asked for


def cutlass_kernel(config: KernelConfig) -> CutlassKernel:
    """The kernel of a configuration, declared or not."""
    if (kernel := _cutlass.get(config.name)) is None:
        kernel = _cutlass.setdefault(config.name, CutlassKernel(config, _facts().get(config.name)))
    return kernel


@_cached_until_reset
def _facts() -> dict[str, dict[str, Any]]:
    return _core.kernel_facts()


def _later(module: str) -> Any:
    """What is built on this module, found by name, as plugins are."""
    return import_module(f"cutlass_py.{module}")


def _load_packs() -> None:
    _later("kernels.packs").load()


# By name, in the order of registration. Another dictionary after each change: those who read it need no lock, which a
# fork meanwhile would keep.
_registered: dict[str, Kernel] = {}
registering = RLock()  # a collection while it is held may run a destructor that unregisters


def registered() -> dict[str, Kernel]:
    """Kernels that users brought (register.py), by name."""
    return _registered


def _undeclared() -> dict[str, Kernel]:
    """Every kernel that is not of the declaration: the CPU's come first."""
    return {kernel.name: kernel for kernel in map(_later("providers.numpy").kernel_of, OPERANDS)} | _registered


@_cached_until_reset
@gc_paused()
def _configs(compiled: bool) -> tuple[KernelConfig, ...]:
    """Every CUTLASS kernel in the order of declaration, or those that are compiled by name.

    By name, so that of equal estimates the same is first, whichever library was loaded before. Of the kernels that were
    swept on an H200, the order of names chose no worse than that of declaration.
    """
    _load_packs()
    if compiled:
        return tuple(config for name in sorted(_core.kernel_facts()) if (config := find(name)))
    declared = (c for family in FAMILIES.values() for c in family.declared)
    return tuple({c.name: c for c in (*declared, *added.values())}.values())


def is_at_hand(name: str) -> bool:
    """Whether a kernel of that name is compiled, or none of the declaration: that takes long to list."""
    _load_packs()
    return name in _facts() or name in _undeclared()


@_cached_until_reset
@gc_paused()
def all_kernels(compiled: bool = False) -> tuple[Kernel, ...]:
    """Every kernel, or those that are compiled, in that order; what was registered last."""
    brought = (kernel for kernel in _undeclared().values() if kernel.compiled or not compiled)
    return (*map(cutlass_kernel, _configs(compiled)), *brought)


# ---------------------------------------------------------------------------------------------------- coming and going


def add(config: KernelConfig) -> CutlassKernel:
    """A kernel joins the others, whether or not it is declared, as code where its library is part of this process."""
    _load_packs()  # what is compiled is asked for once, below
    if not find(config.name):
        added[config.name] = config
    kernel = cutlass_kernel(config)
    if not kernel.compiled and (facts := _core.kernel_facts().get(config.name)):
        kernel.loaded(facts)
    forget()
    return kernel


def remove(name: str) -> bool:
    """Forgets a kernel that was described or loaded; whether there was one."""
    if added.pop(name, None) is None:
        return False
    forget_kernel(name)
    return True


def register(caller: str, kernels: Sequence[Kernel]) -> None:
    """Adds kernels. register.py is the public side, whose function `caller` is.

    Raises:
        ValueError: a name is taken; nothing is added then.
    """
    _load_packs()  # their names are taken too
    global _registered
    with registering:
        taken = _undeclared()
        for kernel in kernels:
            if kernel.name in taken or find(kernel.name) or kernel.name in _core.kernel_facts():
                raise ValueError(f"{caller}: a kernel is called {kernel.name!r} already")
            taken[kernel.name] = kernel
        _registered = _registered | {kernel.name: kernel for kernel in kernels}
    forget()


def unregister(kernels: Sequence[Kernel]) -> None:
    """Removes kernels that are registered; their names, plans and libraries are forgotten."""
    global _registered
    names = {kernel.name for kernel in kernels}
    with registering:
        _registered = {name: kernel for name, kernel in _registered.items() if name not in names}
    for name in names:
        forget_kernel(name)


def forget_kernel(name: str) -> None:
    """Gives up the object, the number and the library of a kernel that is there no more; plans that hold it go on."""
    from ..compiling.compiler import failed

    _cutlass.pop(name, None)
    failed.pop(name, None)
    with _naming:
        if (number := _ids.pop(name, None)) is not None:
            _by_id[number] = None
    _core.forget_kernel(name)
    forget()


def forget() -> None:
    """Looks at the declaration and at what is compiled anew."""
    global _lists
    _lists = {}
    _core.clear_plans()


# ---------------------------------------------------------------------------------------------------- by problem


def _grouped(kernels: Iterable[CutlassKernel]) -> Groups:
    groups = Groups()
    for kernel in kernels:
        groups.setdefault(kernel.interface, []).append(kernel)
    return groups


@_cached_until_reset
@gc_paused()
def by_operands(operation: str, dtypes: tuple[str, ...], compiled: bool) -> Groups:
    """Kernels of an operation for these dtypes, by interface: what a question goes through. Of others none is made."""

    def wanted(c: KernelConfig) -> bool:
        return c.operands == dtypes and FAMILIES[c.family].operation == operation

    declared = map(cutlass_kernel, filter(wanted, _configs(compiled)))
    cutlass = (kernel for kernel in _registered.values() if isinstance(kernel, CutlassKernel))
    brought = (kernel for kernel in cutlass if (kernel.compiled or not compiled) and wanted(kernel.config))
    return _grouped((*declared, *brought))


@_cached_until_reset
def _with_epilogue(operation: str, dtypes: tuple[str, ...], epilogue: Epilogue) -> Groups:
    """Every declared design for these dtypes with a user's epilogue, compiled or not."""
    declared = (kernel.config for group in by_operands(operation, dtypes, False).values() for kernel in group)
    configs = {c: None for config in declared if isinstance(c := with_epilogue(config, epilogue), KernelConfig)}
    return _grouped(map(cutlass_kernel, configs))


def concerned(p: Problem, compiled: bool) -> Groups:
    """CUTLASS kernels worth asking about a problem, by interface: none where the operands are in host memory.

    With a user's epilogue, which is compiled when it is met, compiled or not.
    """
    if p.device_id < 0:
        return Groups()
    dtypes = tuple(operation_of(p).dtypes(p).values())
    if asked := specialization_of(p):
        return _with_epilogue(p.operation, dtypes, asked.epilogue)
    return by_operands(p.operation, dtypes, compiled)


def python_kernels(p: Problem) -> Iterator[PythonKernel]:
    """Kernels written in Python that are worth asking about a problem: those for its dtypes, on its kind of device."""
    for kernel in (_later("providers.numpy").kernel_of(p.operation), *_registered.values()):
        if isinstance(kernel, PythonKernel) and kernel.concerns(p):
            yield kernel


# ---------------------------------------------------------------------------------------------------- by name or number

# Kernels that were asked for; their index is the number that Problem.kernel holds. None where one was unregistered.
_by_id: list[Kernel | None] = []
_ids: dict[str, int] = {}  # by name
_naming = RLock()  # a collection while it is held may run a destructor that unregisters


def find_kernel(name: str) -> Kernel | None:
    """The kernel of that name."""
    _load_packs()
    if config := find(name):
        return cutlass_kernel(config)
    return _undeclared().get(name)


def kernel_named(name: str, caller: str = "gemm") -> Kernel:
    """The kernel of that name.

    Raises:
        ValueError: there is none; of the function that was called.
    """
    if kernel := find_kernel(name):
        return kernel
    if (made := _cutlass.get(name)) and made.interface.epilogue.user:  # declared nowhere
        return made
    raise ValueError(f"{caller}: no kernel is called {name!r}; cutlass_py.get_kernels(compiled=False) lists them")


def cutlass_kernel_named(name: str, caller: str) -> CutlassKernel:
    """The CUTLASS kernel of that name.

    Raises:
        ValueError: there is no kernel of that name, or it is none of CUTLASS.
    """
    kernel = kernel_named(name, caller)
    if not isinstance(kernel, CutlassKernel):
        raise not_of_cutlass(kernel, caller)
    return kernel


def kernel_id(kernel: Kernel | str) -> int:
    """Number of a kernel given by name or object, as Problem.kernel holds it.

    Raises:
        TypeError: neither a name nor an object.
        ValueError: no kernel has that name, or another one than the object.
    """
    name = kernel if isinstance(kernel, str) else getattr(kernel, "name", None)
    if not isinstance(name, str):
        raise wrong_type("kernel", f"is {_core.described_type(kernel)}", "a Kernel or its name")
    if isinstance(kernel, Kernel) and registered().get(name, kernel) is not kernel:
        raise wrong_value("kernel", f"{name} was unregistered", hint="another one has its name now")
    if (number := _ids.get(name)) is not None:  # calls that come again take no lock
        return number
    _load_packs()  # which has a lock of its own
    with _naming:  # against forget_kernel: a name never keeps the number of a kernel that it had before
        if (number := _ids.get(name)) is None:
            _by_id.append(kernel_named(name, _core.current_operation()))
            number = _ids[name] = len(_by_id) - 1
        return number


def kernel_by_id(number: int) -> Kernel:
    """The kernel that kernel_id gave this number to.

    Raises:
        ValueError: it was unregistered since.
    """
    if (kernel := _by_id[number]) is None:
        raise wrong_value(found="the kernel that was asked for is not registered any more")
    return kernel


# ---------------------------------------------------------------------------------------------------- for the kernels


def artifact_of(kernel: Kernel) -> Any:
    """What compiling a kernel leaves."""
    return _later("kernels.artifact").artifact_of(kernel)


def is_artifact(value: Any) -> bool:
    """Whether it is an Artifact."""
    return isinstance(value, _later("kernels.artifact").Artifact)


Kernel.registry = sys.modules[__name__]

# What a first call finds by name is imported now: a process that forks in the middle of an import leaves its child the
# import's lock. The rooms of other operations come with the first call of each.
operation_named(DEFAULT)
for _module in ("providers.numpy", "kernels.packs"):
    _later(_module)
