"""Host time of one cutlass_py.gemm call against the framework's own matmul, for a product too small to matter.

    python benchmarks/host_cost.py

64 x 64 x 64, both arms in one process in alternated batches. Rows whose framework or GPU is absent are skipped by name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import HostTime, default_path, host_us, surroundings, write_json

import cutlass_py

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other frameworks share the GPU with JAX here

EXTENT = 64
BATCH = 200  # calls between two synchronisations: the launch queue holds about a thousand


@dataclass(frozen=True)
class Row:
    """Two statements that do the same. `drain` waits for the device."""

    title: str
    ours: str
    theirs: str
    names: dict[str, Any]
    drain: Callable[[], object] = lambda: None


class Absent(Exception):
    """A framework or device that this machine does not have."""


def torch_rows(device: str, dtype: str) -> Iterator[Row]:
    try:
        import torch
    except ImportError as error:
        raise Absent("torch is not installed") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent("torch finds no GPU")
    a, b, c = (torch.randn(EXTENT, EXTENT, device=device).to(getattr(torch, dtype)) for _ in range(3))
    names = {"gemm": cutlass_py.gemm, "mm": torch.mm, "a": a, "b": b, "c": c}
    drain = torch.cuda.synchronize if device == "cuda" else lambda: None
    title = f"torch {dtype} {device}"
    yield Row(f"{title}, out=", "gemm(a, b, out=c)", "mm(a, b, out=c)", names, drain)
    yield Row(f"{title}, new result", "gemm(a, b)", "mm(a, b)", names, drain)
    yield Row(f"{title}, b.t(), out=", "gemm(a, b.t(), out=c)", "mm(a, b.t(), out=c)", names, drain)


def cupy_rows() -> Iterator[Row]:
    try:
        import cupy
    except ImportError as error:
        raise Absent("CuPy is not installed") from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent("CuPy finds no GPU") from error
    a, b, c = (cupy.random.standard_normal((EXTENT, EXTENT)).astype("float16") for _ in range(3))
    names = {"gemm": cutlass_py.gemm, "matmul": cupy.matmul, "a": a, "b": b, "c": c}
    drain = cupy.cuda.Device().synchronize
    yield Row("CuPy float16 cuda, out=", "gemm(a, b, out=c)", "matmul(a, b, out=c)", names, drain)
    yield Row("CuPy float16 cuda, new result", "gemm(a, b)", "matmul(a, b)", names, drain)


def jax_rows() -> Iterator[Row]:
    try:
        import jax
    except ImportError as error:
        raise Absent("JAX is not installed") from error
    keys = jax.random.split(jax.random.key(0))
    x, y = (jax.random.normal(key, (EXTENT, EXTENT)).astype(jax.numpy.bfloat16) for key in keys)
    names = {"gemm": cutlass_py.gemm, "x": x, "y": y, "jitted": jax.jit(lambda x, y: x @ y)}

    def drain() -> None:
        jax.block_until_ready([cutlass_py.gemm(x, y), x @ y])

    title = f"JAX bfloat16 {x.device.platform}"
    yield Row(f"{title}, eager x @ y", "gemm(x, y)", "x @ y", names, drain)
    yield Row(f"{title}, jit(x @ y)", "gemm(x, y)", "jitted(x, y)", names, drain)


def numpy_rows() -> Iterator[Row]:
    import numpy as np

    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((EXTENT, EXTENT), np.float32) for _ in range(3))
    names = {"gemm": cutlass_py.gemm, "matmul": np.matmul, "a": a, "b": b, "c": c}
    yield Row("NumPy float32 cpu, out=", "gemm(a, b, out=c)", "matmul(a, b, out=c)", names)


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "torch cuda": lambda: torch_rows("cuda", "bfloat16"),
    "cupy": cupy_rows,
    "jax": jax_rows,
    "torch cpu": lambda: torch_rows("cpu", "float32"),
    "numpy": numpy_rows,
}


def measure(row: Row, seconds: float) -> dict[str, Any]:
    statements = {"cutlass_py": row.ours, "framework": row.theirs}
    times: dict[str, HostTime] = host_us(statements, row.names, row.drain, seconds=seconds, batch=BATCH)
    ours, theirs = times["cutlass_py"], times["framework"]
    return {
        "row": row.title,
        "statements": statements,
        "us": {arm: asdict(found) for arm, found in times.items()},
        "ratio": {"minimum": ours.minimum / theirs.minimum, "median": ours.median / theirs.median},
    }


def print_row(record: dict[str, Any]) -> None:
    ours, theirs, ratio = record["us"]["cutlass_py"], record["us"]["framework"], record["ratio"]
    print(
        f"{record['row']:34} {ours['minimum']:8.2f} {ours['median']:8.2f} | {theirs['minimum']:8.2f} "
        f"{theirs['median']:8.2f} | {ratio['minimum']:6.2f} {ratio['median']:6.2f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=2.0, help="time per row (default 2)")
    parser.add_argument("--json", type=Path, help="default: benchmarks/results/host_cost-<gpu or cpu>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args()

    print(f"{'microseconds per call':34} {'ours':^17} | {'theirs':^17} | {'ours / theirs':^13}")
    print(f"{'':34} {'min':>8} {'median':>8} | {'min':>8} {'median':>8} | {'min':>6} {'median':>6}")
    records, skipped = [], {}
    for group in args.only:
        try:
            for row in GROUPS[group]():
                records.append(measure(row, args.seconds))
                print_row(records[-1])
        except Absent as reason:
            skipped[group] = str(reason)
            print(f"{group:34} skipped: {reason}")
    facts = surroundings(args.commit)
    path = args.json or default_path("host_cost", facts["machine"])
    write_json(path, {**facts, "extent": EXTENT, "batch": BATCH, "rows": records, "skipped": skipped})
    print(f"JSON: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
