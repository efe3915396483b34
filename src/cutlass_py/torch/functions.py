"""`gemm`, and torch's matrix products by their own names, on torch tensors: differentiable, castable, traceable."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..activations import Activation
from ..epilogues import ACTIVATIONS
from .gradients import keeps_z
from .operators import DTYPE, Call, operator, result_shape
from .sharding import register_if_used
from .straight import FLOATS, autocasting, compiling, plain, tracked, unseen, written

_gemm = _core.gemm
_straight = _core.straight_gemm
_BYTES = (torch.int8, torch.uint8)


# ---------------------------------------------------------------------------------------------------- gemm


def gemm(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    c: Tensor | None = None,
    alpha: complex | Tensor = 1.0,
    beta: complex | Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | Activation | None = None,
    aux: Tensor | None = None,
    gate: Tensor | None = None,
    scale_a: float | Tensor | None = None,
    scale_b: float | Tensor | None = None,
    scale_out: float | Tensor | None = None,
    bias_grad: Tensor | None = None,
    compute: str | None = None,
    out_dtype: torch.dtype | str | None = None,
    splits: int | str | None = None,
    deterministic: bool = False,
    kernel: Any = None,
) -> Tensor:
    """cutlass_py.gemm, differentiable: its operands, shapes, dtypes and errors, on torch tensors.

    Runs on torch's current stream. Gradients go to a, b, c, bias, gate, the aux that a derivative reads, and to alpha,
    beta and the scales where they are tensors; they come from the result and from the aux and bias_grad that are
    written. Under torch.autocast, a and b are cast as for torch.mm, and without out_dtype so are c, bias, gate and the
    aux that is read; with `out`, nothing is.

    Returns:
        `out`, or a new row-major tensor.

    Raises:
        ValueError, TypeError, NoKernelError: as cutlass_py.gemm; TypeError also for an operand that is no tensor, and
            for fp8 operands that require a gradient.
        RuntimeError: `out` is given and an operand requires a gradient.
    """
    operands = (a, b, c, bias, gate, aux, alpha, beta, scale_a, scale_b, scale_out, bias_grad, out)
    keywords = {
        "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "aux": aux, "gate": gate,
        "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "bias_grad": bias_grad, "compute": compute,
        "out_dtype": out_dtype, "splits": splits, "deterministic": deterministic, "kernel": kernel,
    }  # fmt: skip
    hidden = unseen()
    casts = out is None and (not hidden or autocasting())
    if hidden and not casts and plain(operands):
        try:
            return _straight_gemm(a, b, out, keywords)
        except (ValueError, TypeError):
            if isinstance(a, Tensor) and isinstance(b, Tensor) and not _has_other_meaning(operands):
                raise
    _check_tensors("gemm", a=a, b=b, out=out, c=c, bias=bias, aux=aux, gate=gate, bias_grad=bias_grad)
    if casts:
        a, b, keywords = _as_autocast(a, b, keywords)
    wants_gradient = tracked(operands)
    if out is not None and wants_gradient:
        _refuse_gradient("gemm")
    if hidden and plain(operands) and not _has_other_meaning(operands):  # only autocast spoke against it
        return _straight_gemm(a, b, out, keywords)
    return _through_operator(a, b, out, wants_gradient, **keywords)


def _straight_gemm(a: Any, b: Any, out: Any, keywords: dict[str, Any]) -> Any:
    d = _gemm(a, b, out=out, **keywords)
    aux = None if _is_derivative(keywords["activation"]) else keywords["aux"]
    if changed := tuple(x for x in (out, aux, keywords["bias_grad"]) if x is not None):
        written(changed)
    return d


def _has_other_meaning(operands: tuple[Any, ...]) -> bool:
    """Whether one of them has no values (meta), or others than its memory (lazily conjugated or negated)."""
    return any(isinstance(x, Tensor) and (x.is_meta or x.is_conj() or x.is_neg()) for x in operands)


def _as_autocast(a: Tensor, b: Tensor, keywords: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    kind = a.device.type
    a, b = cast(kind, a, b)
    if keywords["out_dtype"] is None and a.dtype == b.dtype == torch.get_autocast_dtype(kind):
        names = ["c", "bias", "gate"] + ["aux"] * _is_derivative(keywords["activation"])
        keywords = keywords | dict(zip(names, cast(kind, *(keywords[name] for name in names)), strict=True))
    return a, b, keywords


def cast(device_type: str, *tensors: Any) -> tuple[Any, ...]:
    """As torch.autocast, where it is on, casts the operands of torch.mm: floats but f64 (and fp8, which mm has not)."""
    if device_type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    narrow = (torch.float16, torch.bfloat16, torch.float32)
    fits = [x is not None and x.dtype in narrow and x.device.type == device_type for x in tensors]
    return tuple(x.to(dtype) if fit else x for x, fit in zip(tensors, fits, strict=True))


def _through_operator(
    a: Tensor, b: Tensor, out: Tensor | None, wants_gradient: bool, *, aux: Any, bias_grad: Any, **keywords: Any
) -> Tensor:
    register_if_used()
    row, column = a.dim() == 1, b.dim() == 1

    def matrix(x: Any) -> Any:
        """With the axes that the result lacks where a or b is a vector."""
        x = x.unsqueeze(-1) if column and x is not None else x
        return x.unsqueeze(-2) if row and x is not None else x

    derivative = _is_derivative(keywords["activation"])
    read, written = (matrix(aux), None) if derivative else (None, matrix(aux))
    call = _call(a.unsqueeze(0) if row else a, b.unsqueeze(1) if column else b, matrix, out, read, **keywords)
    keep = written is not None or (wants_gradient and keeps_z(call))
    d, z, sums = operator(*call[:-2], keep, _axis(bias_grad, call))
    if written is not None:
        _store("aux", written, z)
    if bias_grad is not None:
        _store("bias_grad", bias_grad, sums.reshape(bias_grad.shape))
    d = d.squeeze(-2) if row else d
    d = d.squeeze(-1) if column else d
    return d if out is None else _store("out", out, d)


def _call(
    a: Tensor, b: Tensor, matrix: Any, out: Tensor | None, aux: Any, *, c: Any, alpha: Any, beta: Any, bias: Any,
    activation: Any, gate: Any, scale_a: Any, scale_b: Any, scale_out: Any, compute: Any, out_dtype: Any, splits: Any,
    deterministic: Any, kernel: Any,
) -> Call:  # fmt: skip
    """The keywords of gemm as the operator takes them, numbers and tensors apart; all but the last two of a Call."""
    if beta is not None and c is None:
        raise ValueError("gemm: beta is given but c is not")
    alpha, alpha_value = _factor(alpha)
    beta, beta_value = _factor(1 if beta is None else beta)
    scale_out, scale_out_value = _factor(1.0 if scale_out is None else scale_out)
    scale_a, a_value = _factor(1 if scale_a is None else scale_a)
    scale_b, b_value = _factor(1 if scale_b is None else scale_b)
    if alpha is not None and (a_value != 1 or b_value != 1):
        raise ValueError("gemm: alpha is a tensor but a scale is a number; pass both as tensors or both as numbers")
    if out_dtype is None and out is not None:
        out_dtype = out.dtype
    return Call(
        a,
        b,
        matrix(c),
        bias,
        matrix(gate),
        aux,
        alpha,
        beta,
        scale_a,
        scale_b,
        scale_out,
        splits=-1 if splits == "stream" else 0 if splits is None else splits,
        alpha_value=alpha_value * a_value * b_value,
        beta_value=beta_value,
        scale_out_value=scale_out_value,
        activation=_name_of(activation),
        parameters=activation.parameters if isinstance(activation, Activation) else (),
        compute=compute,
        out_dtype=DTYPE.get(out_dtype, out_dtype),
        deterministic=deterministic,
        kernel_name=getattr(kernel, "name", kernel),
    )


def _factor(value: Any) -> tuple[Tensor | None, Any]:
    return (value, 1) if isinstance(value, Tensor) else (None, value)


def _name_of(activation: Any) -> str:
    return "identity" if activation is None else getattr(activation, "name", activation)


def _is_derivative(activation: Any) -> bool:
    row = ACTIVATIONS.get(_name_of(activation))
    return row is not None and row.derivative


def _axis(bias_grad: Tensor | None, call: Call) -> str:
    if bias_grad is None:
        return ""
    along_n = bias_grad.dim() == 1 or (bias_grad.shape[0] == 1 and bias_grad.shape[-1] == call.b.shape[-1])
    return "n" if along_n else "m"


def _store(name: str, destination: Tensor, value: Tensor) -> Tensor:
    if destination.device != value.device:
        raise ValueError(f"gemm: {name} is on {destination.device}; expected {value.device}")
    if destination.shape != value.shape:
        raise ValueError(f"gemm: {name} is {tuple(destination.shape)}; expected {tuple(value.shape)}")
    return destination.copy_(value)


def _check_tensors(function: str, **operands: Any) -> None:
    for name, x in operands.items():
        if not isinstance(x, Tensor) and (x is not None or name in ("a", "b")):
            hint = "; lists of matrices go to cutlass_py.gemm" if isinstance(x, (list, tuple)) else ""
            raise TypeError(f"{function}: {name} is {_core.described_type(x)}; expected a torch.Tensor{hint}")


def _refuse_gradient(function: str) -> None:
    raise RuntimeError(
        f"{function}(): functions with out=... arguments don't support automatic differentiation, but one of the "
        "arguments requires grad."
    )


# ---------------------------------------------------------------------------------------------------- torch's names


def mm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.mm: (n, m) @ (m, p) to (n, p), of operands of one dtype, which is the result's.

    Raises:
        RuntimeError: what torch.mm refuses, with its words; dtypes that are not multiplied here (docs/torch.md).
        TypeError: an operand that is no tensor.
    """
    if out_dtype is None and not compiling() and (d := _straight(input, mat2, out, None, 2)) is not None:
        return d
    return _like_torch("mm", input, mat2, 2, out_dtype, out)


def bmm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """torch.bmm: (b, n, m) @ (b, m, p) to (b, n, p).

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if out_dtype is None and not compiling() and (d := _straight(input, mat2, out, None, 3)) is not None:
        return d
    return _like_torch("bmm", input, mat2, 3, out_dtype, out)


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """torch.matmul: vectors, matrices, batches that broadcast.

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if not compiling() and (d := _straight(input, other, out, None, 0)) is not None:
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
    return _like_torch("addmm", mat1, mat2, 2, out_dtype, out, input, beta, alpha)


def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: torch.dtype | None = None, *, beta: complex = 1,
    alpha: complex = 1, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """torch.baddbmm: beta * input + alpha * (batch1 @ batch2), of (b, n, m) and (b, m, p).

    Raises:
        RuntimeError, TypeError: as `addmm` does.
    """
    return _like_torch("baddbmm", batch1, batch2, 3, out_dtype, out, input, beta, alpha)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch.nn.functional.linear: (..., in) with a weight of (out, in) and a bias of (out,), fused.

    Returns:
        (..., out).

    Raises:
        RuntimeError, TypeError: as `mm` does.
    """
    if not compiling() and isinstance(weight, Tensor) and weight.dim() == 2:
        if (d := _straight(input, weight.mT, None, bias, 0)) is not None:
            return d
    _check_tensors("linear", a=input, b=weight, bias=bias)
    if weight.dim() not in (1, 2):
        raise RuntimeError(f"linear: weight is {tuple(weight.shape)}; expected 1 or 2 dimensions")
    return _like_torch("linear", input, weight.mT if weight.dim() == 2 else weight, 0, None, None, bias)


def _like_torch(
    name: str, a: Tensor, b: Tensor, rank: int, out_dtype: torch.dtype | None, out: Tensor | None,
    addend: Tensor | None = None, beta: Any = 1, alpha: Any = 1,
) -> Tensor:  # fmt: skip
    """gemm with the dtypes, the errors and the out= of torch's function of this name; rank 0: any."""
    _check_tensors(name, a=a, b=b, input=addend, out=out)
    if out is None:
        a, b, addend = cast(a.device.type, a, b, addend)
    _check_ranks(name, a, b, rank)
    _check_dtypes(name, a, b, addend)
    for factor, x in (("alpha", alpha), ("beta", beta)):
        if isinstance(x, Tensor) and (x.dim() or x.requires_grad):
            raise TypeError(f"{name}: {factor} is a tensor; expected a number; gemm takes tensors")
    alpha, beta = (x.item() if isinstance(x, Tensor) else x for x in (alpha, beta))
    if out_dtype is None and a.dtype not in FLOATS:
        out_dtype = a.dtype
    try:
        if out is not None:
            if tracked((a, b, addend, out)):
                _refuse_gradient(name)
            _prepare(name, out, result_shape(a, b), out_dtype or a.dtype)
        if a.dtype in _BYTES:
            d = _integers(a, b, addend, alpha, beta, out_dtype)
            return d if out is None else out.copy_(d)
        return gemm(a, b, out=out, alpha=alpha, out_dtype=out_dtype, **_addend(addend, beta, a, b))
    except (ValueError, TypeError) as refusal:
        raise RuntimeError(str(refusal).replace("gemm:", f"{name}:", 1)) from refusal


def _check_ranks(name: str, a: Tensor, b: Tensor, rank: int) -> None:
    for operand, x in (("a", a), ("b", b)):
        if x.dim() != rank if rank else x.dim() < 1:
            raise RuntimeError(
                f"{name}: {operand} is {tuple(x.shape)}; expected {rank or 'at least 1'} dimension{'s' * (rank > 1)}"
            )
    if rank == 3 and a.shape[0] != b.shape[0]:
        raise RuntimeError(f"{name}: a is {tuple(a.shape)} but b is {tuple(b.shape)}; batch extents must agree")


def _check_dtypes(name: str, a: Tensor, b: Tensor, addend: Tensor | None) -> None:
    for operand, x in (("b", b), ("input", addend)):
        if x is not None and x.dtype != a.dtype:
            raise RuntimeError(f"{name}: a is {a.dtype} but {operand} is {x.dtype}; expected the same dtype")


def _prepare(name: str, out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Resizes `out` as torch does, which warns if it held something."""
    if out.dtype != dtype:
        raise RuntimeError(f"{name}: out is {out.dtype}; expected {dtype}")
    if out.shape == shape:
        return
    if out.numel():
        warnings.warn(
            f"{name}: out is {tuple(out.shape)} and was resized to {shape}; pass one of this shape, or "
            "an empty one (out.resize_(0))",
            stacklevel=4,
        )
    out.resize_(shape)


def _addend(x: Tensor | None, beta: Any, a: Tensor, b: Tensor) -> dict[str, Any]:
    """beta * x, broadcast to the shape of a @ b, as gemm takes it: a vector is a bias, anything else c."""
    if x is None:
        return {}
    if beta == 1 and x.dim() == 1 and b.dim() > 1 and x.shape[0] == b.shape[-1]:
        return {"bias": x}
    shape = result_shape(a, b)
    x.expand(shape)  # raises what torch would
    if beta == 0:
        return {}
    rows = x.shape[-2] if x.dim() > 1 else 1
    if beta == 1 and rows == 1:
        return {"bias": x.expand(*x.shape[:-1], shape[-1])}
    if beta == 1 and x.shape[-1] == 1:
        return {"bias": x}
    return {"c": x.expand(*x.shape[:-2], *shape[-2:]), "beta": beta}


def _integers(a: Tensor, b: Tensor, addend: Tensor | None, alpha: Any, beta: Any, dtype: Any) -> Tensor:
    """Products of bytes as torch has them: modulo 2**8, which sums modulo 2**32 determine."""
    d = gemm(a, b, out_dtype=torch.int32)
    d = d if alpha == 1 else d * int(alpha)
    if addend is not None:
        d = d + int(beta) * addend.to(torch.int32)
    return d.to(dtype)
