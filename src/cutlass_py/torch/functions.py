"""torch's matrix products by their own names: its dtypes, ranks, out= and errors, computed by `gemm`."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _core
from ..arrays.torch_private import is_autocasting, share_storage
from ..errors import wrong_type, wrong_value
from .dtypes import BYTES, CAST, FLOATS, FP8
from .fast_path import (
    TORCH_HOOKS,
    is_compiling,
    is_torch_function_proxy,
    needs_gradient,
    no_interceptors,
)
from .gemm_function import cast, check_tensors, gemm, multiply, refuse_as_torch, refuse_gradient
from .layer_gradient import has_shapes, layer
from .operators import product_shape

_CAST = CAST | FP8  # torch.mm and its like have no fp8


def cast_operands(a: Tensor, b: Tensor, addend: Tensor | None) -> tuple[Any, ...]:
    """As torch.autocast casts those of torch.mm and its like, fp8 too."""
    return cast(a.device.type, a, b, addend, dtypes=_CAST)


def _cast_layer(a: Tensor, b: Tensor, bias: Tensor | None, rank: int) -> tuple[Any, ...] | None:
    """Of other shapes nothing is cast: that would be done again on the way that they take."""
    return cast_operands(a, b, bias) if has_shapes(a, b, bias, rank) else None


_core.set_torch_hooks(**TORCH_HOOKS, cast=_cast_layer, record_layer=layer)
_fast_product, _fast_linear = _core.fast_product, _core.fast_linear

# What torch calls the operands of gemm.
OPERANDS = {
    "mm": {"a": "input", "b": "mat2"},
    "bmm": {"a": "input", "b": "mat2"},
    "matmul": {"a": "input", "b": "other"},
    "addmm": {"a": "mat1", "b": "mat2", "c": "input", "bias": "input"},
    "baddbmm": {"a": "batch1", "b": "batch2", "c": "input", "bias": "input"},
    "linear": {"a": "input", "b": "weight", "bias": "bias"},
}


def mm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.mm: (n, m) @ (m, p) to (n, p), of operands of one dtype, which is the result's.

    Raises:
        RuntimeError: what torch.mm refuses; dtypes that are not multiplied here (docs/torch.md).
        TypeError: an operand that is no tensor.
    """
    if out_dtype is None and not is_compiling() and (d := _fast_product(input, mat2, out, None, 2)) is not None:
        return d
    return _like_torch("mm", input, mat2, 2, out_dtype, out)


def bmm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.bmm: (b, n, m) @ (b, m, p) to (b, n, p).

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if out_dtype is None and not is_compiling() and (d := _fast_product(input, mat2, out, None, 3)) is not None:
        return d
    return _like_torch("bmm", input, mat2, 3, out_dtype, out)


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """torch.matmul: vectors, matrices, batches that broadcast.

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if not is_compiling() and (d := _fast_product(input, other, out, None, 0)) is not None:
        return d
    return _like_torch("matmul", input, other, 0, None, out)


def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, beta: complex = 1,
    alpha: complex = 1, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """torch.addmm: beta * input + alpha * (mat1 @ mat2); an input that is repeated along rows is a fused bias.

    Args:
        input: of a shape that broadcasts to (n, p). With beta = 0 it is not read.
        mat1: (n, m).
        mat2: (m, p).
        out_dtype: another dtype of the result, as in torch.
        beta: factor of input, a number.
        alpha: factor of the product, a number.
        out: written and returned, resized if its shape is another.

    Raises:
        RuntimeError: as `mm` does.
        TypeError: an operand that is no tensor; a factor that is a tensor with dimensions or a gradient.
    """
    if _is_product_and_bias(input, out_dtype, beta, alpha) and not is_compiling():
        if (d := _fast_product(mat1, mat2, out, input, 2)) is not None:
            return d
    return _like_torch("addmm", mat1, mat2, 2, out_dtype, out, input, beta, alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: torch.dtype | None = None, *, beta: complex = 1,
    alpha: complex = 1, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """torch.baddbmm: beta * input + alpha * (batch1 @ batch2), of (b, n, m) and (b, m, p).

    Raises:
        RuntimeError, TypeError: as `addmm` does.
    """
    if _is_product_and_bias(input, out_dtype, beta, alpha) and not is_compiling():
        if (d := _fast_product(batch1, batch2, out, input, 3)) is not None:
            return d
    return _like_torch("baddbmm", batch1, batch2, 3, out_dtype, out, input, beta, alpha)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear: (..., in) with a weight of (out, in) and a bias of (out,), fused.

    Returns:
        (..., out).

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if not is_compiling() and (d := _fast_linear(input, weight, bias, None)) is not None:
        return d
    if not _are_tensors(input, weight, bias):
        return _overridden("linear", (input, weight), {"bias": bias})
    if weight.dim() not in (1, 2):
        raise RuntimeError(f"linear: weight is {tuple(weight.shape)}; expected 1 or 2 dimensions")
    check_features("linear", input, weight)
    if weight.dim() == 1 and bias is not None and bias.numel() == 1:  # of the one feature that there is
        return linear(input, weight.unsqueeze(0), bias).squeeze(-1)
    if is_autocasting():  # before it is turned: torch.compile would write the gradient both ways round
        input, weight, bias = cast_operands(input, weight, bias)
    turned = weight.t() if weight.dim() == 2 else weight  # torch.cond cannot trace a branch with .mT
    return _like_torch("linear", input, turned, 0, None, None, bias)


def check_features(function: str, input: Tensor, weight: Tensor) -> None:
    """Refuses an input of other features than the weight's, which gemm would know as a transposed b."""
    if input.dim() and weight.dim() and input.shape[-1] != weight.shape[-1]:
        shapes = f"input is {tuple(input.shape)} but weight is {tuple(weight.shape)}"
        raise RuntimeError(f"{function}: {shapes}; last extents must agree")


def _is_product_and_bias(x: Any, out_dtype: Any, beta: Any, alpha: Any) -> bool:
    return (
        type(beta) is type(alpha) is int
        and beta == alpha == 1
        and out_dtype is None
        and isinstance(x, Tensor)
        and x.dim() == 1
    )


def _like_torch(
    name: str, a: Tensor, b: Tensor, rank: int, out_dtype: torch.dtype | None, out: Tensor | None,
    addend: Tensor | None = None, beta: Any = 1, alpha: Any = 1,
) -> Tensor:  # fmt: skip
    """gemm with the dtypes, the errors and the out= of torch's function of this name; rank 0: any."""
    adds = name in ("addmm", "baddbmm")
    if not _are_tensors(a, b, addend, out) or (
        adds and (addend is None or is_torch_function_proxy(alpha) or is_torch_function_proxy(beta))
    ):
        operands = (addend, a, b) if adds else (a, b)
        return _overridden(name, operands, {"out_dtype": out_dtype, "out": out, "beta": beta, "alpha": alpha})
    if out is None and is_autocasting():
        a, b, addend = cast_operands(a, b, addend)
    _check_operands(name, a, b, addend, rank)
    alpha, beta = _number(name, "alpha", alpha), _number(name, "beta", beta)
    if out_dtype is None and a.dtype not in FLOATS:
        out_dtype = a.dtype
    try:
        if out is not None:
            if needs_gradient((a, b, addend, out)):
                refuse_gradient(name)
            _prepare(name, out, product_shape(a, b), out_dtype or a.dtype, (a, b, addend))
        if a.dtype in BYTES:
            d = _integers(a, b, addend, alpha, beta, out_dtype)
            return d if out is None else out.copy_(d)
        keywords = {"alpha": alpha, "out_dtype": out_dtype, **_addend(addend, beta, a, b, out_dtype)}
        return multiply(a, b, out, keywords, no_interceptors())
    except OverflowError as refusal:  # a factor of more bits than the operator's numbers have
        raise RuntimeError(f"{name}: {refusal}") from refusal
    except (ValueError, TypeError, NotImplementedError) as refusal:
        for operand, x in {"a": a, "b": b, "bias": addend, "out": out}.items():
            if x is not None and x.layout != torch.strided:
                found = OPERANDS[name].get(operand, operand)
                raise RuntimeError(f"{name}: {found} is {x.layout}; expected torch.strided") from refusal
        refuse_as_torch(name, refusal, OPERANDS[name])


def _number(name: str, factor: str, x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    if x.dim() or x.requires_grad:
        raise wrong_type(factor, "is a tensor", "a number", "gemm takes tensors", operation=name)
    return x.item()


def _are_tensors(a: Any, b: Any, *others: Any) -> bool:
    """Whether a and b are, and each other is one or None."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return False
    for x in others:
        if x is not None and not isinstance(x, Tensor):
            return False
    return True


def _overridden(name: str, operands: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What an operand that is no tensor makes of the call by __torch_function__, as torch.fx's proxies do."""
    given = {key: x for key, x in keywords.items() if x is not None and not (type(x) in (int, float) and x == 1)}
    everything = (*operands, *given.values())
    if not has_torch_function(everything):
        *addend, a, b = operands
        factors = {OPERANDS[name]["a"]: a, OPERANDS[name]["b"]: b}
        others = {key: given.get(key) for key in ("bias", "out")}
        check_tensors(name, factors | dict(zip(["input"], addend, strict=False)), **others)
    return handle_torch_function(globals()[name], everything, *operands, **given)


def _check_operands(name: str, a: Tensor, b: Tensor, addend: Tensor | None, rank: int) -> None:
    names = OPERANDS[name]
    first, second = names["a"], names["b"]
    for operand, x in ((first, a), (second, b)):
        if x.dim() != rank if rank else not x.dim():
            raise RuntimeError(
                f"{name}: {operand} is {tuple(x.shape)}; expected {rank or 'at least 1'} dimension{'s' * (rank > 1)}"
            )
    if rank == 3 and a.shape[0] != b.shape[0]:
        shapes = f"{first} is {tuple(a.shape)} but {second} is {tuple(b.shape)}"
        raise RuntimeError(f"{name}: {shapes}; batch extents must agree")
    for operand, x in (("b", b), ("bias", addend)):
        if x is not None and x.dtype != a.dtype:
            found = f"{first} is {a.dtype} but {names[operand]} is {x.dtype}"
            raise RuntimeError(f"{name}: {found}; expected the same dtype")


def _prepare(
    name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype, operands: tuple[Tensor | None, ...]
) -> None:
    """Resizes `out` as torch does, which warns if it held something."""
    if out.dtype != dtype:
        raise RuntimeError(f"{name}: out is {out.dtype}; expected {dtype}")
    if out.shape == shape:
        return
    if not is_compiling() and any(x is not None and share_storage(out, x) for x in operands):
        found = f"out is {tuple(out.shape)} and shares the memory of an operand"
        raise RuntimeError(f"{name}: {found}; expected {shape}, or memory of its own")
    if out.numel():
        warnings.warn(
            f"{name}: out is {tuple(out.shape)} and was resized to {shape}; pass one of this shape, or "
            "an empty one (out.resize_(0))",
            stacklevel=4,
        )
    out.resize_(shape)


def _addend(x: Tensor | None, beta: Any, a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> dict[str, Any]:
    """beta * x, broadcast to the shape of a @ b, as gemm takes it: a vector is a bias, anything else c.

    One of the result's own shape is c too: `out` may be the same tensor then. So is one beside a vector: its axes are
    the result's, and not gemm's.
    """
    if x is None:
        return {}
    is_bias = beta == 1 and (out_dtype in (None, x.dtype) or x.dtype == torch.float32)
    if is_bias and x.dim() == 1 and b.dim() > 1 and x.shape[0] == b.shape[-1]:
        return {"bias": x}
    shape = product_shape(a, b)
    is_bias = is_bias and x.shape != shape and min(a.dim(), b.dim()) > 1
    repeated = x.expand(shape)  # raises what torch would
    if beta == 0 and not needs_gradient((x,)):  # its gradient is zeros
        return {}
    rows = x.shape[-2] if x.dim() > 1 else 1
    if is_bias and rows == 1:
        return {"bias": x.expand(*x.shape[:-1], shape[-1])}
    if is_bias and x.shape[-1] == 1:
        return {"bias": x}
    return {"c": repeated if x.dim() < 2 else x.expand(*x.shape[:-2], *shape[-2:]), "beta": beta}


def _integers(a: Tensor, b: Tensor, addend: Tensor | None, alpha: Any, beta: Any, dtype: Any) -> Tensor:
    """Products of bytes as torch has them: modulo 2**8, which sums modulo 2**32 determine."""
    d = gemm(a, b, out_dtype=torch.int32)
    d = d if alpha == 1 else d * _whole("alpha", alpha)
    if addend is not None:
        d = d + _whole("beta", beta) * addend.to(torch.int32).expand(d.shape)
    return d.to(dtype)


def _whole(factor: str, x: Any) -> int:
    try:
        return int(x)
    except (ValueError, TypeError, OverflowError) as refusal:
        raise wrong_value(factor, f"is {x!r}", "a whole number") from refusal
