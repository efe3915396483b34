"""Which calls go straight to cutlass_py.gemm, and which through the operator, where torch can see them.

The operator costs some ten microseconds, a straight call none. But a mode, a transform of torch.func, a compiler or a
tracer has to see the call, and a tensor subclass must be asked what it means: DTensor, for one, reports its global
shape and has no memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import _C
from torch.autograd import forward_ad

_compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = _C._len_torch_dispatch_stack
_function_modes = _C._is_torch_function_mode_enabled
_transforms = _C._are_functorch_transforms_active
_tracing = _C._is_tracing
autocasting = _C._is_any_autocast_enabled
# Exactly these: a subclass may mean anything. Numbers and what is absent stand among the operands too.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None), float, int, bool, complex))


def unseen() -> bool:
    """Whether nothing in this thread has to see calls of torch's functions."""
    return not (_compiling() or _dispatch_modes() or _function_modes() or _transforms() or _tracing())


def plain(operands: tuple[Any, ...]) -> bool:
    """Whether these are tensors (or numbers, or None) of no subclass, on a device that has memory."""
    return all(type(x) in _PLAIN for x in operands) and not operands[0].is_meta


def tracked(operands: tuple[Any, ...]) -> bool:
    """Whether a gradient has to be recorded."""
    wanted = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)
    return wanted or forward_mode()


def forward_mode() -> bool:
    """Whether derivatives are carried forward, which the operator refuses in torch's words."""
    return forward_ad._current_level >= 0  # type: ignore[no-any-return]
