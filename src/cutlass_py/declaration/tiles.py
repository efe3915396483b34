"""Tiles: how much of a product a thread block computes, and how. families.py says which kernels have them.

The only place where a tile is written down. Standard library alone: the build reads it before the package exists.
"""

from __future__ import annotations

from .config import MOST_IN_CLUSTER, extents_text

Tile = tuple[int, int, int]

# ---------------------------------------------------------------------------------------------------- 3.x

Design = tuple[Tile, Tile, str]  # tile in 16-bit elements, cluster, schedule

# What each is worth on an H200: benchmarks/results.
SM90_TMA: list[Design] = [
    ((128, 256, 64), (1, 2, 1), "coop"),
    ((128, 256, 64), (2, 1, 1), "coop"),
    ((256, 128, 64), (1, 2, 1), "coop"),
    ((256, 128, 64), (2, 1, 1), "coop"),
    ((128, 128, 64), (1, 1, 1), "pingpong"),
    ((128, 128, 64), (1, 2, 1), "pingpong"),
    ((64, 256, 64), (2, 1, 1), "pingpong"),
    ((64, 128, 64), (1, 1, 1), "pingpong"),
    ((128, 256, 64), (1, 2, 1), "coopswap"),
    ((128, 256, 64), (2, 1, 1), "coopswap"),
    ((128, 128, 64), (1, 1, 1), "pingpongswap"),
    ((64, 64, 128), (1, 1, 1), "pingpongswap"),
    ((64, 32, 128), (1, 1, 1), "pingpongswap"),
    ((64, 16, 128), (1, 1, 1), "pingpongswap"),
]
# Swapped tiles in clusters, of every dtype: two blocks share the weight, or four the rows of A.
_SWAP_CLUSTERS: list[Design] = [((64, 64, 128), (1, 2, 1), "pingpongswap"), ((64, 32, 128), (4, 1, 1), "pingpongswap")]
# More for plain sums: what cuBLAS was beaten with where the tiles above leave multiprocessors idle, or their clock low.
SM90_MORE: list[Design] = [
    ((128, 128, 64), (2, 1, 1), "pingpong"),
    ((128, 192, 64), (2, 1, 1), "pingpong"),
    ((64, 192, 64), (2, 1, 1), "pingpong"),
    ((64, 128, 64), (2, 1, 1), "pingpong"),
    ((64, 128, 64), (1, 1, 1), "pingpongswap"),
    ((64, 128, 64), (1, 2, 1), "pingpongswap"),
    ((64, 256, 64), (1, 1, 1), "pingpongswap"),
    *_SWAP_CLUSTERS,
    *(((64, m, 128), (2, 1, 1), "pingpongswap") for m in (64, 32, 16)),
    *(((128, m, 128), (1, 1, 1), "coopswap") for m in (64, 32, 16)),
]
# No multiples of 64: for every n of which one of them makes a last wave nearly full (docs/performance/choice.md).
SM90_WIDTHS: list[Design] = [
    ((128, 80, 64), (2, 1, 1), "pingpong"),
    ((128, 96, 64), (1, 1, 1), "pingpong"),
    ((128, 96, 64), (2, 1, 1), "pingpong"),
    ((128, 112, 64), (2, 1, 1), "pingpong"),
    ((128, 144, 64), (1, 1, 1), "pingpong"),
    ((128, 160, 64), (1, 1, 1), "pingpong"),
    ((128, 176, 64), (1, 1, 1), "pingpong"),
    ((128, 224, 64), (1, 2, 1), "coop"),
    ((64, 80, 128), (1, 1, 1), "pingpong"),
    ((64, 96, 64), (1, 1, 1), "pingpong"),
    ((64, 96, 64), (2, 1, 1), "pingpong"),
    ((64, 160, 64), (2, 1, 1), "pingpong"),
]
# Of promoted fp8 sums every accumulator is there twice: a thread has registers for 96 of them, or for 128 where sums
# leave the tensor cores by 64 rows; for two parts of 64 rows beside 64 or 96. From 128 rows on, tiles are of `steady`
# kernels instead of CUTLASS's own mainloop (docs/performance/fp8.md).
SM90_PROMOTED: list[Design] = [
    ((256, 128, 64), (1, 2, 1), "coopsteady"),
    ((128, 96, 64), (1, 1, 1), "pingpongsteady"),
    *(design for design in SM90_TMA if design[0][0] * design[0][1] <= 64 * 128),
]
SM90_PROMOTED_MORE: list[Design] = [
    ((256, 112, 64), (1, 2, 1), "coopsteady"),
    ((256, 96, 64), (1, 2, 1), "coopsteady"),
    ((256, 96, 64), (2, 1, 1), "coopsteady"),
    ((256, 64, 64), (2, 1, 1), "coopsteady"),
    ((128, 112, 64), (2, 1, 1), "coopsteady"),
    ((128, 128, 64), (1, 1, 1), "coopsteady"),
    ((128, 128, 64), (1, 2, 1), "coopsteady"),
    ((128, 128, 64), (2, 1, 1), "coopsteady"),
    ((128, 160, 64), (2, 1, 1), "coopsteady"),
    ((128, 176, 64), (1, 1, 1), "coopsteady"),
    ((128, 80, 64), (2, 1, 1), "pingpongsteady"),
    ((128, 64, 64), (1, 1, 1), "pingpongsteady"),
    ((128, 64, 128), (1, 1, 1), "coopsteadyswap"),
    ((128, 32, 128), (1, 1, 1), "pingpongsteadyswap"),
    ((128, 16, 128), (1, 1, 1), "coopsteadyswap"),
    *_SWAP_CLUSTERS,
]
# Not promoted, beside those of SM90_TMA that every result has (docs/performance/fp8.md).
SM90_FAST: list[Design] = [
    ((128, 256, 64), (2, 1, 1), "coop"),
    ((256, 128, 64), (1, 2, 1), "coop"),
    ((128, 192, 64), (2, 1, 1), "coop"),
    ((128, 192, 64), (2, 1, 1), "pingpong"),
    ((128, 176, 64), (1, 1, 1), "pingpong"),
    ((128, 160, 64), (1, 1, 1), "pingpong"),
    ((128, 144, 64), (2, 1, 1), "pingpong"),
    ((128, 128, 64), (1, 1, 1), "pingpong"),
    ((128, 128, 64), (2, 1, 1), "pingpong"),
    ((128, 112, 64), (2, 1, 1), "pingpong"),
    ((128, 96, 64), (2, 1, 1), "pingpong"),
    ((128, 80, 64), (2, 1, 1), "pingpong"),
    ((64, 160, 64), (2, 1, 1), "pingpong"),
    ((64, 112, 128), (2, 1, 1), "pingpong"),
    ((64, 96, 64), (1, 1, 1), "pingpong"),
    ((64, 80, 128), (1, 1, 1), "pingpong"),
    ((64, 80, 128), (2, 1, 1), "pingpong"),
    ((64, 128, 64), (1, 1, 1), "pingpongswap"),
    ((64, 256, 64), (1, 1, 1), "pingpongswap"),
    ((64, 64, 128), (1, 2, 1), "pingpongswap"),
    ((64, 64, 128), (2, 1, 1), "pingpongswap"),
    ((128, 16, 128), (1, 1, 1), "coopswap"),
]
# Stores D element by element: any D alignment. Also the kernel under a composed epilogue, hence the f32 D.
SM90_DIRECT: list[Design] = [
    ((128, 128, 64), (1, 1, 1), "pingpongdirect"),
    ((128, 256, 64), (2, 1, 1), "coopdirect"),
]
SM90_PROMOTED_DIRECT: Design = ((128, 128, 64), (1, 1, 1), "coopdirect")
SM90_STREAMK: list[Design] = [
    ((128, 128, 64), (2, 1, 1), "coopstreamk"),
    ((128, 256, 64), (2, 1, 1), "coopstreamk"),
    *(((128, m, 128), (1, 1, 1), "coopstreamkswap") for m in (16, 32, 64)),  # for few rows of a wide weight
]
SM90_ARRAY: list[Design] = [((128, 128, 64), (1, 1, 1), "cooparray")]
# Promoted as above, every 128 of k: tiles are as deep, and hold whole blocks of 128 columns.
SM90_BLOCK: list[Design] = [
    ((128, 128, 64), (2, 1, 1), "coopblock"),
    ((128, 128, 64), (1, 2, 1), "coopblock"),
    ((128, 128, 64), (1, 1, 1), "coopblock"),
    ((64, 128, 64), (1, 1, 1), "pingpongblock"),
    ((64, 128, 64), (2, 1, 1), "pingpongblock"),
    ((64, 128, 64), (1, 2, 1), "pingpongblock"),
    ((128, 64, 64), (1, 1, 1), "pingpongblockswap"),
    ((128, 32, 64), (1, 1, 1), "pingpongblockswap"),
    ((128, 16, 64), (1, 1, 1), "pingpongblockswap"),
]
SM90_GROUP: list[Design] = [((128, 128, 64), (1, 1, 1), "coopgroup"), ((128, 128, 64), (2, 1, 1), "coopgroup")]


_BOTH = ("", "swap")


def _lean(
    rows: int, widths: tuple[int, ...], clusters: str, schedule: str, depth: int = 64, swaps: tuple[str, ...] = _BOTH
) -> list[Design]:
    """Tiles of so many rows; clusters: none (I), two along rows (M), two along columns (N), four along rows (Q)."""
    shapes = {"I": (1, 1, 1), "M": (2, 1, 1), "N": (1, 2, 1), "Q": (4, 1, 1)}
    return [
        ((rows, n, depth), shapes[cluster], f"lean{schedule}{swap}")
        for cluster in clusters
        for n in widths
        for swap in swaps
    ]


# Of our own kernels: one for nearly every extent.
SM90_LEAN: list[Design] = [
    *_lean(64, (16, 32, 48, 64, 80, 96), "I", "pingpong", 128),
    *_lean(64, (16, 32, 48, 64, 80, 96), "M", "pingpong", 128),
    *_lean(64, (32, 64), "Q", "pingpong", 128),
    *_lean(64, (128,), "Q", "pingpong"),
    *_lean(64, (96, 112, 128, 160, 192, 224, 256), "I", "pingpong"),
    *_lean(64, (128, 160, 192, 256), "M", "pingpong"),
    *_lean(128, (16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192), "I", "pingpong"),
    *_lean(128, (32, 64, 96, 112, 128, 144, 160, 176, 192), "M", "pingpong"),
    *_lean(128, (128,), "Q", "pingpong"),
    *_lean(128, (16, 32, 64), "IM", "coop", 128),
    *_lean(128, (128, 160, 192), "N", "pingpong"),
    *_lean(128, (128, 160, 192, 208, 224, 240, 256), "I", "coop"),
    *_lean(128, (192, 208, 224, 240, 256), "M", "coop"),
    *_lean(128, (192, 224, 256), "N", "coop"),
    *_lean(256, (32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192), "I", "coop"),
    *_lean(256, (96, 112, 128, 144, 160, 176, 192), "M", "coop"),
    *_lean(256, (128, 144, 160, 176, 192), "N", "coop"),
]


def _sliced(*designs: Design) -> list[Design]:
    """Blocks of a cluster share out k, in so many slices as there are of them: for few tiles of a long one."""
    return [
        (tile, (1, 1, slices), schedule) for slices in range(2, MOST_IN_CLUSTER + 1) for tile, _, schedule in designs
    ]


def _serial(*designs: Design) -> list[Design]:
    """The slices of k that a problem may be asked in (canonical.cpp), one after the other in every block.

    For as many tiles as there are, where the same sums are to be taken as with few.
    """
    return [(tile, (1, 1, slices), schedule) for slices in (4, 8) for tile, _, schedule in designs]


SM90_LEAN_SPLIT = _sliced(
    *_lean(64, (16, 32, 64, 96, 128), "I", "pingpong", 128),
    *_lean(128, (64, 96, 128), "I", "pingpong"),
    *_lean(128, (128, 256), "I", "coop"),
)
# Sums of a slice are held beside those before: 80 registers of a thread each, at most.
SM90_LEAN_SERIAL_SQUARE = _serial(*_lean(128, (128,), "I", "coopserial"))
SM90_LEAN_SERIAL: list[Design] = [
    *SM90_LEAN_SERIAL_SQUARE,
    *_serial(*_lean(64, (96,), "I", "pingpongserial"), *_lean(128, (160,), "I", "coopserial")),
]
# What `core` has of these: those that add most over random problems of all layouts, and 128x256 in clusters for the
# largest (docs/performance/choice.md).
SM90_LEAN_CORE: list[Design] = [
    *_lean(64, (16, 32, 48, 64), "I", "pingpong", 128),
    *_lean(64, (16, 32, 64), "M", "pingpong", 128),
    *_lean(64, (96, 128, 192), "I", "pingpong"),
    *_lean(64, (128,), "Q", "pingpong"),
    *_lean(128, (32, 80, 96, 112, 128, 144, 192), "I", "pingpong"),
    *_lean(128, (160, 192), "M", "pingpong"),
    *_lean(128, (128,), "N", "pingpong"),
    *_lean(128, (16,), "I", "coop", 128),
    *_lean(128, (160, 256), "I", "coop"),
    *_lean(128, (224, 256), "M", "coop"),
    *_lean(256, (160,), "N", "coop"),
    *_sliced(
        *_lean(64, (16, 32, 64), "I", "pingpong", 128),
        *_lean(128, (64, 96), "I", "pingpong"),
        *_lean(128, (256,), "I", "coop"),
    ),
]
# With a matrix beside D, in the commonest layouts of a layer; and the least that a kind of result has.
SM90_LEAN_LAYER: list[Design] = [
    *_lean(64, (16, 32, 64), "I", "pingpong", 128),
    *_lean(64, (128, 192), "I", "pingpong"),
    *_lean(128, (128,), "N", "pingpong"),
    *_lean(128, (192,), "I", "pingpong"),
    *_lean(128, (256,), "M", "coop"),
    *_sliced(*_lean(128, (64,), "I", "pingpong")),
    *SM90_LEAN_SERIAL_SQUARE,
]
SM90_LEAN_LEAST: list[Design] = [
    *_lean(64, (32,), "I", "pingpong", 128),
    *_lean(128, (128,), "N", "pingpong"),
    *_lean(128, (256,), "M", "coop"),
]
# One for every size.
SM90_LEAN_FEW: list[Design] = [
    *_lean(64, (16, 32, 64), "I", "pingpong", 128),
    *_lean(64, (128, 256), "I", "pingpong"),
    *_lean(128, (64, 128), "I", "pingpong"),
    *_lean(128, (128, 192), "M", "pingpong"),
    *_lean(128, (256,), "MN", "coop"),
    *_lean(256, (128,), "MN", "coop"),
]
# fp8 as the tensor cores sum it: what is best for 16 bits, and what is better there.
SM90_LEAN_FAST: list[Design] = [
    *SM90_LEAN_CORE,
    *_lean(128, (160,), "I", "pingpong"),
    *_lean(128, (192,), "M", "coop"),
    *_lean(256, (128,), "I", "coop"),
    *_lean(256, (192,), "M", "coop"),
]
# Promoted fp8 sums: every sum is there twice, of a line of k and of all.
_PROMOTED_SPLIT = _sliced(*_lean(64, (16, 32, 64, 128), "I", "pingpong"), *_lean(128, (64, 128), "I", "coop"))
SM90_LEAN_PROMOTED: list[Design] = [
    *_lean(64, (16, 32, 64, 96, 128), "I", "pingpong"),
    *_lean(128, (32, 64, 96), "IM", "pingpong"),
    *_lean(128, (64, 96, 112, 128, 144, 160, 176, 192), "I", "coop"),
    *_lean(128, (96, 128, 160, 192), "MN", "coop"),
    *_lean(256, (64, 80, 96), "IMN", "coop"),
    *_PROMOTED_SPLIT,
]
SM90_LEAN_PROMOTED_CORE: list[Design] = [
    *_lean(64, (16, 32, 64, 96, 128), "I", "pingpong"),
    *_lean(128, (96,), "I", "pingpong"),
    *_lean(128, (64, 96, 112, 128, 144, 192), "I", "coop"),
    *_lean(128, (96, 128, 160), "N", "coop"),
    *_lean(256, (96,), "N", "coop"),
    *_PROMOTED_SPLIT,
]
SM90_LEAN_PROMOTED_LEAST: list[Design] = [
    *_lean(64, (32, 128), "I", "pingpong"),
    *_lean(128, (128,), "N", "coop"),
]
# Of factors in blocks.
SM90_LEAN_BLOCK_CORE: list[Design] = [
    *_lean(64, (16, 32, 64, 96), "I", "pingpongblock", swaps=("swap",)),
    *_lean(128, (32, 48, 80, 96, 128, 144, 160, 192), "I", "coopblock", swaps=("swap",)),
    *_lean(128, (192,), "M", "coopblock", swaps=("swap",)),
    *_lean(128, (144,), "N", "coopblock", swaps=("swap",)),
    *_sliced(*_lean(64, (16, 32, 64), "I", "pingpongblock", swaps=("swap",))),
    *_lean(64, (64, 128), "I", "pingpongblock", swaps=("",)),
    *_lean(128, (128,), "IMN", "coopblock", swaps=("",)),
    *_lean(128, (64,), "IM", "coopgroup", swaps=("",)),
]
SM90_LEAN_BLOCK: list[Design] = [
    *SM90_LEAN_BLOCK_CORE,
    *_lean(128, (112, 176), "I", "coopblock", swaps=("swap",)),
    *_lean(256, (96,), "N", "coopblock", swaps=("swap",)),
    *_lean(128, (112,), "I", "coopblock", swaps=("",)),
    *_lean(256, (64,), "M", "coopblock", swaps=("",)),
    *_lean(128, (96,), "I", "coopgroup", swaps=("",)),
]
SM90_LEAN_BLOCK_LEAST: list[Design] = [
    *_lean(64, (32,), "I", "pingpongblock", swaps=("swap",)),
    *_lean(64, (128,), "I", "pingpongblock", swaps=("",)),
    *_lean(128, (128,), "N", "coopblock", swaps=("",)),
]
# Threads load the operands: of any alignment, as the results are.
SM90_LEAN_UNALIGNED: list[Design] = [
    *_lean(64, (16, 32, 64), "I", "pingpongunaligned", 128),
    *_lean(128, (64,), "I", "pingpongunaligned"),
    *_sliced(*_lean(64, (16,), "I", "pingpongunaligned", 128)),
]
# Elements go one by one: results of any alignment.
SM90_LEAN_DIRECT_SMALL: list[Design] = _lean(64, (32,), "I", "pingpongdirect", 128)
SM90_LEAN_DIRECT_SQUARE: list[Design] = _lean(128, (128,), "I", "pingpongdirect")
SM90_LEAN_DIRECT: list[Design] = [
    *SM90_LEAN_DIRECT_SMALL,
    *SM90_LEAN_DIRECT_SQUARE,
    *_lean(128, (256,), "M", "coopdirect"),
]
SM90_LEAN_PROMOTED_DIRECT: list[Design] = _lean(128, (128,), "I", "coopdirect")
# Groups of lines: few for each go to the right operand's side, where tiles are narrow.
SM90_GROUPED: list[Design] = [
    *_lean(64, (16, 32), "I", "pingponggrouped", 128, swaps=("swap",)),
    *_lean(128, (32, 64, 96, 128, 192), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(64, (128, 256), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (128,), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (16,), "I", "coopgrouped", 128, swaps=("swap",)),
    *_lean(128, (160,), "I", "coopgrouped", swaps=("swap",)),
    *_lean(128, (192, 256), "I", "coopgrouped", swaps=("",)),
]
SM90_GROUPED_LEAST: list[Design] = [
    *_lean(64, (32,), "I", "pingponggrouped", 128, swaps=("swap",)),
    *_lean(128, (128,), "I", "pingponggrouped", swaps=("",)),
]
# Promoted: every sum is there twice.
SM90_GROUPED_PROMOTED: list[Design] = [
    *_lean(64, (16, 32, 64), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(64, (128,), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (96,), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(128, (128, 192), "I", "coopgrouped"),
]
SM90_GROUPED_PROMOTED_LEAST: list[Design] = [
    *_lean(64, (32,), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(128, (128,), "I", "coopgrouped", swaps=("",)),
]
# Of factors in blocks.
SM90_GROUPED_BLOCK: list[Design] = [
    *_lean(64, (16, 32, 64), "I", "pingpongblockgrouped", swaps=("swap",)),
    *_lean(64, (128,), "I", "pingpongblockgrouped", swaps=("",)),
    *_lean(128, (96, 128, 160), "I", "coopblockgrouped", swaps=("swap",)),  # of more, ptxas spills
    *_lean(128, (128,), "I", "coopblockgrouped", swaps=("",)),
    *_lean(128, (64,), "I", "coopgroupgrouped", swaps=("",)),
]
SM90_GROUPED_BLOCK_LEAST: list[Design] = [
    *_lean(64, (32,), "I", "pingpongblockgrouped", swaps=("swap",)),
    *_lean(128, (128,), "I", "coopblockgrouped", swaps=("",)),
]
# Groups of k: of each a result, which the other warpgroup stores meanwhile.
SM90_DEEP: list[Design] = [
    *_lean(128, (128, 192), "I", "pingpongdeep", swaps=("",)),
    *_lean(64, (256,), "I", "pingpongdeep", swaps=("",)),
    *_lean(128, (256,), "I", "coopdeep", swaps=("",)),
    *_lean(256, (128,), "I", "coopdeep", swaps=("",)),
]
SM90_DEEP_LEAST: list[Design] = _lean(128, (128,), "I", "pingpongdeep", swaps=("",))
SM90_DEEP_FAST: list[Design] = [*SM90_DEEP_LEAST, *_lean(128, (256,), "I", "coopdeep", swaps=("",))]
SM90_DEEP_PROMOTED_LEAST: list[Design] = [
    *_lean(64, (128,), "I", "pingpongdeep", swaps=("",)),
    *_lean(128, (128,), "I", "coopdeep", swaps=("",)),
]
SM90_DEEP_PROMOTED: list[Design] = [*SM90_DEEP_PROMOTED_LEAST, *_lean(128, (192,), "I", "coopdeep", swaps=("",))]
# Of B whose columns are gates and values: half as many of D. Where the operands change places, 64 rows of either are a
# warpgroup's.
SM90_LEAN_PAIRS: list[Design] = [
    *_lean(128, (16,), "I", "pingpong", 128, swaps=("swap",)),
    *_lean(128, (32, 64, 128), "I", "pingpong", swaps=("swap",)),
    *_lean(64, (256,), "I", "pingpong", swaps=("",)),
    *_lean(128, (128,), "I", "pingpong", swaps=("",)),
    *_lean(128, (256,), "MN", "coop", swaps=("",)),
]
SM90_LEAN_PAIRS_LEAST: list[Design] = [
    *_lean(128, (32,), "I", "pingpong", swaps=("swap",)),
    *_lean(128, (128,), "I", "pingpong", swaps=("",)),
    *_lean(128, (256,), "N", "coop", swaps=("",)),
]
SM90_GROUPED_PAIRS: list[Design] = [
    *_lean(128, (16,), "I", "pingponggrouped", 128, swaps=("swap",)),
    *_lean(128, (32, 64, 128, 192), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(64, (256,), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (128,), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (256,), "I", "coopgrouped", swaps=("",)),
]
SM90_GROUPED_PAIRS_LEAST: list[Design] = [
    *_lean(128, (32,), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(128, (128,), "I", "pingponggrouped", swaps=("",)),
    *_lean(128, (256,), "I", "coopgrouped", swaps=("",)),
]
# Promoted, where every sum is there twice.
SM90_LEAN_PAIRS_PROMOTED: list[Design] = [
    *_lean(128, (32,), "I", "pingpong", swaps=("swap",)),
    *_lean(128, (128,), "I", "coop", swaps=("",)),
]
SM90_GROUPED_PAIRS_PROMOTED: list[Design] = [
    *_lean(128, (32,), "I", "pingponggrouped", swaps=("swap",)),
    *_lean(128, (128,), "I", "coopgrouped", swaps=("",)),
]
SM90_LEAN_FUSED: list[Design] = [
    *_lean(64, (32,), "I", "pingpong", 128),
    *_lean(128, (128,), "IMN", "pingpong"),
    *_lean(128, (256,), "MN", "coop"),
]

# f64, by mma.sync: the tile that dmma.cuh deals out.
DMMA: Design = ((128, 128, 64), (1, 1, 1), "coopdmma")

_named = {
    f"{extents_text(tile)}_{extents_text(cluster)}_{schedule}": (tile, cluster, schedule)
    for tile, cluster, schedule in (*SM90_TMA, *SM90_MORE, *SM90_PROMOTED)
}
LARGE = _named["128x256x64_1x2x1_coop"]
LARGE_2X1 = _named["128x256x64_2x1x1_coop"]
LARGE_2X1_SWAP = _named["128x256x64_2x1x1_coopswap"]
MEDIUM = _named["64x256x64_2x1x1_pingpong"]
SQUARE = _named["128x128x64_1x2x1_pingpong"]
SQUARE_2X1 = _named["128x128x64_2x1x1_pingpong"]
FLAT = _named["64x192x64_2x1x1_pingpong"]
SMALL = _named["64x128x64_1x1x1_pingpong"]
SMALL_SWAP = _named["64x128x64_1x1x1_pingpongswap"]
SKINNY64, SKINNY32, SKINNY16 = (_named[f"64x{n}x128_1x1x1_pingpongswap"] for n in (64, 32, 16))
PROMOTED = _named["256x128x64_1x2x1_coopsteady"]
# tf32 of which one operand is read along its rows: it goes through registers, by 64 rows a warpgroup.
SM90_ROWS: list[Design] = [
    LARGE_2X1,
    FLAT,
    ((64, 256, 64), (1, 1, 1), "pingpong"),
    SMALL,
    LARGE_2X1_SWAP,
    _named["64x256x64_1x1x1_pingpongswap"],
    SMALL_SWAP,
    SKINNY64,
    SKINNY32,
    SKINNY16,
]

# ---------------------------------------------------------------------------------------------------- 2.x

# Tile, warp tile, stages of the 2.x kernels, by accesses of `align` elements. cp.async moves 4 bytes or more: below
# that the two-stage pipeline through registers is the only one.
Ladder = dict[int, list[tuple[Tile, Tile, int]]]
SM80_HALF: Ladder = {
    8: [((128, 128, 32), (64, 64, 32), 4), ((64, 64, 32), (32, 32, 32), 6)],
    2: [((128, 128, 32), (64, 64, 32), 4), ((64, 64, 32), (32, 32, 32), 4)],
    1: [((128, 128, 32), (64, 64, 32), 2), ((64, 64, 32), (32, 32, 32), 2)],
}
SM80_HALF_WIDE: Ladder = {8: SM80_HALF[8][:1], 1: SM80_HALF[1][:1]}  # of an f32 D, in core
SM80_HALF_MORE: Ladder = {
    8: [((128, 256, 32), (64, 64, 32), 3), ((256, 128, 32), (64, 64, 32), 3)],
    4: [((128, 128, 32), (64, 64, 32), 4)],
}
SM80_TF32: Ladder = {
    4: [((128, 128, 16), (64, 64, 16), 4), ((32, 32, 32), (16, 16, 32), 6)],
    1: [((128, 128, 16), (64, 64, 16), 4), ((64, 64, 16), (32, 32, 16), 6), ((32, 64, 32), (16, 32, 32), 5)],
}
SM80_TF32_MORE: Ladder = {
    4: [((64, 64, 16), (32, 32, 16), 6), ((32, 64, 32), (16, 32, 32), 5)],
    2: [
        ((128, 128, 16), (64, 64, 16), 4),
        ((64, 64, 16), (32, 32, 16), 6),
        ((32, 64, 32), (16, 32, 32), 5),
        ((32, 32, 32), (16, 16, 32), 6),
    ],
    1: [((32, 32, 32), (16, 16, 32), 6)],
}
SM80_TF32X3: Ladder = {
    4: [((128, 128, 16), (64, 32, 16), 3)],
    1: [((128, 128, 16), (64, 32, 16), 3)],
}
SM80_INT8: Ladder = {
    16: [((128, 128, 64), (64, 64, 64), 4)],
    1: [((128, 128, 64), (64, 64, 64), 2)],
}
SM80_INT8_MORE: Ladder = {
    16: [((64, 64, 64), (32, 32, 64), 6)],
    4: [((128, 128, 64), (64, 64, 64), 4)],
}
SM80_HALF_SMALL: Ladder = {4: [((32, 32, 64), (16, 16, 64), 6)], 1: [((32, 32, 64), (16, 16, 64), 2)]}  # along k alone
SM80_STREAMK: Ladder = {8: [((128, 128, 32), (64, 64, 32), 4)]}
# Of groups in core: of whole accesses, and of single elements (`ANY`), which do for whatever groups divide.
SM80_GROUPED_HALF: Ladder = {8: SM80_HALF[8]}
SM80_GROUPED_HALF_ANY: Ladder = {1: SM80_HALF[1][1:]}
SM80_GROUPED_TF32: Ladder = {4: SM80_TF32[4][:1]}
SM80_GROUPED_TF32_ANY: Ladder = {1: SM80_TF32[1][1:2]}
SM80_GROUPED_TF32X3: Ladder = {1: SM80_TF32X3[1]}
SM80_GROUPED_INT8: Ladder = {16: SM80_INT8[16]}
SM80_GROUPED_INT8_ANY: Ladder = {1: SM80_INT8[1]}
SIMT_F32: Ladder = {1: [((128, 128, 8), (32, 64, 8), 4), ((64, 64, 8), (32, 32, 8), 4)]}
SIMT_C64: Ladder = {1: [((64, 64, 8), (32, 32, 8), 4)]}
SM80_F64: Ladder = {1: [((128, 128, 16), (32, 64, 16), 3), ((64, 64, 16), (32, 32, 16), 3)]}
SM80_GROUPED_F64: Ladder = {1: SM80_F64[1][1:]}
SM80_F64_MORE: Ladder = {1: [((32, 32, 16), (16, 16, 16), 5), ((16, 32, 16), (16, 16, 16), 5)]}
SM90_F64: Ladder = {
    1: [
        ((128, 128, 16), (64, 32, 16), 4),
        ((128, 64, 16), (64, 32, 16), 3),
        ((64, 64, 16), (32, 32, 16), 4),
        ((64, 32, 16), (32, 16, 16), 4),
        ((32, 32, 16), (16, 16, 16), 8),
        ((16, 32, 16), (16, 16, 16), 8),
    ]
}
C128: Ladder = {1: [((64, 64, 8), (32, 32, 8), 3)]}
