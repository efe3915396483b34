"""MkDocs hook: reference/commands.md has what `--help` of each command prints."""

from __future__ import annotations

import os
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from cutlass_py.commands import COMMANDS

_HEAD = """# Commands

`python -m cutlass_py <command>`. The exit code is 0; 1 where a result is wrong, a bar is missed, or a kernel can be
neither compiled nor kept; 130 where it was interrupted; or 2 where the command was used wrongly or could not do its
work, with the reason on stderr. With `--json`, stdout is data.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The page joins the others before links and navigation are checked."""
    sections = [f"## `{command}`\n\n```\n{usage(command)}```\n" for command in COMMANDS]
    files.append(File.generated(config, "reference/commands.md", content="\n".join([_HEAD, *sections])))
    return files


def usage(command: str) -> str:
    """What the command says of itself on a terminal 100 columns wide."""
    arguments = [sys.executable, "-m", "cutlass_py", command, "--help"]
    return subprocess.run(
        arguments, check=True, text=True, capture_output=True, env=os.environ | {"COLUMNS": "100"}
    ).stdout
