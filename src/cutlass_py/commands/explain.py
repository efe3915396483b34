"""Which kernel gemm takes for a problem, and why."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from .options import json_option, print_json
from .problem import problem_from, problem_options


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    problem_options(parser)
    parser.add_argument(
        "--jit", action="store_true", help="choose among all declared kernels, as within jit(); compiles none"
    )
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..compiling.compiler import jit
    from ..dispatch.explanation import explain

    with jit() if options.jit else nullcontext():
        found = explain(problem_from(options))
    if options.json:
        print_json(found.to_dict())
        return 0
    found.show()
    if found.not_compiled and not found.chosen:
        print("add --jit to choose among all declared kernels")
    return 0
