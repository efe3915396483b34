"""The choice between the fast path, which is cutlass_py.gemm itself, and the operator, where torch can see a call.

The operator costs many times what the fast path does. But a mode, a transform of torch.func, forward differentiation,
a compiler or a tracer has to see the call; a gradient has to be recorded; and a tensor subclass must be asked what it
means: DTensor, for one, reports its global shape and has no memory.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arrays.torch_private import (
    FORWARD_LEVEL,
    DeviceContext,
    function_mode_at,
    function_mode_count,
    has_dispatch_mode,
    has_function_mode,
    has_transform,
    is_autocasting,
    is_batch,
    is_export_flagged,
    is_forward_mode,
    is_jit_tracing,
    is_wrapper,
    is_zero,
)

is_compiling = torch.compiler.is_dynamo_compiling
_recording = torch.is_grad_enabled
# Exactly these types: a subclass may mean anything.
TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (float, int, bool, complex)
_PLAIN = frozenset((*TENSORS, *_NUMBERS, type(None)))


def is_exporting() -> bool:
    """Whether torch.export or torch.jit.trace records a program, of which most runs need no gradient."""
    return is_export_flagged() or (not is_compiling() and is_jit_tracing())


def no_interceptors() -> bool:
    """Whether nothing in this thread has to see calls of torch's functions."""
    return not (
        is_compiling()
        or has_dispatch_mode()
        # torch.set_default_device is a mode too, but one for functions that make tensors.
        or (has_function_mode() and (function_mode_count() != 1 or type(function_mode_at(0)) is not DeviceContext))
        or has_transform()
        or is_jit_tracing()
        or is_forward_mode()  # which the operator refuses in torch's words
    )


def is_torch_function_proxy(x: Any) -> bool:
    """Whether it is no tensor, and torch's functions let it say what they do: a proxy of torch.fx."""
    return not isinstance(x, torch.Tensor) and hasattr(type(x), "__torch_function__")


def are_plain_types(operands: tuple[Any, ...]) -> bool:
    """Whether these are numbers, None, and tensors that are not a subclass's."""
    return _PLAIN.issuperset(map(type, operands))


def any_lazy_or_wrapped(operands: tuple[Any, ...]) -> bool:
    """Whether one of them has no values (meta), others than its memory (lazily conjugated or negated), or no memory.

    Without memory are zeros that torch has not made yet, tensors of torch.func, which outlive their transform in what a
    backward pass has kept, and the many in one that torch's batched gradients are computed with.
    """
    for x in operands:  # a loop, which costs less than any() of a generator
        if isinstance(x, torch.Tensor) and (
            x.is_meta or x.is_conj() or x.is_neg() or is_batch(x) or is_wrapper(x) or is_zero(x)
        ):
            return True
    return False


def needs_gradient(operands: tuple[Any, ...]) -> bool:
    """Whether a gradient has to be recorded."""
    if _recording():
        for x in operands:
            if x is not None and isinstance(x, torch.Tensor) and x.requires_grad:  # of None, isinstance is slow
                return True
    return False


# The same for calls as they arrive, of which the extension's fast path asks: their cost is a promise.
TORCH_HOOKS: dict[str, Any] = {
    "tensor_types": TENSORS,
    "number_types": _NUMBERS,
    "modes": (has_dispatch_mode, has_transform, is_jit_tracing),
    "function_mode": has_function_mode,
    "no_interceptors": no_interceptors,
    "forward_level": FORWARD_LEVEL,
    "autocasting": is_autocasting,
}
