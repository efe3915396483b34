"""The gradient of `cutlass_py::gemm`, written in the operator itself: its products run by this package's kernels too.

With z, f and D as cutlass_py.gemm defines them, everything follows from the gradient of z: those of a and b are two
products, with their factors and scales in the epilogue. What passes through f is one of torch's elementwise kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ..arrays.torch_private import (
    after_autograd,
    below_autograd,
    has_transform,
    is_executed,
    is_forward_mode,
    requires_grad,
    set_forward_grad_enabled,
    single_level_function,
    unchecked_apply,
)
from ..declaration.epilogues import ACTIVATIONS
from ..errors import wrong_type
from . import activations
from .dtypes import FLOATS, FP8, WIDE
from .fast_path import (
    any_lazy_or_wrapped,
    are_plain_types,
    is_compiling,
    needs_gradient,
    no_interceptors,
)
from .operators import LIBRARY, TENSORS, Call, compute, in_blocks, operator, reads_aux, result_dtype, z_dtype

_OPERANDS = Call._fields[:TENSORS]
_FACTORS = frozenset(("alpha", "beta", "scale_a", "scale_b", "scale_out"))


def keeps_z(call: Call) -> bool:
    """Whether the forward pass should keep z for the backward pass."""
    if call.gate is not None:
        return bool(call.gate.requires_grad)
    if call.gated:
        return not reads_aux(call.activation) and activations.pairs_are_kept(call.activation)
    if call.activation not in ACTIVATIONS or call.activation == "identity":
        return False
    return not _from_result(call) and not ACTIVATIONS[call.activation].derivative


def _from_result(call: Call) -> bool:
    scaled = call.scale_out is not None or call.scale_out_value != 1
    return call.activation in activations.FROM_RESULT and call.gate is None and not call.gated and not scaled


# ---------------------------------------------------------------------------------------------------- the node


def inherit_thread_flags() -> Callable[[], AbstractContextManager[None]]:
    """A context in which a thread has what `jit`, `autotuning` and `batch_invariant` tell this one, beside its own.

    For backward passes, which torch runs on other threads. Without effect where torch compiles a pass: it calls kernels
    later, and cannot trace these questions.
    """
    if is_compiling():
        return nullcontext
    flags = _core.jit_allowed(), _core.tuning_allowed(), _core.batch_invariance_asked()
    return partial(_with_thread_flags, *flags) if any(flags) else nullcontext


@contextmanager
def _with_thread_flags(jit: bool, tuning: int, invariant: bool) -> Iterator[None]:
    if is_compiling():
        yield
        return
    own_jit, own_tuning = _core.allow_jit(jit or _core.jit_allowed()), _core.tuning_allowed()
    _core.allow_tuning(max(tuning, own_tuning))
    own_invariant = _core.ask_batch_invariance(invariant or _core.batch_invariance_asked())
    try:
        yield
    finally:
        _core.allow_jit(own_jit)
        _core.allow_tuning(own_tuning)
        _core.ask_batch_invariance(own_invariant)


class _Gemm(torch.autograd.Function):  # type: ignore[misc]
    """Records one call of the operator."""

    @staticmethod
    def forward(ctx: Any, keyset: Any, *arguments: Any) -> Any:
        call = Call(*arguments)
        if keyset is None:
            results = compute(call)
        elif has_transform():
            # Both are off in here, for this level alone: those below record the call as well, or refuse it.
            with torch.enable_grad(), set_forward_grad_enabled(True):
                results = _below(keyset, arguments)
        else:
            results = _below(keyset, arguments)
        ctx.set_materialize_grads(False)
        if keyset is not None:
            asked = (True, call.aux_dtype is not None, bool(call.bias_grad))
            ctx.mark_non_differentiable(*(x for x, wanted in zip(results, asked, strict=True) if not wanted))
        _save(ctx, call, results)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found: dict[str, Tensor | None] = {}
        if any(grad is not None for grad in grads):
            with ctx.thread_flags():
                found = _Backward(ctx, *grads).gradients()
        count = len(ctx.needs_input_grad) - 1
        return None, *(found.get(name) for name in Call._fields[:count])


def is_gradient_needed(node: Any, position: int) -> bool:
    """Whether this backward pass needs the gradient of the tensor at this position among the node's.

    torch tells nodes in Python what required a gradient in the forward pass, but not that autograd.grad(d, x) leaves
    the weights out, whose products would be computed in vain.
    """
    if is_compiling() or has_transform():
        return True
    function, _ = node.next_functions[position]
    try:
        return bool(is_executed(function))
    except RuntimeError:  # a leaf that autograd.grad asks for, of which it does not speak
        return True


# Whose questions about torch.func are asked before, or a level of that is running already.
_record = unchecked_apply(_Gemm)


def _autograd(keyset: Any, *arguments: Any) -> Any:
    if (torch.is_grad_enabled() and requires_grad(*arguments)) or is_forward_mode():
        if not has_transform():
            return _record(keyset, *arguments)
        with single_level_function():
            return _record(keyset, *arguments)
    return _below(keyset, arguments)


def _below(keyset: Any, arguments: tuple[Any, ...]) -> Any:
    with below_autograd():
        return operator.redispatch(keyset & after_autograd, *arguments)


if below_autograd is not None and after_autograd is not None:
    LIBRARY.impl("gemm", _autograd, "Autograd", with_keyset=True)


def run(call: Call) -> Any:
    """operator(*call); where nothing but a gradient has to see it, without torch's dispatch and the empty results."""
    tensors = tuple(x for x in call[:TENSORS] if x is not None)
    if not no_interceptors() or not are_plain_types(tensors) or any_lazy_or_wrapped(tensors):
        return operator(*call)
    return _record(None, *call) if needs_gradient(tensors) else compute(call)


def _save(ctx: Any, call: Call, results: tuple[Tensor, ...]) -> None:
    needed = _needed(ctx)
    for name in ("a", "b"):
        if name in needed and getattr(call, name).dtype in FP8:
            found = f"requires a gradient and is {getattr(call, name).dtype}"
            hint = f"pass {name}.detach(), or quantise inside of a function with a gradient of its own"
            raise wrong_type(name, found, f"a float of 16 bits or more: {hint}", about="dtype")
    for name in ("scale_a", "scale_b"):
        if name in needed and in_blocks(call):
            found = f"requires a gradient, which scales in blocks lack: pass {name}.detach()"
            raise wrong_type(name, found)
    wanted = _operands_of_backward(call, results, needed)
    tensors = [x if name in wanted else None for name, x in zip(_OPERANDS, call, strict=False)]
    kept = results[1] if _is_kept(call, results) else None
    ctx.save_for_backward(*tensors, kept, results[0] if _from_result(call) else None)
    ctx.options = call[TENSORS:]
    ctx.thread_flags = inherit_thread_flags()
    ctx.like = {name: _Like(getattr(call, name)) for name in needed}
    ctx.like["d"] = _Like(results[0])


def _is_kept(call: Call, results: tuple[Tensor, ...]) -> bool:
    """Whether z is among the results, as exact as D is. An aux of fewer bits is not: z is then computed again."""
    dtype, of_d = call.aux_dtype, results[0].dtype
    return dtype in WIDE and (of_d not in WIDE or torch.promote_types(dtype, of_d) == dtype)


def _needed(ctx: Any) -> frozenset[str]:
    """The operands that need a gradient."""
    return frozenset(compress(Call._fields, ctx.needs_input_grad[1:]))


def _operands_of_backward(call: Call, results: tuple[Tensor, ...], needed: frozenset[str]) -> set[str]:
    """Which operands the backward pass reads."""
    wanted = set(_FACTORS)
    if call.activation != "identity" or call.gate is not None:
        wanted |= {"gate", "aux"}
    through = call.activation != "identity" and call.gate is None and call.aux is None
    reads_z = through or needed & {"gate", "aux", "scale_out"}
    if reads_z and not _is_kept(call, results) and not _from_result(call):
        return set(_OPERANDS)
    if "a" in needed:
        wanted.add("b")
    if "b" in needed:
        wanted.add("a")
    if "beta" in needed:
        wanted.add("c")
    if needed & {"alpha", "scale_a", "scale_b"}:
        wanted |= {"a", "b"}
    return wanted


def dense(grad: Tensor | None) -> Tensor | None:
    """A gradient as it lies in memory: that of torch.gather, for one, may come sparse, but not where torch compiles."""
    return grad if grad is None or is_compiling() or grad.layout == torch.strided else grad.to_dense()


def column_major(x: Tensor) -> bool:
    """Whether a gradient of it had better lie column by column."""
    return bool(x.dim() > 1 and x.stride(-2) == 1 and x.stride(-1) > 1)


class _Like:
    """What remains of an operand: shape, dtype, and whether it is column-major."""

    def __init__(self, x: Tensor) -> None:
        self.shape, self.dtype = x.shape, x.dtype
        self.column_major = column_major(x)


# ---------------------------------------------------------------------------------------------------- its gradient


class _Backward:
    """One backward pass: the gradients of the operands that need one."""

    def __init__(self, ctx: Any, d: Tensor | None, z: Tensor | None = None, sums: Tensor | None = None) -> None:
        *tensors, self.kept_z, self.result = ctx.saved_tensors
        self.call = Call(*tensors, *ctx.options)
        self.like: dict[str, _Like] = ctx.like
        needed = _needed(ctx)
        self.needed = needed.difference(x for i, x in enumerate("ab") if x in needed and not is_gradient_needed(ctx, i))
        self.of_d, self.of_z, self.of_sums = (_widened(dense(grad)) for grad in (d, z, sums))

    def gradients(self) -> dict[str, Tensor | None]:
        """By the operand's name."""
        call = self.call
        y = self._of_value()  # the gradient of f(z), or of what a gate or derivative made of z
        dz = self._of_linear(y)
        ways: dict[str, Callable[[], Tensor]] = {
            "a": lambda: self._of_a(dz),
            "b": lambda: self._of_b(dz),
            "c": lambda: dz * (call.beta_value.conjugate() if call.beta is None else call.beta.conj()),
            "bias": lambda: dz,
            "gate": lambda: activations.derivative(call.activation, *_same(y * self.z, call.gate), call.parameters),
            "aux": lambda: self._of_aux(y),
            "alpha": lambda: dz * self._without("alpha").conj(),
            "beta": lambda: dz * _widened(call.c).conj(),
            "scale_a": lambda: dz * self._without("scale_a"),
            "scale_b": lambda: dz * self._without("scale_b"),
            "scale_out": lambda: self.of_d * self._value(),
        }
        return {name: self._like(name, way()) for name, way in ways.items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return name in self.needed and (name != "scale_out" or self.of_d is not None)

    # What the epilogue did, backwards.

    def _of_value(self) -> Tensor:
        call, y = self.call, None
        if self.of_d is not None:
            y = self.of_d
            if call.scale_out is not None or call.scale_out_value != 1:
                y = y * (call.scale_out_value if call.scale_out is None else call.scale_out)
        if self.of_sums is not None:
            shape = self.like["d"].shape
            y = self.of_sums.expand(shape) if y is None else y + self.of_sums
        return torch.zeros_like(self.of_z) if y is None else y

    def _of_linear(self, y: Tensor) -> Tensor:
        call = self.call
        if self.of_d is None and self.of_sums is None:
            return self.of_z
        if call.gated:
            dz = self._of_pairs(y)
        elif ACTIVATIONS[call.activation].derivative:
            dz = activations.derivative(call.activation.removeprefix("d_"), *_same(y, call.aux), call.parameters)
        elif call.gate is not None:
            dz = y * activations.value(call.activation, _widened(call.gate), call.parameters)
        elif call.activation == "identity":
            dz = y
        elif self.result is not None:
            dz = activations.derivative_from_result(call.activation, *_same(y, self.result))
        else:
            dz = activations.derivative(call.activation, *_same(y, self.z), call.parameters)
        return dz if self.of_z is None else dz + self.of_z

    def _of_pairs(self, y: Tensor) -> Tensor:
        """The gradient of z where gates and values are columns of z, or of D and aux."""
        name = self.call.activation
        if reads_aux(name):
            return activations.through_gated_derivative(name.removeprefix("d_"), *_beside(y, self.call.aux))
        return activations.gated_derivative(name, *_beside(y, self.z))

    def _of_aux(self, y: Tensor) -> Tensor:
        name, parameters = self.call.activation, self.call.parameters
        if self.call.gated:
            y, z = _beside(y, self.z)
            y, aux = _beside(y, self.call.aux)  # of the widest dtype: those of y and aux have to be the same
            return activations.second_gated_derivative(name.removeprefix("d_"), y, z, aux)
        return activations.derivative(name, *_same(y * self.z, self.call.aux), parameters)

    # What went into the epilogue.

    @property
    def z(self) -> Tensor:
        """z, kept or computed again."""
        if self.kept_z is None:
            bias = _widened(self.call.bias)  # which may be of D's 8 bits
            self.kept_z = run(_linear(self.call, bias=bias, out_dtype=z_dtype(self.call)))[0]
        return self.kept_z

    def _value(self) -> Tensor:
        call, z = self.call, self.z
        if call.gated and call.aux is None:
            return activations.gated(call.activation, z)
        if call.gated:
            return activations.gated_derivative(call.activation.removeprefix("d_"), *_beside(z, call.aux))
        at = call.aux if ACTIVATIONS[call.activation].derivative else call.gate
        return (
            activations.value(call.activation, z, call.parameters)
            if at is None
            else z * activations.value(call.activation, _widened(at), call.parameters)
        )

    def _without(self, factor: str) -> Tensor:
        """The product with every factor but this one, which may be what brought it into D's range."""
        dtype = result_dtype(self.call)
        wide = dtype if dtype in WIDE and dtype.itemsize > 2 else torch.float32
        options: dict[str, Any] = {factor: None, "c": None, "beta": None, "bias": None, "out_dtype": wide}
        if factor == "alpha":
            options["alpha_value"] = 1
        return run(_linear(self.call, **options))[0]

    # The two products.

    def _of_a(self, dz: Tensor) -> Tensor:
        call = self.call
        dz, columns = _columns(dz, call.scale_b, along="n")
        return self._product("a", dz, _conjugated(call.b).mT, scale_a=call.scale_a, scale_b=columns)

    def _of_b(self, dz: Tensor) -> Tensor:
        call, scale_b = self.call, self.call.scale_b
        dz, rows = _columns(dz, call.scale_a, along="m")
        a = _conjugated(call.a)
        one_matrix = len(self.like["b"].shape) == 2 and dz.dim() > 2
        if one_matrix and (scale_b is None or scale_b.dim() <= 2):  # the sum over the batch is part of the product
            a, dz = (x.expand(*dz.shape[:-2], *x.shape[-2:]).flatten(0, -2) for x in (a, dz))
        return self._product("b", a.mT, dz, scale_a=rows, scale_b=scale_b)

    def _product(self, name: str, x: Tensor, y: Tensor, scale_a: Tensor | None, scale_b: Tensor | None) -> Tensor:
        """x @ y with the call's factor and arithmetic, lying in memory as the operand does."""
        call, like = self.call, self.like[name]
        x, y = x.to(like.dtype), y.to(like.dtype)
        if like.column_major:
            x, y, scale_a, scale_b = y.mT, x.mT, _turned(scale_b), _turned(scale_a)
        product = run(
            Call(
                x,
                y,
                alpha=None if call.alpha is None else _conjugated(call.alpha),
                alpha_value=call.alpha_value.conjugate(),
                scale_a=scale_a,
                scale_b=scale_b,
                compute=call.compute,
                out_dtype=like.dtype,
                deterministic=call.deterministic,
                batch_invariant=call.batch_invariant,
            )
        )[0]
        return product.mT if like.column_major else product

    def _like(self, name: str, grad: Tensor) -> Tensor:
        """Summed to the operand's shape where that was repeated, in its dtype."""
        like = self.like[name]
        shape = like.shape
        if name == "scale_a" and len(shape) == 1 and shape[0] != 1:
            shape = (*shape, 1)
        elif name in _FACTORS and shape.numel() == 1:
            shape = ()
        grad = grad if grad.shape == shape else grad.sum_to_size(shape)
        return (grad if shape == like.shape else grad.reshape(like.shape)).to(like.dtype)


def _linear(call: Call, **changes: Any) -> Call:
    """The call without what comes behind z."""
    plain: dict[str, Any] = {"gate": None, "aux": None, "scale_out": None, "scale_out_value": 1.0}
    plain |= {
        "activation": "identity",
        "parameters": (),
        "gated": False,
        "aux_dtype": None,
        "bias_grad": "",
        "bias_grad_dtype": None,
        "splits": 0,
        "kernel_name": None,
    }
    return call._replace(**(plain | changes))


def _same(grad: Tensor, x: Any) -> tuple[Tensor, Tensor]:
    """Both in one dtype, the wider (z of an 8-bit result is kept in f32), and one shape, as torch's kernels need it."""
    grad, x = _of_one_dtype(grad, x)
    return (grad, x) if grad.shape == x.shape else torch.broadcast_tensors(grad, x)


def _beside(grad: Tensor, x: Any) -> tuple[Tensor, Tensor]:
    """The same, but for columns, of which one has twice as many."""
    grad, x = _of_one_dtype(grad, x)
    return grad, x.expand(*grad.shape[:-1], x.shape[-1])


def _of_one_dtype(grad: Tensor, x: Any) -> tuple[Tensor, Tensor]:
    x = _widened(x)
    if grad.dtype != x.dtype:
        dtype = torch.promote_types(grad.dtype, x.dtype)
        grad, x = grad.to(dtype), x.to(dtype)
    return grad, x


def _widened(x: Any) -> Any:
    """Nothing is computed in 8 bits, in which torch gives the gradient of an fp8 result; and f' of no integers."""
    return x if x is None or x.dtype in FLOATS else x.float()


def _conjugated(x: Any) -> Tensor:
    conjugated: Tensor = x.conj().resolve_conj() if x.is_complex() else x
    return conjugated


def _columns(dz: Tensor, scale: Tensor | None, along: str) -> tuple[Tensor, Tensor | None]:
    """A scale along the axis that is summed over goes into dz; a single factor stays a factor."""
    if scale is None or scale.numel() == 1:
        return dz, scale
    if along == "m" and scale.dim() == 1:
        scale = scale.unsqueeze(-1)
    return dz * scale, None


def _turned(scale: Tensor | None) -> Tensor | None:
    """A scale of rows as one of columns, or back."""
    return scale.mT if scale is not None and scale.dim() > 1 else scale
