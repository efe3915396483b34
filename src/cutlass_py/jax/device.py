"""gemm on CUDA: a custom call of XLA's, whose attributes hold the plan. xla_gemm.cpp reads what is written here."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..arrays.gpu import device
from ..dispatch import planning
from .custom_call import attributes, ordinals, target
from .partitioning import divided
from .reference import compute
from .spec import Spec, numpy_dtype, product_of

TARGET = target("gemm")


def _lowered(*operands: Any, spec: Spec) -> list[Any]:
    said, scratch = _plan(spec, operands)
    if said is None:
        return _apart(operands, spec)
    results = [
        jax.ShapeDtypeStruct(result.shape, numpy_dtype(result.dtype))
        for result in spec.results([x.shape for x in operands])
    ]
    # C and D share memory where they are alike: XLA copies C first where something else still needs it.
    c, d = spec.operands.index("c") if "c" in spec.operands else None, results[0]
    alike = c is not None and (operands[c].shape, operands[c].dtype) == (d.shape, d.dtype)
    memory = [*results, jax.ShapeDtypeStruct((scratch,), np.uint8)]
    call = jax.ffi.ffi_call(TARGET, memory, input_output_aliases={c: 0} if alike else {})
    found = call(*operands, **said)
    return list(found[:-1])


lowering = divided(_lowered)


def _apart(operands: Any, spec: Spec) -> list[Any]:
    """Where no kernel makes gates and values into a result: the product, and XLA's operations behind it."""
    with jax.enable_x64(True):
        (product,) = _lowered(*operands[:2], spec=product_of(spec, operands))
        return compute(spec, spec.named(operands), product)


def _plan(spec: Spec, operands: Any) -> tuple[dict[str, Any] | None, int]:
    """The attributes of the call, and its bytes of scratch; None where it is more than one kernel."""
    shapes, dtypes = [x.shape for x in operands], [dtype_name(x.dtype, "an operand") for x in operands]
    args = spec.arguments(shapes, dtypes, f"cuda:{ordinals()[0]}")
    problem = _core.problem(args.a, args.b, **args.keywords, kernel=spec.kernel)
    plan = planning.plan(problem, provided=False)
    if plan.each:
        return None, 0
    counts = {device(ordinal).sm_count for ordinal in ordinals()}
    scratch = max(_core.scratch_bytes(args.a, args.b, args.keywords, plan, count) for count in counts)
    results = ["out", *(name for name in ("aux", "bias_grad") if getattr(spec, name)), "scratch"]
    return (
        {
            "layout": spec.layout,
            "alpha": _parts(spec.alpha),
            "beta": _parts(spec.beta),
            "scale_a": spec.scale_a,
            "scale_b": spec.scale_b,
            "scale_out": spec.scale_out,
            "activation": spec.activation.name,
            "gated": int(spec.gated),
            "activation_parameters": np.array([*spec.activation.parameters, 0.0, 0.0][:2], np.float64),
            "compute": spec.compute or "",
            **attributes(problem, plan, spec.operands, results),
        },
        scratch + 256 if scratch else 0,
    )  # XLA aligns to less than the 256 bytes that kernels expect


def _parts(number: complex) -> Any:
    return np.array([number.real, number.imag], np.float64)
