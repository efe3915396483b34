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
from ...epilogues.activations import Activation
from .arguments import GemmArguments

KEYS = {
    "m": "rows of the result",
    "n": "columns of the result",
    "k": "length of the sums",
    "batch": "number of problems, stacked (default 1)",
    "layout": "of A, then B: t row-major, n column-major (default tt)",
    "a": "dtype of A",
    "b": "dtype of B (default A's)",
    "c": "dtype of an addend",
    "d": "dtype of the result (default what gemm would return)",
    "compute": "as in gemm",
    "alpha": "a number, or one: an array of one element",
    "beta": "a number, or one",
    "bias": "dtype of a bias",
    "bias_axis": "n: one value per column of the result, m: one per row (default n)",
    "activation": 'its name, or with parameters ["clamp", 0, 6]',
    "aux": "dtype of aux",
    "gate": "dtype of a gate",
    "scale_a": "a number, one, vector: one value per row; or block: one per row and 128 of k",
    "scale_b": "likewise; vector: one value per column; block: one per 128 of k by 128 columns; group: by one column",
    "scale_out": "a number, or one",
    "bias_grad": "dtype of a bias gradient",
    "bias_grad_axis": "as bias_axis",
    "splits": "as in gemm",
    "deterministic": "as in gemm",
}
_NEEDED = ("m", "n", "k", "a")
_FACTORS = {"alpha": "", "beta": "", "scale_a": "m", "scale_b": "n", "scale_out": ""}  # and the axis of a vector
_IN_BLOCKS = {"scale_a": ("block",), "scale_b": ("block", "group")}


def arguments(entry: Mapping[str, Any], device: str = "cuda") -> GemmArguments:
    """One object as GemmArguments of TensorSpecs.

    Args:
        entry: the object: values by KEYS; None is as good as absent.
        device: where the operands would be; need not exist.

    Raises:
        ValueError, TypeError: a key that is missing or not known, or its value; the message names the key.
    """
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{key}: no such key; expected one of {', '.join(KEYS)}")
    for key in _NEEDED:
        if key not in entry:
            raise ValueError(f"{key}: missing; expected {KEYS[key]}")
    for name in ("bias", "bias_grad"):
        if entry.get(f"{name}_axis") is not None and entry.get(name) is None:
            raise ValueError(f"{name}_axis: given without {name}")
    given = _Entry({key: value for key, value in entry.items() if value is not None or key in _NEEDED}, device)
    return GemmArguments(*given.product(), **given.keywords())


def _or(names: list[str]) -> str:
    """ ", x, y or z" """
    return "".join(f", {name}" for name in names[:-1]) + f" or {names[-1]}"


class _Entry:
    """An object whose keys are known, read key by key."""

    def __init__(self, given: Mapping[str, Any], device: str) -> None:
        self.given, self.device = given, device
        self.m, self.n, self.k = map(self.extent, "mnk")
        self.batch = [self.extent("batch")] if given.get("batch", 1) != 1 else []
        self.a = self.one_of("a", STORAGE)

    def product(self) -> tuple[TensorSpec, TensorSpec]:
        """A and B."""
        layout = self.one_of("layout", LAYOUTS, "tt")
        a = self.matrix(self.a, self.m, self.k, layout[0])
        return a, self.matrix(self.one_of("b", STORAGE, self.a), self.k, self.n, layout[1])

    def keywords(self) -> dict[str, Any]:
        """Everything else."""
        found: dict[str, Any] = {}
        for key in self.given:
            if key in ("compute", "splits", "deterministic"):
                found[key] = self.given[key]
            elif key in ("c", "gate", "aux"):
                found[key] = self.matrix(self.one_of(key, STORAGE), self.m, self.n)
            elif key in ("bias", "bias_grad"):
                found[key] = self.vector(self.one_of(key, STORAGE), self.one_of(f"{key}_axis", ("n", "m"), "n"))
            elif key in _FACTORS:
                found[key] = self.factor(key, _FACTORS[key])
            elif key == "activation":
                found[key] = self.activation()
            elif key == "d":
                found["out_dtype"] = self.one_of(key, STORAGE)
        return found

    def matrix(self, dtype: str, rows: int, cols: int, order: str = "t") -> TensorSpec:
        strides = [cols, 1] if order == "t" else [1, rows]
        stacked = [rows * cols] * len(self.batch)
        return TensorSpec([*self.batch, rows, cols], dtype, stacked + strides, self.device)

    def vector(self, dtype: str, axis: str) -> TensorSpec:
        return TensorSpec([self.n] if axis == "n" else [self.m, 1], dtype, device=self.device)

    def factor(self, key: str, axis: str) -> Any:
        """A number, or an array of the dtype of the sums where that is wide."""
        value = self.given[key]
        row, asked = COMPUTE.get(self.a, {}), self.given.get("compute")
        sums = [x.accumulator for name, x in row.items() if asked in (None, name)]
        dtype = DTYPES[sums[0]].scalar if sums else "f32"
        if value == "one":
            return TensorSpec([1], dtype, device=self.device)
        if value == "vector" and axis:
            return self.vector(dtype, axis)
        if value in _IN_BLOCKS.get(key, ()):
            return self.blocks(key, value)
        if type(value) not in (int, float):
            known = ["one", *(["vector"] if axis else []), *_IN_BLOCKS.get(key, ())]
            raise ValueError(f"{key}: {value!r}; expected a number" + _or([repr(name) for name in known]))
        return value

    def blocks(self, key: str, value: str) -> TensorSpec:
        """Scales in blocks as kernels read them: those of rows side by side, each 128 of k 16 bytes aligned."""
        depth = ceil(self.k / BLOCK)
        if key == "scale_a":
            pitch = ceil(self.m / 4) * 4
            strides = [pitch * depth] * len(self.batch) + [1, pitch]
            return TensorSpec([*self.batch, self.m, depth], "f32", strides, self.device)
        columns = ceil(self.n / BLOCK) if value == "block" else self.n
        return TensorSpec([*self.batch, depth, columns], "f32", device=self.device)

    def activation(self) -> str | Activation:
        value = self.given["activation"]
        name, *parameters = value if isinstance(value, list) and value else [value]
        if name not in list(ACTIVATIONS):
            raise ValueError(f"activation: {name!r}; expected one of {', '.join(ACTIVATIONS)}")
        if any(type(x) not in (int, float) for x in parameters):
            raise ValueError(f"activation: {value!r}; expected a list of a name and numbers")
        return Activation(name, tuple(parameters)) if parameters else str(name)

    def extent(self, key: str) -> int:
        value = self.given.get(key)
        if type(value) is not int or not 0 <= value < 2**31:
            raise ValueError(f"{key}: {value!r}; expected a whole number, 0 or more and below 2**31")
        return value

    def one_of(self, key: str, names: Iterable[str], default: str | None = None) -> str:
        value = self.given.get(key, default)
        if value not in list(names):
            raise ValueError(f"{key}: {value!r}; expected one of {', '.join(names)}")
        return str(value)
