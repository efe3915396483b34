"""What can be wrong with a call of gemm: every mistake as the change that makes it of a call which is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import gpu
import torch
from reference import FP8

from cutlass_py import TensorSpec
from cutlass_py.declaration.dtypes import BLOCK

if TYPE_CHECKING:
    from random_calls import Call

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Attributes:
        error: what it raises, with a message that `says` occurs in.
        change: operands and keywords that are given instead of the call's own; None is as good as absent.
        fits: in which calls it is one.
    """

    error: type[Exception]
    says: str
    change: Callable[[Call], dict[str, Any]]
    fits: Callable[[Call], bool] = lambda call: True


# ---------------------------------------------------------------------------------------------------- calls


def real(call: Call) -> bool:
    return not call.complex


def plain(call: Call) -> bool:
    """Real, and the activation is no derivative."""
    return not call.complex and not call.derivative


def summed(call: Call) -> bool:
    """It may have a bias gradient."""
    return not call.complex and len(call.batch) < 2


def full(call: Call) -> bool:
    """There are results, and something to multiply."""
    return 0 not in (*call.batch, *call.extents)


def deep(call: Call) -> bool:
    """Real, and there are two blocks of k at least."""
    return not call.complex and call.extents[0] > 0 and call.extents[2] > BLOCK


def fp8(call: Call) -> bool:
    return call.a.dtype in FP8


def both(*conditions: Callable[[Call], bool]) -> Callable[[Call], bool]:
    return lambda call: all(condition(call) for condition in conditions)


# ---------------------------------------------------------------------------------------------------- operands


def ones(shape: Shape, dtype: str) -> torch.Tensor:
    """What is written over them would show."""
    return torch.ones(shape, device=gpu.DEVICE).to(gpu.DTYPES[dtype])


def integers_of_64_bits(shape: Shape) -> torch.Tensor:
    return torch.ones(shape, device=gpu.DEVICE, dtype=torch.int64)


def factors(call: Call, *shape: int) -> torch.Tensor:
    """Factors of the dtype that the call takes."""
    return torch.ones(shape, device=gpu.DEVICE, dtype=gpu.DTYPES[call.scalar])


def shape_of(call: Call, name: str) -> Shape:
    x = getattr(call, name)
    return (*x.expanded, *x.shape)


def wider(call: Call) -> Shape:
    """The result's, with one more column."""
    return (*call.shape[:-1], call.shape[-1] + 1)


def row(call: Call) -> Shape:
    return (call.extents[1],)


def long_row(call: Call) -> Shape:
    return (call.extents[1] + 1,)


def column(call: Call) -> Shape:
    """Scales of rows, and one more."""
    return (call.extents[0] + 1,)


def factors_in_blocks(call: Call) -> torch.Tensor:
    return factors(call, call.extents[0], ceil(call.extents[2] / BLOCK))


def other_kind(call: Call) -> str:
    """A complex dtype beside real operands, and a real one beside complex operands."""
    return "f32" if call.complex else "c64"


def stranger(call: Call) -> str:
    """A dtype that is not multiplied with a's."""
    return "f16" if call.a.dtype == "bf16" else "bf16"


def unlike_a_bias(call: Call) -> str:
    return "f32" if call.complex else "e4m3" if call.d == "e5m2" else "e5m2"


def at_one_address(**operands: tuple[Shape, str]) -> dict[str, Any]:
    """Contiguous operands of these shapes and dtypes that begin at the same byte."""
    size = max(prod(shape) * gpu.DTYPES[dtype].itemsize for shape, dtype in operands.values())
    memory = torch.full((-(-size // 16) * 16,), 0x55, device=gpu.DEVICE, dtype=torch.uint8)
    return {
        name: memory.view(gpu.DTYPES[dtype])[: prod(shape)].view(shape) for name, (shape, dtype) in operands.items()
    }


def out_beside(call: Call, name: str, shape: Shape, dtype: str) -> dict[str, Any]:
    return at_one_address(out=(call.shape, call.d), **{name: (shape, dtype)})


def c_moved_by_one(call: Call) -> dict[str, Any]:
    memory = ones((prod(call.shape) + 1,), call.d)
    return {"out": memory[:-1].view(call.shape), "c": memory[1:].view(call.shape), "beta": None}


def out_that_repeats(call: Call) -> dict[str, Any]:
    return {"out": ones((*call.batch, 1, call.shape[-1]), call.d).expand(call.shape)}


def bias_grad_that_is_the_bias(call: Call) -> dict[str, Any]:
    x = ones(row(call), "f32")
    return {"bias": x, "bias_grad": x}


# ---------------------------------------------------------------------------------------------------- mistakes

MISTAKES = {
    # a and b
    "inner extents": Mistake(
        ValueError,
        "inner extents must agree",
        lambda x: {"b": ones((x.extents[2] + 1, x.extents[1]), x.b.dtype)},
    ),
    "batches": Mistake(
        ValueError,
        "batch extents must agree",
        lambda x: {"a": ones((2, *x.a.shape[-2:]), x.a.dtype), "b": ones((3, *x.b.shape[-2:]), x.b.dtype)},
    ),
    "a of integers": Mistake(TypeError, "a has dtype int64", lambda x: {"a": integers_of_64_bits(shape_of(x, "a"))}),
    "b of another dtype": Mistake(TypeError, "goes with", lambda x: {"b": ones(shape_of(x, "b"), stranger(x))}),
    "b is missing": Mistake(TypeError, "b is a NoneType", lambda x: {"b": None}),
    "b without memory": Mistake(
        TypeError,
        "b is a TensorSpec",
        lambda x: {"b": TensorSpec(shape_of(x, "b"), x.b.dtype, device=gpu.DEVICE)},
    ),
    "a with a gradient": Mistake(
        ValueError,
        "a requires a gradient",
        lambda x: {"a": ones(shape_of(x, "a"), x.a.dtype).requires_grad_()},
        lambda x: x.a.dtype in ("f16", "bf16", "f32", "f64"),
    ),
    "compute": Mistake(ValueError, "compute=", lambda x: {"compute": "f32" if x.a.dtype in gpu.INTEGER else "s32"}),
    # out
    "out too wide": Mistake(ValueError, "out is", lambda x: {"out": ones(wider(x), x.d)}),
    "out of one dimension more": Mistake(ValueError, "out is", lambda x: {"out": ones((1, *x.shape), x.d)}),
    "out of the other kind": Mistake(
        TypeError, "out is", lambda x: {"out": ones(x.shape, other_kind(x)), "out_dtype": None}
    ),
    "out of integers": Mistake(
        TypeError, "out has dtype int64", lambda x: {"out": integers_of_64_bits(x.shape), "out_dtype": None}
    ),
    "out is a number": Mistake(TypeError, "out is a float", lambda x: {"out": 1.0}),
    "out and out_dtype": Mistake(
        TypeError,
        "but out_dtype is",
        lambda x: {"out": ones(x.shape, x.d), "out_dtype": "f64" if x.d == "f32" else "f32"},
    ),
    "out_dtype": Mistake(TypeError, "out_dtype is 'f33'", lambda x: {"out": None, "out_dtype": "f33"}),
    "out repeats": Mistake(ValueError, "out overlaps itself", out_that_repeats, both(full, lambda x: x.extents[0] > 1)),
    # shared elements
    "out is a": Mistake(
        ValueError, "out shares elements with a", lambda x: out_beside(x, "a", shape_of(x, "a"), x.a.dtype), full
    ),
    "out is b": Mistake(
        ValueError, "out shares elements with b", lambda x: out_beside(x, "b", shape_of(x, "b"), x.b.dtype), full
    ),
    "out is c, moved": Mistake(ValueError, "out shares elements with c", c_moved_by_one, lambda x: prod(x.shape) > 1),
    "out is the bias": Mistake(
        ValueError,
        "out shares elements with bias",
        lambda x: out_beside(x, "bias", row(x), x.d if x.complex else "f32"),
        full,
    ),
    "out is alpha": Mistake(
        ValueError,
        "out shares elements with alpha",
        lambda x: {**out_beside(x, "alpha", (1,), x.scalar), "scale_a": None, "scale_b": None},
        full,
    ),
    "out is aux": Mistake(
        ValueError, "shares elements with", lambda x: out_beside(x, "aux", x.shape, "f32"), both(full, plain)
    ),
    "out is bias_grad": Mistake(
        ValueError, "shares elements with", lambda x: out_beside(x, "bias_grad", row(x), "f32"), both(full, summed)
    ),
    "bias_grad is the bias": Mistake(
        ValueError, "bias_grad shares elements with bias", bias_grad_that_is_the_bias, both(full, summed)
    ),
    # factors
    "alpha of two": Mistake(ValueError, "alpha is", lambda x: {"alpha": factors(x, 2)}),
    "alpha of another dtype": Mistake(TypeError, "alpha is", lambda x: {"alpha": ones((1,), "f16")}),
    "alpha is text": Mistake(TypeError, "alpha is a str", lambda x: {"alpha": "2"}),
    "beta alone": Mistake(ValueError, "beta is given but c is not", lambda x: {"c": None, "beta": 1.0}),
    "scale_a too long": Mistake(
        ValueError, "scale_a is", lambda x: {"scale_a": factors(x, *column(x))}, both(real, lambda x: x.extents[0] > 0)
    ),
    "scale_b of another dtype": Mistake(
        TypeError, "scale_b is", lambda x: {"scale_a": None, "scale_b": ones(row(x), "f16")}, real
    ),
    "scale_out of two": Mistake(ValueError, "scale_out is", lambda x: {"scale_out": factors(x, 2)}, real),
    "a number beside an array": Mistake(
        ValueError,
        "alpha is an array but scale_b is a number",
        lambda x: {"alpha": factors(x, 1), "scale_a": None, "scale_b": 2.0},
        real,
    ),
    "blocks alone": Mistake(
        ValueError,
        "scale_b is not given",
        lambda x: {"scale_a": factors_in_blocks(x), "scale_b": None},
        both(deep, fp8),
    ),
    "blocks of other dtypes": Mistake(
        ValueError, "scale_a is", lambda x: {"scale_a": factors_in_blocks(x)}, both(deep, lambda x: not fp8(x))
    ),
    "scale of complex": Mistake(TypeError, "complex operands take", lambda x: {"scale_a": 2.0}, lambda x: x.complex),
    # what is added
    "c too wide": Mistake(ValueError, "c is", lambda x: {"c": ones(wider(x), x.d)}),
    "c of integers": Mistake(TypeError, "c has dtype int64", lambda x: {"c": integers_of_64_bits(x.shape)}),
    "c of the other kind": Mistake(TypeError, "c is", lambda x: {"c": ones(x.shape, other_kind(x))}),
    "bias too long": Mistake(ValueError, "bias is", lambda x: {"bias": ones(long_row(x), x.d)}),
    "bias of another dtype": Mistake(TypeError, "bias is", lambda x: {"bias": ones(row(x), unlike_a_bias(x))}),
    # functions
    "activation": Mistake(ValueError, "activation='swish' is not one of", lambda x: {"activation": "swish"}),
    "clamp by its name": Mistake(ValueError, "has parameters", lambda x: {"activation": "clamp"}),
    "activation of complex": Mistake(
        TypeError, "complex operands take", lambda x: {"activation": "relu"}, lambda x: x.complex
    ),
    "derivative alone": Mistake(
        ValueError, "needs aux", lambda x: {"activation": "d_gelu", "aux": None, "gate": None}, real
    ),
    "gate beside a derivative": Mistake(
        ValueError,
        "a derivative takes no gate",
        lambda x: {"activation": "d_silu", "aux": ones(x.shape, x.d), "gate": ones(x.shape, x.d)},
        real,
    ),
    "gate too wide": Mistake(ValueError, "gate is", lambda x: {"gate": ones(wider(x), x.d)}, plain),
    "aux too wide": Mistake(ValueError, "aux is", lambda x: {"aux": ones(wider(x), x.d)}, real),
    "gate of complex": Mistake(
        TypeError, "complex operands take", lambda x: {"gate": ones(x.shape, x.d)}, lambda x: x.complex
    ),
    "bias_grad too long": Mistake(ValueError, "bias_grad is", lambda x: {"bias_grad": ones(long_row(x), "f32")}, real),
    "bias_grad of integers": Mistake(TypeError, "bias_grad is", lambda x: {"bias_grad": ones(row(x), "s32")}, real),
    # the rest
    "splits": Mistake(ValueError, "splits is 0", lambda x: {"splits": 0}),
    "deterministic": Mistake(TypeError, "deterministic is an int", lambda x: {"deterministic": 1}),
    "kernel": Mistake(ValueError, "no kernel is called", lambda x: {"kernel": "typo"}),
    "unknown keyword": Mistake(TypeError, "bais", lambda x: {"bais": ones(row(x), x.d)}),
}
