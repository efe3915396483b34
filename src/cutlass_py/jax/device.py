"""gemm on CUDA: a custom call of XLA's, whose attributes hold the plan. xla_call.cpp reads what is written here."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..arrays.gpu import device
from ..dispatch import planning
from ..operations.gemm.problem_text import describe
from .partitioning import divided
from .primitive import gemm_p
from .spec import Spec, numpy_dtype

TARGET = "cutlass_py_gemm"
_FORMAT = 2  # kXlaFormat in xla_call.h
_XLA_NAME = {"cuda": "CUDA"}  # of a platform, where it differs


@cache
def register(platform: str, handler: Any = None) -> None:
    """Lets gemm run as a custom call on a platform of JAX's. Done for "cuda" on import.

    Args:
        platform: as JAX names it.
        handler: the capsule of another function of XLA's typed FFI, in place of ours.
    """
    capsule = _core.xla_handler() if handler is None else handler
    stages = {"initialize": capsule, "execute": capsule}
    jax.ffi.register_ffi_target(TARGET, stages, platform=_XLA_NAME.get(platform, platform))
    mlir.register_lowering(gemm_p, divided(_lowered), platform=platform)


def _lowered(*operands: Any, spec: Spec) -> list[Any]:
    attributes, scratch = _plan(spec, operands)
    results = [
        jax.ShapeDtypeStruct(result.shape, numpy_dtype(result.dtype))
        for result in spec.results([x.shape for x in operands])
    ]
    # C and D share memory where they are alike: XLA copies C first where something else still needs it.
    c, d = spec.operands.index("c") if "c" in spec.operands else None, results[0]
    alike = c is not None and (operands[c].shape, operands[c].dtype) == (d.shape, d.dtype)
    memory = [*results, jax.ShapeDtypeStruct((scratch,), np.uint8)]
    call = jax.ffi.ffi_call(TARGET, memory, input_output_aliases={c: 0} if alike else {})
    found = call(*operands, **attributes)
    return list(found[:-1])


@cache
def _ordinals() -> list[int]:
    """CUDA's numbers of JAX's GPUs in this process; the first is the one that plans are for, 0 without any."""
    try:
        found = [gpu.local_hardware_id for gpu in jax.local_devices(backend="cuda")]
    except RuntimeError:  # there is no such backend
        return [0]
    return sorted(found, key=lambda ordinal: _core.device_info(ordinal)["cc"])  # kernels of the oldest run on all


def _plan(spec: Spec, operands: Any) -> tuple[dict[str, Any], int]:
    """The attributes of the call, and its bytes of scratch."""
    shapes, dtypes = [x.shape for x in operands], [dtype_name(x.dtype, "an operand") for x in operands]
    args = spec.arguments(shapes, dtypes, f"cuda:{_ordinals()[0]}")
    problem = _core.problem(args.a, args.b, **args.keywords, kernel=spec.kernel)
    plan = planning.plan(problem, provided=False)
    counts = {device(ordinal).sm_count for ordinal in _ordinals()}
    scratch = max(_core.scratch_bytes(args.a, args.b, args.keywords, plan, count) for count in counts)
    of_lists_or_python = ("each", "provided")  # no call of XLA has those
    named = {x.name: getattr(plan, x.name) for x in fields(plan) if x.name not in of_lists_or_python}
    return (
        {
            "format": _FORMAT,
            "problem": describe(problem),  # for those who read the lowered text
            "operands": " ".join(spec.operands),
            "results": " ".join(["out", *(name for name in ("aux", "bias_grad") if getattr(spec, name)), "scratch"]),
            "layout": spec.layout,
            "alpha": _parts(spec.alpha),
            "beta": _parts(spec.beta),
            "scale_a": spec.scale_a,
            "scale_b": spec.scale_b,
            "scale_out": spec.scale_out,
            "activation": spec.activation.name,
            "activation_parameters": np.array([*spec.activation.parameters, 0.0, 0.0][:2], np.float64),
            "compute": spec.compute or "",
            **{name: int(x) if isinstance(x, int) else x or "" for name, x in named.items()},
        },
        scratch + 256 if scratch else 0,
    )  # XLA aligns to less than the 256 bytes that kernels expect


def _parts(number: complex) -> Any:
    return np.array([number.real, number.imag], np.float64)
