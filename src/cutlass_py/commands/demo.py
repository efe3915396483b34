"""Multiply real arrays of every framework found; compare with float64."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from .. import _core
from ..terminal import print_table
from .options import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--size", type=int, default=512, help="extent of the square problems")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command; 1 where an error is beyond its bound."""
    from .. import demo

    if options.size < 1:
        raise ValueError(f"demo: --size is {options.size}; expected 1 or more")
    rows = demo.run(options.size)
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
