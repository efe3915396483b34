"""gemm in XLA's own operations, by the definitions of kernel.h: what runs where there is no CUDA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from ..arrays.dtype_names import dtype_name
from ..errors import wrong_value
from .functions import function, gated, gated_pullback, rounded
from .primitive import gemm_p
from .spec import Spec, accumulator_of, elementwise_dtype, numpy_dtype, product_dtype


def _lowered(*operands: Any, spec: Spec) -> list[Any]:
    if spec.kernel:
        found, hint = f"{spec.kernel} runs on CUDA devices", "this computation is for another platform"
        raise wrong_value("kernel", found, hint=hint)
    with jax.enable_x64(True):  # integers are finished in f64
        return compute(spec, spec.named(operands))


def compute(spec: Spec, x: dict[str, Any], product: Any = None) -> list[Any]:
    """D, then aux and bias_grad as far as they are written. `product`: a @ b, where it is known already."""
    dtypes = [accumulator_of(dtype_name(x["a"].dtype, "a"), spec.compute), *spec.dtypes(x)]
    wide = numpy_dtype("f64" if "s32" in dtypes else elementwise_dtype(dtypes))
    with jax.numpy_rank_promotion("allow"):  # what is not batched has fewer dimensions
        z = _linear(spec, x, wide, product)
        y = _function(spec, x, z, wide)
    results = [rounded(_times(y, spec.scale_out, x.get("scale_out")), spec.out_dtype)]
    if spec.aux:
        results.append(rounded(z, spec.aux.dtype))
    if spec.bias_grad:
        shape = spec.bias_grad.shape  # (n,) and (1, n) are sums over rows, (m, 1) over columns
        along = -1 if len(shape) == 2 and shape != (1, y.shape[-1]) else -2
        sums = y.sum(axis=(*range(y.ndim - 2), along)).reshape(shape)  # over the batch too
        results.append(rounded(sums, spec.bias_grad.dtype))
    return results


def _function(spec: Spec, x: dict[str, Any], z: Any, wide: Any) -> Any:
    f, factor = function(spec.activation), x.get("aux", x.get("gate"))  # of what a derivative or a gate is given
    if factor is None:
        return gated(spec.activation, spec.interleaved, z) if spec.gated else f(z)
    if not spec.gated:
        return z * f(factor.astype(wide))
    pairs = jnp.broadcast_to(factor.astype(wide), (*z.shape[:-1], factor.shape[-1]))
    return gated_pullback(spec.activation, spec.interleaved, pairs, z)


def _linear(spec: Spec, x: dict[str, Any], wide: Any, product: Any) -> Any:
    """alpha * scale_a * scale_b * (a @ b) + beta * c + bias. What has a factor of 0 is not read: its NaN stays.

    Without elements along k the product is 0 beside any factor.
    """
    number, k = spec.alpha * spec.scale_a * spec.scale_b, x["a"].shape[-1 if spec.layout[0] == "t" else -2]
    if 0 in (spec.alpha, spec.scale_a, spec.scale_b, k):
        z = jnp.zeros(spec.product_shape(x["a"].shape, x["b"].shape), wide)
    else:
        if product is None:  # in the accumulator's dtype; sums of integers wrap around
            summed = numpy_dtype(product_dtype(dtype_name(x["a"].dtype, "a"), spec.compute))
            a, b = (
                (jnp.swapaxes(x[name], -1, -2) if lies == "n" else x[name]).astype(summed)
                for name, lies in zip("ab", spec.layout, strict=True)
            )
            product = jnp.matmul(a, b, precision="highest")
        z = _times(product.astype(wide), number, x.get("alpha"))
        for name in ("scale_a", "scale_b"):
            z = z * x[name].astype(wide) if name in x else z
    if "c" in x:
        added = _times(x["c"].astype(wide), spec.beta, x.get("beta"))
        z = z + (jnp.where(x["beta"] == 0, 0, added) if "beta" in x else added)
    return z + x["bias"].astype(wide) if "bias" in x else z


def _times(x: Any, number: complex, factor: Any) -> Any:
    x = x if number == 1 else x * jnp.asarray(number, x.dtype)
    return x if factor is None else x * factor.astype(x.dtype)


mlir.register_lowering(gemm_p, mlir.lower_fun(_lowered, multiple_results=True))
