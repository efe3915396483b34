"""Custom calls of XLA's on CUDA, whatever they compute: what each says of its problem and its plan.

xla_call.cpp reads what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from .. import _core
from ..arrays.gpu import device
from ..dispatch.launch_plan import LaunchPlan
from ..kernels.operation import Problem, describe

_FORMAT = 3  # kXlaFormat in xla_call.h


def target(operation: str) -> str:
    """The name by which XLA knows an operation."""
    return f"cutlass_py_{operation}"


@cache
def ordinals() -> list[int]:
    """CUDA's numbers of JAX's GPUs in this process; the first is the one that plans are for, 0 without any."""
    try:
        found = [gpu.local_hardware_id for gpu in jax.local_devices(backend="cuda")]
    except RuntimeError:  # there is no such backend
        return [0]
    return sorted(found, key=lambda ordinal: _core.device_info(ordinal)["cc"])  # kernels of the oldest run on all


def attributes(problem: Problem, plan: LaunchPlan, operands: Iterable[str], results: Iterable[str]) -> dict[str, Any]:
    """What every call says: the names of its arrays, and how it is computed."""
    of_lists_or_python = ("each", "provided")  # no call of XLA has those
    named = {x.name: getattr(plan, x.name) for x in fields(plan) if x.name not in of_lists_or_python}
    return {
        "format": _FORMAT,
        "problem": describe(problem),  # for those who read the lowered text
        "operands": " ".join(operands),
        "results": " ".join(results),
        **{name: int(x) if isinstance(x, int) else x or "" for name, x in named.items()},
    }


def scratch(bytes_of: Callable[[int], int]) -> jax.ShapeDtypeStruct:
    """The result that is scratch. `bytes_of`: what a device with so many multiprocessors takes."""
    most = max(bytes_of(count) for count in {device(ordinal).sm_count for ordinal in ordinals()})
    # XLA aligns to less than the 256 bytes that kernels expect.
    return jax.ShapeDtypeStruct((most + 256 if most else 0,), np.uint8)


def undivided(on_device: Callable[..., Any], in_xla: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering rule: the custom call; XLA's operations where it divides the computation, which it can by those alone.

    Args:
        on_device, in_xla: operands, and parameters by name, to results.
    """

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, **how: Any) -> Any:
        context = ctx.module_context.axis_context
        if isinstance(context, mlir.ShardingContext):
            divided = context.num_devices != 1
        else:  # shard_map may leave axes to XLA
            mesh = context.mesh if isinstance(context, mlir.SPMDAxisContext) else None
            divided = mesh is not None and not context.manual_axes.issuperset(mesh.axis_names)
        return mlir.lower_fun(in_xla if divided else on_device, multiple_results=True)(ctx, *operands, **how)

    return rule
