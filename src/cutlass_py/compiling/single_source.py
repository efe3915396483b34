"""A kernel as one source that needs no headers of this package: what `Kernel.source` and `emit` give."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from ..declaration import codegen
from ..declaration.config import KernelConfig
from ..declaration.families import FAMILIES
from ..errors import CompileError
from . import compiler

_OWN = re.compile(r'#include "(?!cutlass/|cute/)(.+)"\n')
_CUTLASS = re.compile(r'#include ["<](cutlass|cute)/')
_RULE = "// " + "-" * 100


def source(config: KernelConfig) -> str:
    """A kernel as one translation unit of CUDA C++ that includes nothing but the standard library, CUDA and CUTLASS.

    Raises:
        CompileError: this package's headers are missing.
    """
    own, text = compiler.own_headers(config.name), compiler.source_of(config)
    ours = _OWN.search(text)
    start = ours.start() if ours else 0  # before it are macros that headers look at
    before = f"\n{text[:start].strip()}\n" if start else ""
    parts = "".join(_parts(own, text[start:], config.name, set()))
    return _head(config, needs_cutlass(parts)) + before + parts


def needs_cutlass(text: str) -> bool:
    """Whether a source includes CUTLASS's headers."""
    return bool(_CUTLASS.search(text))


def _head(config: KernelConfig, cutlass: bool) -> str:
    from .. import __version__

    include = ["-ICUTLASS/include"] if cutlass else []
    command = shlex.join(["nvcc", "-std=c++17", "-O3", *flags_of(config), *include, "-c", f"{config.name}.cu"])
    arguments = f"CutlassPy{FAMILIES[config.family].operation.capitalize()}"
    lines = [
        config.name,
        "",
        f"{config.formula}.",
        f"CutlassPyKernel, below, says what it takes, {arguments} and CutlassPyLaunch how it is called.",
        "Needs CUTLASS 4.2 or newer, below 5:" if cutlass else "Needs CUDA alone:",
        f"  {command}",
        f"Written by cutlass_py {__version__}. SPDX-License-Identifier: BSD-3-Clause",
    ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _parts(own: Path, text: str, name: str, seen: set[str]) -> Iterator[str]:
    """A text behind the headers of ours that it includes, each once and under its name."""
    for header in _OWN.findall(text):
        if header not in seen:
            seen.add(header)
            places = (own / header, own / "include" / header)  # a second name, which lies apart in a source tree
            found = next((place for place in places if place.is_file()), None)
            if not found:
                raise CompileError(f"{name} includes {header}, which is not in {own}")
            yield from _parts(own, found.read_text(encoding="utf-8"), header, seen)
    body = _OWN.sub("", text).replace("#pragma once\n", "")
    yield f"\n{_RULE}\n// {name}\n{_RULE}\n\n{body.strip()}\n"


def flags_of(config: KernelConfig) -> list[str]:
    """What nvcc is told beside -std=c++17."""
    family = FAMILIES[config.family]
    return codegen.flags(family, family.gencode)
