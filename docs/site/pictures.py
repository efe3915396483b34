"""MkDocs hook: the pictures of docs/performance.md, drawn from benchmarks/results/ and put where the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_PLACE = re.compile(r"<!-- pictures of (\S+): docs/site/pictures.py -->")
_SHOWN = """![Ratios to cuBLAS over the size of the problem](performance/{0}/ratio.svg)

![What both reach, beside the limits of memory and tensor cores](performance/{0}/roofline.svg)"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pictures join the other files."""
    sys.path.insert(0, str(Path(config.docs_dir).parent / "benchmarks"))
    import performance

    with TemporaryDirectory() as scratch:
        for path in performance.draw_all(performance.results(), Path(scratch)):
            place = f"performance/{path.relative_to(scratch).as_posix()}"
            files.append(File.generated(config, place, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to the pictures take the comments' places."""
    return _PLACE.sub(lambda place: _SHOWN.format(place[1]), markdown)
