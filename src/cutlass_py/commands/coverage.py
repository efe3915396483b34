"""What exists, as the two tables of the README: generated from the declaration, for `kernels --coverage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ..declaration.config import GemmConfig
from ..declaration.dtypes import COMPUTE, LAYOUTS, PAIRS, compute_of
from ..declaration.epilogues import EPILOGUES, Epilogue
from ..declaration.families import FAMILIES, named

_SETS = ("core", "declared")


def markdown() -> str:
    """Both tables."""
    return f"{_table(_kernels())}\n\n{_table(_epilogues())}"


def data() -> dict[str, list[dict[str, Any]]]:
    """Both tables as plain data: their cells by column; lists are lists, and counts numbers."""
    counts = dict.fromkeys(_SETS, lambda cell: int(cell or 0))
    functions = {f"f in {part}": str.split for part in _SETS}
    return {
        "kernels": _objects(_kernels(), {"layouts read": str.split, "results written": str.split, **counts}),
        "epilogues": _objects(_epilogues(), {"operands": str.split, "layouts": str.split, **functions}),
    }


def _objects(rows: list[list[str]], kinds: Mapping[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    head, *body = ([cell.strip("`") for cell in row] for row in rows)
    return [{name: kinds.get(name, str)(cell) for name, cell in zip(head, row, strict=True)} for row in body]


def _table(rows: list[list[str]]) -> str:
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def _listed(names: Iterable[str], order: Iterable[str]) -> str:
    names = set(names)
    return " ".join(name for name in order if name in names)


def _kernels() -> list[list[str]]:
    """One row for each arithmetic of a family."""
    rows = [["operands", "`compute`", "kernels", "on", "layouts read", "results written", *_SETS]]
    groups: dict[tuple[str, str, str], list[GemmConfig]] = {}
    for c in named("declared").values():
        groups.setdefault((_operands(c), compute_of(c.a, c.accumulator), c.family), []).append(c)
    for (operands, compute, name), configs in groups.items():
        family, members = FAMILIES[name], {c.name for c in configs}
        lowest, highest = family.cc
        capability = f"{lowest / 10:.1f}" + ("" if lowest == highest else " and newer")
        layouts = _listed((c.layout for c in configs), LAYOUTS)
        results = _listed((c.d for c in configs), dict.fromkeys(c.d for c in named("declared").values()))
        counts = [str(len(members & named(part).keys()) or "") for part in _SETS]
        rows.append([operands, f"`{compute}`", family.title, capability, layouts, results, *counts])
    return rows


def _operands(c: GemmConfig) -> str:
    for pair in PAIRS:
        if c.a in pair:
            return ", ".join(pair) + " in any pairing"
    inputs = [name for name, row in COMPUTE.items() if any(x.operand == c.a for x in row.values())]
    return ", ".join(inputs)


def _epilogues() -> list[list[str]]:
    """One row for each form of a fused epilogue and operands in layouts that have the same of its functions f."""
    rows = [["fused", "operands", "layouts", *(f"f in {part}" for part in _SETS)]]
    operands = dict.fromkeys(c.a for c in named("declared").values())
    forms: dict[tuple[Epilogue, bool], list[Epilogue]] = {}  # they differ in f alone, the one without any first
    for e in EPILOGUES.values():
        if not e.told or e.bias_grad:  # no more than what it can be told to be
            forms.setdefault((replace(e, name="", activation=""), e.derivative), []).append(e)
    for epilogues in forms.values():
        form = epilogues[-1].form("f")
        groups: dict[tuple[str, ...], list[str]] = {}  # operands by what their row says
        for operand in operands:
            held = [_layouts_of(part, operand) for part in _SETS]
            found = {part[e.name] for part in held for e in epilogues if e.name in part}
            for layouts in sorted(found, key=len):
                cells = _smallest(epilogues, [{name for name, x in part.items() if layouts <= x} for part in held])
                groups.setdefault((_listed(layouts, LAYOUTS), *cells), []).append(operand)
        rows += [[f"`{form}`", " ".join(names), *cells] for cells, names in groups.items()]
    return rows


def _layouts_of(part: str, operand: str) -> dict[str, frozenset[str]]:
    """The layouts in which a set fuses each epilogue, by its name."""
    found: dict[str, set[str]] = {}
    for name, layout in {(c.epilogue, c.layout) for c in named(part).values() if c.a == operand}:
        for other in _covered(name):
            found.setdefault(other, set()).add(layout)
    return {name: frozenset(layouts) for name, layouts in found.items()}


@cache
def _covered(name: str) -> list[str]:
    """The epilogues that kernels of this one fuse."""
    return [other.name for other in EPILOGUES.values() if EPILOGUES[name].covers(other)]


def _smallest(epilogues: list[Epilogue], sets: list[set[str]]) -> list[str]:
    """Their functions, each in the cell of the smallest set that holds it."""
    cells, seen, one = [], set[str](), len(epilogues) == 1
    for names in sets:
        found = [e for e in epilogues if e.name in names - seen]
        cells.append(" ".join("yes" if one and not e.told else " ".join(e.functions) for e in found))
        seen |= names
    return cells
