"""Bundle kernels and tuned tables into a wheel that installs beside the package."""

from __future__ import annotations

import argparse

from .options import cc_option, json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("name", help="of the package: lower-case letters, digits and _")
    parser.add_argument("artifacts", nargs="*", metavar="artifact", help="files that Artifact.save wrote")
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME", help="this kernel; may be repeated")
    parser.add_argument("--problems", metavar="FILE", help="the best kernel for each of these (docs/problems.md)")
    cc_option(parser, "compile for this too, beside the GPUs here, and choose for it")
    parser.add_argument("--tuned", action="append", default=[], metavar="TABLE", help="a table of `tune --export`")
    parser.add_argument("--version", default="1.0", help="of the package (1.0)")
    parser.add_argument("-o", "--output", metavar="DIR", default=".", help="where the wheel goes (.)")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from ..compiling import compiler
    from ..export.packing import check, write
    from ..export.prebuild import best
    from ..kernels import archive
    from ..kernels.problem_files import read
    from ..kernels.registry import cutlass_kernel_named

    kernels = [cutlass_kernel_named(name, "pack") for name in options.kernel]
    for args in read(options.problems) if options.problems else ():
        kernels += best(args, options.cc)
    artifacts = [archive.read(path) for path in options.artifacts]
    configs = [kernel.config for kernel in dict.fromkeys(kernels)]
    names = [*(manifest.kernel for manifest, _ in artifacts), *(config.name for config in configs)]
    check(options.name, options.version, names, options.tuned, options.output)
    artifacts += [archive.of_kernel(config, compiler.covered(config, options.cc)) for config in configs]
    wheel = write(options.name, options.version, artifacts, options.tuned, options.output)
    if options.json:
        print_json({"wheel": str(wheel), "kernels": names})
    else:
        print(f"{wheel}: {len(names)} kernels, {len(options.tuned)} tables")
    return 0
