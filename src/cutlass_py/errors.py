"""The package's own exceptions; wrong arguments raise a ValueError or TypeError with values, the device CudaError.

The text is made of the values as the error is raised, and no code reads it. The extension makes the same of the same
values, where no Python is (arrays/refusal.h); here it is Python's, for torch.compile to see through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from . import _core

_Error = TypeVar("_Error", bound="ArgumentError")


class ArgumentError(Exception):
    """What is wrong with an argument of a call, as values; `str` is the sentence made of them.

    Raised as ArgumentValueError or ArgumentTypeError.

    Attributes:
        operation: what was called, such as "gemm".
        operand: the argument that is wrong, "a"; empty where the call as a whole is.
        found: what it is, "is (3, 4)".
        expected: what it has to be; empty where `hint` or the second operand says so.
        hint: what to do about it.
        other: the operand that the first does not go with, if there is one.
        other_found: what that is; empty where `found` says how both are related, "shares elements with".
        about: "shape", "dtype", "device" or "overlap", where it is about one of these.
    """

    operation = operand = found = expected = hint = other = other_found = about = ""

    def __init__(self, text: str = "", **values: str) -> None:
        self.__dict__.update(values)

    def renamed(self: _Error, operation: str, operands: Mapping[str, str], **changes: str) -> _Error:
        """The same error of another function, in its names of the operands.

        Args:
            operation: the function's name.
            operands: its name of each operand that it calls otherwise.
            changes: other values of attributes.
        """
        names = {"operand": operands.get(self.operand, self.operand), "other": operands.get(self.other, self.other)}
        values = {name: getattr(self, name) for name in _VALUES}
        return _made(type(self), **(values | {"operation": operation} | names | changes))

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.args, vars(self))


_VALUES = ("operation", "operand", "found", "expected", "hint", "other", "other_found", "about")


def wrong_value(
    operand: str = "", found: str = "", expected: str = "", hint: str = "", **values: Any
) -> ArgumentValueError:  # fmt: skip
    """An ArgumentValueError of its attributes; without `operation`, of the one that runs."""
    return _made(ArgumentValueError, operand=operand, found=found, expected=expected, hint=hint, **values)


def wrong_type(
    operand: str = "", found: str = "", expected: str = "", hint: str = "", **values: Any
) -> ArgumentTypeError:  # fmt: skip
    """An ArgumentTypeError of its attributes; without `operation`, of the one that runs."""
    return _made(ArgumentTypeError, operand=operand, found=found, expected=expected, hint=hint, **values)


def _made(
    kind: type[_Error], *, operand: str, found: str, expected: str, hint: str, other: str = "", other_found: str = "",
    about: str = "", operation: str | None = None,
) -> _Error:  # fmt: skip
    if operation is None:
        operation = _core.current_operation()
    second = f" but {_clause(other, other_found)}" if other_found else f" {other}" if other else ""
    wanted = (f"; expected {expected}" if expected else "") + (f"; {hint}" if hint else "")
    return kind(
        f"{operation}: {_clause(operand, found)}{second}{wanted}", operation=operation, operand=operand, found=found,
        expected=expected, hint=hint, other=other, other_found=other_found, about=about,
    )  # fmt: skip


def _clause(operand: str, found: str) -> str:
    """What begins with no letter stands at the name itself: "a.__dlpack__() returned", "activation='x'"."""
    return f"{operand} {found}" if operand and found and "a" <= found[0] <= "z" else operand + found


def _restored(kind: type[ArgumentError], args: tuple[Any, ...], values: dict[str, str]) -> ArgumentError:
    return kind(*args, **values)


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a wrong value: shape, extents, device, memory, name or number. A ValueError."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a wrong type or dtype. A TypeError."""


class NoKernelError(NotImplementedError):
    """No kernel can compute the problem. The message counts those considered and names the nearest with its reason."""

    def __init__(self, reason: str = "", operation: str = "") -> None:
        self.reason, self.operation = reason, operation
        super().__init__(f"{operation}: {reason}" if operation else reason)

    def renamed(self, operation: str) -> NoKernelError:
        """The same error of another function."""
        return NoKernelError(self.reason, operation)


class ProviderError(RuntimeError):
    """A provider that was registered has failed. The message names it, the kernel, and what it was asked for."""


class CompileError(RuntimeError):
    """A kernel that is not in the built set cannot be compiled.

    The message says what to install, what forbids it, or where the source is kept, with the compiler's first errors.
    """


class EpilogueError(ValueError):
    """A Python function cannot become an epilogue. The message names the function, file, line and reason."""
