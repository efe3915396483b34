"""The primitive of products of unequal size: types, batches, derivatives, the custom call, and XLA's operations.

There are two, of lines that lie in groups one behind the other, and each is the other's derivative:

    rows   a (T, K), b (G, K, N), or (G, N, K) turned -> (T, N), zeros behind the last group
    depth  a (T, M), b (T, N) -> (G, M, N), zeros for an empty group

`sizes` (G,) of int32 says how many lines each group has. xla_grouped_gemm.cpp reads what the custom call says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..arrays.tensor_spec import TensorSpec
from ..dispatch import planning
from ..errors import NoKernelError
from . import custom_call
from .device import keywords_of
from .evaluation import compiled, result_type
from .functions import rounded
from .primitive import vary_alike
from .spec import Shape, Spec, array, elementwise_dtype, numpy_dtype, product_dtype


@dataclass(frozen=True)
class Product:
    """What a call does: of `rows` or of depth, whether b lies turned, the result's dtype, and gemm's `compute`."""

    rows: bool
    out_dtype: str
    turned: bool = False
    compute: str | None = None

    def shape(self, a: Shape, b: Shape, groups: int) -> Shape:
        """Of the result."""
        return (a[0], b[1 if self.turned else 2]) if self.rows else (groups, a[1], b[1])

    @property
    def layout(self) -> str:
        """How a, then b, lie, as gemm has it."""
        return "nt" if not self.rows else "tn" if self.turned else "tt"


grouped_p = Primitive("cutlass_py_grouped_gemm")
grouped_p.multiple_results = True


def bind(spec: Product, a: Any, b: Any, sizes: Any) -> Any:
    """The result."""
    return grouped_p.bind(*vary_alike((a, b, sizes)), spec=spec)[0]


grouped_p.def_impl(compiled(grouped_p, lambda *operands, spec: [bind(spec, *operands)]))


def _types(a: Any, b: Any, sizes: Any, *, spec: Product) -> list[Any]:
    return [result_type(a, spec.shape(a.shape, b.shape, sizes.shape[0]), spec.out_dtype)]


grouped_p.def_abstract_eval(_types)


def check(spec: Product, a: Any, b: Any, sizes: Any) -> None:
    """Refuses, by grouped_gemm's rules, what no call may be."""
    x, y, numbers, keywords = _specs(spec, a, b, sizes, "cuda")
    _core.grouped_problem(x, y, None, numbers, None, keywords)


def _specs(spec: Product, a: Any, b: Any, sizes: Any, device: str) -> tuple[TensorSpec, TensorSpec, TensorSpec, Any]:
    """a, b, sizes and the keywords of the call as metadata: as XLA's arrays lie."""
    letters = zip((a, b), "ab", spec.layout, strict=True)
    x, y = (array(z.shape, dtype_name(z.dtype, name), device, letter) for z, name, letter in letters)
    shape = spec.shape(a.shape, b.shape, sizes.shape[0])
    keywords = {"out": array(shape, spec.out_dtype, device), "compute": spec.compute}
    return x, y, array(sizes.shape, "s32", device), keywords


def repeated(sizes: Any, times: int, lines: int) -> Any:
    """Sizes of groups whose every line becomes so many; there were so many lines."""
    return sizes if times == 1 else jnp.clip(sizes, 0, lines) * times


# ---------------------------------------------------------------------------------------------------- batches


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, spec: Product) -> tuple[list[Any], list[int]]:
    """What is batched alone takes the batch into an axis of its own; groups that differ go one after the other."""
    batched = [i for i, axis in enumerate(axes) if axis is not None]
    if len(batched) == 1 and batched[0] != 2:
        result, axis = _folded(operands, batched[0], axes[batched[0]], spec)
        return [result], [axis]
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    call = lambda own: bind(spec, *(own[i] if i in own else x for i, x in enumerate(moved)))  # noqa: E731
    return [jax.lax.map(call, {i: moved[i] for i in batched})], [0]


def _folded(operands: Sequence[Any], which: int, axis: Any, spec: Product) -> tuple[Any, int]:
    a, b, sizes = operands
    into = 1 if which == 0 or not spec.rows or spec.turned else 2  # in front of the columns, or the lines of a group
    x = jnp.moveaxis(operands[which], axis, into)
    count, inner = x.shape[into], x.shape[into + 1]
    if which == 0 and spec.rows:
        found = bind(spec, x.reshape(-1, inner), b, repeated(sizes, count, x.shape[0]))
        return found.reshape(x.shape[0], count, found.shape[-1]), 1
    x = x.reshape(*x.shape[:into], count * inner, *x.shape[into + 2 :])
    found = bind(spec, x, b, sizes) if which == 0 else bind(spec, a, x, sizes)
    at = 1 if which == 0 or spec.rows else 2
    return found.reshape(*found.shape[:at], count, inner, *found.shape[at + 1 :]), at


batching.primitive_batchers[grouped_p] = _batch

# ---------------------------------------------------------------------------------------------------- derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, spec: Product) -> tuple[list[Any], list[Any]]:
    """The product is linear in a and in b."""
    a, b, sizes = primals
    result = bind(spec, a, b, sizes)
    if not jnp.issubdtype(result.dtype, jnp.inexact):
        return [result], [ad.Zero(jax.typeof(result).to_tangent_aval())]
    pairs = ((tangents[0], b), (a, tangents[1]))
    found = [bind(spec, *pair, sizes) for pair, x in zip(pairs, tangents, strict=False) if type(x) is not ad.Zero]
    return [result], [sum(found[1:], found[0]) if found else ad.Zero(jax.typeof(result).to_tangent_aval())]


def _transpose(cotangents: Sequence[Any], a: Any, b: Any, sizes: Any, *, spec: Product) -> tuple[Any, Any, None]:
    """Of the operand that is not known, by the other one, in its dtype; fp8 would lose what it has, and is bf16."""
    (d,) = cotangents
    if type(d) is ad.Zero:
        return None, None, None
    of_a = ad.is_undefined_primal(a)
    known, wanted = (b, a.aval) if of_a else (a, b.aval)
    dtype = jnp.bfloat16 if known.dtype.itemsize == 1 else known.dtype
    name = dtype_name(dtype, "a")
    x, y = known.astype(dtype), rounded(d, name)
    compute = spec.compute if name == "f32" else None
    rows, depth = Product(True, name, compute=compute), Product(False, name, compute=compute)
    if spec.rows and of_a:
        found = bind(replace(rows, turned=not spec.turned), y, x, sizes)
    elif spec.rows:
        found = bind(depth, *((y, x) if spec.turned else (x, y)), sizes)
    else:
        found = bind(replace(rows, turned=of_a), x, y, sizes)
    found = rounded(found, dtype_name(wanted.dtype, "a"))
    return (found, None, None) if of_a else (None, found, None)


ad.primitive_jvps[grouped_p] = _jvp
ad.primitive_transposes[grouped_p] = _transpose

# ---------------------------------------------------------------------------------------------------- on CUDA


def _on_device(a: Any, b: Any, sizes: Any, *, spec: Product) -> list[Any]:
    shape = spec.shape(a.shape, b.shape, sizes.shape[0])
    result = jax.ShapeDtypeStruct(shape, numpy_dtype(spec.out_dtype))
    if not (sizes.size and a.size and b.size):
        return [jnp.zeros(result.shape, result.dtype)]
    x, y, numbers, keywords = _specs(spec, a, b, sizes, f"cuda:{custom_call.ordinals()[0]}")
    problem = _core.grouped_problem(x, y, None, numbers, None, keywords)
    try:
        plan = planning.plan(problem, provided=False)
    except NoKernelError as error:
        raise error.renamed("ragged_dot") from None
    scratch = custom_call.scratch(partial(_core.grouped_scratch_bytes, x, y, None, numbers, None, keywords, plan))
    said = keywords_of(Spec(("a", "b"), spec.out_dtype, spec.layout, compute=spec.compute))
    said |= custom_call.attributes(problem, plan, ("a", "b", "sizes"), ("out", "scratch"))
    call = jax.ffi.ffi_call(custom_call.target("grouped_gemm"), [result, scratch])
    return [call(a, b, sizes, **said)[0]]


# ---------------------------------------------------------------------------------------------------- elsewhere


def _in_xla(a: Any, b: Any, sizes: Any, *, spec: Product) -> list[Any]:
    """JAX's own ragged_dot_general, summed and rounded as our kernels do."""
    summed = product_dtype(dtype_name(a.dtype, "a"), spec.compute)
    contracting = ((0,), (0,)) if not spec.rows else ((1,), (2 if spec.turned else 1,))
    dimensions = jax.lax.RaggedDotDimensionNumbers((contracting, ((), ())), (0,), (0,) if spec.rows else ())
    with jax.enable_x64(True):  # integers are finished in f64
        wide = [x.astype(numpy_dtype(summed)) for x in (a, b)]
        cut_off = jnp.clip(sizes, 0, a.shape[0])  # as kernels do
        product = jax.lax.ragged_dot_general(*wide, cut_off, dimensions, precision="highest")
        finished = "f64" if summed == "s32" else elementwise_dtype((summed, spec.out_dtype))
        return [rounded(product.astype(numpy_dtype(finished)), spec.out_dtype)]


mlir.register_lowering(grouped_p, mlir.lower_fun(_in_xla, multiple_results=True))
lowering = custom_call.undivided(_on_device, _in_xla)
