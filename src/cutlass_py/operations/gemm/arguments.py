"""An operation as a value: operands and keywords of one gemm, as arrays or as metadata alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ... import _core
from ..._core import EpilogueCall, Problem
from ...declaration.config import RASTERS, SWIZZLES
from ...epilogues.activations import Activation
from ...kernels.operation import Arguments
from .problem_text import describe

if TYPE_CHECKING:
    from typing_extensions import Self


class ProductArguments(Arguments):
    """Two operands and keywords, as a value: other ones of the same kind can be made of it, in other processes too."""

    a: Any
    b: Any
    keywords: dict[str, Any]

    def replace(self, **changes: Any) -> Self:
        """The same operation with other operands or keywords: `args.replace(a=x, out=y)`.

        Args:
            changes: a, b, or any keyword that these take; what is not named stays.

        Raises:
            TypeError: there is no such keyword.
            ValueError, TypeError: as where they are made.
        """
        return type(self)(**{"a": self.a, "b": self.b, **self.keywords, **changes})

    __replace__ = replace  # copy.replace

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.a, self.b, self.keywords)


def order_of_tiles(raster: str | None, swizzle: int | None) -> tuple[int, int]:
    """As a launch is told; 0: as chosen. Refuses what is none."""
    if raster not in tuple(RASTERS) or swizzle not in (None, *SWIZZLES):
        raise ValueError(f"plan: raster is {raster!r}, swizzle is {swizzle!r}; expected 'm' or 'n', and 1, 2, 4 or 8")
    return RASTERS[raster], swizzle or 0


def scratch_of_plan(p: Problem, scratch_bytes: Callable[[Any, int], int]) -> int:
    """What a problem takes by its plan: `scratch_bytes` of that and of a number of multiprocessors."""
    from ...arrays.gpu import gpu_of
    from ...dispatch.planning import plan

    chosen, gpu = plan(p), gpu_of(p)
    return 0 if gpu is None or chosen.provided else scratch_bytes(chosen, gpu.sm_count)


def _made_again(kind: Any, a: Any, b: Any, keywords: dict[str, Any]) -> Any:
    return kind(a, b, **keywords)


class GemmArguments(ProductArguments):
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
        gated: str | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_out: Any = None,
        bias_grad: Any = None,
        epilogue: EpilogueCall | None = None,
        compute: str | None = None,
        out_dtype: Any = None,
        splits: int | str | None = None,
        deterministic: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        self.a, self.b = a, b
        self.keywords = {  # written out, as a loop over the table costs more; a test compares the two
            "out": out, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "aux": aux,
            "gate": gate, "gated": gated, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out,
            "bias_grad": bias_grad, "epilogue": epilogue, "compute": compute, "out_dtype": out_dtype, "splits": splits,
            "deterministic": deterministic, "batch_invariant": batch_invariant,
        }  # fmt: skip
        try:
            self.problem: Problem = _core.problem(a, b, **self.keywords)
        except (TypeError, ValueError) as error:
            # What is an array's metadata in a framework: torch's meta and fake tensors, JAX's shapes.
            abstract = ("FakeTensor", "ShapeDtypeStruct")
            values = (a, b, *self.keywords.values())
            absent = next((x for x in values if getattr(x, "is_meta", False) or type(x).__name__ in abstract), None)
            if absent is None:
                raise
            spec = f"TensorSpec({tuple(absent.shape)}, {str(absent.dtype)!r})"
            raise type(error)(f"{error}; {spec} describes an operand that has no memory") from error

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
        order = order_of_tiles(raster, swizzle)
        return _core.Prepared(self.a, self.b, {**self.keywords, "kernel": kernel}, *order)

    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            As gemm; ValueError: these are lists, whose scratch is the package's own.
        """
        p = _core.problem(self.a, self.b, **self.keywords, kernel=kernel)
        return scratch_of_plan(p, partial(_core.scratch_bytes, self.a, self.b, self.keywords))

    def __repr__(self) -> str:
        return f"GemmArguments({describe(self.problem)})"
