"""Multiply arrays of every framework found, and compare with float64."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .. import _core
from ..declaration.dtypes import DTYPES
from ..support.terminal import print_table
from .options import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--size", type=int, default=512, help="extent of the square problems (default 512)")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command; 1 where an error is beyond its bound."""
    from ..support.versions import installed

    if options.size < 1:
        raise ValueError(f"demo: --size is {options.size}; expected 1 or more")
    rows = [_row(framework, *made) for framework in installed() for made in _arrays(framework, options.size)]
    if options.json:
        print_json([asdict(row) for row in rows])
    else:
        header = ("framework", "device", "dtype", "problem", "kernel", "error vs float64", "bound")
        cells = [
            (r.framework, r.device, r.dtype, r.problem, r.kernel, f"{r.error:.1e}", f"{r.bound:.1e}") for r in rows
        ]
        print_table(header, cells)
        if not _core.device_count():
            print(f"CPU only: {_core.why_no_device()}")
    return 0 if all(row.error <= row.bound for row in rows) else 1


@dataclass(frozen=True)
class _Row:
    """One result. `error` is max |d - reference| / max |reference|; `bound` what rounding allows."""

    framework: str
    device: str
    dtype: str
    problem: str
    kernel: str
    error: float
    bound: float


def _row(framework: str, device: str, dtype: str, a: Any, b: Any, to_numpy: Callable[[Any], Any]) -> _Row:
    import numpy as np

    from .. import gemm
    from ..dispatch.explanation import explain
    from ..operations.gemm.arguments import GemmArguments

    d = to_numpy(gemm(a, b))
    x, y = to_numpy(a), to_numpy(b)
    reference = x @ y
    chosen = explain(GemmArguments(a, b)).chosen
    error = float(np.abs(d - reference).max() / np.abs(reference).max())
    # Rounding of the result, and k roundings of the accumulator, which is f32 or f64.
    bound = DTYPES[dtype].roundoff + x.shape[-1] * DTYPES["f64" if dtype == "f64" else "f32"].roundoff
    m, k = x.shape
    kernel = chosen.route.kernel.name if chosen else "none"
    return _Row(framework, device, dtype, f"({m}, {k}) @ ({k}, {y.shape[1]})", kernel, error, bound)


_Made = tuple[str, str, Any, Any, Callable[[Any], Any]]  # device, dtype, random a and b, the way back to float64


def _arrays(framework: str, size: int) -> Iterator[_Made]:
    """Those of one framework; none where it needs a GPU and there is none."""
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
        import torch

        device = "cuda" if gpu and torch.cuda.is_available() else "cpu"
        for dtype in ("bf16", "f16", "f32", "f64"):
            a, b = (torch.from_numpy(x).to(device, getattr(torch, DTYPES[dtype].numpy)) for x in values)
            yield device, dtype, a, b.T.contiguous().T, lambda x: x.double().cpu().numpy()
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
