"""The command line: one module per command, each with `configure(parser)` and `run(options)`, its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..errors import CompileError

# A module's first line is its command's help.
COMMANDS = ("info", "kernels", "explain", "bench", "tune", "calibrate", "cache", "emit", "pack", "demo")


class _Parser(argparse.ArgumentParser):
    """A command's: what it does not know is said with its own usage, not that of all commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cutlass_py", description="CUTLASS kernels on any DLPack array.")
    parser.add_argument("--version", action="version", version=f"cutlass_py {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", parser_class=_Parser)
    for name in COMMANDS:
        command = import_module(f"{__name__}.{name}")
        text = (command.__doc__ or "").splitlines()[0]
        sub = subparsers.add_parser(name, help=text, description=text)
        sub.set_defaults(run=command.run)
        command.configure(sub)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    0; 1 for a result that is wrong and a kernel that cannot be compiled, 2 for wrong usage, 130 where interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        code = 0
        if options.command:
            code = int(options.run(options))
        else:
            parser.print_help()
        if sys.stdout:  # `>&-` leaves none
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, NotImplementedError, RuntimeError, OSError, MemoryError) as error:
        print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
        return 2
