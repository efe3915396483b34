"""List the kernels, one per line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..support.terminal import print_table, watched
from .options import capability, json_option, print_json

if TYPE_CHECKING:
    from ..kernels.kernel import Kernel


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("match", nargs="?", default="", help="part of the name")
    parser.add_argument(
        "--cc", type=capability, help="compute capability times ten, such as 90; 90a: of that architecture alone"
    )
    parser.add_argument("--all", action="store_true", help="include kernels that are declared but not compiled")
    parser.add_argument("--coverage", action="store_true", help="print all that is declared as Markdown tables instead")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..declaration.operands import OPERANDS
    from ..dispatch.discover import get_kernels

    if options.coverage:
        from .coverage import data, markdown

        if options.match or options.cc or options.all:
            raise ValueError(
                "kernels: --coverage is about the whole declaration; of the others only --json goes with it"
            )
        print_json(data()) if options.json else print(markdown())
        return 0
    asked = {"cc": options.cc, "compiled": not options.all, "where": lambda m: options.match in m.name}
    found = [kernel for name in OPERANDS for kernel in get_kernels(**asked, operation=name)]
    if options.json:
        print_json([_row(kernel) for kernel in found])
    elif not found:
        print("no kernel matches" + ("" if options.all else "; --all includes those not compiled"), file=sys.stderr)
    elif watched():
        _print_table(found)
    else:
        for kernel in found:
            print(kernel.name if kernel.compiled else f"{kernel.name}  (not compiled)")
    return 0


def _row(kernel: Kernel) -> dict[str, Any]:
    row, design = asdict(kernel.metadata), kernel.metadata.design
    del row["design"]["kernel"]  # the row's name
    row["design"]["registers"] = design.registers
    return row | {"fused": asdict(kernel.metadata.fused), "compiled": kernel.compiled}


def _print_table(kernels: Sequence[Kernel]) -> None:
    head = ("kernel", "on", "stages", "threads", "shared memory", "compiled")
    cells = []
    for kernel in kernels:
        (lowest, highest), design = kernel.metadata.cc, kernel.metadata.design
        on = f"{lowest / 10:.1f}" + ("" if lowest == highest else "+") if lowest else "CPU"
        numbers = (str(x or "") for x in (design.stages, design.threads, design.smem_bytes))
        cells.append((kernel.name, on, *numbers, "yes" if kernel.compiled else "no"))
    print_table(head, cells)
