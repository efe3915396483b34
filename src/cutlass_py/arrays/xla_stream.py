"""The stream that XLA runs a device's computations on, which it tells to custom calls alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np

from .. import _core

TARGET = "cutlass_py_stream"


@cache
def register(platform: str, handler: Any = None) -> None:
    """Lets the custom call run on a platform, by XLA's name; `handler` as in cutlass_py.jax.register."""
    capsule = _core.xla_stream_handler() if handler is None else handler
    jax.ffi.register_ffi_target(TARGET, capsule, platform=platform)


@cache
def of(device: jax.Device) -> int:
    """The stream of a device of this process. The first time this waits for the device."""
    register("CUDA")
    nothing = jax.ShapeDtypeStruct((1,), np.uint8)  # which nobody reads
    ask = jax.jit(jax.ffi.ffi_call(TARGET, nothing, has_side_effect=True))
    with jax.ensure_compile_time_eval(), jax.default_device(device):  # now, also where JAX traces a function
        jax.block_until_ready(ask())
    return _core.xla_stream(device.local_hardware_id)
