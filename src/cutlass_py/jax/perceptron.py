"""A stack of linear layers, whose backward pass fuses what a gemm alone cannot see: it spans two layers.

The gradient at one layer's input times the derivative of the activation before it, and its sum, the bias gradient of
the layer before, are the results of one gemm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from .._core import described_type
from ..arrays.dtype_names import dtype_name
from ..declaration.dtypes import COMPUTE, DTYPES, arithmetic
from ..declaration.epilogues import ACTIVATIONS
from ..errors import wrong_type, wrong_value
from .api import checked_array, gemm
from .primitive import vary_alike
from .spec import factor_dtype, numpy_dtype

Layer = tuple[Any, Any]  # weight, and bias or None
_wrong_value, _wrong_type = (partial(made, operation="mlp") for made in (wrong_value, wrong_type))
# Real numbers whose products come out in their own dtype.
_DTYPES = [x for x in COMPUTE if arithmetic(x).output == x and not DTYPES[x].numpy.startswith("complex")]


def mlp(x: Any, layers: Sequence[Layer], *, activation: str = "gelu_tanh", layout: str = "tt") -> Any:
    """Linear layers with an activation between them, not behind the last one.

    Args:
        x: (..., k). f16, bf16, f32 or f64.
        layers: for each a weight, (k, n), and a bias, (n,) or None; n of one is k of the next.
        activation: one whose derivative kernels have: "relu", "gelu", "gelu_tanh", "silu" or "sigmoid".
        layout: "tt", or "tn" where weights lie as (n, k).

    Returns:
        (..., n of the last layer), of the dtype of x.

    Raises:
        ValueError, TypeError: as `gemm` does; another activation or layout; no layers, or one that is no pair; another
            number of dimensions.
    """
    known = [name for name in ACTIVATIONS if f"d_{name}" in ACTIVATIONS]
    if activation not in known:
        raise _wrong_value("activation", f"is {activation!r}", f"one of {', '.join(known)}")
    if layout not in ("tt", "tn"):
        raise _wrong_value("layout", f"is {layout!r}", "tt or tn")
    x = checked_array("mlp", "x", x)
    if not x.ndim:
        raise _wrong_value("x", "is ()", "at least one dimension", about="shape")
    if dtype_name(x.dtype, "x", "mlp") not in _DTYPES:
        expected = f"{', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}"
        raise _wrong_type("x", f"is {x.dtype}", expected, about="dtype")
    pairs = _checked(layers, x, layout)
    operands = [
        jnp.reshape(x, (prod(x.shape[:-1]), x.shape[-1])),
        *(y for layer in pairs for y in layer if y is not None),
    ]
    rows, *rest = vary_alike(operands)
    alike = iter(rest)
    found = _mlp(activation, layout, rows, tuple((next(alike), None if b is None else next(alike)) for _, b in pairs))
    return found.reshape(*x.shape[:-1], found.shape[-1])


def _checked(layers: Any, x: Any, layout: str) -> list[Layer]:
    if not isinstance(layers, (list, tuple)):
        raise _wrong_type("layers", f"is {described_type(layers)}", "a list of (weight, bias)")
    if not layers:
        raise _wrong_value("layers", "is empty", "at least one")
    for number, layer in enumerate(layers):
        if not isinstance(layer, (list, tuple)):
            raise _wrong_type(f"layer {number}", f"is {described_type(layer)}", "(weight, bias)")
        if len(layer) != 2:
            raise _wrong_value(f"layer {number}", f"has {len(layer)} entries", "(weight, bias)")
    pairs = [
        (_operand("weight", i, w, 2), None if b is None else _operand("bias", i, b, 1))
        for i, (w, b) in enumerate(layers)
    ]
    dtype, k = dtype_name(x.dtype, "x"), x.shape[-1]
    for i, (weight, bias) in enumerate(pairs):
        name = f"the weight of layer {i}"
        if (found := dtype_name(weight.dtype, name, "mlp")) != dtype:
            raise _wrong_type(name, f"is {found}", f"{dtype}, as x is", about="dtype")
        if weight.shape["tn".index(layout[1])] != k:
            expected = f"({k}, n)" if layout == "tt" else f"(n, {k})"
            raise _wrong_value(name, f"is {weight.shape}", expected, about="shape")
        k = weight.shape["nt".index(layout[1])]
        if bias is None:
            continue
        name, allowed = f"the bias of layer {i}", dict.fromkeys((dtype, "f32"))
        if (found := dtype_name(bias.dtype, name, "mlp")) not in allowed:
            raise _wrong_type(name, f"is {found}", " or ".join(allowed), about="dtype")
        if bias.shape != (k,):
            raise _wrong_value(name, f"is {bias.shape}", f"({k},)", about="shape")
    return pairs


def _operand(what: str, number: int, x: Any, dimensions: int) -> Any:
    name = f"the {what} of layer {number}"
    x = checked_array("mlp", name, x)
    if x.ndim != dimensions:
        expected = ("one dimension", "two dimensions")[dimensions - 1]
        raise _wrong_value(name, f"is {x.shape}", expected, about="shape")
    return x


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _mlp(activation: str, layout: str, x: Any, layers: tuple[Layer, ...]) -> Any:
    for weight, bias in layers[:-1]:
        x = gemm(x, weight, layout=layout, bias=bias, activation=activation)
    return gemm(x, layers[-1][0], layout=layout, bias=layers[-1][1])


def _forward(activation: str, layout: str, x: Any, layers: tuple[Layer, ...]) -> Any:
    """Keeps what each layer reads, and where its activation was evaluated."""
    read, evaluated = [x], []
    for weight, bias in layers[:-1]:
        if activation == "relu":  # d_relu is the same of z and of the result
            x = at = gemm(x, weight, layout=layout, bias=bias, activation=activation)
        else:
            z = jax.ShapeDtypeStruct((x.shape[0], weight.shape["nt".index(layout[1])]), x.dtype)
            x, at = gemm(x, weight, layout=layout, bias=bias, activation=activation, aux=z)
        read.append(x)
        evaluated.append(at)
    return gemm(x, layers[-1][0], layout=layout, bias=layers[-1][1]), (layers, read, evaluated)


def _backward(activation: str, layout: str, kept: Any, d_z: Any) -> Any:
    layers, read, evaluated = kept
    found: list[Layer] = []
    transposed = "tt" if layout == "tn" else "tn"
    d_bias = d_z.astype(numpy_dtype(factor_dtype(dtype_name(d_z.dtype, "x")))).sum(0)
    for i in reversed(range(len(layers))):
        weight, bias = layers[i]
        d_weight = gemm(d_z, read[i], layout="nt") if layout == "tn" else gemm(read[i], d_z, layout="nt")
        found.insert(0, (d_weight, None if bias is None else d_bias.astype(bias.dtype)))
        if i == 0:
            break
        derivative = {"aux": evaluated[i - 1], "activation": f"d_{activation}"}
        if layers[i - 1][1] is not None:
            derivative["bias_grad"] = jax.ShapeDtypeStruct((read[i].shape[-1],), d_bias.dtype)
            d_z, d_bias = gemm(d_z, weight, layout=transposed, **derivative)
        else:
            d_z = gemm(d_z, weight, layout=transposed, **derivative)
    return gemm(d_z, layers[0][0], layout=transposed), tuple(found)


_mlp.defvjp(_forward, _backward)
