"""Which operations run as custom calls of XLA's, and on which platforms."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
from jax.interpreters import mlir

from .. import _core
from . import device, grouped, quantization
from .custom_call import target
from .primitive import gemm_p

# By operation: its primitive, and how that becomes its custom call.
_LOWERINGS = {
    "gemm": (gemm_p, device.lowering),
    "grouped_gemm": (grouped.grouped_p, grouped.lowering),
    "quantize": (quantization.quantize_p, quantization.lowering),
}
_XLA_NAME = {"cuda": "CUDA"}  # of a platform, where it differs


@cache
def register(platform: str, **handlers: Any) -> None:
    """Lets operations run as custom calls on a platform of JAX's. Done for "cuda" on import.

    Args:
        platform: as JAX names it.
        handlers: by operation, the capsule of another function of XLA's typed FFI, in place of ours.

    Raises:
        TypeError: there is no such operation.
    """
    if unknown := sorted(set(handlers) - set(_LOWERINGS)):
        raise TypeError(f"register: {unknown[0]} is no operation; expected {' or '.join(_LOWERINGS)}")
    for operation, (primitive, lowering) in _LOWERINGS.items():
        capsule = handlers.get(operation) or getattr(_core, f"xla_{operation}_handler")()
        stages = {"initialize": capsule, "execute": capsule}
        jax.ffi.register_ffi_target(target(operation), stages, platform=_XLA_NAME.get(platform, platform))
        mlir.register_lowering(primitive, lowering, platform=platform)
