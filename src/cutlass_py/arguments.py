"""An operation as a value: operands and keywords of one gemm, as arrays or as metadata alone."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from . import _core
from ._core import EpilogueCall, Problem, TypedView
from .activations import Activation
from .asked import asked_by
from .declaration.dtypes import DTYPES, arithmetic


class TensorSpec(_core.TensorSpecBase):
    """A tensor described without memory, for questions that need none: get_kernels, explain, Kernel.supports.

    In a list, TensorSpecs stand for matrices at unequal distances. Specs with the same fields are equal; they can be
    copied and pickled.

    Args:
        shape: extents.
        dtype: "f16", "bf16", "f32", "f64", ..., or a framework's dtype.
        strides: in elements; row-major without gaps by default.
        device: "cpu", "cuda" or "cuda:1", or a device of torch. Need not exist.
        alignment: of the first element, in bytes.

    Raises:
        ValueError, TypeError: a parameter does not fit; the message names it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Any,
        strides: Sequence[int] | None = None,
        device: str = "cuda",
        alignment: int = 256,
    ) -> None:
        shape = _integers("shape", shape)
        if shape and min(shape) < 0:
            raise ValueError(f"TensorSpec: shape is {tuple(shape)}; extents must not be negative, found {min(shape)}")
        if strides is None:
            strides = [1] * len(shape)
            for i in range(len(shape) - 2, -1, -1):
                strides[i] = strides[i + 1] * max(shape[i + 1], 1)
        strides = _integers("strides", strides)
        if type(alignment) is not int or alignment != 256:
            (alignment,) = _integers("alignment", [alignment])
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"TensorSpec: alignment is {alignment}; expected a power of two")
        super().__init__(shape, strides, dtype, 0 if device == "cuda" else _ordinal(str(device)), alignment)
        if alignment < 16 and alignment < DTYPES[self.dtype].itemsize:
            least = DTYPES[self.dtype].itemsize
            raise ValueError(f"TensorSpec: alignment is {alignment}; expected {least} at least, of {self.dtype}")

    def _fields(self) -> tuple[Any, ...]:
        """What `__init__` takes."""
        return tuple(self.shape), self.dtype, tuple(self.strides), self.device, self.alignment

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, TensorSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fields())

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorSpec, self._fields()

    def __repr__(self) -> str:
        aligned = "" if self.alignment == 256 else f", alignment={self.alignment}"
        return f"TensorSpec({tuple(self.shape)}, {self.dtype!r}, {tuple(self.strides)}, {self.device!r}{aligned})"


def _integers(parameter: str, values: Sequence[int]) -> list[int]:
    """Whole numbers of 64 bits."""
    try:
        numbers = list(map(operator.index, values))
    except TypeError:
        raise TypeError(f"TensorSpec: {parameter} is {values!r}; expected whole numbers") from None
    if numbers and not (-(2**63) <= min(numbers) and max(numbers) < 2**63):
        raise ValueError(f"TensorSpec: {parameter} is {numbers}; expected numbers of 64 bits")
    return numbers


def _ordinal(device: str) -> int:
    if device == "cpu":
        return -1
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal() or len(index) > 9:  # more does not fit an int32
        raise ValueError(f"TensorSpec: device is {device!r}; expected 'cpu', 'cuda' or 'cuda:<ordinal>'")
    return int(index or 0)


def view(array: Any, dtype: Any) -> TypedView:
    """An array read as another dtype of the same size, for frameworks that cannot name it.

    Args:
        array: any DLPack array whose elements have the dtype's size, e.g. a CuPy uint16 array for "bf16". It is not
            looked at before a call; that takes the bits as they are, of floats too, and refuses another size.
        dtype: what its elements are.

    Returns:
        A value that gemm accepts wherever it accepts an array. As `out` it is returned itself; results of operands that
        are views come back as views where the framework cannot name their dtype.

    Raises:
        TypeError: `dtype` is none that arrays have. In a call: the array is none, or its elements have another size.
    """
    return TypedView(array, dtype)


class GemmArguments:
    """Operands and keywords of one gemm: what get_kernels, explain, Kernel.supports and Kernel.run take.

    The keywords are those of `gemm`, but for `kernel` and `stream`, which `run` takes. Operands may be arrays or
    TensorSpecs. `run`, `plan` and `workspace_size` are about gemm's own choice; a kernel's methods of these names about
    that kernel.

    Attributes:
        problem: the canonical problem, which legality and ranking look at.

    Raises:
        ValueError, TypeError: as `gemm` does.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        out: Any = None,
        c: Any = None,
        alpha: Any = 1.0,
        beta: Any = None,
        bias: Any = None,
        activation: str | Activation | None = None,
        aux: Any = None,
        gate: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_out: Any = None,
        bias_grad: Any = None,
        epilogue: EpilogueCall | None = None,
        compute: str | None = None,
        out_dtype: Any = None,
        splits: int | str | None = None,
        deterministic: bool = False,
    ) -> None:
        self.a, self.b = a, b
        self.keywords = {
            "out": out, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "aux": aux,
            "gate": gate, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "bias_grad": bias_grad,
            "epilogue": epilogue, "compute": compute, "out_dtype": out_dtype, "splits": splits,
            "deterministic": deterministic,
        }  # fmt: skip
        try:
            self.problem: Problem = _core.problem(a, b, **self.keywords)
        except (TypeError, ValueError) as error:
            if (absent := _without_memory([a, b, *self.keywords.values()])) is None:
                raise
            spec = f"TensorSpec({tuple(absent.shape)}, {str(absent.dtype)!r})"
            raise type(error)(f"{error}; {spec} describes an operand that has no memory") from error

    def replace(self, **changes: Any) -> GemmArguments:
        """The same operation with other operands or keywords: `args.replace(a=x, out=y)`.

        Args:
            changes: a, b, or any keyword of GemmArguments; what is not named stays.

        Raises:
            TypeError: there is no such keyword.
            ValueError, TypeError: as GemmArguments.
        """
        return GemmArguments(**{"a": self.a, "b": self.b, **self.keywords, **changes})

    __replace__ = replace  # copy.replace

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self.a, self.b, self.keywords)

    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run it: `gemm` on these operands.

        Args:
            kernel, stream: as in gemm.
            workspace: as in Kernel.run.

        Raises:
            As gemm; ValueError: the workspace does not fit.
        """
        if workspace is not None:
            return self.plan(kernel=kernel)(stream=stream, workspace=workspace)
        return _core.gemm(self.a, self.b, **self.keywords, kernel=kernel, stream=stream)

    def plan(self, *, kernel: Any = None, raster: str | None = None, swizzle: int | None = None) -> _core.Prepared:
        """A call prepared: `plan(a, b, out)` runs it on new arrays, without checking and choosing anew.

        The plan keeps these operands as the defaults of its call; TensorSpecs do where every call brings arrays. New
        arrays have the shapes, strides, dtypes and device of these, and are aligned as they are; whatever else differs
        is refused by name. Packing, splits of k and composed epilogues are part of the plan.

        Args:
            kernel: as in gemm.
            raster: "m" or "n", the axis along which a 3.x kernel's tiles follow each other; by default as chosen.
            swizzle: 1, 2, 4 or 8: at most so many rows of tiles, or columns, side by side; likewise.

        Raises:
            As gemm; ValueError: these are lists of matrices, or the kernel's tiles have no order to choose.
        """
        if raster not in tuple(_RASTERS) or swizzle not in (None, *SWIZZLES):
            raise ValueError(
                f"plan: raster is {raster!r}, swizzle is {swizzle!r}; expected 'm' or 'n', and 1, 2, 4 or 8"
            )
        return _core.Prepared(self.a, self.b, {**self.keywords, "kernel": kernel}, _RASTERS[raster], swizzle or 0)

    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            As gemm; ValueError: these are lists, whose scratch is the package's own.
        """
        from .choice.select import plan
        from .gpu import gpu_of

        p = _core.problem(self.a, self.b, **self.keywords, kernel=kernel)
        chosen, gpu = plan(p), gpu_of(p)
        if gpu is None or chosen.provided:
            return 0
        return _core.scratch_bytes(self.a, self.b, self.keywords, chosen, gpu.sm_count)

    def __repr__(self) -> str:
        return f"GemmArguments({describe(self.problem)})"


def _made_again(a: Any, b: Any, keywords: dict[str, Any]) -> GemmArguments:
    return GemmArguments(a, b, **keywords)


def _without_memory(values: Sequence[Any]) -> Any:
    """The first that is an array's metadata in a framework: torch's meta and fake tensors, JAX's shapes."""
    abstract = ("FakeTensor", "ShapeDtypeStruct")
    return next((x for x in values if getattr(x, "is_meta", False) or type(x).__name__ in abstract), None)


_RASTERS = {None: 0, "m": 1, "n": 2}  # as in kernel.h
SWIZZLES = (1, 2, 4, 8)  # likewise


def describe(p: Problem) -> str:
    """A problem in one line, for messages and tables."""
    batch = f"{p.batch} x " if p.batch != 1 else ""
    layouts = p.layout_a + p.layout_b
    lists = " in a list" if p.pointers else ""
    compute = f" computed in {p.operand_a}" if p.operand_a != p.a else ""
    if p.accumulator != arithmetic(p.a or "").accumulator:
        compute += f" summed in {p.accumulator}"
    return f"{batch}({p.m}, {p.n}, {p.k}) {layouts}{lists}: {_formula(p)} -> {p.d}{compute} on {p.device}{turned(p)}"


def turned(p: Problem) -> str:
    """What has to be known to read words about a problem's a and b: whether they are the caller's b and a."""
    return " (a and b have changed places: out is column-major)" if p.transposed else ""


def _formula(p: Problem) -> str:
    """The epilogue in words, in the order in which it is applied."""
    if user := asked_by(p):
        return f"{p.a} @ {p.b} -> {user.program.formula}"
    scales = [name + _block_text(name, getattr(p, name)) for name in ("scale_a", "scale_b") if getattr(p, name)]
    text = " * ".join([f"{p.a} @ {p.b}", *scales])
    text += f" + {p.c} C" if p.c else ""
    text += " + bias" + (" per row" if p.bias_axis == "m" else "") if p.bias else ""
    if p.activation.startswith("d_"):
        text += f" * {p.activation}(aux)"
    elif p.aux:
        text += " (kept in aux)"
    if p.gate:
        text += f" * {p.activation}(gate)" if p.activation != "identity" else " * gate"
    elif p.activation != "identity" and not p.activation.startswith("d_"):
        text += f" -> {p.activation}"
    text += " -> bias_grad" if p.bias_grad else ""
    return text + (" * scale_out" if p.scale_out else "")


def _block_text(name: str, mark: str) -> str:
    """What shares a factor where scales are in blocks."""
    return {"b": "[128x128]", "r": "[1x128]" if name == "scale_a" else "[128x1]", "p": "[1x128]"}.get(mark, "")


def arguments_of(function: str, args: Any) -> GemmArguments:
    """What is GemmArguments; TypeError, of the function that was called, for what is not."""
    if not isinstance(args, GemmArguments):
        raise TypeError(f"{function}: args is {_core.described_type(args)}; expected GemmArguments")
    return args


def problem_asked(function: str, a: Any, b: Any, keywords: dict[str, Any]) -> Problem:
    """The problem of a function that takes GemmArguments, or what they are made of."""
    if b is not None:
        return GemmArguments(a, b, **keywords).problem
    if not isinstance(a, GemmArguments):
        raise TypeError(
            f"{function}: a is {_core.described_type(a)} and b is missing; expected both operands, or GemmArguments"
        )
    if keywords:
        raise TypeError(f"{function}: {', '.join(keywords)} belong into the GemmArguments")
    return a.problem
