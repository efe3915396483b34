"""What a kernel may look like: the rules of CUTLASS's templates and of the hardware, as checks of a description.

They are stricter than the compiler where nothing here carries a combination, and where it would compile and run badly.
Every declared kernel keeps them (tests/test_kernel_description.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from .config import MOST_IN_CLUSTER, SCHEDULES, Family, GemmConfig
from .dtypes import ARITHMETICS, BLOCK, DTYPES, LAYOUTS, usual_arithmetic
from .epilogues import EPILOGUES, Epilogue
from .families import FAMILIES
from .gemm_cpp import INSTRUCTION
from .shared_memory import LINE, SM80, SM90, epilogue_bytes, stages_3x

if TYPE_CHECKING:
    from ..kernels.kernel_description import KernelDescription

WGMMA, TENSOROP, SIMT = "wgmma", "tensorop", "simt"
# Accumulators of a thread. Of the 240 registers of a wgmma thread they may be so many, with the parts of promoted sums.
_SM90_ACCUMULATORS, _SM80_ACCUMULATORS = 192, 128
_SERIAL_ACCUMULATORS = 160  # of a slice, and of those before it
_MOST_ROWS, _MOST_OWN_ROWS = 256, 128  # of a box; of a tile that one warpgroup has to itself


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong about a description: the field, what it holds, and what it may hold."""

    field: str
    found: Any
    expected: str

    def __str__(self) -> str:
        return f"{self.field} is {self.found!r}; expected {self.expected}"


def faults(k: KernelDescription) -> tuple[Fault, ...]:
    """All that is wrong with a description."""
    found = list(_names(k))
    unknown = {fault.field for fault in found}
    if not unknown & {"a", "instruction"}:
        usual = {each.name: each.default for each in fields(k) if each.name in unknown and each.default is not MISSING}
        resolved = Resolved(replace(k, **usual))
        for needed, check in _CHECKS[3 if resolved.wgmma else 2]:
            if not unknown & needed:
                found += check(resolved)
    return tuple({str(fault): fault for fault in found}.values())


# ---------------------------------------------------------------------------------------------------- defaults


@cache
def _carried(family: str) -> dict[str, set[tuple[str, ...]]]:
    """What the template of a family is declared with: products, and sums and results beside an operand."""
    declared = FAMILIES[family].declared
    return {
        "pairs": {(c.a, c.b) for c in declared},
        "sums": {(c.a, c.accumulator) for c in declared},
        "results": {(c.a, c.accumulator, c.d) for c in declared},
    }


class Resolved:
    """A description, all of whose names are known, with its defaults filled in."""

    def __init__(self, given: KernelDescription) -> None:
        self.given = given
        self.wgmma = given.instruction == WGMMA
        self.a, self.b = given.a, given.b or given.a
        usual = usual_arithmetic(self.a)
        self.accumulator = given.accumulator or usual.accumulator
        self.d = given.d or usual.output
        self.schedule = SCHEDULES[given.schedule or ("pingpong" if self.wgmma else "tiled")]
        self.size = DTYPES[self.a].itemsize
        self.epilogue: Epilogue = EPILOGUES[given.epilogue or self._usual_epilogue]
        whole = given.instruction == TENSOROP and DTYPES[self.a].bits <= 32
        self.align = given.alignment or (16 // self.size if whole or self.wgmma else 1)
        self.tile, self.warps = given.tile, given.warps or (0, 0, 0)
        self.stages = given.stages or 0

    @property
    def _usual_epilogue(self) -> str:
        if not self.wgmma:
            return "linearc"
        if not self.schedule.lean or self.d == "s32":
            return "linear"
        return "fused_scaled" if self.size == 1 and not self.schedule.block else "fused"

    @property
    def family(self) -> Family:
        """Whose template it is."""
        if self.wgmma:
            return FAMILIES[self.schedule.family]
        if self.schedule.grouping:
            return FAMILIES["simt_grouped" if self.given.instruction == SIMT else "sm80_grouped"]
        if self.given.instruction == SIMT:
            return FAMILIES["simt_gemm"]
        return FAMILIES["sm90_dgemm" if self.given.arch == "90a" else "sm80_gemm"]

    @property
    def warp(self) -> tuple[int, int, int]:
        """The tile of a warp."""
        m, n, k = (x // max(y, 1) for x, y in zip(self.tile, self.warps, strict=True))
        return m, n, k

    @property
    def promoted(self) -> bool:
        """Whether an fp8 sum is taken out of the tensor cores."""
        return DTYPES[self.a].bits == 8 and self.accumulator == "f32"

    @property
    def config(self) -> GemmConfig:
        """What codegen, legality and the compiler take."""
        common = (self.family.name, self.a, self.b, self.accumulator, self.d, self.given.layout, self.tile)
        if self.wgmma:
            return GemmConfig(*common, self.epilogue.name, self.schedule.name, self.given.cluster)
        return GemmConfig(
            *common, self.epilogue.name, self.schedule.name, warp=self.warp, stages=self.stages, align=self.align
        )


# ---------------------------------------------------------------------------------------------------- names


_Faults = Iterator[Fault]
_Check = Callable[[Resolved], _Faults]
_CHECKS: dict[int, list[tuple[set[str], _Check]]] = {2: [], 3: []}  # by generation, each with the fields that it needs


def _check(*needed: str, api: int | None = None) -> Callable[[_Check], _Check]:
    """A check of kernels of one generation, or both; asked in the order of this file, where such fields are sound."""

    def add(check: _Check) -> _Check:
        for generation in (api,) if api else (2, 3):
            _CHECKS[generation].append((set(needed), check))
        return check

    return add


def _one_of(name: str, value: Any, known: Any) -> _Faults:
    if not isinstance(value, str) or value not in known:
        yield Fault(name, value, f"one of {', '.join(known)}")


def _names(k: KernelDescription) -> _Faults:
    """Fields that hold nothing known: what else could be said about them would mislead."""
    operands = dict.fromkeys(x.operand for x in ARITHMETICS)
    yield from _one_of("instruction", k.instruction, (WGMMA, TENSOROP, SIMT))
    yield from _one_of("a", k.a, operands)
    yield from _one_of("layout", k.layout, LAYOUTS)
    schedules = [x.name for x in SCHEDULES.values() if not x.gemv and bool(x.mainloop) == (k.instruction == WGMMA)]
    for name, known in (
        ("b", operands), ("accumulator", DTYPES), ("d", DTYPES), ("schedule", schedules), ("epilogue", EPILOGUES),
        ("arch", ("80", "90a")),
    ):  # fmt: skip
        if getattr(k, name) is not None:
            yield from _one_of(name, getattr(k, name), known)
    for name in ("tile", "cluster", "warps"):
        value = getattr(k, name)
        extents = isinstance(value, tuple) and len(value) == 3 and all(type(x) is int and x > 0 for x in value)
        if not extents and not (name == "warps" and value is None):
            yield Fault(name, value, "a tuple of three whole numbers above 0: m, n, k")
    for name in ("stages", "alignment"):
        value = getattr(k, name)
        if value is not None and (type(value) is not int or value < 1):
            yield Fault(name, value, "a whole number above 0")


# ---------------------------------------------------------------------------------------------------- both generations


@_check("b", "accumulator", "d", "schedule")
def _carries(k: Resolved) -> _Faults:
    """Dtypes that the template is made for."""
    given, carried, template = k.given, _carried(k.family.name), f"{k.given.instruction} kernels ({k.family.name})"
    products = sorted({a for a, _ in carried["pairs"]})
    if k.a not in products:
        yield Fault("a", k.a, f"what {template} multiply: {', '.join(products)}")
        return
    if (k.a, k.b) not in carried["pairs"]:
        yield Fault("b", k.b, f"what goes with {k.a}: {', '.join(sorted(b for a, b in carried['pairs'] if a == k.a))}")
    sums = sorted({x for a, x in carried["sums"] if a == k.a})
    if k.accumulator not in sums:
        yield Fault("accumulator", k.accumulator, f"what {template} sum {k.a} in: {', '.join(sums)}")
        return
    results = sorted({d for a, x, d in carried["results"] if (a, x) == (k.a, k.accumulator)})
    if k.d not in results:
        yield Fault("d", given.d or k.d, f"a result of sums in {k.accumulator}: {', '.join(results)}")


@_check("layout")
def _along_k(k: Resolved) -> _Faults:
    bits, layout, fitting, what = DTYPES[k.a].bits, k.given.layout, ["tn"], k.a
    if bits > 8 and not (k.wgmma and bits == 32):
        return
    if bits == 32 and not k.schedule.lean:  # one operand may go through registers
        fitting.append(k.schedule.along_rows)
        what = f"{'A' if k.schedule.swap else 'B'} of {k.a}"
    if layout not in fitting:
        said = " or ".join(map(repr, fitting))
        yield Fault("layout", layout, f"{said}: {k.given.instruction} reads {what} along k alone")


# ---------------------------------------------------------------------------------------------------- 3.x


@_check("stages", "alignment", "warps", api=3)
def _none_of_3x(k: Resolved) -> _Faults:
    if k.given.warps is not None:
        yield Fault("warps", k.given.warps, "none: the schedule of a wgmma kernel says which warps there are")
    if k.given.stages is not None:
        yield Fault("stages", k.given.stages, "none: a wgmma kernel has as many as fit")
    if k.given.arch == "80":
        yield Fault("arch", "80", "90a, or none: wgmma is Hopper's")
    if k.align * k.size != 16:
        yield Fault("alignment", k.given.alignment, f"{16 // k.size}, or none: TMA moves granules of 16 bytes")


@_check("tile", "schedule", api=3)
def _tile_3x(k: Resolved) -> _Faults:
    m, n, depth = k.tile
    unit = 64 if k.schedule.pingpong else 128
    if m % unit:
        why = "a warpgroup multiplies 64 rows" if unit == 64 else "two warpgroups multiply 64 rows each"
        yield Fault("tile", k.tile, f"m a multiple of {unit}: {why}")
    if n % 16 or n > 256:  # an instruction takes 8 columns, but CuTe's layouts do not divide by an odd number of them
        yield Fault("tile", k.tile, "n a multiple of 16, up to 256: an instruction's columns")
    elif n * depth * k.size % 2048:
        yield Fault("tile", k.tile, f"n * k a multiple of {2048 // k.size}: what B has of a stage")
    if depth * k.size % 32:
        yield Fault("tile", k.tile, f"k a multiple of {32 // k.size}: an instruction takes 32 bytes of it")
    if k.promoted and depth % 32 == 0 and depth < 128 and 128 % depth:
        yield Fault("tile", k.tile, "k of 32, 64, or 128 and more: promotion counts instructions in fours")


@_check("tile", "schedule", "accumulator", api=3)
def _accumulators_3x(k: Resolved) -> _Faults:
    threads = 128 if k.schedule.pingpong else 256
    held = k.tile[0] * k.tile[1] // threads * (2 if k.schedule.serial else 1)
    most, why = _SM90_ACCUMULATORS, "beside the rest of its 240 registers"
    if k.schedule.serial:
        most, why = _SERIAL_ACCUMULATORS, "beside those of the slice before"
    elif k.promoted and k.schedule.lean:
        part = k.tile[1] // 2  # of 64 rows
        held += (2 if k.schedule.pingpong else 1) * part
        why = "with the parts of promoted sums"
    elif k.promoted and k.schedule.steady and k.tile[0] == threads == 256:
        most, why = 2 * most // 3, "promoted sums are held twice, of 64 rows at a time"
    elif k.promoted:
        most, why = most // 2, "promoted sums are held twice"
    if held > most:
        yield Fault("tile", k.tile, f"m * n up to {most * threads}: {most} accumulators of a thread, {why}")


@_check("tile", "schedule", "accumulator", api=3)
def _steady_3x(k: Resolved) -> _Faults:
    if not k.schedule.steady:
        return
    if not k.promoted:
        yield Fault("schedule", k.schedule.name, "one for promoted fp8 sums alone: a of e4m3 or e5m2, accumulator f32")
    fitting = (128,) if k.schedule.pingpong else (128, 256)
    if k.tile[0] not in fitting:
        yield Fault("tile", k.tile, f"m of {' or '.join(map(str, fitting))}: by turns or in parts of 64 rows")


@_check("tile", "cluster", "schedule", api=3)
def _dmma_3x(k: Resolved) -> _Faults:
    if not k.schedule.dmma:
        return
    known = k.family.declared[0]  # all have one tile
    for field in ("tile", "cluster"):
        if (found := getattr(k.given, field)) != (wanted := getattr(known, field)):
            yield Fault(field, found, f"{wanted}, which schedule {k.schedule.name} has alone")


@_check("tile", "schedule", "accumulator", api=3)
def _lean_3x(k: Resolved) -> _Faults:
    """Our own kernels: lines of k, and factors of them, which promoted sums have alone."""
    row, (m, _, depth) = k.schedule, k.tile
    if not row.lean:
        return
    if m > _MOST_ROWS:
        yield Fault("tile", k.tile, f"m up to {_MOST_ROWS}: TMA loads boxes of so many rows")
    elif row.pingpong and m > _MOST_OWN_ROWS:
        yield Fault("tile", k.tile, f"m up to {_MOST_OWN_ROWS}: rows of one warpgroup")
    if depth * k.size % LINE:
        yield Fault("tile", k.tile, f"k a multiple of {LINE // k.size}: lines of {LINE} bytes")
    elif k.promoted and depth != LINE:
        yield Fault("tile", k.tile, f"k of {LINE}: sums of fp8 are promoted after every line")
    if row.block and not k.promoted:
        yield Fault("schedule", row.name, "one without scales in blocks: those are of promoted fp8 sums")


@_check("tile", "cluster", "schedule", api=3)
def _unaligned_3x(k: Resolved) -> _Faults:
    """Our own kernels whose threads load: lines of 16-bit operands, which four warps share out evenly."""
    if not k.schedule.unaligned:
        return
    if k.size != 2:
        yield Fault("schedule", k.schedule.name, "one without 'unaligned': threads load 16-bit operands alone")
    for name, extent, known in zip("mnk", k.tile, ((64, 128), (16, 32, 64, 128), (64, 128)), strict=True):
        if extent not in known:
            yield Fault("tile", k.tile, f"{name} of {' or '.join(map(str, known))}: four warps share out its lines")
    if k.given.cluster[:2] != (1, 1):
        yield Fault("cluster", k.given.cluster, "m and n of 1: threads load for their own block alone")


@_check("layout", "schedule", api=3)
def _deep_3x(k: Resolved) -> _Faults:
    """Groups of k: 16-bit operands are read along the other axis, where a group may begin at any line.

    Others can be read along k alone.
    """
    if k.schedule.grouping == "depth" and k.size == 2 and k.given.layout != "nt":
        yield Fault("layout", k.given.layout, "'nt': groups of k of 16-bit operands are read along the other axis")


@_check("tile", "cluster", "schedule", "accumulator", api=3)
def _cluster_3x(k: Resolved) -> _Faults:
    cluster = k.given.cluster
    if k.schedule.lean and cluster[2] in range(2, MOST_IN_CLUSTER + 1) and cluster[:2] == (1, 1):
        if k.accumulator in ("f16", "s32"):
            yield Fault("cluster", cluster, "k of 1: slices are of sums in f32")
    elif k.schedule.serial:
        yield Fault("cluster", cluster, f"m and n of 1, and k of 2 to {MOST_IN_CLUSTER}: the slices of a block")
    elif cluster[2] != 1 or any(x not in (1, 2, 4, 8) for x in cluster[:2]):
        yield Fault("cluster", cluster, "m and n of 1, 2, 4 or 8, and k of 1")
    elif prod(cluster) > MOST_IN_CLUSTER:
        yield Fault("cluster", cluster, f"{MOST_IN_CLUSTER} thread blocks at most: more do not run everywhere")
    elif k.tile[0] % (8 * cluster[1]) or k.tile[1] % (8 * cluster[0]):
        yield Fault("cluster", cluster, f"parts of 8 rows: its blocks load the tile {k.tile} in shares")


@_check("tile", "schedule", "epilogue", api=3)
def _block_3x(k: Resolved) -> _Faults:
    """Scales that the mainloop applies: a step of k for each, whole blocks of columns, epilogues as declared."""
    row = k.schedule
    if not row.block:
        return
    if k.tile[2] != BLOCK:
        yield Fault("tile", k.tile, f"k of {BLOCK}: so many share a scale of schedule {row.name}")
    if k.tile[0 if row.swap else 1] % row.block and not row.lean:
        yield Fault("tile", k.tile, f"{'m' if row.swap else 'n'} a multiple of {row.block}: columns that share a scale")
    known = dict.fromkeys(c.epilogue for c in k.family.declared if c.schedule == row.name)
    if k.epilogue.name not in known:
        yield Fault("epilogue", k.epilogue.name, f"one of {', '.join(known)}, which schedule {row.name} has")


def _pairs_lie(k: Resolved) -> bool:
    """Whether both halves of what makes a part are one warpgroup's, and lie as operands of their size do."""
    m, n, _ = k.tile
    return (k.schedule.pingpong and m == 128) if k.schedule.swap else n % 128 == 0


@_check("tile", "schedule", "epilogue", api=3)
def _pairs_3x(k: Resolved) -> _Faults:
    """Gates and values in columns of B."""
    row = k.schedule
    if k.epilogue.pairs != "b" or not row.lean:
        return
    if row.grouping == "depth" or row.unaligned or row.direct or row.block or row.serial or k.given.cluster[2] > 1:
        yield Fault("schedule", row.name, f"one that stores whole rows of products: {k.epilogue.name} has pairs")
    elif not _pairs_lie(k):
        expected = "m of 128, by 'pingpong'" if row.swap else "n a multiple of 128"
        yield Fault("tile", k.tile, f"{expected}: half of it are gates")


@_check("tile", "schedule", "epilogue", "d", api=3)
def _shared_3x(k: Resolved) -> _Faults:
    if k.epilogue.pairs == "b" and k.schedule.lean and not _pairs_lie(k):
        return  # there is no such part
    if (fit := stages_3x(k.a, k.d, k.tile, k.schedule, k.epilogue)) < 2:
        room = SM90 - epilogue_bytes(k.schedule, k.tile, k.d, k.epilogue)
        yield Fault(
            "tile", k.tile, f"(m + n) * k up to {room // 2 // k.size}: two stages beside the epilogue; {fit} fit"
        )


@_check("tile", "cluster", "schedule", "epilogue", "accumulator", "d", api=3)
def _slices_3x(k: Resolved) -> _Faults:
    """Sums of slices lie where the stages were, or are held beside each other."""
    m, n, depth = k.tile
    if k.schedule.serial:
        if k.promoted or k.accumulator in ("f16", "s32"):
            yield Fault("schedule", k.schedule.name, "one without 'serial': its slices are of sums that stay in f32")
    elif k.schedule.lean and k.given.cluster[2] > 1 and k.given.cluster[:2] == (1, 1):
        room = stages_3x(k.a, k.d, k.tile, k.schedule, k.epilogue) * (m + n) * depth * k.size
        if m * n * 4 > room:
            yield Fault("tile", k.tile, f"m * n up to {room // 4}: sums of slices lie where the stages were")


@_check("epilogue", "schedule", "accumulator", "d", api=3)
def _epilogue_3x(k: Resolved) -> _Faults:
    e, name = k.epilogue, k.epilogue.name
    if e.told and not k.schedule.lean:
        yield Fault("epilogue", name, "a row without 'fused', which are of kernels of our own")
    elif k.schedule.lean and not e.told and k.d != "s32":
        told = ", ".join(repr(row.name) for row in EPILOGUES.values() if row.told)
        yield Fault("epilogue", name, f"one of {told}: of our own kernels the launch tells the rest")
    elif (k.schedule.pointers or not (k.schedule.tma_store or k.schedule.lean)) and name != "linearc":
        yield Fault("epilogue", name, f"'linearc', which schedule {k.schedule.name} has alone")
    elif k.schedule.stream_k and name != "linear":
        yield Fault("epilogue", name, f"'linear', which schedule {k.schedule.name} has alone")
    elif k.accumulator == "s32" and k.d == "s32" and (e.told or not e.plain):
        yield Fault("epilogue", name, "'linear' or 'linearc': sums in s32 are stored as they are")
    elif k.accumulator == "s32" and k.d != "s32" and not e.scaled:
        yield Fault("epilogue", name, f"a scaled one: sums in s32 become {k.d} by scales")
    elif DTYPES[k.d].bits == 8 and (e.source or e.gated or e.aux):
        yield Fault("epilogue", name, f"one without c, gate and aux: they would lie in {k.d}, of 8 bits")


# ---------------------------------------------------------------------------------------------------- 2.x


@_check("cluster", "arch", api=2)
def _arch_2x(k: Resolved) -> _Faults:
    if k.given.cluster != (1, 1, 1):
        yield Fault("cluster", k.given.cluster, "(1, 1, 1): clusters are of wgmma kernels")
    if k.given.arch == "90a" and k.given.instruction == SIMT:
        yield Fault("arch", "90a", "80, or none: simt has no instruction of Hopper's own")
    elif k.given.arch == "90a" and k.schedule.grouping:
        yield Fault("arch", "90a", "80, or none: kernels of groups have no instruction of Hopper's own")


def _half_line(k: Resolved, extent: int, along_k: bool) -> bool:
    """Whether a warp may begin in the middle of 32 rows or columns, where the swizzle of shared memory has moved on."""
    if k.a == "tf32":
        return extent == 16  # CUTLASS reckons with two halves, no more
    return extent % 16 == 0 and (k.a == "f64" or (k.size == 2 and along_k))


@_check("tile", "warps", "accumulator", "layout", api=2)
def _warps(k: Resolved) -> _Faults:
    if k.given.warps is None:
        yield Fault("warps", None, "how many there are along m, n and k: (2, 2, 1), say")
        return
    if any(x % y for x, y in zip(k.tile, k.warps, strict=True)):
        yield Fault("warps", k.warps, f"divisors of the tile {k.tile}")
        return
    if k.warps[2] != 1:
        yield Fault("warps", k.warps, "1 along k: no epilogue here joins parts of a sum")
    if prod(k.warps) > 32:
        yield Fault("warps", k.warps, "32 in all: a thread block has 1024 threads")
    for axis, along_k, name in ((0, "t", "m"), (1, "n", "n")):
        if k.warp[axis] % 32 and not _half_line(k, k.warp[axis], k.given.layout[axis] == along_k):
            units = "16, or a multiple of 32" if k.a == "tf32" else f"a multiple of {16 if k.a == 'f64' else 32}"
            yield Fault("warps", k.warps, f"warp tiles whose {name} is {units}; found {k.warp}")
    held = k.warp[0] * k.warp[1] * DTYPES[k.accumulator].itemsize // 128
    if held > _SM80_ACCUMULATORS:
        yield Fault("warps", k.warps, f"{_SM80_ACCUMULATORS} registers of sums for a thread; found {held}")


@_check("tile", api=2)
def _instruction(k: Resolved) -> _Faults:
    if (k.config.single, k.a) not in INSTRUCTION:
        return
    shape = INSTRUCTION[k.config.single, k.a][1]
    if k.tile[2] % shape[2]:
        yield Fault("tile", k.tile, f"k a multiple of {shape[2]}, the instruction's")
    depth, wide = k.tile[2] * k.size, k.size >= 8
    if k.given.instruction == SIMT:
        if k.tile[2] != 8:
            yield Fault("tile", k.tile, "k of 8: so simt kernels lay out their tiles")
    elif depth != 128 and (wide or depth != 64):
        counts = [128 // k.size] if wide else [64 // k.size, 128 // k.size]
        yield Fault("tile", k.tile, f"k of {' or '.join(map(str, counts))}: lines of shared memory")


@_check("tile", "warps", "layout", api=2)
def _loads(k: Resolved) -> _Faults:
    """Every thread moves as much of A, and of B; tiles that are not read along k fill whole lines."""
    if not k.given.warps:
        return
    threads, access = 32 * prod(k.warps), 1 if k.given.instruction == SIMT or k.size >= 8 else 16 // k.size
    for name, extent in (("m", k.tile[0]), ("n", k.tile[1])):
        if extent * k.tile[2] % (access * threads):
            yield Fault("tile", k.tile, f"{name} * k a multiple of {access * threads}: {threads} threads load alike")
    for axis, index, name in ((0, "n", "m"), (1, "t", "n")):
        if k.given.layout[axis] == index and k.tile[axis] * k.size % 128:
            yield Fault("tile", k.tile, f"{name} a multiple of {128 // k.size}: layout {k.given.layout} reads along it")


@_check("alignment", api=2)
def _alignment(k: Resolved) -> _Faults:
    align = k.align
    if align & (align - 1) or align * k.size > 16:
        if k.size < 16 or align > 1:
            yield Fault(
                "alignment", align, f"a power of two up to {max(16 // k.size, 1)}: accesses of 16 bytes at most"
            )
    elif align != 1 and (k.given.instruction == SIMT or k.size >= 8):
        yield Fault("alignment", align, f"1: {k.given.instruction} kernels read single elements of {k.a}")


@_check("stages", "alignment", api=2)
def _stages(k: Resolved) -> _Faults:
    stages = k.given.stages
    if stages is None or stages < 2:
        yield Fault("stages", stages, "2 or more")
        return
    moved = k.align * k.size
    if stages > 2 and moved < 4:
        yield Fault("stages", stages, f"2: cp.async moves 4 bytes or more, accesses of {k.align} {k.a} are {moved}")
    if stages == 2 and k.size > 2:
        yield Fault("stages", stages, f"3 or more: {k.a} goes by cp.async alone")


@_check("tile", "stages", api=2)
def _shared_2x(k: Resolved) -> _Faults:
    most = SM90 if k.family.name == "sm90_dgemm" else SM80
    needed = (k.tile[0] + k.tile[1]) * k.tile[2] * k.size * k.stages
    if needed > most:
        yield Fault("stages", k.stages, f"stages of {needed // k.stages} bytes within {most}; found {needed} bytes")


@_check("epilogue", "schedule", "accumulator", api=2)
def _epilogue_2x(k: Resolved) -> _Faults:
    e, name = k.epilogue, k.epilogue.name
    known = "'linearc', or 'linearc_' and an activation"
    if e.told and not k.schedule.grouping:
        yield Fault("epilogue", name, f"{known}: kernels of groups alone are told one")
    elif not e.source or e.bias or e.aux or e.bias_grad or e.scaled or e.gated:
        yield Fault("epilogue", name, f"{known}: what a 2.x kernel fuses")
    elif e.told and k.accumulator not in ("f32", "f64"):
        yield Fault("epilogue", name, "'linearc': activations are of real sums in f32 or f64")
    elif not (e.told or e.activation == "identity") and (k.accumulator != "f32" or k.schedule.stream_k):
        yield Fault("epilogue", name, "'linearc': activations are fused beside sums in f32, and not by stream-K")


@_check("schedule", api=2)
def _stream_k_2x(k: Resolved) -> _Faults:
    if k.schedule.stream_k and k.a not in ("f16", "bf16"):
        yield Fault("schedule", k.schedule.name, "'tiled': stream-K is of f16 and bf16 here")
