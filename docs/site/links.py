"""MkDocs hook: pages named in prose ("docs/jit.md") become links; what was built is searched for dead and foreign ones.

MkDocs checks the links of Markdown pages. This checks all of the output: docstrings, notebooks and pictures included.
"""

from __future__ import annotations

import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, relpath
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.links")  # strict mode fails on what is logged here

_VERBATIM = re.compile(r"(<pre\b.*?</pre>|<a\b.*?</a>|<[^>]*>)", re.DOTALL)
_NAMED = re.compile(r"\bdocs/([\w/-]+\.md)\b")
_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}  # without a click


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links every docs/<page>.md that stands in text or inline code to that page."""

    def link(match: re.Match[str]) -> str:
        file = files.get_file_from_path(match[1])
        if file is None:
            log.warning("%s names %s, which is not there", page.file.src_uri, match[0])
            return match[0]
        return f'<a href="{relpath(file.url, dirname(page.url) or ".")}">{match[0]}</a>'

    parts = _VERBATIM.split(html)
    return "".join(part if i % 2 else _NAMED.sub(link, part) for i, part in enumerate(parts))


def on_post_build(config: MkDocsConfig) -> None:
    """Every link within the site has a target, and nothing is loaded from elsewhere."""
    root = Path(config.site_dir).resolve()
    pages = {path: Links(path) for path in root.rglob("*.html")}
    for path, page in pages.items():
        for tag, target in page.links:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if tag in _LOADED:
                    log.warning("%s loads %s from elsewhere", path.name, target)
                continue
            base = root if url.path.startswith("/") else path.parent  # the page of error 404 is served from anywhere
            file = (base / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if not file.exists():
                log.warning("%s: nothing is at %s", path.name, target)
            elif url.fragment and file in pages and unquote(url.fragment) not in pages[file].anchors:
                log.warning("%s: %s has no such anchor", path.name, target)


class Links(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors = {""}
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        target = found.get(_LOADED.get(tag, "href"))
        if target and found.get("rel") != "canonical" and not target.startswith("data:"):
            self.links.append((tag, target))
