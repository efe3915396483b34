"""What a kernel can compute: its interface against a canonical problem, with the reason where it cannot.

Legality is decided here, and in fusion.py for users' epilogues. Kernels that differ in tile, cluster or schedule
alone share an interface, so a question is answered once for all of them. CUTLASS's own can_implement is not asked: it
accepts misaligned pointers and refuses extents that run (docs/decisions/0013-legality-is-ours.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import gcd
from operator import ge
from typing import Any

from ..._core import Problem
from ...arrays.gpu import Gpu
from ...declaration.config import SCHEDULES, GemmConfig, cc_range
from ...declaration.dtypes import BLOCK, DTYPES, WIDER
from ...declaration.epilogues import ACTIVATIONS, Epilogue, epilogue_named
from ...declaration.families import FAMILIES
from ...epilogues.fusion import MOST_BLOCKS, rejection
from ...epilogues.specialization import specialization_of
from ...kernels import operation
from ...kernels.adaptation import Way
from .batch_invariance import WHOLE

_UNSUMMED = "does not sum a bias gradient; bias_grad is given"
_TMA = 16  # bytes: addresses, rows and batches of TMA operands are multiples of it
_MOST_COLUMNS = (
    MOST_BLOCKS // 8 * 8 * 32
)  # of one 2.x launch with the narrowest tile that declaration/validation.py lets through


@dataclass(frozen=True, eq=False)  # one object for each; see interface_of
class Interface(operation.Interface):
    """The part of a kernel that legality depends on.

    Attributes:
        api, cc: as in Family; the former is 0 for kernels of few rows, and of providers.
        align_a, align_b, align_d: elements per access of A, of B, and of C, D and what lies like D.
        granules: D leaves by TMA, in whole accesses.
        stream_k, pointers, block: as in Schedule; `pointers` for kernels that take nothing else.
        tma_scales: scales in blocks: those of the rows of A come by TMA, which wants them side by side.
        takes_lists, bias_as_c: as in GemmConfig.
        lean: as in Schedule.
    """

    api: int
    cc: tuple[int, int]
    a: str
    b: str
    accumulator: str
    d: str
    bias: str
    layout: str
    epilogue: Epilogue
    align_a: int
    align_b: int
    align_d: int
    granules: bool
    stream_k: bool
    pointers: bool
    block: int
    tma_scales: bool
    takes_lists: bool
    bias_as_c: bool
    lean: bool
    grouping: str

    @cached_property
    def bytes_ab(self) -> tuple[int, int]:
        """Alignment of A and of B."""
        return self.align_a * DTYPES[self.a].itemsize, self.align_b * DTYPES[self.b].itemsize

    @cached_property
    def bytes_d(self) -> int:
        """Alignment of D and what lies like it."""
        return self.align_d * DTYPES[self.d].itemsize

    @cached_property
    def finishable(self) -> bool:
        """Whether another kernel can finish the product: it is all there, not rounded and not touched."""
        return self.epilogue.plain and self.d == WIDER.get(self.accumulator, self.accumulator)

    @cached_property
    def divisors(self) -> tuple[int, ...]:
        """Of m, n (for B, and for D) and k, and bytes of A, B and D: what is asked of a problem's, one by one."""
        if self.api == 3:
            values = self.align_b if self.epilogue.pairs == "b" and self.layout[1] == "t" else 1
            extents = 1, values, self.align_d if self.granules else 1, 1 if self.lean else WHOLE
        else:
            a, b = self.layout[0] == "t", self.layout[1] == "t"
            along_k = max(self.align_a if a else 1, 1 if b else self.align_b)
            extents = 1 if a else self.align_a, self.align_b if b else 1, self.align_d, along_k
        return *extents, *self.bytes_ab, self.bytes_d

    def seen(self, divisors: tuple[int, ...]) -> tuple[object, ...]:
        """What `way`, and `bits_refusal` of its kernels, see of `divisors_of` a problem."""
        reached = tuple(map(ge, divisors, self.divisors))
        return (*reached, divisors[1]) if self.epilogue.user else reached  # operands of any size lie along n

    def alike(self, p: Problem) -> bool:
        """Whether layouts, the result's dtype and the function are the problem's: otherwise there are detours."""
        return self.d == p.d and self.layout == p.layout_a + p.layout_b and self.epilogue.applies(*function_of(p))

    def way(self, p: Problem, gpu: Gpu | None) -> Way | str:
        """Directly, or by packing operands and finishing D elsewhere; the reason where no detour helps."""
        if error := self._rejection(p, gpu):
            return error
        detour_a = _operand_detour("a", p.layout_a, p.align_a, self.layout[0], self.bytes_ab[0])
        detour_b = _operand_detour("b", p.layout_b, p.align_b, self.layout[1], self.bytes_ab[1])
        detour_scales = self._scales_detour(p)
        detour_d = self._epilogue_detour(p) or self._output_detour(p)
        detour_sums = _UNSUMMED if p.bias_grad and not detour_d and not self.epilogue.bias_grad else None
        if p.grouped and (detour := detour_d or detour_sums):
            return f"{detour}; groups are not finished elsewhere"
        if p.pointers and (detour := detour_a or detour_b or detour_d):
            return f"{detour}; lists of matrices are neither packed nor finished elsewhere"
        if detour_d and not self.finishable:
            return detour_d
        return Way(
            self.layout[0] if detour_a else None,
            self.layout[1] if detour_b else None,
            self.d if detour_d else None,
            tuple(filter(None, (detour_a, detour_b, detour_scales, detour_d, detour_sums))),
            pack_scales=bool(detour_scales),
            sums=bool(detour_sums),
        )

    def _rejection(self, p: Problem, gpu: Gpu | None) -> str | None:
        lowest, highest = self.cc
        if gpu is None:
            return "runs on a GPU; the operands are on the CPU"
        if not lowest <= gpu.cc <= highest:
            return f"runs on compute capability {cc_range(lowest, highest)}; {gpu} has {gpu.cc / 10:.1f}"
        if (p.operand_a, p.operand_b) != (self.a, self.b):
            return f"multiplies {_product(self.a, self.b)}; the operands are {_product(p.operand_a, p.operand_b)}"
        if p.accumulator != self.accumulator and WIDER.get(p.accumulator or "") != self.accumulator:
            return f"sums in {self.accumulator}; {p.accumulator} is asked for"
        if p.user >= 0 or self.epilogue.user:
            if error := rejection(self, p, specialization_of(p)) or self._output_detour(p):
                return error  # nothing else could finish the product
        group_rejection = self._group_rejection(p) or self._pair_rejection(p)
        return group_rejection or self._block_rejection(p) or self._list_rejection(p) or self._vector_rejection(p)

    def _group_rejection(self, p: Problem) -> str | None:
        wanted = {"": "", "k": "depth", "l": "any"}.get(p.grouped, "lines")
        if wanted != self.grouping and not (p.grouped and self.grouping == "any"):
            words = {"": "one product of a size", "lines": "groups of rows or columns", "depth": "groups of k",
                     "any": "products of any sizes"}  # fmt: skip
            return f"computes {words[self.grouping]}; asked for are {words[wanted]}"
        if reason := self._divided_rejection(p):
            return reason
        if p.grouped == "n" and p.c and self.granules:
            return "reads c by whole granules, at which not every group of columns begins"
        return None

    def _pair_rejection(self, p: Problem) -> str | None:
        if p.pairs != self.epilogue.pairs:
            words = {"": "one product", "b": "gates and values", "d": "gradients of gates and values"}
            return f"computes {words[self.epilogue.pairs]}; asked for are {words[p.pairs]}"
        if p.pairs and p.empty_product:
            return "multiplies; there is no product"
        if p.pairs == "b" and p.interleaved and self.layout[1] != "n":
            return "reads b along n, where values lie between gates"
        if (
            p.pairs == "b" and p.interleaved and p.layout_b != "n" and not p.grouped
        ):  # on the device groups cannot go so
            return "reads b along k, where it does not lie: the product goes through memory instead"
        if p.pairs == "b" and self.layout[1] == "t" and p.n % self.align_b:
            return f"reads values by whole granules of {self.align_b} elements behind {p.n} gates"
        return None

    def _divided_rejection(self, p: Problem) -> str | None:
        """A group may begin at any line: what it divides is read, and written, by single elements, or along the other
        axis; or what another group has of a granule is zeroed."""
        a_along_k, b_along_k = self.layout[0] == "t", self.layout[1] == "n"
        divided_k = p.grouped == "k" and self.grouping != "depth"
        divides_a = (p.grouped == "m" and not a_along_k and not p.stacked) or (divided_k and a_along_k)
        divides_b = (p.grouped == "n" and not b_along_k and not p.stacked) or (divided_k and b_along_k)
        for name, divided, align in (("a", divides_a, self.align_a), ("b", divides_b, self.align_b)):
            if divided and (self.lean or align > 1):
                return f"reads {name} by whole granules, at which not every group begins"
        if self.api == 2 and p.grouped == "n" and self.align_d > 1:
            return f"writes vectors of {self.align_d} along n, at which not every group begins"
        return None

    def _block_rejection(self, p: Problem) -> str | None:
        if p.block == self.block:
            return None
        if not self.block:
            return "does not apply scales in blocks; scale_a and scale_b are"
        columns = {1: "each column", BLOCK: f"{BLOCK} columns"}
        found = f"scale_b has one for {columns[p.block]}" if p.block else "there are none"
        return f"applies scales in blocks of {BLOCK} of k by {columns[self.block]}; {found}"

    def _scales_detour(self, p: Problem) -> str | None:
        if self.tma_scales and p.scale_a == "p":
            return f"reads scale_a by rows that lie side by side, {_TMA} bytes aligned; it lies otherwise"
        return None

    def _list_rejection(self, p: Problem) -> str | None:
        if self.pointers and not p.pointers:
            return "takes lists of matrices; a and b are arrays"
        if p.pointers and not self.takes_lists:
            return "takes arrays; the operands are lists of matrices"
        one_launch = self.api == 2 and not self.grouping and (p.pointers or self.stream_k or p.user >= 0)
        if one_launch and p.n > _MOST_COLUMNS:
            return f"is one launch, which reaches n = {_MOST_COLUMNS}; n is {p.n}"
        if self.stream_k and self.api == 2 and p.batch > 1:
            return f"deals out the k loops of one problem; the batch is {p.batch}"
        if p.splits == -1 and not self.stream_k:
            return "does not deal out its k loops; splits='stream' is asked for"
        if p.splits > 0 and self.stream_k:
            return f"splits k as it likes; splits={p.splits} is asked for"
        return None

    def _vector_rejection(self, p: Problem) -> str | None:
        """2.x reads whole vectors along the contiguous axis; TMA clips at the extent."""
        if self.api == 3:
            return None
        along_a, along_b = "k" if self.layout[0] == "t" else "m", "n" if self.layout[1] == "t" else "k"
        for axis, align in ((along_a, self.align_a), (along_b, self.align_b)):
            if getattr(p, axis) % align:
                return f"reads vectors of {align} along {axis}; {axis} is {getattr(p, axis)}"
        if p.n % self.align_d:
            return f"writes vectors of {self.align_d} along n; n is {p.n}"
        return None

    def _epilogue_detour(self, p: Problem) -> str | None:
        """Why the epilogue asked for is not this one."""
        e = self.epilogue
        if p.batch_invariant and self.api and not self.lean and (p.c or p.bias or p.activation != "identity"):
            return "rounds its epilogue in an order of its own; batch_invariant=True is asked for"
        if not e.applies(*function_of(p)):
            return f"computes {e.formula}; {'a gate through ' if p.gate else ''}{p.activation} is asked for"
        if e.bias_grad:
            if (p.bias_grad, p.bias_grad_axis) != ("f32", "n"):
                found = f"is in {p.bias_grad} along {p.bias_grad_axis}" if p.bias_grad else "is not given"
                return f"sums a bias gradient in f32 along n; bias_grad {found}"
        elif p.bias_grad:  # D is summed as it was stored: without a factor, saturation, or sums wider than it
            saturates = DTYPES[self.d].bits < 16 or not DTYPES[self.d].mantissa
            if p.scale_out or saturates or (p.bias_grad == "f64" and self.d != "f64"):
                return _UNSUMMED
        scales = [] if p.block else [name for name in ("scale_a", "scale_b") if getattr(p, name)]  # of the product
        scales += ["scale_out"] if p.scale_out else []
        if scales and not e.scaled:
            return f"does not apply scales; {scales[0]} is given"
        for name in ("scale_a", "scale_b"):
            if getattr(p, name) == "x":
                return f"reads {name} by unit stride; it has none"
        if bool(p.aux and not ACTIVATIONS[p.activation].derivative) != e.aux:
            return "does not store aux; aux is given" if p.aux else "stores aux; no aux is given"
        if p.bias and (error := self._bias_detour(p)):
            return error
        if self.d == "s32" and not (p.plain_sum and not p.bias):
            return "stores sums in s32 as they are; what is applied to them would wrap around"
        return None

    def _bias_detour(self, p: Problem) -> str | None:
        e = self.epilogue
        listed = p.pointers and not p.grouped  # whose addresses are all that there is of c
        as_c = self.bias_as_c and e.source and not p.c and p.bias_axis == "n" and not listed
        if p.bias_axis not in e.bias and not as_c:
            return f"adds no bias along {p.bias_axis}; one is given"
        if p.bias != self.bias:
            return f"adds a bias in {self.bias}; it is {p.bias}"
        wanted = self.bytes_d if as_c else DTYPES[self.bias].itemsize
        if p.align_bias < wanted:
            return f"reads the bias by {wanted} bytes; it is aligned to {p.align_bias}"
        return None

    def _output_detour(self, p: Problem) -> str | None:
        """Why D cannot be written, or what lies like it not read or written, in place."""
        if p.d != self.d:
            return f"writes {self.d}; out is {p.d}"
        if p.layout_d != "t":
            return "writes rows without gaps; out has no unit stride"
        if p.align_d < self.bytes_d:
            return f"writes {self.bytes_d} bytes at once; out is aligned to {p.align_d}"
        if self.granules and p.n % self.align_d:
            return f"TMA writes rows in granules of {self.align_d} elements; n is {p.n}"
        if p.c and not self.epilogue.source:
            return "does not read c; c is given"
        for name in ("c", "gate", "aux"):
            if dtype := getattr(p, name):
                layout, align = getattr(p, f"layout_{name}"), getattr(p, f"align_{name}")
                if dtype != self.d:
                    return f"takes {name} in {self.d}; it is {dtype}"
                if layout != "t":
                    return f"reads {name} as out lies, row by row; it lies otherwise"
                if align < self.bytes_d:
                    return f"takes {name} by {self.bytes_d} bytes; it is aligned to {align}"
        return None


def signature_of(p: Problem) -> tuple[object, ...]:
    """All that `way` and `bits_refusal` look at of a problem but `divisors_of`; extents in the words of a way aside."""
    return p.signature, p.n > _MOST_COLUMNS, p.batch > 1, p.batch > MOST_BLOCKS


def divisors_of(p: Problem) -> tuple[int, ...]:
    """What else they look at: powers of two that extents are multiples of, and alignments; see `Interface.divisors`."""
    n = gcd(p.n, WHOLE)
    return gcd(p.m, WHOLE), n, n, gcd(p.k, WHOLE), p.align_a, p.align_b, p.align_d


def function_of(p: Problem) -> tuple[str, bool, str]:
    """The activation that a problem asks for, whether of a gate (or aux) instead of the product, and its pairs."""
    return p.activation, bool(p.gate) or ACTIVATIONS[p.activation].derivative, p.pairs


def interface_of(c: GemmConfig) -> Interface:
    """The interface of a kernel; the same object for all that share it."""
    schedule, align = SCHEDULES[c.schedule], c.align_operands
    return _interface(
        api=c.api,
        cc=FAMILIES[c.family].cc,
        a=c.a,
        b=c.b,
        accumulator=c.accumulator,
        d=c.d,
        bias=c.bias,
        layout=c.layout,
        epilogue=c.epilogue,
        align_a=align,
        align_b=align,
        align_d=c.align_d,
        granules=c.api == 3 and schedule.tma_store,
        stream_k=schedule.stream_k,
        pointers=schedule.pointers,
        block=schedule.block,
        tma_scales=schedule.block > 1 and not schedule.swap and not schedule.lean,
        takes_lists=c.takes_lists,
        bias_as_c=c.bias_as_c,
        lean=schedule.lean,
        grouping=schedule.grouping,
    )


@cache
def _interface(*, epilogue: str, **fields: Any) -> Interface:
    return Interface(epilogue=epilogue_named(epilogue), **fields)


def _operand_detour(name: str, layout: str, align: int, wanted: str, bytes_wanted: int) -> str | None:
    words = {"t": "row-major", "n": "column-major"}
    if wanted != "*":  # a provider's kernel may take any strides
        if layout == "x":
            return f"reads {name} {words[wanted]}; it has no unit stride"
        if layout != wanted:
            return f"reads {name} {words[wanted]}; it is {words[layout]}"
    if align < bytes_wanted:
        return f"reads {name} by {bytes_wanted} bytes; it is aligned to {align}"
    return None


def _product(a: str | None, b: str | None) -> str:
    return str(a) if a == b else f"{a} by {b}"
