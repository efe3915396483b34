"""The CPU's kernels, one for each operation, which takes every problem in host memory.

What they compute is in operations/<name>/reference.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from ..declaration.operands import OPERANDS
from ..kernels.kernel import Status
from ..kernels.metadata import KernelMetadata
from ..kernels.operation import operation_named
from .provider import ProvidedKernel, Provider


class NumpyProvider(Provider):
    """Computes any problem whose operands are in host memory, whatever their layout, dtype and alignment."""

    name = "numpy"

    def kernels(self) -> Iterable[KernelMetadata]:
        """One for each operation, which takes anything."""
        return [operation_named(name).host_kernel for name in OPERANDS]

    def supports(self, kernel: KernelMetadata, problem: Any) -> Status:
        """Whatever is in host memory."""
        on_host = problem.device_id < 0
        return Status(None if on_host else f"runs on the CPU; the operands are on {problem.device}")

    def run(self, kernel: KernelMetadata, call: Any) -> None:
        """By NumPy."""
        operation_named(kernel.operation).compute(call)


@cache
def kernel_of(operation: str) -> ProvidedKernel:
    """The CPU's kernel of an operation, whose room is loaded by that."""
    return ProvidedKernel(NumpyProvider(), operation_named(operation).host_kernel)
