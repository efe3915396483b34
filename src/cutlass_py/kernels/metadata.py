"""What a kernel is, as get_kernels(where=...) sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from .. import _core
from ..declaration.epilogues import EPILOGUES
from ..declaration.operands import DEFAULT


@dataclass(frozen=True)
class OperandMetadata:
    """What a kernel reads or writes as it lies.

    Attributes:
        dtype: in memory, so f32 for a kernel that multiplies tf32. Only the kernels of a provider say tf32 there: it
            decides which calls they are asked about.
        layout: "t" row-major, "n" column-major, "*" any; of a bias the axis that it goes along, "n" or "m".
        alignment: 1, 2, 4, 8 or 16: addresses, rows and steps of the batch are multiples of so many bytes. Except for
            CUTLASS's 3.x kernels, so are the contiguous extents of a, b, c and d.
    """

    dtype: str
    layout: str = "*"
    alignment: int = 1


@dataclass(frozen=True)
class Design:
    """How a kernel computes.

    Attributes:
        tile: (m, n, k) of a thread block, in elements.
        cluster: thread blocks (m, n, k) that load together; (1, 1, 1) for 2.x kernels.
        schedule: a row of SCHEDULES (config.py), such as "coop", "pingpong" or "tiled".
        stages: of the pipeline through shared memory. 0 where that is known once the kernel is compiled: of one with a
            user's epilogue, or in C++ of the user's own.
        threads: of a thread block. Like the next one read from the compiled kernel, and 0 where it is not compiled.
        smem_bytes: shared memory of a thread block.
        kernel: the name of the kernel.
    """

    tile: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    schedule: str = ""
    stages: int = 0
    threads: int = 0
    smem_bytes: int = 0
    kernel: str = field(default="", repr=False, compare=False)

    @property
    def registers(self) -> int:
        """Per thread; 0 where the kernel is not compiled, or no device is there. The driver says it, once it has loaded
        the kernel: asked about all kernels, that takes a while."""
        return _core.kernel_registers(self.kernel)


@dataclass(frozen=True)
class EpilogueMetadata:
    """What a kernel does to the product before it stores it, in parts.

    Attributes:
        name: the row of EPILOGUES (epilogues.py), as `KernelDescription(epilogue=...)` takes it. "" for a formula that
            is none of them: a user's, a provider's own. The fields below say nothing then.
        formula: what is applied to the product `acc`.
        bias: axis of the vector that is added, "n" or "m", "nm" for either; "" for none.
        activation: a name of gemm's; "identity" for none, "f" for any of them.
        c: it reads c.
        gate: it multiplies by activation(gate).
        aux: "read" by a derivative (instead of a gate, where any activation is), "written" with what the activation is
            applied to; "" for none.
        scales: it multiplies by scale_a, scale_b and scale_out. Scales in blocks are no part of an epilogue.
        bias_grad: it sums the columns of D.
        pairs: columns that are gates and values, of "b" or of "d"; "" for none.
    """

    name: str
    formula: str
    bias: str = ""
    activation: str = "identity"
    c: bool = False
    gate: bool = False
    aux: str = ""
    scales: bool = False
    bias_grad: bool = False
    pairs: str = ""


@cache
def _parts_of(epilogue: str) -> EpilogueMetadata:
    """Of a name or a formula."""
    row = EPILOGUES.get(epilogue) or next((e for e in EPILOGUES.values() if e.formula == epilogue), None)
    if not row:
        return EpilogueMetadata("", epilogue)
    aux = "read" if row.gated and (row.derivative or row.told) else "written" if row.aux else ""
    gate = row.gated and not row.derivative and not row.pairs
    return EpilogueMetadata(
        row.name, row.formula, row.bias, row.activation, row.source, gate, aux, row.scaled, row.bias_grad, row.pairs
    )


CPU = (0, 0)  # KernelMetadata.cc of kernels on operands in host memory


@dataclass(frozen=True)
class KernelMetadata:
    """Everything get_kernels(where=...) can look at.

    Attributes:
        name: general to particular: family, dtypes of A, B, accumulator and D, layout, tile, design, epilogue; or as
            the user calls it.
        operands: by name: a, b, d, and c, bias, gate, aux, ... where the kernel takes one; of one that quantizes x, q
            and scales.
        accumulator: dtype of the sums; "*" for any.
        epilogue: what is applied to the product `acc`, as a formula. For kernels of providers also a name of EPILOGUES
            (epilogues.py), such as "linear". `fused` has its parts.
        family: whose template it is made from, a row of FAMILIES (families.py); of providers, what belongs together.
        api: CUTLASS's generation, 2 or 3; 0 for what is no CUTLASS kernel.
        design: tile, cluster, schedule, stages, and what they take.
        cc: lowest compute capability that runs it, times ten, and the highest; (0, 0) for operands in host memory.
        deterministic: the same bits on every run.
        batch_invariant: a row's bits do not depend on what is beside it, and are those of every other kernel that says
            so.
        operation: what it computes.
    """

    name: str
    operands: dict[str, OperandMetadata]
    accumulator: str
    epilogue: str = "linear"
    family: str = ""
    api: int = 0
    design: Design = field(default_factory=Design)
    cc: tuple[int, int] = (80, 999)
    deterministic: bool = True
    batch_invariant: bool = False
    operation: str = DEFAULT

    @property
    def fused(self) -> EpilogueMetadata:
        """The epilogue by its name in EPILOGUES, and in parts."""
        return _parts_of(self.epilogue)
