"""The rooms of Python and C++: which may import or include which, and how few modules stand outside of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINTER = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(*options: str, directory: Path = ROOT) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", LINTER, "--no-cache", *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_no_room_imports_one_above_it_and_no_module_itself_in_a_circle():
    """pyproject.toml has the rooms in their order; imports anywhere in a file count."""
    done = lint()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


def test_a_circle_between_two_files_of_a_room_would_be_told(tmp_path):
    package = tmp_path / "rooms"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def late():\n    from . import b\n")
    (package / "b.py").write_text("from . import a\n")
    config = tmp_path / "contracts.toml"
    config.write_text(
        '[tool.importlinter]\nroot_package = "rooms"\n[[tool.importlinter.contracts]]\n'
        'name = "No circles"\ntype = "acyclic_siblings"\nancestors = ["rooms"]\n'
    )
    done = lint("--config", str(config), directory=tmp_path)
    assert done.returncode == 1 and "No circles BROKEN" in done.stdout, done.stdout + done.stderr


def test_few_modules_stand_outside_of_rooms():
    assert len(list((ROOT / "src" / "cutlass_py").glob("*.py"))) <= 5


# ---------------------------------------------------------------------------------------- C++

CPP = ROOT / "src" / "cpp"
# No room includes one that comes later.
ROOMS = (
    "kernels/freestanding",  # what NVRTC has no headers for
    "abi",  # what kernels and their callers agree on
    "kernels/common",
    "kernels/sm90",
    "kernels/cutlass2x",
    "kernels/cutlass3x",
    "kernels/elementwise",
    "kernels/quantize",
    "kernels",
    "include",  # second names, for users' sources
    "arrays",
    "runtime",  # engines that know no operation by name
    "operations/gemm",
    "operations/grouped_gemm",
    "operations/quantize",
    "frontends",
)


def room(path: str) -> str:
    return next(name for name in sorted(ROOMS, key=len, reverse=True) if path.startswith(f"{name}/"))


def test_no_room_includes_one_above_it():
    sources = [path for path in CPP.rglob("*.*") if path.is_file()]
    files = {str(path.relative_to(CPP)): path.read_text(encoding="utf-8") for path in sources}
    upwards = [
        (name, included)
        for name, text in files.items()
        for included in re.findall(r'#include "(.+)"', text)
        if included in files and ROOMS.index(room(included)) > ROOMS.index(room(name))
    ]
    assert len(files) > 80 and upwards == []


def test_engines_name_no_operation():
    for path in (CPP / "runtime").iterdir():
        assert not re.search(r"(?i)gemm", path.read_text(encoding="utf-8")), path.name
