"""What a problem asks for with the number of a user's epilogue.

Every first call comes here; what it takes to trace an epilogue, and to write its C++, is left to those that have one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol

from .. import _core
from ..declaration.epilogues import Epilogue
from ..errors import EpilogueError

if TYPE_CHECKING:
    from ..declaration.epilogue_ir import Program

_programs: dict[int, Program] = {}


class WithEpilogue(Protocol):
    """What may ask for a user's epilogue."""

    @property
    def user(self) -> int:
        """Its number; -1 for none."""


@cache
def program_id(program: Program) -> int:
    """By which a call asks for the epilogue.

    Raises:
        EpilogueError: it has too many parameters and outputs.
    """
    from ..declaration.epilogue_ir import REDUCTIONS

    roles = "r" * len(program.inputs) + "".join(output.axis or "w" for output in program.outputs)
    if len(program.names) > 16:
        raise EpilogueError(
            f"epilogue {program.name}: {len(program.names)} parameters and outputs; expected at most 16"
        )
    count = len(program.inputs)
    firsts = [*range(count), *(count + first for first in program.firsts)]
    reductions = [-1] * count
    reductions += [REDUCTIONS.index(output.reduction) if output.reduction else -1 for output in program.outputs]
    number = _core.add_program(program.name, program.names, roles, reductions, firsts)
    _programs[number] = program
    return number


@dataclass(frozen=True)
class EpilogueSpecialization:
    """A problem's user epilogue.

    Attributes:
        epilogue: as kernels have it.
        kinds, dtypes, alignments: of the operands, the last in bytes.
        regular: whether each is a matrix that lies as D does, or a vector of unit stride.
    """

    epilogue: Epilogue
    program: Program
    kinds: tuple[str, ...]
    dtypes: tuple[str | None, ...]
    alignments: tuple[int, ...]
    regular: tuple[bool, ...]

    @property
    def reduces(self) -> bool:
        """Whether something written is a reduction."""
        return any(output.reduction for output in self.program.outputs)


@cache
def specialization(number: int) -> EpilogueSpecialization:
    """What Problem.user stands for."""
    from ..declaration.epilogue_cpp import Traced

    program, items = _core.user_class(number)
    kinds, dtypes, alignments, regular = zip(*items, strict=True) if items else ((), (), (), ())
    traced = Traced(_programs[program], tuple(zip(kinds, dtypes, strict=True)))
    return EpilogueSpecialization(Epilogue.of_user(traced), _programs[program], kinds, dtypes, alignments, regular)


def specialization_of(p: WithEpilogue) -> EpilogueSpecialization | None:
    """A problem's user epilogue, or None."""
    return specialization(p.user) if p.user >= 0 else None
