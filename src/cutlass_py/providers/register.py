"""Bringing kernels: a provider, a Python function, or CUDA C++, from registration until nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..declaration.families import added
from ..kernels import archive, registry
from ..kernels.kernel import Kernel
from ..kernels.metadata import KernelMetadata
from .cuda_kernel import CudaKernel, OwnKernel
from .provider import Provider, kernels_of, mistake

Run = Callable[[Any], None]  # of a call in canonical form
Estimate = Callable[[Any], "float | None"]  # of a Problem


@dataclass
class Registration:
    """What was registered: `kernels`, until `unregister`, or until the end of a `with` block."""

    name: str
    kernels: tuple[Kernel, ...]
    active: bool = field(default=True, init=False)

    def unregister(self) -> None:
        """Takes the kernels back: their names are free, and plans that used them forgotten. Does nothing twice.

        What is already running goes on, and so does a prepared call that somebody holds (`plan`). A CUDA C++ kernel
        stays in the cache on disk.
        """
        if self.active:
            self.active = False
            with registry.registering:
                del _registrations[self.name]
                registry.unregister(self.kernels)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()


_registrations: dict[str, Registration] = {}  # by the name of the provider, or of the one kernel


def register_provider(provider: Provider) -> Registration:
    """Makes the kernels of a provider known: get_kernels lists them, explain explains, tune measures, gemm takes them.

    Returns:
        The registration, which is also a context: at its end nothing is left of the provider.

    Raises:
        TypeError: not a Provider.
        ValueError: the provider's name, or that of one of its kernels, is taken.
        ProviderError: it failed to say what its kernels are.
    """
    if not isinstance(provider, Provider):
        raise TypeError(f"register_provider: found {type(provider).__name__}; expected a cutlass_py.Provider")
    name = getattr(provider, "name", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_provider: the name of {type(provider).__name__} is {name!r}; expected a string")
    return _register("register_provider", name, kernels_of(provider))


def register_kernel(
    kernel: CudaKernel | KernelMetadata, run: Run | None = None, *, estimate: Estimate | str | None = None
) -> Registration:
    """Makes one kernel known: CUDA C++ of your own, or a Python function.

    Args:
        kernel: a CudaKernel; or the metadata of what `run` computes.
        run: computes a call, as Provider.run does; for metadata alone.
        estimate: a function of a Problem, as Provider.estimate. For a CudaKernel also "model": the package's own model
            holds for it, as its tiles are those of its family.

    Returns:
        The registration, which is also a context: at its end nothing is left of the kernel.

    Raises:
        TypeError: an argument of another kind.
        ValueError: the name is taken, or a declaration that contradicts itself.
    """
    if isinstance(kernel, CudaKernel):
        if run is not None:
            raise TypeError("register_kernel: a CudaKernel is run by itself; expected no function beside it")
        if not (estimate is None or estimate == "model" or callable(estimate)):
            raise ValueError(f"register_kernel: estimate is {estimate!r}; expected 'model' or a function")
        return _register("register_kernel", kernel.name, [OwnKernel(kernel, estimate)])
    if not isinstance(kernel, KernelMetadata):
        raise TypeError(f"register_kernel: found {type(kernel).__name__}; expected CudaKernel or KernelMetadata")
    if not callable(run) or not (estimate is None or callable(estimate)):
        raise TypeError("register_kernel: metadata say what `run` computes and `estimate` says; expected functions")
    if wrong := mistake(kernel):
        raise ValueError(f"register_kernel: {wrong}")
    return _register("register_kernel", kernel.name, kernels_of(_One(kernel, run, estimate)))


def unregister(what: str | Kernel) -> None:
    """Takes back what this process brought: a provider by its name; a kernel that was registered, described or loaded.

    Such kernels are neither found nor chosen any more, though plans that are held go on; a declared one that came from
    an artifact or a pack is what it was before that. Where one is compiled, its entry in the cache stays.

    Args:
        what: a name, or the kernel itself. A kernel of a provider goes with the provider.

    Raises:
        TypeError: neither.
        ValueError: nothing was brought under that name, another kernel than `what` has it now, or it is a provider's
            kernel.
    """
    name = what.name if isinstance(what, Kernel) else what
    if not isinstance(name, str):
        raise TypeError(f"unregister: found {type(name).__name__}; expected a name or a Kernel")
    if isinstance(what, Kernel) and registry.registered().get(name, what) is not what:
        raise ValueError(f"unregister: kernel {name} was unregistered; another one has its name now")
    registration = _registrations.get(name)
    if registration and (what == name or what in registration.kernels):
        registration.unregister()
    elif owner := next((r.name for r in _registrations.values() if name in {k.name for k in r.kernels}), None):
        raise ValueError(f"unregister: kernel {name!r} is of provider {owner!r}, which is unregistered as a whole")
    elif not any([archive.forget(name), registry.remove(name)]):
        known = ", ".join(dict.fromkeys((*_registrations, *added, *archive.joined))) or "nothing"
        raise ValueError(f"unregister: nothing is registered as {name!r}; there is {known}")


def _register(caller: str, name: str, found: Iterable[Kernel]) -> Registration:
    if name == "numpy":
        raise ValueError(f"{caller}: 'numpy' is the package's own; expected another name")
    registration = Registration(name, tuple(found))
    if len({kernel.name for kernel in registration.kernels}) < len(registration.kernels):
        raise ValueError(f"{caller}: {name!r} has two kernels of the same name")
    with registry.registering:
        if name in _registrations:
            raise ValueError(f"{caller}: {name!r} is registered already; cutlass_py.unregister({name!r}) takes it back")
        registry.register(caller, registration.kernels)
        _registrations[name] = registration
    return registration


class _One(Provider):
    """A provider of one kernel."""

    def __init__(self, kernel: KernelMetadata, run: Run, estimate: Any) -> None:
        self.name, self._kernel, self._run, self._estimate = kernel.name, kernel, run, estimate

    def kernels(self) -> Iterable[KernelMetadata]:
        return [self._kernel]

    def run(self, kernel: KernelMetadata, call: Any) -> None:
        return self._run(call)

    def estimate(self, kernel: KernelMetadata, problem: Any) -> float | None:
        return self._estimate(problem) if self._estimate else None
