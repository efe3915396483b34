"""Epilogues that users write: `@epilogue` on a function, and its call."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from .._core import EpilogueCall
from . import (
    functions,  # noqa: F401  (tracing finds them there)
    tracing,
)
from .specialization import program_id


class UserEpilogue:
    """A function of the product's sums as an epilogue; call it with its parameters by name for `gemm(epilogue=...)`.

    Attributes:
        program: what was traced.
        __wrapped__: the function itself, which also runs on NumPy arrays.
    """

    __wrapped__: Callable[..., Any]
    __qualname__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        self.program = tracing.traced(function)
        self._number = program_id(self.program)
        self._defaults = tracing.defaults(function)
        self._names = self.program.names
        self._all = set(self._names)
        update_wrapper(self, function, updated=())  # not its attributes: it may wrap an epilogue itself
        self.__qualname__ = getattr(function, "__qualname__", self.program.name)

    def __call__(self, /, *values: Any, **operands: Any) -> EpilogueCall:
        """The epilogue with its operands.

        Args:
            operands: by the name of the parameter: a number (read at run time), or an array: one element (read when
                the kernel runs), (n,) or (..., 1, n) one value per column, (..., m, 1) one per row, or D's shape. By
                the name of an output: the array that it is written to (docs/epilogues.md).

        Raises:
            TypeError: a name that is missing or not known, or a value without one.
            EpilogueError: another epilogue calls it; the function itself, `__wrapped__`, may be called there.
        """
        if trace := tracing.tracing():
            trace.refuse(f"calls the epilogue {self.program.name}; its function is {self.program.name}.__wrapped__")
        if values or operands.keys() != self._all:
            expected = f"expected {', '.join(self._names) or 'none'}"
            if values:
                raise TypeError(f"epilogue {self.program.name} takes its operands by name; {expected}")
            operands = {**self._defaults, **operands}
            if operands.keys() != self._all:
                unknown, missing = sorted(operands.keys() - self._all), sorted(self._all - operands.keys())
                wrong = [f"has no {' and '.join(unknown)}"] if unknown else []
                wrong += [f"misses {' and '.join(missing)}"] if missing else []
                raise TypeError(f"epilogue {self.program.name} {' and '.join(wrong)}; {expected}")
        return EpilogueCall(self._number, tuple([operands[name] for name in self._names]))

    def __reduce__(self) -> str:
        return self.__qualname__  # by name, as functions are pickled

    def __repr__(self) -> str:
        return f"<epilogue {self.program.formula}>"


def epilogue(function: Callable[..., Any]) -> UserEpilogue:
    """Make a function an epilogue of gemm.

    The first parameter is an element of a @ b as it was summed, the others are what the call gives for them. The
    function returns D's element, or a tuple of that and a dictionary of further outputs by name: values for matrices
    of D's shape, and what `cutlass_py.functions.sum`, `max` and `min` return for vectors and single values. It is
    called once, here, with values that record what it computes (docs/epilogues.md).

    Raises:
        EpilogueError: it does what cannot be recorded; the message says where and what.
        TypeError: it is no function.
    """
    return UserEpilogue(function)
