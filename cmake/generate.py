"""Writes what the build derives from the declaration: the tables for C++, the kernel sources, and their list for CMake.

Run with `python -I`: the standard library and the package's tables, loaded by path, are all it needs. A file is
written only when its content changes, so that nothing recompiles for a mere reconfiguration.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

_TABLES = "cutlass_py_tables"  # the package under which the build sees them
PACKAGE = Path(__file__).resolve().parent.parent / "src" / "cutlass_py"


def load_module(name: str) -> Any:
    """One of the package's modules without the package, which needs the extension that is being built."""
    if _TABLES not in sys.modules:
        package = ModuleType(_TABLES)
        package.__path__ = [str(PACKAGE)]
        sys.modules[_TABLES] = package
    return import_module(f"{_TABLES}.{name}")


def tables() -> dict[str, str]:
    """What dtype.h, activation.h and the operations' headers include."""
    dtypes_py, epilogues_py = load_module("declaration.dtypes"), load_module("declaration.epilogues")
    index = {name: i for i, name in enumerate(dtypes_py.DTYPES)}
    dtypes = [
        f"CUTLASS_PY_DTYPE({d.name}, {d.bits}, {d.dlpack}, {index[d.stored]}, {index[d.scalar]}, {d.mantissa})"
        for d in dtypes_py.DTYPES.values()
    ]
    compute = [
        f"CUTLASS_PY_COMPUTE({a}, {name}, {x.operand}, {x.accumulator}, {x.output})"
        for a, row in dtypes_py.COMPUTE.items()
        for name, x in row.items()
    ]
    pairs = [f"CUTLASS_PY_PAIR({a}, {b})" for a, b in dtypes_py.PAIRS]
    # The names of the parameters; NAN where a parameter has to be given.
    activations = []
    for a in epilogues_py.ACTIVATIONS.values():
        names = [name for name, _ in a.parameters] + [""] * (2 - len(a.parameters))
        defaults = ["NAN" if x is None else repr(x) for _, x in a.parameters] + ["0"] * (2 - len(a.parameters))
        derivative = str(a.derivative).lower()
        fields = [a.name, str(len(a.parameters)), derivative, *(f'"{name}"' for name in names), *defaults]
        activations.append(f"CUTLASS_PY_ACTIVATION({', '.join(fields)})")
    files = {"dtypes.inc": dtypes, "compute.inc": compute, "pairs.inc": pairs, "activations.inc": activations}
    quantize_py = load_module("declaration.quantize")
    scalings = quantize_py.SCALINGS | {name: quantize_py.SCALINGS[same] for name, same in quantize_py.ALIASES.items()}
    files["scalings.inc"] = [f'CUTLASS_PY_SCALING("{name}", {rows}, {cols})' for name, (rows, cols) in scalings.items()]
    files["quantize_from.inc"] = [f"CUTLASS_PY_DTYPE({dtype})" for dtype in quantize_py.SOURCES]
    files["quantize_to.inc"] = [f"CUTLASS_PY_DTYPE({dtype})" for dtype in quantize_py.LIMITS]
    files |= operand_tables()
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def operand_tables() -> dict[str, list[str]]:
    """The operations, as numbered in kernel.h, and rows of the operands and the keywords of each."""
    operands_py = load_module("declaration.operands")
    default = {None: "none", 1.0: "one", False: "no"}  # and names
    files = {"operations.inc": [f"CUTLASS_PY_OPERATION({operation})" for operation in operands_py.OPERANDS]}
    for operation, rows in operands_py.OPERANDS.items():
        files[f"{operation}_operands.inc"] = [
            f"CUTLASS_PY_OPERAND({x.name}, {x.shape}, {x.written}, {str(x.number).lower()}, {x.lists}, "
            f"{str(x.in_place).lower()}, {str(x.complex).lower()}, {x.mirror or x.name}, {x.slot})"
            for x in rows
        ]
        index = {x.name: i for i, x in enumerate(rows)}
        files[f"{operation}_keywords.inc"] = [
            f"CUTLASS_PY_KEYWORD({name}, {default.get(value, 'text')}, {index.get(name, -1)})"
            for name, value in operands_py.KEYWORDS[operation].items()
        ]
    return files


def split(family: Any, configs: list[Any]) -> list[list[Any]]:
    """Even parts of at most `per_file` functions, kernels that share most of what is compiled side by side."""
    if len({c.dear_header for c in configs}) > 1:
        groups = [[c for c in configs if c.dear_header == dear] for dear in (False, True)]
        return [part for group in groups for part in split(family, group)]
    functions: dict[str, list[Any]] = {}
    for c in sorted(configs, key=lambda c: c.sort_key):
        functions.setdefault(family.function(c), []).append(c)
    count = -(-len(functions) // family.per_file)
    bounds = [len(functions) * i // count for i in range(count + 1)]
    each = list(functions.values())
    return [sum(each[low:high], []) for low, high in zip(bounds, bounds[1:], strict=False)]


def library(families: Any, configs: list[Any]) -> dict[str, str]:
    """The kernel sources, the function that lists the kernels, and sources.cmake."""
    codegen = load_module("declaration.codegen")
    files, cmake = {}, []
    configs = sorted(configs, key=lambda c: list(families.FAMILIES).index(c.family))
    for _, group in groupby(configs, key=lambda c: families.FAMILIES[c.family].compiled_as):
        together = list(group)
        family = families.FAMILIES[together[0].family]
        for i, part in enumerate(split(family, together)):
            files[f"{family.name}_{i}.cu"] = codegen.source(part)
            seconds = len(set(map(family.function, part))) * family.core_seconds
            cmake.append((seconds, f"${{CMAKE_CURRENT_LIST_DIR}}/{family.name}_{i}.cu", family))
    # The elementwise kernels run wherever any kernel does, as what counts clusters; what loads cubins is of the host.
    parts = ("clear", "compose", "compose_complex", "copy", "gather", "reduce", "table")
    elementwise = [f"elementwise/{part}" for part in parts]
    for part in (*elementwise, "sm90/cubin"):
        path = f"${{PROJECT_SOURCE_DIR}}/src/cpp/kernels/{part}.cu"
        cmake.append((0, path, families.FAMILIES["simt_gemm"]))
    # A long one that starts last would leave the other cores idle.
    cmake.sort(key=lambda row: -row[0])
    files["library.cpp"] = codegen.entry_point(configs, package=True)
    lines = ["set(CUTLASS_PY_SOURCES)\n"]
    for _, path, family in cmake:
        flags = " ".join(codegen.flags(family, family.gencode))
        lines.append(f'list(APPEND CUTLASS_PY_SOURCES "{path}")\n')
        lines.append(f'set_source_files_properties("{path}" PROPERTIES COMPILE_FLAGS "{flags}")\n')
    files["sources.cmake"] = "".join(lines)
    return files


def main() -> None:
    """Writes the files and removes kernel sources of an earlier selection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kernels", required=True, help="core, or a file with one kernel name per line")
    parser.add_argument("--archs", required=True, help="entries of CUTLASS_PY_ARCHS, separated by ;")
    parser.add_argument("--tables-only", action="store_true", help="for a build without CUDA")
    args = parser.parse_args()
    families = load_module("declaration.families")
    try:
        configs = families.select(args.kernels, args.archs.split(";"))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    files = tables() | ({} if args.tables_only else library(families, configs))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = args.out / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in args.out.glob("*.cu"):
        if path.name not in files:
            path.unlink()
    if not args.tables_only:
        print(f"{len(configs)} kernels in {sum(name.endswith('.cu') for name in files)} files")


if __name__ == "__main__":
    main()
