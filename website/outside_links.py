"""Links of pages to files outside docs/: they lead to the repository, or are shown as code where none is configured."""

from __future__ import annotations

import logging
import posixpath
from pathlib import Path
from urllib.parse import quote, urlsplit
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

AFTER_INLINE_BEFORE_MKDOCS = 10
"""Priority between those of Markdown's inline patterns, 20, and of the check of links by MkDocs, 0."""
log = logging.getLogger("mkdocs.hooks.outside_links")


def outside(link: str, page: str) -> str | None:
    """Return the path in the repository that a link of a page leads to, or None where it stays in docs/.

    Args:
        link: Relative link.
        page: Path of the page in docs/.
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), parts.path))
    return None if path == "docs" or path.startswith("docs/") else path


class OutsideLinks(Extension):
    """Markdown extension that treats links to files outside docs/.

    Attributes:
        page: Path in docs/ of the page that is rendered.
    """

    def __init__(self, repository: Path, repository_url: str | None) -> None:
        super().__init__()
        self.repository, self.repository_url, self.page = repository, repository_url, ""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the treatment of links."""
        md.treeprocessors.register(_Treatment(md, self), "outside_links", AFTER_INLINE_BEFORE_MKDOCS)

    def treat(self, link: Element) -> None:
        """Lead a link that leaves docs/ to the repository, or make it code."""
        path = outside(link.get("href", ""), self.page)
        if path is None:
            return
        if path.startswith("../") or not (self.repository / path).exists():
            log.warning("Doc file '%s' contains a link to '%s', which does not exist.", self.page, path)
        elif self.repository_url:
            kind = "tree" if (self.repository / path).is_dir() else "blob"
            link.set("href", f"{self.repository_url.rstrip('/')}/{kind}/main/{quote(path)}")
        else:
            link.tag = "code" if link.find("code") is None else "span"
            del link.attrib["href"]
            link.set("title", f"In the repository: {path}")


class _Treatment(Treeprocessor):
    def __init__(self, md: Markdown, links: OutsideLinks) -> None:
        super().__init__(md)
        self.links = links

    def run(self, root: Element) -> None:
        for link in root.iter("a"):
            self.links.treat(link)
