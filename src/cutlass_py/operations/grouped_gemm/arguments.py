"""An operation as a value: operands and keywords of one grouped_gemm, as arrays or as metadata alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from ... import _core
from ..._core import Problem
from ...epilogues.activations import Activation
from ...errors import ArgumentError, NoKernelError
from ..gemm.arguments import ProductArguments, order_of_tiles, scratch_of_plan
from .problem_text import describe

OPERATION = "grouped_gemm"
_OF_GROUPS = ("offsets", "sizes", "gather", "expected")


class GroupedArguments(ProductArguments):
    """Operands and keywords of one grouped_gemm: what get_kernels, explain, Kernel.supports and Kernel.run take.

    The keywords are those of `grouped_gemm`, but for `kernel` and `stream`, which `run` takes. Operands may be arrays
    or TensorSpecs (offsets, sizes and gather: "s32").

    Attributes:
        problem: the canonical problem, which legality and ranking look at.

    Raises:
        ValueError, TypeError: as `grouped_gemm` does.
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        offsets: Any = None,
        sizes: Any = None,
        gather: Any = None,
        out: Any = None,
        c: Any = None,
        alpha: Any = 1.0,
        beta: Any = None,
        bias: Any = None,
        activation: str | Activation | None = None,
        gated: str | None = None,
        aux: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_out: Any = None,
        expected: int | None = None,
        compute: str | None = None,
        out_dtype: Any = None,
        deterministic: bool = False,
    ) -> None:
        self.a, self.b = a, b
        self.keywords = {
            "offsets": offsets, "sizes": sizes, "gather": gather, "expected": expected, "out": out, "c": c,
            "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "gated": gated, "aux": aux,
            "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "compute": compute,
            "out_dtype": out_dtype, "deterministic": deterministic,
        }  # fmt: skip
        self.problem: Problem = self._problem(None)

    def _parted(self, kernel: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keywords that tell of groups, and gemm's."""
        groups = {name: self.keywords[name] for name in _OF_GROUPS}
        return groups, {name: x for name, x in self.keywords.items() if name not in groups} | {"kernel": kernel}

    def _problem(self, kernel: Any) -> Problem:
        groups, product = self._parted(kernel)
        numbers = groups["offsets"], groups["sizes"], groups["expected"]
        return _core.grouped_problem(self.a, self.b, *numbers, product, groups["gather"])

    def run(self, *, kernel: Any = None, stream: Any = None, workspace: Any = None) -> Any:
        """Run it: `grouped_gemm` on these operands.

        Args:
            kernel, stream: as in grouped_gemm.
            workspace: as in Kernel.run.

        Raises:
            As grouped_gemm; ValueError: the workspace does not fit, or no kernel takes all groups.
        """
        if workspace is not None:
            return self.plan(kernel=kernel)(stream=stream, workspace=workspace)
        return _core.grouped_gemm(self.a, self.b, **self.keywords, kernel=kernel, stream=stream)

    def plan(
        self, *, kernel: Any = None, raster: str | None = None, swizzle: int | None = None
    ) -> _core.PreparedGroups:
        """A call prepared: `plan(a, b, out, offsets=offsets)` runs it on new arrays, without choosing anew.

        The plan keeps these operands as the defaults of its call; TensorSpecs do where every call brings arrays. New
        arrays make the same problem, whose groups may be of any size.

        Args:
            kernel: as in grouped_gemm.
            raster: "m" or "n", the axis along which a 3.x kernel's tiles follow each other; by default as chosen.
            swizzle: 1, 2, 4 or 8: at most so many rows of tiles, or columns, side by side; likewise.

        Raises:
            As grouped_gemm; ValueError: no kernel takes all groups, or its tiles have no order to choose.
        """
        order = order_of_tiles(raster, swizzle)
        return _core.PreparedGroups(self.a, self.b, *self._parted(kernel), *order)

    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            As grouped_gemm; ValueError: no kernel takes all groups.
        """
        groups, product = self._parted()
        operands = self.a, self.b, groups["offsets"], groups["sizes"], groups["gather"]
        try:
            scratch_bytes = partial(_core.grouped_scratch_bytes, *operands, product)
            return scratch_of_plan(self._problem(kernel), scratch_bytes)
        except NoKernelError as error:
            raise error.renamed(OPERATION) from None
        except ArgumentError as error:
            raise error.renamed(OPERATION, {}) from None

    def group_ends(self) -> list[int]:
        """Where groups end, or how many first rows of each matrix are in use, for `tune`. Waits for the device.

        Empty where a TensorSpec tells groups apart.

        Raises:
            ValueError: the numbers do not fit.
        """
        groups, product = self._parted()
        return _core.group_ends(self.a, self.b, groups["offsets"], groups["sizes"], groups["gather"], product)

    def __repr__(self) -> str:
        return f"GroupedArguments({describe(self.problem)})"
