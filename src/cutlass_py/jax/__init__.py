"""gemm, quantize and ragged dots for JAX: under jit, grad, vmap, shard_map and export, on XLA's stream (docs/jax.md).

Importing this imports JAX; importing cutlass_py alone does not.
"""

from __future__ import annotations

from . import reference  # noqa: F401  (its lowering is for every platform that has none of its own)
from .api import gemm, matmul
from .perceptron import mlp
from .quantization import quantize
from .ragged import ragged_dot, ragged_dot_general
from .registration import register

__all__ = ["gemm", "matmul", "mlp", "quantize", "ragged_dot", "ragged_dot_general", "register"]

register("cuda")
