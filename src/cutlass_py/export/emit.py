"""A kernel as C++ for others: a project around its source (templates/).

The definition is what the build and the JIT compile (codegen.py). What a project has to know beside it - operands,
their dtypes and layouts - is written into templates as constants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from string import Template

from ..compiling import compiler
from ..compiling.single_source import flags_of, needs_cutlass, source
from ..declaration.config import SCHEDULES, GemmConfig, KernelConfig, cc_range
from ..declaration.dtypes import BLOCK, DTYPES, STORAGE
from ..declaration.epilogues import ACTIVATIONS, EPILOGUES
from ..declaration.families import FAMILIES
from ..operations.gemm.legality import interface_of

_TEMPLATES = Path(__file__).parent / "templates"

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
    if not isinstance(config, GemmConfig):
        raise ValueError(f"emit: {config.name} multiplies nothing; emit its source, without a project")
    if config.epilogue not in EPILOGUES or EPILOGUES[config.epilogue].pairs:
        raise ValueError(f"emit: {config.name} takes operands of its own; emit its source, without a project")
    own = compiler.own_headers(config.name)
    fields = _fields(config) | (_torch_fields(config) if kind == "torch" else {})
    files = {f"{config.name}.cu": source(config), "kernel.h": (own / "abi" / "kernel.h").read_text(encoding="utf-8")}
    if kind == "cmake":
        files["activation.cuh"] = (own / "kernels" / "common" / "activation.cuh").read_text(encoding="utf-8")
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


_SHOWN = "gelu_tanh"  # by a kernel that is told its activation


def _fields(c: GemmConfig) -> dict[str, str]:
    """What every template may say of a kernel."""
    epilogue, schedule, family = EPILOGUES[c.epilogue], SCHEDULES[c.schedule], FAMILIES[c.family]
    activation = _SHOWN if epilogue.told else epilogue.activation
    flags = {
        "a_row_major": c.layout[0] == "t",
        "b_row_major": c.layout[1] == "t",
        "reads_c": epilogue.source,
        "reads_gate": epilogue.gated and not epilogue.derivative,
        "reads_aux": epilogue.derivative,
        "writes_aux": epilogue.aux,
        "sums_columns": epilogue.bias_grad,
        "scaled": epilogue.scaled,
        "pointers": schedule.pointers,
        "one_problem": schedule.stream_k and c.api == 2,
    }
    from .. import __version__

    return {
        "kernel": c.name,
        "version": __version__,
        "formula": epilogue.formula,
        "acc_scaled": c.scaled,
        "block": str(schedule.block),
        "bias_axis": epilogue.bias[:1] or "-",
        "activation": activation,
        "lowest_cc": str(family.cc[0]),
        "highest_cc": str(family.cc[1]),
        "cc_range": cc_range(*family.cc),
        "cmake_flags": "\n  ".join(flags_of(c)),
        "python_flags": "".join(f'    "{flag}",\n' for flag in flags_of(c)),
        **{name: str(value).lower() for name, value in flags.items()},
        **{f"cpp_{name}": DTYPES[getattr(c, name)].cpp for name in ("a", "b", "accumulator", "d", "bias")},
        "cpp_scalar": DTYPES[DTYPES[c.accumulator].scalar].cpp,
        "index_activation": str(list(ACTIVATIONS).index(activation)),
        "index_d": str(STORAGE[c.d]),
        "index_bias": str(STORAGE[c.bias]),
        "index_scalar": str(STORAGE[DTYPES[c.accumulator].scalar]),
        "index_f32": str(STORAGE["f32"]),
        "digits": str(DTYPES[c.d].mantissa),
    }


# ---------------------------------------------------------------------------------------------------- torch

# What setup.py has for a source that includes CUTLASS.
_CUTLASS = {
    "cutlass_given": "CUTLASS_DIR=<a CUTLASS tree, 4.2 or newer, below 5> ",
    "cutlass_imports": "import os\nfrom pathlib import Path\n\n",
    "cutlass_found": """\
tree = Path(os.environ.get("CUTLASS_DIR", "cutlass")).absolute()
cutlass = next((place for place in (tree / "include", tree) if (place / "cutlass" / "cutlass.h").is_file()), None)
if not cutlass:
    raise SystemExit(f"{tree} has no include/cutlass/cutlass.h: set CUTLASS_DIR to a CUTLASS tree")

""",
    "cutlass_include": "str(cutlass)",
}
# How ATen calls the dtypes.
_ATEN = {
    "f16": "Half", "bf16": "BFloat16", "f32": "Float", "f64": "Double", "e4m3": "Float8_e4m3fn", "e5m2": "Float8_e5m2",
    "s8": "Char", "u8": "Byte", "s32": "Int", "c64": "ComplexFloat", "c128": "ComplexDouble",
}  # fmt: skip


def _torch_fields(c: GemmConfig) -> dict[str, str]:
    """The parameters of the binding and the lines that read them, in Python's order."""
    complex_sum = DTYPES[c.accumulator].cpp.startswith("cutlass::complex")
    number = "std::complex<double>" if complex_sum else "double"
    rows = list(_rows(c, number))
    lines = [line for _, _, _, line in rows]
    return {
        **(_CUTLASS if needs_cutlass(source(c)) else dict.fromkeys(_CUTLASS, "")),
        **{f"aten_{name}": _ATEN[DTYPES[getattr(c, name)].stored] for name in ("a", "b", "d", "bias")},
        "activation_given": "" if EPILOGUES[c.epilogue].told else "  epilogue.activation = kActivation;\n",
        "aten_scalar": _ATEN[DTYPES[c.accumulator].scalar],
        "declared": "".join(f", {kind} {name}" for name, kind, _, _ in rows),
        "named": "".join(f'py::arg("{name}"){default},\n        ' for name, _, default, _ in rows),
        "operands": "\n".join(f"  {line}" for line in lines),
    }


# Name, C++ type, default as pybind11 writes it, and the line that puts it into the epilogue.
_Row = tuple[str, str, str, str]
_NONE = " = py::none()"


def _rows(c: GemmConfig, number: str) -> Iterator[_Row]:
    """Tensors, then numbers, whose C++ type is told."""
    e, matrix = EPILOGUES[c.epilogue], "const Tensor&"
    if e.gated:
        name = "aux" if e.derivative else "gate"
        yield name, matrix, "", f'epilogue.{name} = like_d("{name}", {name}, p);'
    if e.aux:
        yield "aux", matrix, "", 'epilogue.aux = like_d("aux", aux, p);'
    if e.bias_grad:
        line = f"epilogue.bias_grad = vector(\"bias_grad\", bias_grad, at::kFloat, {STORAGE['f32']}, p, 'n', false);"
        yield "bias_grad", matrix, "", line
    if e.source:
        yield "c", "const Optional&", _NONE, 'if (c) epilogue.c = like_d("c", *c, p);'
    if e.bias:
        line = f"if (bias) epilogue.bias = vector(\"bias\", *bias, kBias, kBiasIndex, p, '{e.bias[0]}', false);"
        yield "bias", "const Optional&", _NONE, line
    if e.scaled:
        for name, axis in (("scale_a", "m"), ("scale_b", "n")):
            line = (
                f"if ({name}) epilogue.{name} = vector(\"{name}\", *{name}, kScalar, kScalarIndex, p, '{axis}', true);"
            )
            yield name, "const Optional&", _NONE, line
    if SCHEDULES[c.schedule].block:  # scales, which the product takes
        depth, columns = f"(p.k + {BLOCK - 1}) / {BLOCK}", "(p.n + kBlock - 1) / kBlock"
        tma = str(interface_of(c).tma_scales).lower()
        for name, extents in (("scale_a", f"p.m, {depth}, {tma}"), ("scale_b", f"{depth}, {columns}, false")):
            yield name, matrix, "", f'epilogue.{name} = blocks("{name}", {name}, p, {extents});'
    yield "alpha", number, " = 1.0", "epilogue.alpha = scalar(alpha);"
    if e.source:
        yield "beta", number, " = 1.0", "epilogue.beta = c ? scalar(beta) : CutlassPyScalar{};"
    if e.scaled:
        yield "scale_out", "double", " = 1.0", "epilogue.scale_out = scalar(scale_out);"
    if e.told:
        known = ", ".join(f'"{f}"' for f in e.functions)
        line = f"epilogue.activation = number_of(activation, {{{known}}});"
        yield "activation", "const std::string&", ' = "identity"', line
        line = "epilogue.parameters[0] = parameters.first, epilogue.parameters[1] = parameters.second;"
        yield "parameters", "const Pair&", " = Pair(0, 0)", line
        return
    for i, (name, default) in enumerate(ACTIVATIONS[e.activation].parameters):
        yield name, "double", "" if default is None else f" = {default}", f"epilogue.parameters[{i}] = {name};"
