"""Every private name of torch that Python has to use, each with what takes its place in a torch that lacks it.

torch has no public names for these. What stands in is right but slower: where torch cannot be asked whether something
has to see a call, the call goes where everything sees it. The exceptions refuse, and say so. The extension has a few
more, in arrays/torch_private.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from operator import attrgetter
from typing import Any, NoReturn

import torch

with suppress(ImportError):
    import torch.utils._device

Ask = Callable[..., bool]


def _find(path: str, otherwise: Any = None) -> Any:
    """What torch has under this path."""
    try:
        return attrgetter(path)(torch)
    except AttributeError:
        return otherwise


def _yes(*_: Any) -> bool:
    return True


def _lacking(path: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"torch {torch.__version__} has no torch.{path}")

    return refuse


# ---------------------------------------------------------------------------------------------------- the thread

# Whether a TorchDispatchMode, a TorchFunctionMode or a transform of torch.func is active.
has_dispatch_mode: Ask = _find("_C._len_torch_dispatch_stack", _yes)
has_function_mode: Ask = _find("_C._is_torch_function_mode_enabled", _yes)
_innermost_transform = _find("_C._functorch.peek_interpreter_stack", _lacking("_C._functorch.peek_interpreter_stack"))
has_transform: Ask = _find("_C._are_functorch_transforms_active", lambda: _innermost_transform() is not None)
# The function modes, and the class of the one that torch.set_default_device is.
function_mode_count: Callable[[], int] = _find("_C._len_torch_function_stack", lambda: 0)
function_mode_at: Callable[[int], Any] = _find("_C._get_function_stack_at", lambda _: None)
DeviceContext: Any = _find("utils._device.DeviceContext")
# The public function asks about torch.jit.script as well, in Python.
is_jit_tracing: Ask = _find("_C._is_tracing", torch.jit.is_tracing)
# For every kind of device at once; kernels run on these two.
is_autocasting: Ask = _find("_C._is_any_autocast_enabled", lambda: any(map(torch.is_autocast_enabled, ("cuda", "cpu"))))


# The flag itself: while torch 2.11 compiles anything, torch.compiler.is_exporting() is true.
is_export_flagged: Ask = (
    torch.compiler.is_exporting
    if _find("compiler._is_exporting_flag") is None
    else lambda: torch.compiler._is_exporting_flag
)

# Where torch keeps the level of forward differentiation, negative outside of any: the extension reads it at every call.
_forward_ad = torch.autograd.forward_ad
FORWARD_LEVEL: tuple[dict[str, Any], str] = vars(_forward_ad), "_current_level"


is_forward_mode: Ask = (
    _yes if _find("autograd.forward_ad._current_level") is None else lambda: _forward_ad._current_level >= 0
)

# ---------------------------------------------------------------------------------------------------- tensors

# Whether a tensor has no memory of its own: one of the many that torch's batched gradients are computed with, one of
# torch.func's, or zeros that torch has not made yet.
is_batch: Ask = _find("_C._functorch.is_legacy_batchedtensor", _yes)
is_wrapper: Ask = _find("_C._functorch.is_functorch_wrapped_tensor", _yes)
is_zero: Ask = _find("Tensor._is_zerotensor", _yes)


is_symbolic: Ask = (
    (lambda x: any(isinstance(extent, torch.SymInt) for extent in (*x.shape, *x.stride())))
    if _find("Tensor._has_symbolic_sizes_strides") is None
    else lambda x: x._has_symbolic_sizes_strides
)


def _same_storage(x: Any, y: Any) -> bool:
    with suppress(RuntimeError):  # a tensor without memory
        return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()  # type: ignore[no-any-return]
    return False


# Which of two tensors the public `is_set_to` says only if their shapes are the same too.
share_storage: Ask = _find("_C._is_alias_of", _same_storage)
# The public function is Python's, and this is called at every call.
increment_version: Callable[[tuple[Any, ...]], None] = _find(
    "_C._increment_version", torch.autograd.graph.increment_version
)

# ---------------------------------------------------------------------------------------------------- autograd


# As autograd asks it of an operator's arguments.
requires_grad: Ask = _find(
    "_C._any_requires_grad", lambda *operands: any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)
)
# Whether a backward pass computes what this node returns; else every gradient that may be needed is computed.
is_executed: Ask = _find("_C._will_engine_execute_node", _yes)
# What torch.library calls an operator below autograd with. Without them, gradients are recorded only where nothing else
# has to see a call; there, torch's own kernel for autograd refuses them.
below_autograd: Any = _find("_C._AutoDispatchBelowAutograd")
after_autograd: Any = _find("_C._after_autograd_keyset")
# What lets a Function run at a level of torch.func, which refuses it otherwise.
single_level_function: Any = _find("_functorch.utils.enable_single_level_autograd_function", nullcontext)
# Without it, tangents would be lost below a level of torch.func: refused.
set_forward_grad_enabled: Any = _find(
    "autograd.forward_ad._set_fwd_grad_enabled", _lacking("autograd.forward_ad._set_fwd_grad_enabled")
)


def unchecked_apply(function: Any) -> Any:
    """A Function's `apply` below torch.autograd.Function's own, which asks about torch.func once more."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


# ---------------------------------------------------------------------------------------------------- modules

has_global_hook: Ask = _find("nn.modules.module._has_any_global_hook", _yes)


def has_hooks(module: Any) -> bool:
    """Whether hooks are registered with this module."""
    return any(getattr(module, hooks, True) for hooks in _HOOKS)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

# ---------------------------------------------------------------------------------------------------- benchmarks

# What this package's kernels are compared with.
scaled_mm: Any = _find("_scaled_mm", _lacking("_scaled_mm"))
int_mm: Any = _find("_int_mm", _lacking("_int_mm"))
