"""Kernels in CUDA C++ that users bring: the declaration, the library made from it, and the comparison of the two.

Once declared, such a kernel goes through the same legality, packing, composing, tuning and launching as the package's
own, because all of that looks at a GemmConfig.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any

from .. import _core
from .._core import Problem
from ..declaration.config import MOST_IN_CLUSTER, SCHEDULES, Family, GemmConfig
from ..declaration.dtypes import DTYPES, LAYOUTS, STORAGE, usual_arithmetic
from ..declaration.epilogues import EPILOGUES
from ..declaration.families import FAMILIES, families
from ..errors import CompileError, ProviderError
from ..kernels.kernel import CutlassKernel
from ..kernels.operation import Estimates
from ..operations.gemm.cost import models
from ..operations.gemm.legality import interface_of
from ..operations.gemm.metadata import FACTORS, SUMS, product_mistake
from .provider import Failures, checked_estimate

Extents = tuple[int, int, int]


@dataclass(frozen=True)
class OwnConfig(GemmConfig):
    """A configuration with a name and a source of its own."""

    called: str = ""
    source: str = ""
    access_d: int = 1
    gemm2x: bool = False

    @property
    def name(self) -> str:
        """As the user calls it."""
        return self.called

    @property
    def own_source(self) -> str:
        """As given."""
        return self.source

    @property
    def align_d(self) -> int:
        """As declared."""
        return self.access_d

    @property
    def takes_lists(self) -> bool:
        """As the launcher does; where that is not known, only what cannot take anything else."""
        return super().takes_lists and (self.gemm2x or SCHEDULES[self.schedule].pointers)

    @property
    def bias_as_c(self) -> bool:
        """As the launcher does."""
        return super().bias_as_c and self.gemm2x


@dataclass(frozen=True)
class CudaKernel:
    """A kernel in CUDA C++ of your own, and what it computes.

    The text sees this package's headers and CUTLASS's. It defines one kernel (kernel.h) of this name: by a launcher,
    `CUTLASS_PY_KERNEL(name, cutlass_py::Gemm2x<Config>)` (gemm/api2x.cuh, api3x.cuh, array3x.cuh), or by hand, an
    `extern "C" const CutlassPyKernel cutlass_py_<name>`. With `device_type` it defines what that type needs, and the
    kernel is made from the type (gemm/device.cuh).

    What is declared here decides which problems the kernel is asked to compute. When it is compiled, what its C++ type
    says of itself is compared.

    Attributes:
        name: letters, digits and `_`.
        family: the family of the package (FAMILIES) that it could be one of: its CUTLASS generation, the GPUs that run
            it, and the compiler's flags. "simt_gemm" for kernels without tensor cores.
        a: dtype of A; "tf32" for f32 arrays on tensor cores.
        layout: A then B: "t" row-major, "n" column-major. D is row-major.
        tile: extents of the result and of k that a thread block works on.
        source: the C++.
        device_type: a CUTLASS device type: 2.x `device::GemmUniversal<...>`, 3.x `device::GemmUniversalAdapter<...>`.
        b, accumulator, d: dtypes; by default A's, and what gemm sums and returns for it.
        epilogue: a name of EPILOGUES: "linear", "linearc" (reads c), "bias_relu", ...
        schedule: a name of SCHEDULES that the family has, by default the first: "tiled" for 2.x, "coop" for sm90_gemm.
            One that ends in "direct" says that D does not leave by TMA.
        cluster: 3.x.
        warp: 2.x, parts of the tile; 0 for what is not said.
        stages: of the pipeline, likewise.
        align: elements of A and B that are read at once; rows and addresses have to be multiples. 0: 16 bytes.
        align_d: elements of D and C, likewise.
        gemm2x: 2.x: its launcher is Gemm2x, as that of a 2.x `device_type` is: it also takes lists of matrices, and a
            bias along n as a C whose rows are all the same.
        deterministic: the same bits on every run. False for what adds up by atomics: gemm's `deterministic=True` passes
            over it.
        batch_invariant: a row's bits do not depend on what is beside it, and are those of the package's kernels.

    Raises:
        ValueError: a field that is none of this, or contradicts another; the message names it.
    """

    name: str
    family: str
    a: str
    layout: str
    tile: Extents
    source: str = ""
    device_type: str = ""
    b: str = ""
    accumulator: str = ""
    d: str = ""
    epilogue: str = "linear"
    schedule: str = ""
    cluster: Extents = (1, 1, 1)
    warp: Extents = (0, 0, 0)
    stages: int = 0
    align: int = 0
    align_d: int = 0
    gemm2x: bool = False
    deterministic: bool = True
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (self.name.isidentifier() and self.name.isascii()):
            raise ValueError(f"CudaKernel: name is {self.name!r}; expected letters, digits and _")
        for field, known in _CHOICES.items():
            value = getattr(self, field)
            if not isinstance(value, str) or (value not in known and (value or field not in _DEFAULTS)):
                raise ValueError(f"CudaKernel: {field} is {value!r}; expected one of {', '.join(known)}")
        for field in ("tile", "cluster", "warp"):
            value = getattr(self, field)
            lowest = 0 if field == "warp" else 1
            if (
                not isinstance(value, tuple)
                or len(value) != 3
                or any(not isinstance(x, int) or x < lowest for x in value)
            ):
                raise ValueError(f"CudaKernel: {field} is {value!r}; expected three extents")
        if not isinstance(self.stages, int) or self.stages < 0:
            raise ValueError(f"CudaKernel: stages is {self.stages!r}; expected a number, 0 for what is not said")
        switches = ("gemm2x", "deterministic", "batch_invariant")
        for field, kind in (("source", str), ("device_type", str), *((name, bool) for name in switches)):
            if not isinstance(value := getattr(self, field), kind):
                raise ValueError(f"CudaKernel: {field} is {value!r}; expected a {kind.__name__}")
        if not (self.source.strip() or self.device_type.strip()):
            raise ValueError("CudaKernel: neither source nor device_type is given")
        if not self.device_type and self.name not in self.source:
            raise ValueError(f"CudaKernel: the source does not mention {self.name!r}, which it has to define")
        for field, dtype in (("align", self.config.a), ("align_d", self.config.d)):
            value, most = getattr(self, field), 16 // DTYPES[dtype].itemsize
            if value not in (0, *(1 << bit for bit in range(5) if 1 << bit <= most)):
                raise ValueError(f"CudaKernel: {field} is {value}; expected a power of two, {most} elements at most")
        if contradiction := _contradiction(self.config):
            raise ValueError(f"CudaKernel: {contradiction}")

    @cached_property
    def config(self) -> OwnConfig:
        """The declaration as the package writes its own."""
        usual = usual_arithmetic(self.a)
        accumulator, d = self.accumulator or usual.accumulator, self.d or usual.output
        family = FAMILIES[self.family]
        schedule = self.schedule or _schedules(family)[0]
        return OwnConfig(
            self.family, self.a, self.b or self.a, accumulator, d, self.layout, self.tile, self.epilogue,
            schedule, self.cluster, self.warp, self.stages,
            align=self.align or 16 // DTYPES[self.a].itemsize, called=self.name, source=self._cpp(),
            access_d=self.align_d or 16 // DTYPES[d].itemsize,
            gemm2x=self.gemm2x or (bool(self.device_type) and family.api == 2),
        )  # fmt: skip

    def _cpp(self) -> str:
        if not self.device_type:
            return self.source
        return (
            f'{self.source}\n#include "kernels/wrap_device_gemm.cuh"\n'
            f"CUTLASS_PY_KERNEL({self.name}, cutlass_py::GemmDevice<{self.device_type}>)\n"
        )


_DEFAULTS = ("b", "accumulator", "d", "schedule")
_CHOICES: dict[str, Any] = {
    "family": [name for name, family in families().items() if family.api], "a": FACTORS, "b": FACTORS,
    "accumulator": SUMS, "d": STORAGE, "layout": LAYOUTS, "epilogue": EPILOGUES, "schedule": SCHEDULES,
}  # fmt: skip


def _schedules(family: Family) -> list[str]:
    """Those that kernels of a family can have, the usual one first."""
    if family.api == 2:
        return [name for name, row in SCHEDULES.items() if not row.mainloop and not row.gemv]
    return [name for name, row in SCHEDULES.items() if row.mainloop and row.family == family.name]


def _contradiction(c: OwnConfig) -> str | None:
    """What no kernel of the family can be, in fields that are each well-formed."""
    if c.schedule not in (known := _schedules(FAMILIES[c.family])):
        return f"schedule is {c.schedule!r}; expected one that {c.family} has: {', '.join(known)}"
    if c.api == 2 and c.cluster != (1, 1, 1):
        return f"cluster is {c.cluster}; expected (1, 1, 1): {c.family} is of 2.x"
    if prod(c.cluster) > MOST_IN_CLUSTER:
        return f"cluster is {c.cluster}; expected {MOST_IN_CLUSTER} thread blocks at most"
    if c.api == 3 and c.gemm2x:
        return f"gemm2x is True; expected False: {c.family} is of 3.x"
    if any(c.warp) and (c.api == 3 or not all(c.warp) or any(x % y for x, y in zip(c.tile, c.warp, strict=True))):
        expected = "none: 3.x schedules say which warps there are" if c.api == 3 else f"parts of the tile {c.tile}"
        return f"warp is {c.warp}; expected {expected}"
    return product_mistake(c.a, c.b, c.accumulator)


class OwnKernel(CutlassKernel):
    """A kernel of a CudaKernel."""

    def __init__(self, declared: CudaKernel, estimate: Callable[[Problem], float | None] | str | None) -> None:
        super().__init__(declared.config, None)
        if estimate == "model" and not models(self.config):
            raise ValueError(
                f"register_kernel: the model has no rate for {self.config.a} in {self.config.family}, or no warp tile "
                "and stages; expected an estimate of your own, or none"
            )
        self.deterministic, self.batch_invariant = declared.deterministic, declared.batch_invariant
        self._estimate = estimate
        self.bounded = not callable(estimate)
        self._failures = Failures()

    def microseconds(self, estimates: Estimates, splits: int = 1) -> float:
        """The product by the model, or by the user's estimate for k in one part; infinite where there is none, or it
        fails.
        """
        if self._estimate == "model":
            return super().microseconds(estimates, splits)
        if not callable(self._estimate) or splits > 1:
            return inf
        try:
            return checked_estimate(self._estimate(estimates.p), self._error)
        except ProviderError as error:
            self._failures.warned(error)
        except Exception as error:
            self._failures.warned(self._error(f"estimate raised {type(error).__name__}: {error}"))
        return inf

    def _error(self, what: str) -> ProviderError:
        return ProviderError(f"kernel {self.name}: {what}")

    def _facts(self) -> dict[str, Any]:
        """The library's facts, where they are what was declared."""
        from ..compiling.compiler import failed
        from ..kernels.registry import registered

        facts = super()._facts()
        if registered().get(self.name) is not self:  # while it was compiled, or before
            _core.forget_kernel(self.name)
            raise CompileError(f"{_core.current_operation()}: kernel {self.name} is not registered any more")
        declared = declared_facts(self.config)
        wrong = [f"{key} is {facts[key]!r}, declared {said!r}" for key, said in declared.items() if facts[key] != said]
        if wrong:
            _core.forget_kernel(self.name)
            failed[self.name] = (
                f"{_core.current_operation()}: kernel {self.name} is not what was declared: {'; '.join(wrong)}"
            )
            raise CompileError(failed[self.name])
        return facts


def declared_facts(c: GemmConfig) -> dict[str, Any]:
    """What the facts of a compiled kernel (kernel.h) have to be by its declaration."""
    interface, epilogue = interface_of(c), EPILOGUES[c.epilogue]
    facts: dict[str, Any] = {
        "a": DTYPES[c.a].stored, "b": DTYPES[c.b].stored, "accumulator": DTYPES[c.accumulator].stored, "d": c.d,
        "layout": c.layout, "api": c.api, "tile": c.tile, "cluster": c.cluster, "align_a": interface.align_a,
        "align_b": interface.align_b, "align_d": c.align_d,
    }  # fmt: skip
    if epilogue.source or epilogue.gated:
        facts["c"] = c.d
    if c.stages:
        facts["stages"] = c.stages
    if interface.takes_lists:
        facts["pointers"] = True
    return facts
