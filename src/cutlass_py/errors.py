"""The package's own exception; wrong arguments raise ValueError or TypeError, the device raises CudaError."""

from __future__ import annotations


class NoKernelError(NotImplementedError):
    """No kernel can compute the problem. The message counts those considered and names the nearest with its reason."""
