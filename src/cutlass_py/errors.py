"""The package's own exceptions; wrong arguments raise a ValueError or TypeError that holds values, the device CudaError.

Text is made of the values once, as the error is raised: no code reads it.
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

    def __init__(
        self, operand: str = "", found: str = "", expected: str = "", hint: str = "", *, other: str = "",
        other_found: str = "", about: str = "", operation: str | None = None,
    ) -> None:  # fmt: skip
        self.operation = _core.current_operation() if operation is None else operation
        self.operand, self.found, self.expected, self.hint = operand, found, expected, hint
        self.other, self.other_found, self.about = other, other_found, about
        super().__init__(_core.error_text(self.operation, operand, found, other, other_found, expected, hint))

    def renamed(self: _Error, operation: str, operands: Mapping[str, str], **changes: str) -> _Error:
        """The same error of another function, in its names of the operands.

        Args:
            operation: the function's name.
            operands: its name of each operand that it calls otherwise.
            changes: other values of attributes.
        """
        names = {"operand": operands.get(self.operand, self.operand), "other": operands.get(self.other, self.other)}
        return type(self)(**(_values(self) | {"operation": operation} | names | changes))

    def __reduce__(self) -> Any:
        return _restored, (type(self), _values(self), self.args)


def _values(error: ArgumentError) -> dict[str, str]:
    names = ("operation", "operand", "found", "expected", "hint", "other", "other_found", "about")
    return {name: getattr(error, name) for name in names}


def _restored(kind: type[ArgumentError], values: dict[str, str], args: tuple[Any, ...]) -> ArgumentError:
    error = kind(**values)
    error.args = args  # which may have been added to
    return error


class ArgumentValueError(ArgumentError, ValueError):
    """An argument has a wrong value: shape, extents, device, memory, name or number. A ValueError."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a wrong type or dtype. A TypeError."""


class NoKernelError(NotImplementedError):
    """No kernel can compute the problem. The message counts those considered and names the nearest with its reason."""


class ProviderError(RuntimeError):
    """A provider that was registered has failed. The message names it, the kernel, and what it was asked for."""


class CompileError(RuntimeError):
    """A kernel that is not in the built set cannot be compiled.

    The message says what to install, what forbids it, or where the source is kept, with the compiler's first errors.
    """


class EpilogueError(ValueError):
    """A Python function cannot become an epilogue. The message names the function, file, line and reason."""
