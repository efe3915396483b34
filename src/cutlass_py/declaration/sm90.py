"""Which kernels there are for sm90 alone: CUTLASS 3.x's, and our own, of products and of groups.

Standard library and siblings that need no more, as families.py, which makes families of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from . import tiles
from .config import SCHEDULES, GemmConfig
from .dtypes import DTYPES, LAYOUTS, PAIRS
from .epilogues import EPILOGUES
from .tiles import Design

Pair = tuple[str, str]  # dtypes of A and B
HALVES = ("bf16", "f16")
# Operands of one byte, and most of tf32, are read along k alone: layout tn. The others are transposed in packing.
FP8, INT8 = (tuple((a, b) for a in pair for b in pair) for pair in PAIRS)
FP8_RESULTS, _INT8_RESULTS = ("bf16", "f16", "f32", "e4m3", "e5m2"), ("bf16", "f16", "f32", "s8")  # by scales


def _sm90(dtypes: Pair, layout: str, d: str, epilogue: str, design: Design, accumulator: str = "f32") -> GemmConfig:
    """A 3.x kernel. The k extent of a tile counts 16-bit elements: other operands take as many bytes."""
    (m, n, k), cluster, schedule = design
    tile = (m, n, k * 16 // DTYPES[dtypes[0]].bits)
    family = SCHEDULES[schedule].family
    return GemmConfig(family, *dtypes, accumulator, d, layout, tile, epilogue, schedule, cluster)


_CUTLASS = [e for e in EPILOGUES.values() if not e.told]  # that its kernels fuse
# A 128x256 tile of a wide D leaves no room for the mainloop's stages.
_NARROW = [design for design in tiles.SM90_TMA if design[0][0] * design[0][1] < 128 * 256]


def sm90_declared() -> Iterator[GemmConfig]:
    """The 3.x kernels of every dtype."""
    for dtype, layout in product(HALVES, LAYOUTS):
        yield from _sm90_half(dtype, layout)
    for layout, design in product(LAYOUTS, tiles.SM90_TMA):
        yield _sm90(("f16", "f16"), layout, "f16", "linear", design, "f16")
    yield from _sm90_fp8()
    yield from _sm90_int8()
    yield from _sm90_tf32()


def _sm90_half(dtype: str, layout: str) -> Iterator[GemmConfig]:
    pair = (dtype, dtype)
    for design in (*tiles.SM90_TMA, *tiles.SM90_MORE, *tiles.SM90_WIDTHS):
        yield _sm90(pair, layout, dtype, "linear", design)
    for design in tiles.SM90_TMA:
        yield _sm90(pair, layout, dtype, "linearc", design)
    for design in _NARROW:
        yield _sm90(pair, layout, "f32", "linear", design)
    for d, design in product((dtype, "f32"), tiles.SM90_DIRECT):
        yield _sm90(pair, layout, d, "linearc", design)
    yield _sm90(pair, layout, "f32", "linearc", tiles.SQUARE)
    for epilogue in _CUTLASS:
        designs = _NARROW if epilogue.aux or epilogue.gated or epilogue.source else tiles.SM90_TMA
        if (epilogue.bias or epilogue.gated) and not epilogue.scaled:
            for design in designs:
                yield _sm90(pair, layout, dtype, epilogue.name, design)
        if epilogue.bias and not epilogue.aux and not epilogue.scaled:
            yield _sm90(pair, layout, "f32", epilogue.name, tiles.SQUARE)


def _sm90_fp8() -> Iterator[GemmConfig]:
    e4m3 = ("e4m3", "e4m3")
    for epilogue in ("linear", "scaled"):  # the latter for scales that are arrays, as frameworks' mostly are
        for design in tiles.SM90_PROMOTED_MORE:
            yield _sm90(e4m3, "tn", "bf16", epilogue, design)
        for design in tiles.SM90_FAST:
            yield _sm90(e4m3, "tn", "bf16", epilogue, design, "fast")
    yield _sm90(e4m3, "tn", "f32", "linear", tiles.SQUARE_2X1, "fast")
    scaled = [e.name for e in _CUTLASS if e.scaled]
    for pair in FP8:
        yield _sm90(pair, "tn", "bf16", "linear", tiles.SQUARE_2X1, "fast")
        yield _sm90(pair, "tn", "f32", "linearc", tiles.SM90_PROMOTED_DIRECT)
        for d in FP8_RESULTS:
            for accumulator, designs in (("f32", tiles.SM90_PROMOTED), ("fast", _NARROW)):
                for design, name in product(designs, ("linear", "scaled")):
                    yield _sm90(pair, "tn", d, name, design, accumulator)
            for name in scaled:
                yield _sm90(pair, "tn", d, name, tiles.PROMOTED)


def _sm90_int8() -> Iterator[GemmConfig]:
    for pair in INT8:
        for design in (tiles.SQUARE_2X1, *_NARROW):
            yield _sm90(pair, "tn", "s32", "linear", design, "s32")
        yield _sm90(pair, "tn", "s32", "linearc", tiles.SM90_DIRECT[0], "s32")
        yield _sm90(pair, "tn", "bf16", "scaled", tiles.SQUARE_2X1, "s32")
        for d, design in product(_INT8_RESULTS, _NARROW):
            yield _sm90(pair, "tn", d, "scaled", design, "s32")
    for d in ("f16", "f32", "s8"):
        yield _sm90(("s8", "s8"), "tn", d, "scaled", tiles.SQUARE_2X1, "s32")


def _sm90_tf32() -> Iterator[GemmConfig]:
    pair = ("tf32", "tf32")
    for design in (
        tiles.LARGE,
        tiles.SQUARE,
        tiles.SQUARE_2X1,
        tiles.MEDIUM,
        tiles.SMALL,
        tiles.SKINNY64,
        tiles.SKINNY32,
        tiles.SKINNY16,
    ):
        yield _sm90(pair, "tn", "f32", "linear", design)
    for design in (tiles.SQUARE, tiles.SM90_DIRECT[0]):
        yield _sm90(pair, "tn", "f32", "linearc", design)
    for design in tiles.SM90_ROWS:
        yield _sm90(pair, SCHEDULES[design[2]].along_rows, "f32", "linear", design)
    for epilogue, design in product(_CUTLASS, _NARROW):
        if epilogue.bias and not epilogue.aux and not epilogue.scaled:
            yield _sm90(pair, "tn", "f32", epilogue.name, design)


def streamk() -> Iterator[GemmConfig]:
    """Kernels that divide k by stream-K."""
    for dtype, layout in product(HALVES, LAYOUTS):
        for design in tiles.SM90_STREAMK:
            yield _sm90((dtype, dtype), layout, dtype, "linear", design)
        yield _sm90((dtype, dtype), layout, "f32", "linear", tiles.SM90_STREAMK[0])


def array() -> Iterator[GemmConfig]:
    """Kernels of an array of pointers to operands."""
    for dtype, layout, design in product(HALVES, LAYOUTS, tiles.SM90_ARRAY):
        yield _sm90((dtype, dtype), layout, dtype, "linearc", design)


def block() -> Iterator[GemmConfig]:
    """Kernels of fp8 operands scaled in blocks."""
    designs = (*tiles.SM90_BLOCK, *tiles.SM90_GROUP)
    for pair, d, design in product(FP8, ("bf16", "f16", "f32"), designs):
        for epilogue in ("linear", "linearc"):
            yield _sm90(pair, "tn", d, epilogue, design)


def dmma() -> Iterator[GemmConfig]:
    """Kernels of f64 operands."""
    for layout in LAYOUTS:
        yield _sm90(("f64", "f64"), layout, "f64", "linearc", tiles.DMMA, "f64")


def lean_core() -> Iterator[GemmConfig]:
    """The own kernels of the default build."""
    for dtype, layout in product(HALVES, LAYOUTS):
        yield from _lean_half_core(dtype, layout)
    for pair in FP8:
        yield from _lean_fp8_core(pair)
    tf32 = ("tf32", "tf32")
    for design in tiles.SM90_LEAN_FEW:
        yield _sm90(tf32, "tn", "f32", "fused", design)
    for design in (*tiles.SM90_LEAN_DIRECT_SMALL, *tiles.SM90_LEAN_DIRECT_SQUARE):
        yield _sm90(tf32, "tn", "f32", "fusedc", design)
    for pair in INT8:
        for design in tiles.SM90_LEAN_LEAST:
            yield _sm90(pair, "tn", "s32", "linear", design, "s32")
            yield _sm90(pair, "tn", "bf16", "fused_scaled", design, "s32")
        for design in tiles.SM90_LEAN_DIRECT_SMALL:
            yield _sm90(pair, "tn", "s32", "linearc", design, "s32")


# What reads or writes a matrix beside D. A layer multiplies x @ w.T (tn; in JAX x @ w, tt), its gradients in tt and nt.
_MATRICES = {
    "fusedc": {layout: tiles.SM90_LEAN_LAYER if layout == "tn" else tiles.SM90_LEAN_LEAST for layout in LAYOUTS},
    "fused_gate": {"tn": tiles.SM90_LEAN_LAYER, "tt": tiles.SM90_LEAN_LAYER},
    "fused_aux": {"tn": tiles.SM90_LEAN_LAYER, "tt": tiles.SM90_LEAN_LEAST},
}


def _lean_half_core(dtype: str, layout: str) -> Iterator[GemmConfig]:
    pair = (dtype, dtype)
    for design in (*tiles.SM90_LEAN_CORE, *tiles.SM90_LEAN_SERIAL):
        yield _sm90(pair, layout, dtype, "fused", design)
    for design in tiles.SM90_LEAN_LEAST:  # also what is finished elsewhere
        yield _sm90(pair, layout, "f32", "fused", design)
    for design in (*tiles.SM90_LEAN_DIRECT_SMALL, *tiles.SM90_LEAN_DIRECT_SQUARE, *tiles.SM90_LEAN_UNALIGNED):
        yield _sm90(pair, layout, dtype, "fusedc", design)
    for design in tiles.SM90_LEAN_DIRECT_SQUARE:
        yield _sm90(pair, layout, "f32", "fusedc", design)
    for epilogue, by_layout in _MATRICES.items():
        for design in by_layout.get(layout, ()):
            yield _sm90(pair, layout, dtype, epilogue, design)
    if layout in _PAIRED:
        yield from _gated(dtype, layout, tiles.SM90_LEAN_PAIRS, tiles.SM90_LEAN_PAIRS_LEAST, tiles.SM90_LEAN_LEAST)


_PAIRED = ("tn", "tt")  # a layer's weights as torch has them, and as JAX has them


def _gated(dtype: str, layout: str, all: list[Design], least: list[Design], back: list[Design]) -> Iterator[GemmConfig]:
    """Of gates and values: forward, with the products kept, and backward."""
    for epilogue, designs in (("fused_gated", all), ("fused_gated_aux", least), ("fused_d_gated", back)):
        for design in designs:
            yield _sm90((dtype, dtype), layout, dtype, epilogue, design)


def _lean_fp8_core(pair: Pair) -> Iterator[GemmConfig]:
    same = pair == ("e4m3", "e4m3")
    promoted = tiles.SM90_LEAN_PROMOTED_CORE if same else tiles.SM90_LEAN_PROMOTED_LEAST
    blocks = tiles.SM90_LEAN_BLOCK_CORE if same else tiles.SM90_LEAN_BLOCK_LEAST
    for design in promoted:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design)
    for design in tiles.SM90_LEAN_FAST if same else tiles.SM90_LEAN_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design, "fast")
    for design in (*tiles.SM90_LEAN_PROMOTED_LEAST, *tiles.SM90_LEAN_PROMOTED_DIRECT):
        yield _sm90(pair, "tn", "f32", "fused_scaled", design)  # also what is finished elsewhere
    for d, designs in (("bf16", blocks), ("f32", tiles.SM90_LEAN_BLOCK_LEAST)):
        for design in designs:
            yield _sm90(pair, "tn", d, "fused", design)
    if same:
        for design in tiles.SM90_LEAN_PAIRS_PROMOTED:
            yield _sm90(pair, "tn", "bf16", "fused_gated_scaled", design)


def lean_declared() -> Iterator[GemmConfig]:
    """Every tile, dtype and epilogue."""
    for dtype, layout, design in product(HALVES, LAYOUTS, tiles.SM90_LEAN):
        for d in (dtype, "f32"):
            yield _sm90((dtype, dtype), layout, d, "fused", design)
    for dtype, layout, design in product(HALVES, LAYOUTS, tiles.SM90_LEAN_SPLIT):
        yield _sm90((dtype, dtype), layout, dtype, "fused", design)
    for dtype, layout, design in product(HALVES, LAYOUTS, tiles.SM90_LEAN_UNALIGNED):
        yield _sm90((dtype, dtype), layout, dtype, "fusedc", design)
    for pair, d in product(FP8, FP8_RESULTS):
        for design in (*tiles.SM90_LEAN_FAST, *tiles.SM90_LEAN_FEW):
            yield _sm90(pair, "tn", d, "fused_scaled", design, "fast")
        for design in (*tiles.SM90_LEAN_PROMOTED, *tiles.SM90_LEAN_PROMOTED_DIRECT):
            yield _sm90(pair, "tn", d, "fused_scaled", design)
    for design in tiles.SM90_LEAN_PAIRS_LEAST:
        yield _sm90(("e4m3", "e4m3"), "tn", "bf16", "fused_gated_scaled", design, "fast")
    for pair, d, epilogue in product(FP8, ("bf16", "f32"), ("fused", "fusedc")):
        for design in tiles.SM90_LEAN_BLOCK:
            yield _sm90(pair, "tn", d, epilogue, design)
    for layout, design in product(LAYOUTS, tiles.SM90_LEAN_FUSED):
        yield _sm90(("f16", "f16"), layout, "f16", "fused", design, "f16")
    for pair, design in product(INT8, tiles.SM90_LEAN_FEW):
        yield _sm90(pair, "tn", "s32", "linear", design, "s32")
    for pair, d, design in product(INT8, _INT8_RESULTS, (*tiles.SM90_LEAN_FEW, *tiles.SM90_LEAN_DIRECT)):
        yield _sm90(pair, "tn", d, "fused_scaled", design, "s32")
    for pair, design in product(INT8, tiles.SM90_LEAN_DIRECT):
        yield _sm90(pair, "tn", "s32", "linearc", design, "s32")
    floats = [(dtype, dtype, layout) for dtype, layout in product(HALVES, LAYOUTS)] + [("tf32", "f32", "tn")]
    told = [e.name for e in EPILOGUES.values() if e.told and e.bias and not e.scaled and not e.pairs]
    for (dtype, d, layout), epilogue, design in product(floats, told, tiles.SM90_LEAN_FUSED + tiles.SM90_LEAN_LAYER):
        yield _sm90((dtype, dtype), layout, d, epilogue, design)
    for (dtype, narrow, layout), design in product(floats, tiles.SM90_LEAN_DIRECT):
        for d in (narrow, "f32"):
            yield _sm90((dtype, dtype), layout, d, "fusedc", design)


# Copies begin at whole granules, and a group at any line. What groups divide is read along k; where that is k itself,
# operands are read along the other axis, but for those that can be read along k alone.
_LINES, _DEEP = ("tn", "tt", "nn"), "nt"


def grouped_core() -> Iterator[GemmConfig]:
    """The own kernels of groups in the default build."""
    for dtype in HALVES:
        pair = (dtype, dtype)
        for layout in _LINES:
            for design in tiles.SM90_GROUPED:
                yield _sm90(pair, layout, dtype, "fused", design)
            for design in tiles.SM90_GROUPED_LEAST:
                yield _sm90(pair, layout, "f32", "fused", design)
                yield _sm90(pair, layout, dtype, "fusedc", design)
                yield _sm90(pair, layout, dtype, "fused_aux", design)
            if layout in _PAIRED:
                yield from _gated(
                    dtype, layout, tiles.SM90_GROUPED_PAIRS, tiles.SM90_GROUPED_PAIRS_LEAST, tiles.SM90_GROUPED_LEAST
                )
        for design in tiles.SM90_DEEP:
            yield _sm90(pair, _DEEP, dtype, "fused", design)
        for design in tiles.SM90_DEEP_LEAST:
            yield _sm90(pair, _DEEP, "f32", "fused", design)
            yield _sm90(pair, _DEEP, dtype, "fusedc", design)
    for pair in FP8:
        yield from _grouped_fp8_core(pair)
    for design in tiles.SM90_GROUPED_LEAST:
        yield _sm90(("s8", "s8"), "tn", "s32", "linear", design, "s32")
        yield _sm90(("s8", "s8"), "tn", "bf16", "fused_scaled", design, "s32")
        yield _sm90(("tf32", "tf32"), "tn", "f32", "fused", design)
    for design in tiles.SM90_DEEP_LEAST:
        yield _sm90(("s8", "s8"), "tn", "s32", "linear", design, "s32")
        yield _sm90(("tf32", "tf32"), "tn", "f32", "fused", design)


def _grouped_fp8_core(pair: Pair) -> Iterator[GemmConfig]:
    same = pair == ("e4m3", "e4m3")
    for design in tiles.SM90_GROUPED_PROMOTED if same else tiles.SM90_GROUPED_PROMOTED_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design)
    for design in tiles.SM90_GROUPED if same else tiles.SM90_GROUPED_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design, "fast")
    for design in tiles.SM90_GROUPED_BLOCK if same else tiles.SM90_GROUPED_BLOCK_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused", design)
    for d in ("f32", "f16") if same else ("f32",):
        for design in tiles.SM90_GROUPED_PROMOTED_LEAST:
            yield _sm90(pair, "tn", d, "fused_scaled", design)
        for design in tiles.SM90_GROUPED_BLOCK_LEAST:
            yield _sm90(pair, "tn", d, "fused", design)
    for design in tiles.SM90_DEEP_PROMOTED if same else tiles.SM90_DEEP_PROMOTED_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design)
    for design in tiles.SM90_DEEP_PROMOTED_LEAST:
        yield _sm90(pair, "tn", "f32", "fused_scaled", design)
    for design in tiles.SM90_DEEP_FAST if same else tiles.SM90_DEEP_LEAST:
        yield _sm90(pair, "tn", "bf16", "fused_scaled", design, "fast")
    if same:
        for design in tiles.SM90_GROUPED_PAIRS_PROMOTED:
            yield _sm90(pair, "tn", "bf16", "fused_gated_scaled", design)
        for design in tiles.SM90_GROUPED_PAIRS_LEAST:
            yield _sm90(pair, "tn", "bf16", "fused_gated_scaled", design, "fast")


def grouped_declared() -> Iterator[GemmConfig]:
    """Every dtype of operands of a byte, and of their results."""
    for pair, d in product(FP8, ("bf16", "f16", "f32")):
        for design in tiles.SM90_DEEP_PROMOTED:
            yield _sm90(pair, "tn", d, "fused_scaled", design)
        for design in tiles.SM90_DEEP:
            yield _sm90(pair, "tn", d, "fused_scaled", design, "fast")
        for design in tiles.SM90_GROUPED_PROMOTED:
            yield _sm90(pair, "tn", d, "fused_scaled", design)
        for design in tiles.SM90_GROUPED:
            yield _sm90(pair, "tn", d, "fused_scaled", design, "fast")
        for design in tiles.SM90_GROUPED_BLOCK:
            yield _sm90(pair, "tn", d, "fused", design)
    for pair, design in product(INT8, tiles.SM90_GROUPED):
        yield _sm90(pair, "tn", "s32", "linear", design, "s32")
        for d in ("bf16", "f16", "f32"):
            yield _sm90(pair, "tn", d, "fused_scaled", design, "s32")
    for design in tiles.SM90_GROUPED:
        yield _sm90(("tf32", "tf32"), "tn", "f32", "fused", design)
