"""One gemm as a JSON object (docs/problems.md); a file of them is read by kernels/problem_files.py.

Operands are named by their dtype, aligned and without gaps; everything but A and B is row-major.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from ...arrays.tensor_spec import TensorSpec
from ...declaration.dtypes import BLOCK, COMPUTE, DTYPES, LAYOUTS, STORAGE
from ...declaration.epilogues import ACTIVATIONS
from ...declaration.operands import KEYWORDS, OPERANDS
from ...epilogues.activations import Activation
from .arguments import GemmArguments

_SHAPES = {x.name: x.shape for x in OPERANDS["gemm"]}
_VECTORS = tuple(name for name, shape in _SHAPES.items() if shape in ("vector", "sum"))
_FACTORS = {"factor": "", "rows": "m", "columns": "n"}  # and the axis of a vector
_IN_BLOCKS = {"rows": ("block",), "columns": ("block", "group")}
_NEEDED = ("m", "n", "k", "a")

# Each with its meaning: of the product, then gemm's other keywords in their order, but for those that are no data.
KEYS = {
    "m": "rows of the result",
    "n": "columns of the result; where there are gates and values, of either",
    "k": "length of the sums",
    "batch": "number of problems, stacked (default 1)",
    "layout": "of A, then B: t row-major, n column-major (default tt)",
    "a": "dtype of A",
    "b": "dtype of B (default A's)",
    "c": "dtype of an addend",
    "d": "dtype of the result (default what gemm would return)",
    "compute": "as in gemm",
}
_MEANINGS = {  # of operands by their shape, of other keywords by their name
    "result": "dtype of {}",
    "vector": "dtype of a {}",
    "sum": "dtype of {}",
    "factor": "a number, or one: an array of one element",
    "rows": "a number, one, vector: one value per row; or block: one per row and 128 of k",
    "columns": "likewise; vector: one value per column; block: one per 128 of k by 128 columns; group: by one column",
    "activation": 'its name, or with parameters ["clamp", 0, 6]',
    "gated": "as in gemm: b has 2 n columns; with a derivative the result has",
    "splits": "as in gemm",
    "deterministic": "as in gemm",
    "batch_invariant": "as in gemm",
}
for _name in KEYWORDS["gemm"]:
    _meaning = _MEANINGS.get(_SHAPES.get(_name, _name))
    if _meaning and _name not in ("out", *KEYS):  # out is given by its dtype, d
        KEYS[_name] = _meaning.format(_name)
    if _name in _VECTORS:
        KEYS[f"{_name}_axis"] = "n: one value per column of the result, m: one per row (default n)"


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GemmArguments:
    """One object as GemmArguments of TensorSpecs.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    given = Entry(entry, KEYS, _NEEDED, device)
    for name in _VECTORS:
        if entry.get(f"{name}_axis") is not None and entry.get(name) is None:
            raise ValueError(f"{name}_axis: given without {name}")
    return GemmArguments(*given.product(), **given.keywords())


class Entry:
    """An object that describes a product, its keys checked, read key by key.

    Raises:
        ValueError: a key that is not among `keys`, or one that is needed and missing; later, a value that does not fit.
    """

    def __init__(self, entry: Mapping[str, Any], keys: Mapping[str, str], needed: Iterable[str], device: str) -> None:
        for key in entry:
            if key not in keys:
                raise ValueError(f"{key}: no such key; expected one of {', '.join(keys)}")
        for key in needed:
            if key not in entry:
                raise ValueError(f"{key}: missing; expected {keys[key]}")
        self.given = {key: value for key, value in entry.items() if value is not None or key in needed}
        self.device = device
        self.m, self.n, self.k = map(self.extent, "mnk")
        self.batch = [self.extent("batch")] if self.given.get("batch", 1) != 1 else []
        self.a = self.one_of("a", STORAGE)
        gated = str(self.given.get("gated", ""))
        self.columns_of_b = 2 * self.n if gated and not gated.startswith("d_") else self.n
        self.columns_of_aux = 2 * self.n if gated else self.n

    def product(self) -> tuple[TensorSpec, TensorSpec]:
        """A and B."""
        layout = self.one_of("layout", LAYOUTS, "tt")
        a = self.matrix(self.a, self.m, self.k, layout[0])
        return a, self.matrix(self.one_of("b", STORAGE, self.a), self.k, self.columns_of_b, layout[1])

    def keywords(self) -> dict[str, Any]:
        """Everything else."""
        found: dict[str, Any] = {}
        for key in self.given:
            shape = _SHAPES.get(key)
            if key in ("gated", "compute", "splits", "deterministic", "batch_invariant"):
                found[key] = self.given[key]
            elif shape == "result":
                columns = self.columns_of_aux if key == "aux" else self.n
                found[key] = self.matrix(self.one_of(key, STORAGE), self.m, columns)
            elif key in _VECTORS:
                found[key] = self.vector(self.one_of(key, STORAGE), self.one_of(f"{key}_axis", ("n", "m"), "n"))
            elif shape in _FACTORS:
                found[key] = self.factor(key, shape)
            elif key == "activation":
                found[key] = self.activation()
            elif key == "d":
                found["out_dtype"] = self.one_of(key, STORAGE)
        return found

    def matrix(self, dtype: str, rows: int, cols: int, order: str = "t") -> TensorSpec:
        """An operand without gaps, with the batch in front."""
        strides = [cols, 1] if order == "t" else [1, rows]
        stacked = [rows * cols] * len(self.batch)
        return TensorSpec([*self.batch, rows, cols], dtype, stacked + strides, self.device)

    def vector(self, dtype: str, axis: str) -> TensorSpec:
        """One value for each column of B, or for each row."""
        return TensorSpec([self.columns_of_b] if axis == "n" else [self.m, 1], dtype, device=self.device)

    def factor(self, key: str, shape: str) -> Any:
        """A number, or an array of the dtype of the sums where that is wide."""
        value, axis, blocks = self.given[key], _FACTORS[shape], _IN_BLOCKS.get(shape, ())
        row, asked = COMPUTE.get(self.a, {}), self.given.get("compute")
        sums = [x.accumulator for name, x in row.items() if asked in (None, name)]
        dtype = DTYPES[sums[0]].scalar if sums else "f32"
        if value == "one":
            return TensorSpec([1], dtype, device=self.device)
        if value == "vector" and axis:
            return self.vector(dtype, axis)
        if value in blocks:
            return self.blocks(shape, value)
        if type(value) not in (int, float):
            *others, last = ["a number", "'one'", *(["'vector'"] if axis else []), *map(repr, blocks)]
            raise ValueError(f"{key}: {value!r}; expected {', '.join(others)} or {last}")
        return value

    def blocks(self, shape: str, value: str) -> TensorSpec:
        """Scales in blocks as kernels read them: those of rows side by side, each 128 of k 16 bytes aligned."""
        depth = ceil(self.k / BLOCK)
        if shape == "rows":
            pitch = ceil(self.m / 4) * 4
            strides = [pitch * depth] * len(self.batch) + [1, pitch]
            return TensorSpec([*self.batch, self.m, depth], "f32", strides, self.device)
        columns = ceil(self.columns_of_b / BLOCK) if value == "block" else self.columns_of_b
        return TensorSpec([*self.batch, depth, columns], "f32", device=self.device)

    def activation(self) -> str | Activation:
        """That of the key of this name."""
        value = self.given["activation"]
        name, *parameters = value if isinstance(value, list) and value else [value]
        if name not in list(ACTIVATIONS):
            raise ValueError(f"activation: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
        if any(type(x) not in (int, float) for x in parameters):
            raise ValueError(f"activation: {value!r}; expected a list of a name and numbers")
        return Activation(name, tuple(parameters)) if parameters else str(name)

    def extent(self, key: str) -> int:
        """A whole number."""
        value = self.given.get(key)
        if type(value) is not int or not 0 <= value < 2**31:
            raise ValueError(f"{key}: {value!r}; expected a whole number, 0 or more and below 2**31")
        return value

    def one_of(self, key: str, names: Iterable[str], default: str | None = None) -> str:
        """One of some words."""
        value = self.given.get(key, default)
        if value not in list(names):
            raise ValueError(f"{key}: {value!r}; expected one of {', '.join(names)}")
        return str(value)
