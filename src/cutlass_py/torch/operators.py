"""The operator `cutlass_py::gemm`: its schema, what it computes, and what it would (fake tensors, vmap).

It is functional. What a call of `cutlass_py.gemm` writes beside its result comes back as further results: z, the value
the activation is applied to, and the sums of a bias gradient; empty where they are not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from .. import _core
from ..declaration.dtypes import BLOCK, COMPUTE, arithmetic
from ..declaration.epilogues import ACTIVATIONS, INTERLEAVED
from ..epilogues.activations import Activation
from ..errors import wrong_type, wrong_value
from .dtypes import DTYPE, NAME, WIDE
from .validation import check_devices, problem_of


class Call(NamedTuple):
    """The operator's arguments, in order, of which its schema is made.

    Attributes:
        a: (..., m, k), and b (..., k, n): at least two dimensions, batches broadcast.
        c: of the shape of D or broadcast to it in its batch dimensions; so are gate and aux, which a derivative reads.
        alpha: one element, instead of alpha_value; likewise beta and scale_out.
        splits: parts of k; 0: none in particular, -1: stream-K.
        parameters: of the activation; empty: its defaults.
        aux_dtype: return z, in this dtype.
        bias_grad: "n" or "m": return f(z) summed to (n,) or (m, 1).
        bias_grad_dtype: of these sums; None: f32 (f64 for f64).
        gated: `activation` is that of gates, which lie beside their values, by the name that gemm's `gated` has.
    """

    a: Tensor
    b: Tensor
    c: Tensor | None = None
    bias: Tensor | None = None
    gate: Tensor | None = None
    aux: Tensor | None = None
    alpha: Tensor | None = None
    beta: Tensor | None = None
    scale_a: Tensor | None = None
    scale_b: Tensor | None = None
    scale_out: Tensor | None = None
    # An integer stands first among what is no tensor: from there on DTensor distinguishes calls by their values.
    splits: int = 0
    alpha_value: complex = 1
    beta_value: complex = 1
    scale_out_value: float = 1.0
    activation: str = "identity"
    parameters: Sequence[float] = ()
    compute: str | None = None
    out_dtype: torch.dtype | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    kernel_name: str | None = None
    aux_dtype: torch.dtype | None = None
    bias_grad: str = ""
    bias_grad_dtype: torch.dtype | None = None
    gated: bool = False


TENSORS = Call._fields.index("splits")  # the operands; what follows are numbers and names
_TYPES = {  # as schemas call what Call's fields are annotated with
    "Tensor": "Tensor", "Tensor | None": "Tensor?", "int": "int", "complex": "Scalar", "float": "float", "str": "str",
    "Sequence[float]": "float[]", "str | None": "str?", "torch.dtype | None": "ScalarType?", "bool": "bool",
}  # fmt: skip


def _schema() -> str:
    """The fields of Call as an operator's parameters."""
    parameters = []
    for name, annotation in Call.__annotations__.items():
        text = f"{_TYPES[annotation.__forward_arg__]} {name}"
        if name in Call._field_defaults:
            default = Call._field_defaults[name]
            text += "=" + ("[]" if default == () else f'"{default}"' if isinstance(default, str) else str(default))
        parameters.append(text)
    return f"gemm({', '.join(parameters)}) -> (Tensor, Tensor, Tensor)"


OPERATION = "gemm"  # as errors begin, where torch.compile traces them
LIBRARY = library.Library("cutlass_py", "DEF")
# Operands may lie anyhow: told otherwise, torch.compile copies weights for the strides that eager calls would see.
LIBRARY.define(_schema(), tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
operator = torch.ops.cutlass_py.gemm.default


def in_blocks(call: Call) -> bool:
    """Whether the scales hold a factor for each 128 of k (docs/gemm.md), and not for whole rows and columns."""
    if call.scale_a is None or call.scale_b is None or len(call.scale_b.shape) < 2:
        return False
    n, depth = call.b.shape[-1], -(-call.a.shape[-1] // BLOCK)
    found = tuple(call.scale_b.shape[-2:])
    return found in ((depth, -(-n // BLOCK)), (depth, n)) and found not in ((1, 1), (1, n))


# ---------------------------------------------------------------------------------------------------- results


def product_shape(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """By numpy.matmul's rules; extents may be symbolic.

    Raises:
        ValueError: the inner extents differ.
        RuntimeError: the batches do not broadcast.
    """
    for name, x in (("a", a), ("b", b)):
        if x.dim() == 0:
            raise wrong_value(name, "is ()", "at least 1 dimension", about="shape", operation=OPERATION)
    if a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        second = {"other": "b", "other_found": f"is {tuple(b.shape)}"}
        hint = "inner extents must agree"
        raise wrong_value("a", f"is {tuple(a.shape)}", hint=hint, about="shape", operation=OPERATION, **second)
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    batch = torch.broadcast_shapes(lead_a, lead_b) if lead_a and lead_b else lead_a or lead_b
    return (*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.dim() > 1 else ()))


def result_shape(call: Call) -> tuple[int, ...]:
    """Of D: where gates and values lie beside each other, half the columns of the product, or twice as many."""
    shape = product_shape(call.a, call.b)
    if not call.gated:
        return shape
    return (*shape[:-1], 2 * shape[-1] if reads_aux(call.activation) else shape[-1] // 2)


def reads_aux(activation: Any) -> bool:
    """Whether a name, of an activation or as `gated` has it, is that of a derivative, whose argument is aux."""
    row = ACTIVATIONS.get(activation.removesuffix(INTERLEAVED) if isinstance(activation, str) else activation)
    return row is not None and row.derivative


def result_dtype(call: Call) -> torch.dtype:
    """What `out_dtype` says, else what gemm gives for these operands and this arithmetic.

    Raises:
        TypeError: a dtype that gemm does not multiply.
        ValueError: `compute` is none of this dtype's.
    """
    if call.out_dtype is not None:
        return call.out_dtype
    rows = COMPUTE.get(NAME.get(call.a.dtype, ""))
    if rows is None:
        names = ", ".join(str(DTYPE[name]) for name in COMPUTE)
        raise wrong_type("a", f"is {call.a.dtype}", f"one of {names}", about="dtype", operation=OPERATION)
    if call.compute is not None and call.compute not in rows:
        names = ", ".join(map(repr, rows))
        found = f"={call.compute!r} is not one of {names} for {NAME[call.a.dtype]} inputs"
        raise wrong_value("compute", found, operation=OPERATION)
    return DTYPE[arithmetic(NAME[call.a.dtype], call.compute).output]


def z_dtype(call: Call) -> torch.dtype:
    """In which z is kept for derivatives: D's dtype; f32 where that has 8 bits or is an integer.

    And where it is f16, if a gate or a scale follows: z may be out of its range then, though D is not.
    """
    dtype = result_dtype(call)
    goes_on = call.gate is not None or call.scale_out is not None or call.scale_out_value != 1
    return torch.float32 if dtype not in WIDE or (goes_on and dtype == torch.float16) else dtype


def _beside(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Memory for z and for the sums of a bias gradient, where they are asked for."""
    new = call.a.new_empty
    z = sums = None
    if call.aux_dtype is not None:
        z = new(product_shape(call.a, call.b), dtype=call.aux_dtype)
    if call.bias_grad:
        wide = torch.float64 if torch.float64 in (result_dtype(call), call.a.dtype) else torch.float32
        shape = (call.a.shape[-2], 1) if call.bias_grad == "m" else call.b.shape[-1:]
        sums = new(shape, dtype=call.bias_grad_dtype or wide)
    return z, sums


def compute(call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What the operator does, by cutlass_py.gemm; None for what is not asked for."""
    z, sums = _beside(call)
    return _core.gemm(call.a, call.b, **_keywords(call, z, sums)), z, sums


def _compute(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    return tuple(call.a.new_empty(0) if x is None else x for x in compute(call))


def _fake(*arguments: Any) -> tuple[Tensor, ...]:
    call = Call(*arguments)
    check_devices(call.a, dict(zip(Call._fields, call[:TENSORS], strict=False)))
    d, beside = call.a.new_empty(result_shape(call), dtype=result_dtype(call)), _beside(call)
    problem_of(call.a, call.b, _keywords(call, *beside))
    return d, *(call.a.new_empty(0) if x is None else x for x in beside)


def _keywords(call: Call, z: Tensor | None, sums: Tensor | None) -> dict[str, Any]:
    """The call as cutlass_py.gemm takes it."""
    name, parameters = call.activation, tuple(call.parameters)
    plain = call.gated or name == "identity"
    scale_out = call.scale_out
    if scale_out is None and call.scale_out_value != 1:  # complex operands take no scale
        scale_out = call.scale_out_value
    return {
        "c": call.c,
        "bias": call.bias,
        "gate": call.gate,
        "aux": call.aux if z is None else z,
        "alpha": call.alpha_value if call.alpha is None else call.alpha,
        "beta": None if call.c is None else call.beta_value if call.beta is None else call.beta,
        "scale_a": call.scale_a,
        "scale_b": call.scale_b,
        "scale_out": scale_out,
        "activation": Activation(name, parameters) if parameters else None if plain else name,
        "gated": name if call.gated else None,
        "bias_grad": sums,
        "compute": call.compute,
        "out_dtype": call.out_dtype,
        "splits": "stream" if call.splits < 0 else call.splits or None,
        "deterministic": call.deterministic,
        "batch_invariant": call.batch_invariant,
        "kernel": call.kernel_name,
    }


# ---------------------------------------------------------------------------------------------------- vmap


def _batched(x: Tensor, dim: Any, rank: int) -> Tensor:
    """The mapped dimension in front, ones behind it, so that an example has `rank` dimensions."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])


def _scale(x: Tensor, dim: Any, rank: int, along: str, extent: int) -> Tensor:
    """A scale per example, as a column (along "m") or a row."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    if x[0].numel() == 1:
        x = x.reshape(-1, 1).expand(-1, extent)
    if x.dim() == 2:
        x = x.unsqueeze(-1 if along == "m" else -2)
    return _batched(x, 0, rank)


def _one_by_one(info: Any, in_dims: Call, call: Call) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    examples = []
    for i in range(info.batch_size):
        each = (x if dim is None else x.select(dim, i) for x, dim in zip(call, in_dims, strict=True))
        examples.append(operator(*each))
    return tuple(torch.stack(results) for results in zip(*examples, strict=True)), (0, 0, 0)


def _vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call = Call(*arguments)
    dims = Call(*in_dims[:TENSORS], *(None,) * (len(Call._fields) - len(in_dims[:TENSORS])))
    # One number for a whole call, and sums over the whole batch: these have no batched form.
    if call.bias_grad or any(dim is not None for dim in (dims.alpha, dims.beta, dims.scale_out)):
        return _one_by_one(info, dims, call)
    rank = max(x.dim() - (dim is not None) for x, dim in ((call.a, dims.a), (call.b, dims.b)))  # of D in one example
    new = call._replace(**{x: _batched(getattr(call, x), getattr(dims, x), rank) for x in ("a", "b")})
    if dims.a is None and dims.b is None:  # only something beside the product is mapped
        new = new._replace(a=call.a.expand(info.batch_size, *(1,) * (rank - call.a.dim()), *call.a.shape))
    m, n = new.a.shape[-2], new.b.shape[-1]
    for name in ("c", "gate", "aux"):
        if getattr(dims, name) is not None:
            new = new._replace(**{name: _batched(getattr(call, name), getattr(dims, name), rank)})
    if dims.bias is not None:
        bias = call.bias.movedim(dims.bias, 0)  # type: ignore[union-attr]
        new = new._replace(bias=_batched(bias.unsqueeze(1) if bias.dim() == 2 else bias, 0, rank))
    for name, along, extent in (("scale_a", "m", m), ("scale_b", "n", n)):
        if getattr(dims, name) is not None:
            new = new._replace(**{name: _scale(getattr(call, name), getattr(dims, name), rank, along, extent)})
    return operator(*new), (0, None if call.aux_dtype is None else 0, None)


for _backend in ("CPU", "CUDA"):
    LIBRARY.impl("gemm", _compute, _backend)
library.register_fake(operator, _fake, lib=LIBRARY)
library.register_vmap(operator, _vmap, lib=LIBRARY)
