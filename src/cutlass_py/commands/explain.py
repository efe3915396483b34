"""Which kernel gemm takes for a problem, and why."""

from __future__ import annotations

import argparse

from .problem import problem_from, problem_options


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    problem_options(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..explanation import explain

    print(explain(problem_from(options)))
    return 0
