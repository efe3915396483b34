"""What callers see: arguments checked by the rules of cutlass_py.gemm and brought into normal form (spec.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..declaration.dtypes import COMPUTE, LAYOUTS
from ..declaration.epilogues import ACTIVATIONS, INTERLEAVED
from ..epilogues.activations import Activation
from ..errors import ArgumentError, wrong_type, wrong_value
from ..kernels.kernel import Kernel
from ..kernels.registry import kernel_id
from ..operations.gemm.arguments import GemmArguments
from .gradient import differentiable
from .primitive import bind, vary_alike
from .spec import SCALARS, Result, Spec, array, factor_dtype, numpy_dtype


def gemm(
    a: Any,
    b: Any,
    *,
    layout: str = "tt",
    c: Any = None,
    alpha: Any = 1.0,
    beta: Any = None,
    bias: Any = None,
    activation: str | Activation | None = None,
    aux: Any = None,
    gate: Any = None,
    gated: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_out: Any = None,
    bias_grad: Any = None,
    compute: str | None = None,
    out_dtype: Any = None,
    splits: int | str | None = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    kernel: Kernel | str | None = None,
) -> Any:
    """`cutlass_py.gemm` as a pure function: differentiable, batchable, traceable.

    Formula, shapes, dtypes and rounding are those of `cutlass_py.gemm`. On CUDA one of its kernels runs, chosen as the
    call is lowered; anywhere else XLA's own operations do the same.

    Args:
        a: (m, k), (k,) or (..., m, k); with layout "n" a matrix lies as (..., k, m).
        b: (k, n), (k,) or (..., k, n); with layout "n" a matrix lies as (..., n, k), as weights often do.
        layout: how a, then b, lie: "t" as above, "n" transposed. `gemm(x, w, layout="tn")` is x @ w.T without the copy
            that XLA makes of w.T. Vectors are "t".
        c: as in cutlass_py.gemm. Where dtype and shape are the result's, the result takes its memory: donate it
            (jax.jit(donate_argnums=...)) for a result in place; XLA copies it first where something else needs it.
        alpha, beta, bias, gate, scale_a, scale_b, scale_out: as in cutlass_py.gemm. Arrays may be traced; no blocks.
        activation: a name, cutlass_py.leaky_relu(slope) or cutlass_py.clamp(low, high), as in cutlass_py.gemm.
        gated: as in cutlass_py.gemm.
        aux: with a derivative, as activation or `gated`, the array that it reads. Otherwise jax.ShapeDtypeStruct of the
            array to write: it is returned after the result.
        bias_grad: jax.ShapeDtypeStruct of the sums to write, returned last.
        compute, splits, deterministic, batch_invariant: as in cutlass_py.gemm. The last three say nothing on
            the CPU. What is traced within `cutlass_py.batch_invariant()` is batch invariant.
        out_dtype: as in cutlass_py.gemm; 64 bits need jax_enable_x64.
        kernel: as in cutlass_py.gemm. There is none to ask for outside of CUDA. Not heeded where a gradient makes the
            forward pass write z, for which there are other kernels.

    Returns:
        The result; with aux or bias_grad to write, a tuple of the result and what they receive.

    Raises:
        ValueError, TypeError: as cutlass_py.gemm does, while the call is traced. TypeError too for arrays whose types
            are sharded in ways that disagree.
        NoKernelError, CompileError: likewise, as it is lowered for CUDA. Where XLA divides the call among devices, they
            are the text of a jax.errors.JaxRuntimeError, as it is compiled.
    """
    given = {
        "a": a, "b": b, "c": c, "bias": bias, "gate": gate, "aux": aux, "scale_a": scale_a, "scale_b": scale_b,
        "alpha": alpha, "beta": beta, "scale_out": scale_out, "bias_grad": bias_grad,
    }  # fmt: skip
    derivatives = [name for name, row in ACTIVATIONS.items() if row.derivative]
    of_gates = gated.removesuffix(INTERLEAVED) if isinstance(gated, str) else None
    reads_aux = getattr(of_gates or activation, "name", of_gates or activation) in derivatives
    results = ("bias_grad",) if reads_aux else ("aux", "bias_grad")
    written = {name: given.pop(name) for name in results if given[name] is not None}
    for name, x in written.items():
        if not isinstance(x, jax.ShapeDtypeStruct):
            expected = "jax.ShapeDtypeStruct of what is to be returned"
            raise wrong_type(name, f"is {_core.described_type(x)}", expected)
    arrays = {name: checked_array("gemm", name, x) for name, x in given.items() if _is_array(name, x)}
    arrays |= {name: _factor(x, arrays["a"]) for name, x in arrays.items() if name in _NUMBERS}
    numbers = {name: x for name, x in given.items() if x is not None and name not in arrays}
    options = {
        "compute": compute, "splits": splits, "deterministic": deterministic, "batch_invariant": batch_invariant,
        "activation": activation, "gated": gated,
    }  # fmt: skip
    _check_layout(layout, arrays)
    if out_dtype is not None:
        options["out_dtype"] = dtype_name(out_dtype, "out_dtype")
    problem = _arguments(layout, arrays, numbers, written, options).problem
    if problem.block:
        found = f"is {arrays['scale_a'].shape} and scale_b is {arrays['scale_b'].shape}, blocks"
        raise wrong_value("scale_a", found, hint="cutlass_py.gemm takes those, of arrays outside of jax.jit")
    if numbers.get("beta") == 0:
        arrays.pop("c")  # it is not read
    factors: Any = {name: complex(x) if np.iscomplexobj(x) else float(x) for name, x in numbers.items()}
    spec = Spec(
        tuple(arrays),
        _storable(str(problem.d), "out_dtype"),
        layout,
        aux=_result(written, "aux"),
        bias_grad=_result(written, "bias_grad"),
        activation=_activation(of_gates or activation),
        gated=gated is not None,
        interleaved=of_gates != gated,
        compute=compute,
        splits=splits if splits is None or isinstance(splits, str) else int(splits),
        deterministic=bool(deterministic),
        batch_invariant=bool(batch_invariant) or _core.batch_invariance_asked(),
        kernel=None if kernel is None else _kernel_name(kernel),
        **factors,
    )
    return _call(spec, arrays)


def matmul(a: Any, b: Any, *, layout: str = "tt", compute: str | None = None, out_dtype: Any = None) -> Any:
    """a @ b by numpy.matmul's rules: `gemm` without an epilogue.

    Args:
        a, b, layout, compute, out_dtype: as in `gemm`.

    Returns:
        An array of the shape that numpy.matmul gives, of out_dtype, or of gemm's dtype for these operands.

    Raises:
        ValueError, TypeError, NoKernelError, CompileError: as `gemm` does.
    """
    return gemm(a, b, layout=layout, compute=compute, out_dtype=out_dtype)


# ---------------------------------------------------------------------------------------------------- arguments

_NUMBERS = (*SCALARS, "scale_a", "scale_b")


def _is_array(name: str, x: Any) -> bool:
    if x is None and name not in ("a", "b"):
        return False
    return name not in _NUMBERS or (hasattr(x, "shape") and not isinstance(x, np.generic))


def checked_array(function: str, name: str, x: Any) -> Any:
    """JAX's or NumPy's array, or what JAX's protocol makes one, as JAX's; TypeError for anything else."""
    if name in ("a", "b", "c") and isinstance(x, (list, tuple)):
        found, hint = f"is {_core.described_type(x)}", "in JAX pass a batch, an array of 3 dimensions"
        raise wrong_type(name, found, hint=hint, operation=function)
    if not (isinstance(x, (jax.Array, np.ndarray, np.generic)) or hasattr(x, "__jax_array__")):
        found = f"is {_core.described_type(x)}"
        raise wrong_type(name, found, "an array of JAX or NumPy", operation=function)
    try:
        x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    except (TypeError, ValueError) as error:
        found = f"is {_core.described_type(x)} of {x.dtype}, which JAX does not take"
        raise wrong_type(name, found, operation=function) from error
    if not all(isinstance(extent, int) for extent in x.shape):
        found = f"is {x.shape}, a symbolic shape"
        raise wrong_type(name, found, "numbers, to choose a kernel by", about="shape", operation=function)
    return x


def _factor(x: Any, a: Any) -> Any:
    """A Python number that was traced, jax.jit's argument say, in the dtype that factors have here."""
    dtype = dtype_name(a.dtype, "a")
    if not jax.typeof(x).weak_type or dtype not in COMPUTE:
        return x
    target = numpy_dtype(factor_dtype(dtype))
    return x if x.dtype.kind == "c" != target.kind else x.astype(target)


def _check_layout(layout: str, arrays: dict[str, Any]) -> None:
    if layout not in LAYOUTS:
        raise wrong_value("layout", f"is {layout!r}", f"one of {', '.join(LAYOUTS)}")
    for letter, name in zip(layout, "ab", strict=True):
        if letter == "n" and name in arrays and arrays[name].ndim < 2:
            found, expected = f"is {arrays[name].shape}", "a matrix where the layout says n"
            raise wrong_value(name, found, expected, about="shape")


def _arguments(layout: str, arrays: dict[str, Any], numbers: Any, written: Any, options: Any) -> GemmArguments:
    """The call as it was made, as metadata: checks it, by gemm's rules and with its messages."""
    letters = dict(zip("ab", layout, strict=True))
    specs = {
        name: array(x.shape, dtype_name(x.dtype, name), "cuda", letters.get(name, "t"))
        for name, x in (arrays | written).items()
    }
    keywords: dict[str, Any] = specs | numbers | options
    try:
        return GemmArguments(keywords.pop("a"), keywords.pop("b"), **keywords)
    except ArgumentError as error:
        if error.about != "shape":
            raise
        # The caller's arrays have other shapes where the layout says that they lie transposed.
        lying = {name: f"is {arrays[name].shape} lying transposed" for name, letter in letters.items() if letter == "n"}
        found, other = lying.get(error.operand, error.found), lying.get(error.other, error.other_found)
        raise error.renamed(error.operation, {}, found=found, other_found=other) from None


def _storable(dtype: str, parameter: str) -> str:
    """Refuses what JAX would make narrower without a word."""
    if dtype in ("f64", "c128") and not jax.config.jax_enable_x64:
        found = f"is {dtype}, which needs jax.config.update('jax_enable_x64', True)"
        raise wrong_type(parameter, found, about="dtype")
    return dtype


def _result(written: dict[str, Any], name: str) -> Result | None:
    if name not in written:
        return None
    x = written[name]
    return Result(tuple(x.shape), _storable(dtype_name(x.dtype, name), name))


def _activation(value: str | Activation | None) -> Activation:
    if isinstance(value, Activation):
        return value
    name = value or "identity"
    return Activation(name, tuple(float(default or 0) for _, default in ACTIVATIONS[name].parameters))


def _kernel_name(kernel: Kernel | str) -> str:
    kernel_id(kernel)  # refuses what is no kernel
    return kernel if isinstance(kernel, str) else kernel.name


# ---------------------------------------------------------------------------------------------------- normal form


_differentiable_by_jit = jax.jit(differentiable, static_argnums=0)


def _call(spec: Spec, arrays: dict[str, Any]) -> Any:
    """Runs a call whose arrays still have the caller's shapes, and gives the results theirs."""
    missing = tuple(axis for axis, name in ((-2, "a"), (-1, "b")) if arrays[name].ndim == 1)  # axes that D lacks
    operands = [_normal(name, x, missing) for name, x in arrays.items()]
    if spec.aux:
        shape = list(spec.aux.shape)
        for axis in reversed(missing):  # -1 first: then -2 is in front of it
            shape.insert(len(shape) + axis + 1, 1)
        spec = replace(spec, aux=replace(spec.aux, shape=tuple(shape)))
    # Where nothing is traced nothing is differentiated, and custom_vjp is a large part of what an eager call costs.
    run = differentiable if any(isinstance(x, jax.core.Tracer) for x in operands) else bind
    if jax.sharding.get_abstract_mesh().manual_axes:  # shard_map, which knows no such custom_vjp outside of jit
        run = _differentiable_by_jit
    d, *others = run(spec, vary_alike(operands))
    if missing:
        d = jnp.squeeze(d, missing)
        others = [jnp.squeeze(others[0], missing), *others[1:]] if spec.aux else others
    return (d, *others) if others else d


def _normal(name: str, x: Any, missing: tuple[int, ...]) -> Any:
    if name in SCALARS or (name in ("scale_a", "scale_b") and x.size == 1):
        return x.reshape(())
    if name in ("c", "gate", "aux"):
        return jnp.expand_dims(x, missing)
    if x.ndim == 1:  # a and scale_a: along the rows of a; the others along the columns of b
        return x[:, None] if name in ("b", "scale_a") else x[None, :]
    return x
