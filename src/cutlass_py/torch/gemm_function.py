"""`gemm` on torch tensors: which way a call goes, and its keywords as torch's operator takes them."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _core
from ..arrays.torch_private import is_autocasting
from ..epilogues.activations import Activation
from ..errors import ArgumentError, NoKernelError, wrong_type, wrong_value
from .activations import name_of
from .dtypes import BYTES, CAST, DTYPE, NAME
from .fast_path import (
    any_lazy_or_wrapped,
    are_plain_types,
    is_compiling,
    is_exporting,
    is_torch_function_proxy,
    needs_gradient,
    no_interceptors,
)
from .gradients import keeps_z, run
from .operators import OPERATION, Call, reads_aux, result_dtype, z_dtype
from .sharding import register_if_used
from .validation import problem_of

_gemm, _fast_gemm = _core.gemm, _core.fast_gemm
_NUMBERS = ("alpha", "beta", "scale_a", "scale_b", "scale_out")


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
    gated: str | None = None,
    scale_a: float | Tensor | None = None,
    scale_b: float | Tensor | None = None,
    scale_out: float | Tensor | None = None,
    bias_grad: Tensor | None = None,
    compute: str | None = None,
    out_dtype: torch.dtype | str | None = None,
    splits: int | str | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
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
    if not is_compiling():
        d = _fast_gemm(a, b, out, c, alpha, beta, bias, activation, aux, gate, gated, scale_a, scale_b, scale_out,
                      bias_grad, compute, out_dtype, splits, deterministic, batch_invariant, kernel)  # fmt: skip
        if d is not None:
            return d
    operands = (a, b, c, bias, gate, aux, alpha, beta, scale_a, scale_b, scale_out, bias_grad, out)
    keywords = {
        "c": c, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation, "aux": aux, "gate": gate,
        "gated": gated, "scale_a": scale_a, "scale_b": scale_b, "scale_out": scale_out, "bias_grad": bias_grad,
        "compute": compute, "out_dtype": out_dtype, "splits": splits, "deterministic": deterministic,
        "batch_invariant": batch_invariant, "kernel": kernel,
    }  # fmt: skip
    unseen = no_interceptors()
    casts = out is None and (not unseen or is_autocasting())
    if has_torch_function(operands) and any(map(is_torch_function_proxy, operands)):
        return handle_torch_function(gemm, operands, a, b, out=out, **keywords)
    check_tensors("gemm", {"a": a, "b": b}, out=out, c=c, bias=bias, aux=aux, gate=gate, bias_grad=bias_grad)
    if casts:
        a, b, keywords = _as_autocast(a, b, keywords)
    return multiply(a, b, out, keywords, unseen, checked=False)


def multiply(
    a: Tensor, b: Tensor, out: Tensor | None, keywords: dict[str, Any], unseen: bool, checked: bool = True
) -> Tensor:
    """gemm of tensors that are cast; `unseen`: only a gradient has to see it; `checked`: no keyword is out of range."""
    tensors = tuple(x for x in (a, b, out, *keywords.values()) if isinstance(x, Tensor))
    wants_gradient = needs_gradient(tensors)
    if out is not None and wants_gradient:
        refuse_gradient("gemm")
    if unseen and are_plain_types(tensors) and not any_lazy_or_wrapped(tensors):
        if not wants_gradient:
            return _gemm(a, b, out=out, **keywords)
        if (d := _fast_gemm(a, b, uncast=False, **keywords)) is not None:
            return d
    if not checked and not is_compiling():  # which sees metadata that are no numbers yet
        problem = problem_of(a, b, {"out": out, **keywords})
        if problem is not None and keywords["out_dtype"] is not None:
            keywords = keywords | {"out_dtype": problem.d}
        numbers = {name: keywords[name] for name in _NUMBERS if not isinstance(keywords[name], Tensor)}
        keywords = keywords | {name: x.item() for name, x in numbers.items() if hasattr(x, "item")}  # NumPy's
    return _through_operator(a, b, out, wants_gradient, **keywords)


def _as_autocast(a: Tensor, b: Tensor, keywords: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    kind = a.device.type
    a, b = cast(kind, a, b)
    if keywords["out_dtype"] is None and a.dtype == b.dtype == torch.get_autocast_dtype(kind):
        names = ["c", "bias", "gate"] + ["aux"] * _reads_aux(keywords)
        keywords = keywords | dict(zip(names, cast(kind, *(keywords[name] for name in names)), strict=True))
    return a, b, keywords


def cast(device_type: str, *tensors: Any, dtypes: frozenset[torch.dtype] = CAST) -> tuple[Any, ...]:
    """As torch.autocast, where it is on, casts the operands of torch.mm; without `dtypes`, fp8 stays."""
    if device_type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device_type):
        return tensors
    dtype = torch.get_autocast_dtype(device_type)
    fits = [x is not None and x.dtype in dtypes and x.device.type == device_type for x in tensors]
    return tuple(x.to(dtype) if fit else x for x, fit in zip(tensors, fits, strict=True))


# ---------------------------------------------------------------------------------------------------- by the operator


def _through_operator(
    a: Tensor, b: Tensor, out: Tensor | None, wants_gradient: bool, *, aux: Any = None, bias_grad: Any = None,
    **keywords: Any,
) -> Tensor:  # fmt: skip
    register_if_used()
    row, column = a.dim() == 1, b.dim() == 1

    def matrix(x: Any) -> Any:
        """With the axes that the result lacks where a or b is a vector."""
        x = x.unsqueeze(-1) if column and x is not None else x
        return x.unsqueeze(-2) if row and x is not None else x

    read, written = (matrix(aux), None) if _reads_aux(keywords) else (None, matrix(aux))
    call = _call(a.unsqueeze(0) if row else a, b.unsqueeze(1) if column else b, matrix, out, read, **keywords)
    aux_dtype = None if written is None else written.dtype
    if written is None and wants_gradient and keeps_z(call) and not is_exporting():
        aux_dtype = z_dtype(call)
    # Sums of fewer bits than f32 are asked for in f32: devices' parts of them and gradients are added up.
    sums_dtype = torch.float64 if bias_grad is not None and bias_grad.dtype == torch.float64 else None
    axis = _axis(bias_grad, call)
    d, z, sums = run(call._replace(aux_dtype=aux_dtype, bias_grad=axis, bias_grad_dtype=sums_dtype))
    if written is not None:
        _store("aux", written, z)
    if bias_grad is not None:
        _store("bias_grad", bias_grad, sums.reshape(bias_grad.shape))
    d = d.squeeze(-2) if row else d
    d = d.squeeze(-1) if column else d
    return d if out is None else _store("out", out, d)


def _call(
    a: Tensor, b: Tensor, matrix: Any, out: Tensor | None, aux: Any, *, c: Any = None, alpha: Any = 1,
    beta: Any = None, bias: Any = None, activation: Any = None, gate: Any = None, gated: Any = None,
    scale_a: Any = None, scale_b: Any = None, scale_out: Any = None, compute: Any = None, out_dtype: Any = None,
    splits: Any = None, deterministic: bool = False, batch_invariant: bool = False, kernel: Any = None,
) -> Call:  # fmt: skip
    """The keywords of gemm as the operator takes them, numbers and tensors apart; but for what is written beside D."""
    if beta is not None and c is None:
        raise wrong_value("beta", "is given", other="c", other_found="is not", operation=OPERATION)
    if gated is not None and activation is not None:
        raise wrong_value("activation", "is given", other="gated", other_found="is, too", operation=OPERATION)
    alpha, alpha_value = _factor(alpha)
    beta, beta_value = _factor(1 if beta is None else beta)
    scale_out, scale_out_value = _factor(1.0 if scale_out is None else scale_out)
    scale_a, a_value = _factor(1 if scale_a is None else scale_a)
    scale_b, b_value = _factor(1 if scale_b is None else scale_b)
    if alpha is not None and (a_value != 1 or b_value != 1):
        found = {"other": "a scale", "other_found": "is a number"}
        raise wrong_value(
            "alpha", "is an array", hint="pass both as arrays or both as numbers", operation=OPERATION, **found
        )
    out_dtype = DTYPE.get(out_dtype, out_dtype)
    if out is not None:
        if out_dtype is not None and out_dtype != out.dtype:
            asked = {"other": "out_dtype", "other_found": f"is {NAME.get(out_dtype)}"}
            raise wrong_type("out", f"is {NAME.get(out.dtype)}", about="dtype", operation=OPERATION, **asked)
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
        splits=_parts(splits),
        alpha_value=_folded(alpha_value, a_value, b_value),
        beta_value=beta_value,
        scale_out_value=scale_out_value,
        activation=name_of(gated or activation),
        parameters=activation.parameters if isinstance(activation, Activation) else (),
        compute=compute,
        out_dtype=out_dtype,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
        kernel_name=getattr(kernel, "name", kernel),
        gated=gated is not None,
    )


def _parts(splits: Any) -> int:
    """As the operator says it, to which 0 and below are words: a compiled call comes here unchecked."""
    if splits is None or splits == "stream":
        return 0 if splits is None else -1
    if (parts := int(splits)) < 1:  # dynamic shapes may have made a symbol of it, which has no text
        raise wrong_value("splits", "is below 1", "1 to 32767, or 'stream'", operation=OPERATION)
    return parts


def _factor(value: Any) -> tuple[Tensor | None, Any]:
    return (value, 1) if isinstance(value, Tensor) else (None, value)


def _folded(alpha: Any, scale_a: Any, scale_b: Any) -> Any:
    """One factor of a product; 0 beside anything is 0, as gemm reads neither a nor b then."""
    numbers = (alpha, scale_a, scale_b)
    if any(type(x) in (int, float, complex) and x == 0 for x in numbers):
        return 0.0
    return alpha * (scale_a * scale_b)


def _reads_aux(keywords: dict[str, Any]) -> bool:
    return reads_aux(keywords.get("gated") or name_of(keywords.get("activation")))


def _axis(bias_grad: Tensor | None, call: Call) -> str:
    if bias_grad is None:
        return ""
    if bias_grad.dtype not in (torch.float32, torch.float64, result_dtype(call)) or bias_grad.dtype in BYTES:
        found = f"is {NAME.get(bias_grad.dtype, bias_grad.dtype)}"
        raise wrong_type("bias_grad", found, "one of f32, f64", about="dtype", operation=OPERATION)
    m, n = call.a.shape[-2], call.b.shape[-1]
    shape = tuple(bias_grad.shape)
    if shape == (n,) or shape == (1, n):  # noqa: PLR1714  (`in` does not see through symbols)
        return "n"
    if shape == (m, 1):
        return "m"
    raise wrong_value("bias_grad", f"is {shape}", f"({n},), (1, {n}) or ({m}, 1)", about="shape", operation=OPERATION)


def _store(name: str, destination: Tensor, value: Tensor) -> Tensor:
    if destination.device != value.device:
        raise wrong_value(name, f"is on {destination.device}", str(value.device), about="device", operation=OPERATION)
    if destination.shape != value.shape:
        found, expected = f"is {tuple(destination.shape)}", str(tuple(value.shape))
        raise wrong_value(name, found, expected, about="shape", operation=OPERATION)
    return destination.copy_(value)


def check_tensors(function: str, needed: dict[str, Any], **others: Any) -> None:
    """Raises TypeError for what is no torch.Tensor; the others may be None."""
    for name, x in (needed | others).items():
        if not isinstance(x, Tensor) and (x is not None or name in needed):
            hint = "lists of matrices go to cutlass_py.gemm" if isinstance(x, (list, tuple)) else ""
            found = f"is {_core.described_type(x)}"
            raise wrong_type(name, found, "a torch.Tensor", hint, operation=function)


def refuse_as_torch(function: str, refusal: Exception, names: dict[str, str]) -> NoReturn:
    """Raises what gemm refused as a RuntimeError of this function; as it is what a mode or a hook raised meanwhile.

    Args:
        names: what the function calls gemm's a, b, c and bias.
    """
    if isinstance(refusal, NoKernelError):
        raise RuntimeError(str(refusal.renamed(function))) from refusal
    if not isinstance(refusal, ArgumentError):
        raise refusal
    changes = {}
    if refusal.about == "overlap" and refusal.operand == "out":  # of what it may be there is the addend alone
        changes["hint"] = f"it may only be {names['c']} itself, element for element" if "c" in names else ""
    raise RuntimeError(str(refusal.renamed(function, names, **changes))) from refusal


def refuse_gradient(function: str) -> None:
    """Raises in torch's words."""
    raise RuntimeError(
        f"{function}(): functions with out=... arguments don't support automatic differentiation, but one of the "
        "arguments requires grad."
    )
