"""One grouped_gemm as a JSON object (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...arrays.tensor_spec import TensorSpec
from ...declaration.dtypes import LAYOUTS, STORAGE
from ..gemm.problems import KEYS as PRODUCT
from ..gemm.problems import Entry
from .arguments import GroupedArguments

KEYS = {
    "groups": "number of them",
    "m": "rows of the result: of all groups together, where they divide rows",
    "n": "columns of the result, likewise",
    "k": "length of the sums, likewise",
    "axis": "that groups divide: m (default), n or k; or batch: the first rows of a matrix for each",
    "layout": PRODUCT["layout"],
    "a": PRODUCT["a"],
    "b": PRODUCT["b"],
    "d": "dtype of the result (default what grouped_gemm would return)",
    "bias": "dtype of a bias, one row for each group; for all where groups divide columns",
    "activation": PRODUCT["activation"],
    "gated": PRODUCT["gated"],
    "scale_a": PRODUCT["scale_a"] + "; of each group, where they do not divide rows",
    "scale_b": PRODUCT["scale_b"] + "; of each group, where they do not divide columns",
    "compute": PRODUCT["compute"],
    "gather": "rows of A, where those of the groups are found by their numbers",
    "expected": "as in grouped_gemm",
}
_NEEDED = ("groups", "m", "n", "k", "a")
_AXES = ("m", "n", "k", "batch")


class _Entry(Entry):
    """Such an object: operands, vectors and blocks are of each group, unless groups divide them."""

    def __init__(self, entry: Mapping[str, Any], device: str) -> None:
        super().__init__(entry, KEYS, _NEEDED, device)
        self.groups, self.axis = self.extent("groups"), self.one_of("axis", _AXES, "m")

    def operand(self, name: str, rows: int, cols: int, order: str) -> TensorSpec:
        """A or B."""
        self.batch = self._each(name)
        return self.matrix(self.one_of(name, STORAGE, self.a), rows, cols, order)

    def blocks(self, shape: str, value: str) -> TensorSpec:
        """As the operand that they scale."""
        self.batch = self._each("a" if shape == "rows" else "b")
        return super().blocks(shape, value)

    def vector(self, dtype: str, axis: str) -> TensorSpec:
        """One value for each column of B, or for each row."""
        lines = self.columns_of_b if axis == "n" else self.m
        return TensorSpec([lines] if axis == self.axis else [self.groups, lines], dtype, device=self.device)

    def _each(self, name: str) -> list[int]:
        return [self.groups] if self.axis in ("n" if name == "a" else "m", "batch") else []


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GroupedArguments:
    """One object as GroupedArguments of TensorSpecs.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    given = _Entry(entry, device)
    layout = given.one_of("layout", LAYOUTS, "tt")
    gathered = "gather" in given.given
    a = given.operand("a", given.extent("gather") if gathered else given.m, given.k, layout[0])
    b = given.operand("b", given.k, given.columns_of_b, layout[1])
    told = "sizes" if given.axis == "batch" else "offsets"
    groups: dict[str, Any] = {told: TensorSpec([given.groups], "s32", device=device)}
    if gathered:
        groups["gather"] = TensorSpec([given.m], "s32", device=device)
    return GroupedArguments(a, b, **given.keywords(), **groups, expected=given.given.get("expected"))
