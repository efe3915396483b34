"""Products of unequal size for torch: the operator `cutlass_py::grouped_gemm`, its gradient, `grouped_mm` and `gmm`.

Where groups lie is told by the end of each. Every gradient is a grouped product again: of a it is dD @ b.mT, of b
a.mT @ dD, whichever axis the groups divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, library
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.flop_counter import register_flop_formula

from .. import _core
from ..arrays.torch_private import is_symbolic
from ..declaration.epilogues import ACTIVATIONS, GATED, INTERLEAVED
from ..epilogues.activations import Activation
from ..errors import ArgumentError, NoKernelError
from . import activations
from .dtypes import BYTES, CAST, DTYPE, NAME, WIDE
from .fast_path import (
    any_lazy_or_wrapped,
    are_plain_types,
    is_compiling,
    is_exporting,
    is_torch_function_proxy,
    needs_gradient,
    no_interceptors,
)
from .gemm_function import cast, check_tensors, gemm, refuse_as_torch
from .gradients import column_major, dense, inherit_thread_flags, is_gradient_needed
from .operators import LIBRARY
from .sharding import RULES, register_if_used
from .validation import check_devices


class _Call(NamedTuple):
    """The operator's arguments, in order; `keep_z`: return z too, in D's dtype, or in f32 where that has 8 bits."""

    a: Tensor
    b: Tensor
    offsets: Tensor
    bias: Tensor | None = None
    activation: str = "identity"
    parameters: Sequence[float] = ()
    out_dtype: torch.dtype | None = None
    keep_z: bool = False
    gated: bool = False  # the activation is that of gates, by the name that `gated` has


LIBRARY.define(
    "grouped_gemm(Tensor a, Tensor b, Tensor offsets, Tensor? bias=None, str activation='identity', "
    "float[] parameters=[], ScalarType? out_dtype=None, bool keep_z=False, bool gated=False) "
    "-> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
operator = torch.ops.cutlass_py.grouped_gemm.default
_TENSORS = 4
_ACTIVATIONS = [name for name, row in ACTIVATIONS.items() if not row.derivative]
# What the functions call the operands of grouped_gemm.
_OPERANDS = {
    "grouped_mm": {"a": "mat_a", "b": "mat_b", "offsets": "offs", "bias": "bias"},
    "gmm": {"a": "a", "b": "b", "offsets": "cumsum(batch_sizes)", "bias": "bias"},
}


def grouped_mm(
    mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | str | None = None, activation: str | Activation | None = None, gated: str | None = None,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.grouped_mm, with a bias and an activation, of floats and of bytes in any layout.

    A dimension that one of the operands has once for all groups is divided by offs:

        mat_a (M, K), mat_b (G, K, N) -> (M, N)       rows
        mat_a (M, K), mat_b (K, N) -> (G, M, N)       k; zeros of an empty group, before bias and activation
        mat_a (G, M, K), mat_b (K, N) -> (M, N)       columns
        mat_a (G, M, K), mat_b (G, K, N) -> (G, M, N) none: torch.bmm, without offs

    Args:
        mat_a, mat_b: of one dtype: f16, bf16, f32, f64, int8 or uint8.
        offs: (G,) of int32, where each group ends; on the device, where nobody waits for them, or on the CPU.
        bias: (N,), or (G, N): a row for each group, unless groups divide columns.
        out_dtype: of the result; that of mat_a where it is not given, of bytes torch.int32.
        activation: as gemm takes it, but no derivative.
        gated: "silu", "gelu", "gelu_tanh", "relu" or "sigmoid" instead: the N columns are N / 2 gates and then as many
            values, and the result, f(gates) * values, has N / 2; "silu_interleaved" and so on: a value lies behind each
            gate. Not where groups divide k or columns.

    Returns:
        A row-major tensor without gaps, where torch pads rows to 16 bytes. Rows or columns behind the last group, which
        torch does not write, are zeros, and so are their gradients.

    Raises:
        RuntimeError: shapes, dtypes or numbers that do not fit.
        TypeError: an operand that is no tensor.
    """
    given = (mat_a, mat_b, offs, bias)
    if has_torch_function(given) and any(map(is_torch_function_proxy, given)):
        keywords = {"offs": offs, "bias": bias, "out_dtype": out_dtype, "activation": activation, "gated": gated}
        return handle_torch_function(grouped_mm, given, mat_a, mat_b, **keywords)
    check_tensors("grouped_mm", {"mat_a": mat_a, "mat_b": mat_b}, offs=offs, bias=bias)
    check_ends("grouped_mm", offs)
    return _product("grouped_mm", mat_a, mat_b, offs, bias, out_dtype, activation, gated)


def check_ends(function: str, offs: Tensor | None) -> None:
    """Refuses what torch does."""
    if offs is not None and offs.dtype != torch.int32:
        raise RuntimeError(f"{function}: offs is {offs.dtype}; expected torch.int32")


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """gmm of the package grouped_gemm: a (T, K), of which batch_sizes[i] rows are multiplied by b[i].

    Args:
        a: of the dtype of b.
        b: (G, K, N), or (G, N, K) with trans_b.
        batch_sizes: (G,) of int64, on the CPU or the device.
        trans_b: whether each matrix of b is transposed.

    Returns:
        (T, N); rows behind the last group are zeros.

    Raises:
        RuntimeError, TypeError: as `grouped_mm` does.
    """
    check_tensors("gmm", {"a": a, "b": b, "batch_sizes": batch_sizes})
    for name, x, rank in (("a", a, 2), ("b", b, 3), ("batch_sizes", batch_sizes, 1)):
        if x.dim() != rank:
            raise RuntimeError(f"gmm: {name} is {tuple(x.shape)}; expected {rank} dimension{'s' * (rank > 1)}")
    if batch_sizes.dtype != torch.int64:
        raise RuntimeError(f"gmm: batch_sizes is {batch_sizes.dtype}; expected torch.int64")
    ends = batch_sizes.cumsum(0)  # of 64 bits, so that none becomes another one before it is checked
    return _product("gmm", a, b.mT if trans_b else b, ends, None, None, None)


def _product(
    function: str, a: Tensor, b: Tensor, offsets: Tensor | None, bias: Tensor | None, out_dtype: Any, activation: Any,
    gated: Any = None,
) -> Tensor:  # fmt: skip
    names = _OPERANDS[function]
    kind = a.device.type
    a, b = cast(kind, a, b)
    if out_dtype is None and a.dtype in CAST:
        (bias,) = cast(kind, bias)
    out_dtype, name = DTYPE.get(out_dtype, out_dtype), activations.name_of(activation)
    wrong = wrong_operands(names, a, b, offsets, bias, WIDE | BYTES) or _wrong_epilogue(out_dtype, name, gated)
    if wrong:
        raise RuntimeError(f"{function}: {wrong}")
    try:
        if offsets is None:
            rows = bias.unsqueeze(1) if bias is not None and bias.dim() == 2 else bias
            return gemm(
                a, b, bias=rows, activation=activation, gated=gated, out_dtype=out_dtype or _usual_result(a.dtype)
            )
        parameters = activation.parameters if isinstance(activation, Activation) else ()
        call = _Call(a, b, offsets, bias, gated or name, parameters, out_dtype, gated=gated is not None)
        keep_z = call.activation != "identity" and not _from_result(call, _result_dtype(call)) and not is_exporting()
        keep_z = keep_z and activations.pairs_are_kept(call.activation) and needs_gradient((a, b, bias))
        return _run(call._replace(keep_z=keep_z))[0]
    except (ValueError, TypeError, NotImplementedError) as refusal:
        refuse_groups(function, refusal, names)


def refuse_groups(function: str, refusal: Exception, names: dict[str, str]) -> NoReturn:
    """Raises what grouped_gemm refused as a RuntimeError of this function, which has these names for its operands."""
    if isinstance(refusal, ArgumentError):  # of one number: "offsets[1]"
        words = (refusal.operand, refusal.other)
        names = names | {x: x.replace("offsets", names["offsets"]) for x in words if x.startswith("offsets[")}
    refuse_as_torch(function, refusal, names)


def wrong_operands(
    names: dict[str, str], a: Tensor, b: Tensor, offsets: Tensor | None, bias: Tensor | None,
    dtypes: frozenset[torch.dtype], alike: bool = True,
) -> str:  # fmt: skip
    """What torch checks, and what a compiled call could not tell before it runs; `alike`: both have one dtype."""
    first, second, ends = names["a"], names["b"], names["offsets"]
    for operand, x in ((first, a), (second, b)):
        if x.dim() not in (2, 3):
            return f"{operand} is {tuple(x.shape)}; expected 2 or 3 dimensions"
        if x.layout != torch.strided:
            return f"{operand} is {x.layout}; expected torch.strided"
    both = f"{first} is {tuple(a.shape)} but {second} is {tuple(b.shape)}"
    for operand, x in ((first, a),) if alike else ((first, a), (second, b)):
        if x.dtype not in dtypes:
            return f"{operand} is {x.dtype}; expected one of {', '.join(sorted(map(str, dtypes)))}"
    if alike and a.dtype != b.dtype:
        return f"{first} is {a.dtype} but {second} is {b.dtype}; expected the same dtype"
    if a.shape[-1] != b.shape[-2]:
        return f"{both}; inner extents must agree"
    stacked = a.dim() == b.dim() == 3
    if stacked and a.shape[0] != b.shape[0]:
        return f"{both}; batch extents must agree"
    if stacked != (offsets is None):
        given = "is not given" if offsets is None else "is given"
        return f"{ends} {given} but {both}; expected it unless both have 3 dimensions"
    groups = a.shape[0] if a.dim() == 3 else b.shape[0] if b.dim() == 3 else None
    if offsets is not None:
        if offsets.dim() != 1 or (groups is not None and offsets.shape[0] != groups):
            return f"{ends} is {tuple(offsets.shape)}; expected ({'G' if groups is None else groups},)"
        groups = offsets.shape[0]
    if bias is not None:
        by_group = bias.dim() == 2 and (a.dim() == 2 or b.dim() == 3)
        expected = (groups, b.shape[-1]) if by_group else (b.shape[-1],)
        if tuple(bias.shape) != expected:
            return f"bias is {tuple(bias.shape)}; expected {expected}"
    return ""


def _wrong_epilogue(out_dtype: Any, activation: Any, gated: Any) -> str:
    if out_dtype is not None and out_dtype not in NAME:
        return f"out_dtype is {out_dtype!r}; expected one of {', '.join(DTYPE)}, or torch's"
    if activation not in _ACTIVATIONS:
        return f"activation={activation!r} is not one of {', '.join(_ACTIVATIONS)}"
    if gated is not None and str(gated).removesuffix(INTERLEAVED) not in GATED:
        return f"gated={gated!r} is not one of {', '.join(GATED)}, with {INTERLEAVED} behind or not"
    if gated is not None and activation != "identity":
        return "activation is given but gated is, too"
    return ""


# ---------------------------------------------------------------------------------------------------- the operator


def _run(call: _Call) -> tuple[Tensor, Tensor]:
    """The operator, by a function that torch.func differentiates too; while torch.compile traces, by itself."""
    if no_interceptors() and not needs_gradient(call[:_TENSORS]):
        return _forward(*call)
    register_if_used()
    run = operator if is_compiling() else _Grouped.apply
    found: tuple[Tensor, Tensor] = run(*call)
    return found


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The operator; where nothing has to see it, without torch's dispatch."""
    tensors = arguments[:_TENSORS]
    unseen = no_interceptors() and are_plain_types(tensors) and not any_lazy_or_wrapped(tensors)
    if not unseen:
        register_if_used()
    found: tuple[Tensor, Tensor] = (_compute if unseen else operator)(*arguments)
    return found


def _compute(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = _Call(*arguments)
    shape, dtype = _shape(call), _result_dtype(call)
    d = new_result(call.a, shape, call.offsets, dtype)
    z = (
        new_result(call.a, result_shape(call.a, call.b, call.offsets), call.offsets, _z_dtype(dtype))
        if call.keep_z
        else None
    )
    multiply_groups(call.a, call.b, call.offsets, d, z, bias=call.bias, **_function(call))
    return d, call.a.new_empty(0) if z is None else z


def new_result(a: Tensor, shape: tuple[int, ...], offsets: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros, where the device alone knows which lines belong to no group."""
    new = a.new_zeros if offsets.device.type != "cpu" and len(shape) == 2 else a.new_empty
    return new(shape, dtype=dtype)


def multiply_groups(a: Tensor, b: Tensor, offsets: Tensor, d: Tensor, z: Tensor | None = None, **keywords: Any) -> None:
    """cutlass_py.grouped_gemm into d, and z as aux, which are new; lines that belong to no group become zeros."""
    on_device, keywords = offsets.device.type != "cpu", keywords | {"out": d, "aux": z}
    try:
        _core.grouped_gemm(a, b, offsets=offsets, **keywords)
    except NoKernelError:  # but for groups that the host knows
        if not on_device or torch.cuda.is_current_stream_capturing():
            raise
        _core.grouped_gemm(a, b, offsets=offsets.cpu(), **keywords)
    if not on_device and d.dim() == 2:
        end = int(offsets[-1]) if len(offsets) else 0
        for x in (d,) if z is None else (d, z):
            (x[end:] if a.dim() == 2 else x[:, end:]).zero_()


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    call = _Call(*arguments)
    z_shape, dtype = result_shape(call.a, call.b, call.offsets), _result_dtype(call)
    keywords = {"bias": call.bias, **_function(call), "out_dtype": NAME[dtype]}
    check_groups(call.a, call.b, call.offsets, **keywords)
    new = call.a.new_empty
    return new(_shape(call), dtype=dtype), new(z_shape, dtype=_z_dtype(dtype)) if call.keep_z else new(0)


def check_groups(a: Tensor, b: Tensor, offsets: Tensor, **keywords: Any) -> None:
    """Refuses, without memory, what cutlass_py.grouped_gemm would; where extents are symbolic, it will."""
    check_devices(a, {"b": b, **keywords})
    given = {"a": a, "b": b, "offsets": offsets, **keywords}
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    if any(map(is_symbolic, tensors.values())):
        return
    device = a.get_device() if a.is_cuda else -1  # of the ends too, which may lie on the CPU
    for name, x in tensors.items():
        given[name] = _core.TensorSpecBase(x.shape, x.stride(), NAME.get(x.dtype, "s32"), device, 256)
    a, b, ends = (given.pop(name) for name in ("a", "b", "offsets"))
    _core.grouped_problem(a, b, ends, None, None, given)


def _function(call: _Call) -> dict[str, str | Activation | None]:
    """As grouped_gemm's keywords."""
    if call.parameters:
        return {"activation": Activation(call.activation, tuple(call.parameters))}
    name = None if call.activation == "identity" else call.activation
    return {"gated" if call.gated else "activation": name}


def result_shape(a: Tensor, b: Tensor, offsets: Tensor) -> tuple[int, ...]:
    """Of all groups together, or of each."""
    shape = (a.shape[-2], b.shape[-1])
    return (offsets.shape[0], *shape) if a.dim() == b.dim() == 2 else shape


def _shape(call: _Call) -> tuple[int, ...]:
    """Of D: gates and values make half as many columns."""
    *rows, columns = result_shape(call.a, call.b, call.offsets)
    return (*rows, columns // 2 if call.gated else columns)


def _result_dtype(call: _Call) -> torch.dtype:
    return call.out_dtype or _usual_result(call.a.dtype)


def _usual_result(dtype: torch.dtype) -> torch.dtype:
    return torch.int32 if dtype in BYTES else dtype


def _z_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in WIDE else torch.float32


def _from_result(call: _Call, dtype: torch.dtype) -> bool:
    """Whether the derivative follows from D."""
    return call.activation in activations.FROM_RESULT and not call.gated and dtype in WIDE


# ---------------------------------------------------------------------------------------------------- its gradient


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    call, (d, z) = _Call(*inputs), output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*(x for x, known in ((d, d.is_floating_point()), (z, call.keep_z)) if not known))
    ctx.from_result = _from_result(call, d.dtype)
    again = call.activation != "identity" and not ctx.from_result and not call.keep_z  # z is computed
    needs_a, needs_b = ctx.needs_input_grad[:2]
    kept = d if ctx.from_result else z if call.keep_z else None
    a, b = call.a if needs_b or again else None, call.b if needs_a or again else None
    ctx.save_for_backward(a, b, call.offsets, call.bias if again else None, kept)
    ctx.activation, ctx.gated = (call.activation, call.parameters), call.gated
    ctx.z_dtype, ctx.dtype = _z_dtype(d.dtype), call.a.dtype
    ctx.ranks, ctx.turned = (call.a.dim(), call.b.dim()), (column_major(call.a), column_major(call.b))
    ctx.bias = None if call.bias is None else (call.bias.dim(), call.bias.dtype)
    ctx.thread_flags = inherit_thread_flags()


def _backward(ctx: Any, of_d: Tensor | None, of_z: Tensor | None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * len(_Call._fields)
    with ctx.thread_flags():
        dz = _of_linear(ctx, dense(of_d), dense(of_z))
        return nothing if dz is None else (*_gradients(ctx, dz), *nothing[_TENSORS:])


def _of_linear(ctx: Any, of_d: Tensor | None, of_z: Tensor | None) -> Tensor | None:
    """The gradient of z."""
    name, parameters = ctx.activation
    if of_d is not None and name != "identity":
        a, b, offsets, bias, kept = ctx.saved_tensors
        at = _run(_Call(a, b, offsets, bias, out_dtype=ctx.z_dtype))[0] if kept is None else kept
        y = of_d.to(at.dtype)
        if ctx.from_result:
            of_d = activations.derivative_from_result(name, y, at)
        elif ctx.gated:
            of_d = activations.gated_derivative(name, y, at)
        else:
            of_d = activations.derivative(name, y, at, parameters)
    return of_d if of_z is None else of_z if of_d is None else of_d + of_z


def _gradients(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
    a, b, offsets, *_ = ctx.saved_tensors
    narrow, (a_turned, b_turned) = dz.to(ctx.dtype), ctx.turned
    needs_a, needs_b = ctx.needs_input_grad[:2]  # of a call through torch's dispatch, defaults at the end are not there
    da = db = dbias = None
    if needs_a and is_gradient_needed(ctx, 0):
        da = _laid_out(narrow, b.mT, offsets, a_turned)
    if needs_b and is_gradient_needed(ctx, 1):
        db = _laid_out(a.mT, narrow, offsets, b_turned)
    if ctx.bias is not None and ctx.needs_input_grad[3] and is_gradient_needed(ctx, 3):
        dbias = _of_bias(ctx, offsets, dz, narrow)
    return da, db, None, dbias


def _laid_out(x: Tensor, y: Tensor, offsets: Tensor, turned: bool) -> Tensor:
    """x @ y as the operand lies in memory."""
    return _run(_Call(y.mT, x.mT, offsets))[0].mT if turned else _run(_Call(x, y, offsets))[0]


def _of_bias(ctx: Any, offsets: Tensor, dz: Tensor, narrow: Tensor) -> Tensor:
    """dz summed over the rows of each group: of those that groups divide by a product with ones."""
    rank, dtype = ctx.bias
    if ctx.ranks == (3, 2):
        places = offsets.new_ones(dz.shape[1]).cumsum(0)  # from 1 on, of a DTensor as of any
        inside = places <= (offsets[-1] if offsets.shape[0] else 0)
        return torch.where(inside.to(dz.device), dz.sum(0), 0).to(dtype)
    if ctx.ranks == (2, 2):
        sums = dz.sum(1)
    else:  # eight rows, of 16 bytes, for kernels that read whole granules
        ones = narrow.new_ones((narrow.shape[0], 8))
        wide = torch.promote_types(narrow.dtype, torch.float32)
        sums = _run(_Call(ones.mT, narrow, offsets, out_dtype=wide))[0][:, 0]
    return (sums if rank == 2 else sums.sum(0)).to(dtype)


# ---------------------------------------------------------------------------------------------------- transforms


def _vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """One call for each example."""
    dims = [x if isinstance(x, int) else None for x in in_dims]

    def example(i: int, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        return _run(_Call(*(x if dim is None else x.select(dim, i) for x, dim in zip(given, dims, strict=False))))

    if not info.batch_size:  # of one example of zeros the shapes
        ones = [
            x if dim is None else x.new_zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]))
            for x, dim in zip(arguments, dims, strict=False)
        ]
        return tuple(x.new_empty((0, *x.shape)) for x in example(0, ones)), (0, 0)
    examples = [example(i, arguments) for i in range(info.batch_size)]
    return tuple(torch.stack(results) for results in zip(*examples, strict=True)), (0, 0)


def _shardings(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    """DTensor's rules (sharding.py): in parts along rows, columns or k, but not along what groups divide.

    Raises:
        RuntimeError: the matrices of the groups are sharded over these, which needs an exchange of lines.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    call, whole = _Call(*arguments), Replicate()
    a, b = len(call.a.shape), len(call.b.shape)
    divided = divided_axis("grouped_mm", call.a, call.b)
    d = 3 if divided == "k" else 2

    def way(result: Any, of_a: Any, of_b: Any, of_bias: Any) -> tuple[list[Any], list[Any]]:
        inputs = [of_a, of_b, whole, None if call.bias is None else of_bias]
        return [result, result if call.keep_z else whole], inputs + [None] * (len(call) - _TENSORS)

    ways = {
        "m": way(Shard(d - 2), Shard(a - 2), whole, whole),
        "n": way(Shard(d - 1), whole, Shard(b - 1), Shard(-1 if call.bias is None else len(call.bias.shape) - 1)),
    }
    if call.activation == "identity" and (call.out_dtype or call.a.tensor_meta.dtype) in WIDE:
        ways["k"] = way(Partial(), Shard(a - 1), Shard(b - 2), Partial())
    return [way(whole, whole, whole, whole), *(found for axis, found in ways.items() if axis != divided)]


def divided_axis(function: str, a: Any, b: Any) -> str:
    """What groups divide, of operands as DTensor's rules see them.

    Raises:
        RuntimeError: the matrices of the groups are sharded over these.
    """
    for name, x in (("mat_a", a), ("mat_b", b)):
        if len(x.shape) == 3 and any(placement.is_shard(0) for placement in x.placements):
            raise RuntimeError(
                f"{function}: {name} {tuple(x.shape)} is sharded over its groups; expected it whole there: send lines "
                "to the device of their group, and multiply local tensors"
            )
    return "m" if len(b.shape) == 3 else "n" if len(a.shape) == 3 else "k"


class _Grouped(torch.autograd.Function):  # type: ignore[misc]
    """The operator under torch.func, whose transforms want the parts of its gradient by these names."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_keep)
    backward = staticmethod(_backward)
    vmap = staticmethod(_vmap)


@register_flop_formula(torch.ops.cutlass_py.grouped_gemm)  # type: ignore[untyped-decorator]
def flop(a_shape: Any, b_shape: Any, *_: Any, **__: Any) -> int:
    """Two operations per product, of all lines as if they were in groups."""
    return int(2 * a_shape[-2] * a_shape[-1] * b_shape[-1])


for _backend in ("CPU", "CUDA"):
    LIBRARY.impl("grouped_gemm", _compute, _backend)
library.register_fake(operator, _fake, lib=LIBRARY)
library.register_autograd(operator, _backward, setup_context=_keep, lib=LIBRARY)
library.register_vmap(operator, _vmap, lib=LIBRARY)
RULES[operator] = _shardings
