"""MkDocs hook: each docs/notebooks/*.py (jupytext's percent format) is run, and becomes a page with what it printed."""

from __future__ import annotations

from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages join the others before links and navigation are checked."""
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.py")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page(path)))
    return files


def page(path: Path) -> str:
    """A notebook as Markdown, after all of it ran.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed, which fails the build.
    """
    notebook = jupytext.read(path)
    NotebookClient(notebook, kernel_name="python3", timeout=300, coalesce_streams=True).execute(cwd=str(path.parent))
    return MarkdownExporter().from_notebook_node(notebook)[0]
