"""The rooms of the package: which imports which, and how few modules stand outside of them."""

from __future__ import annotations

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
