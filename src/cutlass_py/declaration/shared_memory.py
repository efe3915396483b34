"""Shared memory: what a thread block may have, what 3.x epilogues take of it that store by TMA, and the stages left.

As CUTLASS's builders lay it out (sm90_builder.inl, sm90_gmma_builder.inl).
"""

from __future__ import annotations

from math import ceil, gcd

from .config import Schedule
from .dtypes import DTYPES
from .epilogues import Epilogue

# Bytes of a thread block, by what families are named after.
SM90 = 227 << 10
SM80 = 99 << 10  # of 8.6, 8.9 and 12.0, which run those families too; an A100 has 163 KB
# Of a 3.x epilogue that stores by TMA, beside its buffers: barriers, and what alignment loses.
BARRIERS = 2048
# Of our own kernels (kernels/sm90): bytes of k in a line, bytes that threads copy at once, stages.
LINE, _GRANULE, _MOST_LEAN = 128, 16, 12


def stages(tile: tuple[int, int, int], itemsize: int, epilogue: int, beside: int = 0) -> int:
    """Stages of a 3.x mainloop that fit beside an epilogue of so many bytes.

    Args:
        tile: of the kernel.
        itemsize: of A and B.
        epilogue: bytes that it takes.
        beside: bytes that a stage has beside A and B.
    """
    m, n, k = tile
    return (SM90 - epilogue) // ((m + n) * k * itemsize + beside + 16)  # each has its own pair of barriers


class EpilogueTile:
    """The part of a thread block's tile that goes through shared memory at once.

    Attributes:
        elements: of the part.
        stores: buffers for parts on their way out.
    """

    def __init__(self, schedule: Schedule, tile: tuple[int, int, int], itemsize: int) -> None:
        m, n, _ = tile
        wide = 64 if schedule.pingpong and itemsize == 1 and n % 64 == 0 else 32
        rows, cols = min(64 if schedule.pingpong else 128, m), gcd(min(wide, n), n)
        self.elements = rows * cols
        self._parts = (m // rows) * (n // cols)
        self.stores = min(self._parts, 2)

    def loads(self, reused: bool) -> int:
        """Buffers for parts of what is read; `reused`: D leaves through them."""
        return max(min(self._parts, 4), self.stores + 1 if reused else 0)


def part_columns(columns: int, size: int, narrow: bool, reduces: bool) -> int:
    """Columns that our own kernels finish at once (kernels/sm90/design.cuh).

    Args:
        columns: of a tile, as many as wgmma calls n.
        size: of an element of D.
        narrow: beside matrices, or of a tile whose k is split.
        reduces: whether columns are summed.
    """
    panel = next(width for width in (64, 32, 16) if columns % width == 0)
    line = 32 if narrow else 128 // size
    if columns % line == 0:
        return line
    most, even = 112 if line > 32 else panel, min(line, 64)
    if columns > even and ceil(columns / even) * even <= 1.25 * columns and not (narrow or reduces):
        return even
    return max(width for width in range(panel, most + 1, panel) if columns % width == 0)


def lean_bytes(
    tile: tuple[int, int, int],
    schedule: Schedule,
    size: int,
    beside: int,
    reductions: int = 0,
    lines: int = 0,
    pairs: bool = False,
) -> int:
    """Of what is beside the stages of our own kernels (kernels/sm90/design.cuh): parts of D, and what lies like it.

    Args:
        tile: of the kernel.
        schedule: of the kernel; with `pingpong` a warpgroup has all rows of a tile, or else half of them.
        size: of an element of D.
        beside: of one element of D, of all matrices that are read and written beside it.
        reductions: of the epilogue.
        lines: of numbers for columns and rows that it has staged: each vector's, or that of both scales.
        pairs: whether two columns of B make one of D.
    """
    rows, columns, _ = tile
    own_rows = rows if schedule.pingpong else rows // 2
    d_rows, d_columns = own_rows // (1 + (pairs and schedule.swap)), columns // (1 + (pairs and not schedule.swap))
    part = part_columns(d_columns, size, beside > 0, reductions > 0)
    buffers = 1 if (d_rows, part) == (64, d_columns) and schedule.tma_store and not beside else 2
    staged = lines * (columns + own_rows) * 4
    told = 4 * (16 + 2 * 8) if schedule.grouping == "lines" else 0  # places of tiles, with their barriers
    return 2 * (buffers * (64 * part * (size + beside) + 8) + reductions * 4 * part * 4 + staged + 8) + told


def epilogue_bytes(schedule: Schedule, tile: tuple[int, int, int], d: str, epilogue: Epilogue) -> int:
    """Shared memory of a 3.x epilogue that stores D in this dtype."""
    if schedule.lean:
        size = DTYPES[d].itemsize
        lines = epilogue.scaled + bool(epilogue.bias)
        beside, pairs = size * epilogue.matrices, epilogue.pairs == "b"
        return lean_bytes(tile, schedule, size, beside, int(epilogue.bias_grad), lines, pairs)
    if not schedule.tma_store:
        return 512
    size = DTYPES[d].itemsize
    part = EpilogueTile(schedule, tile, size)
    read = epilogue.source or epilogue.gated
    reused = read and size > 1
    buffers = (part.loads(reused) if read else 0) + part.stores * ((not reused) + epilogue.aux)
    vectors = 512 if epilogue.scaled else 0
    return buffers * part.elements * size + vectors + BARRIERS


def _beside(schedule: Schedule, tile: tuple[int, int, int], itemsize: int) -> int:
    """Bytes that a stage has beside A and B: factors of blocks, or granules of A and B as threads copy them."""
    rows, columns, depth = tile
    if schedule.unaligned:
        lines = depth * itemsize // LINE
        return sum(lines * extent * LINE + max(extent, lines * 64) * _GRANULE for extent in (rows, columns))
    if not schedule.block:
        return 0
    of_rows, of_columns = schedule.groups
    if not schedule.lean:
        return 4 * (ceil(rows / of_rows) + ceil(columns / of_columns))
    own_rows = rows if schedule.pingpong else rows // 2
    count = (rows if of_rows % own_rows else rows // own_rows) + (columns if schedule.by_column(columns) else 1)
    return ceil(count / 4) * 16


def stages_3x(a: str, d: str, tile: tuple[int, int, int], schedule: Schedule, epilogue: Epilogue) -> int:
    """Stages of a 3.x kernel's pipeline that fit beside its epilogue; of our own as many as it has."""
    size = DTYPES[a].itemsize
    fitting = stages(tile, size, epilogue_bytes(schedule, tile, d, epilogue), _beside(schedule, tile, size))
    return min(fitting, _MOST_LEAN) if schedule.lean else fitting
