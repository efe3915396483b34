"""Host time of one cutlass_py.gemm call against the framework's own matmul, for a product too small to matter.

    python benchmarks/host_cost.py

64 x 64 x 64, both arms in one process in alternated batches. Rows whose framework or GPU is absent are skipped by name.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from places import default_path

import cutlass_py
from cutlass_py.bench import host
from cutlass_py.bench.environment import environment
from cutlass_py.bench.host import BATCH, EXTENT, Absent, Row
from cutlass_py.bench.results import Record, write

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other frameworks share the GPU with JAX here


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


def alone_rows() -> Iterator[Row]:
    """What cutlass_py.torch takes around products: of no rows, or with an allocation of their results instead."""
    try:
        import torch
    except ImportError as error:
        raise Absent("torch is not installed") from error
    import cutlass_py.torch as ct
    from cutlass_py.torch import layer_gradient

    def allocate(a: Any, b: Any, **_: Any) -> Any:
        return a.new_empty((*a.shape[:-1], b.shape[-1]))

    a, b, c, bias = (torch.zeros(shape) for shape in ((0, EXTENT), (EXTENT, EXTENT), (0, EXTENT), (EXTENT,)))
    x, stock, ours = torch.randn(8, 8), torch.nn.Linear(8, 8), ct.Linear(8, 8)
    fused = ct.Linear(8, 8, activation="gelu")
    names = {
        "gemm": cutlass_py.gemm, "ct": ct, "a": a, "b": b, "c": c, "bias": bias, "x": x, "stock": stock, "ours": ours,
        "fused": fused, "gelu": torch.nn.GELU(),
    }  # fmt: skip
    yield Row("no rows, mm over gemm", "ct.mm(a, b, out=c)", "gemm(a, b, out=c)", names)
    yield Row("no rows, addmm over gemm", "ct.addmm(bias, a, b, out=c)", "gemm(a, b, out=c, bias=bias)", names)
    yield Row("no rows, ct.gemm over gemm", "ct.gemm(a, b, out=c)", "gemm(a, b, out=c)", names)
    products = layer_gradient._gemm, layer_gradient._fast_gemm
    layer_gradient._gemm = layer_gradient._fast_gemm = allocate
    try:
        yield Row("no product, Linear", "ours(x)", "stock(x)", names)
        yield Row("no product, Linear, trained", "ours(x).backward(x)", "stock(x).backward(x)", names)
        yield Row("no product, gelu, trained", "fused(x).backward(x)", "gelu(stock(x)).backward(x)", names)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield Row("no product, Linear, autocast", "ours(x)", "stock(x)", names)
    finally:
        layer_gradient._gemm, layer_gradient._fast_gemm = products


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    **host.GROUPS,
    "jax": jax_rows,
    "torch cpu": lambda: host.torch_rows("cpu", "float32"),
    "cutlass_py.torch cpu": lambda: host.operator_rows("cpu"),
    "cutlass_py.torch alone": alone_rows,
    "numpy": numpy_rows,
}


_HEADER = (
    f"{'microseconds per call':34} {'ours':^17} | {'theirs':^17} | {'ours / theirs':^13}\n"
    f"{'':34} {'min':>8} {'median':>8} | {'min':>8} {'median':>8} | {'min':>6} {'median':>6}"
)


def _text(record: Record) -> str:
    """One row, for the terminal: minimum and median of both sides, and their ratios."""
    ours, theirs, ratio = record["us"]["cutlass_py"], record["us"]["framework"], record["ratio"]
    return (
        f"{record['row']:34} {ours['minimum']:8.2f} {ours['median']:8.2f} | {theirs['minimum']:8.2f} "
        f"{theirs['median']:8.2f} | {ratio['minimum']:6.2f} {ratio['median']:6.2f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--seconds", type=float, default=2.0, help="time per row (default 2)")
    parser.add_argument("--json", type=Path, help="default: build/benchmarks/host_cost-<gpu or cpu>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args()

    print(_HEADER)
    wanted = {name: GROUPS[name] for name in args.only}
    records, skipped, failed = host.measure_all(wanted, args.seconds, lambda record: print(_text(record), flush=True))
    for word, groups in (("skipped", skipped), ("FAILED", failed)):
        for name, reason in groups.items():
            print(f"{name:34} {word}: {reason}")
    facts = environment(args.commit)
    path = args.json or default_path("host_cost", facts["machine"])
    write(path, {**facts, "extent": EXTENT, "batch": BATCH, "rows": records, "skipped": skipped, "failed": failed})
    print(f"JSON: {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
