"""What the documents promise: examples, notebooks and snippets run as they stand, names and pages are there.

Links within the site are checked as it is built (mkdocs.yml).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py.declaration.config import SCHEDULES

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/notebooks/*.py")]
# Pages with programs; the quick start's are pieces of the examples.
SNIPPETS = sorted(page.stem for page in ROOT.glob("docs/*.md") if "\n```python\n" in page.read_text())
SNIPPETS.remove("quickstart")
TEXTS = [
    ROOT / "README.md",
    *(path for part in ("docs", "src", "examples", "benchmarks") for path in (ROOT / part).rglob("*.*")),
]


@pytest.mark.parametrize("device", ["", pytest.param("gpu", marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
@pytest.mark.parametrize("script", sorted(SCRIPTS), ids=lambda path: path.stem)
def test_scripts_run_in_an_empty_directory(script, device, tmp_path):
    """Examples say so and leave without their framework or a GPU; notebooks run anywhere."""
    printed = run(script, tmp_path, device)
    assert printed
    if device and "not installed" in printed.splitlines()[0]:
        pytest.skip(printed)


def run(script: Path, scratch: Path, device: str = "") -> str:
    """What it prints, in an empty directory that stays empty."""
    package = Path(cutlass_py.__file__).parent.parent  # a source tree on the path stays on it
    environment = os.environ | {"PYTHONPATH": str(package), "CUTLASS_PY_CACHE_DIR": str(scratch / "cache")}
    if not device:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    home = scratch / "empty"
    home.mkdir()
    done = subprocess.run([sys.executable, str(script)], cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(home.iterdir())
    return done.stdout


def program(page: Path) -> str:
    """The Python of a page as one program, each line where it stands there, on the CPU and on small arrays."""
    kept, inside, skipped, lines = [], False, False, page.read_text().splitlines()
    for line, before in zip(lines, ["", *lines], strict=False):
        if line.startswith("```"):
            inside, skipped = line == "```python", before.startswith("<!-- not run")
        kept.append(line if inside and not skipped and line != "```python" else "")
    return "\n".join(kept).replace('device="cuda"', 'device="cpu"').replace("2048, 14336, 4096", "32, 48, 64")


@pytest.mark.parametrize("page", ["README", *(f"docs/{name}" for name in SNIPPETS)])
def test_snippets_of_a_page_run_in_order(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text(program(ROOT / f"{page}.md"))
    for framework in ("torch", "jax"):
        if f"import {framework}" in script.read_text():
            pytest.importorskip(framework)
    run(script, tmp_path)


def test_the_map_names_every_source():
    """Each room has a row, which names its files by their stems and nothing else."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("## Map of the sources")[1].split("\n## ")[0]
    python, cpp = section.split("### C++: src/cpp")
    as_a_whole = {"commands", "bench", "torch", "jax", "include"}
    for part, home in ((python, ROOT / "src" / "cutlass_py"), (cpp, ROOT / "src" / "cpp")):
        rows = re.findall(r"^\| (?:`([\w/]+)/`|root) \|(.*)\|$", part, re.MULTILINE)
        named = {room: set(re.findall(r"`(\w+)`", files)) for room, files in rows}
        there: dict[str, set[str]] = {}
        for path in home.rglob("*.*"):
            room = path.relative_to(home).parent.as_posix().strip(".")
            if path.suffix in {".py", ".cpp", ".h", ".cu", ".cuh"} and not path.stem.startswith("__"):
                there.setdefault(room.split("/")[0] if room.split("/")[0] in as_a_whole else room, set()).add(path.stem)
        assert {room: set() if room in as_a_whole else files for room, files in there.items()} == named
    beside = re.findall(r"`([\w.]+\.\w+)`", cpp.rpartition("\n\n`cmake/`")[2])
    assert beside and [name for name in beside if not (ROOT / "cmake" / name).is_file()] == []


def test_every_decision_is_in_the_index():
    """And each says what it follows from, what it is, and what follows."""
    records = {path.name: path.read_text() for path in (ROOT / "docs" / "decisions").glob("0*.md")}
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in records.items()}
    assert {name: title for title, name in re.findall(r"\| \[(.+)\]\((\S+)\) \|", index)} == titles
    parts = ("\n**Context.** ", "\n**Decision.** ", "\n**Consequence.** ")
    assert [name for name, text in records.items() if not all(part in text for part in parts)] == []


def test_descriptions_name_every_schedule():
    table = (ROOT / "docs" / "discovery.md").read_text().splitlines()
    (row,) = (line for line in table if line.startswith("| `schedule` |"))
    assert set(re.findall(r"`(\w+)`", row)) == {"schedule", *(x.name for x in SCHEDULES.values() if not x.gemv)}


def test_imports_and_names_in_prose_are_there():
    """Of snippets that are not run too."""
    lacking = []
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/notebooks/*.py")):
        text = page.read_text()
        wanted = re.findall(r"from (cutlass_py[\w.]*) import (\w+)", text)
        wanted += [("cutlass_py", name) for name in re.findall(r"\bcutlass_py\.([A-Za-z_]\w*)", text)]
        for module, name in wanted:
            if module.startswith(("cutlass_py.torch", "cutlass_py.jax")) and not find_spec(module.split(".")[1]):
                continue
            if not hasattr(import_module(module), name) and not find_spec(f"{module}.{name}"):
                lacking.append((page.name, module, name))
    assert lacking == []


def test_results_that_are_named_are_there():
    """Raw ones are not in the repository."""
    named = {
        (path.relative_to(ROOT), name)
        for path in (*TEXTS, *ROOT.glob("tests/*.py"))
        if path.suffix in {".md", ".py", ".pyi", ".cpp", ".h", ".cuh", ".cu"}
        for name in re.findall(r"\bresults/[\w*-]+\.json", path.read_text())
    }
    assert [(str(path), name) for path, name in sorted(named) if not (ROOT / "benchmarks" / name).is_file()] == []


def test_pages_that_are_named_are_there():
    named = {
        (path.relative_to(ROOT), page)
        for path in TEXTS
        if path.suffix in {".md", ".py", ".pyi", ".cpp", ".h", ".cuh", ".cu"}
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
    }
    assert named
    assert [(str(path), page) for path, page in sorted(named) if not (ROOT / page).is_file()] == []
