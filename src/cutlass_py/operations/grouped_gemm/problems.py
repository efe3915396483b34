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
    "a": "dtype of A and B",
    "d": "dtype of the result (default what grouped_gemm would return)",
    "bias": "dtype of a bias, one row for each group; for all where groups divide columns",
    "activation": PRODUCT["activation"],
    "gated": PRODUCT["gated"],
    "compute": PRODUCT["compute"],
    "gather": "rows of A, where those of the groups are found by their numbers",
    "expected": "as in grouped_gemm",
}
_NEEDED = ("groups", "m", "n", "k", "a")
_AXES = ("m", "n", "k", "batch")


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GroupedArguments:
    """One object as GroupedArguments of TensorSpecs.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    given = Entry(entry, KEYS, _NEEDED, device)
    m, n, k, groups = given.m, given.n, given.k, given.extent("groups")
    axis, layout = given.one_of("axis", _AXES, "m"), given.one_of("layout", LAYOUTS, "tt")

    def matrix(rows: int, cols: int, order: str, each: bool) -> TensorSpec:
        strides = [cols, 1] if order == "t" else [1, rows]
        shape = [groups, rows, cols] if each else [rows, cols]
        return TensorSpec(shape, given.a, [rows * cols, *strides] if each else strides, device)

    gathered = "gather" in given.given
    a = matrix(given.extent("gather") if gathered else m, k, layout[0], axis in ("n", "batch"))
    b = matrix(k, given.columns_of_b, layout[1], axis in ("m", "batch"))
    asked = ("gated", "compute", "expected")
    keywords: dict[str, Any] = {key: given.given[key] for key in asked if key in given.given}
    if "activation" in given.given:
        keywords["activation"] = given.activation()
    if "bias" in given.given:
        shape = [n] if axis == "n" else [groups, given.columns_of_b]
        keywords["bias"] = TensorSpec(shape, given.one_of("bias", STORAGE), device=device)
    if "d" in given.given:
        keywords["out_dtype"] = given.one_of("d", STORAGE)
    if gathered:
        keywords["gather"] = TensorSpec([m], "s32", device=device)
    keywords["sizes" if axis == "batch" else "offsets"] = TensorSpec([groups], "s32", device=device)
    return GroupedArguments(a, b, **keywords)
