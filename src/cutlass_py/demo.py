"""Behind `python -m cutlass_py demo`: one product per framework, device and dtype, checked in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import _core, gemm
from .arguments import GemmArguments
from .declaration.dtypes import DTYPES
from .explanation import explain
from .versions import installed

# Unit roundoff of a dtype: what storing a result in it may cost, relative to its size.
_ROUNDOFF = {"f16": 2**-11, "bf16": 2**-8, "f32": 2**-24, "f64": 2**-53}


@dataclass(frozen=True)
class Row:
    """One result. `error` is max |d - reference| / max |reference|; `bound` what rounding allows."""

    framework: str
    device: str
    dtype: str
    problem: str
    kernel: str
    error: float
    bound: float


def run(size: int) -> list[Row]:
    """One row per framework, device and dtype found here."""
    rows = []
    for framework in installed():
        for device, dtype, a, b, to_numpy in _arrays(framework, size):
            rows.append(_row(framework, device, dtype, a, b, to_numpy))
    return rows


def _row(framework: str, device: str, dtype: str, a: Any, b: Any, to_numpy: Any) -> Row:
    import numpy as np

    d = to_numpy(gemm(a, b))
    x, y = to_numpy(a), to_numpy(b)
    reference = x @ y
    chosen = explain(GemmArguments(a, b)).chosen
    error = float(np.abs(d - reference).max() / np.abs(reference).max())
    # Rounding of the result, and k roundings of the accumulator, which is f32 or f64.
    bound = _ROUNDOFF[dtype] + x.shape[-1] * _ROUNDOFF["f64" if dtype == "f64" else "f32"]
    m, k = x.shape
    kernel = chosen.route.kernel.name if chosen else "none"
    return Row(framework, device, dtype, f"({m}, {k}) @ ({k}, {y.shape[1]})", kernel, error, bound)


def _arrays(framework: str, size: int) -> Iterator[tuple[str, str, Any, Any, Any]]:
    """Device, dtype, random a and b, and the way back to float64."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    rng = np.random.default_rng(0)
    values = [rng.standard_normal((size, size)) for _ in range(2)]
    gpu = _core.device_count() > 0
    a: Any
    b: Any
    if framework == "numpy":
        for dtype in ("f32", "bf16", "f64"):
            a, b = (x.astype(DTYPES[dtype].numpy) for x in values)
            yield "cpu", dtype, a, b, lambda x: np.asarray(x, np.float64)
    elif framework == "torch":
        yield from _torch_arrays(values, gpu)
    elif framework == "cupy" and gpu:
        import cupy

        for dtype in ("f16", "f32", "f64"):
            a, b = (cupy.asarray(x).astype(DTYPES[dtype].numpy) for x in values)
            yield "cuda", dtype, a, b, lambda x: cupy.asnumpy(x).astype(np.float64)
    elif framework == "jax":
        import jax

        for dtype in ("bf16", "f32"):
            a, b = (jax.numpy.asarray(x, dtype=DTYPES[dtype].numpy) for x in values)
            yield next(iter(a.devices())).platform, dtype, a, b, lambda x: np.asarray(x, np.float64)


def _torch_arrays(values: list[Any], gpu: bool) -> Iterator[tuple[str, str, Any, Any, Any]]:
    import torch

    device = "cuda" if gpu and torch.cuda.is_available() else "cpu"
    for dtype in ("bf16", "f16", "f32", "f64"):
        a, b = (torch.from_numpy(x).to(device, getattr(torch, DTYPES[dtype].numpy)) for x in values)
        yield device, dtype, a, b.T.contiguous().T, lambda x: x.double().cpu().numpy()
