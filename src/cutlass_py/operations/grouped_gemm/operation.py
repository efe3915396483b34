"""The grouped product as the engines see it: gemm's kernels, legality and formulas, for products of unequal size.

What a kernel takes is estimated as for a batch of products of one size that has as many tiles, once for each way in
which sizes may be unequal; what is least in the mean of these is chosen (docs/performance/choice.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

from ..._core import Problem, TiledDesign
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel
from ...kernels.metadata import KernelMetadata
from ...kernels.operation import Groups, Timed
from ..gemm import metadata, wgmma_estimate
from ..gemm.call import KernelCall
from ..gemm.cost import Estimates
from ..gemm.cost import design_of as tiled_design
from ..gemm.operation import LISTS_DIVIDED, Gemm
from . import problem_text, problems
from .arguments import GroupedArguments

_GROUPS = ("grouped", "stacked", "told", "expected")  # what a problem says of them
Product = tuple[int, int, int, int]  # m, n, k and how many
# How unequal experts are: of each spread the lines of a group over the mean, in the middles of its quartiles.
SPREADS = {
    "even": (1, 1, 1, 1), "U(0.7, 1.3)": (0.775, 0.925, 1.075, 1.225), "Dirichlet(1)": (0.134, 0.470, 0.981, 2.079),
    "3/4 empty": (0, 0, 0, 4),
}  # fmt: skip
_BAND = 4  # tiles of lines beside each other, whatever sizes may be (docs/performance/tile_orders.md)


def mean_product(p: Problem, c: GemmConfig | None = None, sizes: Sequence[float] = ()) -> Product:
    """The product of one of a problem's groups, or what a kernel computes of it in tiles.

    Args:
        p: the problem.
        c: the kernel.
        sizes: lines of each group; without them all have as many.
    """
    one, groups = _one_of(p)
    if c and _ends_within_tiles(p):
        if sizes:
            groups = len(sizes)
        one[p.grouped], groups = _whole_groups(sizes or (one[p.grouped],), groups, _tile(p, c))
    return one["m"], one["n"], one["k"], groups


def products(p: Problem, c: GemmConfig) -> dict[Product, int]:
    """What a kernel computes of a problem in tiles, and of how many of SPREADS that is."""
    if not _ends_within_tiles(p):
        return {mean_product(p, c): len(SPREADS)}
    one, groups = _one_of(p)
    found = dict[Product, int]()
    for lines, count in _by_spread(one[p.grouped], groups, _tile(p, c), bool(p.expected or p.usual)):
        one[p.grouped] = lines
        product = one["m"], one["n"], one["k"], count
        found[product] = found.get(product, 0) + 1
    return found


def _one_of(p: Problem) -> tuple[dict[str, int], int]:
    """Extents of the product of a group, and how many groups."""
    one, groups = {"m": p.m, "n": p.columns_of_b, "k": p.k}, max(p.batch, 1)
    if p.grouped in one:
        total = one[p.grouped]
        lines = min(p.expected or p.usual or (total if p.stacked else ceil(total / groups)), total)
        if p.grouped == "k":  # lines of k begin where those of all of it may
            unit = min(total & -total, 64) or 1
            lines = ceil(lines / unit) * unit
        elif lines and not p.stacked:
            groups = min(groups, ceil(total / lines))
        one[p.grouped] = lines
    return one, groups


def _ends_within_tiles(p: Problem) -> bool:
    """Whether a group may end, and the next begin, at any line of the same matrix."""
    return p.grouped in ("m", "n") and not p.stacked


def _tile(p: Problem, c: GemmConfig) -> int:
    """Lines of groups that a tile has."""
    return c.tile[(p.grouped == "n") != SCHEDULES[c.schedule].swap]


@lru_cache(1024)
def _by_spread(mean: int, groups: int, tile: int, some: bool) -> tuple[tuple[int, int], ...]:
    """By each of SPREADS lines of groups of one size, and how many groups, that have as many tiles.

    Args:
        mean: lines of a group.
        groups: how many.
        tile: lines of a tile.
        some: the mean is that of groups which have any, and there are no others.
    """
    found = []
    for shares in SPREADS.values() if groups > 1 else [(1,)] * len(SPREADS):
        kept = [share for share in shares if share or not some]
        lines = mean * len(kept) / sum(kept)
        found.append(_whole_groups([min(share * lines, mean * groups) for share in kept], groups, tile))
    return tuple(found)


def _whole_groups(sizes: Sequence[float], groups: int, tile: int) -> tuple[int, int]:
    """Lines of groups of one size, and how many groups, that have as many tiles as groups of these sizes."""
    some = [lines for lines in sizes if lines]  # of the others nothing is read
    if not some:
        return 0, groups
    lines, count = ceil(sum(some) / len(some) - 1e-6), groups * len(some) / len(sizes)
    tiles = sum(ceil(lines / tile - 1e-6) for lines in some) / len(some)
    if tiles > 1:
        lines, count = tile * ceil(tiles), count * tiles / ceil(tiles)
    return lines, max(1, round(count))


def order_of(p: Problem) -> tuple[int, int] | None:
    """Raster and swizzle where groups end within tiles; None: those that are estimated to be best."""
    return (2 if p.grouped == "m" else 1, _BAND) if _ends_within_tiles(p) else None


class GroupedGemm(Gemm):
    """D = epilogue(A @ B), group by group."""

    name = "grouped_gemm"
    arguments = GroupedArguments  # type: ignore[assignment]
    keys = problems.KEYS
    key = (*Gemm.key, *_GROUPS)
    not_in_key = tuple(name for name in Gemm.not_in_key if name not in _GROUPS)

    def arguments_from(self, entry: Mapping[str, Any], device: str) -> Any:
        """Operands named by their dtype, aligned and without gaps."""
        return problems.arguments(entry, device)

    @property
    def suite(self) -> Iterator[dict[str, Any]]:
        """Layers of experts: many rows for few of them, and few rows for many."""
        for groups, rows, n, k in (
            (4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (32, 256, 4096, 7168), (64, 128, 2048, 2048),
            (128, 64, 1536, 2048), (256, 8, 4096, 7168),
        ):  # fmt: skip
            yield {"groups": groups, "m": groups * rows, "n": n, "k": k, "a": "bf16", "layout": "tn"}

    def describe(self, p: Problem) -> str:
        """The groups, and the product of all of them."""
        return problem_text.describe(p)

    def first(self, p: Problem) -> str:
        """Kernels load whole tiles of rows by the copy engine, which finds none by a number."""
        return "copies the rows of a that gather numbers first" if p.gathered else ""

    @property
    def host_kernel(self) -> KernelMetadata:
        """One that takes any layout, dtype and alignment: gemm's, group by group."""
        return replace(metadata.HOST, name="cpu_grouped_gemm_numpy", operation=self.name)

    def compute(self, call: KernelCall) -> None:
        """Each group is a product of its own, before this is asked."""
        raise AssertionError("groups are computed one by one")

    def without_kernel(self, p: Problem) -> str | None:
        """Of groups of k without a k the epilogue alone is left; of others a kernel knows which lines they have."""
        return super().without_kernel(p) if p.grouped == "k" or not (p.m and p.n and p.batch) else None

    def divided(self, p: Problem) -> str:
        """Where the host knows where groups lie, each may be a product of its own."""
        if p.grouped == "l":
            return LISTS_DIVIDED
        return "no kernel takes all groups: one after the other, each by a plan of its own" if p.told else ""

    def routes(self, p: Problem, gpu: Gpu, groups: Groups, *, every: bool, cuts: bool) -> list[Timed]:
        """Of each kernel that takes them: as operands lie, or packed."""
        found: list[Timed] = []
        estimates = Estimates(p, gpu)
        for interface, kernels in groups.items():
            way = interface.way(p, gpu)
            if isinstance(way, str):
                continue
            around = estimates.detours(way, interface)
            for kernel in kernels:
                if not (p.deterministic and kernel.bits_refusal(p, gpu)):
                    found.append((self._microseconds(kernel, p, gpu) + around, kernel, way, 1))
        return found

    def forced(self, kernel: CutlassKernel, way: Way, p: Problem, gpu: Gpu) -> Timed:
        """The kernel that was asked for by name."""
        return self._microseconds(kernel, p, gpu), kernel, way, 1

    def tile_order(self, kernel: CutlassKernel, p: Problem, gpu: Gpu) -> tuple[int, int]:
        """Along the weights, a few tiles of lines at a time; 2.x kernels have an order of their own."""
        if kernel.config.api == 2:
            return 0, 1
        if order := order_of(p):
            return order
        one = mean_product(p, kernel.config)
        return wgmma_estimate.estimate(kernel.config, gpu, *one, p.activation)[1:]

    def tile_orders(self, kernel: CutlassKernel, p: Problem) -> Iterable[tuple[int, int]]:
        """Those that tell the tiles of the largest groups there may be apart."""
        if kernel.config.api == 2:
            return ()
        m, n = max((m, n) for m, n, _, _ in products(p, kernel.config))
        orders = wgmma_estimate.design_of(kernel.config).orders(m, n)
        return orders if len(orders) > 1 else ()

    def in_parts(self, kernel: CutlassKernel, way: Way, p: Problem, splits: int) -> tuple[Way, int] | None:
        """Whole."""
        return (way, 1) if splits == 1 else None

    def similar(self, p: Problem) -> None:
        """No class."""
        return None

    def _microseconds(self, kernel: CutlassKernel, p: Problem, gpu: Gpu) -> float:
        """Geometric mean over what the sizes may be."""
        c, each = kernel.config, products(p, kernel.config).items()
        if isinstance(tiled := tiled_design(c, p, gpu), TiledDesign):
            times = [(tiled.of_product(*one), spreads) for one, spreads in each]
        else:  # as wgmma_estimate.estimate has it, but for what is the same each time
            model = wgmma_estimate.estimates(wgmma_estimate.sums_of(c), gpu)
            design, order = wgmma_estimate.design_of(c, p.activation), order_of(p)
            times = [
                (model.in_order(one, design, order) if order else model.best(one, design)[0], spreads)
                for one, spreads in each
            ]
        return float(prod(us ** (spreads / len(SPREADS)) for us, spreads in times))


OPERATION = GroupedGemm()
