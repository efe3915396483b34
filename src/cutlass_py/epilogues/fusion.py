"""Kernels for users' epilogues: which declared designs can carry one, and what it has to find to run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .._core import Problem
from ..declaration.config import SCHEDULES, GemmConfig
from ..declaration.dtypes import DTYPES
from ..declaration.epilogues import Epilogue
from ..declaration.shared_memory import BARRIERS, EpilogueTile, lean_bytes, stages

if TYPE_CHECKING:
    from ..declaration.epilogue_cpp import Traced
    from ..operations.gemm.legality import Interface
    from .specialization import EpilogueSpecialization

MOST_BLOCKS = 65535  # of a launch, along y and along z of its grid
_FEWEST_STAGES = 3  # of a mainloop, below which loads are no longer hidden
# 8 lanes of a warp hold the same columns, 4 lie side by side: CUTLASS's Sm90RowReduction deals columns out in pairs.
_EVEN_WIDTH = 8 * 4 * 2
_READ = ("f16", "bf16", "f32")


def with_epilogue(config: GemmConfig, epilogue: Epilogue) -> GemmConfig | str:
    """The kernel of the same design with a user's epilogue, or why there is none."""
    schedule, user = SCHEDULES[config.schedule], epilogue.user
    assert user is not None
    if config.own_source:
        return "a user's epilogue is carried by kernels of the package alone"
    if schedule.stream_k or schedule.pointers or schedule.block or not schedule.tma_store:
        return f"a user's epilogue is not carried by {config.schedule} kernels"
    if config.accumulator in ("c64", "c128"):
        return "a user's epilogue computes in real numbers"
    if schedule.lean:
        error = _of_our_own(config, user)
    else:
        error = (_rows(config, user) or _room(config, user) or _join(config, user)) if config.api == 3 else None
    return error or replace(config, epilogue=epilogue.name)


def _of_our_own(c: GemmConfig, user: Traced) -> str | None:
    schedule, size = SCHEDULES[c.schedule], DTYPES[c.d].itemsize
    taken = lean_bytes(c.tile, schedule, size, sum(user.matrix_bytes), user.reductions, user.vectors)
    left = stages(c.tile, DTYPES[c.a].itemsize, taken)
    m, n, k = c.tile
    held = m * n * 4 if c.shares_tile else 0  # sums of slices, which lie where the stages were
    if left < _FEWEST_STAGES or held > left * (m + n) * k * DTYPES[c.a].itemsize:
        return f"has room for {max(left, 0)} stages of its mainloop beside the matrices of this epilogue"
    return None


def _rows(c: GemmConfig, user: Traced) -> str | None:
    """Whether 16-bit matrices lie along rows that tf32_register_operand.cuh deals out.

    CUTLASS moves eight neighbours at once. Without a swap they lie along the columns, which nobody deals out.
    """
    schedule = SCHEDULES[c.schedule]
    dealt_out = schedule.swap and c.a == "tf32" and c.layout == schedule.along_rows
    if dealt_out and any(kind == "t" and DTYPES[str(dtype)].itemsize == 2 for kind, dtype in user.operands):
        return "takes no matrices of 16 bits: its rows are dealt out, and CUTLASS moves eight neighbours at once"
    return None


def _room(c: GemmConfig, user: Traced) -> str | None:
    """Shared memory of a 3.x epilogue; what is left goes to the mainloop."""
    size, schedule = DTYPES[c.d].itemsize, SCHEDULES[c.schedule]
    part = EpilogueTile(schedule, c.tile, size)
    source = DTYPES[user.source_dtype].itemsize if user.source_dtype else 0
    reused = source == size and size > 1
    read, written = user.matrix_bytes
    held = part.elements * (part.loads(reused) * read + part.stores * (written + (0 if reused else size)))
    left = stages(c.tile, DTYPES[c.a].itemsize, held + BARRIERS)
    if left < _FEWEST_STAGES:
        return f"has room for {max(left, 0)} stages of its mainloop beside the matrices of this epilogue"
    return None


def _join(c: GemmConfig, user: Traced) -> str | None:
    """Reductions over the rows of a 3.x kernel's own problem: lanes, then warps, join their parts."""
    size, schedule, width = DTYPES[c.d].itemsize, SCHEDULES[c.schedule], c.tile[1]
    along_n = "ms" if schedule.swap else "n"
    if not any(reduction and kind in along_n for _, kind, _, reduction in user.outputs):
        return None
    if width > _EVEN_WIDTH and width % _EVEN_WIDTH:
        return f"is {width} wide; it reduces in tiles up to {_EVEN_WIDTH} wide, or a multiple of that"
    warps = 4 if schedule.pingpong else 8
    if width * warps * 4 > EpilogueTile(schedule, c.tile, size).elements * size:
        return "has no room to join the warps' parts of a reduction"
    return None


def rejection(interface: Interface, p: Problem, asked: EpilogueSpecialization | None) -> str | None:
    """Why kernels of this interface, or the problem's operands, do not go with the epilogue asked for.

    One of the two is a user's, or both are.
    """
    own = interface.epilogue
    if not asked or asked.epilogue is not own:
        wanted = f"the epilogue {asked.program.formula}" if asked else "another epilogue"
        return f"computes {own.formula}; {wanted} is asked for"
    if p.splits not in (0, 1):
        return "does not split k: a user's epilogue takes whole sums"
    if interface.api == 2 and p.batch > MOST_BLOCKS:
        return f"is one launch, which ends at {MOST_BLOCKS} problems; the batch is {p.batch}"
    if any(node.op == "cast" for node in asked.program.nodes) and interface.accumulator == "f64":
        return "casts from f32, not from f64"
    for index, (name, kind) in enumerate(zip(asked.program.names, asked.kinds, strict=True)):
        if kind in "mnt" and (error := _operand(interface, p, asked, index, name, kind)):
            return error
    return None


def _operand(
    interface: Interface, p: Problem, asked: EpilogueSpecialization, index: int, name: str, kind: str
) -> str | None:
    written = index - len(asked.program.inputs)
    if interface.api == 2 and written >= 0 and asked.program.outputs[written].reduction:
        return None  # an elementwise kernel writes it
    dtype, size = str(asked.dtypes[index]), DTYPES[str(asked.dtypes[index])].itemsize
    wide = ("f64",) if interface.accumulator == "f64" else ()
    if dtype not in (*_READ, *wide):
        return f"takes {name} in {', '.join((*_READ, *wide))}; it is {dtype}"
    if not asked.regular[index]:
        return f"{name} does not lie as out does" if kind == "t" else f"{name} has no unit stride"
    whole = kind == "t" if interface.api == 3 else kind != "m"
    wanted = min(16, interface.align_d * size) if interface.api == 2 else 16
    if whole and asked.alignments[index] < wanted:
        return f"takes {name} by {wanted} bytes; it is aligned to {asked.alignments[index]}"
    if written >= 0 and kind == "t" and interface.granules and p.n * size % 16:
        return f"TMA writes rows in granules of 16 bytes; those of {name} have {p.n * size}"
    return None
