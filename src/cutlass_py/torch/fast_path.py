"""Which calls go straight to cutlass_py.gemm, and which through the operator, where torch can see them.

The operator costs tens of microseconds, a straight call less than one. But a mode, a transform of torch.func, forward
differentiation, a compiler or a tracer has to see the call; a gradient has to be recorded; and a tensor subclass must
be asked what it means: DTensor, for one, reports its global shape and has no memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = _C._len_torch_dispatch_stack
_function_modes = _C._is_torch_function_mode_enabled
_transforms = _C._are_functorch_transforms_active
_jit_traces = _C._is_tracing
_recording = torch.is_grad_enabled
_is_batch = _C._functorch.is_legacy_batchedtensor
_is_wrapped = _C._functorch.is_functorch_wrapped_tensor
autocasting = _C._is_any_autocast_enabled
# Exactly these types: a subclass may mean anything.
TENSORS = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (float, int, bool, complex)
_PLAIN = frozenset((*TENSORS, *_NUMBERS, type(None)))


def forward_mode() -> bool:
    """Whether derivatives are carried forward, which the operator refuses in torch's words."""
    return forward_ad._current_level >= 0  # type: ignore[no-any-return]


def deployed() -> bool:
    """Whether torch.export or torch.jit.trace records a program, of which most runs need no gradient."""
    # The flag itself: while torch 2.11 compiles anything, is_exporting() is true.
    return torch.compiler._is_exporting_flag or (not compiling() and _jit_traces())


def unseen() -> bool:
    """Whether nothing in this thread has to see calls of torch's functions."""
    return not (
        compiling()
        or _dispatch_modes()
        or (_function_modes() and not _only_a_default_device())
        or _transforms()
        or _jit_traces()
        or forward_mode()
    )


def _only_a_default_device() -> bool:
    """torch.set_default_device is a mode too, but one for functions that make tensors."""
    return _C._len_torch_function_stack() == 1 and type(_C._get_function_stack_at(0)) is DeviceContext


def stands_in(x: Any) -> bool:
    """Whether it is no tensor, and torch's functions let it say what they do: a proxy of torch.fx."""
    return not isinstance(x, torch.Tensor) and hasattr(type(x), "__torch_function__")


def exact(operands: tuple[Any, ...]) -> bool:
    """Whether these are numbers, None, and tensors that are not a subclass's."""
    return _PLAIN.issuperset(map(type, operands))


def has_other_meaning(operands: tuple[Any, ...]) -> bool:
    """Whether one of them has no values (meta), others than its memory (lazily conjugated or negated), or no memory.

    Without memory are zeros that torch has not made yet, tensors of torch.func, which outlive their transform in what a
    backward pass has kept, and the many in one that torch's batched gradients are computed with.
    """
    for x in operands:  # a loop: any() of a generator takes twice as long
        if isinstance(x, torch.Tensor) and (
            x.is_meta or x.is_conj() or x.is_neg() or _is_batch(x) or _is_wrapped(x) or x._is_zerotensor()
        ):
            return True
    return False


def tracked(operands: tuple[Any, ...]) -> bool:
    """Whether a gradient has to be recorded."""
    if _recording():
        for x in operands:
            if x is not None and isinstance(x, torch.Tensor) and x.requires_grad:  # that of None takes long
                return True
    return False


# The same for calls as they arrive, of which the functions of straight.cpp ask: their cost is a promise.
QUESTIONS: dict[str, Any] = {
    "types": TENSORS,
    "numbers": _NUMBERS,
    "modes": (_dispatch_modes, _transforms, _jit_traces),
    "overridden": _function_modes,
    "unseen": unseen,
    "forward": vars(forward_ad),
    "autocasting": autocasting,
}
