"""Grouped products under jit in JAX against its own ragged_dot, on layers and sizes drawn anew: time and memory.

    python benchmarks/ragged_dot.py                     # --seed draws the same problems again
    python benchmarks/ragged_dot.py --problems 20

bf16, 16 groups and more, on JAX's first device. benchmarks/README.md has what is measured.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from places import default_path

from cutlass_py.bench.environment import environment
from cutlass_py.bench.results import OURS, Record, geomean, reason, write
from cutlass_py.commands.bench import at_least
from cutlass_py.operations.grouped_gemm.suites import Experts, drawn
from cutlass_py.support.terminal import print_table

THEIRS = "jax"
GROUPS = 16  # at least
# Theirs multiplies every line by every expert, and may hold as much: floating-point operations and bytes at most.
_MOST_FLOP, _MOST_BYTES = 2e13, 8e9
_SECONDS, _CALLS, _ROUNDS = 0.02, 50, 7  # of a round, at most


def problems(seed: int, number: int) -> list[Experts]:
    """The first of a seed that JAX's own can compute."""

    def all_of_them() -> Iterator[Experts]:
        for total in count(1):
            yield drawn("rows", seed, total)[-1]

    found = []
    for p in all_of_them():
        experts = len(p.sizes)
        if experts >= GROUPS and experts * p.flop <= _MOST_FLOP and 2 * experts * p.lines * p.k <= _MOST_BYTES:
            found.append(p)
        if len(found) == number:
            return found
    raise AssertionError("there is no last one")


def measure(p: Experts, jax: Any) -> Record:
    """Microseconds of each round by arm, and bytes beside operands and result."""
    import cutlass_py.jax as cj

    keys = jax.random.split(jax.random.key(0))
    tokens = jax.random.normal(keys[0], (p.lines, p.k), "bfloat16")
    weights = jax.random.normal(keys[1], (len(p.sizes), p.k, p.n), "bfloat16")
    given = tokens, weights, jax.numpy.array(p.sizes, "int32")
    compiled = {name: jax.jit(f).lower(*given).compile() for name, f in _arms(jax, cj).items()}
    results = {name: call(*given) for name, call in compiled.items()}  # the first call
    wanted = results[THEIRS].astype("float32")
    error = float(abs(results[OURS].astype("float32") - wanted).max() / abs(wanted).max())
    del results, wanted
    calls = {name: _calls(call, given) for name, call in compiled.items()}
    rounds = {name: list[float]() for name in compiled}
    for _ in range(_ROUNDS):
        for name, call in compiled.items():
            rounds[name].append(1e6 * _seconds(call, given, calls[name]) / calls[name])
    us = {name: statistics.median(each) for name, each in rounds.items()}
    bytes_beside = {name: int(x.memory_analysis().temp_size_in_bytes) for name, x in compiled.items()}
    about = {"problem": str(p), "sizes": p.sizes, "error": error, "wrong": not error < 2**-6}
    return about | {"us": us, "rounds_us": rounds, "bytes": bytes_beside, "ratio": us[THEIRS] / us[OURS]}


def _arms(jax: Any, cj: Any) -> dict[str, Callable[..., Any]]:
    return {THEIRS: jax.lax.ragged_dot, OURS: cj.ragged_dot}


def _calls(call: Callable[..., Any], given: Sequence[Any]) -> int:
    """In a round."""
    return max(1, min(_CALLS, int(_SECONDS / _seconds(call, given, 1))))


def _seconds(call: Callable[..., Any], given: Sequence[Any], calls: int) -> float:
    """Of calls one behind the other, until the last result is there."""
    start = time.perf_counter()
    for _ in range(calls):
        result = call(*given)
    result.block_until_ready()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=at_least(1), default=6, metavar="N", help="how many (default 6)")
    parser.add_argument("--seed", type=at_least(0), metavar="S", help="of the problems (default: a new one, printed)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: build/benchmarks/ragged_dot-<gpu>.json")
    parser.add_argument("--commit", help="what was measured, where there is no .git to ask")
    args = parser.parse_args(arguments)
    try:
        import jax
    except ImportError:
        print("ragged_dot: JAX is not installed; its ragged_dot is what is measured against")
        return 2
    seed = secrets.randbelow(2**32) if args.seed is None else args.seed
    facts = environment(args.commit) | {"seed": seed, "jax": jax.__version__, "device": str(jax.devices()[0])}
    path = args.json or default_path("ragged_dot", facts["machine"])
    print(f"{facts['device']}, JAX {jax.__version__}, {args.problems} problems, seed {seed}")
    records, failed = [], 0
    for p in problems(seed, args.problems):
        try:
            records.append(measure(p, jax))
        except Exception as error:  # of JAX's own, which may want more memory than there is: the others go on
            print(f"FAILED: {p}: {reason(error)}", flush=True)
            failed += 1
        write(path, {**facts, "timed": records})
    print_table(
        ("problem", "us", "JAX's", "ratio", "MB beside", "JAX's"),
        [
            (
                r["problem"],
                *(f"{r['us'][name]:.1f}" for name in (OURS, THEIRS)),
                f"{r['ratio']:.2f}",
                *(f"{r['bytes'][name] / 1e6:.1f}" for name in (OURS, THEIRS)),
            )
            for r in records
        ],
    )
    if ratios := [r["ratio"] for r in records]:
        print(f"JAX's time over ours: {geomean(ratios):.2f}, {min(ratios):.2f}")
    wrong = [r["problem"] for r in records if r["wrong"]]
    for problem in wrong:
        print(f"WRONG: {problem}")
    print(f"JSON: {path}")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
