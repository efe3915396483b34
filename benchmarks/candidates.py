"""Names of the kernels that are worth a sweep: the most promising by the model for each problem of some suites.

    python benchmarks/candidates.py --suite llm square --best 12 > names.txt   # where there is no GPU, for an H200
    CUTLASS_PY_KERNELS=names.txt pip install .
    python -m cutlass_py bench --suite llm square --all-kernels --json sweep.json
    python benchmarks/kernel_set.py sweep.json                                 # what of them is needed

The full cross product of tiles, clusters and schedules would take hours of a GPU. A kernel that is not declared yet, a
tile that was just added to families.py for instance, is a candidate like the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from kernel_set import seconds

import cutlass_py
from cutlass_py.bench.suites import ARITHMETICS, Case, cases
from cutlass_py.declaration.dtypes import LAYOUTS
from cutlass_py.operations.gemm.problems import arguments
from cutlass_py.operations.gemm.suites import SUITES


def candidates(problems: Iterable[Case], best: int) -> list[str]:
    """The best so many kernels of each problem, compiled or not; those that are wanted most often first."""
    wanted: dict[str, int] = {}
    for case in problems:
        for kernel in cutlass_py.get_kernels(arguments(case.problem()), compiled=False)[:best]:
            wanted[kernel.name] = wanted.get(kernel.name, 0) + 1
    return sorted(wanted, key=lambda name: -wanted[name])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=["llm", "square"], metavar="NAME")
    parser.add_argument("--dtype", nargs="+", choices=ARITHMETICS, default=["bf16"], metavar="NAME")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), metavar="XY")
    parser.add_argument("--best", type=int, default=12, help="kernels of each problem (default 12)")
    args = parser.parse_args(arguments)
    names = candidates(cases(args.suite, args.dtype, args.layout), args.best)
    if not names:
        print("candidates: the reference takes none of these problems", file=sys.stderr)
        return 2
    print(f"# {len(names)} kernels, about {sum(map(seconds, names)) / 60:.0f} minutes of one core to build")
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
