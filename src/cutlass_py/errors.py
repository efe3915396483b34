"""The package's own exceptions; wrong arguments raise ValueError or TypeError, the device raises CudaError."""

from __future__ import annotations


class NoKernelError(NotImplementedError):
    """No kernel can compute the problem. The message counts those considered and names the nearest with its reason."""


class ProviderError(RuntimeError):
    """A provider that was registered has failed. The message names it, the kernel, and what it was asked for."""


class CompileError(RuntimeError):
    """A kernel that is not in the built set cannot be compiled.

    The message says what to install, what forbids it, or where the source is kept, with the compiler's first errors.
    """


class EpilogueError(ValueError):
    """A Python function cannot become an epilogue. The message names the function, file, line and reason."""
