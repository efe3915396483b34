"""A gemm without its arrays: all that is known of a call while it is traced. The parameter of the primitive.

Operands are in normal form: a is (..., m, k) and b is (..., k, n), the last two exchanged where `layout` says "n";
bias is (..., 1, n) or (..., m, 1), scale_a (..., m, 1), scale_b (..., 1, n); alpha, beta, scale_out and scales of one
element are ().
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..arrays.dtype_names import dtype_name
from ..arrays.tensor_spec import TensorSpec
from ..declaration.dtypes import DTYPES, arithmetic
from ..declaration.epilogues import ACTIVATIONS, INTERLEAVED
from ..epilogues.activations import Activation
from ..operations.gemm.arguments import GemmArguments

SCALARS = ("alpha", "beta", "scale_out")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """Shape and dtype of an array that a call writes beside D."""

    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Spec:
    """What a call does.

    Attributes:
        operands: names of the arrays, in their order: a, b, and those of gemm's keywords that are there.
        layout: of a, then b: "t" as it is, "n" if it lies transposed.
        out_dtype: of D.
        aux: what is written there, absent where aux is read or not asked for; likewise bias_grad.
        gated: the activation is that of gates, columns of b (of D and aux, where it is a derivative) before the values.
        interleaved: gates and values alternate there.
        alpha, beta, scale_a, scale_b, scale_out: the numbers; 1 where an array takes their place.
        compute, splits, deterministic, batch_invariant, kernel: as in gemm, the kernel by name.
    """

    operands: tuple[str, ...]
    out_dtype: str
    layout: str = "tt"
    aux: Result | None = None
    bias_grad: Result | None = None
    alpha: complex = 1.0
    beta: complex = 1.0
    scale_a: float = 1.0
    scale_b: float = 1.0
    scale_out: float = 1.0
    activation: Activation = Activation("identity")
    gated: bool = False
    interleaved: bool = False
    compute: str | None = None
    splits: int | str | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    kernel: str | None = None

    def named(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Operands by name."""
        return dict(zip(self.operands, operands, strict=True))

    def results(self, shapes: Sequence[Shape]) -> list[Result]:
        """D, aux and bias_grad as far as they are written. `shapes`: of the operands."""
        d = Result(self.out_shape(*shapes[:2]), self.out_dtype)
        return [d, *(result for result in (self.aux, self.bias_grad) if result)]

    def dtypes(self, x: dict[str, Any]) -> list[str]:
        """Of the operands, by name, then of the results."""
        results = [result.dtype for result in (self.aux, self.bias_grad) if result]
        return [*(dtype_name(y.dtype, name) for name, y in x.items()), self.out_dtype, *results]

    def out_shape(self, a: Shape, b: Shape) -> Shape:
        """Of D: where gates and values lie beside each other, half the columns of the product, or twice as many."""
        *rows, columns = self.product_shape(a, b)
        if self.gated:
            columns = 2 * columns if ACTIVATIONS[self.activation.name].derivative else columns // 2
        return (*rows, columns)

    def product_shape(self, a: Shape, b: Shape) -> Shape:
        """Of a @ b, whose batch is what those of a and b broadcast to."""
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        return (*batch, a[-1 if self.layout[0] == "n" else -2], b[-2 if self.layout[1] == "n" else -1])

    def letters(self, shapes: Sequence[Shape]) -> list[tuple[str, ...]]:
        """What the dimensions of the operands, then of the results, run along: m, n, k, or b0, b1, ... of the batch,
        the innermost first; "" where there is one element, and along gates and values, which stay together."""
        last = {"a": "mk"[:: 1 if self.layout[0] == "t" else -1], "b": "kn"[:: 1 if self.layout[1] == "t" else -1]}
        found = []
        of_results = [result.shape for result in self.results(shapes)]
        for name, shape in zip((*self.operands, *("",) * len(of_results)), (*shapes, *of_results), strict=True):
            along = [*(f"b{i}" for i in reversed(range(len(shape) - 2))), *last.get(name, "mn")]
            along = along[len(along) - len(shape) :]
            whole = "n" if self.gated else ""
            found.append(tuple("" if extent == 1 or x == whole else x for x, extent in zip(along, shape, strict=True)))
        return found

    def arguments(self, shapes: Sequence[Shape], dtypes: Sequence[str], device: str = "cuda") -> GemmArguments:
        """The call as GemmArguments of TensorSpecs, laid out and aligned as XLA's arrays are."""
        given: dict[str, Any] = {
            name: array(shape, dtype, device, self.layout["ab".index(name)] if name in "ab" else "t")
            for name, shape, dtype in zip(self.operands, shapes, dtypes, strict=True)
        }
        for name in ("alpha", "scale_a", "scale_b", "scale_out"):
            if getattr(self, name) != 1:
                given.setdefault(name, getattr(self, name))
        if "c" in given:
            given.setdefault("beta", self.beta)
        for name in ("aux", "bias_grad"):
            if result := getattr(self, name):
                given[name] = array(result.shape, result.dtype, device)
        name = self.activation.name + INTERLEAVED * self.interleaved
        return GemmArguments(
            given.pop("a"),
            given.pop("b"),
            out=array(self.out_shape(*shapes[:2]), self.out_dtype, device),
            **({"gated": name} if self.gated else {"activation": self.activation}),
            compute=self.compute,
            splits=self.splits,
            deterministic=self.deterministic,
            batch_invariant=self.batch_invariant,
            **given,
        )


def array(shape: Iterable[int], dtype: str, device: str, layout: str = "t") -> TensorSpec:
    """One of XLA's arrays, row-major without gaps; with layout "n" as its transpose."""
    extents = list(shape)
    strides = [prod(max(x, 1) for x in extents[i + 1 :]) for i in range(len(extents))]
    if layout == "n":
        for values in (extents, strides):
            values[-2:] = reversed(values[-2:])
    return TensorSpec(extents, dtype, strides, device)


def axes_of(entry: Any) -> tuple[str, ...]:
    """The axes of a mesh in an entry of a PartitionSpec."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def accumulator_of(a: str, compute: str | None = None) -> str:
    """The dtype that products of these operands are summed in."""
    return arithmetic(a, compute).accumulator


def product_dtype(a: str, compute: str | None = None) -> str:
    """The dtype that holds such a sum."""
    accumulator = accumulator_of(a, compute)
    return accumulator if accumulator == "s32" else DTYPES[accumulator].scalar


def product_of(spec: Spec, operands: Sequence[Any]) -> Spec:
    """a @ b alone, in the dtype of its sums."""
    dtype = product_dtype(dtype_name(operands[0].dtype, "a"), spec.compute)
    options = {name: getattr(spec, name) for name in ("compute", "splits", "deterministic", "batch_invariant")}
    return Spec(("a", "b"), dtype, spec.layout, **options)


def factor_dtype(a: str) -> str:
    """The dtype of factors and scales beside these operands: f32 at least, complex where they are."""
    return DTYPES[accumulator_of(a)].scalar


def elementwise_dtype(dtypes: Sequence[str]) -> str:
    """The dtype of elementwise work on these: f32 at least, wider or complex where one of them is."""
    return next((name for name in ("c128", "c64", "f64") if name in dtypes), "f32")


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of that name."""
    import ml_dtypes  # noqa: F401  (registers bfloat16 and the fp8 names with NumPy)

    return np.dtype(DTYPES[name].numpy)
