"""Write a kernel as C++: one source that needs only CUTLASS, or a project around it."""

from __future__ import annotations

import argparse

from .options import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("kernel", help="its name; it need not be compiled")
    kinds = parser.add_mutually_exclusive_group()
    for kind, text in (
        ("cmake", "a CMake project: the kernel, and a program that runs and checks it"),
        ("torch-extension", "a Python package: the kernel as a torch extension"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind.partition("-")[0], help=text)
    where = "where files go, an empty directory or none yet; a project without it goes to one called after the kernel"
    parser.add_argument("-o", "--output", metavar="DIR", help=where)
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..compiling.single_source import source
    from ..export.emit import project, write
    from ..kernels.registry import cutlass_kernel_named

    kernel = cutlass_kernel_named(options.kernel, "emit")
    files = project(kernel.config, options.kind) if options.kind else {f"{kernel.name}.cu": source(kernel.config)}
    output = options.output or (kernel.name if options.kind else None)
    if not output:
        text = files[f"{kernel.name}.cu"]
        print_json({"kernel": kernel.name, "source": text}) if options.json else print(text, end="")
        return 0
    written = [str(path) for path in write(files, output)]
    if options.json:
        print_json({"kernel": kernel.name, "files": written})
    else:
        print("\n".join(written))
    return 0
