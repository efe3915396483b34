"""How primitives are typed, and run outside of jit, whatever they compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from .spec import Shape, numpy_dtype


def result_type(like: Any, shape: Shape, dtype: str) -> Any:
    """The type of a result beside an operand: of its mesh, varying along the same axes of it."""
    unsharded = NamedSharding(like.sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return like.update(shape=shape, dtype=numpy_dtype(dtype), weak_type=False, sharding=unsharded)


def compiled(primitive: Primitive, bind: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """An implementation of a primitive: a program of its own for each of its parameters.

    Args:
        bind: operands, and parameters by name, to results.
    """

    @lru_cache(maxsize=256)  # each holds compiled programs
    def program(**parameters: Any) -> Any:
        return jax.jit(lambda operands: bind(*operands, **parameters))

    def run(*operands: Any, **parameters: Any) -> Any:
        # Where they are on, a jit of our own would end up here again.
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            results = program(**parameters)(operands)
        # What jax.debug_nans and jax.debug_infs ask of every operation that runs by itself.
        for asked, is_so, what in (
            (jax.config.jax_debug_nans, np.isnan, "nan"),
            (jax.config.jax_debug_infs, np.isinf, "inf"),
        ):
            inexact = [x for x in results if jnp.issubdtype(x.dtype, jnp.inexact)] if asked else []
            if any(is_so(np.asarray(shard.data)).any() for x in inexact for shard in x.addressable_shards):
                raise FloatingPointError(f"invalid value ({what}) encountered in {primitive.name}")
        return results

    return run
