"""gemm on CUDA: a custom call of XLA's, whose attributes hold the plan. xla_gemm.cpp reads what is written here."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..dispatch import planning
from .custom_call import attributes, ordinals, scratch, target
from .partitioning import divided
from .reference import compute
from .spec import Spec, numpy_dtype, product_of

TARGET = target("gemm")


def _lowered(*operands: Any, spec: Spec) -> list[Any]:
    said, memory = _plan(spec, operands)
    if said is None:
        return _apart(operands, spec)
    results = [
        jax.ShapeDtypeStruct(result.shape, numpy_dtype(result.dtype))
        for result in spec.results([x.shape for x in operands])
    ]
    # C and D share memory where they are alike: XLA copies C first where something else still needs it.
    c, d = spec.operands.index("c") if "c" in spec.operands else None, results[0]
    alike = c is not None and (operands[c].shape, operands[c].dtype) == (d.shape, d.dtype)
    call = jax.ffi.ffi_call(TARGET, [*results, memory], input_output_aliases={c: 0} if alike else {})
    found = call(*operands, **said)
    return list(found[:-1])


lowering = divided(_lowered)


def _apart(operands: Any, spec: Spec) -> list[Any]:
    """Where no kernel makes gates and values into a result: the product, and XLA's operations behind it."""
    with jax.enable_x64(True):
        (product,) = _lowered(*operands[:2], spec=product_of(spec, operands))
        return compute(spec, spec.named(operands), product)


def _plan(spec: Spec, operands: Any) -> tuple[dict[str, Any] | None, jax.ShapeDtypeStruct]:
    """The attributes of the call, and its scratch; None where it is more than one kernel."""
    shapes, dtypes = [x.shape for x in operands], [dtype_name(x.dtype, "an operand") for x in operands]
    args = spec.arguments(shapes, dtypes, f"cuda:{ordinals()[0]}")
    problem = _core.problem(args.a, args.b, **args.keywords, kernel=spec.kernel)
    plan = planning.plan(problem, provided=False)
    if plan.each:
        return None, scratch(lambda count: 0)
    memory = scratch(lambda count: _core.scratch_bytes(args.a, args.b, args.keywords, plan, count))
    results = ["out", *(name for name in ("aux", "bias_grad") if getattr(spec, name)), "scratch"]
    return keywords_of(spec) | attributes(problem, plan, spec.operands, results), memory


def keywords_of(spec: Spec) -> dict[str, Any]:
    """What the attributes of any product say of its keywords."""
    return {
        "layout": spec.layout,
        "alpha": _parts(spec.alpha),
        "beta": _parts(spec.beta),
        "scale_a": spec.scale_a,
        "scale_b": spec.scale_b,
        "scale_out": spec.scale_out,
        "activation": spec.activation.name,
        "gated": int(spec.gated) + int(spec.interleaved),
        "activation_parameters": np.array([*spec.activation.parameters, 0.0, 0.0][:2], np.float64),
        "compute": spec.compute or "",
    }


def _parts(number: complex) -> Any:
    return np.array([number.real, number.imag], np.float64)
