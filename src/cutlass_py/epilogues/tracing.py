"""A user's function, called once with values that record what is done to them: it never sees data.

Nothing reads the function's source, so that lambdas, closures, decorated functions and what is typed at a prompt are
all the same. What cannot be recorded is refused where it happens: file, line and reason.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from numbers import Real
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from ..declaration.epilogue_ir import AXES, OPERATIONS, Node, Output, Program
from ..errors import EpilogueError

# Whose own code is not the user's: a refusal names the line that called it.
_LIBRARIES = (__name__.partition(".")[0], "numpy", "torch", "jax", "cupy")
_BRANCH = (
    "branches on a traced value (if, while, and, or, not, min(), max()); it has no value yet: use where(), minimum(), "
    "maximum(), &, | and ~"
)
_ELEMENT = "a traced value stands for one element: it has no length, items or shape"
_GIVEN = "gives a traced value to {}, whose functions are not among cutlass_py.functions"


class Trace:
    """The values of one function while it is called.

    Attributes:
        refusal: the first one, which stands even where the function catches it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.refusal: EpilogueError | None = None
        self.nodes: list[Node] = []
        self._known: dict[Node, int] = {}

    def add(self, node: Node) -> Value:
        """The value of a node; the same one for the same node."""
        index = self._known.setdefault(node, len(self.nodes))
        if index == len(self.nodes):
            self.nodes.append(node)
        return Value(self, index)

    def value(self, given: Any) -> Value:
        """A value of this trace, or a number as one."""
        if isinstance(given, Value):
            if given.trace is not self:
                self.refuse("takes a traced value that another function left behind")
            return given
        if isinstance(given, Opaque):
            self.refuse("computes with a reduction, which is known only at the end; it can only be returned")
        if isinstance(given, np.ndarray) and not given.ndim:
            given = given[()]  # what NumPy's numbers become on the left of a comparison
        if not isinstance(given, (Real, np.bool_)):
            self.refuse(
                f"takes a {_kind(given)}; expected a traced value or a number (arrays are passed as parameters)"
            )
        try:
            return self.add(Node("constant", number=repr(float(given))))
        except OverflowError:
            self.refuse("takes a number that is too large for a float")

    def number(self, given: Any) -> Value:
        """Likewise, true and false as 1 and 0."""
        value = self.value(given)
        return self.apply("where", value, 1.0, 0.0) if value.node.truth else value

    def truth(self, given: Any) -> Value:
        """Likewise, a number as whether it is not 0."""
        value = self.value(given)
        return value if value.node.truth else self.apply("not_equal", value, 0.0)

    def apply(self, op: str, *operands: Any) -> Value:
        """An operation on values and numbers."""
        if op == "where":
            given = [self.truth(operands[0]), *map(self.number, operands[1:])]
        else:
            given = [(self.truth if op.startswith("logical_") else self.number)(x) for x in operands]
        return self.add(Node(op, tuple(value.index for value in given)))

    def refuse(self, reason: str) -> NoReturn:
        """Ends the trace.

        Raises:
            EpilogueError: always; it names the line of the user's code that is being run.
        """
        frame = sys._getframe(1)
        while frame.f_back and not _is_users(frame):
            frame = frame.f_back
        refusal = EpilogueError(f"epilogue {self.name}: {frame.f_code.co_filename}:{frame.f_lineno}: {reason}")
        self.refusal = self.refusal or refusal
        raise refusal


class Opaque:
    """What has no value yet, and can be used for nothing; Value adds what is possible."""

    __slots__ = ("index", "trace")

    def __init__(self, trace: Trace, index: int) -> None:
        self.trace, self.index = trace, index

    @property
    def node(self) -> Node:
        """What it is."""
        return self.trace.nodes[self.index]

    def __repr__(self) -> str:
        return f"<traced value {self.index} of {self.trace.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__jax_array__":
            raise AttributeError(name)
        library = "jax" if name == "__jax_array__" else _library_of(sys._getframe(1))
        if library in _LIBRARIES[1:]:
            self.trace.refuse(_GIVEN.format(library))
        self.trace.refuse(f"asks a traced value for .{name}; {_ELEMENT}")

    def __format__(self, spec: str) -> str:
        if spec:
            self.trace.refuse(f"formats a traced value by {spec!r}; it has no value yet")
        return repr(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        name = _UFUNCS.get(ufunc.__name__)
        if method != "__call__" or keywords or not name:
            how = "" if method == "__call__" else f".{method}"
            given = f" with {', '.join(keywords)}=" if name and keywords else ""
            self.trace.refuse(f"calls numpy.{ufunc.__name__}{how}{given}, which is not among cutlass_py.functions")
        return self.trace.apply(name, *inputs) if name in OPERATIONS else FUNCTIONS[name](*inputs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        if not (trace := tracing()):
            return NotImplemented
        for array in (x for x in args if hasattr(x, "__dlpack__")):
            trace.value(array)  # which says how arrays are given
        trace.refuse(f"calls torch.{function.__name__}, which is not among cutlass_py.functions")

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        if function.__name__ == "where" and len(args) == 3 and not keywords:
            return self.trace.apply("where", *args)
        self.trace.refuse(f"calls numpy.{function.__name__}, which is not among cutlass_py.functions")


FUNCTIONS: dict[str, Callable[..., Any]] = {}  # by name: what functions.py has beside single operations; it says so


# NumPy's functions of one element by their names, and ours.
_UFUNCS = {name: name for name in OPERATIONS} | {
    "absolute": "abs",
    "fabs": "abs",
    "square": "square",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "invert": "logical_not",
}


def _refusal(reason: str) -> Callable[..., Any]:
    def refused(self: Opaque, *_: Any, **__: Any) -> Any:
        self.trace.refuse(reason)

    return refused


for _names, _reason in {
    ("bool",): _BRANCH,
    ("index",): "uses a traced value as an index",
    ("float", "int", "complex", "round", "trunc", "floor", "ceil"): (
        "makes a number of a traced value (float(), int(), the math module), which has none yet: use "
        "cutlass_py.functions"
    ),
    ("array",): "makes an array of a traced value, which has no value yet",
    ("len", "iter", "next", "getitem", "setitem", "delitem", "contains"): _ELEMENT,
    ("hash",): "uses a traced value as a key",
}.items():
    for _name in _names:
        setattr(Opaque, f"__{_name}__", _refusal(_reason))
for _name, _sign in {"floordiv": "//", "mod": "%", "divmod": "divmod()", "xor": "^", "lshift": "<<", "rshift": ">>",
                     "matmul": "@"}.items():  # fmt: skip
    for _side in ("", "r"):
        _reason = f"uses {_sign}, which is not among + - * / **, comparisons, & | and ~"
        setattr(Opaque, f"__{_side}{_name}__", _refusal(_reason))


class Value(Opaque):
    """An element of something that the function computes with."""

    __slots__ = ()

    def __pow__(self, exponent: Any, modulo: Any = None) -> Value:
        if modulo is not None:
            self.trace.refuse("calls pow() with a modulus, which no traced value has")
        whole = isinstance(exponent, Real) and not isinstance(exponent, bool) and exponent in range(1, 9)
        if not whole:
            self.trace.refuse("raises to a power that is no whole number from 1 to 8; use exp() and log()")
        power = self
        for _ in range(int(exponent) - 1):
            power = self.trace.apply("multiply", power, self)
        return power

    def __rpow__(self, base: Any) -> Value:
        self.trace.refuse("raises to a power that is traced; use exp() and log()")

    def __pos__(self) -> Value:
        return self

    __hash__ = Opaque.__hash__  # __eq__ is a comparison of elements


def _operator(op: str, swapped: bool = False) -> Callable[..., Value]:
    def applied(self: Value, *others: Any) -> Value:
        operands = (*others, self) if swapped else (self, *others)
        if op.startswith("logical_") and not all(
            isinstance(x, (bool, np.bool_)) or self.trace.value(x).node.truth for x in operands
        ):
            self.trace.refuse("joins numbers by & | or ~, which are for what comparisons yield")
        return self.trace.apply(op, *operands)

    return applied


for _name, _op in {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "and": "logical_and",
                   "or": "logical_or"}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_op))
    setattr(Value, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
                   "ne": "not_equal", "neg": "negative", "invert": "logical_not", "abs": "abs"}.items():  # fmt: skip
    setattr(Value, f"__{_name}__", _operator(_op))


class Reduced(Opaque):
    """A reduction of a value over an axis; it can only be returned."""

    __slots__ = ("axis", "reduction")

    def __init__(self, value: Value, reduction: str, axis: str) -> None:
        super().__init__(value.trace, value.index)
        self.reduction, self.axis = reduction, axis


for _name in ("add", "sub", "mul", "truediv", "pow", "and", "or", "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos",
              "abs", "invert", "radd", "rsub", "rmul", "rtruediv", "rpow", "rand", "ror"):  # fmt: skip
    setattr(Reduced, f"__{_name}__", _refusal("computes with a reduction, which is known only at the end"))
Reduced.__hash__ = Opaque.__hash__  # type: ignore[method-assign]


def trace_of(*operands: Any) -> Trace | None:
    """The trace that operands of a function belong to, or None where none is traced."""
    return next((x.trace for x in operands if isinstance(x, Opaque)), None)


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def tracing() -> Trace | None:
    """The trace of the function that is being called, or None outside of one."""
    return _current.get()


def cast(value: Any, dtype: str) -> Value:
    """A traced value rounded to one of CASTS, and back."""
    trace: Trace = value.trace
    return trace.add(Node("cast", (trace.number(value).index,), dtype))


def reduce(value: Any, reduction: str, axis: int | None) -> Reduced:
    """A reduction of a traced value over one of AXES."""
    trace: Trace = value.trace
    along = next(name for name, over in AXES.items() if over == axis)
    return Reduced(trace.number(value), reduction, along)


# ---------------------------------------------------------------------------------------------------- a function


def traced(function: Callable[..., Any]) -> Program:
    """Calls the function once; what it does to its parameters is the program.

    Raises:
        EpilogueError: it cannot be expressed.
        TypeError: it is no function.
    """
    if not callable(function):
        raise TypeError(f"epilogue: a {_kind(function)}; expected a function")
    name = getattr(function, "__name__", type(function).__name__)
    trace = Trace(name)
    parameters = _parameters(function, name)
    given = [trace.add(Node("accum")), *(trace.add(Node("input", name=p.name)) for p in parameters[1:])]
    only = inspect.Parameter.KEYWORD_ONLY
    positional = [value for p, value in zip(parameters, given, strict=True) if p.kind != only]
    keywords = {p.name: value for p, value in zip(parameters, given, strict=True) if p.kind == only}
    entered = _current.set(trace)
    try:
        returned = function(*positional, **keywords)
    except EpilogueError:
        if not trace.refusal:
            raise
    except Exception as error:
        if not trace.refusal:
            raise EpilogueError(f"epilogue {name}: {_place_and_reason(error)}") from error
    finally:
        _current.reset(entered)
    if trace.refusal:
        raise trace.refusal
    return _program(trace, function, tuple(p.name for p in parameters[1:]), returned)


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise EpilogueError(f"epilogue {name}: its parameters are not known; expected a Python function") from None
    where = _definition(function)
    if not parameters or parameters[0].kind == inspect.Parameter.KEYWORD_ONLY:
        raise EpilogueError(f"epilogue {name}: {where}: expected the sum (accum) as the first parameter")
    for p in parameters:
        if p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise EpilogueError(f"epilogue {name}: {where}: has {p}; expected parameters by name")
        if p.default is not p.empty and not isinstance(p.default, Real):
            raise EpilogueError(f"epilogue {name}: {where}: {p.name}={p.default!r}; expected a number as a default")
    return parameters


def _definition(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "?"


def _library_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_users(frame: FrameType) -> bool:
    return _library_of(frame) not in _LIBRARIES


def _place_and_reason(error: Exception) -> str:
    """The last line of the user's own code that an error went through, and the error itself.

    Where another library names the type that it was given, what the function did stands in the error's place.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames if _is_users(frame)]
    library = _library_of(frames[-1][0])
    given = library in _LIBRARIES[1:] and __name__ in str(error)
    reason = _GIVEN.format(library) if given else f"{type(error).__name__}: {error}"
    return f"{lines[-1] if lines else '?'}: {reason}"


def _program(trace: Trace, function: Callable[..., Any], inputs: tuple[str, ...], returned: Any) -> Program:
    def refuse(reason: str) -> NoReturn:
        raise EpilogueError(f"epilogue {trace.name}: {_definition(function)}: {reason}")

    def index(given: Any, what: str) -> int:
        if not isinstance(given, Value | Real):
            refuse(f"returns a {_kind(given)} as {what}; expected a traced value")
        return trace.number(given).index

    further: Any = {}
    if isinstance(returned, tuple):
        if len(returned) != 2 or not isinstance(returned[1], dict):
            refuse("returns a tuple that is not (d, {name: value}); further outputs have names")
        returned, further = returned
    if isinstance(returned, Reduced):
        refuse("returns a reduction as d; expected a traced value, and reductions by name")
    result = index(returned, "d")
    outputs = []
    for name, given in further.items():
        if not isinstance(name, str) or not name.isidentifier() or name in inputs:
            refuse(f"returns an output called {name!r}; expected names that are not those of parameters")
        if isinstance(given, Reduced):
            if given.trace is not trace:
                refuse(f"returns a reduction as {name} that another function left behind")
            outputs.append(Output(name, given.index, given.reduction, given.axis))
        else:
            outputs.append(Output(name, index(given, name)))
    return Program(trace.name, inputs, tuple(trace.nodes), result, tuple(outputs))


def _kind(value: Any) -> str:
    return type(value).__name__


def defaults(function: Callable[..., Any]) -> dict[str, float]:
    """Parameters behind the sum that need not be given, and their numbers."""
    _, *given = inspect.signature(function).parameters.values()
    try:
        return {p.name: float(p.default) for p in given if p.default is not p.empty}
    except OverflowError:
        raise EpilogueError(f"epilogue {function.__name__}: a default is too large for a float") from None
