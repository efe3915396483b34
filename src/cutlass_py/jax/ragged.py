"""jax.lax.ragged_dot and ragged_dot_general on grouped products: JAX's layouts become those of grouped.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import DotAlgorithm, DotAlgorithmPreset, RaggedDotDimensionNumbers

from ..arrays.dtype_names import dtype_name
from ..errors import ArgumentError, wrong_type, wrong_value
from .api import checked_array, gemm
from .grouped import Product, bind, check, repeated

_DIMENSIONS = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
# gemm's `compute`, by the operands' dtype and the name of JAX's algorithm: all that such products have.
_ALGORITHMS = {
    ("f16", "F16_F16_F16"): "f16",
    ("f16", "F16_F16_F32"): None,
    ("bf16", "BF16_BF16_F32"): None,
    ("f32", "F32_F32_F32"): None,
    ("f32", "TF32_TF32_F32"): "tf32",
    ("f32", "TF32_TF32_F32_X3"): "3xtf32",
    ("f64", "F64_F64_F64"): None,
}


def ragged_dot(
    lhs: Any, rhs: Any, group_sizes: Any, precision: Any = None, preferred_element_type: Any = None,
    group_offset: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """jax.lax.ragged_dot: rows that lie in groups, each multiplied by the matrix of its group.

    On CUDA one grouped kernel computes it, chosen as the call is lowered, which reads group_sizes as it runs; anywhere
    else JAX's own function does.

    Args:
        lhs: (m, k), the rows of the first group first.
        rhs: (g, k, n), of the dtype of lhs.
        group_sizes: (g,) of integers, 0 or more, whose sum is m at most.
        precision, preferred_element_type, group_offset, out_sharding: as `ragged_dot_general` takes them.

    Returns:
        (m, n) of preferred_element_type, or of the dtype of lhs. Rows behind the last group are zeros.

    Raises:
        As `ragged_dot_general` does.
    """
    how = (precision, preferred_element_type, group_offset, out_sharding)
    return _product("ragged_dot", lhs, rhs, group_sizes, _DIMENSIONS, *how)


def ragged_dot_general(
    lhs: Any, rhs: Any, group_sizes: Any, ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None, preferred_element_type: Any = None, group_offset: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """jax.lax.ragged_dot_general, differentiable in both operands, forwards and backwards, as often as wanted.

    By the kind of the dimension of lhs that groups divide:

        free         [b.., m.., k..], [g, b.., k.., n..] -> [b.., m.., n..]; zeros behind the last group
        contracting  [b.., m.., k..], [b.., k.., n..] -> [g, b.., m.., n..]; zeros for an empty group
        batch        [b.., m.., k..], [b.., k.., n..] -> [b.., m.., n..]: `gemm`, for which JAX gives groups no meaning

    Sizes that all share are one grouped product, which has another free dimension of an operand among its own; those
    that differ along b or m in front of the groups run one after the other. JAX's own function runs, with as many
    masked copies of lhs as there are groups, where XLA divides the computation among devices (jit of sharded arrays,
    out_sharding, arrays sharded by their type; not in shard_map), and where sizes differ along a contracting dimension.

    Args:
        lhs, rhs: arrays of one dtype of `gemm`'s, or of two that go together there.
        group_sizes: (g,), or [b.., m.., g] with the dimensions in front of the one that is divided, of integers. A size
            below 0 counts as 0, and a group ends with the dimension at the latest. Nothing waits for them.
        ragged_dot_dimension_numbers: as in JAX.
        precision: None or jax.lax.Precision, by all of which f32 is multiplied as f32; or a DotAlgorithmPreset that
            gemm's `compute` has: TF32_TF32_F32, TF32_TF32_F32_X3, F16_F16_F16, or what is the default.
        preferred_element_type: of the result. Of 32 bits or more where the operands are integers: JAX's narrow results
            wrap around.
        group_offset: None; JAX has nothing else either.
        out_sharding: as in JAX, whose own function then runs.

    Returns:
        An array of preferred_element_type, or of the operands' dtype, rounded once, as gemm rounds.

    Raises:
        TypeError: as JAX does; a dtype or a precision that gemm lacks.
        ValueError: group_offset is given; extents that are too large.
        NoKernelError, CompileError: no grouped kernel takes it, as it is lowered for CUDA.
    """
    how = (precision, preferred_element_type, group_offset, out_sharding)
    return _product("ragged_dot_general", lhs, rhs, group_sizes, ragged_dot_dimension_numbers, *how)


def _product(
    function: str, lhs: Any, rhs: Any, sizes: Any, dimensions: RaggedDotDimensionNumbers, precision: Any,
    preferred: Any, group_offset: Any, out_sharding: Any,
) -> Any:  # fmt: skip
    if group_offset is not None:
        raise wrong_value("group_offset", "is given", "None, all that JAX has", operation=function)
    lhs, rhs = checked_array(function, "lhs", lhs), checked_array(function, "rhs", rhs)
    sizes = checked_array(function, "group_sizes", sizes)
    if not isinstance(dimensions, RaggedDotDimensionNumbers):
        found = f"is {type(dimensions).__name__}"
        raise wrong_type("ragged_dot_dimension_numbers", found, "RaggedDotDimensionNumbers", operation=function)

    def own(lhs: Any, rhs: Any, sizes: Any) -> Any:
        return jax.lax.ragged_dot_general(
            lhs,
            rhs,
            sizes,
            dimensions,
            precision=precision,
            preferred_element_type=preferred,
            out_sharding=out_sharding,
        )

    typed = any(jax.typeof(x).sharding.mesh.explicit_axes for x in (lhs, rhs, sizes))
    if typed or out_sharding is not None:
        return own(lhs, rhs, sizes)
    result = jax.eval_shape(own, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs, sizes)))  # refuses
    if lhs.dtype.kind in "iub" and result.dtype.itemsize < 4:
        found = f"is {'not given' if preferred is None else result.dtype} beside {lhs.dtype}"
        raise wrong_type("preferred_element_type", found, "int32", operation=function)
    how = dtype_name(result.dtype, "preferred_element_type", function), _compute(function, precision, lhs)
    (contracting, _), (batch, _) = dimensions.dot_dimension_numbers
    (divided,) = dimensions.lhs_ragged_dimensions
    if divided in contracting and sizes.ndim > 1 + len(batch):  # along another contracting dimension
        return own(lhs, rhs, sizes)
    product = _batched if divided in batch else _depth if divided in contracting else _rows
    try:
        found = product(lhs, rhs, _as_int32(sizes, lhs.shape[divided]), dimensions, *how)
    except ArgumentError as error:
        raise error.renamed(function, {"a": "lhs", "b": "rhs", "sizes": "group_sizes"}) from None
    return found.reshape(result.shape)


def _compute(function: str, precision: Any, lhs: Any) -> str | None:
    name = precision if isinstance(precision, str) else getattr(precision, "name", "")
    if isinstance(precision, DotAlgorithm) or (name in DotAlgorithmPreset.__members__ and name != "DEFAULT"):
        dtype = dtype_name(lhs.dtype, "lhs", function)
        if (dtype, name) not in _ALGORITHMS:
            known = [algorithm for of, algorithm in _ALGORITHMS if of == dtype]
            raise wrong_type("precision", f"is {precision} beside {dtype}", " or ".join(known), operation=function)
        return _ALGORITHMS[dtype, name]
    return None


def _as_int32(sizes: Any, lines: int) -> Any:
    if sizes.dtype.itemsize >= 4 and sizes.dtype != jnp.int32:
        sizes = jnp.clip(sizes, 0, lines)
    return sizes.astype(jnp.int32)


# ---------------------------------------------------------------------------------------------------- the three kinds


def _rows(lhs: Any, rhs: Any, sizes: Any, dimensions: RaggedDotDimensionNumbers, dtype: str, compute: Any) -> Any:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimensions.dot_dimension_numbers
    (divided,), group = dimensions.lhs_ragged_dimensions, dimensions.rhs_group_dimensions
    m, n = _others(lhs, lhs_k, lhs_b), _others(rhs, rhs_k, rhs_b, group)
    outer, inner = m[: m.index(divided)], m[m.index(divided) + 1 :]
    turned = _lies(rhs, rhs_b, group, n, rhs_k)
    a = _matrices(lhs, lhs_b, outer, (divided, *inner), lhs_k)
    b = _matrices(rhs, rhs_b, group, *((n, rhs_k) if turned else (rhs_k, n)))
    own = 0 if sizes.ndim > 1 else None
    sizes = repeated(sizes, _extent(lhs, inner), lhs.shape[divided])
    if own is not None:
        sizes = sizes.reshape(*(_extent(lhs, axes) for axes in (lhs_b, outer) if axes), -1)
    spec = Product(True, dtype, turned, compute)
    return _each(_each(_checked(spec), outer, (0, None, own)), lhs_b, (0, 0, own))(a, b, sizes)


def _depth(lhs: Any, rhs: Any, sizes: Any, dimensions: RaggedDotDimensionNumbers, dtype: str, compute: Any) -> Any:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimensions.dot_dimension_numbers
    (divided,) = dimensions.lhs_ragged_dimensions
    order = sorted(range(len(lhs_k)), key=lambda i: lhs_k[i] != divided)  # the one that is divided first
    a, b = (
        _matrices(x, batch, (), [k[i] for i in order], _others(x, k, batch))
        for x, k, batch in ((lhs, lhs_k, lhs_b), (rhs, rhs_k, rhs_b))
    )
    own = 0 if sizes.ndim > 1 else None
    sizes = repeated(sizes, _extent(lhs, lhs_k) // max(lhs.shape[divided], 1), lhs.shape[divided])
    if own is not None:
        sizes = sizes.reshape(_extent(lhs, lhs_b), -1)
    found = _each(_checked(Product(False, dtype, compute=compute)), lhs_b, (0, 0, own))(a, b, sizes)
    return jnp.moveaxis(found, 1, 0) if lhs_b else found  # groups are in front of the batch


def _batched(lhs: Any, rhs: Any, sizes: Any, dimensions: RaggedDotDimensionNumbers, dtype: str, compute: Any) -> Any:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimensions.dot_dimension_numbers
    n = _others(rhs, rhs_k, rhs_b)
    turned = _lies(rhs, rhs_b, n, rhs_k)
    a = _matrices(lhs, lhs_b, (), _others(lhs, lhs_k, lhs_b), lhs_k)
    b = _matrices(rhs, rhs_b, (), *((n, rhs_k) if turned else (rhs_k, n)))
    return gemm(a, b, layout="tn" if turned else "tt", out_dtype=dtype, compute=compute)


def _checked(spec: Product) -> Callable[..., Any]:
    """The product, of operands that are checked while the call is traced."""

    def run(a: Any, b: Any, sizes: Any) -> Any:
        check(spec, a, b, sizes)
        return bind(spec, a, b, sizes)

    return run


def _each(run: Callable[..., Any], axes: Sequence[int], mapped: Any) -> Callable[..., Any]:
    """Along one more dimension in front, where there are such axes."""
    return jax.vmap(run, mapped) if axes else run


# ---------------------------------------------------------------------------------------------------- dimensions


def _others(x: Any, *named: Sequence[int]) -> list[int]:
    return [i for i in range(x.ndim) if not any(i in axes for axes in named)]


def _extent(x: Any, axes: Sequence[int]) -> int:
    return prod(x.shape[i] for i in axes)


def _lies(x: Any, *order: Sequence[int]) -> bool:
    """Whether the dimensions lie in this order."""
    return [i for axes in order for i in axes] == list(range(x.ndim))


def _matrices(x: Any, batch: Sequence[int], outer: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Any:
    """One dimension for each of these; for the first two where they have any."""
    parts = [*(axes for axes in (batch, outer) if axes), rows, columns]
    shape = [_extent(x, axes) for axes in parts]
    return jnp.transpose(x, [i for axes in parts for i in axes]).reshape(shape)
