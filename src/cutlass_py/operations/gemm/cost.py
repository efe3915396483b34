"""Estimates of the routes to a product, in microseconds: the kernel, and what surrounds it. They have to order them.

A kernel's time is that of its formula: wgmma_estimate.py, gemv_estimate.py, or tiled_estimate.py for all others; their
constants were measured (calibration.py). Here, of `beside`: the `launch` of an elementwise kernel, the `rate` at
which it moves bytes, how much longer a copy takes that turns rows into columns (`transposed`), and what a product takes
in parts over what it would as a batch of so many (`cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from math import ceil, exp
from typing import TYPE_CHECKING

from ..._core import Problem, WgmmaDesigns, WgmmaEstimates
from ...arrays.gpu import ABSENT, Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...declaration.dtypes import BLOCK, DTYPES
from ...declaration.epilogues import epilogue_named
from ...kernels import operation
from ...kernels.adaptation import Way
from . import gemv_estimate, tiled_estimate, wgmma_estimate
from .calibration import Calibration, calibration_of
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
        self._bounds: dict[tuple[str, str], float] = {}
        a, b = DTYPES[p.operand_a or "f32"], DTYPES[p.operand_b or "f32"]
        moved = p.batch * (p.m * p.k * a.itemsize + p.k * p.n * b.itemsize)
        launch, rate = _fastest(self.known)
        self._least = launch + moved / rate
        self._least_of_vectors = gemv_estimate.least(gpu, moved)

    def least(self, interface: Interface, way: Way | None = None, splits: int = 1) -> float:
        """What no route through an interface falls below: by layouts and dtypes, or with the detours of a way."""
        # Of the kernels that this estimates, those of no CUTLASS API are the ones for few rows.
        least = self._least if interface.api else self._least_of_vectors
        if way:
            return least + self.detours(way, interface, splits)
        key = interface.layout, interface.d
        if (time := self._bounds.get(key)) is None:
            time = self._bounds[key] = self.detours(_at_least(interface, self.p), interface)
        return least + time

    def product(self, kernel: CutlassKernel, splits: int = 1) -> float:
        """The kernel itself, k in `splits` parts."""
        key = kernel.design, splits, "" if is_tiled(kernel.config) else kernel.config.layout
        time = self._products.get(key)
        if time is None:
            time = sum(self.launch(kernel.config, *each) for each in self.p.launches(splits))
            time *= self.known.beside["cut"] if splits > 1 else 1
            self._products[key] = time
        return time

    def products(self, kernels: tuple[CutlassKernel, ...], every: bool) -> Iterator[tuple[CutlassKernel, float]]:
        """Kernels of one interface, k whole, each with its time; unless `every`, of our own the best alone."""
        p, (own, others, designs) = self.p, _by_formula(kernels, self.p.activation)
        if own:
            times = self._formula(own).best_times((p.m, p.n, p.k, p.batch), designs, every)
            if every:
                yield from zip(own, times, strict=True)
            else:
                best = min(times)
                yield own[times.index(best)], best
        for kernel in others:
            yield kernel, kernel.microseconds(self)

    def in_parts(self, kernels: tuple[CutlassKernel, ...], parts: int) -> list[float]:
        """Likewise, k in so many parts: of each kernel, in their order."""
        p, (own, _, designs) = self.p, _by_formula(kernels, self.p.activation)
        times: dict[CutlassKernel, float] = {}
        if own:
            formula = self._formula(own)
            launches = [
                formula.best_times((p.m, p.n, k, p.batch * count), designs, True) for count, k in p.launches(parts)
            ]
            cut = self.known.beside["cut"] if parts > 1 else 1
            times = {kernel: cut * sum(each) for kernel, *each in zip(own, *launches, strict=True)}
        return [times[x] if x in times else x.microseconds(self, parts) for x in kernels]

    def _formula(self, kernels: list[CutlassKernel]) -> WgmmaEstimates:
        """By how kernels of one interface sum."""
        return wgmma_estimate.estimates(wgmma_estimate.sums_of(kernels[0].config), self.gpu)

    def detours(self, way: Way, interface: Interface, splits: int = 1) -> float:
        """What surrounds the kernel: packing, and finishing the product elsewhere."""
        p, size, time = self.p, DTYPES[interface.a].itemsize, 0.0
        if way.pack_a:
            time += self._pack(2 * p.m * p.k * p.batch * size, way.pack_a == p.layout_a)
        if way.pack_b:
            time += self._pack(2 * p.k * p.n * p.batch * size, way.pack_b == p.layout_b)
        if way.pack_scales:
            time += self._move(2 * p.m * ceil(p.k / BLOCK) * p.batch * DTYPES["f32"].itemsize)
        if way.scratch:
            bytes_each = DTYPES[way.scratch].itemsize * splits
            bytes_each += sum(DTYPES[x].itemsize for x in (p.c, p.gate, p.aux, p.d) if x)
            time += self._move(p.m * p.n * p.batch * bytes_each)
        if way.sums:
            time += self._move(p.m * p.n * p.batch * DTYPES[interface.d].itemsize)
        return time

    def _pack(self, moved_bytes: int, as_it_lies: bool) -> float:
        return self._move(moved_bytes) * (1.0 if as_it_lies else self.known.beside["transposed"])

    def _move(self, moved_bytes: int) -> float:
        return self.known.beside["launch"] + moved_bytes / self.known.beside["rate"]

    def launch(self, c: GemmConfig, parts: int, k: int) -> float:
        """One launch of a kernel, for so many parts of k, each of this length."""
        p, user = self.p, epilogue_named(c.epilogue).user
        batch, beside = p.batch * parts, self._reductions(c, user) if user else 0.0
        if SCHEDULES[c.schedule].gemv:
            return gemv_estimate.estimate(c, self.gpu, p, k, batch)
        if is_tiled(c):
            d_bytes = DTYPES[c.d].itemsize * (2 if p.c else 1) + (sum(user.matrix_bytes) if user else 0)
            moved = DTYPES[c.a].itemsize * (p.m * k + k * p.n) + p.m * p.n * d_bytes
            return tiled_estimate.estimate(c, self.gpu, p.m, p.n, k, batch, batch * moved) + beside
        return wgmma_estimate.estimate(c, self.gpu, p.m, p.n, k, batch, p.activation)[0] + beside

    def _reductions(self, c: GemmConfig, user: Traced) -> float:
        """What an elementwise kernel reduces behind a user's epilogue: a vector, or of 2.x all values."""
        p = self.p
        values = p.m * p.n * p.batch * DTYPES[c.accumulator].itemsize if c.api == 2 else 0
        stored = len({output.node for output in user.program.outputs if output.reduction})
        return len(user.left(c.api)) * self._move(values) + stored * values / self.known.tiled["memory"]


@lru_cache(1024)
def _by_formula(
    kernels: tuple[CutlassKernel, ...], activation: str
) -> tuple[list[CutlassKernel], list[CutlassKernel], WgmmaDesigns]:
    """Those that the formula for wgmma alone is about, at once, and the others."""
    own: list[CutlassKernel] = []
    others: list[CutlassKernel] = []
    for kernel in kernels:
        c = kernel.config
        by_formula = SCHEDULES[c.schedule].lean and not c.own_source and not epilogue_named(c.epilogue).user
        (own if by_formula else others).append(kernel)
    return own, others, wgmma_estimate.design_set((x.config for x in own), activation)


def is_tiled(c: GemmConfig) -> bool:
    """Whether its instructions are those that warps have of old."""
    return c.api == 2 or SCHEDULES[c.schedule].dmma


def models(c: GemmConfig) -> bool:
    """Whether there is an estimate of a configuration that is not of the declaration."""
    if c.api != 2:
        return True
    return tiled_estimate.rate_name(c) in calibration_of(ABSENT).tiled and all(c.warp) and c.stages > 0


@lru_cache(64)
def _fastest(known: Calibration) -> tuple[float, float]:
    """A launch, and bytes that come in a microsecond: no kernel on the tensor cores is faster."""
    launches = [known.tiled["launch"], *(exp(x["launch"]) + exp(x["fill"]) for x in known.sums.values())]
    return min(launches), max(known.tiled["memory"], *(exp(x["memory"]) for x in known.sums.values()))


def _at_least(interface: Interface, p: Problem) -> Way:
    """The detours that layouts and dtypes alone ask for."""
    a, b = interface.layout[0], interface.layout[1]
    pack_a, pack_b = a if a != p.layout_a else None, b if b != p.layout_b else None
    scratch = interface.d if interface.d != p.d else None
    return Way(pack_a, pack_b, scratch, tuple(filter(None, (pack_a, pack_b, scratch))))


_designs: dict[tuple[object, ...], int] = {}
_numbers = count()


def design(c: GemmConfig) -> int:
    """A number for what estimates look at of a kernel, but for the layout."""
    epilogue = epilogue_named(c.epilogue)
    key = (c.family, c.tile, c.cluster, c.schedule, c.warp, c.stages, c.align, c.a, c.accumulator, c.d,
           epilogue.user, epilogue.activation)  # fmt: skip
    return _designs.setdefault(key, next(_numbers))  # in one step: another thread may number one at the same time
