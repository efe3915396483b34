"""The kernels, one a line."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from .output import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("match", nargs="?", default="", help="part of the name")
    parser.add_argument("--cc", help="compute capability times ten, such as 90; 90a: of that architecture alone")
    parser.add_argument("--all", action="store_true", help="include kernels that are declared but not compiled")
    parser.add_argument("--coverage", action="store_true", help="instead, the declaration as Markdown tables")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..registry import get_kernels

    if options.coverage:
        from ..coverage import markdown

        print(markdown())
        return 0
    found = get_kernels(cc=options.cc, compiled=not options.all, where=lambda m: options.match in m.name)
    if options.json:
        print_json([asdict(k.metadata) | {"compiled": k.compiled} for k in found])
        return 0
    for kernel in found:
        print(kernel.name if kernel.compiled else f"{kernel.name}  (not compiled)")
    return 0
