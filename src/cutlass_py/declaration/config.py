"""What a kernel is made from: how it runs its tiles, its configuration, and the family that shares its template.

families.py says which there are. Like it, read by the build before the package exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from .dtypes import BLOCK, DTYPES
from .epilogues import EPILOGUES, epilogue_named
from .operands import DEFAULT

# ---------------------------------------------------------------------------------------------------- schedules


@dataclass(frozen=True)
class Schedule:
    """How a kernel runs its tiles.

    Attributes:
        mainloop, epilogue: CUTLASS's policies of a 3.x kernel.
        lean: the kernels are our own (kernels/sm90). They count as 3.x: what TMA asks for holds for both.
        direct: of our own: D leaves element by element.
        unaligned: of our own: threads load A and B, which may lie anywhere.
        swap: A and B change places, so that D^T is computed.
        gemv: the CUDA cores multiply a few vectors by a matrix (kernels/gemv): rows of A by B, or columns of B by A
            where they change places.
        steady: promoted fp8 sums are added up while other MMAs run (fp8_two_level_accumulation.cuh).
        stream_k: the tiles' k loops are dealt out evenly, and partial sums joined in a fixed order.
        pointers: operands are arrays of addresses, and nothing else (2.x kernels take those as well).
        dmma: f64, which mma.sync multiplies (dmma.cuh).
        grouping: what groups divide: "lines" of A or of B, or "depth", which is k; of 2.x "any", lists included.
        block: columns of B that share a factor for every 128 of k, beside one for each row of A: scales that the
            mainloop applies. 0 where it applies none.
    """

    name: str
    mainloop: str = ""
    epilogue: str = ""
    swap: bool = False
    steady: bool = False
    stream_k: bool = False
    pointers: bool = False
    dmma: bool = False
    block: int = 0
    lean: bool = False
    direct: bool = False
    unaligned: bool = False
    serial: bool = False
    gemv: bool = False
    grouping: str = ""

    @property
    def pingpong(self) -> bool:
        """Whether two warpgroups take turns: one stores its tile while the other multiplies."""
        return "Pingpong" in self.mainloop

    @property
    def family(self) -> str:
        """Of the 3.x kernels that run so."""
        if self.lean:
            return "sm90_grouped" if self.grouping else "sm90_lean"
        if self.stream_k or self.pointers:
            return "sm90_streamk" if self.stream_k else "sm90_array"
        if self.dmma:
            return "sm90_dmma"
        return "sm90_block" if self.block else "sm90_gemm"

    @property
    def along_rows(self) -> str:
        """The layout in which A alone is read along its rows and not along k: B, where the two change places."""
        return "tt" if self.swap else "nn"

    @property
    def groups(self) -> tuple[int, int]:
        """Rows of what wgmma takes as A, and columns of its B, that share a factor; 0 without scales in blocks."""
        own = min(self.block, 1)  # each row of A has its own
        return (self.block, own) if self.swap else (own, self.block)

    def by_column(self, columns: int) -> bool:
        """Whether of so many columns of our own tiles each has a factor of its own, and not one all of them."""
        return self.groups[1] % columns > 0

    @property
    def tma_store(self) -> bool:
        """Whether D leaves by TMA, which writes whole 16-byte granules; otherwise element by element."""
        return not self.direct and "NoSmem" not in self.epilogue


_COOP = ("cutlass::gemm::KernelTmaWarpSpecializedCooperative", "cutlass::epilogue::TmaWarpSpecializedCooperative")
_PINGPONG = ("cutlass::gemm::KernelTmaWarpSpecializedPingpong", "cutlass::epilogue::TmaWarpSpecialized")
_DIRECT = "cutlass::epilogue::NoSmemWarpSpecialized"
_ARRAY = (
    "cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative",
    "cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative",
)
_LEAN = {"coop": "Cooperative", "pingpong": "Pingpong"}
_COOP_BLOCK = (_COOP[0] + "FP8Blockwise", _COOP[1])
_PINGPONG_BLOCK = (_PINGPONG[0] + "FP8Blockwise", _PINGPONG[1])
SCHEDULES = {
    s.name: s
    for s in [
        Schedule("coop", *_COOP),
        Schedule("pingpong", *_PINGPONG),
        Schedule("coopswap", *_COOP, swap=True),
        Schedule("pingpongswap", *_PINGPONG, swap=True),
        Schedule("coopdirect", _COOP[0], _DIRECT),
        Schedule("pingpongdirect", _PINGPONG[0], _DIRECT),
        Schedule("coopsteady", *_COOP, steady=True),
        Schedule("coopsteadyswap", *_COOP, swap=True, steady=True),
        Schedule("pingpongsteady", *_PINGPONG, steady=True),
        Schedule("pingpongsteadyswap", *_PINGPONG, swap=True, steady=True),
        Schedule("coopstreamk", *_COOP, stream_k=True),
        Schedule("coopstreamkswap", *_COOP, swap=True, stream_k=True),
        Schedule("cooparray", *_ARRAY, pointers=True),
        Schedule("coopdmma", _COOP[0], _DIRECT, dmma=True),
        Schedule("coopblock", *_COOP_BLOCK, block=BLOCK),
        Schedule("pingpongblock", *_PINGPONG_BLOCK, block=BLOCK),
        Schedule("pingpongblockswap", *_PINGPONG_BLOCK, swap=True, block=BLOCK),
        Schedule("coopgroup", *_COOP_BLOCK, block=1),
        *(
            Schedule(f"lean{name}{direct}{swap}", policy, lean=True, direct=bool(direct), swap=bool(swap))
            for name, policy in _LEAN.items()
            for direct in ("", "direct")
            for swap in ("", "swap")
        ),
        *(
            Schedule(f"lean{name}block{swap}", policy, lean=True, swap=bool(swap), block=BLOCK)
            for name, policy in _LEAN.items()
            for swap in ("", "swap")
        ),
        *(
            Schedule(f"lean{name}serial{swap}", policy, lean=True, serial=True, swap=bool(swap))
            for name, policy in _LEAN.items()
            for swap in ("", "swap")
        ),
        Schedule("leancoopgroup", _LEAN["coop"], lean=True, block=1),
        *(
            Schedule(
                f"leanpingpongunaligned{swap}",
                _LEAN["pingpong"],
                lean=True,
                direct=True,
                unaligned=True,
                swap=bool(swap),
            )
            for swap in ("", "swap")
        ),
        *(
            Schedule(
                f"lean{name}{scales}grouped{swap}", policy, lean=True, grouping="lines", swap=bool(swap), block=block
            )
            for name, policy in _LEAN.items()
            for scales, block in (("", 0), ("block", BLOCK))
            for swap in ("", "swap")
        ),
        Schedule("leancoopgroupgrouped", _LEAN["coop"], lean=True, grouping="lines", block=1),
        *(Schedule(f"lean{name}deep", policy, lean=True, grouping="depth") for name, policy in _LEAN.items()),
        Schedule("rows", gemv=True, direct=True),
        Schedule("columns", gemv=True, direct=True, swap=True),
        Schedule("tiled"),  # 2.x: one tile per thread block
        Schedule("streamk", stream_k=True),  # 2.x
        Schedule("persistent", grouping="any"),  # 2.x: blocks stay, for tiles of whatever group
    ]
}

# The order in which a 3.x kernel takes its tiles (kernel.h): the axis, and how many rows or columns side by side.
RASTERS = {None: 0, "m": 1, "n": 2}
SWIZZLES = (1, 2, 4, 8)

_USUAL_WIDTHS = (256, 192, 128, 96, 64, 32, 16, 8)  # of wgmma instructions, that CuTe has by default
MOST_IN_CLUSTER = 8  # thread blocks: more do not run everywhere

# ---------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True)
class KernelConfig:
    """One kernel of any operation: what tells it from the others. Name and source are functions of this value."""

    family: str

    @property
    def name(self) -> str:
        """General to particular, as an identifier."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[str, ...]:
        """The dtypes by which it is found: of those operands that every kernel of its operation has."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[tuple[str, Collection[str]], ...]:
        """What it names, each with the table that has such names."""
        return tuple((dtype, DTYPES) for dtype in self.operands)

    @property
    def formula(self) -> str:
        """What it computes."""
        raise NotImplementedError

    @property
    def own_source(self) -> str:
        """C++ that a user wrote for it; empty where it is written from this value (Family.write)."""
        return ""

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """What orders the kernels of a family in files: those side by side share most of what is compiled."""
        return (self.name,)

    @property
    def dear_header(self) -> bool:
        """Whether its header takes long to compile, so that its file holds none that needs no such header."""
        return False

    @property
    def superseded(self) -> bool:
        """Whether others that compute the same compile in a second: it is compiled where it is named, not by choice."""
        return False


@dataclass(frozen=True)
class GemmConfig(KernelConfig):
    """One kernel that multiplies."""

    a: str
    b: str
    accumulator: str
    d: str
    layout: str
    tile: tuple[int, int, int]
    epilogue: str
    schedule: str
    cluster: tuple[int, int, int] = (1, 1, 1)
    warp: tuple[int, int, int] = (0, 0, 0)  # 2.x
    stages: int = 0  # 2.x; 3.x takes what fits
    align: int = 0  # 2.x: elements per access of A and B

    @property
    def api(self) -> int:
        """CUTLASS generation; 0 of what is none of its kinds."""
        schedule = SCHEDULES[self.schedule]
        return 0 if schedule.gemv else 3 if schedule.mainloop else 2

    @property
    def single(self) -> str:
        """The family whose kernels multiply alike, one product of a size: of 2.x kernels of groups another one."""
        return self.family.replace("grouped", "gemm")

    @property
    def slices(self) -> int:
        """Into how many k is cut by the kernel itself, whose sums it adds in order."""
        return self.cluster[2]

    @property
    def shares_tile(self) -> bool:
        """Whether the blocks of a cluster have a slice of k each."""
        return self.slices > 1 and not SCHEDULES[self.schedule].serial

    @property
    def align_operands(self) -> int:
        """Elements per access of A and B, which their base and lines must be multiples of."""
        if self.api == 3:
            return 1 if SCHEDULES[self.schedule].unaligned else 16 // DTYPES[self.a].itemsize
        return self.align if self.api == 2 else 1

    @property
    def align_d(self) -> int:
        """Elements per access of C and D, which their base, rows and extent must be multiples of."""
        vector = 16 // DTYPES[self.d].itemsize
        if self.api == 3:
            return vector if SCHEDULES[self.schedule].tma_store else 1
        return vector if self.api == 2 and self.align * DTYPES[self.a].itemsize == 16 else 1

    @property
    def operands(self) -> tuple[str, ...]:
        """Of A and B."""
        return self.a, self.b

    @property
    def names(self) -> tuple[tuple[str, Collection[str]], ...]:
        """As in KernelConfig."""
        dtypes = (self.a, self.b, self.accumulator, self.d)
        return (self.epilogue, EPILOGUES), (self.schedule, SCHEDULES), *((dtype, DTYPES) for dtype in dtypes)

    @property
    def formula(self) -> str:
        """D of the product acc, and how that is scaled."""
        return f"D = {epilogue_named(self.epilogue).formula}, where acc = A @ B{self.scaled}"

    @property
    def scaled(self) -> str:
        """What a formula has to say of scales in blocks; empty where there are none."""
        return ", scaled in blocks by scale_a and scale_b" if SCHEDULES[self.schedule].block else ""

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Kernels of one design share an epilogue's instantiation."""
        return self.schedule, self.tile, self.cluster, self.d, self.epilogue, self.name

    @property
    def dear_header(self) -> bool:
        """Whether a tile is as wide as an instruction that CuTe only has on request: it would be cut into narrow ones.

        The header with all of them takes a minute to compile.
        """
        return self.api == 3 and self.tile[1] not in _USUAL_WIDTHS and not SCHEDULES[self.schedule].lean

    @property
    def superseded(self) -> bool:
        """CUTLASS's wgmma kernels of dtypes and layouts that our own multiply."""
        schedule = SCHEDULES[self.schedule]
        if self.api != 3 or schedule.lean or schedule.pointers or schedule.dmma:
            return False
        return self.layout == "tn" or DTYPES[self.a].bits == 16

    @property
    def takes_lists(self) -> bool:
        """Whether the operands may be arrays of addresses; those of `pointers` schedules must be."""
        schedule = SCHEDULES[self.schedule]
        return schedule.pointers or (self.api == 2 and not schedule.stream_k)

    @property
    def bias_as_c(self) -> bool:
        """Whether it reads a bias along n as a C whose rows are all the same."""
        return self.api == 2

    @property
    def bias(self) -> str:
        """Dtype of the bias it adds: D's, but f32 beside a D of 8 bits."""
        return "f32" if DTYPES[self.d].bits == 8 else self.d

    @cached_property
    def name(self) -> str:
        """General to particular: family, dtypes (A, B, accumulator, D), layout, tile, design, epilogue."""
        if self.api == 0:
            design = [self.schedule]
        elif self.api == 3:
            design = [extents_text(self.cluster), self.schedule]
        else:
            design = [extents_text(self.warp), f"s{self.stages}", f"a{self.align}"]
            design += [self.schedule] if self.schedule != "tiled" else []
        dtypes = [self.a, self.b, self.accumulator, self.d]
        return "_".join([self.family, *dtypes, self.layout, extents_text(self.tile), *design, self.epilogue])


@cache
def extents_text(extents: tuple[int, ...]) -> str:
    """As it stands in names, such as "128x256x64"."""
    return "x".join(map(str, extents))


def _distinct(configs: Iterable[KernelConfig]) -> tuple[Any, ...]:
    return tuple({c.name: c for c in configs}.values())


# ---------------------------------------------------------------------------------------------------- families


Declaration = Callable[[], Iterable[KernelConfig]]


def nothing() -> Iterable[KernelConfig]:
    """A declaration of no kernel."""
    return ()


def _name(config: KernelConfig) -> str:
    return config.name


@dataclass(frozen=True, eq=False)
class Family:
    """Kernels that share a template: who can run them, how they are compiled, and which are declared."""

    name: str
    title: str
    api: int  # CUTLASS generation: 2 or 3; 0 for what is none of CUTLASS
    cc: tuple[int, int]  # lowest compute capability that runs them, times ten, and the highest
    arch: str  # the entry of CUTLASS_PY_ARCHS that asks for them
    gencode: tuple[str, ...]
    header: str
    launcher: str  # the header's template that takes a configuration
    write: Callable[[Family, list[Any]], str] = field(repr=False)  # a translation unit with some of its kernels
    # Which kernels there are; listed when they are first asked for.
    declare_core: Declaration = field(repr=False)
    declare: Declaration = field(default=nothing, repr=False)  # what can be compiled besides
    function: Callable[[Any], str] = field(default=_name, repr=False)  # what kernels share that one function serves
    per_file: int = 12  # functions per translation unit: they share half a minute of templates and most of the memory
    core_seconds: float = 6.4  # of one function and its share of the headers, about, by nvcc 13.0
    overlaps: int = 0  # compute capability times ten from which on launches may overlap: programmatic dependent launch
    cubins: bool = False  # no part of its sources needs the host's compiler: NVRTC compiles them
    cpp_arch: str = ""  # 2.x
    operation: str = DEFAULT  # what they compute: a room of operations/
    config: type[KernelConfig] = GemmConfig

    @property
    def compiled_as(self) -> tuple[Any, ...]:
        """Families that have this in common may share translation units, and a reading of their headers."""
        return self.header, self.launcher, self.write, self.gencode, self.cpp_arch, self.overlaps

    @cached_property
    def core(self) -> tuple[Any, ...]:
        """The set that is built unless another is asked for."""
        return _distinct(self.declare_core())

    @cached_property
    def declared(self) -> tuple[Any, ...]:
        """All that can be compiled."""
        return _distinct((*self.core, *self.declare()))

    def gencode_for(self, capabilities: Iterable[int]) -> tuple[str, ...]:
        """-gencode for machine code of these compute capabilities alone, each by the newest source that `gencode` has.

        It is `gencode` itself where the family fixes its own.
        """
        lowest, highest = self.cc
        codes = [f"sm_{cc}" for cc in sorted(set(capabilities)) if lowest <= cc <= highest]
        if lowest == highest or not codes:
            return self.gencode
        written = {int(code.partition(",")[0].removeprefix("arch=compute_")) for code in self.gencode}
        by_arch: dict[int, list[str]] = {}
        for code in codes:
            by_arch.setdefault(max(arch for arch in written if arch <= int(code[3:])), []).append(code)
        return tuple(f"arch=compute_{arch},code=[{','.join(found)}]" for arch, found in by_arch.items())


def kernel_definition(name: str, launcher: str, members: dict[str, str]) -> str:
    """The C++ of one kernel: a launcher (a template of its family's header) on a struct of these members."""
    body = "".join(f"  {member} = {value};\n" for member, value in members.items())
    return (
        f"namespace cutlass_py {{\nstruct config_{name} {{\n{body}}};\n}}\n"
        f"CUTLASS_PY_KERNEL({name}, cutlass_py::{launcher}<cutlass_py::config_{name}>)\n"
    )


def cc_range(lowest: int, highest: int) -> str:
    """Compute capabilities in words."""
    if lowest == highest:
        return f"{lowest / 10:.1f} only"
    return f"{lowest / 10:.1f} and newer" if highest == 999 else f"{lowest / 10:.1f} to {highest / 10:.1f}"
