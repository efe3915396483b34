"""Quantizing as the engines see it: one object with what they ask of an operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..._core import QuantizeProblem
from ...arrays.gpu import Gpu
from ...declaration.quantize import QuantizeConfig
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel, Status
from ...kernels.metadata import KernelMetadata
from ...kernels.operation import Groups, Operation, Timed
from . import kernels, problems
from .arguments import QuantizeArguments
from .call import QuantizeCall


class Quantize(Operation):
    """q = x / scales, rounded to 8 bits; scales = amax / limit of each group that shares one."""

    name = "quantize"
    arguments = QuantizeArguments
    call = QuantizeCall
    keys = problems.KEYS
    key = ("rows", "cols", "batch", "x", "q", "scaling", "layout_x", "layout_q", "align_x", "align_q")
    not_in_key = (
        "operation",
        "device",
        "device_id",
        "kernel",
        "jit",
        "user",
        "splits",
        "deterministic",
        "batch_invariant",
    )

    def arguments_from(self, entry: Mapping[str, Any], device: str) -> QuantizeArguments:
        """x aligned and without gaps."""
        return problems.arguments(entry, device)

    @property
    def suite(self) -> Iterator[dict[str, Any]]:
        """Inputs and weights of layers of language models (gemm's suite has their products)."""
        for rows, cols in ((16, 7168), (128, 4096), (4096, 4096), (4096, 7168), (8192, 14336), (37888, 3584)):
            for q, scaling in (
                ("e4m3", "tensor"),
                ("e4m3", "row"),
                ("e4m3", "1x128"),
                ("e4m3", "128x128"),
                ("s8", "row"),
            ):
                yield {"rows": rows, "cols": cols, "x": "bf16", "q": q, "scaling": scaling}
        yield {"rows": 4096, "cols": 7168, "x": "f32", "scaling": "row"}
        yield {"rows": 4096, "cols": 7168, "x": "bf16", "scaling": "row", "layout": "n"}

    def describe(self, p: QuantizeProblem) -> str:
        """Extents, dtypes, what shares a factor, device."""
        return problems.describe(p)

    # ------------------------------------------------------------------------------------------------ kernels

    def interface_of(self, config: QuantizeConfig) -> kernels.Interface:
        """What a kernel converts, and what shares a factor."""
        return kernels.interface_of(config)

    def metadata_of(self, kernel: CutlassKernel) -> KernelMetadata:
        """Operands and scaling."""
        return kernels.metadata_of(kernel)

    def metadata_fits(self, m: KernelMetadata, p: QuantizeProblem) -> Status:
        """Device, dtypes, layouts and alignments."""
        return kernels.metadata_fits(m, p)

    def metadata_mistake(self, m: KernelMetadata, usual: bool) -> str | None:
        """Operands and dtypes that there are not."""
        return kernels.mistake(m)

    def formula_of(self, m: KernelMetadata) -> str:
        """The definition, unless they say something else."""
        return kernels.FORMULA if m.epilogue == "linear" else m.epilogue

    def dtypes(self, p: QuantizeProblem) -> dict[str, str]:
        """Of x and q."""
        return {"x": p.x, "q": p.q}

    @property
    def host_kernel(self) -> KernelMetadata:
        """One that takes any layout, dtype and scaling."""
        return kernels.HOST

    def compute(self, call: QuantizeCall) -> None:
        """The definition of `quantize`."""
        from .reference import compute  # NumPy is not needed to answer questions

        compute(call)

    # ------------------------------------------------------------------------------------------------ choice

    def without_kernel(self, p: QuantizeProblem) -> str | None:
        """There is not even a scale to write."""
        return None if kernels.factors(p) else "the result has no elements"

    def design(self, config: QuantizeConfig) -> int:
        """All are of one design."""
        return 0

    def estimates(self, p: QuantizeProblem, gpu: Gpu) -> kernels.Estimates:
        """The time of memory traffic."""
        return kernels.Estimates(p, gpu)

    def routes(self, p: QuantizeProblem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
        """Each kernel of the dtypes that scales as asked for."""
        estimates = kernels.Estimates(p, gpu)
        ways = ((interface.way(p, gpu), each) for interface, each in groups.items())
        return [
            (kernel.microseconds(estimates), kernel, way, 1)
            for way, each in ways
            if isinstance(way, Way)
            for kernel in each
        ]

    def forced(self, kernel: CutlassKernel, way: Way, p: QuantizeProblem, gpu: Gpu) -> Timed:
        """The route of a kernel that was asked for by name."""
        return kernel.microseconds(kernels.Estimates(p, gpu)), kernel, way, 1


OPERATION = Quantize()
