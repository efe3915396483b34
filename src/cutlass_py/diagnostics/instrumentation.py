"""What is told of calls on request: log lines of choices and of calls, NVTX ranges, scripts that repeat what failed.

Off unless asked for, by the functions below or by the environment as the package is imported:

    CUTLASS_PY_LOG   off, plans (each choice, once for a class of problems) or calls (those, and each call)
    CUTLASS_PY_NVTX  1: ranges of the domain "cutlass_py"; 0
    CUTLASS_PY_DUMP  a directory: a call that fails after it was checked leaves a script there (reproducer.py)
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import _core
from .._core import Problem
from ..dispatch.launch_plan import LaunchPlan
from ..kernels.operation import describe

logger = logging.getLogger("cutlass_py")
LEVELS = {"plans": logging.INFO, "calls": logging.DEBUG}
_WHAT = ("off", *LEVELS)
_levels: tuple[int, int] | None = None  # what the logger had before `log` set one, and what it set
_CALLS, _RANGES, _FAILURES = 1, 2, 4  # instrumentation.h
_handler = logging.StreamHandler()
_handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))


def log(what: str) -> None:
    """Log what this package does, to the logger "cutlass_py" of the standard library's `logging`.

    Choices are told at level INFO, when a class of problems is first met; "plans" forgets those made so far, so that
    they are told again. Calls are told at level DEBUG, each with its problem, kernel, detours and stream. Where no
    handler is set up, lines go to stderr. "off" gives the logger the level back that it had.

    Args:
        what: "off", "plans" or "calls", which tells plans too.

    Raises:
        ValueError: `what` is none of those.
    """
    if what not in _WHAT:
        raise ValueError(f"log: {what!r}; expected one of {', '.join(_WHAT)}")
    global _levels
    level = LEVELS.get(what)
    # The level before `log`, unless somebody else has set one since.
    before = _levels[0] if _levels and logger.level == _levels[1] else logger.level
    _levels = None if level is None else (before, level)
    logger.setLevel(before if level is None else level)
    logger.removeHandler(_handler)
    if what != "off" and not logger.hasHandlers():
        logger.addHandler(_handler)
    _switch(_CALLS, what == "calls")
    _core.clear_plans()


def nvtx(on: bool) -> None:
    """Put each call into an NVTX range of the domain "cutlass_py", named after its kernel and extents.

    Raises:
        RuntimeError: this package was built without NVTX's header, which CUDA toolkits have.
    """
    if on and not _core.has_ranges():
        raise RuntimeError("nvtx: this package was built without nvtx3/nvToolsExt.h of a CUDA toolkit: no ranges")
    _switch(_RANGES, on)


def dump(directory: str | os.PathLike[str] | None) -> None:
    """Where a call fails after it was checked, write a script that repeats it into this directory; None: do not.

    There is one script for each class of problems. Its operands are random: the caller's values are not written.
    """
    from . import reproducer

    reproducer.write_to(None if directory is None else os.fspath(directory))
    _switch(_FAILURES, directory is not None)


def _switch(bit: int, on: bool) -> None:
    wanted = _core.trace(0)
    _core.trace(wanted | bit if on else wanted & ~bit)


def from_environment() -> None:
    """What the environment asks for.

    Raises:
        ValueError: a variable has a value that is not known.
    """
    switches: dict[str, dict[str, Callable[[], None]]] = {
        "CUTLASS_PY_LOG": {what: partial(log, what) for what in _WHAT},
        "CUTLASS_PY_NVTX": {"0": partial(nvtx, False), "1": partial(nvtx, True)},
    }
    for variable, choices in switches.items():
        if not (value := os.environ.get(variable)):
            continue
        if value not in choices:
            raise ValueError(f"{variable} is {value!r}; expected one of {', '.join(choices)}")
        try:
            choices[value]()
        except RuntimeError as error:
            warnings.warn(f"cutlass_py: {variable} is {value}: {error}", RuntimeWarning, stacklevel=2)
    if directory := os.environ.get("CUTLASS_PY_DUMP"):
        dump(directory)


def at_import() -> None:
    """`from_environment`; for `python -m cutlass_py`, which imports the package first, a wrong value is wrong usage.

    Raises:
        SystemExit: of that command, with code 2.
        ValueError: of any other program, as `from_environment`.
    """
    try:
        from_environment()
    except ValueError as error:
        # While the module of -m is looked for, that is the first argument; the module stands before the others.
        if sys.argv[:1] != ["-m"] or not sys.orig_argv[-len(sys.argv)].endswith("cutlass_py"):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


# ---------------------------------------------------------------------------------------------------- what is said


def called(p: Problem, stream: int, **how: Any) -> None:
    """A call is about to run, by a plan of these fields; said by instrumentation.cpp."""
    on = "" if p.device_id < 0 else f"; stream {stream:#x}"
    logger.debug("%s %s: %s%s", p.operation, describe(p), LaunchPlan(**how), on)
