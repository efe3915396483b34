"""The product as the engines see it: one object with what they ask of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import GemmConfig
from ...declaration.epilogues import EPILOGUES
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel, Status
from ...kernels.metadata import KernelMetadata
from ...kernels.operation import Groups, Operation, Timed
from . import batch_invariance, cost, legality, metadata, problem_text, problems, routes, tile_order
from .arguments import GemmArguments
from .call import KernelCall

LISTS_DIVIDED = "no kernel takes it as a list: one matrix after the other, each by a plan of its own"


class Gemm(Operation):
    """D = epilogue(A @ B)."""

    name = "gemm"
    arguments = GemmArguments
    call = KernelCall
    keys = problems.KEYS
    key: ClassVar[tuple[str, ...]] = (
        "m", "n", "k", "batch", "a", "b", "d", "operand_a", "operand_b", "accumulator", "layout_a", "layout_b",
        "layout_d", "align_a", "align_b", "align_d", "c", "layout_c", "align_c", "activation", "bias", "bias_axis",
        "align_bias", "gate", "layout_gate", "align_gate", "aux", "layout_aux", "align_aux", "bias_grad",
        "bias_grad_axis", "scale_a", "scale_b", "scale_out", "device_alpha", "device_beta", "plain_sum", "pointers",
        "deterministic", "batch_invariant", "pairs",
    )  # fmt: skip
    # What was asked for by name, and where. Where a kernel or a number of splits is asked for, tables are not
    # consulted; a user's epilogue is of the product's class. `block` and `columns_of_b` follow from
    # others, `signature` from all.
    not_in_key: ClassVar[tuple[str, ...]] = (
        "operation", "empty_product", "transposed", "jit", "splits", "kernel", "user", "device", "device_id", "block",
        "signature", "grouped", "stacked", "gathered", "told", "expected", "usual", "columns_of_b", "interleaved",
    )  # fmt: skip

    def arguments_from(self, entry: Mapping[str, Any], device: str) -> GemmArguments:
        """Operands named by their dtype, aligned and without gaps."""
        return problems.arguments(entry, device)

    @property
    def suite(self) -> Iterator[dict[str, Any]]:
        """Layers of language models and squares, in bf16 by weights as they lie."""
        from .suites import SUITES

        for batch, m, n, k in (*SUITES["llm"], *SUITES["square"]):
            yield {"m": m, "n": n, "k": k, "batch": batch, "a": "bf16", "layout": "tn"}

    def describe(self, p: Problem) -> str:
        """The product in one line: extents, layouts, formula, device."""
        return problem_text.describe(p)

    def caveat(self, p: Problem) -> str:
        """Whether a and b are the caller's b and a."""
        return problem_text.turned(p)

    def fused(self, interface: legality.Interface, p: Problem) -> str:
        """The formula of the epilogue: of one that the launch tells, with what it is told."""
        scaled = bool(p.scale_a or p.scale_b or p.scale_out)
        epilogue = interface.epilogue.as_told(p.activation, p.bias_axis if p.bias else "", scaled, bool(p.c))
        if epilogue.user:  # functions of the same content share a kernel: its formula may be another's
            return "the user's function"
        return "" if epilogue.plain else epilogue.formula

    def sums_refusal(self, config: GemmConfig, p: Problem, gpu: Gpu | None) -> str | None:
        """Those of stream-K, and of instructions or promotions that others do not have."""
        return batch_invariance.sums_refusal(config, p, gpu)

    def parts_refusal(self, kernel: CutlassKernel, p: Problem) -> str | None:
        """Where k is to be whole, or in a number of parts."""
        return routes.parts_refusal(kernel, p)

    def interface_of(self, config: GemmConfig) -> legality.Interface:
        """The interface of a kernel; the same object for all that share it."""
        return legality.interface_of(config)

    def metadata_of(self, kernel: CutlassKernel) -> KernelMetadata:
        """Operands by the interface, design and epilogue by the configuration."""
        return metadata.metadata_of(kernel)

    def metadata_fits(self, m: KernelMetadata, p: Problem) -> Status:
        """Device, dtypes, layouts, alignments, sums and epilogue."""
        return metadata.metadata_fits(m, p)

    def metadata_mistake(self, m: KernelMetadata, usual: bool) -> str | None:
        """Operands that a product does not have, dtypes that are not multiplied, contradictions."""
        return metadata.mistake(m, usual)

    def formula_of(self, m: KernelMetadata) -> str:
        """That of the epilogue of this name, or what they say."""
        return EPILOGUES[m.epilogue].formula if m.epilogue in EPILOGUES else m.epilogue

    def dtypes(self, p: Problem) -> dict[str, str]:
        """Of A and B, as they are multiplied."""
        return {"a": p.operand_a or "", "b": p.operand_b or ""}

    @property
    def host_kernel(self) -> KernelMetadata:
        """One that takes any layout, dtype and alignment."""
        return metadata.HOST

    def compute(self, call: KernelCall) -> None:
        """The formula of `gemm`."""
        from .reference import compute  # NumPy is not needed to answer questions

        compute(call)

    def without_kernel(self, p: Problem) -> str | None:
        """There is no product on a GPU: at most the epilogue is left."""
        if p.device_id < 0 or not p.empty_product or (p.pairs and p.m and p.n and p.batch):
            return None
        if p.m and p.n and p.batch:
            return "composed: no product (k = 0 or alpha = 0), the epilogue alone"
        return "the result has no elements"

    def divided(self, p: Problem) -> str:
        """A list of matrices goes matrix by matrix; gates and values are joined behind their product."""
        if p.pointers:
            return LISTS_DIVIDED
        return "no kernel joins gates and values: the product goes through memory" if p.pairs else ""

    def design(self, config: GemmConfig) -> int:
        """A number for what the model looks at of a kernel."""
        return cost.design(config)

    def estimates(self, p: Problem, gpu: Gpu) -> cost.Estimates:
        """What kernels take for a product, by the model."""
        return cost.Estimates(p, gpu)

    def routes(self, p: Problem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
        """Every route to a product: as it lies, packed, finished elsewhere, k in parts."""
        return routes.routes(p, gpu, groups, every=every, cuts=cuts)

    def forced(self, kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu) -> Timed:
        """The route of a kernel that was asked for by name, k in the parts asked for."""
        return routes.forced(kernel, way, p, gpu)

    def in_parts(self, kernel: CutlassKernel, way: Way, p: Problem, splits: int) -> tuple[Way, int] | None:
        """The way that cuts k into so many parts, and how many come of it; None where the kernel cannot."""
        return routes.in_parts(kernel, way, p, splits)

    def tile_order(self, kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
        """Raster and swizzle, so that the tiles in flight share what is in the L2 cache."""
        return tile_order.tile_order(kernel, p, gpu)

    def tile_orders(self, kernel: CutlassKernel, p: Problem) -> Iterable[tuple[int, int]]:
        """Raster and swizzle that are worth measuring."""
        return tile_order.tile_orders(kernel, p)

    def may_overlap(self, kernel: CutlassKernel, way: Way, p: Problem) -> bool:
        """Whether a launch may start before its predecessor in the stream has ended."""
        return routes.may_overlap(kernel, way, p)

    def similar(self, p: Problem) -> tuple[str, Callable[[str], str]] | None:
        """The class of the same product in bf16, for one in f16: there are the same kernels, taken to be as fast."""
        if (p.operand_a, p.operand_b, p.accumulator) != ("f16", "f16", "f32"):
            return None
        if "=bf16" in (key := self.key_of(p)):  # no kernel has both
            return None
        return key.replace("=f16", "=bf16"), lambda kernel: kernel.replace("bf16", "f16")


OPERATION = Gemm()
