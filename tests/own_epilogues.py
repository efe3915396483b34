"""What the tests bring as epilogues of users' own, and operands for them."""

from __future__ import annotations

import numpy as np

from cutlass_py import epilogue
from cutlass_py.functions import clamp, gelu, tanh, where
from cutlass_py.functions import max as max_over
from cutlass_py.functions import min as min_over
from cutlass_py.functions import sum as sum_over


@epilogue
def gelu_bias(accum, alpha, bias):
    return gelu(alpha * accum + bias)


@epilogue
def everything(accum, scale, column, residual):
    z = scale * accum + column
    d = where((z > 0) | ~(residual < 0), tanh(z), clamp(z - residual, -2, 2))
    return d, {"z": z, "rows": sum_over(d, axis=-1), "columns": max_over(z, axis=-2), "least": min_over(d, axis=-1)}


ONE = epilogue(lambda x: (x, {"one": sum_over(x)}))


def operands(m=5, n=6, k=7, batch=(), dtype=np.float32):
    random = np.random.default_rng(7)
    return (random.standard_normal((*batch, *shape)).astype(dtype) for shape in ((m, k), (k, n), (m, n)))
