"""DTensor: how operators' results are sharded for every sharding of their operands, one mesh dimension at a time.

Registered when torch.distributed.tensor has been imported, which takes seconds: at the import of this package, when a
Linear is made, and at the first call through the operator. Before compiling a program whose first call is a compiled
one, import it first.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from ..declaration.epilogues import ACTIVATIONS
from .dtypes import WIDE
from .operators import TENSORS, Call, in_blocks, operator

_FACTORS = ("alpha", "beta", "scale_out")
RULES: dict[Any, Any] = {}  # by operator; those of other operators join at import


def register_if_used() -> None:
    """Registers the rules once, if DTensor is in use."""
    if not torch.compiler.is_dynamo_compiling() and "torch.distributed.tensor" in sys.modules:
        _register()


@cache
def _register() -> None:
    from torch.distributed.tensor.experimental import register_sharding

    for known, shardings in RULES.items():
        register_sharding(known)(shardings)


def _shardings(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    """(placements of the results, placements of the arguments) of each way to compute in parts."""
    from torch.distributed.tensor import Replicate

    call = Call(*arguments)
    batch = torch.broadcast_shapes(call.a.shape[:-2], call.b.shape[:-2])
    shape = (*batch, call.a.shape[-2], call.b.shape[-1])
    nothing = ([Replicate()] * 3, _inputs(call, lambda name, x: Replicate()))
    blocks = in_blocks(call)  # a part of n or of k would take a part of them, and may begin within one
    whole = blocks or call.gated  # gates would be parted from their values
    along = [_along(call, shape, dim) for dim in range(len(shape) - whole) if shape[dim] > 1]
    linear = call.activation == "identity" or call.gate is not None or ACTIVATIONS[call.activation].derivative
    dtypes = {call.out_dtype or call.a.tensor_meta.dtype, call.aux_dtype or torch.float32}
    # Parts of D can be added up where it is a linear function of z, and neither is stored in a dtype that saturates.
    return [nothing, *along, *([_along_k(call)] if linear and dtypes <= WIDE and not blocks else [])]


def _inputs(call: Call, placement: Any) -> list[Any]:
    tensors = zip(Call._fields, call[:TENSORS], strict=False)
    return [None if x is None else placement(name, x) for name, x in tensors] + [None] * (len(call) - TENSORS)


def _along(call: Call, shape: tuple[int, ...], dim: int) -> tuple[list[Any], list[Any]]:
    """Every device has a part of D along one of its dimensions."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    rank, last = len(shape), {"a": "n", "b": "m"}
    axis = {rank - 1: "n", rank - 2: "m"}.get(dim, "")

    def placement(name: str, x: Any) -> Any:
        if name in _FACTORS or (axis and last.get(name) == axis):
            return Replicate()
        own = dim - (rank - len(x.shape))
        if name == "scale_a" and len(x.shape) == 1:  # a column, though it has one dimension
            own = 0 if axis == "m" else -1
        return Shard(own) if own >= 0 and x.shape[own] == shape[dim] else Replicate()

    sums = Shard(0) if axis and axis == call.bias_grad else Partial() if call.bias_grad else Replicate()
    return [Shard(dim), Replicate() if call.aux_dtype is None else Shard(dim), sums], _inputs(call, placement)


def _along_k(call: Call) -> tuple[list[Any], list[Any]]:
    """Every device has a part of k: D is a sum over the devices."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    parts = {"a": Shard(len(call.a.shape) - 1), "b": Shard(len(call.b.shape) - 2), "c": Partial(), "bias": Partial()}
    results = [
        Partial(),
        Replicate() if call.aux_dtype is None else Partial(),
        Partial() if call.bias_grad else Replicate(),
    ]
    return results, _inputs(call, lambda name, x: parts.get(name, Replicate()))


RULES[operator] = _shardings
