"""What a kernel is, as get_kernels(where=...) sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import _core


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
        stages: of the pipeline through shared memory. Like the next two read from the compiled kernel, and 0 where it
            is not compiled; of a 2.x kernel always known.
        threads: of a thread block.
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


CPU = (0, 0)  # KernelMetadata.cc of kernels on operands in host memory


@dataclass(frozen=True)
class KernelMetadata:
    """Everything get_kernels(where=...) can look at.

    Attributes:
        name: general to particular: family, dtypes of A, B, accumulator and D, layout, tile, design, epilogue; or as
            the user calls it.
        operands: by name: a, b, d, and c, bias, gate, aux, ... where the kernel takes one.
        accumulator: dtype of the sums; "*" for any.
        epilogue: what is applied to the product `acc`, as a formula. For kernels of providers also a name of EPILOGUES
            (epilogues.py), such as "linear".
        family: whose template it is made from, a row of FAMILIES (families.py); of providers, what belongs together.
        api: CUTLASS's generation, 2 or 3; 0 for what is no CUTLASS kernel.
        design: tile, cluster, schedule, stages, and what they take.
        cc: lowest compute capability that runs it, times ten, and the highest; (0, 0) for operands in host memory.
        deterministic: the same bits on every run.
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
