"""Kernels by description: tile, stages, warps, instruction, schedule, alignment and epilogue, declared or not.

A description is checked before a compiler sees it (declaration/validation.py), and every fault is told at once. A sound
one becomes a kernel like any other, compiled on demand (docs/discovery.md).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from ..declaration import validation
from ..declaration.config import GemmConfig
from ..declaration.validation import Fault, Resolved
from .kernel import CutlassKernel, Kernel
from .registry import add, find_kernel


@dataclass(frozen=True, kw_only=True)
class KernelDescription:
    """A kernel in words. `faults` says all that is wrong with it, `kernel` makes it.

    Extents may be any sequence of whole numbers, or a NumPy array; they are kept as tuples of int. The order of tiles
    (`swizzle`, `raster`) is not part of a kernel: that of 2.x kernels is fixed, 3.x kernels take it at each launch, by
    `Kernel.plan`. Asking for one here is a TypeError.

    Attributes:
        a, b: dtypes that are multiplied ("tf32" and "tf32x3" for f32 arrays); b is a's by default.
        tile: (m, n, k) of a thread block, in elements. With a schedule that swaps, those of the transposed problem.
        instruction: "wgmma" (Hopper's, 3.x kernels), "tensorop" (mma.sync) or "simt" (CUDA cores), 2.x kernels.
        accumulator: dtype of the sums; "fast" for fp8 sums without promotion. By default the arithmetic's.
        d: dtype of the result, by default the arithmetic's.
        layout: of A, then B: t row-major, n column-major.
        schedule: a row of SCHEDULES (config.py): for wgmma "coop", "pingpong" (the default), "coopdirect", ...;
            otherwise "tiled" (the default) or "streamk".
        cluster: wgmma: thread blocks (m, n, k) that share loads.
        warps: 2.x: warps of a thread block along m, n and k.
        stages: 2.x: of the pipeline. A wgmma kernel has as many as fit.
        alignment: elements per access of A and B, by default as many as 16 bytes hold where the instruction takes that.
        epilogue: a row of EPILOGUES (epilogues.py), by default "linear" for wgmma ("fused" or "fused_scaled" by a
            kernel of our own), otherwise "linearc".
        arch: "80" or "90a", where the instruction has both: tensorop on f64 and c128.
    """

    a: str
    tile: tuple[int, int, int]
    instruction: str = validation.WGMMA
    b: str | None = None
    accumulator: str | None = None
    d: str | None = None
    layout: str = "tn"
    schedule: str | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    warps: tuple[int, int, int] | None = None
    stages: int | None = None
    alignment: int | None = None
    epilogue: str | None = None
    arch: str | None = None
    swizzle: InitVar[Any] = None
    raster: InitVar[Any] = None

    def __post_init__(self, swizzle: Any, raster: Any) -> None:
        for name, value in (("swizzle", swizzle), ("raster", raster)):
            if value is not None:
                raise TypeError(
                    f"KernelDescription: {name} is {value!r}; expected none: a 3.x kernel takes it at each launch, "
                    "kernel.plan(args, swizzle=..., raster=...), and that of 2.x kernels is fixed"
                )
        for name in ("tile", "cluster", "warps", "stages", "alignment"):
            object.__setattr__(self, name, _whole(getattr(self, name)))

    @classmethod
    def of(cls, kernel: Kernel) -> KernelDescription:
        """The description of a CUTLASS kernel, to start another one from with dataclasses.replace.

        Raises:
            TypeError: it is no CUTLASS kernel of this package's templates.
        """
        if (
            not isinstance(kernel, CutlassKernel)
            or not isinstance(c := kernel.config, GemmConfig)
            or c.own_source
            or not c.api  # of none of its kinds
        ):
            raise TypeError(f"KernelDescription: {kernel!r} is no CUTLASS kernel of this package's templates")
        names = ("a", "b", "accumulator", "d", "layout", "tile", "epilogue", "schedule")
        common = {name: getattr(c, name) for name in names}
        if c.api == 3:
            return cls(**common, instruction=validation.WGMMA, cluster=c.cluster)
        instruction = validation.SIMT if c.family.startswith("simt") else validation.TENSOROP
        warps = (c.tile[0] // c.warp[0], c.tile[1] // c.warp[1], c.tile[2] // c.warp[2])
        arch = kernel.family.arch
        return cls(**common, instruction=instruction, warps=warps, stages=c.stages, alignment=c.align, arch=arch)

    def faults(self) -> tuple[Fault, ...]:
        """All that is wrong; empty for a description that can be compiled."""
        return validation.faults(self)

    def kernel(self) -> Kernel:
        """The kernel, which from now on is declared in this process: found by name, by get_kernels and by `jit`.

        It is not compiled yet: compile(), kernel= or `jit` do that. `unregister` takes it back. One that is
        declared already is that one.

        Raises:
            ValueError: the description has faults; the message lists all of them.
        """
        if faults := self.faults():
            lines = "".join(f"\n  {fault}" for fault in faults)
            raise ValueError(f"KernelDescription: {len(faults)} fault{'s' if len(faults) > 1 else ''}:{lines}")
        config = Resolved(self).config
        return find_kernel(config.name) or add(config)


def _whole(value: Any) -> Any:
    """A whole number as int, a sequence or array of them as a tuple; anything else as it is, for `faults` to tell."""
    several = getattr(value, "ndim", 0) or (isinstance(value, Sequence) and not isinstance(value, str | bytes))
    try:
        return tuple(map(_index, value)) if several and len(value) else _index(value)
    except TypeError:
        return value


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)
