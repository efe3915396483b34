"""An operation as a value: operands and keywords of one grouped_gemm, as arrays or as metadata alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from ... import _core
from ..._core import Problem
from ...epilogues.activations import Activation
from ..gemm.arguments import ProductArguments, order_of_tiles, scratch_of_plan
from .problem_text import describe


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
        groups = {"offsets": offsets, "sizes": sizes, "gather": gather, "expected": expected}
        product = {
            "out": out, "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "gated": gated,
            "aux": aux, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "compute": compute,
            "out_dtype": out_dtype, "deterministic": deterministic,
        }  # fmt: skip
        self.keywords = {**groups, **product}
        self._groups, self._product = groups, product
        self.problem: Problem = self._problem(None)

    def _problem(self, kernel: Any) -> Problem:
        groups, product = self._groups, {**self._product, "kernel": kernel}
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
        return _core.PreparedGroups(self.a, self.b, self._groups, {**self._product, "kernel": kernel}, *order)

    def workspace_size(self, *, kernel: Any = None) -> int:
        """Bytes of device memory that `run` needs beside the operands; 0 on the CPU. The kernel is compiled if need be.

        Raises:
            As grouped_gemm; ValueError: no kernel takes all groups.
        """
        scratch_bytes = partial(_core.grouped_scratch_bytes, *self._operands, self._product)
        return scratch_of_plan(self._problem(kernel), scratch_bytes)

    @property
    def _operands(self) -> tuple[Any, Any, Any, Any, Any]:
        groups = self._groups
        return self.a, self.b, groups["offsets"], groups["sizes"], groups["gather"]

    def group_ends(self) -> list[int]:
        """Where groups end; how long each is, where each has a matrix; of TensorSpecs none. Waits for the device.

        Raises:
            ValueError: the numbers do not fit.
        """
        return _core.group_ends(*self._operands, self._product)

    def __repr__(self) -> str:
        return f"GroupedArguments({describe(self.problem)})"
