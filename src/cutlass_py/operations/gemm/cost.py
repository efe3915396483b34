"""Estimates of the routes to a product, in microseconds: the kernel, and what surrounds it. They have to order them.

A kernel's time is that of its formula: wgmma_estimate.py, gemv_estimate.py, or tiled_estimate.py for all others; their
constants were measured (calibration.py). Here, of `beside`: the `launch` of an elementwise kernel, the `rate` at
which it moves bytes, how much longer a copy takes that turns rows into columns (`transposed`), and what a product takes
in parts over what it would as a batch of so many (`cut`).
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from math import exp
from typing import TYPE_CHECKING

from ..._core import Detours, GemvDesign, Problem, TiledDesign, WgmmaDesigns, wgmma_most_residual
from ...arrays.gpu import ABSENT, Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import DTYPES
from ...declaration.epilogues import epilogue_named
from ...kernels import operation
from ...kernels.adaptation import Way
from . import gemv_estimate, tiled_estimate, wgmma_estimate
from .calibration import BESIDE, Calibration, calibration_of
from .legality import Interface

if TYPE_CHECKING:
    from ...declaration.epilogue_cpp import Traced
    from ...kernels.kernel import CutlassKernel


class Estimates(operation.Estimates):
    """Estimates for one problem on one GPU, in microseconds. Kernels that compute alike are asked about once."""

    def __init__(self, p: Problem, gpu: Gpu) -> None:
        self.p, self.gpu = p, gpu
        self.known = calibration_of(gpu)
        self._products: dict[tuple[int, int, str], float] = {}

    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """The kernel itself, k in `splits` parts."""
        key = kernel.design, splits, kernel.config.layout
        time = self._products.get(key)
        if time is None:
            time = sum(self.launch(kernel.config, *each) for each in self.p.launches(splits))
            time *= self.known.beside["cut"] if splits > 1 else 1
            self._products[key] = time
        return time

    def detours(self, way: Way, interface: Interface, splits: int = 1) -> float:
        """What surrounds the kernel: packing, and finishing the product elsewhere."""
        return detours_of(way, interface, self.p).microseconds(self.p, splits, beside(self.known))

    def launch(self, c: GemmConfig, parts: int, k: int) -> float:
        """One launch of a kernel, for so many parts of k, each of this length."""
        p, user = self.p, epilogue_named(c.epilogue).user
        batch, design = p.batch * parts, design_of(c, p, self.gpu)
        if design:
            time = design.microseconds(p, k, batch)
        else:
            time = wgmma_estimate.estimate(c, self.gpu, p.m, p.columns_of_b, k, batch, p.activation)[0]
        return time + self._reductions(c, user) if user else time

    def _reductions(self, c: GemmConfig, user: Traced) -> float:
        """What an elementwise kernel reduces behind a user's epilogue: a vector, or of 2.x all values."""
        p = self.p
        values = p.m * p.n * p.batch * DTYPES[c.accumulator].itemsize if c.api == 2 else 0
        stored = len({output.node for output in user.program.outputs if output.reduction})
        launch, rate = self.known.beside["launch"], self.known.beside["rate"]
        return len(user.left(c.api)) * (launch + values / rate) + stored * values / self.known.tiled["memory"]


def design_of(c: GemmConfig, p: Problem, gpu: Gpu) -> TiledDesign | GemvDesign | None:
    """What the formula of a kernel without wgmma knows of it; None for others. Of extents it is told nothing."""
    if SCHEDULES[c.schedule].gemv:
        return gemv_estimate.design_of(c, gpu, p)
    if not is_tiled(c):
        return None
    user = epilogue_named(c.epilogue).user
    d_size = DTYPES[c.d].itemsize * (2 if p.c else 1) + (sum(user.matrix_bytes) if user else 0)
    return tiled_estimate.design_of(c, gpu, d_size)


def detours_of(way: Way, interface: Interface, p: Problem) -> Detours:
    """What surrounds a kernel, by the bytes of an element that each of its launches moves."""
    size, finished = DTYPES[interface.a].itemsize, (p.c, p.gate, p.aux, p.d)
    return Detours(
        pack_a=size if way.pack_a else 0,
        pack_b=size if way.pack_b else 0,
        turn_a=way.pack_a != p.layout_a,
        turn_b=way.pack_b != p.layout_b,
        pack_scales=DTYPES["f32"].itemsize if way.pack_scales else 0,
        finish=sum(DTYPES[x].itemsize for x in finished if x) if way.scratch else 0,
        finish_sum=DTYPES[way.scratch].itemsize if way.scratch else 0,
        sums=DTYPES[interface.d].itemsize if way.sums else 0,
    )


def beside(known: Calibration) -> tuple[float, ...]:
    """Constants of what surrounds a kernel, as routes.h has them."""
    return tuple(known.beside[name] for name in BESIDE)


Kernels = tuple["CutlassKernel", ...]


@lru_cache(1024)
def by_formula(kernels: Kernels) -> tuple[Kernels, Kernels]:
    """Those that the formula for wgmma alone is about, and the others."""
    own: list[CutlassKernel] = []
    others: list[CutlassKernel] = []
    for kernel in kernels:
        c = kernel.config
        alone = SCHEDULES[c.schedule].lean and not c.own_source and not epilogue_named(c.epilogue).user
        (own if alone else others).append(kernel)
    return tuple(own), tuple(others)


@lru_cache(1024)
def designs_of(kernels: Kernels, activation: str) -> WgmmaDesigns:
    """What that formula knows of kernels which apply this activation if they are told."""
    return WgmmaDesigns([wgmma_estimate.design_of(kernel.config, activation) for kernel in kernels])


def is_tiled(c: GemmConfig) -> bool:
    """Whether its instructions are those that warps have of old."""
    return c.api == 2 or SCHEDULES[c.schedule].dmma


def models(c: GemmConfig) -> bool:
    """Whether there is an estimate of a configuration that is not of the declaration."""
    if c.api != 2:
        return True
    return tiled_estimate.rate_name(c) in calibration_of(ABSENT).tiled and all(c.warp) and c.stages > 0


@lru_cache(64)
def fastest(known: Calibration) -> tuple[float, float]:
    """A launch, and bytes that come in a microsecond: no kernel on the tensor cores is faster."""
    most = exp(wgmma_most_residual())
    launches = [known.tiled["launch"], *((exp(x["launch"]) + exp(x["fill"])) / most for x in known.sums.values())]
    return min(launches), max(known.tiled["memory"], *(exp(x["memory"]) * most for x in known.sums.values()))


def least_way(interface: Interface, p: Problem) -> Way:
    """The detours that layouts and dtypes alone ask for."""
    a, b = interface.layout[0], interface.layout[1]
    return Way(
        a if a != p.layout_a else None, b if b != p.layout_b else None, interface.d if interface.d != p.d else None
    )


_designs: dict[tuple[object, ...], int] = {}
_numbers = count()


def design(c: GemmConfig) -> int:
    """A number for what estimates look at of a kernel, but for the layout."""
    epilogue = epilogue_named(c.epilogue)
    key = (c.family, c.tile, c.cluster, c.schedule, c.warp, c.stages, c.align, c.a, c.accumulator, c.d,
           epilogue.user, epilogue.activation)  # fmt: skip
    return _designs.setdefault(key, next(_numbers))  # in one step: another thread may number one at the same time
