"""A kernel as C++ for others: one source that needs CUTLASS alone, or a project around it (templates/).

The definition is what the build and the JIT compile (codegen.py). What a project has to know beside it - operands,
their dtypes and layouts - is written into templates as constants.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from string import Template

from ..compiling import compiler
from ..declaration import codegen
from ..declaration.config import SCHEDULES, KernelConfig
from ..declaration.dtypes import BLOCK, DTYPES, STORAGE
from ..declaration.epilogues import ACTIVATIONS, EPILOGUES, Epilogue
from ..declaration.families import FAMILIES
from ..operations.gemm.legality import cc_range, interface_of

_TEMPLATES = Path(__file__).parent / "templates"
_OWN = re.compile(r'#include "(?!cutlass/|cute/)(.+)"\n')
_RULE = "// " + "-" * 100

# ---------------------------------------------------------------------------------------------------- one source


def source(config: KernelConfig) -> str:
    """A kernel as one translation unit of CUDA C++ that includes nothing but the standard library, CUDA and CUTLASS.

    Raises:
        CompileError: this package's headers are missing.
    """
    own, text = compiler.own_headers(config.name), compiler.source_of(config)
    ours = _OWN.search(text)
    start = ours.start() if ours else 0  # before it are macros that headers look at
    before = f"\n{text[:start].strip()}\n" if start else ""
    return _head(config) + before + "".join(_parts(own, text[start:], config.name, set()))


def _head(config: KernelConfig) -> str:
    from .. import __version__

    command = shlex.join(["nvcc", "-std=c++17", "-O3", *_flags(config), "-ICUTLASS/include", "-c", f"{config.name}.cu"])
    lines = [
        config.name,
        "",
        f"D = {interface_of(config).epilogue.formula}, where acc = A @ B{_scaled(config)}.",
        "CutlassPyKernel, below, says what it takes, and CutlassPyGemm how it is called.",
        "Needs CUTLASS 4.2 or newer, below 5:",
        f"  {command}",
        f"Written by cutlass_py {__version__}. SPDX-License-Identifier: BSD-3-Clause",
    ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _scaled(config: KernelConfig) -> str:
    return ", scaled in blocks by scale_a and scale_b" if SCHEDULES[config.schedule].block else ""


def _parts(own: Path, text: str, name: str, seen: set[str]) -> Iterator[str]:
    """A text behind the headers of ours that it includes, each once and under its name."""
    for header in _OWN.findall(text):
        if header not in seen:
            seen.add(header)
            yield from _parts(own, (own / header).read_text(encoding="utf-8"), header, seen)
    body = _OWN.sub("", text).replace("#pragma once\n", "")
    yield f"\n{_RULE}\n// {name}\n{_RULE}\n\n{body.strip()}\n"


def _flags(config: KernelConfig) -> list[str]:
    family = FAMILIES[config.family]
    return codegen.flags(family, family.gencode)


# ---------------------------------------------------------------------------------------------------- projects

PROJECTS = {
    "cmake": ("CMakeLists.txt", "main.cu"),
    "torch": ("pyproject.toml", "setup.py", "binding.cpp"),
}


def project(config: KernelConfig, kind: str) -> dict[str, str]:
    """The files of a project around a kernel, by name.

    Args:
        config: the kernel.
        kind: "cmake" (a program that runs the kernel and checks it on the host) or "torch" (an extension module).

    Raises:
        ValueError: the kernel takes operands that no template knows.
        CompileError: this package's headers are missing.
    """
    if config.epilogue not in EPILOGUES:
        raise ValueError(f"emit: {config.name} takes operands of its own; emit its source, without a project")
    own = compiler.own_headers(config.name)
    fields = _fields(config) | (_torch_fields(config) if kind == "torch" else {})
    files = {f"{config.name}.cu": source(config), "kernel.h": (own / "kernel.h").read_text(encoding="utf-8")}
    if kind == "cmake":
        files["activation.cuh"] = (own / "gemm" / "activation.cuh").read_text(encoding="utf-8")
    for name in PROJECTS[kind]:
        template = (_TEMPLATES / kind / f"{name}.in").read_text(encoding="utf-8")
        files[name] = Template(template).substitute(fields)
    return files


def write(files: dict[str, str], directory: str | os.PathLike[str]) -> list[Path]:
    """Puts files into a directory, which is made where it is not there.

    Raises:
        ValueError: it is there and holds something.
    """
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"emit: {target} is there already; expected an empty directory, or none")
    target.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")
    return [target / name for name in files]


def _fields(c: KernelConfig) -> dict[str, str]:
    """What every template may say of a kernel."""
    epilogue, schedule, family = EPILOGUES[c.epilogue], SCHEDULES[c.schedule], FAMILIES[c.family]
    derivative = ACTIVATIONS[epilogue.activation].derivative
    flags = {
        "a_row_major": c.layout[0] == "t",
        "b_row_major": c.layout[1] == "t",
        "reads_c": epilogue.source,
        "reads_gate": epilogue.gated and not derivative,
        "reads_aux": derivative,
        "writes_aux": epilogue.aux,
        "scaled": epilogue.scaled,
        "pointers": schedule.pointers,
        "one_problem": schedule.stream_k and c.api == 2,
    }
    from .. import __version__

    return {
        "kernel": c.name,
        "version": __version__,
        "formula": epilogue.formula,
        "acc_scaled": _scaled(c),
        "block": str(schedule.block),
        "bias_axis": epilogue.bias or "-",
        "activation": epilogue.activation,
        "lowest_cc": str(family.cc[0]),
        "highest_cc": str(family.cc[1]),
        "cc_range": cc_range(*family.cc),
        "cmake_flags": "\n  ".join(_flags(c)),
        "python_flags": "".join(f'    "{flag}",\n' for flag in _flags(c)),
        **{name: str(value).lower() for name, value in flags.items()},
        **{f"cpp_{name}": DTYPES[getattr(c, name)].cpp for name in ("a", "b", "accumulator", "d", "bias")},
        "cpp_scalar": DTYPES[DTYPES[c.accumulator].scalar].cpp,
        "index_activation": str(list(ACTIVATIONS).index(epilogue.activation)),
        "index_d": str(STORAGE[c.d]),
        "index_bias": str(STORAGE[c.bias]),
        "index_scalar": str(STORAGE[DTYPES[c.accumulator].scalar]),
        "digits": str(DTYPES[c.d].mantissa),
    }


# ---------------------------------------------------------------------------------------------------- torch

# How ATen calls the dtypes.
_ATEN = {
    "f16": "Half", "bf16": "BFloat16", "f32": "Float", "f64": "Double", "e4m3": "Float8_e4m3fn", "e5m2": "Float8_e5m2",
    "s8": "Char", "u8": "Byte", "s32": "Int", "c64": "ComplexFloat", "c128": "ComplexDouble",
}  # fmt: skip


def _torch_fields(c: KernelConfig) -> dict[str, str]:
    """The parameters of the binding and the lines that read them, in Python's order."""
    epilogue = EPILOGUES[c.epilogue]
    complex_sum = DTYPES[c.accumulator].cpp.startswith("cutlass::complex")
    number = "std::complex<double>" if complex_sum else "double"
    rows = [*_tensors(epilogue), *_blocks(c), *_numbers(epilogue, number)]
    lines = [line for _, _, _, line in rows]
    return {
        **{f"aten_{name}": _ATEN[DTYPES[getattr(c, name)].stored] for name in ("a", "b", "d", "bias")},
        "aten_scalar": _ATEN[DTYPES[c.accumulator].scalar],
        "declared": "".join(f", {kind} {name}" for name, kind, _, _ in rows),
        "named": "".join(f'py::arg("{name}"){default},\n        ' for name, _, default, _ in rows),
        "operands": "\n".join(f"  {line}" for line in lines),
    }


# Name, C++ type, default as pybind11 writes it, and the line that puts it into the epilogue.
_Row = tuple[str, str, str, str]
_NONE = " = py::none()"


def _tensors(e: Epilogue) -> Iterator[_Row]:
    matrix = "const Tensor&"
    if e.gated:
        name = "aux" if ACTIVATIONS[e.activation].derivative else "gate"
        yield name, matrix, "", f'epilogue.{name} = like_d("{name}", {name}, p);'
    if e.aux:
        yield "aux", matrix, "", 'epilogue.aux = like_d("aux", aux, p);'
    if e.source:
        yield "c", "const Optional&", _NONE, 'if (c) epilogue.c = like_d("c", *c, p);'
    if e.bias:
        line = f"if (bias) epilogue.bias = vector(\"bias\", *bias, kBias, kBiasIndex, p, '{e.bias}', false);"
        yield "bias", "const Optional&", _NONE, line
    if e.scaled:
        for name, axis in (("scale_a", "m"), ("scale_b", "n")):
            line = (
                f"if ({name}) epilogue.{name} = vector(\"{name}\", *{name}, kScalar, kScalarIndex, p, '{axis}', true);"
            )
            yield name, "const Optional&", _NONE, line


def _blocks(c: KernelConfig) -> Iterator[_Row]:
    """Scales in blocks, which the product takes."""
    if not SCHEDULES[c.schedule].block:
        return
    depth, columns = f"(p.k + {BLOCK - 1}) / {BLOCK}", "(p.n + kBlock - 1) / kBlock"
    tma = str(interface_of(c).tma_scales).lower()
    for name, extents in (("scale_a", f"p.m, {depth}, {tma}"), ("scale_b", f"{depth}, {columns}, false")):
        yield name, "const Tensor&", "", f'epilogue.{name} = blocks("{name}", {name}, p, {extents});'


def _numbers(e: Epilogue, number: str) -> Iterator[_Row]:
    yield "alpha", number, " = 1.0", "epilogue.alpha = scalar(alpha);"
    if e.source:
        yield "beta", number, " = 1.0", "epilogue.beta = c ? scalar(beta) : CutlassPyScalar{};"
    if e.scaled:
        yield "scale_out", "double", " = 1.0", "epilogue.scale_out = scalar(scale_out);"
    for i, (name, default) in enumerate(ACTIVATIONS[e.activation].parameters):
        yield name, "double", "" if default is None else f" = {default}", f"epilogue.parameters[{i}] = {name};"
